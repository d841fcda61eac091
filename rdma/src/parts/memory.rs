//! Protection domains, memory regions and their keys (vol. 1, 10.6). `check` and `write` are the only
//! functions that make bytes of a region out of what a peer alleges.
//!
//! A region is one chunk, or many of one size with a key each. Chunks on demand have memory only
//! from the WRITE that brings their bytes until their owner has done with them; which peer's bytes
//! lay there before cannot be seen, because only what was written since is ever handed out.

use super::pool::{Block, Pool};
use super::slots::Slots;
use crate::verbs::{Access, ChunkedRegion, MrId, PdId, Region, RemoteAddress, VerbsError};
use alloc::vec::Vec;
use drivers::hal::Window;
use rand_core::RngCore;

/// Why what a peer alleged is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region has this key (any more).
    UnknownKey,
    /// The key belongs to another protection domain.
    OtherDomain,
    /// The region does not allow this.
    Access,
    /// Not all of the bytes lie in the region.
    Range,
    /// There is no memory for them now.
    NoMemory,
}

/// What a chunk on demand holds.
#[derive(Clone, Copy, Debug, Default)]
struct Arrival {
    block: Option<Block>,
    /// Place in the chunk of the block's first byte.
    start: u32,
    /// Bytes written from there on.
    written: u32,
    /// Its owner works on it; peers do not write.
    taken: bool,
}

/// Memory that comes out of the stock with a peer's first byte.
#[derive(Debug, Default)]
struct Lazy {
    memory: Option<Window>,
    /// Bytes that peers wrote so far.
    written: u64,
    /// Behind the last byte that was ever written to this memory.
    top: usize,
}

/// Where the bytes of a region are.
#[derive(Debug)]
enum Backing {
    Fixed(Window),
    /// By chunk.
    OnDemand(Vec<Arrival>),
    Lazy(Lazy),
}

/// The keys of a region, by chunk; 0 where there is none.
#[derive(Debug)]
enum ChunkKeys {
    One(u32),
    Many(Vec<u32>),
}

impl ChunkKeys {
    fn get_mut(&mut self, chunk: u16) -> Option<&mut u32> {
        match self {
            ChunkKeys::One(key) => Some(key).filter(|_| chunk == 0),
            ChunkKeys::Many(keys) => keys.get_mut(usize::from(chunk)),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u32] {
        match self {
            ChunkKeys::One(key) => core::slice::from_mut(key),
            ChunkKeys::Many(keys) => keys,
        }
    }
}

impl Lazy {
    /// Its memory, from the stock if it has none.
    fn window(&mut self, stock: &mut Vec<Window>) -> Result<Window, Refusal> {
        if self.memory.is_none() {
            self.memory = stock.pop();
        }
        self.memory.ok_or(Refusal::NoMemory)
    }

    /// Its memory, zeroed, from which the region is parted.
    fn take(&mut self) -> Option<Window> {
        let memory = self.memory.take()?;
        if let Some(written) = memory.slice(0, core::mem::take(&mut self.top)) {
            written.fill(0);
        }
        Some(memory)
    }
}

#[derive(Debug)]
struct Registration {
    pd: PdId,
    backing: Backing,
    access: Access,
    /// Address that peers give for the first byte.
    address: u64,
    /// Bytes of a chunk.
    chunk: usize,
    keys: ChunkKeys,
}

impl Registration {
    /// Where in a chunk the alleged bytes lie.
    #[inline]
    fn offset(&self, chunk: u16, alleged: u64, length: u32) -> Result<usize, Refusal> {
        let start = self.address.wrapping_add(usize::from(chunk) as u64 * self.chunk as u64);
        let offset = alleged.checked_sub(start).ok_or(Refusal::Range)?;
        let offset = usize::try_from(offset).map_err(|_| Refusal::Range)?;
        let end = offset.checked_add(length as usize).ok_or(Refusal::Range)?;
        if end <= self.chunk { Ok(offset) } else { Err(Refusal::Range) }
    }

