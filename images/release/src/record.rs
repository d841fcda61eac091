//! The boot record, which selects the slot that boots.
//!
//! | bytes | field, little-endian |
//! |---|---|
//! | 0..8 | `ISTHBOOT` |
//! | 8..16 | generation: of two valid copies, the one with the higher generation is current |
//! | 16 | current image: 0 the image inside the front end, 1 slot A, 2 slot B |
//! | 17 | the slot on trial: 0 none |
//! | 18 | remaining starts of the trial |
//! | 19 | the slot whose trial failed last, until the appliance has reported it: 0 none |
//! | 20 | 1 if the release that ordered the trial was ready: then the trial has to become ready too |
//! | 21..24 | zeros |
//! | 24..28 | CRC-32 (IEEE 802.3) of bytes 0..24 |
//!
//! A record replaces the older copy, so that one copy is valid after a power cut at any time.

use crate::layout::BLOCK;
use crc::{CRC_32_ISO_HDLC, Crc};

const MAGIC: &[u8; 8] = b"ISTHBOOT";
const CHECKED: usize = 24;
const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A slot for a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The first.
    A,
    /// The second.
    B,
}

impl Slot {
    /// The other one.
    pub fn other(self) -> Slot {
        match self {
            Slot::A => Slot::B,
            Slot::B => Slot::A,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Slot::A => "a",
            Slot::B => "b",
        }
    }

    fn number(slot: Option<Slot>) -> u8 {
        match slot {
            None => 0,
            Some(Slot::A) => 1,
            Some(Slot::B) => 2,
        }
    }

    fn of(number: u8) -> Option<Option<Slot>> {
        match number {
            0 => Some(None),
            1 => Some(Some(Slot::A)),
            2 => Some(Some(Slot::B)),
            _ => None,
        }
    }
}

/// Which slot boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Counts the records of a disk.
    pub generation: u64,
    /// Slot that boots; None is the image inside the front end.
    pub current: Option<Slot>,
    /// Slot on trial, which boots for the next `tries` starts.
    pub trial: Option<Slot>,
    /// Remaining starts of the trial.
    pub tries: u8,
    /// The slot whose trial failed last, until the appliance has reported it.
    pub failed: Option<Slot>,
    /// The release that ordered the trial was ready, so the trial is confirmed only when it is ready too.
    pub was_ready: bool,
}

/// Decision for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Slot to boot; None is the image inside the front end.
    pub slot: Option<Slot>,
    /// It is a trial, which must not start before the record is written.
    pub trial: bool,
    /// The record has changed and has to be written.
    pub changed: bool,
}

impl Record {
    /// Decides which slot a start boots. A start is subtracted from the trial before it begins, so a trial that ends
    /// without a confirmation, for any reason, has failed.
    pub fn choose(&mut self) -> Choice {
        match self.trial {
            Some(slot) if self.tries > 0 => {
                self.tries -= 1;
                Choice { slot: Some(slot), trial: true, changed: true }
            }
            Some(slot) => {
                self.fail(slot);
                Choice { slot: self.current, trial: false, changed: true }
            }
            None => Choice { slot: self.current, trial: false, changed: false },
        }
    }

    /// Records that the trial of a slot failed, or that the slot cannot be booted.
    pub fn fail(&mut self, slot: Slot) {
        self.failed = Some(slot);
        (self.trial, self.tries) = (None, 0);
    }

    /// Makes the next start a trial of this slot. `was_ready` is whether the running release is ready.
    pub fn try_once(&mut self, slot: Slot, was_ready: bool) {
        (self.trial, self.tries, self.failed) = (Some(slot), 1, None);
        self.was_ready = was_ready;
    }

    /// Confirms the trial: its slot becomes the current one.
    pub fn confirm(&mut self) {
        if let Some(slot) = self.trial.take() {
            (self.current, self.tries, self.failed) = (Some(slot), 0, None);
        }
    }

    /// Parses a copy; None if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        let bytes = bytes.first_chunk::<{ CHECKED + 4 }>()?;
        let (checked, crc) = bytes.split_at(CHECKED);
        let slot = |at: usize| Slot::of(bytes[at]);
        let whole = checked.starts_with(MAGIC) && crc == CRC32.checksum(checked).to_le_bytes();
        let record = Record {
            generation: u64::from_le_bytes(*bytes[8..].first_chunk()?),
            current: slot(16)?,
            trial: slot(17)?,
            tries: bytes[18],
            failed: slot(19)?,
            was_ready: bytes[20] == 1,
        };
        whole.then_some(record)
    }

    /// Encodes the record.
    pub fn emit(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16] = Slot::number(self.current);
        bytes[17] = Slot::number(self.trial);
        bytes[18] = self.tries;
        bytes[19] = Slot::number(self.failed);
        bytes[20] = self.was_ready.into();
        let crc = CRC32.checksum(&bytes[..CHECKED]);
        bytes[CHECKED..CHECKED + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// The current record, and the index of the copy that the next record replaces.
pub fn newest(copies: [&[u8]; 2]) -> Option<(Record, usize)> {
    match copies.map(Record::parse) {
        [Some(first), Some(second)] if second.generation > first.generation => Some((second, 0)),
        [Some(first), _] => Some((first, 1)),
        [None, Some(second)] => Some((second, 0)),
        [None, None] => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_is_parsed_back_and_damage_is_detected() {
        let record = Record {
            generation: 77,
            current: Some(Slot::B),
            trial: Some(Slot::A),
            tries: 1,
            failed: Some(Slot::B),
            was_ready: true,
        };
        let bytes = record.emit();
        assert_eq!(Record::parse(&bytes), Some(record));
        for at in 0..CHECKED + 4 {
            let mut bytes = bytes;
            bytes[at] ^= 4;
            assert_eq!(Record::parse(&bytes), None, "{at}");
        }
    }

    #[test]
    fn newer_copy_is_current_and_the_older_is_replaced() {
        let copy = |generation| Record { generation, ..Record::default() }.emit();
        let (old, new) = (copy(4), copy(5));
        assert_eq!(newest([&old, &new]).map(|(r, n)| (r.generation, n)), Some((5, 0)));
        assert_eq!(newest([&new, &old]).map(|(r, n)| (r.generation, n)), Some((5, 1)));
        // The power failed while the newer one was written.
        assert_eq!(newest([&old, &[0; 512]]).map(|(r, n)| (r.generation, n)), Some((4, 1)));
        assert_eq!(newest([&[0xff; 9], &old]).map(|(r, n)| (r.generation, n)), Some((4, 0)));
        assert_eq!(newest([&[], &[0; BLOCK]]), None);
    }

    #[test]
    fn trial_has_one_start_before_the_previous_release_boots() {
        let mut record = Record { current: Some(Slot::A), ..Record::default() };
        assert_eq!(record.choose(), Choice { slot: Some(Slot::A), trial: false, changed: false });
        record.try_once(Slot::B, true);
        assert_eq!(record.choose(), Choice { slot: Some(Slot::B), trial: true, changed: true });
        // The trial is not confirmed.
        let mut confirmed = record;
        assert_eq!(record.choose(), Choice { slot: Some(Slot::A), trial: false, changed: true });
        assert_eq!((record.failed, record.trial), (Some(Slot::B), None));
        assert_eq!(record.choose(), Choice { slot: Some(Slot::A), trial: false, changed: false });
        // The trial is confirmed.
        confirmed.confirm();
        assert_eq!(
            confirmed.choose(),
            Choice { slot: Some(Slot::B), trial: false, changed: false }
        );
        assert_eq!(confirmed.failed, None);
        assert!(confirmed.was_ready);
    }
}
