//! The log, sent to a syslog server (RFC 5424) if one is configured: over UDP, TCP or TLS (`stream.rs`).
//!
//! The log itself is the queue: while the server is away, messages stay in it, and are sent later. Messages that were
//! evicted before are counted (`isthmus_log_lost_total`). Over TCP and TLS, messages that were under way when a
//! connection broke are sent again, so that a message may arrive twice, but is not lost with the connection.

mod stream;

use super::network::Network;
use crate::config::{Fingerprint, SyslogServer, System};
use crate::log_ring::{Cursor, Entry, Kind, LogRing};
use crate::randomness::{EntropySources, Randomness};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use log::Level;
use management::status::WallClock;
use net::dns::{Host, Lookup, Resolver};
use net::syslog::{Attempts, Format, MAX_MESSAGE, Record, Sender, Severity, Transport};
use net::tls::Clients;
use rand_core::Rng;
use stream::{Stream, StreamStatus};

/// Wait before a retry when there was no room for a datagram.
const RETRY: Duration = Duration::from_millis(10);

/// The connection to a server.
enum Sink {
    /// Number of the interface, and the sender.
    Datagrams(usize, Sender),
    Stream(Box<Stream>),
}

/// What sending needs of the appliance.
pub(super) struct Around<'a> {
    pub networks: &'a mut [Network],
    pub system: &'a System,
    pub log: &'a LogRing,
    pub clock: &'a WallClock,
    pub resolver: &'a Resolver,
    pub rng: &'a mut dyn Rng,
}

/// The sender of the log, and its position in the log.
pub(super) struct Syslog {
    /// Sources of the generator of TLS connections.
    entropy: EntropySources,
    /// The server, as configured, and the address that is in use.
    server: Option<(SyslogServer, SocketAddr)>,
    /// The certificate that the connection was made with.
    fingerprint: Option<Fingerprint>,
    sink: Option<Sink>,
    /// Shared by TLS connections; made for the first.
    clients: Option<Clients>,
    cursor: Cursor,
    /// Read from the log and not sent yet.
    next: Option<Entry>,
    /// Count of log messages at the last poll.
    seen: u64,
    /// When to retry after there was no room, or to connect again.
    retry_at: Option<Instant>,
    attempts: Attempts,
    /// Generation of the names for which the address was looked up.
    names: u64,
}

impl Syslog {
    pub fn new(entropy: EntropySources) -> Self {
        Syslog {
            entropy,
            server: None,
            fingerprint: None,
            sink: None,
            clients: None,
            cursor: Cursor::default(),
            next: None,
            seen: 0,
            retry_at: None,
            attempts: Attempts::default(),
            names: 0,
        }
    }

