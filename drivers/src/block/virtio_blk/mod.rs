//! Virtio block device (virtio 1.2, 5.2) as a [`Disk`]: one queue, three descriptors for each request (header, data,
//! status), no copies of data. No multi-queue, no zoned storage, no secure erase.

mod config;
mod dump;
#[cfg(test)]
mod tests;

use super::{OpenDisk, Opened};
use crate::driver::{Device, OpenError};
use crate::hal::{
    Arena, Clock, Completion, CrashWriter, Disk, DiskError, Features, Geometry, Instant, Notice,
    Operation, Platform, Request, SubmitError, Window,
};
use crate::virtio::{
    self, Agreed, Descriptor, Error, Live, Ring, Setup, Taken, Transport, Vigil, reset,
};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use config::SECTOR;
use core::time::Duration;

const QUEUE: u16 = 0;
const MOST_ENTRIES: u16 = 1024;
/// Descriptors of a request: header, data, status.
const PARTS: u16 = 3;

// Request types (5.2.6).
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const UNMAP: u32 = 1;

const STATUS_OK: u8 = 0;
const STATUS_IO_ERROR: u8 = 1;
const STATUS_UNSUPPORTED: u8 = 2;
/// Preset status: still there if the device wrote none.
const STATUS_NONE: u8 = 0xff;

// A request's slot: header, segment of a discard or write-zeroes, serial number, status.
const SLOT: usize = 64;
const AT_SEGMENT: usize = 16;
const SEGMENT: u32 = 16;
const AT_SERIAL: usize = 32;
const SERIAL: usize = 20;
const AT_STATUS: usize = 60;

/// Longest time to read the serial number. A disk that takes longer is given up.
const SERIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Sets a device up.
pub fn open(
    device: Device,
    platform: &mut dyn Platform,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let transport = virtio::attach(device, platform)?;
    let polled = virtio::attach_polled(device, platform).ok();
    let mut disk = VirtioBlk::open(transport, platform.arena())?;
    let serial = disk.serial(clock);
    let crash = polled.map(|it| Box::new(dump::VirtioBlkCrash::new(it)) as Box<dyn CrashWriter>);
    let location = device.location();
    let (model, firmware) = (String::new(), String::new());
    let disk = OpenDisk { location, serial, model, firmware, disk: Box::new(disk), crash };
    Ok(alloc::vec![disk].into())
}

/// A virtio block device.
struct VirtioBlk {
    transport: Live,
    ring: Ring,
    agreed: Agreed,
    geometry: Geometry,
    slots: Window,
    free: Vec<u16>,
    /// Tag of each slot's request, while it is in flight.
    tags: Box<[Option<u64>]>,
    /// Slots of requests that end without the device: flushes of a disk without a volatile cache.
    done: Vec<u16>,
    broken: bool,
    vigil: Vigil,
}

impl VirtioBlk {
    /// Sets the device up with memory of `arena`.
    fn open(mut transport: Box<dyn Transport>, arena: &mut Arena) -> Result<Self, Error> {
        let mut setup = Setup::begin(&mut *transport, arena, config::WANTED)?;
        let agreed = setup.agreed();
        let geometry = config::geometry(setup.transport(), agreed)?;
        let ring = setup.queue(QUEUE, MOST_ENTRIES, true)?;
        let depth = ring.size() / PARTS;
        if depth == 0 {
            return Err(Error::QueueRefused { index: QUEUE, entries: PARTS });
        }
        let slots = setup.alloc(usize::from(depth) * SLOT, SLOT)?;
        setup.finish();
        Ok(VirtioBlk {
            transport: Live::new(transport),
            ring,
            agreed,
            geometry,
            slots,
            free: (0..depth).rev().collect(),
            tags: alloc::vec![None; depth.into()].into(),
            done: Vec::with_capacity(depth.into()),
            broken: false,
            vigil: Vigil::default(),
        })
    }

