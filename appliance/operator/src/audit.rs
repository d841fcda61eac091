//! [`Trail`]: the audit log, apart from the log of everything else: each action of an operator with time, name, address
//! and result. The config disk keeps it across reboots.
//!
//! The trail consists of blocks of 4 KiB, each with the lines of one actor (a user, the console, ...). When all places are
//! in use, the actor with the most blocks loses its oldest one, so that no actor displaces the lines of others. The log ring
//! limits the lines of users who are not administrators before they come here.
//!
//! An open block gets further lines, and each of its versions is written to a place that holds no newest version of
//! another block. So a power cut in a write loses at most the lines of that write. Lines are written together: those of
//! completed actions at most a second later, those of refused ones, which users of any role can cause, every ten seconds.
//!
//! | bytes of a block | contents, little-endian |
//! |---|---|
//! | 0..8 | `ISTHMAU2` |
//! | 8..12 | CRC-32C (RFC 3720, appendix B.4) of everything from byte 12 to the end of the lines |
//! | 12..16 | bytes of the lines |
//! | 16..24 | number of the block, from 1 |
//! | 24..32 | version of the block: the highest one is current |
//! | 32.. | lines: number in the trail (4 bytes), flags (1: refused, 2: the time is since the boot), time in milliseconds (8 bytes), length, text |

use crate::log_ring::{Action, Cursor, Entry, Filter, LogRing};
use crate::report::Value;
use core::time::Duration;
use crc::{CRC_32_ISCSI, Crc};
use drivers::hal::Instant;
use net::syslog::Timestamp;
use std::collections::VecDeque;

/// Bytes of a block.
pub const BLOCK: usize = 4 << 10;
/// Places for blocks on the disk.
pub const PLACES: usize = 128;
/// Blocks that are kept. The other places are free for new versions.
const KEPT: usize = PLACES - 2;
/// Longest text of a line in bytes.
const TEXT: usize = 240;
const HEADER: usize = 32;
/// Bytes of a line without its text.
const LINE: usize = 14;
/// The trail has room for 2,000 lines of any length of one actor. Each further one leaves a part of a block empty.
const _: () = assert!((KEPT - 1) * ((BLOCK - HEADER) / (LINE + TEXT)) >= 2000);
const MAGIC: &[u8; 8] = b"ISTHMAU2";
const CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
/// How long completed actions wait for a write.
const SOON: Duration = Duration::from_secs(1);
/// How long refused ones do.
const LATER: Duration = Duration::from_secs(10);

const REFUSED: u8 = 1;
const SINCE_BOOT: u8 = 2;

/// One action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Whether it was refused.
    pub refused: bool,
    /// Time in milliseconds, since 1970 or since the boot.
    pub millis: u64,
    /// Whether the appliance did not know the time.
    pub since_boot: bool,
    /// Who and what, and the reason of a refusal: `http ci from 10.0.0.7:40122: save`.
    pub text: String,
}

impl Line {
    fn of(entry: &Entry) -> Line {
        let (utc, at) = (entry.utc(), Duration::from_nanos(entry.at.as_nanos()));
        let time = utc.map_or(at, |Timestamp(time)| time);
        Line {
            refused: entry.level <= log::Level::Warn,
            millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            since_boot: utc.is_none(),
            text: entry.text().into(),
        }
    }

    fn write(&self, number: u32, into: &mut Vec<u8>) {
        into.extend_from_slice(&number.to_le_bytes());
        let text = &self.text[..self.text.floor_char_boundary(TEXT)];
        let refused = if self.refused { REFUSED } else { 0 };
        into.push(refused | if self.since_boot { SINCE_BOOT } else { 0 });
        into.extend_from_slice(&self.millis.to_le_bytes());
        into.push(text.len() as u8);
        into.extend_from_slice(text.as_bytes());
    }

    /// Reads the first line of `bytes`, and its number. Control characters, which this program does not write, become
    /// spaces.
    fn read(bytes: &[u8]) -> Option<(u32, Line, &[u8])> {
        let (number, bytes) = bytes.split_first_chunk()?;
        let (head, rest) = bytes.split_at_checked(LINE - number.len())?;
        let (text, rest) = rest.split_at_checked(head[9].into())?;
        let text = core::str::from_utf8(text).ok()?;
        let line = Line {
            refused: head[0] & REFUSED != 0,
            millis: u64::from_le_bytes(head[1..9].try_into().ok()?),
            since_boot: head[0] & SINCE_BOOT != 0,
            text: text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        };
        Some((u32::from_le_bytes(*number), line, rest))
    }

