//! How a controller comes up, is looked after, is reset, and is given up (NVMe 1.4, 3.1.5, 7.6 and 9). Nothing here
//! waits: each step looks whether the controller has done the one before.
//!
//! A request ends only when the controller cannot touch its memory any more: it has completed it, or is stopped
//! (CSTS.RDY is 0), or may not reach memory at all (bus mastering is off).

use super::admin::Work;
use super::age::Age;
use super::command::{self, Identify};
use super::controller::{Controller, IO};
use super::error::Error;
use super::identify::{self, Namespace};
use super::line::Said;
use super::lines::MOST_PAIRS;
use super::log_page::{self, SmartLog};
use super::pair::Late;
use crate::hal::{Instant, Notice, Severity};
use core::time::Duration;

/// A command of the admin queue must be answered in this time.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a drive is asked how it fares.
const HEALTH_INTERVAL: u32 = 30_000;
/// After so long without a reset those before are forgotten.
const RESETS_FORGOTTEN: u32 = 60_000;
/// More resets than this, none forgotten, are too many.
const MOST_RESETS: u8 = 3;

// What a reset is for.
pub const NONSENSE: &str = "the drive completed a request that it was not given, or completed one twice: its \
     controller is reset and the work done again; look after its firmware, or replace it";
pub const LATE: &str = "the drive did not complete a request, nor abort it: its controller is reset and the work done \
     again; look after its firmware, or replace it";
const FATAL: &str = "the drive reports a fatal error (CSTS.CFS): its controller is reset and the work done again; look \
     after its firmware, power and cooling";
const LOST: &str =
    "the drive has reset itself: it is set up anew and the work done again; look after its power";
pub const DEAF: &str = "the drive does not answer commands for administration: its controller is reset and the work done \
     again; look after its firmware, or replace it";
pub const ABORTED: &str = "the drive did not complete a request in 10 s: it is told to abort it";
const BACK: &str = "the drive works again";

/// Where a controller is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// CC.EN is 0, CSTS.RDY still 1.
    Stopping,
    /// CC.EN is 1, CSTS.RDY still 0.
    Starting,
    /// A command of the admin queue is under way that sets it up.
    SettingUp,
    /// It takes requests.
    Live,
    /// It is not used any more.
    Gone(Error),
}

/// The state of a controller, and its age.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// Since when it is in that state, once somebody looked.
    since: Option<Instant>,
    /// It takes requests, and there is nothing to do for it until somebody looks after it.
    steady: bool,
    age: Age,
    /// When the admin command was started, in Live.
    asked: u32,
    /// When it is asked next how it fares, and what of that comes next: 0 the log page, then units.
    health_due: u32,
    question: usize,
    reset_at: u32,
    recent_resets: u8,
    aborts: u64,
    resets: u64,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            state: State::Stopping,
            since: None,
            steady: false,
            age: Age::default(),
            asked: 0,
            health_due: 0,
            question: 0,
            reset_at: 0,
            recent_resets: 0,
            aborts: 0,
            resets: 0,
        }
    }
}

impl Life {
    /// It takes requests.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// It is not used any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone(_))
    }

    /// Why it is not used any more.
    pub fn error(&self) -> Option<Error> {
        match self.state {
            State::Gone(error) => Some(error),
            _ => None,
        }
    }

    /// There is nothing to do for it until somebody looks after it: it takes requests, or is not used any more.
    #[inline(always)]
    pub fn is_steady(&self) -> bool {
        self.steady
    }

    /// Whether that is so, while it takes requests.
    pub fn set_steady(&mut self, steady: bool) {
        self.steady = steady;
    }

    /// Requests aborted, and resets.
    pub fn counted(&self) -> (u64, u64) {
        (self.aborts, self.resets)
    }

    /// A request is to be aborted.
    pub fn count_abort(&mut self) {
        self.aborts += 1;
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.since = None;
        self.steady = self.is_gone();
    }
}

impl Controller {
    /// Takes the next step if the controller has done the last one.
    pub fn advance(&mut self) {
        match self.life.state {
            State::Live => self.make_lines(),
            State::Gone(_) => {}
            State::Stopping => {
                let status = self.pair.registers.status();
                if status.is_absent() {
                    self.give_up(Error::Absent);
                } else if !status.is_ready() {
                    self.stopped();
                }
            }
            State::Starting => {
                let status = self.pair.registers.status();
                if status.is_absent() {
                    self.give_up(Error::Absent);
                } else if status.is_fatal() {
                    self.give_up(Error::Fatal);
                } else if status.is_ready() {
                    let page = self.admin.page().bus_address();
                    self.set_up(Work::Identify, command::identify(Identify::Controller, page));
                }
            }
            State::SettingUp => match self.admin.take(&self.pair.registers) {
                Ok(None) => {}
                Ok(Some((work, status))) => self.was_set_up(work, status),
                Err(error) => self.give_up(error),
            },
        }
    }

