//! Handshakes of connections: moves CLC bytes between TCP and engine, finds stalled handshakes, and selects one for
//! eviction. Also watches the TCP connection of an established SMC-R connection.

use super::{Connection, ConnectionId, Connections, State};
use crate::SmcDevice;
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
use verbs::Ctx;

/// Most bytes read at a time.
const PIECE: usize = 512;
/// Most handshakes examined to select one for eviction.
const EVICTION_SCAN: usize = 64;

impl<T: Tcp> Connections<T> {
    /// Handshakes that began before `before`: the `most` oldest ones of the host that has the most.
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

    /// Selects a handshake to evict for a new connection of host `comes`: the oldest one of the host with the most
    /// handshakes, if that host has at least two more than `comes`. Examines only the oldest handshakes.
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

    /// Connections in a handshake.
    pub(crate) fn handshaking(&self) -> Vec<ConnectionId> {
        self.handshakes.iter().copied().filter(|&id| self.handshake(id).is_some()).collect()
    }

    /// Start of the oldest handshake.
    pub(crate) fn oldest_handshake(&self) -> Option<Instant> {
        let mut handshakes = self.handshakes.iter().filter_map(|&id| self.handshake(id));
        handshakes.next().map(|(connection, _)| connection.since)
    }

    /// A connection in a handshake, and its socket.
    fn handshake(&self, id: ConnectionId) -> Option<(&Connection<T::Name>, SocketId)> {
        match self.get(id)? {
            connection @ &Connection { state: State::Handshake(socket), .. } => {
                Some((connection, socket))
            }
            _ => None,
        }
    }

    /// Appends a new handshake. Removes finished ones from the front, and all of them when they may be half of the
    /// list.
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

    /// Whether the user has closed the connection while its handshake is being finished.
    pub(super) fn is_given_up(&self, id: ConnectionId) -> bool {
        self.get(id).is_some_and(|connection| matches!(connection.state, State::GivenUp(_)))
    }

    /// Ends a connection that its user has closed, once its handshake is over: sends ABORT over SMC-R if established,
    /// and resets TCP otherwise.
    pub(super) fn end_given_up<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        let over_smc = engine.socket_status(socket).is_some_and(|status| status.established);
        let connection = self.take_out(id, engine);
        self.sockets.remove(socket);
        engine.abort(socket, ctx);
        if connection.has_tcp {
            self.tcp.leave(interface, connection.name, !over_smc, ctx.now);
        }
    }

    /// Checks whether the TCP connection of an SMC-R connection was reset, which means that the peer may be gone. TCP
    /// carries no data any more.
    pub(super) fn watch_tcp<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
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

    /// Moves CLC bytes between TCP and engine, in both directions.
    pub(crate) fn pump_handshake<P: SmcDevice + ?Sized>(
        &mut self,
        id: ConnectionId,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Connections { tcp, connections, .. } = self;
        let Some(connection) = connections.get_mut(id.key) else { return };
        if !connection.has_tcp {
            return;
        }
        let mut piece = [0; PIECE];
        loop {
            let mut moved = false;
            if connection.unread.is_empty() {
                match tcp.read(interface, connection.name, &mut piece) {
                    Ok(count) => connection.unread.extend_from_slice(&piece[..count]),
                    // Bytes before the FIN are still processed.
                    Err(Closed::Finished) => {}
                    Err(Closed::Gone) => engine.handle_tcp_gone(socket, ctx),
                }
            }
            let taken = engine.handle_clc_bytes(socket, &connection.unread, ctx, interface);
            connection.unread.drain(..taken);
            moved |= taken > 0;
            loop {
                let count = engine.poll_clc_bytes(socket, &mut piece);
                if count == 0 {
                    break;
                }
                moved = true;
                // CLC messages are shorter than the send buffer, which was empty.
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
