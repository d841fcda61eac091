//! Connections that only have their end still to say, as those whose data SMC has taken over: they do without the
//! buffers that their sockets were made with. smoltcp cannot change those of a socket, so another one takes its
//! place, with hardly any, which is led through an opening to where the first one stands. The peer sees nothing of
//! it, but for a smaller window.

use super::opening::alone;
use super::*;
use crate::isn::Offer;

/// Bytes of each buffer that is left.
const LEAST: usize = 64;
/// Whatever is due before has to do with what is under way: a retransmission, an acknowledgement.
const SOON: Duration = Duration::from_secs(2);

impl Connections {
    /// Asks a silent peer no more whether it is there, and does not give it up.
    pub fn stop_asking(&mut self, name: Name) {
        let Some(socket) = self.socket_mut(name) else { return };
        socket.set_keep_alive(None);
        self.connections[name.key].silence.counts = false;
    }

    /// From here on nobody asks a silent peer whether it is there, and data is hardly expected any more.
    pub fn make_idle(&mut self, name: Name) {
        self.stop_asking(name);
        if self.socket(name).is_some() {
            self.connections[name.key].idles = true;
        }
    }

    /// Gives the buffers of a connection back, if nothing is under way; what is `due` next says that as well.
    /// Returns what is due then.
    #[cold]
    pub(super) fn release_buffers(
        &mut self,
        key: usize,
        due: Option<Instant>,
        outside: &Outside<'_>,
    ) -> Option<Instant> {
        let Some(connection) = self.connections.get_mut(key) else { return due };
        let ends = connection.ends;
        let socket = connection.socket_mut();
        let rests = socket.state() == State::Established
            && (socket.recv_queue(), socket.send_queue()) == (0, 0)
            && due.is_none_or(|due| due > outside.now + SOON);
        if !rests {
            return due;
        }
        connection.idles = false;
        let Some(call) = self.call_of(key, due, outside) else { return due };
        let buffer = || tcp::SocketBuffer::new(vec![0; LEAST]);
        let (mut sockets, handle) = alone(tcp::Socket::new(buffer(), buffer()));
        if !self.replay_opening(&mut sockets, handle, ends, &call, outside) {
            return due;
        }
        let mut packet = [0; 100];
        let length = listen_table::complete_again(ends, &call, &mut packet);
        let mut stack = self.stack_of(0, ends.local, outside);
        let mut link = self.unheard(Some(&packet[..length]), outside);
        stack.poll_ingress_single(to_smoltcp(outside.now), &mut link, &mut sockets);
        self.unsaid.clear();
        let opened = sockets.get::<tcp::Socket<'_>>(handle).state() == State::Established;
        let Some(connection) = self.connections.get_mut(key).filter(|_| opened) else { return due };
        let mut before = core::mem::replace(&mut connection.sockets, sockets);
        let old = core::mem::replace(&mut connection.handle, handle);
        if let Some(state) = self.owners.get_mut(connection.owner) {
            state.keep(&mut before, old);
        }
        None
    }

    /// The opening after which a connection would stand where this one stands: with the sequence numbers before
    /// the next ones. Its socket tells them by asking whether the peer is there, which nobody hears.
    fn call_of(&mut self, key: usize, due: Option<Instant>, outside: &Outside<'_>) -> Option<Call> {
        let connection = self.connections.get_mut(key)?;
        let local = connection.ends.local;
        let socket = connection.socket_mut();
        socket.set_keep_alive(Some(KEEP_ALIVE));
        // One that it would have asked next is asked at its time.
        let at = to_smoltcp(due.unwrap_or(outside.now));
        let mut stack = self.stack_of(0, local, outside);
        let mut sockets = SocketSet::new(Vec::new());
        core::mem::swap(&mut sockets, &mut self.connections.get_mut(key)?.sockets);
        stack.poll_egress(at, &mut self.unheard(None, outside), &mut sockets);
        let connection = self.connections.get_mut(key)?;
        connection.sockets = sockets;
        connection.socket_mut().set_keep_alive(None);
        let numbers = listen_table::numbers(self.unsaid.front());
        self.unsaid.clear();
        let (ours, next) = numbers?;
        let offer = Offer { mss: 536, scale: None, sack: false, smc: false };
        Some(Call { theirs: next.wrapping_sub(1), ours, offer })
    }
}
