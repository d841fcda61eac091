//! What was asked of a volume and answered, and whether that can be: every sector is a register
//! whose values are all different, and has to be linearizable between power cuts; what was flushed
//! has to be there for ever.

use super::disk::SECTOR;
use drivers::hal::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// An answer may be under way for so long.
const UNDER_WAY: Duration = Duration::from_millis(10);
/// The value of sectors that were never written.
const ZERO: u32 = 0;

const EARLIEST: Instant = Instant::ZERO;
const LATEST: Instant = Instant::from_nanos(u64::MAX);

#[derive(Clone, Copy, Debug)]
struct Write {
    by: usize,
    start: Instant,
    /// When it was answered with success; LATEST if it was not (yet).
    finish: Instant,
    /// Since when its user may rely on it.
    durable: Instant,
    /// Its user lost its power before it was answered.
    dead: bool,
    /// Its user was told that it may be lost: no later flush says anything about it.
    doubtful: bool,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    value: u32,
    start: Instant,
    finish: Instant,
}

/// The history of a sector.
#[derive(Debug, Default)]
struct Sector {
    writes: BTreeMap<u32, Write>,
    /// Since the last power cut.
    reads: Vec<Read>,
}

/// The history of a volume.
#[derive(Debug)]
pub struct History {
    name: u8,
    /// Whether flushed data survives a power cut.
    durable: bool,
    /// Whether a member that has done a write may be left out before the write fails on the other one.
    mirrored: bool,
    sectors: Vec<Sector>,
    next: u32,
    /// The last power cut.
    cut: Instant,
}

impl History {
    /// Of a volume of zeroes.
    pub fn new(name: u8, sectors: usize, durable: bool) -> Self {
        let zero = Write {
            by: usize::MAX,
            start: EARLIEST,
            finish: EARLIEST,
            durable: EARLIEST,
            doubtful: false,
            dead: false,
        };
        let sector = || Sector { writes: BTreeMap::from([(ZERO, zero)]), reads: Vec::new() };
        let sectors = std::iter::repeat_with(sector).take(sectors).collect();
        History { name, durable, mirrored: false, sectors, next: 1, cut: EARLIEST }
    }

    /// Of a mirror.
    pub fn mirrored(self) -> Self {
        History { mirrored: true, ..self }
    }

