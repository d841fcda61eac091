//! The DHCP client (RFC 2131): obtains an address with its network, a router, name servers and the MTU.
//!
//! It has no timer and no socket: frames and time are arguments. Broadcasts are written as complete frames. Unicast
//! messages wait for the server's MAC address like any other packet ([`crate::outbox`]). [`crate::probes`] checks that
//! the leased address is free, and the lease is declined if it is not.
//!
//! A faulty server can refuse for ever, so each failed attempt at a lease is followed by a longer pause.

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

/// First and last delay before a message is repeated; it doubles each time (RFC 2131 section 4.1).
const FIRST_RETRY: Duration = Duration::from_secs(4);
const LAST_RETRY: Duration = Duration::from_secs(64);
/// Shortest interval between two attempts to renew a lease (RFC 2131 section 4.4.5).
const RENEWAL_RETRY: Duration = Duration::from_secs(60);
/// Requests for an offered address before the attempt fails.
const REQUESTS: u32 = 3;
/// Requests to confirm a lease after link-up before it is kept unconfirmed.
const CONFIRMATIONS: u32 = 2;
/// First and last pause after a failed attempt; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// Pause after an address was declined (RFC 2131 section 3.1.5).
const DECLINED: Duration = Duration::from_secs(10);
/// How long the offer of a server that has failed before waits for another server's offer.
const SECOND_CHOICE: Duration = Duration::from_secs(1);
/// How long the lease's server has to override a NAK from another server.
const NAK_OVERRIDE: Duration = Duration::from_secs(1);
/// A lease that lasted this long resets the count of failures.
const GOOD_LEASE: Duration = Duration::from_secs(60);
/// Longest reply that is requested: every Ethernet carries it.
const LONGEST_ANSWER: usize = 1500;

/// Random numbers that reveal neither the seed nor each other.
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

/// The current lease.
#[derive(Clone, Copy)]
struct Held {
    lease: Lease,
    since: Instant,
    /// None if it never ends.
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
    /// Waits before it searches for servers again.
    Paused,
    /// Searches for servers. `second` is the offer of a server that has failed before, and when it is accepted anyway.
    Selecting { tries: u32, second: Option<(Grant, Instant)> },
    /// Requests an offered address from its server.
    Requesting { tries: u32, offer: Grant },
    /// Has a lease that is not due for renewal.
    Bound,
    /// Renews the lease with its server.
    Renewing,
    /// Renews the lease with any server.
    Rebinding,
    /// Confirms the lease after link-up, because the network may have changed (INIT-REBOOT). `refused` is another
    /// server that has refused the lease, and when its NAK takes effect.
    Confirming { tries: u32, refused: Option<(Ipv4Addr, Instant)> },
}

/// The client of a port.
pub struct Client {
    mac: [u8; 6],
    /// MTU of the card.
    mtu: usize,
    host_name: Option<&'static str>,
    random: Random,
    state: State,
    transaction: u32,
    /// Start of the transaction.
    since: Instant,
    /// Its age in messages (`secs`).
    seconds: u16,
    due: Option<Instant>,
    held: Option<Held>,
    /// Failed attempts since the last good lease.
    failures: u32,
    /// The server of the last failed attempt.
    failed: Option<Ipv4Addr>,
    /// The lease has changed since the last poll.
    lease_changed: bool,
}

