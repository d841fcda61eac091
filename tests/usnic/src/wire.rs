//! The wire between an appliance in QEMU and stock peers on this machine: frames on one side, UDP sockets of the
//! loopback interface on the other.
//!
//! Each peer has an address on the appliance's network. A peer's datagrams to the appliance arrive at sockets of the
//! wire, one for each of the appliance's ports, and become frames. The appliance's datagrams are sent from these
//! sockets. Addresses are translated like in a NAT, including those in the PINGs of the connectivity checker. The wire
//! checks the lengths and all checksums of every frame from the appliance.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use launch::qemu::Nic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
};
use tempfile::TempDir;
use usnic::wire::modex::Modex;

use crate::faults::{Faults, Rates};
use crate::frames::{OUR_MAC, Parsed, arp_frame, question, translate, udp_frame};

/// The appliance's address.
pub const APPLIANCE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The appliance's UDP ports: priority, data, connectivity checker.
pub const PORTS: [u16; 3] = [7002, 7001, 7003];
const LARGEST: usize = 65_536;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Most frames that wait for QEMU. Then sockets are not read.
const QUEUE: usize = 256;
/// Most datagrams of a channel in a turn.
const SHARE: usize = QUEUE / 4;
/// Size of socket buffers: the window of a peer, without many copies of it.
const BUFFER: usize = 8 << 20;

/// State of the wire that its owner and its thread share.
#[derive(Default)]
struct Shared {
    /// UDP ports of peers on the loopback interface, and the addresses that they have on the wire.
    peers: Vec<(u16, Ipv4Addr)>,
    /// New faults for both directions, and the seed.
    new_faults: Option<(Rates, u64)>,
    /// Frames to send to the appliance unchanged.
    raw: Vec<Vec<u8>>,
    /// Errors in frames of the appliance.
    wrong: Vec<String>,
    /// Datagrams from the appliance, and to it.
    counts: [u64; 2],
    damaged: [u64; 2],
}

/// The wire. Its thread ends on drop.
pub struct Wire {
    shared: Arc<Mutex<Shared>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    directory: TempDir,
    ports: [u16; 3],
}

impl Wire {
    /// A wire without peers.
    pub fn new() -> Result<Wire> {
        let directory = tempfile::Builder::new().prefix("isthmus-usnic-").tempdir()?;
        let frames = UnixDatagram::bind(directory.path().join("peer"))?;
        frames.set_nonblocking(true)?;
        let sockets = [socket()?, socket()?, socket()?];
        let mut ports = [0; 3];
        for (port, socket) in ports.iter_mut().zip(&sockets) {
            *port = socket.local_addr()?.port();
        }
        let shared = Arc::new(Mutex::new(Shared::default()));
        let ends = Arc::new(AtomicBool::new(false));
        let relay = Relay {
            frames,
            appliance: directory.path().join("appliance"),
            appliance_mac: None,
            requested: Instant::now() - Duration::from_secs(1),
            sockets,
            ports,
            shared: shared.clone(),
            queue: VecDeque::new(),
            into: Faults::new(Rates::default(), 0),
            out: Faults::new(Rates::default(), 0),
        };
        let thread = std::thread::spawn({
            let ends = ends.clone();
            move || relay.run(&ends)
        });
        Ok(Wire { shared, ends, thread: Some(thread), directory, ports })
    }

    /// The interface to give to the machine.
    pub fn nic(&self) -> Nic {
        let directory = self.directory.path();
        Nic::Dgram { ours: directory.join("appliance"), peer: directory.join("peer") }
    }

    /// Gives a peer on the loopback interface an address on the wire. Returns its modex for the appliance.
    pub fn join(&self, peer: &Modex, address: Ipv4Addr) -> Modex {
        let ports = [peer.priority_port, peer.data_port, peer.ping_port];
        self.with(|shared| {
            shared.peers.retain(|(port, used)| *used != address && !ports.contains(port));
            shared.peers.extend(ports.map(|port| (port, address)));
        });
        Modex { address, netmask: Ipv4Addr::new(255, 255, 255, 0), ..*peer }
    }

