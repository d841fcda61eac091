//! Protection domains, memory regions and their keys (vol. 1, 10.6). `check` is the only function
//! that makes bytes of a region out of what a peer alleges.

use super::slots::Slots;
use crate::verbs::{Access, MrId, PdId, Region, RemoteAddress, VerbsError};
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
}

#[derive(Debug)]
struct Registration {
    pd: PdId,
    memory: Window,
    access: Access,
    /// Address that peers give for the first byte.
    address: u64,
    key: Option<u32>,
}

/// All regions of a provider.
#[derive(Debug)]
pub struct Memory {
    /// Number of regions and queue pairs that use each domain.
    domains: Slots<usize>,
    regions: Slots<Registration>,
    keys: Keys,
}

impl Memory {
    /// For so many domains and regions.
    pub fn new(max_pds: usize, max_regions: usize) -> Self {
        Memory {
            domains: Slots::new(max_pds),
            regions: Slots::new(max_regions),
            keys: Keys::new(max_regions.min(super::slots::MAX)),
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
        self.hold_pd(pd)?;
        let registration = Registration { pd, memory, access, address, key: None };
        let Some(name) = self.regions.insert(|_| registration) else {
            self.release_pd(pd);
            return Err(VerbsError::NoRoom);
        };
        let id = MrId(name);
        let rkey = self.rotate_key(id, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    /// Revokes the region's key and gives it a fresh one.
    pub fn rotate_key(&mut self, id: MrId, rng: &mut dyn RngCore) -> Result<u32, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if let Some(old) = region.key.take() {
            self.keys.remove(old);
        }
        let key = self.keys.draw(id, rng);
        region.key = Some(key);
        Ok(key)
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
        region.memory = memory;
        region.address = address;
        let rkey = self.rotate_key(id, rng)?;
        Ok(Region { id, rkey, address, memory })
    }

    /// Revokes the region's key.
    pub fn revoke_key(&mut self, id: MrId) -> Result<(), VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if let Some(old) = region.key.take() {
            self.keys.remove(old);
        }
        Ok(())
    }

    /// Ends a registration.
    pub fn deregister(&mut self, id: MrId) -> Result<(), VerbsError> {
        self.revoke_key(id)?;
        let region = self.regions.remove(id.0).ok_or(VerbsError::NoSuchObject)?;
        self.release_pd(region.pd);
        Ok(())
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
        let region = self
            .keys
            .find(alleged.rkey)
            .and_then(|id| self.regions.get(id.0))
            .ok_or(Refusal::UnknownKey)?;
        if region.pd != pd {
            return Err(Refusal::OtherDomain);
        }
        if !region.access.contains(access) {
            return Err(Refusal::Access);
        }
        let offset = alleged.address.checked_sub(region.address).ok_or(Refusal::Range)?;
        let offset = usize::try_from(offset).map_err(|_| Refusal::Range)?;
        region.memory.slice(offset, length as usize).ok_or(Refusal::Range)
    }

    /// Revokes a key because a peer in domain `pd` says so (SEND with invalidate).
    pub fn invalidate(&mut self, pd: PdId, key: u32) -> Result<(), Refusal> {
        let id = self.keys.find(key).ok_or(Refusal::UnknownKey)?;
        match self.regions.get_mut(id.0) {
            Some(region) if region.pd == pd => {
                region.key = None;
                self.keys.remove(key);
                Ok(())
            }
            _ => Err(Refusal::OtherDomain),
        }
    }
}

/// Where peers address `memory`: from a random page on.
fn address_of(memory: Window, rng: &mut dyn RngCore) -> u64 {
    rng.next_u64() & 0x0000_7fff_ffff_f000 | memory.bus_address() & 0xfff
}

/// Which region each key belongs to: open addressing with linear probing, at most half full. Keys
/// are drawn at random by us, so they are their own hash and nobody can choose colliding ones.
#[derive(Debug)]
struct Keys {
    entries: Vec<Option<(u32, MrId)>>,
    mask: usize,
}

impl Keys {
    fn new(regions: usize) -> Self {
        let size = (2 * regions.max(8)).next_power_of_two();
        Keys { entries: alloc::vec![None; size], mask: size - 1 }
    }

    /// Where `key` is, or else the free entry where it would be.
    #[inline]
    fn probe(&self, key: u32) -> usize {
        let mut at = key as usize & self.mask;
        while let Some(&Some((other, _))) = self.entries.get(at)
            && other != key
        {
            at = (at + 1) & self.mask;
        }
        at
    }

    #[inline]
    fn find(&self, key: u32) -> Option<MrId> {
        self.entries.get(self.probe(key)).copied().flatten().map(|(_, id)| id)
    }

    /// Draws a key that is not in use and not zero, and enters it.
    fn draw(&mut self, id: MrId, rng: &mut dyn RngCore) -> u32 {
        loop {
            let key = rng.next_u32();
            let at = self.probe(key);
            if let Some(entry @ None) = self.entries.get_mut(at)
                && key != 0
            {
                *entry = Some((key, id));
                return key;
            }
        }
    }

    /// Removes a key; those that stood behind it because of it move up.
    fn remove(&mut self, key: u32) {
        let mut hole = self.probe(key);
        let Some(entry) = self.entries.get_mut(hole) else { return };
        if entry.take().is_none() {
            return;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & self.mask;
            let Some(&Some((other, _))) = self.entries.get(at) else { return };
            let home = other as usize & self.mask;
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
        let mut memory = Memory::new(4, 4);
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
        let fresh = memory.rotate_key(region.id, &mut rng).unwrap();
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
                    let id = MrId(n as u32);
                    prop_assert_eq!(keys.draw(id, &mut Fixed(key)), key);
                    model.insert(key, id);
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
