//! Reports of SMC-R and the rules for the console and `/api/smc`, with the columns of `smcss` and `smcr` (smc-tools:
//! smcss.c, linkgroup.c, dev.c, stats.c, ueid.c). User, inode and VLAN are absent: the appliance has none.

use crate::appliance::Appliance;
use crate::console::SmcTopic;
use crate::pieces::Node;
use crate::rdma_devices::RdmaDevices;
use crate::report::Value;
use crate::status::{PortStatus, SmcStatus};
use messaging::names::Listen;
use smcr::connector::Connected;
use smcr::engine::{Device, GroupStatus, LinkStatus, Role, SIZE_CLASSES, SocketStatus, Traffic};

/// The report on one topic; empty where SMC-R is not in use.
pub(crate) fn topic(appliance: &dyn Appliance, topic: SmcTopic) -> Value {
    if topic == SmcTopic::Ueid {
        let ueids = &appliance.document().config().smc.ueid;
        return Value::list(ueids.iter().map(Value::display));
    }
    let Some(smc) = &appliance.smc() else {
        return match topic {
            SmcTopic::Rules => no_rules(appliance),
            _ => Value::List(Vec::new()),
        };
    };
    match topic {
        SmcTopic::Sockets => Value::List(sockets(smc, appliance, 0, usize::MAX)),
        SmcTopic::Linkgroups => {
            Value::list(smc.engine.groups().map(|group| one_group(smc, &group)))
        }
        SmcTopic::Links => links(smc, appliance),
        SmcTopic::Devices => devices(smc, appliance),
        SmcTopic::Stats => stats(smc),
        SmcTopic::Rules => rules(smc, appliance),
        SmcTopic::Ueid => Value::None,
    }
}

/// `/smc`: all topics by name.
pub(crate) const TREE: Node = Node::Branch(&[
    ("sockets", Node::Rows(socket_rows)),
    ("linkgroups", Node::Whole(|appliance| topic(appliance, SmcTopic::Linkgroups))),
    ("links", Node::Whole(|appliance| topic(appliance, SmcTopic::Links))),
    ("devices", Node::Whole(|appliance| topic(appliance, SmcTopic::Devices))),
    ("stats", Node::Whole(|appliance| topic(appliance, SmcTopic::Stats))),
    ("ueid", Node::Whole(|appliance| topic(appliance, SmcTopic::Ueid))),
    ("rules", Node::Whole(|appliance| topic(appliance, SmcTopic::Rules))),
]);

pub(crate) fn socket_rows(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    let Some(smc) = &appliance.smc() else { return Vec::new() };
    sockets(smc, appliance, from, count)
}

/// At most `count` sockets, from index `from`.
fn sockets(
    smc: &SmcStatus<'_>,
    appliance: &dyn Appliance,
    from: usize,
    count: usize,
) -> Vec<Value> {
    let ports = appliance.ports();
    let wanted = smc.users.connections().skip(from).take(count);
    let row = wanted.map(|(at, connected)| {
        let status = connected.socket.and_then(|id| smc.engine.socket_status(id));
        let intf = ports.get(at).map(|port| port.name.to_string());
        one_socket(&connected, intf, status.as_ref())
    });
    row.collect()
}

fn one_socket(connected: &Connected, intf: Option<String>, status: Option<&SocketStatus>) -> Value {
    let opening = if connected.open { "ACTIVE" } else { "INIT" };
    Value::object([
        ("state", status.map_or(opening, |status| status.state.as_str()).into()),
        ("local_address", Value::display(connected.local)),
        ("foreign_address", Value::display(connected.remote)),
        ("intf", intf.into()),
        ("mode", if status.is_some() { "SMCR" } else { "TCP" }.into()),
        ("role", status.map(|status| role(status.role)).into()),
        ("lg_id", status.and_then(|status| status.group).map(number).into()),
        ("link_id", status.and_then(|status| status.link).into()),
        ("token", status.map(|status| format!("{:08x}", status.id.token())).into()),
        ("sndbuf", bytes(status.map(|status| status.send_buffer.into()))),
        ("rcvbuf", bytes(status.map(|status| status.buffers.0.into()))),
        ("peerbuf", bytes(status.map(|status| status.buffers.1.into()))),
        ("rx_bytes", bytes(status.map(|status| status.bytes.0))),
        ("tx_bytes", bytes(status.map(|status| status.bytes.1))),
        ("rx_queued", bytes(status.map(|status| status.queued.0))),
        ("tx_queued", bytes(status.map(|status| status.queued.1))),
    ])
}

