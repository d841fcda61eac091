//! `wipe`: erases the config disk, or with the name of a disk its table of volumes.

use super::volumes::number_of;
use crate::appliance::{Appliance, Told};
use crate::config::DeviceName;
use crate::orders::Order;

const USAGE: &str = "accepted: `wipe --yes NAME` with the name of the config disk, or `wipe DISK --yes NAME` with the name \
                     of that disk, as `show disks` has it";

/// Executes `wipe`. The operator types the name of the disk twice, or that of the config disk.
pub(super) fn wipe(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    match *words {
        [] => appliance.carry_out(Order::WipeConfig(None)),
        ["--yes", name] => appliance.carry_out(Order::WipeConfig(Some(name))),
        ["--yes"] | [_, "--yes"] => Err(USAGE.into()),
        [disk] => wipe_disk(appliance, disk, None),
        [disk, "--yes", name] => wipe_disk(appliance, disk, Some(name)),
        _ => Err(USAGE.into()),
    }
}

/// Starts to erase the table of volumes of a disk, if no volume on it is in use.
fn wipe_disk(appliance: &mut dyn Appliance, disk: &str, typed: Option<&str>) -> Told {
    let name: DeviceName = disk.parse()?;
    let disks = appliance.disks();
    let number = number_of(&disks, &name)
        .ok_or_else(|| format!("there is no disk {disk}; `show disks` lists them"))?;
    let (name, device) = (disks[number].name.to_string(), disks[number].device.to_string());
    match disks[number].role {
        "volumes" | "free" => {}
        "configuration" => {
            return Err(format!("{name} is the config disk: `wipe --yes {name}` erases it"));
        }
        "volume" => {
            return Err(format!(
                "{name} is a volume as a whole, and has no table: `volume delete` ends its use"
            ));
        }
        role => return Err(format!("{name} is in use: {role}")),
    }
    let pools = appliance.storage().pools;
    let pool = pools.iter().find(|pool| pool.disk.0 == number);
    let volumes = pool.map_or(&[][..], |pool| pool.table.volumes());
    let volumes: Vec<String> = volumes.iter().map(|volume| volume.name.clone()).collect();
    for volume in &volumes {
        check_unused(appliance, volume)?;
    }
    if typed != Some(name.as_str()) && typed != Some(device.as_str()) {
        let lost = match volumes.len() {
            0 => String::new(),
            _ => format!(", and with it volumes {}", volumes.join(", ")),
        };
        return Err(format!(
            "this erases the table of volumes on {name} ({device}){lost}; nothing brings it back: confirm with \
             `wipe {name} --yes {name}`"
        ));
    }
    for volume in &volumes {
        appliance.carry_out(Order::RetireVolume(volume))?;
    }
    let started = appliance.carry_out(Order::WipeDisk(number))?;
    appliance.carry_out(Order::ApplyExports)?;
    Ok(started)
}

/// An error if a volume is in the configuration, exported, mirrored, open or busy.
fn check_unused(appliance: &dyn Appliance, name: &str) -> Result<(), String> {
    let config = appliance.document().config();
    if let Some(mirror) = config.mirror_of(name) {
        let mirror = &mirror.name;
        return Err(format!(
            "{name} is a member of mirror {mirror}; run `mirror remove {mirror}` first"
        ));
    }
    if let Some(export) = config.export.iter().find(|export| export.volume.as_str() == name) {
        let export = &export.name;
        return Err(format!("{name} is exported as {export}; run `export remove {export}` first"));
    }
    if config.volume.iter().any(|volume| volume.name.as_str() == name) {
        return Err(format!(
            "{name} is in the configuration, which would make it again; run `volume delete {name} force` first"
        ));
    }
    let storage = appliance.storage();
    let Some(id) = storage.volumes.find(name) else { return Ok(()) };
    if storage.volumes.open_counts(id).is_some_and(|counts| counts.count() > 0) {
        return Err(format!("{name} is open; `device list` shows who has it"));
    }
    match storage.volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
        true => Err(format!("{name} is busy; try again")),
        false => Ok(()),
    }
}