    /// The appliance's modex for peers on the loopback interface.
    pub fn translated(&self, appliance: &Modex) -> Modex {
        let [priority_port, data_port, ping_port] = self.ports;
        let address = Ipv4Addr::LOCALHOST;
        Modex {
            address,
            netmask: Ipv4Addr::new(255, 0, 0, 0),
            priority_port,
            data_port,
            ping_port,
            ..*appliance
        }
    }

    /// Sets faults for both directions. PINGs are not affected.
    pub fn set_faults(&self, rates: Rates, seed: u64) {
        self.with(|shared| shared.new_faults = Some((rates, seed)));
    }

    /// Sends the appliance a datagram from any address.
    pub fn send(&self, from: SocketAddrV4, to_port: u16, payload: &[u8]) {
        let frame = udp_frame(
            EthernetAddress::BROADCAST,
            from,
            SocketAddrV4::new(APPLIANCE, to_port),
            payload,
        );
        self.with(|shared| shared.raw.push(frame));
    }

    /// Numbers of datagrams from the appliance, and to it. An error if a frame of the appliance was wrong.
    pub fn counts(&self) -> Result<[u64; 2]> {
        self.with(|shared| {
            ensure!(shared.wrong.is_empty(), "wrong frames of the appliance: {:?}", shared.wrong);
            Ok(shared.counts)
        })
    }

