//! VMware's paravirtual Ethernet interface, version 3 (Linux: `drivers/net/vmxnet3`): one pair of queues, or several
//! for as many cores; frames to 9 KB, each in one buffer, sent in place; interrupts only before a halt. No offloads.

mod queue_port;
mod receive;
mod registers;
mod shared;
mod transmit;

use super::keeper::{BACK, HUNG, OUT_OF_ORDER, ResetLog, Stall};
use super::owners::Owners;
use super::{LEAST_MTU, OVERHEAD, PLAIN_MTU, WantedMtu};
use crate::driver::{Bus, Device, Id, OpenError};
use crate::ethernet::rings::NoMemory;
use crate::hal::{
    Arena, Backoff, Clock, DeviceLife, DeviceState, Frame, HashKey, Instant, Interrupt, Notice,
    Packet, Platform, Port, PortCounters, Severity, TransmitError, TransmitProgress, Window,
};
use crate::pci::reset::SavedConfig;
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use receive::Receiver;
use registers::DeviceRegisters;
use shared::{Rings, Shared};
use transmit::Transmitter;

/// Devices that the driver matches.
pub const IDS: [Id; 1] = [Id::Pci(0x15ad, 0x07b0)];

/// Maximum MTU of the device.
const MOST_MTU: u16 = 9000;
/// Number of the receive interrupt.
const RECEIVED: u8 = 0;
/// Number of the transmit interrupt.
const SENT: u8 = 1;

const GONE: &str = "the network interface does not answer: it was removed from the virtual machine; it is tried again up \
     to once a minute";
const NOT_BACK: &str = "the network interface is not activated after a reset: it is tried again up to once a minute; see the \
     log of the hypervisor";
const ANOTHER: &str =
    "another network interface is in the place of the former: restart the appliance to use it";
const STOPPED: &str = "the network interface has stopped a queue because of an error: it is reset";

/// Why a device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// A BAR is missing, too small, or cannot be mapped.
    NoRegisters,
    /// The registers read as all ones.
    Absent,
    /// The device does not support version 1.
    Version(u32),
    /// The device has no MAC address.
    NoMac,
    /// The activation command fails.
    NotActive,
    /// The DMA arena is too small.
    NoMemory {
        /// Bytes requested.
        bytes: usize,
    },
}