    /// Reads the serial number of the disk; empty if it has none. Polls the device, so it is for bring-up only, with no
    /// request in flight.
    fn serial(&mut self, clock: &dyn Clock) -> String {
        let Some(slot) = self.take_slot(0) else { return String::new() };
        let window = self.slot(slot);
        window.fill(0);
        let serial = window.slice(AT_SERIAL, SERIAL).unwrap_or(Window::empty());
        self.queue(slot, GET_ID, 0, Some((serial, true)));
        self.flush_queue();
        let deadline = clock.now() + SERIAL_TIMEOUT;
        let answer = loop {
            match self.poll() {
                Some(completion) => break completion.result.is_ok(),
                None if clock.now() < deadline => crate::hal::relax(),
                None => self.give_up(),
            }
        };
        let mut bytes = [0; SERIAL];
        if !answer || serial.read(0, &mut bytes).is_err() {
            return String::new();
        }
        let text = bytes.split(|&b| b == 0).next().unwrap_or_default();
        text.iter().filter(|b| b.is_ascii_graphic()).map(|&b| char::from(b)).collect()
    }

    fn slot(&self, slot: u16) -> Window {
        self.slots.slice(usize::from(slot) * SLOT, SLOT).unwrap_or(Window::empty())
    }

    fn take_slot(&mut self, tag: u64) -> Option<u16> {
        let slot = self.free.pop()?;
        self.tags[usize::from(slot)] = Some(tag);
        Some(slot)
    }

    /// Whether `sectors` sectors from `sector` are on the disk and in whole blocks.
    fn on_disk(&self, sector: u64, sectors: u64) -> bool {
        let block = u64::from(self.geometry.logical_block / SECTOR);
        let end = sector.checked_add(sectors);
        sectors > 0
            && end.is_some_and(|end| end <= self.geometry.sectors)
            && sector.is_multiple_of(block)
            && sectors.is_multiple_of(block)
    }

    /// Checks a request. Returns its type.
    fn check(&self, request: &Request) -> Result<u32, SubmitError> {
        let geometry = &self.geometry;
        let can = |feature| geometry.features.contains(feature);
        if can(Features::READ_ONLY)
            && !matches!(request.operation, Operation::Read | Operation::Flush)
        {
            return Err(SubmitError::Unsupported);
        }
        let bytes = request.data.len();
        let whole = bytes.is_multiple_of(SECTOR as usize);
        let data_sectors = (bytes / SECTOR as usize) as u64;
        let (kind, sectors, fits) = match request.operation {
            Operation::Read => (IN, data_sectors, whole && bytes <= geometry.max_transfer as usize),
            Operation::Write => {
                (OUT, data_sectors, whole && bytes <= geometry.max_transfer as usize)
            }
            Operation::WriteThrough => return Err(SubmitError::Unsupported),
            Operation::Flush => return Ok(FLUSH),
            Operation::Discard { .. } if !can(Features::DISCARD) => {
                return Err(SubmitError::Unsupported);
            }
            Operation::WriteZeroes { .. } if !can(Features::WRITE_ZEROES) => {
                return Err(SubmitError::Unsupported);
            }
            Operation::Discard { sectors } => {
                (DISCARD, sectors.into(), sectors <= geometry.max_discard_sectors)
            }
            Operation::WriteZeroes { sectors, .. } => {
                (WRITE_ZEROES, sectors.into(), sectors <= geometry.max_write_zeroes_sectors)
            }
        };
        let good = fits && self.on_disk(request.sector, sectors);
        if good { Ok(kind) } else { Err(SubmitError::Range) }
    }

    /// Describes the request in `slot` and offers it. `data`: the buffer, and whether the device writes it.
    #[inline]
    fn queue(&mut self, slot: u16, kind: u32, sector: u64, data: Option<(Window, bool)>) {
        let window = self.slot(slot);
        window.store64(0, kind.into());
        window.store64(8, sector);
        window.store16(AT_STATUS, STATUS_NONE.into());
        let head = slot * PARTS;
        let address = window.bus_address();
        let next = Some(if data.is_some() { head + 1 } else { head + 2 });
        self.ring.describe(head, Descriptor { address, len: 16, device_writes: false, next });
        if let Some((data, device_writes)) = data {
            let (address, len) = (data.bus_address(), data.len() as u32);
            let next = Some(head + 2);
            self.ring.describe(head + 1, Descriptor { address, len, device_writes, next });
        }
        let address = address + AT_STATUS as u64;
        let status = Descriptor { address, len: 1, device_writes: true, next: None };
        self.ring.describe(head + 2, status);
        self.ring.offer(head);
    }

    /// The result in a slot that the device has completed.
    #[inline]
    fn result(&self, slot: u16) -> Result<(), DiskError> {
        match self.slot(slot).load16(AT_STATUS) as u8 {
            STATUS_OK => Ok(()),
            STATUS_IO_ERROR => Err(DiskError::Io),
            STATUS_UNSUPPORTED => Err(DiskError::Unsupported),
            _ => Err(DiskError::Broken),
        }
    }

