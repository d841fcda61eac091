//! A scripted DHCP server on a link with a client and virtual time.

use crate::common::mac;
use drivers::hal::Instant;
use net::{Addressing, Interface, Notice};
use netsim::Collector;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv4Repr, UdpPacket,
    UdpRepr,
};
use std::net::Ipv4Addr;
use std::time::Duration;

pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
pub const OTHER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 50);

pub const DISCOVER: u8 = 1;
pub const OFFER: u8 = 2;
pub const REQUEST: u8 = 3;
pub const DECLINE: u8 = 4;
pub const ACK: u8 = 5;
pub const NAK: u8 = 6;

/// A message of the client.
#[derive(Clone, Debug)]
pub struct Heard {
    pub at: Instant,
    pub kind: u8,
    pub to_all: bool,
    pub transaction: [u8; 4],
    pub client: Ipv4Addr,
    pub options: Vec<(u8, Vec<u8>)>,
    pub length: usize,
}

impl Heard {
    fn of(frame: &[u8], at: Instant) -> Option<Self> {
        let frame = EthernetFrame::new_checked(frame).ok()?;
        if frame.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(frame.payload()).ok()?;
        let udp = UdpPacket::new_checked(ip.payload()).ok()?;
        if udp.dst_port() != 67 {
            return None;
        }
        assert!(ip.verify_checksum());
        assert!(udp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()));
        let bytes = udp.payload();
        assert_eq!((&bytes[..3], &bytes[28..34]), (&[1, 1, 6][..], &mac(1)[..]));
        assert_eq!(bytes[236..240], [99, 130, 83, 99]);
        let (mut options, mut rest) = (Vec::new(), &bytes[240..]);
        while rest[0] != 255 {
            let (option, behind) = rest[2..].split_at(rest[1].into());
            options.push((rest[0], option.to_vec()));
            rest = behind;
        }
        let [_, _, _, _, t0, t1, t2, t3, ..] = *bytes else { return None };
        Some(Heard {
            at,
            kind: options.iter().find(|(code, _)| *code == 53)?.1[0],
            to_all: frame.dst_addr() == EthernetAddress::BROADCAST,
            transaction: [t0, t1, t2, t3],
            client: Ipv4Addr::new(bytes[12], bytes[13], bytes[14], bytes[15]),
            options,
            length: bytes.len(),
        })
    }

    pub fn option(&self, code: u8) -> Option<&[u8]> {
        self.options.iter().find(|(other, _)| *other == code).map(|(_, value)| &value[..])
    }
}

/// A message of a server.
#[derive(Clone, Debug)]
pub struct Reply {
    pub source: Ipv4Addr,
    pub address: Ipv4Addr,
    pub transaction: [u8; 4],
    pub hardware: [u8; 6],
    pub options: Vec<u8>,
    pub file: Vec<u8>,
    pub server_name: Vec<u8>,
    pub delay: Duration,
}

/// One option.
pub fn option(code: u8, value: &[u8]) -> Vec<u8> {
    [&[code, value.len() as u8], value].concat()
}

impl Reply {
    /// A message with type and server only.
    pub fn bare(heard: &Heard, server: Ipv4Addr, kind: u8) -> Self {
        Reply {
            source: server,
            address: if kind == NAK { Ipv4Addr::UNSPECIFIED } else { ADDRESS },
            transaction: heard.transaction,
            hardware: mac(1),
            options: [option(53, &[kind]), option(54, &server.octets())].concat(),
            file: Vec::new(),
            server_name: Vec::new(),
            delay: Duration::ZERO,
        }
    }

    pub fn with(mut self, code: u8, value: &[u8]) -> Self {
        self.options.extend(option(code, value));
        self
    }

    pub fn frame(&self) -> Vec<u8> {
        let mut bytes = vec![0; 236];
        bytes[..3].copy_from_slice(&[2, 1, 6]);
        bytes[4..8].copy_from_slice(&self.transaction);
        bytes[16..20].copy_from_slice(&self.address.octets());
        bytes[28..34].copy_from_slice(&self.hardware);
        bytes[44..][..self.server_name.len()].copy_from_slice(&self.server_name);
        bytes[108..][..self.file.len()].copy_from_slice(&self.file);
        bytes.extend([99, 130, 83, 99]);
        bytes.extend(&self.options);
        bytes.push(255);
        let (checksums, to) = (ChecksumCapabilities::default(), Ipv4Addr::BROADCAST);
        let udp = UdpRepr { src_port: 67, dst_port: 68 };
        let ip = Ipv4Repr {
            src_addr: self.source,
            dst_addr: to,
            next_header: IpProtocol::Udp,
            payload_len: 8 + bytes.len(),
            hop_limit: 64,
        };
        let mut frame = vec![0; 14 + ip.buffer_len() + ip.payload_len];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame[..]);
        ethernet.set_src_addr(EthernetAddress(mac(self.source.octets()[3])));
        ethernet.set_dst_addr(EthernetAddress::BROADCAST);
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        ip.emit(&mut packet, &checksums);
        let mut datagram = UdpPacket::new_unchecked(packet.payload_mut());
        let fill = |payload: &mut [u8]| payload.copy_from_slice(&bytes);
        let (from, to) = (self.source.into(), to.into());
        udp.emit(&mut datagram, &from, &to, bytes.len(), fill, &checksums);
        frame
    }
}

