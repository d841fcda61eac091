//! A plain smoltcp host with TCP clients, on a wire with one interface under test.

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

/// The host 10.0.0.2, and the interface 10.0.0.1 that it talks to.
pub struct Hosts {
    pub now: Instant,
    pub interface: Interface,
    pub log: Vec<Vec<u8>>,
    stack: smoltcp::iface::Interface,
    pub sockets: SocketSet<'static>,
    cable: Cable,
    port: u16,
    /// Says of each frame whether the wire loses it.
    pub loss: Option<Box<dyn FnMut() -> bool>>,
    /// Frames that the interface's port takes in a round.
    pub room: usize,
}

impl Hosts {
    pub fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let mut interface = Interface::new(mac(1), 1500, [1; 32], now);
        interface.set_addressing(fixed("10.0.0.1/24"), now).unwrap();
        let mut cable = Cable::default();
        let config = Config::new(EthernetAddress(mac(2)).into());
        let mut stack = smoltcp::iface::Interface::new(config, &mut cable, to_smoltcp(now));
        stack.update_ip_addrs(|list| list.push("10.0.0.2/24".parse().unwrap()).unwrap());
        let sockets = SocketSet::new(Vec::new());
        let (log, port) = (Vec::new(), 49152);
        Hosts { now, interface, log, stack, sockets, cable, port, loss: None, room: 64 }
    }

    /// Begins a connection to `port` of the interface.
    pub fn connect(&mut self, port: u16) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 1 << 16]);
        let handle = self.sockets.add(tcp::Socket::new(buffer(), buffer()));
        self.port += 1;
        let target = (IpAddress::v4(10, 0, 0, 1), port);
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
        self.cable.to_host.extend(port.frames.into_iter().filter(|_| !lost()));
    }
}

fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}
