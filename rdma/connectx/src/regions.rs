//! Regions and their keys.

use super::ConnectX;
use super::mkey::{self, Grant};
use super::send_queue::{LONGEST, Then};
use alloc::vec::Vec;
use drivers::hal::Window;
use rand_core::RngCore;
use verbs::{
    Access, ChunkedRegion, KeyChange, KeyRequest, MrId, PdId, QpState, Region, VerbsError,
};

/// The key of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The place in the pool of the key that it has, or will have when what was posted is done.
    latest: Option<u32>,
    /// The key that is in force; 0: none.
    rkey: u32,
    /// Changes that were posted and are not done.
    posted: u32,
}

/// A region of one chunk, or of many of one size.
#[derive(Debug)]
pub struct Registration {
    pd: PdId,
    memory: Window,
    access: Access,
    address: u64,
    chunk: usize,
    is_chunked: bool,
    slots: Vec<Slot>,
}

impl Registration {
    /// Where a chunk lies, and where peers address it.
    fn place(&self, chunk: u16) -> Option<(Window, u64)> {
        let offset = usize::from(chunk) * self.chunk;
        Some((self.memory.slice(offset, self.chunk)?, self.address + offset as u64))
    }

    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// All keys are dead, with the card.
    pub fn forget_keys(&mut self) {
        self.slots.fill(Slot::default());
    }
}

/// Where peers address memory: from a random page on, of the size that the card's is.
fn address_of(memory: Window, chunk: usize, rng: &mut dyn RngCore) -> u64 {
    let page = 1u64 << mkey::shift(chunk);
    rng.next_u64() & 0x0000_7fff_ffff_ffff & !(page - 1) | memory.bus_address() & (page - 1)
}

impl ConnectX {
    /// What gives the key at a place to a chunk; the domain is told where it may be another.
    fn grant(&self, id: MrId, chunk: u16, place: u32, tells_domain: bool) -> Option<Grant> {
        let region = self.regions.get(id.0)?;
        let (memory, address) = region.place(chunk)?;
        let domain = self.domains.get(region.pd.0)?.number;
        Some(Grant {
            key: self.pool.value(place),
            domain: tells_domain.then_some(domain),
            memory,
            address,
            shift: mkey::shift(region.chunk),
            access: region.access,
        })
    }

    /// Gives a key to a chunk of a region by the key queue, or takes it back.
    pub(super) fn change_key(
        &mut self,
        id: MrId,
        chunk: u16,
        place: u32,
        gives: bool,
    ) -> Result<(), VerbsError> {
        self.make_key_room(mkey::GIVE_BLOCKS)?;
        let fence = 0;
        let mut words = [0; LONGEST];
        let control = match gives {
            true => {
                let grant = self.grant(id, chunk, place, true).ok_or(VerbsError::NoSuchObject)?;
                mkey::give(&grant, fence, &mut words)
            }
            false => mkey::take(self.pool.value(place), fence, &mut words),
        };
        let then = Then::Key { key: place, gives, region: id, chunk, tells: None };
        self.key_queue.sends.write(&mut words, control, then);
        Ok(())
    }

    /// A key was given, or taken back.
    pub(super) fn key_is_changed(&mut self, place: u32, gives: bool, id: MrId, chunk: u16) {
        let value = self.pool.value(place);
        let slot =
            self.regions.get_mut(id.0).and_then(|found| found.slots.get_mut(usize::from(chunk)));
        if gives {
            if let Some(slot) = slot {
                slot.rkey = value;
            }
            return;
        }
        if let Some(slot) = slot.filter(|slot| slot.rkey == value) {
            slot.rkey = 0;
        }
        if let Some(pd) = self.pool.dead(place) {
            self.release(pd);
            if let Some(domain) = self.domains.get_mut(pd.0) {
                domain.spare.push(place);
            }
        }
    }

    /// A change that was posted to a queue pair is done, one way or another.
    pub(super) fn posted_change_is_done(&mut self, id: MrId, chunk: u16) {
        let slots = self.regions.get_mut(id.0).map(|found| &mut found.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(usize::from(chunk))) {
            slot.posted = slot.posted.saturating_sub(1);
        }
    }

