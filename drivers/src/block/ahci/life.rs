//! Bring-up, reset, removal and return of a drive, as a state machine that never waits: each step checks whether the
//! drive has completed the previous one, and has a deadline by the clock.
//!
//! A request ends only when the controller cannot touch the request's memory any more: the drive has completed it, or
//! the port is stopped (PxCMD.CR is 0), or the controller cannot reach memory at all (bus mastering is off). A drive
//! that fails or is pulled out is tried again for ever.

use super::command;
use super::error::Error;
use super::identify::Identity;
use super::memory::{DATA, Direction, OWN};
use super::port::Port;
use super::registers::{Kind, Link};
use crate::hal::{DeviceLife, DeviceState, DiskError, Features, Instant, Notice, Severity};
use core::time::Duration;

/// COMRESET lasts a millisecond at least (AHCI 1.3.1, 10.4.2).
const RESET_HOLD: Duration = Duration::from_millis(1);
/// Time for the link to come up after COMRESET.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to spin up, and to become ready after COMRESET (Linux: `ata_wait_ready`).
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for IDENTIFY DEVICE.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the port to stop (AHCI 1.3.1, 10.1.2).
const STOP_TIMEOUT: Duration = Duration::from_millis(500);
/// Time for READ LOG EXT.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for STANDBY IMMEDIATE before the machine ends.
const STANDBY_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest pause between two attempts to bring a failed drive back.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Milliseconds without a reset after which the count of recent resets starts again.
const RESETS_FORGOTTEN: u32 = 60_000;
/// Most recent resets. One more is too many.
const MOST_RESETS: u8 = 3;
/// Most times that a command is sent again.
pub(super) const MOST_TRIES: u8 = 3;

// Notices: reasons of resets, and the recovery.
pub(super) const LATE: &str = "the drive did not complete a request in time: its link is reset and the requests are repeated; \
     check its cable, or replace it";
pub(super) const INTERFACE: &str = "an error on the way to the drive: its link is reset and the requests are repeated; \
     check its cable and backplane";
pub(super) const FLAPPED: &str = "the drive's link went down and up: it is set up again and the requests are repeated; check its cable and power";
pub(super) const RESET_BY_OTHERS: &str = "the drive's controller was reset by others: it is set up again and the \
     requests are repeated; check what else uses the controller";
pub(super) const NEIGHBOUR: &str = "another port of the drive's controller hung, and the controller was reset: the drive is \
     set up again and the requests are repeated; check the other drives";
const RECOVERED: &str = "the drive works again";
const LOST_CACHE: &str = "the drive was away with writes in its cache that were not flushed: they may be lost, and \
     the next flush fails";

/// What follows once the port stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Find the command that failed.
    Examine,
    /// Reset the link.
    Reset,
    /// Leave the drive alone, because of this.
    Leave(Error),
}

/// A command of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Identify,
    SpinUp,
    CacheOff,
    Log,
    Standby,
}

impl Own {
    fn name(self) -> &'static str {
        match self {
            Own::Identify => "IDENTIFY DEVICE",
            Own::SpinUp => "SET FEATURES (spin up)",
            Own::CacheOff => "SET FEATURES (write cache off)",
            Own::Log => "READ LOG EXT",
            Own::Standby => "STANDBY IMMEDIATE",
        }
    }

    fn timeout(self) -> Duration {
        match self {
            Own::Identify | Own::CacheOff => COMMAND_TIMEOUT,
            Own::SpinUp => READY_TIMEOUT,
            Own::Log => LOG_TIMEOUT,
            Own::Standby => STANDBY_TIMEOUT,
        }
    }
}

/// State of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// COMRESET.
    Resetting,
    /// The link comes up.
    Linking,
    /// The drive becomes ready.
    Starting,
    /// A command of the driver is in flight.
    Busy(Own),
    /// The drive takes requests.
    Live,
    /// The port stops.
    Stopping(Then),
    /// The drive is not used.
    Out,
}

