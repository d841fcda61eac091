//! Reports of SMC-R and the rules for the console and `/api/smc`, with the columns of `smcss` and `smcr` (smc-tools:
//! smcss.c, linkgroup.c, dev.c, stats.c, ueid.c). User, inode and VLAN are absent: the appliance has none.

use crate::appliance::Appliance;
use crate::console::SmcTopic;
use crate::pieces::Node;
use crate::report::Value;
use crate::status::{PortStatus, SmcStatus};
use messaging::names::Listen;
use smcr::connector::Connected;
use smcr::engine::{Device, GroupStatus, Role, SocketStatus};

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
        SmcTopic::Linkgroups => Value::list(smc.engine.groups().map(|group| one_group(&group))),
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
        ("token", status.map(|status| format!("{:08x}", status.id.token())).into()),
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

/// Type of a link group by its number of links.
fn kind(links: usize) -> &'static str {
    match links {
        0 => "NONE",
        1 => "SINGLE",
        _ => "SYM",
    }
}

fn one_group(group: &GroupStatus) -> Value {
    Value::object([
        ("lg_id", number(group.id).into()),
        ("lg_role", role(group.role).into()),
        ("lg_type", kind(group.links).into()),
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
    Value::list(smc.engine.links().map(|link| {
        let device = smc.engine.devices().iter().find(|device| device.ip == link.device);
        let (rx, tx) = link.qpns;
        Value::object([
            ("lg_id", number(link.group).into()),
            ("lg_role", role(link.role).into()),
            ("lg_type", kind(link.of).into()),
            ("net_dev", device.and_then(|device| net_dev(device, &ports)).into()),
            ("ib_dev", device.map(ib_dev).into()),
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

/// Name of the RDMA device behind an SMC-R device.
fn ib_dev(device: &Device) -> &'static str {
    if device.is_port() { "roce0" } else { "ntrdma0" }
}

fn devices(smc: &SmcStatus<'_>, appliance: &dyn Appliance) -> Value {
    let ports = appliance.ports();
    Value::list(smc.engine.devices().iter().map(|device| {
        let port = ports.iter().find(|port| port.mac == device.mac);
        let links = smc.engine.links().filter(|link| link.device == device.ip).count();
        let up = port.is_some_and(|port| port.link);
        Value::object([
            ("net_dev", net_dev(device, &ports).into()),
            ("ib_dev", ib_dev(device).into()),
            ("ib_p", 1u8.into()),
            ("ib_state", if up { "ACTIVE" } else { "DOWN" }.into()),
            ("type", if device.is_port() { "RoCEv2 in software" } else { "NTRDMA" }.into()),
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
