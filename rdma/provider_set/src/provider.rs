//! The verbs over all devices.

use super::bridged::named;
use super::{BRIDGED, ProviderSet, bridged};
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use rand_core::RngCore;
use verbs::{
    Access, AsyncEvent, ChunkedRegion, Completion, CqId, DeviceAttributes, KeyChange, KeyRequest,
    MrId, OnDemandStatus, OneSided, PdId, Provider, QpId, QpInit, QpState, ReadyToReceive,
    ReadyToSend, RecvRequest, Region, SendRequest, UnderWay, VerbsError,
};

/// Calls the device that has an object: `name` is the object's name there, `device` the device.
macro_rules! by_name {
    ($self:ident, $name:expr, $kind:ident, |$device:ident, $own:ident| $call:expr, $none:expr) => {
        match bridged($name.0) {
            None => {
                let ($device, $own) = (&mut $self.roce, $name);
                $call
            }
            Some(own) => match &mut $self.bridged {
                Some(bridged) => {
                    let ($device, $own) = (&mut bridged.ntrdma, $kind(own));
                    $call
                }
                None => $none,
            },
        }
    };
}

const NO_OBJECT: VerbsError = VerbsError::NoSuchObject;

/// The request, as the device knows it that has its queue pair.
#[inline]
fn own_request(request: KeyRequest) -> KeyRequest {
    KeyRequest { qp: QpId(request.qp.0 & !BRIDGED), ..request }
}

impl Provider for ProviderSet {
    /// What every device can do.
    fn attributes(&self) -> DeviceAttributes {
        let own = self.roce.attributes();
        let Some(device) = &self.bridged else { return own };
        let other = device.ntrdma.attributes();
        DeviceAttributes {
            max_wr: own.max_wr.min(other.max_wr),
            max_sge: own.max_sge.min(other.max_sge),
            max_inline: own.max_inline.min(other.max_inline),
            max_rd_atomic: own.max_rd_atomic.min(other.max_rd_atomic),
            max_message: own.max_message.min(other.max_message),
            atomics: own.atomics && other.atomics,
            send_with_invalidate: own.send_with_invalidate && other.send_with_invalidate,
            ..own
        }
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        let pd = self.roce.alloc_pd()?;
        if let Some(Err(error)) = self.bridged.as_mut().map(|device| device.alloc_pd(pd)) {
            self.roce.dealloc_pd(pd)?;
            return Err(error);
        }
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        if let Some(device) = &mut self.bridged {
            device.dealloc_pd(pd)?;
            // Busy with the other device alone: it stays whole, if under a new name here.
            return self.roce.dealloc_pd(pd).or_else(|error| {
                device.alloc_pd(pd)?;
                Err(error)
            });
        }
        self.roce.dealloc_pd(pd)
    }

