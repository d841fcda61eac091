//! One connection of the server, without its TCP socket: bytes in, bytes out.

use super::request;
use super::response::{Body, Read, Response, Status};
use super::{Handler, Limits, Request};
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Bytes of a stream that are asked for at a time.
const CHUNK: usize = 4096;
/// Room for the size of a chunk: four hexadecimal digits and a line end.
const CHUNK_HEADER: usize = 6;

/// How long a new connection's first request is waited for before it counts as quiet.
const FRESH: Duration = Duration::from_secs(1);

/// The body of the answer that is being sent.
#[derive(Debug)]
enum Sending {
    /// No answer is under way.
    Nothing,
    Bytes {
        bytes: Cow<'static, [u8]>,
        sent: usize,
    },
    /// `left`: bytes that were promised; None: chunked, or until the connection closes.
    Stream {
        id: u64,
        left: Option<u64>,
        chunked: bool,
    },
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    from: SocketAddr,
    input: Vec<u8>,
    /// How much of the input was looked through for the end of the head.
    seen: usize,
    /// Length of the request in `input`, once its head is understood.
    need: Option<usize>,
    output: Vec<u8>,
    sent: usize,
    sending: Sending,
    /// A request was answered.
    used: bool,
    /// No further request is taken.
    last: bool,
    broken: bool,
    /// The handler had no bytes when it was asked last.
    pending: bool,
    /// How often the handler was asked.
    turns: u64,
    /// When the current state began: quiet, a request, or the last progress of an answer.
    since: Instant,
}

impl Connection {
    /// A connection of `from` that was accepted at `now`.
    pub fn new(limits: Limits, from: SocketAddr, now: Instant) -> Self {
        Connection {
            limits,
            from,
            input: Vec::new(),
            seen: 0,
            need: None,
            output: Vec::new(),
            sent: 0,
            sending: Sending::Nothing,
            used: false,
            last: false,
            broken: false,
            pending: false,
            turns: 0,
            since: now,
        }
    }

    /// Who is at the other end.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// How often the handler was asked for something: each time costs what the handler makes of it.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Takes in what the client sent; returns how much of it, the rest has to wait.
    pub fn handle_input(&mut self, bytes: &[u8], now: Instant) -> usize {
        if self.last {
            return bytes.len();
        }
        let room = self.need.unwrap_or(self.limits.head).saturating_sub(self.input.len());
        let taken = bytes.len().min(room);
        if self.input.is_empty() && taken > 0 && !self.is_answering() {
            self.since = now;
        }
        self.input.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        taken
    }

    /// The client will send nothing more.
    pub fn handle_end(&mut self) {
        self.last |= !self.is_answering() && !self.is_complete();
    }

    /// Has a complete request answered, and looks after the time.
    pub fn poll(&mut self, handler: &mut dyn Handler, now: Instant) {
        if self.is_answering() || self.last {
            self.broken |= self.is_answering() && self.since + self.limits.stall <= now;
            return;
        }
        if self.input.is_empty() {
            self.last = self.since + self.limits.idle <= now;
        } else if self.since + self.limits.request <= now {
            self.refuse(Status::REQUEST_TIMEOUT, now);
        } else if !self.find_head_end() {
            if self.input.len() >= self.limits.head {
                self.refuse(Status::HEADERS_TOO_LARGE, now);
            }
        } else {
            self.take_request(handler, now);
        }
    }

    /// Whether the input holds the blank line that ends a head.
    fn find_head_end(&mut self) -> bool {
        if self.need.is_some() {
            return true;
        }
        let unseen = self.input.get(self.seen.saturating_sub(3)..).unwrap_or_default();
        let found = unseen.windows(2).any(|w| w == b"\n\n")
            || unseen.windows(4).any(|w| w == b"\r\n\r\n")
            || unseen.windows(3).any(|w| w == b"\n\r\n");
        if !found {
            self.seen = self.input.len();
        }
        found
    }

    fn is_complete(&self) -> bool {
        self.need.is_some_and(|need| self.input.len() >= need)
    }