    /// A peer has taken back a key of ours.
    pub(super) fn key_is_invalidated(&mut self, value: u32) {
        let Some((place, id, chunk)) = self.pool.taken_by_peer(value) else { return };
        let slots = self.regions.get_mut(id.0).map(|found| &mut found.slots);
        let slot = slots.and_then(|slots| slots.get_mut(usize::from(chunk)));
        if let Some(slot) = slot.filter(|slot| slot.latest == Some(place)) {
            (slot.latest, slot.rkey) = (None, 0);
            self.pool.dies(place);
            self.key_is_changed(place, false, id, chunk);
        }
    }

    /// A fresh key for a chunk, in force when this returns, with the one before dead.
    fn rekey(&mut self, id: MrId, chunk: u16, rng: &mut dyn RngCore) -> Result<u32, VerbsError> {
        self.check_up()?;
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let (pd, slot) = (region.pd, region.slots.get(usize::from(chunk)));
        let old = slot.ok_or(VerbsError::Invalid)?;
        if old.posted > 0 {
            return Err(VerbsError::Busy);
        }
        let old = old.latest;
        let new = self.draw(pd, false, rng)?;
        self.pool.give(new, pd, id, chunk);
        if let Some(region) = self.regions.get_mut(id.0)
            && let Some(slot) = region.slots.get_mut(usize::from(chunk))
        {
            slot.latest = Some(new);
        }
        if let Some(old) = old {
            self.pool.dies(old);
            self.change_key(id, chunk, old, false)?;
        }
        self.change_key(id, chunk, new, true)?;
        Ok(self.pool.value(new))
    }

    fn add_region(&mut self, region: Registration) -> Result<MrId, VerbsError> {
        let pd = region.pd;
        self.hold(pd)?;
        let made = self.regions.insert(|_| region);
        if made.is_none() {
            self.release(pd);
        }
        made.map(MrId).ok_or(VerbsError::NoRoom)
    }

    pub(super) fn add(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        self.domains.get(pd.0).ok_or(VerbsError::NoSuchObject)?;
        self.check_up()?;
        let chunk = memory.len();
        let address = address_of(memory, chunk, rng);
        let slots = alloc::vec![Slot::default()];
        let is_chunked = false;
        let id = self.add_region(Registration {
            pd,
            memory,
            access,
            address,
            chunk,
            is_chunked,
            slots,
        })?;
        match self.rekey(id, 0, rng).and_then(|rkey| self.settle_keys().map(|()| rkey)) {
            Ok(rkey) => Ok(Region { id, rkey, address, memory }),
            Err(error) => {
                let _ = self.end_region(id);
                Err(error)
            }
        }
    }

