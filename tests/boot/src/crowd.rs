//! TCP clients on a peer's wire, each with its own IP and MAC address, built from single frames. They know the
//! appliance's MAC address, but are not in its neighbour table.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, IpProtocol,
    Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

use crate::peer::Peer;

/// Time after which a client repeats its SYN.
const RETRY: Duration = Duration::from_secs(1);
const ISN: i32 = 1000;

/// One client.
struct Client {
    ip: Ipv4Addr,
    mac: EthernetAddress,
    port: u16,
    /// Time of the last SYN.
    syn_sent: Instant,
    /// Next sequence number.
    next: TcpSeqNumber,
    /// Whether the SYN was answered.
    connected: bool,
    /// Received data.
    answer: Vec<u8>,
}

/// The clients, and their server.
pub struct Crowd<'a> {
    peer: &'a mut Peer,
    server: (Ipv4Addr, u16),
    server_mac: EthernetAddress,
}

impl<'a> Crowd<'a> {
    /// Clients of a port of the appliance. Resolves the appliance's MAC address.
    pub fn new(peer: &'a mut Peer, server: Ipv4Addr, port: u16) -> Result<Crowd<'a>> {
        let (us, mac) = (Ipv4Addr::new(10, 9, 0, 3), EthernetAddress([2, 0, 0, 0, 0, 3]));
        let mut crowd = Crowd { peer, server: (server, port), server_mac: EthernetAddress([0; 6]) };
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut again = Instant::now();
        loop {
            ensure!(Instant::now() < deadline, "no ARP reply from {server}");
            if again <= Instant::now() {
                again = Instant::now() + RETRY;
                let question =
                    arp(ArpOperation::Request, (mac, us), (EthernetAddress([0; 6]), server));
                crowd.send(EthernetAddress::BROADCAST, mac, EthernetProtocol::Arp, &question)?;
            }
            let Some(frame) = crowd.peer.receive_frame(Duration::from_millis(10))? else {
                continue;
            };
            if let Some((ArpOperation::Reply, (from, ip), _)) = parse_arp(&frame)
                && ip == server
            {
                crowd.server_mac = from;
                return Ok(crowd);
            }
        }
    }

    /// Lets `count` clients connect at once and send `request`. Returns the time until each has received a reply that
    /// contains `wanted`.
    pub fn request(&mut self, count: u8, request: &[u8], wanted: &[u8]) -> Result<Duration> {
        let start = Instant::now();
        let mut clients: Vec<Client> = (0..count)
            .map(|n| Client {
                ip: Ipv4Addr::new(10, 9, 0, 100 + n),
                mac: EthernetAddress([2, 0, 0, 0, 1, n]),
                port: 5000 + (start.elapsed().subsec_nanos() % 10_000) as u16 + u16::from(n),
                syn_sent: start,
                next: TcpSeqNumber(ISN),
                connected: false,
                answer: Vec::new(),
            })
            .collect();
        for client in &clients {
            self.send_segment(client, TcpControl::Syn, None, &[])?;
        }
        let has = |client: &Client| {
            wanted.is_empty() || client.answer.windows(wanted.len()).any(|part| part == wanted)
        };
        while !clients.iter().all(has) {
            ensure!(
                start.elapsed() < Duration::from_secs(30),
                "not all clients are served within 30 s"
            );
            for client in &mut clients {
                if !client.connected && client.syn_sent.elapsed() > RETRY {
                    client.syn_sent = Instant::now();
                    self.send_segment(client, TcpControl::Syn, None, &[])?;
                }
            }
            let Some(frame) = self.peer.receive_frame(Duration::from_millis(10))? else { continue };
            self.handle(&frame, &mut clients, request)?;
        }
        let took = start.elapsed();
        for client in &clients {
            self.send_segment(client, TcpControl::Rst, None, &[])?;
        }
        Ok(took)
    }

    /// Handles a frame from the appliance.
    fn handle(&mut self, frame: &[u8], clients: &mut [Client], request: &[u8]) -> Result<()> {
        if let Some((ArpOperation::Request, asker, (_, target))) = parse_arp(frame) {
            if let Some(client) = clients.iter().find(|client| client.ip == target) {
                let answer = arp(ArpOperation::Reply, (client.mac, client.ip), asker);
                self.send(asker.0, client.mac, EthernetProtocol::Arp, &answer)?;
            }
            return Ok(());
        }
        let Some(packet) = frame.get(14..).and_then(|p| Ipv4Packet::new_checked(p).ok()) else {
            return Ok(());
        };
        if packet.next_header() != IpProtocol::Tcp {
            return Ok(());
        }
        let Ok(segment) = TcpPacket::new_checked(packet.payload()) else { return Ok(()) };
        let to = (packet.dst_addr(), segment.dst_port());
        let Some(client) = clients.iter_mut().find(|client| (client.ip, client.port) == to) else {
            return Ok(());
        };
        ensure!(!segment.rst(), "a client was refused");
        if segment.syn() {
            client.next = TcpSeqNumber(ISN) + 1;
            let acknowledged = segment.seq_number() + 1;
            client.connected = true;
            return self.send_segment(client, TcpControl::Psh, Some(acknowledged), request);
        }
        let data = segment.payload();
        if !data.is_empty() {
            client.next = segment.ack_number();
            client.answer.extend_from_slice(data);
            return self.send_segment(
                client,
                TcpControl::None,
                Some(segment.seq_number() + data.len()),
                &[],
            );
        }
        Ok(())
    }

    /// Sends a TCP segment of a client.
    fn send_segment(
        &mut self,
        client: &Client,
        control: TcpControl,
        ack_number: Option<TcpSeqNumber>,
        payload: &[u8],
    ) -> Result<()> {
        let tcp = TcpRepr {
            src_port: client.port,
            dst_port: self.server.1,
            control,
            seq_number: client.next,
            ack_number,
            window_len: 0xffff,
            window_scale: None,
            max_seg_size: (control == TcpControl::Syn).then_some(1460),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload,
        };
        let ip = Ipv4Repr {
            src_addr: client.ip,
            dst_addr: self.server.0,
            next_header: IpProtocol::Tcp,
            payload_len: tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut packet = vec![0; 20 + tcp.buffer_len()];
        let checksums = ChecksumCapabilities::default();
        ip.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &checksums);
        let (from, to) = (ip.src_addr.into(), ip.dst_addr.into());
        tcp.emit(&mut TcpPacket::new_unchecked(&mut packet[20..]), &from, &to, &checksums);
        self.send(self.server_mac, client.mac, EthernetProtocol::Ipv4, &packet)
    }

    fn send(
        &mut self,
        to: EthernetAddress,
        from: EthernetAddress,
        kind: EthernetProtocol,
        packet: &[u8],
    ) -> Result<()> {
        let mut bytes = vec![0; 14 + packet.len()];
        let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
        frame.set_dst_addr(to);
        frame.set_src_addr(from);
        frame.set_ethertype(kind);
        frame.payload_mut().copy_from_slice(packet);
        self.peer.send_frame_soon(&bytes).context("the wire")
    }
}

fn arp(
    operation: ArpOperation,
    source: (EthernetAddress, Ipv4Addr),
    target: (EthernetAddress, Ipv4Addr),
) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: source.0,
        source_protocol_addr: source.1,
        target_hardware_addr: target.0,
        target_protocol_addr: target.1,
    };
    let mut bytes = vec![0; repr.buffer_len()];
    repr.emit(&mut ArpPacket::new_unchecked(&mut bytes[..]));
    bytes
}

type Station = (EthernetAddress, Ipv4Addr);

fn parse_arp(frame: &[u8]) -> Option<(ArpOperation, Station, Station)> {
    if frame.get(12..14)? != [8, 6] {
        return None;
    }
    let packet = ArpPacket::new_checked(frame.get(14..)?).ok()?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    } = ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    let source = (source_hardware_addr, source_protocol_addr);
    Some((operation, source, (target_hardware_addr, target_protocol_addr)))
}
