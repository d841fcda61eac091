//! The console's verbs for volumes, exports, sessions, devices and paths, in the grammar of the
//! `rnbd` tool of Linux hosts: an object, an order, a name, options.

use super::disks::Role;
use super::elsewhere;
use super::objects::{self, path_name, session_name};
use super::state::State;
use super::volumes::Order;
use crate::config::{self, Export, Problem, Size, Volume};
use crate::console::Managed;
use crate::report::Value;
use rdma::rnbd::server::Server;
use rdma::rtrs::server::PathStatus;
use rdma::volume::Volumes;

type Told = Result<Managed, String>;

/// Carries an order out.
pub(super) fn act(state: &mut State, what: &str, order: &str, rest: &str) -> Told {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let done = |()| Managed::Told(String::new());
    match (what, order) {
        ("volume", "create") => create_volume(state, &words),
        ("volume", "grow") => grow_volume(state, &words),
        ("volume", "delete") => delete_volume(state, one(&words)?),
        ("export", "add" | "set") => {
            change_export(state, &words, order == "add").map(|()| at_once())
        }
        ("export", "remove") => remove_export(state, one(&words)?).map(|()| at_once()),
        (_, "list") => list(state, what, None, &words),
        (_, "show") => {
            let (name, options) = words.split_first().ok_or("say the name of one")?;
            list(state, what, Some(name), options)
        }
        ("remote" | "mirror", _) => elsewhere::manage::act(state, what, order, &words),
        ("session", _) => disconnect_session(state, one(&words)?).map(done),
        ("device", _) => close_device(state, &words).map(done),
        ("path", order) => {
            let order = if order == "reset" { "reset_all" } else { order };
            path_order(state, one(&words)?, order).map(done)
        }
        _ => Err(format!("nothing is known of {what} {order}")),
    }
}

pub(super) fn at_once() -> Managed {
    Managed::Told("in force now; `save` keeps it\n".into())
}

pub(super) fn one<'a>(words: &[&'a str]) -> Result<&'a str, String> {
    match words {
        [name] => Ok(name),
        _ => Err("accepted: one name".into()),
    }
}

/// A list, or one of its rows, as the options say.
fn list(state: &mut State, what: &str, name: Option<&str>, options: &[&str]) -> Told {
    let value = match what {
        "volume" => volumes(state),
        "remote" => elsewhere::manage::remotes(state),
        "mirror" => elsewhere::manage::mirrors(state),
        "export" => {
            let storage = &state.plane.storage;
            Value::list(storage.server.iter().flat_map(|s| exports(s, &storage.volumes)))
        }
        _ => match &state.plane.storage.server {
            None => return Err("the storage server does not run".into()),
            Some(server) => match what {
                "session" => Value::list(sessions(server)),
                "device" => Value::list(devices(state, server)),
                _ => Value::list(server.transport().paths().map(|p| path(server, &p))),
            },
        },
    };
    let Value::List(mut rows) = value else { return Err("there is nothing to list".into()) };
    if let Some(name) = name {
        rows.retain(|row| first(row) == name);
        if rows.is_empty() {
            return Err(format!("there is no {what} {name:?}; `{what} list` shows what there is"));
        }
    }
    let mut format = "";
    for option in options {
        match *option {
            "json" | "--json" | "csv" => format = option,
            unit => rows.iter_mut().try_for_each(|row| scale(row, unit))?,
        }
    }
    let value = Value::List(rows);
    Ok(Managed::Told(match format {
        "csv" => csv(&value),
        "" => value.to_text(),
        _ => value.to_json() + "\n",
    }))
}

/// The first value of a row, by which it is known.
fn first(row: &Value) -> &str {
    match row {
        Value::Object(entries) => match entries.first() {
            Some((_, Value::Text(name))) => name,
            _ => "",
        },
        _ => "",
    }
}

/// Shows sizes in a unit, as plain numbers.
fn scale(row: &mut Value, unit: &str) -> Result<(), String> {
    let shift = match unit.to_ascii_uppercase().as_str() {
        "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown option {unit:?}; accepted: json, csv, B, K, M, G, T")),
    };
    if let Value::Object(entries) = row {
        for (_, value) in entries {
            if let Value::Bytes(bytes) = *value {
                *value = match shift {
                    0 => Value::Number(bytes),
                    _ => Value::Float(bytes as f64 / (1u64 << shift) as f64),
                };
            }
        }
    }
    Ok(())
}