fn bytes(value: Option<u64>) -> Value {
    value.map_or(Value::None, Value::Bytes)
}

fn number(id: u32) -> String {
    // As in Linux: the low byte is the link's number.
    format!("{:08x}", id << 8)
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Client => "CLNT",
        Role::Server => "SERV",
    }
}

/// Type of a link group, by its active links as Linux has it: two links are asymmetric if they share our port
/// (`ASYML`) or the peer's (`ASYMP`).
fn kind(links: &[LinkStatus]) -> &'static str {
    let mut active = links.iter().filter(|link| link.active);
    match (active.next(), active.next()) {
        (None, _) => "NONE",
        (Some(_), None) => "SINGLE",
        (Some(one), Some(other)) if one.device == other.device => "ASYML",
        (Some(one), Some(other)) if one.gids.1 == other.gids.1 => "ASYMP",
        _ => "SYM",
    }
}

/// The links of a group.
fn links_of(smc: &SmcStatus<'_>, group: u32) -> Vec<LinkStatus> {
    smc.engine.links().filter(|link| link.group == group).collect()
}

fn one_group(smc: &SmcStatus<'_>, group: &GroupStatus) -> Value {
    let links = links_of(smc, group.id);
    let of_link = |link: &LinkStatus| {
        let mut devices = smc.engine.devices().iter();
        devices.find(|device| device.ip == link.device)?.pnet
    };
    let pnet = links.first().and_then(of_link);
    Value::object([
        ("lg_id", number(group.id).into()),
        ("lg_role", role(group.role).into()),
        ("lg_type", kind(&links).into()),
        ("pnet_id", pnet.map(Value::display).into()),
        ("conns", group.connections.into()),
        ("peer", Value::display(group.peer)),
        ("peer_id", Value::display(group.peer_id)),
        ("eid", group.eid.as_str().to_string().into()),
        ("version", if group.version == 1 { "1" } else { "2" }.into()),
        ("release", group.release.into()),
        ("max_conns", group.max_conns.into()),
        ("max_links", group.max_links.into()),
        ("state", if group.active { "ACTIVE" } else { "ENDING" }.into()),
    ])
}

fn links(smc: &SmcStatus<'_>, appliance: &dyn Appliance) -> Value {
    let ports = appliance.ports();
    let names = RdmaDevices::new(&ports, &appliance.bridges());
    Value::list(smc.engine.links().map(|link| {
        let device = smc.engine.devices().iter().find(|device| device.ip == link.device);
        let (rx, tx) = link.qpns;
        Value::object([
            ("lg_id", number(link.group).into()),
            ("lg_role", role(link.role).into()),
            ("lg_type", kind(&links_of(smc, link.group)).into()),
            ("net_dev", device.and_then(|device| net_dev(device, &ports)).into()),
            ("ib_dev", device.map_or(Value::None, |device| names.hca_name(device.address))),
            ("link_state", if link.active { "LINK_ACTIVE" } else { "LINK_ACTIVATING" }.into()),
            ("conns", link.connections.into()),
            ("link_id", link.number.into()),
            ("local_gid", Value::display(link.gids.0)),
            ("peer_gid", Value::display(link.gids.1)),
            ("qpn", rx.into()),
            ("peer_qpn", tx.into()),
            ("path_mtu", link.path_mtu.into()),
        ])
    }))
}

