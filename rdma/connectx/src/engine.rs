//! What happens by itself: completions and events that come, doorbells that are rung, resets.

use super::pair::{Gone, source};
use super::ring::{Entry, Kind, Received, status};
use super::send_queue::{Change, Success, Then};
use super::{ConnectX, commands::Job, management, regions, setup};
use drivers::ethernet::mlx5::{Arm, PairEvent};
use drivers::hal::Instant;
use verbs::{
    AsyncEvent, CompletedOperation, Completion, CqId, QpId, QpState, QpType, SendWith, Status,
    VerbsError,
};

impl ConnectX {
    /// A round: takes in what the card has done, and tells it what was posted.
    #[inline]
    pub fn poll(&mut self, now: Instant) {
        self.now = now;
        if self.life != self.function.life() {
            self.change_life();
        }
        self.function.port().mind();
        while let Some(event) = self.function.pair_event() {
            self.take_event(event);
        }
        self.take_told();
        self.watch_link();
        // Who looks into a completion queue takes them in.
        if !core::mem::take(&mut self.is_polled) {
            self.reap();
        }
        self.read_counters();
        self.go_on();
        self.manage(now);
        self.flush();
    }

    /// Takes in what the card tells of beside completions. False if it is more than that there are some: that is for
    /// [`ConnectX::poll`].
    #[inline]
    pub fn mind(&mut self, now: Instant) -> bool {
        self.now = now;
        if self.life != self.function.life() || self.doing.is_some() || !self.jobs.is_empty() {
            return false;
        }
        self.function.port().mind();
        self.take_told();
        !self.function.has_news() && self.function.link_up() == self.link
    }

    /// Whether users, who have taken all completions out, have left nothing to anybody else.
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

    /// Tells the card what was posted: one write to a register for each queue pair that has something new.
    #[inline]
    pub fn flush(&mut self) {
        self.key_queue.sends.flush(&self.function);
        while let Some(place) = self.news.pop() {
            if let Some(pair) = self.pairs.at_mut(place as usize) {
                pair.listed = false;
                // Else it is listed again when it has come so far.
                if pair.is_told() {
                    pair.sends.flush(&self.function);
                }
            }
        }
    }

    /// Asks for an interrupt when something completes; before a halt, with `set_interrupts` of the port.
    pub fn arm(&mut self) {
        self.take_told();
        let taken = self.ring.completions.taken();
        if self.moderates && self.moderation.halts_after_others(taken, self.now) {
            self.jobs.push_back(Job::Moderate);
        }
        self.arm_rings();
    }

    /// Asks for interrupts again, of the port too, after a halt that one has ended.
    #[inline]
    pub fn rearm(&mut self) {
        let taken = self.ring.completions.taken();
        if self.moderates && self.moderation.halts(taken, self.now) {
            self.jobs.push_back(Job::Moderate);
        }
        self.arm_rings();
        self.function.port().arm_events();
    }

    #[inline]
    fn arm_rings(&mut self) {
        // Nobody is woken for what nobody wants to hear of.
        let sent = if self.awaited > 0 { Arm::Any } else { Arm::Errors };
        for (ring, what) in [(&mut self.ring, Arm::Any), (&mut self.sent, sent)] {
            if let Some(word) = ring.completions.write_armed(what) {
                self.function.arm(word, ring.completions.number());
            }
        }
    }

    /// Takes in which completion queues have told of something.
    #[inline]
    fn take_told(&mut self) {
        let mut port = self.function.port();
        while let Some(queue) = port.told() {
            self.ring.has_told(queue);
            self.sent.has_told(queue);
        }
    }

    /// Lists a queue pair that has requests which the card was not told of.
    #[inline]
    pub(super) fn list(&mut self, qp: QpId) {
        if let Some(pair) = self.pairs.get_mut(qp.0) {
            pair.list(&mut self.news);
        }
    }

    fn watch_link(&mut self) {
        // Asking helps a card to come up that was reset.
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

    fn take_event(&mut self, event: PairEvent) {
        let (PairEvent::Established(number) | PairEvent::Failed(number)) = event;
        let Some(&qp) = self.numbers.get(&number) else { return };
        match event {
            PairEvent::Failed(_) => self.falls(qp),
            PairEvent::Established(_) => self.is_heard(qp),
        }
    }

    /// The peer of a queue pair has shown that it is there.
    fn is_heard(&mut self, qp: QpId) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if core::mem::replace(&mut pair.heard, true) {
            return;
        }
        if pair.reached != QpState::Rts {
            self.events.push_back(AsyncEvent::CommunicationEstablished(qp));
        }
        if let Some(connection) = pair.connection {
            self.cm.communication_established(connection);
        }
    }

