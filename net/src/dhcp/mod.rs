//! The DHCP client (RFC 2131): an address with its network, a router and the MTU.
//!
//! It has no timer and no socket of its own: frames and time are arguments. What it sends to everybody it writes as
//! frames; what goes to its server alone waits for the server's hardware address like any packet
//! ([`crate::outbox`]). Whether an address is free is probed by [`crate::probes`], which has it declined if it is not.
//!
//! A server can make a client ask for ever, so each lap that ends without a lease is followed by a longer wait.

mod lease;
mod message;

pub use lease::Lease;

use crate::link::Queue;
use crate::notices::{Mac, Notices, Topic};
use alloc::format;
use core::net::Ipv4Addr;
use core::time::Duration;
use drivers::hal::{Instant, Severity};
use lease::{Grant, Times};
use message::{Kind, Message, Request};
use sha2::{Digest, Sha256};

/// Between the first message and the next; each time it takes twice as long, up to the last (RFC 2131 section 4.1).
const FIRST_RETRY: Duration = Duration::from_secs(4);
const LAST_RETRY: Duration = Duration::from_secs(64);
/// Between two attempts to renew a lease, at least (RFC 2131 section 4.4.5).
const RENEWAL_RETRY: Duration = Duration::from_secs(60);
/// How often a server is asked for what it offered, and any for the lease that we have, before we give up.
const REQUESTS: u32 = 3;
const CONFIRMATIONS: u32 = 2;
/// After a first failed lap; each time it takes twice as long, up to the last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// After an address was declined (RFC 2131 section 3.1.5).
const DECLINED: Duration = Duration::from_secs(10);
/// How long the offer of a server that failed us waits for another server's.
const SECOND_CHOICE: Duration = Duration::from_secs(1);
/// How long our server has to contradict another that refuses our lease.
const OBJECTION: Duration = Duration::from_secs(1);
/// A lease that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(60);
/// Longest answer that we ask for: what every Ethernet takes.
const LONGEST_ANSWER: usize = 1500;

/// Random numbers that tell nothing of what they are made of, nor of each other.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.drawn += 1;
        let mut hash = Sha256::new();
        hash.update(b"dhcp");
        hash.update(self.seed.to_be_bytes());
        hash.update(self.drawn.to_be_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        hash.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// A duration below `limit`.
    fn below(&mut self, limit: Duration) -> Duration {
        let millis = limit.as_millis().max(1) as u64;
        Duration::from_millis(self.next() % millis)
    }
}

/// A lease that we have.
#[derive(Clone, Copy)]
struct Held {
    lease: Lease,
    since: Instant,
    /// None: it never ends.
    times: Option<Times>,
}

impl Held {
    fn renews(&self) -> Option<Instant> {
        self.times.map(|times| self.since + times.renew)
    }

    fn ends(&self) -> Option<Instant> {
        self.times.map(|times| self.since + times.end)
    }
}

#[derive(Clone, Copy)]
enum State {
    /// It waits before it looks for a server again.
    Paused,
    /// Looks for servers. `second`: the offer of a server that failed us, and when it is taken all the same.
    Selecting { tries: u32, second: Option<(Grant, Instant)> },
    /// Asks a server for what it has offered.
    Requesting { tries: u32, offer: Grant },
    /// Has a lease, and nothing to do.
    Bound,
    /// Asks the server that gave the lease for more time.
    Renewing,
    /// Asks any server for more time.
    Rebinding,
    /// The link is another perhaps: asks whether the lease is good here. `refused`: when a refusal counts that did
    /// not come from the server of the lease.
    Confirming { tries: u32, refused: Option<(Ipv4Addr, Instant)> },
}

/// The client of a port.
pub struct Client {
    mac: [u8; 6],
    /// The card's.
    mtu: usize,
    host_name: Option<&'static str>,
    random: Random,
    state: State,
    transaction: u32,
    /// When the transaction began, and its age as messages say it.
    since: Instant,
    seconds: u16,
    due: Option<Instant>,
    held: Option<Held>,
    /// Laps that failed, since there was a good lease; and the server that failed us last.
    failures: u32,
    failed: Option<Ipv4Addr>,
    /// The lease has changed since the last poll.
    news: bool,
}

