//! A host on the appliance's wire, in this process: smoltcp over QEMU's datagram socket.
//!
//! It sends pings, UDP echoes, TCP and raw frames. It needs neither privileges nor a network of the build machine.

mod flood;
mod tcp;

pub use flood::{Flood, segment_of, syn_of};
pub use tcp::Workers;

use std::net::IpAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::qemu::Nic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{
    Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken,
};
use smoltcp::socket::{icmp, udp};
use smoltcp::wire::{
    EthernetAddress, HardwareAddress, Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpCidr, IpEndpoint,
};
use tempfile::TempDir;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const LONGEST_FRAME: usize = 9216 + 14;
const IDENTIFIER: u16 = 0x1517;
/// How long a frame waits for room on the wire.
const PATIENCE: Duration = Duration::from_millis(500);
/// UDP echo service (RFC 862).
const ECHO_PORT: u16 = 7;

/// A host with the addresses it was made with.
pub struct Peer {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    icmp: SocketHandle,
    udp: SocketHandle,
    /// Sockets of echo servers, and their ports.
    servers: Vec<(SocketHandle, u16)>,
    /// Port of the last TCP client.
    last_port: u16,
    started: Instant,
    directory: TempDir,
}

impl Peer {
    /// A peer with `addresses` (`10.9.0.2/24`, `fd09::2/64`) and an MTU of 9000.
    pub fn new(addresses: &[&str]) -> Result<Peer> {
        let directory = tempfile::Builder::new().prefix("isthmus-peer-").tempdir()?;
        let socket = UnixDatagram::bind(directory.path().join("peer"))?;
        socket.set_nonblocking(true)?;
        let mut wire = Wire { socket, appliance: directory.path().join("appliance") };
        let config = Config::new(HardwareAddress::Ethernet(EthernetAddress(MAC)));
        let mut interface = Interface::new(config, &mut wire, smoltcp::time::Instant::ZERO);
        for address in addresses {
            let address: IpCidr = address.parse().ok().context("an address with its prefix")?;
            let mut added = false;
            interface.update_ip_addrs(|all| added = all.push(address).is_ok());
            ensure!(added, "too many addresses");
        }
        let mut sockets = SocketSet::new(Vec::new());
        let mut icmp = icmp::Socket::new(
            icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 16], vec![0; 64 * 1024]),
            icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 16], vec![0; 64 * 1024]),
        );
        icmp.bind(icmp::Endpoint::Ident(IDENTIFIER)).ok().context("bind")?;
        let mut udp = udp::Socket::new(
            udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 256 * 1024]),
            udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 256 * 1024]),
        );
        udp.bind(40_000).ok().context("bind")?;
        let icmp = sockets.add(icmp);
        let udp = sockets.add(udp);
        let (servers, last_port, started) = (Vec::new(), tcp::FIRST_CLIENT_PORT, Instant::now());
        Ok(Peer { wire, interface, sockets, icmp, udp, servers, last_port, started, directory })
    }

    /// The interface to give to the machine at the other end.
    pub fn nic(&self) -> Nic {
        let directory = self.directory.path();
        Nic::Dgram { ours: directory.join("appliance"), peer: directory.join("peer") }
    }

    /// Pings with `length` bytes of data, once a second until a reply arrives. Returns the time since the last ping.
    pub fn ping(&mut self, address: &str, length: usize) -> Result<Duration> {
        let address: IpAddr = address.parse()?;
        let data: Vec<u8> = (0..length).map(|i| i as u8).collect();
        for _ in 0..10 {
            self.send_ping(address, &data)?;
            let sent = Instant::now();
            while sent.elapsed() < Duration::from_secs(1) {
                self.poll(Duration::from_millis(10));
                let socket = self.sockets.get_mut::<icmp::Socket>(self.icmp);
                let Ok((reply, from)) = socket.recv() else { continue };
                if IpAddr::from(from) == address && reply.len() >= 8 && reply[8..] == data {
                    return Ok(sent.elapsed());
                }
            }
        }
        bail!("{address} did not answer a ping with {length} bytes within 10 s");
    }

    fn send_ping(&mut self, address: IpAddr, data: &[u8]) -> Result<()> {
        let checksums = ChecksumCapabilities::default();
        let socket = self.sockets.get_mut::<icmp::Socket>(self.icmp);
        match address {
            IpAddr::V4(v4) => {
                let request = Icmpv4Repr::EchoRequest { ident: IDENTIFIER, seq_no: 1, data };
                let buffer = socket.send(request.buffer_len(), v4.into())?;
                request.emit(&mut Icmpv4Packet::new_unchecked(buffer), &checksums);
            }
            IpAddr::V6(v6) => {
                let request = Icmpv6Repr::EchoRequest { ident: IDENTIFIER, seq_no: 1, data };
                let from = self.interface.get_source_address_ipv6(&v6);
                let buffer = socket.send(request.buffer_len(), v6.into())?;
                request.emit(&from, &v6, &mut Icmpv6Packet::new_unchecked(buffer), &checksums);
            }
        }
        Ok(())
    }

    /// Sends `payload` to the appliance's UDP echo, waits for the reply, and returns the round-trip time.
    pub fn echo(&mut self, address: &str, payload: &[u8]) -> Result<Duration> {
        let address: IpAddress = address.parse::<IpAddr>()?.into();
        let sent = Instant::now();
        let to = IpEndpoint::new(address, ECHO_PORT);
        self.sockets.get_mut::<udp::Socket>(self.udp).send_slice(payload, to)?;
        let deadline = sent + Duration::from_secs(5);
        while Instant::now() < deadline {
            self.poll(Duration::from_millis(10));
            let socket = self.sockets.get_mut::<udp::Socket>(self.udp);
            if let Ok((echoed, _)) = socket.recv() {
                if echoed != payload {
                    bail!("{address} echoed {} bytes that differ from those sent", echoed.len());
                }
                return Ok(sent.elapsed());
            }
        }
        bail!("{address} did not echo {} bytes within 5 s", payload.len());
    }

    /// Sends one Ethernet frame as it is.
    pub fn send_frame(&mut self, frame: &[u8]) -> Result<()> {
        self.wire.socket.send_to(frame, &self.wire.appliance).context("the wire takes no frame")?;
        Ok(())
    }

    /// As `send_frame`, but waits for room on the wire.
    pub fn send_frame_soon(&mut self, frame: &[u8]) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.wire.socket.send_to(frame, &self.wire.appliance) {
                Err(error) if error.raw_os_error().is_some() && Instant::now() < deadline => {
                    let wait = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                    let _ =
                        poll(&mut [PollFd::new(&self.wire.socket, PollFlags::OUT)], Some(&wait));
                }
                sent => return sent.map(drop).context("the wire takes no frame"),
            }
        }
    }

    /// The next frame from the appliance, which bypasses this peer's stack; None if none arrives within `limit`.
    pub fn receive_frame(&mut self, limit: Duration) -> Result<Option<Vec<u8>>> {
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&self.wire.socket, PollFlags::IN)], Some(&wait));
        let mut frame = vec![0; LONGEST_FRAME];
        match self.wire.socket.recv(&mut frame) {
            Ok(length) => {
                frame.truncate(length);
                Ok(Some(frame))
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("the wire"),
        }
    }

    /// Handles received frames, sends due ones, and waits up to `limit` for further frames.
    fn poll(&mut self, limit: Duration) {
        let now = smoltcp::time::Instant::from_micros(self.started.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An error (a signal) only shortens the wait.
        let _ = poll(&mut [PollFd::new(&self.wire.socket, PollFlags::IN)], Some(&wait));
        let now = smoltcp::time::Instant::from_micros(self.started.elapsed().as_micros() as i64);
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
    }
}

/// The cable: one datagram is one frame.
struct Wire {
    socket: UnixDatagram,
    appliance: PathBuf,
}

struct Received(Vec<u8>);
struct Transmit<'a>(&'a Wire);

impl Device for Wire {
    type RxToken<'a> = Received;
    type TxToken<'a> = Transmit<'a>;

    fn receive(
        &mut self,
        _: smoltcp::time::Instant,
    ) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let mut frame = vec![0; LONGEST_FRAME];
        let length = self.socket.recv(&mut frame).ok()?;
        frame.truncate(length);
        Some((Received(frame), Transmit(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Self::TxToken<'_>> {
        Some(Transmit(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = LONGEST_FRAME;
        capabilities.checksum.udp = Checksum::Both;
        capabilities
    }
}

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, handle: F) -> R {
        handle(&self.0)
    }
}

impl TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut frame = vec![0; length];
        let result = fill(&mut frame);
        // Without a machine the frame is lost. If the queue is full, wait for room: the wire is not under test.
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.0.socket.send_to(&frame, &self.0.appliance) {
            if error.kind() != std::io::ErrorKind::WouldBlock || Instant::now() >= deadline {
                break;
            }
            std::thread::yield_now();
        }
        result
    }
}
