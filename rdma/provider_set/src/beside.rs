//! A secondary device, with a mapping from the set's handles to its own. None of its code is inlined into users of
//! verbs, because they mostly use the ports' device.

use super::names;
use alloc::vec::Vec;
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use verbs::{
    AsyncEvent, Completion, ConnectionEvent, ConnectionId, CqId, MrId, PdId, QpId, QpInit,
    RdmaDevice, RecvRequest, SendRequest, VerbsError,
};

/// A domain of the ports' device, and the corresponding domain of this device, made with its first object.
#[derive(Clone, Copy, Debug)]
struct Domain {
    of: PdId,
    own: Option<PdId>,
}

/// A secondary device, and its handles of objects that all devices have.
#[derive(Debug)]
pub struct SecondaryDevice<D> {
    pub device: D,
    /// The bits of the set's handles that select this device: see [`names`].
    pub mark: u32,
    /// Indexed by the places of the ports' device's handles, like `cqs`.
    domains: Vec<Option<Domain>>,
    cqs: Vec<Option<CqId>>,
}

/// Sets the own handle for a handle of the ports' device.
fn set_handle<T: Copy>(handles: &mut Vec<Option<T>>, other: u32, own: Option<T>) {
    let place = HandleTable::<T>::index(other);
    if place >= handles.len() {
        handles.resize(place + 1, None);
    }
    if let Some(name) = handles.get_mut(place) {
        *name = own;
    }
}

fn find<T: Copy>(handles: &[Option<T>], other: u32) -> Option<T> {
    handles.get(HandleTable::<T>::index(other)).copied().flatten()
}

/// The calls that are the same for all secondary devices.
pub trait Secondary {
    /// The ports' device has made a domain.
    fn add_pd(&mut self, of: PdId);
    /// Destroys the domain that corresponds to `of`, if there is any.
    fn dealloc_pd(&mut self, of: PdId) -> Result<(), VerbsError>;
    /// Makes the completion queue that corresponds to `other`, of this depth.
    fn create_cq(&mut self, other: CqId, depth: u32) -> Result<(), VerbsError>;
    /// Destroys the completion queue that corresponds to `other`.
    fn destroy_cq(&mut self, other: CqId) -> Result<(), VerbsError>;
    /// See [`verbs::Provider::watch_cq`].
    fn watch_cq(&mut self, other: CqId, number: u32);
}

impl<D: RdmaDevice> SecondaryDevice<D> {
    pub fn new(device: D, mark: u32) -> Self {
        SecondaryDevice { device, mark, domains: Vec::new(), cqs: Vec::new() }
    }

    /// The domain that corresponds to a domain of the ports' device. It is made on first use, so that a card does
    /// nothing for users that it does not have.
    pub fn pd(&mut self, of: PdId) -> Result<PdId, VerbsError> {
        let domain = find(&self.domains, of.0).filter(|domain| domain.of == of);
        match domain.ok_or(VerbsError::NoSuchObject)?.own {
            Some(own) => Ok(own),
            None => {
                let own = self.device.alloc_pd()?;
                set_handle(&mut self.domains, of.0, Some(Domain { of, own: Some(own) }));
                Ok(own)
            }
        }
    }

    #[inline(never)]
    pub fn poll_cq(&mut self, other: CqId) -> Option<Completion> {
        self.next_completion(other)
    }

    /// As `poll_cq`, inlined into users.
    #[inline]
    pub fn next_completion(&mut self, other: CqId) -> Option<Completion> {
        // Changed in place.
        let mut completion = self.device.poll_cq(find(&self.cqs, other.0)?);
        if let Some(completion) = &mut completion {
            completion.qp.0 |= self.mark;
        }
        completion
    }

    /// Makes a queue pair in the domain that corresponds to `init.pd`.
    pub fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
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

    /// As `post_send`, inlined into users, so that the compiler uses their constants in the request.
    // Constants of the caller's request decide at compile time what is written (`bench mlx5`).
    #[inline(always)]
    pub fn send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        match request.carries {
            None => self.device.post_send(qp, request),
            Some((region, chunk)) => self.send_chunk(qp, &{ *request }, region, chunk),
        }
    }

    /// Posts a request that carries a chunk on demand.
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

    /// The next event; the device's link is port number `port`.
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

    /// The next connection event, with the set's handle of the connection.
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

impl<D: RdmaDevice> Secondary for SecondaryDevice<D> {
    fn add_pd(&mut self, of: PdId) {
        set_handle(&mut self.domains, of.0, Some(Domain { of, own: None }));
    }

    fn dealloc_pd(&mut self, of: PdId) -> Result<(), VerbsError> {
        let Some(domain) = find(&self.domains, of.0).filter(|domain| domain.of == of) else {
            return Ok(());
        };
        if let Some(own) = domain.own {
            self.device.dealloc_pd(own)?;
            self.add_pd(of);
        }
        Ok(())
    }

    fn create_cq(&mut self, other: CqId, depth: u32) -> Result<(), VerbsError> {
        let own = self.device.create_cq(depth)?;
        set_handle(&mut self.cqs, other.0, Some(own));
        Ok(())
    }

    fn destroy_cq(&mut self, other: CqId) -> Result<(), VerbsError> {
        let own = find(&self.cqs, other.0).ok_or(VerbsError::NoSuchObject)?;
        self.device.destroy_cq(own)?;
        set_handle(&mut self.cqs, other.0, None);
        Ok(())
    }

    fn watch_cq(&mut self, other: CqId, number: u32) {
        if let Some(own) = find(&self.cqs, other.0) {
            self.device.watch_cq(own, number);
        }
    }
}
