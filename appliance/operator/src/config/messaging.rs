//! The messaging gateway's part of the document.

use super::checks::Report;
use super::item::{section, text_items};
use super::linx::{Linx, LinxTransport};
use super::schema::Config;
use super::values::{Name, Size};
use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use messaging::relay::balance::MAX_BACKENDS;
use net::hosts::Network;
use perf_responders::{perftest, qperf};
use smcr::echo::{DISCARD_PORT, ECHO_PORT};
use smcr::engine::PnetId;
use smcr::wire::{Eid, MAX_EIDS};

section! {
    /// SMC-R.
    Smc {
        /// Whether there are echo (port 7) and discard (port 9) over SMC-R and TCP.
        services: bool = false;
        /// Enterprises that the appliance belongs to; in version 2 peers must share one.
        ueid: Vec<Ueid>;
        /// Whether version 1 (over RoCEv1) is spoken with hosts of the same subnet that do not speak
        /// version 2 or share no enterprise.
        version1: bool = true;
        /// Bytes of a receive buffer, a power of two.
        buffer_size: Size [16 << 10, 512 << 10] = Size(64 << 10);
        /// Connections of each of the two services at a time.
        connections: u16 [1, 4096] = 128;
        /// Networks whose hosts are served over SMC-R; none given: all.
        hosts: Vec<Network>;
    }
}

section! {
    /// A rule of the messaging gateway: who connects to its port, over SMC-R or TCP, is relayed to
    /// one of its servers.
    Rule {
        /// Its name.
        name: Name => AtOnce;
        /// The port that it listens on.
        listen: u16 [1, 65535] => AtOnce;
        /// The servers.
        backend: Vec<SocketAddr> => AtOnce;
        /// Whether servers are offered SMC-R.
        backend_smc: bool = false => AtOnce;
        /// Whether servers are told the client's address (PROXY protocol, version 2).
        proxy_protocol: bool = false => AtOnce;
        /// Connections at a time.
        connections: u16 [1, 4096] = 64 => AtOnce;
        /// Bytes of each TCP connection, either way.
        buffer_size: Size [1 << 10, 1 << 20] = Size(16 << 10) => AtOnce;
        /// Milliseconds that a server may take to answer, before another is tried.
        connect_timeout_ms: u32 [10, 60_000] = 3000 => AtOnce;
        /// Seconds that a connection may be silent; without it for ever.
        idle_timeout_s: Option<u32> [1, 1_000_000] => AtOnce;
        /// Seconds between two looks whether servers answer; without it nobody looks.
        health_interval_s: Option<u16> [1, 3600] => AtOnce;
        /// Networks whose hosts are served; none given: all.
        hosts: Vec<Network> => AtOnce;
    }
}

/// Name of an enterprise, as `smcr ueid add` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ueid(
    /// As it is on the wire.
    pub Eid,
);

text_items! {
    Ueid: "1 to 32 letters A-Z, digits, '-' and single dots, the first a letter or digit";
    PnetId: "1 to 16 letters A-Z and digits";
}

impl FromStr for Ueid {
    type Err = String;
    fn from_str(text: &str) -> Result<Ueid, String> {
        Eid::new(text).map(Ueid).ok_or_else(|| "no name of an enterprise".into())
    }
}

impl fmt::Display for Ueid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// What must hold between the keys of this part, and others.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    let smc = &config.smc;
    if smc.ueid.len() > MAX_EIDS {
        let reason = format!("{} are too many", smc.ueid.len());
        report.add("smc.ueid".into(), reason, &format!("at most {MAX_EIDS}"));
    }
    if !smc.buffer_size.0.is_power_of_two() {
        let reason = format!("{} is not a power of two", smc.buffer_size);
        report.add("smc.buffer_size".into(), reason, "16KiB, 32KiB and so on to 512KiB");
    }
    for (i, rule) in config.rule.iter().enumerate() {
        let earlier = &config.rule[..i];
        if earlier.iter().any(|other| other.name == rule.name) {
            let reason = format!("another rule is called {:?}", rule.name.as_str());
            report.add(format!("rule.{i}.name"), reason, "");
        }
        let other = earlier.iter().find(|other| other.listen == rule.listen);
        let other = other.map(|other| format!("rule {:?}", other.name.as_str()));
        if let Some(other) = other.or_else(|| listener(config, rule.listen)) {
            let reason = format!("{other} listens on port {}", rule.listen);
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
        if rule.backend.iter().any(|backend| backend.port() == 0) {
            report.add(format!("rule.{i}.backend"), "port 0 is none".into(), "1 to 65535");
        }
    }
    if !config.rule.is_empty() && !config.roce.enabled {
        let reason = "rules need roce.enabled".into();
        report.add("rule".into(), reason, "no rules, or roce.enabled = true");
    }
}

/// Who listens on a TCP port, if it is not a rule.
pub fn listener(config: &Config, port: u16) -> Option<String> {
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
        (config.usnic.iter().any(|usnic| usnic.rendezvous == Some(port)), "usnic"),
    ];
    who.into_iter().find(|(listens, _)| *listens).map(|(_, who)| who.to_string())
}
