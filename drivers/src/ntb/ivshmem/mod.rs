//! QEMU's inter-VM shared memory as a bridge (QEMU: docs/specs/ivshmem-spec.rst, revision 1):
//! `ivshmem-plain`, whose doorbell is only looked at, and `ivshmem-doorbell`, which interrupts.
//!
//! BAR 2 is memory that both machines have mapped; each exposes a half of it ([`SharedMemory`]).
//! Behind scratchpads and doorbell, the header of a half has a block in which its owner tells of
//! itself: that it is there, and how it is rung. Whatever the peer writes there has it rung too
//! often, or too seldom, and nothing else; or ends the link until it is renewed.

#[cfg(test)]
mod tests;

use super::shared::HEADER;
use super::{Bridge, Ntb, NtbDevice, SharedMemory, Side};
use crate::device::{Bus, Device};
use crate::dma::Dma;
use crate::hal::{Interrupt, Platform, Registers, Window};
use crate::pci::{Function, Msix};
use crate::registry::OpenError;
use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

/// PCI vendor ID.
pub const VENDOR: u16 = 0x1af4;
/// PCI device ID.
pub const DEVICE: u16 = 0x1110;

// Registers in BAR 0.
const POSITION: usize = 8;
const DOORBELL: usize = 12;
const REGISTERS: usize = 16;
const VECTOR: u16 = 0;

/// More is not mapped.
const MOST: u64 = 1 << 30;

// What the owner of a half says of itself, in the header.
/// A number that changes each time the half is taken.
const LIFE: usize = 256;
/// Its number among the machines of the server, plus 1; 0 if it cannot be interrupted.
const NUMBER: usize = 260;
/// Whether it wants to be interrupted.
const ARMED: usize = 264;
/// That there is an owner.
const PRESENT: usize = 268;
/// Not 0: whoever had the half before asks whether its owner is there, or the peer has written over
/// [`LIFE`]. An owner that is there makes it 0.
const QUESTION: usize = 272;
/// Times that the question is put before the half is taken back.
const QUESTIONS: u32 = 20;
const MAGIC: u32 = 0x4254_4e49;

/// Why a device, or a setting, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// It lacks something, or it cannot be mapped.
    Missing(&'static str),
    /// It is not on PCI.
    NotPci,
    /// Both machines could take either half: the operator has to say.
    NoSide,
    /// The memory cannot be halved.
    TooSmall,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(what) => write!(f, "device has no usable {what}"),
            Error::NotPci => f.write_str("device is not on PCI"),
            Error::NoSide => f.write_str(
                "the device does not tell the two machines apart: set `side` to 0 on one and to 1 \
                 on the other",
            ),
            Error::TooSmall => f.write_str("the shared memory is too small to be halved"),
        }
    }
}

impl core::error::Error for Error {}

/// Sets a device up: takes the half of the memory that is said, or the one by this machine's number.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NotPci.into()) };
    Ok(Box::new(Ivshmem::open(&function, platform, side)?))
}

/// What `ivshmem-doorbell` has beside the memory.
struct Doorbell {
    registers: Box<dyn Registers>,
    interrupt: Interrupt,
    /// Number of this machine, from 0.
    number: u16,
    msix: Msix,
}

/// One side of the bridge.
struct Ivshmem {
    side: Side,
    memory: SharedMemory,
    /// Headers of our half and of the peer's.
    own: Window,
    peer: Window,
    /// What we wrote to [`LIFE`].
    life: u32,
    /// How often we have asked in vain who has taken our half.
    asked: u32,
    doorbell: Option<Doorbell>,
}

