//! One connection of the server, without its TCP socket: bytes in, bytes out.

use super::request;
use super::response::{Body, Read, Response, Status};
use super::{Handler, Limits, Request};
use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt::{self, Write};
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
    /// When the current state began: quiet, a request, or the last progress of an answer.
    since: Instant,
}

impl Connection {
    /// A connection that was accepted at `now`.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Connection {
            limits,
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
            since: now,
        }
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
        let response = handler.handle(&Request {
            method: head.method,
            path: head.path,
            query: head.query,
            body,
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
            Some(room) if most > 0 => handler.read(id, room),
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

    /// Whether everything is said and sent: close it.
    pub fn is_finished(&self) -> bool {
        self.last && !self.is_answering() && self.sent == self.output.len()
    }

    /// Whether it has to be reset: the client is stuck, or the answer cannot be completed.
    pub fn is_broken(&self) -> bool {
        self.broken
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
mod tests {
    use super::super::Method;
    use super::*;
    use proptest::prelude::*;
    use std::format;
    use std::string::{String, ToString};

    const T0: Instant = Instant::ZERO;

    /// `/echo` answers the body, `/count/N` streams N letters in unequal parts.
    #[derive(Default)]
    struct Routes {
        left: usize,
        pending: bool,
        closed: Vec<u64>,
    }

    impl Handler for Routes {
        fn handle(&mut self, request: &Request<'_>) -> Response {
            let text = String::from_utf8_lossy(request.body).to_string();
            match (request.method, request.path) {
                (Method::Get, "/") => Response::new(Status::OK, Response::TEXT, "hello"),
                (Method::Post, "/echo") => Response::new(Status::OK, Response::TEXT, text),
                (_, "/echo") => Response::method_not_allowed("POST"),
                (_, path) if path.starts_with("/count/") => {
                    self.left = path[7..].parse().unwrap();
                    let known = request.query == "known";
                    Response::stream(Response::TEXT, 5, known.then_some(self.left as u64))
                }
                _ => Response::error(Status::NOT_FOUND),
            }
        }

        fn read(&mut self, stream: u64, into: &mut [u8]) -> Read {
            assert_eq!(stream, 5);
            self.pending = !self.pending;
            let count = into.len().min(self.left).min(1000);
            match count {
                0 => Read::End,
                _ if self.pending => Read::Pending,
                _ => {
                    into[..count].fill(b'#');
                    self.left -= count;
                    Read::Bytes(count)
                }
            }
        }

        fn close(&mut self, stream: u64) {
            self.closed.push(stream);
        }
    }

    /// Sends `input` in parts of `part` bytes; what came back, and the connection.
    fn talk(input: &[u8], part: usize) -> (String, Connection, Routes) {
        let (mut connection, mut routes) =
            (Connection::new(Limits::default(), T0), Routes::default());
        let mut answer = Vec::new();
        let mut rest = input;
        let mut quiet = 0;
        while quiet < 4 {
            let taken = connection.handle_input(&rest[..rest.len().min(part)], T0);
            rest = &rest[taken..];
            connection.poll(&mut routes, T0);
            let bytes = connection.output(&mut routes, T0);
            let sent = bytes.len().min(part);
            answer.extend_from_slice(&bytes[..sent]);
            connection.consume(sent, T0);
            quiet = if taken + sent > 0 { 0 } else { quiet + 1 };
        }
        (String::from_utf8(answer).unwrap(), connection, routes)
    }

    #[test]
    fn answers_and_keeps_the_connection() {
        for part in [1, 7, 10_000] {
            let (answer, connection, _) = talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", part);
            let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\
                Content-Length: 5\r\n\r\nhello";
            assert_eq!(answer, expected);
            assert!(connection.is_quiet(T0) && !connection.is_finished());
        }
    }

    #[test]
    fn answers_pipelined_requests_in_order() {
        let input = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none\
            HEAD / HTTP/1.1\r\nHost: a\r\n\r\n\
            GET /echo HTTP/1.1\r\nHost: a\r\n\r\n\
            GET /no HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET / ignored";
        for part in [1, 5, 10_000] {
            let (answer, connection, _) = talk(input, part);
            let heads: Vec<&str> = answer.matches("HTTP/1.1 ").collect();
            assert_eq!(heads.len(), 4, "{answer}");
            let at = |text: &str| answer.find(text).unwrap_or_else(|| panic!("{text} in {answer}"));
            assert!(at("\r\n\r\none") < at("Length: 5\r\n\r\nHTTP/1.1 405"));
            assert!(at("405 Method Not Allowed") < at("Allow: POST\r\n"));
            assert!(at("Allow: POST\r\n") < at("404 Not Found"));
            assert!(at("404 Not Found") < at("Connection: close\r\n"));
            assert!(connection.is_finished());
        }
    }

    #[test]
    fn streams_are_sent_in_chunks_or_by_length_or_to_the_end() {
        let get = |target: &str, version: &str, part| {
            talk(format!("GET {target} {version}\r\nHost: a\r\n\r\n").as_bytes(), part)
        };
        for part in [1, 999, 10_000] {
            let (answer, connection, routes) = get("/count/2500", "HTTP/1.1", part);
            assert!(answer.contains("Transfer-Encoding: chunked\r\n\r\n03e8\r\n###"));
            assert!(answer.ends_with("#\r\n0\r\n\r\n"));
            assert_eq!(answer.matches('#').count(), 2500);
            assert!(connection.is_quiet(T0));
            assert_eq!(routes.closed, [5]);
            let (answer, connection, _) = get("/count/2500?known", "HTTP/1.1", part);
            assert!(answer.contains("Content-Length: 2500\r\n\r\n###"));
            assert_eq!(answer.matches('#').count(), 2500);
            assert!(connection.is_quiet(T0));
            let (answer, connection, _) = get("/count/2500", "HTTP/1.0", part);
            assert!(answer.contains("Connection: close\r\n\r\n###") && answer.ends_with('#'));
            assert!(connection.is_finished());
        }
    }

    #[test]
    fn gives_leave_for_a_body() {
        let head =
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";
        let (answer, mut connection, mut routes) = talk(head, 9);
        assert_eq!(answer, "HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(connection.handle_input(b"abcGET", T0), 3, "the next request waits");
        connection.poll(&mut routes, T0);
        let answer = String::from_utf8_lossy(connection.output(&mut routes, T0)).to_string();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let (answer, connection, _) = talk(&[b'a'; 20_000], 1000);
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(connection.is_finished());
        let (answer, connection, _) =
            talk(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\nbody", 1000);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(connection.is_finished());
        let body = "b".repeat(65536);
        let request =
            format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n{body}");
        assert!(talk(request.as_bytes(), 1000).0.ends_with(&body));
    }

    #[test]
    fn the_slow_and_the_stuck_are_timed_out() {
        let limits = Limits::default();
        let (_, mut connection, mut routes) = talk(b"GET / HT", 100);
        assert_eq!(connection.poll_timeout(), T0 + limits.request);
        connection.poll(&mut routes, T0 + limits.request);
        let answer = connection.output(&mut routes, T0);
        assert!(answer.starts_with(b"HTTP/1.1 408 "));

        let (_, mut connection, mut routes) = talk(b"", 100);
        assert!(!connection.is_quiet(T0) && connection.is_quiet(T0 + FRESH));
        connection.poll(&mut routes, T0 + limits.idle);
        assert!(connection.is_finished(), "idle");

        let mut connection = Connection::new(limits, T0);
        connection.handle_input(b"GET /count/9 HTTP/1.1\r\nHost: a\r\n\r\n", T0);
        connection.poll(&mut routes, T0);
        assert!(!connection.output(&mut routes, T0).is_empty());
        connection.poll(&mut routes, T0 + limits.stall);
        assert!(connection.is_broken(), "takes nothing");
        connection.abandon(&mut routes);
        assert_eq!(routes.closed, [5]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_no_harm(
            start in prop_oneof![Just(&b""[..]), Just(&b"GET / HTTP/1.1\r\n"[..])],
            bytes in proptest::collection::vec(any::<u8>(), 0..500),
            part in 1usize..600,
        ) {
            let input = [start, &bytes, b"\r\n\r\n"].concat();
            let (answer, _, _) = talk(&input, part);
            prop_assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 "));
        }
    }
}
