//! Register layout, and the resource table in BAR 0 that describes it (Linux:
//! `drivers/net/ethernet/cisco/enic/vnic_resource.h`).

use super::{Config, Fault};

/// Bytes of BAR 0, and of BAR 2, which has the MSI-X table.
pub const BAR_0: u64 = 0x8000;
pub const BAR_2: u64 = 0x1000;
pub const MSIX_PENDING: u32 = 0x800;

/// Bytes of a block of registers.
pub const BLOCK: u64 = 128;

pub const DEVCMD: u64 = 0x1000;
pub const DEVCMD2: u64 = 0x1800;
pub const WORK: u64 = 0x2000;
pub const RECEIVE: u64 = 0x3000;
pub const COMPLETION: u64 = 0x4000;
pub const INTERRUPT: u64 = 0x5000;
pub const LEGACY_PENDING: u64 = 0x6000;

const MAGIC: u32 = 0x766e_6963;

/// The table: magic, version, and 12 bytes for each kind of resource.
pub fn table(settings: &Config, has: impl Fn(Fault) -> bool) -> Vec<u8> {
    let magic = if has(Fault::NoTable) { !MAGIC } else { MAGIC };
    let mut table = [magic, 0].map(u32::to_le_bytes).concat();
    let mut add = |kind: u8, bar: u8, offset: u64, count: u32| {
        table.extend([kind, bar, 0, 0]);
        table.extend((offset as u32).to_le_bytes());
        table.extend(count.to_le_bytes());
    };
    let work = if has(Fault::TableBeyondBar) { BAR_0 - 64 } else { WORK };
    add(1, 0, work, settings.work_queues);
    add(2, 0, RECEIVE, settings.receive_queues);
    if !has(Fault::NoCompletionQueues) {
        add(3, 0, COMPLETION, settings.work_queues + settings.receive_queues);
    }
    add(10, 0, INTERRUPT, settings.interrupts);
    if settings.vectors > 0 {
        add(11, 2, 0, settings.vectors.into());
        add(12, 2, MSIX_PENDING.into(), 1);
    }
    add(13, 0, LEGACY_PENDING, 4);
    // A resource of an unknown kind.
    add(200, 5, 0xffff_fff0, 0xffff);
    add(16, 0, DEVCMD, BLOCK as u32);
    if settings.devcmd2 {
        add(24, 0, DEVCMD2, BLOCK as u32);
    }
    if has(Fault::TableWithoutEnd) {
        while table.len() < DEVCMD as usize {
            table.extend([9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        }
    }
    table.resize(DEVCMD as usize, 0);
    table
}
