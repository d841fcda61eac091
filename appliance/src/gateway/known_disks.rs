//! Decides which disk has the configuration, and which ones the appliance boots from, before any disk is used.
//!
//! Contents prove nothing: a client with a whole disk can write anything to it. The configuration's disk is the one that
//! the operator names (command line or fw_cfg), else the one with the serial number [`SERIAL`], else the one with a
//! partition of its type, unless another source of the configuration exports that disk. If two remain, none is used. Boot
//! disks are found by their partition tables (`operator::config::partitions`).

use super::disks::{DiskSlot, Role};
use crate::config::disk::{ConfigDisk, Event, SERIAL};
use crate::config::partitions::{self, LOOK, Look, Stretch};
use crate::config::{Config, DeviceName};
use crate::crash::{History, RECORD_LEN, RECORDS};
use crate::machine::Machine;
use core::time::Duration;
use drivers::hal::{Disk, Operation, Platform, Request, Window};

/// How long a disk may take to answer while the appliance starts.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
const SECTOR: u64 = 512;
/// Every request is a multiple of this.
const BLOCK: usize = 4096;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The disk that keeps the configuration, and its engine.
    pub place: Option<(usize, ConfigDisk)>,
    /// The document.
    pub text: Option<Vec<u8>>,
    /// Where each disk has slots for releases, by number.
    pub slots: Vec<Option<Stretch>>,
    /// What was said in panics.
    pub crashes: History,
    /// What went wrong on the way.
    pub trouble: Vec<String>,
}

/// Looks at all disks and gives those of the appliance their roles. `wanted` is the disk that the operator
/// names, `others` the configuration of all other sources.
pub(super) fn find(
    disks: &mut [DiskSlot],
    wanted: Option<&str>,
    others: &Config,
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) -> Known {
    let mut known = Known::default();
    let looks: Vec<Look> = disks
        .iter_mut()
        .map(|slot| {
            look(slot, platform, machine).unwrap_or_else(|why| {
                known.trouble.push(format!("{}: {why}", slot.name));
                Look::default()
            })
        })
        .collect();
    for (slot, _) in disks.iter_mut().zip(&looks).filter(|(_, look)| look.boots) {
        slot.role = Role::Boot;
    }
    known.slots = looks.iter().map(|look| look.slots).collect();
    let chosen = match choose(disks, &looks, wanted, others) {
        Ok(chosen) => chosen,
        Err(why) => {
            known.trouble.push(why);
            None
        }
    };
    if let Some(number) = chosen {
        open(&mut known, number, looks[number], &mut disks[number], platform, machine);
    }
    for (number, (slot, look)) in disks.iter().zip(&looks).enumerate() {
        if look.bare_config && chosen != Some(number) {
            log::warn!(
                "{}: looks like a disk that keeps the configuration, but does not count as one: give \
                 it the serial number {SERIAL}, or name it by isthmus.config_disk={}",
                slot.name,
                slot.device
            );
        }
    }
    known
}

/// The number of the disk that keeps the configuration, if there is one.
fn choose(
    disks: &[DiskSlot],
    looks: &[Look],
    wanted: Option<&str>,
    others: &Config,
) -> Result<Option<usize>, String> {
    let only = |found: Vec<usize>, what: &str| match found[..] {
        [] => Ok(None),
        [number] => Ok(Some(number)),
        _ => {
            let names: Vec<&str> = found.iter().map(|&n| disks[n].name.as_str()).collect();
            let names = names.join(" and ");
            Err(format!("{names} have {what}; name one by isthmus.config_disk=serial:… or pci:…"))
        }
    };
    let those = |meant: &dyn Fn(usize, &DiskSlot) -> bool| -> Vec<usize> {
        let all = disks.iter().enumerate();
        all.filter(|(number, slot)| meant(*number, slot)).map(|(number, _)| number).collect()
    };
    if let Some(wanted) = wanted {
        let why = |why: String| format!("config_disk={wanted}: {why}");
        let name: DeviceName = wanted.parse().map_err(why)?;
        let found = those(&|number, slot| name.is_disk(number, &slot.location, &slot.serial));
        return match only(found, "the same serial number")? {
            None => {
                Err(why("the machine has no such disk; `show disks` names those it has".into()))
            }
            found => Ok(found),
        };
    }
    let by_serial = those(&|_, slot| slot.serial == SERIAL);
    if !by_serial.is_empty() {
        return only(by_serial, "the serial number of a configuration disk");
    }
    let given_away = |number: usize, slot: &DiskSlot| {
        let whole = others.volume.iter().filter(|volume| volume.size.is_none());
        let mut names = whole.filter_map(|volume| volume.disk.as_ref());
        slot.role != Role::Boot
            && names.any(|name| name.is_disk(number, &slot.location, &slot.serial))
    };
    let found = those(&|number, slot| {
        let has = looks[number].config.is_some();
        let given_away = given_away(number, slot);
        if has && given_away {
            log::warn!(
                "{}: has a partition for the configuration, which does not count: clients have the \
                 whole disk as a volume",
                slot.name
            );
        }
        has && !given_away
    });
    only(found, "a partition for the configuration")
}

