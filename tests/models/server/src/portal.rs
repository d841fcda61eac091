//! Portals: a BAR that takes descriptors of 64 bytes, each in one write, for which a CPU needs MOVDIR64B.
//!
//! Such a BAR cannot be trapped under KVM, whose emulator does not know the instruction (Linux 6.12,
//! arch/x86/kvm/emulate.c: of `opcode_map_0f_38` all from 0xf2 on is `N`, and MOVDIR64B is 66 0f 38 f8). So the BAR is
//! memory. QEMU maps it into the guest from the file in the reply to DEVICE_GET_REGION_INFO. Writes raise no event: the
//! server polls the memory.
//!
//! A descriptor has its operation and flags in the first word of its slot. The instruction's write is seen whole. A
//! guest that uses ordinary stores must store the first word last. A second write to a slot before the server has read
//! it overwrites the first descriptor. Isthmus' driver has one descriptor in flight per queue. Linux's driver advances
//! by 64 bytes each time, so it reuses a slot after 64 descriptors, as many as all queues of the model hold. Two CPUs
//! that submit at the same time may use the same slot (comment of `idxd_wq_portal_addr` in drivers/dma/idxd/idxd.h), so
//! guests of this server have one CPU, or a queue for each.

use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use models::Bar;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Words of a slot.
const WORDS: usize = 8;

/// The memory of a BAR to which a guest writes descriptors.
pub struct Portal {
    bar: Bar,
    file: OwnedFd,
    memory: NonNull<AtomicU64>,
}

impl Portal {
    /// Creates an empty portal of the BAR's size.
    pub fn new(bar: Bar) -> std::io::Result<Self> {
        let file = memfd_create("portal", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bar.size)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let memory =
            unsafe { mmap(null_mut(), bar.size as usize, access, MapFlags::SHARED, &file, 0) }?;
        let memory = NonNull::new(memory.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Portal { bar, file, memory })
    }

    /// The portal's BAR.
    pub fn bar(&self) -> Bar {
        self.bar
    }

    /// The file that QEMU maps.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `memory` is the beginning of a mapping of `bar.size` bytes, aligned to a page, that lives as long as
        // `self`. QEMU, which has mapped the file, and this process write there at the same time: through atomic words
        // only.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bar.size as usize / 8) }
    }

    /// Takes the written descriptors, each with its offset in the BAR. An incomplete descriptor is left.
    pub fn take(&self) -> impl Iterator<Item = (u64, [u8; 8 * WORDS])> + '_ {
        let slots = self.words().chunks_exact(WORDS).enumerate();
        slots.filter_map(|(number, slot)| {
            // Acquire: the other words are read after the first.
            if slot[0].load(Ordering::Acquire) == 0 {
                return None;
            }
            let mut descriptor = [0; 8 * WORDS];
            for (word, bytes) in slot.iter().zip(descriptor.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            slot.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            Some(((8 * WORDS * number) as u64, descriptor))
        })
    }
}

