//! The server of `ibv_rc_pingpong`, perftest and qperf: manages the sessions, and routes connection events to them.

use super::channel::Channel;
use super::endpoint::MAX_RD_ATOMIC;
use super::perftest::{self, Framing};
use super::qperf;
use super::session::{INPUT, Session};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::Neighbours;
use net::Resolution;
use net::refusal::Refusals;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Ctx, Provider,
    RejectReason, VerbsError,
};

/// Sessions at a time; each takes a little more than 8 MiB of memory.
pub const MAX_SESSIONS: usize = 8;
/// Sessions of one host at a time, so that a host leaves some to others.
const MAX_SESSIONS_PER_HOST: usize = 6;

/// Identifier of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(u32);

/// Event counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions opened.
    pub opened: u64,
    /// Clients refused because sessions (of all hosts or of theirs), memory or queue pairs were exhausted, or because
    /// they sent the GID of another host.
    pub refused: u64,
}

#[derive(Debug)]
struct Entry {
    id: SessionId,
    port: u16,
    session: Session,
    /// The control connection, if it is not TCP.
    channel: Option<Channel>,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    entries: Vec<Entry>,
    next: u32,
    /// Event counters.
    pub counters: Counters,
    refusals: Refusals,
}

impl Server {
    /// Listens with the connection manager on [`perftest::PORT`] and [`qperf::PORT`]; the caller runs the TCP
    /// listeners.
    pub fn new<P: ConnectionManager + ?Sized>(provider: &mut P) -> Result<Self, VerbsError> {
        provider.listen(perftest::PORT)?;
        provider.listen(qperf::PORT)?;
        let entries = Vec::with_capacity(MAX_SESSIONS);
        let (counters, refusals) = (Counters::default(), Refusals::default());
        Ok(Server { entries, next: 0, counters, refusals })
    }

    /// Refused clients, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    /// Number of sessions.
    pub fn sessions(&self) -> usize {
        self.entries.len()
    }

    /// Opens a session for a client at `peer` that has connected to TCP port `port` of the local address `local`; None
    /// if no session or memory is free, or if the host has its share of sessions.
    pub fn open<P: Provider + ?Sized>(
        &mut self,
        port: u16,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<SessionId> {
        self.make_room(peer, ctx);
        if !self.has_room(peer) {
            self.counters.refused += 1;
            return None;
        }
        let session = Session::new(port, peer, local, ctx);
        let session = session.inspect_err(|_| self.counters.refused += 1).ok()?;
        self.counters.opened += 1;
        self.next = self.next.wrapping_add(1);
        let id = SessionId(self.next);
        self.entries.push(Entry { id, port, session, channel: None });
        Some(id)
    }

    /// Whether a host may open a session.
    fn has_room(&self, peer: IpAddr) -> bool {
        let host = net::hosts::accountable(peer);
        self.entries.len() < MAX_SESSIONS && self.sessions_of(host).count() < MAX_SESSIONS_PER_HOST
    }

    fn sessions_of(&self, host: IpAddr) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| entry.is_of(host))
    }

    /// If a host may open no session, ends the session without a control connection that has been idle for longest: of
    /// the host, if the host has its share, otherwise of all.
    fn make_room<P: Provider + ?Sized>(&mut self, peer: IpAddr, ctx: &mut Ctx<'_, P>) {
        if self.has_room(peer) {
            return;
        }
        let host = net::hosts::accountable(peer);
        let own = self.sessions_of(host).count() >= MAX_SESSIONS_PER_HOST;
        let candidates = self.entries.iter_mut().filter(|entry| !own || entry.is_of(host));
        let idle = candidates.filter(|entry| !entry.session.has_control);
        if let Some(oldest) = idle.min_by_key(|entry| entry.session.last_activity) {
            oldest.session.ended = true;
            self.sweep(ctx);
        }
    }

    fn find(&mut self, id: SessionId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Takes bytes received over TCP; returns how many fit.
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        let Some(Entry { session, .. }) = self.find(id) else { return 0 };
        let room = INPUT.saturating_sub(session.input.len()).min(bytes.len());
        session.input.extend_from_slice(bytes.get(..room).unwrap_or_default());
        room
    }

    /// Number of bytes that [`Server::receive`] takes now.
    pub fn room(&mut self, id: SessionId) -> usize {
        self.find(id).map_or(0, |entry| INPUT.saturating_sub(entry.session.input.len()))
    }

    /// Answers the messages received over TCP.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        id: SessionId,
        ctx: &mut Ctx<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        if let Some(Entry { session, .. }) = self.find(id) {
            session.advance(Framing::Stream, ctx, neighbours);
        }
    }

    /// Whether received bytes wait for an answer.
    pub fn has_pending_input(&mut self, id: SessionId) -> bool {
        self.find(id).is_some_and(|entry| !entry.session.input.is_empty())
    }

    /// Bytes to be sent over TCP.
    pub fn output(&mut self, id: SessionId) -> &[u8] {
        self.find(id).map_or(&[], |entry| &entry.session.output)
    }

    /// The first `count` bytes of [`Server::output`] were sent.
    pub fn sent(&mut self, id: SessionId, count: usize) {
        if let Some(Entry { session, .. }) = self.find(id) {
            session.output.drain(..count.min(session.output.len()));
        }
    }

    /// Handles the end of the TCP connection.
    pub fn control_closed(&mut self, id: SessionId) {
        if let Some(Entry { session, .. }) = self.find(id) {
            session.control_closed();
        }
    }

    /// Whether the session has ended, so that the caller has to close its TCP connection.
    pub fn has_ended(&mut self, id: SessionId) -> bool {
        self.find(id).is_none_or(|entry| entry.session.ended)
    }

    /// Handles an event of the connection manager; false if its connection is not of this server.
    pub fn handle_connection_event<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        match event {
            ConnectionEvent::Request {
                connection,
                port: port @ (perftest::PORT | qperf::PORT),
                from,
                to,
                parameters,
                ..
            } => {
                let (id, peer) = (*connection, from.ip());
                let waiting = self.entries.iter_mut().find(|entry| {
                    let bench = &entry.session.bench;
                    entry.port == *port && bench.expects_connections && bench.peer == peer
                });
                let accepted = match waiting {
                    Some(entry) => entry.add_endpoint(id, parameters, ctx),
                    None if *port == perftest::PORT => {
                        self.open_channel(id, (peer, *to), parameters, ctx)
                    }
                    None => Err(VerbsError::WrongState),
                };
                if accepted.is_err() {
                    // An error means that the peer has already dropped the connection.
                    let _ = ctx.provider.reject(id, RejectReason::NO_RESOURCES, &[]);
                }
                true
            }
            ConnectionEvent::Disconnected { connection } => {
                let entry = self.entries.iter_mut().find(|entry| entry.has_connection(*connection));
                let Some(Entry { session, channel, .. }) = entry else { return false };
                if channel.as_ref().is_some_and(|channel| channel.connection == *connection) {
                    session.ended = true;
                } else if let Some(at) = session.position(*connection) {
                    session.bench.endpoints.swap_remove(at).destroy(ctx.provider);
                }
                true
            }
            ConnectionEvent::Established { connection, .. } => {
                self.entries.iter().any(|entry| entry.has_connection(*connection))
            }
            _ => false,
        }
    }

    /// Opens a session whose control connection is a queue pair.
    fn open_channel<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        (peer, local): (IpAddr, IpAddr),
        parameters: &ConnectionParameters,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), VerbsError> {
        let id = self.open(perftest::PORT, peer, local, ctx).ok_or(VerbsError::NoRoom)?;
        let Some(entry) = self.find(id) else { return Err(VerbsError::NoRoom) };
        let pd = ctx.provider.pd_on(entry.session.bench.pd, local);
        match Channel::accept(connection, &accepted_parameters(parameters), pd, ctx) {
            Ok(channel) => {
                entry.channel = Some(channel);
                Ok(())
            }
            Err(error) => {
                entry.session.ended = true;
                Err(error)
            }
        }
    }

    /// Handles completions and removes ended sessions; returns how much was done.
    pub fn poll<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut Ctx<'_, P>,
    ) -> usize {
        let mut handled = 0;
        for entry in &mut self.entries {
            handled += entry.session.poll(ctx);
            handled += entry.poll_channel(ctx);
        }
        self.sweep(ctx);
        handled
    }

    fn sweep<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        while let Some(at) = self.entries.iter().position(|entry| entry.session.ended) {
            let Entry { mut session, channel, .. } = self.entries.swap_remove(at);
            if let Some(refusal) = session.bench.refusal.take() {
                self.counters.refused += 1;
                self.refusals.push(refusal);
            }
            if let Some(channel) = channel {
                channel.give_back(ctx);
            }
            session.end(ctx);
        }
    }

    /// When [`Server::poll`] or [`Server::advance`] is due without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.session.poll_timeout()).min()
    }
}