    /// Whether there are new messages, or a timer has expired. Messages that wait for a route to the server are sent when
    /// the control plane has other work, such as a new address.
    pub fn wants_poll(&self, system: &System, log: &LogRing, now: Instant) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
            || system.syslog.is_some() && self.seen != log.count()
    }

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let stream = match &self.sink {
            Some(Sink::Stream(stream)) => stream.deadline(),
            _ => None,
        };
        Instant::first([self.retry_at, stream])
    }

    /// Sends new messages, as long as there are room and a route. Returns their number.
    pub fn poll(&mut self, around: &mut Around<'_>, now: Instant) -> usize {
        if self.server.is_none() && around.system.syslog.is_none() {
            return 0;
        }
        self.follow(around);
        self.seen = around.log.count();
        if self.sink.is_none() {
            if self.retry_at.is_some_and(|at| now < at) {
                return 0;
            }
            self.retry_at = None;
            self.open(around, now);
        }
        match self.sink.take() {
            None => 0,
            Some(Sink::Datagrams(number, mut sender)) => {
                let sent = self.send_datagrams(number, &mut sender, around, now);
                self.sink = Some(Sink::Datagrams(number, sender));
                self.leave_without_route(number, around);
                sent
            }
            Some(Sink::Stream(stream)) => self.send_stream(stream, around, now),
        }
    }

    /// Closes the connection if the server or its certificate was changed, or a datagram sender's name has another
    /// address. A stream stays: a change of its name applies to the next connection.
    fn follow(&mut self, around: &mut Around<'_>) {
        let Some((server, address)) = &self.server else { return };
        let is_changed = around.system.syslog.as_ref() != Some(server)
            || around.system.syslog_fingerprint != self.fingerprint;
        let of_names = around.resolver.generation();
        let is_moved = matches!(self.sink, Some(Sink::Datagrams(..)))
            && core::mem::replace(&mut self.names, of_names) != of_names
            && addresses(server, around.resolver).is_ok_and(|all| !all.contains(&address.ip()));
        if is_changed || is_moved {
            self.close(around);
            self.server = None;
            (self.attempts, self.retry_at) = (Attempts::default(), None);
        }
    }

    /// Closes the connection. Messages under way are sent again.
    fn close(&mut self, around: &mut Around<'_>) {
        match self.sink.take() {
            None => {}
            Some(Sink::Datagrams(number, sender)) => {
                sender.stop(&mut around.networks[number].interface);
            }
            Some(Sink::Stream(stream)) => self.rewind(stream.close(around.networks)),
        }
    }

    /// Closes a datagram sender whose interface has no route to the server any more. Another interface may have one.
    fn leave_without_route(&mut self, number: usize, around: &mut Around<'_>) {
        let Some((_, address)) = &self.server else { return };
        if around.networks[number].interface.next_hop(address.ip()).is_none() {
            self.close(around);
            self.retry_at = None;
        }
    }

    /// Continues at the first message that a closed connection has not delivered.
    fn rewind(&mut self, first: Option<u64>) {
        if let Some(number) = first {
            self.cursor = Cursor::at(number);
            self.next = None;
        }
    }

    /// Opens a connection to the configured server, if it has an address with a route.
    fn open(&mut self, around: &mut Around<'_>, now: Instant) {
        let Some(server) = around.system.syslog.clone() else { return };
        let Ok(addresses) = addresses(&server, around.resolver) else { return };
        self.names = around.resolver.generation();
        // After a failure the next address has its turn.
        let count = addresses.len();
        let order = (0..count).map(|n| addresses[(n + self.attempts.failures() as usize) % count]);
        let mut routes = order.filter_map(|ip| {
            let has_route = |n: &Network| n.interface.next_hop(ip).is_some();
            Some((around.networks.iter().position(has_route)?, ip))
        });
        let Some((number, ip)) = routes.next() else { return };
        let address = SocketAddr::new(ip, server.endpoint.port);
        let interface = &mut around.networks[number].interface;
        let opened = match server.transport {
            Transport::Udp => {
                let hostname = around.system.hostname.as_str();
                let sender = Sender::new(interface, address, hostname, "isthmus");
                Ok(Sink::Datagrams(number, sender))
            }
            Transport::Tcp => Stream::open(interface, number, address, None, around.rng, now)
                .map(|stream| Sink::Stream(Box::new(stream))),
            Transport::Tls => {
                let host = server.endpoint.host.to_string();
                let fingerprint = around.system.syslog_fingerprint.map(|sha256| sha256.0);
                let make = || new_clients(around.rng, self.entropy);
                let clients = self.clients.get_or_insert_with(make);
                fingerprint
                    .ok_or_else(|| "system.syslog_fingerprint is not set".to_string())
                    .and_then(|sha256| clients.connect(&host, sha256))
                    .and_then(|tls| {
                        Stream::open(interface, number, address, Some(tls), around.rng, now)
                    })
                    .map(|stream| Sink::Stream(Box::new(stream)))
            }
        };
        self.server = Some((server, address));
        self.fingerprint = around.system.syslog_fingerprint;
        match opened {
            Ok(sink) => self.sink = Some(sink),
            Err(why) => self.fail(&why, now),
        }
    }

    /// Waits after a failed connection.
    fn fail(&mut self, why: &str, now: Instant) {
        let (retry_at, is_told) = self.attempts.failed(now);
        self.retry_at = Some(retry_at);
        if is_told && let Some((server, address)) = &self.server {
            log::warn!(
                "syslog: {server} ({}): {why}; messages are kept, as far as the log holds them, and sent later",
                address.ip()
            );
        }
    }

    /// Reads the next message, unless one waits.
    fn read(&mut self, log: &LogRing) -> Option<&Entry> {
        if self.next.is_none() {
            self.next = log.next(&mut self.cursor).map(|(entry, missed)| {
                log.lost(missed);
                entry
            });
        }
        self.next.as_ref()
    }

    fn send_datagrams(
        &mut self,
        number: usize,
        sender: &mut Sender,
        around: &mut Around<'_>,
        now: Instant,
    ) -> usize {
        self.retry_at = None;
        let mut sent = 0;
        while let Some(entry) = self.read(around.log) {
            let record = record(entry, around.clock);
            if sender.send(&mut around.networks[number].interface, &record).is_err() {
                self.retry_at = Some(now + RETRY);
                break;
            }
            self.next = None;
            sent += 1;
        }
        sent
    }

    fn send_stream(
        &mut self,
        mut stream: Box<Stream>,
        around: &mut Around<'_>,
        now: Instant,
    ) -> usize {
        let format = Format::new(around.system.hostname.as_str(), "isthmus");
        let mut sent = 0;
        loop {
            match stream.poll(around.networks, now) {
                Err(why) => {
                    self.rewind(stream.close(around.networks));
                    self.fail(&why, now);
                    return sent + 1;
                }
                Ok(StreamStatus::Busy) => break,
                Ok(StreamStatus::Ready) => {}
            }
            if self.attempts.opened(now)
                && let Some((server, _)) = &self.server
            {
                log::info!("syslog: connected to {server}");
            }
            let Some(entry) = self.read(around.log) else { break };
            let message = format.message(&record(entry, around.clock), MAX_MESSAGE);
            if !stream.write(entry.number, &message) {
                break;
            }
            self.next = None;
            sent += 1;
        }
        if stream.is_newly_stuck(now)
            && let Some((server, address)) = &self.server
        {
            log::warn!(
                "syslog: {server} ({}) has taken no message for a minute: see its queue and its disk; messages are \
                 kept, as far as the log holds them, and sent later",
                address.ip()
            );
        }
        self.sink = Some(Sink::Stream(stream));
        sent
    }
}

