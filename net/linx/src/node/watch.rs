//! Timers of a link: delay of INIT_REPLY, time limit of the handshake, probe of the peer, and pause before a reconnect.
//!
//! * LINX for Linux 2.5.1 drops packets that arrive between its INIT and the start of delivery by its RIOCM, except the
//!   first. So over RIOCM, messages after our INIT are delayed by [`HOLD`] after the peer's INIT.
//! * RIOCM has no timer for lost packets. If an INIT or INIT_REPLY is lost, both connections stay connected and the
//!   link hangs. So a handshake that exceeds [`HANDSHAKE`] ends the connection, which is then restarted.
//! * The loss of our INIT_REPLY is visible to the peer only, which may wait for ever. So a peer over RIOCM that has
//!   sent no RLNH message within [`HANDSHAKE`] after the link came up is probed once: an address is published and
//!   unpublished, for which the peer must send an UNPUBLISH_ACK.
//! * A link that fails before it was up for [`STABLE`] reconnects after a pause that doubles from [`FIRST`] to
//!   [`LONGEST`]. Otherwise it reconnects at once.

use super::addresses::Local;
use super::link::{Carrier, Control, Link, Phase};
use super::{Name, Node};
use crate::riocm::{Down, Fault};
use crate::rng::Rng;
use core::time::Duration;
use drivers::hal::Instant;

/// Delay of INIT_REPLY over RIOCM.
const HOLD: Duration = Duration::from_millis(30);
/// Time limit of INIT, INIT_REPLY, and the answer to a probe.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// Time after which a link is stable.
const STABLE: Duration = Duration::from_secs(10);
/// First and longest pause before a link reconnects.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(10);
/// Name that a probe publishes.
const PROBE_NAME: &[u8] = b"isthmus-is-it-up";

/// Timers of a link.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Until when RLNH messages are held.
    pub hold: Option<Instant>,
    /// Next deadline: end of the handshake, probe or its answer, or the next attempt.
    due: Option<Instant>,
    /// Since when the link is up.
    up_since: Option<Instant>,
    /// An RLNH message has arrived since then.
    pub has_received: bool,
    is_probed: bool,
    /// Consecutive failures without a stable link.
    failures: u32,
}

impl Watch {
    /// The connection is established: the handshake starts.
    pub fn connected(&mut self, now: Instant) {
        *self = Watch { failures: self.failures, due: Some(now + HANDSHAKE), ..Watch::default() };
    }

    /// The peer's INIT has arrived.
    pub fn init_received(&mut self, now: Instant) {
        self.hold = Some(now + HOLD);
    }

    /// The peer's INIT_REPLY has arrived. `probes`: the peer must be probed.
    pub fn up(&mut self, probes: bool, now: Instant) {
        self.up_since = Some(now);
        self.has_received = false;
        self.due = probes.then_some(now + HANDSHAKE);
    }

    /// The connection has ended: sets the pause before the next one.
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
                // Randomly up to a quarter longer, so that the links of a faulty board do not reconnect together.
                pause + pause / 1024 * (rng.next() & 0xff) as u32
            }
        };
        let failures = if is_wanted { 0 } else { self.failures.saturating_add(1) };
        let due = (!pause.is_zero()).then_some(now + pause);
        *self = Watch { failures, due, ..Watch::default() };
    }

    /// Whether the pause is not over.
    pub fn is_pausing(&self) -> bool {
        self.due.is_some()
    }

    fn first(&self) -> Option<Instant> {
        Instant::first([self.hold, self.due])
    }
}

impl Link {
    /// Whether RLNH messages are held. INIT never is.
    pub fn is_held(&self) -> bool {
        self.watch.hold.is_some() && !matches!(self.control.front(), Some(Control::Init(_)))
    }

    /// Queues a probe of the peer. False without a free link address.
    fn queue_probe(&mut self) -> bool {
        let Some(address) = self.local.take(Local::AwaitAck) else { return false };
        self.control.push_back(Control::Publish(address, Name::from(PROBE_NAME)));
        self.control.push_back(Control::Unpublish(address));
        true
    }
}

impl Node {
    /// Sets the timer of a link to its next deadline.
    pub(super) fn rearm(&mut self, place: u16) {
        let Some(Some(link)) = self.links.get(usize::from(place)) else { return };
        self.timers.set(self.links.len() + usize::from(place), link.watch.first());
    }

    /// Handles the timer of a link.
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
                Phase::Up if link.watch.has_received => (),
                Phase::Up if link.watch.is_probed => {
                    self.end_link(place, Down::Fault(Fault::Handshake));
                }
                Phase::Up => {
                    if link.queue_probe() {
                        link.watch.is_probed = true;
                        link.watch.due = Some(now + HANDSHAKE);
                    }
                    self.send_control(place);
                }
            }
        }
        if is_free {
            self.has_room(place);
        }
        self.rearm(place);
    }

    /// Skips the pause before the next attempt, on an operator's request.
    pub(super) fn end_pause(&mut self, place: u16, now: Instant) {
        if let Some(Some(link)) = self.links.get_mut(usize::from(place))
            && link.phase == Phase::Down
        {
            link.watch = Watch::default();
        }
        self.rearm(place);
        self.reconnect(place, now);
    }

    /// Whether a link's peer is probed: only over RIOCM, because TCP loses nothing.
    pub(super) fn probes_peer(link: &Link) -> bool {
        matches!(link.carrier, Carrier::Riocm(_))
    }
}