    /// Numbers of damaged datagrams from the appliance, and to it.
    pub fn damaged(&self) -> [u64; 2] {
        self.with(|shared| shared.damaged)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Shared) -> T) -> T {
        f(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Relay {
    frames: UnixDatagram,
    appliance: PathBuf,
    appliance_mac: Option<EthernetAddress>,
    /// Time of the last ARP request for the appliance.
    requested: Instant,
    sockets: [UdpSocket; 3],
    ports: [u16; 3],
    shared: Arc<Mutex<Shared>>,
    queue: VecDeque<Vec<u8>>,
    /// Faults of frames to the appliance.
    into: Faults<Vec<u8>>,
    /// Faults of datagrams from the appliance: index of the socket, destination, bytes.
    out: Faults<(usize, SocketAddrV4, Vec<u8>)>,
}

impl Relay {
    fn run(mut self, ends: &AtomicBool) {
        let mut buffer = vec![0; LARGEST];
        while !ends.load(Ordering::Relaxed) {
            self.apply_orders();
            while let Ok(length) = self.frames.recv(&mut buffer) {
                if let Err(why) = self.take_from_appliance(&buffer[..length]) {
                    let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                    if shared.wrong.len() < 20 {
                        shared.wrong.push(why.to_string());
                    }
                }
            }
            // Each channel has a share: even a peer that floods its data channel gets PINGs, and can answer.
            for channel in [2, 0, 1] {
                for _ in 0..SHARE {
                    if self.queue.len() >= QUEUE {
                        break;
                    }
                    match self.sockets[channel].recv_from(&mut buffer) {
                        Ok((length, SocketAddr::V4(from))) => {
                            self.send_to_appliance(channel, from, &buffer[..length]);
                        }
                        Ok(_) => {}
                        Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                        // An ICMP error for an earlier datagram: its peer is gone.
                        Err(_) => {}
                    }
                }
            }
            self.flush();
            self.wait();
        }
    }

    /// Applies new faults, and queues raw frames.
    fn apply_orders(&mut self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((rates, seed)) = shared.new_faults.take() {
            self.into = Faults::new(rates, seed);
            self.out = Faults::new(rates, seed.wrapping_add(1));
        }
        self.queue.extend(shared.raw.drain(..));
    }

    fn wait(&self) {
        let flags = match self.queue.is_empty() {
            true => PollFlags::IN,
            false => PollFlags::IN | PollFlags::OUT,
        };
        let mut all = vec![PollFd::new(&self.frames, flags)];
        if self.queue.len() < QUEUE {
            all.extend(self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        }
        let most = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        // An error (a signal) only shortens the wait.
        let _ = poll(&mut all, Some(&most));
    }

    /// Sends queued frames until QEMU's socket is full.
    fn flush(&mut self) {
        let Some(mac) = self.appliance_mac else {
            if !self.queue.is_empty() && self.requested.elapsed() > Duration::from_millis(100) {
                self.requested = Instant::now();
                let _ = self.frames.send_to(&question(), &self.appliance);
            }
            return;
        };
        while let Some(frame) = self.queue.front_mut() {
            frame[..6].copy_from_slice(mac.as_bytes());
            if self.frames.send_to(frame, &self.appliance).is_err() {
                return;
            }
            self.queue.pop_front();
        }
    }

    fn take_from_appliance(&mut self, bytes: &[u8]) -> Result<()> {
        let frame = EthernetFrame::new_checked(bytes)?;
        self.appliance_mac = Some(frame.src_addr());
        match frame.ethertype() {
            EthernetProtocol::Arp => self.answer_arp(frame.payload()),
            EthernetProtocol::Ipv4 => self.take_ip_from_appliance(frame.payload()),
            _ => Ok(()),
        }
    }

    fn answer_arp(&mut self, bytes: &[u8]) -> Result<()> {
        let packet = ArpPacket::new_checked(bytes)?;
        let ArpRepr::EthernetIpv4 {
            operation: ArpOperation::Request,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        } = ArpRepr::parse(&packet)?
        else {
            return Ok(());
        };
        let ours = {
            let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.peers.iter().any(|(_, address)| *address == target_protocol_addr)
        };
        if ours {
            let answer = ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: OUR_MAC,
                source_protocol_addr: target_protocol_addr,
                target_hardware_addr: source_hardware_addr,
                target_protocol_addr: source_protocol_addr,
            };
            self.queue.push_back(arp_frame(&answer, source_hardware_addr));
        }
        Ok(())
    }

    fn take_ip_from_appliance(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(Parsed { channel, to, payload }) = Parsed::of(bytes)? else { return Ok(()) };
        let mut damaged = bytes.to_vec();
        let is_damaged = channel != 2 && self.out.damage(&mut damaged, 0);
        let is_known = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.counts[0] += 1;
            shared.damaged[0] += u64::from(is_damaged);
            shared.peers.contains(&(to.port(), *to.ip()))
        };
        if is_damaged {
            // The peer's system must detect the damage and drop the frame.
            ensure!(
                !Parsed::of(&damaged).is_ok_and(|it| it.is_some()),
                "no checksum detects a flipped bit"
            );
            return Ok(());
        }
        if !is_known {
            // The peer is gone, and another one has its address.
            return Ok(());
        }
        let mut payload = payload.to_vec();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, to.port());
        if channel == 2 {
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.ports[2]);
            translate(&mut payload, address, to);
        }
        let Relay { sockets, out, .. } = self;
        let send = |sockets: &[UdpSocket; 3], channel: usize, to: SocketAddrV4, bytes: &[u8]| {
            // A datagram that the kernel refuses is lost, as on any network.
            let _ = sockets[channel].send_to(bytes, to);
        };
        if channel == 2 || !out.any() {
            send(sockets, channel, to, &payload);
        } else {
            out.pass((channel, to, payload), |(channel, to, bytes)| {
                send(sockets, channel, to, &bytes)
            });
        }
        Ok(())
    }

    fn send_to_appliance(&mut self, channel: usize, from: SocketAddrV4, bytes: &[u8]) {
        let address = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.counts[1] += 1;
            let peer = shared.peers.iter().find(|(port, _)| *port == from.port());
            peer.map(|(_, address)| *address)
        };
        let Some(address) = address else { return };
        let mut payload = bytes.to_vec();
        let from = SocketAddrV4::new(address, from.port());
        let to = SocketAddrV4::new(APPLIANCE, PORTS[channel]);
        if channel == 2 {
            translate(&mut payload, from, to);
        }
        let mut frame = udp_frame(EthernetAddress::BROADCAST, from, to, &payload);
        // Only the FCS would detect a flipped bit of the Ethernet header.
        if channel != 2 && self.into.damage(&mut frame, ETHERNET) {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.damaged[1] += 1;
        }
        let Relay { queue, into, .. } = self;
        if channel == 2 || !into.any() {
            queue.push_back(frame);
        } else {
            into.pass(frame, |frame| queue.push_back(frame));
        }
    }
}

fn socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no UDP socket")?;
    socket.set_nonblocking(true)?;
    // Beyond the system's limit only as root. With smaller buffers, bursts lose datagrams, which are retransmitted.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    }
    Ok(socket)
}
