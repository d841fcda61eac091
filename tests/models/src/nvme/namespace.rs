//! A namespace: its medium, and the blocks that only the volatile cache has.

use std::collections::BTreeMap;

/// Properties of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Namespace number.
    pub nsid: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of a block, as log2.
    pub shift: u8,
    /// Bytes of metadata of a block.
    pub metadata: u16,
    /// Write-protected.
    pub read_only: bool,
    /// Command set (CSI), if the namespace has a descriptor for it.
    pub command_set: Option<u8>,
}

impl Shape {
    /// Namespace `nsid` with this many blocks of 2^`shift` bytes.
    pub fn new(nsid: u32, blocks: u64, shift: u8) -> Self {
        Shape { nsid, blocks, shift, metadata: 0, read_only: false, command_set: None }
    }
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(super) shape: Shape,
    medium: Vec<u8>,
    /// Written blocks that were not flushed.
    cache: BTreeMap<u64, Vec<u8>>,
}

impl Namespace {
    pub(super) fn new(shape: Shape) -> Self {
        let bytes = shape.blocks << shape.shift;
        // A namespace larger than memory can be identified, but has no medium.
        let medium = vec![0xa5; if bytes <= 1 << 30 { bytes as usize } else { 0 }];
        Namespace { shape, medium, cache: BTreeMap::new() }
    }

    /// The bytes on the medium.
    pub fn medium(&self) -> &[u8] {
        &self.medium
    }

    pub(super) fn block_bytes(&self) -> usize {
        1 << self.shape.shift
    }

    /// Whether `count` blocks from `first` on exist.
    pub(super) fn holds(&self, first: u64, count: u64) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.shape.blocks)
    }

    pub(super) fn read(&self, first: u64, into: &mut [u8]) {
        let size = self.block_bytes();
        for (n, into) in (first..).zip(into.chunks_mut(size)) {
            match self.cache.get(&n) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.copy_from_slice(&self.medium[n as usize * size..][..size]),
            }
        }
    }

    pub(super) fn write(&mut self, first: u64, bytes: &[u8], cached: bool) {
        let size = self.block_bytes();
        for (n, from) in (first..).zip(bytes.chunks(size)) {
            match cached {
                true => _ = self.cache.insert(n, from.to_vec()),
                false => {
                    self.cache.remove(&n);
                    self.medium[n as usize * size..][..size].copy_from_slice(from);
                }
            }
        }
    }

    pub(super) fn fill(&mut self, first: u64, count: u64, byte: u8) {
        let size = self.block_bytes();
        for n in first..first + count {
            self.cache.remove(&n);
            self.medium[n as usize * size..][..size].fill(byte);
        }
    }

    pub(super) fn flush(&mut self) {
        for (n, bytes) in core::mem::take(&mut self.cache) {
            self.write(n, &bytes, false);
        }
    }

    /// Drops the blocks that were not flushed, as a power cut does.
    pub(super) fn lose_cache(&mut self) {
        self.cache.clear();
    }
}
