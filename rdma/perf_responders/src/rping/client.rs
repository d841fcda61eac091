//! The client: one connection, on which it sends a number of pings one after the other, and compares the data of each.

use super::{Advertisement, MAX_SIZE, MESSAGE, PORT, RECEIVES, post, post_receive};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{
    Access, CompletedOperation, ConnectionEvent, ConnectionId, ConnectionManager,
    ConnectionParameters, CqId, Ctx, Payload, PdId, Provider, QpId, QpInit, QpType, Region,
    RejectReason, RemoteAddress, SendOperation, SendWith, Status, VerbsError,
};

/// How long the server may take to accept the connection, and to answer each ping.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of pings, at least 1.
    pub count: u32,
    /// Bytes of each ping, 1 to [`MAX_SIZE`]. The server has to be started with at least this size.
    pub size: usize,
}

/// Result of all pings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Pings whose data came back unchanged.
    pub returned: u32,
    /// Total round-trip time of these pings.
    pub time: Duration,
}

impl Summary {
    /// Mean round-trip time.
    pub fn mean(&self) -> Duration {
        self.time.checked_div(self.returned).unwrap_or_default()
    }
}

/// An event of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The data of a ping came back unchanged.
    Returned {
        /// Number of the ping, from 1.
        sequence: u32,
        /// Round-trip time.
        time: Duration,
    },
    /// All pings succeeded.
    Finished(Summary),
    /// The run failed.
    Failed(Failure),
}

/// Reason of a failed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The peer rejected the connection.
    Refused(RejectReason),
    /// The peer did not answer in time.
    NoAnswer,
    /// The connection failed, or the peer closed it.
    Lost,
    /// The data that came back differs, from this byte on.
    Corrupted(usize),
    /// The peer violated the protocol.
    Protocol,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(RejectReason::INVALID_SERVICE_ID) => {
                f.write_str("the peer rejected the connection: start `rping -s` there")
            }
            Failure::Refused(reason) => {
                write!(f, "the peer rejected the connection, reason {}", reason.0)
            }
            Failure::NoAnswer => f.write_str("the peer does not answer"),
            Failure::Lost => f.write_str(
                "the connection was lost; start the peer's rping with at least this size \
                 (`rping -s -S SIZE`)",
            ),
            Failure::Corrupted(at) => write!(f, "the data came back corrupted, from byte {at} on"),
            Failure::Protocol => f.write_str("the peer violated the rping protocol"),
        }
    }
}

/// The event that the client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Connection establishment.
    Connecting,
    /// The next [`Client::poll`], which starts a ping.
    Ready,
    /// The server's message that it has read the source.
    Fetching,
    /// The server's message that it has written the sink.
    Storing,
    /// None: the run has ended.
    Over,
}

/// The client. It holds three small allocations of the arena until [`Client::stop`].
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
    /// Start of the connection attempt, or of the current ping.
    since: Instant,
    summary: Summary,
    failure: Option<Failure>,
}