impl Ivshmem {
    /// Maps memory and registers. Without an interrupt to give it is polled.
    fn open(
        function: &Function<'_>,
        platform: &mut dyn Platform,
        side: Option<Side>,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        function.enable();
        let memory = bars
            .get(2)
            .filter(|bar| bar.size <= MOST)
            .and_then(|bar| platform.map_memory(bar.address, usize::try_from(bar.size).ok()?));
        let memory = memory.ok_or(Error::Missing("shared memory (BAR 2, at most 1 GiB)"))?;
        let registers = bars.get(0).and_then(|bar| bar.range(0, REGISTERS as u64));
        let registers = registers.and_then(|at| platform.map_registers(at, REGISTERS));
        let registers = registers.ok_or(Error::Missing("registers (BAR 0)"))?;
        // Without a server a machine has no number.
        let number = u16::try_from(registers.read32(POSITION)).ok();
        let msix = Msix::open(function, &bars, platform);
        let doorbell = number.zip(msix).and_then(|(number, mut msix)| {
            let interrupt = platform.allocate_interrupt().filter(|i| msix.route(VECTOR, i))?;
            Some(Doorbell { registers, interrupt, number, msix })
        });
        let by_number = |bell: &Doorbell| if bell.number & 1 == 0 { Side::A } else { Side::B };
        let side = side.or(doorbell.as_ref().map(by_number)).ok_or(Error::NoSide)?;
        let memory = SharedMemory::new(memory, side).ok_or(Error::TooSmall)?;
        let header = |half: &Window| half.slice(0, HEADER).ok_or(Error::TooSmall);
        let (own, peer) = (header(memory.own())?, header(memory.peer())?);
        let life = own.load32(LIFE).wrapping_add(1);
        own.store32(ARMED, 0);
        own.store32(LIFE, life);
        let mut ours = Ivshmem { side, memory, own, peer, life, asked: 0, doorbell };
        ours.renew();
        Ok(ours)
    }
}

impl NtbDevice for Ivshmem {
    fn bridge(&mut self) -> &mut dyn Bridge {
        self
    }

    fn side(&self) -> Side {
        self.side
    }

    fn is_taken(&self) -> bool {
        self.own.load32(LIFE) != self.life
    }

    fn wakes(&self) -> bool {
        self.doorbell.is_some()
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.own.store32(ARMED, u32::from(wanted));
        // Before anybody looks at what is pending: see `ring`.
        fence(Ordering::SeqCst);
    }

    fn route(&mut self, interrupt: Interrupt) -> bool {
        let Some(bell) = &mut self.doorbell else { return false };
        let routed = bell.msix.route(VECTOR, &interrupt);
        if routed {
            bell.interrupt = interrupt;
        }
        routed
    }

    fn interrupts(&self) -> u64 {
        self.doorbell.as_ref().map_or(0, |bell| bell.interrupt.raised().load(Ordering::Relaxed))
    }

    fn pending(&self) -> bool {
        self.memory.pending()
    }
}

impl Ntb for Ivshmem {
    #[inline]
    fn link(&self) -> bool {
        self.peer.load32(PRESENT) == MAGIC && !self.is_taken()
    }

    fn renew(&mut self) {
        if self.is_taken() {
            let answered = self.own.load32(QUESTION) == 0;
            self.asked = if answered { 1 } else { self.asked + 1 };
            if self.asked <= QUESTIONS {
                return self.own.store32(QUESTION, 1);
            }
            self.life = self.own.load32(LIFE).wrapping_add(1);
        }
        self.asked = 0;
        self.own.store32(QUESTION, 0);
        self.own
            .store32(NUMBER, self.doorbell.as_ref().map_or(0, |bell| u32::from(bell.number) + 1));
        self.own.store32(LIFE, self.life);
        self.own.store32(PRESENT, MAGIC);
    }

    #[inline]
    fn window(&self) -> Window {
        self.memory.window()
    }

    #[inline]
    fn exposed(&self) -> Window {
        self.memory.exposed()
    }

    #[inline]
    fn loads(&self) -> bool {
        true
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.memory.scratchpad(n)
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.memory.set_peer_scratchpad(n, value);
    }

    fn ring(&mut self) {
        self.memory.ring();
        let Some(doorbell) = &self.doorbell else { return };
        // Either the peer, which arms first and then looks, sees that it was rung, or we see that
        // it is armed.
        fence(Ordering::SeqCst);
        if self.peer.load32(ARMED) != 0
            && let Some(number) = self.peer.load32(NUMBER).checked_sub(1)
            && let Ok(number) = u16::try_from(number)
        {
            let value = u32::from(number) << 16 | u32::from(VECTOR);
            doorbell.registers.write32(DOORBELL, value);
        }
    }

    fn rung(&mut self) -> bool {
        self.memory.rung()
    }
}

impl Dma for Ivshmem {
    #[inline]
    fn submit(&mut self, to: &Window, from: &Window) {
        self.memory.submit(to, from);
    }

    #[inline]
    fn put(&mut self, to: &Window, words: &[u64]) {
        self.memory.put(to, words);
    }

    #[inline]
    fn put32(&mut self, to: &Window, value: u32) {
        self.memory.put32(to, value);
    }

    #[inline]
    fn order(&mut self) {
        self.memory.order();
    }

    fn settled(&mut self) -> bool {
        self.memory.settled()
    }
}
