//! Requests of clients, and completions of volumes.

use super::session::Session;
use super::throttles::{Delayed, Throttles};
use super::{Server, VolumeState, volume_state};
use crate::rnbd::wire::{self, AccessMode, Io, IoFlags, Operation, SessionInfo};
use crate::volume::reservation::Access;
use crate::volume::{self, Completion, Submitted, VolumeError, VolumeId, Volumes};
use alloc::vec::Vec;
use drivers::hal::{Instant, Window};
use rtrs::Errno;
use rtrs::server::ServerDevice;
use rtrs::server::{Execute, Execution, Request, RequestId, RequestKind, Served};
use verbs::Ctx;

/// Bit in the word of a request's tag: the request is a read, so its response has data. The client's header is not
/// read again, because the client may have changed it meanwhile.
const READS: u64 = 1 << 62;

/// Outcome of a request.
enum Outcome {
    /// The response is ready; if the request is an I/O, it is counted for the volume.
    Answer(Result<Window, Errno>, Option<VolumeId>),
    /// The volume works on it.
    Pending,
    /// The volume has no room for it.
    Busy(VolumeId),
    /// It has to wait for the limits of its export.
    Delayed(Delayed),
}

/// Executes a request when it arrives, if it is an I/O with a header of the one size that Linux sends. Nearly all are.
pub(super) struct InlineExecutor<'a> {
    pub sessions: &'a [Session],
    pub volume_states: &'a mut Vec<VolumeState>,
    pub volumes: &'a mut Volumes,
    pub throttles: &'a mut Throttles,
}

impl Execute for InlineExecutor<'_> {
    #[inline]
    fn execute(&mut self, request: &Request) -> Execution {
        let InlineExecutor { sessions, volume_states, volumes, throttles } = self;
        if request.user.len() != Io::SIZE {
            return Execution::Deferred;
        }
        let Ok(bytes) = request.user.read_array::<{ Io::SIZE }>(0) else {
            return Execution::Deferred;
        };
        let Some(io) = Io::of(&bytes) else { return Execution::Deferred };
        match submit(sessions, request, &io, volumes, throttles) {
            Outcome::Answer(result, Some(volume)) => {
                let bytes = request.data.len() as u32;
                let served = Served { kind: request.kind, bytes, nanos: 0 };
                volume_state(volume_states, volume).stats.count(&served, result.is_ok());
                Execution::Done(result)
            }
            Outcome::Answer(result, None) => Execution::Done(result),
            Outcome::Pending => Execution::Pending,
            Outcome::Busy(volume) => {
                let state = volume_state(volume_states, volume);
                state.stats.waits += 1;
                state.waiting.push_back(request.id);
                Execution::Pending
            }
            Outcome::Delayed(delayed) => {
                throttles.wait(&delayed, request.id);
                Execution::Pending
            }
        }
    }
}

impl Server {
    /// Executes a request that was deferred. If its volume is busy, returns that volume.
    pub(super) fn execute<P: ServerDevice + ?Sized>(
        &mut self,
        request: &Request,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) -> Option<VolumeId> {
        match self.interpret(request, volumes) {
            Outcome::Answer(result, volume) => {
                self.answer(request.id, volume, result, ctx);
                None
            }
            Outcome::Pending => None,
            Outcome::Busy(volume) => {
                volume_state(&mut self.volume_states, volume).stats.waits += 1;
                Some(volume)
            }
            Outcome::Delayed(delayed) => {
                self.throttles.wait(&delayed, request.id);
                None
            }
        }
    }