impl Client {
    /// Connects to the server at `peer` from the local address `local`. The provider has to have the neighbour of the
    /// peer.
    pub fn start<P: Provider + ConnectionManager + ?Sized>(
        local: IpAddr,
        peer: IpAddr,
        options: Options,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Self, VerbsError> {
        if options.count == 0 || !(1..=MAX_SIZE).contains(&options.size) {
            return Err(VerbsError::Invalid);
        }
        let mut parts = Parts::default();
        let started = parts.make(options.size, local, ctx).and_then(|resources| {
            let parameters = ConnectionParameters {
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                min_rnr_timer: 12,
            };
            let to = SocketAddr::new(peer, PORT);
            let Ctx { provider, now, rng, .. } = ctx;
            let connection =
                provider.connect(resources.qp, local, to, &parameters, &[], *now, *rng)?;
            Ok(Client {
                pd: resources.pd,
                cq: resources.cq,
                qp: resources.qp,
                connection,
                source: resources.source,
                sink: resources.sink,
                inbox: resources.inbox,
                options,
                phase: Phase::Connecting,
                since: *now,
                summary: Summary::default(),
                failure: None,
            })
        });
        started.inspect_err(|_| parts.give_back(ctx))
    }

    /// Handles an event of the connection manager; false if it is not for this client's connection.
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

    /// Advances the run and returns the next event. The next ping starts in the call after the one that returned the
    /// last.
    pub fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> Option<Event> {
        let event = self.step(ctx).unwrap_or_else(|failure| {
            self.failure.get_or_insert(failure);
            None
        });
        let timed_out = self.poll_timeout().is_some_and(|at| at <= ctx.now);
        let failure = self.failure.take().or(timed_out.then_some(Failure::NoAnswer));
        if let (Some(failure), true) = (failure, self.phase != Phase::Over) {
            self.phase = Phase::Over;
            return Some(Event::Failed(failure));
        }
        event
    }

    /// When the run fails for want of an answer; None once it has ended.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.phase != Phase::Over).then(|| self.since + TIMEOUT)
    }

    /// Ends the run, complete or not, and frees all resources; returns the results so far.
    pub fn stop<P: Provider + ?Sized>(self, ctx: &mut Ctx<'_, P>) -> Summary {
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
        ctx: &mut Ctx<'_, P>,
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

/// The resources of a client that exist so far, to be freed if a later one fails.
#[derive(Default)]
struct Parts {
    pd: Option<PdId>,
    cq: Option<CqId>,
    qp: Option<QpId>,
    source: Option<Region>,
    sink: Option<Region>,
    inbox: Option<Window>,
}

/// All resources of a client.
struct Resources {
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
        ctx: &mut Ctx<'_, P>,
    ) -> Result<Resources, VerbsError> {
        let pd = *self.pd.insert(ctx.provider.alloc_pd()?);
        let local_pd = ctx.provider.pd_on(pd, local);
        let cq = *self.cq.insert(ctx.provider.create_cq(2 * RECEIVES)?);
        let source = *self.source.insert(region(local_pd, size, Access::REMOTE_READ, ctx)?);
        let sink = *self.sink.insert(region(local_pd, size, Access::REMOTE_WRITE, ctx)?);
        let inbox = ctx.arena.alloc(RECEIVES as usize * MESSAGE, 64).ok_or(VerbsError::NoRoom)?;
        self.inbox = Some(inbox);
        let init = QpInit {
            kind: QpType::Rc,
            pd: local_pd,
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
        Ok(Resources { cq, pd, qp, source, sink, inbox })
    }

    fn give_back<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        // Cannot fail: only this client uses them.
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
    ctx: &mut Ctx<'_, P>,
) -> Result<Region, VerbsError> {
    let memory = ctx.arena.alloc(size, 64).ok_or(VerbsError::NoRoom)?;
    let registered = ctx.provider.register(pd, memory, access, ctx.rng);
    registered.inspect_err(|_| ctx.arena.free(memory))
}

/// Fills the source for ping `sequence` with letters, as rping does; each ping starts with another letter. The last
/// byte is zero: Linux's server treats the data as a string and writes back only that string, whatever size is
/// advertised.
pub(super) fn write_pattern(source: &Window, size: usize, sequence: u32) {
    let mut letters = (b'A'..=b'z').cycle().skip(sequence as usize % 58);
    let mut block = [0; 256];
    for start in (0..size).step_by(block.len()) {
        block.iter_mut().zip(&mut letters).for_each(|(byte, letter)| *byte = letter);
        let length = block.len().min(size - start);
        if start + length == size {
            block[length - 1] = 0;
        }
        // Cannot fail: the range is inside the window.
        let _ = source.write(start, &block[..length]);
    }
}

/// The offset of the first of `size` bytes in which two windows differ.
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
