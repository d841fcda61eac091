//! What qperf measures, between two appliances and without a host: `rc_bw`, `rc_lat` and so on over
//! one connection after the other, which the connection manager makes. Either end is an
//! [`Endpoint`](super::endpoint): of a test of latency both answer each message with another.
//!
//! The private data of request and answer is the own memory, as 8 bytes of address and 4 of key, and
//! in a request the number of the test (4); all little-endian. One test is served at a time.

#[cfg(test)]
mod tests;

use super::endpoint::Echo;
use super::session::Bench;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use verbs::EngineContext;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Payload, Provider,
    QpId, RejectReason, RemoteAddress, SendOperation, SendWith, VerbsError,
};

/// The port of the connection manager: that after qperf's.
pub const PORT: u16 = super::qperf::PORT + 1;
/// Bytes of a message whose bandwidth is measured, and of the memory of either end.
const LONG: u32 = 64 << 10;
/// And of one whose latency is.
const SHORT: u32 = 1;
/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// One of the tests.
#[derive(Debug)]
struct Test {
    name: &'static str,
    kind: Kind,
    latency: bool,
}

const fn test(name: &'static str, kind: Kind, latency: bool) -> Test {
    Test { name, kind, latency }
}

/// All of them, by their numbers.
static TESTS: [Test; 6] = [
    test("rc_bw", Kind::Send, false),
    test("rc_lat", Kind::Send, true),
    test("rc_rdma_write_bw", Kind::Write, false),
    test("rc_rdma_write_lat", Kind::Write, true),
    test("rc_rdma_read_bw", Kind::Read, false),
    test("rc_rdma_read_lat", Kind::Read, true),
];

impl Test {
    /// What either end answers messages with.
    fn echo(&self) -> Echo {
        match self.kind {
            Kind::Send if self.latency => Echo::Sends,
            Kind::Write if self.latency => Echo::WritesWithImmediate,
            _ => Echo::Nothing,
        }
    }
}

/// What came of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Its name, as qperf has it.
    pub name: &'static str,
    /// How fast it was.
    pub figure: Figure,
}

/// A speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Bytes in a second.
    Bandwidth(u64),
    /// Nanoseconds one way, or until what is read is there.
    Latency(u64),
}

/// Why it ended before its end.
const REFUSED: &str = "the other machine refuses: it has no memory or queue pair for it";
const LOST: &str = "the connection was lost: `show ntb` tells how the link stands";
const SILENT: &str = "the other machine does not answer";
const UNKNOWN: &str = "the other machine does not know how to";

/// What an error of ours is in words.
fn reason(error: VerbsError) -> &'static str {
    match error {
        VerbsError::Unreachable => "the link is not up: `show ntb` tells how it stands",
        VerbsError::NoRoom => "there is no memory or queue pair for it",
        _ => "the device refuses",
    }
}

/// One end of a test, with its memory.
#[derive(Debug)]
struct End {
    bench: Bench,
    connection: ConnectionId,
    /// What is measured here; None at the end that serves.
    ours: Option<Ours>,
}

/// A test of ours.
#[derive(Clone, Copy, Debug)]
struct Ours {
    /// Its number.
    number: usize,
    test: &'static Test,
    connected: bool,
    /// Since when it connects, or runs.
    since: Instant,
    /// How long each test runs.
    time: Duration,
}

impl Ours {
    /// When it has run, or waited, for long enough.
    fn deadline(&self) -> Instant {
        self.since + if self.connected { self.time } else { PATIENCE }
    }
}

