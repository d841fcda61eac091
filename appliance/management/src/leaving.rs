//! Volumes and mirrors that a commit has removed from the configuration: each goes when nothing uses it. A commit on
//! trial removes none before its confirmation, because the data of a volume in memory would be lost. And mirrors that a
//! commit has added: each is assembled when nothing uses its members.

use crate::appliance::Appliance;
use crate::config::{Config, Leaving, Mirror};
use crate::manage::volumes::pool_of;
use crate::orders::{MirrorOrder, Order};

/// The mirrors and volumes of `old` that `new` lacks. Mirrors come first, because they hold volumes.
fn removed(old: &Config, new: &Config) -> Vec<Leaving> {
    let mirrors = old.mirror.iter().cloned().map(Leaving::Mirror);
    let volumes = old.volume.iter().cloned().map(Leaving::Volume);
    let remotes = old.remote.iter().cloned().map(Box::new).map(Leaving::Remote);
    mirrors.chain(volumes).chain(remotes).filter(|one| !one.is_in(new)).collect()
}

/// The mirrors of `new` that `old` lacks, or that have other members there.
pub(crate) fn added<'a>(old: &'a Config, new: &'a Config) -> impl Iterator<Item = &'a Mirror> {
    new.mirror.iter().filter(|mirror| old.mirror.iter().all(|other| !other.is_same(mirror)))
}

/// What will delay the mirrors that `new` adds to the running configuration, a line each.
pub(crate) fn delays(appliance: &dyn Appliance, new: &Config) -> Vec<String> {
    let volumes = appliance.storage().volumes;
    let is_open = |member: &str| {
        let counts = volumes.find(member).and_then(|id| volumes.open_counts(id));
        counts.is_some_and(|counts| counts.count() > 0)
    };
    let mut lines = Vec::new();
    for mirror in added(appliance.document().config(), new) {
        for member in mirror.members.iter().filter(|member| is_open(member.as_str())) {
            lines.push(format!("mirror {} starts when no client has {member} open", mirror.name));
        }
    }
    lines
}

/// Notes the mirrors that the running configuration has, and that `old` lacks, and assembles those whose members nothing
/// uses. Returns a line for each that waits.
pub(crate) fn note_added(appliance: &mut dyn Appliance, old: &Config) -> Vec<String> {
    let new = appliance.document().config();
    let names: Vec<String> = added(old, new).map(|mirror| mirror.name.to_string()).collect();
    let arriving = &mut appliance.lifecycle_mut().arriving;
    arriving.retain(|other| !names.contains(other));
    arriving.extend(names);
    assemble(appliance)
}

/// Assembles added mirrors. Returns a line for each that waits.
fn assemble(appliance: &mut dyn Appliance) -> Vec<String> {
    let mut lines = Vec::new();
    let mut stay = Vec::new();
    for name in core::mem::take(&mut appliance.lifecycle_mut().arriving) {
        let config = appliance.document().config();
        let mirror = config.mirror.iter().find(|mirror| mirror.name.as_str() == name);
        let Some(mirror) = mirror.cloned() else { continue };
        let is_it =
            |members: &[String; 2]| mirror.members.iter().map(|one| one.as_str()).eq(members);
        let mut running = appliance.remote().mirrors.into_iter();
        if running.any(|one| one.name == name && is_it(one.members)) {
            continue;
        }
        match appliance.carry_out(Order::AssembleMirror(&mirror)) {
            Ok(_) => log::info!("mirror {name} is assembled"),
            Err(why) => {
                lines.push(format!("mirror {name} starts when its members are free: {why}"));
                stay.push(name);
            }
        }
    }
    appliance.lifecycle_mut().arriving = stay;
    lines
}

/// Notes the volumes and mirrors that the running configuration lacks, and that `old` has, and removes those that nothing uses,
/// unless the commit is on trial. Returns a line for each that stays.
pub(crate) fn note_removed(
    appliance: &mut dyn Appliance,
    old: &Config,
    on_trial: bool,
) -> Vec<String> {
    let new = appliance.document().config();
    let mut lines = Vec::new();
    for one in removed(old, new) {
        if let Some(line) = kept_on_disk(appliance, &one) {
            lines.push(line);
            continue;
        }
        let leaving = &mut appliance.lifecycle_mut().leaving;
        leaving.retain(|other| (other.kind(), other.name()) != (one.kind(), one.name()));
        leaving.push(one);
    }
    if on_trial {
        let leaving = &appliance.lifecycle().leaving;
        let line = |one: &Leaving| format!("{} {} goes with `confirm`", one.kind(), one.name());
        lines.extend(leaving.iter().map(line));
    } else {
        lines.extend(settle(appliance));
    }
    // Volumes that wait for their removal are not exported by default.
    if let Err(why) = appliance.carry_out(Order::ApplyExports) {
        lines.push(why);
    }
    lines
}

