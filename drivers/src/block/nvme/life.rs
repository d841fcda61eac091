//! Bring-up, watch, reset and failure of a controller (NVMe 1.4, 3.1.5, 7.6 and 9) as a state machine that never waits:
//! each step checks whether the controller has completed the previous one.
//!
//! A request ends only when the controller cannot touch the request's memory any more: the controller has completed it,
//! or is stopped (CSTS.RDY is 0), or cannot reach memory at all (bus mastering is off).

use super::admin::Work;
use super::command::{self, Identify};
use super::controller::{Controller, IO};
use super::error::Error;
use super::identify::{self, Namespace};
use super::line::Said;
use super::lines::MOST_PAIRS;
use super::log_page::{self, SmartLog};
use super::pair::Late;
use crate::block::age::Age;
use crate::hal::{Backoff, DeviceLife, DeviceState, Instant, Notice, Severity};
use core::time::Duration;

/// Longest time for a command of the admin queue (Linux: `admin_timeout`).
pub const ADMIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Milliseconds between readings of the drive's health.
const HEALTH_INTERVAL: u32 = 30_000;
/// Milliseconds without a reset after which the count of recent resets starts again.
const RESETS_FORGOTTEN: u32 = 60_000;
/// Most recent resets. One more is too many.
const MOST_RESETS: u8 = 3;

// Notices: reasons of resets, an abort, and the recovery.
pub const INVALID_COMPLETION: &str = "the drive completed an unknown request, or completed one twice: its controller \
     is reset and the requests are repeated; update its firmware, or replace it";
pub const LATE: &str = "the drive did not complete a request, nor abort it: its controller is reset and the requests \
     are repeated; update its firmware, or replace it";
const FATAL: &str = "the drive reports a fatal error (CSTS.CFS): its controller is reset and the requests are \
     repeated; check its firmware, power and cooling";
const SELF_RESET: &str =
    "the drive has reset itself: it is set up again and the requests are repeated; check its power";
pub const ADMIN_SILENT: &str = "the drive does not complete admin commands: its controller is reset and the requests \
     are repeated; update its firmware, or replace it";
pub const ABORTED: &str = "the drive did not complete a request in 10 s: aborting the request";
const RECOVERED: &str = "the drive works again";

/// State of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// CC.EN is 0, CSTS.RDY still 1.
    Stopping,
    /// CC.EN is 1, CSTS.RDY still 0.
    Starting,
    /// An admin command of the setup is in flight.
    SettingUp,
    /// The controller takes requests.
    Live,
    /// The controller failed, and is not used any more.
    Gone(Error),
}

/// State of a controller, its clock, and its counters.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// When the state was entered, as of the first check after that.
    since: Option<Instant>,
    /// No step is pending until the next watch.
    steady: bool,
    age: Age,
    /// When the admin command in flight was started, in state `Live`.
    command_started: u32,
    /// When the next round of health queries begins.
    health_due: u32,
    /// The next query of the round: 0 for the log page, then the units.
    next_query: usize,
    reset_at: u32,
    recent_resets: u8,
    aborts: u64,
    resets: u64,
    /// Tries to bring a controller up again that was given up.
    backoff: Backoff,
    /// Time of the last check.
    now: Instant,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            state: State::Stopping,
            since: None,
            steady: false,
            age: Age::default(),
            command_started: 0,
            health_due: 0,
            next_query: 0,
            reset_at: 0,
            recent_resets: 0,
            aborts: 0,
            resets: 0,
            backoff: Backoff::default(),
            now: Instant::ZERO,
        }
    }
}

