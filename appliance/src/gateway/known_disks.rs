//! Identifies the config disk and the boot disk, before any disk is used.
//!
//! Contents prove nothing: a client with a whole disk can write anything to it. So both disks are identified from
//! outside. The boot disk is the one that the UEFI front end was started from ([`BootDisk`]). Only it has slots for
//! releases. The config disk is the disk that the operator names (command line, fw_cfg, `system.config_disk` of another
//! source), else the one with the serial number [`SERIAL`], else the boot disk.
//!
//! If the config disk is missing, ambiguous, given to clients as a whole or not readable, its restrictions are unknown:
//! [`Known::unreachable`] closes like a damaged document. So does a disk that holds a configuration and is not named,
//! because earlier versions used such a disk, and an upgrade must not lift its restrictions. A disk that clients can
//! write is excepted.

use super::boot_disk::BootDisk;
use super::disk_transfer::{BLOCK, PATIENCE, SECTOR, read};
use super::disks::{DiskSlot, Role};
use super::upgrade::Booted;
use crate::config::disk::{ConfigDisk, Event, SERIAL};
use crate::config::partitions::{self, LOOK, Look, Stretch};
use crate::config::{Config, ConfigPlace};
use crate::crash::{History, RECORD_LEN, RECORDS};
use drivers::hal::{Arena, Clock, Disk as _};

/// Information about disks from other sources than their contents.
pub(super) struct Outside<'a> {
    /// The operator's name of the config disk.
    pub named: Option<&'a str>,
    pub command_line: &'a str,
    /// The configuration of all sources but the disk.
    pub others: &'a Config,
    /// Disk devices that could not be opened.
    pub failed: &'a [String],
}

/// Identified disks, and what was read from them.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The config disk, and its engine.
    pub place: Option<(usize, ConfigDisk)>,
    /// The document.
    pub text: Option<Vec<u8>>,
    /// Why a document that exists, or may exist, cannot be read, and advice.
    pub unreachable: Option<String>,
    /// The boot disk, and the range of its slots for releases.
    pub slots: Option<(usize, Stretch)>,
    /// Whether each disk is bootable, by its contents.
    bootable: Vec<bool>,
    /// Records of panics.
    pub crashes: History,
    /// Other errors.
    pub trouble: Vec<String>,
}

impl Known {
    /// Reserves bootable disks, except those that the configuration gives to clients as a whole: their contents are the
    /// clients'.
    pub fn protect(&self, disks: &mut [DiskSlot], config: &Config) {
        for (number, slot) in disks.iter_mut().enumerate() {
            let bootable = self.bootable.get(number).is_some_and(|&bootable| bootable);
            if bootable && slot.role == Role::Free && !gives_away(config, number, slot) {
                slot.role = Role::Boot;
            }
        }
    }
}

/// Whether a configuration gives the whole disk to clients. Its contents are theirs then, and have no meaning here.
pub(super) fn gives_away(config: &Config, number: usize, slot: &DiskSlot) -> bool {
    let whole = config.volume.iter().filter(|volume| volume.size.is_none());
    let mut names = whole.filter_map(|volume| volume.disk.as_ref());
    names.any(|name| name.is_disk(number, &slot.location, &slot.serial))
}

/// Examines all disks, and sets the roles of boot disk and config disk.
pub(super) fn find(
    disks: &mut [DiskSlot],
    outside: &Outside<'_>,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Known {
    let mut known = Known::default();
    let looks: Vec<Option<Look>> = disks
        .iter_mut()
        .map(|slot| {
            let seen = look(slot, arena, clock);
            seen.map_err(|why| known.trouble.push(format!("{}: {why}", slot.name))).ok()
        })
        .collect();
    known.bootable = looks.iter().map(|look| look.is_some_and(|look| look.boots)).collect();
    let facts = Facts { disks, looks: &looks, outside };
    let booted = facts.boot_disk();
    let chosen = facts.choose(&booted);
    if let Ok(Some(number)) = booted {
        let slots = looks[number].and_then(|look| look.slots);
        known.slots = slots.map(|slots| (number, slots));
        disks[number].role = Role::Boot;
    }
    match chosen {
        Ok(None) => {}
        Ok(Some(number)) => {
            let look = looks[number].unwrap_or_default();
            if let Err(why) = open(&mut known, number, look, &mut disks[number], arena, clock) {
                known.unreachable = Some(format!("{}: {why}", disks[number].name));
            }
        }
        Err(why) => known.unreachable = Some(why),
    }
    known
}

