//! Commands of I/O queues (NVM Command Set Specification, section 3.2). A command is executed in parts: as large as its
//! volume takes, one range after the other.

use crate::command::{Command, Outcome, io};
use crate::parts::{Around, Next, Part, Progress, address_of, next_part};
use crate::queue::QueueId;
use crate::request::State;
use crate::rounds::BULK;
use crate::status::Status;
use crate::target::{Context, Target};
use drivers::hal::Window;
use storage::volume::{Operation, Request, Submitted, Tag, User, VolumeError};

/// Parts that complete at once, of one command in one round.
const PARTS: usize = 8;

/// Whether I/O queues support an opcode.
pub fn is_supported(opcode: u8) -> bool {
    use io::*;
    matches!(opcode, FLUSH | WRITE | READ | COMPARE | VERIFY | WRITE_ZEROES | DATASET_MANAGEMENT)
        || crate::reservations::is_command(opcode)
}

impl Target {
    /// Whether a request reads or verifies a volume that lends its memory.
    pub(crate) fn lends(
        &mut self,
        id: QueueId,
        slot: u16,
        volumes: &storage::volume::Volumes,
    ) -> bool {
        let Some(crate::queue::Role::Io { controller }) = self.queue(id).map(|queue| queue.role)
        else {
            return false;
        };
        let Some(queue) = self.queue(id) else { return false };
        let command = queue.request_mut(slot).command;
        if command.is_fabrics() || !matches!(command.opcode(), io::READ | io::VERIFY) {
            return false;
        }
        let namespace = self.subsystem_of(controller).and_then(|it| it.namespace(command.nsid()));
        let backing = namespace.and_then(|namespace| namespace.backing.as_ref().ok());
        backing.is_some_and(|backing| volumes.copies_at_once(backing.volume))
    }

    /// Executes a command of an I/O queue, or continues it.
    pub(crate) fn execute_io(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        let is_ready = self.controllers.get(controller).is_some_and(|it| it.is_ready());
        if !is_ready {
            return self.finish(id, slot, Status::SEQUENCE.into());
        }
        if crate::reservations::is_command(command.opcode()) {
            return self.execute_reservation(id, slot, controller, command, ctx);
        }
        let is_bulk = matches!(command.opcode(), io::WRITE_ZEROES | io::DATASET_MANAGEMENT);
        for _ in 0..PARTS {
            if is_bulk && self.worked >= BULK {
                break;
            }
            let Some(queue) = self.queue(id) else { return };
            let request = queue.request_mut(slot);
            if request.is_preempted {
                return self.fail_io(id, slot, controller, Status::PREEMPTED);
            }
            let mut progress = Progress {
                data: request.window(),
                other: request.other,
                length: request.length,
                done: request.done,
                index: request.index,
                bound: request.hold.as_ref().map(address_of),
            };
            let host = self.controllers.get(controller).map_or([0; 16], |one| one.host.id);
            let around = Around { host, volumes: ctx.volumes, zeroes: self.zeroes };
            let next = match self.subsystem_of(controller) {
                None => Err(Status::INVALID_NAMESPACE),
                Some(subsystem) => next_part(subsystem, command, &mut progress, &around),
            };
            let Some(queue) = self.queue(id) else { return };
            match next {
                Ok(Next::Part(part)) => {
                    let request = queue.request_mut(slot);
                    (request.done, request.index) = (progress.done, progress.index);
                    if !self.submit(id, slot, controller, part, ctx) {
                        return;
                    }
                }
                Ok(Next::Done(bytes)) => return self.finish_io(id, slot, controller, bytes),
                Err(status) => return self.fail_io(id, slot, controller, status),
            }
        }
        self.yield_request(id, slot);
    }

    /// Submits a part of a command. True if the part is complete, and the next one can follow.
    fn submit(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        part: Part,
        ctx: &mut Context<'_>,
    ) -> bool {
        if self.is_excluded((id, slot), part.volume, part.operation) {
            self.await_volume(id, slot, part.volume);
            return false;
        }
        let reads = matches!(part.operation, Operation::Read);
        // A volume that lends its memory needs none: only the length counts.
        let lends = reads && part.data.is_empty();
        let scratch = self.scratch.slice(0, part.sectors as usize * 512);
        let data = if lends { scratch.unwrap_or(Window::empty()) } else { part.data };
        let Some(queue) = self.queue(id) else { return false };
        let request = queue.request_mut(slot);
        let command = request.command;
        request.part = part.sectors;
        request.volume = Some(part.volume);
        if request.hold.is_none() {
            request.hold = Some(part.hold);
        }
        let tag = Tag::new(User::NVME, id.word(slot));
        let wanted = Request { tag, operation: part.operation, sector: part.sector, data };
        let status = match ctx.volumes.submit(part.volume, &wanted) {
            Some(Ok(Submitted::Pending)) => {
                queue.in_volumes += 1;
                queue.request_mut(slot).enter(State::Executing);
                self.submitted = true;
                return false;
            }
            Some(Ok(Submitted::Lent(lent)))
                if command.opcode() == io::VERIFY && lent.len() == data.len() =>
            {
                return self.advance(id, slot, controller);
            }
            Some(Ok(Submitted::Lent(lent))) => {
                if command.opcode() == io::READ && part.is_whole && lent.len() == data.len() {
                    self.count(controller, &command, true);
                    self.finish_with(id, slot, lent);
                    return false;
                }
                if !lends && data.write_window(0, &lent).is_ok() {
                    return self.advance(id, slot, controller);
                }
                Status::INTERNAL
            }
            Some(Ok(Submitted::Done)) if !lends => {
                self.worked += part.sectors;
                return self.advance(id, slot, controller);
            }
            Some(Ok(Submitted::Done)) => Status::INTERNAL,
            Some(Err(VolumeError::Busy)) => {
                self.await_volume(id, slot, part.volume);
                return false;
            }
            Some(Err(error)) => status_of(error, &command),
            None => Status::NOT_READY,
        };
        self.fail_io(id, slot, controller, status);
        false
    }

