//! TCP ports that are listened on. A socket is made when a SYN comes, and not before: smoltcp looks at
//! every socket for every segment and in every poll, so that sockets which wait for peers would be
//! paid for by all others.
//!
//! Not done here: what becomes of connections, which is [`crate::tcp`]'s.

use crate::tcp::{KEEP_ALIVE, PATIENCE};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::{Socket, tcp};
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, IpEndpoint, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket,
};

/// A port that is listened on.
#[derive(Debug)]
struct Door {
    port: u16,
    /// Bytes of a connection's buffers.
    receive: usize,
    transmit: usize,
    /// Connections for which there is room.
    room: usize,
    /// Connections that are being opened, and whose listener does not know them yet.
    arrived: VecDeque<SocketHandle>,
    /// Sockets of connections that were, for the next.
    spare: Vec<tcp::Socket<'static>>,
}

/// Sockets that a port keeps.
const SPARE: usize = 8;

/// The ports of an interface that are listened on.
#[derive(Debug, Default)]
pub(crate) struct Doors(Vec<Door>);

impl Doors {
    /// Listens on a port, for so many connections.
    pub fn open(&mut self, port: u16, room: usize, receive: usize, transmit: usize) {
        let (arrived, spare) = (VecDeque::new(), Vec::new());
        self.0.push(Door { port, receive, transmit, room, arrived, spare });
    }

    /// Listens no more; the connections that nobody knew of.
    pub fn close(&mut self, port: u16) -> VecDeque<SocketHandle> {
        let at = self.0.iter().position(|door| door.port == port);
        at.map(|at| self.0.swap_remove(at).arrived).unwrap_or_default()
    }

    /// Sets for how many connections more there is room.
    pub fn set_room(&mut self, port: u16, room: usize) {
        if let Some(door) = self.0.iter_mut().find(|door| door.port == port) {
            door.room = room;
        }
    }

    /// A connection to a port that is being opened, once.
    pub fn next(&mut self, port: u16) -> Option<SocketHandle> {
        self.0.iter_mut().find(|door| door.port == port)?.arrived.pop_front()
    }

    /// Makes a socket for who calls by this frame, if it is a SYN to a port that is listened on and
    /// no connection with these ends is there. [`Doors::settle`] must follow once the stack has seen
    /// the frame.
    #[inline]
    pub fn admit(
        &mut self,
        frame: &[u8],
        sockets: &mut SocketSet<'static>,
    ) -> Option<(usize, SocketHandle)> {
        if self.0.is_empty() {
            return None;
        }
        let (port, caller) = caller(frame)?;
        let has_room = |door: &Door| door.port == port && door.room > 0;
        let at = self.0.iter().position(has_room)?;
        let known = sockets.iter().any(|(_, socket)| match socket {
            Socket::Tcp(socket) => {
                socket.remote_endpoint() == Some(caller)
                    && socket.local_endpoint().is_some_and(|local| local.port == port)
            }
            _ => false,
        });
        if known {
            return None;
        }
        let door = &mut self.0[at];
        let mut socket = door.spare.pop().unwrap_or_else(|| {
            let buffer = |size| tcp::SocketBuffer::new(vec![0; size]);
            tcp::Socket::new(buffer(door.receive), buffer(door.transmit))
        });
        socket.set_nagle_enabled(false);
        // Before it is open: set later, the first question would be asked at once.
        socket.set_keep_alive(Some(KEEP_ALIVE));
        socket.set_timeout(Some(PATIENCE));
        socket.listen(port).ok()?;
        Some((at, sockets.add(socket)))
    }

    /// Takes back the socket of a connection that is over.
    pub fn give_back(&mut self, port: u16, socket: Socket<'static>) {
        if let Some(door) = self.0.iter_mut().find(|door| door.port == port) {
            door.keep(socket);
        }
    }

    /// The stack has seen the frame for which a socket was made.
    pub fn settle(
        &mut self,
        (at, handle): (usize, SocketHandle),
        sockets: &mut SocketSet<'static>,
    ) {
        if sockets.get::<tcp::Socket>(handle).state() == tcp::State::Listen {
            // It was not taken: a wrong checksum, say.
            self.0[at].keep(sockets.remove(handle));
        } else {
            self.0[at].arrived.push_back(handle);
            self.0[at].room -= 1;
        }
    }
}

impl Door {
    fn keep(&mut self, socket: Socket<'static>) {
        if let Socket::Tcp(mut socket) = socket
            && self.spare.len() < SPARE
        {
            socket.abort();
            self.spare.push(socket);
        }
    }
}

