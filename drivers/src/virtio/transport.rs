//! Interface to a virtio device on any bus, and the steps of its setup (virtio 1.2, 2.1 and 3.1).

use super::{Dialect, Error, Ring};
use crate::hal::{Arena, Interrupt, Registers, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
pub(super) const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const FAILED: u8 = 128;

/// VIRTIO_F_EVENT_IDX: interrupts and notifications are requested by ring index.
const EVENT_INDEX: u64 = 1 << 29;
/// VIRTIO_F_VERSION_1: the device supports virtio 1.0 or later.
pub(super) const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_ACCESS_PLATFORM: the device uses bus addresses, as windows have them anyway.
const ACCESS_PLATFORM: u64 = 1 << 33;

/// Reads of the status before a reset counts as failed. A device completes a reset at once or not at all; a read takes
/// 0.1 us or more.
const RESET_READS: u32 = 1_000_000;
/// Most reads of the configuration, if it changes during each.
const CONFIG_READS: u32 = 16;

/// A virtio device on some bus.
pub trait Transport: Send {
    /// The device's type (virtio 1.2, chapter 5).
    fn device_type(&self) -> u32;
    /// Whether the device has only the interface from before virtio 1.0.
    fn legacy(&self) -> bool;
    /// Device status.
    fn status(&self) -> u8;
    /// Sets the device status; 0 resets.
    fn set_status(&mut self, status: u8);
    /// The device's deviations from the standard.
    fn dialect(&self) -> Dialect {
        Dialect::default()
    }
    /// Features that the device offers.
    fn offered_features(&mut self) -> u64;
    /// Sets the features that the driver uses.
    fn accept_features(&mut self, features: u64);
    /// Most entries that queue `index` can have; 0 if there is no such queue.
    fn queue_capacity(&mut self, index: u16) -> u16;
    /// Enables queue `index` with the memory of `ring`. With `interrupts` the queue raises the interrupts that the ring
    /// requests.
    fn enable_queue(&mut self, index: u16, ring: &Ring, interrupts: bool) -> Result<(), Error>;
    /// Notifies the device of new entries in queue `index`.
    fn notify(&self, index: u16);
    /// Changes whenever the configuration does.
    fn config_generation(&self) -> u32;
    /// The device's configuration, if it has one.
    fn config(&self) -> &dyn Registers;
    /// Routes the device's interrupts to another core than the one that set it up, as messages of `interrupt`. False if
    /// the device does not support it.
    fn route(&mut self, interrupt: &Interrupt) -> bool;
    /// Whether the device can wake a halted core.
    fn wakes(&self) -> bool;
    /// Acknowledges a raised interrupt, so that the next one is seen.
    fn acknowledge(&mut self);
    /// Interrupts that the device raised so far.
    fn interrupts(&self) -> u64;
}

/// Negotiated features.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    bits: u64,
    /// The device has the interface from before virtio 1.0: among others, the header of network frames has another
    /// length.
    pub legacy: bool,
}

impl Agreed {
    /// Whether `feature` was negotiated.
    pub fn has(&self, feature: u64) -> bool {
        self.bits & feature != 0
    }

    /// An error unless `feature` was negotiated.
    fn need(&self, feature: u64) -> Result<(), Error> {
        let missing = Error::MissingFeature(feature.trailing_zeros());
        if self.has(feature) { Ok(()) } else { Err(missing) }
    }
}

/// Resets the device and negotiates those of the `wanted` features that it offers. Does not allocate.
pub(super) fn negotiate(transport: &mut dyn Transport, wanted: u64) -> Result<Agreed, Error> {
    reset(transport)?;
    transport.set_status(ACKNOWLEDGE);
    transport.set_status(ACKNOWLEDGE | DRIVER);
    let legacy = transport.legacy();
    let bits = transport.offered_features() & (wanted | ACCESS_PLATFORM);
    let agreed = Agreed { bits, legacy };
    let result = if legacy { Ok(()) } else { agreed.need(VERSION_1) };
    let result = result.and_then(|()| {
        transport.accept_features(bits);
        if legacy {
            return Ok(());
        }
        transport.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        match transport.status() & FEATURES_OK {
            0 => Err(Error::FeaturesRefused(bits)),
            _ => Ok(()),
        }
    });
    if let Err(error) = result {
        // The device has no memory yet.
        let _ = reset(transport);
        transport.set_status(FAILED);
        return Err(error);
    }
    Ok(agreed)
}

/// Sets DRIVER_OK: the device begins to use its queues.
pub(super) fn go_live(transport: &mut dyn Transport, agreed: Agreed) {
    let features_ok = if agreed.legacy { 0 } else { FEATURES_OK };
    transport.set_status(ACKNOWLEDGE | DRIVER | features_ok | DRIVER_OK);
}

