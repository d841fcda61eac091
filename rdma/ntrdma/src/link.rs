//! The link to the peer: brings it up through the bridge, keeps it alive, and notices its end.
//! [`super::bringup`] is the table that it follows.

use super::bringup::{self, Seen, State};
use super::config::Config;
use super::layout::{self, Layout};
use super::wire::{BadInfo, INFO_WORDS, Info};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use drivers::ntb::Bridge;

/// How often scratchpads are looked at while the link comes up: each look may cost a round trip.
const LOOK: Duration = Duration::from_millis(1);
/// How often we say again who we are: a peer that was wrong may have written over what we said.
const AGAIN: Duration = Duration::from_millis(50);
/// How long the peer has at least for each step; after that all begins anew.
const PATIENCE: Duration = Duration::from_secs(1);

/// A heartbeat that is the last one: who says it has taken the link down, and the peer need not find out by the
/// beats that are missing.
const FAREWELL: u32 = u32::MAX;

/// What became of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is as it was.
    None,
    /// It came up.
    Up,
    /// It went down.
    Down,
}

/// The link.
#[derive(Debug)]
pub struct Link {
    layout: Layout,
    frames: u32,
    lent_at: u64,
    exposed: Window,
    beat: Duration,
    lost: Duration,
    state: State,
    nonce: u32,
    peer_nonce: u32,
    greeted: u32,
    peer: Option<Info>,
    /// Why the last introduction of the peer was not taken.
    refused: Option<BadInfo>,
    /// The peer has written what no honest one writes.
    wrong: bool,
    /// It is not to come up any more: the machine is about to end.
    closed: bool,
    look_at: Instant,
    /// Since when it stands where it does, and when we say again who we are.
    since: Instant,
    again_at: Instant,
    beat_at: Instant,
    /// Our heartbeat, the last one seen of the peer's, and when it changed.
    beats: u32,
    heard: u32,
    heard_at: Instant,
    /// Until then nothing has to be done while the peer's heartbeat is as it was.
    quiet_until: Instant,
}

