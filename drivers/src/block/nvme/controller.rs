//! The controller on the core that owns it: registers, admin queue, a pair of I/O queues, and lines to the loops of
//! other cores that have further pairs. Bring-up, reset and failure of the controller are in `life`.

use super::admin::{self, Admin};
use super::error::Error;
use super::identify;
use super::life::Life;
use super::lines::Lines;
use super::log_page::SmartLog;
use super::pair::{InvalidCompletion, Pair};
use super::queue::Queue;
use super::registers::ControllerRegisters;
use super::signal::Signal;
use crate::hal::{Arena, Completion, Health, Notice, Platform, Window};
use crate::pci::reset::SavedConfig;
use crate::pci::{Bars, Function};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The owner's pair of I/O queues.
pub const IO: u16 = 1;
/// Most notices that are kept for the caller.
const NOTICES: usize = 16;

/// An NVMe controller.
pub struct Controller {
    pub(super) function: Function<'static>,
    pub(super) bars: Bars,
    /// Configuration registers as at the opening.
    pub(super) saved: SavedConfig,
    pub(super) admin: Admin,
    pub(super) pair: Pair,
    pub(super) lines: Lines,
    pub(super) life: Life,
    /// Identify data of the controller, once read.
    pub(super) identity: Option<identify::Controller>,
    pub(super) smart: Option<SmartLog>,
    notices: VecDeque<Notice>,
    memory: Vec<Window>,
}

impl Controller {
    /// Maps a function's registers and allocates its queues. The controller stays disabled.
    pub fn attach(
        function: Function<'static>,
        platform: &mut dyn Platform,
    ) -> Result<Controller, Error> {
        let bars = function.bars();
        let bar = bars.get(0).ok_or(Error::NoRegisters)?;
        function.prepare();
        let registers = ControllerRegisters::map(bar, IO, platform)?;
        // The firmware may have left the controller enabled, with the firmware's queues.
        registers.disable();
        let signal = Signal::open(&function, &bars, platform);
        let mut memory = Vec::new();
        let (admin, pair) = match Self::queues(registers, signal, platform.arena(), &mut memory) {
            Ok(made) => made,
            Err(error) => {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return Err(error);
            }
        };
        Ok(Controller {
            function,
            bars,
            saved: SavedConfig::of(&function),
            admin,
            pair,
            lines: Lines::default(),
            life: Life::default(),
            identity: None,
            smart: None,
            notices: VecDeque::with_capacity(NOTICES),
            memory,
        })
    }

    fn queues(
        registers: ControllerRegisters,
        signal: Signal,
        arena: &mut Arena,
        memory: &mut Vec<Window>,
    ) -> Result<(Admin, Pair), Error> {
        let capabilities = registers.capabilities();
        let entries = u32::from(admin::ENTRIES).min(capabilities.entries);
        let queue = Queue::alloc(0, 1 << entries.ilog2(), &registers, arena, memory)?;
        let bytes = identify::LEN;
        let answers = arena.alloc(bytes, 1 << capabilities.page_shift);
        let answers = answers.ok_or(Error::NoMemory { bytes })?;
        memory.push(answers);
        Ok((Admin::new(queue, answers), Pair::new(IO, registers, signal, arena, memory)?))
    }

    /// Frees the controller's memory. The controller must be stopped, and must not be used after this.
    pub fn free_memory(&mut self, arena: &mut Arena) {
        self.memory.drain(..).for_each(|window| arena.free(window));
    }

    /// Adds memory that the controller uses.
    pub(super) fn keep(&mut self, memory: Vec<Window>) {
        self.memory.extend(memory);
    }

    /// The next completion of a unit.
    #[inline]
    pub fn poll(&mut self, unit: usize) -> Option<Completion> {
        if !self.life.is_steady() {
            self.advance();
        }
        match self.pair.poll(unit) {
            Ok(done) => done,
            Err(InvalidCompletion) => {
                self.begin_reset(super::life::INVALID_COMPLETION);
                self.pair.ended(unit)
            }
        }
    }

    /// Whether a completion of any unit is waiting, or the controller needs a step of bring-up or reset.
    pub fn pending(&self, unit: usize) -> bool {
        !self.life.is_steady() || self.pair.pending(unit)
    }

    /// Health of the drive.
    pub fn health(&self) -> Health {
        let measured = self.smart.map_or(Health::default(), |log| log.health);
        let (aborts, resets) = self.life.counted();
        Health { aborts, resets, gone: self.life.is_gone(), ..measured }
    }

    /// The next notice.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Keeps a notice, if there is room.
    pub(super) fn note(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES {
            self.notices.push_back(notice);
        }
    }
}

impl Drop for Controller {
    /// Stops the controller, so that it does not use its memory any more.
    fn drop(&mut self) {
        self.pair.registers.disable();
    }
}
