//! Cards that do RoCE themselves: how they are opened.

use super::rdma_stack::RdmaStack;
use crate::config::{Config, Net, RoceBy};
#[cfg(feature = "mlx5")]
use connectx::{ConnectX, Error, Function};
use drivers::device::OpenedPort;
#[cfg(feature = "mlx5")]
use drivers::ethernet::mlx5::Mlx5Port;
use drivers::hal::{Arena, Port};
use management::status::CardReport;
use provider_set::ProviderSet;
use rand_core::RngCore;

/// A port that was looked at: any loop can have it, which shares it with a card if its device may do RoCE; or the first loop
/// shares it with one.
pub(super) enum Looked {
    Free(OpenedPort),
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
    /// Looks at a port, which will be at `place` of the first loop's if that has it: RoCE is its card's to do if it can and
    /// may.
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
            OpenedPort::Verbs(port) if may && net.core.is_first_alone() => {
                return Looked::Hardware(self.open(*port, place, name, net.roce, found));
            }
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may && net.core.all().len() == 1 => {
                return Looked::Free(OpenedPort::Verbs(port));
            }
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may => {
                log::warn!(
                    "{name}: RoCE in software: in hardware it is for ports of one core, and not of several"
                );
                return Looked::Free(OpenedPort::Plain(port));
            }
            other => other,
        };
        if may && net.roce == Some(RoceBy::Hardware) {
            log::warn!(
                "{name}: RoCE in software: its device does none, or this image cannot use it"
            );
        }
        Looked::Free(OpenedPort::Plain(port.plain()))
    }

    /// What the loop that has a port, at `place` of its own, makes of it.
    #[cfg_attr(not(feature = "mlx5"), expect(unused_variables, reason = "no card is known"))]
    pub fn take(
        &mut self,
        port: OpenedPort,
        place: usize,
        name: &str,
        roce: Option<RoceBy>,
        found: &mut Found<'_>,
    ) -> Box<dyn Port> {
        match port {
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) => self.open(*port, place, name, roce, found),
            other => other.plain(),
        }
    }

    /// The Ethernet port of a device whose card does RoCE, or else software.
    #[cfg(feature = "mlx5")]
    fn open(
        &mut self,
        port: Mlx5Port,
        place: usize,
        name: &str,
        roce: Option<RoceBy>,
        found: &mut Found<'_>,
    ) -> Box<dyn Port> {
        let most = ProviderSet::MOST_CARDS;
        if self.opened.len() == most {
            log::warn!(
                "{name}: RoCE in software: in hardware it is for {most} ports of a core at most"
            );
            return Box::new(port);
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
            Err(why @ Error::Lacks(_)) if roce.is_none() => {
                log::info!("{name}: RoCE in software: {why}");
            }
            Err(why) => log::error!("{name}: RoCE in software: {why}"),
        }
        shared
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

/// What is told of the card of the port at a place, if it has one that does RoCE.
#[cfg(feature = "mlx5")]
pub(super) fn report(stack: &RdmaStack, place: usize) -> Option<CardReport> {
    let card = stack.providers.card(place)?;
    Some(CardReport {
        is_active: card.is_active(),
        queue_pairs: card.queue_pairs(),
        connections: card.connections(),
        counters: *card.counters(),
        card_counters: *card.card_counters(),
        flow_control: *card.flow_control(),
    })
}

/// No card is known.
#[cfg(not(feature = "mlx5"))]
pub(super) fn report(_: &RdmaStack, _: usize) -> Option<CardReport> {
    None
}
