//! Decides which disk has the configuration, and which one the appliance boots from, before any disk is used.
//!
//! Contents prove nothing: a client with a whole disk can write anything to it. Both are named outside of all disks. The
//! disk that the appliance boots from is the one that the UEFI front end was started from ([`BootDisk`]); slots for
//! releases are that one's only. The configuration is kept by the disk that the operator names (command line, fw_cfg,
//! `system.config_disk` of another source), else by the one with the serial number [`SERIAL`], else by the boot disk.
//!
//! If such a disk is missing, ambiguous, given to clients as a whole or not readable, what it has restricted is not known:
//! [`Known::unreachable`] closes as a damaged document does. So does a disk that holds a configuration and is not named,
//! as earlier versions took it, unless clients could have written that: else an upgrade would take restrictions away.

use super::boot_disk::BootDisk;
use super::disk_transfer::{BLOCK, PATIENCE, SECTOR, read};
use super::disks::{DiskSlot, Role};
use super::upgrade::Booted;
use crate::config::disk::{ConfigDisk, Event, SERIAL};
use crate::config::partitions::{self, LOOK, Look, Stretch};
use crate::config::{Config, ConfigPlace};
use crate::crash::{History, RECORD_LEN, RECORDS};
use drivers::hal::{Arena, Clock};

/// What is said of disks outside of them.
pub(super) struct Outside<'a> {
    /// Which disk keeps the configuration, in the operator's words.
    pub named: Option<&'a str>,
    pub command_line: &'a str,
    /// The configuration of all sources but the disk.
    pub others: &'a Config,
    /// Devices with disks that could not be opened.
    pub failed: &'a [String],
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The disk that keeps the configuration, and its engine.
    pub place: Option<(usize, ConfigDisk)>,
    /// The document.
    pub text: Option<Vec<u8>>,
    /// Why a document that there is, or may be, cannot be read, and what to do.
    pub unreachable: Option<String>,
    /// The disk that the appliance boots from, and where it has slots for releases.
    pub slots: Option<(usize, Stretch)>,
    /// Which disks it could boot from, by their contents.
    bootable: Vec<bool>,
    /// What was said in panics.
    pub crashes: History,
    /// What else went wrong on the way.
    pub trouble: Vec<String>,
}

impl Known {
    /// Keeps disks that the appliance could boot from out of use, unless the configuration gives them to clients: then
    /// what they hold is the clients'.
    pub fn protect(&self, disks: &mut [DiskSlot], config: &Config) {
        for (number, slot) in disks.iter_mut().enumerate() {
            let bootable = self.bootable.get(number).is_some_and(|&bootable| bootable);
            if bootable && slot.role == Role::Free && !gives_away(config, number, slot) {
                slot.role = Role::Boot;
            }
        }
    }
}

/// Whether clients have the whole disk, by a configuration: then what it holds is theirs, and means nothing.
pub(super) fn gives_away(config: &Config, number: usize, slot: &DiskSlot) -> bool {
    let whole = config.volume.iter().filter(|volume| volume.size.is_none());
    let mut names = whole.filter_map(|volume| volume.disk.as_ref());
    names.any(|name| name.is_disk(number, &slot.location, &slot.serial))
}

/// Looks at all disks and gives those of the appliance their roles.
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

/// What the choice goes by.
struct Facts<'a> {
    disks: &'a [DiskSlot],
    /// What each disk holds; None if it could not be read.
    looks: &'a [Option<Look>],
    outside: &'a Outside<'a>,
}

const HOW_TO_NAME: &str = "isthmus.config_disk= on the command line, the fw_cfg file opt/isthmus/config-disk, or \
                           system.config_disk in the image's document";

