//! LINX: links to other nodes over RapidIO messages and TCP, and an echo service.
//!
//! One [`Node`] has all links. [`streams`] carries their bytes over TCP, [`mailbox`] over RapidIO. [`echo`] is the
//! service.

mod echo;
mod mailbox;
mod streams;
#[cfg(test)]
mod tests;

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
use rand_core::Rng;
use streams::Streams;

/// Receive memory, and transmit memory, of a link, as a multiple of its longest message: RIOCM needs two for receiving
/// and one for sending.
const MESSAGES: usize = 4;
/// Minimum of each.
const LEAST: usize = 128 << 10;
/// Links with default settings for which memory is set aside, to be added at run time.
const SPARE_LINKS: usize = 4;
/// Pause between attempts to add a link whose predecessor still closes its connection, and their number.
const RETRY: (Duration, u32) = (Duration::from_millis(100), 20);
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

/// A configured link that the node does not have.
struct Missing {
    settings: Settings,
    attempts: u32,
}

/// The node, its carriers and users.
pub(super) struct Linx {
    node: Node,
    links: Vec<Link>,
    missing: Vec<Missing>,
    /// When the missing links are added, if they are tried again.
    retry_at: Option<Instant>,
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
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Option<Box<Linx>> {
        if config.linx.is_empty() {
            return None;
        }
        let needed: usize =
            config.linx.iter().map(|link| 2 * memory(link) + 2 * engine::PIECE).sum();
        let spare = SPARE_LINKS * (2 * 2 * LEAST + 2 * engine::PIECE);
        let window = arena.alloc(needed + spare, 4096).or_else(|| arena.alloc(needed, 4096));
        let Some(window) = window else {
            log::error!("linx: DMA arena is full: give the machine more memory");
            return None;
        };
        let (links, endpoints) = (config.linx.len() + 4 * SPARE_LINKS, ENDPOINTS);
        let limits = engine::Config { links, endpoints, ..engine::Config::default() };
        let mut linx = Box::new(Linx {
            node: Node::new(limits, window, rng.next_u64()),
            links: Vec::new(),
            missing: Vec::new(),
            retry_at: None,
            streams: Streams::new(rng),
            mailboxes: Mailboxes::new(),
            echo: Echo::default(),
            ends: LinxEnds::default(),
        });
        linx.configure(config, rapidio, arena, networks, now);
        Some(linx)
    }

    /// Makes the links those of the configuration. A link whose transport settings have changed is replaced. Returns
    /// whether links were added or removed.
    #[cold]
    pub fn configure(
        &mut self,
        config: &Config,
        rapidio: &[RapidioPort],
        arena: &mut Arena,
        networks: &mut [Network],
        now: Instant,
    ) -> bool {
        let wanted = &config.linx;
        let Linx { node, links, missing, streams, mailboxes, echo, .. } = self;
        let before = links.len();
        links.retain_mut(|link| {
            if let Some(same) = wanted.iter().find(|one| link.settings.is_same_link(one)) {
                link.settings = same.clone();
                return true;
            }
            log::info!("linx {}: removed", link.settings.name);
            node.remove_link(link.id, now);
            streams.end_link(link.id);
            false
        });
        let mut is_changed = links.len() != before;
        if is_changed {
            // Signals held for peers of removed links keep the memory of these links.
            echo.resume(node, now);
        }
        mailboxes.configure(config, rapidio, arena);
        streams.configure(wanted, networks);
        let is_there = |one: &&Settings| !links.iter().any(|link| link.settings == **one);
        let absent = wanted.iter().filter(is_there);
        *missing = absent.map(|one| Missing { settings: one.clone(), attempts: 0 }).collect();
        is_changed |= !missing.is_empty();
        let echoes: Vec<&str> = wanted.iter().flat_map(Settings::echoes).collect();
        echo.configure(node, &echoes, now);
        mailboxes.update_ports(node, rapidio, now);
        self.add_missing(now);
        is_changed
    }

    /// Tries to add the missing links.
    #[cold]
    fn add_missing(&mut self, now: Instant) {
        let Linx { node, links, missing, .. } = self;
        missing.retain_mut(|one| {
            if one.attempts == RETRY.1 {
                return true;
            }
            let port = mailbox::port_name(one.settings.rapidio.unwrap_or_default().into());
            match node.add_link(&link_config(&one.settings, &port), now) {
                Ok(id) => {
                    links.push(Link { id, settings: one.settings.clone(), up: false });
                    false
                }
                Err(why) => {
                    one.attempts += 1;
                    if one.attempts == RETRY.1 {
                        let name = &one.settings.name;
                        log::error!("linx {name}: {why}; `save` and `reboot` make room for it");
                    }
                    true
                }
            }
        });
        let retries = missing.iter().any(|one| one.attempts < RETRY.1);
        self.retry_at = retries.then_some(now + RETRY.0);
        let end = |link: &Link| LinkEnd {
            name: link.settings.name.to_string(),
            id: link.id,
            max_message: link.settings.max_message.0 as usize,
        };
        self.ends.set_links(self.links.iter().map(end).collect());
    }

    /// Status for reports.
    pub fn status(&self) -> LinxStatus<'_> {
        let links = self.links.iter().map(|link| (&link.settings, self.node.link(link.id)));
        let links = links.chain(self.missing.iter().map(|one| (&one.settings, None)));
        let counters = self.ends.counters;
        LinxStatus {
            links: links.collect(),
            dropped: (counters.other_numbers, counters.strangers),
            echoed: self.echo.count,
            strays: self.node.riocm().strays(),
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
        if self.retry_at.is_some_and(|at| at <= now) {
            self.add_missing(now);
        }
        let Linx { node, links, streams, mailboxes, echo, ends, .. } = self;
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
        Instant::first([self.node.deadline(), self.streams.deadline(), self.retry_at])
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
