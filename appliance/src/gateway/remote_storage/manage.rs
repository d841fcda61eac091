//! The console's verbs for remotes and mirrors.

use super::objects::{self, mirror};
use super::read_benchmark::{Reading, Wanted};
use super::sessions::path_name;
use crate::config::{Mirror, Name, Remote, Size};
use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE, MIRROR, OfMeasure};
use crate::gateway::manage::volumes::retire;
use crate::gateway::manage::{at_once, lines, one};
use crate::gateway::state::State;
use crate::report::Value;
use drivers::hal::{Geometry, Hold};
use storage::volume::VolumeId;
use storage::volume::mirror::{MemberState, MirrorState};
use verbs::EngineContext;

type Told = Result<Managed, String>;

/// Carries an order out.
pub(in crate::gateway) fn act(state: &mut State, what: &str, order: &str, words: &[&str]) -> Told {
    match (what, order) {
        ("remote", "add") => add(state, words),
        ("remote", "remove") => remove(state, one(words)?),
        ("remote", "remap") => {
            let name = one(words)?;
            let nobody = || format!("there is no remote volume {name:?}");
            objects::remap(state, name).ok_or_else(nobody)?;
            Ok(Managed::Told(String::new()))
        }
        ("remote", "read") => read(state, words),
        ("mirror", "create") => create(state, words),
        ("mirror", "force") => {
            objects::force(state, one(words)?)?;
            Ok(Managed::Told(String::new()))
        }
        ("mirror", "remove") => remove_mirror(state, words),
        _ => Err(format!("unknown command: {what} {order}; `help` lists the commands")),
    }
}

/// Remote volumes, a row for each.
pub(in crate::gateway) fn remotes(state: &State) -> Value {
    let sessions = state.plane.storage.remote_storage.iter().flat_map(|e| &e.sessions);
    let rows = sessions.flat_map(|session| {
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
    Value::list(rows.collect::<Vec<_>>())
}

/// Mirrors, a row for each.
pub(in crate::gateway) fn mirrors(state: &State) -> Value {
    let mirrors = state.plane.storage.remote_storage.iter().flat_map(|e| &e.mirrors);
    let rows = mirrors.map(|one| {
        let Value::Object(mut entries) = mirror(&one.members, &one.status.get(), state.plane.now)
        else {
            return Value::None;
        };
        entries.retain(|(name, _)| name != "force");
        entries.insert(0, ("name".into(), one.name.clone().into()));
        Value::Object(entries)
    });
    Value::list(rows.collect::<Vec<_>>())
}

/// What is said of a volume beside its shape: how it stands, if it is from elsewhere.
pub(in crate::gateway) fn standing(state: &State, volume: &str, there: Option<Geometry>) -> String {
    let remote_storage = state.plane.storage.remote_storage.as_deref();
    let config = state.document.config();
    if let Some((_, device)) = remote_storage.and_then(|e| e.find_device(volume)) {
        let device = device.state.as_str();
        return match (there, config.mirror_of(volume)) {
            (None, Some(mirror)) => format!("{device}, a member of {}", mirror.name),
            _ => device.into(),
        };
    }
    let mut mirrors = remote_storage.into_iter().flat_map(|e| &e.mirrors);
    if let Some(mirror) = mirrors.find(|mirror| mirror.name == volume) {
        return mirror.status.get().state.to_string();
    }
    match (there, config.mirror_of(volume)) {
        (Some(_), _) => "online".into(),
        (None, Some(mirror)) => format!("a member of {}", mirror.name),
        (None, None) => "missing".into(),
    }
}

/// A remote by its words: the options of rnbd-client's `map_device`, behind the name.
fn parse(words: &[&str]) -> Result<Remote, String> {
    let (&name, words) = words.split_first().ok_or("say the name")?;
    let name: Name = name.parse()?;
    let (mut sessname, mut device_path, mut path) = (None, None, Vec::new());
    let mut text = format!("name = \"{name}\"\n");
    for &word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("{word:?} is no KEY=VALUE"))?;
        let bad = |why: String| format!("{key}: {value:?}: {why}");
        match key {
            "sessname" => sessname = Some(value.parse().map_err(bad)?),
            "device_path" => device_path = Some(value.parse().map_err(bad)?),
            "path" => path.push(value.parse().map_err(bad)?),
            "access_mode" | "mp_policy" => text += &format!("{key} = \"{value}\"\n"),
            "dest_port" | "nr_poll_queues" | "max_reconnect_attempts" | "wait_seconds" => {
                text += &format!("{key} = {value}\n");
            }
            _ => return Err(format!("unknown option {word:?}")),
        }
    }
    let sessname = sessname.ok_or("say the session: sessname=NAME")?;
    let device_path = device_path.ok_or("say the device: device_path=NAME")?;
    // What has a default is read as the document is.
    let rest = "sessname = \"s\"\ndevice_path = \"d\"\npath = \"127.0.0.2@127.0.0.3\"\n";
    let document = format!("volume = []\n[[remote]]\n{text}{rest}");
    let config =
        crate::config::check(document.as_bytes()).map_err(|problems| match problems.first() {
            Some(problem) => format!("{}; accepted: {}", problem.reason, problem.accepted),
            None => "not a remote".into(),
        })?;
    let defaults = config.remote.into_iter().next().ok_or("not a remote")?;
    Ok(Remote { sessname, device_path, path, ..defaults })
}

