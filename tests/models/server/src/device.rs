//! A model as a vfio-user device: handles the client's requests.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use models::{
    Function, Interrupt, LATE_MODELS, Lateness, Machine, Nanoseconds, Unreachable,
    take_function_reset,
};
use rustix::io::Errno;

use crate::interrupts::EventFds;
use crate::memory::SharedMemory;
use crate::message::{
    BadMessage, Body, CONFIG_REGION, Command, DEVICE_FLAGS, DMA_WRITABLE, IRQ_AUTOMASKED,
    IRQ_EVENTFD, IRQ_INTX, IRQ_MASKABLE, IRQ_MSI, IRQ_MSIX, IRQS, LONGEST_ACCESS, Message,
    REGION_FLAGS, REGION_MAPPABLE, REGIONS, UNMAP_ALL,
};
use crate::portal::Portal;

/// Capabilities in the reply to VERSION. Without `write_multiple`, because QEMU 11.1 then forces every message through
/// a queue.
const CAPABILITIES: &str =
    "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576}}\0";

/// Bytes of configuration space.
const CONFIG_SIZE: u64 = 4096;
/// Command register: BARs are decoded.
const MEMORY_SPACE: u8 = 2;
/// Interval at which portals are polled.
const PORTAL_INTERVAL: Nanoseconds = 20_000;
/// Type bits of a 64-bit memory BAR.
const WIDE: u8 = 4;

/// Another function of the same guest, whose BARs a function can write to.
struct Neighbour {
    device: Weak<RefCell<Device>>,
    /// The neighbour was written to, and must be polled.
    is_written: Rc<Cell<bool>>,
}

/// The guest's side of a function.
#[derive(Default)]
struct Guest {
    memory: Arc<SharedMemory>,
    interrupts: EventFds,
    neighbour: Option<Neighbour>,
    now: Nanoseconds,
}

impl Machine for Guest {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreachable> {
        self.memory.lock().read(address, into)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Unreachable> {
        if let Some(Neighbour { device, is_written }) = &self.neighbour
            && let Some(device) = device.upgrade()
            && device.borrow_mut().write_from_neighbour(address, bytes, self.now)
        {
            is_written.set(true);
            return Ok(());
        }
        self.memory.lock().write(address, bytes)
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> bool {
        self.interrupts.raise(interrupt)
    }
}

/// The complete reply to a message, and the file descriptor to send with it.
#[derive(Debug)]
pub struct Answer {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// A file for the client to map.
    pub file: Option<OwnedFd>,
}

/// A function, and the memory and interrupts that its client has registered.
pub struct Device {
    function: Box<dyn Function>,
    guest: Guest,
    portal: Option<Portal>,
}

impl Device {
    /// Creates a device without a client. Fails if there is no memory for its portals.
    pub fn new(mut function: Box<dyn Function>) -> std::io::Result<Self> {
        let guest = Guest::default();
        function.attach(guest.memory.clone());
        if let Some(lateness) = Lateness::of(std::env::var(LATE_MODELS).ok().as_deref()) {
            function.be_late(lateness);
        }
        let portal = function.portals().map(Portal::new).transpose()?;
        Ok(Device { function, guest, portal })
    }

    /// Makes `device` a neighbour in the same guest: this device can write to its BARs. Each such write sets
    /// `is_written`.
    pub fn set_neighbour(&mut self, device: &Rc<RefCell<Device>>, is_written: Rc<Cell<bool>>) {
        self.guest.neighbour = Some(Neighbour { device: Rc::downgrade(device), is_written });
    }

    /// Handles a neighbour's write to a bus address. Returns whether the address is in one of this device's BARs.
    fn write_from_neighbour(&mut self, address: u64, bytes: &[u8], now: Nanoseconds) -> bool {
        let Some((bar, offset)) = self.place(address, bytes.len()) else { return false };
        self.guest.now = now;
        self.function.write(bar, offset, bytes, now, &mut self.guest);
        true
    }