    fn answer<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        volume: Option<VolumeId>,
        result: Result<Window, Errno>,
        ctx: &mut Ctx<'_, P>,
    ) {
        let served = self.transport.respond(id, result, ctx);
        if let (Some(served), Some(volume)) = (served, volume) {
            volume_state(&mut self.volume_states, volume).stats.count(&served, result.is_ok());
        }
    }

    fn interpret(&mut self, request: &Request, volumes: &mut Volumes) -> Outcome {
        let mut bytes = [0; Io::SIZE];
        let Some(bytes) = bytes.get_mut(..request.user.len()) else {
            return Outcome::Answer(self.manage(request, volumes), None);
        };
        let parsed = request.user.read(0, bytes).map(|()| wire::Request::parse(bytes));
        match parsed {
            Ok(Ok(wire::Request::Io(io))) => {
                submit(&self.sessions, request, &io, volumes, &mut self.throttles)
            }
            Ok(Ok(wire::Request::Close(close))) => {
                // As in Linux, a device that is not open is closed.
                self.close(request.session, close.device);
                Outcome::Answer(Ok(Window::empty()), None)
            }
            _ => Outcome::Answer(Err(Errno::EINVAL), None),
        }
    }

    /// SESS_INFO and OPEN. Their responses are staged in the chunk. Both have to be reads, because the response to a
    /// write carries no data.
    fn manage(&mut self, request: &Request, volumes: &mut Volumes) -> Result<Window, Errno> {
        let mut bytes = [0; wire::MAX_HEADER];
        let bytes = bytes.get_mut(..request.user.len()).ok_or(Errno::EINVAL)?;
        request.user.read(0, bytes).map_err(|_| Errno::EINVAL)?;
        if request.kind != RequestKind::Read {
            return Err(Errno::EINVAL);
        }
        let stage = |answer: &[u8]| {
            let data = request.data.slice(0, answer.len()).ok_or(Errno::EINVAL)?;
            data.write(0, answer).map_err(|_| Errno::EINVAL)?;
            Ok(data)
        };
        match wire::Request::parse(bytes).map_err(|_| Errno::EINVAL)? {
            wire::Request::SessionInfo(info) => {
                let version = info.version.min(wire::VERSION);
                stage(&SessionInfo { version }.emit_response())
            }
            wire::Request::Open(open) => {
                if request.data.len() < wire::OpenResponse::SIZE {
                    return Err(Errno::EINVAL);
                }
                let host = self.transport.host(request.id).ok_or(Errno::ENOTCONN)?;
                stage(&self.open(request.session, host, &open, volumes)?.emit())
            }
            wire::Request::Io(_) | wire::Request::Close(_) => Err(Errno::EINVAL),
        }
    }

    /// A volume has completed a request.
    pub(super) fn complete<P: ServerDevice + ?Sized>(
        &mut self,
        volume: VolumeId,
        completion: &Completion,
        ctx: &mut Ctx<'_, P>,
    ) {
        let id = RequestId::from_bits(completion.tag.word);
        let result = match (completion.result, self.transport.request(id, ctx)) {
            (Ok(()), Some(request)) if completion.tag.word & READS != 0 => Ok(request.data),
            (Ok(()), Some(_)) => Ok(Window::empty()),
            (Ok(()), None) => Err(Errno::ECONNABORTED),
            (Err(error), _) => Err(errno(error)),
        };
        self.answer(id, Some(volume), result, ctx);
    }

    /// Continues requests that have waited for the limits of their exports, and answers those that have to wait no
    /// more. True if there were any.
    #[inline]
    pub(super) fn continue_throttled<P: ServerDevice + ?Sized>(
        &mut self,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        match self.throttles.due.is_some() || !self.throttles.refused.is_empty() {
            true => self.continue_some(volumes, ctx),
            false => false,
        }
    }

    #[cold]
    fn continue_some<P: ServerDevice + ?Sized>(
        &mut self,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let transport = &self.transport;
        let ended = transport.counters().paths_closed;
        self.throttles.drop_ended(ended, |id| transport.request(id, ctx).is_none());
        let mut moved = false;
        while let Some(id) = self.throttles.refused.pop() {
            self.answer(id, None, Err(Errno::ENOTCONN), ctx);
            moved = true;
        }
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= ctx.now);
        if !is_due(self.throttles.due) {
            return moved;
        }
        let mut budget = super::BUDGET;
        for place in 0..self.throttles.places() {
            if !self.throttles.begin_turn(place) {
                continue;
            }
            while budget > 0 {
                let Some(id) = self.throttles.next() else { break };
                budget -= 1;
                moved = true;
                self.continue_request(id, volumes, ctx);
            }
            self.throttles.end_turn(budget == 0);
        }
        self.throttles.settle();
        if moved {
            volumes.flush_queues();
        }
        moved
    }

    /// Executes a request that has waited.
    fn continue_request<P: ServerDevice + ?Sized>(
        &mut self,
        id: RequestId,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(request) = self.transport.request(id, ctx) else {
            return self.answer(id, None, Err(Errno::ECONNABORTED), ctx);
        };
        if let Some(busy) = self.execute(&request, volumes, ctx) {
            volume_state(&mut self.volume_states, busy).waiting.push_back(id);
        }
    }

    /// A volume has room again.
    pub(super) fn retry<P: ServerDevice + ?Sized>(
        &mut self,
        volume: VolumeId,
        volumes: &mut Volumes,
        ctx: &mut Ctx<'_, P>,
    ) {
        while let Some(id) = volume_state(&mut self.volume_states, volume).waiting.pop_front() {
            let Some(request) = self.transport.request(id, ctx) else {
                self.answer(id, None, Err(Errno::ECONNABORTED), ctx);
                continue;
            };
            if let Some(busy) = self.execute(&request, volumes, ctx) {
                volume_state(&mut self.volume_states, busy).waiting.push_front(id);
                return;
            }
        }
    }
}

