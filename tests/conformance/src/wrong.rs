//! A wrapper that breaks one promise of a provider.

use crate::overlay::{Over, Overlay};
use core::net::{IpAddr, SocketAddr};
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use roce::Roce;
use roce::testing::OverRoce;
use std::collections::{BTreeSet, VecDeque};
use verbs::*;

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    DomainsAreNeverBusy,
    QueuesAreNeverBusy,
    ReusesIds,
    HasNoLimits,
    SkipsStates,
    RefusesEarlyPosts,
    ConnectsFromAnywhere,
    ForgetsFlushes,
    AcceptsPostsInError,
    KeepsCompletions,
    ReportsErrorsTwice,
    AlwaysDue,
    LosesImmediates,
    TakesTheFirstWindow,
    WritesOneByteFurther,
    ReadsOneByteFurther,
    MiscountsBytes,
    AddsOneMore,
    ForgetsInlinePayload,
    SwapsReceives,
    LosesEarlyReceives,
    RepostsNothing,
    AnnouncesFirst,
    PostsOneReceiveOfMany,
    ReportsEarlierCompletions,
    LosesSources,
    SignalsEverything,
    CompletesOutOfOrder,
    AcceptsFewerSends,
    AcceptsFewerReceives,
    MisnamesQueuePairs,
    NeverReportsWatchedQueues,
    ReportsNothingUnderWay,
    NeverRetries,
    RetriesForEver,
    WaitsForEver,
    MisnamesErrors,
    GrantsEverything,
    RegionsBeginEarlier,
    HasOneDomain,
    AlignsAtomics,
    FailsNeighbours,
    ReturnsNewKeysOnly,
    RemapsNothing,
    RevokesNothing,
    DeregistersNothing,
    DropsInvalidations,
    HasOneKeyForAllChunks,
    KeepsChunkKeys,
    DrawsKeysAnew,
    LosesPrivateData,
    CutsPrivateData,
    MisnamesReasons,
    ListensEverywhere,
    NeverGivesUp,
    ListensTwice,
    ReportsEndsTwice,
    FailsSilently,
    DestroysNothing,
    ForgetsEnds,
    AcceptsAnything,
    MixesUpConnections,
}

/// A provider with a fault.
#[derive(Debug)]
pub struct Wrong<P> {
    inner: P,
    fault: Fault,
    now: Instant,
    cqs: BTreeSet<CqId>,
    qps: Vec<QpId>,
    domain: Option<PdId>,
    connections: Vec<ConnectionId>,
    completions: VecDeque<(CqId, Completion)>,
    receives: Option<(QpId, u64, Vec<Window>)>,
    event: Option<AsyncEvent>,
    connection_event: Option<ConnectionEvent>,
    requested_to_send: Option<QpId>,
    listens: Option<u16>,
}

