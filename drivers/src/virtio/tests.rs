//! Tests of discovery, and of setup with devices whose registers have arbitrary values.

use super::Error;
use super::model::register_models::AnyWidth;
use super::model::{Machine, Model};
use crate::driver::{Class, Slot};
use crate::hal::{
    Arena, Clock, Instant, Interrupt, Location, PciAddress, Platform, Registers, Window,
};
use crate::inventory::{Inventory, Unclaimed};
use crate::pci::model::ConfigSpaces;
use alloc::boxed::Box;
use proptest::prelude::*;
use std::string::ToString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

const MODERN: u64 = 1 << 32;
const NET: [u8; 12] = [0x52, 0x54, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0];

#[test]
fn devices_are_found_in_order_and_one_that_fails_fails_alone() {
    let mut machine = Machine::new(8 << 20);
    for device in [9, 3, 5] {
        let mut config = NET;
        config[5] = device;
        let model = Model::new(&machine, 1, MODERN | 1 << 5, &config, &[64, 64]);
        machine.plug_pci(device, &model);
    }
    let balloon = Model::new(&machine, 5, MODERN, &[], &[64]);
    machine.plug_pci(4, &balloon);
    let no_capabilities = Model::new(&machine, 2, MODERN, &[], &[64]);
    machine.plug_pci(6, &no_capabilities);
    machine.spaces.function(PciAddress::new(0, 0, 6, 0), 0x1af4, 0x1042);
    machine.spaces.function(PciAddress::new(0, 0, 31, 0), 0x8086, 0x2918).set32(8, 0x0601_0002);
    let entropy = Model::new(&machine, 4, MODERN, &[], &[64]);
    machine.plug_mmio(&entropy, 2);
    let from_the_future = Model::new(&machine, 4, MODERN, &[], &[64]);
    machine.plug_mmio(&from_the_future, 3);

    let mut found = machine.find();
    let show = |u: &Unclaimed| (u.location.to_string(), u.id, u.class, u.error);
    let unclaimed: Vec<_> = found.unclaimed.iter().map(show).collect();
    assert_eq!(
        unclaimed,
        [
            ("pci:0000:00:04.0".to_string(), (0x1af4, 0x1045), 0, None),
            ("pci:0000:00:1f.0".to_string(), (0x8086, 0x2918), 0x060100, None),
            ("mmio:0xfeb00200".to_string(), (0x1af4, 0x1040), 0, Some(Error::Version(3))),
        ]
    );
    let entropy = found.take(Class::Entropy);
    assert_eq!(entropy[0].location(), Location::mmio(0xfeb0_0000));
    let clock = machine_clock();
    let wrong = entropy[0].open_disks(&mut machine, &clock).err().unwrap().to_string();
    assert!(wrong.contains("another class"), "{wrong}");
    let disks = found.take(Class::Disks);
    let missing = disks[0].open_disks(&mut machine, &clock).err().unwrap().to_string();
    assert_eq!(missing, "device has no usable common configuration");
    let ports: Vec<_> = found
        .take(Class::Port)
        .into_iter()
        .map(|device| device.open_port(&mut machine, &|_| None, &clock).unwrap())
        .collect();
    let last_of_mac: Vec<u8> = ports.iter().map(|port| port.mac()[5]).collect();
    assert_eq!(last_of_mac, [3, 5, 9]);
}

/// A clock that advances by an hour at each reading, so that every wait times out at once.
fn machine_clock() -> impl Clock {
    struct Late(std::cell::Cell<u64>);
    impl Clock for Late {
        fn now(&self) -> Instant {
            self.0.set(self.0.get() + 3_600_000_000_000);
            Instant::from_nanos(self.0.get())
        }
    }
    Late(std::cell::Cell::new(0))
}

#[test]
fn devices_without_an_interrupt_are_polled() {
    let mut machine = Machine::new(8 << 20);
    machine.interrupts = 1;
    for device in [1, 2] {
        let model = Model::new(&machine, 1, MODERN | 1 << 5, &NET, &[64, 64]);
        machine.plug_pci(device, &model);
    }
    let clock = machine_clock();
    let wakes: Vec<bool> = machine
        .find()
        .take(Class::Port)
        .into_iter()
        .map(|d| d.open_port(&mut machine, &|_| None, &clock).unwrap().wakes())
        .collect();
    assert_eq!(wakes, [true, false]);
}

/// Registers that behave as memory, except some that return arbitrary values.
#[derive(Clone)]
struct Noise {
    len: usize,
    /// Index of the first register in the cells.
    start: usize,
    cells: Arc<Mutex<Vec<u8>>>,
    /// Bitmap of the first 64 bytes: those that return arbitrary values.
    noisy: u64,
    answers: Vec<u32>,
    at: Arc<AtomicUsize>,
}

