//! Values and strings that the boot loader or the firmware has put in memory.

use crate::stub::physical::{bytes, check};

/// Copies a value at `address` (any alignment).
///
/// # Safety
/// Any bit pattern is a valid `T`, and there is memory at `address`, so that reading it has no side effect.
pub unsafe fn read<T: Copy>(address: u64) -> T {
    check(address, size_of::<T>() as u64);
    // SAFETY: mapped (checked); it is memory, and any bit pattern is a valid T (the caller's promises).
    unsafe { (address as usize as *const T).read_unaligned() }
}

/// The bytes of a NUL-terminated string; empty if there is none.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn string<'a>(address: u64) -> &'a [u8] {
    if address == 0 {
        return &[];
    }
    let mut len = 0;
    // SAFETY: any byte is a u8.
    while unsafe { read::<u8>(address + len) } != 0 {
        len += 1;
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(address, len) }
}

/// Searches for the ACPI root pointer at the locations of a BIOS (ACPI 6.5, 5.2.5.1); 0 if it is not found.
pub fn find_rsdp() -> u64 {
    // SAFETY: any two bytes are a u16.
    let extended_bios_data = u64::from(unsafe { read::<u16>(0x40e) }) << 4;
    let places = [(extended_bios_data, extended_bios_data + 1024), (0xe_0000, 0x10_0000)];
    let candidates =
        places.into_iter().filter(|p| p.0 >= 0x1000).flat_map(|(s, e)| (s..e).step_by(16));
    // SAFETY: any eight bytes are an array of bytes.
    candidates.into_iter().find(|&a| unsafe { read::<[u8; 8]>(a) } == *b"RSD PTR ").unwrap_or(0)
}
