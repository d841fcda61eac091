//! One client of a measuring tool: its memory and queue pairs, and the conversation about them.

use super::endpoint::{Endpoint, RemoteEnd};
use super::{gid, perftest, pingpong, qperf};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Neighbours;
use net::Resolution;
use verbs::EngineContext;
use verbs::{Access, ConnectionId, PathMtu, PdId, Provider, Region, VerbsError};

/// Largest message of the tools that is measured: 8 MiB, the end of `--all`.
pub const MAX_MESSAGE: usize = 8 << 20;
/// Memory of a session: behind the largest message is a page for what we write ourselves.
pub const MEMORY: usize = MAX_MESSAGE + super::write_latency::PAGE;
/// Queue pairs of a session (`--qp`).
pub const MAX_ENDPOINTS: usize = 16;
/// What has arrived and was not understood yet; more than any message of the tools.
pub const INPUT: usize = 512;
/// A session without its control connection ends when it has been quiet for so long.
const QUIET: Duration = Duration::from_secs(10);
/// How long a client may leave its conversation unfinished before the first message.
const SILENT: Duration = Duration::from_secs(30);

/// The conversation is over: the peer does not keep to the protocol, or asks for what we lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl From<VerbsError> for Refused {
    fn from(_: VerbsError) -> Self {
        Refused
    }
}

/// How a step of a conversation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It used so many bytes; there may be more to do.
    Took(usize),
    /// It needs more bytes, or somebody else, or time.
    Wait,
}

/// The peer's queue pair, as the tools tell it.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub qpn: u32,
    pub psn: u32,
    pub gid: [u8; 16],
    pub path_mtu: PathMtu,
}

/// What a session measures with.
#[derive(Debug)]
pub struct Bench {
    pub pd: PdId,
    pub region: Region,
    pub endpoints: Vec<Endpoint>,
    /// The peer on the control connection, and our address there.
    pub peer: IpAddr,
    pub local: IpAddr,
    /// The peer is going to connect queue pairs by the connection manager.
    pub expects_connections: bool,
    /// The connection manager connects its queue pairs.
    pub managed: bool,
}

impl Bench {
    /// So much memory, and a protection domain.
    #[inline(never)]
    pub fn new<P: Provider + ?Sized>(
        length: usize,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, VerbsError> {
        let memory = ctx.arena.alloc(length, 4096).ok_or(VerbsError::NoRoom)?;
        // What others left there is not the peer's to read.
        memory.fill(0);
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let pd = ctx.provider.alloc_pd();
        let made = pd.and_then(|pd| {
            let on = ctx.provider.pd_on(pd, local);
            let region = ctx.provider.register(on, memory, access, ctx.rng);
            region.map(|region| (pd, region)).inspect_err(|_| {
                let _ = ctx.provider.dealloc_pd(pd);
            })
        });
        let (pd, region) = made.inspect_err(|_| ctx.arena.free(memory))?;
        let endpoints = Vec::with_capacity(MAX_ENDPOINTS);
        Ok(Bench { pd, region, endpoints, peer, local, expects_connections: false, managed: false })
    }

    /// A new endpoint in state Init.
    pub fn add<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<&mut Endpoint, VerbsError> {
        if self.endpoints.len() >= MAX_ENDPOINTS {
            return Err(VerbsError::NoRoom);
        }
        let pd = ctx.provider.pd_on(self.pd, self.local);
        let endpoint = Endpoint::new(ctx.provider, pd, self.region.memory, ctx.rng)?;
        Ok(self.endpoints.push_mut(endpoint))
    }

    /// A new endpoint, connected with the peer's, and the address that we have there. None as
    /// long as the way to the peer is being looked for.
    pub fn connect<P: Provider + ?Sized>(
        &mut self,
        peer: &Peer,
        ctx: &mut EngineContext<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) -> Result<Option<(IpAddr, &mut Endpoint)>, Refused> {
        let ip = gid::address(peer.gid);
        let local = neighbours.address_towards(ip, self.local).ok_or(Refused)?;
        let mac = match neighbours.resolve(ip, ctx.now) {
            Resolution::Known(mac) => mac,
            Resolution::Pending => return Ok(None),
            Resolution::Unreachable | Resolution::NoRoute => return Err(Refused),
        };
        let (qpn, psn, path_mtu) = (peer.qpn, peer.psn, peer.path_mtu);
        let endpoint = self.add(ctx)?;
        endpoint.connect(ctx.provider, &RemoteEnd { qpn, psn, ip, local, mac, path_mtu })?;
        Ok(Some((local, endpoint)))
    }

    /// Handles what has completed; how much. An error is the end of a queue pair.
    pub fn poll<P: Provider + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<usize, VerbsError> {
        let mut handled = 0;
        for endpoint in &mut self.endpoints {
            handled += endpoint.poll(&self.region, ctx)?;
        }
        Ok(handled)
    }

    /// Gives everything back.
    #[inline(never)]
    pub fn give_back<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        for endpoint in self.endpoints.drain(..) {
            endpoint.destroy(ctx.provider);
        }
        // Nobody uses them any more.
        let _ = ctx.provider.deregister(self.region.id);
        let _ = ctx.provider.dealloc_pd(self.pd);
        ctx.arena.free(self.region.memory);
    }
}

