//! A malicious station, which builds its packets byte by byte, on a network of its own with the appliance, 10.0.1.0/24.
//! It implements just enough of the connection manager and of `perftest -R` to connect and to learn a region's key.
//! No engine keeps it to the protocol.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::qemu::Nic;
use perf_responders::perftest;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use roce::wire::cm::{Brief, BriefKind, Message, REQ_PRIVATE_DATA, Rep, Req};
use roce::wire::ip_cm::{self, IpCm};
use roce::wire::mad::{self, Mad};
use tempfile::TempDir;

use crate::packet::{Packet, opcode, reth};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// The appliance's second interface; the first ends in 01.
const APPLIANCE_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 2];
/// The station's address.
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
/// The appliance's address.
pub const APPLIANCE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
/// PSN of the appliance's first packet to the station.
const FIRST_PSN: u32 = 1000;
/// How long a reply may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Payload of a full packet.
pub const PATH_MTU: usize = 1024;
/// The version message of `perftest -R`.
const VERSION: &[u8; 16] = b"6.11\0\0\0\0\0\0\0\0\0\0\0\0";
/// Bytes of a key message of `perftest -R`.
const KEY: usize = 56;

/// Operations of ARP.
pub const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];

/// An ARP frame: broadcast if the target's MAC address is zero.
pub fn arp(operation: [u8; 2], from: ([u8; 6], Ipv4Addr), to: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
    let destination = if to.0 == [0; 6] { [0xff; 6] } else { to.0 };
    let mut frame = [destination, from.0].concat();
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4]);
    frame.extend(operation);
    frame.extend([&from.0[..], &from.1.octets(), &to.0, &to.1.octets()].concat());
    frame
}

/// The station.
pub struct Crafter {
    socket: UnixDatagram,
    appliance: PathBuf,
    received: VecDeque<Packet>,
    rng: StdRng,
    next: u32,
    directory: TempDir,
}

/// A connection between a queue pair of the station and one of the appliance.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// QPN of the station.
    pub ours: u32,
    /// QPN of the appliance.
    pub theirs: u32,
    /// PSN of the station's next packet.
    pub psn: u32,
    /// PSN of the appliance's next packet.
    expected: u32,
    ids: [u32; 2],
}

/// The connections and the region that an attack works on.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    control: Link,
    /// The connection to attack.
    pub link: Link,
    /// Address of the region, which is 8 MiB long.
    pub address: u64,
    /// The region's key.
    pub rkey: u32,
}

/// The appliance's response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Acknowledged.
    Ack,
    /// NAK, with its syndrome.
    Nak(u8),
    /// No response in time.
    Silence,
}

impl Crafter {
    /// A station whose random numbers come from `seed`.
    pub fn new(seed: u64) -> Result<Crafter> {
        let directory = tempfile::Builder::new().prefix("isthmus-crafter-").tempdir()?;
        let socket = UnixDatagram::bind(directory.path().join("ours"))?;
        let appliance = directory.path().join("appliance");
        let (received, rng) = (VecDeque::new(), StdRng::seed_from_u64(seed));
        Ok(Crafter { socket, appliance, received, rng, next: 0x100, directory })
    }

    /// The appliance's interface on this network.
    pub fn nic(&self) -> Nic {
        let (ours, peer) = (self.appliance.clone(), self.directory.path().join("ours"));
        Nic::Dgram { ours, peer }
    }

    /// Sends a frame as it is.
    pub fn send_frame(&self, frame: &[u8]) -> Result<()> {
        self.socket.send_to(frame, &self.appliance).context("the wire takes no frame")?;
        Ok(())
    }

    /// The frame of a packet.
    pub fn frame(&self, packet: &Packet) -> Vec<u8> {
        packet.frame(MAC, APPLIANCE_MAC, APPLIANCE)
    }

    /// Sends an ARP request, from which the appliance learns the station's address.
    pub fn meet(&self) -> Result<()> {
        self.send_frame(&arp(ARP_REQUEST, (MAC, OURS), ([0; 6], APPLIANCE)))
    }

    /// Sends a packet.
    pub fn send(&self, packet: &Packet) -> Result<()> {
        self.send_frame(&self.frame(packet))
    }

    /// A valid request on a link, with the AckReq bit set.
    pub fn request(&self, link: &Link, opcode: u8, body: Vec<u8>) -> Packet {
        let (qpn, psn) = (link.theirs, link.psn);
        Packet { source: OURS, opcode, pkey: 0xffff, qpn, ack_request: true, psn, pad: 0, body }
    }

    /// An RDMA WRITE of one packet.
    pub fn write(&self, link: &Link, address: u64, rkey: u32, payload: &[u8]) -> Packet {
        let reth = reth(address, rkey, payload.len() as u32);
        self.request(link, opcode::WRITE_ONLY, [&reth[..], payload].concat())
    }

