//! Sending and receiving: which request goes over which queue, and what becomes of its completion.

use super::Client;
use crate::command::{self, FUA, io};
use crate::controller::{Answer, Queue};
use crate::failure::Failure;
use crate::identify::Access;
use crate::request::{Active, Error, Operation, Place};
use crate::status::{Verdict, judge};
use crate::{RANGE, command::Sqe};
use drivers::hal::{Instant, Window};

/// How many commands more than another one a queue may have in flight.
const AHEAD: usize = 8;
/// Most blocks of a command without data: its number has 16 bits.
const MOST_BLOCKS: u32 = 1 << 16;

/// A step as it is sent.
struct Command {
    sqe: Sqe,
    data: Window,
    reads: bool,
    in_capsule: bool,
    /// Bytes of the volume.
    part: u32,
}

impl<T: Copy> Client<T> {
    /// Writes bytes to be sent to `space`. Returns their number.
    pub fn transmit(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize {
        let (path, queue) = self.place(connection);
        let mut filled = 0;
        while let Some(space) = space.get_mut(filled..).filter(|space| !space.is_empty()) {
            let Some(one) = self.queue(path, queue).filter(|one| one.to_close.is_none()) else {
                break;
            };
            let Some(connection) = &mut one.connection else { break };
            let count = connection.transmit(space);
            filled += count;
            if count == 0 && !self.begin(path, queue, now) {
                break;
            }
        }
        filled
    }

    fn queue(&mut self, path: usize, queue: usize) -> Option<&mut Queue> {
        self.paths.get_mut(path)?.queues.get_mut(queue)
    }

    /// Whether [`Client::transmit`] has bytes for a connection.
    pub fn wants_transmit(&self, connection: usize) -> bool {
        let (path, queue) = self.place(connection);
        let one = self.paths.get(path).and_then(|path| path.queues.get(queue));
        let Some(one) = one.filter(|one| one.to_close.is_none()) else { return false };
        let has_bytes = one.connection.as_ref().is_some_and(|one| one.wants_transmit());
        has_bytes || self.next(path, queue).is_some()
    }

    /// The ANA state that the paths in use have: the best of all.
    fn best(&self) -> Option<Access> {
        let usable = self.paths.iter().filter(|path| path.is_usable());
        usable.map(|path| path.access).min_by_key(|access| *access != Access::Optimized)
    }

    /// The step that a queue sends next, and whether it is a flush.
    fn next(&self, path: usize, queue: usize) -> Option<(u16, bool)> {
        if self.waiting.is_empty() && self.flushes.is_empty() {
            return None;
        }
        let one = self.paths.get(path).filter(|one| queue > 0 && one.is_usable())?;
        let own = one.queues.get(queue).filter(|own| own.has_room())?;
        let flush = self.flushes.front().copied().filter(|slot| {
            let to_cover = self.slot(*slot).map_or(0, |active| active.flushes);
            to_cover & 1 << path != 0 || to_cover == 0
        });
        // A flush goes where the writes went, also if another path is better now.
        let best = self.best()?;
        let other = self.waiting.front().copied().filter(|_| one.access == best);
        let in_use = self.paths.iter().filter(|path| path.is_usable() && path.access == best);
        let queues =
            in_use.flat_map(|path| path.queues.iter().take(path.granted as usize + 1).skip(1));
        let least = queues.map(Queue::in_flight).min().unwrap_or(0);
        let other = other.filter(|_| own.in_flight() < least + AHEAD);
        let turn = |slot: u16| self.slot(slot).map_or(u64::MAX, |active| active.turn);
        match (flush, other) {
            (Some(flush), Some(other)) if turn(other) < turn(flush) => Some((other, false)),
            (Some(flush), _) => Some((flush, true)),
            (None, other) => other.map(|slot| (slot, false)),
        }
    }

    /// The command of a request's step on a path.
    fn command_of(&self, slot: u16, path: usize) -> Option<Command> {
        let active = self.slot(slot)?;
        let namespace = self.namespace?;
        let controller = self.paths.get(path)?.controller?;
        let (nsid, shift) = (namespace.nsid, namespace.shift);
        let none = Window::empty();
        if active.is_flush() {
            let sqe = command::flush(nsid);
            return Some(Command { sqe, data: none, reads: false, in_capsule: false, part: 0 });
        }
        let left = active.length() - active.done;
        let first = (active.offset + u64::from(active.done)) >> shift;
        let control = if self.carries_fua(active) { FUA } else { 0 };
        let blocks =
            |opcode, part: u32| command::blocks(opcode, nsid, first, part >> shift, control);
        let data = |part: u32| active.data.slice(active.done as usize, part as usize);
        let command = match active.operation {
            Operation::Flush => return None,
            Operation::Read => {
                let part = left.min(controller.transfer);
                let (sqe, data) = (blocks(io::READ, part), data(part)?);
                Command { sqe, data, reads: true, in_capsule: false, part }
            }
            Operation::Write { .. } => {
                let part = left.min(controller.transfer);
                let (sqe, data) = (blocks(io::WRITE, part), data(part)?);
                let in_capsule = part <= controller.in_capsule;
                Command { sqe, data, reads: false, in_capsule, part }
            }
            Operation::WriteZeroes(_) => {
                let part = left.min(controller.most_zeroes).min(MOST_BLOCKS << shift);
                let sqe = blocks(io::ZEROES, part);
                Command { sqe, data: none, reads: false, in_capsule: false, part }
            }
            Operation::Discard(_) => {
                let most = u64::from(controller.most_deallocated) << shift;
                let part = left.min(u32::try_from(most).unwrap_or(u32::MAX));
                let data = self.ranges.slice(usize::from(slot) * RANGE, RANGE)?;
                data.write(0, &command::range(first, part >> shift)).ok()?;
                let in_capsule = RANGE as u32 <= controller.in_capsule;
                let sqe = command::deallocate(nsid);
                Command { sqe, data, reads: false, in_capsule, part }
            }
        };
        Some(command)
    }

    /// Sends the next step over a queue. False if there is none.
    fn begin(&mut self, path: usize, queue: usize, now: Instant) -> bool {
        let Some((slot, is_flush)) = self.next(path, queue) else { return false };
        if is_flush {
            self.flushes.pop_front();
        } else {
            self.waiting.pop_front();
        }
        let command = self.command_of(slot, path);
        let due = now + self.shared.settings.keepalive;
        let acknowledged = self.paths.get(path).map_or(0, |path| path.acknowledged);
        let Some(Command { sqe, data, reads, in_capsule, part }) = command else {
            // Its memory is shorter than the user said.
            self.finish(slot, Err(Error::Invalid));
            return true;
        };
        let Some(active) = self.active(slot) else { return false };
        active.on = Some(Place { path: path as u16, queue: queue as u16 });
        (active.sent_at, active.part) = (now, part);
        if is_flush {
            active.mark = acknowledged;
            active.flushes |= 1 << path;
        }
        let operation = if is_flush { Operation::Flush } else { active.operation };
        self.count(operation, part);
        self.timer = Instant::first([self.timer, Some(due)]);
        let Some(one) = self.queue(path, queue) else { return false };
        let Some(cid) = one.take(slot) else { return false };
        one.submit(&sqe.finish(cid, data.len(), in_capsule), data, reads, in_capsule)
    }

    fn count(&mut self, operation: Operation, part: u32) {
        let stats = &mut self.stats;
        match operation {
            Operation::Read => {
                stats.reads += 1;
                stats.read_bytes += u64::from(part);
            }
            Operation::Write { .. } => {
                stats.writes += 1;
                stats.written_bytes += u64::from(part);
            }
            Operation::Flush => stats.flushes += 1,
            Operation::Discard(_) | Operation::WriteZeroes(_) => stats.others += 1,
        }
    }

    /// Takes bytes that a connection received.
    pub fn receive(&mut self, connection: usize, mut bytes: &[u8], now: Instant) {
        let (path, queue) = self.place(connection);
        while !bytes.is_empty() {
            let Some(one) = self.paths.get_mut(path) else { return };
            let result = match one.receive(queue, &mut bytes, now) {
                Ok(Some((slot, answer))) => self.complete(path, slot, &answer, now),
                Ok(None) => Ok(()),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = result {
                return self.fail(path, failure, now);
            }
        }
    }

    /// Handles the completion of a request's command.
    fn complete(
        &mut self,
        path: usize,
        slot: u16,
        answer: &Answer,
        now: Instant,
    ) -> Result<(), Failure> {
        let status = answer.status();
        let is_flush = self.slot(slot).is_some_and(Active::is_flush);
        let Some(active) = self.active(slot) else { return Ok(()) };
        let optional =
            matches!(active.operation, Operation::Discard(_) | Operation::WriteZeroes(_));
        let moved = match active.operation {
            _ if is_flush => 0,
            Operation::Read | Operation::Write { .. } => active.part as usize,
            Operation::Discard(_) => RANGE,
            Operation::Flush | Operation::WriteZeroes(_) => 0,
        };
        let verdict = judge(status, optional);
        if verdict == Verdict::Success && answer.data != moved {
            return Err(Failure::Protocol("a command succeeds before all of its data was moved"));
        }
        active.on = None;
        match verdict {
            Verdict::Success => self.end_step(slot, path),
            Verdict::Error(error) => self.reject(slot, status, error),
            Verdict::Retry => self.retry(slot, status, now),
            Verdict::Elsewhere => self.send_elsewhere(path, slot, status, now),
            Verdict::Authenticate => {
                self.retry(slot, status, now);
                return Err(Failure::Rejected("a request", status));
            }
        }
        Ok(())
    }

    /// The namespace is not reached over a path now: reads its ANA log, and sends the request over another path.
    fn send_elsewhere(&mut self, path: usize, slot: u16, status: u16, now: Instant) {
        let Some(one) = self.paths.get_mut(path) else { return };
        if !one.lose_access(status, now) {
            return self.retry(slot, status, now);
        }
        self.stats.retries += 1;
        let Some(active) = self.active(slot) else { return };
        active.waiting_since.get_or_insert(now);
        if active.is_flush() {
            self.flushes.push_front(slot);
        } else {
            self.waiting.push_front(slot);
        }
        self.note_access(path, now);
    }
}
