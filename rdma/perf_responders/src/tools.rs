//! The server of `ibv_rc_pingpong`, perftest and qperf: sessions, and what belongs to which.

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
use verbs::EngineContext;
use verbs::{
    ConnectionEvent, ConnectionId, ConnectionManager, ConnectionParameters, Provider, RejectReason,
    VerbsError,
};

/// Sessions at a time; each has 8 MiB of memory and more.
const MAX_SESSIONS: usize = 8;

/// Name of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(u32);

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions begun.
    pub opened: u64,
    /// Clients turned away for want of room.
    pub refused: u64,
}

#[derive(Debug)]
struct Place {
    id: SessionId,
    port: u16,
    session: Session,
    /// The control connection, if it is not TCP.
    channel: Option<Channel>,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    places: Vec<Place>,
    next: u32,
    /// What was counted.
    pub counters: Counters,
}

impl Server {
    /// Listens for connections of the connection manager on [`perftest::PORT`] and
    /// [`qperf::PORT`]; the TCP listeners are the caller's.
    pub fn new<P: ConnectionManager + ?Sized>(provider: &mut P) -> Result<Self, VerbsError> {
        provider.listen(perftest::PORT)?;
        provider.listen(qperf::PORT)?;
        let places = Vec::with_capacity(MAX_SESSIONS);
        Ok(Server { places, next: 0, counters: Counters::default() })
    }

    /// Sessions at present.
    pub fn sessions(&self) -> usize {
        self.places.len()
    }

    /// A client at `peer` has connected to TCP port `port` of our address `local`; None if there
    /// is no room for it.
    pub fn open<P: Provider + ?Sized>(
        &mut self,
        port: u16,
        peer: IpAddr,
        local: IpAddr,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<SessionId> {
        self.make_room(ctx);
        if self.places.len() >= MAX_SESSIONS {
            self.counters.refused += 1;
            return None;
        }
        let session = Session::new(port, peer, local, ctx);
        let session = session.inspect_err(|_| self.counters.refused += 1).ok()?;
        self.counters.opened += 1;
        self.next = self.next.wrapping_add(1);
        let id = SessionId(self.next);
        self.places.push(Place { id, port, session, channel: None });
        Some(id)
    }

    /// If there is no room, ends the session that nobody attends and that was quiet for longest.
    fn make_room<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        if self.places.len() < MAX_SESSIONS {
            return;
        }
        let left = self.places.iter_mut().filter(|place| !place.session.attended);
        if let Some(oldest) = left.min_by_key(|place| place.session.last) {
            oldest.session.over = true;
            self.sweep(ctx);
        }
    }