    /// Number of sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// What a sector holds after a write.
    pub fn stamp(&self, sector: u64, value: u32) -> [u8; SECTOR] {
        let mut bytes = [0; SECTOR];
        if value != ZERO {
            let mut rest = u64::from(value) << 32 | sector << 8 | u64::from(self.name);
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&rest.to_le_bytes());
                rest = rest.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            }
        }
        bytes
    }

    /// A write begins; its value.
    pub fn start_write(&mut self, by: usize, first: u64, count: u64, now: Instant) -> u32 {
        let value = self.next;
        self.next += 1;
        for sector in &mut self.sectors[first as usize..][..count as usize] {
            let write = Write {
                by,
                start: now,
                finish: LATEST,
                durable: LATEST,
                doubtful: false,
                dead: false,
            };
            sector.writes.insert(value, write);
        }
        value
    }

    /// A write was answered with success.
    pub fn end_write(&mut self, first: u64, count: u64, value: u32, now: Instant) {
        for sector in &mut self.sectors[first as usize..][..count as usize] {
            sector.writes.get_mut(&value).expect("it was begun").finish = now;
        }
    }

    /// A write has failed: it may be done or not, and on a mirror what was seen of it may be seen no more.
    pub fn fail_write(&mut self, first: u64, count: u64, value: u32) {
        let sectors = &mut self.sectors[first as usize..][..count as usize];
        for sector in sectors.iter_mut().filter(|_| self.mirrored) {
            sector.reads.retain(|read| read.value != value);
        }
    }

    /// A flush, or a write that is durable, was answered with success: what the same user was told
    /// to be written before it began is durable; so is the write itself, if it is one.
    pub fn flushed(&mut self, by: usize, start: Instant, own: Option<u32>, now: Instant) {
        for sector in &mut self.sectors {
            for (&value, write) in &mut sector.writes {
                let covered = write.by == by && write.finish < start && !write.doubtful;
                if covered || own == Some(value) {
                    write.durable = write.durable.min(now);
                }
            }
        }
    }

    /// A flush, or a write that is durable, failed: what was not durable may be lost.
    pub fn flush_failed(&mut self, by: usize) {
        let writes = self.sectors.iter_mut().flat_map(|sector| sector.writes.values_mut());
        for write in writes.filter(|write| write.by == by && write.finish < LATEST) {
            write.doubtful = true;
        }
    }

    /// A read was answered with these bytes.
    pub fn end_read(&mut self, first: u64, bytes: &[u8], start: Instant, now: Instant) {
        for (n, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
            let number = first + n as u64;
            let value = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
            let name = self.name;
            assert!(
                bytes == self.stamp(number, value),
                "volume {name} sector {number}: torn or misplaced: {:02x?}",
                &bytes[..16]
            );
            let (durable, cut) = (self.durable, self.cut);
            let sector = &mut self.sectors[number as usize];
            let Some(&write) = sector.writes.get(&value) else {
                panic!("volume {name} sector {number}: value {value} was never written there");
            };
            assert!(write.start <= now, "volume {name} sector {number}: read before written");
            for (later, other) in &sector.writes {
                let over = write.finish < other.start && other.durable < start;
                assert!(
                    !over || !durable,
                    "volume {name} sector {number}: {later} is flushed, and {value} is read"
                );
            }
            // It may have been answered before the power was cut.
            if start >= cut || now > cut + UNDER_WAY {
                sector.reads.push(Read { value, start: start.max(cut), finish: now });
            }
        }
    }

    /// The power of the volume's users was cut: what they asked for is not asked for any more.
    pub fn users_died(&mut self) {
        let writes = self.sectors.iter_mut().flat_map(|sector| sector.writes.values_mut());
        for write in writes {
            write.dead |= write.finish == LATEST;
            // They know of the power cut, and expect nothing of later flushes.
            write.doubtful |= write.durable == LATEST;
        }
    }

    /// One of the disks that hold the volume has lost what was in its cache: of a write that is under way, what was
    /// seen may be seen no more until it is answered.
    pub fn cache_lost(&mut self) {
        for sector in &mut self.sectors {
            let writes = &sector.writes;
            sector.reads.retain(|read| writes.get(&read.value).is_none_or(|w| w.finish < LATEST));
        }
    }

    /// The power of what holds the volume was cut: what was not flushed may be lost.
    pub fn cut_power(&mut self, now: Instant) {
        self.check();
        self.cut = now;
        for sector in &mut self.sectors {
            sector.reads.clear();
        }
    }

    /// Checks what has happened since the last power cut.
    pub fn check(&self) {
        for (number, sector) in self.sectors.iter().enumerate() {
            if let Err(why) = sector.check(self.cut) {
                panic!("volume {} sector {number}: {why}", self.name);
            }
        }
    }
}

