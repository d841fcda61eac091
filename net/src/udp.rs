//! A UDP socket of a service that asks a server: a few datagrams each way, over one interface.

use crate::Interface;
use alloc::vec;
use core::net::SocketAddr;
use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp;

/// Datagrams that wait in each direction.
const WAITING: usize = 4;

/// A socket that is bound to a port of an interface. It must be closed with [`Socket::close`], which frees its memory.
#[derive(Debug)]
pub struct Socket(SocketHandle);

impl Socket {
    /// Opens a socket at `port`, for datagrams of at most `longest` bytes. None if `port` is 0.
    pub fn open(interface: &mut Interface, port: u16, longest: usize) -> Option<Socket> {
        let buffer = || {
            udp::PacketBuffer::new(
                vec![udp::PacketMetadata::EMPTY; WAITING],
                vec![0; WAITING * longest],
            )
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).ok()?;
        Some(Socket(interface.sockets().add(socket)))
    }

    /// Queues a datagram, which the interface's next poll sends. False without a route or room.
    pub fn send(&self, interface: &mut Interface, to: SocketAddr, datagram: &[u8]) -> bool {
        if interface.next_hop(to.ip()).is_none() {
            return false;
        }
        let socket = interface.sockets().get_mut::<udp::Socket>(self.0);
        socket.send_slice(datagram, to).is_ok()
    }

    /// The next received datagram, with its source. It is cut to the length of `into`.
    pub fn receive(
        &self,
        interface: &mut Interface,
        into: &mut [u8],
    ) -> Option<(usize, SocketAddr)> {
        // Access for changes would make the interface poll its sockets again.
        if !interface.has_datagram(self.0) {
            return None;
        }
        let (datagram, from) = interface.sockets().get_mut::<udp::Socket>(self.0).recv().ok()?;
        let count = datagram.len().min(into.len());
        into[..count].copy_from_slice(&datagram[..count]);
        Some((count, SocketAddr::new(from.endpoint.addr.into(), from.endpoint.port)))
    }

    /// Closes the socket. Queued datagrams are lost.
    pub fn close(self, interface: &mut Interface) {
        interface.sockets().remove(self.0);
    }
}
