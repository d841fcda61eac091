//! Discovery of an adapter's units and their geometry at bring-up: one command after the other.

use super::adapter::{Adapter, Limits, MOST_ZEROES, Place};
use super::command::{self, Answer, CAPACITY, Capacity, Cdb};
use super::controller::Controller;
use crate::hal::{Clock, Features, Geometry};
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// Longest time for a command.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Largest transfer if neither the unit nor the controller reports a limit.
const MOST_TRANSFER: u32 = 16 << 20;
/// Most blocks of one WRITE SAME if the unit reports no limit, as in Linux (`drivers/scsi/sd.h`).
const MOST_WRITE_SAME: u64 = 0x7f_ffff;
const SECTOR: u32 = 512;

// Pages of vital product data (SPC-4, 7.8; SBC-3, 6.5) and mode pages.
const SERIAL_NUMBER: u8 = 0x80;
const BLOCK_LIMITS: u8 = 0xb0;
const PROVISIONING: u8 = 0xb2;
const CACHING: u8 = 8;

/// A disk behind the adapter.
pub struct Unit {
    pub place: Place,
    pub serial: String,
    pub geometry: Geometry,
    /// The unit reports that its volatile write cache is on.
    pub caches: bool,
}

/// Executes commands on one adapter.
struct Prober<'a, A: Adapter> {
    controller: &'a mut Controller<A>,
    clock: &'a dyn Clock,
}

impl<A: Adapter> Prober<'_, A> {
    /// Executes a command that returns up to `N` bytes; missing bytes are zero.
    fn execute<const N: usize>(&mut self, place: Place, cdb: &Cdb) -> Option<(Answer, [u8; N])> {
        let into = self.controller.scratch().slice(0, N)?;
        into.fill(0);
        let deadline = self.clock.now() + TIMEOUT;
        let data = (N > 0).then_some((into, true));
        let answer = self.controller.execute(place, cdb, data, || self.clock.now() < deadline)?;
        let mut bytes = [0; N];
        into.read(0, &mut bytes).ok()?;
        Some((answer, bytes))
    }

    /// Executes a command, and returns its data if it succeeded.
    fn get<const N: usize>(&mut self, place: Place, cdb: &Cdb) -> Option<[u8; N]> {
        let (answer, bytes) = self.execute(place, cdb)?;
        (answer == Answer::Done).then_some(bytes)
    }

    /// Reads a page of vital product data.
    fn page<const N: usize>(&mut self, place: Place, page: u8) -> Option<[u8; N]> {
        let bytes: [u8; N] = self.get(place, &command::inquiry(Some(page), N as u16))?;
        (bytes[1] == page).then_some(bytes)
    }

    /// Reads the single-level LUNs of a target (SAM-5, 4.7).
    fn luns(&mut self, target: u8) -> Vec<u16> {
        const LEN: usize = 248;
        let cdb = command::report_luns(LEN as u32);
        let Some((answer, bytes)) = self.execute::<LEN>(Place { target, lun: 0 }, &cdb) else {
            return Vec::new();
        };
        match answer {
            Answer::Done => {}
            Answer::Illegal => return alloc::vec![0],
            _ => return Vec::new(),
        }
        let len = be32(&bytes, 0) as usize;
        let entries = bytes[8..].chunks_exact(8).take(len / 8);
        let entries =
            entries.filter(|entry| entry[2..] == [0; 6] && matches!(entry[0] >> 6, 0 | 1));
        entries.map(|entry| u16::from_be_bytes([entry[0] & 0x3f, entry[1]])).collect()
    }

    /// Reads the parameters of a unit. None if it is not a disk, or is not ready.
    fn unit(&mut self, place: Place, limits: Limits) -> Option<Unit> {
        let inquiry: [u8; 36] = self.get(place, &command::inquiry(None, 36))?;
        // Connected (qualifier 0), and a direct access block device.
        if inquiry[0] != 0 {
            return None;
        }
        self.get::<0>(place, &command::test_unit_ready())?;
        let capacity = self.get::<CAPACITY>(place, &command::read_capacity())?;
        let capacity = Capacity::parse(&capacity)?;
        let serial = self.page::<68>(place, SERIAL_NUMBER).map_or(String::new(), serial);
        let pages = Pages {
            limits: self.page(place, BLOCK_LIMITS).unwrap_or([0; 64]),
            provisioning: self.page(place, PROVISIONING).unwrap_or([0; 8]),
            mode: self.get(place, &command::mode_sense(CACHING, 64)),
        };
        let caches = pages.mode.is_some_and(|page| mode(page).caches == Some(true));
        Some(Unit { place, serial, geometry: pages.geometry(capacity, limits), caches })
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_be_bytes(*four))
}

