//! Checks of links, addresses, paths, names, time and certificate.

use super::{Check, Finding, address_of};
use crate::appliance::Appliance;
use crate::show::mac;
use crate::status::PortStatus;
use core::net::IpAddr;
use core::time::Duration;
use net::dns::Lookup;
use net::path_probe::Outcome;
use net::sntp::ServerState;
use net::syslog::Timestamp;

/// Peers whose paths are probed.
const PEERS: usize = 8;
/// How long a duplicate address counts as a fault after it was noticed. Stations repeat their claims within minutes.
const CONFLICT: Duration = Duration::from_secs(15 * 60);
/// How long results of probes count.
const PROBED: Duration = Duration::from_secs(10 * 60);
/// Days before the end of a certificate at which it is a warning.
const RENEW: u64 = 30;
const DAY: u64 = 86_400;

/// Links and addresses of the interfaces.
pub(super) fn links(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("link");
    let (config, ports) = (appliance.document().config(), appliance.ports());
    if ports.is_empty() {
        check.fault(
            "there is no network interface",
            "`show devices` lists all devices and why they are not used",
        );
    }
    let local = |cidr: &String| cidr.starts_with("fe80:");
    let works = |port: &PortStatus<'_>| port.link && !port.addresses.list.iter().all(local);
    let one_works = ports.iter().any(works);
    for (number, port) in ports.iter().enumerate() {
        let wanted = config.mentioned_net(number, port.mac, port.location).is_some();
        let (cause, remedy) = match (port.link, works(port)) {
            (_, true) => continue,
            (false, _) => (
                format!("{}: the link is down", port.name),
                "check cable, switch port and virtual switch; `show interfaces`".to_string(),
            ),
            (true, _) => (
                format!("{}: the link is up, and there is no address", port.name),
                format!(
                    "check the DHCP server, or `set net.{number}.address ADDRESS/PREFIX`, then `save`"
                ),
            ),
        };
        match wanted || !one_works {
            true => check.fault(cause, remedy),
            false => check.warning(cause, remedy),
        }
    }
    let up = ports.iter().filter(|port| port.link).count();
    check.or_ok(format!("{up} of {} links up, with addresses", ports.len()))
}

/// Addresses that another station uses.
pub(super) fn addresses(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("address");
    let now = appliance.machine().now;
    for (number, port) in appliance.ports().iter().enumerate() {
        let counters = &port.addresses.counters;
        let Some(((ip, other), at)) = counters.conflict.zip(counters.conflict_at) else { continue };
        let ago = now.since(at);
        if ago > CONFLICT {
            continue;
        }
        let remedy = format!(
            "find {} in the switch's MAC address table and change that host, or change this one: \
             `set net.{number}.address ADDRESS/PREFIX`, then `save`",
            mac(other)
        );
        check.fault(
            format!(
                "{}: duplicate address {ip}: it is {} here, and {} uses it too ({} s ago, {} times)",
                port.name,
                mac(port.mac),
                mac(other),
                ago.as_secs(),
                counters.conflicts
            ),
            remedy,
        );
    }
    check.or_ok("no other station has claimed an address of the appliance")
}

/// Hosts whose paths are worth a probe: servers of remotes, then storage and messaging clients.
pub(super) fn peers(appliance: &dyn Appliance) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    let mut add = |ip: IpAddr| {
        let ip = ip.to_canonical();
        if found.len() < PEERS && !found.contains(&ip) {
            found.push(ip);
        }
    };
    for session in &appliance.remote().sessions {
        session.client.transport().paths().for_each(|path| add(path.to.ip()));
    }
    let storage = appliance.storage();
    if let Some(server) = storage.server {
        server.transport().paths().take(4 * PEERS).for_each(|path| add(path.from));
    }
    for rows in &storage.others {
        rows.hosts().take(4 * PEERS).for_each(&mut add);
    }
    if let Some(target) = appliance.nvme() {
        target.controllers().take(4 * PEERS).for_each(|host| add(host.address));
    }
    if let Some(smc) = appliance.smc() {
        smc.users.connections().take(4 * PEERS).for_each(|(_, one)| add(one.remote.ip()));
    }
    // A host whose connection failed may be one to which large packets do not pass.
    let refused = appliance.machine().refused;
    refused.newest().filter_map(|(_, refusal)| refusal.who).for_each(&mut add);
    found
}

/// Whether full packets reach peers.
pub(super) fn paths(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("path MTU");
    let (probes, now) = (appliance.path_probes(), appliance.machine().now);
    if probes.finished.is_some_and(|at| now.since(at) > PROBED) {
        return check.or_ok("not probed recently; `doctor` probes");
    }
    let ports = appliance.ports();
    for outcome in probes.results.iter().filter(|outcome| outcome.is_broken()) {
        let Outcome { target, size, passes, .. } = *outcome;
        let passes = passes.unwrap_or(84);
        let number = interface_to(&ports, target);
        let port = number.and_then(|n| ports.get(n)).map_or("", |port| port.name);
        let remedy = match number {
            Some(n) => format!(
                "raise the MTU of all switches and tunnels on the path, or use a smaller one at both \
                 ends: `set net.{n}.mtu {passes}`, `save`, `reboot`"
            ),
            None => {
                "raise the MTU of all switches and tunnels on the path, or use a smaller one at \
                     both ends (net.N.mtu)"
                    .into()
            }
        };
        check.fault(
            format!(
                "{port}: {target} answers packets of {passes} bytes and none of {size}: RDMA and large \
                 transfers with it stall"
            ),
            remedy,
        );
    }
    let (full, silent) = (
        probes.results.iter().filter(|outcome| outcome.full).count(),
        probes.results.iter().filter(|outcome| !outcome.small && !outcome.full).count(),
    );
    check.or_ok(match (probes.results.len(), silent) {
        (0, _) if probes.finished.is_none() => "not probed; `doctor` probes".to_string(),
        (0, _) => "there is no peer to probe".to_string(),
        (_, 0) => format!("full packets reach {full} peers"),
        _ => format!("full packets reach {full} peers; {silent} answer no echo requests"),
    })
}

