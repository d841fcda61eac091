//! Parses the block device's configuration (virtio 1.2, 5.2.4) into the disk's geometry.

use crate::hal::{Features, Geometry, Registers};
use crate::virtio::{Agreed, Error, Transport, read_config};

const SIZE_MAX: u64 = 1 << 1;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;
const CONFIG_WCE: u64 = 1 << 11;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

/// Features that the driver accepts if the device offers them.
pub const WANTED: u64 =
    SIZE_MAX | READ_ONLY | BLOCK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | DISCARD | WRITE_ZEROES;

// struct virtio_blk_config.
const AT_CAPACITY: usize = 0;
const AT_SIZE_MAX: usize = 8;
const AT_BLOCK_SIZE: usize = 20;
const AT_PHYSICAL_EXPONENT: usize = 24;
const AT_WRITEBACK: usize = 32;
const AT_DISCARD_SECTORS: usize = 36;
const AT_DISCARD_ALIGNMENT: usize = 44;
const AT_ZEROES_SECTORS: usize = 48;

/// Bytes of a sector, for any block size.
pub const SECTOR: u32 = 512;
/// Largest transfer in one descriptor if the device reports no limit.
const MOST_TRANSFER: u32 = 16 << 20;
const MOST_BLOCK: u32 = 1 << 16;

/// Reads the geometry of the disk. Impossible values are errors.
pub fn geometry(transport: &dyn Transport, agreed: Agreed) -> Result<Geometry, Error> {
    read_config(transport, |config| parse(config, agreed)).ok_or(Error::Config("generation"))?
}

/// Reads the capacity alone: sectors in whole blocks of `block` bytes.
pub fn capacity(transport: &dyn Transport, block: u32) -> Option<u64> {
    read_config(transport, read_capacity).map(|sectors| whole_blocks(sectors, block))
}

/// Rounds down to whole blocks. A device may report more sectors, but they cannot be read.
fn whole_blocks(sectors: u64, block: u32) -> u64 {
    let per_block = u64::from((block / SECTOR).max(1));
    sectors / per_block * per_block
}

fn read_capacity(config: &dyn Registers) -> u64 {
    let low = config.read32(AT_CAPACITY);
    u64::from(config.read32(AT_CAPACITY + 4)) << 32 | u64::from(low)
}

fn parse(config: &dyn Registers, agreed: Agreed) -> Result<Geometry, Error> {
    let read_if = |feature, at| if agreed.has(feature) { config.read32(at) } else { 0 };
    let sectors = read_capacity(config);
    if sectors.checked_mul(SECTOR.into()).is_none() {
        return Err(Error::Config("capacity"));
    }
    let logical_block = match agreed.has(BLOCK_SIZE) {
        true => config.read32(AT_BLOCK_SIZE),
        false => SECTOR,
    };
    if !logical_block.is_power_of_two() || !(SECTOR..=MOST_BLOCK).contains(&logical_block) {
        return Err(Error::Config("block size"));
    }
    let exponent = if agreed.has(TOPOLOGY) { config.read8(AT_PHYSICAL_EXPONENT) } else { 0 };
    // The physical block is a hint: an invalid one is ignored.
    let physical_block = match logical_block.checked_shl(exponent.into()) {
        Some(block) if exponent < 16 && block <= MOST_TRANSFER => block,
        _ => logical_block,
    };
    let size_max = read_if(SIZE_MAX, AT_SIZE_MAX);
    let limit = if size_max == 0 { MOST_TRANSFER } else { size_max.min(MOST_TRANSFER) };
    let max_transfer = limit & !(logical_block - 1);
    if max_transfer == 0 {
        return Err(Error::Config("segment size"));
    }
    let whole = |sectors: u32| whole_blocks(sectors.into(), logical_block) as u32;
    let max_discard_sectors = whole(read_if(DISCARD, AT_DISCARD_SECTORS));
    let max_write_zeroes_sectors = whole(read_if(WRITE_ZEROES, AT_ZEROES_SECTORS));
    let granularity = read_if(DISCARD, AT_DISCARD_ALIGNMENT).max(1);
    let volatile =
        agreed.has(FLUSH) && (!agreed.has(CONFIG_WCE) || config.read8(AT_WRITEBACK) != 0);
    let mut features = Features::empty();
    features.set(Features::READ_ONLY, agreed.has(READ_ONLY));
    features.set(Features::VOLATILE_CACHE, volatile);
    features.set(Features::DISCARD, max_discard_sectors > 0);
    features.set(Features::WRITE_ZEROES, max_write_zeroes_sectors > 0);
    Ok(Geometry {
        sectors: whole_blocks(sectors, logical_block),
        logical_block,
        physical_block,
        max_transfer,
        max_discard_sectors,
        discard_granularity: granularity.saturating_mul(SECTOR).max(logical_block),
        max_write_zeroes_sectors,
        features,
    })
}

/// Whether the device takes flushes. If not, completed writes are durable.
pub fn takes_flush(agreed: Agreed) -> bool {
    agreed.has(FLUSH)
}
