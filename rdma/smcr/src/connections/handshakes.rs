//! Connections whose handshake is under way: their bytes, which ones stall, and which one gives way. And TCP beside a
//! connection whose handshake is over.

use super::{Connection, ConnectionId, Connections, State};
use crate::engine::{Engine, SocketId};
use crate::tcp::Tcp;
use crate::wire::is_decline;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::Interface;
use net::tcp::Closed;
use verbs::{EngineContext, Provider};

/// Most that is read at a time of a handshake.
const PIECE: usize = 512;
/// Handshakes that are looked at when another needs a place.
const EVICTION_SCAN: usize = 64;

impl<T: Tcp> Connections<T> {
    /// The handshakes that began before `before`: of the host that has the most, the oldest ones, `most` at
    /// most.
    pub(crate) fn stalled(&self, before: Instant, most: usize) -> Vec<(IpAddr, SocketId)> {
        let handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        let stalled = handshakes.take_while(|(connection, _)| connection.since <= before);
        let mut stalled: Vec<_> =
            stalled.map(|(c, socket)| (c.ends.1.ip(), c.since, socket)).collect();
        let mut counts = BTreeMap::<_, usize>::new();
        stalled.iter().for_each(|(host, ..)| *counts.entry(*host).or_default() += 1);
        stalled.sort_unstable_by_key(|&(host, since, _)| (Reverse(counts[&host]), host, since));
        stalled.into_iter().take(most).map(|(host, _, socket)| (host, socket)).collect()
    }

    /// The handshake that gives way to a host that comes while there is no room: the oldest of the host that has
    /// the most under way, if that one has two more than who comes. Only the oldest are looked at.
    pub(crate) fn evicted_for(&self, comes: IpAddr) -> Option<(IpAddr, SocketId)> {
        let handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        let oldest = handshakes.take(EVICTION_SCAN).map(|(c, socket)| (c.ends.1.ip(), socket));
        let mut counts = BTreeMap::<_, (usize, SocketId)>::new();
        for (host, socket) in oldest {
            counts.entry(host).or_insert((0, socket)).0 += 1;
        }
        let own = counts.get(&comes).map_or(0, |&(count, _)| count);
        let (host, (count, socket)) = counts.into_iter().max_by_key(|(_, (count, _))| *count)?;
        (count >= own + 2).then_some((host, socket))
    }

    /// The connections whose handshake is under way.
    pub(crate) fn shaking(&self) -> Vec<ConnectionId> {
        self.handshakes.iter().copied().filter(|&id| self.handshake(id).is_some()).collect()
    }

    /// When the first of the handshakes began that are under way.
    pub(crate) fn oldest_handshake(&self) -> Option<Instant> {
        let mut handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        handshakes.next().map(|(connection, _)| connection.since)
    }

    /// A connection whose handshake is under way, and its socket.
    fn handshake(&self, id: ConnectionId) -> Option<(&Connection<T::Name>, SocketId)> {
        match self.get(id)? {
            connection @ &Connection { state: State::Handshake(socket), .. } => {
                Some((connection, socket))
            }
            _ => None,
        }
    }

    /// A handshake has begun. Those that are over leave the list in front, or when half of it may be such.
    pub(super) fn note_handshake(&mut self, id: ConnectionId) {
        let mut handshakes = core::mem::take(&mut self.handshakes);
        while handshakes.front().is_some_and(|&first| self.handshake(first).is_none()) {
            handshakes.pop_front();
        }
        if handshakes.len() > 2 * self.connections.len() {
            handshakes.retain(|&id| self.handshake(id).is_some());
        }
        handshakes.push_back(id);
        self.handshakes = handshakes;
    }

    /// Whether a connection's user has given it up, and its handshake is finished.
    pub(super) fn is_given_up(&self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|connection| matches!(connection.state, State::GivenUp(_)))
    }

    /// The handshake of a connection is over that its user has given up. A peer that is on SMC-R is told by an ABORT there,
    /// and any other by a reset.
    pub(super) fn end_given_up<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let over_smc = engine.socket_status(socket).is_some_and(|status| status.established);
        let connection = self.take_out(id, engine);
        self.sockets.remove(socket);
        engine.abort(socket, ctx);
        if connection.has_tcp {
            self.tcp.leave(interface, connection.name, !over_smc, ctx.now);
        }
    }

    /// Looks whether the TCP connection beside an SMC-R one is gone, and the peer with it. It carries
    /// nothing any more.
    pub(super) fn watch<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Connections { tcp, connections, .. } = self;
        let Some(connection) = connections.get_mut(id.key).filter(|c| c.has_tcp) else { return };
        let mut nothing = [0; PIECE];
        loop {
            match tcp.read(interface, connection.name, &mut nothing) {
                Ok(0) => return,
                Err(Closed::Finished) => return engine.handle_tcp_finished(socket, ctx.now),
                Ok(count) if nothing.get(..count).is_some_and(is_decline) => {
                    engine.handle_late_decline(socket, ctx);
                }
                Ok(_) => {}
                Err(Closed::Gone) => break,
            }
        }
        connection.has_tcp = false;
        tcp.leave(interface, connection.name, true, ctx.now);
        self.names.remove(&connection.name);
        engine.handle_tcp_gone(socket, ctx);
    }

    /// Moves the bytes of a handshake, both ways.
    pub(crate) fn shake<P: Provider + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let Connections { tcp, connections, .. } = self;
        let Some(connection) = connections.get_mut(id.key) else { return };
        if !connection.has_tcp {
            return;
        }
        let mut piece = [0; PIECE];
        loop {
            let mut moved = false;
            if connection.rest.is_empty() {
                match tcp.read(interface, connection.name, &mut piece) {
                    Ok(count) => connection.rest.extend_from_slice(&piece[..count]),
                    // What the peer sent before its end is still looked at.
                    Err(Closed::Finished) => {}
                    Err(Closed::Gone) => engine.handle_tcp_gone(socket, ctx),
                }
            }
            let taken = engine.handle_clc_bytes(socket, &connection.rest, ctx, interface);
            connection.rest.drain(..taken);
            moved |= taken > 0;
            loop {
                let count = engine.poll_clc_bytes(socket, &mut piece);
                if count == 0 {
                    break;
                }
                moved = true;
                // A handshake's messages are shorter than the buffer, which was empty.
                if tcp.write(interface, connection.name, &piece[..count]) != Ok(count) {
                    engine.handle_tcp_gone(socket, ctx);
                    break;
                }
            }
            if !moved {
                return;
            }
        }
    }
}
