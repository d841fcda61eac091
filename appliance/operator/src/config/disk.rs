//! The config disk: a small disk or partition that keeps one document and crash records across power cuts. A disk is
//! not accepted by its contents, because a client that can write to a disk can forge them. It is accepted by its serial
//! number, because the operator names it, or because the machine booted from it.
//!
//! | bytes | contents |
//! |---|---|
//! | 0..16 | `ISTHMUS CONFIG 1`: the layout |
//! | 8192..12288 | the certificate that the appliance made for itself, see [`super::kept_pair`] |
//! | 16384.. | first slot, see [`super::slot`] |
//! | 32768.. | second slot |
//! | 49152..65536 | records of panics, see [`crate::crash`] |
//!
//! A document is written to the slot without the current document, between two flushes. The first flush makes the
//! current document durable before the other slot is written. The second precedes the report of success. After a power
//! failure at any time, one slot is whole and holds the old or the new document.

use super::partitions::Stretch;
use super::slot::{self, SLOT_LEN};
use drivers::hal::{
    Arena, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError, Window,
};

/// Bytes of the area that [`format()`] creates. The rest of the disk is not used.
pub const AREA_LEN: usize = 64 << 10;
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The geometry rules out a config disk: ends without a request.
    GiveUp,
    ReadHeader,
    ReadSlot(usize),
    Flush,
    WriteSpareSlot,
}

const LOAD: &[Step] = &[Step::ReadHeader, Step::ReadSlot(0), Step::ReadSlot(1)];
const SAVE: &[Step] = &[Step::Flush, Step::WriteSpareSlot, Step::Flush];

impl ConfigDisk {
    /// Starts a load from an area on a disk of this geometry. None if the arena lacks 16 KiB for a slot.
    pub fn new(geometry: Geometry, area: Stretch, arena: &mut Arena) -> Option<ConfigDisk> {
        let block = geometry.logical_block as usize;
        let fits = area.sectors >= (AREA_LEN / SECTOR) as u64
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
        })
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
        if !self.steps.is_empty() {
            return Err("the config disk is busy; try again later".into());
        }
        if self.geometry.features.contains(Features::READ_ONLY) {
            return Err("the config disk is read-only; attach it writable".into());
        }
        let used_up = "the config disk's sequence numbers are exhausted; make a new config disk";
        let sequence = self.sequence.checked_add(1).ok_or(used_up)?;
        let mut bytes = vec![0; SLOT_LEN];
        slot::write(&mut bytes, sequence, text)?;
        self.buffer.write(0, &bytes).expect("the buffer holds a slot");
        self.sequence = sequence;
        self.steps = SAVE;
        Ok(())
    }

    /// Advances without blocking. Returns an event when a load or save ends.
    pub fn poll(&mut self, disk: &mut dyn Disk) -> Option<Event> {
        loop {
            let step = *self.steps.first()?;
            if self.in_flight {
                let completion = disk.poll()?;
                self.in_flight = false;
                if let Err(error) = completion.result {
                    return Some(self.fail(error));
                }
                self.done += self.request(step).data.len();
                if self.done < self.extent(step).1 {
                    continue;
                }
            } else if self.needs_request(step) {
                match disk.submit(&self.request(step)) {
                    Ok(()) => disk.flush_queue(),
                    Err(SubmitError::Full) => return None,
                    Err(_) => return Some(self.fail(DiskError::Unsupported)),
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
            Step::ReadHeader | Step::ReadSlot(_) | Step::WriteSpareSlot => true,
        }
    }

    /// The slot that the next save writes to.
    fn spare(&self) -> usize {
        self.current.map_or(0, |current| 1 - current)
    }

    /// Byte offset and length of a step's transfer.
    fn extent(&self, step: Step) -> (usize, usize) {
        match step {
            Step::ReadHeader => (0, HEADER_LEN),
            Step::ReadSlot(slot) => (SLOTS[slot], SLOT_LEN),
            Step::WriteSpareSlot => (SLOTS[self.spare()], SLOT_LEN),
            Step::GiveUp | Step::Flush => (0, 0),
        }
    }

    /// The next request of a step, limited by the disk's maximum transfer.
    fn request(&self, step: Step) -> Request {
        let (start, len) = self.extent(step);
        let most = self.geometry.max_transfer as usize / HEADER_LEN * HEADER_LEN;
        let len = (len - self.done).min(most);
        Request {
            tag: 0,
            operation: match step {
                Step::ReadHeader | Step::ReadSlot(_) => Operation::Read,
                Step::WriteSpareSlot => Operation::Write,
                Step::GiveUp | Step::Flush => Operation::Flush,
            },
            sector: self.first + ((start + self.done) / SECTOR) as u64,
            data: self.buffer.slice(self.done, len).expect("the buffer holds a slot"),
        }
    }

    fn finish(&mut self, step: Step) -> Option<Event> {
        match step {
            Step::GiveUp => return Some(Event::NotAConfigDisk),
            Step::ReadHeader => {
                let mut magic = [0; MAGIC.len()];
                self.buffer.read(0, &mut magic).expect("the buffer holds a slot");
                if magic != *MAGIC {
                    self.steps = &[];
                    return Some(Event::NotAConfigDisk);
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
                    None => self.damaged |= !slot::is_blank(&bytes),
                }
                if self.steps.is_empty() {
                    return Some(Event::Loaded(self.text.take()));
                }
            }
            Step::Flush if self.steps.is_empty() => {
                self.current = Some(self.spare());
                self.before = None;
                return Some(Event::Saved);
            }
            Step::Flush | Step::WriteSpareSlot => {}
        }
        None
    }

    fn fail(&mut self, error: DiskError) -> Event {
        (self.steps, self.done) = (&[], 0);
        let why = match error {
            DiskError::Io => "reported an I/O error",
            DiskError::Unsupported => "rejected a request that every disk must support",
            DiskError::Broken => "has failed",
        };
        Event::Failed(format!("the config disk {why}; the saved configuration is unchanged"))
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