/// Submits an I/O to its volume. The direction of the RTRS request has to fit the operation: only the response to a
/// read has data.
#[inline]
fn submit(
    sessions: &[Session],
    request: &Request,
    io: &Io,
    volumes: &mut Volumes,
    throttles: &mut Throttles,
) -> Outcome {
    let device = sessions.get(request.session.index()).and_then(|s| s.device(io.device));
    let Some(device) = device else { return Outcome::Answer(Err(Errno::ENOTCONN), None) };
    let volume = device.opened.volume;
    let refuse = |errno| Outcome::Answer(Err(errno), Some(volume));
    let writes = !matches!(io.operation, Operation::Read | Operation::Flush);
    if writes && device.opened.mode == AccessMode::ReadOnly {
        return refuse(Errno::EROFS);
    }
    // Sessions cannot register: a reservation over NVMe fences them.
    let access = match io.operation {
        Operation::Read => Access::Read,
        _ => Access::Write,
    };
    if device.opened.hold.excludes(access) {
        return refuse(Errno::EBADE);
    }
    let all_data = request.data.len() == io.size as usize;
    let sectors = io.size / 512;
    let mut tag = request.id.to_bits();
    let (operation, data) = match io.operation {
        Operation::Read if all_data && request.kind == RequestKind::Read => {
            tag |= READS;
            (volume::Operation::Read, request.data)
        }
        Operation::Write if all_data && request.kind == RequestKind::Write => {
            // Only a client that uses a device id before the OPEN response can reach this.
            if !device.opened.copies_at_once && !request.settled {
                return refuse(Errno::EIO);
            }
            let durable = io.flags.contains(IoFlags::FUA);
            (volume::Operation::Write { durable }, request.data)
        }
        Operation::Flush => (volume::Operation::Flush, Window::empty()),
        _ if !io.size.is_multiple_of(512) => return refuse(Errno::EINVAL),
        Operation::Discard => (volume::Operation::Discard { sectors }, Window::empty()),
        Operation::SecureErase => (volume::Operation::SecureErase { sectors }, Window::empty()),
        Operation::WriteZeroes => (volume::Operation::WriteZeroes { sectors }, Window::empty()),
        Operation::Read | Operation::Write => return refuse(Errno::EINVAL),
    };
    let is_limited = device.opened.limiter.is_limited();
    if is_limited && let Some(delayed) = throttles.delays(request.session, device, io) {
        return Outcome::Delayed(delayed);
    }
    let wanted = volume::Request { tag: tag.into(), operation, sector: io.sector, data };
    let Some(submitted) = volumes.submit(volume, &wanted) else { return refuse(Errno::ENXIO) };
    if is_limited && !matches!(submitted, Err(VolumeError::Busy)) {
        throttles.charge(device, io);
    }
    match submitted {
        // The lent memory has to cover the whole read.
        Ok(Submitted::Lent(lent)) if tag & READS != 0 && lent.len() == data.len() => {
            Outcome::Answer(Ok(lent), Some(volume))
        }
        // The response to a write has no data.
        Ok(Submitted::Done) => Outcome::Answer(Ok(data), Some(volume)),
        Ok(Submitted::Lent(_)) => refuse(Errno::EIO),
        Ok(Submitted::Pending) => Outcome::Pending,
        Err(VolumeError::Busy) => Outcome::Busy(volume),
        Err(error) => refuse(errno(error)),
    }
}

fn errno(error: VolumeError) -> Errno {
    match error {
        VolumeError::Busy | VolumeError::Io | VolumeError::Lost | VolumeError::PastEnd => {
            Errno::EIO
        }
        VolumeError::Invalid => Errno::EINVAL,
        VolumeError::ReadOnly => Errno::EROFS,
        VolumeError::Reserved => Errno::EBADE,
        VolumeError::Unsupported => Errno::EOPNOTSUPP,
    }
}
