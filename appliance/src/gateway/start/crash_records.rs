//! Records of panics: the one before this boot, and the place of the next one.

use super::disks::Disks;
use super::resources::{MachineClock, Resources};
use crate::crash::{self, Record};
use crate::gateway::disk_transfer;
use crate::gateway::known_disks::Known;
use crate::machine::CrashPlace;
use drivers::hal::Features;

/// Logs panics, writes a record that is only in memory to the config disk, and prepares the record of the next panic
/// there. The error says why the next record will be only in memory and on the serial port.
pub(super) fn keep(
    stored: &mut Known,
    crash: Option<(Record, Box<[u8]>)>,
    disks: &mut Disks,
    resources: &mut Resources,
) -> Result<(), String> {
    let Resources { machine, platform, .. } = resources;
    let place = stored.place.as_ref().filter(|(_, engine)| !engine.is_half_wiped());
    let place = place.map(|(number, engine)| (*number, engine.crashes()));
    let sector =
        |first: u64, record: u64| first + (crash::place(record) * crash::RECORD_LEN / 512) as u64;
    let mut result = Ok(());
    let first_line = |record: &Record| record.text.lines().next().unwrap_or_default().to_string();
    match (crash, stored.crashes.last()) {
        (Some((record, bytes)), _) => {
            log::error!("started again after: {}; see `show crash`", first_line(&record));
            if let Some((number, first)) = place.filter(|_| !stored.crashes.has(&record)) {
                let at = sector(first, record.header.sequence);
                let (slot, clock) = (&mut disks.slots[number], MachineClock(&**machine));
                result = disk_transfer::write(slot, at, &bytes, platform.arena(), &clock);
            }
            stored.crashes.add(record);
        }
        (None, Some(last)) => {
            let (count, line) = (last.header.sequence, first_line(last));
            log::warn!("panics on record: {count}, the last: {line}; see `show crash`");
        }
        (None, None) => {}
    }
    let last = stored.crashes.last().map(|record| record.header);
    let Some((number, first)) = place else {
        machine.keep_crashes(last, None);
        return result;
    };
    let fixed = disks.slots[number].geometry.features.contains(Features::READ_ONLY);
    let dump = disks.dumps[number].take().filter(|_| !fixed);
    let disk = dump.and_then(|mut dump| {
        if dump.prepare(crash::RECORD_LEN, platform.arena()) {
            return Some(dump);
        }
        result = Err("DMA arena is full: give the machine more memory".into());
        None
    });
    let next = last.map_or(1, |last| last.sequence.saturating_add(1));
    let sector = sector(first, next);
    machine.keep_crashes(last, disk.map(|disk| CrashPlace { disk, sector }));
    result
}