impl Link {
    /// Down. `exposed` holds at least the layout and the ring of frames. `lent_at` is what the introduction says.
    pub fn new(config: &Config, exposed: Window, lent_at: u64, nonce: u32) -> Self {
        Link {
            layout: config.layout,
            frames: config.frames,
            lent_at,
            exposed,
            beat: config.beat,
            lost: config.lost,
            state: State::Down,
            nonce,
            peer_nonce: 0,
            greeted: 0,
            peer: None,
            refused: None,
            wrong: false,
            closed: false,
            look_at: Instant::ZERO,
            since: Instant::ZERO,
            again_at: Instant::ZERO,
            beat_at: Instant::ZERO,
            beats: 0,
            heard: 0,
            heard_at: Instant::ZERO,
            quiet_until: Instant::ZERO,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// The peer, if the link is up.
    #[inline]
    pub fn peer(&self) -> Option<&Info> {
        self.peer.as_ref().filter(|_| self.state == State::Up)
    }

    /// Why the peer's last introduction was refused.
    pub fn refused(&self) -> Option<BadInfo> {
        self.refused
    }

    /// The peer has written what no honest one writes, or the operator wants it: the link goes down, and
    /// comes up again.
    pub fn fail(&mut self) {
        self.wrong = true;
        self.quiet_until = Instant::ZERO;
    }

    /// Takes the link down for good, and tells the peer; whether it was up.
    pub fn close<B: Bridge + ?Sized>(&mut self, bridge: &mut B) -> bool {
        let up = self.state == State::Up;
        if up {
            say_farewell(bridge);
        }
        (self.state, self.peer, self.closed) = (State::Down, None, true);
        self.quiet_until = Instant::ZERO;
        up
    }

    /// When `run` wants to be called.
    pub fn deadline(&self) -> Instant {
        match self.state {
            State::Up => self.beat_at.min(self.heard_at + self.lost),
            _ => self.look_at,
        }
    }

    /// Looks at the bridge, and does what is due; `heard` is what the peer's heartbeat says now.
    #[inline]
    pub fn run<B: Bridge + ?Sized>(&mut self, bridge: &mut B, heard: u32, now: Instant) -> Change {
        // What is wrong, and each change of state, ends the quiet.
        if now < self.quiet_until && heard == self.heard && bridge.link() {
            return Change::None;
        }
        self.attend(bridge, heard, now)
    }

    #[inline(never)]
    fn attend<B: Bridge + ?Sized>(&mut self, bridge: &mut B, heard: u32, now: Instant) -> Change {
        self.quiet_until = Instant::ZERO;
        if self.closed {
            return Change::None;
        }
        if self.state == State::Up {
            if now >= self.beat_at {
                self.beat_at = now + self.beat;
                self.beats = (self.beats + 1) % FAREWELL;
                put32(bridge, layout::BEAT, self.beats);
                bridge.renew();
            }
            if heard != self.heard {
                (self.heard, self.heard_at) = (heard, now);
            }
            let alive = bridge.link() && !self.wrong && !self.is_silent(now);
            if alive {
                self.quiet_until = self.deadline();
                return Change::None;
            }
        } else if now < self.look_at {
            return Change::None;
        } else {
            self.look_at = now + LOOK;
        }
        let seen = self.look(bridge, now);
        let next = self.state.next(seen);
        let before = core::mem::replace(&mut self.state, next);
        if before != next {
            self.since = now;
            if before == State::Up && seen.wrong {
                say_farewell(bridge);
            }
            self.enter(bridge, now);
        }
        match (before, next) {
            (State::Up, State::Up) => Change::None,
            (State::Up, _) => Change::Down,
            (_, State::Up) => Change::Up,
            _ => Change::None,
        }
    }

    fn look<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) -> Seen {
        let again = now >= self.again_at;
        if again {
            self.again_at = now + AGAIN;
            bridge.renew();
        }
        let mut seen = Seen {
            link: bridge.link() && bridge.window().len() >= layout::BATCH,
            wrong: self.wrong,
            ..Seen::default()
        };
        if !seen.link {
            return seen;
        }
        match self.state {
            State::Down => seen.settled = bridge.settled(),
            State::Greeting => {
                if again {
                    bridge.set_peer_scratchpad(0, self.nonce);
                    self.greeted = 0;
                }
                self.peer_nonce = bridge.scratchpad(0);
                if self.peer_nonce == 0 {
                    return seen;
                }
                let greeting = bringup::greeting(self.peer_nonce, self.nonce);
                if core::mem::replace(&mut self.greeted, greeting) != greeting {
                    bridge.set_peer_scratchpad(1, greeting);
                }
                seen.greeted =
                    bridge.scratchpad(1) == bringup::greeting(self.nonce, self.peer_nonce);
            }
            State::Clearing => {
                seen.silent = self.waits_in_vain(now);
                seen.stranger = bridge.scratchpad(0) != self.peer_nonce;
                seen.cleared =
                    bridge.scratchpad(2) == bringup::cleared(self.nonce, self.peer_nonce);
            }
            State::Introducing => {
                seen.silent = self.waits_in_vain(now);
                seen.stranger = bridge.scratchpad(0) != self.peer_nonce;
                let session = bringup::session(self.nonce, self.peer_nonce);
                if !seen.stranger && self.exposed.load32(layout::READY) == session {
                    let mut words = [0; INFO_WORDS];
                    self.exposed.load_words(0, &mut words);
                    seen.introduced = true;
                    match Info::parse(&words, session, bridge.window().len()) {
                        Ok(info) => self.peer = Some(info),
                        Err(error) => {
                            self.refused = Some(error);
                            seen.wrong = true;
                        }
                    }
                }
            }
            State::Up => seen.silent = self.is_silent(now),
        }
        seen
    }

    /// Whether the peer of a link that is up has said farewell, or nothing for too long.
    fn is_silent(&self, now: Instant) -> bool {
        self.heard == FAREWELL || now.since(self.heard_at) >= self.lost
    }

    /// Whether the next step of the peer's does not come.
    fn waits_in_vain(&self, now: Instant) -> bool {
        now.since(self.since) >= self.lost.max(PATIENCE)
    }

    /// What is done on entering the present state.
    fn enter<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) {
        match self.state {
            State::Down => {
                // A peer that is wrong is not worth more than a few attempts a second.
                let pause = if self.wrong || self.refused.is_some() { self.lost } else { LOOK };
                self.look_at = now + pause;
                self.wrong = false;
                self.peer = None;
            }
            State::Greeting => {
                self.nonce = bringup::next_nonce(self.nonce);
                self.greeted = 0;
                bridge.set_peer_scratchpad(0, self.nonce);
            }
            State::Clearing => {
                if let Some(control) = self.exposed.slice(0, self.layout.slot(0)) {
                    control.fill(0);
                }
                let cleared = bringup::cleared(self.peer_nonce, self.nonce);
                bridge.set_peer_scratchpad(2, cleared);
            }
            State::Introducing => {
                let info = Info {
                    session: bringup::session(self.nonce, self.peer_nonce),
                    layout: self.layout,
                    exposed: self.exposed.len() as u64,
                    loads: bridge.loads(),
                    frames: self.frames,
                    lent_at: self.lent_at,
                };
                if let Some(place) = bridge.window().slice(0, 8 * INFO_WORDS) {
                    bridge.put(&place, &info.emit());
                }
                bridge.order();
                put32(bridge, layout::READY, info.session);
                bridge.order();
            }
            State::Up => {
                self.refused = None;
                (self.heard, self.heard_at) = (self.exposed.load32(layout::BEAT), now);
                self.beat_at = now;
            }
        }
    }
}

/// Tells the peer that the link is down, behind all that was written before.
fn say_farewell<B: Bridge + ?Sized>(bridge: &mut B) {
    bridge.order();
    put32(bridge, layout::BEAT, FAREWELL);
    bridge.order();
    bridge.ring();
}

/// Writes a cell of the peer's.
#[inline]
fn put32<B: Bridge + ?Sized>(bridge: &mut B, offset: usize, value: u32) {
    if let Some(place) = bridge.window().slice(offset, 4) {
        bridge.put32(&place, value);
    }
}
