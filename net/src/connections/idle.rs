//! Releases the buffers of connections that carry nothing more but their FIN, such as those that SMC has replaced.

use super::*;

/// An earlier timer is for data under way: a retransmission or an acknowledgement.
const SOON: Duration = Duration::from_secs(2);

impl Connections {
    /// Stops keep-alives, and never resets the connection because its peer is silent.
    pub fn disable_keep_alive(&mut self, name: Name) {
        let Some(socket) = self.socket_mut(name) else { return };
        socket.set_keep_alive(None);
        self.connections[name.key].silence.is_enabled = false;
    }

    /// Stops keep-alives, and releases the connection's buffers once no data is under way.
    pub fn make_idle(&mut self, name: Name) {
        self.disable_keep_alive(name);
        if self.socket(name).is_some() {
            self.connections[name.key].releases_buffers = true;
        }
    }

    /// Replaces the socket of a connection by one with minimal buffers, if no data is under way: queues are empty and
    /// the next timer, `due`, is not soon. Returns the next timer of the connection.
    #[cold]
    pub(super) fn release_buffers(
        &mut self,
        key: usize,
        due: Option<Instant>,
        ctx: &Ctx<'_>,
    ) -> Option<Instant> {
        let Some(connection) = self.connections.get_mut(key) else { return due };
        let socket = connection.socket_mut();
        let is_idle = socket.state() == State::Established
            && (socket.recv_queue(), socket.send_queue()) == (0, 0)
            && due.is_none_or(|due| due > ctx.now + SOON);
        if !is_idle {
            return due;
        }
        connection.releases_buffers = false;
        let mut replay = Replay { discarded: &mut self.discarded, mtu: ctx.mtu, now: ctx.now };
        let (sockets, handle) = (&mut connection.sockets, connection.handle);
        let Some((sockets, handle)) = replay.shrink(sockets, handle, connection.ends, due) else {
            return due;
        };
        let mut before = core::mem::replace(&mut connection.sockets, sockets);
        let old = core::mem::replace(&mut connection.handle, handle);
        if let Some(state) = self.owners.get_mut(connection.owner) {
            state.keep(&mut before, old);
        }
        None
    }
}
