//! Cross-section validation of `[[remote]]` and `[[mirror]]`.

use super::report::Report;
use crate::config::remote::{Mirror, Remote, RemoteKind};
use crate::config::remote_tcp::Digests;
use crate::config::schema::Config;
use crate::config::values::Name;
use storage::rnbd::wire::AccessMode;

/// Most addresses of a server.
const MOST_ADDRESSES: usize = 16;

/// Checks remotes and mirrors.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    for (i, remote) in config.remote.iter().enumerate() {
        let (path, name) = (format!("remote.{i}.name"), remote.name.as_str());
        let earlier = &config.remote[..i];
        let volumes = config.volume.iter().map(|volume| &volume.name);
        if volumes.chain(earlier.iter().map(|r| &r.name)).any(|other| other.as_str() == name) {
            report.add(path, format!("another volume is called {name:?}"), "");
        }
        match remote.kind {
            RemoteKind::Rnbd => check_rnbd(i, config, report),
            RemoteKind::Nbd | RemoteKind::NvmeTcp => check_tcp(i, remote, report),
        }
    }
    for (i, mirror) in config.mirror.iter().enumerate() {
        check_mirror(i, mirror, config, report);
    }
}

/// Checks the session of a remote over RNBD.
fn check_rnbd(i: usize, config: &Config, report: &mut Report<'_>) {
    let remote = &config.remote[i];
    // The entry may be made key by key, and the kind is still to come.
    let over_tcp =
        [(!remote.address.is_empty(), "address"), (remote.write_through, "write_through")];
    let kinds = [
        (&over_tcp[..], "kinds nbd and nvme-tcp", "nbd, nvme-tcp"),
        (&of_nbd(remote), "kind nbd", "nbd"),
        (&of_nvme(remote), "kind nvme-tcp", "nvme-tcp"),
    ];
    for (keys, kind, accepted) in kinds {
        if let Some((_, key)) = keys.iter().find(|(is_there, _)| *is_there) {
            let reason = format!("{key} is a key of {kind}");
            return report.missing(format!("remote.{i}.kind"), reason, accepted);
        }
    }
    let (Some(sessname), Some(device_path)) = (&remote.sessname, &remote.device_path) else {
        let missing = if remote.sessname.is_none() { "sessname" } else { "device_path" };
        let accepted = "the name of the session, and that of the device on the server";
        return report.missing(format!("remote.{i}.{missing}"), "missing".into(), accepted);
    };
    check_cores(i, remote, config, report);
    let earlier = &config.remote[..i];
    let mut session = earlier.iter().filter(|other| other.sessname.as_ref() == Some(sessname));
    if remote.path.is_empty() && session.clone().next().is_none() {
        let reason = format!("the session {sessname} has no path");
        report.missing(format!("remote.{i}.path"), reason, "a list of SOURCE@DESTINATION");
    }
    if session.any(|other| other.device_path.as_ref() == Some(device_path)) {
        let reason = "the session maps this device already".into();
        report.add(format!("remote.{i}.device_path"), reason, "");
    }
}

