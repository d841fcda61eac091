//! Cards that do RoCE themselves: how they are opened, and who is to be asked for the hardware addresses of their peers.

use super::network::Network;
use crate::config::{Config, Net, RoceBy};
#[cfg(feature = "mlx5")]
use connectx::{ConnectX, Error, Function};
use core::net::IpAddr;
use core::time::Duration;
use drivers::device::OpenedPort;
#[cfg(feature = "mlx5")]
use drivers::ethernet::mlx5::Mlx5Port;
use drivers::hal::{Arena, Instant, Port};
use net::Resolution;
use provider_set::ProviderSet;
use rand_core::RngCore;

/// Hosts whose hardware addresses are wanted at a time; those that gave way are asked for when they say something again.
const MOST_WANTED: usize = 64;
/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A port that was looked at: software does RoCE on it, or it is shared with a card that does.
pub(super) enum Looked {
    Software(Box<dyn Port + Send>),
    #[cfg_attr(not(feature = "mlx5"), expect(dead_code, reason = "no card is known"))]
    Hardware(Box<dyn Port>),
}

/// What a card is opened with.
#[cfg_attr(not(feature = "mlx5"), expect(dead_code, reason = "no card is known"))]
pub(super) struct Found<'a> {
    pub config: &'a Config,
    pub arena: &'a Arena,
    pub rng: &'a mut dyn RngCore,
}

/// The cards, until the provider has them.
#[derive(Default)]
pub(super) struct Cards {
    #[cfg(feature = "mlx5")]
    opened: Vec<(usize, connectx::ConnectX)>,
}

impl Cards {
    /// Looks at a port, which will be at `place` of the first loop's: RoCE is its card's to do if it can and may.
    #[cfg_attr(not(feature = "mlx5"), expect(unused_variables, reason = "no card is known"))]
    pub fn look(
        &mut self,
        port: OpenedPort,
        place: usize,
        name: &str,
        net: &Net,
        found: &mut Found<'_>,
    ) -> Looked {
        let may = found.config.roce.enabled && net.roce != Some(RoceBy::Software);
        let port = match port {
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may => return self.open(*port, place, name, net, found),
            other => other,
        };
        if may && net.roce == Some(RoceBy::Hardware) {
            log::warn!(
                "{name}: RoCE in software: its device does none, or this image cannot use it"
            );
        }
        Looked::Software(port.plain())
    }

    #[cfg(feature = "mlx5")]
    fn open(
        &mut self,
        port: Mlx5Port,
        place: usize,
        name: &str,
        net: &Net,
        found: &mut Found<'_>,
    ) -> Looked {
        let most = ProviderSet::MOST_CARDS;
        if !net.core.is_first_alone() {
            log::warn!("{name}: RoCE in software: in hardware it is for ports of core 0 alone");
            return Looked::Software(Box::new(port));
        }
        if self.opened.len() == most {
            log::warn!("{name}: RoCE in software: in hardware it is for {most} ports at most");
            return Looked::Software(Box::new(port));
        }
        let function = Function::new(port);
        let shared = Box::new(function.ethernet());
        let (arena, limits) = (found.arena.share(), limits(found.config, found.arena));
        match ConnectX::open(function, arena, &[], limits, found.rng) {
            Ok(card) => {
                log::info!("{name}: RoCE in hardware");
                self.opened.push((place, card));
            }
            // Nobody has asked for it.
            Err(why @ Error::Lacks(_)) if net.roce.is_none() => {
                log::info!("{name}: RoCE in software: {why}");
            }
            Err(why) => log::error!("{name}: RoCE in software: {why}"),
        }
        Looked::Hardware(shared)
    }

    /// Gives the cards to the provider, before anything was made there.
    #[cfg(feature = "mlx5")]
    pub fn give(self, providers: &mut ProviderSet) {
        for (place, card) in self.opened {
            providers.add_card(card, place);
        }
    }

    #[cfg(not(feature = "mlx5"))]
    pub fn give(self, _: &mut ProviderSet) {}
}

/// What a card is limited to. Keys and the completion queue take memory at once.
#[cfg(feature = "mlx5")]
fn limits(config: &Config, arena: &Arena) -> connectx::Limits {
    let default = connectx::Limits::default();
    let per_host = config.limits.connections_per_host as usize;
    // Twice 64 bytes each: a sixteenth of the memory at most.
    let completions = (arena.capacity() >> 11).clamp(1 << 14, 1 << 18);
    connectx::Limits {
        log_completions: completions.ilog2(),
        connections: cm::Limits { connections_per_host: per_host, ..default.connections },
        ..default
    }
}

/// Hosts that have said something to a card, and whose hardware addresses are wanted.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// With the places of the ports, and until when they may answer.
    list: Vec<(usize, IpAddr, Instant)>,
    is_news: bool,
}

impl Strangers {
    /// Notes a host.
    pub fn add(&mut self, port: usize, host: IpAddr, now: Instant) {
        if self.list.iter().any(|(at, one, _)| (*at, *one) == (port, host)) {
            return;
        }
        if self.list.len() == MOST_WANTED {
            // It has had the longest time to answer.
            self.list.remove(0);
        }
        self.list.push((port, host, now + PATIENCE));
        self.is_news = true;
    }

    /// Whether the control plane is to look.
    pub fn take_news(&mut self) -> bool {
        core::mem::take(&mut self.is_news)
    }
}

impl Strangers {
    /// Asks the tables of neighbours for hosts that cards want to know; `own_ports` says which interface is at a place.
    pub fn find(
        &mut self,
        providers: &mut ProviderSet,
        own_ports: &[usize],
        networks: &mut [Network],
        now: Instant,
    ) {
        self.list.retain(|&(port, host, until)| {
            let network = own_ports.get(port).and_then(|&number| networks.get_mut(number));
            let Some(network) = network else { return false };
            match network.interface.resolve(host, now) {
                Resolution::Known(mac) => {
                    providers.learn_neighbour_at(port, host, mac);
                    false
                }
                // The answer is a frame for the control plane, which looks here again.
                Resolution::Pending => now < until,
                Resolution::Unreachable | Resolution::NoRoute => false,
            }
        });
    }
}
