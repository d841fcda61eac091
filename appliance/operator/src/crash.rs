//! Crash records: the text of panics and CPU exceptions, stored across reboots, and the policy for the time after.
//!
//! The last [`RECORDS`] records are in the configuration area of a disk ([`crate::config::disk`]). Code that writes one
//! must not allocate or wait, because after a panic nothing else can be trusted. The newest record is also at the
//! beginning of the DMA arena, where the next boot finds it unless the reboot cleared memory.
//!
//! | bytes of a record | contents, little-endian |
//! |---|---|
//! | 0..8 | `ISTHCRSH` |
//! | 8..12 | CRC-32C of everything from byte 12 to the end of the text |
//! | 12..16 | length of the text |
//! | 16..24 | sequence number, from 1: the number of crashes so far |
//! | 24..32 | time by the real-time clock, in seconds since 1970-01-01 UTC |
//! | 32..40 | milliseconds since the boot |
//! | 40..44 | number of consecutive crashes soon after a boot |
//! | 44..64 | 0 |
//! | 64.. | the text: UTF-8 |

use crate::config::OnPanic;
use crate::report::Value;
use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};
use crc::{CRC_32_ISCSI, Crc};

/// Bytes of a record.
pub const RECORD_LEN: usize = 4096;
/// Number of records kept.
pub const RECORDS: usize = 4;
/// A panic within this time after a boot, in milliseconds, counts as consecutive.
pub const SOON_MS: u64 = 120_000;
/// Longest wait before a reboot, in seconds.
const LONGEST_WAIT: u64 = 60;

const MAGIC: &[u8; 8] = b"ISTHCRSH";
const TEXT: usize = 64;
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

/// Configured action after a panic.
static POLICY: AtomicU8 = AtomicU8::new(0);

/// Sets the action after a panic.
pub fn set_policy(policy: OnPanic) {
    let number = match policy {
        OnPanic::Reboot => 0,
        OnPanic::PowerOff => 1,
        OnPanic::Halt => 2,
    };
    POLICY.store(number, Ordering::Relaxed);
}

/// The action after a panic.
pub fn policy() -> OnPanic {
    match POLICY.load(Ordering::Relaxed) {
        1 => OnPanic::PowerOff,
        2 => OnPanic::Halt,
        _ => OnPanic::Reboot,
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Number of crashes so far, including this one.
    pub sequence: u64,
    /// Time in seconds since 1970.
    pub unix: u64,
    /// Milliseconds since the boot.
    pub uptime_ms: u64,
    /// Number of consecutive crashes soon after a boot; 0 if this one came late.
    pub row: u32,
}

impl Header {
    /// The header of the crash after `last`.
    pub fn after(last: Option<Header>, unix: u64, uptime_ms: u64) -> Header {
        let last = last.unwrap_or_default();
        let row = if uptime_ms < SOON_MS { last.row.saturating_add(1) } else { 0 };
        Header { sequence: last.sequence.saturating_add(1), unix, uptime_ms, row }
    }

    /// Seconds to wait before a reboot: none after a late or first crash, then 1, 2, 4 … 60.
    pub fn wait(&self) -> u64 {
        let doubled = |times: u32| 1u64.checked_shl(times).unwrap_or(LONGEST_WAIT);
        self.row.checked_sub(2).map_or(0, |times| doubled(times).min(LONGEST_WAIT))
    }
}

/// A record under construction. Text that does not fit is cut.
pub struct Draft<'a> {
    bytes: &'a mut [u8; RECORD_LEN],
    end: usize,
}

impl<'a> Draft<'a> {
    /// An empty record.
    pub fn new(bytes: &'a mut [u8; RECORD_LEN]) -> Self {
        bytes.fill(0);
        Draft { bytes, end: TEXT }
    }

    /// Bytes of text that still fit.
    pub fn room(&self) -> usize {
        RECORD_LEN - self.end
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[TEXT..self.end]).unwrap_or_default()
    }

    /// Completes the record with its header and checksum.
    pub fn seal(self, header: &Header) {
        let bytes = self.bytes;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&((self.end - TEXT) as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&header.sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&header.unix.to_le_bytes());
        bytes[32..40].copy_from_slice(&header.uptime_ms.to_le_bytes());
        bytes[40..44].copy_from_slice(&header.row.to_le_bytes());
        let crc = CRC32C.checksum(&bytes[12..self.end]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }
}

impl fmt::Write for Draft<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut fits = text.len().min(self.room());
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        self.bytes[self.end..self.end + fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.end += fits;
        Ok(())
    }
}

/// A record read from memory or disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The header.
    pub header: Header,
    /// The text of the panic or exception.
    pub text: String,
}