/// Number of the interface whose network has the host; the only one if there is one.
fn interface_to(ports: &[PortStatus<'_>], target: IpAddr) -> Option<usize> {
    let has = |port: &PortStatus<'_>| {
        port.addresses.list.iter().any(|cidr| {
            let length: Option<u32> = cidr.split('/').nth(1).and_then(|text| text.parse().ok());
            let bits = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
                IpAddr::V6(ip) => ip.to_bits(),
            };
            let (Some(ours), Some(length)) = (address_of(cidr), length) else { return false };
            let mask = u128::MAX.checked_shl(128u32.saturating_sub(length)).unwrap_or(0);
            ours.is_ipv4() == target.is_ipv4() && (bits(ours) ^ bits(target)) & mask == 0
        })
    };
    let on_link = ports.iter().position(has);
    on_link.or_else(|| (ports.len() == 1).then_some(0))
}

/// Names that the configuration needs.
pub(super) fn names(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("names");
    let (resolver, now) = (appliance.resolver(), appliance.machine().now);
    let mut known = 0;
    for status in resolver.names(now).filter(|status| status.followed) {
        let name = status.name;
        let remedy = match resolver.servers().is_empty() {
            true => "name a name server: `set system.dns ADDRESS`, then `save`".to_string(),
            false => format!("`resolve {name}` asks again; `show dns` lists the name servers"),
        };
        match (&status.lookup, status.stale) {
            (Lookup::Failed(problem), _) => {
                check.fault(format!("{name} has no address: {problem}"), remedy);
            }
            (Lookup::Known(_), Some(problem)) => {
                check.warning(format!("{name}: the last known address is used: {problem}"), remedy)
            }
            (Lookup::Known(_), None) => known += 1,
            (Lookup::Pending, _) => {
                check.warning(format!("{name} is being resolved"), "`doctor` again in 10 s");
            }
        }
    }
    check.or_ok(match known {
        0 => "the configuration has no names".to_string(),
        _ => format!("{known} names have addresses"),
    })
}

/// The wall clock and its servers.
pub(super) fn clock(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("clock");
    let machine = appliance.machine();
    let (client, utc) = (appliance.time_client(), machine.clock.at(machine.now));
    let config = &appliance.document().config().system;
    let estimate = client.estimate();
    if !machine.clock.is_plausible {
        let remedy = match config.ntp.is_empty() {
            true => {
                "`set system.ntp pool.ntp.org` or an address, then `save`; or set the clock of the \
                     machine or of its host, and reboot"
            }
            false => "`show time` lists the time servers and why none is believed",
        };
        check.fault(
            format!("the time is {utc:.0}, which cannot be right: logs, certificates"),
            remedy,
        );
    }
    let servers: Vec<_> = client.servers(machine.clock.epoch, machine.now).collect();
    let asked = servers.iter().filter(|server| server.state != ServerState::New);
    let bad: Vec<String> = asked
        .filter(|server| server.state != ServerState::Good)
        .map(|server| format!("{}: {}", server.address, server.state))
        .collect();
    let silent = "check address, route and firewall (UDP port 123); `show time`";
    match (config.ntp.is_empty(), estimate) {
        (false, None) if !bad.is_empty() => {
            check.fault(format!("no time server is believed: {}", super::listed(&bad)), silent);
        }
        (false, None) => check.warning(
            "no time server has answered yet",
            "`doctor` again in a minute; names of servers need a name server (`show dns`)",
        ),
        (false, Some(_)) if !bad.is_empty() => {
            check.warning(format!("of the time servers, {}", super::listed(&bad)), silent);
        }
        _ => {}
    }
    check.or_ok(match estimate {
        Some(estimate) => format!(
            "{utc:.0}, of time server {}, within {:.1} ms",
            estimate.server,
            estimate.error.as_secs_f64() * 1e3
        ),
        None => format!(
            "{utc:.0}, of the machine's real-time clock; `set system.ntp SERVER` keeps it right"
        ),
    })
}

/// The certificate of HTTP.
pub(super) fn certificate(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("certificate");
    let machine = appliance.machine();
    let Some(tls) = appliance.tls() else {
        return check.or_ok("HTTP runs without TLS");
    };
    let Some(end) = tls.tls.pair().not_after() else {
        return check.or_ok("the certificate has no end");
    };
    let now = (machine.clock.epoch + machine.now.as_nanos()) / 1_000_000_000;
    let date = Timestamp(Duration::from_secs(end));
    let remedy = "`set http.certificate PEM` and `set http.key PEM`, `save`, `reboot`; without both the \
                  appliance makes its own";
    if machine.clock.is_plausible && end <= now {
        check.fault(format!("the certificate of {} ended {date:.0}", tls.origin), remedy);
    } else if machine.clock.is_plausible && end - now < RENEW * DAY {
        let days = (end - now) / DAY;
        check.warning(
            format!("the certificate of {} ends in {days} days, {date:.0}", tls.origin),
            remedy,
        );
    }
    check.or_ok(format!("valid until {date:.0}"))
}
