//! Cross-section validation of `[[ntb]]`.

use super::messaging::listener;
use super::report::Report;
use crate::config::device_name::DeviceName;
use crate::config::ntb::{MOST_NTRDMA, Ntb};
use crate::config::schema::Config;
use core::net::IpAddr;
use net::dns::Host;
use net::hosts::Hosts;

/// Checks bridges against each other and against other sections.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    check_devices(config, report);
    for (i, ntb) in config.ntb.iter().enumerate().filter(|(_, ntb)| ntb.is_transport()) {
        check_transport(i, ntb, report);
    }
    for (i, _) in config.ntrdma().skip(MOST_NTRDMA) {
        let reason = format!("NTRDMA goes over {MOST_NTRDMA} bridges at most");
        report.add(format!("ntb.{i}.protocol"), reason, "ntb_transport");
    }
    for (i, ntb) in config.ntrdma() {
        check_ends(config, i, ntb, report);
        check_tcp(config, i, ntb, report);
    }
    if config.ntrdma().next().is_none() {
        return;
    }
    if config.rnbd.oversubscribe > 1 {
        let reason = "sessions over a bridge cannot share memory".into();
        report.add("rnbd.oversubscribe".into(), reason, "1 with an [[ntb]]");
    }
    if !config.roce.enabled {
        let reason = "NTRDMA needs the RoCE provider of the interfaces".into();
        report.add("roce.enabled".into(), reason, "true with an [[ntb]]");
    }
}

/// Checks the addresses that name the two ends of an NTRDMA bridge.
fn check_ends(config: &Config, i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    for (key, is_there) in [("address", ntb.address.is_some()), ("peer", ntb.peer.is_some())] {
        if !is_there {
            let accepted = "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1";
            report.missing(format!("ntb.{i}.{key}"), "missing".into(), accepted);
        }
    }
    let Some((address, peer)) = ntb.ends() else { return };
    if address.is_ipv4() != peer.is_ipv4() || address == peer {
        let reason = format!("{address} and {peer} cannot be the two ends");
        report.add(format!("ntb.{i}.peer"), reason, "another address of the same family");
    }
    let mut before = config.ntrdma().take_while(|(n, _)| *n < i);
    if let Some((n, _)) = before.find(|(_, other)| other.address == Some(address)) {
        let reason = format!("{address} is already used by ntb.{n}");
        report.add(format!("ntb.{i}.address"), reason, "an address of its own");
    }
    for (n, net) in config.net.iter().enumerate() {
        let taken = |(one, _): &(IpAddr, u8)| [address, peer].contains(one);
        if let Some((address, _)) = net.fixed().find(taken) {
            let reason = format!("{address} is already used by net.{n}");
            report.add(format!("ntb.{i}.address"), reason, "addresses of no interface");
        }
    }
    let elsewhere = ntb.core.is_some_and(|core| core > 0);
    for (n, remote) in config.remote.iter().enumerate() {
        if elsewhere && remote.path.iter().any(|path| path.from == address) {
            let reason = format!("{address} belongs to ntb.{i}, which another core polls");
            let accepted = "addresses of core 0, which connects to other servers";
            report.add(format!("remote.{n}.path"), reason, accepted);
        }
        if remote.path.iter().any(|path| path.from == address && path.to != Host::Address(peer)) {
            let reason = format!("only {peer} is at the other end of the bridge");
            report.add(format!("remote.{n}.path"), reason, "");
        }
    }
}

/// Checks that no device is named twice, nor by a serial number or a MAC address.
fn check_devices(config: &Config, report: &mut Report<'_>) {
    let devices = config.ntb.iter().enumerate().filter(|(_, ntb)| ntb.tcp.is_none());
    let devices: Vec<(usize, &Ntb)> = devices.collect();
    let place = |n: usize| match &devices[n].1.device {
        Some(DeviceName::Position(position)) => Ok(usize::from(*position)),
        Some(device) => Err(device),
        None => Ok(n),
    };
    for (n, &(i, ntb)) in devices.iter().enumerate() {
        if let Some(other) = (0..n).find(|other| place(*other) == place(n)) {
            let reason = format!("the same bridge as ntb.{}", devices[other].0);
            report.add(format!("ntb.{i}.device"), reason, "a bridge of its own");
        }
        if !matches!(&ntb.device, None | Some(DeviceName::Position(_) | DeviceName::Location(_))) {
            let reason = "a bridge has no serial number and no MAC address".into();
            report.add(format!("ntb.{i}.device"), reason, "\"pci:…\" or a position");
        }
    }
}

/// Checks that an `ntb_transport` bridge has no keys of NTRDMA.
fn check_transport(i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    let given = [
        ("address", ntb.address.is_some(), "the addresses of its interface are `net.N.address`"),
        ("peer", ntb.peer.is_some(), "the peer is the host at the other end"),
        (
            "tcp",
            ntb.tcp.is_some(),
            "a host at the other end of a TCP connection has no such bridge",
        ),
        ("listen", ntb.listen, "ntb_transport accepts no connections"),
        ("peer_timeout_ms", ntb.peer_timeout_ms.is_some(), "Linux sends no heartbeat"),
        ("core", ntb.core.is_some_and(|core| core > 0), "core 0 polls its interface"),
    ];
    for (key, _, reason) in given.into_iter().filter(|(_, is_given, _)| *is_given) {
        report.add(format!("ntb.{i}.{key}"), reason.into(), "nothing with protocol ntb_transport");
    }
}

/// Checks the keys of a bridge over TCP.
fn check_tcp(config: &Config, i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    if i > 0 {
        for (key, is_given) in [("tcp", ntb.tcp.is_some()), ("listen", ntb.listen)] {
            if is_given {
                let reason = "only the first [[ntb]] can go over TCP".into();
                report.add(format!("ntb.{i}.{key}"), reason, "nothing");
            }
        }
        return;
    }
    if ntb.tcp.is_some() && ntb.core.is_some_and(|core| core > 0) {
        let reason = "TCP is carried by core 0".into();
        report.add("ntb.0.core".into(), reason, "0 with `tcp`");
    }
    if ntb.tcp.is_some() && ntb.side.is_some() {
        let reason = "TCP has no sides".into();
        report.add("ntb.0.side".into(), reason, "either `side` or `tcp`");
    }
    if ntb.tcp.is_some() && ntb.device.is_some() {
        let reason = "TCP has no device".into();
        report.add("ntb.0.device".into(), reason, "either `device` or `tcp`");
    }
    // Over TCP only the peer may connect, so `hosts` is satisfied if it admits the peer.
    if let Some(peer) = ntb.tcp
        && !Hosts::new(ntb.hosts.clone()).admits(peer)
    {
        let reason = format!("{peer}, the address in `tcp`, is in none of these networks");
        report.add("ntb.0.hosts".into(), reason, "networks with the peer in one of them");
    }
    if ntb.tcp.is_none() && ntb.listen {
        let reason = "no host may connect".into();
        report.add("ntb.0.listen".into(), reason, "true only with `tcp`, the peer's address");
    }
    let other = listener(config, ntb.port).filter(|other| ntb.listen && other != "ntb.0");
    if let Some(other) = other {
        let reason = format!("{other} listens on port {}", ntb.port);
        report.add("ntb.0.port".into(), reason, "another port");
    }
}