/// State of a drive, its clock, and its counters.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// When the state was entered, as of the first check after that.
    since: Option<Instant>,
    /// Why the drive is not used; it may be tried again at the moment.
    out: Option<Error>,
    /// The notice of this was made.
    noted: Option<Error>,
    /// Pause before the next attempt, and when it ends.
    pause: Duration,
    due: Instant,
    steady: bool,
    /// It was used before.
    was_live: bool,
    /// The operator was notified of a reset or a failure, and will be of its end.
    announces: bool,
    reset_at: u32,
    recent_resets: u8,
    resets: u64,
    pub(super) aborts: u64,
    /// Commands of SET FEATURES were sent since the last reset.
    has_set: [bool; 2],
    /// The machine ends: the drive is asked to park.
    ends: bool,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            state: State::Out,
            since: None,
            out: None,
            noted: None,
            pause: FIRST_PAUSE,
            due: Instant::ZERO,
            steady: true,
            was_live: false,
            announces: false,
            reset_at: 0,
            recent_resets: 0,
            resets: 0,
            aborts: 0,
            has_set: [false; 2],
            ends: false,
        }
    }
}

impl Life {
    /// Whether the drive takes requests.
    #[inline]
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// Whether the drive is not used, so that requests fail.
    pub fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// Why the drive is not used.
    pub fn error(&self) -> Option<Error> {
        self.out
    }

    /// The state for reports.
    pub fn report(&self) -> DeviceLife {
        let Some(error) = self.out else {
            return match self.state {
                State::Live => DeviceLife::default(),
                _ if self.was_live => DeviceLife::new(DeviceState::Resetting, ""),
                _ => DeviceLife::new(DeviceState::Starting, ""),
            };
        };
        let state = match error {
            Error::NoDrive | Error::NoLink | Error::Absent | Error::AnotherDrive => {
                DeviceState::Absent
            }
            _ => DeviceState::Failed,
        };
        DeviceLife { state, reason: error.notice(), next_try: Some(self.due) }
    }

    /// Whether no step is due before the next watch.
    #[inline]
    pub fn is_steady(&self) -> bool {
        self.steady
    }

    /// Counts of aborts and resets.
    pub fn counted(&self) -> (u64, u64) {
        (self.aborts, self.resets)
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.since = None;
        // A drive that is not used is looked at by timer only.
        self.steady = matches!(state, State::Live | State::Out) || self.out.is_some();
    }
}

impl Port {
    /// Begins to bring the drive up. The port must stand still.
    pub(super) fn begin(&mut self) {
        if !self.controller.allow_memory() {
            return self.stop(Then::Reset);
        }
        if !self.registers.is_selected() {
            self.select();
        }
        // The reset hides what the link did before it.
        self.lost |= self.registers.causes().has_link_change() && self.is_dirty();
        self.life.has_set = [false; 2];
        self.controller_resets = self.controller.resets();
        let [list, received] = self.memory.addresses();
        self.memory.forget_received();
        self.registers.set_up(list, received);
        self.registers.begin_link_reset();
        self.life.enter(State::Resetting);
    }

    /// Selects AHCI again, after the controller has lost its registers.
    pub(super) fn select(&mut self) {
        self.registers.select();
        self.signal.restore();
    }

    /// Takes the next step if the drive has completed the previous one.
    pub(super) fn step(&mut self) {
        let in_use = matches!(
            self.life.state,
            State::Linking | State::Starting | State::Busy(_) | State::Live
        );
        if in_use && self.controller.resets() != self.controller_resets {
            return self.was_reset();
        }
        match self.life.state {
            State::Live | State::Out | State::Resetting => {}
            State::Linking => match self.registers.link() {
                Link::Up => self.life.enter(State::Starting),
                Link::NoController => self.leave(Error::Absent),
                Link::Nothing | Link::Silent => {}
            },
            State::Starting if self.registers.is_ready() => self.is_ready(),
            State::Starting => {}
            State::Busy(own) => self.own_command(own),
            State::Stopping(then) if self.stands_still() => {
                // Without bus mastering, because of another port, nothing but the end works.
                let others_stand = self.controller.note_stopped(&self.registers);
                if others_stand || matches!(then, Then::Leave(_)) {
                    self.stopped(then);
                }
            }
            State::Stopping(_) => {}
        }
    }

