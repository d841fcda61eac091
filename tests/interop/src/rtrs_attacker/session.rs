//! What a stranger does once it is let in: sessions, and requests of any content in them.

use anyhow::{Context, Result, anyhow, bail};
use drivers::hal::Window;
use rand::Rng;
use rtrs::Errno;
use rtrs::wire::{
    Addressing as Places, ConnectRequest, ConnectResponse, Descriptor, Immediate, InfoRequest,
    InfoResponse, IoHeader, RkeyResponse, Uuid,
};
use verbs::{
    Access, CompletedOperation, Completion, ConnectionEvent, Payload, Provider, RemoteAddress,
    SendOperation, SendWith, Status,
};

use super::{Line, Stranger};
use crate::host::Resident;

/// Bytes that reads can bring.
const DATA: usize = 64 << 10;

/// A session whose INFO exchange is done: a service connection, and one for I/O.
pub struct Session {
    lines: Vec<Line>,
    /// The chunks, with their keys of the moment.
    pub chunks: Vec<Descriptor>,
    /// Where reads go, and how the server names it.
    pub data: (Window, Descriptor),
    places: Places,
    staging: Window,
}

/// A request as it goes onto the wire. [`Session::write`] and [`Session::read`] make honest ones.
#[derive(Clone, Debug)]
pub struct Request {
    /// The chunk that the immediate names.
    pub chunk: u16,
    /// The place in it that the immediate names.
    pub offset: u32,
    /// Where the bytes are written, …
    pub address: u64,
    /// … under which key, …
    pub key: u32,
    /// … and what they are.
    pub bytes: Vec<u8>,
}

impl Session {
    /// A request that brings `data`.
    pub fn write(&self, chunk: u16, user: &[u8], data: &[u8]) -> Request {
        let header = IoHeader::Write { user_len: user.len() as u16 };
        self.request(chunk, data.len(), &[data, user], header, 0)
    }

    /// A request for `length` bytes.
    pub fn read(&self, chunk: u16, user: &[u8], length: u32) -> Request {
        let into = Some(Descriptor { length, ..self.data.1 });
        let user_len = user.len() as u16;
        let header = IoHeader::Read { user_len, need_invalidate: true, into };
        self.request(chunk, length as usize, &[user], header, length)
    }

    /// The same with another header.
    pub fn request(
        &self,
        chunk: u16,
        data_len: usize,
        parts: &[&[u8]],
        header: IoHeader,
        skipped: u32,
    ) -> Request {
        let Descriptor { address, key, .. } = self.chunks[usize::from(chunk)];
        let mut bytes = parts.concat();
        let user_len = bytes.len() + skipped as usize - data_len;
        let (header, len) = header.emit();
        bytes.extend(&header[..len]);
        let offset = (data_len + user_len) as u32;
        Request { chunk, offset, address: address + u64::from(skipped), key, bytes }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Answered.
    Answered(Result<(), Errno>),
    /// The transport refused it.
    Nak(Status),
    /// The server ended the path without an answer.
    Closed,
}

impl Stranger {
    /// A session with these bytes as its name, made as an honest client does; none if the server ends it
    /// at its name.
    pub fn session(&mut self, name: &[u8]) -> Result<Option<Session>> {
        let mut request = ConnectRequest {
            cid: 0,
            cid_num: 2,
            recon_cnt: 1,
            path: Uuid(self.host.rng.random()),
            session: Uuid(self.host.rng.random()),
            first: true,
        };
        let mut lines = Vec::new();
        for cid in 0..2 {
            request.cid = cid;
            let (knock, line) = self.knock(1234, &request.emit())?;
            lines.push(line.with_context(|| format!("connection {cid}: {knock:?}"))?);
        }
        let Some(ConnectResponse::Accepted { queue_depth, max_io_size, max_header, .. }) =
            self.offer
        else {
            bail!("the server offers {:?}", self.offer)
        };
        let chunk_size = max_io_size + max_header;
        let staging = self.host.arena.alloc(chunk_size as usize + 4096, 64).context("memory")?;
        let data = self.host.arena.alloc(DATA, 64).context("memory")?;
        let region =
            self.host.roce.register(self.host.pd, data, Access::REMOTE_WRITE, &mut self.host.rng);
        let region = region.map_err(|error| anyhow!("no region: {error:?}"))?;
        let into = Descriptor { address: region.address, key: region.rkey, length: DATA as u32 };
        let mut session = Session {
            lines,
            chunks: Vec::new(),
            data: (data, into),
            places: Places::new(queue_depth),
            staging,
        };
        let mut bytes = [0; InfoRequest::SIZE];
        bytes[2..2 + name.len()].copy_from_slice(name);
        let message = session.staging.slice(0, bytes.len()).context("staging")?;
        message.write(0, &bytes).map_err(|_| anyhow!("staging"))?;
        let payload = Payload::Windows(&[message]);
        self.post(&session.lines[0], SendOperation::Send { payload, with: SendWith::Nothing })?;
        let info = self.until("INFO", |stranger| match stranger.look(&session) {
            Some(Look::Message { line: 0, length, .. }) => Some(Some(length as usize)),
            Some(Look::Failed(_) | Look::Closed) => Some(None),
            _ => None,
        })?;
        let Some(length) = info else {
            self.leave(session);
            return Ok(None);
        };
        let mut message = vec![0; length];
        let read = session.lines[0].receive(0)?.read(0, &mut message);
        read.map_err(|_| anyhow!("INFO_RSP is too long"))?;
        InfoResponse::parse(&message).map_err(|error| anyhow!("INFO_RSP: {error}"))?;
        for all in InfoResponse::descriptors(&message) {
            for n in 0..all.length / chunk_size {
                let address = all.address + u64::from(n * chunk_size);
                session.chunks.push(Descriptor { address, length: chunk_size, ..all });
            }
        }
        Ok(Some(session))
    }

