//! The config disk: a small disk or partition that keeps one document and crash records across power cuts. A disk is
//! not accepted by its contents, because a client that can write to a disk can forge them. It is accepted by its serial
//! number, because the operator names it, or because the machine booted from it.
//!
//! | bytes | contents |
//! |---|---|
//! | 0..16 | `ISTHMUS CONFIG 1`: the layout |
//! | 16..32 | ` WIPE UNFINISHED`: all else is being erased, see [`wipe`] |
//! | 8192..12288 | the certificate that the appliance made for itself, see [`super::kept_pair`] |
//! | 16384.. | first slot, see [`super::slot`] |
//! | 32768.. | second slot |
//! | 49152..65536 | records of panics, see [`crate::crash`] |
//! | 65536..884736 | a ring of [`REVISIONS`] slots: revisions of the running configuration, see [`super::history`] |
//! | 917504..1441792 | [`PLACES`] blocks of the audit log, see [`crate::audit`] |
//!
//! Areas of 64 KiB, which earlier versions made, keep neither revisions nor the audit log.
//!
//! A document is written to the slot without the current document, between two flushes. The first flush makes the
//! current document durable before the other slot is written. The second precedes the report of success. After a power
//! failure at any time, one slot is whole and holds the old or the new document.
//!
//! A trial is written to the same slot, marked as spent, and does not become the current document. When it is durable,
//! a write of its first sector arms it. After an I/O error of that write the trial is withdrawn before the error is
//! reported, and again each second until the disk has accepted that. The boot that starts the trial marks it as spent
//! before, so that every other boot has the current document. Confirming it saves it.
//!
//! [`wipe`] erases all of it.

mod trial;
mod wipe;

use super::history::REVISIONS;
use super::partitions::Stretch;
use super::slot::{self, SLOT_LEN};
use crate::audit::{BLOCK, PLACES};
use drivers::hal::{
    Arena, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError, Window,
};
use wipe::Wiping;

/// Bytes of the area that [`format()`] creates. The rest of the disk is not used.
pub const AREA_LEN: usize = 2 << 20;
/// Minimum bytes of an area.
pub const LEAST_LEN: usize = 64 << 10;
/// Byte offset of the revisions in the area.
const HISTORY: usize = 64 << 10;
/// Byte offset of the audit log in the area.
const AUDIT: usize = 896 << 10;
const _: () = assert!(HISTORY + REVISIONS * SLOT_LEN <= AUDIT);
const _: () = assert!(AUDIT + PLACES * BLOCK <= AREA_LEN && BLOCK == HEADER_LEN);
/// Byte offset of the appliance's own certificate in the area.
pub const PAIR: usize = 8 << 10;
/// Byte offset of the crash records in the area.
pub const CRASHES: usize = 48 << 10;
/// Serial number of a disk that holds the configuration.
pub const SERIAL: &str = "isthmus-config";

const MAGIC: &[u8; 16] = b"ISTHMUS CONFIG 1";
/// Byte offset of each slot.
const SLOTS: [usize; 2] = [SLOT_LEN, 2 * SLOT_LEN];
const _: () = assert!(
    SLOTS[0] as u64 == release::layout::CONFIG_SLOTS[0]
        && SLOTS[1] as u64 == release::layout::CONFIG_SLOTS[1]
);
/// Bytes read to recognise the area: the largest block size in use.
const HEADER_LEN: usize = 4096;
const SECTOR: usize = 512;

/// Whether these bytes begin with the magic of a configuration area.
pub fn is_area(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

/// The contents of a new area, with a document or empty. The error is a message for the operator.
pub fn format(text: Option<&str>) -> Result<Vec<u8>, String> {
    let mut disk = vec![0; AREA_LEN];
    disk[..MAGIC.len()].copy_from_slice(MAGIC);
    if let Some(text) = text {
        slot::write(&mut disk[SLOTS[0]..SLOTS[0] + SLOT_LEN], 1, text)?;
    }
    Ok(disk)
}

/// Result of a load or a save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The disk is not a config disk. Nothing was written.
    NotAConfigDisk,
    /// The disk is a config disk, with this document or none yet.
    Loaded(Option<Vec<u8>>),
    /// The document is durable on the disk.
    Saved,
    /// The trial is durable on the disk: the next boot starts it.
    Armed,
    /// The revision of this number is durable on the disk.
    Recorded(u64),
    /// The block of the audit log is durable on the disk.
    AuditWritten,
    /// A trial that an I/O error had left in doubt is durably withdrawn.
    Withdrawn,
    /// Such a trial could not be withdrawn yet.
    StillArmed,
    /// The area is erased. So many sectors after its first block read back as zeroes.
    Wiped(u64),
    /// The load or save failed: cause and remedy, for the operator.
    Failed(String),
}