fn add(state: &mut State, words: &[&str]) -> Told {
    let remote = parse(words)?;
    let mut document = state.document.clone();
    document.edit(|config| config.remote.push(remote.clone())).map_err(|p| lines(&p))?;
    let plane = &mut state.plane;
    let no_provider = "there is no RDMA provider: no network interface, or `roce.enabled` is false";
    let provider = &mut plane.rdma_stack.as_mut().ok_or(no_provider)?.providers;
    let (arena, now) = (&mut plane.arena, plane.now);
    let mut ctx = EngineContext { provider, arena, now, rng: &mut *plane.rng };
    if let Err(why) = plane.storage.add_remote(&remote, document.config(), &mut ctx) {
        plane.storage.remove_remote(remote.name.as_str(), &mut ctx);
        return Err(why);
    }
    state.document = document;
    plane.storage.apply_exports(state.document.config());
    Ok(at_once())
}

/// That nothing uses a volume and nothing is in flight, or what it is.
fn unused(state: &State, name: &str) -> Result<(), String> {
    let id = unopened(state, name)?;
    if state.plane.storage.volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
        return Err(format!("{name} is busy; try again"));
    }
    Ok(())
}

/// The volume, if nobody has it open and no export is of it.
fn unopened(state: &State, name: &str) -> Result<VolumeId, String> {
    let storage = &state.plane.storage;
    let id = storage.volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
    if storage.volumes.open_counts(id).is_some_and(|counts| counts.count() > 0) {
        return Err(format!("a client has {name} open; `device list` shows who"));
    }
    let config = state.document.config();
    if let Some(export) = config.export.iter().find(|export| export.volume.as_str() == name) {
        return Err(format!("export {0} is of it; `export remove {0}`", export.name));
    }
    Ok(id)
}

fn remove(state: &mut State, name: &str) -> Told {
    let config = state.document.config();
    if let Some(mirror) = config.mirror_of(name) {
        return Err(format!("it is a member of mirror {}", mirror.name));
    }
    if config.remote.iter().all(|remote| remote.name.as_str() != name) {
        return Err(format!("there is no remote volume {name:?}"));
    }
    unused(state, name)?;
    let mut document = state.document.clone();
    let change = document.edit(|config| config.remote.retain(|r| r.name.as_str() != name));
    change.map_err(|problems| lines(&problems))?;
    let plane = &mut state.plane;
    if let Some(rdma_stack) = &mut plane.rdma_stack {
        let (provider, arena, now) = (&mut rdma_stack.providers, &mut plane.arena, plane.now);
        let mut ctx = EngineContext { provider, arena, now, rng: &mut *plane.rng };
        plane.storage.remove_remote(name, &mut ctx);
    }
    state.document = document;
    plane.storage.apply_exports(state.document.config());
    Ok(at_once())
}

