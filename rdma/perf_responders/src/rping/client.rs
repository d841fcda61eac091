//! The client's side: one connection, so many pings one after the other, each checked.

use super::{Advertisement, MAX_SIZE, MESSAGE, PORT, RECEIVES, post, post_receive};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::EngineContext;
use verbs::{
    Access, CompletedOperation, ConnectionEvent, ConnectionId, ConnectionManager,
    ConnectionParameters, CqId, Payload, PdId, Provider, QpId, QpInit, QpType, Region,
    RejectReason, RemoteAddress, SendOperation, SendWith, Status, VerbsError,
};

/// How long the server may take to let us in, and to answer each ping.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pings, at least 1.
    pub count: u32,
    /// Bytes of each, 1 to [`MAX_SIZE`]. The server has to be started with at least as many.
    pub size: usize,
}

/// How all pings went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Pings that came back as they were sent.
    pub returned: u32,
    /// Time that they took together.
    pub time: Duration,
}

impl Summary {
    /// Mean time of a ping.
    pub fn mean(&self) -> Duration {
        self.time.checked_div(self.returned).unwrap_or_default()
    }
}

/// What there is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A ping, counted from 1, has come back as it was sent.
    Returned {
        /// Which.
        sequence: u32,
        /// How long it took, there and back.
        time: Duration,
    },
    /// All of them have.
    Finished(Summary),
    /// It is over before its end.
    Failed(Failure),
}

/// Why it ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer does not want the connection.
    Refused(RejectReason),
    /// Nobody answers.
    NoAnswer,
    /// The connection broke, or the peer ended it.
    Lost,
    /// What came back is not what was sent: from this byte on.
    Corrupted(usize),
    /// The peer does not keep to the protocol.
    Protocol,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(RejectReason::INVALID_SERVICE_ID) => {
                f.write_str("the peer refuses: start `rping -s` there")
            }
            Failure::Refused(reason) => write!(f, "the peer refuses, reason {}", reason.0),
            Failure::NoAnswer => f.write_str("the peer does not answer"),
            Failure::Lost => f.write_str(
                "the connection was lost; the peer's rping has to be started with as large a \
                 size (`rping -s -S SIZE`)",
            ),
            Failure::Corrupted(at) => write!(f, "byte {at} came back other than it was sent"),
            Failure::Protocol => f.write_str("the peer does not speak the protocol of rping"),
        }
    }
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The connection.
    Connecting,
    /// The next [`Client::poll`], which begins a ping.
    Ready,
    /// The server to have fetched the source.
    Fetching,
    /// The server to have written the sink.
    Storing,
    /// Nothing any more.
    Over,
}

/// The client. It holds three small regions of the arena until [`Client::stop`].
#[derive(Debug)]
pub struct Client {
    pd: PdId,
    cq: CqId,
    qp: QpId,
    connection: ConnectionId,
    source: Region,
    sink: Region,
    inbox: Window,
    options: Options,
    phase: Phase,
    /// When the present phase, or ping, began.
    since: Instant,
    summary: Summary,
    failure: Option<Failure>,
}

