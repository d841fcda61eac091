//! Receive buffers: memory that comes with the first byte of the peer, and goes again when nothing
//! has come for a while. Providers that cannot do this have it from the beginning.

use super::table::Socket;
use super::{BATCH, Engine, EngineContext};
use crate::wire::rmbe_bytes;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{Access, PdId, Provider, Region};

/// Bytes in stock for peers that begin to write, and the fewest and most buffers that these are.
const STOCK: usize = 1 << 20;
const STOCKED: (usize, usize) = (4, 16);
/// How long a buffer out of which everything was read is kept, at least; at most twice as long.
const IDLE: Duration = Duration::from_secs(2);

impl Engine {
    /// Registers a receive buffer.
    pub(super) fn register_buffer<P: Provider + ?Sized>(
        &mut self,
        pd: PdId,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<Region> {
        let size = rmbe_bytes(self.config.rmb_size) as usize;
        if let Ok(region) = ctx.provider.register_on_demand(pd, size, ctx.rng) {
            self.on_demand = true;
            self.fill_stock(ctx);
            return Some(region);
        }
        let memory = ctx.arena.alloc(size, 4096)?;
        // A peer that claims to have written what it has not must not be shown what others wrote.
        memory.fill(0);
        let region = ctx.provider.register(pd, memory, Access::REMOTE_WRITE, ctx.rng);
        region.inspect_err(|_| ctx.arena.free(memory)).ok()
    }

    /// Bytes of memory that are kept for the next who needs a buffer.
    pub fn kept<P: Provider + ?Sized>(&self, provider: &P) -> u64 {
        let send = self.spare.len() as u64 * u64::from(self.config.send_buffer);
        send + provider.odp_pool() as u64 * u64::from(rmbe_bytes(self.config.rmb_size))
    }

    /// Has buffers ready for peers that begin to write.
    pub(super) fn fill_stock<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
        let size = rmbe_bytes(self.config.rmb_size) as usize;
        while ctx.provider.odp_pool() < stock(size) {
            let Some(memory) = ctx.arena.alloc(size, 4096) else { return };
            memory.fill(0);
            ctx.provider.add_to_odp_pool(memory);
        }
    }

    /// The peer has said that there is data; whether there can be.
    pub(super) fn find_buffer<P: Provider + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) -> bool {
        let Some(rmb) = self.sockets[key].rmb.as_mut() else { return false };
        if !rmb.memory.is_empty() {
            return true;
        }
        let Some((memory, _)) = ctx.provider.on_demand_memory(rmb.id) else { return false };
        rmb.memory = memory;
        self.fill_stock(ctx);
        self.sweep_soon(key, ctx.now);
        true
    }

    /// Has the buffer of a socket taken away once nobody uses it.
    pub(super) fn sweep_soon(&mut self, key: usize, now: Instant) {
        let socket = &mut self.sockets[key];
        if !core::mem::replace(&mut socket.filled, true) {
            self.filled.push(socket.id);
        }
        self.sweep.get_or_insert(now + IDLE);
    }

    /// Takes the buffers of those away that have been silent since the last time; looks at some of them, and
    /// at the others in the next rounds.
    pub(super) fn sweep_buffers<P: Provider + ?Sized>(&mut self, ctx: &mut EngineContext<'_, P>) {
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

/// Takes the buffer of a socket away if it has been silent since the last time; whether it still has one.
fn keeps_buffer<P: Provider + ?Sized>(socket: &mut Socket, ctx: &mut EngineContext<'_, P>) -> bool {
    let produced = socket.produced;
    let mut silent = core::mem::replace(&mut socket.swept, produced) == produced;
    let written = socket.rmb.and_then(|rmb| Some(ctx.provider.on_demand_memory(rmb.id)?.1));
    if let Some(written) = written {
        let before = core::mem::replace(&mut socket.swept_written, written);
        // What a peer has written and not told of yet is not lost.
        silent &= written == produced || socket.rewritten && written == before;
    }
    if silent {
        empty(socket, ctx);
    }
    socket.filled = socket.rmb.is_some_and(|rmb| ctx.provider.on_demand_memory(rmb.id).is_some());
    socket.filled
}

/// How many buffers of that size are in stock.
fn stock(size: usize) -> usize {
    (STOCK / size).clamp(STOCKED.0, STOCKED.1)
}

/// Puts a zeroed buffer in stock, or gives it back.
pub(super) fn put_back<P: Provider + ?Sized>(memory: Window, ctx: &mut EngineContext<'_, P>) {
    if ctx.provider.odp_pool() < stock(memory.len()) {
        ctx.provider.add_to_odp_pool(memory);
    } else {
        ctx.arena.free(memory);
    }
}

/// Takes the buffer of a silent socket away if all that was told of was read.
fn empty<P: Provider + ?Sized>(socket: &mut Socket, ctx: &mut EngineContext<'_, P>) {
    let Some(rmb) = socket.rmb.as_mut().filter(|_| socket.consumed == socket.produced) else {
        return;
    };
    if let Some(memory) = ctx.provider.take_on_demand_memory(rmb.id) {
        rmb.memory = Window::empty();
        put_back(memory, ctx);
    }
}
