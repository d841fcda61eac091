//! QEMU's inter-VM shared memory as a bridge (QEMU: docs/specs/ivshmem-spec.rst, revision 1): `ivshmem-plain`, whose
//! doorbell is polled, and `ivshmem-doorbell`, which interrupts.
//!
//! BAR 2 is memory that both machines have mapped; each exposes a half of it ([`SharedMemory`]). After scratchpads and
//! doorbell, the header of a half has the owner's description: its presence, and its number for interrupts. A peer that
//! overwrites it can cause too many or too few interrupts, or end the link until [`Ntb::renew`], and nothing else.

#[cfg(test)]
mod tests;

use super::shared::HEADER;
use super::{Bridge, Ntb, NtbDevice, SharedMemory, Side};
use crate::dma::Dma;
use crate::driver::{Bus, Device, OpenError};
use crate::hal::{Interrupt, Platform, Registers, Window};
use crate::pci::{Function, Msix};
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

/// Largest memory that is mapped.
const MOST: u64 = 1 << 30;

// The owner's description in the header of its half: offsets.
/// Number of the owning instance: changes each time that a machine takes the half.
const INSTANCE: usize = 256;
/// The owner's number at the ivshmem server, plus 1; 0 if it cannot be interrupted.
const NUMBER: usize = 260;
/// Whether the owner requests interrupts.
const ARMED: usize = 264;
/// [`MAGIC`] if the half has an owner.
const PRESENT: usize = 268;
/// Challenge: a former owner sets it, in case that the peer has only overwritten [`INSTANCE`]. A live owner resets it
/// to 0.
const CHALLENGE: usize = 272;
/// Challenges without an answer before a former owner takes the half back.
const MOST_CHALLENGES: u32 = 20;
const MAGIC: u32 = 0x4254_4e49;

/// Why a device, or a setting, cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The device lacks this part, or it cannot be mapped.
    Missing(&'static str),
    /// The device is not on PCI.
    NotPci,
    /// `ivshmem-plain` needs the setting `side`, because either machine could take either half.
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
                "the device does not distinguish the two machines: set `side` to 0 on one and to 1 \
                 on the other",
            ),
            Error::TooSmall => f.write_str("the shared memory is too small to be halved"),
        }
    }
}

impl core::error::Error for Error {}

/// Sets a device up: takes the half of `side`, or the half by this machine's number.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NotPci.into()) };
    Ok(Box::new(Ivshmem::open(&function, platform, side)?))
}

/// Interrupt part of `ivshmem-doorbell`.
struct Doorbell {
    registers: Box<dyn Registers>,
    interrupt: Interrupt,
    /// Number of this machine at the server, from 0.
    number: u16,
    msix: Msix,
}

/// One side of the bridge.
struct Ivshmem {
    side: Side,
    memory: SharedMemory,
    /// Header of this side's half.
    own: Window,
    /// Header of the peer's half.
    peer: Window,
    /// This instance's value of [`INSTANCE`].
    instance: u32,
    /// Challenges without an answer since another machine has taken the half.
    challenges: u32,
    doorbell: Option<Doorbell>,
}

impl Ivshmem {
    /// Maps memory and registers. Without a free interrupt of the platform the bridge is polled.
    fn open(
        function: &Function<'_>,
        platform: &mut dyn Platform,
        side: Option<Side>,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        function.prepare();
        function.enable_bus_master();
        let memory = bars
            .get(2)
            .filter(|bar| bar.size <= MOST)
            .and_then(|bar| platform.map_memory(bar.address, usize::try_from(bar.size).ok()?));
        let memory = memory.ok_or(Error::Missing("shared memory (BAR 2, at most 1 GiB)"))?;
        let registers = bars.get(0).and_then(|bar| bar.range(0, REGISTERS as u64));
        let registers = registers.and_then(|at| platform.map_registers(at, REGISTERS));
        let registers = registers.ok_or(Error::Missing("registers (BAR 0)"))?;
        // Without an ivshmem server a machine has no number.
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
        let instance = own.load32(INSTANCE).wrapping_add(1);
        own.store32(ARMED, 0);
        own.store32(INSTANCE, instance);
        let mut ours = Ivshmem { side, memory, own, peer, instance, challenges: 0, doorbell };
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
        self.own.load32(INSTANCE) != self.instance
    }

    fn wakes(&self) -> bool {
        self.doorbell.is_some()
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.own.store32(ARMED, u32::from(wanted));
        // Store, fence, load: the caller checks `pending` after this. Pairs with the fence in `ring`.
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
            let answered = self.own.load32(CHALLENGE) == 0;
            self.challenges = if answered { 1 } else { self.challenges + 1 };
            if self.challenges <= MOST_CHALLENGES {
                return self.own.store32(CHALLENGE, 1);
            }
            self.instance = self.own.load32(INSTANCE).wrapping_add(1);
        }
        self.challenges = 0;
        self.own.store32(CHALLENGE, 0);
        self.own
            .store32(NUMBER, self.doorbell.as_ref().map_or(0, |bell| u32::from(bell.number) + 1));
        self.own.store32(INSTANCE, self.instance);
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
        // Store, fence, load on both sides: the peer sets ARMED, then loads its doorbell; this side stores the
        // doorbell, then loads ARMED. So either the peer sees the doorbell, or this side sees ARMED.
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
