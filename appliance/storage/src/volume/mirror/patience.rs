//! A member that does not answer. What it was asked for more than [`Mirror::timeout`] ago, while the other
//! member is there, is given up, and the member left out. If neither answers, both are waited for, as
//! long as they wait themselves.
//!
//! A member that has nothing to do, or does not get on with what it has, is asked for a sign of life every
//! [`WATCH`]: one that is gone is left out without anybody's asking for something. It costs requests nothing.
//!
//! The mirror lets go of all that the member has: requests, record and copy go on without it, and what it says of
//! them later changes nothing. It is not asked for anything before it is idle, so that nothing from before is done
//! after what is copied to it then, and memory that it may use until then is not used for anything else.
//!
//! That the other member is there shows by its answer to a probe that it was sent when the time was over.
//! What it answered before says nothing: both may have fallen silent since, and leaving one out then only
//! serves to lose what the other one forgets. One that was silent too gives the first as long again from
//! when it is back.

use super::Mirror;
use super::issue::Job;
use super::member::Member;
use super::status::Why;
use crate::volume::VolumeError;
use core::time::Duration;
use drivers::hal::Instant;

/// How often a member is asked for a sign of life.
const WATCH: Duration = Duration::from_secs(2);

impl Mirror {
    /// Leaves a member out that did not answer in time; notes when to look again.
    pub(super) fn lose_patience(&mut self, now: Instant) {
        for member in 0..2 {
            self.watch(member, now);
            let Some(why) = self.is_overdue(member, now) else { continue };
            if self.members[member].is_written() {
                let mut status = self.status.get();
                status.timeouts += u64::from(why == Why::Silent);
                self.status.set(status);
                self.drop_member(member, why);
            }
            self.let_go(member);
        }
        self.note_silence(now);
    }

    /// Asks a member for a sign of life that has nothing to do, or has not ended something for a while.
    fn watch(&mut self, member: usize, now: Instant) {
        let Member { probe, watch_at, in_flight, .. } = &self.members[member];
        if !self.members[member].is_written() || probe.is_some() || now < *watch_at {
            return;
        }
        let waiting = self.slots.iter().map(|slot| slot.since);
        let oldest = waiting.chain(self.log.under_way()).chain(self.resync_waits_for(member)).min();
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

    /// Which members do not answer, whether the mirror can do without them or not.
    fn note_silence(&mut self, now: Instant) {
        let mut status = self.status.get();
        for (member, silent) in self.members.iter().zip(&mut status.silent) {
            let late = member.probe.filter(|&asked| now.since(asked) >= self.timeout);
            let since = late.or(member.failed_probe.map(|(at, _)| at));
            *silent = since.filter(|_| member.is_written()).map(|since| silent.unwrap_or(since));
        }
        self.status.set(status);
    }

    /// Takes note of members that the operator wants to do without: they are left out once the other one has shown that it
    /// is there. The last one in sync is not.
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

    /// Gives up all that a member has which is left out. Without memory of the mirror's own, one that may use the memory
    /// of what was given up is waited for.
    pub(super) fn let_go(&mut self, member: usize) {
        let Member { volume, let_go, .. } = &mut self.members[member];
        if self.buffers.capacity() == 0 && !volume.releases_memory() {
            return;
        }
        *let_go = true;
        volume.give_up();
        self.log.let_go(member);
    }

    /// A member that was let go of has ended all: its memory can be used again.
    pub(super) fn take_back(&mut self, member: usize) {
        let Member { volume, in_flight, let_go, held, .. } = &mut self.members[member];
        if *let_go && *in_flight == 0 && volume.is_idle() {
            *let_go = false;
            held.drain(..).for_each(|piece| self.buffers.give(piece));
            self.log.take_back();
        }
    }

    /// Whether patience with a member is over: it is to answer something that the other one could do, or has
    /// done, or the operator wants to do without it, and the other one is there. It may have been left out since, for
    /// another reason.
    fn is_overdue(&mut self, member: usize, now: Instant) -> Option<Why> {
        let other = 1 - member;
        let Member { let_go, probe, failed_probe, detached, .. } = self.members[member];
        if let_go || !self.members[other].is_in_sync() {
            return None;
        }
        let slots = self.slots.iter().filter_map(|slot| slot.waits_for(member));
        let waits = slots.chain(self.log.waits_for(member)).chain(self.resync_waits_for(member));
        let since = waits.chain(probe).min();
        let silent =
            since.map(|since| (since.max(self.members[other].back) + self.timeout, Why::Silent));
        let failed = failed_probe.map(|(at, error)| (at, Why::Failed(error)));
        let written = self.members[member].is_written();
        let wanted = detached.filter(|_| written).map(|at| (at, Why::Detached));
        let reasons = wanted.into_iter().chain(silent).chain(failed);
        let (deadline, why) = reasons.min_by_key(|(at, _)| *at)?;
        if now < deadline {
            self.clock.wake_at(deadline);
            return None;
        }
        if self.members[other].there >= deadline {
            return Some(why);
        }
        if self.members[other].probe.is_none() {
            self.probe(other, now);
        }
        self.clock.wake_at(now + self.timeout / 4);
        None
    }

    /// A member has answered a probe, or failed at it.
    pub(super) fn end_probe(&mut self, member: usize, result: Result<(), VolumeError>) {
        let now = self.clock.now();
        let asked = self.members[member].probe.take();
        match (result, asked) {
            (Err(VolumeError::Lost), _) => self.lose(member),
            (Err(error), Some(_)) if self.members[member].is_written() => {
                let failed = &mut self.members[member].failed_probe;
                if failed.is_none() {
                    *failed = Some((now, error));
                    self.clock.wake_at(now);
                }
            }
            (Ok(()), Some(asked)) => {
                self.members[member].failed_probe = None;
                self.members[member].there = asked;
                if now - asked > self.timeout / 4 {
                    self.members[member].back = now;
                }
                self.clock.wake_at(now);
            }
            _ => {}
        }
    }
}
