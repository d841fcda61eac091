//! Warnings after a change of exports or subsystems: what else leaves the volume open, over RNBD or NVMe, and which
//! clients still have it open.

use crate::appliance::Appliance;
use crate::clients::session_name;
use crate::config::nvme::HostNqn;
use crate::config::{Config, Export, ExportName, Name, Subsystem};
use crate::report::Value;
use core::net::IpAddr;
use net::hosts::Hosts;

/// A device that a client has open.
struct Open {
    device: String,
    session: String,
    /// Client addresses of the session's paths. Empty while the session has no path.
    hosts: Vec<IpAddr>,
}

/// The clients that an export admits, in words.
fn audience(export: &Export) -> String {
    let hosts = match export.hosts.is_empty() {
        true => "everybody".to_string(),
        false => Hosts::new(export.hosts.clone()).to_string(),
    };
    match export.sessions.is_empty() {
        true => hosts,
        false => format!("{hosts} in sessions with certain names, which any client can choose"),
    }
}

/// Whether an export admits the client that has a device open.
fn admits(export: &Export, open: &Open) -> bool {
    let hosts = Hosts::new(export.hosts.clone());
    let session = export.sessions.iter().any(|name| name.as_str() == open.session);
    (export.sessions.is_empty() || session) && open.hosts.iter().all(|&host| hosts.admits(host))
}

/// Warnings after the export `changed` was changed, or removed from `exports`.
fn lines(exports: &[Export], changed: &ExportName, volume: &Name, open: &[Open]) -> Vec<String> {
    let mut lines = Vec::new();
    let of_volume = || exports.iter().filter(|export| export.volume == *volume);
    if is_restricted(exports, changed) {
        lines.extend(of_volume().filter(|export| export.name != *changed).map(still_exported));
    }
    for open in open.iter().filter(|open| !of_volume().any(|export| admits(export, open))) {
        let hosts: Vec<String> = open.hosts.iter().map(ToString::to_string).collect();
        lines.push(format!(
            "{} still has {volume} open (session {}); `device close {} {}` closes it",
            if hosts.is_empty() { "a client".into() } else { hosts.join(", ") },
            open.session,
            open.device,
            open.session
        ));
    }
    lines
}

