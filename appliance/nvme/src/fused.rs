//! The fused operation Compare and Write (Base Specification, section 3.4.2; NVM Command Set Specification, section
//! 2.1.4), by which hosts such as ESXi lock blocks.
//!
//! Both commands are adjacent on one queue and name the same block. If one fails, the other is aborted, and if the
//! partner is missing, the one that is there.
//!
//! # Atomic
//!
//! From the comparison to the end of the write, no other write reaches the volume. Writes, zeroings and deallocations
//! of all queues wait, and those that the volume already has end first; the table `active` names the volumes. A client
//! that has the volume open for writing over RNBD, on any core, excludes the operation, and is excluded while it lasts
//! ([`OpenCounts::exclude`](storage::volume::OpenCounts::exclude)). Other clients of another server's device are
//! beyond reach.

use crate::command::{Command, io};
use crate::queue::{Queue, QueueId, Role};
use crate::request::State;
use crate::status::Status;
use crate::target::{Context, Target};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::Instant;
use storage::volume::{Hold, OpenError, Operation, VolumeId};

/// The part of a command in a fused operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fuse {
    /// It is not fused.
    #[default]
    None,
    /// The Compare.
    First,
    /// The Write.
    Second,
}

/// What a queue knows of the command before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Before {
    /// It was no first command of a fused operation.
    #[default]
    Other,
    /// A first command, in this slot.
    First(u16),
    /// A first command that has failed already.
    Failed,
}

/// A pair that has a volume for itself.
#[derive(Debug)]
struct Exclusive {
    volume: VolumeId,
    id: QueueId,
    first: u16,
    second: u16,
    /// Writes that the volume had when the pair came.
    pending: usize,
    /// It is executed.
    runs: bool,
    /// Excludes writers over RNBD.
    _hold: Hold,
}

/// Fused operations.
#[derive(Debug, Default)]
pub(crate) struct FusedPairs {
    active: Vec<Exclusive>,
    /// First commands of pairs that wait for another pair's volume.
    waiting: VecDeque<(QueueId, u16)>,
}

/// The part of a command by its FUSE field. An error if it cannot have that part.
fn fuse_of(command: &Command, queue: &Queue) -> Result<Fuse, Status> {
    let is_io = matches!(queue.role, Role::Io { .. }) && !command.is_fabrics();
    match command.byte(1) & 3 {
        0 => Ok(Fuse::None),
        1 if is_io && command.opcode() == io::COMPARE => Ok(Fuse::First),
        2 if is_io && command.opcode() == io::WRITE => Ok(Fuse::Second),
        _ => Err(Status::INVALID_FIELD),
    }
}

impl Queue {
    /// Notes the part of a command that got a slot. `before`: of the command before it, which is still there.
    pub(crate) fn note_fuse(&mut self, slot: u16, fuse: Fuse, before: Before) {
        self.request_mut(slot).fuse = fuse;
        match (fuse, before) {
            (Fuse::First, _) => self.before = Before::First(slot),
            (Fuse::Second, Before::First(first)) => {
                self.request_mut(slot).partner = Some(first);
                self.request_mut(first).partner = Some(slot);
            }
            _ => {}
        }
    }
}

impl Target {
    /// Judges a command by the one before it on its queue. An error if it has to be refused. `refused`: it is refused
    /// for another reason.
    pub(crate) fn check_fuse(
        &mut self,
        id: QueueId,
        command: &Command,
        refused: Option<Status>,
    ) -> Result<Fuse, Status> {
        let Some(queue) = self.queue(id) else { return Ok(Fuse::None) };
        let bits = command.byte(1) & 3;
        let before = core::mem::take(&mut queue.before);
        let fuse = refused.map_or_else(|| fuse_of(command, queue), Err);
        if bits == 1 && fuse.is_err() {
            queue.before = Before::Failed;
        }
        match before {
            // A second command, whatever is wrong with it, is the partner.
            Before::First(first) if bits == 2 => {
                if fuse.is_err() {
                    self.doom(id, first, Status::FAILED_FUSED);
                }
                fuse
            }
            Before::First(first) => {
                self.doom(id, first, Status::MISSING_FUSED);
                fuse
            }
            Before::Failed if bits == 2 => Err(fuse.err().unwrap_or(Status::FAILED_FUSED)),
            _ if fuse == Ok(Fuse::Second) => Err(Status::MISSING_FUSED),
            _ => fuse,
        }
    }

    /// The partner of a first command finds no memory for its data yet, and is judged again.
    pub(crate) fn restore_fuse(&mut self, id: QueueId, fuse: Result<Fuse, Status>, before: Before) {
        if fuse == Ok(Fuse::Second)
            && let Some(queue) = self.queue(id)
        {
            queue.before = before;
        }
    }