    /// Steps and deadlines by the clock.
    pub fn tick(&mut self, now: Instant) {
        /// Most steps at once: more than there are states.
        const STEPS: usize = 8;
        for _ in 0..STEPS {
            let state = self.life.state;
            let since = *self.life.since.get_or_insert(now);
            self.tick_once(now, now.since(since));
            if self.life.state == state {
                return;
            }
        }
    }

    fn tick_once(&mut self, now: Instant, waited: Duration) {
        let state = self.life.state;
        match state {
            State::Resetting if waited >= RESET_HOLD => {
                self.registers.end_link_reset();
                self.life.enter(State::Linking);
            }
            State::Out => self.try_again(now),
            _ => self.step(),
        }
        if self.life.state != state {
            return;
        }
        match state {
            State::Linking if waited > LINK_TIMEOUT => {
                let error = match self.registers.link() {
                    Link::NoController => Error::Absent,
                    Link::Nothing => Error::NoDrive,
                    _ => Error::NoLink,
                };
                self.leave(error);
            }
            State::Starting if waited > READY_TIMEOUT => self.leave(Error::NotReady),
            State::Busy(own) if waited > own.timeout() => self.own_command_late(own),
            State::Stopping(then) if waited > STOP_TIMEOUT => self.does_not_stop(then),
            _ => {}
        }
    }

    /// The drive has sent its signature.
    fn is_ready(&mut self) {
        match self.registers.kind() {
            Kind::Disk => {}
            Kind::Multiplier => return self.leave(Error::Multiplier),
            Kind::Packets => return self.leave(Error::Unknown(0xeb14_0101)),
            Kind::Other(signature) => return self.leave(Error::Unknown(signature)),
        }
        let [list, received] = self.memory.addresses();
        if !self.registers.is_set_up(list, received) {
            return self.was_reset();
        }
        self.registers.clear();
        self.memory.forget_received();
        self.registers.start();
        self.issue_own(Own::Identify);
    }

    /// Issues a command of the driver, in slot 0. The drive must have no other.
    pub(super) fn issue_own(&mut self, own: Own) {
        let fis = match own {
            Own::Identify => command::identify(),
            Own::SpinUp => command::spin_up(),
            Own::CacheOff => command::cache_off(),
            Own::Log => command::queue_error_log(),
            Own::Standby => command::standby(),
        };
        let reads = matches!(own, Own::Identify | Own::Log);
        let data = self.memory.data(OWN);
        data.fill(0);
        self.memory.put(OWN, fis, reads.then_some((data.bus_address(), DATA)));
        self.memory.refer(0, OWN, reads.then_some(Direction::FromDrive));
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        self.registers.issue(0, 1);
        self.life.enter(State::Busy(own));
    }

    /// Looks whether a command of the driver has ended.
    fn own_command(&mut self, own: Own) {
        let causes = self.registers.causes();
        if causes.is_absent() {
            return self.leave(Error::Absent);
        }
        let failed = causes.has_error();
        if !failed && self.registers.issued() & 1 != 0 {
            return;
        }
        // Until the command has ended, the status is that of an earlier one.
        let failed = failed || self.registers.error().is_some();
        match own {
            Own::Identify if !failed => self.identified(),
            Own::SpinUp | Own::CacheOff if !failed => self.issue_own(Own::Identify),
            Own::Log => self.log_read(!failed),
            Own::Standby => self.life.enter(State::Live),
            Own::Identify | Own::SpinUp | Own::CacheOff => {
                self.leave(Error::Refused(own.name()));
            }
        }
    }

