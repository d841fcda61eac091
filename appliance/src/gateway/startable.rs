//! What of a configuration cannot start on this machine: `save` refuses it, because after the next start it would be
//! missing, and nobody would be told in time.

use super::disks::{DiskSlot, Role, number_of};
use crate::config::{Config, Size, Volume};

/// Why volumes of `wanted` that are not as in `kept` cannot start; of an arena of so many bytes. What was kept before is
/// not judged again: a disk that is away for now keeps nobody from saving something else.
pub(super) fn check(
    wanted: &Config,
    kept: &Config,
    disks: &[DiskSlot],
    arena: u64,
) -> Result<(), String> {
    let is_new = |volume: &&Volume| !kept.volume.contains(volume);
    let mut reasons: Vec<String> = wanted
        .volume
        .iter()
        .filter(is_new)
        .filter_map(|volume| {
            let why = on_disk(volume, wanted, disks).err()?;
            Some(format!("volume {}: {why}", volume.name))
        })
        .collect();
    let memory = |config: &Config| {
        config.volume.iter().fold(0u64, |sum, volume| sum.saturating_add(volume.memory()))
    };
    let arena = wanted.memory.arena.map_or(arena, |given| given.0.max(arena));
    let sum = memory(wanted);
    if sum > memory(kept) && sum >= arena {
        let (sum, arena) = (Size(sum), Size(arena));
        reasons.push(format!("volumes in memory take {sum}, and there are {arena} in all"));
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "not saved, because it cannot start: {}; what is in force stays as it is",
            reasons.join("; ")
        )),
    }
}

/// Whether a disk has room for a volume, and is free for it. A disk that is not there may come.
fn on_disk(volume: &Volume, wanted: &Config, disks: &[DiskSlot]) -> Result<(), String> {
    let Some(name) = &volume.disk else { return Ok(()) };
    let there =
        |(number, slot): (usize, &DiskSlot)| name.is_disk(number, &slot.location, &slot.serial);
    if !disks.iter().enumerate().any(there) {
        return Ok(());
    }
    let slot = &disks[number_of(disks, name)?];
    match slot.role {
        Role::Boot | Role::Configuration => slot.check_free()?,
        Role::Volumes if volume.size.is_none() => {
            return Err(format!("{} holds volumes; give it a size", slot.name));
        }
        _ => {}
    }
    let same_disk = wanted.volume.iter().filter(|other| other.disk == volume.disk);
    let sizes = same_disk.filter_map(|other| other.size);
    let sum = sizes.fold(0u64, |sum, size| sum.saturating_add(size.0));
    let has = slot.geometry.sectors.saturating_mul(512);
    if sum > has {
        let (sum, has) = (Size(sum), Size(has));
        return Err(format!("{} is to hold {sum}, and has {has}", slot.name));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Document;
    use crate::gateway::disks::SharedDisk;
    use drivers::hal::{Completion, Disk, Geometry, Request, SubmitError};

    struct Idle;

    impl Disk for Idle {
        fn geometry(&self) -> Geometry {
            Geometry { sectors: 32 << 10, ..Geometry::ABSENT }
        }
        fn depth(&self) -> usize {
            1
        }
        fn submit(&mut self, _: &Request) -> Result<(), SubmitError> {
            Err(SubmitError::Full)
        }
        fn flush_queue(&mut self) {}
        fn poll(&mut self) -> Option<Completion> {
            None
        }
        fn set_interrupts(&mut self, _: bool) {}
        fn interrupts(&self) -> u64 {
            0
        }
    }

    fn slot(serial: &str, role: Role) -> DiskSlot {
        DiskSlot {
            name: format!("disk-{serial}"),
            serial: serial.into(),
            model: String::new(),
            firmware: String::new(),
            location: String::new(),
            device: String::new(),
            geometry: Idle.geometry(),
            disk: SharedDisk::new(Box::new(Idle)),
            role,
        }
    }

    /// What is said of these settings, over the built-in default.
    fn said(settings: &[(&str, &str)]) -> Result<(), String> {
        let disks = [
            slot("boot", Role::Boot),
            slot("config", Role::Configuration),
            slot("data", Role::Free),
            slot("parts", Role::Volumes),
        ];
        let kept = Document::default();
        let mut document = kept.clone();
        for (path, value) in settings {
            document.set(path, value).unwrap();
        }
        check(document.config(), kept.config(), &disks, 128 << 20)
    }

    #[test]
    fn what_cannot_start_is_refused_with_the_reason() {
        let new =
            |disk, size| [("volume.1.name", "v"), ("volume.1.disk", disk), ("volume.1.size", size)];
        for (settings, why) in [
            (&[("volume.0.size", "1TiB")][..], "volumes in memory take 1TiB, and there are 128MiB"),
            (&new("serial:boot", "")[..2], "volume v: the appliance boots from disk-boot"),
            (&new("0", "1MiB"), "never a volume"),
            (&new("serial:config", "")[..2], "disk-config keeps the configuration"),
            (&new("serial:data", "1GiB"), "disk-data is to hold 1GiB, and has 16MiB"),
            (&new("serial:parts", "")[..2], "disk-parts holds volumes"),
        ] {
            let refused = said(settings).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        for settings in [
            &[][..],
            &[("volume.0.size", "100MiB")],
            &[("system.hostname", "a")],
            &new("serial:data", "16MiB"),
            &new("serial:data", "")[..2],
            &new("serial:parts", "1MiB"),
            // It may come with the next start.
            &new("serial:later", "1TiB"),
        ] {
            assert_eq!(said(settings), Ok(()), "{settings:?}");
        }
    }

    #[test]
    fn what_was_kept_before_keeps_nothing_else_from_being_saved() {
        let mut kept = Document::default();
        kept.set("volume.0.size", "1TiB").unwrap();
        let mut document = kept.clone();
        document.set("system.hostname", "a").unwrap();
        assert_eq!(check(document.config(), kept.config(), &[], 1 << 20), Ok(()));
    }
}
