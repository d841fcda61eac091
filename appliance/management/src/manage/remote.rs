//! Console commands for remote volumes and mirrors.

use crate::appliance::{Appliance, Told};
use crate::config::{
    Config, Mirror, Name, PathPair, Remote, RemoteAddress, RemoteKind, RemotePath, Size,
};
use crate::console::Managed;
use crate::nvme_host;
use crate::orders::{MirrorOrder, Order, Reads};
use crate::remote::{mirror, path_name, path_pair};
use crate::report::Value;
use crate::status::{MirrorStatus, RemoteStatus};
use crate::words::{at_once, lines, missing, one_name};
use drivers::hal::Geometry;
use net::dns::Host;
use storage::volume::VolumeId;
use storage::volume::mirror::{MemberState, MirrorState};

/// Remote volumes, a row for each.
pub(super) fn remotes(appliance: &dyn Appliance) -> Vec<Value> {
    let remote = appliance.remote();
    let rows = remote.sessions.iter().flat_map(|session| {
        let paths = session.client.transport().paths();
        let paths: Vec<Value> = paths
            .map(|path| format!("{} {}", path_name(&path), path.state.as_str()).into())
            .collect();
        session.devices.iter().filter_map(move |(name, _)| {
            let device = session.device(name)?;
            let refused = device.last_error.map(|errno| errno.to_string());
            Some(Value::object([
                ("name", name.clone().into()),
                ("session", session.name().to_string().into()),
                ("device_path", device.name.as_str().to_string().into()),
                ("state", device.state.as_str().into()),
                ("size", Value::Bytes(device.geometry.sectors.saturating_mul(512))),
                ("requests", device.requests.into()),
                ("last_error", refused.into()),
                ("paths", Value::list(paths.clone())),
            ]))
        })
    });
    let nbd = remote.nbd.iter().map(|one| {
        let failure = one.status.last_failure.map(|failure| failure.to_string());
        let paths = format!("{} {} of {}", one.address, one.status.ready, one.settings.connections);
        Value::object([
            ("name", one.name.to_string().into()),
            ("session", "nbd".into()),
            ("device_path", one.export.clone().into()),
            ("state", one.status.state.as_str().into()),
            ("size", Value::Bytes(one.geometry.sectors.saturating_mul(512))),
            ("requests", one.status.requests.into()),
            ("last_error", failure.into()),
            ("paths", Value::list([paths.into()])),
        ])
    });
    rows.chain(nbd).chain(remote.nvme.iter().map(nvme_host::row)).collect()
}

/// Mirrors, a row for each.
pub(super) fn mirrors(appliance: &dyn Appliance) -> Vec<Value> {
    let now = appliance.machine().now;
    let remote = appliance.remote();
    let rows = remote.mirrors.iter().map(|one| {
        let Value::Object(mut entries) = mirror(one, now) else { return Value::None };
        entries.retain(|(name, _)| name != "force");
        entries.insert(0, ("name".into(), one.name.to_string().into()));
        Value::Object(entries)
    });
    rows.collect()
}

/// State of a volume: of its remote device, of its mirror, or whether it is present.
pub(super) fn state_of(
    remote: &RemoteStatus<'_>,
    config: &Config,
    volume: &str,
    geometry: Option<Geometry>,
) -> String {
    let device = remote.sessions.iter().find_map(|session| session.device(volume));
    let nbd = remote.nbd(volume).map(|one| one.status.state.as_str());
    let nvme = remote.nvme(volume).map(|one| one.status.state.as_str());
    if let Some(device) = device.map(|device| device.state.as_str()).or(nbd).or(nvme) {
        return match (geometry, config.mirror_of(volume)) {
            (None, Some(mirror)) => format!("{device}, a member of {}", mirror.name),
            _ => device.into(),
        };
    }
    if let Some(mirror) = remote.mirrors.iter().find(|mirror| mirror.name == volume) {
        return mirror.status.to_string();
    }
    match (geometry, config.mirror_of(volume)) {
        (Some(_), _) => "online".into(),
        (None, Some(mirror)) => format!("a member of {}", mirror.name),
        (None, None) => "missing".into(),
    }
}

