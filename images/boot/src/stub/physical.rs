//! Access to data of the boot loader and the firmware in memory below 4 GiB.

/// End of the memory that the entry point mapped one to one.
const MAPPED: u64 = 4 << 30;

/// `len` bytes at `address`.
///
/// # Safety
/// There is memory at `address`, which the boot loader or the firmware has written, and which is not written as long as
/// the bytes are used.
pub unsafe fn bytes<'a>(address: u64, len: u64) -> &'a [u8] {
    check(address, len);
    // SAFETY: mapped and shorter than 4 GiB (checked); it is memory that was written, and is not written any more (the
    // caller's promises). A byte has no alignment, and any byte is a u8.
    unsafe { core::slice::from_raw_parts(address as usize as *const u8, len as usize) }
}

/// Refuses memory that is not mapped.
pub fn check(address: u64, len: u64) {
    if address.checked_add(len).is_none_or(|end| end > MAPPED) {
        super::fatal("the boot loader put its information above 4 GiB");
    }
}
