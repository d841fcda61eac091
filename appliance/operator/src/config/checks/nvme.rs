//! Cross-section validation of `[nvme]` and `[[subsystem]]`.

use super::messaging::listener;
use super::report::Report;
use crate::config::nvme::Subsystem;
use crate::config::nvme_host::NvmeHost;
use crate::config::schema::Config;
use crate::config::values::Name;

/// Checks subsystems against each other and against other sections.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    check_ports(config, report);
    check_hosts(config, report);
    for (i, subsystem) in config.subsystem.iter().enumerate() {
        let path = |key: &str| format!("subsystem.{i}.{key}");
        let earlier = &config.subsystem[..i];
        if earlier.iter().any(|other| other.nqn == subsystem.nqn) {
            let reason = format!("another subsystem is called {}", subsystem.nqn);
            report.add(path("nqn"), reason, "");
        }
        if subsystem.cntlid_min > subsystem.cntlid_max {
            let reason = "smaller than cntlid_min".into();
            report.add(path("cntlid_max"), reason, "cntlid_min to 65519");
        }
        check_namespaces(config, i, subsystem, report);
        check_demands(config, i, subsystem, report);
    }
}

/// Checks secrets of hosts.
fn check_hosts(config: &Config, report: &mut Report<'_>) {
    for (i, host) in config.nvme_host.iter().enumerate() {
        let path = |key: &str| format!("nvme_host.{i}.{key}");
        if config.nvme_host[..i].iter().any(|other| other.nqn == host.nqn) {
            let reason = format!("another nvme_host has the secrets of {}", host.nqn);
            report.add(path("nqn"), reason, "one [[nvme_host]] for each host");
        }
        if host.nqn.is_all() {
            let reason = "a secret belongs to one host".into();
            report.add(path("nqn"), reason, "the NQN of a host");
        }
        if host.dhchap_controller_secret.is_some() && host.dhchap_secret.is_none() {
            let reason = "without `dhchap_secret` nothing is authenticated".into();
            report.add(path("dhchap_controller_secret"), reason, "`dhchap_secret` as well");
        }
    }
    let lists = [
        ("nvme.dhchap_hashes", config.nvme.dhchap_hashes.is_empty()),
        ("nvme.dhchap_groups", config.nvme.dhchap_groups.is_empty()),
    ];
    for (path, _) in lists.into_iter().filter(|(_, is_empty)| *is_empty) {
        let reason = "empty, so no host could authenticate".into();
        report.add(path.into(), reason, "at least one, or no such key");
    }
}

/// Checks that some host can give the proofs that a subsystem demands.
fn check_demands(config: &Config, i: usize, subsystem: &Subsystem, report: &mut Report<'_>) {
    let admitted =
        |host: &&NvmeHost| subsystem.hosts.iter().any(|one| one.is_all() || *one == host.nqn);
    let hosts: Vec<&NvmeHost> = config.nvme_host.iter().filter(admitted).collect();
    let has_secret = hosts.iter().any(|host| host.dhchap_secret.is_some());
    // Secure concatenation makes a TLS key by DH-HMAC-CHAP.
    let has_key = has_secret || hosts.iter().any(|host| host.tls_psk.is_some());
    for (key, demand, has, needed) in [
        ("dhchap", subsystem.dhchap, has_secret, "`dhchap_secret`"),
        ("tls", subsystem.tls, has_key, "`tls_psk` or `dhchap_secret`"),
    ] {
        if demand.is_required() && !has && !subsystem.hosts.is_empty() {
            let reason = format!("no [[nvme_host]] that the subsystem admits has a {needed}");
            report.add(format!("subsystem.{i}.{key}"), reason, "optional, or secrets of hosts");
        }
    }
}

fn check_ports(config: &Config, report: &mut Report<'_>) {
    if config.subsystem.is_empty() {
        return;
    }
    let ports = [("nvme.tcp", config.nvme.tcp), ("nvme.discovery", config.nvme.discovery)];
    for (path, port) in ports.into_iter().filter(|(_, port)| *port != 0) {
        if let Some(other) = listener(config, port).filter(|other| other != "nvme") {
            let reason = format!("{other} listens on port {port}");
            report.add(path.into(), reason, "another port");
        }
    }
    if config.nvme.tcp != 0 && config.nvme.tcp == config.nvme.discovery {
        let reason = "nvme.discovery is the same port".into();
        report.add(
            "nvme.tcp".into(),
            reason,
            "two ports; that of the I/O controllers has discovery, too",
        );
    }
}

fn check_namespaces(config: &Config, i: usize, subsystem: &Subsystem, report: &mut Report<'_>) {
    for (j, namespace) in subsystem.namespace.iter().enumerate() {
        let path = |key: &str| format!("subsystem.{i}.namespace.{j}.{key}");
        let earlier = &subsystem.namespace[..j];
        if earlier.iter().any(|other| other.nsid == namespace.nsid) {
            let reason = format!("another namespace has the identifier {}", namespace.nsid);
            report.add(path("nsid"), reason, "");
        }
        if !matches!(namespace.block_size, None | Some(512 | 4096)) {
            report.add(path("block_size"), "not a block size".into(), "512 or 4096");
        }
        if config.volume_names().all(|name| *name != namespace.volume) {
            let reason = format!("there is no volume {:?}", namespace.volume.as_str());
            let names: Vec<&str> = config.volume_names().map(Name::as_str).collect();
            report.missing(path("volume"), reason, &names.join(", "));
        }
        let before = config.subsystem[..i].iter().flat_map(|one| &one.namespace).chain(earlier);
        if namespace.uuid.is_some() && before.into_iter().any(|other| other.uuid == namespace.uuid)
        {
            let reason = "another namespace has this UUID, so hosts refuse one of them".into();
            report.add(path("uuid"), reason, "a UUID of its own");
        }
    }
}