impl<P: RdmaDevice> Wrong<P> {
    /// Wraps a provider, and adds the fault.
    pub fn new(inner: P, fault: Fault) -> Over<Self> {
        Over(Wrong {
            inner,
            fault,
            now: Instant::ZERO,
            cqs: BTreeSet::new(),
            qps: Vec::new(),
            domain: None,
            connections: Vec::new(),
            completions: VecDeque::new(),
            receives: None,
            event: None,
            connection_event: None,
            requested_to_send: None,
            listens: None,
        })
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Turns an error into success if the fault is set.
    fn forgive<T>(
        &self,
        fault: Fault,
        result: Result<T, VerbsError>,
        instead: T,
    ) -> Result<T, VerbsError> {
        if self.is(fault) { Ok(result.unwrap_or(instead)) } else { result }
    }
}

impl<P: OverRoce> OverRoce for Over<Wrong<P>> {
    fn roce(&mut self) -> &mut Roce {
        self.0.inner.roce()
    }
}

impl<P: RdmaDevice> Overlay for Wrong<P> {
    type Inner = P;
    fn inner(&self) -> &P {
        &self.inner
    }
    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        if let (true, Some(pd)) = (self.is(Fault::HasOneDomain), self.domain) {
            return Ok(pd);
        }
        let pd = self.inner.alloc_pd()?;
        self.domain = Some(pd);
        Ok(pd)
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let result = self.inner.dealloc_pd(pd);
        self.forgive(Fault::DomainsAreNeverBusy, result, ())
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let all = self.is(Fault::GrantsEverything);
        let access = if all { Access::all() } else { access };
        let mut region = self.inner.register(pd, memory, access, rng)?;
        if self.is(Fault::RegionsBeginEarlier) {
            region.address -= 1;
        }
        Ok(region)
    }

    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        match self.fault {
            Fault::ReturnsNewKeysOnly => Ok(rng.next_u32()),
            Fault::DrawsKeysAnew => self.inner.rotate_key(region, &mut netsim::Rng::new(1)),
            _ => self.inner.rotate_key(region, rng),
        }
    }

    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        if self.is(Fault::RemapsNothing) {
            let rkey = self.inner.rotate_key(region, rng)?;
            return Ok(Region { id: region, rkey, address: 4096, memory });
        }
        self.inner.remap(region, memory, rng)
    }

    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        if self.is(Fault::RevokesNothing) { Ok(()) } else { self.inner.revoke_key(region) }
    }

    fn revoke_key_by(
        &mut self,
        region: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        if self.is(Fault::RevokesNothing) {
            return Ok(KeyChange::Done(()));
        }
        self.inner.revoke_key_by(region, request)
    }

    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        if self.is(Fault::DeregistersNothing) { Ok(()) } else { self.inner.deregister(region) }
    }

    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        let chunk = if self.is(Fault::HasOneKeyForAllChunks) { 0 } else { chunk };
        self.inner.chunk_key(region, chunk)
    }

    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        if self.is(Fault::KeepsChunkKeys) {
            return self.inner.chunk_key(region, chunk).map(KeyChange::Done);
        }
        self.inner.rotate_chunk_key(region, chunk, request, rng)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let cq = self.inner.create_cq(depth)?;
        self.cqs.insert(cq);
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        let result = self.inner.destroy_cq(cq);
        self.forgive(Fault::QueuesAreNeverBusy, result, ())
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let place = self.completions.iter().position(|(of, _)| *of == cq);
        if let Some((_, completion)) = place.and_then(|at| self.completions.remove(at)) {
            return Some(completion);
        }
        let mut completion = self.inner.poll_cq(cq)?;
        match (self.fault, &mut completion.operation) {
            (Fault::ForgetsFlushes, _) if completion.status == Status::Flushed => {
                return self.inner.poll_cq(cq);
            }
            (Fault::CompletesOutOfOrder, _) => {
                if let Some(next) = self.inner.poll_cq(cq) {
                    self.completions.push_back((cq, completion));
                    return Some(next);
                }
            }
            (Fault::LosesImmediates, CompletedOperation::Recv { with, .. }) => {
                *with = SendWith::Nothing;
            }
            (Fault::LosesImmediates, CompletedOperation::RecvWriteImmediate { immediate, .. }) => {
                *immediate = 0;
            }
            (Fault::MiscountsBytes, CompletedOperation::Recv { length, .. }) => *length += 1,
            (Fault::LosesSources, _) => completion.datagram_from = None,
            (Fault::MisnamesQueuePairs, _) => completion.qp = self.qps[0],
            (Fault::MisnamesErrors, _) if completion.status != Status::Success => {
                completion.status = Status::RemoteOperation;
            }
            _ => (),
        }
        Some(completion)
    }

    fn next_watched(&mut self) -> Option<u32> {
        if self.is(Fault::NeverReportsWatchedQueues) { None } else { self.inner.next_watched() }
    }

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        let mut init = *init;
        match self.fault {
            Fault::HasNoLimits => {
                let most = self.inner.attributes();
                init.max_send_wr = init.max_send_wr.min(most.max_wr);
                init.max_recv_wr = init.max_recv_wr.min(most.max_wr);
                init.max_send_sge = init.max_send_sge.min(most.max_sge);
                init.max_recv_sge = init.max_recv_sge.min(most.max_sge);
                init.max_inline = init.max_inline.min(most.max_inline);
            }
            Fault::AcceptsFewerSends => init.max_send_wr -= 1,
            Fault::AcceptsFewerReceives => init.max_recv_wr -= 1,
            _ => (),
        }
        let qp = self.inner.create_qp(&init, rng)?;
        self.qps.push(qp);
        Ok(qp)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        let result = self.inner.qp_state(qp);
        self.forgive(Fault::ReusesIds, result, QpState::Init)
    }

    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError> {
        self.requested_to_send = Some(qp);
        let to = match self.fault {
            Fault::NeverRetries => ReadyToSend { rnr_retry: 0, ..*to },
            Fault::RetriesForEver => ReadyToSend { rnr_retry: 7, ..*to },
            Fault::WaitsForEver => ReadyToSend { ack_timeout: 0, ..*to },
            _ => *to,
        };
        let result = self.inner.ready_to_send(qp, &to);
        self.forgive(Fault::SkipsStates, result, ())
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        match self.fault {
            Fault::FailsSilently => return Ok(()),
            Fault::FailsNeighbours => {
                for other in self.qps.clone() {
                    let _ = self.inner.fail_qp(other);
                }
            }
            _ => (),
        }
        self.inner.fail_qp(qp)
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        if self.is(Fault::DestroysNothing) {
            return Ok(());
        }
        self.inner.destroy_qp(qp)
    }

    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let mut request = *request;
        request.signaled |= self.is(Fault::SignalsEverything);
        if self.is(Fault::ReportsEarlierCompletions) {
            request.id = request.id.saturating_sub(1);
        }
        if self.is(Fault::RefusesEarlyPosts) && self.requested_to_send == Some(qp) {
            return Err(VerbsError::WrongState);
        }
        let zeros = [0; 256];
        let payload_of = |payload| match (self.fault, payload) {
            (Fault::TakesTheFirstWindow, Payload::Windows([first, ..])) => {
                Payload::Windows(core::slice::from_ref(first))
            }
            (Fault::ForgetsInlinePayload, Payload::Inline(bytes)) => {
                Payload::Inline(&zeros[..bytes.len().min(256)])
            }
            (_, payload) => payload,
        };
        let first;
        request.operation = match (self.fault, request.operation) {
            (
                Fault::DropsInvalidations,
                SendOperation::Send { payload, with: SendWith::Invalidate(_) },
            ) => SendOperation::Send { payload, with: SendWith::Nothing },
            (_, SendOperation::Send { payload, with }) => {
                SendOperation::Send { payload: payload_of(payload), with }
            }
            (Fault::WritesOneByteFurther, SendOperation::Write { payload, mut to, immediate }) => {
                to.address += 1;
                SendOperation::Write { payload, to, immediate }
            }
            (Fault::ReadsOneByteFurther, SendOperation::Read { into, mut from }) => {
                from.address += 1;
                SendOperation::Read { into, from }
            }
            (Fault::TakesTheFirstWindow, SendOperation::Read { into: [one, ..], from }) => {
                first = [*one];
                SendOperation::Read { into: &first, from }
            }
            (Fault::AddsOneMore, SendOperation::FetchAdd { into, at, add }) => {
                SendOperation::FetchAdd { into, at, add: add + 1 }
            }
            (Fault::AlignsAtomics, SendOperation::FetchAdd { into, mut at, add }) => {
                at.address &= !7;
                SendOperation::FetchAdd { into, at, add }
            }
            (_, operation) => operation,
        };
        let result = self.inner.post_send(qp, &request);
        self.forgive(Fault::AcceptsPostsInError, result, ())
    }

    fn post_announced(
        &mut self,
        qp: QpId,
        write: &SendRequest<'_>,
        send: &SendRequest<'_>,
    ) -> Result<(), VerbsError> {
        match self.is(Fault::AnnouncesFirst) {
            true => self.inner.post_announced(qp, send, write),
            false => self.inner.post_announced(qp, write, send),
        }
    }

    fn repost_recv(&mut self, qp: QpId, id: u64) -> bool {
        self.is(Fault::RepostsNothing) || self.inner.repost_recv(qp, id)
    }

    fn post_empty_recvs(&mut self, qp: QpId, id: u64, count: u32) -> Result<(), VerbsError> {
        let count = if self.is(Fault::PostsOneReceiveOfMany) { count.min(1) } else { count };
        self.inner.post_empty_recvs(qp, id, count)
    }

    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        match self.fault {
            Fault::LosesEarlyReceives if self.inner.qp_state(qp) == Ok(QpState::Init) => {
                return Ok(());
            }
            Fault::SwapsReceives => match self.receives.take() {
                None => {
                    self.receives = Some((qp, request.id, request.into.to_vec()));
                    return Ok(());
                }
                Some((other, id, into)) => {
                    self.inner.post_recv(qp, request)?;
                    return self.inner.post_recv(other, &RecvRequest { id, into: &into });
                }
            },
            _ => (),
        }
        self.inner.post_recv(qp, request)
    }

    fn under_way(&self) -> UnderWay {
        if self.is(Fault::ReportsNothingUnderWay) {
            return UnderWay::default();
        }
        self.inner.under_way()
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        if let Some(event) = self.event.take() {
            return Some(event);
        }
        let event = self.inner.poll_event()?;
        if self.is(Fault::ReportsErrorsTwice) {
            self.event = Some(event);
        }
        Some(event)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.is(Fault::AlwaysDue) {
            return Some(self.now);
        }
        self.inner.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        (self.now, self.requested_to_send) = (now, None);
        self.inner.handle_timeout(now);
        if self.is(Fault::KeepsCompletions) {
            for &cq in &self.cqs {
                while let Some(completion) = self.inner.poll_cq(cq) {
                    self.completions.push_back((cq, completion));
                }
            }
        }
    }

    fn listen(&mut self, port: u16) -> Result<(), VerbsError> {
        self.listens = Some(port);
        let result = self.inner.listen(port);
        self.forgive(Fault::ListensTwice, result, ())
    }

    fn connect(
        &mut self,
        qp: QpId,
        from: IpAddr,
        to: SocketAddr,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
        rng: &mut dyn Rng,
    ) -> Result<ConnectionId, VerbsError> {
        let mut to = to;
        let mut data = private_data;
        match self.fault {
            Fault::ListensEverywhere => to.set_port(crate::world::PORT),
            Fault::CutsPrivateData => data = data.get(..56).unwrap_or(data),
            _ => (),
        }
        let result = self.inner.connect(qp, from, to, parameters, data, now, rng);
        self.forgive(Fault::ConnectsFromAnywhere, result, ConnectionId(0))
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        let result = self.inner.accept(connection, qp, parameters, private_data, now);
        self.forgive(Fault::AcceptsAnything, result, ())
    }

    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        if let Some(event) = self.connection_event.take() {
            return Some(event);
        }
        let mut event = self.inner.poll_connection_event()?;
        match (self.fault, &mut event) {
            (
                Fault::LosesPrivateData,
                ConnectionEvent::Request { private_data, .. }
                | ConnectionEvent::Established { private_data, .. }
                | ConnectionEvent::Rejected { private_data, .. },
            ) => *private_data = PrivateData::empty(),
            (Fault::MisnamesReasons, ConnectionEvent::Rejected { reason, .. }) => {
                *reason = RejectReason::STALE_CONNECTION;
            }
            (Fault::NeverGivesUp, ConnectionEvent::Rejected { reason, .. })
                if *reason == RejectReason::TIMEOUT =>
            {
                return None;
            }
            (Fault::ReportsEndsTwice, ConnectionEvent::Disconnected { .. }) => {
                self.connection_event = Some(event);
            }
            (Fault::ForgetsEnds, ConnectionEvent::Disconnected { .. }) => return None,
            (Fault::MixesUpConnections, ConnectionEvent::Established { connection, .. }) => {
                self.connections.push(*connection);
                *connection = self.connections[0];
            }
            _ => (),
        }
        Some(event)
    }
}
