//! VMware's paravirtual Ethernet interface, version 3 (Linux: `drivers/net/vmxnet3`): one pair of queues, or several for as many cores; frames to 9 KB,
//! each in one buffer, sent from where they lie; interrupts only before a halt. No offloads.

mod queue_port;
mod receive;
mod registers;
mod shared;
mod transmit;

use super::keeper::{HUNG, Keeper, LOST_PLACE, Stall};
use super::owners::Owners;
use super::{LEAST_MTU, OVERHEAD, PLAIN_MTU, WantedMtu};
use crate::device::{Bus, Device};
use crate::hal::{
    Arena, Clock, Frame, HashKey, Instant, Interrupt, Notice, Packet, Platform, Port, PortCounters,
    Severity, TransmitError, TransmitProgress, Window,
};
use crate::pci::{Function, Msix};
use crate::registry::{Id, OpenError};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use receive::Receiver;
use registers::DeviceRegisters;
use shared::{Rings, Shared};
use transmit::Transmitter;

/// What the driver matches.
pub const IDS: [Id; 1] = [Id::Pci(0x15ad, 0x07b0)];

/// Most that the device takes.
const MOST_MTU: u16 = 9000;
/// Interrupts: for what was received, and for what was sent.
const RECEIVED: u8 = 0;
const SENT: u8 = 1;

const GONE: &str = "the network interface does not answer any more: it was removed from the virtual machine; it is not \
     used until the appliance is restarted";
const NOT_BACK: &str = "the network interface is not activated after a reset, and is not used any more: see the log of the \
     hypervisor, and start the virtual machine anew";
const STOPPED: &str =
    "the network interface has stopped a queue, because of a mistake that it found: it is reset";

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A BAR is missing, too small, or cannot be mapped.
    NoRegisters,
    /// Nothing answers where its registers are.
    Absent,
    /// It does not have version 1.
    Version(u32),
    /// It has no MAC address.
    NoMac,
    /// The command to activate it fails.
    NotActive,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "vmxnet3 has no registers that could be reached (BAR 0 and 1): the firmware gave it no address",
            ),
            Error::Absent => f.write_str("vmxnet3 does not answer (its registers read as all ones)"),
            Error::Version(versions) => {
                write!(f, "vmxnet3 has versions {versions:#x}, and not version 1: not known")
            }
            Error::NoMac => f.write_str("vmxnet3 has no MAC address: give it one in the hypervisor"),
            Error::NotActive => f.write_str(
                "vmxnet3 refuses to be activated: see the log of the hypervisor",
            ),
            Error::NoMemory { bytes } => {
                write!(f, "DMA arena has no {bytes} bytes left: give the machine more memory")
            }
        }
    }
}

impl core::error::Error for Error {}

/// Sets a device up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    _: &dyn Clock,
) -> Result<Box<dyn Port + Send>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    // One that is refused is kept from memory, whatever it was told before us.
    let opened = Vmxnet3::open(function, platform, wanted_mtu).inspect_err(|_| function.disable());
    Ok(Box::new(opened?))
}

/// A device.
struct Vmxnet3 {
    function: Function<'static>,
    registers: DeviceRegisters,
    msix: Option<Msix>,
    interrupt: Option<Interrupt>,
    shared: Shared,
    receiver: Receiver,
    transmitter: Transmitter,
    /// For receiving and for sending, by pair of queues.
    rings: Vec<[Rings; 2]>,
    key: HashKey,
    /// With the owners of other pairs of queues, if there are any.
    owners: Option<Arc<Owners>>,
    /// It was reset, and other owners have not seen that yet.
    waits: bool,
    keeper: Keeper,
    sending: Stall,
    link: bool,
    mac: [u8; 6],
    mtu: u16,
    armed: bool,
    gone: bool,
    /// Missed before the last reset, and since.
    missed: [u64; 2],
}

impl Vmxnet3 {
    fn open(
        function: Function<'static>,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        let registers = DeviceRegisters::map(&bars, platform)?;
        function.enable();
        registers.agree()?;
        registers.reset();
        let mac = registers.mac();
        if !super::is_station(mac) {
            return Err(Error::NoMac);
        }
        let mtu = wanted_mtu(mac).unwrap_or(PLAIN_MTU).clamp(LEAST_MTU, MOST_MTU);
        let mut msix = Msix::open(&function, &bars, platform).filter(|msix| msix.entries() > 1);
        let interrupt = platform.allocate_interrupt();
        let routed = interrupt.filter(|interrupt| route(&function, &mut msix, interrupt));
        let mut memory = Vec::new();
        let made = Self::queues(platform.arena(), mtu, &mut memory);
        let (shared, receiver, transmitter) = match made {
            Ok(made) => made,
            Err(error) => {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return Err(error);
            }
        };
        let mut port = Vmxnet3 {
            function,
            registers,
            msix,
            interrupt: routed,
            shared,
            rings: alloc::vec![[receiver.rings(), transmitter.rings()]],
            key: HashKey::default(),
            owners: None,
            waits: false,
            receiver,
            transmitter,
            keeper: Keeper::new(),
            sending: Stall::default(),
            link: false,
            mac,
            mtu,
            armed: false,
            gone: false,
            missed: [0; 2],
        };
        if !port.start() {
            port.halt();
            memory.into_iter().for_each(|window| platform.arena().free(window));
            return Err(Error::NotActive);
        }
        Ok(port)
    }

    fn queues(
        arena: &mut Arena,
        mtu: u16,
        memory: &mut Vec<Window>,
    ) -> Result<(Shared, Receiver, Transmitter), Error> {
        let bytes = shared::bytes(1);
        let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
        memory.push(window);
        let receiver = Receiver::new(arena, mtu, memory)?;
        let transmitter = Transmitter::new(arena, OVERHEAD + usize::from(mtu), memory)?;
        Ok((Shared::new(window, 1), receiver, transmitter))
    }

