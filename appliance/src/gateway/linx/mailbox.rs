//! RIOCM's messages in the mailboxes of RapidIO ports. A port is there for RIOCM while its network is known.

use crate::config::{Config, LinxTransport};
use crate::gateway::rapidio::RapidioPort;
use ::linx::Node;
use ::rapidio::enumeration::State;
use drivers::hal::{Arena, Instant, Packet};
use drivers::rapidio::Mailbox;

/// Messages that are taken from a mailbox in one round.
const BATCH: usize = 64;
/// Bytes of the longest RapidIO message.
const MOST: usize = 4096;

/// What the engine calls the port of `[[rapidio]]` number `number`.
pub(super) fn port_name(number: usize) -> String {
    format!("rapidio.{number}")
}

/// A port that links use.
struct Used {
    /// Its number among the plane's RapidIO ports, and that of its `[[rapidio]]`.
    place: usize,
    number: usize,
    /// Mailboxes in which RIOCM's messages come, and those by which they go: what is sent to a mailbox goes out by our
    /// own of the same number.
    inbound: Vec<Mailbox>,
    outbound: Vec<Mailbox>,
    /// What the engine calls it, and the id that it had then; None while its network is not known.
    known: Option<(usize, u16)>,
}

/// All of them.
pub(super) struct Mailboxes {
    used: Vec<Used>,
    message: Box<[u8; MOST]>,
    /// There is more to send than there was room for.
    pub want_room: bool,
}

impl Mailboxes {
    /// Opens the mailboxes that the configuration wants.
    pub fn new(config: &Config, rapidio: &[RapidioPort], arena: &mut Arena) -> Self {
        let mut used = Vec::new();
        for (place, port) in rapidio.iter().enumerate() {
            let links = config.linx.iter().filter(|link| {
                link.transport == LinxTransport::Riocm
                    && link.rapidio.map(usize::from) == Some(port.number)
            });
            let (ours, theirs): (Vec<u8>, Vec<u8>) = links.map(|link| link.mailboxes()).unzip();
            let all = |numbers: Vec<u8>| -> Vec<Mailbox> {
                Mailbox::ALL.into_iter().filter(|one| numbers.contains(&one.number())).collect()
            };
            let (inbound, outbound) = (all(ours), all(theirs));
            for &mailbox in inbound.iter().chain(&outbound) {
                if !port.end_point.port().borrow_mut().open_mailbox(mailbox, arena) {
                    log::error!("{}: DMA arena is full: give the machine more memory", port.name);
                }
            }
            if !inbound.is_empty() {
                used.push(Used { place, number: port.number, inbound, outbound, known: None });
            }
        }
        Mailboxes { used, message: Box::new([0; MOST]), want_room: false }
    }

    /// Tells the engine which ports there are.
    pub fn see(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) {
        for used in &mut self.used {
            let Some(port) = rapidio.get(used.place) else { continue };
            let master = port.end_point.master();
            let id = (master.state() == State::Ready).then_some(master.network().own_id);
            if used.known.map(|(_, id)| id) == id {
                continue;
            }
            if let Some((known, _)) = used.known.take() {
                node.remove_port(known, now);
            }
            let Some(id) = id else { continue };
            match node.add_port(&port_name(used.number), id, MOST as u16) {
                Ok(known) => used.known = Some((known, id)),
                Err(why) => log::error!("{}: {why}", port.name),
            }
        }
    }

    /// Takes what has arrived; how many messages.
    pub fn receive(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) -> usize {
        self.see(node, rapidio, now);
        let Mailboxes { used, message: bytes, .. } = self;
        let mut taken = 0;
        for used in used {
            let Some(port) = rapidio.get(used.place) else { continue };
            let tap = port.end_point.tap();
            let mut port = port.end_point.port().borrow_mut();
            for &mailbox in &used.inbound {
                // What is left in the mailbox, RapidIO holds back at its senders.
                while taken < BATCH
                    && !node.is_congested()
                    && let Some(message) = port.receive(mailbox)
                {
                    taken += 1;
                    let bytes = bytes.get_mut(..usize::from(message.len)).unwrap_or_default();
                    let read = port.payload(&message).read(0, bytes);
                    let from = message.from;
                    port.recycle(message);
                    tap.received(from, mailbox, bytes);
                    if let (Ok(()), Some((known, _))) = (read, used.known) {
                        node.receive(known, from, bytes, now);
                    }
                }
            }
        }
        taken
    }

    /// Sends what there is room for; how many messages.
    pub fn send(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) -> usize {
        if self.used.is_empty() {
            return 0;
        }
        let has_room = |used: &Used| {
            let port = rapidio.get(used.place).map(|port| port.end_point.port().borrow());
            port.is_none_or(|port| used.outbound.iter().all(|mailbox| port.has_room(*mailbox, 1)))
        };
        let mut sent = 0;
        loop {
            self.want_room = !self.used.iter().all(has_room);
            if self.want_room {
                break;
            }
            let Some(packet) = node.poll_transmit(now) else { break };
            sent += 1;
            let known = |used: &&Used| used.known.is_some_and(|(known, _)| known == packet.port);
            let place = self.used.iter().find(known).map(|used| used.place);
            let length = packet.write(&mut self.message[..]);
            let port = place.and_then(|place| rapidio.get(place));
            let (Some(port), Some(mailbox)) = (port, Mailbox::new(packet.mailbox)) else {
                continue;
            };
            port.end_point.tap().sent(packet.destination, mailbox, &self.message[..length]);
            let message = Packet { header: &self.message[..length], payload: &[], trailer: &[] };
            // One that is lost for want of a link, the engine finds out.
            let _ = port.end_point.port().borrow_mut().send(mailbox, packet.destination, &message);
        }
        sent
    }
}
