//! The verbs of the provider.

use super::psn::Psn;
use super::qp::{Ctx, Identity, Qp};
use super::requester::MAX_MESSAGE;
use super::sges::MAX_SGE;
use super::transmit::MAX_INLINE;
use super::{Roce, handle_table};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use softverbs::memory::Memory;
use verbs::{
    Access, AsyncEvent, Completion, CqId, DeviceAttributes, MrId, PathMtu, PdId, Provider, QpId,
    QpInit, QpState, QpType, ReadyToReceive, ReadyToSend, RecvRequest, Region, RegionsOnDemand,
    RemoteAddress, SendRequest, SoftwareMemory, UnderWay, VerbsError,
};

/// RDMA READs and atomics that a queue pair may have outstanding, either way.
pub(super) const MAX_RD_ATOMIC: u8 = 16;

impl Roce {
    /// The window that domain `pd` grants for a peer's claim, or a refusal.
    pub fn check(
        &self,
        pd: PdId,
        access: Access,
        alleged: RemoteAddress,
        length: u32,
    ) -> Result<Window, super::Refusal> {
        self.memory.check(pd, access, alleged, length)
    }

    /// Whether the requests of a queue pair up to number `requests` are done, or the queue pair is gone.
    pub fn has_done(&self, qp: QpId, requests: u32) -> bool {
        self.qps.get(qp.0).is_none_or(|qp| qp.has_done(requests))
    }

    /// Makes room for the queue pair at `place` in all lists.
    fn make_room(&mut self, place: usize) {
        self.timers.make_room(place);
        let places = self.qps.places();
        for port in &mut self.ports {
            port.make_room(places);
        }
        let events = 2 * (places + self.ports.len());
        self.events.reserve(events.saturating_sub(self.events.len()));
    }

    /// GUID of the node: that of its first port.
    pub(super) fn guid(&self) -> u64 {
        self.ports.first().map_or(0, |port| guid(port.config.mac))
    }
}

impl SoftwareMemory for Roce {
    type Regions = Memory;
    fn regions(&self) -> &Memory {
        &self.memory
    }
    fn regions_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

impl RegionsOnDemand for Roce {
    fn register_on_demand(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.memory.register_on_demand(pd, length, rng)
    }

    fn add_to_odp_pool(&mut self, memory: Window) {
        self.memory.add_to_odp_pool(memory);
    }

    fn odp_pool(&self, length: usize) -> usize {
        self.memory.odp_pool(length)
    }

    fn on_demand_memory(&self, region: MrId) -> Option<(Window, u64)> {
        self.memory.on_demand_memory(region)
    }

