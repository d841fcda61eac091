//! Regions and their keys.

use super::ConnectX;
use super::context::Service;
use super::domains::Domain;
use super::mkey::{self, Grant};
use super::pair::Pair;
use super::pool::Pool;
use super::send_queue::{Change, FENCE_SMALL, OnCompletion, SendQueue};
use alloc::vec::Vec;
use drivers::hal::Window;
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use verbs::{
    Access, ChunkedRegion, KeyChange, KeyRequest, MrId, PdId, QpId, QpState, Region, VerbsError,
};

/// The key of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Place in the pool of its key, after all posted changes.
    latest: Option<u32>,
    /// The key in effect; 0 for none.
    rkey: u32,
    /// Number of posted changes that are not done.
    posted: u32,
}

/// A region of one chunk, or of many of one size.
#[derive(Debug)]
pub struct Registration {
    pd: PdId,
    memory: Window,
    /// Parameters of its keys for the card: access rights, and log2 of the bytes of a page.
    rights: u64,
    changes_atomics: bool,
    shift: u32,
    address: u64,
    chunk: usize,
    is_chunked: bool,
    slots: Vec<Slot>,
}

impl Registration {
    /// The grant of a chunk. None if there is no such chunk.
    #[inline]
    fn grant(&self, chunk: u16, key: u32, domain: Option<u32>) -> Option<Grant> {
        let offset = usize::from(chunk) * self.chunk;
        let memory = self.memory.slice(offset, self.chunk)?;
        let (address, shift, rights) = (self.address + offset as u64, self.shift, self.rights);
        let changes_atomics = self.changes_atomics;
        Some(Grant { key, domain, memory, address, shift, rights, changes_atomics })
    }

    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Drops all keys after a reset of the card.
    pub fn drop_keys(&mut self) {
        self.slots.fill(Slot::default());
    }
}

/// Remote address of memory: in a random page, with the card's page size.
fn address_of(memory: Window, chunk: usize, rng: &mut dyn Rng) -> u64 {
    let page = 1u64 << mkey::shift(chunk);
    rng.next_u64() & 0x0000_7fff_ffff_ffff & !(page - 1) | memory.bus_address() & (page - 1)
}

/// Writes a change of keys into a queue that has room for it; later requests of the queue execute after it. `domain` is
/// the card's number of the domain, set if the key may belong to another one.
fn put(
    sends: &mut SendQueue,
    (id, change): (u64, Change),
    region: Option<&Registration>,
    domain: Option<u32>,
    fence: u8,
    pool: &Pool,
) -> Result<(), VerbsError> {
    let grant = match change.granted {
        None => None,
        Some(place) => {
            let region = region.ok_or(VerbsError::NoSuchObject)?;
            let grant = region.grant(change.chunk, pool.value(place), domain);
            Some(grant.ok_or(VerbsError::Invalid)?)
        }
    };
    if let Some(place) = change.revoked {
        let (blocks, control) = mkey::revoke(pool.value(place), fence);
        sends.put(blocks, control);
    }
    if let Some(grant) = grant {
        let (blocks, control) = mkey::grant(&grant, fence);
        sends.put(blocks, control);
    }
    sends.end(OnCompletion::Key { id, change }, 1);
    Ok(())
}

/// Whether a change of `blocks` blocks can be posted to a queue pair: it must be of the same domain, able to send, and
/// have room.
#[inline]
fn check_change(pair: &Pair, pd: PdId, blocks: u32) -> Result<(), VerbsError> {
    if pair.requested != QpState::Rts {
        return Err(VerbsError::WrongState);
    }
    if pair.pd != pd || pair.service() != Service::Reliable {
        return Err(VerbsError::Invalid);
    }
    if pair.sends.has_blocks(blocks) { Ok(()) } else { Err(VerbsError::QueueFull) }
}

