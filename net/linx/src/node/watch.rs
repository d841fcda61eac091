//! Timers of a link: the INIT_REPLY that is held back, the handshake that has to be done in time, and the pause before
//! the next attempt.
//!
//! * LINX for Linux 2.5.1 drops what comes between its INIT and the moment at which its RIOCM delivers, but for the first
//!   packet. So over RIOCM what follows our INIT is held back for [`HOLD`] after the peer's INIT.
//! * RIOCM has no timer for a packet that is lost. If an INIT or INIT_REPLY is, both connections stay connected and the
//!   link hangs. So a handshake that takes longer than [`HANDSHAKE`] ends the connection, which begins anew.
//! * That our INIT_REPLY was lost shows at the peer alone, which may be one that waits for ever. So a peer over RIOCM of
//!   which nothing came for [`HANDSHAKE`] after the link came up is asked once: an address is published and unpublished,
//!   for which the peer owes an UNPUBLISH_ACK.
//! * A link that ends soon after it came up, or before, begins anew after a pause that doubles from [`FIRST`] to
//!   [`LONGEST`]. One that was up for [`STABLE`] begins anew at once.

use super::addresses::Local;
use super::link::{Carrier, Control, Link, Phase};
use super::{Name, Node};
use crate::riocm::{Down, Fault};
use crate::rng::Rng;
use core::time::Duration;
use drivers::hal::Instant;

/// How long INIT_REPLY is held back over RIOCM.
const HOLD: Duration = Duration::from_millis(30);
/// How long INIT, INIT_REPLY, and the answer to a question may take.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// After so long a link is stable.
const STABLE: Duration = Duration::from_secs(10);
/// The first pause before a link begins anew, and the longest.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);
/// The name under which the address of a question is published.
const QUESTION: &[u8] = b"isthmus-is-it-up";

/// Timers of a link.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Until when nothing is said.
    pub hold: Option<Instant>,
    /// What is due next: the end of the handshake, a question or its answer, or the next attempt.
    due: Option<Instant>,
    /// Since when the link is up.
    up_since: Option<Instant>,
    /// Something of RLNH has come since then.
    pub is_heard: bool,
    is_asked: bool,
    /// Ends in a row, none of them of a link that was stable.
    failures: u32,
}

impl Watch {
    /// There is a connection.
    pub fn connected(&mut self, now: Instant) {
        *self = Watch { failures: self.failures, due: Some(now + HANDSHAKE), ..Watch::default() };
    }

    /// The peer's INIT has come.
    pub fn greeted(&mut self, now: Instant) {
        self.hold = Some(now + HOLD);
    }

    /// The peer's INIT_REPLY has come.
    pub fn up(&mut self, asks: bool, now: Instant) {
        self.up_since = Some(now);
        self.is_heard = false;
        self.due = asks.then_some(now + HANDSHAKE);
    }

    /// There is no connection any more: when the next one may be wanted.
    pub fn disconnected(&mut self, why: Down, rng: &mut Rng, now: Instant) {
        let was_stable = self.up_since.is_some_and(|since| now.since(since) >= STABLE);
        let is_wanted = matches!(why, Down::Asked | Down::PortGone);
        if was_stable || is_wanted {
            self.failures = 0;
        }
        let pause = match self.failures {
            0 => Duration::ZERO,
            failures => {
                let pause = FIRST.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST);
                // Up to a quarter more, by chance: not all links of a board that is sick at the same time.
                pause + pause / 1024 * (rng.next() & 0xff) as u32
            }
        };
        let failures = if is_wanted { 0 } else { self.failures.saturating_add(1) };
        let due = (!pause.is_zero()).then_some(now + pause);
        *self = Watch { failures, due, ..Watch::default() };
    }

    /// Whether the next connection has to wait.
    pub fn rests(&self) -> bool {
        self.due.is_some()
    }

    fn first(&self) -> Option<Instant> {
        Instant::first([self.hold, self.due])
    }
}

impl Link {
    /// Whether what there is to say has to wait.
    pub fn is_held(&self) -> bool {
        self.watch.hold.is_some() && !matches!(self.control.front(), Some(Control::Init(_)))
    }

    /// Asks the peer whether it is up; false if there is no address to ask with.
    fn ask(&mut self) -> bool {
        let Some(address) = self.local.take(Local::Leaving) else { return false };
        self.control.push_back(Control::Publish(address, Name::from(QUESTION)));
        self.control.push_back(Control::Unpublish(address));
        true
    }
}

impl Node {
    /// Sets the timer of a link to what is due next.
    pub(super) fn rearm(&mut self, place: u16) {
        let Some(Some(link)) = self.links.get(usize::from(place)) else { return };
        self.timers.set(self.links.len() as u32 + u32::from(place), link.watch.first());
    }

    /// The timer of a link.
    pub(super) fn watch(&mut self, place: u16, now: Instant) {
        let Some(Some(link)) = self.links.get_mut(usize::from(place)) else { return };
        let watch = &mut link.watch;
        let is_free = watch.hold.take_if(|at| *at <= now).is_some();
        let is_due = watch.due.take_if(|at| *at <= now).is_some();
        if is_due {
            match link.phase {
                Phase::Down => self.reconnect(place, now),
                Phase::AwaitInit | Phase::AwaitReply => {
                    self.end_link(place, Down::Fault(Fault::Handshake));
                }
                Phase::Up if link.watch.is_heard => (),
                Phase::Up if link.watch.is_asked => {
                    self.end_link(place, Down::Fault(Fault::Handshake));
                }
                Phase::Up => {
                    if link.ask() {
                        link.watch.is_asked = true;
                        link.watch.due = Some(now + HANDSHAKE);
                    }
                    self.say(place);
                }
            }
        }
        if is_free {
            self.has_room(place);
        }
        self.rearm(place);
    }

    /// An operator does not wait for the pause before the next attempt.
    pub(super) fn end_pause(&mut self, place: u16, now: Instant) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(place))
            && link.phase == Phase::Down
        {
            link.watch = Watch::default();
        }
        self.rearm(place);
        self.reconnect(place, now);
    }

    /// Whether a link's peer is asked if it is up: over TCP nothing is lost.
    pub(super) fn asks(link: &Link) -> bool {
        matches!(link.carrier, Carrier::Riocm(_))
    }
}