    /// Resets the device for good, so that it cannot reach the memory of requests in flight. They end as broken.
    fn give_up(&mut self) {
        if !self.broken {
            self.broken = true;
            self.vigil.broke();
            // A device that ignores its reset cannot be stopped.
            let _ = reset(&mut *self.transport);
        }
    }

    /// Ends one request in flight as broken.
    fn end_broken(&mut self) -> Option<Completion> {
        let slot = self.tags.iter().position(Option::is_some)?;
        self.end(slot as u16, Err(DiskError::Broken))
    }

    #[inline]
    fn end(&mut self, slot: u16, result: Result<(), DiskError>) -> Option<Completion> {
        let tag = self.tags.get_mut(usize::from(slot))?.take()?;
        self.free.push(slot);
        Some(Completion { tag, result })
    }
}

impl Disk for VirtioBlk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn depth(&self) -> usize {
        self.tags.len()
    }

    #[inline]
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let kind = self.check(request)?;
        let slot = self.take_slot(request.tag).ok_or(SubmitError::Full)?;
        if self.broken {
            return Ok(());
        }
        let (sector, data) = match request.operation {
            Operation::Read => (request.sector, Some((request.data, true))),
            Operation::Write | Operation::WriteThrough => {
                (request.sector, Some((request.data, false)))
            }
            Operation::Flush if !config::takes_flush(self.agreed) => {
                self.done.push(slot);
                return Ok(());
            }
            Operation::Flush => (0, None),
            Operation::Discard { sectors } => {
                (0, Some((self.segment(slot, request, sectors, 0), false)))
            }
            Operation::WriteZeroes { sectors, unmap } => {
                let flags = if unmap { UNMAP } else { 0 };
                (0, Some((self.segment(slot, request, sectors, flags), false)))
            }
        };
        self.queue(slot, kind, sector, data);
        Ok(())
    }

    #[inline]
    fn flush_queue(&mut self) {
        if self.ring.publish() {
            self.transport.notify(QUEUE);
        }
    }

    #[inline]
    fn poll(&mut self) -> Option<Completion> {
        if let Some(slot) = self.done.pop() {
            return self.end(slot, Ok(()));
        }
        if self.broken {
            return self.end_broken();
        }
        match self.ring.take() {
            Taken::Nothing => None,
            // Only first descriptors are ever offered, so the division names the slot.
            Taken::Chain { head, .. } => {
                let slot = head / PARTS;
                let result = self.result(slot);
                if result == Err(DiskError::Broken) {
                    self.give_up();
                }
                self.end(slot, result)
            }
            Taken::Nonsense => {
                self.give_up();
                self.end_broken()
            }
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.transport.acknowledge();
        self.ring.set_interrupts(wanted);
    }

    fn wakes(&self) -> bool {
        self.transport.wakes()
    }

    fn capacity_changed(&mut self) -> bool {
        let Geometry { sectors, logical_block, .. } = self.geometry;
        if self.broken || config::capacity(&*self.transport, logical_block) == Some(sectors) {
            return false;
        }
        match config::geometry(&*self.transport, self.agreed) {
            Ok(geometry) => {
                let changed = geometry.sectors != self.geometry.sectors;
                self.geometry = geometry;
                changed
            }
            // Invalid values, such as half a change, are ignored until they are valid again.
            Err(_) => false,
        }
    }

    fn pending(&self) -> bool {
        self.ring.pending()
    }

    /// Notifies a stalled device again of the requests that it has.
    fn watch(&mut self, _: Instant) {
        let still = !self.broken && self.ring.stands_still();
        if still {
            self.transport.notify(QUEUE);
        }
        self.vigil.see(still);
    }

    fn notice(&mut self) -> Option<Notice> {
        self.vigil.notice()
    }

    fn interrupts(&self) -> u64 {
        self.transport.interrupts()
    }
}

impl VirtioBlk {
    /// Writes the segment of a discard or write-zeroes into the slot.
    fn segment(&self, slot: u16, request: &Request, sectors: u32, flags: u32) -> Window {
        let window = self.slot(slot);
        window.store64(AT_SEGMENT, request.sector);
        window.store32(AT_SEGMENT + 8, sectors);
        window.store32(AT_SEGMENT + 12, flags);
        window.slice(AT_SEGMENT, SEGMENT as usize).unwrap_or(Window::empty())
    }
}
