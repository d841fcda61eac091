//! A wrapper that makes any provider behave like hardware: all effects are delayed.
//!
//! * State transitions of queue pairs, destruction, deregistration and revocation are commands, which execute in order
//!   some time after the call. Requests may be posted before: they wait in their ring, and its doorbell is rung when
//!   the state is reached.
//! * A key change by request is a work request of its queue pair: later requests wait for it.
//! * Completions are written in batches. A watched completion queue is armed: it raises one event, and is armed again
//!   when the event was taken.
//! * Events come through a queue of their own, later than their causes.
//!
//! The device owns destroyed objects until their command completes: their domain is `Busy` until then.

use crate::overlay::{Over, Overlay};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use roce::Roce;
use roce::testing::OverRoce;
use std::collections::{BTreeMap, VecDeque};
use verbs::*;

/// Shortest delays of a command, a batch of completions and an event. A random part of up to `SPREAD` times is added.
const COMMAND: Duration = Duration::from_micros(30);
const BATCH: Duration = Duration::from_micros(20);
const EVENT: Duration = Duration::from_micros(40);
const SPREAD: u64 = 4;

/// A command to the device.
#[derive(Debug)]
enum Command {
    ReadyToReceive(QpId, ReadyToReceive),
    ReadyToSend(QpId, ReadyToSend),
    Fail(QpId),
    Destroy(QpId, PdId),
    /// The connection manager has changed the state of the queue pair, which now becomes visible to the user.
    Moved(QpId),
    Revoke(MrId, PdId),
    Deregister(MrId, PdId),
    DestroyQueue(CqId),
}

impl Command {
    /// The domain that is busy until the command completes.
    fn holds(&self) -> Option<PdId> {
        match self {
            Command::Destroy(_, pd) | Command::Revoke(_, pd) | Command::Deregister(_, pd) => {
                Some(*pd)
            }
            _ => None,
        }
    }
}

/// An entry of a send queue whose doorbell was not rung yet.
#[derive(Debug)]
enum Held {
    Send(Owned),
    /// A key change, due when the earlier requests are done.
    Key {
        region: MrId,
        chunk: Option<u16>,
        id: u64,
        due: Instant,
        before: UnderWay,
    },
}

/// A send request that owns its payload and windows.
#[derive(Debug)]
struct Owned {
    request: SendRequest<'static>,
    windows: Vec<Window>,
    inline: Option<Vec<u8>>,
}

impl Owned {
    fn new(request: &SendRequest<'_>) -> Self {
        let (windows, inline, operation) = match request.operation {
            SendOperation::Send { payload, with } => {
                let (windows, inline) = own(&payload);
                let payload = Payload::Inline(&[]);
                (windows, inline, SendOperation::Send { payload, with })
            }
            SendOperation::Write { payload, to, immediate } => {
                let (windows, inline) = own(&payload);
                let payload = Payload::Inline(&[]);
                (windows, inline, SendOperation::Write { payload, to, immediate })
            }
            SendOperation::Read { into, from } => {
                (into.to_vec(), None, SendOperation::Read { into: &[], from })
            }
            SendOperation::CompareSwap { into, at, compare, swap } => {
                let atomic = SendOperation::CompareSwap { into, at, compare, swap };
                (Vec::new(), None, atomic)
            }
            SendOperation::FetchAdd { into, at, add } => {
                (Vec::new(), None, SendOperation::FetchAdd { into, at, add })
            }
        };
        let SendRequest { id, signaled, solicited, datagram, carries, ack_lazily, .. } = *request;
        let request =
            SendRequest { id, operation, signaled, solicited, datagram, carries, ack_lazily };
        Owned { request, windows, inline }
    }

    /// Posts the request.
    fn post(&self, qp: QpId, device: &mut impl Provider) -> Result<(), VerbsError> {
        let payload = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Windows(&self.windows),
        };
        let operation = match self.request.operation {
            SendOperation::Send { with, .. } => SendOperation::Send { payload, with },
            SendOperation::Write { to, immediate, .. } => {
                SendOperation::Write { payload, to, immediate }
            }
            SendOperation::Read { from, .. } => SendOperation::Read { into: &self.windows, from },
            atomic => atomic,
        };
        device.post_send(qp, &SendRequest { operation, ..self.request })
    }
}