/// The addresses of a server; an error while its name has none.
fn addresses(server: &SyslogServer, resolver: &Resolver) -> Result<Vec<IpAddr>, ()> {
    match &server.endpoint.host {
        Host::Address(address) => Ok(vec![*address]),
        Host::Name(name) => match resolver.peek(name) {
            Lookup::Known(addresses) => Ok(addresses),
            Lookup::Pending | Lookup::Failed(_) => Err(()),
        },
    }
}

/// What TLS connections share, with a generator of its own.
fn new_clients(rng: &mut dyn Rng, entropy: EntropySources) -> Clients {
    let mut seed = [0; 32];
    rng.fill_bytes(&mut seed);
    let mut rng = Randomness::new(seed, entropy);
    Clients::new(Box::new(move |into| rng.fill_bytes(into)))
}

fn record<'a>(entry: &'a Entry, clock: &WallClock) -> Record<'a> {
    Record {
        severity: severity(entry),
        time: clock.is_plausible.then(|| clock.at(entry.at)),
        source: "appliance",
        text: entry.text(),
    }
}

fn severity(entry: &Entry) -> Severity {
    match entry.level {
        _ if entry.kind == Kind::Audit => Severity::Notice,
        Level::Error => Severity::Error,
        Level::Warn => Severity::Warning,
        Level::Info => Severity::Informational,
        Level::Debug | Level::Trace => Severity::Debug,
    }
}