impl Client {
    /// Looks for a server from `now` on, for a card with this MTU. Servers learn the host's name.
    pub fn new(
        mac: [u8; 6],
        mtu: usize,
        seed: u64,
        host_name: Option<&'static str>,
        now: Instant,
    ) -> Self {
        let mut client = Client {
            mac,
            mtu,
            host_name,
            random: Random { seed, drawn: 0 },
            state: State::Paused,
            transaction: 0,
            since: now,
            seconds: 0,
            due: None,
            held: None,
            failures: 0,
            failed: None,
            news: false,
        };
        client.select(now);
        client
    }

    /// The link is up, perhaps at another network: looks for a server at once, or asks whether the lease is good
    /// here. The lease is kept until a server refuses it.
    pub fn link_came_up(&mut self, now: Instant) {
        if self.held.is_none() {
            self.failures = 0;
            return self.select(now);
        }
        self.begin(now);
        self.enter(State::Confirming { tries: 0, refused: None }, Some(now));
    }

    /// The address of the lease is in use by `other`: tells the server so, and asks for another one after a while.
    pub fn decline(
        &mut self,
        other: [u8; 6],
        queue: &mut Queue,
        notices: &mut Notices,
        now: Instant,
    ) {
        let Some(held) = self.held else { return };
        let (ip, server) = (held.lease.address.address(), held.lease.server);
        let (ours, other) = (Mac(self.mac), Mac(other));
        notices.report(Topic::Duplicate, ip, Severity::Warning, now, || {
            format!(
                "duplicate address {ip}: DHCP server {server} leases it to us ({ours}), and {other} uses it; \
                 declined. Change that host, or exclude the address on the server"
            )
        });
        self.begin(now);
        let request =
            Request { requested: Some(ip), server: Some(server), ..self.request(Kind::Decline) };
        request.push(None, queue);
        self.set_lease(None);
        self.enter(State::Paused, Some(now + DECLINED));
    }

    /// Takes in what a server says.
    pub fn handle_frame(&mut self, frame: &[u8], notices: &mut Notices, now: Instant) {
        let Some(message) = Message::of(frame, self.mac, self.transaction) else { return };
        let Some(kind) = message.kind() else { return };
        let server = message.server();
        match (self.state, kind) {
            (State::Selecting { .. }, Kind::Offer) => {
                if let Some(offer) = lease::judge(&message, self.mtu, notices, now) {
                    self.consider(offer, now);
                }
            }
            (State::Requesting { offer, .. }, Kind::Ack) if offer.lease.server == server => {
                match lease::judge(&message, self.mtu, notices, now) {
                    Some(grant) => self.bind(grant, now),
                    None => self.fail(server, now),
                }
            }
            (State::Requesting { offer, .. }, Kind::Nak) if offer.lease.server == server => {
                self.refused(server, offer.lease.address.address(), notices, now);
            }
            (State::Renewing | State::Rebinding | State::Confirming { .. }, Kind::Ack) => {
                let Some(held) = self.held else { return };
                if matches!(self.state, State::Renewing) && held.lease.server != server {
                    return;
                }
                if let Some(grant) = lease::judge(&message, self.mtu, notices, now) {
                    self.bind(grant, now);
                }
            }
            (State::Renewing | State::Rebinding | State::Confirming { .. }, Kind::Nak) => {
                let Some(held) = self.held else { return };
                if held.lease.server == server {
                    return self.refused(server, held.lease.address.address(), notices, now);
                }
                // At another network, the server there refuses it. At ours, a stranger may.
                if let State::Confirming { refused: refused @ None, .. } = &mut self.state {
                    *refused = Some((server, now + OBJECTION));
                }
            }
            _ => {}
        }
    }