    /// The BAR that contains these bytes of the bus, and the offset in it. None while the guest has not assigned an
    /// address.
    fn place(&mut self, address: u64, length: usize) -> Option<(u8, u64)> {
        if !self.decodes() {
            return None;
        }
        let bars = self.function.bars().to_vec();
        let config = self.function.config();
        bars.into_iter().find_map(|bar| {
            let mut base = [0; 8];
            config.read(0x10 + 4 * u64::from(bar.index), &mut base);
            if base[0] & WIDE != WIDE {
                base[4..].fill(0);
            }
            let base = u64::from_le_bytes(base) & !0xf;
            let offset = address.checked_sub(base).filter(|_| base != 0)?;
            let end = offset.checked_add(length as u64)?;
            (end <= bar.size).then_some((bar.index, offset))
        })
    }

    /// Whether the function decodes its BARs (Memory Space Enable).
    fn decodes(&mut self) -> bool {
        let mut command = [0; 2];
        self.function.config().read(4, &mut command);
        command[0] & MEMORY_SPACE != 0
    }

    /// The model.
    pub fn function(&self) -> &dyn Function {
        &*self.function
    }

    /// Gives the model a command in its own syntax.
    pub fn order(&mut self, words: &str) -> Result<(), String> {
        self.function.order(words)
    }

    /// Releases the client's memory and interrupts after it has disconnected, and resets the function to its power-on
    /// state.
    pub fn detach_client(&mut self) {
        self.guest.memory.lock().unmap(0, 0, true);
        self.guest.interrupts = EventFds::default();
        self.reset();
    }

    fn reset(&mut self) {
        self.function.reset();
        // Descriptors that were written before the reset are discarded.
        self.portal.iter().flat_map(Portal::take).for_each(drop);
    }

    /// Does the work that is due. Returns the time of the next work.
    pub fn poll(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        self.guest.now = now;
        let again = self.poll_portal(now);
        let due = self.function.poll(now, &mut self.guest);
        due.into_iter().chain(again).min()
    }

    /// Passes descriptors from the portals to the function. Returns the time of the next poll, if the function has
    /// portals.
    fn poll_portal(&mut self, now: Nanoseconds) -> Option<Nanoseconds> {
        if self.portal.is_none() || !self.decodes() {
            return None;
        }
        let portal = self.portal.as_ref()?;
        for (offset, descriptor) in portal.take() {
            let bar = portal.bar().index;
            self.function.write(bar, offset, &descriptor, now, &mut self.guest);
        }
        Some(now + PORTAL_INTERVAL)
    }

    /// Handles a message. Returns the complete reply, unless the client wants none.
    pub fn handle(
        &mut self,
        message: &Message<'_>,
        fds: Vec<OwnedFd>,
        now: Nanoseconds,
    ) -> Option<Answer> {
        self.guest.now = now;
        let result = self.execute(message, fds, now);
        let file = match message.command() {
            Command::RegionInfo if result.is_ok() => self.file_of(message.body()),
            _ => None,
        };
        message.wants_reply().then(|| {
            let error = |errno: &Errno| errno.raw_os_error() as u32;
            Answer { bytes: message.reply(result.as_deref().map_err(error)), file }
        })
    }

    /// The file that the client can map, if the region in its request is the portal's BAR.
    fn file_of(&self, body: Body<'_>) -> Option<OwnedFd> {
        let index = body.u32(8).ok()?;
        let portal = self.portal.as_ref().filter(|it| u32::from(it.bar().index) == index)?;
        portal.file().try_clone().ok()
    }

