//! The config disk: a small disk, or a partition, that keeps one document across power cuts, and what was
//! said in panics. Its contents do not make it one: whoever can write to a disk can write them. It is known
//! by its serial number, because the operator names it, or because the machine has booted from it.
//!
//! | bytes | what |
//! |---|---|
//! | 0..16 | `ISTHMUS CONFIG 1`: the layout |
//! | 8192..12288 | the certificate that the appliance made for itself, see [`super::kept_pair`] |
//! | 16384.. | first slot, see [`super::slot`] |
//! | 32768.. | second slot |
//! | 49152..65536 | records of panics, see [`crate::crash`] |
//!
//! A document is written to the slot that does not hold the current one, between two flushes: the
//! first so that the current document is durable before the other slot is touched, the second
//! before success is told. Whenever the power fails, one slot is whole: the old or the new document.

use super::partitions::Stretch;
use super::slot::{self, SLOT_LEN};
use drivers::hal::{
    Arena, Disk, DiskError, Features, Geometry, Operation, Request, SubmitError, Window,
};

/// Bytes of the area that [`format()`] makes; what lies behind it is not used.
pub const AREA_LEN: usize = 64 << 10;
/// Where the appliance's own certificate lies in it, in bytes.
pub const PAIR: usize = 8 << 10;
/// Where the records of panics begin in it, in bytes.
pub const CRASHES: usize = 48 << 10;
/// Serial number of a disk that holds the configuration.
pub const SERIAL: &str = "isthmus-config";

const MAGIC: &[u8; 16] = b"ISTHMUS CONFIG 1";
/// Where each slot starts, in bytes.
const SLOTS: [usize; 2] = [SLOT_LEN, 2 * SLOT_LEN];
const _: () = assert!(
    SLOTS[0] as u64 == release::layout::CONFIG_SLOTS[0]
        && SLOTS[1] as u64 == release::layout::CONFIG_SLOTS[1]
);
/// The part of the disk that is read to recognise it: a block of any size in use.
const HEADER_LEN: usize = 4096;
const SECTOR: usize = 512;

/// Whether it begins as such an area does.
pub fn is_area(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

/// The contents of a new area, with a document or empty. The error is a sentence.
pub fn format(text: Option<&str>) -> Result<Vec<u8>, String> {
    let mut disk = vec![0; AREA_LEN];
    disk[..MAGIC.len()].copy_from_slice(MAGIC);
    if let Some(text) = text {
        slot::write(&mut disk[SLOTS[0]..SLOTS[0] + SLOT_LEN], 1, text)?;
    }
    Ok(disk)
}

/// What came of a `load` or a `save`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The disk is none of ours, and was not touched.
    NotAConfigDisk,
    /// It is a config disk, with this document, or with none yet.
    Loaded(Option<Vec<u8>>),
    /// The document is on the disk, whatever happens from now on.
    Saved,
    /// It did not work; what went wrong, and what to do.
    Failed(String),
}

/// The engine of one config disk, which has the disk's queue to itself. It starts with a load.
#[derive(Debug)]
pub struct ConfigDisk {
    geometry: Geometry,
    /// First sector of the area.
    first: u64,
    /// One slot.
    buffer: Window,
    /// What is still to do, the present step first; empty when nothing is under way.
    steps: &'static [Step],
    /// Bytes of the present step that are done.
    done: usize,
    in_flight: bool,
    /// The slot with the current document.
    current: Option<usize>,
    /// Highest sequence number that is or may be on the disk.
    sequence: u64,
    /// The document of the current slot, until the load has ended.
    text: Option<Vec<u8>>,
    /// The document of the other slot, if it was whole.
    before: Option<Vec<u8>>,
    /// A slot held something that is not whole.
    damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing to ask of a disk of this shape: it is no config disk.
    GiveUp,
    ReadHeader,
    ReadSlot(usize),
    Flush,
    WriteSpareSlot,
}

const LOAD: &[Step] = &[Step::ReadHeader, Step::ReadSlot(0), Step::ReadSlot(1)];
const SAVE: &[Step] = &[Step::Flush, Step::WriteSpareSlot, Step::Flush];

impl ConfigDisk {
    /// Starts looking at an area on a disk of this shape. None if the arena has not the 16 KiB that a
    /// slot takes.
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

    /// The document that was saved before the one that was loaded, if it is still there.
    pub fn before(&self) -> Option<&[u8]> {
        self.before.as_deref()
    }

    /// Whether the disk held a document, or part of one, that is not whole.
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// The document that was loaded cannot be used, and the one before it is: the next save keeps that one.
    pub fn keep_before(&mut self) {
        if self.before.take().is_some() {
            self.current = self.current.map(|current| 1 - current);
        }
    }

    /// First sector of the records of panics.
    pub fn crashes(&self) -> u64 {
        self.first + (CRASHES / SECTOR) as u64
    }

    /// First sector of the appliance's own certificate.
    pub fn pair(&self) -> u64 {
        self.first + (PAIR / SECTOR) as u64
    }

    /// The memory, to be given back to the arena. Only after an event: the device may still write
    /// to it before.
    pub fn into_buffer(self) -> Window {
        self.buffer
    }

    /// Starts writing `text`; not before the load has ended. The error is a sentence.
    pub fn save(&mut self, text: &str) -> Result<(), String> {
        if !self.steps.is_empty() {
            return Err("the config disk is busy; try again later".into());
        }
        if self.geometry.features.contains(Features::READ_ONLY) {
            return Err("the config disk is read-only; attach it writable".into());
        }
        let used_up = "the config disk's sequence numbers are used up; make a new one";
        let sequence = self.sequence.checked_add(1).ok_or(used_up)?;
        let mut bytes = vec![0; SLOT_LEN];
        slot::write(&mut bytes, sequence, text)?;
        self.buffer.write(0, &bytes).expect("the buffer holds a slot");
        self.sequence = sequence;
        self.steps = SAVE;
        Ok(())
    }

    /// Does what can be done now, without blocking; tells when load or save have ended.
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
            } else if self.is_asked_of_disk(step) {
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

    /// Whether a load or a save is under way.
    pub fn is_busy(&self) -> bool {
        !self.steps.is_empty()
    }

    /// How far what is under way has come; changes whenever a request to the disk has ended.
    pub fn position(&self) -> (usize, usize) {
        (self.steps.len(), self.done)
    }

    fn is_asked_of_disk(&self, step: Step) -> bool {
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

    /// Place and length in bytes of what a step moves.
    fn extent(&self, step: Step) -> (usize, usize) {
        match step {
            Step::ReadHeader => (0, HEADER_LEN),
            Step::ReadSlot(slot) => (SLOTS[slot], SLOT_LEN),
            Step::WriteSpareSlot => (SLOTS[self.spare()], SLOT_LEN),
            Step::GiveUp | Step::Flush => (0, 0),
        }
    }

    /// The next request of a step: as much of the rest as the disk takes at once.
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
            DiskError::Unsupported => "does not take a request that it should take",
            DiskError::Broken => "does not work any more",
        };
        Event::Failed(format!("the config disk {why}; what was saved before is not changed"))
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