/// The connection parameters that are accepted. READ tests offer the maximum of their device, so the offer is capped.
fn accepted_parameters(offered: &ConnectionParameters) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: offered.responder_resources.min(MAX_RD_ATOMIC),
        initiator_depth: offered.initiator_depth.min(MAX_RD_ATOMIC),
        ..*offered
    }
}

impl Entry {
    fn is_of(&self, host: IpAddr) -> bool {
        net::hosts::accountable(self.session.bench.peer) == host
    }

    fn has_connection(&self, connection: ConnectionId) -> bool {
        let channel = self.channel.as_ref().is_some_and(|c| c.connection == connection);
        channel || self.session.position(connection).is_some()
    }

    /// Accepts the connection of a measured queue pair.
    fn add_endpoint<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        parameters: &ConnectionParameters,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), VerbsError> {
        let bench = &mut self.session.bench;
        let endpoint = bench.add(ctx)?;
        endpoint.connection = Some(connection);
        let qp = endpoint.qp;
        // qperf has one queue pair; perftest sends a barrier after the last one.
        bench.expects_connections &= self.port == perftest::PORT;
        let parameters = &accepted_parameters(parameters);
        ctx.provider.accept(connection, qp, parameters, &[], ctx.now).inspect_err(|_| {
            if let Some(endpoint) = bench.endpoints.pop() {
                endpoint.destroy(ctx.provider);
            }
        })
    }

    /// Answers the messages on the control queue pair.
    fn poll_channel<P: Provider + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) -> usize {
        let (Some(channel), session) = (&self.channel, &mut self.session) else { return 0 };
        let mut handled = 0;
        // A SEND carries a whole message, so unparsed input is an error.
        while !session.ended {
            match channel.receive(&mut session.input, ctx.provider) {
                Ok(true) => {
                    handled += 1;
                    session.advance(Framing::Messages, ctx, &mut NoNeighbours);
                    let sent = channel.send(&session.output, ctx.provider);
                    session.ended |= !session.input.is_empty() || sent.is_err();
                    session.output.clear();
                }
                Ok(false) => break,
                Err(_) => session.ended = true,
            }
        }
        handled
    }
}

/// Neighbour table for sessions with a control queue pair: the connection manager resolves the addresses itself.
struct NoNeighbours;

impl Neighbours for NoNeighbours {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }

    fn resolve(&mut self, _: IpAddr, _: Instant) -> Resolution {
        Resolution::NoRoute
    }
}