/// Reads a path, which may lack its source and have `,` for `@`, as Linux writes it.
fn path_of(appliance: &dyn Appliance, value: &str) -> Result<RemotePath, String> {
    match path_pair(appliance, value) {
        Ok(PathPair { from, to }) => Ok(RemotePath { from, to: Host::Address(to) }),
        // The server may have a name.
        Err(_) if value.contains('@') => value.parse(),
        Err(why) => Err(why),
    }
}

/// Parses a remote: a name, then its kind's keys of the configuration, which for `rnbd` are the options of rnbd-client's
/// `map_device`.
fn parse(appliance: &dyn Appliance, words: &[&str]) -> Result<Remote, String> {
    let (&name, words) = words.split_first().ok_or("missing name")?;
    let name: Name = name.parse()?;
    for kind in [RemoteKind::Nbd, RemoteKind::NvmeTcp] {
        if words.iter().any(|word| word.strip_prefix("kind=") == Some(kind.as_str())) {
            return parse_tcp(&name, kind, words);
        }
    }
    let (mut sessname, mut device_path, mut path) = (None, None, Vec::new());
    let mut text = format!("name = \"{name}\"\n");
    for &word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        let bad = |why: String| format!("{key}: {value:?}: {why}");
        match key {
            "kind" if value == "rnbd" => {}
            "sessname" => sessname = Some(value.parse().map_err(bad)?),
            "device_path" => device_path = Some(value.parse().map_err(bad)?),
            "path" => path.push(path_of(appliance, value).map_err(bad)?),
            "access_mode" | "mp_policy" => text += &format!("{key} = \"{value}\"\n"),
            "dest_port" | "nr_poll_queues" | "max_reconnect_attempts" | "wait_seconds" => {
                text += &format!("{key} = {value}\n");
            }
            _ => return Err(format!("unknown option {word:?}")),
        }
    }
    let sessname = sessname.ok_or("missing session: give sessname=NAME")?;
    let device_path = device_path.ok_or("missing device: give device_path=NAME")?;
    // The configuration's parser reads the options that have defaults.
    let rest = "sessname = \"s\"\ndevice_path = \"d\"\npath = \"127.0.0.2@127.0.0.3\"\n";
    let defaults = remote_of(&(text + rest))?;
    let (sessname, device_path) = (Some(sessname), Some(device_path));
    Ok(Remote { sessname, device_path, path, ..defaults })
}

/// Keys of remotes over TCP whose values are texts, and the others.
const TCP_TEXTS: [&str; 7] = [
    "access_mode",
    "export",
    "nqn",
    "host_nqn",
    "digests",
    "dhchap_secret",
    "dhchap_controller_secret",
];
const TCP_NUMBERS: [&str; 6] =
    ["connections", "write_through", "keepalive_ms", "reconnect_ms", "give_up_ms", "nsid"];

/// Parses a remote over NBD or NVMe/TCP.
fn parse_tcp(name: &Name, kind: RemoteKind, words: &[&str]) -> Result<Remote, String> {
    let mut address: Vec<RemoteAddress> = Vec::new();
    let mut text = format!("name = \"{name}\"\nkind = \"{kind}\"\n");
    for &word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        let bad = |why: String| format!("{key}: {value:?}: {why}");
        match key {
            "kind" => {}
            "address" => {
                for one in value.split(',') {
                    address.push(one.parse().map_err(bad)?);
                }
            }
            _ if TCP_TEXTS.contains(&key) => text += &format!("{key} = {value:?}\n"),
            _ if TCP_NUMBERS.contains(&key) => text += &format!("{key} = {value}\n"),
            _ => return Err(format!("unknown option {key:?}")),
        }
    }
    if address.is_empty() {
        return Err("missing server: give address=SERVER".into());
    }
    let list: Vec<String> = address.iter().map(|one| format!("\"{one}\"")).collect();
    // The configuration's parser reads all options.
    remote_of(&format!("{text}address = [{}]\n", list.join(", ")))
}