    pub(super) fn add_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn RngCore,
    ) -> Result<ChunkedRegion, VerbsError> {
        self.domains.get(pd.0).ok_or(VerbsError::NoSuchObject)?;
        let (chunk, access) = (size as usize, Access::REMOTE_WRITE);
        // Not on demand.
        let memory = memory.ok_or(VerbsError::Invalid)?;
        if memory.len() < usize::from(count) * chunk {
            return Err(VerbsError::Invalid);
        }
        self.check_up()?;
        let address = address_of(memory, chunk, rng);
        let slots = alloc::vec![Slot::default(); count.into()];
        let is_chunked = true;
        let id = self.add_region(Registration {
            pd,
            memory,
            access,
            address,
            chunk,
            is_chunked,
            slots,
        })?;
        let mut made = self.stock(pd, rng);
        for chunk in 0..count {
            made = made.and_then(|()| self.rekey(id, chunk, rng).map(drop));
        }
        match made.and_then(|()| self.settle_keys()) {
            Ok(()) => Ok(ChunkedRegion { id, address }),
            Err(error) => {
                let _ = self.end_region(id);
                Err(error)
            }
        }
    }

    pub(super) fn rotate(&mut self, id: MrId, rng: &mut dyn RngCore) -> Result<u32, VerbsError> {
        let rkey = self.rekey(id, 0, rng)?;
        self.settle_keys()?;
        Ok(rkey)
    }

    pub(super) fn point_at(
        &mut self,
        id: MrId,
        memory: Window,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        self.check_up()?;
        let address = address_of(memory, memory.len(), rng);
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        if region.is_chunked {
            return Err(VerbsError::Invalid);
        }
        let before = (region.memory, region.address, region.chunk);
        (region.memory, region.address, region.chunk) = (memory, address, memory.len());
        match self.rotate(id, rng) {
            Ok(rkey) => Ok(Region { id, rkey, address, memory }),
            Err(error) => {
                if let Some(region) = self.regions.get_mut(id.0) {
                    (region.memory, region.address, region.chunk) = before;
                }
                Err(error)
            }
        }
    }

    /// The keys that a region has, which are none of its any more.
    fn take_keys(&mut self, id: MrId) -> Result<Vec<(u16, u32)>, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let slots = region.slots.iter_mut().enumerate();
        let taken = slots.filter_map(|(chunk, slot)| Some((chunk as u16, slot.latest.take()?)));
        let taken: Vec<_> = taken.collect();
        taken.iter().for_each(|(_, place)| self.pool.dies(*place));
        Ok(taken)
    }

    pub(super) fn revoke(&mut self, id: MrId) -> Result<(), VerbsError> {
        for (chunk, place) in self.take_keys(id)? {
            // While the card is down there are none.
            self.change_key(id, chunk, place, false)?;
        }
        Ok(())
    }

    pub(super) fn end_region(&mut self, id: MrId) -> Result<(), VerbsError> {
        let revoked = self.revoke(id);
        let region = self.regions.remove(id.0).ok_or(VerbsError::NoSuchObject)?;
        self.release(region.pd);
        // Its memory is somebody else's next: no peer may write to it any more. A card that does not do it is reset.
        if self.is_up() {
            let _ = self.settle_keys();
        }
        revoked
    }

    pub(super) fn revoke_by(
        &mut self,
        id: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let live = region.slots.iter().filter(|slot| slot.latest.is_some()).count() as u32;
        self.check_change(region.pd, request, live * mkey::TAKE_BLOCKS)?;
        let taken = self.take_keys(id)?;
        let Some(&(last, _)) = taken.last() else { return Ok(KeyChange::Done(())) };
        for (chunk, place) in taken {
            let tells = (chunk == last).then_some((request.id, 0));
            self.post_change(request, id, chunk, place, false, tells);
        }
        Ok(KeyChange::Posted)
    }

    pub(super) fn rotate_chunk(
        &mut self,
        id: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let pd = region.pd;
        let slot = *region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?;
        self.check_change(pd, request, mkey::GIVE_BLOCKS + mkey::TAKE_BLOCKS)?;
        let few = self.limits.spare_keys / 2;
        if self.domains.get(pd.0).is_some_and(|domain| domain.spare.len() <= few) {
            self.stock(pd, rng)?;
        }
        let new = self.draw(pd, true, rng)?;
        self.pool.give(new, pd, id, chunk);
        let said = Some((request.id, self.pool.value(new)));
        let slots = self.regions.get_mut(id.0).map(|found| &mut found.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(usize::from(chunk))) {
            slot.latest = Some(new);
        }
        match slot.latest {
            Some(old) => {
                self.pool.dies(old);
                self.post_change(request, id, chunk, old, false, None);
                self.post_change(request, id, chunk, new, true, said);
            }
            None => self.post_change(request, id, chunk, new, true, said),
        }
        Ok(KeyChange::Posted)
    }

    /// Whether a change can be posted to a queue pair: one of the same domain, which sends, and has room.
    fn check_change(&self, pd: PdId, by: KeyRequest, blocks: u32) -> Result<(), VerbsError> {
        let pair = self.pairs.get(by.qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.asked != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        if pair.pd != pd || pair.service() != super::context::Service::Reliable {
            return Err(VerbsError::Invalid);
        }
        if pair.sends.has_blocks(blocks) { Ok(()) } else { Err(VerbsError::QueueFull) }
    }

    /// Posts a change to the queue pair that a request names, which has room for it.
    fn post_change(
        &mut self,
        by: KeyRequest,
        id: MrId,
        chunk: u16,
        place: u32,
        gives: bool,
        tells: Option<(u64, u32)>,
    ) {
        let mut words = [0; LONGEST];
        let control = match gives {
            true => match self.grant(id, chunk, place, false) {
                Some(grant) => mkey::give(&grant, self.fence, &mut words),
                None => return,
            },
            false => mkey::take(self.pool.value(place), self.fence, &mut words),
        };
        let slots = self.regions.get_mut(id.0).map(|found| &mut found.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(usize::from(chunk))) {
            slot.posted += 1;
        }
        if let Some(pair) = self.pairs.get_mut(by.qp.0) {
            let then = Then::Key { key: place, gives, region: id, chunk, tells };
            pair.sends.write(&mut words, control, then);
            self.awaited += 1;
            // Those behind it find it done.
            pair.sends.fence = super::send_queue::FENCE_SMALL;
        }
        self.list(by.qp);
    }

    pub(super) fn key_of(&self, id: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let slot = region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?;
        Ok(slot.rkey)
    }
}
