//! `rping` of the console: the appliance as the client. First the way to the peer is looked for,
//! then the pings run; what they tell goes to the console as it has room for it.

use super::network::Network;
use super::ports::PortSlot;
use crate::console::Progress;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::{Interface, Resolution};
use perf_responders::rping::{Client, Event, Options, Summary};
use provider_set::ProviderSet;
use std::collections::VecDeque;
use verbs::EngineContext;
use verbs::{ConnectionEvent, VerbsError};

/// How long a neighbour is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// News that may wait for the console before the next ping.
const NEWS: usize = 8;

/// An rping that the console has ordered.
pub(super) struct Rping {
    peer: IpAddr,
    options: Options,
    stage: Stage,
    news: VecDeque<Progress>,
}

enum Stage {
    /// The way to the peer is looked for, until then.
    Resolving(Instant),
    /// It is found: from this address of ours.
    Found(IpAddr),
    Running(Client),
    /// The console wants no more of it; so far it has gone like this.
    Cancelled(Option<Client>),
    Over,
}

impl Rping {
    pub fn new(peer: IpAddr, options: Options, now: Instant) -> Self {
        Rping { peer, options, stage: Stage::Resolving(now + PATIENCE), news: VecDeque::new() }
    }

    /// The console wants it to end.
    pub fn cancel(&mut self) {
        self.stage = match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Running(client) => Stage::Cancelled(Some(client)),
            Stage::Over => Stage::Over,
            _ => Stage::Cancelled(None),
        };
    }

    /// Whether it has ended, and all was told.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over) && self.news.is_empty()
    }

    /// What there is to tell next.
    pub fn news(&mut self) -> Option<Progress> {
        self.news.pop_front()
    }

    /// Takes an event of the connection manager; false if it is not about this.
    pub fn handle_connection_event(&mut self, event: &ConnectionEvent) -> bool {
        match &mut self.stage {
            Stage::Running(client) => client.handle_connection_event(event),
            _ => false,
        }
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Resolving(until) => Some(*until),
            Stage::Running(client) => client.poll_timeout(),
            Stage::Found(_) | Stage::Cancelled(_) => Some(Instant::ZERO),
            Stage::Over => None,
        }
    }

    /// Goes on with it; how much was done.
    pub fn poll(&mut self, ctx: &mut EngineContext<'_, ProviderSet>) -> usize {
        let Rping { peer, options, stage, news } = self;
        match core::mem::replace(stage, Stage::Over) {
            Stage::Found(local) => match Client::start(local, *peer, *options, ctx) {
                Ok(client) => *stage = Stage::Running(client),
                Err(error) => news.push_back(Progress::Done(Err(reason(error).into()))),
            },
            Stage::Running(mut client) => {
                if news.len() >= NEWS {
                    *stage = Stage::Running(client);
                    return 0;
                }
                let Some(event) = client.poll(ctx) else {
                    *stage = Stage::Running(client);
                    return 0;
                };
                match event {
                    Event::Returned { sequence, time } => {
                        let millis = time.as_secs_f64() * 1000.0;
                        let size = options.size;
                        let line = format!("{peer}: ping {sequence}, {size} bytes, {millis:.3} ms");
                        news.push_back(Progress::Line(line));
                        *stage = Stage::Running(client);
                    }
                    Event::Finished(summary) => {
                        news.push_back(Progress::Done(Ok(verdict(options, &summary))));
                        client.stop(ctx);
                    }
                    Event::Failed(failure) => {
                        news.push_back(Progress::Done(Err(format!("{peer}: {failure}"))));
                        client.stop(ctx);
                    }
                }
            }
            Stage::Cancelled(client) => {
                let summary = client.map(|client| client.stop(ctx)).unwrap_or_default();
                news.push_back(Progress::Done(Ok(verdict(options, &summary))));
            }
            other => {
                *stage = other;
                return 0;
            }
        }
        1
    }
}

fn verdict(options: &Options, summary: &Summary) -> String {
    let mean = summary.mean().as_secs_f64() * 1000.0;
    let (returned, count) = (summary.returned, options.count);
    format!("{returned} of {count} came back as they were sent, mean {mean:.3} ms")
}

fn reason(error: VerbsError) -> &'static str {
    match error {
        VerbsError::NoRoom => "no room for another queue pair, or no memory",
        VerbsError::Invalid => "no address of ours has a route there",
        _ => "the RDMA provider refused the connection",
    }
}

/// The address of ours on the way to `peer`: of the same network if there is one.
fn local_address(interface: &Interface, peer: IpAddr) -> Option<IpAddr> {
    let near = interface.addresses().iter().find(|cidr| cidr.contains_addr(&peer.into()));
    let fitting = || {
        interface.addresses().iter().find(|c| IpAddr::from(c.address()).is_ipv4() == peer.is_ipv4())
    };
    Some(near.or_else(fitting)?.address().into())
}

impl Rping {
    /// Looks for the way to its peer.
    pub fn find_way(
        &mut self,
        providers: &mut ProviderSet,
        ports: &[PortSlot],
        networks: &mut [Network],
        now: Instant,
    ) {
        let Stage::Resolving(until) = self.stage else { return };
        let peer = self.peer;
        let mut all = networks.iter_mut().zip(ports);
        let way = all.find(|(network, _)| network.interface.next_hop(peer).is_some());
        let failed = match way {
            Some((_, slot)) if !slot.is_first_alone() => {
                "not core 0 alone has the interface that leads there (`show loops`)"
            }
            None => "no route: `show interfaces` shows our networks",
            Some((network, _)) => match network.interface.resolve(peer, now) {
                Resolution::Known(mac) => match local_address(&network.interface, peer) {
                    Some(local) => {
                        let routed = network.interface.is_routed(peer);
                        providers.learn_neighbour(local, peer, mac, routed);
                        self.stage = Stage::Found(local);
                        return;
                    }
                    None => "no address of ours is of this kind",
                },
                Resolution::Pending if now < until => return,
                Resolution::Pending | Resolution::Unreachable => "nobody answers there",
                Resolution::NoRoute => "no route",
            },
        };
        self.news.push_back(Progress::Done(Err(format!("{peer}: {failed}"))));
        self.stage = Stage::Over;
    }
}
