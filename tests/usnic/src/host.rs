//! The engine on a host: three UDP sockets on the loopback interface, and its clock.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result};
use drivers::hal::{Arena, Instant, Window};
use usnic::{Channel, Config, Engine, InterfaceConfig};

use crate::faults::{Faults, Rates};

/// Most datagrams received, and sent, in one turn.
const BATCH: usize = 256;
/// Size of socket buffers.
const BUFFER: usize = 32 << 20;
const LARGEST: usize = 65_536;

/// A sent datagram: index of the socket, destination, bytes.
type Outgoing = (usize, SocketAddrV4, Vec<u8>);
/// A received datagram: index of the socket, source, bytes.
type Incoming = (usize, SocketAddrV4, Vec<u8>);

/// Serializes tests, because both ends spin and would only take processor time from another pair.
static ALONE: Mutex<()> = Mutex::new(());

/// An engine with its sockets. There is one at a time.
pub struct Host {
    _alone: MutexGuard<'static, ()>,
    /// The engine, with interface 0.
    pub engine: Engine,
    /// Memory for windows of tests.
    pub arena: Arena,
    sockets: [UdpSocket; 3],
    ports: [u16; 3],
    start: Clock,
    buffer: Vec<u8>,
    out: Faults<Outgoing>,
    into: Faults<Incoming>,
    /// Datagrams sent and received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
}

impl Host {
    /// A host on 127.0.0.1, with this MTU and first sequence number.
    pub fn new(mtu: u16, isn: u16) -> Result<Host> {
        Self::with_memory(mtu, isn, 64 << 20)
    }

    /// As `new`, with `bytes` of memory for messages.
    pub fn with_memory(mtu: u16, isn: u16, bytes: usize) -> Result<Host> {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let sockets = [socket()?, socket()?, socket()?];
        let mut ports = [0; 3];
        for (port, socket) in ports.iter_mut().zip(&sockets) {
            *port = socket.local_addr()?.port();
        }
        let memory = 256 << 20;
        let mut arena = Arena::on_heap(memory);
        let pool = arena.alloc(bytes, 4096).context("no memory for the engine")?;
        let config = Config { endpoints: 16, max_message: 16 << 20, ..Config::default() };
        let secret = u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut engine = Engine::new(config, pool, secret, Instant::ZERO);
        let interface = InterfaceConfig {
            address: Ipv4Addr::LOCALHOST,
            netmask: Ipv4Addr::new(255, 0, 0, 0),
            priority_port: ports[0],
            data_port: ports[1],
            ping_port: ports[2],
            link_speed: 10_000,
            mtu,
            isn,
        };
        engine.add_interface(interface)?;
        Ok(Host {
            _alone: alone,
            engine,
            arena,
            sockets,
            ports,
            start: Clock::now(),
            buffer: vec![0; LARGEST],
            out: Faults::new(Rates::default(), 0),
            into: Faults::new(Rates::default(), 0),
            sent: 0,
            received: 0,
        })
    }

    /// Sets faults for both directions. PINGs are not affected.
    pub fn set_faults(&mut self, rates: Rates, seed: u64) {
        self.set_faults_of_each(rates, rates, seed);
    }

    /// As `set_faults`, with separate rates for sent and received datagrams.
    pub fn set_faults_of_each(&mut self, out: Rates, into: Rates, seed: u64) {
        self.out = Faults::new(out, seed);
        self.into = Faults::new(into, seed.wrapping_add(1));
    }

    /// The engine's time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    /// A window with these bytes.
    pub fn window(&mut self, bytes: &[u8]) -> Window {
        let window = self.arena.alloc(bytes.len().max(1), 64).expect("room in the arena");
        window.write(0, bytes).expect("the window is long enough");
        window.slice(0, bytes.len()).expect("the window is long enough")
    }

    /// Receives and sends datagrams. Returns whether there were any.
    pub fn turn(&mut self) -> bool {
        let received = self.receive();
        self.transmit() || received
    }

    /// As `turn`, but yields the processor if there was no work.
    pub fn turn_or_yield(&mut self) {
        if !self.turn() {
            std::thread::yield_now();
        }
    }

    /// Takes turns until `done`, or for `most`. Returns whether `done` became true.
    pub fn run(&mut self, most: Duration, mut done: impl FnMut(&mut Host) -> bool) -> bool {
        let end = Clock::now() + most;
        loop {
            if done(self) {
                return true;
            }
            if Clock::now() > end {
                return false;
            }
            self.turn_or_yield();
        }
    }

    fn receive(&mut self) -> bool {
        let mut any = false;
        for channel in 0..3 {
            for _ in 0..BATCH {
                let from = match self.sockets[channel].recv_from(&mut self.buffer) {
                    Ok((length, SocketAddr::V4(from))) => (length, from),
                    Ok(_) => continue,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // An ICMP error for an earlier datagram: its peer is gone.
                    Err(_) => continue,
                };
                let (length, from) = from;
                any = true;
                self.received += 1;
                let now = self.now();
                let bytes = &self.buffer[..length];
                if channel == 2 || !self.into.any() {
                    self.engine.receive(0, from, self.ports[channel], bytes, now);
                } else {
                    let Host { engine, into, ports, .. } = self;
                    into.pass((channel, from, bytes.to_vec()), |(channel, from, bytes)| {
                        engine.receive(0, from, ports[channel], &bytes, now);
                    });
                }
            }
        }
        any
    }

    fn transmit(&mut self) -> bool {
        for n in 0..BATCH {
            let now = self.now();
            let Some(packet) = self.engine.poll_transmit(now) else { return n > 0 };
            let channel = match packet.channel {
                Channel::Priority => 0,
                Channel::Data => 1,
                Channel::Ping => 2,
            };
            let mut length = packet.header().len();
            self.buffer[..length].copy_from_slice(packet.header());
            for window in packet.payload() {
                let into = &mut self.buffer[length..length + window.len()];
                window.read(0, into).expect("the lengths are equal");
                length += window.len();
            }
            self.sent += 1;
            let bytes = &self.buffer[..length];
            let send =
                |sockets: &[UdpSocket; 3], channel: usize, to: SocketAddrV4, bytes: &[u8]| {
                    // A datagram that the kernel refuses is lost, as on any network.
                    let _ = sockets[channel].send_to(bytes, to);
                };
            if channel == 2 || !self.out.any() {
                send(&self.sockets, channel, packet.to, bytes);
            } else {
                let Host { sockets, out, .. } = self;
                out.pass((channel, packet.to, bytes.to_vec()), |(channel, to, bytes)| {
                    send(sockets, channel, to, &bytes);
                });
            }
        }
        true
    }
}

fn socket() -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no UDP socket")?;
    socket.set_nonblocking(true)?;
    socket.set_ttl(8)?;
    // Beyond the system's limit only as root. With smaller buffers, bursts lose datagrams, which are retransmitted.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    }
    Ok(socket)
}