/// The remote of a section.
fn remote_of(text: &str) -> Result<Remote, String> {
    let document = format!("volume = []\n[[remote]]\n{text}");
    let config =
        crate::config::check(document.as_bytes()).map_err(|problems| match problems.first() {
            Some(problem) => format!("{}; accepted: {}", problem.reason, problem.accepted),
            None => "not a remote".into(),
        })?;
    config.remote.into_iter().next().ok_or_else(|| "not a remote".into())
}

pub(super) fn add(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let remote = parse(appliance, words)?;
    let mut document = appliance.document().clone();
    document.edit(|config| config.remote.push(remote.clone())).map_err(|p| lines(&p))?;
    appliance.carry_out(Order::AddRemote(&remote, document.config()))?;
    *appliance.document_mut() = document;
    appliance.carry_out(Order::ApplyExports)?;
    Ok(at_once())
}

/// Fails if a client or an export uses the volume, or requests are in flight.
fn unused(appliance: &dyn Appliance, name: &str) -> Result<(), String> {
    let id = unopened(appliance, name)?;
    if appliance.storage().volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
        return Err(format!("{name} is busy; try again"));
    }
    Ok(())
}

/// The volume, if no client has it open and no export refers to it.
fn unopened(appliance: &dyn Appliance, name: &str) -> Result<VolumeId, String> {
    let volumes = appliance.storage().volumes;
    let id = volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
    if volumes.open_counts(id).is_some_and(|counts| counts.count() > 0) {
        return Err(format!("a client has {name} open; `device list` shows which"));
    }
    let config = appliance.document().config();
    if let Some(export) = config.export.iter().find(|export| export.volume.as_str() == name) {
        return Err(format!(
            "volume is exported as {0}; run `export remove {0}` first",
            export.name
        ));
    }
    Ok(id)
}

pub(super) fn remove(appliance: &mut dyn Appliance, name: &str) -> Told {
    let config = appliance.document().config();
    if let Some(mirror) = config.mirror_of(name) {
        return Err(format!(
            "{name} is a member of mirror {0}; run `mirror remove {0}` first",
            mirror.name
        ));
    }
    if config.remote.iter().all(|remote| remote.name.as_str() != name) {
        return Err(format!("there is no remote volume {name:?}"));
    }
    unused(appliance, name)?;
    let document = appliance.document_mut();
    let change = document.edit(|config| config.remote.retain(|r| r.name.as_str() != name));
    change.map_err(|problems| lines(&problems))?;
    appliance.carry_out(Order::RemoveRemote(name))?;
    appliance.carry_out(Order::ApplyExports)?;
    Ok(at_once())
}

/// Grows a mirror to the size of its smaller member.
pub(super) fn grow_mirror(appliance: &mut dyn Appliance, name: &str) -> Told {
    let remote = appliance.remote();
    let mirror = remote.mirrors.iter().find(|one| one.name == name);
    let mirror = mirror.ok_or_else(|| format!("there is no mirror {name:?}"))?;
    let ([first, second], status) = (mirror.members.clone(), mirror.status);
    let size = |sectors: u64| Size(sectors.saturating_mul(512));
    if status.grows {
        return Err(format!("{name} is already growing to {}", size(status.possible_sectors)));
    }
    if !status.is_whole() {
        return Err(format!(
            "{first} is {} and {second} is {}: a mirror grows only while both members are in sync",
            status.member(0),
            status.member(1)
        ));
    }
    let [one, other] = status.member_sectors.map(size);
    if status.possible_sectors <= status.sectors {
        return Err(format!(
            "no room to grow from {}: {first} has {one} and {second} has {other}; grow both members first \
             (`volume grow`, or on the remote server and then `remote remap`)",
            size(status.sectors)
        ));
    }
    let (from, to) = (size(status.sectors), size(status.possible_sectors));
    appliance.carry_out(Order::Mirror(name, MirrorOrder::Grow))?;
    Ok(Managed::Told(format!(
        "{name} grows from {from} to {to} once the new space is copied to {second}; the log and `mirror list` \
         show when\n"
    )))
}

