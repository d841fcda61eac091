//! The NT control block of a partition: translations of its host's windows. Either host may lock it to program it.

use super::Fault;
use crate::Nanoseconds;
use crate::registers::with_half;

// Operations, and values of the status.
const LOCK: u32 = 1;
const RESET: u32 = 3;
const NORMAL: u32 = 1;
const LOCKED: u32 = 2;

/// Control bits of a BAR's windows.
const VALID: u32 = 1;
const DIRECT: u32 = 0x10;
const LOOKED_UP: u32 = 0x20;
/// Size of the requester id table.
const REQUESTERS: usize = 16;

pub struct Control {
    /// The host that holds the lock.
    owner: Option<usize>,
    /// Each host's pending operation, and the time from which it can complete.
    begun: [Option<(u32, Nanoseconds)>; 2],
    /// Words of each BAR: control, size, translation (2).
    bars: [[u32; 4]; 6],
    sizes_high: [u32; 6],
    table: Vec<u64>,
    requesters: [u32; REQUESTERS],
    /// Refused writes by a host without the lock.
    pub refused: u64,
    /// Operations started.
    pub operations: u64,
    /// Lock operations that had to wait for the other host.
    pub waited: u64,
}

impl Control {
    /// Creates a block with this many entries in the lookup table.
    pub fn new(entries: usize) -> Self {
        let mut bars = [[0; 4]; 6];
        bars[2][0] = VALID;
        Control {
            owner: None,
            begun: [None; 2],
            bars,
            sizes_high: [0; 6],
            table: vec![0; entries],
            requesters: [0; REQUESTERS],
            refused: 0,
            operations: 0,
            waited: 0,
        }
    }

    /// Resets the partition's translations. The lock stays.
    pub fn clear(&mut self) {
        let fresh = Control::new(self.table.len());
        (self.bars, self.sizes_high) = (fresh.bars, fresh.sizes_high);
        (self.table, self.requesters) = (fresh.table, fresh.requesters);
    }

    /// Releases a host's pending operation and lock after the host's reset.
    pub fn release(&mut self, host: usize) {
        self.begun[host] = None;
        if self.owner == Some(host) {
            self.owner = None;
        }
    }

    /// Completes the operations that are due. Returns the time of the next.
    pub fn settle(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        for host in 0..2 {
            let Some((operation, _)) = self.begun[host].filter(|(_, at)| *at <= now) else {
                continue;
            };
            if operation != LOCK {
                self.begun[host] = None;
                self.owner = None;
            }
        }
        for host in 0..2 {
            let due = self.begun[host].is_some_and(|(_, at)| at <= now);
            if due && self.owner.is_none_or(|owner| owner == host) {
                self.begun[host] = None;
                self.owner = Some(host);
            }
        }
        self.begun.iter().flatten().map(|(_, at)| *at).filter(|at| *at > now).min()
    }

    fn status(&self, host: usize) -> u32 {
        match self.begun[host] {
            // Locking, configuring, resetting.
            Some((operation, _)) => 2 + operation.min(3),
            None if self.owner == Some(host) => LOCKED,
            None => NORMAL,
        }
    }

    pub fn read(&self, host: usize, at: u64) -> u32 {
        let entry = |first: u64, size: u64| ((at - first) / size) as usize;
        match at {
            0x00 => self.status(host),
            0x14 => self.table.len() as u32 | 0x1000 << 16,
            0x1c => REQUESTERS as u32 | 0x400 << 16,
            0x40..0xa0 => self.bars[entry(0x40, 16)][(at % 16) as usize / 4],
            0xa0..0x100 if at.is_multiple_of(16) => self.sizes_high[entry(0xa0, 16)],
            0x400..0xc00 => self.requesters.get(entry(0x400, 4)).copied().unwrap_or(0),
            0x1000..0x2000 => {
                let entry = self.table.get(entry(0x1000, 8)).copied().unwrap_or(0);
                (entry >> (8 * (at % 8))) as u32
            }
            _ => 0,
        }
    }

    /// Handles a host's write. An operation can complete at `after`.
    pub fn write(
        &mut self,
        host: usize,
        at: u64,
        value: u32,
        after: Nanoseconds,
        fault: Option<Fault>,
    ) {
        if at == 0x04 {
            self.operations += 1;
            self.waited +=
                u64::from(value == LOCK && self.owner.is_some_and(|owner| owner != host));
            if value == RESET {
                self.clear();
            }
            let never = fault == Some(Fault::NoLock) && value == LOCK;
            self.begun[host] = Some((value, if never { Nanoseconds::MAX } else { after }));
            return;
        }
        if self.status(host) != LOCKED {
            self.refused += 1;
            return;
        }
        let entry = |first: u64, size: u64| ((at - first) / size) as usize;
        match at {
            0x40..0xa0 => {
                let (bar, word) = (entry(0x40, 16), (at % 16) as usize / 4);
                let kept = if word == 0 { 0xf } else { 0 };
                self.bars[bar][word] = self.bars[bar][word] & kept | value & !kept;
            }
            0xa0..0x100 if at.is_multiple_of(16) => self.sizes_high[entry(0xa0, 16)] = value,
            0x400..0xc00 => {
                // The device chooses the proxy id.
                let n = entry(0x400, 4);
                if let Some(requester) = self.requesters.get_mut(n) {
                    *requester = value & 0xffff_0000 | (0x10 + n as u32) << 1 | value & 1;
                }
            }
            0x1000..0x2000 if fault != Some(Fault::NoTranslation) => {
                if let Some(place) = self.table.get_mut(entry(0x1000, 8)) {
                    *place = with_half(*place, at % 8, value);
                }
            }
            _ => {}
        }
    }

    /// Translates an access through BAR 2 to a partition and an address.
    pub fn translated(&self, offset: u64, len: usize) -> Option<(usize, u64)> {
        let [control, size, low, high] = self.bars[2];
        let (shift, entries) = (control >> 8 & 0x3f, u64::from(control >> 14 & 0x3ff) + 1);
        if control & LOOKED_UP != 0 && offset < entries << shift {
            let entry = *self.table.get((offset >> shift) as usize)?;
            let inside = offset & ((1 << shift) - 1);
            let partition = (entry >> 1 & 0x3f) as usize;
            return (entry & 1 != 0).then_some((partition, (entry & !0xfff) + inside));
        }
        if control & DIRECT == 0 {
            return None;
        }
        let inside = offset & ((1u64 << (size & 0x3f)) - 1);
        let most = u64::from(size & !0xfff) | u64::from(self.sizes_high[2]) << 32;
        let start = u64::from(high) << 32 | u64::from(low & !0xfff);
        (inside + len as u64 <= most).then_some(((low & 0x3f) as usize, start + inside))
    }
}
