//! Benchmark between two appliances over the NTB bridge, without a host: the tests of qperf (`rc_bw`, `rc_lat` ...),
//! each over a new connection of the connection manager. Each side has an [`Endpoint`](super::endpoint); in latency
//! tests both sides echo each message.
//!
//! The private data of request and reply describes the sender's memory: address (8 bytes) and key (4). A request adds
//! the number of the test (4). Numbers are little-endian. Each side serves one test at a time.

#[cfg(test)]
mod tests;

use super::bench::Bench;
use super::endpoint::Echo;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Ctx, Payload, Provider,
    QpId, RejectReason, RemoteAddress, SendOperation, SendWith, VerbsError,
};

/// Port of the connection manager: the one after qperf's.
pub const PORT: u16 = super::qperf::PORT + 1;
/// Message size of bandwidth tests, and memory of each side, in bytes.
const LONG: u32 = 64 << 10;
/// Message size of latency tests in bytes.
const SHORT: u32 = 1;
/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The operation of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// A test.
#[derive(Debug)]
struct Test {
    name: &'static str,
    kind: Kind,
    latency: bool,
}

const fn test(name: &'static str, kind: Kind, latency: bool) -> Test {
    Test { name, kind, latency }
}

/// All tests; the index is the number on the wire.
static TESTS: [Test; 6] = [
    test("rc_bw", Kind::Send, false),
    test("rc_lat", Kind::Send, true),
    test("rc_rdma_write_bw", Kind::Write, false),
    test("rc_rdma_write_lat", Kind::Write, true),
    test("rc_rdma_read_bw", Kind::Read, false),
    test("rc_rdma_read_lat", Kind::Read, true),
];

impl Test {
    /// How both sides echo messages.
    fn echo(&self) -> Echo {
        match self.kind {
            Kind::Send if self.latency => Echo::Sends,
            Kind::Write if self.latency => Echo::WritesWithImmediate,
            _ => Echo::Nothing,
        }
    }
}

/// The result of a test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Name of the test in qperf.
    pub name: &'static str,
    /// The measured value.
    pub figure: Figure,
}

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    /// Bytes per second.
    Bandwidth(u64),
    /// Nanoseconds: one way, or of a whole READ.
    Latency(u64),
}

// Reasons of failed tests.
const REFUSED: &str = "the other machine rejected the test: it serves another one, or is out of memory or queue pairs";
const LOST: &str = "the connection was lost: see `show ntb` for the state of the link";
const NO_ANSWER: &str = "the other machine does not answer";
const UNSUPPORTED: &str = "the other machine does not support this test";

/// The text of a local error.
fn reason(error: VerbsError) -> &'static str {
    match error {
        VerbsError::Unreachable => "the link is not up: see `show ntb`",
        VerbsError::NoRoom => "this machine is out of memory or queue pairs",
        _ => "the device rejected the test",
    }
}

/// One side of a test, with its memory.
#[derive(Debug)]
struct Side {
    bench: Bench,
    connection: ConnectionId,
    /// The test that this side measures; None if this side only serves.
    run: Option<Run>,
}

/// A test that this machine measures.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Number of the test.
    number: usize,
    test: &'static Test,
    connected: bool,
    /// Start of the connection attempt, then of the test.
    since: Instant,
    /// Duration of each test.
    time: Duration,
}

impl Run {
    /// When the test, or the connection attempt, ends.
    fn deadline(&self) -> Instant {
        self.since + if self.connected { self.time } else { CONNECT_TIMEOUT }
    }
}

