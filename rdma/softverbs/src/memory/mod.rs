//! Protection domains, memory regions and their keys (vol. 1, 10.6). Only `check` and `write` turn the remote address
//! that a peer claims into bytes of a region.
//!
//! A region is one chunk, or many of one size with a key each. A chunk on demand has memory from the WRITE that brings
//! its bytes until its owner releases it. Bytes of another peer that were there before cannot be read: the owner gets
//! only bytes written since, and the bytes before them are zeroed when it asks for them.

mod keys;
mod on_demand;
mod on_demand_region;
mod region;
#[cfg(test)]
mod tests;

use super::handle_table::HandleTable;
use super::pool::Pool;
use alloc::vec::Vec;
use drivers::hal::{Through, Window};
use keys::Keys;
use rand_core::Rng;
use region::{Arrival, Backing, ChunkKeys, Registration};
use verbs::{
    Access, ChunkedRegion, KeyChange, KeyRequest, MemoryVerbs, MrId, PdId, Region, RemoteAddress,
    VerbsError,
};

/// Why a peer's request for memory is refused.
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
    /// No memory is free for them now.
    NoMemory,
}

/// Checked destination of a WRITE, from its first packet on. It is valid until any key is removed.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// All of the destination; empty if each packet has to be checked again.
    window: Window,
    /// Number of keys removed until then.
    removed: u64,
}

impl Grant {
    /// No destination: each packet is checked again.
    pub const NONE: Grant = Grant { window: Window::empty(), removed: 0 };
}

/// All regions of a provider.
#[derive(Debug)]
pub struct Memory {
    /// Number of regions and queue pairs that use each domain.
    domains: HandleTable<usize>,
    regions: HandleTable<Registration>,
    keys: Keys,
    /// Memory of chunks on demand.
    pub pool: Pool,
    /// Memory for on-demand regions: zeroed, each as long as all of them.
    odp_pool: Vec<Window>,
    /// Number of ports that read payload in place when they send; 0 if payload is copied at once.
    ports: usize,
    /// Whether bytes that peers wrote may be forwarded to other peers.
    is_passed_on: bool,
    /// Memory that the peer reaches by itself, and the remote address of its first byte.
    lent: Option<(Window, u64)>,
}

impl Memory {
    /// For the given numbers of domains, regions (at most 65536) and keys.
    pub fn new(max_pds: usize, max_regions: usize, max_keys: usize) -> Self {
        Memory {
            domains: HandleTable::new(max_pds),
            regions: HandleTable::new(max_regions.min(1 << 16)),
            keys: Keys::new(max_keys.min(super::handle_table::MAX)),
            pool: Pool::empty(),
            odp_pool: Vec::new(),
            ports: 0,
            is_passed_on: false,
            lent: None,
        }
    }

    /// Lends `memory` to the peer: the address of a region in it is `address` plus its offset, because the peer reaches
    /// it by itself. All other regions have addresses below 2^47.
    pub fn lend(&mut self, memory: Window, address: u64) {
        self.lent = Some((memory, address));
    }

    /// Remote address of `memory`: in a random page, so that peers learn nothing of its bus address, unless it is lent.
    fn address_of(&self, memory: &Window, rng: &mut dyn Rng) -> u64 {
        match &self.lent {
            Some((lent, address)) if lent.contains(memory) => {
                address + (memory.bus_address() - lent.bus_address())
            }
            _ => random_page(rng) | memory.bus_address() & 0xfff,
        }
    }

    /// From now on memory on demand is reused only when `ports` ports have finished sending from it
    /// ([`Pool::note_progress`]).
    pub fn wait_for_ports(&mut self, ports: usize) {
        if self.ports != ports {
            self.ports = ports;
            self.pool.wait_for_ports(ports);
        }
    }

    /// Number of ports that memory on demand waits for.
    pub fn ports(&self) -> usize {
        self.ports
    }

    /// Declares that bytes written by peers may be forwarded to other peers.
    pub fn passes_on(&mut self) {
        self.is_passed_on = true;
    }