/// That a volume stays on its disk: only `volume delete` deletes data on disks. None if no disk is known to have it.
fn kept_on_disk(appliance: &dyn Appliance, one: &Leaving) -> Option<String> {
    if matches!(one, Leaving::Mirror(_)) {
        return None;
    }
    let (name, disk) = (one.name(), pool_of(appliance, one.name())?);
    Some(format!(
        "volume {name} stays on {disk}, without an entry; `volume delete {name} force` deletes it"
    ))
}

/// Removes the mirrors and volumes that nothing uses, and assembles the mirrors whose members nothing uses. Returns a
/// line for each that waits.
pub fn settle(appliance: &mut dyn Appliance) -> Vec<String> {
    let mut lines = Vec::new();
    let mut stay = Vec::new();
    for one in core::mem::take(&mut appliance.lifecycle_mut().leaving) {
        if one.is_in(appliance.document().config()) {
            keep(appliance, &one);
            continue;
        }
        // The disk's table may have been read since the commit.
        if let Some(line) = kept_on_disk(appliance, &one) {
            lines.push(line);
            continue;
        }
        match remove(appliance, &one) {
            Ok(()) => log::info!("{} {} is removed", one.kind(), one.name()),
            Err(why) => {
                let (kind, name) = (one.kind(), one.name());
                lines.push(format!("{kind} {name} stays until it is unused: {why}"));
                stay.push(one);
            }
        }
    }
    appliance.lifecycle_mut().leaving = stay;
    lines.extend(assemble(appliance));
    lines
}

/// Cancels the removal of objects that the configuration has again.
fn keep(appliance: &mut dyn Appliance, one: &Leaving) {
    let name = one.name();
    let is_running = appliance.remote().mirrors.iter().any(|mirror| mirror.name == name);
    if is_running
        && let Err(why) = appliance.carry_out(Order::Mirror(name, MirrorOrder::End(false)))
    {
        log::error!("mirror {name}: {why}");
    }
}

/// Removes a volume or a mirror. The error says what uses it.
fn remove(appliance: &mut dyn Appliance, one: &Leaving) -> Result<(), String> {
    let name = one.name();
    let mirrors = appliance.remote().mirrors;
    let is_member = |members: &[String; 2]| members.iter().any(|member| member == name);
    if let Some(mirror) = mirrors.iter().find(|mirror| is_member(mirror.members)) {
        return Err(format!("mirror {} still has it", mirror.name));
    }
    let is_running = mirrors.iter().any(|mirror| mirror.name == name);
    let volumes = appliance.storage().volumes;
    if let Some(id) = volumes.find(name) {
        if volumes.open_counts(id).is_some_and(|counts| counts.count() > 0) {
            return Err("a client has it open".into());
        }
        if is_running {
            // Its own requests end before nothing is in flight.
            appliance.carry_out(Order::Mirror(name, MirrorOrder::End(true)))?;
        }
        let volumes = appliance.storage().volumes;
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
        Leaving::Mirror(_) => {
            appliance.carry_out(Order::DissolveMirror(name))?;
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

    #[test]
    fn mirror_with_other_members_goes_and_comes() {
        let config = |mirror: &str| {
            let volumes = ["a", "b", "c"].map(|name| format!("[[volume]]\nname = \"{name}\"\n"));
            check((volumes.concat() + mirror).as_bytes()).unwrap()
        };
        let of =
            |members: &str| config(&format!("[[mirror]]\nname = \"m\"\nmembers = [{members}]\n"));
        let (none, first, second) = (config(""), of("\"a\", \"b\""), of("\"a\", \"c\""));
        for (old, new, goes, comes) in
            [(&none, &first, 0, 1), (&first, &none, 1, 0), (&first, &second, 1, 1)]
        {
            let gone = removed(old, new);
            assert_eq!((gone.len(), added(old, new).count()), (goes, comes));
            assert!(gone.iter().all(|one| (one.kind(), one.name()) == ("mirror", "m")));
        }
        let mut slower = first.clone();
        slower.mirror[0].timeout_ms = 9000;
        assert!(removed(&first, &slower).is_empty() && added(&first, &slower).next().is_none());
    }
}