/// Begins to take a mirror apart; what its members are doing comes to its end first.
fn remove_mirror(state: &mut State, words: &[&str]) -> Told {
    let (name, force) = match words {
        [name, "force"] => (*name, true),
        words => (one(words)?, false),
    };
    let config = state.document.config();
    if config.mirror.iter().all(|mirror| mirror.name.as_str() != name) {
        return Err(format!("there is no mirror {name:?}"));
    }
    let made = state.plane.storage.volumes.find(name).is_some();
    if made {
        unopened(state, name)?;
    }
    let mut mirrors = state.plane.storage.remote_storage.iter().flat_map(|one| &one.mirrors);
    if let Some(slot) = mirrors.find(|slot| slot.name == name && !force) {
        let status = slot.status.get();
        let unknown = |n: &usize| status.members[*n] == MemberState::Unknown;
        if let Some(member) = [0, 1].into_iter().find(unknown) {
            return Err(format!(
                "what {} holds has not been read yet: try again when `show mirrors` tells its state; \
                 `mirror remove {name} force` ends the mirror all the same",
                slot.members[member]
            ));
        }
        let behind =
            |n: &usize| matches!(status.members[*n], MemberState::Out | MemberState::Syncing);
        if let Some(member) = [0, 1].into_iter().find(behind) {
            return Err(format!(
                "{} is not in sync: {} are not copied to it; `mirror remove {name} force` ends the \
                 mirror all the same, and leaves it so",
                slot.members[member],
                Size(status.stale_bytes)
            ));
        }
    }
    let change = state.document.edit(|c| c.mirror.retain(|m| m.name.as_str() != name));
    change.map_err(|problems| lines(&problems))?;
    let storage = &mut state.plane.storage;
    match &mut storage.remote_storage {
        Some(remote_storage) if made => {
            let slot = remote_storage.mirrors.iter().find(|mirror| mirror.name == name);
            slot.inspect(|slot| slot.ending.set(true));
            remote_storage.ending = Some(name.into());
        }
        _ => return Ok(at_once()),
    }
    // Nobody is to open it now.
    storage.apply_exports(state.document.config());
    Ok(Managed::Started)
}

/// Ends the console's `mirror remove` once the mirror has come to rest.
pub(in crate::gateway) fn poll_ending(state: &mut State) -> Option<Progress> {
    let plane = &mut state.plane;
    let name = plane.storage.remote_storage.as_mut()?.ending.take()?;
    if !plane.storage.end_mirror(&name, &mut plane.arena) {
        plane.storage.remote_storage.as_mut()?.ending = Some(name);
        return None;
    }
    plane.storage.apply_exports(state.document.config());
    Some(Progress::Done(Ok("in force now; `save` keeps it".into())))
}

fn read(state: &mut State, words: &[&str]) -> Told {
    let (&name, options) = words.split_first().ok_or("say the name of one")?;
    let mut wanted = Wanted { count: 1000, size: 4096, depth: 32 };
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
    if !MEASURE {
        return Err(families::missing("measure"));
    }
    let plane = &mut state.plane;
    let storage = &mut plane.storage;
    let id = storage.volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
    let remote_storage =
        storage.remote_storage.as_mut().ok_or("no volume is from another server")?;
    let ours = remote_storage.find_device(name).is_some()
        || remote_storage.mirrors.iter().any(|mirror| mirror.name == name);
    let volume = storage.volumes.get(id).filter(|_| ours);
    let volume = volume.ok_or_else(|| format!("{name} is neither a remote volume nor a mirror"))?;
    if remote_storage.reading.is_some() {
        return Err("another `remote read` is under way".into());
    }
    let reading = Reading::start(id, volume, wanted, &mut plane.arena, plane.now)?;
    remote_storage.reading = OfMeasure::hold(|| reading);
    Ok(Managed::Started)
}

/// Ends the console's reading once it is over: what came of it.
pub(in crate::gateway) fn poll_reading(state: &mut State) -> Option<Progress> {
    let plane = &mut state.plane;
    let storage = &mut plane.storage;
    let slot = &mut storage.remote_storage.as_mut()?.reading;
    let told = slot.as_ref()?.verdict(plane.now)?;
    let reading = slot.take()?;
    plane.arena.free(reading.memory);
    Some(told)
}

