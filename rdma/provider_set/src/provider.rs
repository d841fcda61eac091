//! The verbs over all devices.

use super::ProviderSet;
use super::beside::Secondary;
use super::dispatch::{by_name, by_name_on_demand, by_name_ref, in_domain};
use super::names::{self, Owner};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use verbs::{
    Access, AsyncEvent, ChunkedRegion, ChunksOnDemand, Completion, CqId, DeviceAttributes,
    KeyChange, KeyRequest, Lending, MemoryVerbs, MrId, OnDemandStatus, PathMtu, PdId, Provider,
    QpId, QpInit, QpState, ReadyToReceive, ReadyToSend, RecvRequest, Region, RegionsOnDemand,
    SendRequest, UnderWay, VerbsError,
};

const NO_OBJECT: VerbsError = VerbsError::NoSuchObject;

/// The request with the device's own handle of the queue pair.
#[inline]
fn own_request(request: KeyRequest) -> KeyRequest {
    KeyRequest { qp: QpId(names::own(request.qp.0)), ..request }
}

/// A region with the mark of its device in its handle.
#[inline]
fn marked(region: Region, mark: u32) -> Region {
    Region { id: MrId(region.id.0 | mark), ..region }
}

impl ProviderSet {
    /// Calls every secondary device; stops at the first error.
    fn each_secondary(
        &mut self,
        mut does: impl FnMut(&mut dyn Secondary) -> Result<(), VerbsError>,
    ) -> Result<(), VerbsError> {
        for bridged in &mut self.bridged {
            does(&mut **bridged)?;
        }
        #[cfg(feature = "connectx")]
        for card in &mut self.cards {
            does(&mut card.secondary)?;
        }
        Ok(())
    }

    /// Posts a request to a queue pair of the ports or of a bridge.
    #[cfg_attr(feature = "connectx", inline(never))]
    #[cfg_attr(not(feature = "connectx"), inline)]
    fn post_on_other_device(
        &mut self,
        owner: Owner,
        qp: QpId,
        request: &SendRequest<'_>,
    ) -> Result<(), VerbsError> {
        match owner {
            Owner::Ports => self.roce.post_send(qp, request),
            Owner::Bridge(number, own) => {
                let bridged = self.bridged.get_mut(number).ok_or(NO_OBJECT)?;
                bridged.post_send(QpId(own), request)
            }
            #[cfg(feature = "connectx")]
            Owner::Card(..) => Err(NO_OBJECT),
        }
    }
}

impl MemoryVerbs for ProviderSet {
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let pd = self.roce.alloc_pd()?;
        self.each_secondary(|secondary| {
            secondary.add_pd(pd);
            Ok(())
        })?;
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        // A busy device keeps its domain; the others make theirs again on demand.
        self.each_secondary(|secondary| secondary.dealloc_pd(pd))?;
        self.roce.dealloc_pd(pd)
    }

    fn pd_on(&self, pd: PdId, local: IpAddr) -> PdId {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.cards.iter().find(|card| card.secondary.device.has(local)) {
            return PdId(pd.0 | card.secondary.mark);
        }
        let bridged = self.bridged.iter().find(|one| one.device.local() == local);
        bridged.map_or(pd, |one| PdId(pd.0 | one.mark))
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        in_domain!(
            self,
            pd,
            |secondary, of| {
                let own = secondary.pd(of)?;
                let region = secondary.device.register(own, memory, access, rng)?;
                Ok(marked(region, secondary.mark))
            },
            self.roce.register(pd, memory, access, rng)
        )
    }

    #[inline]
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        by_name!(self, region, MrId, |device, own| device.rotate_key(own, rng), Err(NO_OBJECT))
    }

    #[inline]
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let mark = names::mark(region.0);
        let remapped = by_name!(
            self,
            region,
            MrId,
            |device, own| device.remap(own, memory, rng),
            Err(NO_OBJECT)
        );
        remapped.map(|region| marked(region, mark))
    }

    #[inline]
    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        by_name!(self, region, MrId, |device, own| device.revoke_key(own), Err(NO_OBJECT))
    }

    #[inline]
    fn revoke_key_by(
        &mut self,
        region: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        by_name!(
            self,
            region,
            MrId,
            |device, own| device.revoke_key_by(own, own_request(request)),
            Err(NO_OBJECT)
        )
    }

    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        by_name!(self, region, MrId, |device, own| device.deregister(own), Err(NO_OBJECT))
    }

    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        in_domain!(
            self,
            pd,
            |secondary, of| {
                let own = secondary.pd(of)?;
                let made = secondary.device.register_chunks(own, count, size, memory, rng)?;
                Ok(ChunkedRegion { id: MrId(made.id.0 | secondary.mark), ..made })
            },
            self.roce.register_chunks(pd, count, size, memory, rng)
        )
    }

    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        by_name!(self, region, MrId, |device, own| device.chunk_key(own, chunk), Err(NO_OBJECT))
    }

    #[inline]
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        by_name!(
            self,
            region,
            MrId,
            |device, own| device.rotate_chunk_key(own, chunk, own_request(request), rng),
            Err(NO_OBJECT)
        )
    }
}

