//! A request of a volume's user, and the steps that it is done in.

use super::device::Device;
use crate::rnbd::wire::{Io, IoFlags, Operation};
use crate::volume;
use drivers::hal::{Features, Geometry, Instant, Window};
use rtrs::client::Permit;
use rtrs::server::RequestKind;

/// A request in the table of its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub request: volume::Request,
    /// Bytes of data done, and bytes that the present step does.
    pub done: usize,
    pub part: usize,
    /// The present step is the flush behind a durable write.
    pub flushing: bool,
    /// Writes that were not durable when it arrived, by [`Device::written`].
    pub mark: u64,
    /// Losses that had been told when it arrived, by [`Device::told`].
    pub known_losses: u64,
    /// The permit of a step that was sent; also of one that was lost, since the server may still
    /// be at it: with the same permit it is not done twice at a time.
    pub permit: Option<Permit>,
    pub sent: bool,
    /// Its user was told that it failed. It stands for nothing any more but for its permit: once the server
    /// has answered to that, it is over with what was asked for before.
    pub given_up: bool,
    /// Since when it waits for the device to be open, if it had to.
    pub waiting_since: Option<Instant>,
}

impl Active {
    pub fn new(request: volume::Request, device: &Device) -> Self {
        Active {
            request,
            done: 0,
            part: 0,
            flushing: false,
            mark: device.written,
            known_losses: device.told,
            permit: None,
            sent: false,
            given_up: false,
            waiting_since: None,
        }
    }

    /// Whether it promises that what was done before it is durable.
    pub fn is_durable(&self) -> bool {
        matches!(
            self.request.operation,
            volume::Operation::Flush | volume::Operation::Write { durable: true }
        )
    }

    /// Whether it is nothing but a flush.
    pub fn is_flush(&self) -> bool {
        self.request.operation == volume::Operation::Flush
    }

    /// Whether what it has done may be lost with the server's power.
    pub fn is_volatile(&self) -> bool {
        !matches!(self.request.operation, volume::Operation::Read) && !self.is_durable()
    }

    /// The present step: which way its data goes, what it says, and the data.
    pub fn step(&mut self, device: u32, geometry: &Geometry) -> (RequestKind, Io, Window) {
        let volume::Request { operation, sector, data, .. } = self.request;
        let io = |operation, flags, sector, size| Io {
            device,
            sector,
            operation,
            flags,
            size,
            priority: 0,
        };
        let none = Window::empty();
        let whole = |operation, sectors: u32| {
            // Sectors were checked against the geometry, which is cut to what 32 bits can say.
            (RequestKind::Write, io(operation, IoFlags::SYNC, sector, sectors * 512), none)
        };
        let flush = (
            RequestKind::Read,
            io(Operation::Flush, IoFlags::SYNC | IoFlags::FUA, u64::MAX, 0),
            none,
        );
        if self.flushing {
            return flush;
        }
        match operation {
            volume::Operation::Flush => flush,
            volume::Operation::Read | volume::Operation::Write { .. } => {
                self.part = (data.len() - self.done).min(geometry.max_transfer as usize);
                let window = data.slice(self.done, self.part).unwrap_or(none);
                let sector = sector + self.done as u64 / 512;
                let size = self.part as u32;
                match operation {
                    volume::Operation::Read => {
                        let io = io(Operation::Read, IoFlags::SYNC, sector, size);
                        (RequestKind::Read, io, window)
                    }
                    _ => {
                        let fua = IoFlags::SYNC | IoFlags::FUA;
                        let flags = if self.is_durable() { fua } else { IoFlags::SYNC };
                        (RequestKind::Write, io(Operation::Write, flags, sector, size), window)
                    }
                }
            }
            volume::Operation::Discard { sectors } => whole(Operation::Discard, sectors),
            volume::Operation::WriteZeroes { sectors } => whole(Operation::WriteZeroes, sectors),
            volume::Operation::SecureErase { sectors } => whole(Operation::SecureErase, sectors),
        }
    }

    /// The present step succeeded: true if another one follows.
    pub fn advance(&mut self, device: &Device) -> bool {
        if self.flushing {
            return false;
        }
        self.done += self.part;
        let moves_data = matches!(
            self.request.operation,
            volume::Operation::Read | volume::Operation::Write { .. }
        );
        if moves_data && self.done < self.request.data.len() {
            return true;
        }
        let cached = device.geometry().features.contains(Features::VOLATILE_CACHE);
        let write = matches!(self.request.operation, volume::Operation::Write { durable: true });
        // The write itself is durable; what was done before it may not be.
        self.flushing = write && cached && device.stable < self.mark;
        self.flushing
    }
}
