//! History of a volume's requests and answers, with a check for consistency. Every sector is a register with unique
//! values, which must be linearizable between power cuts. Flushed data must persist for ever.

use super::disk::SECTOR;
use drivers::hal::Instant;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest time that an answer is in flight.
const UNDER_WAY: Duration = Duration::from_millis(10);
/// The value of sectors that were never written.
const ZERO: u32 = 0;

const EARLIEST: Instant = Instant::ZERO;
const LATEST: Instant = Instant::from_nanos(u64::MAX);

#[derive(Clone, Copy, Debug)]
struct Write {
    by: usize,
    start: Instant,
    /// When it succeeded; LATEST if it has not (yet).
    finish: Instant,
    /// Since when it is durable for its user.
    durable: Instant,
    /// Its user lost power before the answer.
    dead: bool,
    /// Its user knows that it may be lost: later flushes do not make it durable.
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
    /// Reads since the last power cut.
    reads: Vec<Read>,
}

/// The history of a volume.
#[derive(Debug)]
pub struct History {
    name: u8,
    /// Whether flushed data survives a power cut.
    durable: bool,
    /// Whether the member that has executed a write may be dropped before the write fails on the other one.
    mirrored: bool,
    sectors: Vec<Sector>,
    next: u32,
    /// The last power cut.
    cut: Instant,
}

impl History {
    /// History of a volume of zeroes.
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

    /// History of a mirror.
    pub fn mirrored(self) -> Self {
        History { mirrored: true, ..self }
    }

    /// Number of sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// Contents of a sector after a write.
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

    /// Begins a write, and returns its value.
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

    /// A write succeeded.
    pub fn end_write(&mut self, first: u64, count: u64, value: u32, now: Instant) {
        for sector in &mut self.sectors[first as usize..][..count as usize] {
            sector.writes.get_mut(&value).expect("the write was begun").finish = now;
        }
    }

    /// A write failed: it may be executed or not. On a mirror, reads may return its value once and then the former one.
    pub fn fail_write(&mut self, first: u64, count: u64, value: u32) {
        let sectors = &mut self.sectors[first as usize..][..count as usize];
        for sector in sectors.iter_mut().filter(|_| self.mirrored) {
            sector.reads.retain(|read| read.value != value);
        }
    }

    /// A flush, or a durable write, succeeded: writes of the same user that succeeded before it began are durable, and
    /// so is the durable write itself.
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

    /// A flush, or a durable write, failed: writes that are not durable may be lost.
    pub fn flush_failed(&mut self, by: usize) {
        let writes = self.sectors.iter_mut().flat_map(|sector| sector.writes.values_mut());
        for write in writes.filter(|write| write.by == by && write.finish < LATEST) {
            write.doubtful = true;
        }
    }

    /// A read returned these bytes.
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
            // The answer may be from before the power cut.
            if start >= cut || now > cut + UNDER_WAY {
                sector.reads.push(Read { value, start: start.max(cut), finish: now });
            }
        }
    }

    /// The volume's users lost power: their requests are not repeated.
    pub fn users_died(&mut self) {
        let writes = self.sectors.iter_mut().flat_map(|sector| sector.writes.values_mut());
        for write in writes {
            write.dead |= write.finish == LATEST;
            // The users know of the power cut, and do not rely on later flushes for these writes.
            write.doubtful |= write.durable == LATEST;
        }
    }

    /// One of the volume's disks has lost its cache: until a write in flight is answered, reads may return its value
    /// once and then the former one.
    pub fn cache_lost(&mut self) {
        for sector in &mut self.sectors {
            let writes = &sector.writes;
            sector.reads.retain(|read| writes.get(&read.value).is_none_or(|w| w.finish < LATEST));
        }
    }

    /// The machine with the volume lost power: unflushed writes may be lost.
    pub fn cut_power(&mut self, now: Instant) {
        self.check();
        self.cut = now;
        for sector in &mut self.sectors {
            sector.reads.clear();
        }
    }

    /// Checks the history since the last power cut.
    pub fn check(&self) {
        for (number, sector) in self.sectors.iter().enumerate() {
            if let Err(why) = sector.check(self.cut) {
                panic!("volume {} sector {number}: {why}", self.name);
            }
        }
    }
}

impl Sector {
    /// Whether the register is linearizable (Gibbons and Korach, Testing shared memories, 1997). The zone of a value
    /// goes from the first end to the last begin of the operations that wrote and read it. If the zone has a positive
    /// length, the register had the value throughout it. Then no other value may have an overlapping zone of positive
    /// length, or a reversed zone within it.
    fn check(&self, cut: Instant) -> Result<(), String> {
        let mut zones: BTreeMap<u32, (Instant, Instant)> = BTreeMap::new();
        for (&value, write) in &self.writes {
            let old = write.start < cut;
            let start = if old { EARLIEST } else { write.start };
            if !old || write.finish < LATEST && write.finish > cut + UNDER_WAY {
                // Includes writes that began before the cut, and were repeated after it.
                zones.insert(value, (write.finish, start));
            } else if self.reads.iter().any(|read| read.value == value) {
                // The value was read, so it existed at the cut, or its write is still in flight.
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
    fn write_in_flight_may_be_read_or_not() {
        let (mut history, a, b) = history();
        read(&mut history, a, 4, 5);
        read(&mut history, b, 6, 7);
        history.end_write(0, 1, b, at(9));
        read(&mut history, b, 10, 11);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn value_that_was_read_does_not_disappear() {
        let (mut history, a, b) = history();
        read(&mut history, b, 4, 5);
        read(&mut history, a, 6, 7);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn stale_read_is_detected() {
        let (mut history, a, b) = history();
        history.end_write(0, 1, b, at(4));
        read(&mut history, a, 5, 6);
        history.check();
    }

    #[test]
    fn write_in_flight_may_disappear_when_a_cache_is_lost() {
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
    fn failed_write_that_was_read_stays_on_a_disk() {
        let (mut history, a, b) = history();
        read(&mut history, b, 4, 5);
        history.fail_write(0, 1, b);
        read(&mut history, a, 6, 7);
        history.check();
    }

    #[test]
    #[should_panic(expected = "order")]
    fn failed_write_that_is_read_later_stays_on_a_mirror() {
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
    fn acknowledged_write_stays_when_a_cache_is_lost() {
        let (mut history, a, b) = history();
        history.end_write(0, 1, b, at(4));
        history.cache_lost();
        read(&mut history, a, 5, 6);
        history.check();
    }

    #[test]
    fn unflushed_write_may_be_lost() {
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
    fn flushed_write_may_not_be_lost() {
        let (mut history, _, _) = history();
        history.flushed(0, at(3), None, at(4));
        history.cut_power(at(7));
        read(&mut history, ZERO, 8, 9);
    }

    #[test]
    #[should_panic(expected = "torn")]
    fn torn_sector_is_detected() {
        let (mut history, a, b) = history();
        let mut bytes = history.stamp(0, a);
        bytes[256..].copy_from_slice(&history.stamp(0, b)[256..]);
        history.end_read(0, &bytes, at(4), at(5));
    }
}