/// Asks for a connection, or grants it: by a queue pair, and with this to tell.
type Connect<'a, P> =
    dyn FnMut(QpId, &[u8], &mut EngineContext<'_, P>) -> Result<ConnectionId, VerbsError> + 'a;

/// Both ends of what two appliances measure.
#[derive(Debug)]
pub struct NtbPerf {
    local: IpAddr,
    peer: IpAddr,
    /// One that serves, and one that is ours.
    ends: Vec<End>,
    failed: Option<(&'static str, &'static str)>,
    /// What came of the tests that were measured last, as far as they are.
    pub results: Vec<Measured>,
}

/// The private data that tells the other end what it has to know.
fn telling(bench: &Bench, test: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (address, rest) = bytes.split_at_mut(8);
    address.copy_from_slice(&bench.region.address.to_le_bytes());
    let (key, number) = rest.split_at_mut(4);
    key.copy_from_slice(&bench.region.rkey.to_le_bytes());
    number.copy_from_slice(&(test as u32).to_le_bytes());
    bytes
}

/// What the other end tells: its memory, and the number of the test.
fn told(bytes: &[u8]) -> Option<(RemoteAddress, &'static Test)> {
    let address = u64::from_le_bytes(*bytes.first_chunk()?);
    let rkey = u32::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    let test = u32::from_le_bytes(*bytes.get(12..)?.first_chunk()?);
    Some((RemoteAddress { address, rkey }, TESTS.get(test as usize)?))
}

const PARAMETERS: ConnectionParameters = ConnectionParameters {
    responder_resources: super::endpoint::MAX_RD_ATOMIC,
    initiator_depth: super::endpoint::MAX_RD_ATOMIC,
    retry_count: 7,
    rnr_retry_count: 7,
    min_rnr_timer: 12,
};

impl NtbPerf {
    /// For tests with `peer`, from our address `local`. The provider has to listen on [`PORT`].
    pub fn new(local: IpAddr, peer: IpAddr) -> Self {
        NtbPerf { local, peer, ends: Vec::new(), failed: None, results: Vec::new() }
    }

    /// Begins with the first test; each runs for `time`.
    pub fn start<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        time: Duration,
        ctx: &mut EngineContext<'_, P>,
    ) {
        self.cancel(ctx);
        self.results.clear();
        self.begin(0, time, ctx);
    }

    fn ours(&self) -> Option<usize> {
        self.ends.iter().position(|end| end.ours.is_some())
    }

    /// Whether anything is measured.
    pub fn is_running(&self) -> bool {
        self.ours().is_some()
    }

    /// In which test it ended before its end, and why; once.
    pub fn failure(&mut self) -> Option<(&'static str, &'static str)> {
        self.failed.take()
    }

    /// Measures no more.
    pub fn cancel<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        if let Some(at) = self.ours() {
            self.end(at, None, ctx);
        }
    }

    /// Gives an end back; why, if it is a failure.
    #[cold]
    #[inline(never)]
    fn end<P: Provider + ?Sized>(
        &mut self,
        at: usize,
        why: Option<&'static str>,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let mut end = self.ends.swap_remove(at);
        end.bench.give_back(ctx);
        if let (Some(ours), Some(why)) = (end.ours, why) {
            self.failed = Some((ours.test.name, why));
        }
    }

    /// Begins with a test, if there are as many.
    #[cold]
    #[inline(never)]
    fn begin<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        number: usize,
        time: Duration,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Some(test) = TESTS.get(number) else { return };
        let ours = Ours { number, test, connected: false, since: ctx.now, time };
        let (local, to) = (self.local, SocketAddr::new(self.peer, PORT));
        let made = self.make(number, test, Some(ours), ctx, &mut |qp, said, ctx| {
            ctx.provider.connect(qp, local, to, &PARAMETERS, said, ctx.now, ctx.rng)
        });
        if let Err(why) = made {
            self.failed = Some((test.name, reason(why)));
        }
    }

    /// An end with memory and a queue pair, for which `connect` asks or answers, and says this.
    fn make<P: Provider + ?Sized>(
        &mut self,
        number: usize,
        test: &Test,
        ours: Option<Ours>,
        ctx: &mut EngineContext<'_, P>,
        connect: &mut Connect<'_, P>,
    ) -> Result<(), VerbsError> {
        let mut bench = Bench::new(LONG as usize, self.peer, self.local, ctx)?;
        let made = bench.add(ctx).map(|endpoint| {
            endpoint.echo = test.echo();
            endpoint.qp
        });
        let said = telling(&bench, number);
        let made = made.and_then(|qp| connect(qp, &said, ctx));
        match made {
            Ok(connection) => self.ends.push(End { bench, connection, ours }),
            Err(_) => bench.give_back(ctx),
        }
        made.map(|_| ())
    }

    #[cold]
    #[inline(never)]
    fn accept<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        said: &[u8],
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), VerbsError> {
        let (remote, test) = told(said).ok_or(VerbsError::Invalid)?;
        if self.ends.iter().any(|end| end.ours.is_none()) {
            return Err(VerbsError::NoRoom);
        }
        self.make(0, test, None, ctx, &mut |qp, said, ctx| {
            ctx.provider.accept(connection, qp, &PARAMETERS, said, ctx.now)?;
            Ok(connection)
        })?;
        self.hears_of(self.ends.len().saturating_sub(1), remote);
        Ok(())
    }

    /// An end learns where the other's memory is.
    fn hears_of(&mut self, at: usize, remote: RemoteAddress) {
        let endpoint = self.ends.get_mut(at).and_then(|end| end.bench.endpoints.first_mut());
        if let Some(endpoint) = endpoint {
            endpoint.remote = remote;
        }
    }

    /// Takes an event of the connection manager; false if it is about nothing here.
    #[cold]
    #[inline(never)]
    pub fn handle_connection_event<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let id = match event {
            ConnectionEvent::Request { connection, port: PORT, to, private_data, .. }
                if *to == self.local =>
            {
                if self.accept(*connection, private_data.as_slice(), ctx).is_err() {
                    // It may be gone already, which is as good as refused.
                    let _ = ctx.provider.reject(*connection, RejectReason::NO_RESOURCES, &[]);
                }
                return true;
            }
            ConnectionEvent::Request { .. } => return false,
            ConnectionEvent::Established { connection, .. }
            | ConnectionEvent::Rejected { connection, .. }
            | ConnectionEvent::Disconnected { connection } => *connection,
        };
        let at = self.ends.iter().position(|end| end.connection == id);
        let Some((at, end)) = at.and_then(|at| Some((at, self.ends.get_mut(at)?))) else {
            return false;
        };
        let why = match (event, &mut end.ours) {
            (ConnectionEvent::Established { .. }, None) => return true,
            (ConnectionEvent::Established { private_data, .. }, Some(ours)) => {
                if let Some((remote, _)) = told(private_data.as_slice()) {
                    (ours.since, ours.connected) = (ctx.now, true);
                    self.hears_of(at, remote);
                    return true;
                }
                UNKNOWN
            }
            (ConnectionEvent::Rejected { reason, .. }, _) => match *reason {
                RejectReason::INVALID_SERVICE_ID => UNKNOWN,
                RejectReason::TIMEOUT => LOST,
                _ => REFUSED,
            },
            _ => LOST,
        };
        self.end(at, Some(why), ctx);
        true
    }

    /// Does what is to be done; how much. A test ends when this is called after its time: its figure is
    /// of all the time that it took, and the link wants a poll often enough.
    #[inline]
    pub fn poll<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> usize {
        if self.ends.is_empty() { 0 } else { self.attend(ctx) }
    }

    #[inline(never)]
    fn attend<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(end) = self.ends.get_mut(at) {
            match end.poll(ctx) {
                Ok(count) => done += count,
                Err(_) => {
                    self.end(at, Some(LOST), ctx);
                    done += 1;
                    continue;
                }
            }
            if let Some(ours) = end.ours.filter(|ours| ctx.now >= ours.deadline()) {
                let result = end.result(&ours, ctx.now);
                self.end(at, result.is_none().then_some(SILENT), ctx);
                if let Some(result) = result {
                    self.results.push(result);
                    self.begin(ours.number + 1, ours.time, ctx);
                }
                return done + 1;
            }
            at += 1;
        }
        done
    }
}