impl Client {
    /// Asks the server at `peer` for a connection from our address `local`. The provider has to
    /// know the way to the peer.
    pub fn start<P: Provider + ConnectionManager + ?Sized>(
        local: IpAddr,
        peer: IpAddr,
        options: Options,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, VerbsError> {
        if options.count == 0 || !(1..=MAX_SIZE).contains(&options.size) {
            return Err(VerbsError::Invalid);
        }
        let mut made = Parts::default();
        let begun = made.make(options.size, local, ctx).and_then(|parts| {
            let parameters = ConnectionParameters {
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                min_rnr_timer: 12,
            };
            let to = SocketAddr::new(peer, PORT);
            let EngineContext { provider, now, rng, .. } = ctx;
            let connection = provider.connect(parts.qp, local, to, &parameters, &[], *now, *rng)?;
            Ok(Client {
                pd: parts.pd,
                cq: parts.cq,
                qp: parts.qp,
                connection,
                source: parts.source,
                sink: parts.sink,
                inbox: parts.inbox,
                options,
                phase: Phase::Connecting,
                since: *now,
                summary: Summary::default(),
                failure: None,
            })
        });
        begun.inspect_err(|_| made.give_back(ctx))
    }

    /// Takes an event of the connection manager; false if it is not about this client.
    pub fn handle_connection_event(&mut self, event: &ConnectionEvent) -> bool {
        match event {
            ConnectionEvent::Established { connection, .. } if *connection == self.connection => {
                self.phase = Phase::Ready;
            }
            ConnectionEvent::Rejected { connection, reason, .. }
                if *connection == self.connection =>
            {
                self.failure = Some(match *reason {
                    RejectReason::TIMEOUT => Failure::NoAnswer,
                    reason => Failure::Refused(reason),
                });
            }
            ConnectionEvent::Disconnected { connection } if *connection == self.connection => {
                self.failure.get_or_insert(Failure::Lost);
            }
            _ => return false,
        }
        true
    }

    /// What there is to tell next. A ping begins when the one before was told.
    pub fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) -> Option<Event> {
        let told = self.step(ctx).unwrap_or_else(|failure| {
            self.failure.get_or_insert(failure);
            None
        });
        let late = self.poll_timeout().is_some_and(|at| at <= ctx.now);
        let failure = self.failure.take().or(late.then_some(Failure::NoAnswer));
        if let (Some(failure), true) = (failure, self.phase != Phase::Over) {
            self.phase = Phase::Over;
            return Some(Event::Failed(failure));
        }
        told
    }

    /// When it gives up.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.phase != Phase::Over).then(|| self.since + PATIENCE)
    }

    /// Ends it, at its end or before, and gives everything back; how it went so far.
    pub fn stop<P: Provider + ?Sized>(self, ctx: &mut EngineContext<'_, P>) -> Summary {
        let Client { pd, cq, qp, source, sink, inbox, .. } = self;
        Parts {
            pd: Some(pd),
            cq: Some(cq),
            qp: Some(qp),
            source: Some(source),
            sink: Some(sink),
            inbox: Some(inbox),
        }
        .give_back(ctx);
        self.summary
    }

    fn step<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Option<Event>, Failure> {
        if self.phase == Phase::Ready {
            if self.summary.returned == self.options.count {
                self.phase = Phase::Over;
                return Ok(Some(Event::Finished(self.summary)));
            }
            self.since = ctx.now;
            self.phase = Phase::Fetching;
            write_pattern(&self.source.memory, self.options.size, self.summary.returned);
            self.sink.memory.fill(0);
            self.advertise(self.source, ctx.provider)?;
        }
        while let Some(completion) = ctx.provider.poll_cq(self.cq) {
            if completion.status != Status::Success {
                return Err(Failure::Lost);
            }
            if !matches!(completion.operation, CompletedOperation::Recv { .. }) {
                continue;
            }
            let posted = post_receive(ctx.provider, self.qp, self.inbox, completion.id);
            posted.map_err(|_| Failure::Lost)?;
            match self.phase {
                Phase::Fetching => {
                    self.phase = Phase::Storing;
                    self.advertise(self.sink, ctx.provider)?;
                }
                Phase::Storing => {
                    let (source, sink) = (&self.source.memory, &self.sink.memory);
                    if let Some(at) = difference(source, sink, self.options.size) {
                        return Err(Failure::Corrupted(at));
                    }
                    let time = ctx.now.since(self.since);
                    self.phase = Phase::Ready;
                    self.since = ctx.now;
                    self.summary.returned += 1;
                    self.summary.time += time;
                    let sequence = self.summary.returned;
                    return Ok(Some(Event::Returned { sequence, time }));
                }
                Phase::Connecting | Phase::Ready | Phase::Over => return Err(Failure::Protocol),
            }
        }
        Ok(None)
    }

    fn advertise<P: Provider + ?Sized>(
        &self,
        region: Region,
        provider: &mut P,
    ) -> Result<(), Failure> {
        let at = RemoteAddress { address: region.address, rkey: region.rkey };
        let message = Advertisement { at, size: self.options.size as u32 }.emit();
        let payload = Payload::Inline(&message);
        let send = SendOperation::Send { payload, with: SendWith::Nothing };
        post(provider, self.qp, send, false).map_err(|_| Failure::Lost)
    }
}