/// A mirror of the configuration, whose members are not of one mirror, is made one.
fn make_anew(state: &mut State, mirror: &Mirror, members: [&str; 2]) -> Told {
    let name = mirror.name.as_str();
    if mirror.members.iter().map(|member| member.as_str()).ne(members) {
        let members: Vec<&str> = mirror.members.iter().map(|member| member.as_str()).collect();
        let members = members.join(" ");
        return Err(format!(
            "mirror {name} is of {members}: `mirror create {name} {members} force`"
        ));
    }
    let mut mirrors = state.plane.storage.remote_storage.iter().flat_map(|one| &one.mirrors);
    if let Some(slot) = mirrors.find(|slot| slot.name == name) {
        match slot.status.get().state {
            MirrorState::Strangers => {}
            MirrorState::Running => return Err(format!("mirror {name} is there, and runs")),
            other => return Err(format!("mirror {name} is {other}; `mirror remove {name}` first")),
        }
    }
    let plane = &mut state.plane;
    if !plane.storage.end_mirror(name, &mut plane.arena) {
        return Err(format!("{name} is busy; try again"));
    }
    let missing = members.into_iter().find(|name| plane.storage.volumes.find(name).is_none());
    let mut uuid = [0; 16];
    plane.rng.fill_bytes(&mut uuid);
    let uuid = missing.is_none().then_some(uuid);
    plane.storage.add_mirror(mirror, uuid, &mut plane.arena, plane.now)?;
    plane.storage.apply_exports(state.document.config());
    match missing {
        None => Ok(at_once()),
        Some(missing) => Err(format!("there is no volume {missing:?}")),
    }
}

fn create(state: &mut State, words: &[&str]) -> Told {
    if !MIRROR {
        return Err(families::missing("mirror"));
    }
    const USAGE: &str = "accepted: NAME FIRST SECOND force";
    let [name, first, second, rest @ ..] = words else { return Err(USAGE.into()) };
    match rest {
        ["force"] => {}
        [] => {
            return Err(format!(
                "what is in the first 32 KiB of {first}, and all that is on {second}, is lost: \
                 `force` has it done"
            ));
        }
        _ => return Err(USAGE.into()),
    }
    let config = state.document.config();
    if let Some(known) = config.mirror.iter().find(|mirror| mirror.name.as_str() == *name) {
        let known = known.clone();
        return make_anew(state, &known, [first, second]);
    }
    if state.plane.storage.volumes.find(name).is_some() {
        return Err(format!("there is a volume {name}"));
    }
    unused(state, first)?;
    unused(state, second)?;
    let members = vec![first.parse()?, second.parse()?];
    let mirror = Mirror { name: name.parse()?, members, timeout_ms: Mirror::TIMEOUT_MS };
    let mut document = state.document.clone();
    // Volumes of disks are not in the configuration by themselves.
    let found = state.plane.storage.undeclared(document.config(), &mirror.members);
    let change = document.edit(|config| {
        config.volume.extend(found);
        config.mirror.push(mirror.clone());
    });
    change.map_err(|problems| lines(&problems))?;
    let mut uuid = [0; 16];
    state.plane.rng.fill_bytes(&mut uuid);
    let plane = &mut state.plane;
    // Nobody else is to work on them, on whichever core.
    let ids = [first, second].map(|name| plane.storage.volumes.find(name).map(|id| (id, name)));
    let retired = ids.iter().flatten().try_for_each(|(id, name)| retire(&plane.storage, *id, name));
    let made = retired
        .and_then(|()| plane.storage.add_mirror(&mirror, Some(uuid), &mut plane.arena, plane.now));
    if let Err(why) = made {
        let left =
            ids.iter().flatten().filter_map(|(id, _)| plane.storage.volumes.open_counts(*id));
        left.for_each(|counts| counts.keep());
        return Err(why);
    }
    state.document = document;
    plane.storage.apply_exports(state.document.config());
    Ok(at_once())
}