impl Lending for ProviderSet {
    fn lend(&mut self, local: IpAddr, length: usize) -> Option<Window> {
        let mut bridged = self.bridged.iter_mut();
        let bridged = bridged.find(|bridged| bridged.device.local() == local)?;
        bridged.device.lend(local, length)
    }

    fn take_back(&mut self, memory: Window) -> bool {
        self.bridged.iter_mut().any(|bridged| bridged.device.take_back(memory))
    }
}

impl RegionsOnDemand for ProviderSet {
    fn register_on_demand(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.roce.register_on_demand(pd, length, rng)
    }

    fn add_to_odp_pool(&mut self, memory: Window) {
        self.roce.add_to_odp_pool(memory);
    }

    fn odp_pool(&self, length: usize) -> usize {
        self.roce.odp_pool(length)
    }

    fn on_demand_memory(&self, region: MrId) -> Option<(Window, u64)> {
        self.roce.on_demand_memory(region)
    }

    fn take_on_demand_memory(&mut self, region: MrId) -> Option<Window> {
        self.roce.take_on_demand_memory(region)
    }
}

impl ChunksOnDemand for ProviderSet {
    /// RoCE has it; bridges have no chunks on demand.
    fn give_memory(&mut self, memory: Window, largest: usize) -> Result<(), VerbsError> {
        self.roce.give_memory(memory, largest)
    }

    fn on_demand(&self) -> Option<OnDemandStatus> {
        self.roce.on_demand()
    }

    #[inline]
    fn take_chunk(&mut self, region: MrId, chunk: u16) -> Option<(usize, Window)> {
        by_name_on_demand!(self, region, |device, own| device.take_chunk(own, chunk), None)
    }

    #[inline]
    fn back_chunk(&mut self, region: MrId, chunk: u16) -> Option<Window> {
        by_name_on_demand!(self, region, |device, own| device.back_chunk(own, chunk), None)
    }

    #[inline]
    fn release_chunk(&mut self, region: MrId, chunk: u16) {
        by_name_on_demand!(self, region, |device, own| device.release_chunk(own, chunk), ());
    }

    fn age_chunks(&mut self, region: MrId) -> u8 {
        by_name_on_demand!(self, region, |device, own| device.age_chunks(own), 0)
    }
}

impl Provider for ProviderSet {
    /// The common capabilities of all devices.
    fn attributes(&self) -> DeviceAttributes {
        let mut all = self.roce.attributes();
        let mut also = |other: DeviceAttributes| {
            all = DeviceAttributes {
                max_wr: all.max_wr.min(other.max_wr),
                max_sge: all.max_sge.min(other.max_sge),
                max_inline: all.max_inline.min(other.max_inline),
                max_rd_atomic: all.max_rd_atomic.min(other.max_rd_atomic),
                max_message: all.max_message.min(other.max_message),
                atomics: all.atomics && other.atomics,
                send_with_invalidate: all.send_with_invalidate && other.send_with_invalidate,
                ..all
            };
        };
        self.bridges().for_each(|bridge| also(bridge.attributes()));
        #[cfg(feature = "connectx")]
        self.cards.iter().for_each(|card| also(card.secondary.device.attributes()));
        all
    }

    fn path_mtu_to(&self, local: IpAddr, remote: IpAddr, now: Instant) -> PathMtu {
        #[cfg(feature = "connectx")]
        if let Some(card) = self.cards.iter().find(|card| card.secondary.device.has(local)) {
            return card.secondary.device.path_mtu_to(local, remote, now);
        }
        match self.bridges().find(|bridge| bridge.local() == local) {
            Some(bridge) => bridge.path_mtu_to(local, remote, now),
            None => self.roce.path_mtu_to(local, remote, now),
        }
    }

