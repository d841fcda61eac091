//! Tests with two machines, each with a model of the device, on the same memory.

use super::*;
use crate::hal::{Arena, PciAddress};
use crate::pci::model::ConfigSpaces;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};
use std::vec::Vec;

const BAR0: u64 = 0xfe00_0000;
const BAR1: u64 = 0xfe00_1000;
const BAR2: u64 = 0xe000_0000;
const SIZE: usize = 1 << 16;

/// The MSI-X table of a machine's device, and the counter of its interrupt.
#[derive(Default)]
struct Vectors {
    table: [AtomicU32; 4],
    raised: Mutex<Option<&'static AtomicU64>>,
}

impl Vectors {
    /// Raises the interrupt, as the ivshmem server does when the peer rings.
    fn interrupt(&self) {
        let [address, _, data, control] = self.table.each_ref().map(|c| c.load(Ordering::SeqCst));
        assert_eq!((address, data, control), (0xfee0_0000, 0x44, 0));
        self.raised.lock().unwrap().expect("allocated").fetch_add(1, Ordering::SeqCst);
    }
}

/// A register block: BAR 0 with its machine's number and all machines' vectors, or an MSI-X table.
enum Block {
    Registers { number: u32, all: Vec<Arc<Vectors>> },
    Table(Arc<Vectors>),
}

impl Registers for Block {
    fn len(&self) -> usize {
        16
    }
    fn read8(&self, _: usize) -> u8 {
        unreachable!("32 bits at a time")
    }
    fn read16(&self, _: usize) -> u16 {
        unreachable!("32 bits at a time")
    }
    fn read32(&self, offset: usize) -> u32 {
        match self {
            Block::Registers { number, .. } if offset == POSITION => *number,
            _ => 0,
        }
    }
    fn read64(&self, _: usize) -> u64 {
        unreachable!("32 bits at a time")
    }
    fn write8(&self, _: usize, _: u8) {
        unreachable!("32 bits at a time")
    }
    fn write16(&self, _: usize, _: u16) {
        unreachable!("32 bits at a time")
    }
    fn write32(&self, offset: usize, value: u32) {
        match self {
            Block::Registers { all, .. } if offset == DOORBELL => {
                assert_eq!(value & 0xffff, 0, "vector");
                // A ring of an absent machine is ignored.
                if let Some(peer) = all.get((value >> 16) as usize) {
                    peer.interrupt();
                }
            }
            Block::Registers { .. } => panic!("register {offset}"),
            Block::Table(vectors) => vectors.table[offset / 4].store(value, Ordering::SeqCst),
        }
    }
    fn write64(&self, _: usize, _: u64) {
        unreachable!("32 bits at a time")
    }
}

struct Machine {
    memory: Option<Window>,
    number: u32,
    all: Vec<Arc<Vectors>>,
    arena: Arena,
}

// SAFETY: the devices are models.
unsafe impl Platform for Machine {
    fn map_registers(&mut self, address: u64, len: usize) -> Option<Box<dyn Registers>> {
        assert_eq!(len, 16);
        let own = self.all.get(self.number as usize).cloned();
        Some(Box::new(match address {
            BAR0 => Block::Registers { number: self.number, all: self.all.clone() },
            BAR1 => Block::Table(own?),
            _ => return None,
        }))
    }
    fn map_memory(&mut self, address: u64, len: usize) -> Option<Window> {
        assert_eq!((address, len), (BAR2, SIZE));
        self.memory
    }
    fn allocate_interrupt(&mut self) -> Option<Interrupt> {
        let raised = Box::leak(Box::new(AtomicU64::new(0)));
        *self.all[self.number as usize].raised.lock().unwrap() = Some(raised);
        // SAFETY: the model counts, and writes nothing.
        Some(unsafe { Interrupt::new(0xfee0_0000, 0x44, raised) })
    }
    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }
}

struct Pair {
    memory: Window,
    all: Vec<Arc<Vectors>>,
}

impl Pair {
    fn new() -> Self {
        let memory = Arena::on_heap(2 * SIZE).alloc(SIZE, 4096).unwrap();
        memory.fill(0);
        Pair { memory, all: (0..2).map(|_| Arc::default()).collect() }
    }

    /// Boots a machine; `number` is its number at the server, None for `ivshmem-plain`.
    fn open(&self, number: Option<u32>, side: Option<Side>) -> Result<Ivshmem, Error> {
        let mut spaces = ConfigSpaces::default();
        let at = PciAddress::new(0, 0, 5, 0);
        let space = spaces.function(at, VENDOR, DEVICE);
        space.set32(0x10, BAR0 as u32);
        space.bar(0, 0xffff_ff00);
        space.set32(0x18, BAR2 as u32 | 0xc);
        space.bar(2, !(SIZE as u32 - 1) | 0xc);
        space.bar(3, u32::MAX);
        if number.is_some() {
            space.set32(0x14, BAR1 as u32);
            space.bar(1, 0xffff_f000);
            space.set8(6, 0x10);
            space.set8(0x34, 0x40);
            space.set32(0x40, 0x11);
            space.set32(0x44, 1);
        }
        let function = Function::new(at, &spaces).unwrap();
        let mut machine = Machine {
            memory: Some(self.memory),
            number: number.unwrap_or(0),
            all: self.all.clone(),
            arena: Arena::on_heap(4096),
        };
        Ivshmem::open(&function, &mut machine, side)
    }
}

