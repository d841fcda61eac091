//! `show linx`: the links and their counters; `/linx` and `show linx NAME`: all that the engine knows about them.

use crate::appliance::Appliance;
use crate::config::{self, LinxTransport};
use crate::report::Value;
use ::linx::riocm::{Counters, State, Status, StrayCounters};
use ::linx::{LinkCounters, LinkStatus, Phase};

/// A counter: its name in reports, and its value.
type Counter<T> = (&'static str, fn(&T) -> u64);

/// Counters of a link.
pub(crate) const LINK: [Counter<LinkCounters>; 11] = [
    ("ups", |c| c.ups),
    ("sent", |c| c.sent),
    ("received", |c| c.received),
    ("unknown_destination", |c| c.unknown_destination),
    ("unknown_source", |c| c.unknown_source),
    ("bad_signals", |c| c.bad_signals),
    ("inbox_full", |c| c.inbox_full),
    ("hunts_refused", |c| c.hunts_refused),
    ("no_address", |c| c.no_address),
    ("ignored", |c| c.ignored),
    ("unnamed", |c| c.unnamed),
];

/// Counters of a RIOCM connection. The first eight have the names of LINX for Linux.
pub(crate) const RIOCM: [Counter<Counters>; 16] = [
    ("sent_packets", |c| c.sent_packets),
    ("sent_bytes", |c| c.sent_bytes),
    ("received_packets", |c| c.received_packets),
    ("received_bytes", |c| c.received_bytes),
    ("num_connects", |c| c.num_connects),
    ("sent_messages", |c| c.sent_messages),
    ("received_messages", |c| c.received_messages),
    ("unsent_messages", |c| c.unsent_messages),
    ("reordered", |c| c.reordered),
    ("duplicates", |c| c.duplicates),
    ("outside", |c| c.outside),
    ("ignored", |c| c.ignored),
    ("silent", |c| c.silent),
    ("peer_resets", |c| c.peer_resets),
    ("faults", |c| c.faults),
    ("no_room", |c| c.no_room),
];

/// Counters of packets without a connection.
pub(crate) const STRAYS: [Counter<StrayCounters>; 5] = [
    ("malformed", |c| c.malformed),
    ("forged", |c| c.forged),
    ("unknown_peer", |c| c.unknown_peer),
    ("unknown_cid", |c| c.unknown_cid),
    ("stale", |c| c.stale),
];

fn counts<T, const N: usize>(counters: &T, all: &[Counter<T>; N]) -> Value {
    Value::object(all.map(|(name, value)| (name, value(counters).into())))
}

/// All links, a row for each.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let links = appliance.linx().into_iter().flat_map(|linx| linx.links);
    Value::list(links.map(|(settings, status)| row(settings, status.as_ref())))
}

/// All links, with all settings, agreed parameters and counters.
pub(crate) fn details(appliance: &dyn Appliance) -> Value {
    let Some(linx) = appliance.linx() else { return Value::List(Vec::new()) };
    let strays = &linx.strays;
    Value::list(linx.links.iter().map(|(link, status)| detail(link, status.as_ref(), strays)))
}

fn detail(settings: &config::Linx, status: Option<&LinkStatus>, strays: &StrayCounters) -> Value {
    let Value::Object(mut entries) = row(settings, status) else { return Value::None };
    let is_tcp = settings.transport == LinxTransport::Tcp;
    let (port, peer_port) = match is_tcp {
        true => (Some(settings.tcp_ports().0), Some(settings.tcp_ports().1)),
        false => (settings.port, settings.peer_port),
    };
    let (mailbox, peer_mailbox) = settings.mailboxes();
    let of_riocm = |value: u8| (!is_tcp).then_some(value).into();
    let more = Value::object([
        ("attributes", settings.attributes.as_ref().map(|one| one.to_string()).into()),
        ("features", status.map(|status| status.features.clone()).into()),
        ("rapidio", settings.rapidio.into()),
        ("mailbox", of_riocm(mailbox)),
        ("peer_mailbox", of_riocm(peer_mailbox)),
        ("port", port.into()),
        ("peer_port", peer_port.into()),
        ("user_mtu", settings.mtu.into()),
        ("user_heartbeat_ms", settings.heartbeat_ms.into()),
        ("max_message", Value::Bytes(settings.max_message.0)),
        ("max_names", settings.addresses.into()),
        ("rlnh", status.map_or(Value::None, |status| counts(&status.counters, &LINK))),
    ]);
    let riocm = status.and_then(|status| status.riocm.as_ref());
    let riocm = riocm.map_or(Value::None, |status| connection(status, strays));
    if let Value::Object(more) = more {
        entries.extend(more);
    }
    entries.push(("riocm".into(), riocm));
    Value::Object(entries)
}