/// The engine of one config disk. It is the only user of the disk's queue. It starts with a load.
#[derive(Debug)]
pub struct ConfigDisk {
    geometry: Geometry,
    /// First sector of the area.
    first: u64,
    /// One slot.
    buffer: Window,
    /// Remaining steps, the current one first. Empty while idle.
    steps: &'static [Step],
    /// Completed bytes of the current step.
    done: usize,
    in_flight: bool,
    /// The slot with the current document.
    current: Option<usize>,
    /// Highest sequence number that may be on the disk.
    sequence: u64,
    /// The document of the current slot, until the load has ended.
    text: Option<Vec<u8>>,
    /// The document of the other slot, if it was whole.
    before: Option<Vec<u8>>,
    /// A slot held an incomplete document.
    damaged: bool,
    /// Bytes of the area.
    room: usize,
    /// What is written.
    writing: Writing,
    /// The trial that the load has found: its slot, the seconds for its confirmation, and the document.
    trial: Option<(usize, u64, Vec<u8>)>,
    /// The slot with a trial that the next boot would start.
    armed: Option<usize>,
    /// The error that is reported when the trial is withdrawn.
    refusal: Option<String>,
    /// Whether the area is being erased.
    wiping: Wiping,
}

/// What a save writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Document,
    Trial,
    /// A revision: its number, and the bytes of its slot that are not zero.
    Revision(u64, usize),
    /// The mark of a spent trial.
    Withdrawal,
    /// A block of the audit log, at this place.
    Audit(usize),
    /// Zeroes, over everything.
    Wipe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The geometry rules out a config disk: ends without a request.
    GiveUp,
    ReadHeader,
    ReadSlot(usize),
    Flush,
    WriteSpareSlot,
    /// Arms or withdraws the trial.
    WriteMark,
    WriteRevision,
    WriteAudit,
    /// Marks the area as one that is being erased.
    MarkWipe,
    Erase,
    CheckErased,
    ClearMark,
    CheckHeader,
}

const LOAD: &[Step] = &[Step::ReadHeader, Step::ReadSlot(0), Step::ReadSlot(1)];
const SAVE: &[Step] = &[Step::Flush, Step::WriteSpareSlot, Step::Flush];
const ARM: &[Step] =
    &[Step::Flush, Step::WriteSpareSlot, Step::Flush, Step::WriteMark, Step::Flush];
const WITHDRAW: &[Step] = &[Step::WriteMark, Step::Flush];
const NOTE: &[Step] = &[Step::WriteAudit, Step::Flush];
const RECORD: &[Step] = &[Step::WriteRevision, Step::Flush];

impl ConfigDisk {
    /// Starts a load from an area on a disk of this geometry. None if the arena lacks 16 KiB for a slot.
    pub fn new(geometry: Geometry, area: Stretch, arena: &mut Arena) -> Option<ConfigDisk> {
        let block = geometry.logical_block as usize;
        let fits = area.sectors >= (LEAST_LEN / SECTOR) as u64
            && area.first.is_multiple_of((HEADER_LEN / SECTOR) as u64)
            && block.is_power_of_two()
            && (SECTOR..=HEADER_LEN).contains(&block)
            && geometry.max_transfer as usize >= HEADER_LEN;
        Some(ConfigDisk {
            geometry,
            first: area.first,
            buffer: arena.alloc(SLOT_LEN, HEADER_LEN)?,
            steps: if fits { LOAD } else { &[Step::GiveUp] },
            done: 0,
            in_flight: false,
            current: None,
            sequence: 0,
            text: None,
            before: None,
            damaged: false,
            room: usize::try_from(area.sectors).map_or(usize::MAX, |n| n.saturating_mul(SECTOR)),
            writing: Writing::Document,
            trial: None,
            armed: None,
            refusal: None,
            wiping: Wiping::No,
        })
    }

