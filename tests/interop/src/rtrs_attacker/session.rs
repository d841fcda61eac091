//! The attacker's RTRS sessions, and requests of any content in them.

use anyhow::{Context, Result, anyhow, bail};
use drivers::hal::Window;
use rand::RngExt;
use rtrs::Errno;
use rtrs::wire::{
    Addressing as Places, ConnectRequest, ConnectResponse, Descriptor, Immediate, InfoRequest,
    InfoResponse, IoHeader, RkeyResponse, Uuid,
};
use verbs::{
    Access, CompletedOperation, Completion, ConnectionEvent, MemoryVerbs, Payload, Provider,
    RemoteAddress, SendOperation, SendWith, Status,
};

use super::{Connection, Stranger};
use crate::host::HostLoop;

/// Bytes of the buffer for reads.
const DATA: usize = 64 << 10;

/// A session whose INFO exchange is done: a service connection, and one for I/O.
pub struct Session {
    connections: Vec<Connection>,
    /// The server's chunks, with their current keys.
    pub chunks: Vec<Descriptor>,
    /// The buffer for reads, and its descriptor for the server.
    pub data: (Window, Descriptor),
    places: Places,
    staging: Window,
}

/// A request as it is sent. [`Session::write`] and [`Session::read`] make valid ones.
#[derive(Clone, Debug)]
pub struct Request {
    /// The chunk in the immediate.
    pub chunk: u16,
    /// The offset in the immediate.
    pub offset: u32,
    /// Remote address of the RDMA WRITE.
    pub address: u64,
    /// Remote key of the RDMA WRITE.
    pub key: u32,
    /// Payload of the RDMA WRITE.
    pub bytes: Vec<u8>,
}

impl Session {
    /// A request to write `data`.
    pub fn write(&self, chunk: u16, user: &[u8], data: &[u8]) -> Request {
        let header = IoHeader::Write { user_len: user.len() as u16 };
        self.request(chunk, data.len(), &[data, user], header, 0)
    }

    /// A request to read `length` bytes.
    pub fn read(&self, chunk: u16, user: &[u8], length: u32) -> Request {
        let into = Some(Descriptor { length, ..self.data.1 });
        let user_len = user.len() as u16;
        let header = IoHeader::Read { user_len, need_invalidate: true, into };
        self.request(chunk, length as usize, &[user], header, length)
    }

    /// A request with any header. The first `skipped` bytes of the chunk are not written.
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

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Answered.
    Answered(Result<(), Errno>),
    /// The transport reported an error.
    Nak(Status),
    /// The server ended the path without an answer.
    Closed,
}

impl Stranger {
    /// Opens a session as a stock client does, with these bytes as its name. Returns None if the server rejects the
    /// name.
    pub fn session(&mut self, name: &[u8]) -> Result<Option<Session>> {
        let mut request = ConnectRequest {
            cid: 0,
            cid_num: 2,
            recon_cnt: 1,
            path: Uuid(self.host.rng.random()),
            session: Uuid(self.host.rng.random()),
            first: true,
        };
        let mut connections = Vec::new();
        for cid in 0..2 {
            request.cid = cid;
            let (outcome, connection) = self.connect(1234, &request.emit())?;
            connections.push(connection.with_context(|| format!("connection {cid}: {outcome:?}"))?);
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
            connections,
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
        self.post(
            &session.connections[0],
            SendOperation::Send { payload, with: SendWith::Nothing },
        )?;
        let info = self.until("INFO", |stranger| match stranger.poll_session(&session) {
            Some(SessionEvent::Message { connection: 0, length, .. }) => {
                Some(Some(length as usize))
            }
            Some(SessionEvent::Failed(_) | SessionEvent::Closed) => Some(None),
            _ => None,
        })?;
        let Some(length) = info else {
            self.leave(session);
            return Ok(None);
        };
        let mut message = vec![0; length];
        let read = session.connections[0].receive_buffer(0)?.read(0, &mut message);
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

    /// Closes a session.
    pub fn leave(&mut self, session: Session) {
        for connection in session.connections {
            self.disconnect(connection);
        }
        self.host.arena.free(session.staging);
        // The region stays registered until the engine is dropped, so its memory is not freed.
    }

    /// Sends a request on the I/O connection, and waits for its outcome.
    pub fn send(&mut self, session: &mut Session, request: &Request) -> Result<Fate> {
        let payload = session.staging.slice(0, request.bytes.len()).context("staging")?;
        payload.write(0, &request.bytes).map_err(|_| anyhow!("staging"))?;
        let place = session.places.join(request.chunk, request.offset);
        let operation = SendOperation::Write {
            payload: Payload::Windows(&[payload]),
            to: RemoteAddress { address: request.address, rkey: request.key },
            immediate: Some(Immediate::Request { place }.emit()),
        };
        self.post(&session.connections[1], operation)?;
        self.until("a request", |stranger| match stranger.poll_session(session)? {
            SessionEvent::Failed(status) => Some(Fate::Nak(status)),
            SessionEvent::Closed => Some(Fate::Closed),
            SessionEvent::Message { immediate: Some(immediate), key, .. } => {
                let Immediate::Response { message, result, .. } = Immediate::parse(immediate)
                else {
                    return None;
                };
                if let (Some(key), Some(chunk)) = (key, session.chunks.get_mut(message as usize)) {
                    chunk.key = key;
                }
                (message == u32::from(request.chunk)).then_some(Fate::Answered(result))
            }
            SessionEvent::Message { .. } => None,
        })
    }

    /// Takes the next event of a session.
    fn poll_session(&mut self, session: &Session) -> Option<SessionEvent> {
        while let Some(completion) = self.host.roce.poll_cq(self.host.cq) {
            let found =
                session.connections.iter().position(|connection| connection.qp == completion.qp);
            let Some(number) = found else { continue };
            let connection = &session.connections[number];
            if let Some(event) = self.session_event(connection, number, &completion) {
                return Some(event);
            }
        }
        while let Some(event) = self.events.pop_front() {
            if let ConnectionEvent::Disconnected { connection } = event
                && session.connections.iter().any(|one| one.id == connection)
            {
                return Some(SessionEvent::Closed);
            }
        }
        None
    }

    fn session_event(
        &mut self,
        connection: &Connection,
        number: usize,
        completion: &Completion,
    ) -> Option<SessionEvent> {
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
                let into = connection.receive_buffer(completion.id).ok()?;
                let read = length as usize == bytes.len() && into.read(0, &mut bytes).is_ok();
                let key = RkeyResponse::parse(&bytes).ok().filter(|_| read).map(|r| r.rkey);
                // INFO_RSP stays in its buffer, which is not posted again.
                if completion.id != 0 {
                    // Fails only after a disconnect, which has an event of its own.
                    let _ = self.post_receive(connection, completion.id);
                }
                Some(SessionEvent::Message { connection: number, length, immediate, key })
            }
            (status, _) => Some(SessionEvent::Failed(status)),
        }
    }
}

/// An event of a session.
enum SessionEvent {
    /// A message on a connection, with its immediate and the next key of a chunk, if present.
    Message { connection: usize, length: u32, immediate: Option<u32>, key: Option<u32> },
    /// A send request failed.
    Failed(Status),
    /// The server disconnected.
    Closed,
}