/// The record in these bytes, if it is whole.
pub fn read(bytes: &[u8]) -> Option<Record> {
    let header = bytes.first_chunk::<TEXT>()?;
    let u32_at = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
    let end = TEXT.checked_add(u32_at(12)? as usize).filter(|&end| end <= RECORD_LEN)?;
    let whole = header.starts_with(MAGIC) && u32_at(8)? == CRC32C.checksum(bytes.get(12..end)?);
    let text = String::from_utf8_lossy(bytes.get(TEXT..end)?).into_owned();
    let header = Header {
        sequence: u64_at(16)?,
        unix: u64_at(24)?,
        uptime_ms: u64_at(32)?,
        row: u32_at(40)?,
    };
    whole.then_some(Record { header, text })
}

/// The known records, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History(Vec<Record>);

impl History {
    /// Reads the records of an area. Invalid records are ignored.
    pub fn new(area: &[u8]) -> History {
        let mut history = History::default();
        area.chunks(RECORD_LEN).filter_map(read).for_each(|record| history.add(record));
        history
    }

    /// Adds a record unless it is already known.
    pub fn add(&mut self, record: Record) {
        if !self.0.contains(&record) {
            self.0.push(record);
            self.0.sort_by_key(|record| record.header.sequence);
            let most = self.0.len().saturating_sub(RECORDS);
            self.0.drain(..most);
        }
    }

    /// Whether the record is known.
    pub fn has(&self, record: &Record) -> bool {
        self.0.contains(record)
    }

    /// The newest record.
    pub fn last(&self) -> Option<&Record> {
        self.0.last()
    }

    /// Number of crashes so far.
    pub fn count(&self) -> u64 {
        self.last().map_or(0, |record| record.header.sequence)
    }

    /// The report of `show crash`, newest first.
    pub fn report(&self) -> Value {
        Value::list(self.0.iter().rev().map(|Record { header, text }| {
            // A table, so that the console shows one line of the text per row.
            let lines = text.lines().map(|line| Value::object([("line", line.to_string().into())]));
            Value::object([
                ("number", header.sequence.into()),
                ("unix_seconds", header.unix.into()),
                ("uptime_seconds", (header.uptime_ms as f64 / 1000.0).into()),
                ("in_a_row", u64::from(header.row).into()),
                ("text", Value::list(lines)),
            ])
        }))
    }
}

/// Index in the area of the record with this sequence number.
pub fn place(sequence: u64) -> usize {
    (sequence % RECORDS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write as _;
    use proptest::prelude::*;

    fn record(header: Header, text: &str) -> [u8; RECORD_LEN] {
        let mut bytes = [0xff; RECORD_LEN];
        let mut draft = Draft::new(&mut bytes);
        draft.write_str(text).unwrap();
        draft.seal(&header);
        bytes
    }

    #[test]
    fn last_four_records_are_kept() {
        let mut area = vec![0xaa; RECORDS * RECORD_LEN];
        assert_eq!(History::new(&area).count(), 0);
        let mut last = None;
        for n in 1..=7 {
            let header = Header::after(last, 1_000 + n, 200_000);
            let at = place(header.sequence) * RECORD_LEN;
            area[at..at + RECORD_LEN].copy_from_slice(&record(header, &format!("panic {n}")));
            last = Some(header);
        }
        let mut history = History::new(&area);
        assert_eq!((history.count(), history.0.len()), (7, 4));
        assert_eq!(history.0[0].text, "panic 4");
        let newest = history.last().unwrap().clone();
        history.add(newest.clone());
        assert_eq!((history.0.len(), history.last().unwrap().header.unix), (4, 1_007));
        assert!(history.has(&newest));
        let shown = history.report().to_text();
        assert!(shown.lines().any(|line| line.trim() == "panic 7"), "{shown}");
    }

    #[test]
    fn reboot_delay_doubles_with_consecutive_crashes() {
        let mut last = None;
        let waits: Vec<u64> = (0..10)
            .map(|_| {
                let header = Header::after(last, 0, 5_000);
                last = Some(header);
                header.wait()
            })
            .collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(Header::after(last, 0, SOON_MS).wait(), 0, "a late crash ends the sequence");
        let most = Header { row: u32::MAX, ..Header::default() };
        assert_eq!(Header::after(Some(most), 0, 0).wait(), 60);
    }

    #[test]
    fn long_text_is_cut_at_a_character_boundary() {
        let text = "é".repeat(RECORD_LEN);
        let found = read(&record(Header::default(), &text)).unwrap();
        assert_eq!(found.text.len(), (RECORD_LEN - TEXT) / 2 * 2);
    }

    proptest! {
        #[test]
        fn record_with_a_wrong_bit_is_rejected(bit in 0usize..(TEXT + 20) * 8) {
            let mut bytes = record(Header::after(None, 9, 9), "twenty bytes of text");
            prop_assert_eq!(read(&bytes).unwrap().text, "twenty bytes of text");
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&bytes).is_none());
        }

        #[test]
        fn noise_is_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_none());
        }
    }
}
