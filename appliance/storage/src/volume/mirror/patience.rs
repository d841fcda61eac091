//! A member that does not answer. What it was asked for more than [`Mirror::timeout`] ago, while the other
//! member is there, is given up, and the member left out. If neither answers, both are waited for, as
//! long as they wait themselves.
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
use super::member::Member;
use super::issue::Job;
use super::status::Why;
use crate::volume::VolumeError;
use drivers::hal::Instant;

impl Mirror {
    /// Leaves a member out that did not answer in time; notes when to look again.
    pub(super) fn lose_patience(&mut self, now: Instant) {
        for member in 0..2 {
            if !self.is_overdue(member, now) {
                continue;
            }
            if self.members[member].is_written() {
                let mut status = self.status.get();
                status.timeouts += 1;
                self.status.set(status);
                self.drop_member(member, Why::Silent);
            }
            self.let_go(member);
        }
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
    /// done, and the other one is there. It may have been left out since, for another reason.
    fn is_overdue(&mut self, member: usize, now: Instant) -> bool {
        let other = 1 - member;
        if self.members[member].let_go || !self.members[other].is_in_sync() {
            return false;
        }
        let slots = self.slots.iter().filter_map(|slot| slot.waits_for(member));
        let waits = slots.chain(self.log.waits_for(member)).chain(self.resync_waits_for(member));
        let Some(since) = waits.min() else { return false };
        let deadline = since.max(self.members[other].back) + self.timeout;
        if now < deadline {
            self.clock.wake_at(deadline);
            return false;
        }
        if self.members[other].there >= deadline {
            return true;
        }
        if self.members[other].probe.is_none() {
            self.members[other].probe = Some(now);
            self.issue(other, Job::Probe);
        }
        self.clock.wake_at(now + self.timeout / 4);
        false
    }

    /// A member has answered a probe, or failed at it.
    pub(super) fn end_probe(&mut self, member: usize, result: Result<(), VolumeError>) {
        let now = self.clock.now();
        let asked = self.members[member].probe.take();
        match (result, asked) {
            (Err(VolumeError::Lost), _) => self.lose(member),
            (Ok(()), Some(asked)) => {
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
