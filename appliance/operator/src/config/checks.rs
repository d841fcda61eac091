//! Validation across keys of the configuration. Types and limits of single keys are checked when they are decoded.

mod linx;
mod messaging;
mod ntb;
mod nvme;
mod rapidio;
mod remote;
mod report;
mod usnic;

use super::device_name::DeviceName;
use super::item::Item as _;
use super::origin::Problem;
use super::schema::{Config, Export, Net};
use super::servers::Fingerprint;
use super::tree::Node;
use super::user::UserCertificate;
use super::values::{Authority, Name, Pem, PrivateKey, RoceBy, Size, same_subnet};
use core::net::IpAddr;
use net::syslog::Transport;
use net::tls::PairError;
use report::Report;
use storage::rnbd::server::plain;

/// Bits of an RTRS immediate that address a byte in a session's chunks (rtrs-pri.h, `MAX_IMM_PAYL_BITS`).
const IMMEDIATE_BITS: u32 = 28;

/// Checks a whole configuration. `root` is the tree that it was decoded from.
pub fn check(config: &Config, root: &Node) -> Vec<Problem> {
    let mut report = Report { root, problems: Vec::new() };
    for (i, net) in config.net.iter().enumerate() {
        check_net(i, net, &config.net[..i], &mut report);
    }
    check_volumes(config, &mut report);
    remote::check(config, &mut report);
    check_exports(config, &mut report);
    check_rnbd(config, &mut report);
    check_http(config, &mut report);
    check_users(config, &mut report);
    check_syslog(config, &mut report);
    ntb::check(config, &mut report);
    rapidio::check(config, &mut report);
    linx::check(config, &mut report);
    nvme::check(config, &mut report);
    messaging::check(config, &mut report);
    usnic::check(config, &mut report);
    report.problems
}

fn check_net(i: usize, net: &Net, earlier: &[Net], report: &mut Report<'_>) {
    let ways = [net.device.is_some(), net.mac.is_some(), net.index.is_some()];
    if ways.into_iter().filter(|&given| given).count() > 1 {
        let reason = "more than one of device, mac and index are given".into();
        report.add(format!("net.{i}"), reason, "one of them");
    }
    if let Some(DeviceName::Serial(_)) = net.device {
        let reason = "an interface has no serial number".into();
        report.add(format!("net.{i}.device"), reason, "\"pci:…\", \"mmio:…\" or \"mac:…\"");
    }
    // The interface, as a device name or as a position in the order of discovery.
    let place = |i: usize, n: &Net| match &n.device {
        Some(DeviceName::Position(position)) => (None, Some(usize::from(*position))),
        Some(DeviceName::Mac(mac)) => (Some(DeviceName::Mac(*mac)), None),
        Some(device) => (Some(device.clone()), None),
        None => match n.mac {
            Some(mac) => (Some(DeviceName::Mac(mac)), None),
            None => (None, Some(n.index.map_or(i, usize::from))),
        },
    };
    for (j, other) in earlier.iter().enumerate() {
        if place(i, net) == place(j, other) {
            report.add(format!("net.{i}"), format!("the same interface as net.{j}"), "");
        }
        for (address, _) in net.fixed().filter(|(a, _)| other.fixed().any(|(b, _)| *a == b)) {
            report.add(
                format!("net.{i}.address"),
                format!("{address} is already an address of net.{j}"),
                "",
            );
        }
    }
    if net.address.iter().enumerate().any(|(k, a)| net.address[..k].contains(a)) {
        report.add(format!("net.{i}.address"), "an address is listed twice".into(), "");
    }
    let has_v6 = net.fixed().any(|(a, _)| a.is_ipv6());
    if has_v6 && net.mtu.is_some_and(|mtu| mtu < 1280) {
        let reason = "too small for IPv6".into();
        report.add(format!("net.{i}.mtu"), reason, "1280 to 9216 with an IPv6 address");
    }
    if net.vlan.is_some() && net.roce == Some(RoceBy::Hardware) {
        let reason = "RoCE on a VLAN is done in software".into();
        report.add(format!("net.{i}.roce"), reason, "\"software\" with `vlan`");
    }
    check_gateways(i, net, report);
}

fn check_gateways(i: usize, net: &Net, report: &mut Report<'_>) {
    for (k, &gateway) in net.gateway.iter().enumerate() {
        let path = format!("net.{i}.gateway");
        if net.gateway[..k].iter().any(|g| g.is_ipv4() == gateway.is_ipv4()) {
            report.add(path, "two gateways of one address family".into(), "one of each");
            continue;
        }
        let link_local = matches!(gateway, IpAddr::V6(a) if a.is_unicast_link_local());
        let near = net.fixed().any(|(a, prefix)| a != gateway && same_subnet(a, prefix, gateway));
        if !near && !link_local {
            let reason = format!("{gateway} is in no subnet of this interface");
            report.add(path, reason, "a neighbour of one of its fixed addresses");
        }
    }
}

