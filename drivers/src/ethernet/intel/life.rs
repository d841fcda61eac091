//! How a port comes up, is looked after, is reset, and is given up. Nothing here waits: each step looks whether the chip
//! has done the one before.

use super::chip::Setup;
use super::error::Error;
use super::port::IntelPort;
use crate::ethernet::keeper::{HUNG, LOST_PLACE, Stall};
use crate::hal::{Instant, Severity};
use core::time::Duration;

/// No chip is touched so soon after a reset was begun (82574, 4.6.2: the EEPROM is read again).
const SETTLING: Duration = Duration::from_millis(10);
/// A chip that has not come out of reset by then never does.
pub const RESET_TIMEOUT: Duration = Duration::from_secs(3);
/// The driver of a physical function is asked again after this, by a port that was in use: a look each second sees one
/// answer.
const ASKED_AGAIN: Duration = Duration::from_secs(20);
/// Where a chip is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A reset was begun.
    Resetting,
    /// It is reset, and agrees with whoever else is in charge.
    Agreeing,
    Live,
    /// It is not used any more.
    Gone(Error),
}

/// The state of a chip.
#[derive(Debug)]
pub struct Life {
    state: State,
    /// Since when it is reset, once somebody looked.
    since: Option<Instant>,
    transmit: Stall,
    receive: Stall,
    /// The link was up at the last look.
    link: bool,
    /// It was live once.
    pub was_live: bool,
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
        }
    }
}

impl Life {
    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// Why it is not used any more.
    pub fn error(&self) -> Option<Error> {
        match self.state {
            State::Gone(error) => Some(error),
            _ => None,
        }
    }
}

impl IntelPort {
    /// Takes the next step if the chip has done the last one.
    pub fn advance(&mut self, now: Instant) {
        // Who has other queues has not looked yet: that is no fault of the chip's.
        if self.owners.as_ref().is_some_and(|owners| !owners.all_follow(self.rings.len() - 1)) {
            return;
        }
        let since = *self.life.since.get_or_insert(now);
        let waited = now.since(since);
        let again = self.life.was_live && self.is_virtual;
        let timeout = if again { ASKED_AGAIN } else { RESET_TIMEOUT };
        let stepped = match self.life.state {
            State::Live | State::Gone(_) => return,
            State::Resetting if waited < SETTLING => return,
            State::Resetting => match self.chip.is_reset(&*self.registers, waited) {
                Ok(Some(mac)) => {
                    self.was_reset(mac);
                    // How long frames are to be is known but for the first time.
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
            // Who is in charge of a virtual function may come back.
            Ok(false) if again => self.chip_reset(),
            Ok(false) => self.give_up(if self.is_virtual { Error::Silent } else { Error::NoReset }),
            Err(Error::Refused(_) | Error::Unnamed) if again => self.chip_reset(),
            Err(error) => self.give_up(error),
        }
    }

    /// The reset is over. The first decides which MAC address it is.
    fn was_reset(&mut self, mac: [u8; 6]) {
        if self.mac == [0; 6] {
            self.mac = mac;
            // Who opens the port asks how long frames are to be, and goes on.
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
        self.chip.start(&*self.registers, &setup);
        self.receiver.start(self.longest, &*self.registers);
        self.transmitter.start(self.longest);
        self.life.state = State::Live;
        (self.life.transmit, self.life.receive) = (Stall::default(), Stall::default());
        self.life.was_live = true;
        if let Some(owners) = &self.owners {
            owners.live();
        }
        self.keeper.works();
        if self.wants_interrupts {
            self.apply_interrupts();
        }
    }

    fn chip_reset(&mut self) {
        self.chip.reset(&*self.registers);
        self.tell_others();
        self.life.state = State::Resetting;
        self.life.since = None;
    }

    /// Those who have other queues hear that the chip reaches no memory.
    fn tell_others(&self) {
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

    /// Stops the chip; it is set up anew. What it had under way is lost.
    fn begin_reset(&mut self, why: &'static str) {
        self.keeper.reset(why);
        self.begin();
    }

    /// The chip is not used any more.
    pub fn give_up(&mut self, error: Error) {
        if self.life.error().is_some() {
            return;
        }
        self.halt_chip();
        self.life.state = State::Gone(error);
        self.keeper.note(Severity::Error, error.notice());
    }

    /// From here on it cannot reach memory.
    pub fn halt_chip(&mut self) {
        self.chip.reset(&*self.registers);
        self.function.disable();
        self.tell_others();
        self.receiver.stop();
        self.transmitter.stop();
    }

    /// The state of the link, and whether there is anybody.
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

    /// Looks after the chip; to be called about once a second.
    pub fn look(&mut self, now: Instant) {
        if self.life.error().is_some() {
            return;
        }
        let link = self.read_link();
        if !self.life.is_live() {
            return self.advance(now);
        }
        self.missed += self.chip.missed(&*self.registers);
        if self.chip.is_lost(&*self.registers) {
            return self.begin_reset(self.chip.why_lost());
        }
        // When a link comes it takes a look to begin. Without one nothing is sent: a reset takes the frames that the chip
        // has been given, which would hold on to their memory (as Linux's e1000_watchdog_task does).
        let sends = link == self.life.link;
        self.life.link = link;
        self.transmitter.reclaim();
        let waits = if sends { self.transmitter.waits_at() } else { None };
        let hangs = self.life.transmit.look(waits);
        if hangs || self.owners.as_ref().is_some_and(|owners| owners.hangs()) {
            match link {
                true => return self.begin_reset(HUNG),
                false => return self.begin(),
            }
        }
        let waits = self.receiver.waits_at();
        if self.life.receive.look(waits) {
            return self.begin_reset(LOST_PLACE);
        }
        self.keeper.look();
    }
}