    fn execute(
        &mut self,
        message: &Message<'_>,
        fds: Vec<OwnedFd>,
        now: Nanoseconds,
    ) -> Result<Vec<u8>, Errno> {
        let body = message.body();
        match message.command() {
            Command::Version => {
                let version = body.u32(0)?; // major, then minor, of 2 bytes each
                let (major, minor) = (version as u16, (version >> 16) as u16);
                if major != 0 {
                    return Err(Errno::INVAL);
                }
                // The lower minor version is used; QEMU 11.1 sends 0.0.
                let minor = minor.min(1).to_le_bytes();
                Ok([&[0, 0], &minor[..], CAPABILITIES.as_bytes()].concat())
            }
            Command::DmaMap => self.map(body, fds),
            Command::DmaUnmap => {
                let all = body.u32(4)? & UNMAP_ALL != 0;
                self.guest.memory.lock().unmap(body.u64(8)?, body.u64(16)?, all);
                Ok(body.bytes(0, 24)?.to_vec())
            }
            Command::DeviceInfo => Ok(words(&[16, DEVICE_FLAGS, REGIONS, IRQS])),
            Command::RegionInfo => self.region(body.u32(8)?),
            Command::IrqInfo => self.interrupt_kind(body.u32(8)?),
            Command::SetIrqs => {
                let (flags, kind) = (body.u32(4)?, body.u32(8)?);
                self.guest.interrupts.set(kind, flags, body.u32(12)?, body.u32(16)?, fds)?;
                Ok(Vec::new())
            }
            Command::RegionRead => {
                let length = body.u32(12)? as usize;
                if length > LONGEST_ACCESS {
                    return Err(Errno::INVAL);
                }
                let mut answer = body.bytes(0, 16)?.to_vec();
                answer.resize(16 + length, 0);
                self.read(body.u32(8)?, body.u64(0)?, &mut answer[16..])?;
                Ok(answer)
            }
            Command::RegionWrite => {
                let bytes = body.bytes(16, body.u32(12)? as usize)?;
                self.write(body.u32(8)?, body.u64(0)?, bytes, now)?;
                Ok(body.bytes(0, 16)?.to_vec())
            }
            Command::WriteMultiple => {
                for index in 0..body.u64(0)? as usize {
                    let one = Body(body.bytes(8 + 24 * index, 24)?);
                    let bytes = one.bytes(16, (one.u32(12)? as usize).min(8))?;
                    self.write(one.u32(8)?, one.u64(0)?, bytes, now)?;
                }
                Ok(Vec::new())
            }
            Command::DeviceReset => {
                self.reset();
                Ok(Vec::new())
            }
            Command::Unknown => Err(Errno::NOTSUP),
        }
    }

    fn map(&mut self, body: Body<'_>, fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let writable = body.u32(4)? & DMA_WRITABLE != 0;
        let offset = body.u64(8)?;
        let file = fds.into_iter().next().map(|file| (file, offset));
        let mapped = self.guest.memory.lock().map(body.u64(16)?, body.u64(24)?, writable, file);
        let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        mapped.map(|()| Vec::new()).map_err(errno)
    }

    /// Size and access flags of a region: a BAR or configuration space. Other regions have size 0.
    fn region(&self, index: u32) -> Result<Vec<u8>, Errno> {
        if index >= REGIONS {
            return Err(Errno::INVAL);
        }
        let size = match index {
            CONFIG_REGION => CONFIG_SIZE,
            _ => self.bar_size(index).unwrap_or(0),
        };
        let is_portal = |portal: &Portal| u32::from(portal.bar().index) == index;
        let flags = match self.portal.as_ref().is_some_and(is_portal) {
            _ if size == 0 => 0,
            true => REGION_FLAGS | REGION_MAPPABLE,
            false => REGION_FLAGS,
        };
        let mut answer = words(&[32, flags, index, 0]);
        answer.extend(size.to_le_bytes());
        answer.extend(0u64.to_le_bytes());
        Ok(answer)
    }

