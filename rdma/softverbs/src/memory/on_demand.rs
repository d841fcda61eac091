//! Chunks on demand: a chunk has memory from the WRITE that brings its bytes until its owner releases it.

use super::region::{Arrival, Backing};
use super::{Grant, Memory, Refusal};
use crate::pool::{Block, Pool};
use drivers::hal::{Through, Window};
use verbs::{Access, ChunksOnDemand, MrId, OnDemandStatus, PdId, RemoteAddress, VerbsError};

impl Memory {
    /// Begins a WRITE of `length` bytes: checks all of it. A chunk on demand gets memory for it.
    #[inline]
    pub fn begin_write(
        &mut self,
        pd: PdId,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<Grant, Refusal> {
        let (region, chunk) = self.find(pd, Access::REMOTE_WRITE, alleged.rkey)?;
        let offset = region.offset(chunk, alleged.address, length)?;
        if let Backing::Fixed(_) = region.backing {
            let window = region.fixed(chunk, offset, length)?;
            return Ok(Grant { window, removed: self.keys.removed() });
        }
        self.begin_on_demand(alleged.rkey, chunk, offset, length)
    }

    /// Begins a WRITE in the chunk on demand, or on-demand region, of `key`.
    #[inline(never)]
    fn begin_on_demand(
        &mut self,
        key: u32,
        chunk: u16,
        offset: usize,
        length: u32,
    ) -> Result<Grant, Refusal> {
        let index = self.keys.find(key).map_or(0, |entry| entry.region);
        let region = self.regions.at_mut(usize::from(index)).ok_or(Refusal::UnknownKey)?;
        if let Backing::OnDemandRegion(lazy) = &mut region.backing {
            let window = lazy.write(offset, length as usize, &mut self.odp_pool)?;
            return Ok(Grant { window, removed: self.keys.removed() });
        }
        let arrival = region.arrival(chunk).filter(|a| !a.taken).ok_or(Refusal::Range)?;
        if let Some(old) = arrival.block.take() {
            self.pool.free(old);
        }
        let Some(block) = self.pool.alloc_for_peer(length as usize) else {
            self.pool.counters.short += 1;
            return Err(Refusal::NoMemory);
        };
        // A new WRITE to a chunk does not reset its age.
        let age = arrival.age;
        *arrival =
            Arrival { block: Some(block), start: offset as u32, written: 0, taken: false, age };
        Ok(Grant::NONE)
    }

    /// Destination of the next `length` bytes of a WRITE, `done` bytes behind its beginning with `grant`.
    // Inlined with the rest of the receive path: 186 instructions a packet instead of 256 (`bench roce`).
    #[inline(always)]
    pub fn go_on(
        &mut self,
        grant: &Grant,
        done: u32,
        pd: PdId,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<Window, Refusal> {
        match grant.window.slice(done as usize, length as usize) {
            Some(window) if grant.removed == self.keys.removed() => Ok(window),
            _ => self.write(pd, alleged, length),
        }
    }

    /// Destination of the next `length` bytes of a WRITE.
    #[inline]
    pub fn write(
        &mut self,
        pd: PdId,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<Window, Refusal> {
        let (region, chunk) = self.find(pd, Access::REMOTE_WRITE, alleged.rkey)?;
        let offset = region.offset(chunk, alleged.address, length)?;
        if let Backing::Fixed(_) = region.backing {
            return region.fixed(chunk, offset, length);
        }
        self.write_on_demand(alleged.rkey, chunk, offset, length)
    }

    /// Destination of the next `length` bytes of a WRITE, in the chunk on demand or on-demand region of `key`.
    #[inline(never)]
    fn write_on_demand(
        &mut self,
        key: u32,
        chunk: u16,
        offset: usize,
        length: u32,
    ) -> Result<Window, Refusal> {
        let index = self.keys.find(key).map_or(0, |entry| entry.region);
        let region = self.regions.at_mut(usize::from(index)).ok_or(Refusal::UnknownKey)?;
        if let Backing::OnDemandRegion(lazy) = &mut region.backing {
            return lazy.write(offset, length as usize, &mut self.odp_pool);
        }
        let arrival = region.arrival(chunk).filter(|a| !a.taken).ok_or(Refusal::Range)?;
        let block = arrival.block.ok_or(Refusal::Range)?;
        // In order and without gaps, so that all bytes counted as written were written.
        if offset != (arrival.start + arrival.written) as usize {
            return Err(Refusal::Range);
        }
        let window = self.pool.window(block).slice(arrival.written as usize, length as usize);
        arrival.written += length;
        window.ok_or(Refusal::Range)
    }

    /// Detaches the block of a taken chunk.
    pub fn detach_chunk(&mut self, id: MrId, chunk: u16) -> Option<Block> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk).filter(|a| a.taken)?;
        core::mem::take(arrival).block
    }
}

impl ChunksOnDemand for Memory {
    fn give_memory(&mut self, memory: Window, largest: usize) -> Result<(), VerbsError> {
        if self.pool.capacity() > 0 {
            return Err(VerbsError::Invalid);
        }
        self.pool = Pool::new(memory, largest);
        self.pool.wait_for_ports(self.ports);
        Ok(())
    }

    fn on_demand(&self) -> Option<OnDemandStatus> {
        let pool = &self.pool;
        (pool.capacity() > 0).then(|| OnDemandStatus {
            capacity: pool.capacity(),
            available: pool.available(),
            lowest: pool.counters.lowest,
            short: pool.counters.short,
        })
    }

    #[inline]
    fn take_chunk(&mut self, id: MrId, chunk: u16) -> Option<(usize, Window)> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk)?;
        let window = self.pool.window(arrival.block?);
        (arrival.taken, arrival.age) = (true, 0);
        Some((arrival.start as usize, window.slice(0, arrival.written as usize)?))
    }

    fn back_chunk(&mut self, id: MrId, chunk: u16) -> Option<Window> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk).filter(|a| a.taken)?;
        let (old, start) = (arrival.block?, arrival.start as usize);
        let length = start + arrival.written as usize;
        if start > 0 {
            let written = self.pool.window(old).slice(0, arrival.written as usize)?;
            let block = self.pool.alloc(length)?;
            let window = self.pool.window(block);
            // It fits: the block was allocated for this length.
            let _ = window.write_window(start, &written);
            // The bytes that the peer did not write are zeroed, because other chunks left their contents there.
            window.slice(0, start)?.fill(0);
            self.pool.free(old);
            let block = Some(block);
            *arrival = Arrival { block, start: 0, written: length as u32, taken: true, age: 0 };
        }
        self.pool.window(arrival.block?).slice(0, length)
    }

    fn age_chunks(&mut self, id: MrId) -> u8 {
        let Some(Backing::OnDemand(arrivals)) = self.regions.get_mut(id.0).map(|r| &mut r.backing)
        else {
            return 0;
        };
        let waiting = arrivals.iter_mut().filter(|a| a.block.is_some() && !a.taken);
        let aged = waiting.map(|arrival| {
            arrival.age = arrival.age.saturating_add(1);
            arrival.age
        });
        aged.max().unwrap_or(0)
    }

    fn release_chunk(&mut self, id: MrId, chunk: u16) {
        if let Some(block) = self.detach_chunk(id, chunk) {
            // Where our own queue pairs send requests, as those to other servers do, a port may still be sending from
            // it.
            match self.is_passed_on {
                true => self.pool.retire(block, Through::Any),
                false => self.pool.free(block),
            }
        }
    }
}
