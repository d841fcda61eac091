//! An end point of ours on a network whose other end points are guests': Isthmus' own driver on the model, and all
//! that stands on it, in this process. A stock Linux in a guest is its peer.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Instant as Moment;

use drivers::hal::{Instant, Packet, Platform, Port};
use drivers::rapidio::IdSize;
use drivers::registry::Class;
use metal::Metal;
use models::Nanoseconds;
use models::rapidio::Shared;
use models::tsi721::{Config, Tsi721};
use rapidio::enumeration::{Event, Master, Role};
use rapidio::rio_cm::{self, Engine};
use rapidio::rionet::{self, Rionet, SharedPort};

/// The channel whose messages are sent back.
const ECHO: u16 = 10;
/// Turns of the loop at a time, and how long it may rest between.
const TURNS: usize = 8;
const REST: Nanoseconds = 200_000;

/// `agent`, or the id of a host.
pub fn role(text: &str) -> Result<Role, String> {
    match text {
        "agent" => Ok(Role::Agent),
        id => id.parse().map(Role::Host).map_err(|_| "accepted: agent, or a host's id".into()),
    }
}

/// The end point.
pub struct OwnEndPoint {
    machine: Metal<Tsi721>,
    port: SharedPort,
    master: Master,
    rionet: Rionet,
    channels: Engine,
    address: Ipv4Addr,
    then: Moment,
    now: Instant,
    echoed: u64,
    pings: u64,
    walks: u64,
}

impl OwnEndPoint {
    /// End point `me` of the network.
    pub fn new(network: &Shared, me: usize, role: Role, address: Ipv4Addr) -> Self {
        let model = Tsi721::new(Config::default(), network.clone(), me);
        let mut machine = Metal::new(model, 8 << 20);
        let device = machine.find().take(Class::RapidIo).remove(0);
        let mut port = device.open_rapidio(&mut machine).expect("the model is a good device");
        for mailbox in [rionet::MAILBOX, rio_cm::MAILBOX] {
            assert!(port.open_mailbox(mailbox, machine.arena()), "there is memory enough");
        }
        let port: SharedPort = Rc::new(RefCell::new(port));
        let mut channels = Engine::new(IdSize::Small.any(), rio_cm::MAILBOX);
        channels.listen(ECHO).expect("the number is free");
        OwnEndPoint {
            machine,
            master: Master::new(role, IdSize::Small),
            rionet: Rionet::new(port.clone()),
            channels,
            port,
            address,
            then: Moment::now(),
            now: Instant::ZERO,
            echoed: 0,
            pings: 0,
            walks: 0,
        }
    }

    /// What it has seen.
    pub fn describe(&self) -> String {
        let network = self.master.network();
        let peers: Vec<u16> = network.end_points().map(|device| device.id).collect();
        format!(
            "own.id {} {:?} {:?} walks {} peers {peers:?} pings {} echoed {} {:?} {:?} {:?}",
            network.own_id,
            self.master.role(),
            self.master.state(),
            self.walks,
            self.pings,
            self.echoed,
            self.channels.counters(),
            self.rionet.other_counters(),
            self.port.borrow().counters(),
        )
    }

    /// Some turns of its loop; when it wants more.
    pub fn turn(&mut self) -> Nanoseconds {
        for _ in 0..TURNS {
            self.one_turn();
        }
        REST
    }

    fn one_turn(&mut self) {
        self.port.borrow_mut().flush();
        self.machine.run();
        let now = Moment::now();
        self.now = self.machine.pass(now - std::mem::replace(&mut self.then, now));
        self.port.borrow_mut().poll(self.now);
        self.master.poll(&mut *self.port.borrow_mut(), self.now);
        while let Some(event) = self.master.event() {
            if event == Event::Changed {
                self.walks += 1;
                let network = self.master.network();
                self.rionet.set_network(network);
                self.channels.set_own_id(network.own_id);
                let is_gone = |id| !network.end_points().any(|device| device.id == id);
                self.channels.devices_gone(is_gone);
            }
        }
        while let Some(doorbell) = { self.port.borrow_mut().doorbell() } {
            self.rionet.hear(&doorbell);
        }
        while let Some(lost) = { self.port.borrow_mut().undelivered() } {
            if lost.mailbox == rionet::MAILBOX {
                self.rionet.undelivered(&lost);
            }
        }
        self.rionet.poll(self.now);
        self.answer_frames();
        self.receive_messages();
        self.serve_channels();
        self.send_control();
        self.channels.poll(self.now);
    }

    fn receive_messages(&mut self) {
        while let Some(message) = { self.port.borrow_mut().receive(rio_cm::MAILBOX) } {
            let mut bytes = vec![0; message.len.into()];
            if self.port.borrow().payload(&message).read(0, &mut bytes).is_ok() {
                self.channels.deliver(message.from, &bytes, self.now);
            }
            self.port.borrow_mut().recycle(message);
        }
    }

    fn send_control(&mut self) {
        while let Some((to, header)) = self.channels.outgoing() {
            let packet = Packet { header: &header, payload: &[], trailer: &[] };
            if self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).is_err() {
                break;
            }
            self.channels.was_sent();
        }
    }

    fn serve_channels(&mut self) {
        while let Some(number) = self.channels.next_news() {
            if number == ECHO {
                while let Ok(Some(_)) = self.channels.accept(ECHO, self.now) {}
                // The acknowledgement goes ahead of any data.
                self.send_control();
                continue;
            }
            loop {
                match self.channels.receive(number, <[u8]>::to_vec) {
                    Ok(Some(data)) => self.echo(number, &data),
                    Ok(None) => break,
                    Err(_) => {
                        self.channels.close(number);
                        break;
                    }
                }
            }
        }
    }

    fn echo(&mut self, number: u16, data: &[u8]) {
        let Ok((to, header)) = self.channels.header(number, data.len()) else { return };
        let message = [&header[..], data].concat();
        let packet = Packet { header: &message, payload: &[], trailer: &[] };
        if self.port.borrow_mut().send(rio_cm::MAILBOX, to, &packet).is_ok() {
            self.echoed += 1;
        }
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
            // One that finds no room is lost, as frames are.
            let _ = self.rionet.transmit(&Packet { header: &bytes, payload: &[], trailer: &[] });
        }
    }
}

/// Makes an ARP request for the address its answer, but for the Ethernet header; false if it is none.
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

/// Makes a ping of the address its answer, but for the Ethernet header; false if it is none.
pub fn answer_ping(bytes: &mut Vec<u8>, address: Ipv4Addr) -> bool {
    let Some(header) = bytes.get(14..34) else { return false };
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_for_us = header[0] == 0x45 && header[9] == 1 && header[16..20] == address.octets();
    if !is_for_us || len < 28 || bytes.len() < 14 + len || bytes[34] != 8 {
        return false;
    }
    // What is behind the packet is padding.
    bytes.truncate(14 + len);
    for at in 26..30 {
        bytes.swap(at, at + 4);
    }
    bytes[34] = 0;
    // The sum has lost 8 in its upper byte (RFC 1624).
    let sum = u32::from(u16::from_be_bytes([bytes[36], bytes[37]])) + 0x0800;
    let sum = (sum + (sum >> 16)) as u16;
    bytes[36..38].copy_from_slice(&sum.to_be_bytes());
    true
}