/// Keys of kind `nbd` alone, and whether they are set.
fn of_nbd(remote: &Remote) -> [(bool, &'static str); 1] {
    [(remote.export.is_some(), "export")]
}

/// Keys of kind `nvme-tcp` alone, and whether they are set.
fn of_nvme(remote: &Remote) -> [(bool, &'static str); 6] {
    [
        (remote.nqn.is_some(), "nqn"),
        (remote.nsid.is_some(), "nsid"),
        (remote.host_nqn.is_some(), "host_nqn"),
        (remote.dhchap_secret.is_some(), "dhchap_secret"),
        (remote.dhchap_controller_secret.is_some(), "dhchap_controller_secret"),
        (remote.digests != Digests::None, "digests"),
    ]
}

/// Checks a remote over NBD or NVMe/TCP.
fn check_tcp(i: usize, remote: &Remote, report: &mut Report<'_>) {
    let of_rnbd = [
        (remote.sessname.is_some(), "sessname"),
        (!remote.path.is_empty(), "path"),
        (remote.device_path.is_some(), "device_path"),
    ];
    let (of_nbd, of_nvme) = (of_nbd(remote), of_nvme(remote));
    let (foreign, kind, accepted) = match remote.kind {
        RemoteKind::NvmeTcp => (&of_nbd[..], "nbd", "address, nqn, host_nqn, nsid, connections"),
        _ => (&of_nvme[..], "nvme-tcp", "address, export, connections, write_through"),
    };
    let foreign = foreign.iter().map(|key| (key, kind));
    for ((is_there, key), kind) in of_rnbd.iter().map(|key| (key, "rnbd")).chain(foreign) {
        if *is_there {
            let reason = format!("{key} is a key of kind {kind}");
            report.add(format!("remote.{i}.{key}"), reason, accepted);
        }
    }
    if remote.kind == RemoteKind::NvmeTcp {
        check_names(i, remote, report);
    }
    if remote.access_mode.0 == AccessMode::Migration {
        let reason = "migration is a mode of kind rnbd".into();
        report.add(format!("remote.{i}.access_mode"), reason, "ro or rw");
    }
    if remote.address.is_empty() {
        let reason = "no address of the server".into();
        report.missing(format!("remote.{i}.address"), reason, "a list of addresses or names");
    }
    if remote.address.len() > MOST_ADDRESSES {
        let reason = format!("more than {MOST_ADDRESSES} addresses");
        report.add(format!("remote.{i}.address"), reason, "at most 16");
    }
}

/// Checks names and secrets of a remote over NVMe/TCP.
fn check_names(i: usize, remote: &Remote, report: &mut Report<'_>) {
    let names = [
        (remote.nqn.is_none(), "nqn", "the name of the subsystem is missing"),
        (remote.host_nqn.is_none(), "host_nqn", "the name of this host is missing"),
    ];
    for (_, key, reason) in names.into_iter().filter(|(is_missing, ..)| *is_missing) {
        report.missing(
            format!("remote.{i}.{key}"),
            reason.into(),
            "an NQN such as nqn.2026-01.com.example:a",
        );
    }
    if remote.dhchap_controller_secret.is_some() && remote.dhchap_secret.is_none() {
        let reason = "the controller's secret without that of the host".into();
        report.missing(format!("remote.{i}.dhchap_secret"), reason, "a secret DHHC-1:…:");
    }
}

/// Checks that paths start on the first core. Remote storage runs there, so a path from another core would never come
/// up.
fn check_cores(i: usize, remote: &Remote, config: &Config, report: &mut Report<'_>) {
    for (k, path) in remote.path.iter().enumerate() {
        let foreign = config.net.iter().position(|net| {
            let ours = net.fixed().any(|(address, _)| address == path.from);
            ours && !net.core.is_first_alone()
        });
        if let Some(n) = foreign {
            let reason =
                format!("{} belongs to net.{n}, which core 0 does not serve alone", path.from);
            let accepted = "addresses of interfaces that only core 0 serves";
            report.add(format!("remote.{i}.path.{k}"), reason, accepted);
        }
    }
}

fn check_mirror(i: usize, mirror: &Mirror, config: &Config, report: &mut Report<'_>) {
    let name = &mirror.name;
    if config.volume_names().filter(|other| *other == name).count() > 1 {
        report.add(format!("mirror.{i}.name"), format!("another volume is called {name}"), "");
    }
    let path = || format!("mirror.{i}.members");
    let [first, second] = mirror.members.as_slice() else {
        let reason = "not two members".to_string();
        return match mirror.members.len() {
            0 | 1 => report.missing(path(), reason, "the names of two volumes"),
            _ => report.add(path(), reason, "the names of two volumes"),
        };
    };
    if first == second {
        report.add(path(), "both members are the same volume".into(), "two volumes");
    }
    let single = config.volume.iter().map(|v| &v.name).chain(config.remote.iter().map(|r| &r.name));
    let single: Vec<&Name> = single.collect();
    for member in [first, second] {
        if !single.contains(&member) {
            let names: Vec<&str> = single.iter().map(|name| name.as_str()).collect();
            report.missing(path(), format!("there is no volume {member}"), &names.join(", "));
        }
        if config.mirror[..i].iter().any(|other| other.members.contains(member)) {
            report.add(path(), format!("{member} is a member of another mirror"), "");
        }
    }
    for (k, export) in config.export.iter().enumerate() {
        if mirror.members.contains(&export.volume) {
            let reason = format!("{} is a member of mirror {name}", export.volume);
            report.add(format!("export.{k}.volume"), reason, name.as_str());
        }
    }
}