    /// A part is complete. False if it completed the command, because the data differs.
    fn advance(&mut self, id: QueueId, slot: u16, controller: usize) -> bool {
        let Some(queue) = self.queue(id) else { return false };
        let request = queue.request_mut(slot);
        if request.command.opcode() == io::COMPARE {
            let bytes = request.part as usize * 512;
            let theirs = request.window().slice(request.done as usize * 512, bytes);
            let ours = request.other.and_then(|other| other.slice(0, bytes));
            if !theirs.zip(ours).is_some_and(|(theirs, ours)| are_equal(&theirs, &ours)) {
                self.fail_io(id, slot, controller, Status::COMPARE_FAILURE);
                return false;
            }
        }
        request.done += request.part;
        true
    }

    /// A volume has completed a part.
    pub(crate) fn part_completed(
        &mut self,
        id: QueueId,
        slot: u16,
        result: Result<(), VolumeError>,
        ctx: &mut Context<'_>,
    ) {
        let Some(controller) = self.controller_of(id) else { return };
        let Some(queue) = self.queue(id) else { return };
        let command = queue.request_mut(slot).command;
        if let Err(error) = result {
            return self.fail_io(id, slot, controller, status_of(error, &command));
        }
        if self.advance(id, slot, controller) {
            self.execute(id, slot, ctx);
        }
    }

    pub(crate) fn finish_io(&mut self, id: QueueId, slot: u16, controller: usize, bytes: usize) {
        let Some(queue) = self.queue(id) else { return };
        let request = queue.request_mut(slot);
        let command = request.command;
        let data = match command.opcode() {
            io::READ => request.window().slice(0, bytes).unwrap_or(Window::empty()),
            _ => Window::empty(),
        };
        self.count(controller, &command, true);
        match data.is_empty() {
            true => self.finish(id, slot, Outcome::SUCCESS),
            false => self.finish_with(id, slot, data),
        }
    }

    pub(crate) fn fail_io(&mut self, id: QueueId, slot: u16, controller: usize, status: Status) {
        let Some(queue) = self.queue(id) else { return };
        let command = queue.request_mut(slot).command;
        self.count(controller, &command, false);
        if status == Status::RESERVATION_CONFLICT {
            self.count_conflict(controller, command.nsid());
        }
        self.finish(id, slot, status.into());
    }

    /// Counts a command of a namespace.
    fn count(&mut self, controller: usize, command: &Command, ok: bool) {
        let Some(of) = self.controllers.get(controller).map(|controller| controller.of) else {
            return;
        };
        let crate::controller::Of::Subsystem(subsystem) = of else { return };
        let subsystem = self.subsystems.get_mut(subsystem);
        let Some(namespace) = subsystem.and_then(|it| it.namespace_mut(command.nsid())) else {
            return;
        };
        let block = namespace.backing.as_ref().map_or(0, |backing| backing.block);
        let bytes = (u64::from(command.u16(48)) + 1) * u64::from(block);
        let counters = &mut namespace.counters;
        match command.opcode() {
            _ if !ok => counters.errors += 1,
            io::READ => {
                counters.reads += 1;
                counters.read_bytes += bytes;
            }
            io::WRITE => {
                counters.writes += 1;
                counters.write_bytes += bytes;
            }
            _ => counters.others += 1,
        }
    }
}

/// Whether two windows of the same length have the same bytes.
fn are_equal(one: &Window, other: &Window) -> bool {
    let mut equal = one.len() == other.len();
    let mut at = 0;
    one.for_each_block(|block| {
        let mut copy = [0; 64];
        if let Some(place) = copy.get_mut(..block.len()) {
            equal &= other.read(at, place).is_ok() && place == block;
        }
        at += block.len();
    });
    equal
}

/// The status of a failure. What may succeed later has no DNR.
fn status_of(error: VolumeError, command: &Command) -> Status {
    match error {
        VolumeError::Invalid => Status::INVALID_FIELD,
        VolumeError::PastEnd => Status::LBA_RANGE,
        VolumeError::ReadOnly => Status::WRITE_PROTECTED,
        VolumeError::Reserved => Status::RESERVATION_CONFLICT,
        VolumeError::Unsupported => Status::INVALID_OPCODE,
        VolumeError::Busy | VolumeError::Io | VolumeError::Lost => match command.opcode() {
            io::READ | io::COMPARE | io::VERIFY => Status::READ_ERROR,
            _ => Status::WRITE_FAULT,
        },
    }
}
