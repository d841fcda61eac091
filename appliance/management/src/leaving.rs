//! Volumes that a commit has removed from the configuration: each goes when nothing uses it. A commit on trial removes
//! none before its confirmation, because the data of a volume in memory would be lost.

use crate::appliance::Appliance;
use crate::config::{Config, Leaving};
use crate::manage::volumes::pool_of;
use crate::orders::Order;

/// The volumes of `old` that `new` lacks. Mirrors are not among them.
fn removed(old: &Config, new: &Config) -> Vec<Leaving> {
    let is_gone = |name: &str| new.volume_names().all(|other| other.as_str() != name);
    let volumes = old.volume.iter().cloned().map(Leaving::Volume);
    let remotes = old.remote.iter().cloned().map(Box::new).map(Leaving::Remote);
    volumes.chain(remotes).filter(|one| is_gone(one.name())).collect()
}

/// Notes the volumes that the running configuration lacks, and that `old` has, and removes those that nothing uses,
/// unless the commit is on trial. Returns a line for each that stays.
pub(crate) fn note_removed(
    appliance: &mut dyn Appliance,
    old: &Config,
    on_trial: bool,
) -> Vec<String> {
    let new = appliance.document().config();
    let is_gone = |name: &str| new.volume_names().all(|other| other.as_str() != name);
    let mirrors = old.mirror.iter().filter(|mirror| is_gone(mirror.name.as_str()));
    let mut lines: Vec<String> =
        mirrors.map(|mirror| format!("mirror {} stays until a reboot", mirror.name)).collect();
    for one in removed(old, new) {
        if let Some(line) = kept_on_disk(appliance, &one) {
            lines.push(line);
            continue;
        }
        let leaving = &mut appliance.lifecycle_mut().leaving;
        leaving.retain(|other| other.name() != one.name());
        leaving.push(one);
    }
    if on_trial {
        let leaving = &appliance.lifecycle().leaving;
        lines
            .extend(leaving.iter().map(|one| format!("volume {} goes with `confirm`", one.name())));
    } else {
        lines.extend(settle(appliance));
    }
    lines
}

/// That a volume stays on its disk: only `volume delete` deletes data on disks. None if no disk is known to have it.
fn kept_on_disk(appliance: &dyn Appliance, one: &Leaving) -> Option<String> {
    let (name, disk) = (one.name(), pool_of(appliance, one.name())?);
    Some(format!(
        "volume {name} stays on {disk}, without an entry; `volume delete {name} force` deletes it"
    ))
}

/// Removes the volumes that nothing uses. Returns a line for each that stays.
pub fn settle(appliance: &mut dyn Appliance) -> Vec<String> {
    let mut lines = Vec::new();
    let mut stay = Vec::new();
    for one in core::mem::take(&mut appliance.lifecycle_mut().leaving) {
        let config = appliance.document().config();
        if config.volume_names().any(|name| name.as_str() == one.name()) {
            continue;
        }
        // The disk's table may have been read since the commit.
        if let Some(line) = kept_on_disk(appliance, &one) {
            lines.push(line);
            continue;
        }
        match remove(appliance, &one) {
            Ok(()) => log::info!("volume {} is removed", one.name()),
            Err(why) => {
                lines.push(format!("volume {} stays until it is unused: {why}", one.name()));
                stay.push(one);
            }
        }
    }
    appliance.lifecycle_mut().leaving = stay;
    lines
}

/// Removes a volume. The error says what uses it.
fn remove(appliance: &mut dyn Appliance, one: &Leaving) -> Result<(), String> {
    let name = one.name();
    let mirrors = appliance.remote().mirrors;
    let is_member = |members: &[String; 2]| members.iter().any(|member| member == name);
    if let Some(mirror) = mirrors.iter().find(|mirror| is_member(mirror.members)) {
        return Err(format!("mirror {} runs until a reboot", mirror.name));
    }
    let volumes = appliance.storage().volumes;
    if let Some(id) = volumes.find(name) {
        if volumes.open_counts(id).is_some_and(|counts| counts.count() > 0) {
            return Err("a client has it open".into());
        }
        if volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
            return Err("requests are in flight".into());
        }
        appliance.carry_out(Order::RetireVolume(name))?;
    }
    match one {
        Leaving::Volume(volume) => {
            let whole_disk = volume.disk.as_ref().filter(|_| volume.size.is_none());
            appliance.carry_out(Order::DeleteVolume(name, whole_disk))?;
        }
        Leaving::Remote(_) => {
            appliance.carry_out(Order::RemoveRemote(name))?;
        }
    }
    appliance.carry_out(Order::ApplyExports).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check;

    #[test]
    fn only_names_that_the_new_configuration_lacks_are_removed() {
        const REMOTE: &str =
            "sessname = \"s\"\ndevice_path = \"d\"\npath = \"127.0.0.2@127.0.0.3\"\n";
        let old = format!(
            "[[volume]]\nname = \"a\"\n[[volume]]\nname = \"b\"\n[[volume]]\nname = \"c\"\n\
             [[remote]]\nname = \"r\"\n{REMOTE}"
        );
        // The name of a volume that becomes a remote stays in use.
        let new = format!(
            "[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n[[remote]]\nname = \"b\"\n{REMOTE}"
        );
        let [old, new] = [old, new].map(|text| check(text.as_bytes()).unwrap());
        let removed = removed(&old, &new);
        assert_eq!(removed.iter().map(Leaving::name).collect::<Vec<_>>(), ["c", "r"]);
        assert!(super::removed(&old, &old).is_empty());
    }
}