/// Subsystems that serve a volume to hosts, a line each.
fn over_nvme(subsystems: &[Subsystem], volume: &Name, still: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for subsystem in subsystems.iter().filter(|subsystem| !subsystem.hosts.is_empty()) {
        let hosts = match subsystem.hosts.iter().any(HostNqn::is_all) {
            true => "all hosts".to_string(),
            false => subsystem.hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let networks = match subsystem.networks.is_empty() {
            true => String::new(),
            false => format!(" of {}", Hosts::new(subsystem.networks.clone())),
        };
        for namespace in subsystem.namespace.iter().filter(|one| one.volume == *volume) {
            let how = if namespace.read_only { " for reading" } else { "" };
            lines.push(format!(
                "volume {volume} is {still}served over NVMe to {hosts}{networks}{how} as namespace {} of {}",
                namespace.nsid, subsystem.nqn
            ));
        }
    }
    lines
}

/// Hosts that can open a new volume: over RNBD all without any `[[export]]`, otherwise none; over NVMe those of
/// subsystems that have it already.
pub(super) fn of_new_volume(name: &Name, config: &Config) -> String {
    let mut text = match config.export.is_empty() {
        true => format!("volume {name} is exported to everybody as {name}\n"),
        false => format!("volume {name} is not exported: run `export add {name} volume={name}`\n"),
    };
    for line in over_nvme(&config.subsystem, name, "") {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Devices that clients have open on a volume, on all cores.
fn opens(appliance: &dyn Appliance, volume: &Name) -> Vec<Open> {
    let storage = appliance.storage();
    let mut open = Vec::new();
    if let Some(server) = storage.server {
        let of_volume = |id| storage.volumes.name(id) == Some(volume.as_str());
        open.extend(server.devices().filter(|device| of_volume(device.volume)).map(|device| {
            Open {
                device: device.name.as_str().into(),
                session: session_name(server, device.session),
                hosts: server.transport().hosts(device.session).collect(),
            }
        }));
    }
    for rows in &storage.others {
        let of_volume = rows.devices.iter().filter(|row| text(row, "volume") == volume.as_str());
        open.extend(of_volume.map(|row| Open {
            device: text(row, "name").into(),
            session: text(row, "session").into(),
            hosts: hosts_of(&rows.paths, text(row, "session")),
        }));
    }
    open
}

/// [`lines`] for the appliance's exports, subsystems and open devices, as text that follows a reply.
pub(crate) fn warnings(appliance: &dyn Appliance, changed: &ExportName, volume: &Name) -> String {
    let open = opens(appliance, volume);
    let exports = appliance.wanted_exports();
    let mut lines = lines(&exports, changed, volume, &open);
    if is_restricted(&exports, changed) {
        lines.extend(over_nvme(&appliance.document().config().subsystem, volume, "still "));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// [`of_subsystem`] for those of `new` that `old` does not have.
pub(crate) fn of_subsystems(appliance: &dyn Appliance, old: &Config, new: &Config) -> Vec<String> {
    let exports = appliance.wanted_exports();
    let is_new = |one: &&Subsystem| !old.subsystem.contains(one);
    let changed = new.subsystem.iter().filter(is_new);
    changed.flat_map(|one| of_subsystem(one, &exports, &new.subsystem)).collect()
}

/// What else leaves the volumes of a subsystem open that was added or changed.
fn of_subsystem(subsystem: &Subsystem, exports: &[Export], all: &[Subsystem]) -> Vec<String> {
    if subsystem.hosts.iter().any(HostNqn::is_all) && subsystem.networks.is_empty() {
        return Vec::new();
    }
    let others: Vec<Subsystem> = all.iter().filter(|it| it.nqn != subsystem.nqn).cloned().collect();
    let mut lines = Vec::new();
    for namespace in &subsystem.namespace {
        let volume = &namespace.volume;
        for export in exports.iter().filter(|export| export.volume == *volume) {
            lines.push(still_exported(export));
        }
        lines.extend(over_nvme(&others, volume, "still "));
    }
    lines
}

/// Whether the export `changed` is gone, or admits fewer than everybody.
fn is_restricted(exports: &[Export], changed: &ExportName) -> bool {
    let now = exports.iter().find(|export| export.name == *changed);
    now.is_none_or(|e| !e.hosts.is_empty() || !e.sessions.is_empty() || e.read_only)
}

/// The clients that an export leaves its volume open to.
fn still_exported(export: &Export) -> String {
    let how = if export.read_only { " for reading" } else { "" };
    let (volume, name) = (&export.volume, &export.name);
    format!("volume {volume} is still exported to {}{how} as {name}", audience(export))
}

/// Clients that have a volume open through exports `before`, and could not open it again through `after`.
pub(crate) fn cut_off(
    appliance: &dyn Appliance,
    before: &[Export],
    after: &[Export],
) -> Vec<String> {
    let mut volumes: Vec<&Name> = before.iter().map(|export| &export.volume).collect();
    volumes.dedup();
    let mut lines = Vec::new();
    for volume in volumes {
        let admitted = |exports: &[Export], open: &Open| {
            exports.iter().any(|export| export.volume == *volume && admits(export, open))
        };
        for open in opens(appliance, volume) {
            if admitted(before, &open) && !admitted(after, &open) {
                let hosts: Vec<String> = open.hosts.iter().map(ToString::to_string).collect();
                let (hosts, session) = (hosts.join(", "), &open.session);
                let line =
                    format!("{hosts} has {volume} open (session {session}) and loses access");
                if !lines.contains(&line) {
                    lines.push(line);
                }
            }
        }
    }
    lines
}

/// A text value of a row that another core's loop published.
fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    let Value::Object(entries) = row else { return "" };
    match entries.iter().find(|(name, _)| name == key) {
        Some((_, Value::Text(text))) => text,
        _ => "",
    }
}

/// Client addresses of a session, from the names of its paths: `ip:CLIENT@ip:SERVER`.
fn hosts_of(paths: &[Value], session: &str) -> Vec<IpAddr> {
    let of_session = paths.iter().filter(|row| text(row, "session") == session);
    let client = |row| text(row, "name").split('@').next()?.strip_prefix("ip:")?.parse().ok();
    let mut hosts: Vec<IpAddr> = of_session.filter_map(client).collect();
    hosts.dedup();
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, volume: &str, hosts: &[&str]) -> Export {
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        Export { hosts, ..Export::of(name.parse().unwrap(), volume.parse().unwrap()) }
    }

    fn warned(exports: &[Export], changed: &str, open: &[Open]) -> Vec<String> {
        lines(exports, &changed.parse().unwrap(), &"ram0".parse().unwrap(), open)
    }

    #[test]
    fn restricted_export_names_others_of_its_volume() {
        let safe = export("safe", "ram0", &["10.0.0.2"]);
        let all = [export("ram0", "ram0", &[]), safe.clone(), export("x", "other", &[])];
        assert_eq!(
            warned(&all, "safe", &[]),
            ["volume ram0 is still exported to everybody as ram0"]
        );
        // Removing the restricted export leaves the same export open.
        assert_eq!(warned(&all[..1], "safe", &[]).len(), 1);
        assert!(warned(std::slice::from_ref(&safe), "safe", &[]).is_empty());
        // An export that is itself open to all gets no warning.
        assert!(warned(&all, "ram0", &[]).is_empty());
        let some = [export("b", "ram0", &["10.0.0.3"]), safe];
        assert_eq!(
            warned(&some, "safe", &[]),
            ["volume ram0 is still exported to 10.0.0.3/32 as b"]
        );
    }

    #[test]
    fn device_open_by_a_client_no_longer_admitted_is_reported() {
        let open = |host: &str| Open {
            device: "ram0".into(),
            session: "gw1".into(),
            hosts: vec![host.parse().unwrap()],
        };
        let all = [export("ram0", "ram0", &["10.0.0.2"])];
        assert!(warned(&all, "ram0", &[open("10.0.0.2")]).is_empty());
        assert_eq!(
            warned(&all, "ram0", &[open("10.0.0.5")]),
            ["10.0.0.5 still has ram0 open (session gw1); `device close ram0 gw1` closes it"]
        );
        let mut named = all[0].clone();
        named.sessions = vec!["other".parse().unwrap()];
        assert_eq!(warned(&[named], "ram0", &[open("10.0.0.2")]).len(), 1);
    }

    #[test]
    fn volume_that_nvme_hosts_may_use_is_reported_with_its_subsystem() {
        let text = "[[export]]\nname = \"ram0\"\nvolume = \"ram0\"\n\
             [[subsystem]]\nnqn = \"nqn.a:1\"\nhosts = \"*\"\n\
             [[subsystem.namespace]]\nnsid = 1\nvolume = \"ram0\"\n\
             [[subsystem]]\nnqn = \"nqn.a:2\"\nhosts = \"nqn.h:1\"\nnetworks = \"10.0.0.0/24\"\n\
             [[subsystem.namespace]]\nnsid = 2\nvolume = \"ram0\"\nread_only = true\n\
             [[subsystem]]\nnqn = \"nqn.a:3\"\n\
             [[subsystem.namespace]]\nnsid = 3\nvolume = \"ram0\"\n";
        let config = crate::config::check(text.as_bytes()).unwrap();
        let all = "volume ram0 is still served over NVMe to all hosts as namespace 1 of nqn.a:1";
        let some = "volume ram0 is still served over NVMe to nqn.h:1 of 10.0.0.0/24 for reading \
                    as namespace 2 of nqn.a:2";
        let ram0 = "ram0".parse().unwrap();
        assert_eq!(over_nvme(&config.subsystem, &ram0, "still "), [all, some]);
        let of = |index: usize| {
            of_subsystem(&config.subsystem[index], &config.export, &config.subsystem)
        };
        assert_eq!(of(0), [""; 0]);
        assert_eq!(of(1), ["volume ram0 is still exported to everybody as ram0", all]);
        assert!(of_new_volume(&ram0, &config).contains("is served over NVMe to all hosts as"));
    }
}