    #[inline]
    fn fixed(&self, chunk: u16, offset: usize, length: u32) -> Result<Window, Refusal> {
        match &self.backing {
            Backing::Fixed(memory) => memory
                .slice(usize::from(chunk) * self.chunk + offset, length as usize)
                .ok_or(Refusal::Range),
            Backing::OnDemand(_) | Backing::Lazy(_) => Err(Refusal::Range),
        }
    }

    fn arrival(&mut self, chunk: u16) -> Option<&mut Arrival> {
        match &mut self.backing {
            Backing::Fixed(_) | Backing::Lazy(_) => None,
            Backing::OnDemand(arrivals) => arrivals.get_mut(usize::from(chunk)),
        }
    }
}

/// All regions of a provider.
#[derive(Debug)]
pub struct Memory {
    /// Number of regions and queue pairs that use each domain.
    domains: Slots<usize>,
    regions: Slots<Registration>,
    keys: Keys,
    /// Memory of chunks on demand.
    pub pool: Pool,
    /// Memory for lazy regions: zeroed, each as long as all of them.
    stock: Vec<Window>,
}

impl Memory {
    /// For so many domains, regions (at most 65536) and keys.
    pub fn new(max_pds: usize, max_regions: usize, max_keys: usize) -> Self {
        Memory {
            domains: Slots::new(max_pds),
            regions: Slots::new(max_regions.min(1 << 16)),
            keys: Keys::new(max_keys.min(super::slots::MAX)),
            pool: Pool::empty(),
            stock: Vec::new(),
        }
    }

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.domains.insert(|_| 0).map(PdId).ok_or(VerbsError::NoRoom)
    }

