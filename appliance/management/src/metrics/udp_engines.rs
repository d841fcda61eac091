//! Metrics of engines over UDP, and of datagrams dropped below them.

use super::page::Page;
use crate::appliance::Appliance;
use crate::status::{Losses, UdpEngineStatus, UsnicPeer, UsnicStatus};
use crate::usnic::{COUNTERS, INTERFACE_COUNTERS};
use core::fmt::{Display, Error};
use usnic::State;

/// Writes nothing without such an engine.
pub(super) fn write(appliance: &dyn Appliance, page: &mut Page<'_>) -> Result<(), Error> {
    of_engines(&appliance.udp_engines(), page)
}

/// Writes the metrics of the given engines.
pub fn of_engines(engines: &[UdpEngineStatus<'_>], page: &mut Page<'_>) -> Result<(), Error> {
    if engines.is_empty() {
        return Ok(());
    }
    let mut lost = page.counter(
        "isthmus_udp_engine_lost_total",
        "Datagrams to or from an engine over UDP that were dropped below it, by reason.",
    )?;
    for engine in engines {
        let Losses { checksum, malformed, not_ours, wrong_mac, no_next_hop } = engine.losses;
        let all = [
            ("checksum", checksum),
            ("malformed", malformed),
            ("not_ours", not_ours),
            ("wrong_mac", wrong_mac),
            ("no_next_hop", no_next_hop),
        ];
        for (reason, count) in all {
            let labels =
                [("engine", &engine.name as &dyn Display), ("reason", &reason as &dyn Display)];
            lost.sample(&labels, count)?;
        }
    }
    engines.iter().try_for_each(|engine| usnic(&engine.usnic, page))
}

fn usnic(status: &UsnicStatus<'_>, page: &mut Page<'_>) -> Result<(), Error> {
    for (_, name, help, value) in INTERFACE_COUNTERS {
        let mut family = page.counter(name, help)?;
        for (number, (config, _)) in status.interfaces.iter().enumerate() {
            let counters = status.engine.interface_counters(number).copied().unwrap_or_default();
            let label = [("usnic", &config.name.as_str() as &dyn Display)];
            family.sample(&label, value(&counters))?;
        }
    }
    let labels = |peer: &UsnicPeer<'_>| {
        let usnic =
            status.interfaces.get(peer.interface).map(|(config, _)| config.name.to_string());
        (usnic.unwrap_or_default(), peer.config.name.to_string())
    };
    let mut up = page.gauge("isthmus_usnic_peer_up", "Whether the peer's endpoint is open.")?;
    for peer in &status.peers {
        let state = peer.endpoint.and_then(|endpoint| status.engine.state(endpoint));
        let (usnic, name) = labels(peer);
        let label = [("usnic", &usnic as &dyn Display), ("peer", &name as &dyn Display)];
        up.sample(&label, u64::from(state == Some(State::Open)))?;
    }
    let mut family = page.counter(
        "isthmus_usnic_peer_events_total",
        "Events of a peer, named as in `show usnic` and in the BTL's statistics.",
    )?;
    for peer in &status.peers {
        let counters = peer.endpoint.and_then(|endpoint| status.engine.counters(endpoint));
        let counters = counters.copied().unwrap_or_default();
        let (usnic, name) = labels(peer);
        for (event, value) in COUNTERS.iter().filter(|(name, _)| !name.starts_with("max_")) {
            let label = [
                ("usnic", &usnic as &dyn Display),
                ("peer", &name as &dyn Display),
                ("event", event as &dyn Display),
            ];
            family.sample(&label, value(&counters))?;
        }
    }
    Ok(())
}