    /// Sends what is due: to everybody by `queue`, to the server alone by `packets`. The lease, if that has changed;
    /// None in it if there is none any more.
    pub fn poll(
        &mut self,
        queue: &mut Queue,
        packets: &mut Queue,
        notices: &mut Notices,
        now: Instant,
    ) -> Option<Option<Lease>> {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.act(queue, packets, notices, now);
        }
        core::mem::take(&mut self.news).then(|| self.lease())
    }

    /// When [`Client::poll`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let other = match self.state {
            State::Selecting { second: Some((_, at)), .. } => Some(at),
            State::Confirming { refused: Some((_, at)), .. } => Some(at),
            _ => None,
        };
        let news = self.news.then_some(Instant::ZERO);
        Instant::first([self.due, other, news, self.held.and_then(|held| held.ends())])
    }

    /// The lease that we have.
    pub fn lease(&self) -> Option<Lease> {
        self.held.map(|held| held.lease)
    }

    fn act(&mut self, queue: &mut Queue, packets: &mut Queue, notices: &mut Notices, now: Instant) {
        if let Some(held) = self.held.filter(|held| held.ends().is_some_and(|at| at <= now)) {
            return self.expire(held, now);
        }
        let due = self.due.is_some_and(|due| due <= now);
        match self.state {
            State::Paused if due => self.select(now),
            State::Selecting { second: Some((offer, at)), .. } if at <= now => {
                self.consider_now(offer, now);
            }
            State::Selecting { tries, second } if due => {
                self.seconds = now.since(self.since).as_secs().try_into().unwrap_or(u16::MAX);
                self.request(Kind::Discover).push(None, queue);
                let again = now + self.retry(tries);
                self.enter(State::Selecting { tries: tries + 1, second }, Some(again));
            }
            State::Requesting { tries: REQUESTS, offer } if due => {
                self.fail(offer.lease.server, now)
            }
            State::Requesting { tries, offer } if due => {
                let Lease { address, server, .. } = offer.lease;
                let request = Request {
                    requested: Some(address.address()),
                    server: Some(server),
                    ..self.request(Kind::Request)
                };
                request.push(None, queue);
                let again = now + self.retry(tries);
                self.enter(State::Requesting { tries: tries + 1, offer }, Some(again));
            }
            State::Bound if due => {
                self.begin(now);
                self.enter(State::Renewing, Some(now));
            }
            State::Renewing | State::Rebinding if due => self.renew(queue, packets, now),
            State::Confirming { refused: Some((server, at)), .. } if at <= now => {
                let ip = self.lease().map(|lease| lease.address.address());
                self.refused(server, ip.unwrap_or(Ipv4Addr::UNSPECIFIED), notices, now);
            }
            // No server is here, or none that knows us: the lease runs on.
            State::Confirming { tries: CONFIRMATIONS, refused: None } if due => self.rest(),
            State::Confirming { tries, refused } if due => {
                let requested = self.lease().map(|lease| lease.address.address());
                Request { requested, ..self.request(Kind::Request) }.push(None, queue);
                let again = now + self.retry(tries);
                self.enter(State::Confirming { tries: tries + 1, refused }, Some(again));
            }
            _ => {}
        }
    }

    /// Asks for more time: the server that gave the lease, later any.
    fn renew(&mut self, queue: &mut Queue, packets: &mut Queue, now: Instant) {
        let Some((held, Some(times))) = self.held.map(|held| (held, held.times)) else { return };
        let Lease { address, server, .. } = held.lease;
        let any = held.since + times.rebind <= now;
        if any && matches!(self.state, State::Renewing) {
            self.begin(now);
        }
        self.seconds = now.since(self.since).as_secs().try_into().unwrap_or(u16::MAX);
        let request = Request { client: Some(address.address()), ..self.request(Kind::Request) };
        let (state, until) = if any {
            request.push(None, queue);
            (State::Rebinding, held.since + times.end)
        } else {
            request.push(Some(server), packets);
            (State::Renewing, held.since + times.rebind)
        };
        let half = until.since(now) / 2;
        self.enter(state, Some(until.min(now + half.max(RENEWAL_RETRY))));
    }

    /// An offer: taken at once, unless its server failed us again and again, and another may offer something.
    fn consider(&mut self, offer: Grant, now: Instant) {
        let doubtful = self.failures > 1 && self.failed == Some(offer.lease.server);
        match &mut self.state {
            State::Selecting { second, .. } if doubtful => {
                second.get_or_insert((offer, now + SECOND_CHOICE));
            }
            _ => self.consider_now(offer, now),
        }
    }

    fn consider_now(&mut self, offer: Grant, now: Instant) {
        self.enter(State::Requesting { tries: 0, offer }, Some(now));
    }

    fn bind(&mut self, grant: Grant, now: Instant) {
        let held = Held { lease: grant.lease, since: now, times: grant.times };
        // One that is renewed lasts.
        let since_first = self.held.map_or(now, |held| held.since);
        if now.since(since_first) >= GOOD {
            self.failures = 0;
        }
        self.set_lease(Some(held));
        self.rest();
    }

    /// Has nothing to do until the lease is to be renewed.
    fn rest(&mut self) {
        let due = self.held.and_then(|held| held.renews());
        self.enter(State::Bound, due);
    }

    /// A server has refused what it offered or what we have.
    fn refused(&mut self, server: Ipv4Addr, ip: Ipv4Addr, notices: &mut Notices, now: Instant) {
        let held = self.held.is_some();
        notices.report(Topic::Nak, server, Severity::Warning, now, || {
            let what = if held { "which we had on lease" } else { "which it had offered" };
            format!(
                "DHCP server {server} refuses {ip}, {what} (NAK): asking again, more seldom each time; \
                 if it goes on, see the server's log"
            )
        });
        self.fail(server, now);
    }

    /// A lap has failed: the next one begins after a pause.
    fn fail(&mut self, server: Ipv4Addr, now: Instant) {
        let held = self.held.map_or(Duration::ZERO, |held| now.since(held.since));
        if held >= GOOD {
            self.failures = 0;
        }
        // Who had a lease may just have moved.
        let moved = self.failures == 0 && self.held.is_some();
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(9)).min(LAST_PAUSE);
        let pause = if moved { Duration::ZERO } else { pause + self.random.below(pause / 10) };
        self.failures = self.failures.saturating_add(1);
        self.failed = Some(server);
        self.set_lease(None);
        self.enter(State::Paused, Some(now + pause));
    }

    /// The lease is over.
    fn expire(&mut self, held: Held, now: Instant) {
        if held.times.is_some_and(|times| times.end < GOOD) {
            return self.fail(held.lease.server, now);
        }
        self.set_lease(None);
        self.select(now);
    }

    /// Looks for servers.
    fn select(&mut self, now: Instant) {
        self.begin(now);
        self.enter(State::Selecting { tries: 0, second: None }, Some(now));
    }

    /// Begins a transaction.
    fn begin(&mut self, now: Instant) {
        self.transaction = self.random.next() as u32;
        self.since = now;
        self.seconds = 0;
    }

    fn enter(&mut self, state: State, due: Option<Instant>) {
        self.state = state;
        self.due = due;
    }

    fn set_lease(&mut self, held: Option<Held>) {
        self.news |= self.lease() != held.map(|held| held.lease);
        self.held = held;
    }

    /// How long to wait for an answer: 4, 8, … 64 s, each up to a second more or less.
    fn retry(&mut self, tries: u32) -> Duration {
        let usual = FIRST_RETRY.saturating_mul(1 << tries.min(4)).min(LAST_RETRY);
        let second = Duration::from_secs(1);
        usual - second + self.random.below(2 * second)
    }

    fn request(&self, kind: Kind) -> Request {
        Request {
            kind,
            mac: self.mac,
            transaction: self.transaction,
            seconds: self.seconds,
            client: None,
            requested: None,
            server: None,
            host_name: self.host_name,
            max_size: self.mtu.min(LONGEST_ANSWER) as u16,
        }
    }
}
