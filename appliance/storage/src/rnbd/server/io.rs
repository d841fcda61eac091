//! Requests of clients, and completions of volumes.

use super::session::Session;
use super::{Books, Server, books_of};
use crate::rnbd::wire::{self, AccessMode, Io, IoFlags, Operation, SessionInfo};
use crate::volume::{self, Completion, Submitted, VolumeError, VolumeId, Volumes};
use alloc::vec::Vec;
use drivers::hal::Window;
use rtrs::Errno;
use rtrs::server::{Execute, Execution, Request, RequestId, RequestKind, Served};
use verbs::EngineContext;
use verbs::RdmaDevice;

/// In the word of a request: it is a read, so that its answer has data. What the client's header says
/// of it by then does not count.
const READS: u64 = 1 << 62;

/// What came of a request.
enum Outcome {
    /// It is answered; what came of it is counted for the volume, if it is an I/O.
    Answer(Result<Window, Errno>, Option<VolumeId>),
    /// The volume works on it.
    Pending,
    /// The volume has no room for it.
    Busy(VolumeId),
}

/// Executes what has just arrived, if it is an I/O of the one size that Linux sends, as nearly all are.
pub(super) struct AtOnce<'a> {
    pub sessions: &'a [Session],
    pub books: &'a mut Vec<Books>,
    pub volumes: &'a mut Volumes,
}

impl Execute for AtOnce<'_> {
    #[inline(always)]
    fn execute(&mut self, request: &Request) -> Execution {
        let AtOnce { sessions, books, volumes } = self;
        if request.user.len() != Io::SIZE {
            return Execution::Deferred;
        }
        let Ok(bytes) = request.user.read_array::<{ Io::SIZE }>(0) else {
            return Execution::Deferred;
        };
        let Some(io) = Io::of(&bytes) else { return Execution::Deferred };
        match submit(sessions, request, &io, volumes) {
            Outcome::Answer(result, Some(volume)) => {
                let bytes = request.data.len() as u32;
                let served = Served { kind: request.kind, bytes, nanos: 0 };
                books_of(books, volume).stats.count(&served, result.is_ok());
                Execution::Done(result)
            }
            Outcome::Answer(result, None) => Execution::Done(result),
            Outcome::Pending => Execution::Pending,
            Outcome::Busy(volume) => {
                let books = books_of(books, volume);
                books.stats.waits += 1;
                books.waiting.push_back(request.id);
                Execution::Pending
            }
        }
    }
}

impl Server {
    /// Does what a request asks for that was not done at once. If its volume has no room, that volume is returned.
    pub(super) fn execute<P: RdmaDevice + ?Sized>(
        &mut self,
        request: &Request,
        volumes: &mut Volumes,
        ctx: &mut EngineContext<'_, P>,
    ) -> Option<VolumeId> {
        match self.interpret(request, volumes) {
            Outcome::Answer(result, volume) => {
                self.answer(request.id, volume, result, ctx);
                None
            }
            Outcome::Pending => None,
            Outcome::Busy(volume) => {
                books_of(&mut self.books, volume).stats.waits += 1;
                Some(volume)
            }
        }
    }

    fn answer<P: RdmaDevice + ?Sized>(
        &mut self,
        id: RequestId,
        volume: Option<VolumeId>,
        result: Result<Window, Errno>,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let served = self.transport.respond(id, result, ctx);
        if let (Some(served), Some(volume)) = (served, volume) {
            books_of(&mut self.books, volume).stats.count(&served, result.is_ok());
        }
    }

    fn interpret(&mut self, request: &Request, volumes: &mut Volumes) -> Outcome {
        let mut bytes = [0; Io::SIZE];
        let Some(bytes) = bytes.get_mut(..request.user.len()) else {
            return Outcome::Answer(self.manage(request, volumes), None);
        };
        let parsed = request.user.read(0, bytes).map(|()| wire::Request::parse(bytes));
        match parsed {
            Ok(Ok(wire::Request::Io(io))) => submit(&self.sessions, request, &io, volumes),
            Ok(Ok(wire::Request::Close(close))) => {
                // As in Linux, a device that is not open is closed.
                self.close(request.session, close.device);
                Outcome::Answer(Ok(Window::empty()), None)
            }
            _ => Outcome::Answer(Err(Errno::EINVAL), None),
        }
    }

    /// SESS_INFO and OPEN, whose answers are staged in the chunk. They are reads: nothing could be
    /// answered to a write.
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

    /// A volume has done what was pending.
    pub(super) fn complete<P: RdmaDevice + ?Sized>(
        &mut self,
        volume: VolumeId,
        completion: &Completion,
        ctx: &mut EngineContext<'_, P>,
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

    /// A volume has room again.
    pub(super) fn retry<P: RdmaDevice + ?Sized>(
        &mut self,
        volume: VolumeId,
        volumes: &mut Volumes,
        ctx: &mut EngineContext<'_, P>,
    ) {
        while let Some(id) = books_of(&mut self.books, volume).waiting.pop_front() {
            let Some(request) = self.transport.request(id, ctx) else {
                self.answer(id, None, Err(Errno::ECONNABORTED), ctx);
                continue;
            };
            if let Some(busy) = self.execute(&request, volumes, ctx) {
                books_of(&mut self.books, busy).waiting.push_front(id);
                return;
            }
        }
    }
}

/// Gives an I/O to its volume. Data goes the way that the operation has: only a read's answer has any.
#[inline(always)]
fn submit(sessions: &[Session], request: &Request, io: &Io, volumes: &mut Volumes) -> Outcome {
    let device = sessions.get(request.session.index()).and_then(|s| s.device(io.device));
    let Some(device) = device else { return Outcome::Answer(Err(Errno::ENOTCONN), None) };
    let volume = device.opened.volume;
    let refuse = |errno| Outcome::Answer(Err(errno), Some(volume));
    let writes = !matches!(io.operation, Operation::Read | Operation::Flush);
    if writes && device.opened.mode == AccessMode::ReadOnly {
        return refuse(Errno::EROFS);
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
            // Only who names a device before it was told of it comes so soon.
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
    let wanted = volume::Request { tag: tag.into(), operation, sector: io.sector, data };
    let Some(submitted) = volumes.submit(volume, &wanted) else { return refuse(Errno::ENXIO) };
    match submitted {
        // All of it, and nothing else.
        Ok(Submitted::Lent(lent)) if tag & READS != 0 && lent.len() == data.len() => {
            Outcome::Answer(Ok(lent), Some(volume))
        }
        // Of a write nothing is sent.
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
        VolumeError::Unsupported => Errno::EOPNOTSUPP,
    }
}