/// Connects or accepts with the given queue pair and private data.
type Connect<'a, P> =
    dyn FnMut(QpId, &[u8], &mut Ctx<'_, P>) -> Result<ConnectionId, VerbsError> + 'a;

/// The tests between this appliance and its peer: measuring and serving side.
#[derive(Debug)]
pub struct NtbPerf {
    local: IpAddr,
    peer: IpAddr,
    /// At most one serving and one measuring side.
    sides: Vec<Side>,
    /// Name and reason of a failed test, until [`NtbPerf::failure`] returns them.
    failed: Option<(&'static str, &'static str)>,
    /// Results of the last run, complete or not.
    pub results: Vec<Measured>,
}

/// Emits the private data: the local memory and the number of the test.
fn emit_private_data(bench: &Bench, test: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    let (address, rest) = bytes.split_at_mut(8);
    address.copy_from_slice(&bench.region.address.to_le_bytes());
    let (key, number) = rest.split_at_mut(4);
    key.copy_from_slice(&bench.region.rkey.to_le_bytes());
    number.copy_from_slice(&(test as u32).to_le_bytes());
    bytes
}

/// Parses the peer's private data: its memory and the test.
fn parse_private_data(bytes: &[u8]) -> Option<(RemoteAddress, &'static Test)> {
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
    /// For tests with `peer`, from the local address `local`. The provider has to listen on [`PORT`].
    pub fn new(local: IpAddr, peer: IpAddr) -> Self {
        NtbPerf { local, peer, sides: Vec::new(), failed: None, results: Vec::new() }
    }

    /// Starts all tests, one after the other; each runs for `time`.
    pub fn start<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        time: Duration,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.cancel(ctx);
        self.results.clear();
        self.begin(0, time, ctx);
    }

    fn measuring_side(&self) -> Option<usize> {
        self.sides.iter().position(|side| side.run.is_some())
    }

    /// Whether a test is being measured.
    pub fn is_running(&self) -> bool {
        self.measuring_side().is_some()
    }

    /// Takes the failure of the last run: name of the test, and reason.
    pub fn failure(&mut self) -> Option<(&'static str, &'static str)> {
        self.failed.take()
    }

    /// Ends the running test without a failure.
    pub fn cancel<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        if let Some(at) = self.measuring_side() {
            self.remove(at, None, ctx);
        }
    }

    /// Removes a side and frees its resources; `why` is the reason of a failure.
    #[cold]
    #[inline(never)]
    fn remove<P: Provider + ?Sized>(
        &mut self,
        at: usize,
        why: Option<&'static str>,
        ctx: &mut Ctx<'_, P>,
    ) {
        let mut side = self.sides.swap_remove(at);
        side.bench.give_back(ctx);
        if let (Some(run), Some(why)) = (side.run, why) {
            self.failed = Some((run.test.name, why));
        }
    }

    /// Starts test `number`; does nothing after the last one.
    #[cold]
    #[inline(never)]
    fn begin<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        number: usize,
        time: Duration,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(test) = TESTS.get(number) else { return };
        let run = Run { number, test, connected: false, since: ctx.now, time };
        let (local, to) = (self.local, SocketAddr::new(self.peer, PORT));
        let created = self.make(number, test, Some(run), ctx, &mut |qp, private_data, ctx| {
            ctx.provider.connect(qp, local, to, &PARAMETERS, private_data, ctx.now, ctx.rng)
        });
        if let Err(why) = created {
            self.failed = Some((test.name, reason(why)));
        }
    }

    /// Creates a side with memory and a queue pair; `connect` connects or accepts with its private data.
    fn make<P: Provider + ?Sized>(
        &mut self,
        number: usize,
        test: &Test,
        run: Option<Run>,
        ctx: &mut Ctx<'_, P>,
        connect: &mut Connect<'_, P>,
    ) -> Result<(), VerbsError> {
        let mut bench = Bench::new(LONG as usize, self.peer, self.local, ctx)?;
        let created = bench.add(ctx).map(|endpoint| {
            endpoint.echo = test.echo();
            endpoint.qp
        });
        let private_data = emit_private_data(&bench, number);
        let created = created.and_then(|qp| connect(qp, &private_data, ctx));
        match created {
            Ok(connection) => self.sides.push(Side { bench, connection, run }),
            Err(_) => bench.give_back(ctx),
        }
        created.map(|_| ())
    }

    #[cold]
    #[inline(never)]
    fn accept<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), VerbsError> {
        let (remote, test) = parse_private_data(private_data).ok_or(VerbsError::Invalid)?;
        if self.sides.iter().any(|side| side.run.is_none()) {
            return Err(VerbsError::NoRoom);
        }
        self.make(0, test, None, ctx, &mut |qp, private_data, ctx| {
            ctx.provider.accept(connection, qp, &PARAMETERS, private_data, ctx.now)?;
            Ok(connection)
        })?;
        self.set_remote(self.sides.len().saturating_sub(1), remote);
        Ok(())
    }

    /// Stores the address and key of the peer's memory.
    fn set_remote(&mut self, at: usize, remote: RemoteAddress) {
        let endpoint = self.sides.get_mut(at).and_then(|side| side.bench.endpoints.first_mut());
        if let Some(endpoint) = endpoint {
            endpoint.remote = remote;
        }
    }

    /// Handles an event of the connection manager; false if it is not for this module.
    #[cold]
    #[inline(never)]
    pub fn handle_connection_event<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let id = match event {
            ConnectionEvent::Request { connection, port: PORT, to, private_data, .. }
                if *to == self.local =>
            {
                if self.accept(*connection, private_data.as_slice(), ctx).is_err() {
                    // An error means that the peer has already dropped the connection.
                    let _ = ctx.provider.reject(*connection, RejectReason::NO_RESOURCES, &[]);
                }
                return true;
            }
            ConnectionEvent::Request { .. } => return false,
            ConnectionEvent::Established { connection, .. }
            | ConnectionEvent::Rejected { connection, .. }
            | ConnectionEvent::Disconnected { connection } => *connection,
        };
        let at = self.sides.iter().position(|side| side.connection == id);
        let Some((at, side)) = at.and_then(|at| Some((at, self.sides.get_mut(at)?))) else {
            return false;
        };
        let why = match (event, &mut side.run) {
            (ConnectionEvent::Established { .. }, None) => return true,
            (ConnectionEvent::Established { private_data, .. }, Some(run)) => {
                if let Some((remote, _)) = parse_private_data(private_data.as_slice()) {
                    (run.since, run.connected) = (ctx.now, true);
                    self.set_remote(at, remote);
                    return true;
                }
                UNSUPPORTED
            }
            (ConnectionEvent::Rejected { reason, .. }, _) => match *reason {
                RejectReason::INVALID_SERVICE_ID => UNSUPPORTED,
                RejectReason::TIMEOUT => LOST,
                _ => REFUSED,
            },
            _ => LOST,
        };
        self.remove(at, Some(why), ctx);
        true
    }

    /// Advances all tests; returns how much was done. A test ends at the first call after its time, and its result
    /// covers the time that really passed. The bridge needs frequent polls.
    #[inline]
    pub fn poll<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> usize {
        if self.sides.is_empty() { 0 } else { self.poll_sides(ctx) }
    }

    #[inline(never)]
    fn poll_sides<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> usize {
        let mut done = 0;
        let mut at = 0;
        while let Some(side) = self.sides.get_mut(at) {
            match side.poll(ctx) {
                Ok(count) => done += count,
                Err(_) => {
                    self.remove(at, Some(LOST), ctx);
                    done += 1;
                    continue;
                }
            }
            if let Some(run) = side.run.filter(|run| ctx.now >= run.deadline()) {
                let result = side.result(&run, ctx.now);
                self.remove(at, result.is_none().then_some(NO_ANSWER), ctx);
                if let Some(result) = result {
                    self.results.push(result);
                    self.begin(run.number + 1, run.time, ctx);
                }
                return done + 1;
            }
            at += 1;
        }
        done
    }
}