impl Drop for Portal {
    fn drop(&mut self) {
        // SAFETY: `memory` was mapped with this size. Only this portal refers to it, and it is being dropped. If munmap
        // fails, the memory stays mapped until the process ends.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bar.size as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::message::{CONFIG_REGION, Message};
    use models::dsa::Dsa;

    const BAR: Bar = Bar { index: 2, size: 0x1_0000 };
    const RAM: u64 = 0x10_0000;

    /// Sends the device a request with this command number and these files.
    fn ask(
        device: &mut Device,
        command: u16,
        body: &[u8],
        files: Vec<OwnedFd>,
    ) -> crate::device::Answer {
        let mut bytes = vec![0, 0];
        bytes.extend(command.to_le_bytes());
        bytes.extend((16 + body.len() as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        let message = Message::first(&bytes).unwrap().unwrap();
        device.handle(&message, files, 0).unwrap()
    }

    fn write(device: &mut Device, region: u32, offset: u64, value: u32) {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend([region, 4, value].iter().flat_map(|word| word.to_le_bytes()));
        let answer = ask(device, 10, &body, Vec::new());
        assert_eq!(answer.bytes[8], 1, "offset {offset:#x} of region {region}: {answer:?}");
    }

    /// A second mapping of a file, as QEMU has it.
    fn map(file: &OwnedFd, size: usize) -> &'static [AtomicU64] {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address. The mapping is never removed.
        unsafe {
            let memory = mmap(null_mut(), size, access, MapFlags::SHARED, file, 0).unwrap();
            std::slice::from_raw_parts(memory.cast(), size / 8)
        }
    }

    fn has_movdir64b() -> bool {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & 1 << 28 != 0
    }

    /// Writes a descriptor: with MOVDIR64B, or with eight stores.
    fn submit(slot: &[AtomicU64], descriptor: &[u64; WORDS], instruction: bool) {
        let at = slot[..WORDS].as_ptr();
        if instruction && has_movdir64b() {
            assert!(at.addr().is_multiple_of(64));
            // SAFETY: the CPU has `movdir64b rax, [rcx]`, which reads 64 bytes of `descriptor` and writes as many to
            // `at`, which are eight aligned words of a mapping that is never removed.
            unsafe {
                std::arch::asm!("sfence", ".byte 0x66, 0x0f, 0x38, 0xf8, 0x01", "sfence",
                    in("rax") at, in("rcx") descriptor.as_ptr(), options(nostack, preserves_flags));
            }
            return;
        }
        for (word, value) in slot.iter().zip(descriptor).rev() {
            word.store(*value, Ordering::Release);
        }
    }

    #[test]
    fn descriptors_are_taken_once_and_complete() {
        let portal = Portal::new(BAR).unwrap();
        let guest = map(portal.file(), BAR.size as usize);
        assert_eq!(portal.take().count(), 0);
        guest[8 * 1023 + 7].store(9, Ordering::Relaxed);
        assert_eq!(portal.take().count(), 0, "its first word is not there yet");
        guest[8 * 1023].store(5, Ordering::Release);
        guest[8 * 3].store(6, Ordering::Release);
        let taken: Vec<_> = portal.take().collect();
        assert_eq!((taken.len(), taken[0].0, taken[1].0), (2, 3 * 64, 1023 * 64));
        assert_eq!((taken[1].1[0], taken[1].1[56]), (5, 9));
        assert_eq!(portal.take().count(), 0);
        assert!(guest.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }

    /// The reply to the region request has the file. A client that has mapped it writes a descriptor, and the model
    /// executes it.
    #[test]
    fn descriptors_of_another_mapping_are_executed() {
        let mut device = Device::new(Box::new(Dsa::new(None))).unwrap();
        let region = |index: u32| [32, 0, index, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
        let answer = ask(&mut device, 5, &region(0), Vec::new());
        assert!(answer.file.is_none() && answer.bytes[16 + 4] == 3, "{answer:?}");
        let answer = ask(&mut device, 5, &region(2), Vec::new());
        assert_eq!(answer.bytes[16 + 4], 7, "it can be mapped");
        let portal = map(&answer.file.expect("a file comes with it"), BAR.size as usize);

        let ram = memfd_create("ram", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&ram, 0x4000).unwrap();
        let memory = map(&ram, 0x4000);
        let mut body = [32u32, 3].map(u32::to_le_bytes).concat();
        body.extend([0, RAM, 0x4000].map(u64::to_le_bytes).concat());
        ask(&mut device, 2, &body, vec![ram]);
        memory[0].store(0x1122_3344_5566_7788, Ordering::Relaxed);

        // Memory space and bus mastering are enabled; a queue of 16 is in group 0 with engine 0.
        let mut now = 0;
        assert_eq!(device.poll(now), None, "not polled before its BARs are decoded");
        write(&mut device, CONFIG_REGION, 4, 6);
        for (at, value) in [(0x400, 1), (0x420, 1), (0x600, 16), (0x608, 0xa1), (0x60c, 21)] {
            write(&mut device, 0, at, value);
        }
        for command in [1u32 << 20, 6 << 20] {
            write(&mut device, 0, 0xa0, command);
            now += 1_000_000;
            device.poll(now);
        }
        for (slot, instruction) in [(5, false), (6, true)] {
            let (operation, record) = (3 << 56 | 0xc << 32, RAM + 0x1000 + 32 * slot);
            let to = RAM + 0x2000 + 8 * slot;
            let descriptor = [operation, record, RAM, to, 8, 0, 0, 0];
            submit(&portal[0x1000 / 8 + 8 * slot as usize..], &descriptor, instruction);
            let again = device.poll(now).expect("it is polled again");
            assert!(again > now && again <= now + 100_000);
            now += 1_000_000;
            device.poll(now);
            let at = |address: u64| memory[(address - RAM) as usize / 8].load(Ordering::Relaxed);
            assert_eq!((at(to), at(record) & 0x7f), (0x1122_3344_5566_7788, 1), "{slot}");
        }
        // An unknown operation is counted as failed.
        portal[0].store(0xff << 56, Ordering::Release);
        device.poll(now);
        device.poll(now + 1_000_000);
        let counters = device.function().counters();
        for (name, count) in [("copies", 2), ("torn", 0), ("failed", 1)] {
            assert!(counters.contains(&(name.into(), count)), "{counters:?}");
        }
    }
}
