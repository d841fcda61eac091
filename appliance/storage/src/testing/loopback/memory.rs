//! Memory of the connected provider: protection domains, regions and the keys of their chunks.

use super::{Change, Loopback, Mr, address};
use drivers::hal::Window;
use rand_core::Rng;
use verbs::*;

impl MemoryVerbs for Loopback {
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let pd = PdId(self.fresh());
        self.pds.insert(pd, ());
        Ok(pd)
    }
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let used =
            self.qps.values().any(|qp| qp.init.pd == pd) || self.mrs.values().any(|mr| mr.pd == pd);
        assert!(!used, "a protection domain is destroyed last");
        if self.lingers {
            return Err(VerbsError::Busy);
        }
        self.pds.remove(&pd).map(|_| ()).ok_or(VerbsError::NoSuchObject)
    }
    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        _: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let id = MrId(self.fresh());
        let rkey = rng.next_u32();
        let chunk = memory.len();
        self.mrs.insert(id, Mr { pd, memory, chunk, keys: std::vec![rkey] });
        Ok(Region { id, rkey, address: address(id), memory })
    }
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        let key = rng.next_u32();
        self.mrs.get_mut(&region).ok_or(VerbsError::NoSuchObject)?.keys[0] = key;
        Ok(key)
    }
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let mr = self.mrs.get_mut(&region).ok_or(VerbsError::NoSuchObject)?;
        (mr.memory, mr.chunk) = (memory, memory.len());
        let rkey = self.rotate_key(region, rng)?;
        Ok(Region { id: region, rkey, address: address(region), memory })
    }
    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.mrs.get_mut(&region).ok_or(VerbsError::NoSuchObject)?.keys.fill(0);
        Ok(())
    }
    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.mrs.remove(&region).map(|_| ()).ok_or(VerbsError::NoSuchObject)
    }
    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        let memory = memory.ok_or(VerbsError::Invalid)?;
        let id = MrId(self.fresh());
        let keys = (0..count).map(|_| rng.next_u32()).collect();
        self.mrs.insert(id, Mr { pd, memory, chunk: size as usize, keys });
        Ok(ChunkedRegion { id, address: address(id) })
    }
    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        Ok(if self.hides_keys { 0 } else { self.mrs[&region].keys[usize::from(chunk)] })
    }
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let key = rng.next_u32();
        let keys = &mut self.mrs.get_mut(&region).ok_or(VerbsError::NoSuchObject)?.keys;
        if self.late_keys && request.signaled {
            self.changes.push_back(Change { request, region, chunk: chunk.into(), key });
            return Ok(KeyChange::Posted);
        }
        // Later requests see the new key.
        keys[usize::from(chunk)] = key;
        Ok(if self.late_keys { KeyChange::Promised(key) } else { KeyChange::Done(key) })
    }
    fn revoke_key_by(
        &mut self,
        region: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        if !self.late_keys {
            return self.revoke_key(region).map(KeyChange::Done);
        }
        self.changes.push_back(Change { request, region, chunk: 0, key: 0 });
        Ok(KeyChange::Posted)
    }
}

/// It has none.
impl ChunksOnDemand for Loopback {
    fn give_memory(&mut self, _: Window, _: usize) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid)
    }
    fn on_demand(&self) -> Option<OnDemandStatus> {
        None
    }
    fn take_chunk(&mut self, _: MrId, _: u16) -> Option<(usize, Window)> {
        None
    }
    fn back_chunk(&mut self, _: MrId, _: u16) -> Option<Window> {
        None
    }
    fn release_chunk(&mut self, _: MrId, _: u16) {}
    fn age_chunks(&mut self, _: MrId) -> u8 {
        0
    }
}
