//! Rounds: requests that wait for their volume, or have used their share of a round, continue.

use crate::queue::QueueId;
use crate::request::State;
use crate::target::{Context, Target};
use alloc::collections::VecDeque;
use core::time::Duration;
use storage::volume::{User, VolumeError, VolumeId};

/// Interval of retries of requests that a volume refused as busy, if none of ours is in it.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Parts of requests that are executed in a call of `poll`, so that other users of the loop get their turn.
pub const BUDGET: usize = 64;
/// Requests that wait for a volume before those of closed queues are looked for among them: the first of a volume that
/// does not respond keeps its place, and hosts that reconnect leave theirs behind it.
pub const MANY: usize = 1024;
/// Sectors that are zeroed or deallocated at once in a round (4 MiB, about a millisecond): a command of 72 bytes may
/// ask for 256 MiB.
pub const BULK: u64 = 8192;

impl Target {
    /// A request waits for its volume.
    pub(crate) fn await_volume(&mut self, id: QueueId, slot: u16, volume: VolumeId) {
        let Some(queue) = self.queue(id) else { return };
        let request = queue.request_mut(slot);
        request.enter(State::AwaitingVolume);
        // Others wait for the end of its fused operation.
        let is_first = request.runs;
        let Some(place) = self.busy.iter().position(|(of, _)| *of == volume) else {
            return self.busy.push((volume, VecDeque::from([(id, slot)])));
        };
        let mut list = core::mem::take(&mut self.busy[place].1);
        if list.len() >= MANY && list.len().is_power_of_two() {
            list.retain(|&(id, slot)| self.is_in(id, slot, State::AwaitingVolume));
        }
        match is_first {
            true => list.push_front((id, slot)),
            false => list.push_back((id, slot)),
        }
        self.busy[place].1 = list;
    }

    /// A request continues in the next round.
    pub(crate) fn yield_request(&mut self, id: QueueId, slot: u16) {
        let Some(queue) = self.queue(id) else { return };
        queue.request_mut(slot).enter(State::Yielding);
        self.yielding.push_back((id, slot));
    }

    /// Continues requests: of volumes that have completed parts, and those that wait. Returns the amount of work.
    pub fn poll(&mut self, ctx: &mut Context<'_>) -> usize {
        self.worked = 0;
        let mut done = self.poll_yielding(ctx) + self.poll_reservations(ctx);
        done += self.poll_throttles(ctx);
        done += self.poll_security(ctx.now);
        let mut from = VolumeId(0);
        while let Some((volume, completion)) = ctx.volumes.poll(User::NVME, from) {
            from = volume;
            done += 1;
            let (id, slot) = QueueId::of_word(completion.tag.word);
            self.volume_completed(id, slot, completion.result, ctx);
        }
        if done > 0 || self.retry_at.is_some_and(|at| at <= ctx.now) {
            done += self.retry_busy(ctx);
        }
        // After the writes that waited for a fused operation: a host with one after the other does not keep them waiting.
        done += self.poll_fused(ctx);
        if self.check_at.is_some_and(|at| at <= ctx.now) {
            self.check(ctx);
        }
        let waits = self.busy.iter().any(|(_, list)| !list.is_empty()) || self.has_idle_pairs();
        self.retry_at = waits.then(|| ctx.now + RETRY_INTERVAL);
        done
    }

    fn poll_yielding(&mut self, ctx: &mut Context<'_>) -> usize {
        let count = self.yielding.len().min(BUDGET);
        for done in 0..count {
            if self.worked >= BULK {
                return done;
            }
            let Some((id, slot)) = self.yielding.pop_front() else { break };
            if slot == u16::MAX {
                self.memory_freed(id, ctx);
            } else if self.is_in(id, slot, State::Yielding) {
                self.execute(id, slot, ctx);
            }
        }
        count
    }

    /// Retries the requests of each volume until it refuses one. Returns how many it took.
    fn retry_busy(&mut self, ctx: &mut Context<'_>) -> usize {
        let mut taken = 0;
        for at in 0..self.busy.len() {
            let count = self.busy.get(at).map_or(0, |(_, list)| list.len());
            for _ in 0..count {
                let Some((_, list)) = self.busy.get_mut(at) else { break };
                let Some((id, slot)) = list.pop_front() else { break };
                if !self.is_in(id, slot, State::AwaitingVolume) {
                    continue;
                }
                self.execute(id, slot, ctx);
                let Some((_, list)) = self.busy.get_mut(at) else { break };
                if list.front() == Some(&(id, slot)) {
                    break;
                }
                if list.back() == Some(&(id, slot)) && self.is_in(id, slot, State::AwaitingVolume) {
                    // It was refused again, and stays the first.
                    if let Some((_, list)) = self.busy.get_mut(at)
                        && let Some(refused) = list.pop_back()
                    {
                        list.push_front(refused);
                    }
                    break;
                }
                taken += 1;
            }
        }
        taken
    }

    /// A volume has completed a part of a request.
    fn volume_completed(
        &mut self,
        id: QueueId,
        slot: u16,
        result: Result<(), VolumeError>,
        ctx: &mut Context<'_>,
    ) {
        let Some(queue) = self.queue(id) else { return };
        queue.in_volumes -= 1;
        self.note_ended_write(id, slot);
        let Some(queue) = self.queue(id) else { return };
        let is_preempted = queue.request_mut(slot).is_preempted;
        if queue.is_closed {
            queue.release(slot);
            if is_preempted {
                self.preempted_ended(id, slot);
            }
            return self.remove_closed(id, ctx);
        }
        let is_drained = queue.is_ending && queue.in_volumes == 0;
        if self.is_in(id, slot, State::Executing) {
            self.part_completed(id, slot, result, ctx);
        }
        if is_preempted {
            self.preempted_ended(id, slot);
        }
        if is_drained {
            self.continue_held(ctx);
        }
    }
}
