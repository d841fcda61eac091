//! The console's verbs for volumes.

use super::options::Options;
use super::{Told, at_once, lines};
use crate::config::{Size, Volume};
use crate::console::Managed;
use crate::gateway::disks::{Role, number_of};
use crate::gateway::objects::session_name;
use crate::gateway::plane::DataPlane;
use crate::gateway::remote_storage;
use crate::gateway::state::State;
use crate::gateway::storage::Storage;
use crate::gateway::volumes::Order;
use crate::report::Value;
use std::collections::BTreeSet;
use storage::volume::{StillUsed, VolumeId};

/// All volumes, those that are open, and those of the configuration that are not: from one on, so many.
pub(in crate::gateway) fn rows(state: &mut State, from: usize, count: usize) -> Vec<Value> {
    let state = &*state;
    let storage = &state.plane.storage;
    let config = state.document.config();
    let declared = config.volume_names().map(|name| name.as_str());
    let open = storage.volumes.ids().filter_map(|id| storage.volumes.name(id));
    let mut seen = BTreeSet::new();
    let names = declared.chain(open).filter(move |name| seen.insert(*name));
    let rows = names.skip(from).take(count).map(|name| {
        let geometry = storage.volumes.find(name).and_then(|id| storage.volumes.get(id));
        let geometry = geometry.map(|volume| volume.geometry());
        let declared = config.volume.iter().find(|volume| volume.name.as_str() == name);
        let pool = storage.pools.iter().find_map(|p| Some((p.number, p.volume(name)?.0)));
        let declared = declared.and_then(|volume| volume.disk.as_ref());
        let disk = pool
            .map(|(number, _)| number)
            .or_else(|| declared.and_then(|name| number_of(&state.disks, name).ok()));
        let extents = pool.map(|(_, extents)| extents);
        let ours = config.remote.iter().all(|remote| remote.name.as_str() != name)
            && config.mirror.iter().all(|mirror| mirror.name.as_str() != name);
        let size = geometry.map_or(0, |geometry| geometry.sectors.saturating_mul(512));
        let read_only =
            geometry.is_some_and(|g| g.features.contains(drivers::hal::Features::READ_ONLY));
        let counts = storage.volumes.find(name).and_then(|id| storage.volumes.open_counts(id));
        let open = counts.map_or(0, |counts| counts.count());
        Value::object([
            ("name", name.to_string().into()),
            ("size", Value::Bytes(size)),
            ("memory", Value::Bytes(if disk.is_none() && ours { size } else { 0 })),
            ("disk", disk.into()),
            ("extents", extents.into()),
            ("read_only", read_only.into()),
            ("open", open.into()),
            ("state", remote_storage::manage::standing(state, name, geometry).into()),
        ])
    });
    rows.collect()
}

pub(super) fn create(state: &mut State, words: &[&str]) -> Told {
    let options = Options::parse(words, &["force"])?;
    let bytes = options.size.filter(|&bytes| bytes > 0).ok_or("say its size: size=64MiB")?;
    let name: crate::config::Name = options.name.parse()?;
    let storage = &mut state.plane.storage;
    if storage.volumes.find(name.as_str()).is_some() || storage.is_coming(name.as_str()) {
        return Err(format!("there is a volume {name}"));
    }
    if let Some(disk) = &options.disk {
        let number = number_of(&state.disks, disk)?;
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

pub(super) fn grow(state: &mut State, words: &[&str]) -> Told {
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

/// Lets nobody open a volume any more, on whichever core; an error if one has it open or works on it.
pub(in crate::gateway) fn retire(
    storage: &Storage,
    id: VolumeId,
    name: &str,
) -> Result<(), String> {
    let Some(counts) = storage.volumes.open_counts(id) else { return Ok(()) };
    counts.retire().map_err(|why| {
        counts.keep();
        match why {
            StillUsed::Open => {
                format!("{name}: a session on another core has it open; `device list` shows which")
            }
            StillUsed::Busy => format!("{name}: another core is busy with it; try again"),
        }
    })
}

pub(super) fn delete(state: &mut State, words: &[&str]) -> Told {
    let (name, force) = match *words {
        [name] => (name, false),
        [name, "force"] => (name, true),
        _ => return Err("accepted: a name, and `force`".into()),
    };
    if let Some(mirror) = state.document.config().mirror_of(name) {
        let mirror = &mirror.name;
        return Err(format!("it is a member of mirror {mirror}; `mirror remove {mirror}` first"));
    }
    let DataPlane { storage, rdma_stack, arena, .. } = &mut state.plane;
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
    if !force {
        return Err(format!("what is on it would be lost; `volume delete {name} force` does it"));
    }
    let declared = config.volume.iter().find(|volume| volume.name.as_str() == name);
    let whole_disk = declared.filter(|volume| volume.size.is_none());
    let whole_disk =
        whole_disk.and_then(|volume| number_of(&state.disks, volume.disk.as_ref()?).ok());
    let mut document = state.document.clone();
    document
        .edit(|config| config.volume.retain(|volume| volume.name.as_str() != name))
        .map_err(|problems| lines(&problems))?;
    retire(storage, id, name)?;
    state.document = document;
    let memory = storage.volumes.remove(id).and_then(|volume| volume.into_parts().shared);
    if let Some(memory) = memory {
        let provider = rdma_stack.as_ref().map(|rdma_stack| &rdma_stack.providers);
        storage.retire(memory, arena, provider, state.now);
    }
    // One that could not become a volume keeps its role.
    if let Some(number) = whole_disk
        && state.disks[number].role == Role::Volume
    {
        state.disks[number].role = Role::Free;
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