/// RFC 4180, with LF.
fn csv(value: &Value) -> String {
    let Value::List(rows) = value else { return String::new() };
    let mut out = String::new();
    for (number, row) in rows.iter().enumerate() {
        let Value::Object(entries) = row else { continue };
        if number == 0 {
            let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_ref()).collect();
            out += &(names.join(",") + "\n");
        }
        let cell = |value: &Value| match value {
            Value::None => String::new(),
            Value::Text(text) if !text.contains([',', '"', '\n']) => text.to_string(),
            Value::Text(text) => format!("\"{}\"", text.replace('"', "\"\"")),
            Value::List(items) => {
                let items: Vec<String> =
                    items.iter().map(|i| i.to_json().replace('"', "")).collect();
                items.join(" ")
            }
            other => other.to_json(),
        };
        let cells: Vec<String> = entries.iter().map(|(_, value)| cell(value)).collect();
        out += &(cells.join(",") + "\n");
    }
    out
}

/// All volumes: those that are open, and those of the configuration that are not.
pub(super) fn volumes(state: &State) -> Value {
    let storage = &state.plane.storage;
    let config = state.document.config();
    let declared = config.volume_names().map(|name| name.as_str());
    let open = storage.volumes.ids().filter_map(|id| storage.volumes.name(id));
    let mut names: Vec<&str> = declared.chain(open).collect();
    let mut seen = Vec::new();
    names.retain(|name| {
        !seen.contains(name) && {
            seen.push(*name);
            true
        }
    });
    Value::list(names.into_iter().map(|name| {
        let geometry = storage.volumes.find(name).and_then(|id| storage.volumes.get(id));
        let geometry = geometry.map(|volume| volume.geometry());
        let declared = config.volume.iter().find(|volume| volume.name.as_str() == name);
        let pool = storage.pools.iter().find_map(|p| Some((p.number, p.volume(name)?.0)));
        let disk =
            pool.map(|(number, _)| number).or(declared.and_then(|v| v.disk).map(usize::from));
        let extents = pool.map(|(_, extents)| extents);
        let ours = config.remote.iter().all(|remote| remote.name.as_str() != name)
            && config.mirror.iter().all(|mirror| mirror.name.as_str() != name);
        let size = geometry.map_or(0, |geometry| geometry.sectors.saturating_mul(512));
        let read_only =
            geometry.is_some_and(|g| g.features.contains(drivers::hal::Features::READ_ONLY));
        let writers = storage.server.as_ref().map_or(0, |server| {
            let id = storage.volumes.find(name);
            server.devices().filter(|device| Some(device.volume) == id).count()
        });
        Value::object([
            ("name", name.to_string().into()),
            ("size", Value::Bytes(size)),
            ("memory", Value::Bytes(if disk.is_none() && ours { size } else { 0 })),
            ("disk", disk.into()),
            ("extents", extents.into()),
            ("read_only", read_only.into()),
            ("open", writers.into()),
            ("state", elsewhere::manage::standing(state, name, geometry).into()),
        ])
    }))
}

fn exports(server: &Server, volumes: &Volumes) -> Vec<Value> {
    let list = server.exports().iter().map(|export| {
        let allow = export.allow.iter().map(|name| name.as_str().to_string().into());
        Value::object([
            ("name", export.name.as_str().to_string().into()),
            ("volume", volumes.name(export.volume).unwrap_or_default().to_string().into()),
            ("read_only", export.read_only.into()),
            ("sessions", Value::list(allow)),
        ])
    });
    list.collect()
}

fn sessions(server: &Server) -> impl Iterator<Item = Value> + '_ {
    server.transport().sessions().map(|session| {
        let paths = || server.transport().paths().filter(move |path| path.session == session.id);
        let sum = |value: fn(&PathStatus<'_>) -> u64| paths().map(|p| value(&p)).sum::<u64>();
        let devices = server.devices().filter(|device| device.session == session.id).count();
        Value::object([
            ("name", session.name.as_str().to_string().into()),
            ("state", if session.up { "connected" } else { "connecting" }.into()),
            ("paths", session.paths.into()),
            ("devices", devices.into()),
            ("queue_depth", session.queue_depth.into()),
            ("chunk_size", Value::Bytes(session.chunk_size.into())),
            ("rx", Value::Bytes(sum(|path| path.stats.write_bytes))),
            ("tx", Value::Bytes(sum(|path| path.stats.read_bytes))),
            ("inflight", sum(|path| path.in_flight.into()).into()),
        ])
    })
}

