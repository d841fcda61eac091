//! The lines of a controller's owner to loops of other cores: their queues are made beside its own, one command of the
//! admin queue after the other, whenever the controller has been set up and the rings are as new.

use super::Error;
use super::admin::Work;
use super::command;
use super::controller::Controller;
use super::life::{ABORTED, DEAF, LATE, NONSENSE};
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

/// Pairs of queues that a controller is asked for: one for each core that may have one.
pub const MOST_PAIRS: u16 = 32;
/// How long a controller may take to make the queues of a pair.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How far a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The controller does not know it.
    ToMake,
    /// It has it.
    Made,
    /// It does not want it.
    Refused,
}

/// A line, with what the controller is to know of the pair.
struct OwnersEnd {
    line: Arc<Line>,
    core: u16,
    id: u16,
    entries: u16,
    addresses: [u64; 2],
    stage: Stage,
    /// The controller had it once.
    was_made: bool,
}

/// All lines.
pub struct Lines {
    all: Vec<OwnersEnd>,
    /// Grows with each reset.
    epoch: u32,
    /// Pairs that the controller grants.
    granted: u16,
}

impl Default for Lines {
    fn default() -> Self {
        Lines { all: Vec::new(), epoch: 1, granted: 1 }
    }
}

impl Lines {
    /// The controller grants so many pairs, the owner's among them.
    pub fn grant(&mut self, pairs: u16) {
        self.granted = pairs;
    }

    /// The controller is about to be stopped.
    pub fn stopping(&mut self) {
        self.epoch += 1;
        self.all.iter_mut().for_each(|one| one.stage = Stage::ToMake);
        self.say(Said::Stopping);
    }

    /// Everybody is told.
    pub fn say(&self, said: Said) {
        self.all.iter().for_each(|one| one.line.say(self.epoch, said));
    }

    /// Everybody is told of a namespace's size.
    pub fn set_sectors(&self, unit: usize, sectors: u64) {
        self.all.iter().for_each(|one| one.line.set_sectors(unit, sectors));
    }

    /// The first that is to be made, and can be.
    pub fn next(&self) -> Option<usize> {
        let can = |one: &OwnersEnd| one.stage == Stage::ToMake && one.line.is_ready(self.epoch);
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

    /// Interrupts that were raised for other cores.
    pub fn interrupts(&self) -> u64 {
        self.all.iter().map(|one| one.line.interrupts()).sum()
    }

    /// What the queues of other cores have done.
    pub fn counts(&self) -> impl Iterator<Item = QueueCount> {
        self.all.iter().map(|one| QueueCount {
            core: one.core,
            requests: one.line.completed(),
            interrupts: one.line.interrupts(),
        })
    }
}

impl Controller {
    /// Has queues made for other cores, as far as that can go on now.
    pub(super) fn make_lines(&mut self) {
        if let Some(Work::LineCompletions(_) | Work::LineSubmissions(_)) = self.admin.work() {
            match self.admin.take(&self.pair.registers) {
                Ok(None) => return,
                Ok(Some((work, status))) => self.line_was_made(work, status),
                Err(_) => self.begin_reset(NONSENSE),
            }
            return;
        }
        // Otherwise it is looked again when the answer to something else was taken.
        match self.lines.next().filter(|_| self.admin.is_idle()) {
            Some(number) => self.make(number as u8, Work::LineCompletions),
            None => self.life.set_steady(true),
        }
    }

    fn make(&mut self, number: u8, work: fn(u8) -> Work) {
        let Some((work, command)) = self.lines.command(number, work) else { return };
        self.life.set_steady(false);
        self.ask(work, command);
    }

    /// A command for another core's queue was done, or not.
    pub(super) fn line_was_made(&mut self, work: Work, status: u16) {
        let (Work::LineCompletions(number) | Work::LineSubmissions(number)) = work else { return };
        let epoch = self.lines.epoch;
        let Some(one) = self.lines.all.get_mut(usize::from(number)) else { return };
        match work {
            // What it had once it is to have again.
            _ if status & 0x7ff != 0 && one.was_made => {
                return self.give_up(Error::Refused { command: work.command(), status });
            }
            _ if status & 0x7ff != 0 => one.stage = Stage::Refused,
            Work::LineCompletions(_) => return self.make(number, Work::LineSubmissions),
            _ => {
                (one.stage, one.was_made) = (Stage::Made, true);
                one.line.say(epoch, Said::Made);
            }
        }
        self.make_lines();
    }

    /// Does what loops of other cores ask for; true if that is a reset.
    pub(super) fn heed_lines(&mut self) -> bool {
        let epoch = self.lines.epoch;
        for number in 0..self.lines.all.len() {
            let (line, id) = (self.lines.all[number].line.clone(), self.lines.all[number].id);
            match line.trouble(epoch) {
                Some(Trouble::Nonsense) => self.begin_reset(NONSENSE),
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

    /// Has the controller abort a command.
    pub(super) fn abort(&mut self, queue: u16, cid: u16) {
        self.life.count_abort();
        self.ask(Work::Abort, command::abort(queue, cid));
        self.note(Notice { severity: Severity::Warning, text: ABORTED });
    }

    /// Has a pair made for another core.
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
            stage: Stage::ToMake,
            was_made: false,
        });
        if self.wait_for_line(clock) {
            return Some(Box::new(super::core_queue::NvmeQueue::new(pair, line, epoch)));
        }
        self.lines.all.pop();
        None
    }

    /// Waits until the last pair was made; false if it was not.
    fn wait_for_line(&mut self, clock: &dyn Clock) -> bool {
        let deadline = clock.now() + TIMEOUT;
        loop {
            self.advance();
            match self.lines.all.last().map(|one| one.stage) {
                Some(Stage::Made) => return true,
                Some(Stage::ToMake) if self.life.is_live() && clock.now() < deadline => {}
                Some(Stage::ToMake) => {
                    self.begin_reset(DEAF);
                    return false;
                }
                Some(Stage::Refused) | None => return false,
            }
            crate::hal::relax();
        }
    }
}

/// More pairs of a controller.
pub struct NvmeQueues(pub Rc<RefCell<Controller>>);

impl MoreQueues for NvmeQueues {
    fn open(&mut self, seat: QueueSeat<'_>) -> Option<Box<dyn CoreQueue>> {
        self.0.borrow_mut().open_line(seat)
    }
}