    /// The line as a row of a report.
    pub fn row(&self) -> Value {
        let action = Action::of(&self.text);
        let known_by = match (action.by_certificate, action.address) {
            (true, _) => "certificate",
            (false, Some(_)) => "token",
            (false, None) => "console",
        };
        let time = Duration::from_millis(self.millis);
        let utc = (!self.since_boot).then(|| format!("{:.3}", Timestamp(time)));
        let seconds = self.since_boot.then_some(time.as_secs_f64());
        Value::object([
            ("time", utc.map_or(Value::None, Value::from)),
            ("seconds_since_boot", seconds.into()),
            ("name", action.name().map(str::to_string).into()),
            ("address", action.address.map(str::to_string).into()),
            ("known_by", known_by.into()),
            ("result", if self.refused { "refused" } else { "done" }.into()),
            ("what", Value::display(action.what)),
        ])
    }
}

/// Some lines, and their place on the disk.
#[derive(Debug)]
struct Block {
    number: u64,
    version: u64,
    /// Whose lines it has.
    actor: u32,
    /// The lines.
    bytes: Vec<u8>,
    /// The place of the newest version on the disk.
    place: Option<usize>,
    /// It has lines that are not on the disk.
    is_dirty: bool,
}

/// A block to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    number: u64,
    version: u64,
    /// Its place, from 0.
    pub place: usize,
}

/// The audit log.
#[derive(Debug, Default)]
pub struct Trail {
    /// The one that was begun first is first.
    blocks: Vec<Block>,
    /// All lines, oldest first.
    order: VecDeque<Place>,
    /// Number of the next line.
    next: u32,
    /// Number of the block that was begun last.
    begun: u64,
    cursor: Cursor,
    /// Number of audit messages that were taken from the log.
    taken: u64,
    /// When the unwritten lines are written.
    due: Option<Instant>,
    /// No disk keeps the trail.
    is_volatile: bool,
    /// The last place that was written.
    last: usize,
}

/// Place of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// Number of the block.
    block: u64,
    /// Offset in the block's lines.
    at: usize,
}

impl Trail {
    /// The trail that a disk keeps: places and contents of its blocks, in any order. Damaged ones are skipped.
    pub fn of(found: impl IntoIterator<Item = (usize, Vec<u8>)>) -> Trail {
        let mut blocks: Vec<Block> =
            found.into_iter().filter_map(|(place, bytes)| read(place, &bytes)).collect();
        blocks.sort_by_key(|block| (block.number, core::cmp::Reverse(block.version)));
        blocks.dedup_by_key(|block| block.number);
        let (begun, place) = blocks.last().map_or((0, None), |block| (block.number, block.place));
        let last = place.unwrap_or(0);
        let mut order: Vec<(u32, Place)> = blocks.iter().flat_map(Block::places).collect();
        order.sort_by_key(|(number, _)| *number);
        let next = order.last().map_or(0, |(number, _)| number.saturating_add(1));
        let order = order.into_iter().map(|(_, place)| place).collect();
        let mut trail = Trail { blocks, order, next, begun, last, ..Trail::default() };
        while trail.blocks.len() > KEPT {
            trail.evict();
        }
        trail
    }

    /// Takes new lines from the log.
    #[inline]
    pub fn poll(&mut self, log: &LogRing, now: Instant) {
        if log.audits() != self.taken {
            self.take(log, now);
        }
    }

    #[cold]
    fn take(&mut self, log: &LogRing, now: Instant) {
        self.taken = log.audits();
        while let Some(entry) = log.next_of(&mut self.cursor, Filter::Audit) {
            let line = Line::of(&entry);
            let due = now + if line.refused { LATER } else { SOON };
            self.due = Instant::first([self.due, Some(due)]);
            self.add(&line);
        }
    }

    fn add(&mut self, line: &Line) {
        let mut bytes = Vec::with_capacity(LINE + TEXT);
        line.write(self.next, &mut bytes);
        self.next = self.next.saturating_add(1);
        let actor = Action::of(&line.text).actor();
        let place = match self.blocks.iter_mut().rev().find(|block| block.actor == actor) {
            Some(open) if HEADER + open.bytes.len() + bytes.len() <= BLOCK => {
                let at = open.bytes.len();
                open.bytes.extend_from_slice(&bytes);
                open.is_dirty = true;
                Place { block: open.number, at }
            }
            _ => {
                self.begun = self.begun.saturating_add(1);
                let number = self.begun;
                let (version, place, is_dirty) = (0, None, true);
                self.blocks.push(Block { number, version, actor, bytes, place, is_dirty });
                Place { block: number, at: 0 }
            }
        };
        self.order.push_back(place);
        if self.blocks.len() > KEPT {
            self.evict();
        }
    }

