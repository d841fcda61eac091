//! Console commands for volumes.

use super::exports::with_warnings;
use super::openness;
use super::options::Options;
use super::remote;
use crate::appliance::{Appliance, Told};
use crate::clients::session_name;
use crate::config::{DeviceName, Size, Volume};
use crate::nbd_client;
use crate::orders::Order;
use crate::pieces::Entry;
use crate::report::Value;
use crate::status::DiskStatus;
use crate::words::lines;
use std::collections::BTreeSet;

/// The number of the disk with this name, if exactly one disk has it.
pub(super) fn number_of(disks: &[DiskStatus<'_>], name: &DeviceName) -> Option<usize> {
    let matches = |(number, disk): &(usize, &DiskStatus<'_>)| {
        name.is_disk(*number, disk.location, disk.serial)
    };
    let mut found = disks.iter().enumerate().filter(matches).map(|(number, _)| number);
    found.next().filter(|_| found.next().is_none())
}

/// The number of the disk that holds a volume, in extents or as a whole. None for other volumes.
fn disk_of(appliance: &dyn Appliance, disks: &[DiskStatus<'_>], name: &str) -> Option<usize> {
    let declared = &appliance.document().config().volume;
    let pools = appliance.storage().pools;
    let pool = pools.iter().find(|pool| pool.table.find(name).is_some());
    let declared = declared.iter().find(|volume| volume.name.as_str() == name);
    let declared = declared.and_then(|volume| volume.disk.as_ref());
    pool.map(|pool| pool.disk.0).or_else(|| declared.and_then(|name| number_of(disks, name)))
}

/// Name of the disk that holds a volume in extents.
pub(crate) fn pool_of(appliance: &dyn Appliance, volume: &str) -> Option<String> {
    let pools = appliance.storage().pools;
    let pool = pools.iter().find(|pool| pool.table.find(volume).is_some())?;
    appliance.disks().get(pool.disk.0).map(|disk| disk.name.to_string())
}

/// Name of the disk of a volume, if the disk has failed or was pulled out.
pub(crate) fn failed_disk_of(appliance: &dyn Appliance, volume: &str) -> Option<String> {
    let disks = appliance.disks();
    let disk = disks.get(disk_of(appliance, &disks, volume)?)?;
    disk.health.is_some_and(|health| health.gone).then(|| disk.name.to_string())
}

/// Configured volumes, then other open ones: at most `count` from index `from`.
pub(crate) fn rows(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    let (storage, remotes) = (appliance.storage(), appliance.remote());
    let (config, disks) = (appliance.document().config(), appliance.disks());
    let declared = config.volume_names().map(|name| name.as_str());
    let open = storage.volumes.ids().filter_map(|id| storage.volumes.name(id));
    let mut seen = BTreeSet::new();
    let names = declared.chain(open).filter(move |name| seen.insert(*name));
    let rows = names.skip(from).take(count).map(|name| {
        let geometry = storage.volumes.find(name).and_then(|id| storage.volumes.get(id));
        let geometry = geometry.map(|volume| volume.geometry());
        let entry = storage.pools.iter().find_map(|pool| pool.table.find(name));
        let disk = disk_of(appliance, &disks, name);
        let extents = entry.map(|entry| entry.extents.len());
        let failed = disk.and_then(|number| disks.get(number)?.health).is_some_and(|one| one.gone);
        let ours = config.remote.iter().all(|remote| remote.name.as_str() != name)
            && config.mirror.iter().all(|mirror| mirror.name.as_str() != name);
        let of_member = || remotes.mirrors.iter().find_map(|mirror| mirror.member_sectors(name));
        let sectors = geometry.map(|geometry| geometry.sectors).or_else(of_member).unwrap_or(0);
        let size = sectors.saturating_mul(512);
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
            (
                "state",
                match failed {
                    true => "disk failed".into(),
                    false => remote::state_of(&remotes, config, name, geometry).into(),
                },
            ),
        ])
    });
    rows.collect()
}

/// What a volume can do. Nothing for a member of a mirror, which the mirror holds.
pub(super) fn abilities(appliance: &dyn Appliance, name: &str) -> Vec<Entry> {
    let volumes = appliance.storage().volumes;
    let volume = volumes.find(name).and_then(|id| volumes.get(id));
    let remote = appliance.remote();
    volume.map_or(Vec::new(), |volume| nbd_client::abilities(&volume.geometry(), remote.nbd(name)))
}