impl AnyWidth for Noise {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, size: usize) -> u64 {
        let offset = self.start + offset;
        if offset < 64 && self.noisy >> offset & 1 != 0 {
            let at = self.at.fetch_add(1, Ordering::Relaxed);
            return self.answers[at % self.answers.len()].into();
        }
        let cells = self.cells.lock().unwrap();
        (0..size)
            .fold(0, |value, i| value | u64::from(cells[(offset + i) % cells.len()]) << (8 * i))
    }

    fn write(&self, offset: usize, size: usize, value: u64) {
        let offset = self.start + offset;
        let mut cells = self.cells.lock().unwrap();
        let len = cells.len();
        (0..size).for_each(|i| cells[(offset + i) % len] = (value >> (8 * i)) as u8);
    }
}

struct NoisyMachine {
    arena: Arena,
    noise: Noise,
}

// SAFETY: models of devices.
unsafe impl Platform for NoisyMachine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        Some(Box::new(Noise { len, start: address as usize & 0x1ff, ..self.noise.clone() }))
    }
    fn map_memory(&mut self, _: u64, _: usize) -> Option<Window> {
        None
    }
    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        None
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..300, any::<u32>()]
}

/// Registers that are valid for all kinds of devices at once: features, queue size, MAC address, block size.
fn cells() -> Vec<u8> {
    let mut cells = std::vec![0; 0x200];
    cells[0x04] = 0x61; // features, either half: version 1, MAC, block size
    cells[0x18] = 64;
    cells[0x100] = 2;
    cells[0x114..0x118].copy_from_slice(&512u32.to_le_bytes());
    cells
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// With arbitrary values in few or most registers and in the configuration space, opening gives an error or a
    /// device: no panic, and a failed device keeps no memory.
    #[test]
    fn registers_may_say_anything(
        answers in prop::collection::vec(word(), 1..20),
        noisy in prop_oneof![Just(0u64), (0u32..64, 0u32..64).prop_map(|(a, b)| 1 << a | 1 << b),
            any::<u64>()],
        changed in prop::collection::vec((prop_oneof![0usize..64, 0x100usize..0x140], any::<u8>()), 0..6),
        words in prop::collection::vec((0u16..48, word()), 0..3),
        device in prop::sample::select(std::vec![0x1000u16, 0x1041, 0x1042, 0x1043, 0x1044]),
    ) {
        let mut spaces = ConfigSpaces::default();
        let space = spaces.function(PciAddress::new(0, 0, 1, 0), 0x1af4, device);
        space.set8(6, 0x10);
        space.set32(0x10, 0xfe00_0000);
        space.bar(0, 0xffff_0000);
        space.set8(0x34, 0x40);
        for (i, kind) in [1u32, 2, 3, 4, 1].into_iter().enumerate() {
            let at = 0x40 + i as u16 * 0x14;
            space.set32(at, kind << 24 | 0x14 << 16 | u32::from(at + 0x14) << 8 | 9);
            space.set32(at + 8, if kind == 4 { 0x100 } else { 0 });
            space.set32(at + 12, 0x100);
        }
        for (i, word) in words {
            space.set32(0x40 + 4 * i, word);
        }
        let mut cells = cells();
        changed.into_iter().for_each(|(at, byte)| cells[at] = byte);
        let cells = Arc::new(Mutex::new(cells));
        let noise = Noise { len: 0, start: 0, cells, noisy, answers, at: Arc::default() };
        let mut machine = NoisyMachine { arena: Arena::on_heap(2 << 20), noise };
        let mut inventory = Inventory::default();
        inventory.scan_pci(Box::leak(Box::new(spaces)));
        inventory.scan_virtio_mmio(&[Slot { address: 0, wakes: false }; 3], &mut machine);
        let before = machine.arena.available();
        let clock = machine_clock();
        for class in [Class::Port, Class::Disks, Class::Entropy, Class::Console] {
            for device in inventory.take(class) {
                let result = match class {
                    Class::Port => device.open_port(&mut machine, &|_| None, &clock).map(drop),
                    Class::Disks => device.open_disks(&mut machine, &clock).map(drop),
                    Class::Console => device.open_console(&mut machine).map(drop),
                    _ => device.open_entropy(&mut machine).map(drop),
                };
                let kept = machine.arena.available() < before;
                // A failed device keeps its memory only if its reset may have failed, because it might still write
                // there.
                let silent = noisy >> 0x14 & 1 == 0;
                let right = if silent { kept == result.is_ok() } else { kept || result.is_err() };
                prop_assert!(right);
            }
        }
    }
}