    fn pd_on(&self, pd: PdId, local: IpAddr) -> PdId {
        let device = self.bridged.as_ref().filter(|device| device.ntrdma.local() == local);
        let own = device.and_then(|device| device.pd(pd));
        own.map_or(pd, |own| PdId(own.0 | BRIDGED))
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        match (bridged(pd.0), &mut self.bridged) {
            (None, _) => self.roce.register(pd, memory, access, rng),
            (Some(own), Some(device)) => {
                device.ntrdma.register(PdId(own), memory, access, rng).map(named)
            }
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    fn register_on_demand(
        &mut self,
        pd: PdId,
        length: usize,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        self.roce.register_on_demand(pd, length, rng)
    }

    fn add_to_odp_pool(&mut self, memory: Window) {
        self.roce.add_to_odp_pool(memory);
    }

    fn odp_pool(&self) -> usize {
        self.roce.odp_pool()
    }

    fn on_demand_memory(&self, region: MrId) -> Option<(Window, u64)> {
        self.roce.on_demand_memory(region)
    }

    fn take_on_demand_memory(&mut self, region: MrId) -> Option<Window> {
        self.roce.take_on_demand_memory(region)
    }

    #[inline]
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn RngCore) -> Result<u32, VerbsError> {
        by_name!(self, region, MrId, |device, own| device.rotate_key(own, rng), Err(NO_OBJECT))
    }

    #[inline]
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        match (bridged(region.0), &mut self.bridged) {
            (None, _) => self.roce.remap(region, memory, rng),
            (Some(own), Some(device)) => device.ntrdma.remap(MrId(own), memory, rng).map(named),
            (Some(_), None) => Err(NO_OBJECT),
        }
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
        rng: &mut dyn RngCore,
    ) -> Result<ChunkedRegion, VerbsError> {
        match (bridged(pd.0), &mut self.bridged) {
            (None, _) => self.roce.register_chunks(pd, count, size, memory, rng),
            (Some(own), Some(device)) => {
                let made = device.ntrdma.register_chunks(PdId(own), count, size, memory, rng)?;
                Ok(ChunkedRegion { id: MrId(made.id.0 | BRIDGED), ..made })
            }
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        by_name!(self, region, MrId, |device, own| device.chunk_key(own, chunk), Err(NO_OBJECT))
    }

    #[inline(always)]
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError> {
        by_name!(
            self,
            region,
            MrId,
            |device, own| device.rotate_chunk_key(own, chunk, own_request(request), rng),
            Err(NO_OBJECT)
        )
    }

    /// RoCE has it; chunks on demand are not for the bridge.
    fn give_memory(&mut self, memory: Window, largest: usize) -> Result<(), VerbsError> {
        self.roce.give_memory(memory, largest)
    }

    fn on_demand(&self) -> Option<OnDemandStatus> {
        self.roce.on_demand()
    }

    #[inline]
    fn take_chunk(&mut self, region: MrId, chunk: u16) -> Option<(usize, Window)> {
        by_name!(self, region, MrId, |device, own| device.take_chunk(own, chunk), None)
    }

    #[inline]
    fn back_chunk(&mut self, region: MrId, chunk: u16) -> Option<Window> {
        by_name!(self, region, MrId, |device, own| device.back_chunk(own, chunk), None)
    }

    #[inline]
    fn release_chunk(&mut self, region: MrId, chunk: u16) {
        by_name!(self, region, MrId, |device, own| device.release_chunk(own, chunk), ());
    }

    fn age_chunks(&mut self, region: MrId) -> u8 {
        by_name!(self, region, MrId, |device, own| device.age_chunks(own), 0)
    }

    fn failed_by_itself(&self, qp: QpId) -> bool {
        match (bridged(qp.0), &self.bridged) {
            (None, _) => self.roce.failed_by_itself(qp),
            (Some(own), Some(device)) => device.ntrdma.failed_by_itself(QpId(own)),
            (Some(_), None) => false,
        }
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let cq = self.roce.create_cq(depth)?;
        if let Some(Err(error)) = self.bridged.as_mut().map(|device| device.create_cq(cq, depth)) {
            self.roce.destroy_cq(cq)?;
            return Err(error);
        }
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if let Some(device) = &mut self.bridged {
            device.destroy_cq(cq)?;
            return self.roce.destroy_cq(cq).or_else(|error| {
                device.create_cq(cq, 0)?;
                Err(error)
            });
        }
        self.roce.destroy_cq(cq)
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        match (self.roce.poll_cq(cq), &mut self.bridged) {
            (None, Some(device)) => device.poll_cq(cq),
            (completion, _) => completion,
        }
    }

    fn watch_cq(&mut self, cq: CqId, number: u32) {
        self.roce.watch_cq(cq, number);
        if let Some(device) = &mut self.bridged {
            device.watch_cq(cq, number);
        }
    }

    #[inline]
    fn next_watched(&mut self) -> Option<u32> {
        let bridged = &mut self.bridged;
        self.roce.next_watched().or_else(|| bridged.as_mut()?.ntrdma.next_watched())
    }

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn RngCore) -> Result<QpId, VerbsError> {
        match (bridged(init.pd.0), &mut self.bridged) {
            (None, _) => self.roce.create_qp(init, rng),
            (Some(own), Some(device)) => device.create_qp(PdId(own), init, rng),
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        match (bridged(qp.0), &self.bridged) {
            (None, _) => self.roce.qp_number(qp),
            (Some(own), Some(device)) => device.ntrdma.qp_number(QpId(own)),
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        match (bridged(qp.0), &self.bridged) {
            (None, _) => self.roce.qp_state(qp),
            (Some(own), Some(device)) => device.ntrdma.qp_state(QpId(own)),
            (Some(_), None) => Err(NO_OBJECT),
        }
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

    #[inline]
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        match (bridged(qp.0), &mut self.bridged) {
            (None, _) => self.roce.post_send(qp, request),
            (Some(own), Some(device)) => device.post_send(QpId(own), request),
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        match (bridged(qp.0), &mut self.bridged) {
            (None, _) => self.roce.post_recv(qp, request),
            (Some(own), Some(device)) => device.post_recv(QpId(own), request),
            (Some(_), None) => Err(NO_OBJECT),
        }
    }

    fn coalesce_acks(&mut self, qp: QpId) {
        if bridged(qp.0).is_none() {
            self.roce.coalesce_acks(qp);
        }
    }

    fn writes_precede_send(&mut self, qp: QpId) {
        if bridged(qp.0).is_none() {
            self.roce.writes_precede_send(qp);
        }
    }

    fn one_sided(&self, qp: QpId) -> Option<OneSided> {
        match (bridged(qp.0), &self.bridged) {
            (None, _) => self.roce.one_sided(qp),
            (Some(own), Some(device)) => device.ntrdma.one_sided(QpId(own)),
            (Some(_), None) => None,
        }
    }

    /// The bridge's link is the port after those of the network.
    fn under_way(&self) -> UnderWay {
        let mut all = self.roce.under_way();
        if let Some(device) = &self.bridged {
            let mut bridged = device.ntrdma.under_way();
            all.add_copies(bridged.copies());
            // Only added to: none is done.
            bridged.settle(|qp, posted| {
                all.add(QpId(qp.0 | BRIDGED), posted);
                true
            });
        }
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        let posted = under_way.settle(|qp, posted| match (bridged(qp.0), &self.bridged) {
            (None, _) => self.roce.has_done(qp, posted),
            (Some(own), Some(device)) => device.ntrdma.has_done(QpId(own), posted),
            (Some(_), None) => true,
        });
        let device = self.bridged.as_ref();
        posted && device.is_none_or(|device| device.ntrdma.has_copied(under_way.copies()))
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        if let Some(event) = self.roce.poll_event() {
            return Some(event);
        }
        let device = self.bridged.as_mut()?;
        let ports = (0..).take_while(|&port| self.roce.port(port).is_some()).count();
        device.poll_event(ports)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        let roce = self.roce.poll_timeout();
        match &self.bridged {
            None => roce,
            Some(device) => Instant::first([roce, device.ntrdma.poll_timeout()]),
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.roce.handle_timeout(now);
        if let Some(device) = &mut self.bridged {
            device.ntrdma.handle_timeout(now);
        }
    }
}