#[test]
fn plain_machines_take_the_configured_sides() {
    let pair = Pair::new();
    assert_eq!(pair.open(None, None).err(), Some(Error::NoSide));
    let mut a = pair.open(None, Some(Side::A)).unwrap();
    assert!(!a.link(), "the peer is not up yet");
    let mut b = pair.open(None, Some(Side::B)).unwrap();
    assert!(a.link() && b.link());
    assert!(!a.wakes() && !b.wakes());
    b.set_interrupts(true);
    a.put32(&a.window().slice(64, 4).unwrap(), 7);
    a.order();
    a.ring();
    assert_eq!(b.exposed().load32(64), 7);
    assert!(b.pending());
    assert_eq!([b.rung(), b.rung(), a.rung()], [true, false, false]);
    assert!(!b.pending());
    assert_eq!(b.interrupts(), 0);
    // A third machine with the wrong side: the former owner of the half detects it.
    let c = pair.open(None, Some(Side::A)).unwrap();
    assert!(a.is_taken() && !a.link());
    assert!(!c.is_taken() && c.link() && b.link());
}

#[test]
fn doorbells_interrupt_only_an_armed_peer() {
    let pair = Pair::new();
    let [mut a, mut b] = [0, 1].map(|n| pair.open(Some(n), None).unwrap());
    assert_eq!((a.side(), b.side()), (Side::A, Side::B));
    assert!(a.wakes() && b.wakes());
    a.ring();
    assert_eq!((b.interrupts(), b.pending()), (0, true), "interrupts are disabled");
    b.set_interrupts(true);
    assert!(b.pending(), "an earlier ring raises no interrupt, but is pending");
    a.ring();
    assert_eq!(b.interrupts(), 1);
    b.set_interrupts(false);
    a.ring();
    b.ring();
    assert_eq!((a.interrupts(), b.interrupts()), (0, 1));
    // The peer reboots.
    let mut b = pair.open(Some(1), Some(Side::B)).unwrap();
    b.set_interrupts(true);
    a.ring();
    assert_eq!(b.interrupts(), 1);
}

#[test]
fn arbitrary_peer_header_does_no_harm() {
    let pair = Pair::new();
    let mut a = pair.open(Some(0), None).unwrap();
    pair.open(Some(1), None).unwrap();
    for number in [0, 7, 0x1_0000, 0x1_0001, u32::MAX] {
        a.peer.store32(ARMED, u32::MAX);
        a.peer.store32(NUMBER, number);
        a.ring();
    }
    a.peer.fill(0xff);
    a.ring();
    assert!(!a.link());
}

#[test]
fn overwritten_header_is_restored_by_renew() {
    let pair = Pair::new();
    let [mut a, mut b] = [0, 1].map(|n| pair.open(Some(n), None).unwrap());
    for byte in [0, 0x5a, 0xff] {
        pair.memory.fill(byte);
        assert!(!a.link() && !b.link());
        (0..=MOST_CHALLENGES).for_each(|_| a.renew());
        assert!(!a.is_taken() && !a.link() && b.own.load32(PRESENT) != MAGIC, "b has not renewed");
        (0..=MOST_CHALLENGES).for_each(|_| b.renew());
        assert!(a.link() && b.link());
        b.set_interrupts(true);
        let before = b.interrupts();
        a.ring();
        assert_eq!(b.interrupts(), before + 1);
    }
    // A half stays with its new owner as long as that machine answers challenges.
    let mut c = pair.open(Some(0), Some(Side::A)).unwrap();
    for _ in 0..10 * MOST_CHALLENGES {
        a.renew();
        a.renew();
        c.renew();
    }
    assert!(a.is_taken() && !a.link() && c.link());
    (0..=MOST_CHALLENGES).for_each(|_| a.renew());
    assert!(!a.is_taken() && a.link() && c.is_taken());
}

#[test]
fn a_device_that_lacks_something_is_refused() {
    let pair = Pair::new();
    let mut spaces = ConfigSpaces::default();
    let at = PciAddress::new(0, 0, 5, 0);
    spaces.function(at, VENDOR, DEVICE);
    let mut machine =
        Machine { memory: None, number: 0, all: pair.all.clone(), arena: Arena::on_heap(64) };
    let function = Function::new(at, &spaces).unwrap();
    let opened = Ivshmem::open(&function, &mut machine, Some(Side::A));
    assert!(matches!(opened, Err(Error::Missing(_))));
    let short = Pair { memory: pair.memory.slice(0, 8192).unwrap(), ..pair };
    assert_eq!(short.open(None, Some(Side::A)).err(), Some(Error::TooSmall));
}