/// Name of the network interface with the device's MAC address.
fn net_dev(device: &Device, ports: &[PortStatus<'_>]) -> Option<String> {
    ports.iter().find(|port| port.mac == device.mac).map(|port| port.name.to_string())
}

fn devices(smc: &SmcStatus<'_>, appliance: &dyn Appliance) -> Value {
    let ports = appliance.ports();
    let names = RdmaDevices::new(&ports, &appliance.bridges());
    Value::list(smc.engine.devices().iter().map(|device| {
        let port = ports.iter().find(|port| port.mac == device.mac);
        let links = smc.engine.links().filter(|link| link.device == device.ip).count();
        let up = port.is_some_and(|port| port.link);
        // As Linux has it: a link group would be lost with the device.
        let mut used = smc.engine.links().filter(|link| link.device == device.ip);
        let is_critical = used.any(|link| {
            let links = links_of(smc, link.group);
            !links.iter().any(|other| other.active && other.device != device.ip)
        });
        let name = names.name(device.address).unwrap_or_default();
        let kind = match name.trim_end_matches(|digit: char| digit.is_ascii_digit()) {
            "ntrdma" => "NTRDMA",
            "connectx" => "RoCEv2 by ConnectX",
            _ => "RoCEv2 in software",
        };
        Value::object([
            ("net_dev", net_dev(device, &ports).into()),
            ("ib_dev", names.hca_name(device.address)),
            ("ib_p", RdmaDevices::PORT.into()),
            ("ib_state", if up { "ACTIVE" } else { "DOWN" }.into()),
            ("type", kind.into()),
            ("crit", if is_critical { "YES" } else { "NO" }.into()),
            ("links", links.into()),
            ("gid", format!("::ffff:{}", device.ip).into()),
            ("path_mtu", device.path_mtu.bytes().into()),
            ("pnet_id", device.pnet.map(Value::display).into()),
        ])
    }))
}

fn stats(smc: &SmcStatus<'_>) -> Value {
    let c = smc.engine.counters();
    let fallbacks = c.fallbacks.iter().map(|(reason, &count)| {
        let code = format!("{:08x}", reason.0);
        Value::object([
            ("code", code.into()),
            ("reason", Value::display(reason)),
            ("count", count.into()),
        ])
    });
    let fallback_count: u64 = c.fallbacks.values().sum();
    let services = smc.users.services().map(|(_, service)| service.served);
    let relays = smc.users.rules().map(|(_, relay)| relay.counters());
    let relays = relays.map(|counters| (counters.smc, counters.tcp));
    let served = services.chain(relays);
    let (over_smc, over_tcp) = served.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Value::object([
        ("total_connections", (c.client + c.server + c.failed + fallback_count).into()),
        ("smc_connections", (c.client + c.server).into()),
        ("smc_connections_client", c.client.into()),
        ("smc_connections_server", c.server.into()),
        ("first_contacts", c.first_contacts.into()),
        ("handshake_errors", c.failed.into()),
        ("tcp_fallback", fallback_count.into()),
        ("tcp_fallback_reasons", Value::list(fallbacks)),
        ("served_over_smc", over_smc.into()),
        ("served_over_tcp", over_tcp.into()),
        ("rx_bytes", Value::Bytes(c.bytes_received)),
        ("tx_bytes", Value::Bytes(c.bytes_sent)),
        ("rx", traffic(&c.rx, false)),
        ("tx", traffic(&c.tx, true)),
        ("cdc_received", c.cdc_received.into()),
        ("cdc_sent", c.cdc_sent.into()),
        ("cdc_strays", c.cdc_strays.into()),
        ("buffers_kept", bytes(smc.kept)),
        ("window_updates", c.updates_sent.into()),
        ("llc_received", c.llc_received.into()),
        ("llc_sent", c.llc_sent.into()),
        ("malformed", c.malformed.into()),
        ("aborted", c.aborted.into()),
        ("violations", c.violations.into()),
        ("links_failed", c.links_failed.into()),
        ("failovers", c.failovers.into()),
        ("returned", c.returned.into()),
    ])
}

/// Counts of one direction: requests of users and buffers of connections, in all and by size.
fn traffic(counts: &Traffic, is_tx: bool) -> Value {
    const CLASSES: [&str; SIZE_CLASSES] =
        ["8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", ">512KB"];
    let by_size = |counts: &[u64; SIZE_CLASSES]| {
        let mut place = 0..SIZE_CLASSES;
        Value::object(CLASSES.map(|class| (class, place.next().map(|n| counts[n]).into())))
    };
    Value::object([
        ("total_requests", counts.requests.into()),
        ("buffer_full", counts.full.into()),
        ("buffer_full_remote", is_tx.then_some(counts.full_at_peer).into()),
        ("buffer_reuses", is_tx.then_some(counts.reused).into()),
        ("bufs", by_size(&counts.buffers)),
        ("reqs", by_size(&counts.by_size)),
    ])
}

/// Rules that are not in force, and why.
fn no_rules(appliance: &dyn Appliance) -> Value {
    let why = "RoCE is switched off, or there is no port";
    let rules = appliance.document().config().rule.iter();
    Value::list(rules.map(|rule| left_out(rule.name.as_str(), why)))
}

fn left_out(name: &str, why: &str) -> Value {
    Value::object([("name", name.to_string().into()), ("left_out", why.to_string().into())])
}

fn rules(smc: &SmcStatus<'_>, appliance: &dyn Appliance) -> Value {
    let new = appliance.document().config().rule.iter().map(|rule| rule.name.as_str());
    let known = |name: &str| {
        smc.users.rules().any(|(other, _)| other == name)
            || smc.left_out.iter().any(|(other, _)| other == name)
    };
    let new = new.filter(|name| !known(name));
    let new = new.map(|name| left_out(name, "starts within a moment"));
    let absent = smc.left_out.iter().map(|(name, why)| left_out(name, why)).chain(new);
    Value::list(present(smc).chain(absent))
}

fn present<'a>(smc: &SmcStatus<'a>) -> impl Iterator<Item = Value> + 'a {
    smc.users.rules().map(|(name, relay)| {
        let c = relay.counters();
        let backends = relay.backends().iter().map(|backend| {
            Value::object([
                ("address", Value::display(&backend.address)),
                ("state", if backend.up { "up" } else { "down" }.into()),
                ("connections", backend.connections.into()),
                ("total", backend.total.into()),
                ("failures", backend.failures.into()),
            ])
        });
        Value::object([
            ("name", name.to_string().into()),
            ("listen", listen(&relay.rule().listen)),
            ("connections", relay.connections().into()),
            ("smc_clients", c.smc.into()),
            ("tcp_clients", c.tcp.into()),
            ("message_clients", c.messages.into()),
            ("smc_servers", c.smc_servers.into()),
            ("refused", c.refused.into()),
            ("aborted", c.aborted.into()),
            ("timed_out", c.timed_out.into()),
            ("messages_lost", c.lost.into()),
            ("bytes_in", Value::Bytes(c.bytes_in)),
            ("bytes_out", Value::Bytes(c.bytes_out)),
            ("backends", Value::list(backends)),
        ])
    })
}

