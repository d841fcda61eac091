//! A SATA drive: its properties, its medium, and its volatile cache.

use std::collections::BTreeSet;

/// Properties of a drive.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Serial number, 20 characters at most.
    pub serial: String,
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block.
    pub block: usize,
    /// Logical blocks of a physical block, as log2.
    pub physical: u16,
    /// Depth of the native queue; 0 without one.
    pub queue: u8,
    /// Supports logs (READ LOG EXT).
    pub logs: bool,
    /// Supports forced unit access.
    pub fua: bool,
    /// Supports TRIM.
    pub trims: bool,
    /// The write cache is on.
    pub cache: bool,
    /// Waits for a command before it spins up.
    pub sleeps: bool,
    /// Milliseconds from a reset until it is ready.
    pub start: u64,
}

impl Default for Shape {
    /// A drive with all features, with 4,096 blocks of 512 bytes.
    fn default() -> Self {
        Shape {
            serial: "model-1".into(),
            blocks: 4096,
            block: 512,
            physical: 3,
            queue: 32,
            logs: true,
            fua: true,
            trims: true,
            cache: true,
            sleeps: false,
            start: 3,
        }
    }
}

/// A drive.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Properties.
    pub shape: Shape,
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks in which `now` and `durable` may differ.
    dirty: BTreeSet<u64>,
    /// Commands by themselves, since a command of the queue has failed, are refused unless they read the log.
    pub(super) error: Option<(u8, u8)>,
    /// FLUSH CACHE EXT commands.
    pub flushes: u64,
    /// Writes with forced unit access.
    pub through: u64,
    /// Ranges of TRIM.
    pub trims: u64,
    /// STANDBY IMMEDIATE commands.
    pub standbys: u64,
}

impl Default for Drive {
    fn default() -> Self {
        Drive::new(Shape::default())
    }
}

impl Drive {
    /// Creates a drive whose bytes are all a5h.
    pub fn new(shape: Shape) -> Self {
        let medium = vec![0xa5; shape.blocks as usize * shape.block];
        Drive {
            now: medium.clone(),
            durable: medium,
            dirty: BTreeSet::new(),
            error: None,
            flushes: 0,
            through: 0,
            trims: 0,
            standbys: 0,
            shape,
        }
    }

    /// The bytes that a reader gets.
    pub fn medium(&self) -> &[u8] {
        &self.now
    }

    /// Cuts the drive's power: blocks in its cache are lost.
    pub fn cut_power(&mut self) {
        self.now = self.durable.clone();
        self.dirty.clear();
    }

    /// The range of bytes of blocks; None if they are not on the drive.
    fn range(&self, lba: u64, count: u64) -> Option<core::ops::Range<usize>> {
        let end = lba.checked_add(count)?;
        let block = self.shape.block;
        (end <= self.shape.blocks).then(|| lba as usize * block..end as usize * block)
    }

    pub(super) fn read(&self, lba: u64, count: u64) -> Option<&[u8]> {
        self.range(lba, count).map(|range| &self.now[range])
    }

    pub(super) fn write(&mut self, lba: u64, bytes: &[u8], through: bool) -> bool {
        let count = (bytes.len() / self.shape.block) as u64;
        let Some(range) = self.range(lba, count) else { return false };
        self.now[range.clone()].copy_from_slice(bytes);
        self.through += u64::from(through);
        if through || !self.shape.cache {
            self.durable[range].copy_from_slice(bytes);
            (lba..lba + count).for_each(|block| _ = self.dirty.remove(&block));
        } else {
            self.dirty.extend(lba..lba + count);
        }
        true
    }

    pub(super) fn flush(&mut self) {
        self.flushes += 1;
        for block in core::mem::take(&mut self.dirty) {
            if let Some(range) = self.range(block, 1) {
                self.durable[range.clone()].copy_from_slice(&self.now[range]);
            }
        }
    }

    pub(super) fn trim(&mut self, lba: u64, count: u64) -> bool {
        self.trims += 1;
        let zeroes = vec![0; count as usize * self.shape.block];
        self.write(lba, &zeroes, true)
    }

    /// IDENTIFY DEVICE data.
    pub(super) fn identity(&self) -> [u8; 512] {
        let shape = &self.shape;
        let mut words = [0u16; 256];
        words[0] = 0x0040;
        if shape.sleeps {
            (words[0], words[2]) = (0x0044, 0x37c8);
        }
        text(&mut words[10..20], &shape.serial);
        text(&mut words[23..27], "1.0");
        text(&mut words[27..47], "Model of a drive");
        words[49] = 3 << 8;
        words[75] = u16::from(shape.queue.saturating_sub(1));
        words[76] = u16::from(shape.queue > 0) << 8 | 0xe;
        words[80] = 0x1f0;
        words[82] = 1 << 5;
        words[83] = 1 << 14 | 1 << 13 | 1 << 12 | 1 << 10;
        words[84] = 1 << 14 | u16::from(shape.fua) << 6 | u16::from(shape.logs) << 5;
        words[85] = u16::from(shape.cache) << 5;
        words[86] = words[83] & !(1 << 14);
        words[87] = words[84];
        (0..4).for_each(|n| words[100 + n] = (shape.blocks >> (16 * n)) as u16);
        words[106] = 1 << 14 | 1 << 13 | shape.physical;
        if shape.block != 512 {
            words[106] |= 1 << 12;
            words[117] = (shape.block / 2) as u16;
        }
        words[105] = 1;
        words[169] = u16::from(shape.trims);
        let mut bytes = [0; 512];
        for (pair, word) in bytes.chunks_exact_mut(2).zip(words) {
            pair.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Log page 10h: the failed command of the queue.
    pub(super) fn error_page(&self, names: Option<u8>) -> [u8; 512] {
        let mut page = [0; 512];
        match self.error {
            Some((tag, error)) => {
                (page[0], page[2], page[3]) = (names.unwrap_or(tag), 0x41, error);
            }
            None => page[0] = 0x80,
        }
        let sum = page.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        page[511] = sum.wrapping_neg();
        page
    }
}

/// Text of IDENTIFY data: padded with spaces, with its bytes swapped in each word.
fn text(words: &mut [u16], text: &str) {
    let mut bytes = text.bytes().chain(core::iter::repeat(b' '));
    for word in words {
        let pair = [bytes.next(), bytes.next()].map(Option::unwrap_or_default);
        *word = u16::from_be_bytes(pair);
    }
}
