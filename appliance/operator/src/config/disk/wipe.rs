//! Erases the config disk: documents, trials, revisions, the audit log, records of panics, and the appliance's own
//! certificate.
//!
//! A mark in the first sector is durable before anything is erased. It is removed when all other sectors have read back
//! as zeroes. While it stands no load reads anything else of the area, so a power cut leaves everything as it was, or an
//! appliance without a configuration that reports [`ConfigDisk::is_half_wiped`]. A mark that a power cut tore is none:
//! then nothing was erased yet, or everything.

use super::{AREA_LEN, ConfigDisk, Event, HEADER_LEN, HISTORY, MAGIC, SECTOR, Step, Writing};

/// The mark of a wipe that has not ended.
pub(super) const MARK: &[u8; 16] = b" WIPE UNFINISHED";

pub(super) const WIPE: &[Step] = &[
    Step::Flush,
    Step::MarkWipe,
    Step::Flush,
    Step::Erase,
    Step::Flush,
    Step::CheckErased,
    Step::ClearMark,
    Step::Flush,
    Step::CheckHeader,
];

/// Whether a disk is being wiped, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wiping {
    /// No wipe since the boot.
    No,
    /// Erasing has begun, in this boot or an earlier one, and has not ended.
    Half,
    /// Everything is erased. Nothing is written until the reboot.
    Done,
}

/// The first block of an area without a document.
fn header(is_marked: bool) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LEN];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    if is_marked {
        bytes[MAGIC.len()..][..MARK.len()].copy_from_slice(MARK);
    }
    bytes
}

/// Whether the first bytes of an area have the mark.
pub(super) fn is_marked(start: &[u8]) -> bool {
    start.get(MAGIC.len()..).is_some_and(|rest| rest.starts_with(MARK))
}

impl ConfigDisk {
    /// Starts to erase the area. The error is a message for the operator.
    pub fn wipe(&mut self) -> Result<(), String> {
        if self.wiping == Wiping::Done {
            return Err("the config disk is wiped already".into());
        }
        if self.is_busy() {
            return Err("the config disk is busy; try again later".into());
        }
        if self.is_read_only() {
            return Err("the config disk is read-only; attach it writable".into());
        }
        self.fill(&header(true));
        (self.writing, self.steps, self.done) = (Writing::Wipe, WIPE, 0);
        Ok(())
    }

    /// Whether a wipe has begun and has not ended. Then the disk holds no configuration, and accepts none.
    pub fn is_half_wiped(&self) -> bool {
        self.wiping == Wiping::Half
    }

    /// An error if a wipe keeps the disk from being written.
    pub(super) fn check_not_wiped(&self) -> Result<(), String> {
        match self.wiping {
            Wiping::No => Ok(()),
            Wiping::Half => Err("wipe unfinished: repeat `wipe` first".into()),
            Wiping::Done => Err("the config disk was wiped: reboot first".into()),
        }
    }

    /// Bytes of the area that this program uses, without the first block.
    pub(super) fn erased_len(&self) -> usize {
        self.room.min(AREA_LEN) / HEADER_LEN * HEADER_LEN - HEADER_LEN
    }

    fn fill(&self, bytes: &[u8]) {
        self.buffer.fill(0);
        self.buffer.write(0, bytes).expect("the buffer holds a block");
    }

    /// Prepares the buffer for the step after `step`, and notes how far the wipe is.
    pub(super) fn advance_wipe(&mut self, step: Step) -> Option<Event> {
        match step {
            Step::MarkWipe => {
                self.wiping = Wiping::Half;
                // What is in doubt is erased.
                (self.before, self.trial, self.armed, self.current) = (None, None, None, None);
                self.fill(&[]);
            }
            Step::CheckErased => self.fill(&header(false)),
            Step::CheckHeader => {
                let mut bytes = vec![0; HEADER_LEN];
                self.buffer.read(0, &mut bytes).expect("the buffer holds a block");
                if bytes != header(false) {
                    return Some(self.kept(0));
                }
                self.wiping = Wiping::Done;
                return Some(Event::Wiped((self.erased_len() / SECTOR) as u64));
            }
            _ => {}
        }
        None
    }

    /// Checks that the last `len` bytes that were read are zeroes. The event, if they are not.
    pub(super) fn check_zeroes(&mut self, len: usize) -> Option<Event> {
        let mut bytes = vec![0; len];
        self.buffer.read(0, &mut bytes).expect("the buffer holds what was read");
        let at = bytes.iter().position(|&byte| byte != 0)?;
        Some(self.kept((HEADER_LEN + self.done - len + at) / SECTOR))
    }

    /// The disk did not keep what was written to a sector of the area.
    fn kept(&mut self, sector: usize) -> Event {
        (self.steps, self.done) = (&[], 0);
        Event::Failed(format!(
            "wipe unfinished: sector {} does not read back as it was written: replace the disk, or destroy it",
            self.first + sector as u64
        ))
    }
}

const _: () = assert!(HISTORY < AREA_LEN && MAGIC.len() + MARK.len() <= SECTOR);