fn own(payload: &Payload<'_>) -> (Vec<Window>, Option<Vec<u8>>) {
    match payload {
        Payload::Windows(windows) => (windows.to_vec(), None),
        Payload::Inline(bytes) => (Vec::new(), Some(bytes.to_vec())),
    }
}

#[derive(Debug)]
struct Qp {
    init: QpInit,
    /// The last requested state.
    requested: QpState,
    /// The last state that is visible as reached.
    reached: QpState,
    connection: Option<ConnectionId>,
    held: VecDeque<Held>,
    /// Outstanding requests, posted or waiting for the doorbell, except key changes.
    posted: u32,
}

#[derive(Debug, Default)]
struct Cq {
    /// Completions in a batch that is not visible yet.
    landed: VecDeque<Completion>,
    batch: Option<Instant>,
    seen: VecDeque<Completion>,
    watched_as: Option<u32>,
    armed: bool,
}

/// A provider with delayed effects.
#[derive(Debug)]
pub struct Late<P> {
    inner: P,
    now: Instant,
    rng: netsim::Rng,
    qps: BTreeMap<QpId, Qp>,
    cqs: BTreeMap<CqId, Cq>,
    regions: BTreeMap<MrId, PdId>,
    commands: VecDeque<(Instant, Command)>,
    events: VecDeque<(Instant, AsyncEvent)>,
    connection_events: VecDeque<(Instant, ConnectionEvent)>,
    watch_events: VecDeque<(Instant, u32)>,
    connections: BTreeMap<ConnectionId, QpId>,
}

impl<P: RdmaDevice> Late<P> {
    /// Wraps a provider.
    pub fn new(inner: P) -> Over<Self> {
        Over(Late {
            inner,
            now: Instant::ZERO,
            rng: netsim::Rng::new(5),
            qps: BTreeMap::new(),
            cqs: BTreeMap::new(),
            regions: BTreeMap::new(),
            commands: VecDeque::new(),
            events: VecDeque::new(),
            connection_events: VecDeque::new(),
            watch_events: VecDeque::new(),
            connections: BTreeMap::new(),
        })
    }

    /// A random time from now, not before `after`.
    fn later(&mut self, least: Duration, after: Option<Instant>) -> Instant {
        let spread = least.as_nanos() as u64 * SPREAD;
        let at = self.now + least + Duration::from_nanos(self.rng.within(0..spread));
        after.map_or(at, |after| at.max(after))
    }

    fn command(&mut self, command: Command) {
        let last = self.commands.back().map(|(at, _)| *at);
        let at = self.later(COMMAND, last);
        self.commands.push_back((at, command));
    }