    /// A queue pair has failed by itself: the card has it in error.
    pub(super) fn falls(&mut self, qp: QpId) {
        let Some(pair) = self.pairs.get_mut(qp.0) else { return };
        if pair.reached == QpState::Error {
            return;
        }
        (pair.asked, pair.reached) = (QpState::Error, QpState::Error);
        let (connection, has_news) = (pair.connection, pair.sends.has_news());
        if !core::mem::replace(&mut pair.error_told, true) {
            self.counters.qp_errors += 1;
            self.events.push_back(AsyncEvent::QpError(qp));
        }
        if let Some(connection) = connection {
            self.cm.qp_failed(connection);
        }
        if has_news {
            self.list(qp);
        }
    }

    /// Takes completions in.
    #[inline]
    pub(super) fn reap(&mut self) {
        if self.sent.completions.pending() || self.ring.completions.pending() {
            self.reap_all();
        }
    }

    fn reap_all(&mut self) {
        self.reap_sent();
        while let Some(entry) = self.ring.take() {
            self.take_entry(&entry);
        }
        self.ring.completions.tell();
    }

    pub(super) fn reap_sent(&mut self) {
        while let Some(entry) = self.sent.take() {
            self.pair_entry(entry.user as usize, &entry);
        }
        self.sent.completions.tell();
    }

    fn take_entry(&mut self, entry: &Entry) {
        match entry.user {
            setup::KEYS => self.key_entry(entry),
            management::USER => self.management_entry(entry),
            place => self.pair_entry(place as usize, entry),
        }
    }

