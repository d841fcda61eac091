//! `rping` of the console, with the appliance as the client. First the peer is resolved, then pings run. Results are
//! queued for the console.

use super::network::Network;
use super::plane_user::{PlaneUser, Setup};
use super::ports::PortSlot;
use super::storage::Storage;
use crate::console::Progress;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::{Interface, Resolution};
use perf_responders::rping::{Client, Event, Options, Summary};
use provider_set::ProviderSet;
use std::collections::VecDeque;
use verbs::{ConnectionEvent, Ctx, VerbsError};

/// Time limit of resolving the peer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Results that may wait for the console before the next ping.
const MOST_WAITING: usize = 8;

/// An rping that the console has ordered.
pub(super) struct Rping {
    peer: IpAddr,
    options: Options,
    stage: Stage,
    progress: VecDeque<Progress>,
}

enum Stage {
    /// The peer is being resolved, until this time.
    Resolving(Instant),
    /// The peer is resolved. Our own address.
    Resolved(IpAddr),
    Running(Client),
    /// The operator has cancelled it, after the client was started or before.
    Cancelled(Option<Client>),
    Over,
}

impl Rping {
    pub fn new(peer: IpAddr, options: Options, now: Instant) -> Self {
        Rping { peer, options, stage: Stage::Resolving(now + PATIENCE), progress: VecDeque::new() }
    }

    /// Cancels it.
    pub fn cancel(&mut self) {
        self.stage = match core::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Running(client) => Stage::Cancelled(Some(client)),
            Stage::Over => Stage::Over,
            _ => Stage::Cancelled(None),
        };
    }

    /// Whether it has ended, and all results were taken.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over) && self.progress.is_empty()
    }

    /// The next result for the console.
    pub fn progress(&mut self) -> Option<Progress> {
        self.progress.pop_front()
    }
}

impl PlaneUser for Rping {
    /// An order creates it.
    fn of(_: &mut Setup<'_>) -> Option<Self> {
        None
    }

    fn on_connection(&mut self, event: &ConnectionEvent, _: &mut Ctx<'_, ProviderSet>) -> bool {
        match &mut self.stage {
            Stage::Running(client) => client.handle_connection_event(event),
            _ => false,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Resolving(until) => Some(*until),
            Stage::Running(client) => client.poll_timeout(),
            Stage::Resolved(_) | Stage::Cancelled(_) => Some(Instant::ZERO),
            Stage::Over => None,
        }
    }

    fn is_idle(&self) -> bool {
        false
    }

    fn poll(&mut self, _: &mut Storage, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        let Rping { peer, options, stage, progress } = self;
        match core::mem::replace(stage, Stage::Over) {
            Stage::Resolved(local) => match Client::start(local, *peer, *options, ctx) {
                Ok(client) => *stage = Stage::Running(client),
                Err(error) => progress.push_back(Progress::Done(Err(reason(error).into()))),
            },
            Stage::Running(mut client) => {
                if progress.len() >= MOST_WAITING {
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
                        progress.push_back(Progress::Line(line));
                        *stage = Stage::Running(client);
                    }
                    Event::Finished(summary) => {
                        progress.push_back(Progress::Done(Ok(summary_line(options, &summary))));
                        client.stop(ctx);
                    }
                    Event::Failed(failure) => {
                        progress.push_back(Progress::Done(Err(format!("{peer}: {failure}"))));
                        client.stop(ctx);
                    }
                }
            }
            Stage::Cancelled(client) => {
                let summary = client.map(|client| client.stop(ctx)).unwrap_or_default();
                progress.push_back(Progress::Done(Ok(summary_line(options, &summary))));
            }
            other => {
                *stage = other;
                return 0;
            }
        }
        1
    }

    fn resolve(
        &mut self,
        ports: &[PortSlot],
        networks: &mut [Network],
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        let Stage::Resolving(until) = self.stage else { return };
        let peer = self.peer;
        let mut all = networks.iter_mut().zip(ports);
        let route = all.find(|(network, _)| network.interface.next_hop(peer).is_some());
        let failed = match route {
            Some((_, slot)) if !slot.is_first_alone() => {
                "the interface to it is not on core 0 alone (`show loops`)"
            }
            None => "no route: `show interfaces` shows our networks",
            Some((network, _)) => match network.interface.resolve(peer, ctx.now) {
                Resolution::Known(mac) => match local_address(&network.interface, peer) {
                    Some(local) => {
                        let routed = network.interface.is_routed(peer);
                        ctx.provider.learn_neighbour(local, peer, mac, routed);
                        self.stage = Stage::Resolved(local);
                        return;
                    }
                    None => "we have no address of this family",
                },
                Resolution::Pending if ctx.now < until => return,
                Resolution::Pending | Resolution::Unreachable => "the host does not answer",
                Resolution::NoRoute => "no route",
            },
        };
        self.progress.push_back(Progress::Done(Err(format!("{peer}: {failed}"))));
        self.stage = Stage::Over;
    }
}

fn summary_line(options: &Options, summary: &Summary) -> String {
    let mean = summary.mean().as_secs_f64() * 1000.0;
    let (returned, count) = (summary.returned, options.count);
    format!("{returned} of {count} came back unchanged, mean {mean:.3} ms")
}

fn reason(error: VerbsError) -> &'static str {
    match error {
        VerbsError::NoRoom => "no room for another queue pair, or no memory",
        VerbsError::Invalid => "no address of ours has a route there",
        _ => "the RDMA provider refused the connection",
    }
}

/// Our address for packets to `peer`: in the same network if there is one.
fn local_address(interface: &Interface, peer: IpAddr) -> Option<IpAddr> {
    let near = interface.addresses().iter().find(|cidr| cidr.contains_addr(&peer.into()));
    let fitting = || {
        interface.addresses().iter().find(|c| IpAddr::from(c.address()).is_ipv4() == peer.is_ipv4())
    };
    Some(near.or_else(fitting)?.address().into())
}