impl Life {
    /// Whether the controller takes requests.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// Whether the controller failed, and is not used any more.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone(_))
    }

    /// The state for reports.
    pub fn report(&self) -> DeviceLife {
        let (state, error) = match self.state {
            State::Live => return DeviceLife::default(),
            State::Gone(error @ (Error::Absent | Error::AnotherDrive)) => {
                (DeviceState::Absent, error)
            }
            State::Gone(error) => (DeviceState::Failed, error),
            _ if self.resets > 0 => return DeviceLife::new(DeviceState::Resetting, ""),
            _ => return DeviceLife::new(DeviceState::Starting, ""),
        };
        let next_try = self.backoff.next_try().filter(|_| error.may_pass());
        DeviceLife { state, reason: error.notice(), next_try }
    }

    /// Why the controller is not used any more.
    pub fn error(&self) -> Option<Error> {
        match self.state {
            State::Gone(error) => Some(error),
            _ => None,
        }
    }

    /// Whether no step is pending until the next watch: the controller takes requests, or is not used any more.
    #[inline]
    pub fn is_steady(&self) -> bool {
        self.steady
    }

    /// Sets whether no step is pending, while the controller takes requests.
    pub fn set_steady(&mut self, steady: bool) {
        self.steady = steady;
    }

    /// Counts of aborts and resets.
    pub fn counted(&self) -> (u64, u64) {
        (self.aborts, self.resets)
    }

    /// Counts an abort.
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
    /// Takes the next step if the controller has completed the previous one.
    pub fn advance(&mut self) {
        match self.life.state {
            State::Live => self.create_line_queues(),
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
                Ok(Some((work, status))) => self.setup_step_done(work, status),
                Err(error) => self.give_up(error),
            },
        }
    }

    /// The controller has stopped, and touches no memory any more: clears its queues and enables it again.
    fn stopped(&mut self) {
        self.pair.restart();
        self.admin.restart();
        self.lines.say(Said::Quiet);
        let [submissions, completions] = self.admin.queue().addresses();
        self.function.enable_bus_master();
        self.pair.registers.enable(submissions, completions, self.admin.queue().entries());
        self.life.enter(State::Starting);
    }

    fn set_up(&mut self, work: Work, command: super::queue::Command) {
        self.life.enter(State::SettingUp);
        self.admin.start(work, command, &self.pair.registers);
    }

    fn setup_step_done(&mut self, work: Work, status: u16) {
        // A controller that refuses Set Features may support one pair of queues all the same.
        if status & 0x7ff != 0 && work != Work::Queues {
            return self.give_up(Error::Refused { command: work.command(), status });
        }
        let entries = self.pair.queue.entries();
        let [submissions, completions] = self.pair.queue.addresses();
        match work {
            Work::Identify => {
                let shift = self.pair.registers.capabilities().page_shift;
                let found = identify::Controller::read(&self.admin.page(), shift);
                let Some(found) = found else { return self.give_up(Error::InvalidCompletion) };
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
                self.life.backoff.note_up();
                if self.life.resets > 0 {
                    self.note(Notice { severity: Severity::Information, text: RECOVERED });
                }
                self.pair.open();
                self.create_line_queues();
            }
        }
    }

    /// Gives the controller up if its current step has timed out.
    pub fn check_time(&mut self, now: Instant) {
        self.life.now = now;
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

    /// Stops the controller, to set it up again and to repeat its requests.
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

    /// Disables the controller, and ends its requests. If the failure may pass, the controller is tried again later.
    pub fn give_up(&mut self, error: Error) {
        if self.life.is_gone() {
            return;
        }
        let is_first = self.life.backoff.next_try().is_none();
        self.life.backoff.note_failed(self.life.now);
        self.pair.registers.disable();
        // Without bus mastering it cannot reach memory, whatever its state.
        self.function.disable();
        self.life.enter(State::Gone(error));
        self.pair.end_all();
        self.lines.say(Said::Gone);
        // Further failures of the same drive are not reported.
        if is_first || !error.may_pass() {
            self.note(Notice { severity: Severity::Error, text: error.notice() });
        }
    }

    /// Brings a controller up again that was given up, if the next try is due.
    fn try_again(&mut self, now: Instant) {
        let may_pass = self.life.error().is_some_and(|error| error.may_pass());
        if !may_pass || !self.life.backoff.is_due(now) {
            return;
        }
        // A drive that was put back, or reset by the machine, has lost its registers.
        if !self.saved.restore_lost(&self.function) {
            return self.life.backoff.note_failed(now);
        }
        self.function.prepare();
        if self.pair.registers.is_absent() {
            return self.life.backoff.note_failed(now);
        }
        self.life.resets += 1;
        self.lines.stopping();
        self.pair.return_from_end();
        self.pair.registers.disable();
        self.life.enter(State::Stopping);
        self.advance();
    }

    /// Notifies the controller of the coming power-off.
    pub fn shut_down(&mut self) {
        if self.life.is_live() {
            self.pair.registers.shut_down();
        }
    }

    /// Whether the controller is ready for power-off.
    pub fn is_shut_down(&self) -> bool {
        let status = self.pair.registers.status();
        !self.life.is_live() || status.is_absent() || status.is_shut_down()
    }

    /// Whether the controller has disappeared from the bus.
    fn is_absent(&self) -> bool {
        self.pair.registers.is_absent() || self.function.vendor() == u16::MAX
    }

    /// Watches the controller; to be called about once a second.
    pub fn watch(&mut self, now: Instant) {
        self.life.age.update(now);
        self.life.now = now;
        self.pair.age = self.life.age;
        if self.life.is_gone() {
            return self.try_again(now);
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
            self.begin_reset(SELF_RESET);
        } else {
            self.take_admin_completion();
            if !self.life.is_live() || self.serve_lines() {
                return;
            }
            self.look_for_late_requests();
            if self.life.is_live() && self.lines.next().is_some() {
                self.create_line_queues();
            }
            self.query_health();
        }
    }

    /// Takes the completion of an admin command.
    fn take_admin_completion(&mut self) {
        match self.admin.take(&self.pair.registers) {
            Err(_) => self.begin_reset(INVALID_COMPLETION),
            Ok(None) => {
                let waits = u128::from(self.life.age.since(self.life.command_started));
                if !self.admin.is_idle() && waits > ADMIN_TIMEOUT.as_millis() {
                    self.begin_reset(ADMIN_SILENT);
                }
            }
            Ok(Some((Work::Health, 0))) => {
                let log = SmartLog::read(&self.admin.page());
                let before = self.smart.map_or(0, |log| log.warnings);
                for text in log.new_warnings(before) {
                    self.note(Notice { severity: Severity::Warning, text });
                }
                self.smart = Some(log);
            }
            Ok(Some((Work::Size(unit), 0))) => self.update_size(unit),
            // An abort needs nothing here: the request's own completion shows its result.
            Ok(Some((work, status))) => self.line_command_done(work, status),
        }
    }

    /// Updates the size of a namespace from its Identify data.
    fn update_size(&mut self, number: usize) {
        let page = self.admin.page();
        let Some((identity, unit)) = self.identity.as_ref().zip(self.pair.units.get(number)) else {
            return;
        };
        // Invalid data, such as half a change, is ignored until it is valid again. With another size of blocks it is
        // another disk: the old geometry is kept, and requests fail.
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

    pub(super) fn start_command(&mut self, work: Work, command: super::queue::Command) {
        self.life.command_started = self.life.age.millis();
        self.admin.start(work, command, &self.pair.registers);
    }

    /// Starts the next due query: the health log page, or the size of a unit.
    fn query_health(&mut self) {
        let life = &mut self.life;
        if !life.is_live()
            || !self.admin.is_idle()
            || life.health_due.wrapping_sub(life.age.millis()) as i32 > 0
        {
            return;
        }
        let page = self.admin.page().bus_address();
        let query = life.next_query;
        life.next_query += 1;
        if query > self.pair.units.len() {
            life.next_query = 0;
            life.health_due = life.age.millis().wrapping_add(HEALTH_INTERVAL);
        } else if let Some(unit) = query.checked_sub(1) {
            let Some(nsid) = self.pair.units.get(unit).map(|unit| unit.nsid) else { return };
            self.start_command(
                Work::Size(unit),
                command::identify(Identify::Namespace(nsid), page),
            );
        } else if self.smart.is_some() {
            self.start_command(Work::Health, command::health(page, log_page::LEN));
        }
    }
}
