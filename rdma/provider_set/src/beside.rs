//! A device beside the ports' own, with the names that others know its objects by. Nothing of it is inlined into the users
//! of verbs, who mostly use the ports' device.

use super::names;
use alloc::vec::Vec;
use rand_core::RngCore;
use softverbs::handle_table::HandleTable;
use verbs::{
    AsyncEvent, Completion, ConnectionEvent, ConnectionId, CqId, MrId, PdId, QpId, QpInit,
    RdmaDevice, RecvRequest, SendRequest, VerbsError,
};

/// A domain of the ports' device, and that of this one which stands beside it, once something was made in it.
#[derive(Clone, Copy, Debug)]
struct Domain {
    of: PdId,
    own: Option<PdId>,
}

/// The device, and its names of what all devices have.
#[derive(Debug)]
pub struct Beside<D> {
    pub device: D,
    /// What its names have that others know them by: see [`names`].
    pub mark: u32,
    /// By the places of their names at the ports' device.
    domains: Vec<Option<Domain>>,
    cqs: Vec<Option<CqId>>,
}

/// Notes what stands beside a name of the ports' device.
fn note<T: Copy>(noted: &mut Vec<Option<T>>, other: u32, own: Option<T>) {
    let place = HandleTable::<T>::index(other);
    if place >= noted.len() {
        noted.resize(place + 1, None);
    }
    if let Some(name) = noted.get_mut(place) {
        *name = own;
    }
}

fn find<T: Copy>(noted: &[Option<T>], other: u32) -> Option<T> {
    noted.get(HandleTable::<T>::index(other)).copied().flatten()
}

/// A device of whichever kind, for what is done with each.
pub trait Neighbour {
    /// The ports' device has made a domain.
    fn know_pd(&mut self, of: PdId);
    /// Ends the domain that stands beside one, if there is any.
    fn dealloc_pd(&mut self, of: PdId) -> Result<(), VerbsError>;
    /// Makes the completion queue that stands beside one, of this depth.
    fn create_cq(&mut self, other: CqId, depth: u32) -> Result<(), VerbsError>;
    /// Ends it.
    fn destroy_cq(&mut self, other: CqId) -> Result<(), VerbsError>;
    /// See [`verbs::Provider::watch_cq`].
    fn watch_cq(&mut self, other: CqId, number: u32);
}

impl<D: RdmaDevice> Beside<D> {
    pub fn new(device: D, mark: u32) -> Self {
        Beside { device, mark, domains: Vec::new(), cqs: Vec::new() }
    }

    /// The domain that stands beside one of the ports' device. It is made when it is first asked for, so that a card does
    /// nothing for users that it does not have.
    pub fn pd(&mut self, of: PdId) -> Result<PdId, VerbsError> {
        let domain = find(&self.domains, of.0).filter(|domain| domain.of == of);
        match domain.ok_or(VerbsError::NoSuchObject)?.own {
            Some(own) => Ok(own),
            None => {
                let own = self.device.alloc_pd()?;
                note(&mut self.domains, of.0, Some(Domain { of, own: Some(own) }));
                Ok(own)
            }
        }
    }

    #[inline(never)]
    pub fn poll_cq(&mut self, other: CqId) -> Option<Completion> {
        self.next_completion(other)
    }

    /// The same, inlined into users.
    #[inline(always)]
    pub fn next_completion(&mut self, other: CqId) -> Option<Completion> {
        // Changed where it lies.
        let mut completion = self.device.poll_cq(find(&self.cqs, other.0)?);
        if let Some(completion) = &mut completion {
            completion.qp.0 |= self.mark;
        }
        completion
    }

    /// Makes a queue pair in the domain that stands beside `init.pd`.
    pub fn create_qp(&mut self, init: &QpInit, rng: &mut dyn RngCore) -> Result<QpId, VerbsError> {
        let cq = |other: CqId| find(&self.cqs, other.0).ok_or(VerbsError::NoSuchObject);
        let (send_cq, recv_cq) = (cq(init.send_cq)?, cq(init.recv_cq)?);
        let pd = self.pd(init.pd)?;
        let init = QpInit { pd, send_cq, recv_cq, ..*init };
        self.device.create_qp(&init, rng).map(|qp| QpId(qp.0 | self.mark))
    }

    #[inline(never)]
    pub fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        self.send(qp, request)
    }

    /// The same, inlined into users: of what is known of their requests there is nothing to be found out then.
    #[inline(always)]
    pub fn send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        match request.carries {
            None => self.device.post_send(qp, request),
            Some((region, chunk)) => self.send_chunk(qp, &{ *request }, region, chunk),
        }
    }

    /// A request that carries a chunk on demand.
    #[inline(never)]
    fn send_chunk(
        &mut self,
        qp: QpId,
        request: &SendRequest<'_>,
        region: MrId,
        chunk: u16,
    ) -> Result<(), VerbsError> {
        if names::mark(region.0) != self.mark {
            return Err(VerbsError::Invalid);
        }
        let carries = Some((MrId(names::own(region.0)), chunk));
        self.device.post_send(qp, &SendRequest { carries, ..*request })
    }

    #[inline(never)]
    pub fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        self.device.post_recv(qp, request)
    }

    /// What happened, of which the link is port number `port`.
    pub fn poll_event(&mut self, port: usize) -> Option<AsyncEvent> {
        let named = |qp: QpId| QpId(qp.0 | self.mark);
        Some(match self.device.poll_event()? {
            AsyncEvent::PortActive(_) => AsyncEvent::PortActive(port),
            AsyncEvent::PortError(_) => AsyncEvent::PortError(port),
            AsyncEvent::QpError(qp) => AsyncEvent::QpError(named(qp)),
            AsyncEvent::CommunicationEstablished(qp) => {
                AsyncEvent::CommunicationEstablished(named(qp))
            }
        })
    }

    /// The next event of a connection, as others know it.
    pub fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        let mut event = self.device.poll_connection_event()?;
        let (ConnectionEvent::Request { connection, .. }
        | ConnectionEvent::Established { connection, .. }
        | ConnectionEvent::Rejected { connection, .. }
        | ConnectionEvent::Disconnected { connection }) = &mut event;
        *connection = ConnectionId(connection.0 | self.mark);
        Some(event)
    }
}

impl<D: RdmaDevice> Neighbour for Beside<D> {
    fn know_pd(&mut self, of: PdId) {
        note(&mut self.domains, of.0, Some(Domain { of, own: None }));
    }

    fn dealloc_pd(&mut self, of: PdId) -> Result<(), VerbsError> {
        let Some(domain) = find(&self.domains, of.0).filter(|domain| domain.of == of) else {
            return Ok(());
        };
        if let Some(own) = domain.own {
            self.device.dealloc_pd(own)?;
            self.know_pd(of);
        }
        Ok(())
    }

    fn create_cq(&mut self, other: CqId, depth: u32) -> Result<(), VerbsError> {
        let own = self.device.create_cq(depth)?;
        note(&mut self.cqs, other.0, Some(own));
        Ok(())
    }

    fn destroy_cq(&mut self, other: CqId) -> Result<(), VerbsError> {
        let own = find(&self.cqs, other.0).ok_or(VerbsError::NoSuchObject)?;
        self.device.destroy_cq(own)?;
        note(&mut self.cqs, other.0, None);
        Ok(())
    }

    fn watch_cq(&mut self, other: CqId, number: u32) {
        if let Some(own) = find(&self.cqs, other.0) {
            self.device.watch_cq(own, number);
        }
    }
}
