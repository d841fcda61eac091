//! Receive buffers that get their memory on the peer's first WRITE, and lose it after an idle time. With providers that
//! cannot do this, they have memory from the beginning.

use super::table::Socket;
use super::{BATCH, Ctx, Engine};
use crate::SmcDevice;
use crate::wire::rmbe_bytes;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{Access, PdId, Region};

/// Bytes in the pool for first WRITEs.
const STOCK: usize = 1 << 20;
/// Fewest and most buffers in the pool.
const STOCKED: (usize, usize) = (4, 16);
/// How long a completely read buffer keeps its memory, at least; at most twice as long.
const IDLE: Duration = Duration::from_secs(2);

impl Engine {
    /// Registers a receive buffer.
    pub(super) fn register_buffer<P: SmcDevice + ?Sized>(
        &mut self,
        pd: PdId,
        code: u8,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<Region> {
        let size = rmbe_bytes(code) as usize;
        if let Ok(region) = ctx.provider.register_on_demand(pd, size, ctx.rng) {
            self.on_demand = true;
            self.stocked |= 1 << code;
            self.fill_stock(code, ctx);
            self.counters.rx.count_buffer(size, false);
            return Some(region);
        }
        self.counters.rx.count_buffer(size, false);
        let memory = ctx.arena.alloc(size, 4096)?;
        // Zeroed, so that a peer that claims more bytes than it wrote cannot reveal the data of other peers.
        memory.fill(0);
        let region = ctx.provider.register(pd, memory, Access::REMOTE_WRITE, ctx.rng);
        region.inspect_err(|_| ctx.arena.free(memory)).ok()
    }

    /// Bytes of spare send buffers and of pooled receive buffers.
    pub fn kept<P: SmcDevice + ?Sized>(&self, provider: &P) -> u64 {
        let stocked = self.stock_codes().map(|code| {
            let size = rmbe_bytes(code);
            provider.odp_pool(size as usize) as u64 * u64::from(size)
        });
        self.spare.bytes() as u64 + stocked.sum::<u64>()
    }

    /// Codes of the sizes of which there is a stock.
    fn stock_codes(&self) -> impl Iterator<Item = u8> + use<> {
        let stocked = self.stocked;
        (0..16).filter(move |code| stocked & 1 << code != 0)
    }

    /// Fills the pools that are empty.
    pub(super) fn refill_stock<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        let mut left = self.stocked;
        while left != 0 {
            let code = left.trailing_zeros() as u8;
            left &= left - 1;
            if ctx.provider.odp_pool(rmbe_bytes(code) as usize) == 0 {
                self.fill_stock(code, ctx);
            }
        }
    }

    /// Fills the pool for first WRITEs of peers to buffers of one size.
    pub(super) fn fill_stock<P: SmcDevice + ?Sized>(&mut self, code: u8, ctx: &mut Ctx<'_, P>) {
        let size = rmbe_bytes(code) as usize;
        while ctx.provider.odp_pool(size) < stock(size) {
            let Some(memory) = ctx.arena.alloc(size, 4096) else { return };
            memory.fill(0);
            ctx.provider.add_to_odp_pool(memory);
        }
    }

    /// Finds the memory of a socket's receive buffer when the peer has announced data. Returns false if the peer has
    /// written nothing.
    pub(super) fn find_buffer<P: SmcDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Some(rmb) = self.sockets[key].rmb.as_mut() else { return false };
        if !rmb.memory.is_empty() {
            return true;
        }
        let Some((memory, _)) = ctx.provider.on_demand_memory(rmb.id) else { return false };
        rmb.memory = memory;
        let code = self.sockets[key].sizes.receive;
        self.fill_stock(code, ctx);
        self.sweep_soon(key, ctx.now);
        true
    }

    /// Schedules the search for idle buffers, and includes this socket.
    pub(super) fn sweep_soon(&mut self, key: usize, now: Instant) {
        let socket = &mut self.sockets[key];
        if !core::mem::replace(&mut socket.filled, true) {
            self.filled.push(socket.id);
        }
        self.sweep.get_or_insert(now + IDLE);
    }

    /// Frees the memory of buffers that were idle since the last search. Examines a bounded number, and the others in
    /// the next rounds.
    pub(super) fn sweep_buffers<P: SmcDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        let Engine { filled, sockets, swept, .. } = self;
        for _ in 0..BATCH {
            let Some(id) = filled.get(*swept) else { break };
            let socket = sockets.get_mut(id.key()).filter(|socket| socket.id == *id);
            if socket.is_some_and(|socket| keeps_buffer(socket, ctx)) {
                *swept += 1;
            } else {
                filled.swap_remove(*swept);
            }
        }
        self.sweep = if self.swept < self.filled.len() {
            Some(ctx.now)
        } else {
            self.swept = 0;
            (!self.filled.is_empty()).then_some(ctx.now + IDLE)
        };
    }
}

/// Frees the memory of a socket's buffer if it was idle since the last search. Returns whether the buffer still has
/// memory.
fn keeps_buffer<P: SmcDevice + ?Sized>(socket: &mut Socket, ctx: &mut Ctx<'_, P>) -> bool {
    let produced = socket.produced;
    let mut silent = core::mem::replace(&mut socket.swept, produced) == produced;
    let written = socket.rmb.and_then(|rmb| Some(ctx.provider.on_demand_memory(rmb.id)?.1));
    if let Some(written) = written {
        let before = core::mem::replace(&mut socket.swept_written, written);
        // Bytes that the peer has written but not yet announced must not be lost.
        silent &= written == produced || socket.rewritten && written == before;
    }
    if silent {
        free_if_read(socket, ctx);
    }
    socket.filled = socket.rmb.is_some_and(|rmb| ctx.provider.on_demand_memory(rmb.id).is_some());
    socket.filled
}

/// Number of buffers of `size` in the pool.
fn stock(size: usize) -> usize {
    (STOCK / size).clamp(STOCKED.0, STOCKED.1)
}

/// Returns a zeroed buffer to the pool, or frees it if the pool is full.
pub(super) fn put_back<P: SmcDevice + ?Sized>(memory: Window, ctx: &mut Ctx<'_, P>) {
    if ctx.provider.odp_pool(memory.len()) < stock(memory.len()) {
        ctx.provider.add_to_odp_pool(memory);
    } else {
        ctx.arena.free(memory);
    }
}

/// Frees the memory of an idle socket's buffer if all announced bytes were read.
fn free_if_read<P: SmcDevice + ?Sized>(socket: &mut Socket, ctx: &mut Ctx<'_, P>) {
    let Some(rmb) = socket.rmb.as_mut().filter(|_| socket.consumed == socket.produced) else {
        return;
    };
    if let Some(memory) = ctx.provider.take_on_demand_memory(rmb.id) {
        rmb.memory = Window::empty();
        put_back(memory, ctx);
    }
}
