//! Life cycle of a port: start, periodic checks, reset, failure, and return. No function waits: each step polls whether
//! the chip has completed the previous one.

use super::chip::Setup;
use super::error::Error;
use super::port::IntelPort;
use crate::ethernet::keeper::{BACK, HUNG, OUT_OF_ORDER, Stall};
use crate::hal::{Backoff, DeviceLife, DeviceState, Instant, Severity};
use core::time::Duration;

/// Time after the begin of a reset during which the chip must not be accessed (82574, 4.6.2: it reads the EEPROM
/// again).
const SETTLING: Duration = Duration::from_millis(10);
/// Timeout of a reset.
pub const RESET_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of the negotiation with a physical function's driver, after which a port that was in use starts it again.
/// Polls are a second apart, and each gets one answer.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(20);
/// Phase of the life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A reset has begun.
    Resetting,
    /// The reset is over; a virtual function negotiates with the physical function's driver.
    Agreeing,
    Live,
    /// The chip has failed, or is absent. One that was live is tried again.
    Gone(Error),
}

/// The state of a chip.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// Begin of the reset; None until the first poll.
    since: Option<Instant>,
    transmit: Stall,
    receive: Stall,
    /// The link was up at the last check.
    link: bool,
    /// The chip was live before.
    pub was_live: bool,
    /// Why the chip is not live, as reported; None while it is.
    reported: Option<Error>,
    backoff: Backoff,
}

impl Default for Life {
    fn default() -> Self {
        Life {
            state: State::Resetting,
            since: None,
            transmit: Stall::default(),
            receive: Stall::default(),
            link: false,
            was_live: false,
            reported: None,
            backoff: Backoff::default(),
        }
    }
}

impl Life {
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// The state for reports.
    pub fn report(&self) -> DeviceLife {
        let reason = self.reported.map_or("", |error| error.notice());
        let state = match self.state {
            State::Live => return DeviceLife::default(),
            State::Resetting if self.was_live => DeviceState::Resetting,
            State::Resetting | State::Agreeing => DeviceState::Starting,
            State::Gone(Error::Absent | Error::Another) => DeviceState::Absent,
            State::Gone(_) => DeviceState::Failed,
        };
        let next_try = self.backoff.next_try().filter(|_| self.was_live && self.error().is_some());
        DeviceLife { state, reason, next_try }
    }

    /// Why the chip is not used; None while it is, or while it starts.
    pub fn error(&self) -> Option<Error> {
        match self.state {
            State::Gone(error) => Some(error),
            _ => None,
        }
    }
}

impl IntelPort {
    /// Runs the next step if the chip has completed the last one.
    pub fn advance(&mut self, now: Instant) {
        // Owners of other queues have not confirmed the reset yet. This time does not count for the chip's timeout.
        if self.owners.as_ref().is_some_and(|owners| !owners.all_follow(self.rings.len() - 1)) {
            return;
        }
        let since = *self.life.since.get_or_insert(now);
        let waited = now.since(since);
        let again = self.life.was_live && self.is_virtual;
        let timeout = if again { NEGOTIATION_TIMEOUT } else { RESET_TIMEOUT };
        let stepped = match self.life.state {
            State::Live | State::Gone(_) => return,
            State::Resetting if waited < SETTLING => return,
            State::Resetting => match self.chip.is_reset(&*self.registers, waited) {
                Ok(Some(mac)) if self.is_another(mac) => Err(Error::Another),
                Ok(Some(mac)) => {
                    self.reset_done(mac);
                    // At the first start the MTU is not known yet.
                    if self.longest > 0 {
                        return self.advance(now);
                    }
                    Ok(true)
                }
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            },
            State::Agreeing => match self.chip.agree(&*self.registers, self.longest) {
                Ok(true) => {
                    self.start();
                    Ok(true)
                }
                other => other.map(|_| false),
            },
        };
        match stepped {
            Ok(true) => {}
            Ok(false) if waited < timeout => {}
            // The physical function's driver may come back.
            Ok(false) if again => self.chip_reset(),
            Ok(false) => self.give_up(if self.is_virtual { Error::Silent } else { Error::NoReset }),
            Err(Error::Refused(_) | Error::Unnamed) if again => self.chip_reset(),
            Err(error) => self.give_up(error),
        }
    }

    /// Whether a MAC address after a reset is that of another card. A virtual function has the address that the physical
    /// function's driver gives it.
    fn is_another(&self, mac: [u8; 6]) -> bool {
        !self.is_virtual && self.mac != [0; 6] && mac != self.mac
    }