    fn own_command_late(&mut self, own: Own) {
        match own {
            Own::Log => self.log_read(false),
            Own::Standby => self.life.enter(State::Live),
            Own::Identify | Own::SpinUp | Own::CacheOff => self.leave(Error::Silent(own.name())),
        }
    }

    /// The drive has described itself.
    fn identified(&mut self) {
        let mut found = match Identity::read(&self.memory.data(OWN), self.limits.queues) {
            Ok(found) => found,
            Err(why) => return self.leave(Error::Unusable(why)),
        };
        if found.waits_to_spin_up {
            return self.set_once(0, Own::SpinUp);
        }
        if let Some(before) = &self.identity {
            let same_blocks = self.geometry.logical_block == found.geometry.logical_block;
            let same_names = before.serial == found.serial && before.model == found.model;
            if !same_names || !same_blocks || before.queue != found.queue {
                return self.leave(Error::AnotherDrive);
            }
            let [had_cache, has_cache] = [&self.geometry, &found.geometry]
                .map(|geometry| geometry.features.contains(Features::VOLATILE_CACHE));
            if has_cache && !had_cache {
                // A drive forgets the setting without power. Its users do not flush.
                return self.set_once(1, Own::CacheOff);
            }
            // Its users go on to flush, and learn so what was lost.
            found.geometry.features.set(Features::VOLATILE_CACHE, had_cache);
            self.changed |= self.geometry.sectors != found.geometry.sectors;
        }
        self.geometry = found.geometry;
        let first = self.identity.replace(found).is_none();
        if first {
            self.slots.resize(self.depth() as u8);
        }
        self.goes_live();
    }

    /// Sends a command of SET FEATURES, once after a reset: a drive may ignore it.
    fn set_once(&mut self, which: usize, own: Own) {
        match core::mem::replace(&mut self.life.has_set[which], true) {
            true => self.leave(Error::Refused(own.name())),
            false => self.issue_own(own),
        }
    }

    /// The drive takes requests.
    pub(super) fn goes_live(&mut self) {
        self.life.out = None;
        if core::mem::take(&mut self.life.announces) {
            self.note(Notice { severity: Severity::Information, text: RECOVERED });
            if self.lost {
                self.note(Notice { severity: Severity::Warning, text: LOST_CACHE });
            }
        }
        self.life.noted = None;
        self.life.pause = FIRST_PAUSE;
        self.life.was_live = true;
        self.life.enter(State::Live);
        self.registers.clear_errors();
        self.registers.set_interrupts(self.wants_interrupts);
        self.send_waiting();
    }

    /// Stops the port, to do something else then.
    pub(super) fn stop(&mut self, then: Then) {
        self.registers.stop();
        self.life.enter(State::Stopping(then));
    }

    fn stands_still(&self) -> bool {
        self.registers.is_stopped() && !self.registers.is_resetting()
    }

    /// The port stands still: the controller touches no memory of commands.
    fn stopped(&mut self, then: Then) {
        self.slots.take_back();
        self.end_hopeless();
        match then {
            Then::Examine => self.examine(),
            Then::Reset => self.begin(),
            Then::Leave(error) => self.is_out(error),
        }
    }

    /// The port does not stop in time: the controller loses its access to memory, and is reset.
    fn does_not_stop(&mut self, then: Then) {
        let is_new = !self.stands_still() && !self.controller.note_stuck(&self.registers);
        if is_new && then != Then::Leave(Error::Absent) {
            self.controller.reset(&self.registers);
            let then = if then == Then::Examine { Then::Reset } else { then };
            return self.life.enter(State::Stopping(then));
        }
        self.slots.take_back();
        match then {
            Then::Leave(error) => self.is_out(error),
            Then::Examine | Then::Reset => self.is_out(Error::NoStop),
        }
    }