impl Side {
    /// Handles completions and posts the next messages; returns how much was done.
    fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> Result<usize, VerbsError> {
        let mut done = self.bench.poll(ctx)?;
        let Some(Run { test, connected: true, .. }) = self.run else { return Ok(done) };
        let Bench { region, endpoints, .. } = &mut self.bench;
        let endpoint = endpoints.first_mut().ok_or(VerbsError::Invalid)?;
        // Echoed messages: one message goes back and forth for the whole test.
        let limit = match (test.latency, test.kind) {
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
        while endpoint.traffic.sent < limit && endpoint.has_room() {
            done += 1;
            endpoint.post(operation, length, ctx.provider)?;
        }
        Ok(done)
    }

    /// The result of a test; None if no message completed.
    fn result(&self, run: &Run, now: Instant) -> Option<Measured> {
        let endpoint = self.bench.endpoints.first().filter(|_| run.connected)?;
        let nanos = now.nanos_since(run.since);
        let transfers = match run.test.echo() {
            Echo::Nothing => endpoint.completed(),
            _ => 2 * endpoint.traffic.received,
        };
        let latency = nanos.checked_div(transfers)?;
        let figure = match run.test.latency {
            true => Figure::Latency(latency),
            false => {
                Figure::Bandwidth(transfers * u64::from(LONG) * 1_000_000 / (nanos / 1000).max(1))
            }
        };
        Some(Measured { name: run.test.name, figure })
    }
}
