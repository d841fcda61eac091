//! Send buffers that are kept for reuse, by size. Those that no connection has needed for a while are freed.

use super::{Engine, SocketId};
use crate::wire::rmbe_bytes;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::Ctx;

/// Interval after which the buffers that were not used in it are freed.
const IDLE: Duration = Duration::from_secs(60);

/// Sizes of a connection's buffers. Buffers of different sizes are not reused for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSizes {
    /// Bytes of the send buffer, a power of two.
    pub send: u32,
    /// Code of the size of the receive buffer: 16 KiB << code.
    pub receive: u8,
}

impl BufferSizes {
    /// Bytes of the receive buffer.
    pub fn receive_bytes(&self) -> u32 {
        rmbe_bytes(self.receive)
    }
}

impl Engine {
    /// Sets the sizes of a socket's buffers, before its handshake begins.
    ///
    /// `sizes.send` is a power of two of at least 4096, `sizes.receive` at most 15; other sizes are ignored.
    pub fn set_buffer_sizes(&mut self, id: SocketId, sizes: BufferSizes) {
        if let Some(socket) = self.socket_mut(id).filter(|socket| socket.group.is_none())
            && sizes.send.is_power_of_two()
            && sizes.send >= 4096
            && sizes.receive <= 15
        {
            socket.sizes = sizes;
        }
    }
}

/// Spare send buffers.
#[derive(Debug)]
pub(super) struct Spare {
    windows: Vec<Window>,
    /// Most buffers, and their most bytes.
    most: (usize, usize),
    bytes: usize,
    /// Fewest buffers since the last trim.
    fewest: usize,
    /// When idle buffers are freed next.
    pub trim_at: Option<Instant>,
}

impl Spare {
    /// None yet; `most` of them, with the bytes of as many of the size `usual`.
    pub fn new(most: usize, usual: u32) -> Self {
        let windows = Vec::with_capacity(most);
        Spare { windows, most: (most, most * usual as usize), bytes: 0, fewest: 0, trim_at: None }
    }

    /// Bytes of the spare buffers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer of `size` bytes, and whether it was used before.
    #[inline]
    pub fn take<P: ?Sized>(&mut self, size: u32, ctx: &mut Ctx<'_, P>) -> Option<(Window, bool)> {
        let size = size as usize;
        let Some(place) = self.windows.iter().rposition(|window| window.len() == size) else {
            return Some((ctx.arena.alloc(size, 64)?, false));
        };
        let window = self.windows.swap_remove(place);
        self.bytes -= size;
        self.fewest = self.fewest.min(self.windows.len());
        Some((window, true))
    }

    /// Keeps a buffer, or frees it.
    #[inline]
    pub fn put<P: ?Sized>(&mut self, buffer: Window, ctx: &mut Ctx<'_, P>) {
        let bytes = self.bytes + buffer.len();
        if self.windows.len() < self.most.0 && bytes <= self.most.1 {
            self.windows.push(buffer);
            self.bytes = bytes;
            if self.trim_at.is_none() {
                self.trim_at = Some(ctx.now + IDLE);
            }
        } else {
            ctx.arena.free(buffer);
        }
    }

    /// Frees the buffers that were spare for the whole interval.
    pub fn trim<P: ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        for window in self.windows.drain(..self.fewest.min(self.windows.len())) {
            self.bytes -= window.len();
            ctx.arena.free(window);
        }
        self.fewest = self.windows.len();
        self.trim_at = (!self.windows.is_empty()).then_some(ctx.now + IDLE);
    }
}