    /// First sectors of the slots for revisions. Empty if the area has no room for them.
    pub fn revisions(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, count) = (self.first, if self.has_history() { REVISIONS } else { 0 });
        (0..count).map(move |at| first + ((HISTORY + at * SLOT_LEN) / SECTOR) as u64)
    }

    /// Whether the area has room for revisions.
    pub fn has_history(&self) -> bool {
        self.wiping == Wiping::No && self.room >= HISTORY + REVISIONS * SLOT_LEN
    }

    /// The document saved before the loaded one, if its slot is whole.
    pub fn before(&self) -> Option<&[u8]> {
        self.before.as_deref()
    }

    /// Whether a slot held a damaged document.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Makes the older document the current one, because the loaded one cannot be used. The next save then overwrites
    /// the loaded one.
    pub fn keep_before(&mut self) {
        if self.before.take().is_some() {
            self.current = self.current.map(|current| 1 - current);
        }
    }

    /// First sector of the crash records.
    pub fn crashes(&self) -> u64 {
        self.first + (CRASHES / SECTOR) as u64
    }

    /// First sector of the appliance's own certificate.
    pub fn pair(&self) -> u64 {
        self.first + (PAIR / SECTOR) as u64
    }

    /// Returns the buffer, for release to the arena. Only valid after an event: before it, the device may still write
    /// to the buffer.
    pub fn into_buffer(self) -> Window {
        self.buffer
    }

    /// Starts writing `text`. Only valid after the load has ended. The error is a message for the operator.
    pub fn save(&mut self, text: &str) -> Result<(), String> {
        let used_up = "the config disk's sequence numbers are exhausted; make a new config disk";
        let sequence = self.sequence.checked_add(1).ok_or(used_up)?;
        let bytes = self.filled(|bytes| slot::write(bytes, sequence, text))?;
        self.buffer.write(0, &bytes).expect("the buffer holds a slot");
        self.sequence = sequence;
        (self.writing, self.steps) = (Writing::Document, SAVE);
        Ok(())
    }

    /// Starts writing a trial: the next boot starts `text`, unless the power fails before, and the boot after it the
    /// current document. The error is a message for the operator.
    pub fn arm(&mut self, text: &str, seconds: u64) -> Result<(), String> {
        let bytes = self.filled(|bytes| slot::write_as(bytes, slot::SPENT, seconds, text))?;
        self.buffer.write(0, &bytes).expect("the buffer holds a slot");
        (self.writing, self.steps) = (Writing::Trial, ARM);
        Ok(())
    }

    /// Starts writing a revision, in place of the oldest one. The error is a message for the operator.
    pub fn record(&mut self, number: u64, text: &str) -> Result<(), String> {
        if !self.has_history() {
            return Err("the config disk has no room for revisions".into());
        }
        let bytes = self.filled(|bytes| slot::write_as(bytes, slot::REVISION, number, text))?;
        self.buffer.write(0, &bytes).expect("the buffer holds a slot");
        let filled = slot::length(&bytes).next_multiple_of(HEADER_LEN);
        (self.writing, self.steps) = (Writing::Revision(number, filled), RECORD);
        Ok(())
    }

    /// First sectors of the blocks of the audit log. Empty if the area has no room for it.
    pub fn audit(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, count) = (self.first, if self.has_audit() { PLACES } else { 0 });
        (0..count).map(move |at| first + ((AUDIT + at * BLOCK) / SECTOR) as u64)
    }

    /// Whether the area has room for the audit log.
    pub fn has_audit(&self) -> bool {
        self.wiping == Wiping::No && self.room >= AUDIT + PLACES * BLOCK
    }

    /// Starts writing a block of the audit log. The error is a message for the operator.
    pub fn write_audit(&mut self, place: usize, block: &[u8]) -> Result<(), String> {
        if !self.has_audit() || place >= PLACES || block.len() != BLOCK {
            return Err("the config disk has no room for the audit log".into());
        }
        self.filled(|_| Ok(()))?;
        self.buffer.write(0, block).expect("the buffer holds a slot");
        (self.writing, self.steps) = (Writing::Audit(place), NOTE);
        Ok(())
    }

    /// A slot for a write. The error says why nothing can be written.
    fn filled(
        &self,
        fill: impl FnOnce(&mut [u8]) -> Result<(), String>,
    ) -> Result<Vec<u8>, String> {
        if !self.steps.is_empty() {
            return Err("the config disk is busy; try again later".into());
        }
        if self.is_read_only() {
            return Err("the config disk is read-only; attach it writable".into());
        }
        self.check_not_wiped()?;
        let mut bytes = vec![0; SLOT_LEN];
        fill(&mut bytes).map(|()| bytes)
    }

    /// Whether the disk is read-only.
    pub fn is_read_only(&self) -> bool {
        self.geometry.features.contains(Features::READ_ONLY)
    }

    /// Advances without blocking. Returns an event when a load or save ends.
    pub fn poll(&mut self, disk: &mut dyn Disk) -> Option<Event> {
        loop {
            let step = *self.steps.first()?;
            if self.in_flight {
                let completion = disk.poll()?;
                self.in_flight = false;
                if let Err(error) = completion.result {
                    match self.fail(error) {
                        Some(event) => return Some(event),
                        None => continue,
                    }
                }
                let len = self.request(step).data.len();
                self.done += len;
                if step == Step::CheckErased
                    && let Some(event) = self.check_zeroes(len)
                {
                    return Some(event);
                }
                if self.done < self.extent(step).1 {
                    continue;
                }
            } else if self.needs_request(step) {
                match disk.submit(&self.request(step)) {
                    Ok(()) => disk.flush_queue(),
                    Err(SubmitError::Full) => return None,
                    Err(_) => match self.fail(DiskError::Unsupported) {
                        Some(event) => return Some(event),
                        None => continue,
                    },
                }
                match (step, self.writing) {
                    (Step::WriteMark, Writing::Trial) => self.armed = Some(self.spare()),
                    // From here on a boot may find the mark.
                    (Step::MarkWipe, _) => self.wiping = Wiping::Half,
                    _ => {}
                }
                self.in_flight = true;
                continue;
            }
            self.done = 0;
            self.steps = &self.steps[1..];
            if let Some(event) = self.finish(step) {
                return Some(event);
            }
        }
    }

    /// Whether a load or save is in progress.
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Progress of the load or save. It changes with each completed request.
    pub fn position(&self) -> (usize, usize) {
        (self.steps.len(), self.done)
    }

    /// Whether a step needs a request to the disk.
    fn needs_request(&self, step: Step) -> bool {
        match step {
            Step::GiveUp => false,
            Step::Flush => self.geometry.features.contains(Features::VOLATILE_CACHE),
            _ => true,
        }
    }

    /// The slot that the next save writes to.
    fn spare(&self) -> usize {
        self.current.map_or(0, |current| 1 - current)
    }

    /// Byte offset and length of a step's transfer.
    fn extent(&self, step: Step) -> (usize, usize) {
        match step {
            Step::ReadHeader | Step::MarkWipe | Step::ClearMark | Step::CheckHeader => {
                (0, HEADER_LEN)
            }
            Step::Erase | Step::CheckErased => (HEADER_LEN, self.erased_len()),
            Step::ReadSlot(slot) => (SLOTS[slot], SLOT_LEN),
            Step::WriteSpareSlot => (SLOTS[self.spare()], SLOT_LEN),
            Step::WriteMark => (SLOTS[self.armed.unwrap_or(self.spare())], HEADER_LEN),
            Step::WriteRevision => match self.writing {
                Writing::Revision(number, filled) => {
                    (HISTORY + (number % REVISIONS as u64) as usize * SLOT_LEN, filled)
                }
                _ => (HISTORY, 0),
            },
            Step::WriteAudit => match self.writing {
                Writing::Audit(place) => (AUDIT + place * BLOCK, BLOCK),
                _ => (AUDIT, 0),
            },
            Step::GiveUp | Step::Flush => (0, 0),
        }
    }

    /// The next request of a step, limited by the disk's maximum transfer.
    fn request(&self, step: Step) -> Request {
        let (start, len) = self.extent(step);
        let most = self.geometry.max_transfer as usize / HEADER_LEN * HEADER_LEN;
        let len = (len - self.done).min(most).min(SLOT_LEN);
        // What is erased is longer than the buffer.
        let at = if matches!(step, Step::Erase | Step::CheckErased) { 0 } else { self.done };
        Request {
            tag: 0,
            operation: match step {
                Step::ReadHeader | Step::ReadSlot(_) | Step::CheckErased | Step::CheckHeader => {
                    Operation::Read
                }
                Step::WriteSpareSlot
                | Step::WriteMark
                | Step::WriteRevision
                | Step::WriteAudit
                | Step::MarkWipe
                | Step::Erase
                | Step::ClearMark => Operation::Write,
                Step::GiveUp | Step::Flush => Operation::Flush,
            },
            sector: self.first + ((start + self.done) / SECTOR) as u64,
            data: self.buffer.slice(at, len).expect("the buffer holds a slot"),
        }
    }

    fn finish(&mut self, step: Step) -> Option<Event> {
        match step {
            Step::GiveUp => return Some(Event::NotAConfigDisk),
            Step::ReadHeader => {
                let mut start = [0; SECTOR];
                self.buffer.read(0, &mut start).expect("the buffer holds a slot");
                if !is_area(&start) {
                    self.steps = &[];
                    return Some(Event::NotAConfigDisk);
                }
                if wipe::is_marked(&start) {
                    (self.wiping, self.steps) = (Wiping::Half, &[]);
                    return Some(Event::Loaded(None));
                }
            }
            Step::ReadSlot(slot) => {
                let mut bytes = vec![0; SLOT_LEN];
                self.buffer.read(0, &mut bytes).expect("the buffer holds a slot");
                match slot::read(&bytes) {
                    Some((sequence, text))
                        if self.current.is_none() || sequence > self.sequence =>
                    {
                        (self.current, self.sequence) = (Some(slot), sequence);
                        self.before = self.text.replace(text.to_vec());
                    }
                    Some((_, text)) => self.before = Some(text.to_vec()),
                    None => match slot::read_as(&bytes, slot::TRIAL) {
                        Some((seconds, text)) => self.trial = Some((slot, seconds, text.to_vec())),
                        None if slot::read_as(&bytes, slot::SPENT).is_some() => {}
                        // The power failed while a trial was written: no document is lost.
                        None if bytes.starts_with(slot::TRIAL)
                            || bytes.starts_with(slot::SPENT) => {}
                        None => self.damaged |= !slot::is_blank(&bytes),
                    },
                }
                if self.steps.is_empty() {
                    return Some(Event::Loaded(self.text.take()));
                }
            }
            Step::Flush if self.steps.is_empty() => {
                return Some(match self.writing {
                    Writing::Revision(number, _) => Event::Recorded(number),
                    Writing::Audit(_) => Event::AuditWritten,
                    // A wipe ends with a read.
                    Writing::Wipe => return None,
                    Writing::Trial => {
                        // It was not refused, so nothing is in doubt: it must not be withdrawn before the reboot.
                        (self.before, self.armed) = (None, None);
                        Event::Armed
                    }
                    Writing::Document => {
                        let saved = self.spare();
                        self.armed.take_if(|armed| *armed == saved);
                        (self.current, self.before) = (Some(saved), None);
                        Event::Saved
                    }
                    Writing::Withdrawal => {
                        self.armed = None;
                        match self.refusal.take() {
                            Some(why) => Event::Failed(why),
                            None => Event::Withdrawn,
                        }
                    }
                });
            }
            Step::Flush if self.steps.first() == Some(&Step::WriteMark) => {
                // The trial is whole on the disk.
                self.buffer.write(0, slot::TRIAL).expect("the buffer holds a slot");
            }
            // After the other steps only a wipe has something to do.
            _ => return self.advance_wipe(step),
        }
        None
    }

    /// Ends the steps after an I/O error. None if a trial is withdrawn before the error is reported.
    fn fail(&mut self, error: DiskError) -> Option<Event> {
        (self.steps, self.done) = (&[], 0);
        let why = match error {
            DiskError::Io => "reported an I/O error",
            DiskError::Unsupported => "rejected a request that every disk must support",
            DiskError::Broken => "has failed",
        };
        if self.is_half_wiped() {
            return Some(Event::Failed(format!("wipe unfinished: the config disk {why}")));
        }
        let why = format!("the config disk {why}; the saved configuration is unchanged");
        match self.writing {
            Writing::Trial if self.armed.is_some() => {
                self.refusal = Some(why);
                self.begin_withdrawal();
                None
            }
            Writing::Withdrawal => Some(match self.refusal.take() {
                Some(why) => Event::Failed(format!(
                    "{why}, but the next boot may start the trial: `save` before a reboot, or detach the disk"
                )),
                None => Event::StillArmed,
            }),
            _ => Some(Event::Failed(why)),
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
