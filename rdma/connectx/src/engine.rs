//! The provider's round: completions, events, doorbells, and resets of the card.

use super::function::CHANGE_TIMEOUT;
use super::pair::{DestroyedPair, source};
use super::ring::{Entry, Kind, Received, status};
use super::send_queue::{Change, OnCompletion, Success};
use super::{ConnectX, commands::Job, management, regions, setup};
use drivers::ethernet::mlx5::{Arm, PairEvent};
use drivers::hal::Instant;
use verbs::{
    AsyncEvent, CompletedOperation, Completion, CqId, QpId, QpState, QpType, SendWith, Status,
    VerbsError,
};

impl ConnectX {
    /// One round: handles completions and events of the card, and rings doorbells for posted requests.
    #[inline]
    pub fn poll(&mut self, now: Instant) {
        self.now = now;
        if self.life != self.function.life() {
            self.follow_card_life();
        }
        self.function.port().mind();
        while let Some(event) = self.function.pair_event() {
            self.handle_pair_event(event);
        }
        self.take_queue_events();
        self.watch_link();
        // A user that polls a completion queue has handled them.
        if !core::mem::take(&mut self.is_polled) {
            self.reap();
        }
        self.read_counters();
        self.run_jobs();
        self.manage(now);
        self.flush();
    }

    /// Handles the card's events other than completions. False if the card needs [`ConnectX::poll`].
    #[inline]
    pub fn mind(&mut self, now: Instant) -> bool {
        self.now = now;
        if self.life != self.function.life() || self.current_job.is_some() || !self.jobs.is_empty()
        {
            return false;
        }
        self.function.port().mind();
        self.take_queue_events();
        !self.function.has_events() && self.function.link_up() == self.link
    }

