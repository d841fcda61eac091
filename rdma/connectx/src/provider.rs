//! The verbs of the provider.

use super::ConnectX;
use super::commands::Job;
use super::context;
use super::pair::Pair;
use super::requests::{self, MAX_INLINE};
use super::send_queue::{LONGEST, OnCompletion, Success};
use cm::Transport;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Instant, Window};
use rand_core::Rng;
use softverbs::sges::MAX_SGE;
use verbs::{
    Access, AsyncEvent, ChunkedRegion, Completion, CqId, DeviceAttributes, KeyChange, KeyRequest,
    MemoryVerbs, MrId, PathMtu, PdId, Provider, QpId, QpInit, QpState, QpType, ReadyToReceive,
    ReadyToSend, RecvRequest, Region, SendRequest, UnderWay, VerbsError,
};

/// Bounds of the polling interval while the firmware executes a command: it grows with the time waited.
const MIN_POLL: Duration = Duration::from_micros(50);
const MAX_POLL: Duration = Duration::from_millis(10);

/// EUI-64 of a MAC address.
fn guid([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

impl ConnectX {
    fn most_reads(&self) -> u8 {
        1 << self.log_most_reads
    }

    /// Whether the requests of a queue pair are done, up to number `posted`.
    pub fn has_done(&self, qp: QpId, posted: u32) -> bool {
        match self.pairs.get(qp.0) {
            Some(pair) => pair.sends.has_done(posted),
            None => !self.destroying.contains(&qp),
        }
    }

    /// Posts a request that is not short, to a queue pair that can send and has room.
    #[inline(never)]
    fn post_long(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let datagram = match (pair.kind, &request.datagram) {
            (QpType::Rc, _) => None,
            (QpType::Ud { .. }, Some(to)) if context::is_valid_path(&to.address) => {
                let local = to.address.local;
                let index = self.addresses.iter().position(|known| *known == Some(local));
                Some((to, index.ok_or(VerbsError::Invalid)? as u8))
            }
            (QpType::Ud { .. }, _) => return Err(VerbsError::Invalid),
        };
        let mut words = [0; LONGEST];
        let control = requests::build(request, pair.key, &pair.limits, datagram, &mut words)?;
        let then = OnCompletion::User { id: request.id, success: Success::of(request) };
        pair.sends.write(&mut words, control, then);
        self.awaited += u32::from(then.is_awaited());
        pair.list(&mut self.unflushed);
        Ok(())
    }

    /// The index of the GID of one of our addresses.
    fn index_of(&self, address: core::net::IpAddr) -> Option<u8> {
        let index = self.addresses.iter().position(|known| *known == Some(address))?;
        u8::try_from(index).ok()
    }
}

impl MemoryVerbs for ConnectX {
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError> {
        self.check_up()?;
        self.make_domain()
    }

    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.end_domain(pd)
    }

    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.add(pd, memory, access, rng)
    }

    fn rotate_key(&mut self, region: MrId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        self.rotate(region, rng)
    }

    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn Rng,
    ) -> Result<Region, VerbsError> {
        self.point_at(region, memory, rng)
    }

    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.revoke(region)
    }

    fn revoke_key_by(
        &mut self,
        region: MrId,
        request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        self.revoke_by(region, request)
    }

    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError> {
        self.end_region(region)
    }

    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn Rng,
    ) -> Result<ChunkedRegion, VerbsError> {
        self.add_chunks(pd, count, size, memory, rng)
    }

    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError> {
        self.key_of(region, chunk)
    }

    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn Rng,
    ) -> Result<KeyChange<u32>, VerbsError> {
        self.rotate_chunk(region, chunk, request, rng)
    }
}

impl Provider for ConnectX {
    fn attributes(&self) -> DeviceAttributes {
        DeviceAttributes {
            guid: guid(self.function.mac()),
            max_wr: self.limits.wr,
            max_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            max_rd_atomic: self.most_reads(),
            max_message: 1 << requests::LOG_MAX_MESSAGE,
            max_path_mtu: self.largest_path_mtu(),
            atomics: self.abilities.atomics,
            send_with_invalidate: true,
        }
    }

    fn path_mtu_to(&self, _: IpAddr, remote: IpAddr, now: Instant) -> PathMtu {
        self.cm.path_mtu_to(remote, self.path_mtu(0, remote), now)
    }

    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError> {
        self.cqs.create(depth)
    }

    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError> {
        self.cqs.destroy(cq)
    }

    #[inline]
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion> {
        self.is_polled = true;
        self.next_completion(cq)
    }

    fn watch_cq(&mut self, cq: CqId, number: u32) {
        self.cqs.watch(cq, number);
    }