    /// Resets the link, to repeat the requests.
    pub(super) fn begin_reset(&mut self, why: &'static str) {
        let life = &mut self.life;
        if self.age.since(life.reset_at) > RESETS_FORGOTTEN {
            life.recent_resets = 0;
        }
        life.reset_at = self.age.millis();
        life.recent_resets += 1;
        if life.recent_resets > MOST_RESETS {
            return self.leave(Error::TooManyResets);
        }
        life.resets += 1;
        life.announces = true;
        self.note(Notice { severity: Severity::Warning, text: why });
        self.stop(Then::Reset);
    }

    /// Stops using the drive. Its requests end once the port stands still.
    pub(super) fn leave(&mut self, error: Error) {
        // Nobody knows what it has lost when it is back: it may be power-cycled.
        self.lost |= self.is_dirty();
        self.stop(Then::Leave(error));
    }

    /// Whether the drive's volatile cache may have writes that were not flushed.
    pub(super) fn is_dirty(&self) -> bool {
        self.dirty && self.geometry.features.contains(Features::VOLATILE_CACHE)
    }

    /// The drive is not used: ends all requests.
    fn is_out(&mut self, error: Error) {
        self.life.out = Some(error);
        if self.life.was_live && self.life.noted != Some(error) {
            self.life.noted = Some(error);
            self.life.announces = true;
            self.note(Notice { severity: Severity::Error, text: error.notice() });
        }
        while let Some(slot) = self.slots.drop_waiting() {
            self.end(slot, Err(DiskError::Broken));
        }
        self.suspects = Default::default();
        self.life.recent_resets = 0;
        self.life.due = Instant::ZERO;
        self.life.enter(State::Out);
    }

    /// Tries to bring a drive back: at once if one is plugged in, otherwise after a pause.
    fn try_again(&mut self, now: Instant) {
        if !self.life.was_live {
            return;
        }
        if self.life.due == Instant::ZERO {
            self.life.due = now + self.life.pause;
            self.life.pause = (2 * self.life.pause).min(LONGEST_PAUSE);
        }
        let removed = matches!(self.life.out, Some(Error::NoDrive | Error::NoLink | Error::Absent));
        let mut link = self.registers.link();
        if link == Link::NoController && self.controller.restore_lost() {
            link = self.registers.link();
        }
        let plugged_in = removed && link == Link::Up;
        if link == Link::NoController || !plugged_in && now < self.life.due {
            return;
        }
        if removed && link == Link::Nothing {
            self.life.due = Instant::ZERO;
            return;
        }
        if !self.registers.is_selected() {
            self.select();
        }
        // The list may still run, if the controller was away when it was to stop.
        self.stop(Then::Reset);
    }

    /// Watches the drive; to be called about once a second.
    pub fn watch(&mut self, now: Instant) {
        self.age.update(now);
        if self.life.is_live() {
            self.collect();
            if self.life.is_live() {
                self.look_for_errors();
            }
            if self.life.is_live() {
                self.look_for_late_requests();
            }
        }
        self.tick(now);
    }

    /// Stops the port for good, and frees its memory if it touches none any more. The port must not be used after this.
    pub(super) fn retire(&mut self, arena: &mut crate::hal::Arena) {
        self.registers.stop();
        self.registers.stop_receiving();
        if self.registers.is_quiet() {
            arena.free(self.memory.window());
        }
    }

    /// Whether the drive is brought up, or cannot be.
    pub(super) fn is_settled(&self) -> bool {
        matches!(self.life.state, State::Live | State::Out)
    }

    /// Parks the drive's heads, before the machine ends.
    pub fn shut_down(&mut self) {
        if self.life.is_live() && self.slots.sent == 0 {
            self.life.ends = true;
            self.issue_own(Own::Standby);
        }
    }

    /// Whether the drive has parked.
    pub fn is_shut_down(&self) -> bool {
        let parks = matches!(self.life.state, State::Busy(Own::Standby));
        !self.life.ends || !parks || self.registers.issued() & 1 == 0
    }
}