/// The visible characters of a serial number.
fn serial(page: [u8; 68]) -> String {
    let text = page[4..].iter().take(page[3].into());
    text.filter(|byte| byte.is_ascii_graphic()).map(|&byte| char::from(byte)).collect()
}

/// Pages of a unit; zeroes for pages that it lacks.
struct Pages {
    limits: [u8; 64],
    provisioning: [u8; 8],
    mode: Option<[u8; 64]>,
}

impl Pages {
    fn geometry(&self, capacity: Capacity, limits: Limits) -> Geometry {
        let block = capacity.block;
        let per_block = block / SECTOR;
        let some = |blocks: u32| Some(blocks).filter(|&blocks| blocks > 0);
        let transfer = some(be32(&self.limits, 8)).map_or(u32::MAX, |n| n.saturating_mul(block));
        let transfer = transfer.min(limits.most_sectors.saturating_mul(SECTOR)).min(MOST_TRANSFER);
        let max_transfer = (transfer / block * block).max(block);
        let physical = capacity.per_physical.saturating_mul(block);
        let unmaps = self.provisioning[5] & 0x80 != 0;
        let most_unmap = if unmaps { be32(&self.limits, 20) } else { 0 };
        let granularity = be32(&self.limits, 28).max(1);
        // Bounded, so that the count of sectors fits into 32 bits even if the unit reports no limit.
        let most = u32::MAX / per_block;
        let fills = self.provisioning[5] & 0x40 != 0 && block as usize <= MOST_ZEROES;
        let most_same = u64::from(be32(&self.limits, 36)) << 32 | u64::from(be32(&self.limits, 40));
        let most_same = if most_same == 0 { MOST_WRITE_SAME } else { most_same };
        let most_same = if fills { most_same.min(MOST_WRITE_SAME) as u32 } else { 0 };
        // A unit without the mode page is assumed to have a volatile cache.
        let mode = self.mode.map_or(Mode::default(), mode);
        let mut features = Features::empty();
        features.set(Features::READ_ONLY, mode.read_only);
        features.set(Features::VOLATILE_CACHE, mode.caches != Some(false));
        features.set(Features::DISCARD, most_unmap > 0);
        features.set(Features::WRITE_ZEROES, most_same > 0);
        Geometry {
            sectors: capacity.blocks * u64::from(per_block),
            logical_block: block,
            physical_block: if physical <= MOST_TRANSFER { physical } else { block },
            max_transfer,
            max_discard_sectors: most_unmap.min(most) * per_block,
            discard_granularity: granularity.saturating_mul(block),
            max_write_zeroes_sectors: most_same.min(most) * per_block,
            features,
        }
    }
}

/// A unit's mode parameters.
#[derive(Default)]
struct Mode {
    read_only: bool,
    /// Whether the volatile write cache is on; None if the unit does not say.
    caches: Option<bool>,
}

/// Decodes the answer to MODE SENSE (6) for the caching page (SPC-4, 7.5.5; SBC-3, 6.4.5).
fn mode(mode: [u8; 64]) -> Mode {
    let page = 4 + usize::from(mode[3]);
    let there = mode.get(page).is_some_and(|code| code & 0x3f == CACHING);
    let caches = mode.get(page + 2).filter(|_| there).map(|flags| flags & 4 != 0);
    Mode { read_only: mode[2] & 0x80 != 0, caches }
}

/// The disks behind an adapter, as many as there are slots for, in the order of targets and LUNs.
pub fn units<A: Adapter>(
    controller: &mut Controller<A>,
    limits: Limits,
    clock: &dyn Clock,
) -> Vec<Unit> {
    let most = controller.most_units();
    let mut prober = Prober { controller, clock };
    let mut found = Vec::new();
    for target in 0..=u8::try_from(limits.last_target).unwrap_or(u8::MAX) {
        let mut luns = prober.luns(target);
        luns.sort_unstable();
        luns.dedup();
        for lun in luns {
            if u32::from(lun) <= limits.last_lun && found.len() < most {
                found.extend(prober.unit(Place { target, lun }, limits));
            }
        }
    }
    found
}