    fn take_request(&mut self, handler: &mut dyn Handler, now: Instant) {
        if self.need.is_some() && !self.is_complete() {
            return;
        }
        let head = match request::parse(&self.input, self.limits.body) {
            Ok(head) => head,
            Err(status) => return self.refuse(status, now),
        };
        let need = head.length + head.body;
        let Some(body) = self.input.get(head.length..need) else {
            if head.expects {
                self.output.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            self.need = Some(need);
            return;
        };
        self.turns += 1;
        let response = handler.handle(&Request {
            from: self.from,
            method: head.method,
            head_only: head.head_only,
            path: head.path,
            query: head.query,
            body,
            host: head.host,
            origin: head.origin,
            bearer: head.bearer,
        });
        self.used = true;
        self.last = !head.keep;
        let chunked = write_head(&mut self.output, &response, head.modern, head.keep);
        self.sending = match response.body {
            Body::Bytes(bytes) if !head.head_only => Sending::Bytes { bytes, sent: 0 },
            Body::Bytes(_) => Sending::Bytes { bytes: Cow::Borrowed(&[]), sent: 0 },
            Body::Stream { id, .. } if head.head_only => {
                handler.close(id);
                Sending::Bytes { bytes: Cow::Borrowed(&[]), sent: 0 }
            }
            Body::Stream { id, length } => {
                self.last |= length.is_none() && !chunked;
                Sending::Stream { id, left: length, chunked }
            }
        };
        self.input.drain(..need);
        self.input.shrink_to(self.limits.head);
        self.seen = 0;
        self.need = None;
        self.since = now;
    }

    /// Answers `status` and takes no further request: where the next would begin is not known.
    fn refuse(&mut self, status: Status, now: Instant) {
        let response = Response::error(status);
        write_head(&mut self.output, &response, true, false);
        if let Body::Bytes(bytes) = response.body {
            self.sending = Sending::Bytes { bytes, sent: 0 };
        }
        self.input = Vec::new();
        self.last = true;
        self.since = now;
    }

    /// What is to be sent next; empty if there is nothing at present.
    pub fn output(&mut self, handler: &mut dyn Handler, now: Instant) -> &[u8] {
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
            self.refill(handler, now);
        }
        match &self.sending {
            Sending::Bytes { bytes, sent } if self.output.is_empty() => {
                bytes.get(*sent..).unwrap_or_default()
            }
            _ => self.output.get(self.sent..).unwrap_or_default(),
        }
    }

    /// The first `count` bytes of [`Connection::output`] were sent.
    pub fn consume(&mut self, count: usize, now: Instant) {
        if count > 0 {
            self.since = now;
        }
        if self.sent < self.output.len() {
            self.sent += count;
        } else if let Sending::Bytes { sent, .. } = &mut self.sending {
            *sent += count;
        }
        let all = self.sent == self.output.len();
        if let Sending::Bytes { bytes, sent } = &self.sending
            && all
            && *sent == bytes.len()
        {
            self.sending = Sending::Nothing;
        }
    }

    /// Asks the handler for the next part of a stream.
    fn refill(&mut self, handler: &mut dyn Handler, now: Instant) {
        let Sending::Stream { id, left, chunked } = self.sending else { return };
        let most = left.map_or(CHUNK, |left| usize::try_from(left).map_or(CHUNK, |l| l.min(CHUNK)));
        let start = if chunked { CHUNK_HEADER } else { 0 };
        self.output.resize(start + most, 0);
        let read = match self.output.get_mut(start..) {
            Some(room) if most > 0 => {
                self.turns += 1;
                handler.read(id, room)
            }
            _ => Read::End,
        };
        self.pending = read == Read::Pending;
        match read {
            Read::Bytes(count) => {
                let count = count.min(most);
                self.output.truncate(start + count);
                if chunked {
                    write_chunk_size(&mut self.output, count);
                    self.output.extend_from_slice(b"\r\n");
                }
                let left = left.map(|left| left - count as u64);
                self.sending = Sending::Stream { id, left, chunked };
            }
            Read::Pending => {
                self.output.clear();
                // It is not the client who is slow.
                self.since = now;
            }
            Read::End => {
                self.output.clear();
                self.sending = Sending::Nothing;
                if chunked {
                    self.output.extend_from_slice(b"0\r\n\r\n");
                    self.sending = Sending::Bytes { bytes: Cow::Borrowed(&[]), sent: 0 };
                }
                // Less than was promised: the client must see that it is not whole.
                self.broken |= left.is_some_and(|left| left > 0);
                handler.close(id);
            }
        }
    }