    /// Drops the oldest block of the actor with the most blocks.
    fn evict(&mut self) {
        let of = |actor: u32| self.blocks.iter().filter(|block| block.actor == actor).count();
        let most = self.blocks.iter().map(|block| of(block.actor)).max();
        let Some(at) = self.blocks.iter().position(|block| Some(of(block.actor)) == most) else {
            return;
        };
        let gone = self.blocks.remove(at).number;
        self.order.retain(|place| place.block != gone);
    }

    /// Makes unwritten lines wait, because the disk is busy.
    pub fn postpone(&mut self, now: Instant) {
        self.due = self.due.map(|_| now + SOON);
    }

    /// Makes unwritten lines due, because the machine ends.
    pub fn hurry(&mut self, now: Instant) {
        self.due = self.due.map(|_| now);
    }

    /// Notes that no disk keeps the trail.
    pub fn set_volatile(&mut self) {
        self.is_volatile = true;
    }

    /// When lines are to be written.
    #[inline]
    pub fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_volatile)
    }

    /// Whether lines wait for a write.
    pub fn has_unwritten(&self) -> bool {
        self.due().is_some()
    }

    /// The next block to write, with its bytes.
    pub fn next_write(&mut self) -> Option<(Write, Vec<u8>)> {
        let used: Vec<usize> = self.blocks.iter().filter_map(|block| block.place).collect();
        let next = |last: usize| (1..=PLACES).map(move |step| (last + step) % PLACES);
        let place = next(self.last).find(|place| !used.contains(place))?;
        let Some(block) = self.blocks.iter_mut().find(|block| block.is_dirty) else {
            self.due = None;
            return None;
        };
        block.version = block.version.saturating_add(1);
        let mut bytes = vec![0; BLOCK];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&(block.bytes.len() as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&block.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&block.version.to_le_bytes());
        let end = HEADER + block.bytes.len();
        bytes[HEADER..end].copy_from_slice(&block.bytes);
        let crc = CRC32C.checksum(&bytes[12..end]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        // Lines that are added meanwhile make it dirty again.
        block.is_dirty = false;
        Some((Write { number: block.number, version: block.version, place }, bytes))
    }

    /// Notes that a block is durable on the disk.
    pub fn note_written(&mut self, write: Write, now: Instant) {
        self.last = write.place;
        if let Some(block) = self.blocks.iter_mut().find(|block| block.number == write.number) {
            block.place = Some(write.place);
        }
        let is_dirty = self.blocks.iter().any(|block| block.is_dirty);
        self.due = is_dirty.then(|| now + SOON);
    }

    /// Notes that the write of a block has failed. It is repeated.
    pub fn note_failed(&mut self, write: Write, now: Instant) {
        // Another place is next: this one may be bad.
        self.last = write.place;
        if let Some(block) = self.blocks.iter_mut().find(|block| block.number == write.number) {
            block.is_dirty = true;
        }
        self.due = Some(now + LATER);
    }

    /// Number of lines.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no lines.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// At most `count` lines from index `from`, oldest first.
    pub fn page(&self, from: usize, count: usize) -> Vec<Line> {
        let line = |place: &Place| {
            let at = self.blocks.binary_search_by_key(&place.block, |block| block.number).ok()?;
            Some(Line::read(self.blocks[at].bytes.get(place.at..)?)?.1)
        };
        self.order.iter().skip(from).take(count).filter_map(line).collect()
    }
}

impl core::fmt::Display for Line {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let time = Duration::from_millis(self.millis);
        match self.since_boot {
            true => write!(f, "[{:12.3}] {}", time.as_secs_f64(), self.text),
            false => write!(f, "[{:.3}] {}", Timestamp(time), self.text),
        }
    }
}

impl Block {
    /// The lines: number and place of each.
    fn places(&self) -> impl Iterator<Item = (u32, Place)> + '_ {
        let (block, mut rest) = (self.number, &self.bytes[..]);
        core::iter::from_fn(move || {
            let at = self.bytes.len() - rest.len();
            let (number, _, after) = Line::read(rest)?;
            rest = after;
            Some((number, Place { block, at }))
        })
    }
}

/// The block in these bytes, if it is whole.
fn read(place: usize, bytes: &[u8]) -> Option<Block> {
    let number = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let field = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let end = HEADER.checked_add(field(12)? as usize).filter(|end| *end <= BLOCK)?;
    let whole = bytes.starts_with(MAGIC) && field(8)? == CRC32C.checksum(bytes.get(12..end)?);
    let lines = bytes.get(HEADER..end).filter(|_| whole)?.to_vec();
    let (place, is_dirty) = (Some(place), false);
    let (number, version) = (number(16)?, number(24)?);
    let (_, first, _) = Line::read(&lines)?;
    let actor = Action::of(&first.text).actor();
    Some(Block { number, version, actor, bytes: lines, place, is_dirty })
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
