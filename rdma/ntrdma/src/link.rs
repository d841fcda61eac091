//! The link to the peer: bring-up through the bridge, heartbeats, and detection of its end.
//! [`super::bringup`] has its state table.

use super::bringup::{self, Seen, State};
use super::config::Config;
use super::layout::{self, Layout};
use super::wire::{BadInfo, INFO_WORDS, Info};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use drivers::ntb::Bridge;

/// Interval of reads of the scratchpads while the link comes up, because each may cost a round trip.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Interval at which a greeting is repeated, because a faulty peer may have overwritten it.
const REPEAT_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum timeout for each step of the peer; afterwards bring-up restarts.
const STEP_TIMEOUT: Duration = Duration::from_secs(1);

/// Value of the last heartbeat: the sender has taken the link down, so the peer need not wait for a
/// timeout.
const LAST_BEAT: u32 = u32::MAX;

/// Change of the link's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change.
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
    /// Why the peer's last introduction was refused.
    refused: Option<BadInfo>,
    /// The peer has violated the protocol, or the operator resets the link.
    wrong: bool,
    /// It must not come up any more, because the machine shuts down.
    closed: bool,
    poll_at: Instant,
    /// When it entered its state.
    since: Instant,
    /// When the greeting is repeated.
    repeat_at: Instant,
    beat_at: Instant,
    /// Value of the local heartbeat.
    beats: u32,
    /// Last value of the peer's heartbeat.
    peer_beat: u32,
    /// When the peer's heartbeat last changed.
    peer_beat_at: Instant,
    /// Until then `run` has no work while the peer's heartbeat does not change.
    quiet_until: Instant,
}

impl Link {
    /// A link that is down. `exposed` contains at least the layout and the ring of frames. `lent_at` is for the
    /// introduction.
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
            poll_at: Instant::ZERO,
            since: Instant::ZERO,
            repeat_at: Instant::ZERO,
            beat_at: Instant::ZERO,
            beats: 0,
            peer_beat: 0,
            peer_beat_at: Instant::ZERO,
            quiet_until: Instant::ZERO,
        }
    }

    /// Its state.
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

    /// Takes the link down after a protocol violation, or on the operator's request; it comes up
    /// again.
    pub fn fail(&mut self) {
        self.wrong = true;
        self.quiet_until = Instant::ZERO;
    }

    /// Takes the link down for good, and notifies the peer; returns whether it was up.
    pub fn close<B: Bridge + ?Sized>(&mut self, bridge: &mut B) -> bool {
        let up = self.state == State::Up;
        if up {
            send_last_beat(bridge);
        }
        (self.state, self.peer, self.closed) = (State::Down, None, true);
        self.quiet_until = Instant::ZERO;
        up
    }

    /// Deadline of the next call of `run`.
    pub fn deadline(&self) -> Instant {
        match self.state {
            State::Up => self.beat_at.min(self.peer_beat_at + self.lost),
            _ => self.poll_at,
        }
    }

    /// Advances the link; `beat` is the current value of the peer's heartbeat.
    #[inline]
    pub fn run<B: Bridge + ?Sized>(&mut self, bridge: &mut B, beat: u32, now: Instant) -> Change {
        // `fail`, and each change of state, clears `quiet_until`.
        if now < self.quiet_until && beat == self.peer_beat && bridge.link() {
            return Change::None;
        }
        self.advance(bridge, beat, now)
    }

    #[inline(never)]
    fn advance<B: Bridge + ?Sized>(&mut self, bridge: &mut B, beat: u32, now: Instant) -> Change {
        self.quiet_until = Instant::ZERO;
        if self.closed {
            return Change::None;
        }
        if self.state == State::Up {
            if now >= self.beat_at {
                self.beat_at = now + self.beat;
                self.beats = (self.beats + 1) % LAST_BEAT;
                put32(bridge, layout::BEAT, self.beats);
                bridge.renew();
            }
            if beat != self.peer_beat {
                (self.peer_beat, self.peer_beat_at) = (beat, now);
            }
            let alive = bridge.link() && !self.wrong && !self.is_silent(now);
            if alive {
                self.quiet_until = self.deadline();
                return Change::None;
            }
        } else if now < self.poll_at {
            return Change::None;
        } else {
            self.poll_at = now + POLL_INTERVAL;
        }
        let seen = self.observe(bridge, now);
        let next = self.state.next(seen);
        let before = core::mem::replace(&mut self.state, next);
        if before != next {
            self.since = now;
            if before == State::Up && seen.wrong {
                send_last_beat(bridge);
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

    fn observe<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) -> Seen {
        let again = now >= self.repeat_at;
        if again {
            self.repeat_at = now + REPEAT_INTERVAL;
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
                seen.silent = self.is_step_overdue(now);
                seen.new_nonce = bridge.scratchpad(0) != self.peer_nonce;
                seen.cleared =
                    bridge.scratchpad(2) == bringup::cleared(self.nonce, self.peer_nonce);
            }
            State::Introducing => {
                seen.silent = self.is_step_overdue(now);
                seen.new_nonce = bridge.scratchpad(0) != self.peer_nonce;
                let session = bringup::session(self.nonce, self.peer_nonce);
                if !seen.new_nonce && self.exposed.load32(layout::READY) == session {
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

    /// Whether the peer of a link that is up has sent its last heartbeat, or none for too long.
    fn is_silent(&self, now: Instant) -> bool {
        self.peer_beat == LAST_BEAT || now.since(self.peer_beat_at) >= self.lost
    }

    /// Whether the peer's next step timed out.
    fn is_step_overdue(&self, now: Instant) -> bool {
        now.since(self.since) >= self.lost.max(STEP_TIMEOUT)
    }

    /// Actions on entering the current state.
    fn enter<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) {
        match self.state {
            State::Down => {
                // After a fault of the peer, bring-up is attempted only a few times a second.
                let pause =
                    if self.wrong || self.refused.is_some() { self.lost } else { POLL_INTERVAL };
                self.poll_at = now + pause;
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
                (self.peer_beat, self.peer_beat_at) = (self.exposed.load32(layout::BEAT), now);
                self.beat_at = now;
            }
        }
    }
}

/// Notifies the peer that the link is down, after all earlier writes.
fn send_last_beat<B: Bridge + ?Sized>(bridge: &mut B) {
    bridge.order();
    put32(bridge, layout::BEAT, LAST_BEAT);
    bridge.order();
    bridge.ring();
}

/// Writes a cell of the peer's exposed memory.
#[inline]
fn put32<B: Bridge + ?Sized>(bridge: &mut B, offset: usize, value: u32) {
    if let Some(place) = bridge.window().slice(offset, 4) {
        bridge.put32(&place, value);
    }
}