/// Input of the choice.
struct Facts<'a> {
    disks: &'a [DiskSlot],
    /// Contents of each disk; None if it could not be read.
    looks: &'a [Option<Look>],
    outside: &'a Outside<'a>,
}

const HOW_TO_NAME: &str = "isthmus.config_disk= on the command line, the fw_cfg file opt/isthmus/config-disk, or \
                           system.config_disk in the image's document";

impl Facts<'_> {
    /// Numbers of the disks that match.
    fn matching(&self, meant: impl Fn(usize, &DiskSlot) -> bool) -> Vec<usize> {
        let all = self.disks.iter().enumerate();
        all.filter(|(number, slot)| meant(*number, slot)).map(|(number, _)| number).collect()
    }

    fn look(&self, number: usize) -> Look {
        self.looks[number].unwrap_or_default()
    }

    fn is_given_away(&self, number: usize) -> bool {
        gives_away(self.outside.others, number, &self.disks[number])
    }

    /// Names of disks, with their permanent names.
    fn names(&self, numbers: &[usize]) -> String {
        let name = |&number: &usize| {
            let slot = &self.disks[number];
            format!("{} ({})", slot.name, slot.device)
        };
        numbers.iter().map(name).collect::<Vec<_>>().join(" and ")
    }

    /// Number of the boot disk, if the appliance can use it. An error if a configuration was saved on it and cannot be
    /// read.
    fn boot_disk(&self) -> Result<Option<usize>, String> {
        let Some(own) = BootDisk::of(self.outside.command_line) else {
            return self.boot_disk_of_old_front_end();
        };
        let number = self.matching(|_, slot| slot.location == own.place).first().copied();
        let is_there = number.is_some_and(|number| self.look(number).config.is_some());
        if own.saved && !is_there {
            return Err(format!(
                "a configuration was saved on the boot disk ({}), and cannot be read: attach that disk as before, or \
                 name another config disk: {HOW_TO_NAME}",
                own.place
            ));
        }
        Ok(number)
    }

    /// Boot disk if the front end is of an earlier version, which reports the slot but not the disk: the only disk with
    /// slots, if all disks could be read.
    fn boot_disk_of_old_front_end(&self) -> Result<Option<usize>, String> {
        if Booted::of(self.outside.command_line).is_none() {
            return Ok(None);
        }
        let found = self
            .matching(|number, _| self.look(number).slots.is_some() && !self.is_given_away(number));
        let all_read = self.outside.failed.is_empty() && self.looks.iter().all(Option::is_some);
        match found[..] {
            [number] if all_read => Ok(Some(number)),
            _ => Err("the UEFI front end is of an earlier version and does not report its disk, and the disk cannot \
                      be determined otherwise: write the disk anew with `./isthmus image raw`"
                .into()),
        }
    }

    /// Number of the config disk, if there is one. An error if one exists, or may exist, that cannot be used.
    fn choose(&self, booted: &Result<Option<usize>, String>) -> Result<Option<usize>, String> {
        if let Some(named) = self.outside.named {
            let why = |why: String| format!("config_disk={named}: {why}");
            let name = match named.parse::<ConfigPlace>().map_err(why)? {
                ConfigPlace::Nowhere => return Ok(None),
                ConfigPlace::Disk(name) => name,
            };
            let found =
                self.matching(|number, slot| name.is_disk(number, &slot.location, &slot.serial));
            let missing =
                || why("the machine has no such disk; `show disks` lists its disks".into());
            return self.only(found, "the same serial number")?.ok_or_else(missing).map(Some);
        }
        let by_serial = self.matching(|_, slot| slot.serial == SERIAL);
        if !by_serial.is_empty() {
            return self.only(by_serial, "the serial number of a configuration disk");
        }
        if let Some(number) = booted.clone()?
            && self.look(number).config.is_some()
        {
            return Ok(Some(number));
        }
        self.check_no_config_disk().map(|()| None)
    }

    /// The disk if exactly one was found. An error if several were, or if clients have it.
    fn only(&self, found: Vec<usize>, what: &str) -> Result<Option<usize>, String> {
        match found[..] {
            [] => Ok(None),
            [number] if self.is_given_away(number) => Err(format!(
                "{} is the config disk and also a volume of clients: use another disk for one of the two",
                self.names(&found)
            )),
            [number] if self.disks[number].role == Role::Seed => Err(format!(
                "{} is the config disk and also the seed disk: use another disk for one of the two",
                self.names(&found)
            )),
            [number] => Ok(Some(number)),
            _ => Err(format!(
                "{} have {what}: name one by its pci: address ({HOW_TO_NAME})",
                self.names(&found)
            )),
        }
    }

    /// Checks, if no disk is named, that none of the disks may be a config disk.
    fn check_no_config_disk(&self) -> Result<(), String> {
        let holds = |number: usize| {
            let look = self.look(number);
            (look.config.is_some() || look.bare_config) && !self.is_given_away(number)
        };
        let unnamed = self.matching(|number, _| holds(number));
        if let Some(&number) = unnamed.first() {
            return Err(format!(
                "{} may be the config disk, but only its contents say so, which a client may have written: give it the \
                 serial number {SERIAL}, or name it, config_disk={} ({HOW_TO_NAME}); if it is not, config_disk=none",
                self.names(&unnamed),
                self.disks[number].device
            ));
        }
        let silent =
            self.matching(|number, slot| self.looks[number].is_none() && slot.serial.is_empty());
        let silent = silent.iter().map(|&number| self.disks[number].name.clone());
        let silent: Vec<String> = silent.chain(self.outside.failed.iter().cloned()).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} cannot be used, and may be the config disk: repair it, or name the config disk, or config_disk=none \
             ({HOW_TO_NAME})",
            silent.join(" and ")
        ))
    }
}