    /// Counts a user of a domain.
    pub fn hold_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        *self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)? += 1;
        Ok(())
    }

    /// Releases a user of a domain.
    pub fn release_pd(&mut self, pd: PdId) {
        if let Some(users) = self.domains.get_mut(pd.0) {
            *users -= 1;
        }
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
    fn rotate(&mut self, id: MrId, chunk: u16, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let place = region.keys.get_mut(chunk).ok_or(VerbsError::Invalid)?;
        if *place != 0 {
            self.keys.remove(*place);
        }
        *place = self.keys.draw(HandleTable::<Registration>::index(id.0) as u16, chunk, rng);
        Ok(*place)
    }

    /// The region and chunk of a peer's key.
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

    /// Turns a peer's claim into the window of `length` bytes, or refuses it.
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

    /// Revokes a key because a peer in domain `pd` requested it (SEND with invalidate).
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

impl MemoryVerbs for Memory {
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.domains.insert(|_| 0).map(PdId).ok_or(VerbsError::NoRoom)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        match self.domains.get(pd.0) {
            None => Err(VerbsError::NoSuchObject),
            Some(0) => {
                self.domains.remove(pd.0);
                Ok(())
            }
            Some(_) => Err(VerbsError::Busy),
        }
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let address = self.address_of(&memory, rng);
        let (backing, chunk) = (Backing::Fixed(memory), memory.len());
        let keys = ChunkKeys::One(0);
        let id = self.insert(Registration { pd, backing, access, address, chunk, keys }, 1)?;
        let rkey = self.rotate(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        let chunk = size as usize;
        if memory.is_some_and(|memory| memory.len() < usize::from(count) * chunk) {
            return Err(VerbsError::Invalid);
        }
        let address = match memory {
            Some(memory) if self.lent.is_some_and(|(lent, _)| lent.contains(&memory)) => {
                self.address_of(&memory, rng)
            }
            _ => random_page(rng),
        };
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
            self.rotate(id, chunk, rng)?;
        }
        Ok(ChunkedRegion { id, address })
    }

    fn rotate_key(&mut self, id: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        self.rotate(id, 0, rng)
    }

    fn remap(&mut self, id: MrId, memory: Window, rng: &mut dyn Rng) -> Result<Region, VerbsError> {
        let address = self.address_of(&memory, rng);
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if let ChunkKeys::Many(_) = region.keys {
            return Err(VerbsError::Invalid);
        }
        region.backing = Backing::Fixed(memory);
        region.chunk = memory.len();
        region.address = address;
        let rkey = self.rotate(id, 0, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    fn chunk_key(&mut self, id: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        region.keys.get_mut(chunk).map(|key| *key).ok_or(VerbsError::Invalid)
    }

    fn revoke_key(&mut self, id: MrId) -> Result<(), VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        for key in region.keys.as_mut_slice() {
            if *key != 0 {
                self.keys.remove(*key);
                *key = 0;
            }
        }
        Ok(())
    }

    fn deregister(&mut self, id: MrId) -> Result<(), VerbsError> {
        self.revoke_key(id)?;
        let region = self.regions.remove(id.0).ok_or(VerbsError::NoSuchObject)?;
        match region.backing {
            Backing::Fixed(_) => {}
            Backing::OnDemand(arrivals) => {
                for block in arrivals.into_iter().filter_map(|arrival| arrival.block) {
                    self.pool.retire(block, Through::Any);
                }
            }
            Backing::OnDemandRegion(mut lazy) => self.odp_pool.extend(lazy.take()),
        }
        self.release_pd(region.pd);
        Ok(())
    }

    #[inline]
    fn rotate_chunk_key(
        &mut self,
        id: MrId,
        chunk: u16,
        _: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        self.rotate(id, chunk, rng).map(KeyChange::Done)
    }
}

/// Address of a random page, so that peers learn nothing of where memory lies.
fn random_page(rng: &mut dyn Rng) -> u64 {
    rng.next_u64() & 0x0000_7fff_ffff_f000
}