/// Applies a completed change of a chunk's keys, if the region still exists.
#[inline]
fn apply_change(
    region: Option<&mut Registration>,
    domains: &mut HandleTable<Domain>,
    pool: &mut Pool,
    change: &Change,
) {
    let mut slot = region.and_then(|region| region.slots.get_mut(usize::from(change.chunk)));
    if let Some(place) = change.revoked {
        let (value, pd) = pool.revoked(place);
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
    if let (Some(place), Some(slot)) = (change.granted, slot) {
        slot.rkey = pool.value(place);
    }
}

/// Applies a completed change that was posted to a queue pair.
#[inline]
pub fn finish_posted_change(
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
    apply_change(region, domains, pool, change);
}

impl ConnectX {
    /// Changes the keys of a chunk by the key queue.
    pub(super) fn change_keys(&mut self, change: Change) -> Result<(), VerbsError> {
        if change.revoked.is_none() && change.granted.is_none() {
            return Ok(());
        }
        self.make_key_room(mkey::GRANT_BLOCKS + mkey::REVOKE_BLOCKS)?;
        let region = self.regions.get(change.region.0);
        let domain = region.and_then(|region| self.domains.get(region.pd.0));
        let domain = domain.map(|domain| domain.number);
        if change.granted.is_some() && domain.is_none() {
            return Err(VerbsError::NoSuchObject);
        }
        put(&mut self.key_queue.sends, (0, change), region, domain, 0, &self.pool)
    }

    /// Applies a completed change of the key queue.
    pub(super) fn finish_change(&mut self, change: &Change) {
        let ConnectX { regions, domains, pool, .. } = self;
        apply_change(regions.get_mut(change.region.0), domains, pool, change);
    }

    /// Forgets a posted change that was not executed.
    pub(super) fn drop_posted_change(&mut self, change: &Change) {
        let slots = self.regions.get_mut(change.region.0).map(|found| &mut found.slots);
        if let Some(slot) = slots.and_then(|slots| slots.get_mut(usize::from(change.chunk))) {
            slot.posted = slot.posted.saturating_sub(1);
        }
    }

    /// Handles the invalidation of a key by a peer.
    pub(super) fn handle_remote_invalidate(&mut self, value: u32) {
        let Some((place, id, chunk)) = self.pool.invalidated_by_peer(value) else { return };
        let slots = self.regions.get_mut(id.0).map(|found| &mut found.slots);
        let slot = slots.and_then(|slots| slots.get_mut(usize::from(chunk)));
        if let Some(slot) = slot.filter(|slot| slot.latest == Some(place)) {
            (slot.latest, slot.rkey) = (None, 0);
            self.pool.revoke(place);
            self.finish_change(&Change {
                region: id,
                chunk,
                revoked: Some(place),
                granted: None,
                has_completion: false,
                is_awaited: false,
            });
        }
    }

    /// Gives a chunk a fresh key and revokes the old one; both are in effect after `settle_keys`.
    fn rekey(&mut self, id: MrId, chunk: u16, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        self.check_up()?;
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let (pd, slot) = (region.pd, region.slots.get(usize::from(chunk)));
        let old = slot.ok_or(VerbsError::Invalid)?;
        if old.posted > 0 {
            return Err(VerbsError::Busy);
        }
        let old = old.latest;
        let new = self.draw(pd, rng)?;
        self.pool.grant(new, pd, id, chunk);
        if let Some(region) = self.regions.get_mut(id.0)
            && let Some(slot) = region.slots.get_mut(usize::from(chunk))
        {
            slot.latest = Some(new);
        }
        if let Some(old) = old {
            self.pool.revoke(old);
        }
        let (revoked, granted, has_completion, is_awaited) = (old, Some(new), false, false);
        self.change_keys(Change {
            region: id,
            chunk,
            revoked,
            granted,
            has_completion,
            is_awaited,
        })?;
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
        rng: &mut dyn Rng,
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
            changes_atomics: self.changes_atomics,
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
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        self.domains.get(pd.0).ok_or(VerbsError::NoSuchObject)?;
        let (chunk, access) = (size as usize, Access::REMOTE_WRITE);
        // On-demand memory is not supported.
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
            changes_atomics: self.changes_atomics,
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

    pub(super) fn rotate(&mut self, id: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        let rkey = self.rekey(id, 0, rng)?;
        self.settle_keys()?;
        Ok(rkey)
    }

    pub(super) fn point_at(
        &mut self,
        id: MrId,
        memory: Window,
        rng: &mut dyn Rng,
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

    /// Detaches the keys of a region; returns chunks and places in the pool.
    fn take_keys(&mut self, id: MrId) -> Result<Vec<(u16, u32)>, VerbsError> {
        let region = self.regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let slots = region.slots.iter_mut().enumerate();
        let taken = slots.filter_map(|(chunk, slot)| Some((chunk as u16, slot.latest.take()?)));
        let taken: Vec<_> = taken.collect();
        for (_, place) in &taken {
            self.pool.revoke(*place);
        }
        Ok(taken)
    }

    pub(super) fn revoke(&mut self, id: MrId) -> Result<(), VerbsError> {
        for (chunk, place) in self.take_keys(id)? {
            // While the card is down a region has no keys.
            let (revoked, granted, has_completion, is_awaited) = (Some(place), None, false, false);
            self.change_keys(Change {
                region: id,
                chunk,
                revoked,
                granted,
                has_completion,
                is_awaited,
            })?;
        }
        Ok(())
    }

    pub(super) fn end_region(&mut self, id: MrId) -> Result<(), VerbsError> {
        let revoked = self.revoke(id);
        let region = self.regions.remove(id.0).ok_or(VerbsError::NoSuchObject)?;
        self.release(region.pd);
        // The owner reuses the memory: no peer may write to it any more. A card that does not revoke the keys is reset.
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
        check_change(pair, region.pd, live * mkey::REVOKE_BLOCKS)?;
        let taken = self.take_keys(id)?;
        let Some(&(last, _)) = taken.last() else { return Ok(KeyChange::Done(())) };
        for (chunk, place) in taken {
            let has_completion = chunk == last;
            let (revoked, granted, is_awaited) =
                (Some(place), None, has_completion && request.signaled);
            let change = Change { region: id, chunk, revoked, granted, has_completion, is_awaited };
            self.post_change(request.qp, request.id, change)?;
        }
        Ok(if request.signaled { KeyChange::Posted } else { KeyChange::Promised(()) })
    }

    pub(super) fn rotate_chunk(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        match self.try_to_rotate(id, chunk, by, 1 + self.limits.spare_keys / 2, rng) {
            Err(VerbsError::QueueFull | VerbsError::NoRoom) => self.rotate_late(id, chunk, by, rng),
            done => done,
        }
    }

    /// Retries `rotate_chunk` after lack of room or of spare keys.
    #[cold]
    fn rotate_late(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let few = self.limits.spare_keys / 2;
        // Unsignaled requests may be done.
        self.reap_sent();
        match self.try_to_rotate(id, chunk, by, 1 + few, rng) {
            Err(VerbsError::NoRoom) => {}
            done => return done,
        }
        // The domain may get more keys.
        let pd = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?.pd;
        self.stock(pd, rng)?;
        self.try_to_rotate(id, chunk, by, few.max(1), rng)
    }

    /// Posts the rotation. `NoRoom` if fewer than `least` keys are spare in the region's domain.
    #[inline]
    fn try_to_rotate(
        &mut self,
        id: MrId,
        chunk: u16,
        by: KeyRequest,
        least: usize,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        let ConnectX { regions, domains, pairs, pool, unflushed, awaited, fence, .. } = self;
        let region = regions.get_mut(id.0).ok_or(VerbsError::NoSuchObject)?;
        let old = region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?.latest;
        let pair = pairs.get_mut(by.qp.0).ok_or(VerbsError::NoSuchObject)?;
        check_change(pair, region.pd, mkey::GRANT_BLOCKS + mkey::REVOKE_BLOCKS)?;
        let domain = domains.get_mut(region.pd.0).ok_or(VerbsError::NoSuchObject)?;
        if domain.spare.len() < least {
            return Err(VerbsError::NoRoom);
        }
        let mut grant = region.grant(chunk, 0, None).ok_or(VerbsError::Invalid)?;
        let (new, rkey) = pool.draw_of(&mut domain.spare, rng).ok_or(VerbsError::NoRoom)?;
        grant.key = rkey;
        // Until the key is revoked.
        domain.users += 1;
        pool.grant(new, region.pd, id, chunk);
        if let Some(old) = old {
            let (blocks, control) = mkey::revoke(pool.revoke(old), *fence);
            pair.sends.put(blocks, control);
        }
        let (blocks, control) = mkey::grant(&grant, *fence);
        pair.sends.put(blocks, control);
        let (revoked, granted, has_completion, is_awaited) = (old, Some(new), true, by.signaled);
        let change = Change { region: id, chunk, revoked, granted, has_completion, is_awaited };
        pair.sends.end(OnCompletion::Key { id: by.id, change }, 1);
        // Later requests wait for the change.
        pair.sends.fence = FENCE_SMALL;
        *awaited += u32::from(by.signaled);
        if let Some(slot) = region.slots.get_mut(usize::from(chunk)) {
            slot.latest = Some(new);
            slot.posted += 1;
        }
        pair.list(unflushed);
        Ok(if by.signaled { KeyChange::Posted } else { KeyChange::Promised(rkey) })
    }

    /// Posts a change to a queue pair of the region's domain, which has room for it.
    fn post_change(&mut self, qp: QpId, id: u64, change: Change) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let region = self.regions.get_mut(change.region.0).ok_or(VerbsError::NoSuchObject)?;
        put(&mut pair.sends, (id, change), Some(region), None, self.fence, &self.pool)?;
        // Later requests wait for the change.
        pair.sends.fence = FENCE_SMALL;
        self.awaited += u32::from(change.is_awaited);
        if let Some(slot) = region.slots.get_mut(usize::from(change.chunk)) {
            slot.posted += 1;
        }
        pair.list(&mut self.unflushed);
        Ok(())
    }

    pub(super) fn key_of(&self, id: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let region = self.regions.get(id.0).ok_or(VerbsError::NoSuchObject)?;
        let slot = region.slots.get(usize::from(chunk)).ok_or(VerbsError::Invalid)?;
        Ok(slot.rkey)
    }
}
