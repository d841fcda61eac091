//! HTTP connections without TCP: framing, streams, limits and timeouts.

use super::*;
use crate::http::Method;
use proptest::prelude::*;
use std::format;
use std::string::{String, ToString};

const T0: Instant = Instant::ZERO;
const FROM: SocketAddr = SocketAddr::new(core::net::IpAddr::V4(core::net::Ipv4Addr::LOCALHOST), 9);

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
            (Method::Get, "/page") => Response {
                headers: "Content-Encoding: deflate\r\nCache-Control: no-cache\r\n",
                ..Response::new(Status::OK, Response::TEXT, "hello")
            },
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

/// Sends `input` in parts of `part` bytes. Returns the response, the connection and the handler.
fn talk(input: &[u8], part: usize) -> (String, Connection, Routes) {
    let (mut connection, mut routes) =
        (Connection::new(Limits::default(), FROM, T0), Routes::default());
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
fn further_headers_of_a_response_are_sent() {
    let (answer, ..) = talk(b"GET /page HTTP/1.1\r\nHost: a\r\n\r\n", 10_000);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let lines: Vec<&str> = head.lines().collect();
    assert!(lines.contains(&"Content-Encoding: deflate"), "{head}");
    assert!(lines.contains(&"Cache-Control: no-cache"), "{head}");
    assert_eq!(body, "hello");
}

#[test]
fn response_keeps_the_connection_open() {
    for part in [1, 7, 10_000] {
        let (answer, connection, _) = talk(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", part);
        let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n\
            Content-Length: 5\r\n\r\nhello";
        assert_eq!(answer, expected);
        assert!(connection.is_quiet(T0) && !connection.is_finished());
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
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
fn expect_continue_is_answered() {
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
fn oversized_head_and_body_are_refused() {
    let (answer, connection, _) = talk(&[b'a'; 20_000], 1000);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert!(connection.is_finished());
    let (answer, connection, _) =
        talk(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\nbody", 1000);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(connection.is_finished());
    let body = "b".repeat(65536);
    let request = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n{body}");
    assert!(talk(request.as_bytes(), 1000).0.ends_with(&body));
}

#[test]
fn slow_and_stalled_clients_are_timed_out() {
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

    let mut connection = Connection::new(limits, FROM, T0);
    connection.handle_input(b"GET /count/9 HTTP/1.1\r\nHost: a\r\n\r\n", T0);
    connection.poll(&mut routes, T0);
    assert!(!connection.output(&mut routes, T0).is_empty());
    connection.poll(&mut routes, T0 + limits.stall);
    assert!(connection.is_broken(), "the client reads nothing");
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