    /// An RDMA READ.
    pub fn read(&self, link: &Link, address: u64, rkey: u32, length: u32) -> Packet {
        self.request(link, opcode::READ_REQUEST, reth(address, rkey, length))
    }

    /// Sends a packet, and waits for the response.
    pub fn try_packet(&mut self, link: &Link, packet: &Packet) -> Result<Answer> {
        self.send(packet)?;
        self.answer(link)
    }

    /// The next response on a link.
    pub fn answer(&mut self, link: &Link) -> Result<Answer> {
        let ours = link.ours;
        let response = self.wait(Duration::from_millis(700), |packet| {
            let read = packet.opcode == opcode::READ_RESPONSE_ONLY;
            packet.qpn == ours && (read || packet.opcode == opcode::ACKNOWLEDGE)
        })?;
        Ok(match response.map(|packet| packet.body[0]) {
            None => Answer::Silence,
            Some(syndrome) if syndrome & 0xe0 == 0 => Answer::Ack,
            Some(syndrome) => Answer::Nak(syndrome),
        })
    }

    /// Connects through the connection manager.
    pub fn connect(&mut self, port: u16) -> Result<Link> {
        let (req, link) = self.req(port);
        let rep = self.ask(&req)?;
        let rep = rep.map_err(|reason| anyhow::anyhow!("REJ with reason {reason}"))?;
        let ids = [link.ids[0], rep.local_id];
        let rtu = Brief { local_id: ids[0], remote_id: ids[1], kind: BriefKind::Rtu };
        self.send_mad(u64::from(link.ours), &Message::Brief(rtu))?;
        Ok(Link { theirs: rep.qpn, psn: rep.starting_psn, ids, ..link })
    }

    /// Sends a REQ, and returns the REP, or the reason of the REJ.
    pub fn ask(&mut self, req: &Req) -> Result<std::result::Result<Rep, u16>> {
        self.meet()?;
        self.send_mad(u64::from(req.qpn), &Message::Req(*req))?;
        self.wait_mad(|message| match message {
            Message::Rep(rep) if rep.remote_id == req.local_id => Some(Ok(rep)),
            Message::Rej(rej) if rej.remote_id == req.local_id => Some(Err(rej.reason)),
            _ => None,
        })
    }

    /// A valid REQ, and the link without the fields that the REP sets.
    pub fn req(&mut self, port: u16) -> (Req, Link) {
        self.next += 1;
        let (qpn, id) = (self.next, self.rng.random());
        let mut private_data = [0; REQ_PRIVATE_DATA];
        let (source, destination) = (IpAddr::V4(OURS), IpAddr::V4(APPLIANCE));
        let header = IpCm { source_port: 40_000, source, destination };
        if let Some(place) = private_data.first_chunk_mut() {
            header.emit(place);
        }
        let req = Req {
            local_id: id,
            service_id: ip_cm::service_id(port),
            ca_guid: 0x0200_00ff_fe00_0009,
            qpn,
            responder_resources: 4,
            initiator_depth: 4,
            remote_response_timeout: 20,
            transport: 0,
            starting_psn: FIRST_PSN,
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: 3,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            local_gid: OURS.to_ipv6_mapped().octets(),
            remote_gid: APPLIANCE.to_ipv6_mapped().octets(),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 17,
            private_data,
        };
        (req, Link { ours: qpn, theirs: 0, psn: 0, expected: FIRST_PSN, ids: [id, 0] })
    }

    /// The MAD packet of a management message.
    pub fn mad(&self, transaction: u64, message: &Message) -> Packet {
        let mut data = [0; mad::DATA_LEN];
        let attribute = message.emit(&mut data);
        let mut bytes = [0; mad::LEN];
        Mad { transaction, attribute }.emit(&data, &mut bytes);
        let deth = [mad::GSI_QKEY, mad::GSI_QPN].map(u32::to_be_bytes).concat();
        Packet {
            source: OURS,
            opcode: opcode::UD_SEND_ONLY,
            pkey: 0xffff,
            qpn: mad::GSI_QPN,
            ack_request: false,
            psn: 0,
            pad: 0,
            body: [&deth[..], &bytes].concat(),
        }
    }

    /// Sends a management message.
    pub fn send_mad(&self, transaction: u64, message: &Message) -> Result<()> {
        self.send(&self.mad(transaction, message))
    }