    /// Ends a reset. The MAC address of the first reset is kept. At the first start, `await_life` then sets the MTU.
    fn reset_done(&mut self, mac: [u8; 6]) {
        if self.mac == [0; 6] {
            self.mac = mac;
        }
        self.life.state = State::Agreeing;
    }

    /// Sets the chip up.
    fn start(&mut self) {
        let setup = Setup {
            rings: &self.rings,
            key: &self.key,
            mac: self.mac,
            longest: self.longest,
            mode: self.signal.mode(),
        };
        self.function.enable_bus_master();
        self.chip.start(&*self.registers, &setup);
        self.receiver.start(self.longest, &*self.registers);
        self.transmitter.start(self.longest);
        self.life.state = State::Live;
        (self.life.transmit, self.life.receive) = (Stall::default(), Stall::default());
        self.life.was_live = true;
        if let Some(owners) = &self.owners {
            owners.live();
        }
        self.life.backoff.note_up();
        match self.life.reported.take() {
            Some(_) => self.reset_log.note(Severity::Information, BACK),
            None => self.reset_log.note_up(),
        }
        if self.wants_interrupts {
            self.apply_interrupts();
        }
    }

    fn chip_reset(&mut self) {
        self.chip.reset(&*self.registers);
        self.publish_stopped();
        self.life.state = State::Resetting;
        self.life.since = None;
    }

    /// Notifies the owners of other queues that the chip accesses no memory.
    fn publish_stopped(&self) {
        if let Some(owners) = &self.owners {
            owners.stopped();
        }
    }

    /// Begins the first reset.
    pub fn begin(&mut self) {
        self.receiver.stop();
        self.transmitter.stop();
        self.chip_reset();
    }

    /// Resets the chip and sets it up again. Frames in flight are lost.
    fn begin_reset(&mut self, why: &'static str) {
        self.reset_log.reset(why);
        self.begin();
    }

    /// Takes the chip out of use. Each reason is reported once, however often the chip is tried.
    pub fn give_up(&mut self, error: Error) {
        if self.life.error().is_some() {
            return;
        }
        self.halt_chip();
        self.life.state = State::Gone(error);
        if self.life.reported.replace(error) != Some(error) {
            self.reset_log.note(Severity::Error, error.notice());
        }
    }

    /// Begins to set up a chip again that is out of use, if a try is due and the chip answers.
    fn try_again(&mut self, now: Instant) {
        if !self.life.was_live || !self.life.backoff.is_due(now) {
            return;
        }
        // Counts until the chip is live: what follows may fail.
        self.life.backoff.note_failed(now);
        if self.saved.restore_lost(&self.function) && self.chip.link(&*self.registers).is_some() {
            self.signal.restore(&self.function);
            self.begin();
        }
    }

    /// Stops the chip for good: it cannot access memory any more.
    pub fn halt_chip(&mut self) {
        self.chip.reset(&*self.registers);
        self.function.disable();
        self.publish_stopped();
        self.receiver.stop();
        self.transmitter.stop();
    }

    /// Reads the state of the link. Takes a chip that is absent out of use.
    pub fn read_link(&mut self) -> bool {
        if self.life.error().is_some() {
            return false;
        }
        let Some(link) = self.chip.link(&*self.registers) else {
            self.give_up(Error::Absent);
            return false;
        };
        let up = link && self.life.is_live();
        if let Some(owners) = &self.owners {
            owners.set_link(link);
        }
        if self.life.is_live() {
            self.transmitter.note_link(up);
        }
        up
    }

    /// Checks the chip. Call it about once a second.
    pub fn check(&mut self, now: Instant) {
        if self.life.error().is_some() {
            return self.try_again(now);
        }
        let link = self.read_link();
        if !self.life.is_live() {
            return self.advance(now);
        }
        self.missed += self.chip.missed(&*self.registers);
        if self.chip.needs_setup(&*self.registers) {
            return self.begin_reset(self.chip.setup_reason());
        }
        // When the link comes up, the chip has one check interval to begin. Without a link it does not send: a reset
        // discards the queued frames, which would otherwise keep their memory (as in Linux's e1000_watchdog_task).
        let sends = link == self.life.link;
        self.life.link = link;
        self.transmitter.reclaim();
        let waits = if sends { self.transmitter.stuck_at() } else { None };
        let hangs = self.life.transmit.check(waits);
        if hangs || self.owners.as_ref().is_some_and(|owners| owners.hangs()) {
            match link {
                true => return self.begin_reset(HUNG),
                false => return self.begin(),
            }
        }
        let waits = self.receiver.stuck_at();
        if self.life.receive.check(waits) {
            return self.begin_reset(OUT_OF_ORDER);
        }
        self.reset_log.passed_check();
    }
}