    /// Destroys a protection domain that nothing uses.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        match self.domains.get(pd.0) {
            None => Err(VerbsError::NoSuchObject),
            Some(0) => {
                self.domains.remove(pd.0);
                Ok(())
            }
            Some(_) => Err(VerbsError::Busy),
        }
    }

    /// Counts a user of a domain.
    pub fn hold_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        *self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)? += 1;
        Ok(())
    }

    /// Takes a user of a domain back.
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.domains.get_mut(pd.0) {
            *users -= 1;
        }
    }

    /// Registers `memory` under a fresh key. Peers address it from a random page on, so that
    /// they learn nothing of where it lies.
    pub fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        let address = address_of(memory, rng);
        let (backing, chunk) = (Backing::Fixed(memory), memory.len());
        let keys = ChunkKeys::One(0);
        let id = self.insert(Registration { pd, backing, access, address, chunk, keys }, 1)?;
        let rkey = self.rotate_key(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    /// Registers a region of `length` bytes for RDMA WRITE that has no memory yet.
    pub fn register_lazy(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        let address = random_page(rng);
        let id = self.insert(
            Registration {
                pd,
                backing: Backing::Lazy(Lazy::default()),
                access: Access::REMOTE_WRITE,
                address,
                chunk: length,
                keys: ChunkKeys::One(0),
            },
            1,
        )?;
        let rkey = self.rotate_key(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory: Window::empty() })
    }

    /// Puts memory in stock for lazy regions.
    pub fn add_to_stock(&mut self, memory: Window) {
        self.stock.push(memory);
    }

    /// How many regions the stock is good for.
    pub fn stock(&self) -> usize {
        self.stock.len()
    }

    /// The memory of a lazy region, if it has any, and how many bytes peers have written to it.
    pub fn lazy_memory(&self, id: MrId) -> Option<(Window, u64)> {
        match &self.regions.get(id.0)?.backing {
            Backing::Lazy(Lazy { memory: Some(memory), written, .. }) => Some((*memory, *written)),
            _ => None,
        }
    }

    /// Takes the memory of a lazy region away, zeroed, until a peer writes again.
    pub fn take_lazy_memory(&mut self, id: MrId) -> Option<Window> {
        match &mut self.regions.get_mut(id.0)?.backing {
            Backing::Lazy(lazy) => lazy.take(),
            _ => None,
        }
    }

    /// Registers `count` chunks of `size` bytes, for RDMA WRITE, each under a key of its own: those
    /// of `memory`, or on demand.
    pub fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn RngCore,
    ) -> Result<ChunkedRegion, VerbsError> {
        let chunk = size as usize;
        if memory.is_some_and(|memory| memory.len() < usize::from(count) * chunk) {
            return Err(VerbsError::Invalid);
        }
        let address = random_page(rng);
        let on_demand = || Backing::OnDemand(alloc::vec![Arrival::default(); count.into()]);
        let registration = Registration {
            pd,
            backing: memory.map_or_else(on_demand, Backing::Fixed),
            access: Access::REMOTE_WRITE,
            address,
            chunk,
            keys: ChunkKeys::Many(alloc::vec![0; count.into()]),
        };
        let id = self.insert(registration, usize::from(count))?;
        for chunk in 0..count {
            self.rotate_key(id, chunk, rng)?;
        }
        Ok(ChunkedRegion { id, address })
    }

    fn insert(&mut self, registration: Registration, keys: usize) -> Result<MrId, VerbsError> {
        if !self.keys.has_room(keys) {
            return Err(VerbsError::NoRoom);
        }
        let pd = registration.pd;
        self.hold_pd(pd)?;
        let Some(name) = self.regions.insert(|_| registration) else {
            self.release_pd(pd);
            return Err(VerbsError::NoRoom);
        };
        Ok(MrId(name))
    }

    /// Revokes the key of a chunk and gives it a fresh one.
    #[inline]
    pub fn rotate_key(
        &mut self,
        id: MrId,
        chunk: u16,
        rng: &mut dyn RngCore,
    ) -> Result<u32, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let place = region.keys.get_mut(chunk).ok_or(VerbsError::Invalid)?;
        if *place != 0 {
            self.keys.remove(*place);
        }
        *place = self.keys.draw(Slots::<Registration>::index(id.0) as u16, chunk, rng);
        Ok(*place)
    }

    /// Points a region at other memory, under a fresh key.
    pub fn remap(
        &mut self,
        id: MrId,
        memory: Window,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        let address = address_of(memory, rng);
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if let ChunkKeys::Many(_) = region.keys {
            return Err(VerbsError::Invalid);
        }
        region.backing = Backing::Fixed(memory);
        region.chunk = memory.len();
        region.address = address;
        let rkey = self.rotate_key(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    /// The key of a chunk.
    pub fn key(&mut self, id: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        region.keys.get_mut(chunk).map(|key| *key).ok_or(VerbsError::Invalid)
    }

    /// Revokes the keys of the region.
    pub fn revoke_key(&mut self, id: MrId) -> Result<(), VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        for key in region.keys.as_mut_slice() {
            if *key != 0 {
                self.keys.remove(*key);
                *key = 0;
            }
        }
        Ok(())
    }

    /// Ends a registration.
    pub fn deregister(&mut self, id: MrId) -> Result<(), VerbsError> {
        self.revoke_key(id)?;
        let region = self.regions.remove(id.0).ok_or(VerbsError::NoSuchObject)?;
        match region.backing {
            Backing::Fixed(_) => {}
            Backing::OnDemand(arrivals) => {
                for block in arrivals.into_iter().filter_map(|arrival| arrival.block) {
                    self.pool.free(block);
                }
            }
            Backing::Lazy(mut lazy) => self.stock.extend(lazy.take()),
        }
        self.release_pd(region.pd);
        Ok(())
    }

    /// The region and chunk that a peer means.
    #[inline]
    fn find(&self, pd: PdId, access: Access, key: u32) -> Result<(&Registration, u16), Refusal> {
        let entry = self.keys.find(key).ok_or(Refusal::UnknownKey)?;
        let region = self.regions.at(usize::from(entry.region)).ok_or(Refusal::UnknownKey)?;
        if region.pd != pd {
            return Err(Refusal::OtherDomain);
        }
        if !region.access.contains(access) {
            return Err(Refusal::Access);
        }
        Ok((region, entry.chunk))
    }

    /// Turns what a peer alleges into the window of `length` bytes, or refuses.
    #[inline]
    pub fn check(
        &self,
        pd: PdId,
        access: Access,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<Window, Refusal> {
        let (region, chunk) = self.find(pd, access, alleged.rkey)?;
        let offset = region.offset(chunk, alleged.address, length)?;
        region.fixed(chunk, offset, length)
    }

    /// A WRITE of `length` bytes begins: checks all of it. A chunk on demand gets memory for it.
    #[inline]
    pub fn begin_write(
        &mut self,
        pd: PdId,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<(), Refusal> {
        let (region, chunk) = self.find(pd, Access::REMOTE_WRITE, alleged.rkey)?;
        let offset = region.offset(chunk, alleged.address, length)?;
        if let Backing::Fixed(_) = region.backing {
            return region.fixed(chunk, offset, length).map(|_| ());
        }
        let index = self.keys.find(alleged.rkey).map_or(0, |entry| entry.region);
        let region = self.regions.at_mut(usize::from(index)).ok_or(Refusal::UnknownKey)?;
        if let Backing::Lazy(lazy) = &mut region.backing {
            return lazy.window(&mut self.stock).map(|_| ());
        }
        let arrival = region.arrival(chunk).filter(|a| !a.taken).ok_or(Refusal::Range)?;
        if let Some(old) = arrival.block.take() {
            self.pool.free(old);
        }
        let Some(block) = self.pool.alloc_for_peer(length as usize) else {
            self.pool.counters.short += 1;
            return Err(Refusal::NoMemory);
        };
        *arrival = Arrival { block: Some(block), start: offset as u32, written: 0, taken: false };
        Ok(())
    }

    /// Where the next `length` bytes of a WRITE go.
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
        let index = self.keys.find(alleged.rkey).map_or(0, |entry| entry.region);
        let region = self.regions.at_mut(usize::from(index)).ok_or(Refusal::UnknownKey)?;
        if let Backing::Lazy(lazy) = &mut region.backing {
            let memory = lazy.window(&mut self.stock)?;
            let window = memory.slice(offset, length as usize).ok_or(Refusal::Range)?;
            lazy.written += u64::from(length);
            lazy.top = lazy.top.max(offset + length as usize);
            return Ok(window);
        }
        let arrival = region.arrival(chunk).filter(|a| !a.taken).ok_or(Refusal::Range)?;
        let block = arrival.block.ok_or(Refusal::Range)?;
        // In order and without gaps, so that all of what counts as written was.
        if offset != (arrival.start + arrival.written) as usize {
            return Err(Refusal::Range);
        }
        let window = self.pool.window(block).slice(arrival.written as usize, length as usize);
        arrival.written += length;
        window.ok_or(Refusal::Range)
    }

    /// Takes what a peer wrote to a chunk on demand: where in the chunk it begins, and where it
    /// lies. Until `release_chunk` peers do not write there. None if there is nothing.
    #[inline]
    pub fn take_chunk(&mut self, id: MrId, chunk: u16) -> Option<(usize, Window)> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk)?;
        let window = self.pool.window(arrival.block?);
        arrival.taken = true;
        Some((arrival.start as usize, window.slice(0, arrival.written as usize)?))
    }

    /// Gives a chunk that was taken memory from its first byte on; None if there is none now.
    pub fn back_chunk(&mut self, id: MrId, chunk: u16) -> Option<Window> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk).filter(|a| a.taken)?;
        let (old, start) = (arrival.block?, arrival.start as usize);
        let length = start + arrival.written as usize;
        if start > 0 {
            let written = self.pool.window(old).slice(0, arrival.written as usize)?;
            let block = self.pool.alloc(length)?;
            // Large enough: it was just asked for.
            let _ = self.pool.window(block).write_window(start, &written);
            self.pool.free(old);
            *arrival =
                Arrival { block: Some(block), start: 0, written: length as u32, taken: true };
        }
        self.pool.window(arrival.block?).slice(0, length)
    }

    /// Takes the block out of a chunk that was taken.
    pub fn detach_chunk(&mut self, id: MrId, chunk: u16) -> Option<Block> {
        let arrival = self.regions.get_mut(id.0)?.arrival(chunk).filter(|a| a.taken)?;
        core::mem::take(arrival).block
    }

    /// Revokes a key because a peer in domain `pd` says so (SEND with invalidate).
    pub fn invalidate(&mut self, pd: PdId, key: u32) -> Result<(), Refusal> {
        let entry = self.keys.find(key).ok_or(Refusal::UnknownKey)?;
        match self.regions.at_mut(usize::from(entry.region)) {
            Some(region) if region.pd == pd => {
                if let Some(place) = region.keys.get_mut(entry.chunk) {
                    *place = 0;
                }
                self.keys.remove(key);
                Ok(())
            }
            _ => Err(Refusal::OtherDomain),
        }
    }
}