    /// Number of interrupts of a kind. Without NORESIZE, because QEMU then sets up all vectors at once.
    fn interrupt_kind(&self, kind: u32) -> Result<Vec<u8>, Errno> {
        let all = self.function.interrupts();
        let count = match kind {
            IRQ_INTX => all.intx,
            IRQ_MSI => all.msi,
            IRQ_MSIX => all.msix,
            kind if kind < IRQS => 0,
            _ => return Err(Errno::INVAL),
        };
        let flags = match (kind, count) {
            (_, 0) => 0,
            (IRQ_INTX, _) => IRQ_EVENTFD | IRQ_MASKABLE | IRQ_AUTOMASKED,
            _ => IRQ_EVENTFD,
        };
        Ok(words(&[16, flags, kind, count.into()]))
    }

    fn bar_size(&self, index: u32) -> Option<u64> {
        self.function.bars().iter().find(|bar| u32::from(bar.index) == index).map(|bar| bar.size)
    }

    fn read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            self.function.config().read_at(self.guest.now, offset, into);
            return Ok(());
        }
        self.check(region, offset, into.len())?;
        if self.function.config().is_silent(self.guest.now) {
            into.fill(0xff);
            return Ok(());
        }
        self.function.read(region as u8, offset, into);
        Ok(())
    }

    fn write(
        &mut self,
        region: u32,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
    ) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            self.guest.now = now;
            self.function.config().write_at(now, offset, bytes);
            if take_function_reset(&mut *self.function, now) {
                self.portal.iter().flat_map(Portal::take).for_each(drop);
            }
            return Ok(());
        }
        self.check(region, offset, bytes.len())?;
        self.guest.now = now;
        if self.function.config().is_silent(now) {
            return Ok(());
        }
        self.function.write(region as u8, offset, bytes, now, &mut self.guest);
        Ok(())
    }

    /// Whether an access lies in a BAR.
    fn check(&self, region: u32, offset: u64, length: usize) -> Result<(), Errno> {
        let size = self.bar_size(region).ok_or(Errno::INVAL)?;
        let end = offset.checked_add(length as u64).ok_or(Errno::INVAL)?;
        if end <= size { Ok(()) } else { Err(Errno::INVAL) }
    }
}

impl From<BadMessage> for Errno {
    fn from(_: BadMessage) -> Errno {
        Errno::INVAL
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use models::ntb::intel::{self, IntelNtb};

    const BASE: u64 = 0x38_0000_0000;

    #[test]
    fn writes_reach_a_neighbours_bars_at_their_guest_addresses() {
        let [bridge, _] = IntelNtb::pair(intel::Config::new(intel::DEVICE, 1 << 20));
        let bridge = Rc::new(RefCell::new(Device::new(Box::new(bridge)).unwrap()));
        let write = |at: u64, bytes: &[u8]| bridge.borrow_mut().function.config().write(at, bytes);
        let place = |address, length| bridge.borrow_mut().place(address, length);
        write(0x18, &(BASE as u32).to_le_bytes());
        write(0x1c, &((BASE >> 32) as u32).to_le_bytes());
        assert_eq!(place(BASE, 4), None, "its BARs are not decoded");
        write(4, &[6, 0]);
        assert_eq!(place(BASE, 4), Some((2, 0)));
        assert_eq!(place(BASE + (1 << 20) - 4, 4), Some((2, (1 << 20) - 4)));
        assert_eq!(place(BASE + (1 << 20) - 4, 8), None);
        assert_eq!((place(BASE - 1, 4), place(0, 4), place(u64::MAX - 1, 4)), (None, None, None));
        let is_written = Rc::new(Cell::new(false));
        let mut guest = Guest::default();
        let device = Rc::downgrade(&bridge);
        guest.neighbour = Some(Neighbour { device, is_written: is_written.clone() });
        assert_eq!(guest.write(0x1000, &[1; 4]), Err(Unreachable(0x1000)));
        assert!(!is_written.get());
        guest.write(BASE + 64, &[1; 4]).unwrap();
        assert!(is_written.get());
        let counters = bridge.borrow().function().counters();
        assert!(counters.contains(&("window_writes".into(), 1)), "{counters:?}");
    }
}