    fn lending(&mut self) -> Option<&mut dyn Lending> {
        Some(self)
    }

    fn failed_by_itself(&self, qp: QpId) -> bool {
        by_name_ref!(self, qp, QpId, |device, own| device.failed_by_itself(own), false)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let cq = self.roce.create_cq(depth)?;
        if let Err(error) = self.each_secondary(|secondary| secondary.create_cq(cq, depth)) {
            // Devices without the queue return an error.
            let _ = self.each_secondary(|secondary| secondary.destroy_cq(cq));
            self.roce.destroy_cq(cq)?;
            return Err(error);
        }
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        // All or none: queue pairs of one device may still use it.
        let mut destroyed = 0u32;
        let ended = self.each_secondary(|secondary| {
            secondary.destroy_cq(cq)?;
            destroyed += 1;
            Ok(())
        });
        ended.and_then(|()| self.roce.destroy_cq(cq)).or_else(|error| {
            self.each_secondary(|secondary| {
                let was = destroyed > 0;
                destroyed = destroyed.saturating_sub(1);
                if was { secondary.create_cq(cq, 0) } else { Ok(()) }
            })?;
            Err(error)
        })
    }

    // Part of answering a request where it is found, which saved 240 of 1,560 instructions a read (`bench mlx5`).
    #[cfg_attr(feature = "connectx", inline(always))]
    #[cfg_attr(not(feature = "connectx"), inline)]
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        if let Some(completion) = self.roce.poll_cq(cq) {
            return Some(completion);
        }
        #[cfg(feature = "connectx")]
        for card in &mut self.cards {
            if let Some(completion) = card.secondary.next_completion(cq) {
                return Some(completion);
            }
        }
        self.bridged.iter_mut().find_map(|bridged| bridged.poll_cq(cq))
    }

    fn watch_cq(&mut self, cq: CqId, number: u32) {
        self.roce.watch_cq(cq, number);
        let _ = self.each_secondary(|secondary| {
            secondary.watch_cq(cq, number);
            Ok(())
        });
    }

    #[inline]
    fn next_watched(&mut self) -> Option<u32> {
        if let Some(number) = self.roce.next_watched() {
            return Some(number);
        }
        #[cfg(feature = "connectx")]
        for card in &mut self.cards {
            if let Some(number) = card.secondary.device.next_watched() {
                return Some(number);
            }
        }
        self.bridged.iter_mut().find_map(|bridged| bridged.device.next_watched())
    }

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        in_domain!(
            self,
            init.pd,
            |secondary, of| secondary.create_qp(&QpInit { pd: of, ..*init }, rng),
            self.roce.create_qp(init, rng)
        )
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        by_name_ref!(self, qp, QpId, |device, own| device.qp_number(own), Err(NO_OBJECT))
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        by_name_ref!(self, qp, QpId, |device, own| device.qp_state(own), Err(NO_OBJECT))
    }

    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError> {
        by_name!(self, qp, QpId, |device, own| device.ready_to_receive(own, peer), Err(NO_OBJECT))
    }

    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError> {
        by_name!(self, qp, QpId, |device, own| device.ready_to_send(own, to), Err(NO_OBJECT))
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        by_name!(self, qp, QpId, |device, own| device.fail_qp(own), Err(NO_OBJECT))
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        by_name!(self, qp, QpId, |device, own| device.destroy_qp(own), Err(NO_OBJECT))
    }

    // Constants of the caller's request decide at compile time what is written (`bench mlx5`).
    #[cfg_attr(feature = "connectx", inline(always))]
    #[cfg_attr(not(feature = "connectx"), inline)]
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        match names::owner(qp.0) {
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => {
                let card = self.cards.get_mut(number).ok_or(NO_OBJECT)?;
                card.secondary.send(QpId(own), request)
            }
            // A copy, so that the compiler can keep the request of a card, whose posts are inlined, in registers.
            #[cfg(feature = "connectx")]
            owner => self.post_on_other_device(owner, qp, &{ *request }),
            #[cfg(not(feature = "connectx"))]
            owner => self.post_on_other_device(owner, qp, request),
        }
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        match names::owner(qp.0) {
            Owner::Ports => self.roce.post_recv(qp, request),
            Owner::Bridge(number, own) => {
                let bridged = self.bridged.get_mut(number).ok_or(NO_OBJECT)?;
                bridged.post_recv(QpId(own), request)
            }
            #[cfg(feature = "connectx")]
            Owner::Card(number, own) => {
                let card = self.cards.get_mut(number).ok_or(NO_OBJECT)?;
                card.secondary.device.post_recv(QpId(own), request)
            }
        }
    }

    #[inline]
    fn post_announced(
        &mut self,
        qp: QpId,
        write: &SendRequest<'_>,
        send: &SendRequest<'_>,
    ) -> Result<(), VerbsError> {
        #[cfg(feature = "connectx")]
        if let Owner::Card(number, own) = names::owner(qp.0)
            && write.carries.is_none()
            && send.carries.is_none()
        {
            let card = self.cards.get_mut(number).ok_or(NO_OBJECT)?;
            return card.secondary.device.post_announced(QpId(own), write, send);
        }
        verbs::post_both(self, qp, &{ *write }, &{ *send })
    }

    #[inline]
    fn repost_recv(&mut self, qp: QpId, id: u64) -> bool {
        by_name!(self, qp, QpId, |device, own| device.repost_recv(own, id), false)
    }

    fn post_empty_recvs(&mut self, qp: QpId, id: u64, count: u32) -> Result<(), VerbsError> {
        by_name!(
            self,
            qp,
            QpId,
            |device, own| device.post_empty_recvs(own, id, count),
            Err(NO_OBJECT)
        )
    }

    fn coalesce_acks(&mut self, qp: QpId) {
        if let Owner::Ports = names::owner(qp.0) {
            self.roce.coalesce_acks(qp);
        }
    }

    fn writes_precede_send(&mut self, qp: QpId) {
        if let Owner::Ports = names::owner(qp.0) {
            self.roce.writes_precede_send(qp);
        }
    }

    fn requests_seen(&self, qp: QpId) -> Option<u32> {
        by_name_ref!(self, qp, QpId, |device, own| device.requests_seen(own), None)
    }

    fn under_way(&self) -> UnderWay {
        let mut all = self.roce.under_way();
        // Moves all entries: `settle` removes them from `theirs`.
        let mut add = |mut theirs: UnderWay, mark: u32| {
            theirs.settle(|qp, posted| {
                all.add(QpId(qp.0 | mark), posted);
                true
            });
        };
        #[cfg(feature = "connectx")]
        for card in &self.cards {
            add(card.secondary.device.under_way(), card.secondary.mark);
        }
        let mut copies = [0; names::BRIDGES.len()];
        for (bridged, copies) in self.bridged.iter().zip(&mut copies) {
            let theirs = bridged.device.under_way();
            *copies = theirs.copies(0);
            add(theirs, bridged.mark);
        }
        copies.into_iter().enumerate().for_each(|(number, copies)| all.add_copies(number, copies));
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        let posted = under_way.settle(|qp, posted| {
            by_name_ref!(self, qp, QpId, |device, own| device.has_done(own, posted), true)
        });
        let mut bridges = self.bridges().enumerate();
        posted && bridges.all(|(number, bridge)| bridge.has_copied(under_way.copies(number)))
    }

    /// The links of bridges are numbered after the ports of the network.
    fn poll_event(&mut self) -> Option<AsyncEvent> {
        if let Some(event) = self.roce.poll_event() {
            return Some(event);
        }
        #[cfg(feature = "connectx")]
        for card in &mut self.cards {
            if let Some(event) = card.secondary.poll_event(card.port) {
                return Some(event);
            }
        }
        if self.bridged.is_empty() {
            return None;
        }
        let ports = (0..).take_while(|&port| self.roce.port(port).is_some()).count();
        self.bridged.iter_mut().zip(ports..).find_map(|(bridged, port)| bridged.poll_event(port))
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        let first = self.roce.poll_timeout();
        #[cfg(feature = "connectx")]
        let first = self.cards.iter().fold(first, |first, card| {
            Instant::first([first, card.secondary.device.poll_timeout()])
        });
        self.bridges().fold(first, |first, bridge| Instant::first([first, bridge.poll_timeout()]))
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.roce.handle_timeout(now);
        for bridged in &mut self.bridged {
            bridged.device.handle_timeout(now);
        }
        // Cards are polled in each round.
    }
}