pub(super) fn create(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let options = Options::parse(words, &["force"])?;
    let bytes = options
        .size
        .filter(|&bytes| bytes > 0)
        .ok_or("missing size: give size=64MiB, for example")?;
    let name: crate::config::Name = options.name.parse()?;
    let storage = appliance.storage();
    let is_coming = storage.pools.iter().any(|pool| pool.coming.contains(&name.as_str()));
    if is_coming || storage.volumes.find(name.as_str()).is_some() {
        return Err(format!("volume {name} already exists"));
    }
    if let Some(disk) = &options.disk {
        let (name, force) = (name.as_str(), options.has("force"));
        return appliance.carry_out(Order::CreateOnDisk { disk, name, bytes, force });
    }
    let volume = Volume { name, size: Some(Size(bytes)), disk: None, read_only: false };
    let mut document = appliance.document().clone();
    document.edit(|config| config.volume.push(volume.clone())).map_err(|p| lines(&p))?;
    appliance.carry_out(Order::MakeVolume(&volume))?;
    *appliance.document_mut() = document;
    appliance.carry_out(Order::ApplyExports)?;
    let config = appliance.document().config();
    Ok(with_warnings(openness::of_new_volume(&volume.name, config)))
}

pub(super) fn grow(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let options = Options::parse(words, &[])?;
    let bytes = options.size.ok_or("missing size: give the new size, size=2GiB for example")?;
    let name = options.name;
    let pools = appliance.storage().pools;
    let pool = pools.iter().find(|pool| pool.table.find(name).is_some());
    let mirrors = &appliance.document().config().mirror;
    let mirror = mirrors.iter().find(|mirror| mirror.name.as_str() == name);
    let pool = pool.ok_or_else(|| match mirror {
        Some(mirror) => {
            let members: Vec<&str> = mirror.members.iter().map(|member| member.as_str()).collect();
            let members = members.join(" and ");
            format!("{name} is a mirror: grow its members {members} first, then run `mirror grow {name}`")
        }
        None => format!("no disk holds a volume {name:?} in extents: only such volumes can grow"),
    })?;
    let number = pool.disk.0;
    appliance.carry_out(Order::Grow(number, name, bytes))
}

pub(super) fn delete(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (name, force) = match *words {
        [name] => (name, false),
        [name, "force"] => (name, true),
        _ => return Err("accepted: a name, then optionally `force`".into()),
    };
    let config = appliance.document().config();
    if let Some(mirror) = config.mirror_of(name) {
        let mirror = &mirror.name;
        return Err(format!(
            "{name} is a member of mirror {mirror}; run `mirror remove {mirror}` first"
        ));
    }
    let storage = appliance.storage();
    let id = storage.volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
    if let Some(server) = storage.server
        && let Some(device) = server.devices().find(|device| device.volume == id)
    {
        let session = session_name(server, device.session);
        let device = device.name.as_str();
        return Err(format!(
            "{name}: session {session} has it open; run `device close {device} {session}` first"
        ));
    }
    if let Some(export) = config.export.iter().find(|export| export.volume.as_str() == name) {
        return Err(format!(
            "volume is exported as {0}; run `export remove {0}` first",
            export.name
        ));
    }
    if storage.volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
        return Err(format!("{name} is busy; try again"));
    }
    if !force {
        return Err(format!(
            "all data on {name} would be lost; confirm with `volume delete {name} force`"
        ));
    }
    let declared = config.volume.iter().find(|volume| volume.name.as_str() == name);
    let whole_disk = declared.filter(|volume| volume.size.is_none());
    let whole_disk = whole_disk.and_then(|volume| volume.disk.clone());
    let mut document = appliance.document().clone();
    document
        .edit(|config| config.volume.retain(|volume| volume.name.as_str() != name))
        .map_err(|problems| lines(&problems))?;
    appliance.carry_out(Order::RetireVolume(name))?;
    *appliance.document_mut() = document;
    let started = appliance.carry_out(Order::DeleteVolume(name, whole_disk.as_ref()));
    appliance.carry_out(Order::ApplyExports)?;
    started
}
