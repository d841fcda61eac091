//! A vNIC as a [`Port`].

use super::command::{self, Commands};
use super::error::Error;
use super::life::{self, Job, Life, Step};
use super::receive::Receiver;
use super::registers;
use super::resources::Resources;
use super::steer::{self, Steered};
use super::transmit::Transmitter;
use super::{Kind, notices};
use crate::ethernet::keeper::ResetLog;
use crate::ethernet::{LEAST_MTU, PLAIN_MTU, WantedMtu};
use crate::hal::{
    Arena, Clock, DeviceLife, Frame, Instant, Interrupt, Notice, Packet, Platform, Port,
    PortCounters, Registers, TransmitError, TransmitProgress, UdpFlow, Window,
};
use crate::pci::{Function, Msix};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

/// Maximum MTU of the device (Linux: `ENIC_MAX_MTU`).
const MOST_MTU: u16 = 9000;
/// Number of the receive interrupt.
const RECEIVED: usize = 0;
/// Number of the transmit interrupt, if there is a second one.
const SENT: usize = 1;
/// Bit of a buffer's number: the buffer belongs to the second receive queue.
const SECOND: u32 = 1 << 31;

/// The ordinary pair of queues.
pub struct Queues {
    pub receiver: Receiver,
    pub transmitter: Transmitter,
}

/// A port.
pub struct EnicPort {
    pub(super) function: Function<'static>,
    pub(super) work: Box<dyn Registers>,
    pub(super) receive: Box<dyn Registers>,
    pub(super) completion: Box<dyn Registers>,
    pub(super) interrupt: Option<Box<dyn Registers>>,
    pub(super) commands: Commands,
    pub(super) life: Life,
    pub(super) job: Option<Job>,
    /// None until the device has reported the maximum sizes of queues.
    pub(super) queues: Option<Queues>,
    pub(super) steered: Option<Steered>,
    pub(super) reset_log: ResetLog,
    msix: Option<Msix>,
    routed: Option<Interrupt>,
    /// The loop is about to halt.
    pub(super) wants_interrupts: bool,
    pub(super) is_virtual: bool,
    pub(super) has_vlan_mode: bool,
    pub(super) has_enable_wait: bool,
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    /// MTU as the device reports it.
    pub(super) port_mtu: u16,
    pub(super) transmit_entries: u32,
    pub(super) receive_entries: u32,
    /// Missed frames: before the last reset, and since.
    pub(super) missed: [u64; 2],
    pub(super) notices: Window,
    pub(super) statistics: Window,
    pub(super) filter: Window,
    pub(super) memory: Vec<Window>,
}

