//! One connection of the server, without its TCP socket: bytes in, bytes out.

use super::request;
use super::response::{Body, Read, Response, Status};
use super::{Handler, Limits, Request};
use crate::tls::ClientCertificate;
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;

/// Bytes of a stream that are requested from the handler at a time.
const CHUNK: usize = 4096;
/// Room for the size of a chunk: four hexadecimal digits and a line end.
const CHUNK_HEADER: usize = 6;

/// How long a new connection may wait for its first request before it counts as quiet.
const FRESH: Duration = Duration::from_secs(1);

/// The response body that is being sent.
#[derive(Debug)]
enum Sending {
    /// No response is being sent.
    Nothing,
    Bytes {
        bytes: Cow<'static, [u8]>,
        sent: usize,
    },
    /// `left` is the rest of `Content-Length`; None if the body is chunked or ends with the connection.
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
    /// The client's certificate.
    certificate: Option<Arc<ClientCertificate>>,
    input: Vec<u8>,
    /// Bytes of the input already searched for the end of the head.
    seen: usize,
    /// Length of the request in `input`, once its head is parsed.
    need: Option<usize>,
    output: Vec<u8>,
    sent: usize,
    sending: Sending,
    /// A request was answered.
    used: bool,
    /// No further request is accepted.
    last: bool,
    broken: bool,
    /// The handler returned [`Read::Pending`] at its last call.
    pending: bool,
    /// Calls of the handler.
    turns: u64,
    /// Start of the current state (quiet, or receiving a request), or last progress of a response.
    since: Instant,
}

impl Connection {
    /// A connection from the client `from`, accepted at `now`.
    pub fn new(limits: Limits, from: SocketAddr, now: Instant) -> Self {
        Connection {
            limits,
            from,
            certificate: None,
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

    /// Sets the client's certificate.
    pub fn set_certificate(&mut self, certificate: Option<Arc<ClientCertificate>>) {
        self.certificate = certificate;
    }

    /// The client's address.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Number of calls of the handler, for the scheduling of connections by their cost.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Accepts bytes from the client. Returns how many; the rest must be offered again later.
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

    /// Handles the client's FIN.
    pub fn handle_end(&mut self) {
        self.last |= !self.is_answering() && !self.is_complete();
    }

    /// Passes a complete request to the handler, and enforces time limits.
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
            certificate: self.certificate.as_deref(),
            if_match: head.if_match,
            if_none_match: head.if_none_match,
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

    /// Answers `status` and accepts no further request, because the start of the next one is unknown.
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

    /// Bytes to be sent next; empty if there are none at present.
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

    /// Marks the first `count` bytes of [`Connection::output`] as sent.
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

    /// Requests the next part of a stream from the handler.
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
                // The handler is slow, not the client.
                self.since = now;
            }
            Read::End => {
                self.output.clear();
                self.sending = Sending::Nothing;
                if chunked {
                    self.output.extend_from_slice(b"0\r\n\r\n");
                    self.sending = Sending::Bytes { bytes: Cow::Borrowed(&[]), sent: 0 };
                }
                // Shorter than `Content-Length`: the client must see that the body is incomplete.
                self.broken |= left.is_some_and(|left| left > 0);
                handler.close(id);
            }
        }
    }

    /// Closes the stream that is being sent, because the TCP connection is gone.
    pub fn abandon(&mut self, handler: &mut dyn Handler) {
        if let Sending::Stream { id, .. } = self.sending {
            handler.close(id);
        }
        self.sending = Sending::Nothing;
        self.broken = true;
    }

    /// Whether a response is being sent.
    fn is_answering(&self) -> bool {
        !matches!(self.sending, Sending::Nothing)
    }

    /// Whether it is quiet: between two requests, or without a request for a while.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let fresh = !self.used && now < self.since + FRESH;
        !self.is_answering() && self.input.is_empty() && !fresh
    }

    /// When it becomes quiet if no more bytes arrive.
    pub fn quiet_at(&self) -> Option<Instant> {
        let waits = !self.is_answering() && self.input.is_empty();
        waits.then(|| if self.used { self.since } else { self.since + FRESH })
    }

    /// Whether all responses are sent and the connection must be closed.
    pub fn is_finished(&self) -> bool {
        self.last && !self.is_answering() && self.sent == self.output.len()
    }

    /// Whether it must be reset: the client stalls, or the response cannot be completed.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the handler can be called at once: input is waiting, or the next part of a response can be sent.
    pub fn wants_turn(&self) -> bool {
        match self.sending {
            Sending::Nothing => !self.last && !self.input.is_empty(),
            Sending::Stream { .. } => self.sent == self.output.len() && !self.pending,
            Sending::Bytes { .. } => false,
        }
    }

    /// Whether the handler must be called again for bytes that were pending.
    pub fn is_pending(&self) -> bool {
        self.pending && self.is_answering()
    }

    /// Start of its present state.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// When [`Connection::poll`] is due if no bytes arrive.
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

/// Appends the head of a response. Returns whether its body is sent in chunks.
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
    if !response.etag.is_empty() {
        let _ = write!(text, "ETag: {}\r\n", response.etag);
    }
    let _ = write!(text, "{}", response.headers);
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

/// Writes the size of a chunk into the space reserved at the start of `chunk`.
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
