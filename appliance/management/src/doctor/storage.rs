//! Checks of memory, exports, mirrors, remotes and disks.

use super::{Check, Finding, listed};
use crate::appliance::Appliance;
use crate::remote::path_name;
use crate::show;
use rtrs::client::PathState;
use storage::volume::mirror::{MemberState, MirrorState};

/// Bytes in text.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// Memory against what the next session needs.
pub(super) fn memory(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("memory");
    let (storage, config) = (appliance.storage(), appliance.document().config());
    let (size, free) = appliance.arena();
    let (size, free) = (size as u64, free as u64);
    let pool = appliance.roce().and_then(|roce| roce.on_demand);
    let refused = appliance.machine().refused;
    let by_memory = |count: &&crate::refused::Count| count.reason.contains("memory");
    let refusals: u64 = refused.counts().iter().filter(by_memory).map(|count| count.count).sum();
    let remedy = "end sessions (`session list`, `session disconnect NAME`), `set rnbd.queue_depth` lower \
                  or `set rnbd.oversubscribe 4`, then `save` and `reboot`; or give the machine more memory";
    let mut session = 0;
    if let Some(server) = storage.server {
        let transport = server.transport();
        let depth = u64::from(transport.queue_depth());
        session = depth * config.rnbd.chunk_size.0;
        if config.rnbd.oversubscribe == 1 && session > free {
            let cause = format!(
                "{} are free, and a session of {depth} × {} KiB needs {}: further clients are refused",
                mib(free),
                config.rnbd.chunk_size.0 >> 10,
                mib(session)
            );
            check.fault(cause, remedy);
        }
        if depth < u64::from(config.rnbd.queue_depth) && config.rnbd.offered_depth == 0 {
            check.warning(
                format!(
                    "clients get a queue depth of {depth}, not {}: too little memory",
                    config.rnbd.queue_depth
                ),
                "give the machine more memory, or delete RAM volumes (`volume list`), and reboot",
            );
        }
    }
    if refusals > 0 {
        let cause = format!("{refusals} requests were refused for want of memory since the boot");
        check.warning(cause, format!("`show refused` lists the latest; {remedy}"));
    }
    if let Some(pool) = pool.filter(|pool| pool.short > 0) {
        check.warning(
            format!("the shared memory of sessions ran out {} times", pool.short),
            "`set rnbd.oversubscribe` lower, `save`, `reboot`",
        );
    }
    let sessions = match session {
        0 => String::new(),
        one if config.rnbd.oversubscribe == 1 => format!(", room for {} more sessions", free / one),
        _ => String::new(),
    };
    check.or_ok(format!("{} of {} free{sessions}", mib(free), mib(size)))
}

/// Exports: those that cannot be served, and those that admit everybody.
pub(super) fn exports(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("exports");
    let config = appliance.document().config();
    let wanted = appliance.wanted_exports();
    for reason in show::not_ready(appliance) {
        if reason.starts_with("rnbd:") {
            check.fault(
                reason,
                "`show log errors` has the reason; check `rnbd.enabled` and `roce.enabled`",
            );
        } else if reason.starts_with("export ") {
            let remedy = match reason.contains("has failed") {
                true => "replace the disk; `show disks`",
                false => "`volume create`, `volume list`, or `export remove NAME`",
            };
            check.fault(reason, remedy);
        }
    }
    let is_open = |hosts: bool, sessions: bool| hosts && sessions;
    let open: Vec<String> = wanted
        .iter()
        .filter(|one| config.rnbd.enabled && is_open(one.hosts.is_empty(), one.sessions.is_empty()))
        .map(|one| match one.read_only {
            true => format!("{} (read-only)", one.name),
            false => one.name.to_string(),
        })
        .collect();
    if !open.is_empty() {
        let implied = match config.export.is_empty() {
            true => " (without [[export]] every volume is exported)",
            false => "",
        };
        check.warning(
            format!(
                "any host that reaches port {} can open {}{implied}",
                config.rnbd.port,
                listed(&open)
            ),
            "`export set NAME hosts=10.0.0.0/24`, with the network of its clients, then `save`",
        );
    }
    check.or_ok(format!("{} exports, all restricted to hosts or sessions", wanted.len()))
}

