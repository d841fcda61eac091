//! A request of a volume's user, and the steps that it is executed in.

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
    /// Bytes of data transferred by earlier steps.
    pub done: usize,
    /// Bytes of data in the current step.
    pub part: usize,
    /// The current step is the flush after a durable write.
    pub flushing: bool,
    /// [`Device::written`] when the request arrived.
    pub mark: u64,
    /// [`Device::losses_reported`] when the request arrived.
    pub known_losses: u64,
    /// Permit of the step that was sent. A step that was lost keeps it, because the server may still
    /// execute that step: with the same permit it does not execute the step twice at a time.
    pub permit: Option<Permit>,
    pub sent: bool,
    /// The user has its completion, which is a failure. The entry only keeps the permit: once the server has responded
    /// with that permit, it has ended the earlier request.
    pub given_up: bool,
    /// Start of the wait for the device to be open, if the request had to wait.
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
            known_losses: device.losses_reported,
            permit: None,
            sent: false,
            given_up: false,
            waiting_since: None,
        }
    }

    /// Whether its success promises that earlier writes are durable.
    pub fn is_durable(&self) -> bool {
        matches!(
            self.request.operation,
            volume::Operation::Flush | volume::Operation::Write { durable: true }
        )
    }

    /// Whether it is a flush.
    pub fn is_flush(&self) -> bool {
        self.request.operation == volume::Operation::Flush
    }

    /// Whether the server may lose its effect on a power failure.
    pub fn is_volatile(&self) -> bool {
        !matches!(self.request.operation, volume::Operation::Read) && !self.is_durable()
    }

    /// The current step: direction of its data, RNBD header, and data.
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
            // `check` compared the sectors with the geometry, whose limits fit into 32 bits of bytes.
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

    /// Handles the success of the current step; true if another one follows.
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
        // The write itself is durable; earlier writes may not be.
        self.flushing = write && cached && device.stable < self.mark;
        self.flushing
    }
}