impl Client {
    /// A client that starts to search for servers at `now`, for a card with this MTU. `host_name` is sent to servers.
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
            lease_changed: false,
        };
        client.select(now);
        client
    }

    /// Handles link-up, after which the network may be another one: searches for servers at once, or confirms the
    /// lease. The lease is kept until a server refuses it.
    pub fn link_came_up(&mut self, now: Instant) {
        if self.held.is_none() {
            self.failures = 0;
            return self.select(now);
        }
        self.begin(now);
        self.enter(State::Confirming { tries: 0, refused: None }, Some(now));
    }

    /// Declines the lease because the station `other` uses its address. Requests another one after a pause.
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

    /// Handles a frame with a server's message.
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
                self.handle_nak(server, offer.lease.address.address(), notices, now);
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
                    return self.handle_nak(server, held.lease.address.address(), notices, now);
                }
                // In another network its server refuses the lease. In the same network a foreign server may.
                if let State::Confirming { refused: refused @ None, .. } = &mut self.state {
                    *refused = Some((server, now + NAK_OVERRIDE));
                }
            }
            _ => {}
        }
    }

    /// Sends messages that are due: broadcasts to `queue`, unicasts to `packets`. Returns the lease if it has changed,
    /// `Some(None)` if it was lost.
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
        core::mem::take(&mut self.lease_changed).then(|| self.lease())
    }

    /// When [`Client::poll`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let other = match self.state {
            State::Selecting { second: Some((_, at)), .. } => Some(at),
            State::Confirming { refused: Some((_, at)), .. } => Some(at),
            _ => None,
        };
        let change = self.lease_changed.then_some(Instant::ZERO);
        Instant::first([self.due, other, change, self.held.and_then(|held| held.ends())])
    }

    /// The current lease.
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
                self.handle_nak(server, ip.unwrap_or(Ipv4Addr::UNSPECIFIED), notices, now);
            }
            // No server has answered: the lease is kept.
            State::Confirming { tries: CONFIRMATIONS, refused: None } if due => {
                self.wait_for_renewal()
            }
            State::Confirming { tries, refused } if due => {
                let requested = self.lease().map(|lease| lease.address.address());
                Request { requested, ..self.request(Kind::Request) }.push(None, queue);
                let again = now + self.retry(tries);
                self.enter(State::Confirming { tries: tries + 1, refused }, Some(again));
            }
            _ => {}
        }
    }

    /// Sends a renewal to the lease's server, or to any server after T2.
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

    /// Handles an offer. It is accepted at once, unless its server has failed repeatedly: then other offers have a
    /// chance first.
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
        // A renewed lease counts from its first grant.
        let since_first = self.held.map_or(now, |held| held.since);
        if now.since(since_first) >= GOOD_LEASE {
            self.failures = 0;
        }
        self.set_lease(Some(held));
        self.wait_for_renewal();
    }

    /// Waits for the lease's renewal time.
    fn wait_for_renewal(&mut self) {
        let due = self.held.and_then(|held| held.renews());
        self.enter(State::Bound, due);
    }

    /// Logs a NAK and ends the attempt, or drops the lease.
    fn handle_nak(&mut self, server: Ipv4Addr, ip: Ipv4Addr, notices: &mut Notices, now: Instant) {
        let held = self.held.is_some();
        notices.report(Topic::Nak, server, Severity::Warning, now, || {
            let what = if held { "our leased address" } else { "its offered address" };
            format!(
                "DHCP server {server} refuses {what} {ip} (NAK): retrying with increasing delays; \
                 if it persists, see the server's log"
            )
        });
        self.fail(server, now);
    }

    /// Ends a failed attempt. The next one begins after a pause.
    fn fail(&mut self, server: Ipv4Addr, now: Instant) {
        let held = self.held.map_or(Duration::ZERO, |held| now.since(held.since));
        if held >= GOOD_LEASE {
            self.failures = 0;
        }
        // A host that had a lease may just have moved to another network.
        let moved = self.failures == 0 && self.held.is_some();
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(9)).min(LAST_PAUSE);
        let pause = if moved { Duration::ZERO } else { pause + self.random.below(pause / 10) };
        self.failures = self.failures.saturating_add(1);
        self.failed = Some(server);
        self.set_lease(None);
        self.enter(State::Paused, Some(now + pause));
    }

    /// Handles the end of the lease.
    fn expire(&mut self, held: Held, now: Instant) {
        if held.times.is_some_and(|times| times.end < GOOD_LEASE) {
            return self.fail(held.lease.server, now);
        }
        self.set_lease(None);
        self.select(now);
    }

    /// Searches for servers.
    fn select(&mut self, now: Instant) {
        self.begin(now);
        self.enter(State::Selecting { tries: 0, second: None }, Some(now));
    }

    /// Starts a transaction.
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
        self.lease_changed |= self.lease() != held.map(|held| held.lease);
        self.held = held;
    }

    /// Delay before a message is repeated: 4, 8, … 64 s, each plus or minus up to a second.
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