/// The language that a client speaks.
#[derive(Debug)]
enum Talk {
    /// Not known yet: `ibv_rc_pingpong` or perftest, which share a port.
    Unknown,
    Pingpong(pingpong::Talk),
    Perftest(perftest::Talk),
    Qperf(qperf::Talk),
}

/// A client.
#[derive(Debug)]
pub struct Session {
    pub bench: Bench,
    talk: Talk,
    /// What has arrived and was not understood yet.
    pub input: Vec<u8>,
    /// What is to be sent.
    pub output: Vec<u8>,
    /// The control connection is there.
    pub attended: bool,
    /// Refused, or at its end.
    pub over: bool,
    /// When anything happened last.
    pub last: Instant,
}

impl Session {
    /// A client that has connected to `port`.
    pub fn new<P: Provider + ?Sized>(
        port: u16,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<Self, VerbsError> {
        let talk = match port {
            qperf::PORT => Talk::Qperf(qperf::Talk::default()),
            _ => Talk::Unknown,
        };
        Ok(Session {
            bench: Bench::new(MEMORY, peer, local, ctx)?,
            talk,
            input: Vec::with_capacity(INPUT),
            output: Vec::with_capacity(INPUT),
            attended: true,
            over: false,
            last: ctx.now,
        })
    }

    /// Answers what has arrived, as far as it can be.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        messages: perftest::Framing,
        ctx: &mut EngineContext<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        while !self.over {
            let (input, output, bench) = (&self.input[..], &mut self.output, &mut self.bench);
            let step = match &mut self.talk {
                Talk::Unknown => match input.get(4) {
                    // A line begins with four digits and a colon, a version with a number.
                    Some(b':') => {
                        self.talk = Talk::Pingpong(pingpong::Talk::Line);
                        continue;
                    }
                    Some(_) => {
                        self.talk = Talk::Perftest(perftest::Talk::new(messages));
                        continue;
                    }
                    None => Ok(Progress::Wait),
                },
                Talk::Pingpong(talk) => talk.advance(input, output, bench, ctx, neighbours),
                Talk::Perftest(talk) => talk.advance(input, output, bench, ctx, neighbours),
                Talk::Qperf(talk) => talk.advance(input, output, bench, ctx),
            };
            match step {
                Ok(Progress::Took(count)) => {
                    self.input.drain(..count.min(self.input.len()));
                    self.last = ctx.now;
                }
                Ok(Progress::Wait) => break,
                Err(Refused) => self.over = true,
            }
        }
    }

    /// Handles what has completed; how much.
    pub fn poll<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) -> usize {
        let polled = self.bench.poll(ctx);
        self.over |= polled.is_err();
        let handled = polled.unwrap_or(0);
        let mut endpoints = self.bench.endpoints.iter_mut();
        if handled > 0 || !self.attended && endpoints.any(|end| end.is_moving(ctx.provider)) {
            self.last = ctx.now;
        }
        self.over |= self.quiet_since().is_some_and(|(since, limit)| since + limit <= ctx.now);
        handled
    }

    /// The quiet that ends it, if any does.
    fn quiet_since(&self) -> Option<(Instant, Duration)> {
        match self.attended {
            false => Some((self.last, QUIET)),
            true if self.bench.endpoints.is_empty() => Some((self.last, SILENT)),
            true => None,
        }
    }

    /// The control connection is gone. Only `ibv_rc_pingpong` measures without it.
    pub fn hang_up(&mut self) {
        self.attended = false;
        self.over |= !matches!(self.talk, Talk::Pingpong(pingpong::Talk::Over));
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.over {
            return Some(self.last);
        }
        let talk = match &self.talk {
            Talk::Qperf(talk) => talk.poll_timeout(),
            _ => None,
        };
        let endpoints = self.bench.endpoints.iter().filter_map(Endpoint::poll_timeout).min();
        let quiet = self.quiet_since().map(|(since, limit)| since + limit);
        Instant::first([talk, endpoints, quiet])
    }

    /// The endpoint that a connection carries.
    pub fn position(&self, connection: ConnectionId) -> Option<usize> {
        self.bench.endpoints.iter().position(|e| e.connection == Some(connection))
    }

    /// Gives everything back.
    pub fn end<P: Provider + ?Sized>(mut self, ctx: &mut EngineContext<'_, P>) {
        self.bench.give_back(ctx);
    }
}