impl EnicPort {
    /// Opens a device, and waits until it is up.
    pub fn open(
        function: Function<'static>,
        kind: Kind,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        function.prepare();
        let mut memory = Vec::new();
        let opened = Self::open_commands(&function, &bars, platform, clock, &mut memory);
        let (resources, commands, [notices, statistics, filter]) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                function.disable();
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return Err(error);
            }
        };
        let mut msix = match resources.interrupt {
            Some(_) => Msix::open(&function, &bars, platform),
            None => None,
        };
        let interrupt = msix.as_ref().and_then(|_| platform.allocate_interrupt());
        let routed = interrupt.filter(|interrupt| route(&mut msix, interrupt));
        let mut port = EnicPort {
            function,
            work: resources.work,
            receive: resources.receive,
            completion: resources.completion,
            interrupt: resources.interrupt,
            commands,
            life: Life::default(),
            job: None,
            queues: None,
            steered: None,
            reset_log: ResetLog::new(),
            msix,
            routed,
            wants_interrupts: false,
            is_virtual: kind == Kind::Virtual,
            has_vlan_mode: false,
            has_enable_wait: false,
            mac: [0; 6],
            mtu: PLAIN_MTU,
            port_mtu: 0,
            transmit_entries: 0,
            receive_entries: 0,
            missed: [0; 2],
            notices,
            statistics,
            filter,
            memory,
        };
        match port.come_up(platform, wanted_mtu, clock) {
            Ok(()) => Ok(port),
            Err(error) => {
                port.halt();
                let memory = core::mem::take(&mut port.memory);
                memory.into_iter().for_each(|window| platform.arena().free(window));
                Err(error)
            }
        }
    }

    /// Finds the device's resources, opens its command interface, and allocates memory for notices, statistics and a
    /// filter.
    fn open_commands(
        function: &Function<'static>,
        bars: &crate::pci::Bars,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
        memory: &mut Vec<Window>,
    ) -> Result<(Resources, Commands, [Window; 3]), Error> {
        let mut resources = Resources::find(bars, platform)?;
        // An earlier system may have left the queues running.
        registers::stop(&*resources.work);
        registers::stop(&*resources.receive);
        function.enable_bus_master();
        let mut alloc = |bytes| -> Result<Window, Error> {
            let window = platform.arena().alloc(bytes, 512).ok_or(Error::NoMemory { bytes })?;
            window.fill(0);
            memory.push(window);
            Ok(window)
        };
        let ring = alloc(command::BYTES)?;
        let others = [notices::BYTES, life::STATISTICS, steer::BYTES];
        let [notices, statistics, filter] = others.map(&mut alloc);
        let part = |window: Window, len| window.slice(0, len).expect("as long as it was asked for");
        let parts = [
            part(notices?, notices::BYTES),
            part(statistics?, life::STATISTICS),
            part(filter?, steer::BYTES),
        ];
        let commands = Commands::open(&mut resources, ring, clock)?;
        Ok((resources, commands, parts))
    }

    fn come_up(
        &mut self,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<(), Error> {
        while !self.life.is_live() {
            self.advance(clock.now());
            if let Some(error) = self.life.error() {
                return Err(error);
            }
            if self.life.wants_memory() {
                let most = if self.port_mtu == 0 { PLAIN_MTU } else { self.port_mtu };
                let most = most.clamp(LEAST_MTU, MOST_MTU);
                self.mtu = wanted_mtu(self.mac).unwrap_or(most).clamp(LEAST_MTU, most);
                self.queues = Some(self.make_queues(platform.arena())?);
                self.life.enter(Step::VlanMode);
            }
        }
        Ok(())
    }

    fn make_queues(&mut self, arena: &mut Arena) -> Result<Queues, Error> {
        let (mtu, memory) = (self.mtu, &mut self.memory);
        let receiver = Receiver::new(arena, 0, mtu, self.receive_entries, memory)?;
        let transmitter = Transmitter::new(arena, mtu, self.transmit_entries, memory)?;
        Ok(Queues { receiver, transmitter })
    }

    /// Whether the transmit queue has a separate interrupt. If not, it shares the receive interrupt, and completions
    /// wake a core that halts.
    pub(super) fn has_own_interrupt(&self) -> bool {
        let lines = self.interrupt.as_ref().map_or(0, |lines| lines.len() / registers::BLOCK);
        lines > SENT && self.msix.as_ref().is_some_and(|msix| usize::from(msix.entries()) > SENT)
    }

    /// Masks and unmasks interrupts as needed.
    pub(super) fn apply_interrupts(&mut self) {
        let Some(interrupts) = &self.interrupt else { return };
        let starved = self.queues.as_ref().is_some_and(|queues| queues.transmitter.is_starved());
        registers::set_masked(&**interrupts, RECEIVED, !self.wants_interrupts);
        if self.has_own_interrupt() {
            registers::set_masked(&**interrupts, SENT, !(self.wants_interrupts && starved));
        }
    }
}

/// Routes the function's interrupts to `interrupt`; false if that fails.
fn route(msix: &mut Option<Msix>, interrupt: &Interrupt) -> bool {
    let Some(msix) = msix else { return false };
    let used = msix.entries().min(SENT as u16 + 1);
    (0..used).all(|entry| msix.route(entry, interrupt))
}

impl Drop for EnicPort {
    fn drop(&mut self) {
        self.halt();
    }
}

