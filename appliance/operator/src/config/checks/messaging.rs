//! Cross-section validation of `[smc]` and `[[rule]]`.

use super::report::Report;
use crate::config::Size;
use crate::config::linx::{Linx, LinxTransport};
use crate::config::messaging::Rule;
use crate::config::origin::Source;
use crate::config::schema::Config;
use core::net::IpAddr;
use messaging::names::{Listen, MessageName, Target};
use messaging::relay::balance::MAX_BACKENDS;
use perf_responders::{perftest, qperf};
use smcr::echo::{DISCARD_PORT, ECHO_PORT};
use smcr::wire::MAX_EIDS;

/// Checks `[smc]` and rules against each other and against other sections.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    let smc = &config.smc;
    if smc.ueid.len() > MAX_EIDS {
        let reason = format!("{} are too many", smc.ueid.len());
        report.add("smc.ueid".into(), reason, &format!("at most {MAX_EIDS}"));
    }
    let mut is_power_of_two = |path: String, size: Option<Size>| {
        if let Some(size) = size.filter(|size| !size.0.is_power_of_two()) {
            let reason = format!("{size} is not a power of two");
            report.add(path, reason, "16KiB, 32KiB and so on to 1MiB");
        }
    };
    is_power_of_two("smc.send_buffer".into(), Some(smc.send_buffer));
    is_power_of_two("smc.receive_buffer".into(), Some(smc.receive_buffer));
    for (i, rule) in config.rule.iter().enumerate() {
        is_power_of_two(format!("rule.{i}.send_buffer"), rule.send_buffer);
        is_power_of_two(format!("rule.{i}.receive_buffer"), rule.receive_buffer);
    }
    for (i, rule) in config.rule.iter().enumerate() {
        let earlier = &config.rule[..i];
        if earlier.iter().any(|other| other.name == rule.name) {
            let reason = format!("another rule is called {:?}", rule.name.as_str());
            report.add(format!("rule.{i}.name"), reason, "");
        }
        let other = earlier.iter().find(|other| other.listen == rule.listen);
        let other = other.map(|other| format!("rule {:?}", other.name.as_str()));
        let others = || rule.listen.port().and_then(|port| listener(config, port));
        if let Some(other) = other.or_else(others) {
            let what = if rule.listen.port().is_some() { "port " } else { "" };
            let reason = format!("{other} listens on {what}{}", rule.listen);
            report.add(format!("rule.{i}.listen"), reason, "another port");
        }
        let accepted = format!("1 to {MAX_BACKENDS}");
        if rule.backend.is_empty() {
            report.missing(format!("rule.{i}.backend"), "0 servers".into(), &accepted);
        }
        if rule.backend.len() > MAX_BACKENDS {
            let reason = format!("{} servers", rule.backend.len());
            report.add(format!("rule.{i}.backend"), reason, &accepted);
        }
        if rule.backend.iter().filter_map(Target::socket).any(|backend| backend.port() == 0) {
            report.add(format!("rule.{i}.backend"), "port 0 is invalid".into(), "1 to 65535");
        }
        check_own(config, i, rule, report);
        check_messages(config, i, rule, report);
    }
    if !config.rule.is_empty() && !config.roce.enabled {
        let reason = "rules need roce.enabled".into();
        report.add("rule".into(), reason, "no rules, or roce.enabled = true");
    }
}

/// Reports a backend at an address of the appliance itself: a rule connects to other hosts only. Only files under check
/// and console input are checked, so that a saved document with such a backend still boots with everything else in it.
fn check_own(config: &Config, i: usize, rule: &Rule, report: &mut Report<'_>) {
    let path = format!("rule.{i}.backend");
    if !matches!(report.origin(&path).source, Source::File | Source::Console) {
        return;
    }
    let ours = |ip: IpAddr| {
        let ip = ip.to_canonical();
        let of_interface = config.net.iter().flat_map(|net| net.fixed()).any(|(own, _)| own == ip);
        let of_bridge = config.ntb.iter().any(|ntb| ntb.address == Some(ip));
        of_interface || of_bridge || ip.is_loopback() || ip.is_unspecified()
    };
    let mut servers = rule.backend.iter().filter_map(Target::socket);
    if let Some(server) = servers.find(|server| ours(server.ip())) {
        let reason = format!(
            "{server} is an address of the appliance: a rule cannot connect to the appliance itself"
        );
        report.add(path, reason, "addresses of other hosts");
    }
}