    /// It touches no memory any more.
    fn stopped(&mut self) {
        self.pair.begin_anew();
        self.admin.restart();
        self.lines.say(Said::Quiet);
        let [submissions, completions] = self.admin.queue().addresses();
        self.pair.registers.enable(submissions, completions, self.admin.queue().entries());
        self.life.enter(State::Starting);
    }

    fn set_up(&mut self, work: Work, command: super::queue::Command) {
        self.life.enter(State::SettingUp);
        self.admin.start(work, command, &self.pair.registers);
    }

    fn was_set_up(&mut self, work: Work, status: u16) {
        // A controller that does not let queues be counted may have two all the same.
        if status & 0x7ff != 0 && work != Work::Queues {
            return self.give_up(Error::Refused { command: work.command(), status });
        }
        let entries = self.pair.queue.entries();
        let [submissions, completions] = self.pair.queue.addresses();
        match work {
            Work::Identify => {
                let shift = self.pair.registers.capabilities().page_shift;
                let found = identify::Controller::read(&self.admin.page(), shift);
                let Some(found) = found else { return self.give_up(Error::Nonsense) };
                if !found.takes_entries() {
                    return self.give_up(Error::EntrySizes);
                }
                if self.identity.as_ref().is_some_and(|before| before.serial != found.serial) {
                    return self.give_up(Error::AnotherDrive);
                }
                self.identity = Some(found);
                self.set_up(Work::Queues, command::pairs_of_queues(MOST_PAIRS));
            }
            Work::Queues => {
                let granted = match status & 0x7ff {
                    0 => command::pairs_granted(self.admin.queue().result()),
                    _ => 1,
                };
                self.lines.grant(granted);
                let vector = self.pair.signal.vector();
                let command = command::create_completions(IO, entries, completions, vector);
                self.set_up(Work::Completions, command);
            }
            Work::Completions => {
                let command = command::create_submissions(IO, entries, submissions);
                self.set_up(Work::Submissions, command);
            }
            _ => {
                self.life.enter(State::Live);
                if self.life.resets > 0 {
                    self.note(Notice { severity: Severity::Information, text: BACK });
                }
                self.pair.open();
                self.make_lines();
            }
        }
    }

    /// Gives the controller up if it takes too long for the step that it is at.
    pub fn check_time(&mut self, now: Instant) {
        let since = *self.life.since.get_or_insert(now);
        let timeout = self.pair.registers.capabilities().timeout;
        let seconds = timeout.as_secs().max(1);
        let (limit, error) = match self.life.state {
            State::Stopping => (timeout, Error::NoReset { seconds }),
            State::Starting => (timeout, Error::NotReady { seconds }),
            State::SettingUp => {
                (ADMIN_TIMEOUT, Error::Silent(self.admin.work().map_or("", Work::command)))
            }
            State::Live | State::Gone(_) => return,
        };
        if now.since(since) > limit {
            self.give_up(error);
        }
    }

    /// Stops the controller; it is set up anew, and what it had under way is done again.
    pub fn begin_reset(&mut self, why: &'static str) {
        if !self.life.is_live() {
            return;
        }
        let life = &mut self.life;
        if life.age.since(life.reset_at) > RESETS_FORGOTTEN {
            life.recent_resets = 0;
        }
        life.reset_at = life.age.millis();
        life.recent_resets += 1;
        if life.recent_resets > MOST_RESETS {
            return self.give_up(Error::TooManyResets);
        }
        life.resets += 1;
        life.enter(State::Stopping);
        self.pair.hold();
        self.lines.stopping();
        self.pair.registers.disable();
        self.note(Notice { severity: Severity::Warning, text: why });
    }

    /// The controller is not used any more: its requests end.
    pub fn give_up(&mut self, error: Error) {
        if self.life.is_gone() {
            return;
        }
        self.pair.registers.disable();
        // Whatever it still thinks that it has to do: it cannot reach memory.
        self.function.disable();
        self.life.enter(State::Gone(error));
        self.pair.end_all();
        self.lines.say(Said::Gone);
        self.note(Notice { severity: Severity::Error, text: error.notice() });
    }