    /// The next completion of a queue. Most are receives, and go through no queue.
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
            // Why a request has failed comes before receives that are only flushed because of it.
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
            self.take_entry(&entry);
            if let Some(completion) = self.cqs.poll(cq) {
                return Some(completion);
            }
        }
    }

    /// Takes the next completion, if it is that of a WRITE with an immediate or a SEND without one over a connection, belongs
    /// into that queue, and is of meaning to nobody else.
    #[inline(always)]
    fn next_received(&mut self, cq: CqId) -> Option<Completion> {
        let received = self.ring.next_received()?;
        let pair = self.pairs.at_mut(received.user as usize)?;
        // The first thing that a connection hears of its peer is for the connection manager, too.
        let is_first = !pair.heard && pair.connection.is_some();
        if pair.number != received.number || pair.recv_cq != cq || is_first {
            return None;
        }
        // Datagrams bring along where they are from.
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
            // A change of a key that fails is a mistake of ours or the card's: nobody knows which keys are in force.
            return self.function.reset();
        }
        while let Some((then, is_it)) = self.key_queue.sends.retire(entry.counter) {
            if let Then::Key { change, .. } = then {
                self.key_is_changed(&change);
            }
            if is_it {
                return;
            }
        }
    }

    #[inline]
    fn pair_entry(&mut self, place: usize, entry: &Entry) {
        let Some(pair) = self.pairs.at_mut(place).filter(|pair| pair.number == entry.number) else {
            // Of one that was destroyed.
            return;
        };
        let qp = pair.id;
        match entry.kind {
            Kind::Requested => self.requests_are_done(place, entry.counter, Status::Success),
            Kind::RequestFailed(syndrome) => {
                self.requests_are_done(place, entry.counter, status(syndrome));
                if status(syndrome) != Status::Flushed {
                    self.falls(qp);
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
                    self.falls(qp);
                }
            }
            Kind::Unknown => self.counters.completions_unknown += 1,
            _ => self.receive_is_done(place, entry),
        }
    }

    #[inline]
    fn receive_is_done(&mut self, place: usize, entry: &Entry) {
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
        let is_first = !pair.heard && pair.connection.is_some();
        if entry.kind == Kind::SendInvalidate {
            self.key_is_invalidated(entry.immediate);
        }
        let status = Status::Success;
        self.complete(cq, Completion { id, qp, status, operation, datagram_from });
        if is_first {
            self.is_heard(qp);
        }
    }

    /// Requests of a queue pair are done, up to that with this counter, which has come to `status`.
    #[inline]
    fn requests_are_done(&mut self, place: usize, counter: u16, end: Status) {
        loop {
            let ConnectX { pairs, regions, domains, pool, .. } = self;
            let Some(pair) = pairs.at_mut(place) else { return };
            let changed = |change: &Change| regions::posted_is_done(regions, domains, pool, change);
            let (is_it, told) = match end {
                Status::Success => pair.sends.pass(counter, changed),
                _ => (false, None),
            };
            if let Some(id) = told {
                let (cq, qp, status) = (pair.send_cq, pair.id, Status::Success);
                let operation = CompletedOperation::Send;
                self.complete(cq, Completion { id, qp, status, operation, datagram_from: None });
            }
            if is_it {
                return;
            }
            let Some(pair) = self.pairs.at_mut(place) else { return };
            let Some((then, is_it)) = pair.sends.retire(counter) else {
                let is_known = end != Status::Success && pair.sends.is_of_last_change(counter);
                self.counters.completions_unknown += u64::from(!is_known);
                return;
            };
            let (qp, cq) = (pair.id, pair.send_cq);
            if then.is_awaited() {
                self.awaited = self.awaited.saturating_sub(1);
            }
            // Those before it were not to be told of, unless they fail.
            let status = if is_it { end } else { Status::Success };
            self.is_over(qp, cq, then, status);
            if is_it {
                return;
            }
        }
    }

    /// A request of a queue pair is over.
    fn is_over(&mut self, qp: QpId, cq: CqId, then: Then, status: Status) {
        match then {
            Then::User { success: Success::Untold, .. } if status == Status::Success => {}
            Then::User { id, .. } => {
                let operation = CompletedOperation::Send;
                self.complete(cq, Completion { id, qp, status, operation, datagram_from: None });
            }
            Then::Key { id, change } => {
                match status {
                    Status::Success => {
                        let ConnectX { regions, domains, pool, .. } = self;
                        regions::posted_is_done(regions, domains, pool, &change);
                    }
                    // It is done all the same.
                    _ => {
                        self.posted_change_is_over(&change);
                        self.change_anyway(&change);
                    }
                }
                if change.tells && (change.is_awaited || status != Status::Success) {
                    let rkey = change.gives.map_or(0, |place| self.pool.value(place));
                    let operation = CompletedOperation::KeyChanged { rkey };
                    self.complete(
                        cq,
                        Completion { id, qp, status, operation, datagram_from: None },
                    );
                }
            }
            Then::Moved { .. } => {}
        }
    }

    /// A change of keys that its queue pair has not done, or perhaps has, is done by the key queue.
    fn change_anyway(&mut self, change: &Change) {
        if !self.is_up() {
            return;
        }
        let mut change = Change { tells: false, is_awaited: false, ..*change };
        if let Some(key) = change.gives.filter(|_| self.regions.get(change.region.0).is_none()) {
            // It is nobody's.
            self.pool.dies(key);
            let _ = self.change_keys(Change { takes: Some(key), gives: None, ..change });
            change.gives = None;
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

    /// Waits until all changes of keys that the key queue has are done.
    pub(super) fn settle_keys(&mut self) -> Result<(), VerbsError> {
        self.wait_for_keys(|queue| queue.sends.is_idle())
    }

    /// Waits for room for a change.
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
        let waited = function.wait_for(|| {
            self.reap();
            (!self.is_up() || enough(&self.key_queue)).then_some(())
        });
        waited.map_err(|_| VerbsError::Unreachable)?;
        self.check_up()
    }

    /// The card has let go of a queue pair.
    pub(super) fn is_gone(&mut self, gone: Gone) {
        // What it has completed is there by now, and is not to be taken for the next one's of that number.
        self.reap();
        self.leaving.retain(|other| *other != gone.id);
        self.promised = self.promised.saturating_sub(gone.completions);
        self.arena.free(gone.buffer.window);
        self.arena.free(gone.record);
        self.release(gone.pd);
        for change in gone.undone {
            self.posted_change_is_over(&change);
            self.change_anyway(&change);
        }
    }

    /// The card was reset, or is back.
    #[cold]
    fn change_life(&mut self) {
        if self.life.take().is_some() {
            self.forget_card();
        }
        if let Some(life) = self.function.life()
            && self.useless != Some(life)
        {
            match self.come_up() {
                Ok(()) => self.life = Some(life),
                Err(_) => self.useless = Some(life),
            }
        }
    }

    /// All that was on the card is gone: queue pairs are in error, keys are dead.
    fn forget_card(&mut self) {
        if let Some(doing) = self.doing.take() {
            self.jobs.push_back(doing.job);
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
                region.forget_keys();
                let pd = region.pd();
                let _ = self.hold(pd);
            }
        }
        while self.key_queue.sends.give_up().is_some() {}
        for job in core::mem::take(&mut self.jobs) {
            if let Job::Reset(gone) | Job::Destroy(gone) = job {
                // The card does not reach memory any more.
                self.arena.free(gone.buffer.window);
                self.arena.free(gone.record);
                self.promised = self.promised.saturating_sub(gone.completions);
            }
        }
        self.leaving.clear();
        self.keys_missing = 0;
        self.management.forget();
        for place in 0..self.pairs.places() {
            let Some(pair) = self.pairs.at_mut(place) else { continue };
            let (qp, send_cq, recv_cq, pd) = (pair.id, pair.send_cq, pair.recv_cq, pair.pd);
            let _ = self.hold(pd);
            self.falls(qp);
            while let Some(then) = self.pairs.at_mut(place).and_then(|pair| pair.sends.give_up()) {
                self.is_over(qp, send_cq, then, Status::Flushed);
            }
            while let Some(id) = self.pairs.at_mut(place).and_then(|pair| pair.receives.give_up()) {
                let operation = CompletedOperation::Recv { length: 0, with: SendWith::Nothing };
                let (status, datagram_from) = (Status::Flushed, None);
                self.complete(recv_cq, Completion { id, qp, status, operation, datagram_from });
            }
        }
        self.awaited = 0;
        self.numbers.clear();
        self.news.clear();
    }
}