    fn qp(&mut self, qp: QpId) -> Result<&mut Qp, VerbsError> {
        self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)
    }

    /// Runs all work that is due.
    fn advance(&mut self) {
        while let Some((at, _)) = self.commands.front()
            && *at <= self.now
            && let Some((_, command)) = self.commands.pop_front()
        {
            self.execute(command);
        }
        let qps: Vec<QpId> = self.qps.keys().copied().collect();
        for qp in qps {
            self.ring(qp);
        }
        self.take_completions();
        self.take_events();
    }

    fn execute(&mut self, command: Command) {
        let moved = match command {
            Command::ReadyToReceive(qp, peer) => (qp, self.inner.ready_to_receive(qp, &peer)),
            Command::ReadyToSend(qp, to) => (qp, self.inner.ready_to_send(qp, &to)),
            Command::Moved(qp) => (qp, Ok(())),
            Command::Fail(qp) => (qp, self.inner.fail_qp(qp)),
            Command::Destroy(qp, _) => return self.inner.destroy_qp(qp).expect("it exists"),
            Command::Revoke(region, _) => return self.inner.revoke_key(region).expect("it exists"),
            Command::Deregister(region, _) => {
                return self.inner.deregister(region).expect("it exists");
            }
            Command::DestroyQueue(cq) => {
                // Earlier commands have destroyed its queue pairs.
                return self.inner.destroy_cq(cq).expect("nothing uses it");
            }
        };
        let (qp, result) = moved;
        if result.is_err() {
            // A refused command brings the queue pair to the error state.
            let _ = self.inner.fail_qp(qp);
            let at = self.later(EVENT, None);
            self.events.push_back((at, AsyncEvent::QpError(qp)));
        }
        let state = self.inner.qp_state(qp);
        if let (Some(found), Ok(state)) = (self.qps.get_mut(&qp), state) {
            found.reached = state;
        }
    }

    /// Rings the doorbell: posts waiting requests to the device as far as possible.
    fn ring(&mut self, qp: QpId) {
        while let Some(found) = self.qps.get_mut(&qp)
            && let Some(first) = found.held.front_mut()
        {
            let state = self.inner.qp_state(qp).expect("the queue pair is not destroyed");
            if state == QpState::Error {
                self.take_completions();
                self.flush(qp);
                return;
            }
            if state != QpState::Rts {
                return;
            }
            match first {
                Held::Send(posted) => {
                    if posted.post(qp, &mut self.inner).is_err() {
                        // The device's ring is full.
                        return;
                    }
                }
                Held::Key { region, chunk, id, due, before } => {
                    if *due > self.now || !self.inner.is_done(before) {
                        return;
                    }
                    let (region, id) = (*region, *id);
                    let request = KeyRequest { qp, id, signaled: true };
                    let rkey = match *chunk {
                        Some(chunk) => {
                            let rng = &mut self.rng;
                            match self.inner.rotate_chunk_key(region, chunk, request, rng) {
                                Ok(KeyChange::Done(rkey)) => rkey,
                                // The region was deregistered since the post.
                                _ => 0,
                            }
                        }
                        None => {
                            let _ = self.inner.revoke_key(region);
                            0
                        }
                    };
                    self.take_completions();
                    let operation = CompletedOperation::KeyChanged { rkey };
                    self.complete(qp, id, Status::Success, operation);
                }
            }
            if let Some(found) = self.qps.get_mut(&qp) {
                found.held.pop_front();
            }
        }
    }

    /// Flushes the waiting requests of a failed queue pair.
    fn flush(&mut self, qp: QpId) {
        let Some(found) = self.qps.get_mut(&qp) else { return };
        for held in core::mem::take(&mut found.held) {
            let (id, operation) = match held {
                Held::Send(posted) => (posted.request.id, CompletedOperation::Send),
                Held::Key { id, .. } => (id, CompletedOperation::KeyChanged { rkey: 0 }),
            };
            self.complete(qp, id, Status::Flushed, operation);
        }
    }

    /// Writes a completion of a send queue.
    fn complete(&mut self, qp: QpId, id: u64, status: Status, operation: CompletedOperation) {
        let Some(cq) = self.qps.get(&qp).map(|found| found.init.send_cq) else { return };
        self.land(cq, Completion { id, qp, status, operation, datagram_from: None });
    }

    fn land(&mut self, cq: CqId, completion: Completion) {
        let batch = self.later(BATCH, None);
        if let Some(found) = self.cqs.get_mut(&cq) {
            found.landed.push_back(completion);
            found.batch.get_or_insert(batch);
        }
    }

    fn take_completions(&mut self) {
        let cqs: Vec<CqId> = self.cqs.keys().copied().collect();
        for cq in cqs {
            while let Some(completion) = self.inner.poll_cq(cq) {
                // Completions of destroyed queue pairs are dropped.
                if self.qps.contains_key(&completion.qp) {
                    self.land(cq, completion);
                }
            }
            let Some(found) = self.cqs.get_mut(&cq) else { continue };
            if found.batch.is_some_and(|at| at <= self.now) {
                found.batch = None;
                let batch = core::mem::take(&mut found.landed);
                found.seen.extend(batch);
                self.raise(cq);
            }
        }
    }

    /// Raises an event if a queue is armed and has completions.
    fn raise(&mut self, cq: CqId) {
        let Some(found) = self.cqs.get_mut(&cq) else { return };
        if let (true, false, Some(number)) = (found.armed, found.seen.is_empty(), found.watched_as)
        {
            found.armed = false;
            let last = self.watch_events.back().map(|(at, _)| *at);
            let at = self.later(EVENT, last);
            self.watch_events.push_back((at, number));
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.inner.poll_event() {
            let last = self.events.back().map(|(at, _)| *at);
            let at = self.later(EVENT, last);
            self.events.push_back((at, event));
        }
        while let Some(event) = self.inner.poll_connection_event() {
            let last = self.connection_events.back().map(|(at, _)| *at);
            let at = self.later(EVENT, last);
            self.connection_events.push_back((at, event));
        }
        for at in 0..self.events.len() {
            if let (due, AsyncEvent::QpError(qp)) = self.events[at]
                && due <= self.now
            {
                self.note_error(qp);
            }
        }
    }

    /// Makes the error state of a queue pair visible to the user.
    fn note_error(&mut self, qp: QpId) {
        if let Some(found) = self.qps.get_mut(&qp) {
            (found.requested, found.reached) = (QpState::Error, QpState::Error);
        }
    }
}

