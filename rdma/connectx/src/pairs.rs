//! Creation and destruction of queue pairs.

use super::ConnectX;
use super::commands::{BRIEF, Job};
use super::context::{self, Make, Service};
use super::pair::{DestroyedPair, Memory, Pair, Size};
use super::requests::{self, MAX_INLINE, RequestLimits};
use super::send_queue::{Change, OnCompletion};
use super::setup::{CREATE_QP, RST2INIT_QP};
use alloc::boxed::Box;
use alloc::vec::Vec;
use rand_core::Rng;
use softverbs::handle_table::HandleTable;
use softverbs::sges::MAX_SGE;
use verbs::{AsyncEvent, QpId, QpInit, QpState, QpType, VerbsError};

impl ConnectX {
    /// Makes a queue pair on the card, in Init.
    fn make_pair(&mut self, make: &Make, qkey: u32) -> Result<u32, super::Error> {
        let number = self.create(CREATE_QP, &context::create(make))?;
        self.run_command(RST2INIT_QP, 0, &context::init(number, make, qkey), BRIEF)?;
        Ok(number)
    }

    /// Discards a queue pair that could not be made on the card.
    fn discard_pair(&mut self, name: u32) {
        if let Some(pair) = self.pairs.remove(name) {
            self.arena.free(pair.make.buffer.window);
            self.arena.free(pair.make.record);
        }
    }

    pub(super) fn add_pair(
        &mut self,
        init: &QpInit,
        rng: &mut dyn Rng,
    ) -> Result<QpId, VerbsError> {
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
        let domain = self.domains.get(init.pd.0).ok_or(VerbsError::NoSuchObject)?;
        let (domain, key) = (domain.number, domain.key);
        self.check_up()?;
        let size = Size::new(init)?;
        let kept = 1u32 << self.ring.completions.log();
        if self.reserved + size.completions > kept - (1u32 << super::setup::KEY_LOG).min(kept / 2) {
            return Err(VerbsError::NoRoom);
        }
        let memory = Memory::new(init, &size, &mut self.arena)?;
        let (service, qkey, message) = match init.kind {
            QpType::Rc => (Service::Reliable, 0, 1 << requests::LOG_MAX_MESSAGE),
            QpType::Ud { qkey } => (Service::Datagram, qkey, self.largest_path_mtu().bytes()),
        };
        let make = Make {
            service,
            domain,
            page: self.abilities.page,
            completions: [self.sent.completions.number(), self.ring.completions.number()],
            counters: self.readings.set,
            user: 0,
            buffer: memory.buffer,
            record: memory.record,
            receives: Some((size.receives.log, size.receives.log_bytes)),
            send_log: size.send_log,
        };
        let Memory { sends, receives, .. } = memory;
        let life = self.life.unwrap_or_default();
        let initial_psn = rng.next_u32() & 0xff_ffff;
        let made = self.pairs.insert(|name| Pair {
            id: QpId(name),
            number: 0,
            life,
            kind: init.kind,
            pd: init.pd,
            key,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            make: Make { user: HandleTable::<Pair>::index(name) as u32, ..make },
            sends,
            receives,
            limits: RequestLimits { windows: init.max_send_sge, inline: init.max_inline, message },
            completions: size.completions,
            requested: QpState::Init,
            state: QpState::Init,
            peer: None,
            to: None,
            index: 0,
            listed: false,
            fails_on_request: false,
            error_reported: false,
            peer_seen: false,
            connection: None,
            initial_psn,
        });
        let Some(name) = made else {
            self.arena.free(make.buffer.window);
            self.arena.free(make.record);
            return Err(VerbsError::NoRoom);
        };
        let make = self.pairs.get(name).map_or(make, |pair| pair.make);
        let number = match self.make_pair(&make, qkey) {
            Ok(number) => number,
            Err(_) => {
                self.discard_pair(name);
                return Err(VerbsError::NoRoom);
            }
        };
        let qp = QpId(name);
        if let Some(pair) = self.pairs.get_mut(name) {
            pair.number = number;
            pair.sends.set_number(number);
        }
        self.numbers.insert(number, qp);
        self.reserved += size.completions;
        // Posting and events never allocate.
        let places = self.pairs.places();
        self.unflushed.reserve(places.saturating_sub(self.unflushed.len()));
        let events = 2 * places + 2;
        self.events.reserve(events.saturating_sub(self.events.len()));
        self.cqs.hold(init.send_cq);
        self.cqs.hold(init.recv_cq);
        self.hold(init.pd)?;
        Ok(qp)
    }

    pub(super) fn remove_pair(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.pairs.get(qp.0).ok_or(VerbsError::NoSuchObject)?;
        // Handles all completions first, above all those of key changes.
        self.reap();
        let mut pair = self.pairs.remove(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if let Some(connection) = pair.connection {
            self.cm.qp_destroyed(connection);
        }
        self.events.retain(|event| {
            !matches!(event, AsyncEvent::QpError(id) | AsyncEvent::CommunicationEstablished(id)
                if *id == qp)
        });
        self.cqs.release(pair.send_cq, qp);
        self.cqs.release(pair.recv_cq, qp);
        let awaited = pair.sends.awaited();
        self.awaited = self.awaited.saturating_sub(awaited);
        let change = |then| match then {
            OnCompletion::Key { change, .. } => Some(change),
            OnCompletion::User { .. } | OnCompletion::Moved { .. } => None,
        };
        let undone: Vec<Change> =
            core::iter::from_fn(|| pair.sends.drop_oldest()).filter_map(change).collect();
        let gone = DestroyedPair {
            id: qp,
            number: pair.number,
            pd: pair.pd,
            buffer: pair.make.buffer,
            record: pair.make.record,
            completions: pair.completions,
            undone,
        };
        if Some(pair.life) != self.life {
            // The card lost it in a reset.
            self.arena.free(gone.buffer.window);
            self.arena.free(gone.record);
            self.release(gone.pd);
            return Ok(());
        }
        self.numbers.remove(&pair.number);
        self.destroying.push(qp);
        self.jobs.push_back(Job::Reset(Box::new(gone)));
        self.run_jobs();
        Ok(())
    }
}