/// The attributes of a RIOCM connection that LINX for Linux reports, and its counters.
fn connection(status: &Status, strays: &StrayCounters) -> Value {
    let state = match status.state {
        State::Disconnected => "disconnected",
        State::Connecting => "connecting",
        State::Connected => "connected",
    };
    Value::object([
        ("state", state.into()),
        ("device", status.port.clone().into()),
        ("device_is_there", status.has_port.into()),
        ("device_id", status.ids.0.into()),
        ("peer_device_id", status.ids.1.into()),
        ("port", status.ports.0.into()),
        ("peer_port", status.ports.1.into()),
        ("peer_mailbox", status.peer_mailbox.into()),
        ("cid", status.cids.0.into()),
        ("peer_cid", status.cids.1.into()),
        ("generation", status.generations.0.into()),
        ("peer_generation", status.generations.1.into()),
        ("mtu", status.agreed.mtu.into()),
        ("heartbeat_ms", (u32::from(status.agreed.heartbeat) * 100).into()),
        ("counters", counts(&status.counters, &RIOCM)),
        ("strays", counts(strays, &STRAYS)),
    ])
}

fn row(settings: &config::Linx, status: Option<&LinkStatus>) -> Value {
    let peer = match settings.transport {
        LinxTransport::Tcp => settings.address.map(|address| address.to_string()),
        LinxTransport::Riocm => settings.peer_id.map(|id| format!("id {id}")),
    };
    let counter = |value: fn(&LinkStatus) -> u64| -> Value { status.map(value).into() };
    let agreed = status.and_then(|status| status.riocm.as_ref());
    Value::object([
        ("name", settings.name.to_string().into()),
        ("transport", settings.transport.to_string().into()),
        ("peer", peer.into()),
        ("state", status.map_or("down", |status| phase(status.phase)).into()),
        ("version", counter(|status| status.version.into())),
        ("mtu", agreed.map(|riocm| u64::from(riocm.agreed.mtu)).into()),
        ("why", status.and_then(|status| status.why).map(|why| why.to_string()).into()),
        ("unsent", counter(|status| status.unsent as u64)),
        ("our_names", counter(|status| status.addresses.0 as u64)),
        ("peer_names", counter(|status| status.addresses.1 as u64)),
        ("peer_hunts", counter(|status| status.hunts as u64)),
        ("ups", counter(|status| status.counters.ups)),
        ("sent", counter(|status| status.counters.sent)),
        ("received", counter(|status| status.counters.received)),
        ("dropped", counter(|status| status.counters.inbox_full)),
    ])
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Down => "down",
        Phase::AwaitInit | Phase::AwaitReply => "coming up",
        Phase::Up => "up",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::linx::riocm::ConnectionConfig;
    use ::linx::{Config, LinkConfig, Node, Transport};
    use drivers::hal::{Arena, Instant};

    #[test]
    fn detail_of_a_link_has_its_settings_and_all_counters() {
        let text = "[[rapidio]]\nrole = \"host\"\nid = 1\n[[linx]]\nname = \"board\"\n\
            transport = \"riocm\"\nrapidio = 0\npeer_id = 3\nport = 11\npeer_port = 22\n\
            mtu = 256\nattributes = \"rack:3\"\n";
        let config = crate::config::check(text.as_bytes()).unwrap();
        let memory = Arena::on_heap(4 << 20).alloc(2 << 20, 4096).unwrap();
        let mut node = Node::new(Config { links: 1, ..Config::default() }, memory, 1);
        node.add_port("rio0", 1, 4096).unwrap();
        let connection =
            ConnectionConfig { mtu: 256, ..ConnectionConfig::new("rio0", 3, 2, (11, 22)) };
        let link = LinkConfig::new("board", Transport::Riocm(connection));
        let id = node.add_link(&link, Instant::ZERO).unwrap();
        let status = node.link(id);
        let strays = node.riocm().strays();
        let shown = detail(&config.linx[0], status.as_ref(), &strays).to_json();
        for expected in [
            "\"attributes\":\"rack:3\"",
            "\"features\":\"\"",
            "\"mailbox\":2,\"peer_mailbox\":2,\"port\":11,\"peer_port\":22,\"user_mtu\":256",
            "\"device\":\"rio0\",\"device_is_there\":true,\"device_id\":1,\"peer_device_id\":3",
            "\"cid\":1",
            "\"unnamed\":0}",
            "\"no_room\":0}",
            "\"strays\":{\"malformed\":0,",
        ] {
            assert!(shown.contains(expected), "{expected}: {shown}");
        }
        // A link whose port is missing has its settings.
        let absent = detail(&config.linx[0], None, &strays).to_json();
        assert!(
            absent.contains("\"peer_port\":22") && absent.contains("\"riocm\":null"),
            "{absent}"
        );
    }
}
