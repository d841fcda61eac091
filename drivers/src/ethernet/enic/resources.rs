//! The resource table at the beginning of BAR 0, which locates the registers (Linux: `vnic_resource.h`): magic,
//! version, then entries of 12 bytes: kind (8 bits), BAR (8 bits), 16 unused bits, offset, count. Little-endian.

use super::error::Error;
use super::registers::BLOCK;
use crate::hal::{Platform, Registers};
use crate::pci::Bars;
use alloc::boxed::Box;

const MAGIC: u32 = 0x766e_6963;
const HEADER: usize = 8;
const ENTRY: usize = 12;
/// Bytes of BAR 0 in which the table must end.
const MOST: usize = 4096;
/// Maximum number of entries, more than there are kinds.
const MOST_ENTRIES: usize = 64;

const END: u8 = 0;
const WORK: u8 = 1;
const RECEIVE: u8 = 2;
const COMPLETION: u8 = 3;
const INTERRUPT: u8 = 10;
const MAILBOX: u8 = 16;
const RING: u8 = 24;

/// Blocks of registers of one kind: their address, and number.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    address: u64,
    count: u32,
}

impl Place {
    /// Maps the first `most` blocks.
    fn map(&self, most: u32, platform: &mut dyn Platform) -> Result<Box<dyn Registers>, Error> {
        let len = self.count.min(most) as usize * BLOCK;
        platform.map_registers(self.address, len).ok_or(Error::NoRegisters)
    }
}

/// Mapped resources of a vNIC that the driver uses.
pub struct Resources {
    /// The first work queue.
    pub work: Box<dyn Registers>,
    /// One receive queue, or two.
    pub receive: Box<dyn Registers>,
    /// Two completion queues, or three.
    pub completion: Box<dyn Registers>,
    /// Two interrupts, one, or none.
    pub interrupt: Option<Box<dyn Registers>>,
    /// Command mailbox. There is a mailbox, a ring, or both.
    pub mailbox: Option<Box<dyn Registers>>,
    /// Command ring (devcmd2).
    pub ring: Option<Box<dyn Registers>>,
}

impl Resources {
    pub fn find(bars: &Bars, platform: &mut dyn Platform) -> Result<Self, Error> {
        let bar = bars.get(0).ok_or(Error::NoRegisters)?;
        let len = MOST.min(bar.size as usize);
        let address = bar.range(0, len as u64).ok_or(Error::NoRegisters)?;
        let table = platform.map_registers(address, len).ok_or(Error::NoRegisters)?;
        match (table.read32(0), table.read32(4)) {
            (u32::MAX, _) => return Err(Error::Absent),
            (MAGIC, 0) => {}
            (magic, _) => return Err(Error::NoTable(magic)),
        }
        let mut places = [Place::default(); RING as usize + 1];
        let most = ((len - HEADER) / ENTRY).min(MOST_ENTRIES);
        let mut at = (0..most).map(|n| HEADER + n * ENTRY);
        loop {
            let at = at.next().ok_or(Error::BadTable("end"))?;
            let [kind, bar, ..] = table.read32(at).to_le_bytes();
            let (offset, count) = (table.read32(at + 4), table.read32(at + 8));
            let (what, bytes) = match kind {
                END => break,
                WORK => ("work queues", u64::from(count) * BLOCK as u64),
                RECEIVE => ("receive queues", u64::from(count) * BLOCK as u64),
                COMPLETION => ("completion queues", u64::from(count) * BLOCK as u64),
                INTERRUPT => ("interrupts", u64::from(count) * BLOCK as u64),
                // The count is in bytes.
                MAILBOX | RING => ("commands", u64::from(count).max(BLOCK as u64)),
                _ => continue,
            };
            let address = bars.get(bar).and_then(|bar| bar.range(offset.into(), bytes));
            let address = address.ok_or(Error::BadTable(what))?;
            let count = if kind == MAILBOX || kind == RING { 1 } else { count };
            places[usize::from(kind)] = Place { address, count };
        }
        Self::map(&places, platform)
    }

    fn map(places: &[Place], platform: &mut dyn Platform) -> Result<Self, Error> {
        let place = |kind: u8| places[usize::from(kind)];
        let least = [
            (WORK, 1, "work queues"),
            (RECEIVE, 1, "receive queues"),
            (COMPLETION, 2, "completion queues"),
        ];
        for (kind, count, what) in least {
            if place(kind).count < count {
                return Err(Error::TooFew(what));
            }
        }
        let mut some = |kind: u8, most: u32| match place(kind).count {
            0 => Ok(None),
            _ => place(kind).map(most, platform).map(Some),
        };
        let (interrupt, mailbox, ring) = (some(INTERRUPT, 2)?, some(MAILBOX, 1)?, some(RING, 1)?);
        if mailbox.is_none() && ring.is_none() {
            return Err(Error::TooFew("command interfaces"));
        }
        Ok(Resources {
            work: place(WORK).map(1, platform)?,
            receive: place(RECEIVE).map(2, platform)?,
            completion: place(COMPLETION).map(3, platform)?,
            interrupt,
            mailbox,
            ring,
        })
    }
}