/// Loads the document and the records of panics from the config disk.
fn open(
    known: &mut Known,
    number: usize,
    look: Look,
    slot: &mut DiskSlot,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Result<(), String> {
    if slot.role == Role::Free {
        slot.role = Role::Configuration;
    }
    let whole = Stretch { first: 0, sectors: slot.geometry.sectors };
    let area = look.config.unwrap_or(whole);
    let engine = ConfigDisk::new(slot.geometry, area, arena);
    let mut engine = engine.ok_or("no memory to read the configuration")?;
    let deadline = clock.now() + PATIENCE;
    let event = loop {
        match engine.poll(&mut slot.disk) {
            None if clock.now() < deadline => {
                slot.disk.advance(clock.now());
                drivers::hal::relax();
            }
            event => break event,
        }
    };
    match event {
        Some(Event::Loaded(_)) if engine.is_half_wiped() => {
            // Nothing that is left of it is used.
            known.trouble.push(format!(
                "{0}: wipe unfinished: the appliance starts without its configuration: repeat `wipe --yes {0}`",
                slot.name
            ));
            known.place = Some((number, engine));
            Ok(())
        }
        Some(Event::Loaded(text)) => {
            match read(slot, engine.crashes(), RECORDS * RECORD_LEN, arena, clock) {
                Ok(area) => known.crashes = History::new(&area),
                Err(why) => known.trouble.push(format!("{}: records of panics: {why}", slot.name)),
            }
            known.text = text;
            known.place = Some((number, engine));
            Ok(())
        }
        // The buffer is not freed, because the device may still write to it.
        None => Err("does not answer".into()),
        Some(event) => {
            arena.free(engine.into_buffer());
            Err(match event {
                Event::Failed(why) => why,
                _ => "is named as the config disk and holds no configuration: make a config disk with \
                      `./isthmus image config-disk`"
                    .into(),
            })
        }
    }
}

/// Examines the first blocks of a disk.
fn look(slot: &mut DiskSlot, arena: &mut Arena, clock: &dyn Clock) -> Result<Look, String> {
    let sectors = slot.geometry.sectors;
    let there = usize::try_from(sectors.saturating_mul(SECTOR)).unwrap_or(usize::MAX);
    let len = LOOK.min(there) / BLOCK * BLOCK;
    if len == 0 || slot.geometry.logical_block as usize > BLOCK {
        return Ok(Look::default());
    }
    Ok(partitions::read(&read(slot, 0, len, arena, clock)?, sectors))
}

#[cfg(test)]
#[path = "known_disks_tests.rs"]
mod tests;
