//! Releases the buffers of connections that carry nothing more but their FIN, such as those that SMC has replaced.
//!
//! smoltcp cannot resize the buffers of a socket. So a second socket with minimal buffers replaces the first: it is
//! taken through a handshake that ends at the sequence numbers of the first socket. The peer sees only a smaller
//! window.

use super::opening::alone;
use super::*;
use crate::isn::Offer;

/// Bytes of each remaining buffer.
const LEAST: usize = 64;
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
        context: &Context<'_>,
    ) -> Option<Instant> {
        let Some(connection) = self.connections.get_mut(key) else { return due };
        let ends = connection.ends;
        let socket = connection.socket_mut();
        let is_idle = socket.state() == State::Established
            && (socket.recv_queue(), socket.send_queue()) == (0, 0)
            && due.is_none_or(|due| due > context.now + SOON);
        if !is_idle {
            return due;
        }
        connection.releases_buffers = false;
        let Some(handshake) = self.equivalent_handshake(key, due, context) else { return due };
        let buffer = || tcp::SocketBuffer::new(vec![0; LEAST]);
        let (mut sockets, handle) = alone(tcp::Socket::new(buffer(), buffer()));
        if !self.replay_opening(&mut sockets, handle, ends, &handshake, context) {
            return due;
        }
        let mut packet = [0; 100];
        let length = listen_table::build_ack(ends, &handshake, &mut packet);
        let mut stack = self.stack_of(0, ends.local, context);
        let mut link = self.discarding_link(Some(&packet[..length]), context);
        stack.poll_ingress_single(to_smoltcp(context.now), &mut link, &mut sockets);
        self.discarded.clear();
        let opened = sockets.get::<tcp::Socket<'_>>(handle).state() == State::Established;
        let Some(connection) = self.connections.get_mut(key).filter(|_| opened) else { return due };
        let mut before = core::mem::replace(&mut connection.sockets, sockets);
        let old = core::mem::replace(&mut connection.handle, handle);
        if let Some(state) = self.owners.get_mut(connection.owner) {
            state.keep(&mut before, old);
        }
        None
    }

    /// The handshake that leads to the connection's present sequence numbers. They are read from a keep-alive that
    /// its socket is made to write and that is discarded.
    fn equivalent_handshake(
        &mut self,
        key: usize,
        due: Option<Instant>,
        context: &Context<'_>,
    ) -> Option<Handshake> {
        let connection = self.connections.get_mut(key)?;
        let local = connection.ends.local;
        let socket = connection.socket_mut();
        socket.set_keep_alive(Some(KEEP_ALIVE));
        // The socket writes a keep-alive that was already scheduled only at its time.
        let at = to_smoltcp(due.unwrap_or(context.now));
        let mut stack = self.stack_of(0, local, context);
        let mut sockets = SocketSet::new(Vec::new());
        core::mem::swap(&mut sockets, &mut self.connections.get_mut(key)?.sockets);
        stack.poll_egress(at, &mut self.discarding_link(None, context), &mut sockets);
        let connection = self.connections.get_mut(key)?;
        connection.sockets = sockets;
        connection.socket_mut().set_keep_alive(None);
        let numbers = listen_table::numbers(self.discarded.front());
        self.discarded.clear();
        let (ours, next) = numbers?;
        let offer = Offer { mss: 536, scale: None, sack: false, smc: false };
        Some(Handshake { theirs: next.wrapping_sub(1), ours, offer })
    }
}