    /// Whether users, who have taken all completions, have left no work for the rest of the loop.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.events.is_empty()
            && self.jobs.is_empty()
            && !self.management.has_arrivals()
            && !self.cm.wants_neighbours()
            && !self.cm.has_messages()
            && !self.cm.has_events()
            && !self.cm.has_refused()
    }

    /// Rings doorbells: one register write for each queue pair with new requests.
    #[inline]
    pub fn flush(&mut self) {
        self.key_queue.sends.flush(&self.function);
        while let Some(place) = self.unflushed.pop() {
            if let Some(pair) = self.pairs.at_mut(place as usize) {
                pair.listed = false;
                // Otherwise it is listed again when it reaches that state.
                if pair.can_execute() {
                    pair.sends.flush(&self.function);
                }
            }
        }
    }

    /// Arms the interrupt for completions; before a halt, with `set_interrupts` of the port.
    pub fn arm(&mut self) {
        self.take_queue_events();
        let taken = self.ring.completions.taken();
        if self.can_moderate && self.moderation.halts_after_other_work(taken, self.now) {
            self.jobs.push_back(Job::Moderate);
        }
        self.arm_rings();
    }

    /// Arms interrupts again, the port's too, after a halt that an interrupt has ended.
    #[inline]
    pub fn rearm(&mut self) {
        let taken = self.ring.completions.taken();
        if self.can_moderate && self.moderation.halts(taken, self.now) {
            self.jobs.push_back(Job::Moderate);
        }
        self.arm_rings();
        self.function.port().arm_events();
    }

    #[inline]
    fn arm_rings(&mut self) {
        // No interrupt for sends that no user waits for.
        let sent = if self.awaited > 0 { Arm::Any } else { Arm::Errors };
        for (ring, what) in [(&mut self.ring, Arm::Any), (&mut self.sent, sent)] {
            if let Some(word) = ring.completions.write_armed(what) {
                self.function.arm(word, ring.completions.number());
            }
        }
    }

    /// Handles the events of completion queues.
    #[inline]
    fn take_queue_events(&mut self) {
        let mut port = self.function.port();
        while let Some(queue) = port.told() {
            self.ring.note_event(queue);
            self.sent.note_event(queue);
        }
    }

    /// Lists a queue pair with requests whose doorbell is not rung yet.
    #[inline]
    pub(super) fn list(&mut self, qp: QpId) {
        if let Some(pair) = self.pairs.get_mut(qp.0) {
            pair.list(&mut self.unflushed);
        }
    }

    fn watch_link(&mut self) {
        // Reading the link state also drives a card's recovery after a reset.
        let up = self.function.link_up() && self.is_up();
        if up == self.link {
            return;
        }
        self.link = up;
        let of_port = |event: &AsyncEvent| {
            matches!(event, AsyncEvent::PortActive(_) | AsyncEvent::PortError(_))
        };
        self.events.retain(|event| !of_port(event));
        let event = if up { AsyncEvent::PortActive(0) } else { AsyncEvent::PortError(0) };
        self.events.push_back(event);
    }

    fn handle_pair_event(&mut self, event: PairEvent) {
        let (PairEvent::Established(number) | PairEvent::Failed(number)) = event;
        let Some(&qp) = self.numbers.get(&number) else { return };
        match event {
            PairEvent::Failed(_) => self.note_pair_failed(qp),
            PairEvent::Established(_) => self.note_peer_seen(qp),
        }
    }

    /// Handles the first sign of a queue pair's peer.
    fn note_peer_seen(&mut self, qp: QpId) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if core::mem::replace(&mut pair.peer_seen, true) {
            return;
        }
        if pair.state != QpState::Rts {
            self.events.push_back(AsyncEvent::CommunicationEstablished(qp));
        }
        if let Some(connection) = pair.connection {
            self.cm.communication_established(connection);
        }
    }

    /// Handles a queue pair that the card has moved to error.
    pub(super) fn note_pair_failed(&mut self, qp: QpId) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if pair.state == QpState::Error {
            return;
        }
        (pair.requested, pair.state) = (QpState::Error, QpState::Error);
        let (connection, has_unflushed) = (pair.connection, pair.sends.has_unflushed());
        if !core::mem::replace(&mut pair.error_reported, true) {
            self.counters.qp_errors += 1;
            self.events.push_back(AsyncEvent::QpError(qp));
        }
        if let Some(connection) = connection {
            self.cm.qp_failed(connection);
        }
        if has_unflushed {
            self.list(qp);
        }
    }

    /// Handles all completions.
    #[inline]
    pub(super) fn reap(&mut self) {
        if self.sent.completions.pending() || self.ring.completions.pending() {
            self.reap_all();
        }
    }

    fn reap_all(&mut self) {
        self.reap_sent();
        while let Some(entry) = self.ring.take() {
            self.handle_entry(&entry);
        }
        self.ring.completions.tell();
    }

    pub(super) fn reap_sent(&mut self) {
        while let Some(entry) = self.sent.take() {
            self.pair_entry(entry.user as usize, &entry);
        }
        self.sent.completions.tell();
    }

    fn handle_entry(&mut self, entry: &Entry) {
        match entry.user {
            setup::KEYS => self.key_entry(entry),
            management::USER => self.management_entry(entry),
            place => self.pair_entry(place as usize, entry),
        }
    }

    /// The next completion of a queue. Most are receives, and bypass the software queues.
    #[inline]
    pub(super) fn next_completion(&mut self, cq: CqId) -> Option<Completion> {
        if !self.has_completions
            && let Some(completion) = self.next_received(cq)
        {
            return Some(completion);
        }
        self.next_of_any_kind(cq)
    }

    fn next_of_any_kind(&mut self, cq: CqId) -> Option<Completion> {
        if self.has_completions {
            if let Some(completion) = self.cqs.poll(cq) {
                return Some(completion);
            }
            self.has_completions = !self.cqs.are_empty();
        }
        loop {
            // The failure of a request is reported before the receives that are flushed because of it.
            if self.sent.completions.pending() {
                self.reap_sent();
                if let Some(completion) = self.cqs.poll(cq) {
                    return Some(completion);
                }
            }
            if let Some(completion) = self.next_received(cq) {
                return Some(completion);
            }
            let Some(entry) = self.ring.take() else {
                self.ring.completions.tell();
                return None;
            };
            self.handle_entry(&entry);
            if let Some(completion) = self.cqs.poll(cq) {
                return Some(completion);
            }
        }
    }

    /// Takes the next completion if it is that of a WRITE with an immediate, or of a SEND without one, over a
    /// connection, belongs into that queue, and needs no other handling.
    #[inline]
    fn next_received(&mut self, cq: CqId) -> Option<Completion> {
        let received = self.ring.next_received()?;
        let pair = self.pairs.at_mut(received.user as usize)?;
        // The first sign of the peer must also reach the connection manager.
        let is_first = !pair.peer_seen && pair.connection.is_some();
        if pair.number != received.number || pair.recv_cq != cq || is_first {
            return None;
        }
        // Datagrams carry their source.
        if !received.is_write && pair.kind != QpType::Rc {
            return None;
        }
        let id = pair.receives.retire(received.counter)?;
        self.ring.skip();
        let Received { length, immediate, .. } = received;
        let operation = match received.is_write {
            true => CompletedOperation::RecvWriteImmediate { length, immediate },
            false => CompletedOperation::Recv { length, with: SendWith::Nothing },
        };
        let (qp, status) = (pair.id, Status::Success);
        Some(Completion { id, qp, status, operation, datagram_from: None })
    }

    fn key_entry(&mut self, entry: &Entry) {
        if entry.number != self.key_queue.number {
            return;
        }
        if entry.kind != Kind::Requested {
            // A failed change of a key is a bug here or in the card: it is unknown which keys are in effect.
            return self.function.reset();
        }
        while let Some((then, is_last)) = self.key_queue.sends.retire(entry.counter) {
            if let OnCompletion::Key { change, .. } = then {
                self.finish_change(&change);
            }
            if is_last {
                return;
            }
        }
    }

    #[inline]
    fn pair_entry(&mut self, place: usize, entry: &Entry) {
        let Some(pair) = self.pairs.at_mut(place).filter(|pair| pair.number == entry.number) else {
            // The queue pair was destroyed.
            return;
        };
        let qp = pair.id;
        match entry.kind {
            Kind::Requested => self.finish_requests(place, entry.counter, Status::Success),
            Kind::RequestFailed(syndrome) => {
                self.finish_requests(place, entry.counter, status(syndrome));
                if status(syndrome) != Status::Flushed {
                    self.note_pair_failed(qp);
                }
            }
            Kind::ReceiveFailed(syndrome) => {
                if let Some(id) = pair.receives.retire(entry.counter) {
                    let (cq, status) = (pair.recv_cq, status(syndrome));
                    let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
                    self.complete(
                        cq,
                        Completion { id, qp, status, operation, datagram_from: None },
                    );
                }
                if status(syndrome) != Status::Flushed {
                    self.note_pair_failed(qp);
                }
            }
            Kind::Unknown => self.counters.completions_unknown += 1,
            _ => self.finish_receive(place, entry),
        }
    }

    #[inline]
    fn finish_receive(&mut self, place: usize, entry: &Entry) {
        let Some(pair) = self.pairs.at_mut(place) else { return };
        let Some(id) = pair.receives.retire(entry.counter) else {
            self.counters.completions_unknown += 1;
            return;
        };
        let (qp, cq, length) = (pair.id, pair.recv_cq, entry.length);
        let operation = match entry.kind {
            Kind::WriteImmediate => {
                CompletedOperation::RecvWriteImmediate { length, immediate: entry.immediate }
            }
            kind => CompletedOperation::Recv {
                length,
                with: match kind {
                    Kind::SendImmediate => SendWith::Immediate(entry.immediate),
                    Kind::SendInvalidate => SendWith::Invalidate(entry.immediate),
                    _ => SendWith::Nothing,
                },
            },
        };
        let datagram_from = match (pair.kind, pair.receives.place(entry.counter)) {
            (QpType::Ud { .. }, Some(into)) => {
                let header = management::header(into.as_slice());
                Some((source(&header, entry.is_ipv4), entry.source))
            }
            _ => None,
        };
        let is_first = !pair.peer_seen && pair.connection.is_some();
        if entry.kind == Kind::SendInvalidate {
            self.handle_remote_invalidate(entry.immediate);
        }
        let status = Status::Success;
        self.complete(cq, Completion { id, qp, status, operation, datagram_from });
        if is_first {
            self.note_peer_seen(qp);
        }
    }

    /// Completes the requests of a queue pair up to the one with this counter, which ended with status `end`.
    #[inline]
    fn finish_requests(&mut self, place: usize, counter: u16, end: Status) {
        loop {
            let ConnectX { pairs, regions, domains, pool, .. } = self;
            let Some(pair) = pairs.at_mut(place) else { return };
            let changed =
                |change: &Change| regions::finish_posted_change(regions, domains, pool, change);
            let (is_last, reported) = match end {
                Status::Success => pair.sends.retire_unawaited(counter, changed),
                _ => (false, None),
            };
            if let Some(id) = reported {
                let (cq, qp, status) = (pair.send_cq, pair.id, Status::Success);
                let operation = CompletedOperation::Send;
                self.complete(cq, Completion { id, qp, status, operation, datagram_from: None });
            }
            if is_last {
                return;
            }
            let Some(pair) = self.pairs.at_mut(place) else { return };
            let Some((then, is_last)) = pair.sends.retire(counter) else {
                let is_known = end != Status::Success && pair.sends.is_of_last_change(counter);
                self.counters.completions_unknown += u64::from(!is_known);
                return;
            };
            let (qp, cq) = (pair.id, pair.send_cq);
            if then.is_awaited() {
                self.awaited = self.awaited.saturating_sub(1);
            }
            // Earlier requests succeeded, and were unsignaled.
            let status = if is_last { end } else { Status::Success };
            self.finish_request(qp, cq, then, status);
            if is_last {
                return;
            }
        }
    }

    /// Completes a request of a queue pair.
    fn finish_request(&mut self, qp: QpId, cq: CqId, then: OnCompletion, status: Status) {
        match then {
            OnCompletion::User { success: Success::Unsignaled, .. }
                if status == Status::Success => {}
            OnCompletion::User { id, .. } => {
                let operation = CompletedOperation::Send;
                self.complete(cq, Completion { id, qp, status, operation, datagram_from: None });
            }
            OnCompletion::Key { id, change } => {
                match status {
                    Status::Success => {
                        let ConnectX { regions, domains, pool, .. } = self;
                        regions::finish_posted_change(regions, domains, pool, &change);
                    }
                    // The change takes effect nevertheless.
                    _ => {
                        self.drop_posted_change(&change);
                        self.repeat_change(&change);
                    }
                }
                if change.has_completion && (change.is_awaited || status != Status::Success) {
                    let rkey = change.granted.map_or(0, |place| self.pool.value(place));
                    let operation = CompletedOperation::KeyChanged { rkey };
                    self.complete(
                        cq,
                        Completion { id, qp, status, operation, datagram_from: None },
                    );
                }
            }
            OnCompletion::Moved { .. } => {}
        }
    }

    /// Repeats a change of keys by the key queue, because its queue pair did not execute it, or perhaps did.
    fn repeat_change(&mut self, change: &Change) {
        if !self.is_up() {
            return;
        }
        let mut change = Change { has_completion: false, is_awaited: false, ..*change };
        if let Some(key) = change.granted.filter(|_| self.regions.get(change.region.0).is_none()) {
            // The region is gone: the granted key is revoked instead.
            self.pool.revoke(key);
            let _ = self.change_keys(Change { revoked: Some(key), granted: None, ..change });
            change.granted = None;
        }
        let _ = self.change_keys(change);
    }

    #[inline]
    fn complete(&mut self, cq: CqId, completion: Completion) {
        self.has_completions = true;
        if !self.cqs.push(cq, completion, true) {
            self.counters.completions_lost += 1;
        }
    }

    /// Waits until all changes in the key queue are done.
    pub(super) fn settle_keys(&mut self) -> Result<(), VerbsError> {
        self.wait_for_keys(|queue| queue.sends.is_idle())
    }

    /// Waits for room for a change in the key queue.
    pub(super) fn make_key_room(&mut self, blocks: u32) -> Result<(), VerbsError> {
        self.wait_for_keys(|queue| queue.sends.has_blocks(blocks))
    }

    fn wait_for_keys(
        &mut self,
        enough: impl Fn(&setup::KeyQueue) -> bool,
    ) -> Result<(), VerbsError> {
        self.check_up()?;
        if enough(&self.key_queue) {
            return Ok(());
        }
        self.key_queue.sends.flush(&self.function);
        let function = self.function.clone();
        let waited = function.wait_for(CHANGE_TIMEOUT, || {
            self.reap();
            (!self.is_up() || enough(&self.key_queue)).then_some(())
        });
        waited.map_err(|_| VerbsError::Unreachable)?;
        self.check_up()
    }

    /// Releases a queue pair after the card has destroyed it.
    pub(super) fn release_destroyed(&mut self, gone: DestroyedPair) {
        // Its completions are in the ring by now, and must not count for the next queue pair of that number.
        self.reap();
        self.destroying.retain(|other| *other != gone.id);
        self.reserved = self.reserved.saturating_sub(gone.completions);
        self.arena.free(gone.buffer.window);
        self.arena.free(gone.record);
        self.release(gone.pd);
        for change in gone.undone {
            self.drop_posted_change(&change);
            self.repeat_change(&change);
        }
    }

    /// Handles a reset of the card, and its return.
    #[cold]
    fn follow_card_life(&mut self) {
        if self.life.take().is_some() {
            self.reset_state();
        }
        if let Some(life) = self.function.life()
            && self.unusable_life != Some(life)
        {
            match self.set_up() {
                Ok(()) => self.life = Some(life),
                Err(_) => self.unusable_life = Some(life),
            }
        }
    }

    /// Resets the state of all objects on the card: queue pairs are in error, keys are revoked.
    fn reset_state(&mut self) {
        if let Some(current_job) = self.current_job.take() {
            self.jobs.push_back(current_job.job);
        }
        self.pool.clear();
        for place in 0..self.domains.places() {
            if let Some(domain) = self.domains.at_mut(place) {
                (domain.users, domain.number, domain.key) = (0, 0, 0);
                domain.spare.clear();
            }
        }
        for place in 0..self.regions.places() {
            if let Some(region) = self.regions.at_mut(place) {
                region.drop_keys();
                let pd = region.pd();
                let _ = self.hold(pd);
            }
        }
        while self.key_queue.sends.drop_oldest().is_some() {}
        for job in core::mem::take(&mut self.jobs) {
            if let Job::Reset(gone) | Job::Destroy(gone) = job {
                // The card does not access memory any more.
                self.arena.free(gone.buffer.window);
                self.arena.free(gone.record);
                self.reserved = self.reserved.saturating_sub(gone.completions);
            }
        }
        self.destroying.clear();
        self.keys_missing = 0;
        self.management.reset();
        for place in 0..self.pairs.places() {
            let Some(pair) = self.pairs.at_mut(place) else { continue };
            let (qp, send_cq, recv_cq, pd) = (pair.id, pair.send_cq, pair.recv_cq, pair.pd);
            let _ = self.hold(pd);
            self.note_pair_failed(qp);
            while let Some(then) =
                self.pairs.at_mut(place).and_then(|pair| pair.sends.drop_oldest())
            {
                self.finish_request(qp, send_cq, then, Status::Flushed);
            }
            while let Some(id) =
                self.pairs.at_mut(place).and_then(|pair| pair.receives.drop_oldest())
            {
                let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
                let (status, datagram_from) = (Status::Flushed, None);
                self.complete(recv_cq, Completion { id, qp, status, operation, datagram_from });
            }
        }
        self.awaited = 0;
        self.numbers.clear();
        self.unflushed.clear();
    }
}
