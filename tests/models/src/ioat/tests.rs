use super::*;
use crate::testing::TestMachine;

const RING: u64 = 0x1000;
const COMPLETION: u64 = 0x2000;
const CHANNEL0: u64 = CHANNEL;
/// Offset of the PCI Express capability.
const EXPRESS: u64 = 0x5c;

/// An engine with one channel, driven by the test.
struct Driver {
    ioat: Ioat,
    machine: TestMachine,
    now: Nanoseconds,
}

impl Driver {
    fn new(fault: Option<Fault>) -> Self {
        let mut ioat = Ioat::new(Config { device: 0x0e20, channels: 1, version: 0x32, fault });
        ioat.config.write(0x04, &6u16.to_le_bytes());
        // Device Control, behind MSI-X: ordered, snooped.
        ioat.config.write(EXPRESS + 8, &0x2000u16.to_le_bytes());
        assert!(!ioat.config.may_reorder() && !ioat.config.may_bypass_caches());
        let mut driver = Driver { ioat, machine: TestMachine::new(1 << 16), now: 0 };
        driver.write(0x03, &[MASTER_ENABLE | MSIX_BY_CHANNEL]);
        driver.write(CHANNEL0, &0x1du16.to_le_bytes());
        driver.set_addresses();
        driver
    }

    /// Writes CHANCMP and CHAINADDR.
    fn set_addresses(&mut self) {
        for (offset, address) in [(0x18, COMPLETION), (0x10, RING)] {
            self.write(CHANNEL0 + offset, &(address as u32).to_le_bytes());
            self.write(CHANNEL0 + offset + 4, &((address >> 32) as u32).to_le_bytes());
        }
    }

