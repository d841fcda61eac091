//! The owner's lines to the loops of other cores. Once the controller is set up and a loop has cleared its rings, the
//! owner creates the queues of that loop, one admin command after the other.

use super::Error;
use super::admin::Work;
use super::command;
use super::controller::Controller;
use super::life::{ABORTED, ADMIN_SILENT, INVALID_COMPLETION, LATE};
use super::line::{Line, Said, Trouble};
use super::pair::Pair;
use super::registers::ControllerRegisters;
use super::signal::Signal;
use crate::hal::{Clock, CoreQueue, MoreQueues, Notice, QueueCount, QueueSeat, Severity};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;

/// Pairs of queues to request of a controller: one for each core.
pub const MOST_PAIRS: u16 = 32;
/// Longest time for the creation of a pair.
const TIMEOUT: Duration = Duration::from_secs(10);

/// State of a pair in the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The controller has not created it.
    Missing,
    /// The controller has created it.
    Created,
    /// The controller refused to create it.
    Refused,
}

/// The owner's end of a line: the parameters of the pair, and its state in the controller.
struct OwnersEnd {
    line: Arc<Line>,
    core: u16,
    id: u16,
    entries: u16,
    addresses: [u64; 2],
    stage: Stage,
    /// The pair was created before, so it must be created again after a reset.
    was_created: bool,
}

/// All lines of a controller.
pub struct Lines {
    all: Vec<OwnersEnd>,
    /// Grows with each reset.
    epoch: u32,
    /// Number of pairs that the controller grants, the owner's included.
    granted: u16,
}

impl Default for Lines {
    fn default() -> Self {
        Lines { all: Vec::new(), epoch: 1, granted: 1 }
    }
}

impl Lines {
    /// Notes the number of pairs that the controller grants, the owner's included.
    pub fn grant(&mut self, pairs: u16) {
        self.granted = pairs;
    }

    /// Begins an epoch: the controller is about to be stopped.
    pub fn stopping(&mut self) {
        self.epoch += 1;
        self.all.iter_mut().for_each(|one| one.stage = Stage::Missing);
        self.say(Said::Stopping);
    }

    /// Publishes a state on all lines.
    pub fn say(&self, said: Said) {
        self.all.iter().for_each(|one| one.line.say(self.epoch, said));
    }

    /// Publishes the size of a namespace on all lines.
    pub fn set_sectors(&self, unit: usize, sectors: u64) {
        self.all.iter().for_each(|one| one.line.set_sectors(unit, sectors));
    }

    /// The first line whose pair is missing and can be created.
    pub fn next(&self) -> Option<usize> {
        let can = |one: &OwnersEnd| one.stage == Stage::Missing && one.line.is_ready(self.epoch);
        self.all.iter().position(can)
    }

    fn command(&self, number: u8, work: fn(u8) -> Work) -> Option<(Work, super::queue::Command)> {
        let &OwnersEnd { id, entries, addresses: [submissions, completions], .. } =
            self.all.get(usize::from(number))?;
        let work = work(number);
        let command = match work {
            Work::LineCompletions(_) => {
                command::create_completions(id, entries, completions, Some(id))
            }
            _ => command::create_submissions(id, entries, submissions),
        };
        Some((work, command))
    }

    /// Number of interrupts raised for other cores.
    pub fn interrupts(&self) -> u64 {
        self.all.iter().map(|one| one.line.interrupts()).sum()
    }

    /// Counters of the queues of other cores.
    pub fn counts(&self) -> impl Iterator<Item = QueueCount> {
        self.all.iter().map(|one| QueueCount {
            core: one.core,
            requests: one.line.completed(),
            interrupts: one.line.interrupts(),
        })
    }
}

impl Controller {
    /// Takes the next step in creating the queues of other cores.
    pub(super) fn create_line_queues(&mut self) {
        if let Some(Work::LineCompletions(_) | Work::LineSubmissions(_)) = self.admin.work() {
            match self.admin.take(&self.pair.registers) {
                Ok(None) => return,
                Ok(Some((work, status))) => self.line_command_done(work, status),
                Err(_) => self.begin_reset(INVALID_COMPLETION),
            }
            return;
        }
        // While another admin command is in flight, its completion calls this function again.
        match self.lines.next().filter(|_| self.admin.is_idle()) {
            Some(number) => self.start_line_command(number as u8, Work::LineCompletions),
            None => self.life.set_steady(true),
        }
    }

    fn start_line_command(&mut self, number: u8, work: fn(u8) -> Work) {
        let Some((work, command)) = self.lines.command(number, work) else { return };
        self.life.set_steady(false);
        self.start_command(work, command);
    }

