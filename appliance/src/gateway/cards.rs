//! Opens cards that do RoCE in hardware.

use super::rdma_stack::RdmaStack;
use crate::config::{Config, Net, RoceBy};
#[cfg(feature = "mlx5")]
use connectx::{ConnectX, Error, Function};
use drivers::driver::OpenedPort;
#[cfg(feature = "mlx5")]
use drivers::ethernet::{VerbsPort, mlx5::Mlx5Port};
use drivers::hal::{Arena, Port};
use management::status::CardReport;
use provider_set::ProviderSet;
use rand_core::Rng;

/// The use of a port, by [`Cards::inspect`].
pub(super) enum PortUse {
    /// Any loop can own it. If its device can do RoCE, that loop opens the card.
    Free(OpenedPort),
    /// The Ethernet port of a card that was opened for the first loop.
    #[cfg_attr(not(feature = "mlx5"), expect(dead_code, reason = "no card is known"))]
    Opened(Box<dyn Port>),
}

/// Arguments to open a card.
#[cfg_attr(not(feature = "mlx5"), expect(dead_code, reason = "no card is known"))]
pub(super) struct Found<'a> {
    pub config: &'a Config,
    pub arena: &'a Arena,
    pub rng: &'a mut dyn Rng,
}

/// Opened cards, until they are passed to the provider.
#[derive(Default)]
pub(super) struct Cards {
    #[cfg(feature = "mlx5")]
    opened: Vec<(usize, connectx::ConnectX)>,
}

impl Cards {
    /// Inspects a port, which gets index `place` if the first loop owns it. Its card does RoCE if it can and the
    /// configuration allows it.
    #[cfg_attr(not(feature = "mlx5"), expect(unused_variables, reason = "no card is known"))]
    pub fn inspect(
        &mut self,
        port: OpenedPort,
        place: usize,
        name: &str,
        net: &Net,
        found: &mut Found<'_>,
    ) -> PortUse {
        let may = found.config.roce.enabled && net.roce != Some(RoceBy::Software);
        let port = match port {
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may && net.core.is_first_alone() => {
                return PortUse::Opened(self.open(port, place, name, net.roce, found));
            }
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may && net.core.all().len() == 1 => {
                return PortUse::Free(OpenedPort::Verbs(port));
            }
            #[cfg(feature = "mlx5")]
            OpenedPort::Verbs(port) if may => {
                log::warn!(
                    "{name}: RoCE in software: hardware RoCE needs a port of one core, not of several"
                );
                return PortUse::Free(OpenedPort::Plain(port));
            }
            other => other,
        };
        if may && net.roce == Some(RoceBy::Hardware) {
            log::warn!(
                "{name}: RoCE in software: its device has no RoCE, or this image has no driver for it"
            );
        }
        PortUse::Free(OpenedPort::Plain(port.plain()))
    }

    /// Opens the card of a port on the loop that owns it, with index `place` there. Returns the Ethernet port.
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
            OpenedPort::Verbs(port) => self.open(port, place, name, roce, found),
            other => other.plain(),
        }
    }

    /// Opens a card. Returns its Ethernet port. If the card cannot do RoCE, software does.
    #[cfg(feature = "mlx5")]
    fn open(
        &mut self,
        port: Box<dyn VerbsPort>,
        place: usize,
        name: &str,
        roce: Option<RoceBy>,
        found: &mut Found<'_>,
    ) -> Box<dyn Port> {
        let most = ProviderSet::MOST_CARDS;
        if self.opened.len() == most {
            log::warn!(
                "{name}: RoCE in software: a core has hardware RoCE on {most} ports at most"
            );
            return port;
        }
        let function = match port.downcast::<Mlx5Port>() {
            Ok(port) => Function::new(*port),
            Err(port) => return port,
        };
        let shared = Box::new(function.ethernet());
        let (arena, limits) = (found.arena.share(), limits(found.config, found.arena));
        match ConnectX::open(function, arena, &[], limits, found.rng) {
            Ok(card) => {
                log::info!("{name}: RoCE in hardware");
                self.opened.push((place, card));
            }
            // The configuration does not ask for hardware RoCE.
            Err(why @ Error::Lacks(_)) if roce.is_none() => {
                log::info!("{name}: RoCE in software: {why}");
            }
            Err(why) => log::error!("{name}: RoCE in software: {why}"),
        }
        shared
    }

    /// Passes the cards to the provider, before any object is created there.
    #[cfg(feature = "mlx5")]
    pub fn give(self, providers: &mut ProviderSet) {
        for (place, card) in self.opened {
            providers.add_card(card, place);
        }
    }

    #[cfg(not(feature = "mlx5"))]
    pub fn give(self, _: &mut ProviderSet) {}
}

/// Limits of a card. Keys and the completion queue allocate their memory at once.
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

/// Status of the RoCE card of the port with index `place`, if it has one.
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

/// None: the image has no driver for a card.
#[cfg(not(feature = "mlx5"))]
pub(super) fn report(_: &RdmaStack, _: usize) -> Option<CardReport> {
    None
}
