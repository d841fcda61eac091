//! Message-signalled interrupts. The machine, not the model, has the MSI-X table (PCI 3.0, 6.8.2): message addresses,
//! masks and pending bits of the vectors. MSI has one vector.

use models::ConfigSpace;
use std::sync::atomic::{AtomicU64, Ordering};

/// Address of the first interrupt counter.
const CONTROLLER: u64 = 0xfee0_0000;

/// The function's vectors, and the counters that they raise.
pub struct Lines {
    /// Offset of the MSI-X capability; 0 without one.
    capability: u64,
    /// BAR of the MSI-X table.
    bar: u8,
    /// Offset of the MSI-X table in the BAR.
    table: u64,
    entries: Vec<[u32; 4]>,
    pending: Vec<bool>,
    counters: Vec<&'static AtomicU64>,
    /// Message address of MSI, if it is enabled.
    msi: Option<u64>,
    /// MSI-X is enabled, and the function may write messages (bus mastering).
    is_enabled: bool,
}

impl Lines {
    /// Creates the vectors of the function's capabilities.
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
            is_enabled: false,
        }
    }

    /// Clears the table, as a reset of the function does.
    pub fn reset(&mut self) {
        self.entries.fill([0, 0, 0, 1]);
        self.pending.fill(false);
        self.msi = None;
    }

    /// Whether the function has MSI-X.
    pub fn is_there(&self) -> bool {
        self.capability != 0
    }

    /// Adds a counter, and returns the message address that raises it.
    pub fn add(&mut self, counter: &'static AtomicU64) -> u64 {
        self.counters.push(counter);
        CONTROLLER + 16 * (self.counters.len() as u64 - 1)
    }

    fn place(&self, bar: u8, offset: u64) -> Option<(usize, usize)> {
        let at = offset.checked_sub(self.table)? as usize;
        (self.is_there() && bar == self.bar && at / 16 < self.entries.len())
            .then_some((at / 16, at % 16 / 4))
    }

    /// Reads a word of the table, if it is at this offset of the BAR.
    pub fn entry(&self, bar: u8, offset: u64) -> Option<u32> {
        self.place(bar, offset).map(|(entry, word)| self.entries[entry][word])
    }

    /// Writes a word of the table. Returns false if the offset is not in the table.
    pub fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) -> bool {
        let Some((entry, word)) = self.place(bar, offset) else { return false };
        let Ok(bytes) = bytes.try_into() else { return false };
        self.entries[entry][word] = u32::from_le_bytes(bytes);
        if self.entries[entry][3] & 1 == 0 && core::mem::take(&mut self.pending[entry]) {
            self.raise(entry as u16);
        }
        true
    }

    /// Raises a vector. A masked vector becomes pending.
    pub fn raise(&mut self, vector: u16) -> bool {
        let entry = usize::from(vector);
        if !self.is_enabled {
            return false;
        }
        let Some(&[low, high, _, control]) = self.entries.get(entry) else { return false };
        if control & 1 != 0 {
            self.pending[entry] = true;
            return true;
        }
        self.count(u64::from(high) << 32 | u64::from(low))
    }

    /// Reads the MSI capability (PCI 3.0, 6.8.1; 64-bit addresses) and the place of the MSI-X table from configuration
    /// space.
    pub fn update(&mut self, config: &ConfigSpace) {
        let word = |at: u64| {
            let mut bytes = [0; 4];
            config.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        if self.is_there() {
            let place = word(self.capability + 4);
            // Enabled, and not masked as a whole.
            self.is_enabled = word(self.capability) >> 30 == 2 && config.is_bus_master();
            (self.bar, self.table) = ((place & 7) as u8, u64::from(place & !7));
        }
        let mut at = u64::from(word(0x34) & 0xff);
        while at != 0 && word(at) & 0xff != 0x05 {
            at = u64::from(word(at) >> 8 & 0xff);
        }
        let on = at != 0 && word(at) >> 16 & 1 != 0;
        let on = on && config.is_bus_master();
        self.msi = on.then(|| u64::from(word(at + 8)) << 32 | u64::from(word(at + 4)));
    }

    /// Raises the MSI vector.
    pub fn raise_msi(&mut self) -> bool {
        self.msi.is_some_and(|address| self.count(address))
    }

    fn count(&self, address: u64) -> bool {
        let counter = address.checked_sub(CONTROLLER).map(|at| (at / 16) as usize);
        let counter = counter.and_then(|at| self.counters.get(at));
        counter.inspect(|counter| _ = counter.fetch_add(1, Ordering::Relaxed)).is_some()
    }
}