    /// Gives up what is being sent, because the connection is gone.
    pub fn abandon(&mut self, handler: &mut dyn Handler) {
        if let Sending::Stream { id, .. } = self.sending {
            handler.close(id);
        }
        self.sending = Sending::Nothing;
        self.broken = true;
    }

    /// Whether an answer is under way.
    fn is_answering(&self) -> bool {
        !matches!(self.sending, Sending::Nothing)
    }

    /// Whether it is quiet: between two requests, or without any for a while.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let fresh = !self.used && now < self.since + FRESH;
        !self.is_answering() && self.input.is_empty() && !fresh
    }

    /// When it will be quiet, if nothing more comes.
    pub fn quiet_at(&self) -> Option<Instant> {
        let waits = !self.is_answering() && self.input.is_empty();
        waits.then(|| if self.used { self.since } else { self.since + FRESH })
    }

    /// Whether everything is said and sent: close it.
    pub fn is_finished(&self) -> bool {
        self.last && !self.is_answering() && self.sent == self.output.len()
    }

    /// Whether it has to be reset: the client is stuck, or the answer cannot be completed.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether there is something to ask the handler for at once: the next request is there, or the next part
    /// of an answer can be sent.
    pub fn wants_turn(&self) -> bool {
        match self.sending {
            Sending::Nothing => !self.last && !self.input.is_empty(),
            Sending::Stream { .. } => self.sent == self.output.len() && !self.pending,
            Sending::Bytes { .. } => false,
        }
    }

    /// Whether the handler has to be asked again for bytes that it did not have.
    pub fn is_pending(&self) -> bool {
        self.pending && self.is_answering()
    }

    /// Since when it is in its present state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// When [`Connection::poll`] has something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Instant {
        if self.is_answering() {
            self.since + self.limits.stall
        } else if self.input.is_empty() {
            self.since + self.limits.idle
        } else {
            self.since + self.limits.request
        }
    }
}

/// Appends the head of an answer; true if its body is to be sent in chunks.
fn write_head(output: &mut Vec<u8>, response: &Response, modern: bool, keep: bool) -> bool {
    let mut text = Text(output);
    let length = match &response.body {
        Body::Bytes(bytes) => Some(bytes.len() as u64),
        Body::Stream { length, .. } => *length,
    };
    let chunked = length.is_none() && modern;
    let keep = keep && (length.is_some() || chunked);
    // Writing to memory does not fail.
    let _ = write!(text, "HTTP/1.1 {}\r\n", response.status);
    let _ = write!(text, "Content-Type: {}\r\n", response.content_type);
    if let Some(length) = length {
        let _ = write!(text, "Content-Length: {length}\r\n");
    } else if chunked {
        let _ = write!(text, "Transfer-Encoding: chunked\r\n");
    }
    if !response.allow.is_empty() {
        let _ = write!(text, "Allow: {}\r\n", response.allow);
    }
    if !response.challenge.is_empty() {
        let _ = write!(text, "WWW-Authenticate: {}\r\n", response.challenge);
    }
    match (keep, modern) {
        (false, _) => drop(write!(text, "Connection: close\r\n")),
        (true, false) => drop(write!(text, "Connection: keep-alive\r\n")),
        (true, true) => (),
    }
    let _ = write!(text, "\r\n");
    chunked
}

/// Writes the size of a chunk into the room left for it at the start of `chunk`.
fn write_chunk_size(chunk: &mut [u8], size: usize) {
    let digits = [12, 8, 4, 0].map(|shift| b"0123456789abcdef"[size >> shift & 15]);
    let header = [digits[0], digits[1], digits[2], digits[3], b'\r', b'\n'];
    for (to, from) in chunk.iter_mut().zip(header) {
        *to = from;
    }
}

/// Formatted text as bytes.
struct Text<'a>(&'a mut Vec<u8>);

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