    /// Advances time until no work is due.
    fn settle(&mut self) {
        while let Some(due) = self.ioat.poll(self.now, &mut self.machine) {
            self.now = due;
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.ioat.write(0, offset, bytes, self.now, &mut self.machine);
    }

    fn read(&mut self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.ioat.read(0, offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Writes a copy descriptor to the ring, with completion write and interrupt.
    fn copy(&mut self, slot: u64, source: u64, destination: u64, size: u32) {
        let next = RING + (slot + 1) * 64;
        let control = 0x9u32;
        let mut bytes = Vec::new();
        bytes.extend(size.to_le_bytes());
        bytes.extend(control.to_le_bytes());
        [source, destination, next].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        self.machine.write(RING + slot * 64, &bytes).unwrap();
    }

    /// Submits `count` descriptors, and advances time until no work is due.
    fn run(&mut self, count: u16) {
        self.write(CHANNEL0 + 0x06, &count.to_le_bytes());
        self.settle();
    }

    fn completion(&mut self) -> u64 {
        number(&self.machine.memory[COMPLETION as usize..][..8])
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.ioat.counters();
        counters.iter().find(|(n, _)| n == name).map(|(_, count)| *count).unwrap()
    }
}

#[test]
fn a_chain_of_copies_is_executed_in_order_and_on_time() {
    let mut driver = Driver::new(None);
    driver.machine.memory[0x4000..0x4010].copy_from_slice(b"sixteen bytes!!!");
    driver.copy(0, 0x4000, 0x5000, 16);
    driver.copy(1, 0x5000, 0x6000, 16);
    driver.write(CHANNEL0 + 0x06, &2u16.to_le_bytes());
    assert_eq!(driver.completion(), 0, "a copy takes time");
    driver.run(2);
    assert_eq!(&driver.machine.memory[0x6000..0x6010], b"sixteen bytes!!!");
    assert_eq!(driver.completion(), (RING + 64) | 1);
    assert_eq!(driver.read(CHANNEL0 + 0x08), (RING + 64) | 1);
    assert_eq!((driver.counter("channel0.copies"), driver.counter("channel0.bytes")), (2, 32));
    assert!(driver.now >= 2_000);
}

#[test]
fn an_interrupt_waits_for_the_rearm() {
    let mut driver = Driver::new(None);
    driver.copy(0, 0x4000, 0x5000, 16);
    driver.copy(1, 0x4000, 0x5000, 16);
    driver.run(2);
    assert_eq!(driver.machine.interrupts, [Interrupt::Msix(0)]);
    assert_eq!(driver.read(0x04) & 0xffff_ffff, 1);
    assert_eq!(driver.read(0x04) & 0xffff_ffff, 0, "the read clears it");
    driver.write(CHANNEL0, &0x1du16.to_le_bytes());
    assert_eq!(driver.machine.interrupts, [Interrupt::Msix(0); 2]);
    driver.write(CHANNEL0, &0x1du16.to_le_bytes());
    assert_eq!(driver.machine.interrupts.len(), 2, "no interrupt is pending");
}

#[test]
fn an_invalid_descriptor_halts_the_channel_until_reset() {
    for (source, destination, size, errors) in [
        (0x10_0000, 0x5000, 16, 0x100),
        (0x4000, u64::MAX - 4, 16, 0x200),
        (0x4000, 0x5000, 0, 0x800),
        (0x4000, 0x5000, (1 << 20) + 1, 0x800),
    ] {
        let mut driver = Driver::new(None);
        driver.copy(0, source, destination, size);
        driver.run(1);
        assert_eq!(driver.read(CHANNEL0 + 0x08), 3, "{source:#x} {destination:#x} {size}");
        assert_eq!(driver.read(CHANNEL0 + 0x28) & 0xffff_ffff, errors);
        assert_eq!(driver.completion(), 3);
        driver.write(CHANNEL0 + 0x04, &[0x20]);
        assert_eq!(driver.read(CHANNEL0 + 0x04) & 0x20, 0x20, "a reset takes time");
        driver.settle();
        assert_eq!(driver.read(CHANNEL0 + 0x04) & 0x20, 0);
        assert_eq!(driver.read(CHANNEL0 + 0x28) & 0xffff_ffff, 0);
        driver.write(CHANNEL0, &0x1du16.to_le_bytes());
        driver.set_addresses();
        driver.copy(0, 0x4000, 0x5000, 8);
        driver.run(1);
        assert_eq!(driver.completion(), RING | 1);
    }
}

#[test]
fn without_bus_mastering_no_memory_is_touched() {
    let mut driver = Driver::new(None);
    driver.ioat.config.write(0x04, &2u16.to_le_bytes());
    driver.copy(0, 0x4000, 0x5000, 16);
    driver.run(1);
    assert_eq!(driver.read(CHANNEL0 + 0x08), 3);
    assert_eq!(driver.counter("channel0.copies"), 0);
}

#[test]
fn each_fault_is_detectable() {
    for (name, fault) in Fault::ALL {
        let mut driver = Driver::new(Some(fault));
        driver.machine.memory[0x4000..0x4010].fill(7);
        driver.copy(0, 0x4000, 0x5000, 16);
        driver.run(1);
        let right = driver.machine.memory[0x5000..0x5010] == [7; 16]
            && driver.completion() == RING | 1
            && driver.machine.interrupts.len() == 1;
        assert!(!right, "{name}");
    }
}

#[test]
fn a_64_bit_store_to_an_address_is_ignored() {
    let mut driver = Driver::new(None);
    driver.write(CHANNEL0 + 0x18, &0xdead_0000u64.to_le_bytes());
    driver.write(CHANNEL0 + 0x10, &0xdead_0000u64.to_le_bytes());
    assert_eq!((driver.read(CHANNEL0 + 0x18), driver.read(CHANNEL0 + 0x10)), (COMPLETION, RING));
    assert_eq!(driver.counter("complaints"), 1);
}

#[test]
fn an_active_channel_is_reset_only_once_it_is_suspended() {
    let mut driver = Driver::new(None);
    (0..8).for_each(|slot| driver.copy(slot, 0x4000, 0x5000, 16));
    driver.write(CHANNEL0 + 0x06, &8u16.to_le_bytes());
    driver.write(CHANNEL0 + 0x04, &[0x20]);
    driver.now += 1_500;
    driver.ioat.poll(driver.now, &mut driver.machine);
    assert_eq!(driver.counter("channel0.copies"), 1, "it goes on");
    assert_eq!((driver.read(CHANNEL0 + 0x04) & 0x20, driver.counter("complaints")), (0x20, 1));
    driver.write(CHANNEL0 + 0x04, &[0x04]);
    assert_eq!(driver.read(CHANNEL0 + 0x08) & 7, 0, "suspending takes time");
    driver.settle();
    assert_eq!((driver.read(CHANNEL0 + 0x04) & 0x20, driver.read(CHANNEL0 + 0x10)), (0, 0));
}

#[test]
fn completion_overtakes_data_while_ordering_is_relaxed() {
    let mut driver = Driver::new(None);
    driver.ioat.config.write(EXPRESS + 8, &0x2010u16.to_le_bytes());
    driver.machine.memory[0x4000..0x4010].fill(7);
    driver.copy(0, 0x4000, 0x5000, 16);
    driver.write(CHANNEL0 + 0x06, &1u16.to_le_bytes());
    driver.now += 1_000;
    driver.ioat.poll(driver.now, &mut driver.machine);
    assert_eq!((driver.completion(), driver.machine.memory[0x5000]), (RING | 1, 0));
    driver.settle();
    assert_eq!(driver.machine.memory[0x5000], 7);
    assert_eq!(driver.counter("complaints"), 1);
}