/// A mirror, and the index of one of its members.
fn member_of<'a>(
    remote: &'a RemoteStatus<'_>,
    name: &str,
    member: &str,
) -> Result<(&'a MirrorStatus<'a>, usize), String> {
    let mirror = remote.mirrors.iter().find(|one| one.name == name);
    let mirror = mirror.ok_or_else(|| format!("there is no mirror {name:?}"))?;
    let [first, second] = mirror.members;
    match mirror.members.iter().position(|one| one == member) {
        Some(place) => Ok((mirror, place)),
        None => Err(format!("mirror {name} has no member {member:?}; accepted: {first}, {second}")),
    }
}

/// Takes a member out of use. The other member must be in sync.
pub(super) fn detach(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (name, member, force) = match words {
        [name, member] => (*name, *member, false),
        [name, member, "force"] => (*name, *member, true),
        _ => return Err("accepted: NAME MEMBER force".into()),
    };
    let remote = appliance.remote();
    let (mirror, place) = member_of(&remote, name, member)?;
    let other = &mirror.members[1 - place];
    if mirror.detached[place] {
        return Err(format!(
            "{member} is already detached; `mirror attach {name} {member}` takes it back"
        ));
    }
    if !mirror.status.is_in_sync(1 - place) {
        let state = mirror.status.member(1 - place);
        return Err(format!("{other} is {state}: the mirror cannot run on {other} alone"));
    }
    if !force {
        return Err(format!(
            "new writes would be stored on {other} only; confirm with `mirror detach {name} {member} force`"
        ));
    }
    appliance.carry_out(Order::Mirror(name, MirrorOrder::Detach(place)))?;
    Ok(Managed::Told(format!(
        "{name} runs without {member} until `mirror attach {name} {member}` or the next reboot\n"
    )))
}

/// Takes a detached member back.
pub(super) fn attach(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let [name, member] = words else { return Err("accepted: NAME MEMBER".into()) };
    let remote = appliance.remote();
    let (mirror, place) = member_of(&remote, name, member)?;
    if !mirror.detached[place] {
        let state = mirror.status.member(place);
        return Err(format!(
            "{member} is not detached but {state}; a dropped member rejoins by itself"
        ));
    }
    appliance.carry_out(Order::Mirror(name, MirrorOrder::Attach(place)))?;
    Ok(Managed::Told(format!(
        "{member} rejoins when its outstanding requests have ended; `mirror list` shows its state\n"
    )))
}

/// Starts the removal of a mirror. Outstanding requests of its members end first.
pub(super) fn remove_mirror(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (name, force) = match words {
        [name, "force"] => (*name, true),
        words => (one_name(words)?, false),
    };
    let config = appliance.document().config();
    if config.mirror.iter().all(|mirror| mirror.name.as_str() != name) {
        return Err(format!("there is no mirror {name:?}"));
    }
    let made = appliance.storage().volumes.find(name).is_some();
    if made {
        unopened(appliance, name).map_err(|why| {
            format!(
                "{why}; `mirror detach {name} MEMBER force` takes one member out of use instead"
            )
        })?;
    }
    let remote = appliance.remote();
    if let Some(mirror) = remote.mirrors.iter().find(|one| one.name == name && !force) {
        let status = &mirror.status;
        let unknown = |n: &usize| status.members[*n] == MemberState::Unknown;
        if let Some(member) = [0, 1].into_iter().find(unknown) {
            return Err(format!(
                "the state of {} is not known yet: try again when `mirror list` shows it; \
                 `mirror remove {name} force` removes the mirror anyway",
                mirror.members[member]
            ));
        }
        let behind =
            |n: &usize| matches!(status.members[*n], MemberState::Out | MemberState::Syncing);
        if let Some(member) = [0, 1].into_iter().find(behind) {
            return Err(format!(
                "{} is not in sync: {} are not copied to it; `mirror remove {name} force` removes the \
                 mirror anyway and leaves that member out of date",
                mirror.members[member],
                Size(status.stale_bytes)
            ));
        }
    }
    let is_there = remote.is_there;
    let change = appliance.document_mut().edit(|c| c.mirror.retain(|m| m.name.as_str() != name));
    change.map_err(|problems| lines(&problems))?;
    if !is_there || !made {
        return Ok(at_once());
    }
    let started = appliance.carry_out(Order::EndMirror(name));
    // Withdraws the exports, so that no client opens the mirror meanwhile.
    appliance.carry_out(Order::ApplyExports)?;
    started
}