/// The ends of a rule that carry messages, each with its key: `listen` or `backend`.
fn message_ends(rule: &Rule) -> impl Iterator<Item = (&MessageName, &'static str)> {
    let listened = match &rule.listen {
        Listen::Message(name) => Some((name, "listen")),
        Listen::Port(_) => None,
    };
    let servers = rule.backend.iter().filter_map(|target| match target {
        Target::Message(name) => Some((name, "backend")),
        Target::Socket(_) | Target::Name(..) => None,
    });
    listened.into_iter().chain(servers)
}

/// Checks the ends of a rule that carry messages.
fn check_messages(config: &Config, i: usize, rule: &Rule, report: &mut Report<'_>) {
    let path = |key: &str| format!("rule.{i}.{key}");
    for (end, key) in message_ends(rule) {
        let missing = match end {
            MessageName::Linx { link, .. } => {
                let is_there = config.linx.iter().any(|one| one.name.as_str() == link);
                (!is_there).then(|| format!("there is no [[linx]] named {link}"))
            }
            MessageName::Usnic { interface, peer } => {
                let found = config.usnic.iter().find(|one| one.name.as_str() == interface);
                let peers = found.map_or(&[][..], |one| &one.peer);
                let is_there = peers.iter().any(|one| one.name.as_str() == peer);
                (!is_there).then(|| format!("there is no [[usnic]] {interface} with a peer {peer}"))
            }
            MessageName::RioCm { .. } => {
                config.rapidio.is_empty().then(|| "there is no [[rapidio]]".into())
            }
        };
        if let Some(reason) = missing {
            report.add(path(key), format!("{end}: {reason}"), "an end that is configured");
        }
        // A usNIC peer has one connection without addressing inside, so only one rule can use it.
        let mut earlier = config.rule[..i].iter().flat_map(message_ends);
        let same =
            rule.backend.iter().filter(|one| matches!(one, Target::Message(it) if it == end));
        let twice = key == "listen" && same.count() > 0;
        let is_taken = twice || earlier.any(|(other, _)| other == end);
        if matches!(end, MessageName::Usnic { .. }) && is_taken {
            report.add(path(key), format!("{end} is the end of another rule"), "a peer of its own");
        }
        if let (MessageName::Linx { name, .. }, "listen") = (end, key) {
            let mut published = config.linx.iter().flat_map(Linx::echoes);
            let mut earlier = config.rule[..i].iter().flat_map(message_ends);
            let listened = earlier.any(|(other, key)| {
                key == "listen" && matches!(other, MessageName::Linx { name: it, .. } if it == name)
            });
            if published.any(|echo| echo == name) || listened {
                let reason = format!("the name {name} is published already");
                report.add(path(key), reason, "another name");
            }
        }
    }
    if message_ends(rule).next().is_some() && rule.proxy_protocol {
        let reason =
            "the PROXY protocol carries TCP addresses, but one end carries messages".into();
        report.add(path("proxy_protocol"), reason, "false");
    }
    let linx = |(end, _): (&MessageName, &str)| matches!(end, MessageName::Linx { .. });
    if rule.signal.is_some() && !message_ends(rule).any(linx) {
        let reason = "only LINX has signals, and no end of the rule is linx:LINK/NAME".into();
        report.add(path("signal"), reason, "no signal");
    }
}

/// The section that listens on a TCP port, rules excepted.
pub(super) fn listener(config: &Config, port: u16) -> Option<String> {
    let http = config.http.enabled && config.http.port(config.http.tls) == port;
    let services = config.smc.services && [ECHO_PORT, DISCARD_PORT].contains(&port);
    let tools = config.roce.services && [perftest::PORT, qperf::PORT].contains(&port);
    let bridge = config.ntb.iter().any(|ntb| ntb.listen && ntb.port == port);
    let linx = |link: &Linx| link.transport == LinxTransport::Tcp && link.tcp_ports().0 == port;
    let linx = config.linx.iter().any(linx);
    let who = [
        (http, "http"),
        (services, "smc.services"),
        (tools, "roce.services"),
        (bridge, "ntb.0"),
        (linx, "linx"),
        (config.nvme_listens(port), "nvme"),
        (config.usnic.iter().any(|usnic| usnic.rendezvous == Some(port)), "usnic"),
    ];
    who.into_iter().find(|(listens, _)| *listens).map(|(_, who)| who.to_string())
}
