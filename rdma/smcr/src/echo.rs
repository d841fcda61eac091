//! The services echo (RFC 862) and discard (RFC 863) over SMC-R and TCP, for measurement.

use super::acceptor::{Acceptor, Carrier, Connected, ConnectionId, Event};
use super::admission::Gate;
use super::engine::{Engine, Ready, SocketId};
use crate::SmcDevice;
use alloc::vec::Vec;
use drivers::hal::Instant;
use net::Interface;
use net::hosts::Hosts;
use net::tcp::{Closed, Limits, Owner};
use verbs::Ctx;

/// Port of the echo service.
pub const ECHO_PORT: u16 = 7;
/// Port of the discard service.
pub const DISCARD_PORT: u16 = 9;
/// Most bytes moved at a time.
const PIECE: usize = 16 << 10;

/// A connection that is served.
#[derive(Debug, Default)]
struct Client {
    /// Bytes read and not yet written back, because the send buffer is full.
    held: Vec<u8>,
    /// The client has ended its side.
    finished: bool,
}

/// One of the services.
#[derive(Debug)]
pub struct Echo {
    front: Acceptor,
    discard: bool,
    /// Clients, indexed by [`ConnectionId::place`].
    clients: Vec<Option<(ConnectionId, Client)>>,
    piece: Vec<u8>,
    /// Connections served over SMC-R and over TCP.
    pub served: (u64, u64),
}

impl Echo {
    /// Listens on [`ECHO_PORT`] or [`DISCARD_PORT`] for the hosts of `smc.hosts`. `offers` and `owner` as in
    /// [`Acceptor::new`]. A host has `per_host` connections at most.
    pub fn new(
        interface: &mut Interface,
        discard: bool,
        offers: bool,
        (limits, per_host): (Limits, u32),
        hosts: &Hosts,
        owner: u32,
    ) -> Self {
        let port = if discard { DISCARD_PORT } else { ECHO_PORT };
        let name = if discard { "discard" } else { "echo" };
        let (name, key) = (name.into(), "smc.hosts");
        let (hosts, smc, per_host) = (hosts.clone(), hosts.clone(), Some(per_host));
        let gate = Gate { name, key, hosts, smc, per_host };
        Echo {
            front: Acceptor::new(interface, port, offers, (limits, 0), gate, owner),
            discard,
            clients: Vec::new(),
            piece: alloc::vec![0; PIECE],
            served: (0, 0),
        }
    }

    /// Handles an event of the engine. Returns false if the socket is not one of this service.
    pub fn handle_event<P: SmcDevice + ?Sized>(
        &mut self,
        socket: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        if let Some(id) = self.front.ready(socket, ready) {
            self.serve_or_close(id, interface, engine, ctx);
            return true;
        }
        let ours = self.front.handle_event(socket, ready, interface, engine, ctx);
        if ours {
            self.serve_all(interface, engine, ctx);
        }
        ours
    }

    /// As [`Acceptor::tcp_owner`].
    pub fn tcp_owner(&self) -> Owner {
        self.front.tcp_owner()
    }

    /// As [`Acceptor::poll`].
    pub fn poll<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        self.front.poll(interface, engine, ctx);
        self.serve_all(interface, engine, ctx);
    }

    fn serve_all<P: SmcDevice + ?Sized>(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        while let Some(event) = self.front.poll_event() {
            let id = match event {
                Event::Opened(id, carrier) => {
                    match carrier {
                        Carrier::Smc => self.served.0 += 1,
                        Carrier::Tcp => self.served.1 += 1,
                    }
                    if self.clients.len() <= id.place() {
                        self.clients.resize_with(id.place() + 1, || None);
                    }
                    self.clients[id.place()] = Some((id, Client::default()));
                    id
                }
                Event::Ready(id) | Event::Failed(id) | Event::Broken(id) => id,
            };
            self.serve_or_close(id, interface, engine, ctx);
        }
    }

    fn serve_or_close<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        if let Err(closed) = self.serve(id, interface, engine, ctx) {
            let place = self.clients.get_mut(id.place());
            place.and_then(|client| client.take_if(|(of, _)| *of == id));
            self.front.close(id, closed == Closed::Gone, interface, engine, ctx);
        }
    }

    /// Moves as many bytes as possible. Returns an error when the connection is to be closed.
    fn serve<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(), Closed> {
        let Echo { front, clients, piece, discard, .. } = self;
        let client = clients.get_mut(id.place()).and_then(Option::as_mut);
        let Some((_, client)) = client.filter(|(of, _)| *of == id) else { return Ok(()) };
        loop {
            if !client.held.is_empty() {
                let written = front.write(id, &client.held, interface, engine, ctx)?;
                client.held.drain(..written);
                if !client.held.is_empty() {
                    return Ok(());
                }
            }
            if client.finished {
                return Err(Closed::Finished);
            }
            let back = if *discard { None } else { front.turn_back(id, engine, ctx) };
            let read = match back {
                Some(moved) => moved.map(|()| 0),
                None => front.read(id, piece, interface, engine),
            };
            let count = match read {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(Closed::Finished) => {
                    client.finished = true;
                    continue;
                }
                Err(Closed::Gone) => return Err(Closed::Gone),
            };
            if *discard {
                continue;
            }
            let written = front.write(id, &piece[..count], interface, engine, ctx)?;
            client.held.extend_from_slice(&piece[written..count]);
        }
    }

    /// The connections, for reports.
    pub fn connected(&self) -> impl Iterator<Item = Connected> + '_ {
        self.front.connected()
    }

    /// Number of connection look-ups.
    #[cfg(any(test, feature = "testing"))]
    pub fn looked(&self) -> u64 {
        self.front.looked
    }

    /// As [`Acceptor::poll_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.front.poll_timeout()
    }
}
