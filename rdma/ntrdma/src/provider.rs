//! Implementation of the verbs.

use super::layout::{INLINE, Layout};
use super::qp::{Identity, Qp};
use super::requester::MAX_MESSAGE;
use super::{Ntrdma, qp_place};
use core::net::IpAddr;
use drivers::hal::{Arena, Instant, Window};
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use softverbs::memory::Memory;
use softverbs::sges::MAX_SGE;
use verbs::{
    AsyncEvent, Completion, CqId, DeviceAttributes, Lending, PathMtu, Provider, QpId, QpInit,
    QpState, QpType, ReadyToReceive, ReadyToSend, RecvRequest, SendRequest, SoftwareMemory,
    UnderWay, VerbsError,
};

/// Most outstanding RDMA READs and atomics of a queue pair, as advertised. They are executed at once, so
/// only the ring limits them.
pub(super) const MAX_RD_ATOMIC: u8 = 16;

impl Ntrdma {
    /// Whether a queue pair's requests up to that number have ended, or it does not exist any more.
    pub fn has_done(&self, qp: QpId, requests: u32) -> bool {
        self.qps.get(qp.0).is_none_or(|qp| qp.requester.has_done(requests))
    }

    /// Whether the copies up to that number are complete, so that their sources are not read any more.
    pub fn has_copied(&self, copies: u64) -> bool {
        copies <= self.copied
    }

    /// A free slot for a queue pair, if there is one.
    fn free_slot(&self) -> Option<u32> {
        let free = self.slots.iter().position(|slot| slot.qp.is_none() && !slot.lingers)?;
        Some(free as u32)
    }

    /// The next queue pair number for a slot. Its upper bits are a generation.
    fn next_number(&self, slot: u32) -> u32 {
        let mask = self.config.layout.slot_mask();
        let last = self.slots.get(slot as usize).map_or(0, |slot| slot.number) & !mask;
        let mut next = last.wrapping_add(mask + 1) & 0xff_ffff;
        if next & !mask == 0 {
            next = mask + 1;
        }
        next | slot
    }
}

impl SoftwareMemory for Ntrdma {
    type Regions = Memory;
    fn regions(&self) -> &Memory {
        &self.memory
    }
    fn regions_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

impl Lending for Ntrdma {
    fn lend(&mut self, local: IpAddr, length: usize) -> Option<Window> {
        if local != self.config.local || self.lent.is_empty() {
            return None;
        }
        let (lent, ports) = (self.lent, self.memory.ports());
        let new = || {
            let mut lending = Arena::new(lent);
            lending.wait_for_ports(ports);
            lending
        };
        let memory = self.lending.get_or_insert_with(new).alloc(length, 4096)?;
        self.lent_out.push(memory);
        Some(memory)
    }