impl<P: OverRoce> OverRoce for Over<Late<P>> {
    fn roce(&mut self) -> &mut Roce {
        self.0.inner.roce()
    }
}

impl<P: RdmaDevice> Overlay for Late<P> {
    type Inner = P;
    fn inner(&self) -> &P {
        &self.inner
    }
    fn inner_mut(&mut self) -> &mut P {
        &mut self.inner
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        if self.commands.iter().any(|(_, command)| command.holds() == Some(pd)) {
            return Err(VerbsError::Busy);
        }
        self.inner.dealloc_pd(pd)
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        let region = self.inner.register(pd, memory, access, rng)?;
        self.regions.insert(region.id, pd);
        Ok(region)
    }

    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        let region = self.inner.register_chunks(pd, count, size, memory, rng)?;
        self.regions.insert(region.id, pd);
        Ok(region)
    }

    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        self.settle(region)?;
        self.inner.rotate_key(region, rng)
    }

    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.settle(region)?;
        self.inner.remap(region, memory, rng)
    }

    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        let pd = *self.regions.get(&region).ok_or(VerbsError::NoSuchObject)?;
        self.command(Command::Revoke(region, pd));
        Ok(())
    }

    fn revoke_key_by(
        &mut self,
        region: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        self.change(region, None, request)?;
        Ok(KeyChange::Posted)
    }

    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        self.inner.chunk_key(region, chunk)?;
        if !request.signaled {
            // An inner software provider changes the key at once.
            return self.inner.rotate_chunk_key(region, chunk, request, rng);
        }
        self.change(region, Some(chunk), request)?;
        Ok(KeyChange::Posted)
    }

    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        let pd = self.regions.remove(&region).ok_or(VerbsError::NoSuchObject)?;
        self.command(Command::Deregister(region, pd));
        Ok(())
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        let cq = self.inner.create_cq(depth)?;
        self.cqs.insert(cq, Cq::default());
        Ok(cq)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        if !self.cqs.contains_key(&cq) {
            return Err(VerbsError::NoSuchObject);
        }
        let uses = |qp: &Qp| qp.init.send_cq == cq || qp.init.recv_cq == cq;
        if self.qps.values().any(uses) {
            return Err(VerbsError::Busy);
        }
        self.cqs.remove(&cq);
        self.command(Command::DestroyQueue(cq));
        Ok(())
    }

    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        let completion = self.cqs.get_mut(&cq)?.seen.pop_front()?;
        if completion.status != Status::Success {
            self.note_error(completion.qp);
        }
        Some(completion)
    }

    fn watch_cq(&mut self, cq: CqId, number: u32) {
        if let Some(found) = self.cqs.get_mut(&cq) {
            (found.watched_as, found.armed) = (Some(number), true);
            self.raise(cq);
        }
    }

    fn next_watched(&mut self) -> Option<u32> {
        let (at, number) = *self.watch_events.front()?;
        if at > self.now {
            return None;
        }
        self.watch_events.pop_front();
        let again = |cq: &&mut Cq| cq.watched_as == Some(number);
        self.cqs.values_mut().filter(again).for_each(|cq| cq.armed = true);
        Some(number)
    }

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        if !self.cqs.contains_key(&init.send_cq) || !self.cqs.contains_key(&init.recv_cq) {
            return Err(VerbsError::NoSuchObject);
        }
        let qp = self.inner.create_qp(init, rng)?;
        let (requested, reached) = (QpState::Init, QpState::Init);
        let held = VecDeque::new();
        let made = Qp { init: *init, requested, reached, connection: None, held, posted: 0 };
        self.qps.insert(qp, made);
        Ok(qp)
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        self.qps.get(&qp).ok_or(VerbsError::NoSuchObject)?;
        self.inner.qp_number(qp)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.qps.get(&qp).map(|found| found.reached).ok_or(VerbsError::NoSuchObject)
    }

    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError> {
        let most = self.inner.attributes();
        let found = self.qp(qp)?;
        if found.requested != QpState::Init {
            return Err(VerbsError::WrongState);
        }
        if peer.max_dest_rd_atomic > most.max_rd_atomic || peer.path_mtu > most.max_path_mtu {
            return Err(VerbsError::Invalid);
        }
        found.requested = QpState::Rtr;
        self.command(Command::ReadyToReceive(qp, *peer));
        Ok(())
    }

    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError> {
        let most = self.inner.attributes();
        let found = self.qp(qp)?;
        if found.requested != QpState::Rtr {
            return Err(VerbsError::WrongState);
        }
        if to.max_rd_atomic > most.max_rd_atomic {
            return Err(VerbsError::Invalid);
        }
        found.requested = QpState::Rts;
        self.command(Command::ReadyToSend(qp, *to));
        Ok(())
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.qp(qp)?.requested = QpState::Error;
        self.command(Command::Fail(qp));
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let gone = self.qps.remove(&qp).ok_or(VerbsError::NoSuchObject)?;
        for cq in self.cqs.values_mut() {
            cq.landed.retain(|completion| completion.qp != qp);
            cq.seen.retain(|completion| completion.qp != qp);
        }
        self.command(Command::Destroy(qp, gone.init.pd));
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let found = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
        if found.requested != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        if found.held.is_empty() && self.inner.qp_state(qp) == Ok(QpState::Rts) {
            self.inner.post_send(qp, request)?;
            found.posted = found.posted.wrapping_add(1);
            return Ok(());
        }
        let owned = Owned::new(request);
        let inline = owned.inline.as_ref().map_or(0, Vec::len);
        if owned.windows.len() > found.init.max_send_sge || inline > found.init.max_inline {
            return Err(VerbsError::Invalid);
        }
        if found.held.len() >= found.init.max_send_wr as usize {
            return Err(VerbsError::QueueFull);
        }
        found.posted = found.posted.wrapping_add(1);
        found.held.push_back(Held::Send(owned));
        Ok(())
    }

    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        let found = self.qp(qp)?;
        if found.requested == QpState::Error {
            return Err(VerbsError::WrongState);
        }
        let cq = found.init.recv_cq;
        match self.inner.post_recv(qp, request) {
            // The error state is not visible to the user yet.
            Err(VerbsError::WrongState) => {
                let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
                let (id, status) = (request.id, Status::Flushed);
                self.land(cq, Completion { id, qp, status, operation, datagram_from: None });
                Ok(())
            }
            other => other,
        }
    }

    fn under_way(&self) -> UnderWay {
        let mut all = self.inner.under_way();
        for (&qp, found) in &self.qps {
            if found.held.iter().any(|held| matches!(held, Held::Send(_))) {
                all.add(qp, found.posted);
            }
        }
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        self.inner.is_done(under_way)
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        while let Some(&(at, event)) = self.events.front()
            && at <= self.now
        {
            self.events.pop_front();
            match event {
                AsyncEvent::QpError(qp) if !self.qps.contains_key(&qp) => (),
                other => return Some(other),
            }
        }
        None
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let key_due = |qp: &Qp| match qp.held.front() {
            // A key change after other requests waits for their completion.
            Some(Held::Key { due, .. }) => Some((*due).max(self.now + BATCH)),
            Some(Held::Send(_)) => Some(self.now + BATCH),
            None => None,
        };
        Instant::first([
            self.inner.poll_timeout(),
            self.commands.front().map(|(at, _)| *at),
            self.events.front().map(|(at, _)| *at).filter(|at| *at > self.now),
            self.connection_events.front().map(|(at, _)| *at).filter(|at| *at > self.now),
            self.watch_events.front().map(|(at, _)| *at).filter(|at| *at > self.now),
            self.cqs.values().filter_map(|cq| cq.batch).min(),
            self.qps.values().filter_map(key_due).min(),
        ])
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.inner.handle_timeout(now);
        self.advance();
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
        if self.qp(qp)?.requested != QpState::Init {
            return Err(VerbsError::WrongState);
        }
        let made = self.inner.connect(qp, from, to, parameters, private_data, now, rng)?;
        self.connections.insert(made, qp);
        self.qp(qp)?.connection = Some(made);
        Ok(made)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        qp: QpId,
        parameters: &ConnectionParameters,
        private_data: &[u8],
        now: Instant,
    ) -> Result<(), VerbsError> {
        if self.qp(qp)?.requested != QpState::Init {
            return Err(VerbsError::WrongState);
        }
        self.inner.accept(connection, qp, parameters, private_data, now)?;
        self.connections.insert(connection, qp);
        let found = self.qp(qp)?;
        (found.requested, found.connection) = (QpState::Rts, Some(connection));
        self.command(Command::Moved(qp));
        Ok(())
    }

    fn disconnect(&mut self, connection: ConnectionId, now: Instant) -> Result<(), VerbsError> {
        self.inner.disconnect(connection, now)?;
        if let Some(&qp) = self.connections.get(&connection)
            && let Some(found) = self.qps.get_mut(&qp)
            && found.requested != QpState::Init
        {
            found.requested = QpState::Error;
        }
        Ok(())
    }

    fn poll_connection_event(&mut self) -> Option<ConnectionEvent> {
        while let Some(&(at, event)) = self.connection_events.front()
            && at <= self.now
        {
            self.connection_events.pop_front();
            let (state, connection) = match event {
                ConnectionEvent::Request { .. } => return Some(event),
                ConnectionEvent::Established { connection, .. } => (QpState::Rts, connection),
                ConnectionEvent::Rejected { connection, .. } => (QpState::Init, connection),
                ConnectionEvent::Disconnected { connection } => (QpState::Error, connection),
            };
            if let Some(&qp) = self.connections.get(&connection) {
                if state != QpState::Rts {
                    self.connections.remove(&connection);
                }
                // A destroyed queue pair gets no more events.
                let Some(found) = self.qps.get_mut(&qp) else { continue };
                if found.requested != QpState::Error {
                    (found.requested, found.reached) = (state, state);
                }
                if state == QpState::Error {
                    found.reached = state;
                }
            }
            return Some(event);
        }
        None
    }
}

impl<P: RdmaDevice> Late<P> {
    /// Checks that the region exists, and cancels a pending revocation, because a new key overrides it.
    fn settle(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.regions.get(&region).ok_or(VerbsError::NoSuchObject)?;
        self.commands.retain(
            |(_, command)| !matches!(command, Command::Revoke(other, _) if *other == region),
        );
        Ok(())
    }

    /// Posts a key change to its queue pair.
    fn change(
        &mut self,
        region: MrId,
        chunk: Option<u16>,
        request: KeyRequest,
    ) -> Result<(), VerbsError> {
        self.regions.get(&region).ok_or(VerbsError::NoSuchObject)?;
        let KeyRequest { qp, id, .. } = request;
        let due = self.later(BATCH, None);
        let found = self.qps.get_mut(&qp).ok_or(VerbsError::NoSuchObject)?;
        if found.requested != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        let mut before = UnderWay::default();
        before.add(qp, found.posted);
        found.held.push_back(Held::Key { region, chunk, id, due, before });
        Ok(())
    }
}