/// Loads what the chosen disk keeps.
fn open(
    known: &mut Known,
    number: usize,
    look: Look,
    slot: &mut DiskSlot,
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) {
    if slot.role == Role::Free {
        slot.role = Role::Configuration;
    }
    let whole = Stretch { first: 0, sectors: slot.geometry.sectors };
    let area = look.config.unwrap_or(whole);
    let Some(mut engine) = ConfigDisk::new(slot.geometry, area, platform.arena()) else {
        known.trouble.push(format!("{}: no memory to read the configuration", slot.name));
        return;
    };
    let deadline = machine.now() + PATIENCE;
    let event = loop {
        match engine.poll(&mut slot.disk) {
            None if machine.now() < deadline => drivers::hal::relax(),
            event => break event,
        }
    };
    let why = match event {
        Some(Event::Loaded(text)) => {
            match read(slot, engine.crashes(), RECORDS * RECORD_LEN, platform, machine) {
                Ok(area) => known.crashes = History::new(&area),
                Err(why) => known.trouble.push(format!("{}: records of panics: {why}", slot.name)),
            }
            known.text = text;
            known.place = Some((number, engine));
            return;
        }
        // The device may still write into the buffer, so that it is not given back.
        None => "does not answer".to_string(),
        Some(event) => {
            platform.arena().free(engine.into_buffer());
            match event {
                Event::Failed(why) => why,
                _ => "keeps no configuration yet: `./isthmus image config-disk` makes a disk that \
                      does"
                    .into(),
            }
        }
    };
    known.trouble.push(format!("{}: {why}", slot.name));
}

/// Looks at the first blocks of a disk.
fn look(
    slot: &mut DiskSlot,
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) -> Result<Look, String> {
    let sectors = slot.geometry.sectors;
    let there = usize::try_from(sectors.saturating_mul(SECTOR)).unwrap_or(usize::MAX);
    let len = LOOK.min(there) / BLOCK * BLOCK;
    if len == 0 || slot.geometry.logical_block as usize > BLOCK {
        return Ok(Look::default());
    }
    Ok(partitions::read(&read(slot, 0, len, platform, machine)?, sectors))
}

/// Reads `len` bytes, a multiple of 4096, from a sector on. Waits, while nothing else uses the disk.
pub(super) fn read(
    slot: &mut DiskSlot,
    sector: u64,
    len: usize,
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) -> Result<Vec<u8>, String> {
    let buffer = platform.arena().alloc(len, BLOCK).ok_or("no memory to read from it")?;
    transfer(slot, Operation::Read, sector, buffer, machine)?;
    let mut bytes = vec![0; len];
    let read = buffer.read(0, &mut bytes);
    platform.arena().free(buffer);
    read.map(|()| bytes).map_err(|_| "the buffer is too short".into())
}

/// Writes bytes, a multiple of 4096, from a sector on, and waits until they are durable.
pub(super) fn write(
    slot: &mut DiskSlot,
    sector: u64,
    bytes: &[u8],
    platform: &mut dyn Platform,
    machine: &dyn Machine,
) -> Result<(), String> {
    let buffer = platform.arena().alloc(bytes.len(), BLOCK).ok_or("no memory to write to it")?;
    buffer.write(0, bytes).map_err(|_| "it is too long")?;
    transfer(slot, Operation::Write, sector, buffer, machine)?;
    platform.arena().free(buffer);
    transfer(slot, Operation::Flush, 0, Window::empty(), machine)
}

/// Has one thing done and waits for it. After an error the device may still use the memory.
fn transfer(
    slot: &mut DiskSlot,
    operation: Operation,
    sector: u64,
    data: Window,
    machine: &dyn Machine,
) -> Result<(), String> {
    let deadline = machine.now() + PATIENCE;
    let most = (slot.geometry.max_transfer as usize / BLOCK * BLOCK).max(BLOCK);
    let mut at = 0;
    loop {
        let len = (data.len() - at).min(most);
        let part = data.slice(at, len).unwrap_or(Window::empty());
        let request =
            Request { tag: 0, operation, sector: sector + at as u64 / SECTOR, data: part };
        slot.disk.submit(&request).map_err(|why| format!("does not take a request: {why}"))?;
        slot.disk.flush_queue();
        let result = loop {
            match slot.disk.poll() {
                Some(completion) => break completion.result,
                None if machine.now() > deadline => return Err("does not answer".into()),
                None => drivers::hal::relax(),
            }
        };
        result.map_err(|why| format!("cannot be used: {why}"))?;
        at += len;
        if at >= data.len() {
            return Ok(());
        }
    }
}

#[cfg(test)]
#[path = "known_disks_tests.rs"]
mod tests;