    /// Handles the completion of a command for another core's queue.
    pub(super) fn line_command_done(&mut self, work: Work, status: u16) {
        let (Work::LineCompletions(number) | Work::LineSubmissions(number)) = work else { return };
        let epoch = self.lines.epoch;
        let Some(one) = self.lines.all.get_mut(usize::from(number)) else { return };
        match work {
            // A queue that existed before the reset must be created again.
            _ if status & 0x7ff != 0 && one.was_created => {
                return self.give_up(Error::Refused { command: work.command(), status });
            }
            _ if status & 0x7ff != 0 => one.stage = Stage::Refused,
            Work::LineCompletions(_) => {
                return self.start_line_command(number, Work::LineSubmissions);
            }
            _ => {
                (one.stage, one.was_created) = (Stage::Created, true);
                one.line.say(epoch, Said::Made);
            }
        }
        self.create_line_queues();
    }

    /// Serves requests of other cores' loops for an abort or a reset. True if a reset has begun.
    pub(super) fn serve_lines(&mut self) -> bool {
        let epoch = self.lines.epoch;
        for number in 0..self.lines.all.len() {
            let (line, id) = (self.lines.all[number].line.clone(), self.lines.all[number].id);
            match line.trouble(epoch) {
                Some(Trouble::InvalidCompletion) => self.begin_reset(INVALID_COMPLETION),
                Some(Trouble::Late) => self.begin_reset(LATE),
                None => {
                    if self.admin.is_idle()
                        && let Some(cid) = line.take_abort()
                    {
                        self.abort(id, cid);
                    }
                    continue;
                }
            }
            return true;
        }
        false
    }

    /// Requests an abort of a command from the controller.
    pub(super) fn abort(&mut self, queue: u16, cid: u16) {
        self.life.count_abort();
        self.start_command(Work::Abort, command::abort(queue, cid));
        self.note(Notice { severity: Severity::Warning, text: ABORTED });
    }

    /// Creates a pair for another core.
    fn open_line(&mut self, seat: QueueSeat<'_>) -> Option<Box<dyn CoreQueue>> {
        let QueueSeat { core, interrupt, wake, platform, clock } = seat;
        let id = u16::try_from(self.lines.all.len()).ok()? + super::controller::IO + 1;
        if id > self.lines.granted.min(MOST_PAIRS) || !self.life.is_live() {
            return None;
        }
        let registers = ControllerRegisters::map(self.bars.get(0)?, id, platform).ok()?;
        let signal = Signal::of_vector(&self.function, &self.bars, platform, id, interrupt)?;
        let raised = signal.interrupt()?;
        let mut memory = Vec::new();
        let mut pair = match Pair::new(id, registers, signal, platform.arena(), &mut memory) {
            Ok(pair) => pair,
            Err(_) => {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return None;
            }
        };
        self.keep(memory);
        let units = &self.pair.units;
        pair.share_out(units.iter().map(|unit| (unit.nsid, unit.namespace)));
        let sectors = units.iter().map(|unit| unit.namespace.geometry.sectors);
        let (epoch, entries) = (self.lines.epoch, pair.queue.entries());
        let line = Arc::new(Line::new(epoch, sectors, wake, raised));
        self.lines.all.push(OwnersEnd {
            line: line.clone(),
            core,
            id,
            entries,
            addresses: pair.queue.addresses(),
            stage: Stage::Missing,
            was_created: false,
        });
        if self.wait_for_line(clock) {
            return Some(Box::new(super::core_queue::NvmeQueue::new(pair, line, epoch)));
        }
        self.lines.all.pop();
        None
    }

    /// Waits until the last pair is created. False if it is not.
    fn wait_for_line(&mut self, clock: &dyn Clock) -> bool {
        let deadline = clock.now() + TIMEOUT;
        loop {
            self.advance();
            match self.lines.all.last().map(|one| one.stage) {
                Some(Stage::Created) => return true,
                Some(Stage::Missing) if self.life.is_live() && clock.now() < deadline => {}
                Some(Stage::Missing) => {
                    self.begin_reset(ADMIN_SILENT);
                    return false;
                }
                Some(Stage::Refused) | None => return false,
            }
            crate::hal::relax();
        }
    }
}

/// Opens further pairs of a controller.
pub struct NvmeQueues(pub Rc<RefCell<Controller>>);

impl MoreQueues for NvmeQueues {
    fn open(&mut self, seat: QueueSeat<'_>) -> Option<Box<dyn CoreQueue>> {
        self.0.borrow_mut().open_line(seat)
    }
}
