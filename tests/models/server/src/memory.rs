//! Guest memory: files that QEMU passes with DMA_MAP, mapped here and looked up by bus address.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use models::{Memory, Unreachable};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A range of bus addresses.
struct Mapping {
    address: u64,
    size: u64,
    writable: bool,
    /// None if QEMU passed no file for the range: a ROM, or another device's BAR.
    memory: Option<NonNull<u8>>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: `memory` was mapped with this size. Only this `Mapping` refers to it, and it is being dropped.
            // If munmap fails, the memory stays mapped until the process ends.
            let _ = unsafe { munmap(memory.as_ptr().cast(), self.size as usize) };
        }
    }
}

// SAFETY: the mapping belongs to the process, and does not depend on the thread.
unsafe impl Send for Mapping {}

/// The memory of a guest, shared by its function and a joined function of another guest.
#[derive(Default)]
pub struct SharedMemory(Mutex<GuestMemory>);

impl SharedMemory {
    /// Locks the memory for one access.
    pub fn lock(&self) -> MutexGuard<'_, GuestMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for SharedMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.lock().read(address, into)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        self.lock().write(address, bytes)
    }
}

/// All memory that a function can reach.
#[derive(Default)]
pub struct GuestMemory {
    mappings: Vec<Mapping>,
}

impl GuestMemory {
    /// Adds a range of bus addresses. Its contents are in `file` from `offset` on.
    pub fn map(
        &mut self,
        address: u64,
        size: u64,
        writable: bool,
        file: Option<(OwnedFd, u64)>,
    ) -> std::io::Result<()> {
        let overlaps = |m: &Mapping| {
            address < m.address.saturating_add(m.size) && m.address < address.saturating_add(size)
        };
        if size == 0 || address.checked_add(size).is_none() || self.mappings.iter().any(overlaps) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let memory = match file {
            None => None,
            Some((file, offset)) => {
                let access =
                    if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
                // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
                let memory = unsafe {
                    mmap(
                        std::ptr::null_mut(),
                        size as usize,
                        access,
                        MapFlags::SHARED,
                        &file,
                        offset,
                    )
                }?;
                NonNull::new(memory.cast())
            }
        };
        self.mappings.push(Mapping { address, size, writable, memory });
        Ok(())
    }

    /// Removes the mappings inside this range, or all with `all`.
    pub fn unmap(&mut self, address: u64, size: u64, all: bool) {
        let end = address.saturating_add(size);
        self.mappings.retain(|m| !all && (m.address < address || m.address + m.size > end));
    }