    /// Ends a session in order.
    pub fn leave(&mut self, session: Session) {
        for line in session.lines {
            self.hang_up(line);
        }
        self.host.arena.free(session.staging);
        // The region goes with the engine; its memory stays until then.
    }

    /// Sends a request on the I/O connection and waits for what becomes of it.
    pub fn send(&mut self, session: &mut Session, request: &Request) -> Result<Fate> {
        let payload = session.staging.slice(0, request.bytes.len()).context("staging")?;
        payload.write(0, &request.bytes).map_err(|_| anyhow!("staging"))?;
        let place = session.places.join(request.chunk, request.offset);
        let operation = SendOperation::Write {
            payload: Payload::Windows(&[payload]),
            to: RemoteAddress { address: request.address, rkey: request.key },
            immediate: Some(Immediate::Request { place }.emit()),
        };
        self.post(&session.lines[1], operation)?;
        self.until("a request", |stranger| match stranger.look(session)? {
            Look::Failed(status) => Some(Fate::Nak(status)),
            Look::Closed => Some(Fate::Closed),
            Look::Message { immediate: Some(immediate), key, .. } => {
                let Immediate::Response { message, result, .. } = Immediate::parse(immediate)
                else {
                    return None;
                };
                if let (Some(key), Some(chunk)) = (key, session.chunks.get_mut(message as usize)) {
                    chunk.key = key;
                }
                (message == u32::from(request.chunk)).then_some(Fate::Answered(result))
            }
            Look::Message { .. } => None,
        })
    }

    /// What has happened to a session.
    fn look(&mut self, session: &Session) -> Option<Look> {
        while let Some(completion) = self.host.roce.poll_cq(self.host.cq) {
            let found = session.lines.iter().position(|line| line.qp == completion.qp);
            let Some(line) = found else { continue };
            if let Some(look) = self.look_at(&session.lines[line], line, &completion) {
                return Some(look);
            }
        }
        while let Some(event) = self.events.pop_front() {
            if let ConnectionEvent::Disconnected { connection } = event
                && session.lines.iter().any(|line| line.id == connection)
            {
                return Some(Look::Closed);
            }
        }
        None
    }

    fn look_at(&mut self, line: &Line, number: usize, completion: &Completion) -> Option<Look> {
        match (completion.status, completion.operation) {
            (Status::Flushed, _) => None,
            (Status::Success, CompletedOperation::Send) => None,
            (Status::Success, operation) => {
                let (length, immediate) = match operation {
                    CompletedOperation::Recv { length, with: SendWith::Immediate(immediate) } => {
                        (length, Some(immediate))
                    }
                    CompletedOperation::RecvWriteImmediate { immediate, .. } => {
                        (0, Some(immediate))
                    }
                    CompletedOperation::Recv { length, .. } => (length, None),
                    CompletedOperation::Send | CompletedOperation::KeyChanged { .. } => {
                        return None;
                    }
                };
                let mut bytes = [0; RkeyResponse::SIZE];
                let into = line.receive(completion.id).ok()?;
                let read = length as usize == bytes.len() && into.read(0, &mut bytes).is_ok();
                let key = RkeyResponse::parse(&bytes).ok().filter(|_| read).map(|r| r.rkey);
                // INFO_RSP stays where it is.
                if completion.id != 0 {
                    // Fails only when the connection has ended, of which there is an event.
                    let _ = self.post_receive(line, completion.id);
                }
                Some(Look::Message { line: number, length, immediate, key })
            }
            (status, _) => Some(Look::Failed(status)),
        }
    }
}

/// What a look at a session shows.
enum Look {
    /// A message on a line, with its immediate and the next key of a chunk, if it has them.
    Message { line: usize, length: u32, immediate: Option<u32>, key: Option<u32> },
    /// A request of ours failed.
    Failed(Status),
    /// A connection ended.
    Closed,
}