/// Mirrors and their members.
pub(super) fn mirrors(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("mirrors");
    let (remote, now) = (appliance.remote(), appliance.machine().now);
    let configured = &appliance.document().config().mirror;
    for mirror in configured {
        if !remote.mirrors.iter().any(|one| one.name == mirror.name.as_str()) {
            check.fault(
                format!("mirror {}: not assembled", mirror.name),
                "`volume list` shows whether both members are there; `show log errors` has the reason",
            );
        }
    }
    for mirror in &remote.mirrors {
        let (name, status) = (mirror.name, &mirror.status);
        if status.is_whole() {
            continue;
        }
        let describe = |n: usize| {
            let since = status.since[n].map(|at| format!(" for {} s", now.since(at).as_secs()));
            let silent = status.silent[n].map(|at| format!(" for {} s", now.since(at).as_secs()));
            let why = status.why[n].map(|why| format!(" ({why})")).unwrap_or_default();
            let time = silent.or(since).unwrap_or_default();
            format!("{} is {}{time}{why}", mirror.members[n], status.member(n))
        };
        let bad: Vec<usize> = (0..2).filter(|&n| !status.is_in_sync(n)).collect();
        let names: Vec<String> = bad.iter().map(|&n| describe(n)).collect();
        let cause = format!("mirror {name}: {status}: {}", names.join(", "));
        let syncing = bad.iter().all(|&n| status.members[n] == MemberState::Syncing);
        let detached = bad.iter().find(|&&n| mirror.detached[n]);
        match (status.state, detached) {
            (MirrorState::Strangers, _) => check.fault(
                cause,
                "the members belong to different mirrors: `mirror list`; `mirror remove` one of them",
            ),
            (MirrorState::Alone, _) => check.fault(
                cause,
                format!("bring the other member back; `mirror force {name}` risks older data"),
            ),
            (MirrorState::Waiting, _) => check.fault(
                cause,
                "bring a member back: `remote list`, `show disks`; the server, its network, the disk",
            ),
            (MirrorState::Running, Some(&n)) => check.warning(
                cause,
                format!("`mirror attach {name} {}` when it may be used again", mirror.members[n]),
            ),
            (MirrorState::Running, None) if bad.len() == 2 => check.fault(
                cause,
                "requests wait: bring a member back: `remote list`, `show disks`",
            ),
            (MirrorState::Running, None) if syncing => {
                check.warning(cause, "wait: it is copied; `mirror list` shows how much is left");
            }
            (MirrorState::Running, None) => check.warning(
                cause,
                "data has one copy: bring the member's server or disk back (`remote list`, `show disks`); \
                 it is then copied by itself",
            ),
        }
    }
    check.or_ok(match remote.mirrors.len() {
        0 => "there is no mirror".to_string(),
        count => format!("{count} mirrors have both members in sync"),
    })
}

/// Volumes of other servers.
pub(super) fn remotes(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("remotes");
    let remote = appliance.remote();
    for session in &remote.sessions {
        let paths: Vec<_> = session.client.transport().paths().collect();
        let down: Vec<_> = paths.iter().filter(|p| p.state != PathState::Connected).collect();
        let words: Vec<String> = down
            .iter()
            .map(|path| {
                let why = path.last_failure.map(|why| format!(": {why}")).unwrap_or_default();
                format!("{} {}{why}", path_name(path), path.state.as_str())
            })
            .collect();
        let name = session.name();
        let remedy = down.first().map(|path| {
            let ip = path.to.ip();
            match path.state {
                PathState::Closed => format!(
                    "the path is given up: `write /rtrs-client/{name}/paths/{}/reconnect 1`",
                    path_name(path)
                ),
                _ => {
                    format!("check that the server {ip} runs and exports to this host; `ping {ip}`")
                }
            }
        });
        match (down.len(), remedy) {
            (0, _) | (_, None) => {}
            (count, Some(remedy)) if count == paths.len() => {
                check.fault(format!("session {name}: no path is up: {}", listed(&words)), remedy)
            }
            (_, Some(remedy)) => check.warning(
                format!("session {name}: runs without a path: {}", listed(&words)),
                remedy,
            ),
        }
        for (volume, _) in session.devices {
            let Some(device) = session.device(volume) else { continue };
            if let Some(errno) = device.last_error {
                check.fault(
                    format!(
                        "remote {volume}: the server refuses {}: {errno}",
                        device.name.as_str()
                    ),
                    format!(
                        "`show refused` on the server, or its kernel log, has the reason; then \
                         `remote remap {volume}`"
                    ),
                );
            }
        }
    }
    check.or_ok(match remote.sessions.len() {
        0 => "there is no remote volume".to_string(),
        count => format!("all paths of {count} sessions are up"),
    })
}

/// Disks.
pub(super) fn disks(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("disks");
    let disks = appliance.disks();
    for disk in &disks {
        let Some(health) = disk.health else { continue };
        let who = format!("{} ({} {})", disk.name, disk.model, disk.serial);
        if health.gone {
            check.fault(
                format!("{who} does not work"),
                "replace it, or power the machine off and on; `show log errors` has the reason",
            );
        } else if health.media_errors.is_some_and(|errors| errors > 0) {
            let errors = health.media_errors.unwrap_or_default();
            check.warning(
                format!("{who} has {errors} media errors"),
                "back up its volumes, and replace it",
            );
        } else if health.spare.is_some_and(|spare| spare < 10) {
            let spare = health.spare.unwrap_or_default();
            check.warning(
                format!("{who} has {spare} % spare left"),
                "back up its volumes, and replace it",
            );
        }
    }
    check.or_ok(match disks.len() {
        0 => "there is no disk".to_string(),
        count => format!("{count} disks work"),
    })
}
