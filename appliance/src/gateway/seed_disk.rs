//! The disk with a seed: a NoCloud volume (`cidata`) with the document of a new appliance.
//!
//! Contents prove nothing here either (`known_disks.rs`): a client that has a whole disk can label it `cidata`. So the
//! seed disk is named from outside (command line, SMBIOS, fw_cfg), else it is the disk with the serial number
//! [`SERIAL`]. A label alone, or `ds=nocloud`, which names no disk, selects none. If the named disk is missing,
//! ambiguous, given to clients as a whole or without a seed, what its document may restrict is closed.

use super::disk_transfer::{BLOCK, SECTOR, read};
use super::disks::{DiskSlot, Role};
use super::known_disks::gives_away;
use crate::config::{Config, ConfigPlace};
use drivers::hal::{Arena, Clock};

/// Serial number of a seed disk that is not named otherwise.
const SERIAL: &str = "isthmus-seed";
const HOW_TO_NAME: &str =
    "isthmus.seed= on the command line or in SMBIOS, or the fw_cfg file opt/isthmus/seed";

/// What the seed disk says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The document.
    pub text: Option<Vec<u8>>,
    /// `local-hostname` of its `meta-data`.
    pub hostname: Option<String>,
    /// Why a seed that is named cannot be used, and advice.
    pub unusable: Option<String>,
}

/// Finds the seed disk, reads it, and reserves it. `named` is the operator's name of it, `others` the configuration of
/// the other sources outside the disks.
pub(super) fn find(
    disks: &mut [DiskSlot],
    named: Option<&str>,
    others: &Config,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Found {
    let number = match choose(disks, named, others) {
        Ok(None) => return Found::default(),
        Ok(Some(number)) => number,
        Err(why) => return Found { unusable: Some(why), ..Found::default() },
    };
    let slot = &mut disks[number];
    slot.role = Role::Seed;
    let name = slot.name.clone();
    let mut blocks = Blocks { slot, arena, clock, block: None };
    match seed::read(&mut blocks) {
        Ok(found) => {
            let value = |key| seed::meta_value(&found.meta_data, key).map(String::from);
            let instance = value("instance-id").unwrap_or_else(|| "no instance-id".into());
            log::info!("configuration: seed on {name}: {}", instance.escape_default());
            let hostname = value("local-hostname");
            Found { text: Some(found.user_data), hostname, unusable: None }
        }
        Err(why) => Found {
            unusable: Some(format!("{name} is named as the seed disk: {why}")),
            ..Found::default()
        },
    }
}

/// Number of the seed disk, if there is one.
fn choose(
    disks: &[DiskSlot],
    named: Option<&str>,
    others: &Config,
) -> Result<Option<usize>, String> {
    let matching = |meant: &dyn Fn(usize, &DiskSlot) -> bool| -> Vec<usize> {
        let all = disks.iter().enumerate();
        all.filter(|(number, slot)| meant(*number, slot)).map(|(number, _)| number).collect()
    };
    let found = match named {
        None => matching(&|_, slot| slot.serial == SERIAL),
        Some(named) => {
            match named.parse::<ConfigPlace>().map_err(|why| format!("seed={named}: {why}"))? {
                ConfigPlace::Nowhere => return Ok(None),
                ConfigPlace::Disk(name) => {
                    let found = matching(&|number, slot| {
                        name.is_disk(number, &slot.location, &slot.serial)
                    });
                    if found.is_empty() {
                        return Err(format!(
                            "seed={named}: the machine has no such disk; `show disks` lists its disks; none: seed=none"
                        ));
                    }
                    found
                }
            }
        }
    };
    match found[..] {
        [] => Ok(None),
        [number] if gives_away(others, number, &disks[number]) => Err(format!(
            "{} is the seed disk and also a volume of clients: use another disk for one of the two",
            disks[number].name
        )),
        [number] => Ok(Some(number)),
        _ => Err(format!(
            "{} disks are named as the seed: name one by its pci: address ({HOW_TO_NAME})",
            found.len()
        )),
    }
}

/// Reads a disk by bytes, and keeps the last block.
struct Blocks<'a> {
    slot: &'a mut DiskSlot,
    arena: &'a mut Arena,
    clock: &'a dyn Clock,
    block: Option<(u64, Vec<u8>)>,
}

impl seed::Disk for Blocks<'_> {
    fn read(&mut self, mut at: u64, mut into: &mut [u8]) -> Result<(), String> {
        let beyond = || String::from("it ends before its volume does");
        let bytes = self.slot.geometry.sectors.saturating_mul(SECTOR);
        if self.slot.geometry.logical_block as usize > BLOCK {
            return Err("its blocks are too large".into());
        }
        while !into.is_empty() {
            let first = at / BLOCK as u64 * BLOCK as u64;
            if self.block.as_ref().is_none_or(|(start, _)| *start != first) {
                // The last block of a disk may be shorter.
                let left = bytes.checked_sub(first).filter(|left| *left > 0).ok_or_else(beyond)?;
                let len = left.min(BLOCK as u64) as usize;
                let read = read(self.slot, first / SECTOR, len, self.arena, self.clock)?;
                self.block = Some((first, read));
            }
            let (start, block) = self.block.as_ref().ok_or_else(beyond)?;
            let rest = block.get((at - start) as usize..).unwrap_or_default();
            let len = rest.len().min(into.len());
            if len == 0 {
                return Err(beyond());
            }
            let (part, after) = core::mem::take(&mut into).split_at_mut(len);
            part.copy_from_slice(&rest[..len]);
            (into, at) = (after, at + len as u64);
        }
        Ok(())
    }
}