    fn take_back(&mut self, memory: Window) -> bool {
        let is_it = |out: &Window| out.as_ptr() == memory.as_ptr() && out.len() == memory.len();
        let place = self.lent_out.iter().position(is_it);
        let (Some(place), Some(lending)) = (place, &mut self.lending) else { return false };
        lending.free(self.lent_out.swap_remove(place));
        true
    }
}

impl Provider for Ntrdma {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            guid: self.config.guid,
            max_wr: self.config.wr,
            max_sge: MAX_SGE,
            max_inline: INLINE,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_message: MAX_MESSAGE as u32,
            max_path_mtu: PathMtu::Mtu4096,
            atomics: true,
            send_with_invalidate: true,
        }
    }

    fn lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }

    fn failed_by_itself(&self, _qp: QpId) -> bool {
        // The requests of a failed queue pair end with a status that names the cause.
        false
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.cqs.create(depth)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.cqs.destroy(cq)
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.cqs.poll(cq)
    }

    fn watch_cq(&mut self, cq: CqId, number: u32) {
        self.cqs.watch(cq, number);
    }

    #[inline]
    fn next_watched(&mut self) -> Option<u32> {
        self.cqs.next_watched()
    }

    fn create_qp(&mut self, init: &QpInit, _rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        if init.kind != QpType::Rc
            || init.max_send_wr > self.config.wr
            || init.max_recv_wr > self.config.wr
            || init.max_send_sge > MAX_SGE
            || init.max_recv_sge > MAX_SGE
            || init.max_inline > INLINE
        {
            return Err(VerbsError::Invalid);
        }
        if !self.cqs.exists(init.send_cq) || !self.cqs.exists(init.recv_cq) {
            return Err(VerbsError::NoSuchObject);
        }
        let slot = self.free_slot().ok_or(VerbsError::NoRoom)?;
        let number = self.next_number(slot);
        self.memory.hold_pd(init.pd)?;
        let made = self.qps.insert(|name| {
            let identity = Identity {
                id: QpId(name),
                place: HandleTable::<Qp>::index(name) as u32,
                number,
                slot,
                places: self.config.layout.places(slot),
                pd: init.pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
            };
            Qp::new(identity, init)
        });
        let Some(name) = made else {
            self.memory.release_pd(init.pd);
            return Err(VerbsError::NoRoom);
        };
        let id = QpId(name);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = super::Slot { qp: Some(id), number, lingers: false, bells_seen: 0 };
        }
        self.slots_used = self.slots_used.max(slot + 1);
        // The peer does not know the new queue pair yet, and has sent `Detach` for the former one.
        self.exposed.store64(Layout::bells(slot), 0);
        self.cqs.hold(init.send_cq);
        self.cqs.hold(init.recv_cq);
        Ok(id)
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        self.qps.get(qp.0).map(|qp| qp.identity.number).ok_or(VerbsError::NoSuchObject)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(qp.0).map(|qp| qp.state).ok_or(VerbsError::NoSuchObject)
    }

    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError> {
        self.attach(qp, peer.remote_qpn)?;
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.state = QpState::Rtr;
        }
        Ok(())
    }

    fn ready_to_send(&mut self, qp: QpId, _to: &ReadyToSend) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if found.state != QpState::Rtr {
            return Err(VerbsError::WrongState);
        }
        found.state = QpState::Rts;
        Ok(())
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        // The caller fails it, so there is no `QpError` event.
        found.error_reported = true;
        self.fail(qp_place(qp), None);
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let connection = found.connection.take();
        self.detach(qp_place(qp));
        if let Some(connection) = connection {
            self.connection_abandoned(connection);
        }
        let mut removed = self.qps.remove(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let copying = removed.requester.copying(self.copied);
        for block in removed.requester.blocks() {
            match copying {
                Some(copy) => self.lingering.push((copy, block)),
                None => self.memory.pool.free(block),
            }
        }
        let Identity { place, slot, pd, send_cq, recv_cq, .. } = removed.identity;
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            (slot.qp, slot.lingers) = (None, removed.known_to_peer);
        }
        self.events.retain(|event| !matches!(event, AsyncEvent::QpError(id) if *id == qp));
        self.work.retain(|&other| other != place);
        self.cqs.release(send_cq, qp);
        self.cqs.release(recv_cq, qp);
        self.memory.release_pd(pd);
        Ok(())
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let Some(peer) = found.peer.as_ref().filter(|_| found.state == QpState::Rts) else {
            return Err(VerbsError::WrongState);
        };
        found.requester.post(request, peer, &mut self.memory)?;
        self.enqueue(qp_place(qp));
        Ok(())
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if found.state == QpState::Error {
            return Err(VerbsError::WrongState);
        }
        found.receives.post(request)?;
        if found.responder.produced != found.responder.consumed {
            self.enqueue(qp_place(qp));
        }
        Ok(())
    }

    fn requests_seen(&self, qp: QpId) -> Option<u32> {
        self.qps.get(qp.0).map(|qp| qp.responder.consumed)
    }

    fn under_way(&self) -> UnderWay {
        let mut all = UnderWay::default();
        for qp in self.qps.iter() {
            if let Some(posted) = qp.requester.under_way() {
                all.add(qp.identity.id, posted);
            }
        }
        all.add_copies(0, self.submitted);
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        under_way.settle(|qp, posted| self.has_done(qp, posted))
            && self.has_copied(under_way.copies(0))
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let link = self.link.deadline();
        Some(self.cm.deadline().map_or(link, |at| at.min(link)))
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.run_connection_timers(now);
    }
}