    /// Gives the device its queues and activates it; whether that worked.
    fn start(&mut self) -> bool {
        self.receiver.start();
        self.transmitter.start();
        self.shared.fill(self.mtu, &self.rings, &self.key, self.msix.is_some());
        self.sending = Stall::default();
        let active = self.registers.activate(self.shared.address(), self.mac);
        if active {
            self.keeper.works();
            self.apply_interrupts();
            if let Some(owners) = &self.owners {
                owners.live();
            }
        }
        active
    }

    /// From here on it cannot reach memory.
    fn halt(&mut self) {
        self.registers.reset();
        self.function.disable();
        self.tell_owners();
        self.receiver.stop();
        self.transmitter.stop();
    }

    fn reset(&mut self, why: &'static str) {
        self.keeper.reset(why);
        self.missed = [self.missed.iter().sum(), 0];
        self.registers.reset();
        self.tell_owners();
        self.receiver.stop();
        self.transmitter.stop();
        self.go_on();
    }

    /// The owners of other queues hear that the device reaches no memory.
    fn tell_owners(&self) {
        if let Some(owners) = &self.owners {
            owners.stopped();
        }
    }

    /// Activates a device that was reset, once all other owners have seen that.
    fn go_on(&mut self) {
        let others = self.rings.len() - 1;
        self.waits = self.owners.as_ref().is_some_and(|owners| !owners.all_follow(others));
        if !self.waits && !self.start() {
            self.give_up(NOT_BACK);
        }
    }

    fn give_up(&mut self, why: &'static str) {
        if !self.gone {
            self.gone = true;
            self.halt();
            self.keeper.note(Severity::Error, why);
        }
    }

    fn apply_interrupts(&self) {
        let sent = self.armed && self.transmitter.is_starved();
        match self.msix {
            Some(_) => {
                self.registers.set_masked(RECEIVED, !self.armed);
                self.registers.set_masked(SENT, !sent);
            }
            None => self.registers.set_masked(0, !self.armed),
        }
    }
}

/// Sends interrupts of the function to this one. False if it cannot.
fn route(function: &Function<'_>, msix: &mut Option<Msix>, interrupt: &Interrupt) -> bool {
    match msix {
        Some(msix) => [RECEIVED, SENT].into_iter().all(|n| msix.route(n.into(), interrupt)),
        None => function.route_msi(interrupt),
    }
}

impl Drop for Vmxnet3 {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Port for Vmxnet3 {
    fn split(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        _: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        self.add_queues(more, key, platform)
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        if self.gone {
            return false;
        }
        let link = self.registers.link();
        if link.is_none() {
            self.give_up(GONE);
        }
        let link = link.unwrap_or(false);
        if let Some(owners) = &self.owners {
            owners.set_link(link);
        }
        link && !self.waits
    }

    #[inline]
    fn receive(&mut self) -> Option<Frame> {
        self.receiver.receive()
    }

    #[inline]
    fn bytes(&self, frame: &Frame) -> &[u8] {
        self.receiver.bytes(frame)
    }

    #[inline]
    fn recycle(&mut self, frame: Frame) {
        self.receiver.recycle(frame);
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        self.receiver.receive_each(most, take)
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.transmitter.transmit(packet)
    }

    #[inline]
    fn flush(&mut self) {
        self.transmitter.reclaim_some();
        if let Some(producer) = self.transmitter.take_untold() {
            self.registers.tell_transmit(0, producer);
        }
        if let Some(producer) = self.receiver.take_untold()
            && self.shared.wants_producer(0)
        {
            self.registers.tell_receive(0, producer);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if (wanted || self.armed) && self.wakes() && !self.gone {
            self.armed = wanted;
            self.apply_interrupts();
        }
    }

    fn pending(&self) -> bool {
        self.receiver.pending() || self.transmitter.pending()
    }

    fn has_room(&self) -> bool {
        self.transmitter.has_room()
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        let routed = self.wakes() && route(&self.function, &mut self.msix, interrupt);
        if routed {
            self.interrupt = Some(*interrupt);
        }
        routed
    }

    fn progress(&mut self) -> TransmitProgress {
        self.transmitter.progress()
    }

    fn wakes(&self) -> bool {
        self.interrupt.is_some()
    }

    fn watch(&mut self, _: Instant) {
        let link = self.link_up();
        if self.gone {
            return;
        }
        if self.waits {
            return self.go_on();
        }
        self.registers.tell_statistics();
        self.missed[1] = self.shared.missed();
        self.transmitter.reclaim();
        // What waits for a link has a look to begin when it comes.
        let waits = if link && self.link { self.transmitter.waits_at() } else { None };
        self.link = link;
        if self.shared.is_stopped() {
            self.reset(STOPPED);
        } else if self.receiver.is_lost || self.transmitter.is_lost {
            self.reset(LOST_PLACE);
        } else if self.sending.look(waits) || self.owners.as_ref().is_some_and(|o| o.hangs()) {
            self.reset(HUNG);
        } else {
            self.keeper.look();
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.keeper.notice()
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        PortCounters {
            rx_frames: self.receiver.frames,
            rx_bytes: self.receiver.bytes,
            rx_errors: self.receiver.errors + self.transmitter.errors,
            rx_missed: self.missed.iter().sum(),
            tx_frames: self.transmitter.frames,
            tx_bytes: self.transmitter.bytes,
            tx_full: self.transmitter.full,
            interrupts: self.interrupt.map_or(0, raised),
            resets: self.keeper.resets,
        }
    }
}