impl Facts<'_> {
    /// The disks that are meant.
    fn those(&self, meant: impl Fn(usize, &DiskSlot) -> bool) -> Vec<usize> {
        let all = self.disks.iter().enumerate();
        all.filter(|(number, slot)| meant(*number, slot)).map(|(number, _)| number).collect()
    }

    fn look(&self, number: usize) -> Look {
        self.looks[number].unwrap_or_default()
    }

    fn is_given_away(&self, number: usize) -> bool {
        gives_away(self.outside.others, number, &self.disks[number])
    }

    /// Names of disks, by what names each for good.
    fn names(&self, numbers: &[usize]) -> String {
        let name = |&number: &usize| {
            let slot = &self.disks[number];
            format!("{} ({})", slot.name, slot.device)
        };
        numbers.iter().map(name).collect::<Vec<_>>().join(" and ")
    }

    /// The number of the disk that the machine was started from, if the appliance can use it. An error if a
    /// configuration was saved on it, and is not to be had.
    fn boot_disk(&self) -> Result<Option<usize>, String> {
        let Some(own) = BootDisk::of(self.outside.command_line) else {
            return self.boot_disk_of_old_front_end();
        };
        let number = self.those(|_, slot| slot.location == own.place).first().copied();
        let is_there = number.is_some_and(|number| self.look(number).config.is_some());
        if own.saved && !is_there {
            return Err(format!(
                "a configuration was saved on the disk that the machine was started from ({}), and it cannot be read: \
                 attach that disk as before, or name another: {HOW_TO_NAME}",
                own.place
            ));
        }
        Ok(number)
    }

    /// A front end of an earlier version says that a slot was started, and not of which disk. The disk is one with
    /// slots; if each disk could be read, and one alone has slots, it is that.
    fn boot_disk_of_old_front_end(&self) -> Result<Option<usize>, String> {
        if Booted::of(self.outside.command_line).is_none() {
            return Ok(None);
        }
        let found = self
            .those(|number, _| self.look(number).slots.is_some() && !self.is_given_away(number));
        let all_read = self.outside.failed.is_empty() && self.looks.iter().all(Option::is_some);
        match found[..] {
            [number] if all_read => Ok(Some(number)),
            _ => Err("the UEFI front end is of an earlier version and does not say which disk it was started from, and \
                      it is not plain which that is: write the disk anew with `./isthmus image raw`"
                .into()),
        }
    }

    /// The number of the disk that keeps the configuration, if there is one. An error if there is, or may be, one that
    /// cannot be had.
    fn choose(&self, booted: &Result<Option<usize>, String>) -> Result<Option<usize>, String> {
        if let Some(named) = self.outside.named {
            let why = |why: String| format!("config_disk={named}: {why}");
            let name = match named.parse::<ConfigPlace>().map_err(why)? {
                ConfigPlace::Nowhere => return Ok(None),
                ConfigPlace::Disk(name) => name,
            };
            let found =
                self.those(|number, slot| name.is_disk(number, &slot.location, &slot.serial));
            let missing =
                || why("the machine has no such disk; `show disks` names those it has".into());
            return self.only(found, "the same serial number")?.ok_or_else(missing).map(Some);
        }
        let by_serial = self.those(|_, slot| slot.serial == SERIAL);
        if !by_serial.is_empty() {
            return self.only(by_serial, "the serial number of a configuration disk");
        }
        if let Some(number) = booted.clone()?
            && self.look(number).config.is_some()
        {
            return Ok(Some(number));
        }
        self.none_is_meant().map(|()| None)
    }

    /// The one that was found.
    fn only(&self, found: Vec<usize>, what: &str) -> Result<Option<usize>, String> {
        match found[..] {
            [] => Ok(None),
            [number] if self.is_given_away(number) => Err(format!(
                "{} is to keep the configuration, and clients have it as a volume: take another disk for one of the two",
                self.names(&found)
            )),
            [number] => Ok(Some(number)),
            _ => Err(format!(
                "{} have {what}: name one by its pci: address ({HOW_TO_NAME})",
                self.names(&found)
            )),
        }
    }

    /// Nothing names a disk: an error if one may be meant nevertheless.
    fn none_is_meant(&self) -> Result<(), String> {
        let holds = |number: usize| {
            let look = self.look(number);
            (look.config.is_some() || look.bare_config) && !self.is_given_away(number)
        };
        let unnamed = self.those(|number, _| holds(number));
        if let Some(&number) = unnamed.first() {
            return Err(format!(
                "{} may keep the configuration, and only its contents say so, which anybody may have written: give it the \
                 serial number {SERIAL}, or name it, config_disk={} ({HOW_TO_NAME}); config_disk=none if it does not",
                self.names(&unnamed),
                self.disks[number].device
            ));
        }
        let silent =
            self.those(|number, slot| self.looks[number].is_none() && slot.serial.is_empty());
        let silent = silent.iter().map(|&number| self.disks[number].name.clone());
        let silent: Vec<String> = silent.chain(self.outside.failed.iter().cloned()).collect();
        if silent.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} cannot be used, and may be the disk that keeps the configuration: mend it, or say which disk does, or \
             config_disk=none ({HOW_TO_NAME})",
            silent.join(" and ")
        ))
    }
}

/// Loads what the chosen disk keeps.
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
            None if clock.now() < deadline => drivers::hal::relax(),
            event => break event,
        }
    };
    match event {
        Some(Event::Loaded(text)) => {
            match read(slot, engine.crashes(), RECORDS * RECORD_LEN, arena, clock) {
                Ok(area) => known.crashes = History::new(&area),
                Err(why) => known.trouble.push(format!("{}: records of panics: {why}", slot.name)),
            }
            known.text = text;
            known.place = Some((number, engine));
            Ok(())
        }
        // The device may still write into the buffer, so that it is not given back.
        None => Err("does not answer".into()),
        Some(event) => {
            arena.free(engine.into_buffer());
            Err(match event {
                Event::Failed(why) => why,
                _ => "is to keep the configuration, and holds none: `./isthmus image config-disk` makes a disk that \
                      does"
                    .into(),
            })
        }
    }
}

/// Looks at the first blocks of a disk.
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