fn listen(listen: &Listen) -> Value {
    match listen {
        Listen::Port(port) => (*port).into(),
        Listen::Message(name) => Value::display(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::{Ipv4Addr, Ipv6Addr};

    fn link(port: u8, peer: u16) -> LinkStatus {
        LinkStatus {
            group: 1,
            role: Role::Server,
            of: 2,
            number: 1,
            device: Ipv4Addr::new(10, 0, port, 1),
            gids: (Ipv6Addr::UNSPECIFIED, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, peer)),
            qpns: (1, 2),
            path_mtu: 1024,
            active: true,
            connections: 0,
        }
    }

    #[test]
    fn type_of_a_link_group_is_that_of_smcr() {
        assert_eq!(kind(&[]), "NONE");
        assert_eq!(kind(&[link(0, 0)]), "SINGLE");
        assert_eq!(kind(&[link(0, 0), link(1, 1)]), "SYM");
        assert_eq!(kind(&[link(0, 0), link(0, 1)]), "ASYML");
        assert_eq!(kind(&[link(0, 0), link(1, 0)]), "ASYMP");
        let lost = LinkStatus { active: false, ..link(1, 1) };
        assert_eq!(kind(&[link(0, 0), lost]), "SINGLE");
    }

    #[test]
    fn traffic_has_the_classes_of_smcr_stats() {
        let mut counts = Traffic { requests: 3, full: 1, full_at_peer: 2, ..Traffic::default() };
        (counts.by_size[0], counts.buffers[7], counts.reused) = (3, 1, 1);
        let tx = traffic(&counts, true).to_json();
        assert!(
            tx.starts_with("{\"total_requests\":3,\"buffer_full\":1,\"buffer_full_remote\":2,"),
            "{tx}"
        );
        assert!(tx.contains("\">512KB\":1}") && tx.contains("\"reqs\":{\"8KB\":3,"), "{tx}");
        assert!(traffic(&counts, false).to_json().contains("\"buffer_full_remote\":null"));
    }
}