impl Port for EnicPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        self.read_link()
    }

    fn receive(&mut self) -> Option<Frame> {
        if let Some(steered) = &mut self.steered
            && let Some(frame) = steered.receiver.receive()
        {
            return Some(Frame { buffer: frame.buffer | SECOND, ..frame });
        }
        self.queues.as_mut()?.receiver.receive()
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        let own = Frame { buffer: frame.buffer & !SECOND, len: frame.len };
        match (frame.buffer & SECOND, &self.queues, &self.steered) {
            (0, Some(queues), _) => queues.receiver.bytes(&own),
            (SECOND, _, Some(steered)) => steered.receiver.bytes(&own),
            _ => &[],
        }
    }

    fn recycle(&mut self, frame: Frame) {
        let own = Frame { buffer: frame.buffer & !SECOND, len: frame.len };
        match (frame.buffer & SECOND, &mut self.queues, &mut self.steered) {
            (0, Some(queues), _) => queues.receiver.recycle(own),
            (SECOND, _, Some(steered)) => steered.receiver.recycle(own),
            _ => {}
        }
    }

    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let (mut taken, mut go_on) = (0, true);
        if let Some(steered) = &mut self.steered {
            taken = steered.receiver.receive_each(most, &mut |bytes| {
                go_on = take(bytes);
                go_on
            });
        }
        match &mut self.queues {
            Some(queues) if go_on => taken + queues.receiver.receive_each(most - taken, take),
            _ => taken,
        }
    }

    #[inline]
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        match &mut self.queues {
            Some(queues) => queues.transmitter.transmit(packet),
            None => Err(TransmitError::Full),
        }
    }

    fn flush(&mut self) {
        if !self.life.is_live() {
            return;
        }
        if let Some(queues) = &mut self.queues {
            queues.transmitter.reclaim_some();
            queues.transmitter.notify(&*self.work);
            queues.receiver.notify_batch(&*self.receive);
        }
        if let Some(steered) = &mut self.steered {
            steered.receiver.notify_batch(&*self.receive);
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted || self.wants_interrupts {
            self.wants_interrupts = wanted;
            if self.life.is_live() && self.wakes() {
                self.apply_interrupts();
            }
        }
    }

    fn pending(&self) -> bool {
        let second = self.steered.as_ref().is_some_and(|steered| steered.receiver.pending());
        let first = self
            .queues
            .as_ref()
            .is_some_and(|queues| queues.receiver.pending() || queues.transmitter.pending());
        first || second
    }

    fn has_room(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| queues.transmitter.has_room())
    }

    fn progress(&mut self) -> TransmitProgress {
        self.queues
            .as_mut()
            .map_or(TransmitProgress::NOTHING_HELD, |queues| queues.transmitter.progress())
    }

    fn route(&mut self, interrupt: &Interrupt) -> bool {
        let routed = self.wakes() && route(&mut self.msix, interrupt);
        if routed {
            self.routed = Some(*interrupt);
        }
        routed
    }

    fn steer(&mut self, flow: UdpFlow, arena: &mut Arena) -> bool {
        self.add_flow(flow, arena)
    }

    fn unsteer(&mut self, flow: UdpFlow) {
        self.remove_flow(flow);
    }

    fn wakes(&self) -> bool {
        self.routed.is_some()
    }

    fn watch(&mut self, now: Instant) {
        self.check(now);
    }

    fn notice(&mut self) -> Option<Notice> {
        self.reset_log.notice()
    }

    fn life(&self) -> DeviceLife {
        self.life.report()
    }

    fn counters(&self) -> PortCounters {
        let raised = |interrupt: Interrupt| interrupt.raised().load(Ordering::Relaxed);
        let mut counters = PortCounters {
            rx_missed: self.missed.iter().sum(),
            interrupts: self.routed.map_or(0, raised),
            resets: self.reset_log.resets,
            ..PortCounters::default()
        };
        if let Some(queues) = &self.queues {
            counters.tx_frames = queues.transmitter.frames;
            counters.tx_bytes = queues.transmitter.bytes;
            counters.tx_full = queues.transmitter.full;
            counters.rx_errors = queues.transmitter.errors;
        }
        let first = self.queues.as_ref().map(|queues| &queues.receiver);
        let second = self.steered.as_ref().map(|steered| &steered.receiver);
        for receiver in first.into_iter().chain(second) {
            counters.rx_frames += receiver.frames;
            counters.rx_bytes += receiver.bytes;
            counters.rx_errors += receiver.errors;
        }
        counters
    }
}