    /// Executes a command of a pair: when both are there, and the volume is theirs alone. Returns whether it is to be
    /// executed now.
    pub(crate) fn may_execute_fused(
        &mut self,
        id: QueueId,
        slot: u16,
        ctx: &mut Context<'_>,
    ) -> bool {
        let Some(queue) = self.queue(id) else { return false };
        let request = queue.request_mut(slot);
        if let Some(status) = request.doom {
            self.finish(id, slot, status.into());
            return false;
        }
        if request.runs {
            return true;
        }
        request.enter(State::AwaitingPartner);
        let (fuse, partner) = (request.fuse, request.partner);
        let Some(partner) = partner.filter(|&it| self.is_in(id, it, State::AwaitingPartner)) else {
            return false;
        };
        match fuse {
            Fuse::First => self.start_pair(id, slot, partner, ctx),
            _ => self.start_pair(id, partner, slot, ctx),
        }
        false
    }

    /// Both commands of a pair are there.
    fn start_pair(&mut self, id: QueueId, first: u16, second: u16, ctx: &mut Context<'_>) {
        match self.take_volume(id, first, second, ctx) {
            Ok(true) => self.run_pair(id, ctx),
            Ok(false) => {}
            // The second is aborted with it.
            Err(status) => self.finish(id, first, status.into()),
        }
    }

    /// Takes the volume for a pair. False if the pair has to wait.
    fn take_volume(
        &mut self,
        id: QueueId,
        first: u16,
        second: u16,
        ctx: &mut Context<'_>,
    ) -> Result<bool, Status> {
        let controller = self.controller_of(id).ok_or(Status::INTERNAL)?;
        let queue = self.queue(id).ok_or(Status::INTERNAL)?;
        let ends = queue.ends;
        let (compare, write) =
            (queue.request_mut(first).command, queue.request_mut(second).command);
        // Namespace, first block and number of blocks.
        let of = |command: &Command| (command.nsid(), command.u64(40), command.u16(48));
        if of(&compare) != of(&write) {
            self.fail_both(id, first, second, Status::INVALID_FIELD);
            return Ok(false);
        }
        if compare.u16(48) != 0 {
            return Err(Status::ATOMIC_UNIT);
        }
        let subsystem = self.subsystem_of(controller).ok_or(Status::INVALID_NAMESPACE)?;
        let (_, backing) = crate::parts::reachable(subsystem, compare.nsid())?;
        let volume = backing.volume;
        if self.fused.active.iter().any(|one| one.volume == volume) {
            self.fused.waiting.push_back((id, first));
            return Ok(false);
        }
        let counts = ctx.volumes.open_counts(volume).ok_or(Status::NOT_READY)?;
        let hold = match counts.exclude() {
            Ok(hold) => hold,
            Err(OpenError::Retired) => return Err(Status::NOT_READY),
            Err(OpenError::InUse) => {
                let advice = "an RNBD client has the volume open for writing (`device list`), so Compare and \
                    Write cannot be atomic; unmap it there";
                self.refuse(&ends, "compare and write", "rnbd_writer", advice);
                return Err(Status::OPERATION_DENIED);
            }
        };
        let is_write = |request: &&crate::request::Request| {
            request.state == State::Executing
                && request.volume == Some(volume)
                && writes(&request.command)
        };
        let queues = self.queues.iter();
        let pending = queues.map(|(_, one)| one.requests.iter().filter(is_write).count()).sum();
        let runs = false;
        let new = Exclusive { volume, id, first, second, pending, runs, _hold: hold };
        self.fused.active.push(new);
        Ok(true)
    }

    /// Executes the comparisons of pairs whose volume has no other writes any more.
    fn run_pair(&mut self, id: QueueId, ctx: &mut Context<'_>) {
        let is_ready = |one: &Exclusive| one.id == id && !one.runs && one.pending == 0;
        let Some(place) = self.fused.active.iter().position(is_ready) else { return };
        let Some(pair) = self.fused.active.get_mut(place) else { return };
        pair.runs = true;
        let (first, second) = (pair.first, pair.second);
        let Some(queue) = self.queue(id) else { return };
        queue.request_mut(first).runs = true;
        queue.request_mut(second).runs = true;
        self.execute(id, first, ctx);
    }

