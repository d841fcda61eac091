//! The wire between an appliance in QEMU and stock peers of this machine: frames on one side, UDP sockets of the
//! loopback interface on the other.
//!
//! Each peer has an address on the appliance's network. What a peer sends to the appliance arrives at sockets of
//! ours, one for each of the appliance's ports, and becomes a frame; what the appliance sends is sent from these
//! sockets. Addresses are translated as by a NAT, in the PINGs of the connectivity checker too, which name them.
//! Every frame of the appliance's is looked at: lengths, and checksums, of which none may be left out.

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

/// The appliance's address, and its UDP ports: priority, data, and of the connectivity checker.
pub const APPLIANCE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// See [`APPLIANCE`].
pub const PORTS: [u16; 3] = [7002, 7001, 7003];
const LARGEST: usize = 65_536;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Frames that wait for QEMU before sockets are read no further.
const QUEUE: usize = 256;
/// Datagrams of a channel in a turn.
const SHARE: usize = QUEUE / 4;
/// Bytes that sockets keep: the window of a peer, not many copies of it.
const BUFFER: usize = 8 << 20;

/// What is known of the wire, and how it behaves.
#[derive(Default)]
struct Shared {
    /// UDP ports of peers on the loopback interface, and the addresses that they have on the wire.
    peers: Vec<(u16, Ipv4Addr)>,
    /// Faults of either direction that were ordered: of the network, and the seed.
    ordered: Option<(Rates, u64)>,
    /// Frames that go to the appliance as they are.
    raw: Vec<Vec<u8>>,
    /// What was wrong with frames of the appliance's.
    wrong: Vec<String>,
    /// Datagrams that came from the appliance, and that went to it.
    counts: [u64; 2],
    damaged: [u64; 2],
}

/// The wire. It ends when this is dropped.
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
            asked: Instant::now() - Duration::from_secs(1),
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

    /// A peer on the loopback interface gets an address on the wire; its modex, as the appliance has to know it.
    pub fn join(&self, peer: &Modex, address: Ipv4Addr) -> Modex {
        let ports = [peer.priority_port, peer.data_port, peer.ping_port];
        self.with(|shared| {
            shared.peers.retain(|(port, known)| *known != address && !ports.contains(port));
            shared.peers.extend(ports.map(|port| (port, address)));
        });
        Modex { address, netmask: Ipv4Addr::new(255, 255, 255, 0), ..*peer }
    }

    /// The appliance's modex, as peers on the loopback interface have to know it.
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

    /// Has the network be bad, either way. PINGs are spared.
    pub fn set_faults(&self, rates: Rates, seed: u64) {
        self.with(|shared| shared.ordered = Some((rates, seed)));
    }

    /// Sends the appliance a datagram from anybody.
    pub fn send(&self, from: SocketAddrV4, to_port: u16, payload: &[u8]) {
        let frame = udp_frame(
            EthernetAddress::BROADCAST,
            from,
            SocketAddrV4::new(APPLIANCE, to_port),
            payload,
        );
        self.with(|shared| shared.raw.push(frame));
    }

    /// Datagrams that came from the appliance, and that went to it. An error if one was not as it should be.
    pub fn counts(&self) -> Result<[u64; 2]> {
        self.with(|shared| {
            ensure!(shared.wrong.is_empty(), "frames of the appliance's: {:?}", shared.wrong);
            Ok(shared.counts)
        })
    }

    /// Datagrams that were damaged on their way from the appliance, and to it.
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
            // What it panicked of was printed.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Relay {
    frames: UnixDatagram,
    appliance: PathBuf,
    appliance_mac: Option<EthernetAddress>,
    /// When it was last asked for.
    asked: Instant,
    sockets: [UdpSocket; 3],
    ports: [u16; 3],
    shared: Arc<Mutex<Shared>>,
    queue: VecDeque<Vec<u8>>,
    /// Towards the appliance, and from it: socket, where to, and the bytes.
    into: Faults<Vec<u8>>,
    out: Faults<(usize, SocketAddrV4, Vec<u8>)>,
}

impl Relay {
    fn run(mut self, ends: &AtomicBool) {
        let mut buffer = vec![0; LARGEST];
        while !ends.load(Ordering::Relaxed) {
            self.heed();
            while let Ok(length) = self.frames.recv(&mut buffer) {
                if let Err(why) = self.take_from_appliance(&buffer[..length]) {
                    let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
                    if shared.wrong.len() < 20 {
                        shared.wrong.push(why.to_string());
                    }
                }
            }
            // Each channel has its share, whatever comes on the others: a peer that floods its data is still asked, and
            // answers.
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
                        // An ICMP error about what was sent before: somebody has gone.
                        Err(_) => {}
                    }
                }
            }
            self.flush();
            self.wait();
        }
    }

    /// Does what was ordered.
    fn heed(&mut self) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((rates, seed)) = shared.ordered.take() {
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

    /// Sends what waits, as far as QEMU takes it.
    fn flush(&mut self) {
        let Some(mac) = self.appliance_mac else {
            if !self.queue.is_empty() && self.asked.elapsed() > Duration::from_millis(100) {
                self.asked = Instant::now();
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
        let known = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.counts[0] += 1;
            shared.damaged[0] += u64::from(is_damaged);
            shared.peers.contains(&(to.port(), *to.ip()))
        };
        if is_damaged {
            // The peer's system drops it if it sees that.
            ensure!(
                !Parsed::of(&damaged).is_ok_and(|it| it.is_some()),
                "no checksum tells of a bit"
            );
            return Ok(());
        }
        if !known {
            // One that has gone, and another has its address.
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
            // What the kernel does not take is lost, as on any network.
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
            let known = shared.peers.iter().find(|(port, _)| *port == from.port());
            known.map(|(_, address)| *address)
        };
        let Some(address) = address else { return };
        let mut payload = bytes.to_vec();
        let from = SocketAddrV4::new(address, from.port());
        let to = SocketAddrV4::new(APPLIANCE, PORTS[channel]);
        if channel == 2 {
            translate(&mut payload, from, to);
        }
        let mut frame = udp_frame(EthernetAddress::BROADCAST, from, to, &payload);
        // What a flipped bit of the Ethernet header does is not for checksums to tell: that is the FCS's.
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
    // Beyond the system's limit only as root; with less, bursts lose some, which is what is made up for.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    }
    Ok(socket)
}