pub(super) fn read(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (&name, options) = words.split_first().ok_or("missing name")?;
    let mut wanted = Reads { count: 1000, size: 4096, depth: 32 };
    for option in options {
        let bad = || format!("unknown option {option:?}; accepted: count=N size=SIZE depth=N");
        let (key, value) = option.split_once('=').ok_or_else(bad)?;
        let number = || value.parse::<u32>().ok().filter(|n| (1..=1_000_000_000).contains(n));
        match key {
            "count" => wanted.count = number().ok_or_else(bad)?,
            "depth" => wanted.depth = number().filter(|n| *n <= 512).ok_or_else(bad)?,
            "size" => {
                let size: Size = value.parse().map_err(|_| bad())?;
                let size = usize::try_from(size.0).ok().filter(|size| *size <= 1 << 20);
                wanted.size = size.ok_or("size: at most 1MiB")?;
            }
            _ => return Err(bad()),
        }
    }
    appliance.carry_out(Order::Read(name, wanted))
}

/// Creates a configured mirror again whose members do not belong to one mirror.
fn make_anew(appliance: &mut dyn Appliance, mirror: &Mirror, members: [&str; 2]) -> Told {
    let name = mirror.name.as_str();
    if mirror.members.iter().map(|member| member.as_str()).ne(members) {
        let members: Vec<&str> = mirror.members.iter().map(|member| member.as_str()).collect();
        let members = members.join(" ");
        return Err(format!(
            "mirror {name} has the members {members}: run `mirror create {name} {members} force`"
        ));
    }
    if let Some(one) = appliance.remote().mirrors.iter().find(|one| one.name == name) {
        match one.status.state {
            MirrorState::Strangers => {}
            MirrorState::Running => return Err(format!("mirror {name} exists and runs")),
            other => {
                return Err(format!("mirror {name} is {other}; run `mirror remove {name}` first"));
            }
        }
    }
    let made = appliance.carry_out(Order::RemakeMirror(mirror));
    appliance.carry_out(Order::ApplyExports)?;
    made.map(|_: Managed| at_once())
}

pub(super) fn create(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    if !cfg!(feature = "mirror") {
        return Err(missing("mirror"));
    }
    const USAGE: &str = "accepted: NAME FIRST SECOND force";
    let [name, first, second, rest @ ..] = words else { return Err(USAGE.into()) };
    match rest {
        ["force"] => {}
        [] => {
            return Err(format!(
                "would overwrite the first 32 KiB of {first} and all data on {second}; confirm with \
                 `force`"
            ));
        }
        _ => return Err(USAGE.into()),
    }
    let config = appliance.document().config();
    if let Some(known) = config.mirror.iter().find(|mirror| mirror.name.as_str() == *name) {
        let known = known.clone();
        return make_anew(appliance, &known, [first, second]);
    }
    if appliance.storage().volumes.find(name).is_some() {
        return Err(format!("volume {name} already exists"));
    }
    unused(appliance, first)?;
    unused(appliance, second)?;
    let members = vec![first.parse()?, second.parse()?];
    let mirror = Mirror { name: name.parse()?, members, timeout_ms: Mirror::TIMEOUT_MS };
    let mut document = appliance.document().clone();
    // A volume on a disk may be absent from the configuration. The mirror adds it.
    let found = appliance.undeclared(&mirror.members);
    let change = document.edit(|config| {
        config.volume.extend(found);
        config.mirror.push(mirror.clone());
    });
    change.map_err(|problems| lines(&problems))?;
    appliance.carry_out(Order::MakeMirror(&mirror))?;
    *appliance.document_mut() = document;
    appliance.carry_out(Order::ApplyExports)?;
    Ok(at_once())
}