    /// Reads guest memory.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        let base = into.as_mut_ptr();
        self.pieces(address, into.len(), false, |guest, at, length| {
            // SAFETY: `pieces` passes `length` bytes of a live mapping, and `at + length` is at most the
            // length of `into`. The guest may write there at the same time: the bytes are then arbitrary, as
            // with DMA, and every byte value is a valid number.
            unsafe { std::ptr::copy_nonoverlapping(guest, base.add(at), length) }
        })?;
        fence(Ordering::Acquire);
        Ok(())
    }

    /// Writes guest memory, after all earlier writes. Aligned words are written whole.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        fence(Ordering::Release);
        self.pieces(address, bytes.len(), true, |guest, at, length| {
            let part = &bytes[at..at + length];
            match part.len() {
                8 if guest.addr().is_multiple_of(8) => {
                    let value = u64::from_ne_bytes(part.try_into().expect("eight bytes"));
                    // SAFETY: eight aligned bytes of a live mapping, which nothing here borrows.
                    unsafe { AtomicU64::from_ptr(guest.cast()) }.store(value, Ordering::Release);
                }
                4 if guest.addr().is_multiple_of(4) => {
                    let value = u32::from_ne_bytes(part.try_into().expect("four bytes"));
                    // SAFETY: four aligned bytes of a live mapping, which nothing here borrows.
                    unsafe { AtomicU32::from_ptr(guest.cast()) }.store(value, Ordering::Release);
                }
                // SAFETY: `length` bytes of a live mapping, and as many of `bytes`.
                _ => unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), guest, length) },
            }
        })
    }

    /// Calls `visit` for each mapped piece of a range of bus addresses: pointer, offset in the range, length. Visits
    /// nothing unless the whole range can be reached.
    fn pieces(
        &self,
        address: u64,
        length: usize,
        write: bool,
        mut visit: impl FnMut(*mut u8, usize, usize),
    ) -> Result<(), Unreachable> {
        let mut found: Vec<(*mut u8, usize, usize)> = Vec::new();
        let mut at = 0;
        while at < length {
            let wanted = address.checked_add(at as u64).ok_or(Unreachable(address))?;
            let covers = |m: &&Mapping| m.address <= wanted && wanted < m.address + m.size;
            let mapping = self.mappings.iter().find(covers).ok_or(Unreachable(wanted))?;
            let memory = mapping.memory.filter(|_| mapping.writable || !write);
            let memory = memory.ok_or(Unreachable(wanted))?;
            let offset = wanted - mapping.address;
            let count = (mapping.size - offset).min((length - at) as u64) as usize;
            // SAFETY: `offset` is less than the size of the mapping.
            found.push((unsafe { memory.as_ptr().add(offset as usize) }, at, count));
            at += count;
        }
        found.into_iter().for_each(|(guest, at, count)| visit(guest, at, count));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn file(size: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, size).unwrap();
        file
    }

    #[test]
    fn accesses_across_two_mappings_are_contiguous() {
        let mut memory = GuestMemory::default();
        let ram = file(0x2000);
        // Maps the file's two pages in reverse order.
        memory.map(0x10000, 0x1000, true, Some((ram.try_clone().unwrap(), 0x1000))).unwrap();
        memory.map(0x11000, 0x1000, true, Some((ram, 0))).unwrap();
        memory.write(0x10ffc, b"spanning").unwrap();
        let mut read = [0; 8];
        memory.read(0x10ffc, &mut read).unwrap();
        assert_eq!(&read, b"spanning");
        memory.write(0x10ffd, b"odd").unwrap();
        memory.read(0x10ffc, &mut read).unwrap();
        assert_eq!(&read, b"soddning");
        memory.write(0x10008, &7u64.to_le_bytes()).unwrap();
        memory.read(0x10008, &mut read).unwrap();
        assert_eq!(u64::from_le_bytes(read), 7);
    }

    #[test]
    fn access_to_an_unmapped_or_read_only_part_fails_as_a_whole() {
        let mut memory = GuestMemory::default();
        memory.map(0x1000, 0x1000, true, Some((file(0x1000), 0))).unwrap();
        memory.map(0x2000, 0x1000, false, Some((file(0x1000), 0))).unwrap();
        memory.map(0x4000, 0x1000, true, None).unwrap();
        assert_eq!(memory.write(0x1ffc, &[1; 8]), Err(Unreachable(0x2000)));
        let mut read = [9; 8];
        memory.read(0x1ffc, &mut read).unwrap();
        assert_eq!(read, [0; 8], "no part was written");
        assert_eq!(memory.read(0x2ffc, &mut read), Err(Unreachable(0x3000)));
        assert_eq!(memory.read(0x4000, &mut read), Err(Unreachable(0x4000)));
        assert!(memory.read(u64::MAX - 3, &mut read).is_err());
        assert!(memory.map(0x1800, 0x1000, true, None).is_err(), "overlaps");
        assert!(memory.map(u64::MAX, 2, true, None).is_err());
        memory.unmap(0x1000, 0x2000, false);
        assert!(memory.read(0x1000, &mut read).is_err() && memory.read(0x2000, &mut read).is_err());
        memory.unmap(0, 0, true);
        assert!(memory.mappings.is_empty());
    }
}