impl Sector {
    /// Whether the register is linearizable (Gibbons and Korach, Testing shared memories, 1997): a
    /// value has a zone, from the first end to the last beginning of what wrote and read it. If
    /// that is a stretch of time, the register had the value throughout, so that no other value
    /// may have such a stretch at the same time, nor have come and gone within it.
    fn check(&self, cut: Instant) -> Result<(), String> {
        let mut zones: BTreeMap<u32, (Instant, Instant)> = BTreeMap::new();
        for (&value, write) in &self.writes {
            let old = write.start < cut;
            let start = if old { EARLIEST } else { write.start };
            if !old || write.finish < LATEST && write.finish > cut + UNDER_WAY {
                // Also what was begun before the cut, and done again after it.
                zones.insert(value, (write.finish, start));
            } else if self.reads.iter().any(|read| read.value == value) {
                // It is there, so that it was at the cut; or it is still being asked for.
                let over = write.dead || write.finish < LATEST;
                zones.insert(value, (if over { cut } else { LATEST }, start));
            }
        }
        for read in &self.reads {
            let zone = zones.entry(read.value).or_insert((LATEST, EARLIEST));
            zone.0 = zone.0.min(read.finish);
            zone.1 = zone.1.max(read.start);
        }
        for (a, &(first_end, last_start)) in &zones {
            if first_end >= last_start {
                continue;
            }
            for (b, &(other_end, other_start)) in zones.iter().filter(|(b, _)| *b != a) {
                let both =
                    other_end < other_start && first_end < other_start && other_end < last_start;
                let within =
                    other_end >= other_start && first_end < other_start && other_end < last_start;
                if both || within {
                    return Err(format!(
                        "values {a} ({} to {}) and {b} ({} to {}) cannot be in an order",
                        first_end.as_nanos(),
                        last_start.as_nanos(),
                        other_end.as_nanos(),
                        other_start.as_nanos()
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000_000_000)
    }

    fn history() -> (History, u32, u32) {
        let mut history = History::new(1, 1, true);
        let a = history.start_write(0, 0, 1, at(1));
        history.end_write(0, 1, a, at(2));
        let b = history.start_write(0, 0, 1, at(3));
        (history, a, b)
    }

    fn read(history: &mut History, value: u32, start: u64, end: u64) {
        let bytes = history.stamp(0, value);
        history.end_read(0, &bytes, at(start), at(end));
    }

    #[test]
    fn a_write_that_is_under_way_may_be_seen_or_not() {
        let (mut history, a, b) = history();
        read(&mut history, a, 4, 5);
        read(&mut history, b, 6, 7);
        history.end_write(0, 1, b, at(9));
        read(&mut history, b, 10, 11);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn what_was_seen_cannot_be_unseen() {
        let (mut history, a, b) = history();
        read(&mut history, b, 4, 5);
        read(&mut history, a, 6, 7);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn a_stale_read_is_found() {
        let (mut history, a, b) = history();
        history.end_write(0, 1, b, at(4));
        read(&mut history, a, 5, 6);
        history.check();
    }

    #[test]
    fn what_was_under_way_when_a_cache_was_lost_may_be_unseen() {
        let (mut history, a, b) = history();
        read(&mut history, b, 4, 5);
        history.cache_lost();
        read(&mut history, a, 6, 7);
        history.end_write(0, 1, b, at(8));
        read(&mut history, b, 9, 10);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn what_was_seen_of_a_failed_write_stays_on_a_disk() {
        let (mut history, a, b) = history();
        read(&mut history, b, 4, 5);
        history.fail_write(0, 1, b);
        read(&mut history, a, 6, 7);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn what_is_seen_of_a_write_that_has_failed_stays_on_a_mirror() {
        let (history, a, b) = history();
        let mut history = history.mirrored();
        read(&mut history, b, 4, 5);
        history.fail_write(0, 1, b);
        read(&mut history, b, 6, 7);
        read(&mut history, a, 8, 9);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn what_was_answered_before_a_cache_was_lost_stays() {
        let (mut history, a, b) = history();
        history.end_write(0, 1, b, at(4));
        history.cache_lost();
        read(&mut history, a, 5, 6);
        history.check();
    }

    #[test]
    fn what_was_not_flushed_may_be_lost() {
        let (mut history, a, b) = history();
        history.flushed(0, at(3), None, at(4));
        history.end_write(0, 1, b, at(5));
        read(&mut history, b, 5, 6);
        history.cut_power(at(7));
        read(&mut history, a, 8, 9);
        history.check();
    }

    #[test]
    #[should_panic(expected = "is flushed")]
    fn what_was_flushed_may_not() {
        let (mut history, _, _) = history();
        history.flushed(0, at(3), None, at(4));
        history.cut_power(at(7));
        read(&mut history, ZERO, 8, 9);
    }

    #[test]
    #[should_panic(expected = "torn")]
    fn a_torn_sector_is_found() {
        let (mut history, a, b) = history();
        let mut bytes = history.stamp(0, a);
        bytes[256..].copy_from_slice(&history.stamp(0, b)[256..]);
        history.end_read(0, &bytes, at(4), at(5));
    }
}
