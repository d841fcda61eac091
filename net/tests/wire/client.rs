//! A smoltcp host with TCP clients, on a wire with one interface under test.

use crate::common::{fixed, mac};
use drivers::hal::Instant;
use net::Interface;
use netsim::Collector;
use smoltcp::iface::{Config, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpAddress};
use std::collections::VecDeque;

/// Frames to and from the host.
#[derive(Default)]
struct Cable {
    to_host: VecDeque<Vec<u8>>,
    from_host: Vec<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Cable {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Arrived, Leaving<'_>)> {
        let frame = self.to_host.pop_front()?;
        Some((Arrived(frame), Leaving(&mut self.from_host)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.from_host))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

/// The host 10.0.0.2, and the interface 10.0.0.1 under test.
pub struct Hosts {
    pub now: Instant,
    pub interface: Interface,
    pub log: Vec<Vec<u8>>,
    stack: smoltcp::iface::Interface,
    pub sockets: SocketSet<'static>,
    cable: Cable,
    port: u16,
    /// Returns for each frame whether the wire loses it.
    pub loss: Option<Box<dyn FnMut() -> bool>>,
    /// Frames that the interface's port accepts in a round.
    pub room: usize,
    /// A router between interface and host, with a smaller MTU towards the host.
    pub router: Option<Router>,
}

/// A router with a smaller MTU, which drops larger packets.
#[derive(Clone, Copy)]
pub struct Router {
    pub mtu: usize,
    /// It reports dropped packets.
    pub reports: bool,
}

impl Hosts {
    pub fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut interface = Interface::new(mac(1), 1500, [1; 32], now);
        interface.set_addressing(fixed("10.0.0.1/24"), now).unwrap();
        let mut cable = Cable::default();
        let config = Config::new(EthernetAddress(mac(2)).into());
        let mut stack = smoltcp::iface::Interface::new(config, &mut cable, to_smoltcp(now));
        stack.update_ip_addrs(|list| {
            list.push("10.0.0.2/24".parse().unwrap()).unwrap();
            list.push("fd07::2/64".parse().unwrap()).unwrap();
        });
        let sockets = SocketSet::new(Vec::new());
        let (log, port, loss, room, router) = (Vec::new(), 49152, None, 64, None);
        Hosts { now, interface, log, stack, sockets, cable, port, loss, room, router }
    }

    /// Adds a socket to the host.
    pub fn add_socket(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 16]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    /// Starts to connect to `port` of the interface.
    pub fn connect(&mut self, port: u16) -> SocketHandle {
        self.connect_to(IpAddress::v4(10, 0, 0, 1), port)
    }

    /// Starts to connect to `port` of the interface's address `ip`.
    pub fn connect_to(&mut self, ip: IpAddress, port: u16) -> SocketHandle {
        let handle = self.add_socket();
        self.port += 1;
        let target = (ip, port);
        let socket = self.sockets.get_mut::<tcp::Socket>(handle);
        socket.connect(self.stack.context(), target, self.port).unwrap();
        handle
    }

    pub fn socket(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// One round: frames go both ways once.
    pub fn step(&mut self) {
        self.stack.poll(to_smoltcp(self.now), &mut self.cable, &mut self.sockets);
        let mut lost = || self.loss.as_mut().is_some_and(|loss| loss());
        for frame in self.cable.from_host.drain(..).filter(|_| !lost()) {
            self.interface.handle_frame(&frame, self.now);
            self.log.push(frame);
        }
        self.interface.poll(self.now);
        let mut port = Collector::new(self.room);
        self.interface.transmit(&mut port, |_| ());
        for frame in port.frames.into_iter().filter(|_| !lost()) {
            let router = self.router.filter(|router| frame.len() > 14 + router.mtu);
            match router {
                Some(router) if router.reports => {
                    self.interface.handle_frame(&report(&frame, router.mtu), self.now);
                }
                Some(_) => (),
                None => self.cable.to_host.push_back(frame),
            }
        }
    }
}

/// A router's report that a frame is too large.
pub fn report(frame: &[u8], mtu: usize) -> Vec<u8> {
    let mut report = frame[6..12].to_vec();
    report.extend(mac(9));
    report.extend(&frame[12..14]);
    let packet = &frame[14..];
    let sum = |bytes: &[u8]| -> u32 {
        let words =
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
        words.sum()
    };
    let fold =
        |sum: u32| !((sum & 0xffff) + (sum >> 16) + (((sum & 0xffff) + (sum >> 16)) >> 16)) as u16;
    let v4 = packet[0] >> 4 == 4;
    let quoted = &packet[..packet.len().min(if v4 { 28 } else { 1232 })];
    let mut message = if v4 { vec![3, 4, 0, 0] } else { vec![2, 0, 0, 0] };
    message.extend((mtu as u32).to_be_bytes());
    message.extend(quoted);
    let length = message.len() as u16;
    let mut header;
    if v4 {
        header = vec![0x45, 0];
        header.extend((20 + length).to_be_bytes());
        header.extend([0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 254]);
        header.extend(&packet[12..16]);
        let checksum = fold(sum(&header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        let checksum = fold(sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    } else {
        header = vec![0x60, 0, 0, 0];
        header.extend(length.to_be_bytes());
        header.extend([58, 64, 0xfd, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe]);
        header.extend(&packet[8..24]);
        let checksum = fold(sum(&header[8..]) + 58 + u32::from(length) + sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    report.extend(header);
    report.extend(message);
    report
}

fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}
