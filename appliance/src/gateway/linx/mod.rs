//! LINX: links to other nodes over RapidIO messages and TCP, and an echo service.
//!
//! One [`Node`] has all links. [`streams`] carries their bytes over TCP, [`mailbox`] over RapidIO. [`echo`] is the
//! service.

mod echo;
mod mailbox;
mod streams;

use super::network::Network;
use super::rapidio::RapidioPort;
use crate::config::{Config, Linx as Settings, LinxTransport};
use ::linx::riocm::ConnectionConfig;
use ::linx::{self as engine, Event, LinkConfig, LinkId, Node, Phase, TcpConfig, Transport};
use core::time::Duration;
use drivers::hal::{Arena, Instant};
use echo::Echo;
use mailbox::Mailboxes;
use management::status::LinxStatus;
use messaging::linx::{LinkEnd, LinxEnds, LinxTransport as Lent};
use net::refusal::Refusals;
use rand_core::RngCore;
use streams::Streams;

/// Receive memory, and transmit memory, of a link, as a multiple of its longest message: RIOCM needs two for receiving
/// and one for sending.
const MESSAGES: usize = 4;
/// Minimum of each.
const LEAST: usize = 128 << 10;
/// Own endpoints: names of services and rules, and one for each connection of a rule to a peer.
const ENDPOINTS: usize = 2048;
/// Maximum of queued messages of a link.
const SENDS: usize = 128;

/// A link, and its configuration.
pub(super) struct Link {
    id: LinkId,
    settings: Settings,
    /// State that was logged last.
    up: bool,
}

/// The node, its carriers and users.
pub(super) struct Linx {
    node: Node,
    links: Vec<Link>,
    streams: Streams,
    mailboxes: Mailboxes,
    echo: Echo,
    /// Listeners, connections and events of rules.
    ends: LinxEnds,
}

/// Receive memory, and transmit memory, of a link.
fn memory(link: &Settings) -> usize {
    (MESSAGES * link.max_message.0 as usize).max(LEAST).next_multiple_of(engine::PIECE)
}

