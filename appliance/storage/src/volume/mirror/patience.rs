//! Timeouts of members. If a member has not completed a request within [`Mirror::timeout`] while the other
//! member responds, its requests are given up and the member is left out. If neither responds, the mirror waits for
//! both, for as long as the members themselves wait.
//!
//! A member that is idle, or has not completed a request for [`WATCH`], is sent a probe every [`WATCH`]. So a member
//! that is gone is left out even without requests of the user. Requests do not wait for probes.
//!
//! The mirror abandons all jobs of the member: requests, record and copy proceed without it, and its later
//! completions are ignored. The member gets no new request before it is idle, so that no old write is executed
//! after the copy to it, and memory that it may access until then is not reused.
//!
//! The other member counts as responding if it answers a probe that was sent after the timeout.
//! Its earlier completions are no evidence: both members may have stopped responding since, and leaving one out then
//! could lose data that the other one forgets. If the other member was silent too, the first gets the full timeout
//! again from the other's return.

use super::Mirror;
use super::issue::Job;
use super::member::Member;
use super::status::Why;
use crate::volume::VolumeError;
use core::time::Duration;
use drivers::hal::Instant;

/// Interval between probes of a member.
const WATCH: Duration = Duration::from_secs(2);

impl Mirror {
    /// Leaves out members that timed out, and schedules the next check.
    pub(super) fn check_timeouts(&mut self, now: Instant) {
        for member in 0..2 {
            self.watch(member, now);
            let Some(why) = self.is_overdue(member, now) else { continue };
            if self.members[member].is_written() {
                let mut status = self.status.get();
                status.timeouts += u64::from(why == Why::Silent);
                self.status.set(status);
                self.drop_member(member, why);
            }
            self.abandon(member);
        }
        self.update_silence(now);
    }

    /// Probes a member that is idle, or has had a request in flight for [`WATCH`].
    fn watch(&mut self, member: usize, now: Instant) {
        let Member { probe, watch_at, in_flight, .. } = &self.members[member];
        if !self.members[member].is_written() || probe.is_some() || now < *watch_at {
            return;
        }
        let waiting = self.slots.iter().map(|slot| slot.since);
        let oldest =
            waiting.chain(self.log.writing_since()).chain(self.resync_waits_for(member)).min();
        if *in_flight == 0 || oldest.is_some_and(|since| now.since(since) >= WATCH) {
            self.members[member].watch_at = now + WATCH;
            self.probe(member, now);
        }
    }

    fn probe(&mut self, member: usize, now: Instant) {
        self.members[member].probe = Some(now);
        self.issue(member, Job::Probe);
        self.clock.wake_at(now + self.timeout);
    }

    /// Updates which members do not respond, even those that the mirror cannot leave out.
    fn update_silence(&mut self, now: Instant) {
        let mut status = self.status.get();
        for (member, silent) in self.members.iter().zip(&mut status.silent) {
            let late = member.probe.filter(|&sent| now.since(sent) >= self.timeout);
            let since = late.or(member.failed_probe.map(|(at, _)| at));
            *silent = since.filter(|_| member.is_written()).map(|since| silent.unwrap_or(since));
        }
        self.status.set(status);
    }

    /// Reads the operator's requests to detach members. A member is left out once the other one has answered a
    /// probe. The last member in sync stays.
    pub(super) fn detach(&mut self, now: Instant) {
        let mut detached = self.detached.get();
        for (member, wanted) in detached.iter_mut().enumerate() {
            let alone = !self.members[1 - member].is_in_sync();
            *wanted &= !(alone && self.members[member].is_written());
            let since = self.members[member].detached.unwrap_or(now);
            self.members[member].detached = wanted.then_some(since);
        }
        self.detached.set(detached);
    }

    /// Gives up all jobs of a member that is left out. Without bounce buffers, the mirror waits instead for a member
    /// that may access the memory of given-up requests.
    pub(super) fn abandon(&mut self, member: usize) {
        let Member { volume, abandoned, .. } = &mut self.members[member];
        if self.buffers.capacity() == 0 && !volume.releases_memory() {
            return;
        }
        *abandoned = true;
        volume.give_up();
        self.log.abandon(member);
    }

    /// Releases the memory of an abandoned member once it has ended all its jobs.
    pub(super) fn reclaim(&mut self, member: usize) {
        let Member { volume, in_flight, abandoned, held, .. } = &mut self.members[member];
        if *abandoned && *in_flight == 0 && volume.is_idle() {
            *abandoned = false;
            held.drain(..).for_each(|piece| self.buffers.give(piece));
            self.log.reclaim();
        }
    }

    /// Whether a member is to be left out, and why: a job timed out that the other member could do or has done, a probe
    /// failed, or the operator detached it. In addition, the other member has to respond. The member may have been left
    /// out since, for another reason.
    fn is_overdue(&mut self, member: usize, now: Instant) -> Option<Why> {
        let other = 1 - member;
        let Member { abandoned, probe, failed_probe, detached, .. } = self.members[member];
        if abandoned || !self.members[other].is_in_sync() {
            return None;
        }
        let slots = self.slots.iter().filter_map(|slot| slot.waits_for(member));
        let waits = slots.chain(self.log.waits_for(member)).chain(self.resync_waits_for(member));
        let since = waits.chain(probe).min();
        let silent = since
            .map(|since| (since.max(self.members[other].recovered_at) + self.timeout, Why::Silent));
        let failed = failed_probe.map(|(at, error)| (at, Why::Failed(error)));
        let written = self.members[member].is_written();
        let wanted = detached.filter(|_| written).map(|at| (at, Why::Detached));
        let reasons = wanted.into_iter().chain(silent).chain(failed);
        let (deadline, why) = reasons.min_by_key(|(at, _)| *at)?;
        if now < deadline {
            self.clock.wake_at(deadline);
            return None;
        }
        if self.members[other].alive_at >= deadline {
            return Some(why);
        }
        if self.members[other].probe.is_none() {
            self.probe(other, now);
        }
        self.clock.wake_at(now + self.timeout / 4);
        None
    }

    /// Handles the end of a probe.
    pub(super) fn end_probe(&mut self, member: usize, result: Result<(), VolumeError>) {
        let now = self.clock.now();
        let sent = self.members[member].probe.take();
        match (result, sent) {
            (Err(VolumeError::Lost), _) => self.handle_loss(member),
            (Err(error), Some(_)) if self.members[member].is_written() => {
                let failed = &mut self.members[member].failed_probe;
                if failed.is_none() {
                    *failed = Some((now, error));
                    self.clock.wake_at(now);
                }
            }
            (Ok(()), Some(sent)) => {
                self.members[member].failed_probe = None;
                self.members[member].alive_at = sent;
                if now - sent > self.timeout / 4 {
                    self.members[member].recovered_at = now;
                }
                self.clock.wake_at(now);
            }
            _ => {}
        }
    }
}