    /// The machine ends.
    pub fn shut_down(&mut self) {
        if self.life.is_live() {
            self.pair.registers.shut_down();
        }
    }

    /// Whether it is ready for that.
    pub fn is_shut_down(&self) -> bool {
        let status = self.pair.registers.status();
        !self.life.is_live() || status.is_absent() || status.is_shut_down()
    }

    /// Whether nobody answers any more.
    fn is_absent(&self) -> bool {
        self.pair.registers.is_absent() || self.function.vendor() == u16::MAX
    }

    /// Looks after the controller; to be called about once a second.
    pub fn watch(&mut self, now: Instant) {
        self.life.age.grow(now);
        self.pair.age = self.life.age;
        if self.life.is_gone() {
            return;
        }
        if !self.life.is_live() {
            self.advance();
            return self.check_time(now);
        }
        let status = self.pair.registers.status();
        if status.is_absent() || !status.is_ready() && self.is_absent() {
            self.give_up(Error::Absent);
        } else if status.is_fatal() {
            self.begin_reset(FATAL);
        } else if !status.is_ready() {
            self.begin_reset(LOST);
        } else {
            self.take_answer();
            if !self.life.is_live() || self.heed_lines() {
                return;
            }
            self.look_for_late_requests();
            if self.life.is_live() && self.lines.next().is_some() {
                self.make_lines();
            }
            self.ask_how_it_fares();
        }
    }

    /// Takes the answer to an admin command.
    fn take_answer(&mut self) {
        match self.admin.take(&self.pair.registers) {
            Err(_) => self.begin_reset(NONSENSE),
            Ok(None) => {
                let waits = u128::from(self.life.age.since(self.life.asked));
                if !self.admin.is_idle() && waits > ADMIN_TIMEOUT.as_millis() {
                    self.begin_reset(DEAF);
                }
            }
            // Whether it did abort shows in the request's own completion.
            Ok(Some((Work::Health, 0))) => {
                let log = SmartLog::read(&self.admin.page());
                let before = self.smart.map_or(0, |log| log.warnings);
                for text in log.news(before) {
                    self.note(Notice { severity: Severity::Warning, text });
                }
                self.smart = Some(log);
            }
            Ok(Some((Work::Shape(unit), 0))) => self.note_shape(unit),
            Ok(Some((work, status))) => self.line_was_made(work, status),
        }
    }

    /// Takes over the size of a namespace that may have changed.
    fn note_shape(&mut self, number: usize) {
        let page = self.admin.page();
        let Some((identity, unit)) = self.identity.as_ref().zip(self.pair.units.get(number)) else {
            return;
        };
        // Half a change, or nonsense: the old shape holds until it makes sense again. With blocks of another
        // size it is another disk: the old shape holds, and requests fail.
        if let Ok(found) = Namespace::read(&page, identity)
            && found.geometry.logical_block == unit.namespace.geometry.logical_block
        {
            self.pair.resize(number, found.geometry.sectors);
            self.lines.set_sectors(number, found.geometry.sectors);
        }
    }

    fn look_for_late_requests(&mut self) {
        match self.pair.late(self.admin.is_idle()) {
            Late::Nothing => {}
            Late::Abort(cid) => self.abort(IO, cid),
            Late::Reset => self.begin_reset(LATE),
        }
    }

    pub(super) fn ask(&mut self, work: Work, command: super::queue::Command) {
        self.life.asked = self.life.age.millis();
        self.admin.start(work, command, &self.pair.registers);
    }

    /// Asks one question of those that are due.
    fn ask_how_it_fares(&mut self) {
        let life = &mut self.life;
        if !life.is_live()
            || !self.admin.is_idle()
            || life.health_due.wrapping_sub(life.age.millis()) as i32 > 0
        {
            return;
        }
        let page = self.admin.page().bus_address();
        let question = life.question;
        life.question += 1;
        if question > self.pair.units.len() {
            life.question = 0;
            life.health_due = life.age.millis().wrapping_add(HEALTH_INTERVAL);
        } else if let Some(unit) = question.checked_sub(1) {
            let Some(nsid) = self.pair.units.get(unit).map(|unit| unit.nsid) else { return };
            self.ask(Work::Shape(unit), command::identify(Identify::Namespace(nsid), page));
        } else if self.smart.is_some() {
            self.ask(Work::Health, command::health(page, log_page::LEN));
        }
    }
}
