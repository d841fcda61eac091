//! Growth of a mirror whose members have become larger.
//!
//! The new space is copied from one member to the other while both stay in sync. It lies beyond the end of the mirror,
//! where users cannot read or write yet. Once the copy is durable, a record with the new size is written to both
//! members. A power cut before that leaves the old size. If a power cut leaves the new record on one member only, the
//! larger size is valid, because both members hold the same data there. If a member is left out meanwhile, the growth
//! ends.

use super::assemble::MIN_REGION;
use super::bitmap::{BITS, Bitmap};
use super::superblock::Superblock;
use super::{Mirror, RESERVED, Shape};
use core::ops::Range;

/// Growth in progress.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// Sectors that remain to be copied.
    left: Range<u64>,
}

impl Growth {
    /// The next part to copy, of at most `most` sectors.
    pub fn part(&self, most: u64) -> Option<Range<u64>> {
        let end = self.left.end.min(self.left.start.saturating_add(most));
        (!self.left.is_empty()).then_some(self.left.start..end)
    }

    /// Records that a part was copied.
    pub fn copied(&mut self, part: &Range<u64>) {
        self.left.start = part.end;
    }

    /// Size of the mirror after the growth, in sectors.
    pub fn sectors(&self) -> u64 {
        self.left.end
    }
}

impl Shape {
    /// Shape of a mirror whose members have so many sectors.
    pub fn of(uuid: [u8; 16], member: u64) -> Self {
        let sectors = member.saturating_sub(RESERVED) / MIN_REGION * MIN_REGION;
        let region_sectors = sectors.div_ceil(BITS as u64).next_power_of_two().max(MIN_REGION);
        Shape { uuid, sectors, region_sectors }
    }

    /// Number of regions of this shape that make one region of `later`, a later shape of the same mirror. None if
    /// `later` is no such shape.
    fn regions_of(self, later: Shape) -> Option<usize> {
        let ratio = later.region_sectors / self.region_sectors.max(1);
        let ours = self.uuid == later.uuid && self.sectors <= later.sectors;
        let whole = ratio > 0 && later.region_sectors.is_multiple_of(self.region_sectors);
        (ours && whole).then_some(ratio as usize)
    }
}

impl Superblock {
    /// The record converted to a later shape of its mirror; None if the shape is of another mirror.
    pub fn grown_to(&self, shape: Shape) -> Option<Superblock> {
        let regions = self.shape.regions_of(shape)?;
        Some(Superblock { shape, dirty: self.dirty.folded(regions), ..self.clone() })
    }
}

impl Mirror {
    /// Sectors that the members have room for.
    pub(super) fn possible_sectors(&self) -> u64 {
        let sectors = self.members.iter().map(|member| member.volume.geometry().sectors);
        Shape::of([0; 16], sectors.min().unwrap_or(0)).sectors
    }

    /// Starts to grow, if the operator requested it, both members are in sync, and they have more space.
    pub(super) fn start_growing(&mut self) {
        if !self.growing.take() || self.resync.growth.is_some() {
            return;
        }
        let (Some(shape), end) = (self.shape, self.possible_sectors()) else { return };
        if self.members.iter().all(super::Member::is_in_sync) && end > shape.sectors {
            self.resync.growth = Some(Growth { left: shape.sectors..end });
        }
    }

    /// Sets the new size once both members durably hold the same data up to it. It takes effect with the next record,
    /// for which writes wait. False while another record is being written.
    pub(super) fn finish_growing(&mut self) -> bool {
        let (Some(shape), Some(growth)) = (self.shape, &self.resync.growth) else { return false };
        if self.log.writing_since().is_some() {
            return false;
        }
        let grown = Shape::of(shape.uuid, RESERVED + growth.sectors());
        let regions = shape.regions_of(grown).unwrap_or(1);
        self.resync.growth = None;
        for bitmap in [
            &mut self.stale,
            &mut self.unflushed,
            &mut self.flushing,
            &mut self.resync.copied_regions,
        ] {
            *bitmap = bitmap.folded(regions);
        }
        // The marks so far are of regions of the old shape.
        self.log.marked = Bitmap::new();
        self.shape = Some(grown);
        self.log.want();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn record_of_a_mirror_that_grew_is_of_the_same_mirror() {
        let shape = |sectors| Shape::of([7; 16], RESERVED + sectors);
        let largest = MIN_REGION * BITS as u64;
        let mut dirty = Bitmap::new();
        [0, 5, BITS - 1].into_iter().for_each(|region| dirty.set(region));
        let record = Superblock { shape: shape(largest), generation: 3, alone: true, dirty };
        assert!(record.grown_to(record.shape).is_some_and(|same| same == record));
        let grown = record.grown_to(shape(3 * largest)).expect("of the same");
        assert_eq!((grown.shape.region_sectors, grown.generation), (4 * MIN_REGION, 3));
        assert_eq!(
            (0..BITS).filter(|&n| grown.dirty.contains(n..n + 1)).collect::<Vec<_>>(),
            [0, 1, BITS / 4 - 1]
        );
        // A smaller shape is rejected, and so is another mirror's.
        assert!(grown.grown_to(record.shape).is_none());
        assert!(record.grown_to(Shape { uuid: [8; 16], ..record.shape }).is_none());
    }
}