impl Linx {
    /// Connections that were refused.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.streams.refusals
    }

    /// Creates it as configured. None if the configuration has no links.
    #[cold]
    pub fn of(
        config: &Config,
        rapidio: &[RapidioPort],
        arena: &mut Arena,
        networks: &mut [Network],
        rng: &mut dyn RngCore,
        now: Instant,
    ) -> Option<Box<Linx>> {
        if config.linx.is_empty() {
            return None;
        }
        let wanted: usize =
            config.linx.iter().map(|link| 2 * memory(link) + 2 * engine::PIECE).sum();
        let Some(window) = arena.alloc(wanted, 4096) else {
            log::error!("linx: DMA arena is full: give the machine more memory");
            return None;
        };
        let (links, endpoints) = (config.linx.len(), ENDPOINTS);
        let limits = engine::Config { links, endpoints, ..engine::Config::default() };
        let mut node = Node::new(limits, window, rng.next_u64());
        let mut mailboxes = Mailboxes::new(config, rapidio, arena);
        let mut links = Vec::new();
        for (number, settings) in config.linx.iter().enumerate() {
            let port = mailbox::port_name(settings.rapidio.unwrap_or_default().into());
            let added = node.add_link(&link_config(settings, &port), now);
            match added {
                Ok(id) => links.push(Link { id, settings: settings.clone(), up: false }),
                Err(why) => log::error!("linx.{number}: {why}"),
            }
        }
        let mut echo = Echo::default();
        for name in config.linx.iter().flat_map(Settings::echoes) {
            echo.open(&mut node, name, now);
        }
        mailboxes.update_ports(&mut node, rapidio, now);
        let streams = Streams::new(&links, networks, rng);
        let end = |link: &Link| LinkEnd {
            name: link.settings.name.to_string(),
            id: link.id,
            max_message: link.settings.max_message.0 as usize,
        };
        let ends = LinxEnds::new(links.iter().map(end).collect());
        Some(Box::new(Linx { node, links, streams, mailboxes, echo, ends }))
    }

    /// Status for reports.
    pub fn status(&self) -> LinxStatus<'_> {
        let links = self.links.iter().map(|link| (&link.settings, self.node.link(link.id)));
        let counters = self.ends.counters;
        LinxStatus {
            links: links.collect(),
            dropped: (counters.other_numbers, counters.strangers),
            echoed: self.echo.count,
        }
    }

    /// As a transport of rules.
    pub fn transport(&mut self, now: Instant) -> Lent<'_> {
        Lent { node: &mut self.node, ends: &mut self.ends, now }
    }

    /// Handles received messages, timers and orders. Returns the amount of work.
    pub fn poll(
        &mut self,
        networks: &mut [Network],
        rapidio: &[RapidioPort],
        now: Instant,
    ) -> usize {
        let Linx { node, links, streams, mailboxes, echo, ends } = self;
        let mut done = mailboxes.receive(node, rapidio, now);
        done += streams.receive(node, links, networks, now);
        let is_due = node.deadline().is_some_and(|at| at <= now);
        let is_quiet = done == 0 && !is_due && !streams.is_due(now) && !mailboxes.want_room;
        if is_quiet && !ends.take_touched() {
            return 0;
        }
        // Sending may make room for more.
        loop {
            let mut more = 0;
            node.poll(now);
            while let Some(event) = node.next_event(now) {
                more += 1;
                if ends.handle(node, event) {
                    continue;
                }
                match event {
                    Event::Link(id) => {
                        if let Some(link) = links.iter_mut().find(|link| link.id == id) {
                            link.log_state(node);
                        }
                    }
                    Event::Signals(endpoint) => echo.answer(node, endpoint, now),
                    Event::Room(_) => echo.resume(node, now),
                    Event::Dropped(endpoint) => {
                        let name = node.name(endpoint).map(String::from_utf8_lossy);
                        log::warn!("linx: signals to {} were dropped", name.unwrap_or_default());
                    }
                    Event::Found { .. } | Event::Gone(_) | Event::Sent { .. } => {}
                }
            }
            more += mailboxes.send(node, rapidio, now);
            more += streams.send(node, links, networks, now);
            done += more;
            if more == 0 {
                return done;
            }
        }
    }

    /// When the next timer expires.
    pub fn deadline(&self) -> Option<Instant> {
        Instant::first([self.node.deadline(), self.streams.deadline()])
    }
}

impl Link {
    #[cold]
    fn log_state(&mut self, node: &Node) {
        let Some(status) = node.link(self.id) else { return };
        let up = status.phase == Phase::Up;
        let (name, unsent) = (&status.name, status.unsent);
        match (core::mem::replace(&mut self.up, up), up, status.why) {
            (false, true, _) => log::info!("linx {name}: up"),
            (true, false, Some(why)) if unsent > 0 => {
                log::warn!("linx {name}: down: {why}; unsent signals: {unsent}");
            }
            (true, false, Some(why)) => log::warn!("linx {name}: down: {why}"),
            (true, false, None) => log::warn!("linx {name}: down"),
            _ => {}
        }
    }
}

/// Configuration of a link for the engine. `port` is the engine's name of the RapidIO port.
fn link_config<'a>(link: &'a Settings, port: &'a str) -> LinkConfig<'a> {
    let (max_message, bytes) = (link.max_message.0 as u32, memory(link));
    let transport = match link.transport {
        LinxTransport::Riocm => {
            let ports = (link.port.unwrap_or_default(), link.peer_port.unwrap_or_default());
            let peer = (link.peer_id.unwrap_or_default(), link.mailboxes().1);
            Transport::Riocm(ConnectionConfig {
                mtu: link.mtu.unwrap_or_default(),
                heartbeat: link.heartbeat_ms.map_or(0, |millis| (millis / 100) as u8),
                max_message,
                receive_bytes: bytes,
                send_bytes: bytes,
                sends: SENDS,
                ..ConnectionConfig::new(port, peer.0, peer.1, ports)
            })
        }
        LinxTransport::Tcp => Transport::Tcp(TcpConfig {
            live: Duration::from_millis(link.heartbeat_ms.unwrap_or(1000).into()),
            max_message,
            receive_bytes: bytes,
            send_bytes: bytes,
            sends: SENDS,
        }),
    };
    LinkConfig { max_addresses: link.addresses, ..LinkConfig::new(link.name.as_str(), transport) }
}