    #[inline]
    fn next_watched(&mut self) -> Option<u32> {
        if let Some(number) = self.cqs.next_watched() {
            return Some(number);
        }
        self.reap();
        self.cqs.next_watched()
    }

    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError> {
        self.add_pair(init, rng)
    }

    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError> {
        self.pairs.get(qp.0).map(|pair| pair.number).ok_or(VerbsError::NoSuchObject)
    }

    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError> {
        self.pairs.get(qp.0).map(|pair| pair.state).ok_or(VerbsError::NoSuchObject)
    }

    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError> {
        let most_mtu = self.path_mtu(0, peer.address.remote);
        let most_reads = self.most_reads();
        let index = self.index_of(peer.address.local);
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.requested != QpState::Init {
            return Err(VerbsError::WrongState);
        }
        let index = index.ok_or(VerbsError::Invalid)?;
        if peer.path_mtu > most_mtu
            || peer.max_dest_rd_atomic > most_reads
            || peer.min_rnr_timer > 31
            || !context::is_valid_path(&peer.address)
        {
            return Err(VerbsError::Invalid);
        }
        (pair.peer, pair.index, pair.requested) = (Some(*peer), index, QpState::Rtr);
        self.jobs.push_back(Job::Connect(qp));
        self.run_jobs();
        Ok(())
    }

    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError> {
        let most_reads = self.most_reads();
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.requested != QpState::Rtr {
            return Err(VerbsError::WrongState);
        }
        if to.max_rd_atomic > most_reads
            || to.retry_count > 7
            || to.rnr_retry > 7
            || to.ack_timeout > 31
        {
            return Err(VerbsError::Invalid);
        }
        (pair.to, pair.requested) = (Some(*to), QpState::Rts);
        self.jobs.push_back(Job::Ready(qp));
        self.run_jobs();
        Ok(())
    }

    fn failed_by_itself(&self, qp: QpId) -> bool {
        let itself = |pair: &Pair| pair.state == QpState::Error && !pair.fails_on_request;
        self.pairs.get(qp.0).is_some_and(itself)
    }

    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        // Caller-initiated: no `QpError` event.
        pair.error_reported = true;
        if pair.requested == QpState::Error {
            return Ok(());
        }
        (pair.requested, pair.fails_on_request) = (QpState::Error, true);
        let connection = pair.connection;
        self.jobs.push_back(Job::Fail(qp));
        if let Some(connection) = connection {
            self.cm.qp_failed(connection);
        }
        self.run_jobs();
        Ok(())
    }

    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError> {
        self.remove_pair(qp)
    }

    // Constants of the caller's request decide at compile time what is written (`bench mlx5`).
    #[inline(always)]
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError> {
        let mut pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if !pair.sends.has_room() {
            // Unsignaled requests may be done.
            self.reap();
            pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        }
        if pair.requested != QpState::Rts {
            return Err(VerbsError::WrongState);
        }
        if !pair.sends.has_room() {
            return Err(VerbsError::QueueFull);
        }
        let then = OnCompletion::User { id: request.id, success: Success::of(request) };
        if pair.kind == QpType::Rc
            && let Some((control, rest)) = requests::short(request, pair.key, &pair.limits)
        {
            let [a, b, c, d, e, f] = rest;
            pair.sends.put([[0, 0, a, b, c, d, e, f]], control);
            pair.sends.end(then, 1);
            self.awaited += u32::from(then.is_awaited());
            pair.list(&mut self.unflushed);
            return Ok(());
        }
        // A copy: the address of the request itself does not escape, so the compiler keeps a short request in
        // registers.
        self.post_long(qp, &{ *request })
    }

    // Constants of the caller's request decide at compile time what is written (`bench mlx5`).
    #[inline(always)]
    fn post_announced(
        &mut self,
        qp: QpId,
        write: &SendRequest<'_>,
        send: &SendRequest<'_>,
    ) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.requested == QpState::Rts
            && pair.kind == QpType::Rc
            && pair.sends.has_room_for(2)
            && let Some((first, rest)) = requests::short(write, pair.key, &pair.limits)
            && let Some((second, behind)) = requests::short(send, pair.key, &pair.limits)
        {
            let then = OnCompletion::User { id: send.id, success: Success::of(send) };
            let [a, b, c, d, e, f] = rest;
            pair.sends.put([[0, 0, a, b, c, d, e, f]], first);
            let [a, b, c, d, e, f] = behind;
            pair.sends.put([[0, 0, a, b, c, d, e, f]], second);
            pair.sends.end(then, 2);
            self.awaited += u32::from(then.is_awaited());
            pair.list(&mut self.unflushed);
            return Ok(());
        }
        verbs::post_both(self, qp, &{ *write }, &{ *send })
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.requested == QpState::Error {
            return Err(VerbsError::WrongState);
        }
        pair.receives.post(request, pair.key)
    }

    #[inline]
    fn repost_recv(&mut self, qp: QpId, id: u64) -> bool {
        match self.pairs.get_mut(qp.0) {
            Some(pair) if pair.requested != QpState::Error => pair.receives.repost(id),
            _ => false,
        }
    }

    fn post_empty_recvs(&mut self, qp: QpId, id: u64, count: u32) -> Result<(), VerbsError> {
        let pair = self.pairs.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if pair.requested == QpState::Error {
            return Err(VerbsError::WrongState);
        }
        pair.receives.post_empty(id, count)
    }

    fn under_way(&self) -> UnderWay {
        let mut all = UnderWay::default();
        for pair in self.pairs.iter().filter(|pair| pair.sends.outstanding() > 0) {
            all.add(pair.id, pair.sends.posted);
        }
        all
    }

    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        under_way.settle(|qp, posted| self.has_done(qp, posted))
    }

    fn poll_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let waited = match &self.current_job {
            Some(current_job) => Some(self.now.since(current_job.since)),
            None if self.life.is_none() => Some(MAX_POLL),
            None => {
                let idle = self.jobs.is_empty()
                    && self.keys_missing == 0
                    && self.key_queue.sends.is_idle();
                (!idle).then_some(Duration::ZERO)
            }
        };
        let again = waited.map(|waited| self.now + (waited / 8).clamp(MIN_POLL, MAX_POLL));
        Instant::first([again, self.cm.deadline()])
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.poll(now);
    }
}
