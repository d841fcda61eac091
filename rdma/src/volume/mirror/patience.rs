//! A member that does not answer. What it was asked for more than [`Mirror::timeout`] ago, while the other
//! member is there, is given up, and the member left out. If neither answers, both are waited for, as
//! long as they wait themselves.
//!
//! That the other member is there shows by what it has answered meanwhile: its part of the same write, or,
//! if it was asked for nothing, a probe.

use super::Mirror;
use super::issue::Job;
use super::status::Why;
use drivers::hal::Instant;

impl Mirror {
    /// Leaves a member out that did not answer in time; notes when to look again.
    pub(super) fn lose_patience(&mut self, now: Instant) {
        for member in 0..2 {
            let Some(deadline) = self.deadline(member) else { continue };
            if deadline > now {
                self.clock.wake_at(deadline);
                continue;
            }
            let mut status = self.status.get();
            status.timeouts += 1;
            self.status.set(status);
            self.drop_member(member, Why::Silent);
            self.members[member].volume.give_up();
        }
    }

    /// When patience with a member ends, if it is to answer something that the other one could do, or has
    /// done.
    fn deadline(&mut self, member: usize) -> Option<Instant> {
        let other = 1 - member;
        if !self.members[member].is_written() || !self.members[other].is_in_sync() {
            return None;
        }
        let (answered, now) = (self.members[other].answered, self.clock.now());
        let mut since: Option<Instant> = None;
        let mut waits = |at: Instant| since = Some(since.map_or(at, |since| since.min(at)));
        let mut asked = false;
        for slot in self.slots.iter() {
            match slot.waits_for(member) {
                None => {}
                Some(Some(at)) => waits(at),
                // Only this member was asked.
                Some(None) if slot.reads() && answered > slot.since => waits(slot.since),
                Some(None) if slot.reads() => match slot.since + self.timeout / 2 {
                    at if at <= now => asked = true,
                    at => self.clock.wake_at(at),
                },
                Some(None) => {}
            }
        }
        self.log.waits_for(member).into_iter().for_each(&mut waits);
        self.resync_waits_for(member).into_iter().for_each(&mut waits);
        if asked && since.is_none() && self.members[other].in_flight == 0 {
            self.issue(other, Job::Probe);
        }
        if asked && since.is_none() {
            self.clock.wake_at(now + self.timeout / 4);
        }
        since.map(|since| since + self.timeout)
    }
}
