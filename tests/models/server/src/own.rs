//! Isthmus as an end point of a RapidIO network in this process: its driver on a model, enumeration, rionet and rio_cm.
//! The peer is a stock Linux in a guest.

use std::net::Ipv4Addr;
use std::time::Instant as Moment;

use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Port};
use drivers::rapidio::IdSize;
use metal::Metal;
use models::Nanoseconds;
use models::rapidio::Shared;
use models::tsi721::{Config, Tsi721};
use rapidio::end_point::{Config as Wanted, EndPoint};
use rapidio::enumeration::{Event, Role};
use rapidio::rionet::Rionet;

/// The `rio_cm` channel that echoes messages.
const ECHO: u16 = 10;
/// Rounds of the loop per call, and the longest pause between calls.
const TURNS: usize = 8;
const REST: Nanoseconds = 200_000;

/// Parses `agent`, or the id of a host.
pub fn role(text: &str) -> Result<Role, String> {
    match text {
        "agent" => Ok(Role::Agent),
        id => id.parse().map(Role::Host).map_err(|_| "accepted: agent, or a host's id".into()),
    }
}

/// The end point.
pub struct OwnEndPoint {
    machine: Metal<Tsi721>,
    end_point: EndPoint,
    rionet: Rionet,
    address: Ipv4Addr,
    then: Moment,
    pings: u64,
    walks: u64,
}

impl OwnEndPoint {
    /// Creates end point `me` of the network.
    pub fn new(network: &Shared, me: usize, role: Role, address: Ipv4Addr) -> Self {
        let model = Tsi721::new(Config::default(), network.clone(), me);
        let mut machine = Metal::new(model, 8 << 20);
        let device = machine.find().take(Class::RapidIo).remove(0);
        let port = device.open_rapidio(&mut machine).expect("the model is a good device");
        let wanted = Wanted { role, size: IdSize::Small, echo: Some(ECHO) };
        let opened = EndPoint::new(port, wanted, machine.arena());
        let (end_point, rionet) = opened.expect("there is memory enough");
        let then = Moment::now();
        OwnEndPoint { machine, end_point, rionet, address, then, pings: 0, walks: 0 }
    }

    /// State and counters, as lines.
    pub fn describe(&self) -> String {
        let master = self.end_point.master();
        let network = master.network();
        let peers: Vec<u16> = network.end_points().map(|device| device.id).collect();
        format!(
            "own.id {} {:?} {:?} walks {} peers {peers:?} pings {} echoed {} {:?} {:?} {:?}",
            network.own_id,
            master.role(),
            master.state(),
            self.walks,
            self.pings,
            self.end_point.echoed().0,
            self.end_point.channels().counters(),
            self.end_point.members().counters(),
            self.end_point.port().borrow().counters(),
        )
    }

    /// Runs some rounds of the loop. Returns the delay until the next call.
    pub fn turn(&mut self) -> Nanoseconds {
        for _ in 0..TURNS {
            self.one_turn();
        }
        REST
    }

    fn one_turn(&mut self) {
        self.rionet.flush();
        self.machine.run();
        let now = Moment::now();
        let now = self.machine.pass(now - std::mem::replace(&mut self.then, now));
        let walks = &mut self.walks;
        self.end_point.poll(now, |_, event| *walks += u64::from(event == Event::Changed));
        self.answer_frames();
    }

    /// Answers ARP requests (RFC 826) and ICMP echo requests (RFC 792).
    fn answer_frames(&mut self) {
        while let Some(frame) = self.rionet.receive() {
            let mut bytes = self.rionet.bytes(&frame).to_vec();
            self.rionet.recycle(frame);
            let mac = self.rionet.mac();
            let is_answered = match bytes.get(12..14) {
                Some([0x08, 0x06]) => answer_arp(&mut bytes, mac, self.address),
                Some([0x08, 0x00]) => answer_ping(&mut bytes, self.address),
                _ => false,
            };
            if !is_answered {
                continue;
            }
            self.pings += u64::from(bytes[13] == 0);
            let sender: [u8; 6] = bytes[6..12].try_into().expect("six bytes");
            bytes[..6].copy_from_slice(&sender);
            bytes[6..12].copy_from_slice(&mac);
            // Ethernet is lossy: without room the answer is dropped.
            let _ = self.rionet.transmit(&Packet { header: &bytes, payload: &[], trailer: &[] });
        }
    }
}

/// Turns an ARP request for `address` into its reply, except for the Ethernet header. Returns false for other frames.
pub fn answer_arp(bytes: &mut [u8], mac: [u8; 6], address: Ipv4Addr) -> bool {
    let Some(arp) = bytes.get_mut(14..42) else { return false };
    if arp[6..8] != [0, 1] || arp[24..28] != address.octets() {
        return false;
    }
    arp.copy_within(8..18, 18);
    arp[7] = 2;
    arp[8..14].copy_from_slice(&mac);
    arp[14..18].copy_from_slice(&address.octets());
    true
}

/// Turns an echo request to `address` into its reply, except for the Ethernet header. Returns false for other frames.
pub fn answer_ping(bytes: &mut Vec<u8>, address: Ipv4Addr) -> bool {
    let Some(header) = bytes.get(14..34) else { return false };
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_for_us = header[0] == 0x45 && header[9] == 1 && header[16..20] == address.octets();
    if !is_for_us || len < 28 || bytes.len() < 14 + len || bytes[34] != 8 {
        return false;
    }
    // Removes Ethernet padding.
    bytes.truncate(14 + len);
    for at in 26..30 {
        bytes.swap(at, at + 4);
    }
    bytes[34] = 0;
    // The type changes from 8 to 0, so the checksum rises by 0x0800 (RFC 1624).
    let sum = u32::from(u16::from_be_bytes([bytes[36], bytes[37]])) + 0x0800;
    let sum = (sum + (sum >> 16)) as u16;
    bytes[36..38].copy_from_slice(&sum.to_be_bytes());
    true
}
