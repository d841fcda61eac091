//! RIOCM messages in the mailboxes of RapidIO ports. RIOCM uses a port while its network is enumerated.

use crate::config::{Config, LinxTransport};
use crate::gateway::rapidio::RapidioPort;
use ::linx::Node;
use ::rapidio::enumeration::State;
use drivers::hal::{Arena, Instant, Packet};
use drivers::rapidio::Mailbox;

/// Messages received from mailboxes in one round.
const BATCH: usize = 64;
/// Bytes of the longest RapidIO message.
const MOST: usize = 4096;

/// The engine's name of the port of `[[rapidio]]` number `number`.
pub(super) fn port_name(number: usize) -> String {
    format!("rapidio.{number}")
}

/// A port with links.
struct LinkPort {
    /// Index among the plane's RapidIO ports.
    place: usize,
    /// Number of its `[[rapidio]]`.
    number: usize,
    /// Mailboxes that receive RIOCM messages.
    inbound: Vec<Mailbox>,
    /// Mailboxes that send them: a message to a mailbox is sent by our own of the same number.
    outbound: Vec<Mailbox>,
    /// ID in the engine, and RapidIO ID at that time; None while its network is not enumerated.
    added: Option<(usize, u16)>,
}

/// All ports with links.
pub(super) struct Mailboxes {
    ports: Vec<LinkPort>,
    message: Box<[u8; MOST]>,
    /// Messages wait for room in a mailbox.
    pub want_room: bool,
}

impl Mailboxes {
    /// No ports.
    pub fn new() -> Self {
        Mailboxes { ports: Vec::new(), message: Box::new([0; MOST]), want_room: false }
    }

    /// Opens the configured mailboxes. Mailboxes of removed links stay open.
    #[cold]
    pub fn configure(&mut self, config: &Config, rapidio: &[RapidioPort], arena: &mut Arena) {
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
            let known = self.ports.iter_mut().find(|known| known.place == place);
            let was_open = |mailbox: &Mailbox| {
                let open = known.as_ref().map(|known| known.inbound.iter().chain(&known.outbound));
                open.is_some_and(|mut open| open.any(|one| one == mailbox))
            };
            for &mailbox in inbound.iter().chain(&outbound).filter(|one| !was_open(one)) {
                if !port.end_point.port().borrow_mut().open_mailbox(mailbox, arena) {
                    log::error!("{}: DMA arena is full: give the machine more memory", port.name);
                }
            }
            match known {
                Some(known) => (known.inbound, known.outbound) = (inbound, outbound),
                None if inbound.is_empty() => {}
                None => {
                    let number = port.number;
                    self.ports.push(LinkPort { place, number, inbound, outbound, added: None });
                }
            }
        }
    }

    /// Adds ports with an enumerated network to the engine, and removes others.
    pub fn update_ports(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) {
        for link_port in &mut self.ports {
            let Some(port) = rapidio.get(link_port.place) else { continue };
            let master = port.end_point.master();
            let id = (master.state() == State::Ready).then_some(master.network().own_id);
            if link_port.added.map(|(_, id)| id) == id {
                continue;
            }
            if let Some((added, _)) = link_port.added.take() {
                node.remove_port(added, now);
            }
            let Some(id) = id else { continue };
            match node.add_port(&port_name(link_port.number), id, MOST as u16) {
                Ok(added) => link_port.added = Some((added, id)),
                Err(why) => log::error!("{}: {why}", port.name),
            }
        }
    }

    /// Receives messages. Returns their number.
    pub fn receive(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) -> usize {
        self.update_ports(node, rapidio, now);
        let Mailboxes { ports, message: bytes, .. } = self;
        let mut taken = 0;
        for link_port in ports {
            let Some(port) = rapidio.get(link_port.place) else { continue };
            let tap = port.end_point.tap();
            let mut port = port.end_point.port().borrow_mut();
            for &mailbox in &link_port.inbound {
                // RapidIO makes senders retry while the mailbox is full.
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
                    if let (Ok(()), Some((added, _))) = (read, link_port.added) {
                        node.receive(added, from, bytes, now);
                    }
                }
            }
        }
        taken
    }

    /// Sends messages while there is room. Returns their number.
    pub fn send(&mut self, node: &mut Node, rapidio: &[RapidioPort], now: Instant) -> usize {
        if self.ports.is_empty() {
            return 0;
        }
        let has_room = |link_port: &LinkPort| {
            let port = rapidio.get(link_port.place).map(|port| port.end_point.port().borrow());
            port.is_none_or(|port| {
                link_port.outbound.iter().all(|mailbox| port.has_room(*mailbox, 1))
            })
        };
        let mut sent = 0;
        loop {
            self.want_room = !self.ports.iter().all(has_room);
            if self.want_room {
                break;
            }
            let Some(packet) = node.poll_transmit(now) else { break };
            sent += 1;
            let is_it = |one: &&LinkPort| one.added.is_some_and(|(added, _)| added == packet.port);
            let place = self.ports.iter().find(is_it).map(|one| one.place);
            let length = packet.write(&mut self.message[..]);
            let port = place.and_then(|place| rapidio.get(place));
            let (Some(port), Some(mailbox)) = (port, Mailbox::new(packet.mailbox)) else {
                continue;
            };
            port.end_point.tap().sent(packet.destination, mailbox, &self.message[..length]);
            let message = Packet { header: &self.message[..length], payload: &[], trailer: &[] };
            // The engine detects a message that is lost because the link is down.
            let _ = port.end_point.port().borrow_mut().send(mailbox, packet.destination, &message);
        }
        sent
    }
}