impl End {
    /// Takes what has completed, and sends what is next; how much.
    fn poll<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, VerbsError> {
        let mut done = self.bench.poll(ctx)?;
        let Some(Ours { test, connected: true, .. }) = self.ours else { return Ok(done) };
        let Bench { region, endpoints, .. } = &mut self.bench;
        let endpoint = endpoints.first_mut().ok_or(VerbsError::Invalid)?;
        // Of what is answered there is one message, on its way for ever.
        let most = match (test.latency, test.kind) {
            (false, _) => u64::MAX,
            (true, Kind::Read) => endpoint.completed() + 1,
            (true, _) => 1,
        };
        let length = if test.latency { SHORT } else { LONG };
        let memory = region.memory.slice(0, length as usize).ok_or(VerbsError::Invalid)?;
        let window = core::slice::from_ref(&memory);
        let payload = Payload::Windows(window);
        let (to, immediate) = (endpoint.remote, test.latency.then_some(0));
        let operation = match test.kind {
            Kind::Send => SendOperation::Send { payload, with: SendWith::Nothing },
            Kind::Write => SendOperation::Write { payload, to, immediate },
            Kind::Read => SendOperation::Read { into: window, from: to },
        };
        while endpoint.traffic.sent < most && endpoint.has_room() {
            done += 1;
            endpoint.post(operation, length, ctx.provider)?;
        }
        Ok(done)
    }

    /// What came of a test; None if nothing went to and fro.
    fn result(&self, ours: &Ours, now: Instant) -> Option<Measured> {
        let endpoint = self.bench.endpoints.first().filter(|_| ours.connected)?;
        let nanos = now.nanos_since(ours.since);
        let ways = match ours.test.echo() {
            Echo::Nothing => endpoint.completed(),
            _ => 2 * endpoint.traffic.received,
        };
        let latency = nanos.checked_div(ways)?;
        let figure = match ours.test.latency {
            true => Figure::Latency(latency),
            false => Figure::Bandwidth(ways * u64::from(LONG) * 1_000_000 / (nanos / 1000).max(1)),
        };
        Some(Measured { name: ours.test.name, figure })
    }
}
