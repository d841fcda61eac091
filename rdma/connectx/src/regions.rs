//! Regions and their keys.

use super::ConnectX;
use super::context::Service;
use super::domains::Domain;
use super::mkey::{self, Grant};
use super::pair::Pair;
use super::pool::Pool;
use super::send_queue::{Change, FENCE_SMALL, SendQueue, Then};
use alloc::vec::Vec;
use drivers::hal::Window;
use rand_core::RngCore;
use softverbs::handle_table::HandleTable;
use verbs::{
    Access, ChunkedRegion, KeyChange, KeyRequest, MrId, PdId, QpId, QpState, Region, VerbsError,
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
    /// What keys are given for, as the card is told: rights, and log2 of the bytes of a page.
    rights: u64,
    shift: u32,
    address: u64,
    chunk: usize,
    is_chunked: bool,
    slots: Vec<Slot>,
}

impl Registration {
    /// What a key is given for: a chunk. None if there is no such.
    #[inline(always)]
    fn grant(&self, chunk: u16, key: u32, domain: Option<u32>) -> Option<Grant> {
        let offset = usize::from(chunk) * self.chunk;
        let memory = self.memory.slice(offset, self.chunk)?;
        let (address, shift, rights) = (self.address + offset as u64, self.shift, self.rights);
        Some(Grant { key, domain, memory, address, shift, rights })
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

/// Puts a change of keys into a queue that has room for it, of whose requests those behind it find it done. The domain is
/// the card's number of it, which is told where the key may be of another.
fn put(
    sends: &mut SendQueue,
    (id, change): (u64, Change),
    region: Option<&Registration>,
    domain: Option<u32>,
    fence: u8,
    pool: &Pool,
) -> Result<(), VerbsError> {
    let grant = match change.gives {
        None => None,
        Some(place) => {
            let region = region.ok_or(VerbsError::NoSuchObject)?;
            let grant = region.grant(change.chunk, pool.value(place), domain);
            Some(grant.ok_or(VerbsError::Invalid)?)
        }
    };
    if let Some(place) = change.takes {
        let (blocks, control) = mkey::take(pool.value(place), fence);
        sends.put(blocks, control);
    }
    if let Some(grant) = grant {
        let (blocks, control) = mkey::give(&grant, fence);
        sends.put(blocks, control);
    }
    sends.end(Then::Key { id, change }, 1);
    Ok(())
}

/// Whether a change of so many blocks can be posted to a queue pair: one of the same domain, which sends, and has room.
#[inline]
fn check_change(pair: &Pair, pd: PdId, blocks: u32) -> Result<(), VerbsError> {
    if pair.asked != QpState::Rts {
        return Err(VerbsError::WrongState);
    }
    if pair.pd != pd || pair.service() != Service::Reliable {
        return Err(VerbsError::Invalid);
    }
    if pair.sends.has_blocks(blocks) { Ok(()) } else { Err(VerbsError::QueueFull) }
}

/// Keys of a chunk of a region, if that is still there, were changed.
#[inline(always)]
fn is_changed(
    region: Option<&mut Registration>,
    domains: &mut HandleTable<Domain>,
    pool: &mut Pool,
    change: &Change,
) {
    let mut slot = region.and_then(|region| region.slots.get_mut(usize::from(change.chunk)));
    if let Some(place) = change.takes {
        let (value, pd) = pool.dead(place);
        if let Some(slot) = slot.as_mut().filter(|slot| slot.rkey == value) {
            slot.rkey = 0;
        }
        if let Some(pd) = pd
            && let Some(domain) = domains.get_mut(pd.0)
        {
            domain.users = domain.users.saturating_sub(1);
            domain.spare.push(place);
        }
    }
    if let (Some(place), Some(slot)) = (change.gives, slot) {
        slot.rkey = pool.value(place);
    }
}

/// A change that was posted to a queue pair is done.
#[inline]
pub fn posted_is_done(
    regions: &mut HandleTable<Registration>,
    domains: &mut HandleTable<Domain>,
    pool: &mut Pool,
    change: &Change,
) {
    let mut region = regions.get_mut(change.region.0);
    if let Some(region) = &mut region
        && let Some(slot) = region.slots.get_mut(usize::from(change.chunk))
    {
        slot.posted = slot.posted.saturating_sub(1);
    }
    is_changed(region, domains, pool, change);
}

impl ConnectX {
    /// Changes the keys of a chunk by the key queue.
    pub(super) fn change_keys(&mut self, change: Change) -> Result<(), VerbsError> {
        if change.takes.is_none() && change.gives.is_none() {
            return Ok(());
        }
        self.make_key_room(mkey::GIVE_BLOCKS + mkey::TAKE_BLOCKS)?;
        let region = self.regions.get(change.region.0);
        let domain = region.and_then(|region| self.domains.get(region.pd.0));
        let domain = domain.map(|domain| domain.number);
        if change.gives.is_some() && domain.is_none() {
            return Err(VerbsError::NoSuchObject);
        }
        put(&mut self.key_queue.sends, (0, change), region, domain, 0, &self.pool)
    }

    /// Keys of a chunk were changed.
    pub(super) fn key_is_changed(&mut self, change: &Change) {
        let ConnectX { regions, domains, pool, .. } = self;
        is_changed(regions.get_mut(change.region.0), domains, pool, change);
    }

    /// A change that was posted to a queue pair has come to nothing.
    pub(super) fn posted_change_is_over(&mut self, change: &Change) {
        let slots = self.regions.get_mut(change.region.0).map(|found| &mut found.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(usize::from(change.chunk))) {
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
            self.key_is_changed(&Change {
                region: id,
                chunk,
                takes: Some(place),
                gives: None,
                tells: false,
                is_awaited: false,
            });
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
        let new = self.draw(pd, rng)?;
        self.pool.give(new, pd, id, chunk);
        if let Some(region) = self.regions.get_mut(id.0)
            && let Some(slot) = region.slots.get_mut(usize::from(chunk))
        {
            slot.latest = Some(new);
        }
        if let Some(old) = old {
            self.pool.dies(old);
        }
        let (takes, gives, tells, is_awaited) = (old, Some(new), false, false);
        self.change_keys(Change { region: id, chunk, takes, gives, tells, is_awaited })?;
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
            rights: mkey::rights(access),
            shift: mkey::shift(chunk),
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
            rights: mkey::rights(access),
            shift: mkey::shift(chunk),
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
        let before = (region.memory, region.address, region.chunk, region.shift);
        (region.memory, region.address) = (memory, address);
        (region.chunk, region.shift) = (memory.len(), mkey::shift(memory.len()));
        match self.rotate(id, rng) {
            Ok(rkey) => Ok(Region { id, rkey, address, memory }),
            Err(error) => {
                if let Some(region) = self.regions.get_mut(id.0) {
                    (region.memory, region.address, region.chunk, region.shift) = before;
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
        for (_, place) in &taken {
            self.pool.dies(*place);
        }
        Ok(taken)
    }

    pub(super) fn revoke(&mut self, id: MrId) -> Result<(), VerbsError> {
        for (chunk, place) in self.take_keys(id)? {
            // While the card is down there are none.
            let (takes, gives, tells, is_awaited) = (Some(place), None, false, false);
            self.change_keys(Change { region: id, chunk, takes, gives, tells, is_awaited })?;
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
        let pair = self.pairs.get(request.qp.0).ok_or(VerbsError::NoSuchObject)?;
        check_change(pair, region.pd, live * mkey::TAKE_BLOCKS)?;
        let taken = self.take_keys(id)?;
        let Some(&(last, _)) = taken.last() else { return Ok(KeyChange::Done(())) };
        for (chunk, place) in taken {
            let tells = chunk == last;
            let (takes, gives, is_awaited) = (Some(place), None, tells && request.signaled);
            let change = Change { region: id, chunk, takes, gives, tells, is_awaited };
            self.post_change(request.qp, request.id, change)?;
        }
        Ok(if request.signaled { KeyChange::Posted } else { KeyChange::Promised(()) })
    }

    pub(super) fn rotate_chunk(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError> {
        match self.try_to_rotate(id, chunk, by, 1 + self.limits.spare_keys / 2, rng) {
            Err(VerbsError::QueueFull | VerbsError::NoRoom) => self.rotate_late(id, chunk, by, rng),
            done => done,
        }
    }

    /// The same where there was no room, or too few keys were spare.
    #[cold]
    fn rotate_late(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let few = self.limits.spare_keys / 2;
        // Perhaps requests are done that nobody wants to hear of.
        self.reap_sent();
        match self.try_to_rotate(id, chunk, by, 1 + few, rng) {
            Err(VerbsError::NoRoom) => {}
            done => return done,
        }
        // More keys may belong to the domain.
        let pd = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?.pd;
        self.stock(pd, rng)?;
        self.try_to_rotate(id, chunk, by, few.max(1), rng)
    }

    /// Posts it. `NoRoom` if fewer than so many keys are spare in the region's domain.
    #[inline(always)]
    fn try_to_rotate(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        least: usize,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let ConnectX { regions, domains, pairs, pool, news, awaited, fence, .. } = self;
        let region = regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let old = region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?.latest;
        let pair = pairs.get_mut(by.qp.0).ok_or(VerbsError::NoSuchObject)?;
        check_change(pair, region.pd, mkey::GIVE_BLOCKS + mkey::TAKE_BLOCKS)?;
        let domain = domains.get_mut(region.pd.0).ok_or(VerbsError::NoSuchObject)?;
        if domain.spare.len() < least {
            return Err(VerbsError::NoRoom);
        }
        let mut grant = region.grant(chunk, 0, None).ok_or(VerbsError::Invalid)?;
        let (new, rkey) = pool.draw_of(&mut domain.spare, rng).ok_or(VerbsError::NoRoom)?;
        grant.key = rkey;
        // Until it is taken back.
        domain.users += 1;
        pool.give(new, region.pd, id, chunk);
        if let Some(old) = old {
            let (blocks, control) = mkey::take(pool.dies(old), *fence);
            pair.sends.put(blocks, control);
        }
        let (blocks, control) = mkey::give(&grant, *fence);
        pair.sends.put(blocks, control);
        let (takes, gives, tells, is_awaited) = (old, Some(new), true, by.signaled);
        let change = Change { region: id, chunk, takes, gives, tells, is_awaited };
        pair.sends.end(Then::Key { id: by.id, change }, 1);
        // Those behind it find it done.
        pair.sends.fence = FENCE_SMALL;
        *awaited += u32::from(by.signaled);
        if let Some(slot) = region.slots.get_mut(usize::from(chunk)) {
            slot.latest = Some(new);
            slot.posted += 1;
        }
        pair.list(news);
        Ok(if by.signaled { KeyChange::Posted } else { KeyChange::Promised(rkey) })
    }

    /// Posts a change to a queue pair of the region's domain, which has room for it.
    fn post_change(&mut self, qp: QpId, id: u64, change: Change) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let region = self.regions.get_mut(change.region.0).ok_or(VerbsError::NoSuchObject)?;
        put(&mut pair.sends, (id, change), Some(region), None, self.fence, &self.pool)?;
        // Those behind it find it done.
        pair.sends.fence = FENCE_SMALL;
        self.awaited += u32::from(change.is_awaited);
        if let Some(slot) = region.slots.get_mut(usize::from(change.chunk)) {
            slot.posted += 1;
        }
        pair.list(&mut self.news);
        Ok(())
    }

    pub(super) fn key_of(&self, id: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let slot = region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?;
        Ok(slot.rkey)
    }
}
