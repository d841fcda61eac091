//! Sockets that begin in the middle of a connection: a handshake is replayed to them, in stacks of their own, and the
//! frames that they write are discarded.

use super::initial_numbers::seed;
use super::packets;
use crate::isn::{Handshake, Offer};
use crate::link::{Framing, Link, Queue, to_smoltcp};
use crate::segment::Ends;
use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Instant;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr};

/// Bytes of each buffer of a shrunk socket.
const LEAST: usize = 64;
/// Any keep-alive interval: setting one makes an idle socket write a keep-alive at once.
const AT_ONCE: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(20);

/// A socket set with one socket. smoltcp iterates over every socket of a set.
pub fn alone(socket: Socket<'static>) -> (SocketSet<'static>, SocketHandle) {
    let mut sockets = SocketSet::new(Vec::with_capacity(1));
    let handle = sockets.add(socket);
    (sockets, handle)
}

/// A replay.
pub struct Replay<'a> {
    /// Frames of sockets during it. It is empty before and afterwards.
    pub discarded: &'a mut Queue,
    /// MTU of the port.
    pub mtu: usize,
    pub now: Instant,
}

impl Replay<'_> {
    /// A device that passes a packet to smoltcp and discards the frames that smoltcp writes.
    fn link<'a>(&'a mut self, received: Option<&'a [u8]>) -> Link<'a> {
        let framing = Framing::Ip { from: [0; 6], to: [0; 6], smc: false };
        Link { received, queue: self.discarded, mtu: self.mtu, framing }
    }

    /// A smoltcp interface with one address, whose first connection has the initial sequence number `number`.
    pub fn stack(&mut self, number: u32, local: IpAddr) -> Interface {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed(number);
        let now = to_smoltcp(self.now);
        let mut stack = Interface::new(config, &mut self.link(None), now);
        let prefix = if local.is_ipv4() { 32 } else { 128 };
        stack.update_ip_addrs(|list| list.extend([IpCidr::new(local.into(), prefix)]));
        stack
    }

    /// Opens a new socket by a handshake up to the SYN-ACK. False if the SYN-ACK has another sequence number than the
    /// one that was sent.
    pub fn open(
        &mut self,
        sockets: &mut SocketSet<'static>,
        handle: SocketHandle,
        ends: Ends,
        handshake: &Handshake,
    ) -> bool {
        let socket = sockets.get_mut::<Socket<'_>>(handle);
        if socket.listen((ends.local, ends.local_port)).is_err() {
            return false;
        }
        let mut stack = self.stack(handshake.ours, ends.local);
        let mut packet = [0; 100];
        let length = packets::build_syn(ends, handshake, &mut packet);
        let at = to_smoltcp(self.now);
        let mut link = self.link(Some(&packet[..length]));
        stack.poll_ingress_single(at, &mut link, sockets);
        stack.poll_egress(at, &mut link, sockets);
        let numbers = packets::numbers(self.discarded.front());
        self.discarded.clear();
        numbers.is_some_and(|(sequence, _)| sequence == handshake.ours)
    }

    /// A socket with minimal buffers, established at the sequence numbers of an idle socket, which the caller replaces
    /// by it: the peer sees only a smaller window. `due`: the next timer of the idle socket. None if that fails.
    pub fn shrink(
        &mut self,
        idle: &mut SocketSet<'static>,
        handle: SocketHandle,
        ends: Ends,
        due: Option<Instant>,
    ) -> Option<(SocketSet<'static>, SocketHandle)> {
        let handshake = self.equivalent_handshake(idle, handle, ends.local, due)?;
        let buffer = || SocketBuffer::new(vec![0; LEAST]);
        let (mut sockets, handle) = alone(Socket::new(buffer(), buffer()));
        if !self.open(&mut sockets, handle, ends, &handshake) {
            return None;
        }
        let mut packet = [0; 100];
        let length = packets::build_ack(ends, &handshake, &mut packet);
        let (mut stack, at) = (self.stack(0, ends.local), to_smoltcp(self.now));
        stack.poll_ingress_single(at, &mut self.link(Some(&packet[..length])), &mut sockets);
        self.discarded.clear();
        let opened = sockets.get::<Socket<'_>>(handle).state() == State::Established;
        opened.then_some((sockets, handle))
    }

    /// The handshake that leads to a socket's present sequence numbers. They are read from a keep-alive that the socket
    /// is made to write.
    fn equivalent_handshake(
        &mut self,
        sockets: &mut SocketSet<'static>,
        handle: SocketHandle,
        local: IpAddr,
        due: Option<Instant>,
    ) -> Option<Handshake> {
        sockets.get_mut::<Socket<'_>>(handle).set_keep_alive(Some(AT_ONCE));
        // The socket writes a keep-alive that was already scheduled only at its time.
        let at = to_smoltcp(due.unwrap_or(self.now));
        let mut stack = self.stack(0, local);
        stack.poll_egress(at, &mut self.link(None), sockets);
        sockets.get_mut::<Socket<'_>>(handle).set_keep_alive(None);
        let numbers = packets::numbers(self.discarded.front());
        self.discarded.clear();
        let (ours, next) = numbers?;
        let offer = Offer { mss: 536, scale: None, sack: false, smc: false };
        Some(Handshake { theirs: next.wrapping_sub(1), ours, offer })
    }
}