/// The reply of a server that offers and grants, with these additional options.
pub fn granting(heard: &Heard, server: Ipv4Addr, options: &[(u8, &[u8])]) -> Vec<Reply> {
    let kind = match heard.kind {
        DISCOVER => OFFER,
        REQUEST if heard.option(54).is_none_or(|chosen| chosen == server.octets()) => ACK,
        _ => return Vec::new(),
    };
    let bare = Reply::bare(heard, server, kind);
    Vec::from([options.iter().fold(bare, |reply, (code, value)| reply.with(*code, value))])
}

pub const MASK: (u8, &[u8]) = (1, &[255, 255, 255, 0]);
pub const ROUTER: (u8, &[u8]) = (3, &[10, 7, 0, 1]);

/// A lease of `seconds` with mask and router.
pub fn lease(heard: &Heard, seconds: u32) -> Vec<Reply> {
    granting(heard, SERVER, &[MASK, ROUTER, (51, &seconds.to_be_bytes())])
}

/// An ARP reply: `ip` is at `station`.
fn arp_reply(ip: Ipv4Addr, station: u8, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = [mac(1), mac(station)].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(mac(station));
    frame.extend(ip.octets());
    frame.extend(mac(1));
    frame.extend(target.octets());
    frame
}

type Script<'a> = dyn FnMut(&Heard) -> Vec<Reply> + 'a;

/// A client on a link.
pub struct World {
    pub now: Instant,
    pub interface: Interface,
    /// Messages of the client so far.
    pub heard: Vec<Heard>,
    pub frames: Vec<Vec<u8>>,
    pub notices: Vec<Notice>,
    /// Addresses of stations that answer ARP, with the last byte of their MAC addresses.
    pub stations: Vec<(Ipv4Addr, u8)>,
    under_way: Vec<(Instant, Vec<u8>)>,
}

impl World {
    /// A world with a client that probes addresses before it uses them.
    pub fn probing() -> Self {
        Self::made(true)
    }

    pub fn new() -> Self {
        Self::made(false)
    }

    fn made(probes: bool) -> Self {
        let now = Instant::from_nanos(1);
        let mut interface = Interface::new(mac(1), 1500, [9; 32], now);
        if probes {
            interface.detect_duplicates(now);
        }
        interface.set_hostname("gate-1");
        let addressing = Addressing { dhcp: true, ..Addressing::default() };
        interface.set_addressing(addressing, now).unwrap();
        World {
            now,
            interface,
            heard: Vec::new(),
            frames: Vec::new(),
            notices: Vec::new(),
            stations: Vec::from([(SERVER, 1 + 100), (OTHER, 2 + 100)]),
            under_way: Vec::new(),
        }
    }

    /// Runs from timer to timer, as the loop does. Returns the number of wake-ups.
    pub fn run(&mut self, time: Duration, script: &mut Script<'_>) -> usize {
        let (end, mut wakeups) = (self.now + time, 0);
        while self.now < end {
            let now = self.now;
            let (due, later) =
                core::mem::take(&mut self.under_way).into_iter().partition(|f| f.0 <= now);
            self.under_way = later;
            for (_, frame) in due {
                self.interface.handle_frame(&frame, now);
            }
            self.interface.poll(now);
            self.notices.extend(core::iter::from_fn(|| self.interface.next_notice()));
            let mut port = Collector::new(64);
            self.interface.transmit(&mut port, |_| ());
            for frame in port.frames {
                if frame[12..14] == [8, 6] && frame[20..22] == [0, 1] {
                    let at = |at: usize| {
                        Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3])
                    };
                    let (sender, wanted) = (at(28), at(38));
                    for &(ip, station) in
                        self.stations.iter().filter(|(ip, _)| *ip == wanted && sender != wanted)
                    {
                        self.under_way.push((now, arp_reply(ip, station, sender)));
                    }
                }
                if let Some(heard) = Heard::of(&frame, now) {
                    for reply in script(&heard) {
                        self.under_way.push((now + reply.delay, reply.frame()));
                    }
                    self.heard.push(heard);
                }
                self.frames.push(frame);
            }
            let arrives = self.under_way.iter().map(|(at, _)| *at).min();
            match [self.interface.poll_timeout(), arrives].into_iter().flatten().min() {
                Some(at) if at <= self.now => (),
                at => {
                    self.now = at.map_or(end, |at| at.min(end));
                    wakeups += 1;
                }
            }
        }
        wakeups
    }

    pub fn addresses(&self) -> Vec<String> {
        let all = self.interface.addresses().iter().map(ToString::to_string);
        all.filter(|address| !address.contains(':')).collect()
    }

    pub fn log(&self) -> Vec<String> {
        self.notices.iter().map(|notice| format!("{:?}: {notice}", notice.severity)).collect()
    }

    pub fn kinds(&self) -> Vec<u8> {
        self.heard.iter().map(|heard| heard.kind).collect()
    }
}