fn check_volumes(config: &Config, report: &mut Report<'_>) {
    for (i, volume) in config.volume.iter().enumerate() {
        let earlier = &config.volume[..i];
        if earlier.iter().any(|other| other.name == volume.name) {
            let reason = format!("another volume is called {:?}", volume.name.as_str());
            report.add(format!("volume.{i}.name"), reason, "");
        }
        if let Some(disk) = &volume.disk {
            if matches!(disk, DeviceName::Mac(_)) {
                let reason = "a disk has no hardware address".into();
                report.add(format!("volume.{i}.disk"), reason, "\"serial:…\" or \"pci:…\"");
            }
            let on_disk = earlier.iter().filter(|other| other.disk.as_ref() == Some(disk));
            if on_disk.clone().any(|other| other.size.is_none() || volume.size.is_none()) {
                let reason = format!("disk {disk} already holds another volume");
                report.add(format!("volume.{i}.disk"), reason, "a size for each of them");
            }
        }
        if !volume.memory().is_multiple_of(512) {
            let reason = "not a whole number of sectors".into();
            report.add(format!("volume.{i}.size"), reason, "multiples of 512");
        }
    }
    let wanted = config.volume.iter().fold(0u64, |sum, v| sum.saturating_add(v.memory()));
    if let Some(arena) = config.memory.arena.filter(|arena| arena.0 < wanted) {
        let reason = format!("the volumes alone take {}", Size(wanted));
        report.add("memory.arena".into(), format!("{arena} is too small: {reason}"), "");
    }
}

fn check_exports(config: &Config, report: &mut Report<'_>) {
    for (i, export) in config.export.iter().enumerate() {
        let same = |other: &&Export| plain(other.name.as_str()) == plain(export.name.as_str());
        if let Some(other) = config.export[..i].iter().find(same) {
            let reason = format!("another export is called {:?}", other.name.as_str());
            report.add(format!("export.{i}.name"), reason, "with and without /dev/ is one name");
        }
        if config.volume_names().all(|name| *name != export.volume) {
            let reason = format!("there is no volume {:?}", export.volume.as_str());
            let names: Vec<&str> = config.volume_names().map(Name::as_str).collect();
            report.missing(format!("export.{i}.volume"), reason, &names.join(", "));
        }
    }
    if let Some(i) = config.limited_export_of_shared_memory() {
        let reason =
            "with rnbd.oversubscribe sessions share memory, which requests that wait for a \
                      limit would take from other clients"
                .into();
        report.add(format!("export.{i}.iops"), reason, "no limits, or rnbd.oversubscribe = 1");
    }
}

fn check_http(config: &Config, report: &mut Report<'_>) {
    let http = &config.http;
    if let Some(Err(why)) = http.authorities() {
        report.add("http.client_ca".into(), why, &Authority::accepts(None));
    }
    // Without TLS the pair may be incomplete: the console sets its halves one after the other.
    if !http.tls {
        return;
    }
    match (&http.certificate, &http.key) {
        (Some(_), None) => {
            report.add("http.certificate".into(), "given without http.key".into(), "both");
        }
        (None, Some(_)) => {
            report.add("http.key".into(), "given without http.certificate".into(), "both");
        }
        _ => {}
    }
    match http.pair() {
        Some(Err(PairError::Certificate(why))) => {
            report.add("http.certificate".into(), why, &Pem::accepts(None));
        }
        Some(Err(PairError::Key(why))) => {
            report.add("http.key".into(), why, &PrivateKey::accepts(None));
        }
        _ => {}
    }
}

fn check_users(config: &Config, report: &mut Report<'_>) {
    if config.console.login && !config.has_console_admin() {
        let reason =
            "nobody could log in: no [[user]] with the role admin has a token_sha256".into();
        report.add("console.login".into(), reason, "first such a user, then the login");
    }
    for (i, user) in config.user.iter().enumerate() {
        let earlier = &config.user[..i];
        if earlier.iter().any(|other| other.name == user.name) {
            let reason = format!("another user is called {:?}", user.name.as_str());
            report.add(format!("user.{i}.name"), reason, "");
        }
        let certificate = &user.certificate;
        if matches!(certificate, Some(UserCertificate::Name(_))) && config.http.client_ca.is_none()
        {
            let reason = "a name counts only with http.client_ca: without it anybody can make such a certificate";
            let accepted = "first http.client_ca, or the SHA-256 of the certificate";
            report.missing(format!("user.{i}.certificate"), reason.into(), accepted);
        }
        if certificate.is_some() && earlier.iter().any(|other| other.certificate == *certificate) {
            let reason = "another user has the same certificate".into();
            report.add(format!("user.{i}.certificate"), reason, "a certificate of its own");
        }
        let Some(token) = user.token_sha256 else { continue };
        let mut others = earlier.iter().filter_map(|user| user.token_sha256);
        if others.any(|other| other == token) || config.http.token_sha256 == Some(token) {
            let reason = "another user has the same token, or http.token_sha256 is its hash".into();
            report.add(format!("user.{i}.token_sha256"), reason, "a token of its own");
        }
    }
}

fn check_syslog(config: &Config, report: &mut Report<'_>) {
    let over_tls = config.system.syslog.as_ref().is_some_and(|one| one.transport == Transport::Tls);
    if over_tls && config.system.syslog_fingerprint.is_none() {
        let reason = "a syslog server over TLS is known by its certificate's fingerprint".into();
        report.add("system.syslog_fingerprint".into(), reason, &Fingerprint::accepts(None));
    }
}

fn check_rnbd(config: &Config, report: &mut Report<'_>) {
    let (depth, chunk) = (u64::from(config.rnbd.queue_depth), config.rnbd.chunk_size.0);
    if !chunk.is_power_of_two() {
        let reason = format!("{} is not a power of two", config.rnbd.chunk_size);
        report.add("rnbd.chunk_size".into(), reason, "8KiB, 16KiB, 32KiB and so on");
    } else if depth.next_power_of_two() * chunk > 1 << IMMEDIATE_BITS {
        let reason = "queue_depth × chunk_size is more than RTRS can address".into();
        report.add("rnbd.chunk_size".into(), reason, "a product of at most 256MiB");
    }
    if config.rnbd.offered_depth == 1 {
        let reason = "Linux clients hang with a depth of 1".into();
        report.add("rnbd.offered_depth".into(), reason, "0, or 2 to 4096");
    }
}