impl From<NoMemory> for Error {
    fn from(NoMemory { bytes }: NoMemory) -> Self {
        Error::NoMemory { bytes }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoRegisters => f.write_str(
                "vmxnet3's registers (BAR 0 and 1) cannot be mapped: the firmware assigned no address",
            ),
            Error::Absent => f.write_str("vmxnet3 does not answer (its registers read as all ones)"),
            Error::Version(versions) => {
                write!(f, "vmxnet3 supports versions {versions:#x}, and not version 1, which the driver needs")
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

/// Opens a device.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    wanted_mtu: WantedMtu<'_>,
    _: &dyn Clock,
) -> Result<Box<dyn Port + Send>, OpenError> {
    let Bus::Pci(function) = device.bus() else { return Err(Error::NoRegisters.into()) };
    // A device that is not used must not access memory for an earlier system.
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
    /// Receive and transmit rings of each pair of queues.
    rings: Vec<[Rings; 2]>,
    key: HashKey,
    /// State shared with the owners of other pairs, if there are any.
    owners: Option<Arc<Owners>>,
    /// The device was reset, and not all other owners have confirmed that.
    waits: bool,
    reset_log: ResetLog,
    sending: Stall,
    link: bool,
    mac: [u8; 6],
    mtu: u16,
    armed: bool,
    /// Why the device is out of use, as reported; None while it works. It is tried again.
    gone: Option<&'static str>,
    /// Configuration space as the driver has set it up, for a device that was away.
    saved: SavedConfig,
    backoff: Backoff,
    /// Missed frames: before the last reset, and since.
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
        function.prepare();
        registers.select_versions()?;
        registers.reset();
        function.enable_bus_master();
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
            saved: SavedConfig::of(&function),
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
            reset_log: ResetLog::new(),
            sending: Stall::default(),
            link: false,
            mac,
            mtu,
            armed: false,
            gone: None,
            backoff: Backoff::default(),
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

    /// Sets up the queues and activates the device; false if that fails.
    fn start(&mut self) -> bool {
        self.receiver.start();
        self.transmitter.start();
        self.shared.fill(self.mtu, &self.rings, &self.key, self.msix.is_some());
        self.sending = Stall::default();
        let active = self.registers.activate(self.shared.address(), self.mac);
        if active {
            self.backoff.note_up();
            match self.gone.take() {
                Some(_) => self.reset_log.note(Severity::Information, BACK),
                None => self.reset_log.note_up(),
            }
            self.apply_interrupts();
            if let Some(owners) = &self.owners {
                owners.live();
            }
        }
        active
    }

    /// Stops the device for good: it cannot access memory any more.
    fn halt(&mut self) {
        self.registers.reset();
        self.function.disable();
        self.publish_stopped();
        self.receiver.stop();
        self.transmitter.stop();
    }

    fn reset(&mut self, why: &'static str) {
        self.reset_log.reset(why);
        self.missed = [self.missed.iter().sum(), 0];
        self.registers.reset();
        self.publish_stopped();
        self.receiver.stop();
        self.transmitter.stop();
        self.activate();
    }

    /// Notifies the owners of other queues that the device accesses no memory.
    fn publish_stopped(&self) {
        if let Some(owners) = &self.owners {
            owners.stopped();
        }
    }

    /// Activates the device after a reset, once all other owners have confirmed the reset.
    fn activate(&mut self) {
        let others = self.rings.len() - 1;
        self.waits = self.owners.as_ref().is_some_and(|owners| !owners.all_follow(others));
        if !self.waits && !self.start() {
            self.give_up(NOT_BACK);
        }
    }

    /// Takes the device out of use. Each reason is reported once, however often the device is tried.
    fn give_up(&mut self, why: &'static str) {
        self.halt();
        self.waits = false;
        if self.gone.replace(why) != Some(why) {
            self.reset_log.note(Severity::Error, why);
        }
    }

    /// Sets up a device again that is out of use, if a try is due and the device answers.
    fn try_again(&mut self, now: Instant) {
        if !self.backoff.is_due(now) {
            return;
        }
        // Counts until the device is active: what follows may fail.
        self.backoff.note_failed(now);
        if !self.saved.restore_lost(&self.function) || self.registers.select_versions().is_err() {
            return;
        }
        self.registers.reset();
        if self.registers.mac() != self.mac {
            return self.give_up(ANOTHER);
        }
        self.function.enable_bus_master();
        if let Some(interrupt) = self.interrupt {
            route(&self.function, &mut self.msix, &interrupt);
        }
        self.activate();
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

/// Routes the function's interrupts to `interrupt`; false if that fails.
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
        if self.gone.is_some() {
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
        if let Some(producer) = self.transmitter.producer_update() {
            self.registers.ring_transmit(0, producer);
        }
        if let Some(producer) = self.receiver.producer_update()
            && self.shared.wants_producer(0)
        {
            self.registers.ring_receive(0, producer);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if (wanted || self.armed) && self.wakes() {
            self.armed = wanted;
            if self.gone.is_none() {
                self.apply_interrupts();
            }
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

    fn watch(&mut self, now: Instant) {
        if self.waits {
            return self.activate();
        }
        if self.gone.is_some() {
            return self.try_again(now);
        }
        let link = self.link_up();
        if self.gone.is_some() {
            return;
        }
        self.registers.request_statistics();
        self.missed[1] = self.shared.missed();
        self.transmitter.reclaim();
        // When the link comes up, the device has one check interval to begin to send.
        let waits = if link && self.link { self.transmitter.stuck_at() } else { None };
        self.link = link;
        if self.shared.is_stopped() {
            self.reset(STOPPED);
        } else if self.receiver.out_of_sync() || self.transmitter.out_of_sync() {
            self.reset(OUT_OF_ORDER);
        } else if self.sending.check(waits) || self.owners.as_ref().is_some_and(|o| o.hangs()) {
            self.reset(HUNG);
        } else {
            self.reset_log.passed_check();
        }
    }

    fn notice(&mut self) -> Option<Notice> {
        self.reset_log.notice()
    }

    fn life(&self) -> DeviceLife {
        let state = match self.gone {
            _ if self.waits => DeviceState::Resetting,
            None => return DeviceLife::default(),
            Some(NOT_BACK) => DeviceState::Failed,
            Some(_) => DeviceState::Absent,
        };
        let next_try = self.backoff.next_try();
        DeviceLife { state, reason: self.gone.unwrap_or(""), next_try }
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
            resets: self.reset_log.resets,
        }
    }
}