/// The port that a SYN is for, and who sent it; None for any other frame. The addresses are known to
/// be ours and a peer's.
fn caller(frame: &[u8]) -> Option<(u16, IpEndpoint)> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            let (port, source) = syn((ip.next_header() == IpProtocol::Tcp).then(|| ip.payload())?)?;
            Some((port, IpEndpoint::new(ip.src_addr().into(), source)))
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            let (port, source) = syn((ip.next_header() == IpProtocol::Tcp).then(|| ip.payload())?)?;
            Some((port, IpEndpoint::new(ip.src_addr().into(), source)))
        }
        _ => None,
    }
}

/// Destination and source port of a segment that opens a connection.
fn syn(segment: &[u8]) -> Option<(u16, u16)> {
    let segment = TcpPacket::new_checked(segment).ok()?;
    (segment.syn() && !segment.ack() && !segment.rst())
        .then(|| (segment.dst_port(), segment.src_port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Addressing, Cidr, Interface};
    use core::time::Duration;
    use drivers::hal::Instant;
    use smoltcp::phy::ChecksumCapabilities;
    use smoltcp::wire::{
        EthernetAddress, EthernetRepr, Ipv4Repr, TcpControl, TcpRepr, TcpSeqNumber,
    };
    use std::vec::Vec;

    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PORT: u16 = 7;

    fn interface() -> Interface {
        let mut interface = Interface::new(US, 1500, 1, Instant::ZERO);
        let addresses = Vec::from([Cidr::new("10.0.0.1".parse().unwrap(), 24)]);
        let addressing = Addressing { addresses, ..Addressing::default() };
        interface.set_addressing(addressing, Instant::ZERO).unwrap();
        interface
    }

    /// A SYN of 10.0.0.2.
    fn call(from: u16, to: u16) -> Vec<u8> {
        let ends = ("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap());
        let tcp = TcpRepr {
            src_port: from,
            dst_port: to,
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(1),
            ack_number: None,
            window_len: 1000,
            window_scale: None,
            max_seg_size: Some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        let ip = Ipv4Repr {
            src_addr: ends.0,
            dst_addr: ends.1,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let ethernet = EthernetRepr {
            src_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
            dst_addr: EthernetAddress(US),
            ethertype: EthernetProtocol::Ipv4,
        };
        let mut frame = vec![0; 14 + ip.buffer_len() + tcp.buffer_len()];
        ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
        let caps = ChecksumCapabilities::default();
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut frame[14..]), &caps);
        let mut segment = TcpPacket::new_unchecked(&mut frame[34..]);
        tcp.emit(&mut segment, &ends.0.into(), &ends.1.into(), &caps);
        frame
    }

    fn arrived(interface: &mut Interface) -> usize {
        core::iter::from_fn(|| interface.doors().next(PORT)).count()
    }

    #[test]
    fn a_socket_comes_with_a_syn_and_only_then() {
        let mut interface = interface();
        interface.doors().open(PORT, 3, 512, 512);
        let sockets = |interface: &mut Interface| interface.sockets().iter().count();
        assert_eq!(sockets(&mut interface), 0);
        let syn = call(4000, PORT);
        let mut broken = call(4001, PORT);
        *broken.last_mut().unwrap() ^= 1;
        interface.handle_frame(&broken, Instant::ZERO);
        interface.handle_frame(&call(4002, PORT + 1), Instant::ZERO);
        assert_eq!((sockets(&mut interface), arrived(&mut interface)), (0, 0));
        // The second of these was sent again.
        interface.handle_frame(&syn, Instant::ZERO);
        interface.handle_frame(&syn, Instant::ZERO + Duration::from_secs(1));
        assert_eq!((sockets(&mut interface), arrived(&mut interface)), (1, 1));
        for from in 4001..4010 {
            interface.handle_frame(&call(from, PORT), Instant::ZERO);
        }
        assert_eq!(sockets(&mut interface), 3, "there is no room for more");
        interface.doors().set_room(PORT, 1);
        interface.handle_frame(&call(4010, PORT), Instant::ZERO);
        assert_eq!((sockets(&mut interface), arrived(&mut interface)), (4, 3));
        interface.doors().close(PORT);
        interface.handle_frame(&call(4011, PORT), Instant::ZERO);
        assert_eq!(sockets(&mut interface), 4);
    }
}