    /// Connects as `ib_write_bw -R` does, and learns a region's address and key.
    pub fn victim(&mut self) -> Result<Victim> {
        let mut control = self.connect(perftest::PORT)?;
        for message in [&VERSION[..], &[0, 0, 0x10, 0], &[0, 0, 0, 64], b"3\0"] {
            self.exchange(&mut control, message)?;
        }
        self.exchange(&mut control, &[0; KEY])?;
        let link = self.connect(perftest::PORT)?;
        self.exchange(&mut control, &[0; KEY])?;
        let mut key = [0; KEY];
        key[8..12].copy_from_slice(&link.ours.to_be_bytes());
        key[32..48].copy_from_slice(&OURS.to_ipv6_mapped().octets());
        let said = self.exchange(&mut control, &key)?;
        let word = |at: usize| Some(u32::from_be_bytes(*said.get(at..)?.first_chunk()?));
        let address = said.get(24..).and_then(|rest| rest.first_chunk());
        let (Some(address), Some(rkey)) = (address, word(16)) else { bail!("no key in {said:x?}") };
        ensure!(word(8) == Some(link.theirs), "the key is of another queue pair: {said:x?}");
        Ok(Victim { control, link, address: u64::from_be_bytes(*address), rkey })
    }

    /// Disconnects from a victim.
    pub fn leave(&mut self, victim: &Victim) -> Result<()> {
        for link in [&victim.link, &victim.control] {
            let kind = BriefKind::Dreq { remote_qpn: link.theirs };
            let dreq = Brief { local_id: link.ids[0], remote_id: link.ids[1], kind };
            self.send_mad(u64::from(link.ours), &Message::Brief(dreq))?;
            self.wait_mad(|message| match message {
                Message::Brief(b) if b.remote_id == link.ids[0] => Some(()),
                _ => None,
            })?;
        }
        Ok(())
    }

    /// Sends a message, and returns the reply.
    fn exchange(&mut self, link: &mut Link, message: &[u8]) -> Result<Vec<u8>> {
        let pad = message.len().next_multiple_of(4) - message.len();
        let body = [message, &[0; 4][..pad]].concat();
        let packet = self.request(link, opcode::SEND_ONLY, body);
        self.send(&Packet { pad: pad as u8, ..packet })?;
        link.psn = (link.psn + 1) & 0xff_ffff;
        let Link { ours, expected, .. } = *link;
        let send = |p: &Packet| (p.qpn, p.psn, p.opcode) == (ours, expected, opcode::SEND_ONLY);
        let said = self.wait(PATIENCE, send)?;
        let said = said.with_context(|| format!("no reply to {message:x?}"))?;
        let ack = self.request(link, opcode::ACKNOWLEDGE, vec![0x1f, 0, 0, 1]);
        self.send(&Packet { psn: expected, ack_request: false, ..ack })?;
        link.expected += 1;
        let length = said.body.len() - said.pad as usize;
        Ok(said.body[..length].to_vec())
    }

    /// Waits for a management message that `wanted` accepts. Replies to a DREQ in between.
    fn wait_mad<T>(&mut self, mut wanted: impl FnMut(Message) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let Some(packet) = self.wait(PATIENCE, |packet| packet.qpn == mad::GSI_QPN)? else {
                break;
            };
            let Ok((header, data)) = Mad::parse(packet.body.get(8..).unwrap_or_default()) else {
                bail!("the appliance sends a broken MAD")
            };
            let message = Message::parse(header.attribute, &data).context("a broken message")?;
            if let Message::Brief(Brief { local_id, remote_id, kind: BriefKind::Dreq { .. } }) =
                message
            {
                let (local_id, remote_id) = (remote_id, local_id);
                let drep = Brief { local_id, remote_id, kind: BriefKind::Drep };
                self.send_mad(header.transaction, &Message::Brief(drep))?;
            }
            if let Some(found) = wanted(message) {
                return Ok(found);
            }
        }
        bail!("no reply from the connection manager")
    }

    /// The next packet that is `wanted`, if it arrives in time. Other packets stay queued.
    fn wait(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&Packet) -> bool,
    ) -> Result<Option<Packet>> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(at) = self.received.iter().position(&wanted) {
                return Ok(self.received.remove(at));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut frame = [0; 16 * 1024];
            let Ok(length) = self.socket.recv(&mut frame) else { continue };
            if frame[12..14] == [8, 6]
                && frame[20..22] == ARP_REQUEST
                && frame[38..42] == OURS.octets()
            {
                self.send_frame(&arp(ARP_REPLY, (MAC, OURS), (APPLIANCE_MAC, APPLIANCE)))?;
            }
            let Some(packet) = Packet::parse(&frame[..length]) else { continue };
            if self.received.len() >= 256 {
                self.received.pop_front();
            }
            self.received.push_back(packet);
        }
    }

    /// Discards all received packets.
    pub fn discard_received(&mut self) -> Result<()> {
        while self.wait(Duration::from_millis(20), |_| true)?.is_some() {}
        Ok(())
    }

    /// The station's random numbers.
    pub fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }
}