    fn take_on_demand_memory(&mut self, region: MrId) -> Option<Window> {
        self.memory.take_on_demand_memory(region)
    }
}

impl Provider for Roce {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            guid: self.guid(),
            max_wr: self.limits.wr,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_message: MAX_MESSAGE as u32,
            max_path_mtu: self
                .ports
                .iter()
                .map(super::port::Port::largest_path_mtu)
                .max()
                .unwrap_or(PathMtu::Mtu256),
            atomics: true,
            send_with_invalidate: true,
        }
    }

    fn path_mtu_to(&self, local: IpAddr, remote: IpAddr, now: Instant) -> PathMtu {
        let port = self.port_of(local).and_then(|place| self.ports.get(place));
        let most = port.map_or(PathMtu::Mtu256, |port| port.path_mtu(remote));
        self.cm.path_mtu_to(remote, most, now)
    }

    fn failed_by_itself(&self, qp: QpId) -> bool {
        // Ending a connection detaches its queue pair first.
        self.qps.get(qp.0).is_some_and(|qp| qp.state == QpState::Error && qp.connection.is_some())
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.cqs.create(depth)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.cqs.destroy(cq)
    }

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

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        if init.max_send_wr > self.limits.wr
            || init.max_recv_wr > self.limits.wr
            || init.max_send_sge > MAX_SGE
            || init.max_recv_sge > MAX_SGE
            || init.max_inline > MAX_INLINE
        {
            return Err(VerbsError::Invalid);
        }
        if !self.cqs.exists(init.send_cq) || !self.cqs.exists(init.recv_cq) {
            return Err(VerbsError::NoSuchObject);
        }
        self.memory.hold_pd(init.pd)?;
        let (mask, bits) = (self.qpn_mask, self.qpn_slots);
        let made = self.qps.insert(|name| {
            let place = handle_table::HandleTable::<Qp>::index(name) as u32;
            let number = loop {
                let above = rng.next_u32() & 0xff_ffff & !bits;
                let number = (above | place) ^ mask;
                // 0 and 1 are reserved, 0xffffff is the multicast number.
                if (2..0xff_ffff).contains(&number) {
                    break number;
                }
            };
            let identity = Identity {
                id: QpId(name),
                number,
                kind: init.kind,
                pd: init.pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                initial_psn: Psn::new(rng.next_u32()),
            };
            Qp::new(identity, init)
        });
        let Some(name) = made else {
            self.memory.release_pd(init.pd);
            return Err(VerbsError::NoRoom);
        };
        self.cqs.hold(init.send_cq);
        self.cqs.hold(init.recv_cq);
        self.make_room(handle_table::HandleTable::<Qp>::index(name));
        Ok(QpId(name))
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        self.qps.get(qp.0).map(|qp| qp.identity.number).ok_or(VerbsError::NoSuchObject)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(qp.0).map(|qp| qp.state).ok_or(VerbsError::NoSuchObject)
    }

    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError> {
        let place = self.port_of(peer.address.local).ok_or(VerbsError::Invalid)?;
        let port = &self.ports[place];
        if peer.path_mtu > port.path_mtu(peer.address.remote)
            || peer.max_dest_rd_atomic > MAX_RD_ATOMIC
        {
            return Err(VerbsError::Invalid);
        }
        let mac = port.config.mac;
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        match found.identity.kind {
            QpType::Rc => {
                found.ready_to_receive(peer, mac)?;
                found.port = place;
                found.routed = self.cm.is_routed(place, peer.address.remote);
                found.requester.port = place;
                Ok(())
            }
            QpType::Ud { .. } if found.state == QpState::Init => {
                found.port = place;
                found.requester.port = place;
                found.state = QpState::Rtr;
                Ok(())
            }
            QpType::Ud { .. } => Err(VerbsError::WrongState),
        }
    }

    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError> {
        if to.max_rd_atomic > MAX_RD_ATOMIC {
            return Err(VerbsError::Invalid);
        }
        self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?.ready_to_send(to)
    }

    fn coalesce_acks(&mut self, qp: QpId) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.requester.coalesce_acks();
        }
    }

    fn writes_precede_send(&mut self, qp: QpId) {
        if let Some(found) = self.qps.get_mut(qp.0) {
            found.responder.writes_precede_send();
        }
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let mut ctx = Ctx {
            memory: &mut self.memory,
            cqs: &mut self.cqs,
            counters: &mut self.counters,
            // `fail` does not use the time.
            now: Instant::ZERO,
        };
        // Caller-initiated: no `QpError` event.
        found.error_reported = true;
        found.fail(None, &mut ctx);
        if let Some(connection) = found.connection {
            self.cm.qp_failed(connection);
        }
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let mut gone = self.qps.remove(qp.0).ok_or(VerbsError::NoSuchObject)?;
        gone.requester.release_memory(&mut self.memory);
        if let Some(connection) = gone.connection {
            self.cm.qp_destroyed(connection);
        }
        self.events.retain(|event| {
            !matches!(event, AsyncEvent::QpError(id) | AsyncEvent::CommunicationEstablished(id)
                if *id == qp)
        });
        if let (Some(peer), Some(nak)) = (gone.peer, gone.responder.final_nak())
            && let Some(port) = self.ports.get_mut(gone.port)
        {
            port.keep_final_nak(peer, nak);
        }
        let place = handle_table::HandleTable::<Qp>::index(qp.0);
        self.timers.forget(place);
        // Only its own port lists it.
        if let Some(port) = self.ports.get_mut(gone.port) {
            port.forget(place as u32);
        }
        self.cqs.release(gone.identity.send_cq, qp);
        self.cqs.release(gone.identity.recv_cq, qp);
        self.memory.release_pd(gone.identity.pd);
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let window = self.limits.unacknowledged;
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let port = self.ports.get_mut(found.port).ok_or(VerbsError::NoSuchObject)?;
        if found.state != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        match &found.peer {
            Some(peer) => {
                found.requester.post(request, peer.path_mtu.bytes(), &mut self.memory)?;
            }
            None => {
                let to = request.datagram.as_ref().ok_or(VerbsError::Invalid)?.address.remote;
                found.datagrams.post(request, port.path_mtu(to).bytes())?;
            }
        }
        if !found.listed_send && found.has_send(window) {
            found.listed_send = true;
            port.sends.push_back(handle_table::HandleTable::<Qp>::index(qp.0) as u32);
        }
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if found.state == QpState::Error {
            return Err(VerbsError::WrongState);
        }
        found.receives.post(request)
    }

    fn requests_seen(&self, qp: QpId) -> Option<u32> {
        self.qps.get(qp.0).map(|qp| qp.responder.requests_seen())
    }

    fn under_way(&self) -> UnderWay {
        let mut all = UnderWay::default();
        for qp in self.qps.iter() {
            if let Some(posted) = qp.under_way() {
                all.add(qp.identity.id, posted);
            }
        }
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        under_way.settle(|qp, posted| self.has_done(qp, posted))
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.run_timers(now);
    }
}

/// EUI-64 of a MAC address.
pub(super) fn guid(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