fn devices<'a>(state: &'a State, server: &'a Server) -> impl Iterator<Item = Value> + 'a {
    let volumes = &state.plane.storage.volumes;
    server.devices().map(|device| {
        let size =
            volumes.get(device.volume).map_or(0, |v| v.geometry().sectors.saturating_mul(512));
        Value::object([
            ("name", device.name.as_str().to_string().into()),
            ("session", session_name(server, device.session).into()),
            ("volume", volumes.name(device.volume).unwrap_or_default().to_string().into()),
            ("access_mode", objects::mode_name(device.mode).into()),
            ("size", Value::Bytes(size)),
        ])
    })
}

fn path(server: &Server, path: &PathStatus<'_>) -> Value {
    Value::object([
        ("name", path_name(path).into()),
        ("session", session_name(server, path.session).into()),
        ("state", path.state.as_str().into()),
        ("connections", path.connections.into()),
        ("rx", Value::Bytes(path.stats.write_bytes)),
        ("tx", Value::Bytes(path.stats.read_bytes)),
        ("inflight", path.in_flight.into()),
        ("errors", path.stats.errors.into()),
        ("latency_microseconds", (path.latency.as_nanos() as f64 / 1e3).into()),
    ])
}

/// `key=value` words behind a name, and what else there is.
struct Options<'a> {
    name: &'a str,
    size: Option<u64>,
    disk: Option<usize>,
    volume: Option<&'a str>,
    sessions: Option<&'a str>,
    flags: Vec<&'a str>,
}

impl<'a> Options<'a> {
    fn parse(words: &[&'a str], flags: &[&str]) -> Result<Self, String> {
        let (&name, words) = words.split_first().ok_or("say the name")?;
        let mut options = Options {
            name,
            size: None,
            disk: None,
            volume: None,
            sessions: None,
            flags: Vec::new(),
        };
        for &word in words {
            match word.split_once('=') {
                Some(("size", size)) => {
                    let parsed: Result<Size, String> = size.parse();
                    let size = parsed.map_err(|why| format!("{size:?}: {why}; such as 1GiB"))?;
                    options.size = Some(size.0);
                }
                Some(("disk", disk)) => {
                    let number = disk.trim_start_matches("disk").parse();
                    options.disk = Some(number.map_err(|_| format!("{disk:?} is no disk"))?);
                }
                Some(("volume", volume)) => options.volume = Some(volume),
                Some(("sessions", sessions)) => options.sessions = Some(sessions),
                None if flags.contains(&word) => options.flags.push(word),
                _ => return Err(format!("unknown option {word:?}")),
            }
        }
        Ok(options)
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }
}

fn create_volume(state: &mut State, words: &[&str]) -> Told {
    let options = Options::parse(words, &["force"])?;
    let bytes = options.size.filter(|&bytes| bytes > 0).ok_or("say its size: size=64MiB")?;
    let name: crate::config::Name = options.name.parse()?;
    let storage = &mut state.plane.storage;
    if storage.volumes.find(name.as_str()).is_some() || storage.is_coming(name.as_str()) {
        return Err(format!("there is a volume {name}"));
    }
    if let Some(number) = options.disk {
        let order = Order::Create { name: name.to_string(), bytes, force: options.has("force") };
        storage.order(number, order, &mut state.disks, state.platform.arena())?;
        return Ok(Managed::Started);
    }
    let volume = Volume { name, size: Some(Size(bytes)), disk: None, read_only: false };
    let mut document = state.document.clone();
    document.edit(|config| config.volume.push(volume.clone())).map_err(|p| lines(&p))?;
    storage.add_volume(&volume, &mut state.disks, state.platform.arena())?;
    state.document = document;
    state.plane.storage.apply_exports(state.document.config());
    Ok(at_once())
}

pub(super) fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: ")
}

fn grow_volume(state: &mut State, words: &[&str]) -> Told {
    let options = Options::parse(words, &[])?;
    let bytes = options.size.ok_or("say its new size: size=2GiB")?;
    let storage = &mut state.plane.storage;
    let name = options.name;
    let pool = storage.pools.iter().find(|pool| pool.volume(name).is_some());
    let pool = pool.ok_or_else(|| format!("no disk has a volume {name:?} of extents"))?;
    let number = pool.number;
    let order = Order::Grow { name: name.into(), bytes };
    storage.order(number, order, &mut state.disks, state.platform.arena())?;
    Ok(Managed::Started)
}

