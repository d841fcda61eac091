//! The bridge's device, with the names that others know its objects by. Nothing of it is inlined
//! into the users of verbs, who mostly use the other device.

use super::BRIDGED;
use alloc::vec::Vec;
use ntrdma::Ntrdma;
use rand_core::RngCore;
use softverbs::handle_table::HandleTable;
use verbs::{
    AsyncEvent, Completion, ConnectionEvent, ConnectionId, CqId, MrId, PdId, Provider, QpId,
    QpInit, RecvRequest, Region, SendRequest, VerbsError,
};

/// The device, and its names of what both devices have.
#[derive(Debug)]
pub struct Bridged {
    pub ntrdma: Ntrdma,
    /// By the places of their names at the other device.
    pds: Vec<Option<PdId>>,
    cqs: Vec<Option<CqId>>,
}

/// Notes what a name of the other device stands for.
fn note<T: Copy>(names: &mut Vec<Option<T>>, other: u32, own: Option<T>) {
    let place = HandleTable::<T>::index(other);
    if place >= names.len() {
        names.resize(place + 1, None);
    }
    if let Some(name) = names.get_mut(place) {
        *name = own;
    }
}

fn find<T: Copy>(names: &[Option<T>], other: u32) -> Option<T> {
    names.get(HandleTable::<T>::index(other)).copied().flatten()
}

impl Bridged {
    pub fn new(ntrdma: Ntrdma) -> Self {
        Bridged { ntrdma, pds: Vec::new(), cqs: Vec::new() }
    }

    /// The domain that stands beside one of the other device.
    pub fn pd(&self, other: PdId) -> Option<PdId> {
        find(&self.pds, other.0)
    }

    pub fn alloc_pd(&mut self, other: PdId) -> Result<(), VerbsError> {
        let own = self.ntrdma.alloc_pd()?;
        note(&mut self.pds, other.0, Some(own));
        Ok(())
    }

    pub fn dealloc_pd(&mut self, other: PdId) -> Result<(), VerbsError> {
        let own = self.pd(other).ok_or(VerbsError::NoSuchObject)?;
        self.ntrdma.dealloc_pd(own)?;
        note(&mut self.pds, other.0, None);
        Ok(())
    }

    pub fn create_cq(&mut self, other: CqId, depth: u32) -> Result<(), VerbsError> {
        let own = self.ntrdma.create_cq(depth)?;
        note(&mut self.cqs, other.0, Some(own));
        Ok(())
    }

    pub fn destroy_cq(&mut self, other: CqId) -> Result<(), VerbsError> {
        let own = find(&self.cqs, other.0).ok_or(VerbsError::NoSuchObject)?;
        self.ntrdma.destroy_cq(own)?;
        note(&mut self.cqs, other.0, None);
        Ok(())
    }

    pub fn watch_cq(&mut self, other: CqId, number: u32) {
        if let Some(own) = find(&self.cqs, other.0) {
            self.ntrdma.watch_cq(own, number);
        }
    }

    #[inline(never)]
    pub fn poll_cq(&mut self, other: CqId) -> Option<Completion> {
        let completion = self.ntrdma.poll_cq(find(&self.cqs, other.0)?)?;
        Some(Completion { qp: QpId(completion.qp.0 | BRIDGED), ..completion })
    }

    /// Makes a queue pair in domain `pd`, which is ours.
    pub fn create_qp(
        &mut self,
        pd: PdId,
        init: &QpInit,
        rng: &mut dyn RngCore,
    ) -> Result<QpId, VerbsError> {
        let cq = |other: CqId| find(&self.cqs, other.0).ok_or(VerbsError::NoSuchObject);
        let init = QpInit { pd, send_cq: cq(init.send_cq)?, recv_cq: cq(init.recv_cq)?, ..*init };
        self.ntrdma.create_qp(&init, rng).map(|qp| QpId(qp.0 | BRIDGED))
    }

    #[inline(never)]
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let carries = match request.carries {
            None => None,
            Some((region, chunk)) => {
                let own = super::bridged(region.0).ok_or(VerbsError::Invalid)?;
                Some((MrId(own), chunk))
            }
        };
        self.ntrdma.post_send(qp, &SendRequest { carries, ..*request })
    }

    #[inline(never)]
    pub fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        self.ntrdma.post_recv(qp, request)
    }

    /// What happened, of which the link is port number `port`.
    pub fn poll_event(&mut self, port: usize) -> Option<AsyncEvent> {
        Some(match self.ntrdma.poll_event()? {
            AsyncEvent::PortActive(_) => AsyncEvent::PortActive(port),
            AsyncEvent::PortError(_) => AsyncEvent::PortError(port),
            AsyncEvent::QpError(qp) => AsyncEvent::QpError(QpId(qp.0 | BRIDGED)),
            AsyncEvent::CommunicationEstablished(qp) => {
                AsyncEvent::CommunicationEstablished(QpId(qp.0 | BRIDGED))
            }
        })
    }
}

/// A region of ours as others know it.
pub fn named(region: Region) -> Region {
    Region { id: MrId(region.id.0 | BRIDGED), ..region }
}

/// An event of ours as others know it.
pub fn renamed(mut event: ConnectionEvent) -> ConnectionEvent {
    let (ConnectionEvent::Request { connection, .. }
    | ConnectionEvent::Established { connection, .. }
    | ConnectionEvent::Rejected { connection, .. }
    | ConnectionEvent::Disconnected { connection }) = &mut event;
    *connection = ConnectionId(connection.0 | BRIDGED);
    event
}
