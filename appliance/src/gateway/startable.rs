//! Checks whether a configuration can start on this machine. `save` refuses one that cannot, because parts would be
//! missing after the next start.

use super::disks::{DiskSlot, Role, number_of};
use crate::config::{Config, Size, Volume};

/// Checks the volumes of `wanted` that differ from `kept`, with an arena of `arena` bytes. The next start has the same
/// arena: only the kernel command line sets another. Saved volumes are not
/// checked again, so that a disk that is missing now does not prevent saving other changes.
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
    let sum = memory(wanted);
    if sum > memory(kept) && sum >= arena {
        let (sum, arena) = (Size(sum), Size(arena));
        reasons.push(format!("volumes in memory need {sum}, but the arena has {arena}"));
    }
    match reasons.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "not saved, because it cannot start: {}; the running configuration is unchanged",
            reasons.join("; ")
        )),
    }
}

/// Checks that a disk is free and has room for a volume. A missing disk is accepted, because it may be attached later.
fn on_disk(volume: &Volume, wanted: &Config, disks: &[DiskSlot]) -> Result<(), String> {
    let Some(name) = &volume.disk else { return Ok(()) };
    let there =
        |(number, slot): (usize, &DiskSlot)| name.is_disk(number, &slot.location, &slot.serial);
    if !disks.iter().enumerate().any(there) {
        return Ok(());
    }
    let slot = &disks[number_of(disks, name)?];
    match slot.role {
        Role::Boot | Role::Configuration | Role::Seed => slot.check_free()?,
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
        return Err(format!("volumes on {} need {sum}, but it has {has}", slot.name));
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

    /// Checks these settings, over the built-in default.
    fn check_settings(settings: &[(&str, &str)]) -> Result<(), String> {
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
    fn volume_that_cannot_start_is_refused_with_the_reason() {
        let new =
            |disk, size| [("volume.1.name", "v"), ("volume.1.disk", disk), ("volume.1.size", size)];
        for (settings, why) in [
            (
                &[("volume.0.size", "1TiB")][..],
                "volumes in memory need 1TiB, but the arena has 128MiB",
            ),
            (
                &[("memory.arena", "2TiB"), ("volume.0.size", "1TiB")],
                "volumes in memory need 1TiB, but the arena has 128MiB",
            ),
            (&new("serial:boot", "")[..2], "volume v: the appliance boots from disk-boot"),
            (&new("0", "1MiB"), "never a volume"),
            (&new("serial:config", "")[..2], "disk-config keeps the configuration"),
            (&new("serial:data", "1GiB"), "volumes on disk-data need 1GiB, but it has 16MiB"),
            (&new("serial:parts", "")[..2], "disk-parts holds volumes"),
        ] {
            let refused = check_settings(settings).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        for settings in [
            &[][..],
            &[("volume.0.size", "100MiB")],
            &[("system.hostname", "a")],
            &new("serial:data", "16MiB"),
            &new("serial:data", "")[..2],
            &new("serial:parts", "1MiB"),
            // A missing disk may be attached at the next start.
            &new("serial:later", "1TiB"),
        ] {
            assert_eq!(check_settings(settings), Ok(()), "{settings:?}");
        }
    }

    #[test]
    fn saved_volume_that_cannot_start_does_not_block_other_changes() {
        let mut kept = Document::default();
        kept.set("volume.0.size", "1TiB").unwrap();
        let mut document = kept.clone();
        document.set("system.hostname", "a").unwrap();
        assert_eq!(check(document.config(), kept.config(), &[], 1 << 20), Ok(()));
    }
}