/// A device during its setup, and its memory. If an error occurs before [`Setup::finish`], the device is reset before
/// its memory is freed.
pub struct Setup<'a> {
    transport: &'a mut dyn Transport,
    arena: &'a mut Arena,
    agreed: Agreed,
    taken: Vec<Window>,
    finished: bool,
}

impl<'a> Setup<'a> {
    /// Resets the device and negotiates those of the `wanted` features that it offers.
    pub fn begin(
        transport: &'a mut dyn Transport,
        arena: &'a mut Arena,
        wanted: u64,
    ) -> Result<Self, Error> {
        let agreed = negotiate(transport, wanted | VERSION_1 | EVENT_INDEX)?;
        Ok(Setup { transport, arena, agreed, taken: Vec::new(), finished: false })
    }

    /// An error unless `feature` was negotiated.
    pub fn need(&self, feature: u64) -> Result<(), Error> {
        self.agreed.need(feature)
    }

    /// The negotiated features.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// The device.
    pub fn transport(&mut self) -> &mut dyn Transport {
        self.transport
    }

    /// Free bytes of DMA memory.
    pub fn available(&self) -> usize {
        self.arena.available()
    }

    /// Allocates zeroed DMA memory for the device.
    pub fn alloc(&mut self, len: usize, align: usize) -> Result<Window, Error> {
        let window = self.arena.alloc(len, align).ok_or(Error::NoMemory { bytes: len })?;
        window.fill(0);
        self.taken.push(window);
        Ok(window)
    }

    /// Enables queue `index` with as many entries as the device supports, rounded down to a power of two, at most
    /// `most`.
    pub fn queue(&mut self, index: u16, most: u16, interrupts: bool) -> Result<Ring, Error> {
        let capacity = self.transport.queue_capacity(index);
        if capacity == 0 {
            return Err(Error::NoQueue(index));
        }
        let size = 1 << capacity.min(most).ilog2();
        let memory = self.alloc(Ring::bytes(size, self.agreed.legacy), Ring::ALIGN)?;
        let ring = Ring::new(memory, size, self.agreed.legacy, self.agreed.has(EVENT_INDEX))
            .ok_or(Error::NoMemory { bytes: memory.len() })?
            .of(self.transport.dialect());
        self.transport.enable_queue(index, &ring, interrupts)?;
        Ok(ring)
    }

    /// Sets DRIVER_OK, and leaves the memory to the device.
    pub fn finish(mut self) {
        go_live(self.transport, self.agreed);
        self.finished = true;
    }
}

impl Drop for Setup<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // A device that does not come out of reset may still write to its memory, so the memory is not freed.
        if reset(self.transport).is_ok() {
            for window in self.taken.drain(..) {
                self.arena.free(window);
            }
        }
        self.transport.set_status(FAILED);
    }
}

/// Resets the device. If this succeeds, it does not touch memory any more.
pub fn reset(transport: &mut dyn Transport) -> Result<(), Error> {
    transport.set_status(0);
    if transport.dialect().is_uhyve() {
        // uhyve's device is reset at once, or not at all.
        return if transport.status() == 0 { Ok(()) } else { Err(Error::NoReset) };
    }
    (0..RESET_READS).any(|_| transport.status() == 0).then_some(()).ok_or(Error::NoReset)
}

/// Runs `read` on a consistent state of the configuration: it is repeated if the generation has changed meanwhile.
pub fn read_config<T>(transport: &dyn Transport, read: impl Fn(&dyn Registers) -> T) -> Option<T> {
    (0..CONFIG_READS).find_map(|_| {
        let before = transport.config_generation();
        let value = read(transport.config());
        (transport.config_generation() == before).then_some(value)
    })
}

/// An empty configuration.
pub struct NoConfig;

impl Registers for NoConfig {
    fn len(&self) -> usize {
        0
    }
    fn read8(&self, _: usize) -> u8 {
        u8::MAX
    }
    fn read16(&self, _: usize) -> u16 {
        u16::MAX
    }
    fn read32(&self, _: usize) -> u32 {
        u32::MAX
    }
    fn read64(&self, _: usize) -> u64 {
        u64::MAX
    }
    fn write8(&self, _: usize, _: u8) {}
    fn write16(&self, _: usize, _: u16) {}
    fn write32(&self, _: usize, _: u32) {}
    fn write64(&self, _: usize, _: u64) {}
}

/// A transport that resets its device when dropped, so that the device stops using its memory.
pub struct Live(Box<dyn Transport>);

impl Live {
    /// Takes the transport of a device after its setup.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        Live(transport)
    }
}

impl core::ops::Deref for Live {
    type Target = dyn Transport;
    fn deref(&self) -> &(dyn Transport + 'static) {
        &*self.0
    }
}

impl core::ops::DerefMut for Live {
    fn deref_mut(&mut self) -> &mut (dyn Transport + 'static) {
        &mut *self.0
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.set_status(0);
    }
}