    fn find(&mut self, id: SessionId) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.id == id)
    }

    /// Takes bytes that have arrived over TCP; how many of them.
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        let Some(Place { session, .. }) = self.find(id) else { return 0 };
        let room = INPUT.saturating_sub(session.input.len()).min(bytes.len());
        session.input.extend_from_slice(bytes.get(..room).unwrap_or_default());
        room
    }

    /// How many bytes [`Server::receive`] takes at present.
    pub fn room(&mut self, id: SessionId) -> usize {
        self.find(id).map_or(0, |place| INPUT.saturating_sub(place.session.input.len()))
    }

    /// Answers what has arrived over TCP.
    pub fn advance<P: Provider + ?Sized>(
        &mut self,
        id: SessionId,
        ctx: &mut EngineContext<'_, P>,
        neighbours: &mut dyn Neighbours,
    ) {
        if let Some(Place { session, .. }) = self.find(id) {
            session.advance(Framing::Stream, ctx, neighbours);
        }
    }

    /// Whether something that has arrived is not answered yet.
    pub fn has_unanswered(&mut self, id: SessionId) -> bool {
        self.find(id).is_some_and(|place| !place.session.input.is_empty())
    }

    /// What is to be sent over TCP.
    pub fn output(&mut self, id: SessionId) -> &[u8] {
        self.find(id).map_or(&[], |place| &place.session.output)
    }

    /// The first `count` bytes of [`Server::output`] were sent.
    pub fn sent(&mut self, id: SessionId, count: usize) {
        if let Some(Place { session, .. }) = self.find(id) {
            session.output.drain(..count.min(session.output.len()));
        }
    }

    /// The TCP connection is over.
    pub fn hang_up(&mut self, id: SessionId) {
        if let Some(Place { session, .. }) = self.find(id) {
            session.hang_up();
        }
    }

    /// Whether a session is over, so that its TCP connection is to be ended.
    pub fn is_over(&mut self, id: SessionId) -> bool {
        self.find(id).is_none_or(|place| place.session.over)
    }

    /// Takes an event of the connection manager; false if it is not about this server.
    pub fn handle_connection_event<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut EngineContext<'_, P>,
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
                let expecting = self.places.iter_mut().find(|place| {
                    let bench = &place.session.bench;
                    place.port == *port && bench.expects_connections && bench.peer == peer
                });
                let accepted = match expecting {
                    Some(place) => place.add_endpoint(id, parameters, ctx),
                    None if *port == perftest::PORT => {
                        self.open_channel(id, (peer, *to), parameters, ctx)
                    }
                    None => Err(VerbsError::WrongState),
                };
                if accepted.is_err() {
                    // It may be gone already, which is as good as refused.
                    let _ = ctx.provider.reject(id, RejectReason::NO_RESOURCES, &[]);
                }
                true
            }
            ConnectionEvent::Disconnected { connection } => {
                let place = self.places.iter_mut().find(|place| place.has(*connection));
                let Some(Place { session, channel, .. }) = place else { return false };
                if channel.as_ref().is_some_and(|channel| channel.connection == *connection) {
                    session.over = true;
                } else if let Some(at) = session.position(*connection) {
                    session.bench.endpoints.swap_remove(at).destroy(ctx.provider);
                }
                true
            }
            ConnectionEvent::Established { connection, .. } => {
                self.places.iter().any(|place| place.has(*connection))
            }
            _ => false,
        }
    }

    /// A session whose control connection is a queue pair.
    fn open_channel<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        (peer, local): (IpAddr, IpAddr),
        parameters: &ConnectionParameters,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), VerbsError> {
        let id = self.open(perftest::PORT, peer, local, ctx).ok_or(VerbsError::NoRoom)?;
        let Some(place) = self.find(id) else { return Err(VerbsError::NoRoom) };
        let pd = ctx.provider.pd_on(place.session.bench.pd, local);
        match Channel::accept(connection, &agreed(parameters), pd, ctx) {
            Ok(channel) => {
                place.channel = Some(channel);
                Ok(())
            }
            Err(error) => {
                place.session.over = true;
                Err(error)
            }
        }
    }

    /// Handles what has completed, and ends what is over; how much was done.
    pub fn poll<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        ctx: &mut EngineContext<'_, P>,
    ) -> usize {
        let mut handled = 0;
        for place in &mut self.places {
            handled += place.session.poll(ctx);
            handled += place.poll_channel(ctx);
        }
        self.sweep(ctx);
        handled
    }

    fn sweep<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        while let Some(at) = self.places.iter().position(|place| place.session.over) {
            let Place { session, channel, .. } = self.places.swap_remove(at);
            if let Some(channel) = channel {
                channel.give_back(ctx);
            }
            session.end(ctx);
        }
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.places.iter().filter_map(|place| place.session.poll_timeout()).min()
    }
}

/// What we agree to of what a peer offers: tests of READ offer all that their device has.
fn agreed(offered: &ConnectionParameters) -> ConnectionParameters {
    ConnectionParameters {
        responder_resources: offered.responder_resources.min(MAX_RD_ATOMIC),
        initiator_depth: offered.initiator_depth.min(MAX_RD_ATOMIC),
        ..*offered
    }
}

impl Place {
    fn has(&self, connection: ConnectionId) -> bool {
        let channel = self.channel.as_ref().is_some_and(|c| c.connection == connection);
        channel || self.session.position(connection).is_some()
    }

    /// Accepts a queue pair that is to be measured.
    fn add_endpoint<P: Provider + ConnectionManager + ?Sized>(
        &mut self,
        connection: ConnectionId,
        parameters: &ConnectionParameters,
        ctx: &mut EngineContext<'_, P>,
    ) -> Result<(), VerbsError> {
        let bench = &mut self.session.bench;
        let endpoint = bench.add(ctx)?;
        endpoint.connection = Some(connection);
        let qp = endpoint.qp;
        // qperf has one queue pair; perftest says when it has them all.
        bench.expects_connections &= self.port == perftest::PORT;
        let parameters = &agreed(parameters);
        ctx.provider.accept(connection, qp, parameters, &[], ctx.now).inspect_err(|_| {
            if let Some(endpoint) = bench.endpoints.pop() {
                endpoint.destroy(ctx.provider);
            }
        })
    }

    /// Answers the messages on the channel.
    fn poll_channel<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) -> usize {
        let (Some(channel), session) = (&self.channel, &mut self.session) else { return 0 };
        let mut handled = 0;
        // What was not understood is an error here: messages are whole.
        while !session.over {
            match channel.receive(&mut session.input, ctx.provider) {
                Ok(true) => {
                    handled += 1;
                    session.advance(Framing::Messages, ctx, &mut Nowhere);
                    let sent = channel.send(&session.output, ctx.provider);
                    session.over |= !session.input.is_empty() || sent.is_err();
                    session.output.clear();
                }
                Ok(false) => break,
                Err(_) => session.over = true,
            }
        }
        handled
    }
}

/// Where the connection manager connects, nobody asks for the way.
struct Nowhere;

impl Neighbours for Nowhere {
    fn address_towards(&self, _: IpAddr, preferred: IpAddr) -> Option<IpAddr> {
        Some(preferred)
    }

    fn resolve(&mut self, _: IpAddr, _: Instant) -> Resolution {
        Resolution::NoRoute
    }
}