/// Where peers address `memory`: from a random page on.
fn address_of(memory: Window, rng: &mut dyn RngCore) -> u64 {
    random_page(rng) | memory.bus_address() & 0xfff
}

/// Address of a random page, so that peers learn nothing of where memory lies.
fn random_page(rng: &mut dyn RngCore) -> u64 {
    rng.next_u64() & 0x0000_7fff_ffff_f000
}

/// What a key grants: a chunk of the region at a place of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// 0: none.
    key: u32,
    region: u16,
    chunk: u16,
}

/// What each key grants: open addressing with linear probing, at most half full. Keys are drawn at
/// random by us, so they are their own hash and nobody can choose colliding ones.
#[derive(Debug)]
struct Keys {
    entries: Vec<Entry>,
    mask: usize,
    used: usize,
}

impl Keys {
    fn new(keys: usize) -> Self {
        let size = (2 * keys.max(8)).next_power_of_two();
        Keys { entries: alloc::vec![Entry::default(); size], mask: size - 1, used: 0 }
    }

    fn has_room(&self, keys: usize) -> bool {
        self.used + keys <= self.entries.len() / 2
    }

    /// Where `key` is, or else the free entry where it would be.
    #[inline]
    fn probe(&self, key: u32) -> usize {
        let mut at = key as usize & self.mask;
        while let Some(entry) = self.entries.get(at)
            && entry.key != key
            && entry.key != 0
        {
            at = (at + 1) & self.mask;
        }
        at
    }