/// What a client consists of, as far as it is made.
#[derive(Default)]
struct Parts {
    pd: Option<PdId>,
    cq: Option<CqId>,
    qp: Option<QpId>,
    source: Option<Region>,
    sink: Option<Region>,
    inbox: Option<Window>,
}

/// All of them.
struct Made {
    cq: CqId,
    pd: PdId,
    qp: QpId,
    source: Region,
    sink: Region,
    inbox: Window,
}

impl Parts {
    fn make<P: Provider + ?Sized>(
        &mut self,
        size: usize,
        local: IpAddr,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Made, VerbsError> {
        let pd = *self.pd.insert(ctx.provider.alloc_pd()?);
        let on = ctx.provider.pd_on(pd, local);
        let cq = *self.cq.insert(ctx.provider.create_cq(2 * RECEIVES)?);
        let source = *self.source.insert(region(on, size, Access::REMOTE_READ, ctx)?);
        let sink = *self.sink.insert(region(on, size, Access::REMOTE_WRITE, ctx)?);
        let inbox = ctx.arena.alloc(RECEIVES as usize * MESSAGE, 64).ok_or(VerbsError::NoRoom)?;
        self.inbox = Some(inbox);
        let init = QpInit {
            kind: QpType::Rc,
            pd: on,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: RECEIVES,
            max_recv_wr: RECEIVES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MESSAGE,
        };
        let qp = *self.qp.insert(ctx.provider.create_qp(&init, ctx.rng)?);
        for n in 0..u64::from(RECEIVES) {
            post_receive(ctx.provider, qp, inbox, n)?;
        }
        Ok(Made { cq, pd, qp, source, sink, inbox })
    }

    fn give_back<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        // They are ours, and nobody else uses them.
        if let Some(qp) = self.qp.take() {
            let _ = ctx.provider.destroy_qp(qp);
        }
        if let Some(cq) = self.cq.take() {
            let _ = ctx.provider.destroy_cq(cq);
        }
        for region in [self.source.take(), self.sink.take()].into_iter().flatten() {
            let _ = ctx.provider.deregister(region.id);
            ctx.arena.free(region.memory);
        }
        if let Some(inbox) = self.inbox.take() {
            ctx.arena.free(inbox);
        }
        if let Some(pd) = self.pd.take() {
            let _ = ctx.provider.dealloc_pd(pd);
        }
    }
}

fn region<P: Provider + ?Sized>(
    pd: PdId,
    size: usize,
    access: Access,
    ctx: &mut EngineContext<'_, P>,
) -> Result<Region, VerbsError> {
    let memory = ctx.arena.alloc(size, 64).ok_or(VerbsError::NoRoom)?;
    let registered = ctx.provider.register(pd, memory, access, ctx.rng);
    registered.inspect_err(|_| ctx.arena.free(memory))
}

/// Fills the source for ping number `sequence`: letters, as rping does, beginning with another one
/// each time, and a zero at the end: Linux's server takes what it fetched for a string, and writes
/// back so many bytes as that has, whatever size is advertised.
pub(super) fn write_pattern(source: &Window, size: usize, sequence: u32) {
    let mut letters = (b'A'..=b'z').cycle().skip(sequence as usize % 58);
    let mut block = [0; 256];
    for start in (0..size).step_by(block.len()) {
        block.iter_mut().zip(&mut letters).for_each(|(byte, letter)| *byte = letter);
        let length = block.len().min(size - start);
        if start + length == size {
            block[length - 1] = 0;
        }
        // Inside the window by construction.
        let _ = source.write(start, &block[..length]);
    }
}

/// The first of `size` bytes in which two windows differ.
fn difference(one: &Window, other: &Window, size: usize) -> Option<usize> {
    let (mut a, mut b) = ([0; 256], [0; 256]);
    (0..size).step_by(a.len()).find_map(|start| {
        let length = a.len().min(size - start);
        let (a, b) = (&mut a[..length], &mut b[..length]);
        if one.read(start, a).is_err() || other.read(start, b).is_err() {
            return Some(start);
        }
        a.iter().zip(b.iter()).position(|(x, y)| x != y).map(|at| start + at)
    })
}