fn delete_volume(state: &mut State, name: &str) -> Told {
    let storage = &mut state.plane.storage;
    let id = storage.volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
    if let Some(server) = &storage.server
        && let Some(device) = server.devices().find(|device| device.volume == id)
    {
        let session = session_name(server, device.session);
        let device = device.name.as_str();
        return Err(format!("session {session} has it open; `device close {device} {session}`"));
    }
    let config = state.document.config();
    if let Some(export) = config.export.iter().find(|export| export.volume.as_str() == name) {
        return Err(format!("export {0} is of it; `export remove {0}`", export.name));
    }
    if storage.volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
        return Err("it is busy; try again".into());
    }
    let declared = config.volume.iter().find(|volume| volume.name.as_str() == name);
    let whole_disk = declared.and_then(|volume| volume.disk.filter(|_| volume.size.is_none()));
    state
        .document
        .edit(|config| config.volume.retain(|volume| volume.name.as_str() != name))
        .map_err(|problems| lines(&problems))?;
    let memory = storage.volumes.remove(id).and_then(|volume| volume.into_parts().memory);
    memory.into_iter().for_each(|memory| state.platform.arena().free(memory));
    if let Some(slot) = whole_disk.and_then(|number| state.disks.get_mut(usize::from(number))) {
        slot.role = Role::Free;
    }
    let pool = storage.pools.iter().find(|pool| pool.volume(name).is_some());
    let number = pool.map(|pool| pool.number);
    storage.close_volume(name);
    let told = match number {
        None => Ok(at_once()),
        Some(number) => {
            let order = Order::Delete { name: name.into() };
            let arena = state.platform.arena();
            storage.order(number, order, &mut state.disks, arena).map(|()| Managed::Started)
        }
    };
    storage.apply_exports(state.document.config());
    told
}

/// Changes the exports of the configuration, and makes them what they are. Without any, each
/// volume is exported: then they are written down first.
fn edit_exports(
    state: &mut State,
    change: impl FnOnce(&mut Vec<Export>) -> Result<(), String>,
) -> Result<(), String> {
    let mut exports = state.plane.storage.wanted_exports(state.document.config());
    change(&mut exports)?;
    let config = state.document.config().clone();
    // Volumes of disks are not in the configuration by themselves; their exports name them.
    let named: Vec<config::Name> = exports.iter().map(|export| export.volume.clone()).collect();
    let found = state.plane.storage.undeclared(&config, &named);
    let mut volumes = config.volume;
    volumes.extend(found);
    state
        .document
        .edit(|config| (config.export, config.volume) = (exports, volumes))
        .map_err(|problems| lines(&problems))?;
    state.plane.storage.apply_exports(state.document.config());
    Ok(())
}

fn change_export(state: &mut State, words: &[&str], add: bool) -> Result<(), String> {
    let options = Options::parse(words, &["ro", "rw"])?;
    let name: crate::config::ExportName = options.name.parse()?;
    let volume = options.volume.map(str::parse).transpose()?;
    let sessions = match options.sessions {
        None => None,
        Some("all") => Some(Vec::new()),
        Some(list) => Some(list.split(',').map(str::parse).collect::<Result<_, String>>()?),
    };
    let read_only = match (options.has("ro"), options.has("rw")) {
        (false, false) => None,
        (ro, _) => Some(ro),
    };
    edit_exports(state, |exports| {
        if add {
            if exports.iter().any(|export| export.name == name) {
                return Err(format!("there is an export {name}; `export set` changes it"));
            }
            let volume = match volume.clone() {
                Some(volume) => volume,
                None => name.as_str().parse()?,
            };
            let (read_only, sessions) = (false, Vec::new());
            exports.push(Export { name: name.clone(), volume, read_only, sessions });
        }
        let export = exports.iter_mut().find(|export| export.name == name);
        let export = export.ok_or_else(|| format!("there is no export {name}"))?;
        export.volume = volume.unwrap_or_else(|| export.volume.clone());
        export.read_only = read_only.unwrap_or(export.read_only);
        export.sessions = sessions.unwrap_or_else(|| export.sessions.clone());
        Ok(())
    })
}

