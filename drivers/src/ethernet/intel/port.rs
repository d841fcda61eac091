//! A chip as a [`Port`].

use super::chip::{Causes, Chip, Rings};
use super::error::Error;
use super::life::{Life, RESET_TIMEOUT};
use super::receive::Receiver;
use super::signal::Signal;
use super::transmit::Transmitter;
use crate::ethernet::keeper::ResetLog;
use crate::ethernet::owners::Owners;
use crate::ethernet::{LEAST_MTU, MOST_MTU, OVERHEAD, PLAIN_MTU, WantedMtu};
use crate::hal::{
    Arena, Clock, DeviceLife, Frame, HashKey, Instant, Interrupt, Notice, Packet, Platform, Port,
    PortCounters, Registers, TransmitError, TransmitProgress, Window, relax,
};
use crate::pci::Function;
use crate::pci::reset::SavedConfig;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A port.
pub struct IntelPort {
    pub(super) function: Function<'static>,
    pub(super) registers: Box<dyn Registers>,
    pub(super) chip: Box<dyn Chip>,
    pub(super) signal: Signal,
    pub(super) receiver: Receiver,
    pub(super) transmitter: Transmitter,
    /// Rings of each pair of queues.
    pub(super) rings: Vec<Rings>,
    pub(super) key: HashKey,
    /// State shared with the owners of other queues, if there are any.
    pub(super) owners: Option<Arc<Owners>>,
    pub(super) life: Life,
    /// Configuration space as the driver has set it up, for a chip that was away.
    pub(super) saved: SavedConfig,
    /// All zero until the first reset is over.
    pub(super) mac: [u8; 6],
    pub(super) mtu: u16,
    /// Longest frame in bytes, with a tag, without FCS.
    pub(super) longest: usize,
    /// A virtual function: the physical function's driver controls the chip.
    pub(super) is_virtual: bool,
    /// The loop is about to halt.
    pub(super) wants_interrupts: bool,
    pub(super) missed: u64,
    pub(super) reset_log: ResetLog,
    memory: Vec<Window>,
}

impl IntelPort {
    /// Opens a chip, and waits until it is up.
    pub fn open(
        function: Function<'static>,
        chip: Box<dyn Chip>,
        is_virtual: bool,
        platform: &mut dyn Platform,
        wanted_mtu: WantedMtu<'_>,
        clock: &dyn Clock,
    ) -> Result<Self, Error> {
        let bars = function.bars();
        let bar = bars.get(0).ok_or(Error::NoRegisters)?;
        let len = chip.registers();
        let address = bar.range(0, len as u64).ok_or(Error::NoRegisters)?;
        let registers = platform.map_registers(address, len).ok_or(Error::NoRegisters)?;
        function.prepare();
        let signal = Signal::open(&function, &bars, chip.may_need_line(), platform);
        let mut memory = Vec::new();
        let rings = Self::rings(&*chip, platform.arena(), &mut memory);
        let (receiver, transmitter) = match rings {
            Ok(rings) => rings,
            Err(error) => {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return Err(error);
            }
        };
        let saved = SavedConfig::of(&function);
        let mut port = IntelPort {
            function,
            saved,
            registers,
            chip,
            signal,
            rings: alloc::vec![Rings::of(&receiver, &transmitter)],
            receiver,
            transmitter,
            key: HashKey::default(),
            owners: None,
            life: Life::default(),
            mac: [0; 6],
            mtu: PLAIN_MTU,
            longest: 0,
            is_virtual,
            wants_interrupts: false,
            missed: 0,
            reset_log: ResetLog::new(),
            memory,
        };
        match port.come_up(wanted_mtu, clock) {
            Ok(()) => Ok(port),
            Err(error) => {
                port.halt_chip();
                let memory = core::mem::take(&mut port.memory);
                memory.into_iter().for_each(|window| platform.arena().free(window));
                Err(error)
            }
        }
    }

    fn rings(
        chip: &dyn Chip,
        arena: &mut Arena,
        memory: &mut Vec<Window>,
    ) -> Result<(Receiver, Transmitter), Error> {
        let receiver = Receiver::new(arena, chip, 0, memory)?;
        Ok((receiver, Transmitter::new(arena, chip, 0, memory)?))
    }

    fn come_up(&mut self, wanted_mtu: WantedMtu<'_>, clock: &dyn Clock) -> Result<(), Error> {
        self.begin();
        self.await_life(Some(wanted_mtu), clock)
    }

    /// Waits until the chip is live after a reset. At the first start, sets the MTU by `wanted_mtu`.
    pub(super) fn await_life(
        &mut self,
        wanted_mtu: Option<WantedMtu<'_>>,
        clock: &dyn Clock,
    ) -> Result<(), Error> {
        let deadline = clock.now() + RESET_TIMEOUT + RESET_TIMEOUT;
        while !self.life.is_live() {
            let now = clock.now();
            self.advance(now);
            if let Some(error) = self.life.error() {
                return Err(error);
            }
            if now > deadline {
                return Err(if self.is_virtual { Error::Silent } else { Error::NoReset });
            }
            if self.mac != [0; 6]
                && let Some(wanted_mtu) = wanted_mtu.filter(|_| self.longest == 0)
            {
                let most = self.chip.most_mtu().min(MOST_MTU);
                self.mtu = wanted_mtu(self.mac).unwrap_or(PLAIN_MTU).clamp(LEAST_MTU, most);
                self.longest = OVERHEAD + usize::from(self.mtu);
            }
            relax();
        }
        Ok(())
    }

    /// Enables the interrupts that are needed.
    pub(super) fn apply_interrupts(&mut self) {
        let received = self.wants_interrupts;
        let causes = Causes { received, sent: received && self.transmitter.is_starved() };
        self.chip.set_interrupts(&*self.registers, self.signal.mode(), 0, causes);
    }
}

impl Drop for IntelPort {
    fn drop(&mut self) {
        self.halt_chip();
    }
}

impl Port for IntelPort {
    fn route(&mut self, interrupt: &Interrupt) -> bool {
        self.signal.route(&self.function, interrupt)
    }

    fn split(
        &mut self,
        more: usize,
        key: &HashKey,
        platform: &mut dyn Platform,
        clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        self.add_queues(more, key, platform, clock)
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu.into()
    }

    fn link_up(&mut self) -> bool {
        self.read_link()
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
        self.transmitter.notify(&*self.registers);
        self.receiver.notify_batch(&*self.registers);
    }

    fn set_interrupts(&mut self, wanted: bool) {
        if wanted || self.wants_interrupts {
            self.wants_interrupts = wanted;
            if self.life.is_live() && self.signal.wakes() {
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

    fn progress(&mut self) -> TransmitProgress {
        self.transmitter.progress()
    }

    fn wakes(&self) -> bool {
        self.signal.wakes()
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
        PortCounters {
            rx_frames: self.receiver.frames,
            rx_bytes: self.receiver.bytes,
            rx_errors: self.receiver.errors,
            rx_missed: self.missed,
            tx_frames: self.transmitter.frames,
            tx_bytes: self.transmitter.bytes,
            tx_full: self.transmitter.full,
            interrupts: self.signal.count(),
            resets: self.reset_log.resets,
        }
    }
}