    /// Continues pairs that wait. Returns their number.
    pub(crate) fn poll_fused(&mut self, ctx: &mut Context<'_>) -> usize {
        if self.fused.active.is_empty() && self.fused.waiting.is_empty() {
            return 0;
        }
        let idle = self.fused.active.iter().filter(|one| !one.runs && one.pending == 0);
        let idle: Vec<QueueId> = idle.map(|one| one.id).collect();
        idle.into_iter().for_each(|id| self.run_pair(id, ctx));
        let mut done = 0;
        for _ in 0..self.fused.waiting.len() {
            let Some((id, first)) = self.fused.waiting.pop_front() else { break };
            if !self.is_in(id, first, State::AwaitingPartner) {
                continue;
            }
            let partner = self.queue(id).and_then(|queue| queue.request_mut(first).partner);
            let Some(second) = partner else { continue };
            let before = self.fused.waiting.len();
            self.start_pair(id, first, second, ctx);
            done += usize::from(self.fused.waiting.len() == before);
        }
        done
    }

    /// Whether pairs wait for other writes to end.
    pub(crate) fn has_idle_pairs(&self) -> bool {
        !self.fused.waiting.is_empty() || self.fused.active.iter().any(|one| !one.runs)
    }

    /// Whether a pair of other commands has the volume for itself. Without any pair this costs a branch.
    #[inline]
    pub(crate) fn is_excluded(
        &self,
        (id, slot): (QueueId, u16),
        volume: VolumeId,
        operation: Operation,
    ) -> bool {
        !self.fused.active.is_empty()
            && !matches!(operation, Operation::Read | Operation::Flush)
            && self
                .fused
                .active
                .iter()
                .any(|one| one.volume == volume && (one.id, one.second) != (id, slot))
    }

    /// A volume has ended a part of a command.
    pub(crate) fn note_ended_write(&mut self, id: QueueId, slot: u16) {
        if self.fused.active.is_empty() {
            return;
        }
        let Some(queue) = self.queue(id) else { return };
        let request = queue.request_mut(slot);
        let (volume, is_write) = (request.volume, writes(&request.command));
        let waits = |one: &&mut Exclusive| Some(one.volume) == volume && !one.runs;
        if is_write && let Some(pair) = self.fused.active.iter_mut().find(waits) {
            pair.pending = pair.pending.saturating_sub(1);
        }
    }

    /// A command of a pair has ended.
    pub(crate) fn fused_ended(
        &mut self,
        (id, slot): (QueueId, u16),
        (fuse, partner): (Fuse, Option<u16>),
        status: Status,
    ) {
        if let Some(queue) = self.queue(id)
            && queue.before == Before::First(slot)
        {
            queue.before = Before::Failed;
        }
        if fuse == Fuse::Second || !status.is_success() {
            let of = |one: &Exclusive| one.id == id && [one.first, one.second].contains(&slot);
            if self.fused.active.iter().any(of) {
                self.fused.active.retain(|one| !of(one));
                // Writes that were held up continue in the next round.
                self.retry_at = Some(Instant::ZERO);
            }
        }
        let Some(partner) = partner else { return };
        if let Some(queue) = self.queue(id) {
            queue.request_mut(partner).partner = None;
        }
        match (fuse, status.is_success()) {
            // Compared: now the write, in the next round.
            (Fuse::First, true) => self.yield_request(id, partner),
            _ => self.doom(id, partner, Status::FAILED_FUSED),
        }
    }

    /// Fails a command of a pair, at once or when its data has arrived.
    fn doom(&mut self, id: QueueId, slot: u16, status: Status) {
        let Some(queue) = self.queue(id) else { return };
        queue.request_mut(slot).doom = Some(status);
        if self.is_in(id, slot, State::AwaitingPartner) {
            self.finish(id, slot, status.into());
        }
    }

    fn fail_both(&mut self, id: QueueId, first: u16, second: u16, status: Status) {
        let Some(queue) = self.queue(id) else { return };
        (queue.request_mut(first).partner, queue.request_mut(second).partner) = (None, None);
        self.finish(id, first, status.into());
        self.finish(id, second, status.into());
    }

    /// The connection of a queue has ended: its writes that a volume has count as those of others.
    pub(crate) fn forget_fused(&mut self, id: QueueId) {
        if self.fused.active.iter().any(|one| one.id == id) {
            self.fused.active.retain(|one| one.id != id);
            self.retry_at = Some(Instant::ZERO);
        }
        self.fused.waiting.retain(|(of, _)| *of != id);
    }
}

/// Whether a command changes blocks.
fn writes(command: &Command) -> bool {
    matches!(command.opcode(), io::WRITE | io::WRITE_ZEROES | io::DATASET_MANAGEMENT)
        && !command.is_fabrics()
}