fn remove_export(state: &mut State, name: &str) -> Result<(), String> {
    edit_exports(state, |exports| {
        let before = exports.len();
        exports.retain(|export| export.name.as_str() != name);
        match exports.len() {
            after if after == before => Err(format!("there is no export {name:?}")),
            0 => Err("the last export stays: without any, every volume is exported".into()),
            _ => Ok(()),
        }
    })
}

fn disconnect_session(state: &mut State, name: &str) -> Result<(), String> {
    let nobody = || format!("there is no session {name:?}");
    let server = state.plane.storage.server.as_ref().ok_or_else(nobody)?;
    let transport = server.transport();
    let sessions = transport.sessions().filter(|session| session.name.as_str() == name);
    let ids: Vec<_> = sessions.map(|session| session.id).collect();
    let paths = transport.paths().filter(|path| ids.contains(&path.session));
    let names: Vec<String> = paths.map(|path| path_name(&path)).collect();
    if names.is_empty() {
        return Err(nobody());
    }
    for path in names {
        // One that is gone meanwhile is as good as ended.
        let _ = objects::path_command(state, name, &path, "disconnect");
    }
    Ok(())
}

fn path_order(state: &mut State, name: &str, order: &str) -> Result<(), String> {
    let nobody = || format!("there is no path {name:?}; `path list` shows what there is");
    let server = state.plane.storage.server.as_ref().ok_or_else(nobody)?;
    let paths = server.transport().paths().filter(|path| path_name(path) == name);
    let sessions: Vec<String> = paths.map(|path| session_name(server, path.session)).collect();
    if sessions.is_empty() {
        return Err(nobody());
    }
    for session in sessions {
        objects::path_command(state, &session, name, order).ok_or_else(nobody)?;
    }
    Ok(())
}

fn close_device(state: &mut State, words: &[&str]) -> Result<(), String> {
    let (&name, rest) = words.split_first().ok_or("say the name of the device")?;
    let session = rest.first().copied();
    let nobody = || format!("no session has {name:?} open; `device list` shows what is open");
    let server = state.plane.storage.server.as_mut().ok_or_else(nobody)?;
    let wanted: Vec<_> = server
        .devices()
        .filter(|device| device.name.as_str() == name)
        .filter(|device| session.is_none_or(|s| session_name(server, device.session) == s))
        .map(|device| (device.session, device.id))
        .collect();
    if wanted.is_empty() {
        return Err(nobody());
    }
    for (session, device) in wanted {
        server.force_close(session, device);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Value> {
        let row = |name: &str, size, list: &[&str]| {
            let list = list.iter().map(Value::display);
            Value::object([
                ("name", Value::display(name)),
                ("size", Value::Bytes(size)),
                ("disk", Value::None),
                ("sessions", Value::list(list)),
            ])
        };
        vec![row("a", 3 << 20, &[]), row("b,\"c\"", 512, &["h1", "h2"])]
    }

    #[test]
    fn formats_and_units() {
        let plain = csv(&Value::List(rows()));
        assert_eq!(plain, "name,size,disk,sessions\na,3145728,,\n\"b,\"\"c\"\"\",512,,h1 h2\n");
        let mut scaled = rows();
        scaled.iter_mut().try_for_each(|row| scale(row, "M")).unwrap();
        assert!(csv(&Value::List(scaled)).starts_with("name,size,disk,sessions\na,3"));
        let why = scale(&mut rows()[0], "X").unwrap_err();
        assert_eq!(why, "unknown option \"X\"; accepted: json, csv, B, K, M, G, T");
        assert_eq!(first(&rows()[0]), "a");
    }

    #[test]
    fn options_are_checked() {
        let parse = |line: &'static str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            Options::parse(&words, &["force"]).map(|o| (o.name, o.size, o.disk, o.has("force")))
        };
        assert_eq!(parse("a size=1GiB disk=disk2 force"), Ok(("a", Some(1 << 30), Some(2), true)));
        assert_eq!(parse("a"), Ok(("a", None, None, false)));
        for (line, why) in [
            ("", "say the name"),
            ("a size=much", "\"much\": not a size; such as 1GiB"),
            ("a disk=x", "\"x\" is no disk"),
            ("a forced", "unknown option \"forced\""),
        ] {
            assert_eq!(parse(line).unwrap_err(), why);
        }
    }
}