    #[inline]
    fn find(&self, key: u32) -> Option<Entry> {
        self.entries.get(self.probe(key)).filter(|entry| entry.key != 0).copied()
    }

    /// Draws a key that is not in use and not zero, and enters it.
    fn draw(&mut self, region: u16, chunk: u16, rng: &mut dyn RngCore) -> u32 {
        loop {
            let key = rng.next_u32();
            let at = self.probe(key);
            if let Some(entry) = self.entries.get_mut(at)
                && key != 0
                && entry.key == 0
            {
                *entry = Entry { key, region, chunk };
                self.used += 1;
                return key;
            }
        }
    }

    /// Removes a key; those that stood behind it because of it move up.
    fn remove(&mut self, key: u32) {
        let mut hole = self.probe(key);
        let Some(entry) = self.entries.get_mut(hole) else { return };
        if core::mem::take(entry).key == 0 {
            return;
        }
        self.used -= 1;
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let Some(other) = self.entries.get(at).filter(|other| other.key != 0) else { return };
            let home = other.key as usize & self.mask;
            // It may move if its home is not between the hole and where it is.
            if at.wrapping_sub(home) & self.mask >= at.wrapping_sub(hole) & self.mask {
                self.entries.swap(hole, at);
                hole = at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::testing::Rng;
    use drivers::hal::Arena;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const WRITE: Access = Access::REMOTE_WRITE;

    #[test]
    fn only_what_is_granted_is_reached() {
        let mut arena = Arena::on_heap(1 << 16);
        let mut rng = Rng::new(1);
        let mut memory = Memory::new(4, 4, 4);
        let (pd, other) = (memory.alloc_pd().unwrap(), memory.alloc_pd().unwrap());
        let window = arena.alloc(4096, 4096).unwrap();
        let region = memory.register(pd, window, WRITE, &mut rng).unwrap();
        let at = |offset: u64, rkey| RemoteAddress {
            address: region.address.wrapping_add(offset),
            rkey,
        };
        let key = region.rkey;
        assert_eq!(memory.check(pd, WRITE, at(96, key), 4000).unwrap().len(), 4000);
        assert_eq!(memory.check(pd, WRITE, at(96, key), 4001).unwrap_err(), Refusal::Range);
        assert_eq!(memory.check(pd, WRITE, at(u64::MAX, key), 1).unwrap_err(), Refusal::Range);
        assert_eq!(memory.check(other, WRITE, at(0, key), 1).unwrap_err(), Refusal::OtherDomain);
        let read = Access::REMOTE_READ;
        assert_eq!(memory.check(pd, read, at(0, key), 1).unwrap_err(), Refusal::Access);
        let fresh = memory.rotate_key(region.id, 0, &mut rng).unwrap();
        assert_eq!(memory.check(pd, WRITE, at(0, key), 1).unwrap_err(), Refusal::UnknownKey);
        assert!(memory.check(pd, WRITE, at(0, fresh), 1).is_ok());
        assert_eq!(memory.invalidate(other, fresh), Err(Refusal::OtherDomain));
        assert_eq!(memory.invalidate(pd, fresh), Ok(()));
        assert_eq!(memory.check(pd, WRITE, at(0, fresh), 1).unwrap_err(), Refusal::UnknownKey);
        assert_eq!(memory.dealloc_pd(pd), Err(VerbsError::Busy));
        memory.deregister(region.id).unwrap();
        assert_eq!(memory.dealloc_pd(pd), Ok(()));
        assert_eq!(memory.deregister(region.id), Err(VerbsError::NoSuchObject));
    }

    #[test]
    fn a_lazy_region_has_memory_from_the_first_byte_on() {
        let mut arena = Arena::on_heap(1 << 16);
        let mut rng = Rng::new(3);
        let mut memory = Memory::new(4, 4, 4);
        let pd = memory.alloc_pd().unwrap();
        let region = memory.register_lazy(pd, 4096, &mut rng).unwrap();
        let at = |offset: u64| RemoteAddress {
            address: region.address.wrapping_add(offset),
            rkey: region.rkey,
        };
        assert_eq!(memory.write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
        assert_eq!(memory.begin_write(pd, at(0), 10), Err(Refusal::NoMemory));
        assert_eq!(memory.begin_write(pd, at(4000), 97), Err(Refusal::Range));
        assert!(memory.lazy_memory(region.id).is_none());
        let window = arena.alloc(4096, 4096).unwrap();
        memory.add_to_stock(window);
        assert_eq!(memory.write(pd, at(4000), 97).unwrap_err(), Refusal::Range);
        assert_eq!(memory.write(pd, at(96), 1000).unwrap().len(), 1000);
        assert_eq!(memory.write(pd, at(0), 10).unwrap().len(), 10);
        assert_eq!(memory.stock(), 0);
        assert_eq!(memory.lazy_memory(region.id).unwrap().1, 1010);
        assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);
        window.write(0, &[7; 1096]).unwrap();
        let taken = memory.take_lazy_memory(region.id).unwrap();
        assert_eq!(taken.bus_address(), window.bus_address());
        let mut bytes = [1; 1096];
        window.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 1096], "the next peer sees nothing of it");
        assert_eq!(memory.write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
        memory.add_to_stock(window);
        memory.write(pd, at(0), 10).unwrap();
        memory.deregister(region.id).unwrap();
        assert_eq!(memory.stock(), 1);
        assert_eq!(memory.dealloc_pd(pd), Ok(()));
    }

    #[test]
    fn of_a_chunk_on_demand_only_what_was_written_is_seen() {
        let mut arena = Arena::on_heap(1 << 16);
        let mut rng = Rng::new(2);
        let mut memory = Memory::new(4, 4, 16);
        memory.pool = Pool::new(arena.alloc(32 << 10, 4096).unwrap(), 8192);
        let pd = memory.alloc_pd().unwrap();
        let region = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
        let key = memory.key(region.id, 1).unwrap();
        let at = |offset: u64| RemoteAddress { address: region.address + 8192 + offset, rkey: key };
        assert!(memory.take_chunk(region.id, 1).is_none());
        assert_eq!(memory.begin_write(pd, at(8000), 193), Err(Refusal::Range));
        assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);

        memory.begin_write(pd, at(4096), 600).unwrap();
        memory.write(pd, at(4096), 100).unwrap().fill(1);
        assert_eq!(memory.write(pd, at(4096), 100).unwrap_err(), Refusal::Range, "in order only");
        assert_eq!(memory.write(pd, at(4200), 100).unwrap_err(), Refusal::Range, "without gaps");
        let (start, window) = memory.take_chunk(region.id, 1).unwrap();
        assert_eq!((start, window.len()), (4096, 100), "the rest was never written");
        assert_eq!(memory.write(pd, at(4196), 100).unwrap_err(), Refusal::Range, "it is taken");
        assert_eq!(memory.begin_write(pd, at(0), 1), Err(Refusal::Range));

        let window = memory.back_chunk(region.id, 1).unwrap();
        assert_eq!(window.len(), 4196);
        let mut byte = [0];
        window.read(4195, &mut byte).unwrap();
        assert_eq!(byte, [1]);
        let block = memory.detach_chunk(region.id, 1).unwrap();
        assert!(memory.take_chunk(region.id, 1).is_none());
        memory.pool.free(block);

        memory.begin_write(pd, at(0), 8192).unwrap();
        let short = memory.pool.counters.short;
        let other = memory.key(region.id, 0).unwrap();
        let other = RemoteAddress { address: region.address, rkey: other };
        memory.begin_write(pd, other, 8192).unwrap();
        let more = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
        let keys = [0, 1].map(|n| memory.key(more.id, n).unwrap());
        let first = RemoteAddress { address: more.address, rkey: keys[0] };
        let second = RemoteAddress { address: more.address + 8192, rkey: keys[1] };
        memory.begin_write(pd, first, 8192).unwrap();
        assert_eq!(memory.begin_write(pd, second, 1), Err(Refusal::NoMemory), "one is kept back");
        assert_eq!(memory.pool.counters.short, short + 1);
        memory.deregister(region.id).unwrap();
        assert!(memory.begin_write(pd, second, 8192).is_ok());
        memory.deregister(more.id).unwrap();
        assert_eq!(memory.pool.available(), 32 << 10);
    }

    proptest! {
        /// Against a map, with keys that collide often.
        #[test]
        fn keys_are_found_until_removed(steps in proptest::collection::vec((0..40u32, any::<bool>()), 0..200)) {
            struct Fixed(u32);
            impl rand_core::RngCore for Fixed {
                fn next_u32(&mut self) -> u32 { self.0 }
                fn next_u64(&mut self) -> u64 { self.0 as u64 }
                fn fill_bytes(&mut self, _: &mut [u8]) {}
            }
            let mut keys = Keys::new(16);
            let mut model = HashMap::new();
            for (n, (step, add)) in steps.into_iter().enumerate() {
                let key = 1 + step % 5 + (step / 5) * 32;
                if add && !model.contains_key(&key) && model.len() < 16 {
                    let (region, chunk) = (n as u16, step as u16);
                    prop_assert_eq!(keys.draw(region, chunk, &mut Fixed(key)), key);
                    model.insert(key, Entry { key, region, chunk });
                } else {
                    keys.remove(key);
                    model.remove(&key);
                }
                for key in 1..300 {
                    prop_assert_eq!(keys.find(key), model.get(&key).copied());
                }
            }
        }
    }
}
