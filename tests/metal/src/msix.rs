//! Interrupts as messages. The table of MSI-X belongs to the machine and not to the model (PCI 3.0, 6.8.2): where
//! vectors go, which are masked, and which were raised meanwhile. MSI has one vector.

use models::ConfigSpace;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where interrupts are written to.
const CONTROLLER: u64 = 0xfee0_0000;

/// The vectors of the function and the counters that they end at.
pub struct Lines {
    /// Where the capability is; 0 without one.
    capability: u64,
    /// Where the table lies: BAR, and offset in it.
    bar: u8,
    table: u64,
    entries: Vec<[u32; 4]>,
    pending: Vec<bool>,
    counters: Vec<&'static AtomicU64>,
    /// Where the message of MSI goes, if it is on.
    msi: Option<u64>,
}

impl Lines {
    /// As the function's capabilities say.
    pub fn of(config: &ConfigSpace) -> Self {
        let word = |at: u64| {
            let mut bytes = [0; 4];
            config.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        let mut at = u64::from(word(0x34) & 0xff);
        while at != 0 && word(at) & 0xff != 0x11 {
            at = u64::from(word(at) >> 8 & 0xff);
        }
        let (count, place) = match at {
            0 => (0, 0),
            at => ((word(at) >> 16 & 0x7ff) as usize + 1, word(at + 4)),
        };
        Lines {
            capability: at,
            bar: (place & 7) as u8,
            table: u64::from(place & !7),
            entries: vec![[0, 0, 0, 1]; count],
            pending: vec![false; count],
            counters: Vec::new(),
            msi: None,
        }
    }

    /// Whether the function has MSI-X.
    pub fn is_there(&self) -> bool {
        self.capability != 0
    }

    /// Adds a counter: the address that raises it.
    pub fn add(&mut self, counter: &'static AtomicU64) -> u64 {
        self.counters.push(counter);
        CONTROLLER + 16 * (self.counters.len() as u64 - 1)
    }

    fn place(&self, bar: u8, offset: u64) -> Option<(usize, usize)> {
        let at = offset.checked_sub(self.table)? as usize;
        (self.is_there() && bar == self.bar && at / 16 < self.entries.len())
            .then_some((at / 16, at % 16 / 4))
    }

    /// A word of the table, if it lies at this offset of the BAR.
    pub fn entry(&self, bar: u8, offset: u64) -> Option<u32> {
        self.place(bar, offset).map(|(entry, word)| self.entries[entry][word])
    }

    /// Writes a word of the table; false if it is none.
    pub fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) -> bool {
        let Some((entry, word)) = self.place(bar, offset) else { return false };
        let Ok(bytes) = bytes.try_into() else { return false };
        self.entries[entry][word] = u32::from_le_bytes(bytes);
        if self.entries[entry][3] & 1 == 0 && core::mem::take(&mut self.pending[entry]) {
            self.raise(entry as u16);
        }
        true
    }

    /// The function raises a vector; it waits while it is masked.
    pub fn raise(&mut self, vector: u16) -> bool {
        let entry = usize::from(vector);
        let Some(&[low, high, _, control]) = self.entries.get(entry) else { return false };
        if control & 1 != 0 {
            self.pending[entry] = true;
            return true;
        }
        self.count(u64::from(high) << 32 | u64::from(low))
    }

    /// Takes note of what the driver wrote to the capability of MSI (PCI 3.0, 6.8.1), with 64-bit addresses, and of
    /// where the table of MSI-X lies by now.
    pub fn see(&mut self, config: &ConfigSpace) {
        let word = |at: u64| {
            let mut bytes = [0; 4];
            config.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        if self.is_there() {
            let place = word(self.capability + 4);
            (self.bar, self.table) = ((place & 7) as u8, u64::from(place & !7));
        }
        let mut at = u64::from(word(0x34) & 0xff);
        while at != 0 && word(at) & 0xff != 0x05 {
            at = u64::from(word(at) >> 8 & 0xff);
        }
        let on = at != 0 && word(at) >> 16 & 1 != 0;
        self.msi = on.then(|| u64::from(word(at + 8)) << 32 | u64::from(word(at + 4)));
    }

    /// The function raises the vector of MSI.
    pub fn raise_msi(&mut self) -> bool {
        self.msi.is_some_and(|address| self.count(address))
    }

    fn count(&self, address: u64) -> bool {
        let counter = address.checked_sub(CONTROLLER).map(|at| (at / 16) as usize);
        let counter = counter.and_then(|at| self.counters.get(at));
        counter.inspect(|counter| _ = counter.fetch_add(1, Ordering::Relaxed)).is_some()
    }
}
