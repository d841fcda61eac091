//! The pages of the HTTP server: metrics, health, status, the object tree, captures. [`net::http::access`] decides
//! access. Each write and each refused write is logged with the client's address. Long pages are generated while they
//! are sent, one piece a round.

use crate::appliance::Appliance;
use crate::log_ring::audit;
use crate::pieces::{Node, ReportStream};
use crate::{metrics, objects, show};
use core::net::IpAddr;
use net::capture::{LinkType, Reader};
use net::http::access::{Act, Guesses, Judge};
use net::http::{Handler, Method, Read, Request, Response, Status};
use net::refusal::Refusal;

/// Bytes of a capture read at a time.
const PIECE: usize = 16 << 10;
/// Size at which a piece of a report ends. A line of metrics takes some 1,500 instructions.
const REPORT_PIECE: usize = 1 << 10;
/// Maximum concurrent downloads of the capture.
const MAX_DOWNLOADS: usize = 4;
/// Requests and response pieces handled in a round.
const TURNS: u32 = 1;

/// Source of a page's content.
enum Source {
    Capture(Reader),
    Metrics(metrics::Progress),
    Report(ReportStream),
}

/// A page that is generated while it is sent.
struct Download {
    id: u64,
    source: Source,
    piece: Vec<u8>,
    at: usize,
    more: bool,
}

/// Pages in transmission.
#[derive(Default)]
pub struct Pages {
    downloads: Vec<Download>,
    next: u64,
    /// Requests and response pieces that all HTTP servers handled in this round.
    turns: u32,
    /// Hosts that sent wrong tokens.
    guesses: Guesses,
}

impl Pages {
    /// Starts a round: resets the limit on requests and pieces.
    pub fn begin_round(&mut self) {
        self.turns = 0;
    }
}

/// The HTTP routes of the appliance.
pub struct Web<'a> {
    /// The appliance to report on and to change.
    pub appliance: &'a mut dyn Appliance,
    /// The pages of all servers.
    pub pages: &'a mut Pages,
}

impl Web<'_> {
    fn object(&mut self, path: &str, request: &Request<'_>) -> Response {
        let result = match request.method {
            Method::Get => match objects::find(path) {
                // Long objects are streamed in pieces.
                Ok((node, rest)) if rest.is_empty() && !is_small(node) => {
                    return self.report(node);
                }
                _ => objects::read(self.appliance, path).map(|value| value.to_json() + "\n"),
            },
            Method::Put | Method::Post => match core::str::from_utf8(request.body) {
                Ok(value) => self.write(path, value.trim(), request),
                Err(_) => Err("the body is not UTF-8".into()),
            },
            _ => return Response::method_not_allowed("GET, HEAD, PUT, POST"),
        };
        match result {
            Ok(body) => Response::new(Status::OK, Response::JSON, body),
            Err(why) => {
                let exists = objects::read(self.appliance, path).is_ok();
                let status = if exists { Status::BAD_REQUEST } else { Status::NOT_FOUND };
                let why = crate::report::Value::object([("error", why.into())]);
                Response::new(status, Response::JSON, why.to_json() + "\n")
            }
        }
    }

    fn write(&mut self, path: &str, value: &str, request: &Request<'_>) -> Result<String, String> {
        let result = objects::write(self.appliance, path, value);
        let from = request.from;
        match &result {
            Ok(()) => audit(format_args!("http from {from}: write {path} {value}")),
            Err(why) => {
                audit(format_args!("http from {from}: write {path} {value}: refused: {why}"))
            }
        }
        result.map(|()| "{}\n".to_string())
    }

    fn capture(&mut self, request: &Request<'_>) -> Response {
        let captures =
            self.pages.downloads.iter().filter(|d| matches!(d.source, Source::Capture(_)));
        if captures.count() >= MAX_DOWNLOADS {
            return Response::error(Status::UNAVAILABLE);
        }
        audit(format_args!("http from {}: reads the capture", request.from));
        // The capture numbers this loop's ports by place, then the forwarding ports through which UDP engines reach
        // ports of other loops. Other ports are not captured.
        let ports = self.appliance.ports();
        let own = ports.iter().filter(|port| port.is_own);
        let forwarding = ports.iter().filter(|port| port.forwarding_dropped.is_some());
        let frames = own.chain(forwarding).map(|port| (port.name, LinkType::Ethernet));
        // RapidIO ports follow the Ethernet ports, in the loop's numbering.
        let messages = self.appliance.rapidio();
        let messages = messages.iter().map(|port| (port.name, LinkType::RapidIo));
        let names = frames.chain(messages).map(|(name, kind)| (name.to_string(), kind)).collect();
        let reader = self.appliance.capture().reader(names, self.appliance.machine().clock.epoch);
        self.stream("application/x-pcapng", Source::Capture(reader))
    }

    fn report(&mut self, node: &'static Node) -> Response {
        self.stream(Response::JSON, Source::Report(ReportStream::of(node)))
    }

    fn stream(&mut self, content_type: &'static str, source: Source) -> Response {
        let id = self.pages.next;
        self.pages.next += 1;
        self.pages.downloads.push(Download { id, source, piece: Vec::new(), at: 0, more: true });
        Response::stream(content_type, id, None)
    }

    fn ready(&mut self) -> Response {
        let reasons = show::not_ready_for_clients(self.appliance);
        let lines = |label: &str, list: &[String]| -> String {
            list.iter().map(|line| format!("{label}{line}\n")).collect()
        };
        let warnings = lines("warning: ", self.appliance.machine().warnings);
        match reasons.is_empty() {
            true => Response::new(Status::OK, Response::TEXT, format!("ready\n{warnings}")),
            false => {
                let text = lines("", &reasons) + &warnings;
                Response::new(Status::UNAVAILABLE, Response::TEXT, text)
            }
        }
    }

    /// Whether a host name or address belongs to the appliance. A loopback address counts: the client then uses a port
    /// forward on its own machine.
    fn is_ours(&self, host: &str) -> bool {
        let Ok(address) = host.parse::<IpAddr>() else {
            let name = &self.appliance.document().config().system.hostname;
            let host = host.strip_suffix('.').unwrap_or(host);
            return host.eq_ignore_ascii_case(name.as_str())
                || host.eq_ignore_ascii_case("localhost");
        };
        let is_host = |cidr: &String| {
            let ours = cidr.split('/').next().and_then(|text| text.parse::<IpAddr>().ok());
            ours == Some(address)
        };
        let is_there =
            || self.appliance.ports().iter().any(|p| p.addresses.list.iter().any(is_host));
        address.is_loopback() || is_there()
    }

    /// Generates the next piece of a page.
    fn make_piece(&mut self, download: &mut Download) {
        let Download { source, piece, at, more, .. } = download;
        piece.clear();
        *at = 0;
        *more = match source {
            Source::Capture(reader) => self.appliance.capture().read(reader, piece, PIECE),
            Source::Metrics(progress) => {
                let mut text = String::with_capacity(2 * REPORT_PIECE);
                let more = metrics::write_piece(self.appliance, progress, &mut text, REPORT_PIECE);
                *piece = text.into_bytes();
                more
            }
            Source::Report(report) => report.piece(self.appliance, piece, REPORT_PIECE),
        };
    }
}

/// Whether a node of the tree fits into one piece.
fn is_small(node: &Node) -> bool {
    matches!(node, Node::Whole(_) | Node::Guarded(..))
}

/// The kind of access that a request needs. Values that identify peers need the same access as a capture.
fn act(request: &Request<'_>) -> Act {
    let path = decoded(request.path);
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    match (request.method, path.as_str()) {
        (Method::Get, "/healthz" | "/readyz") => Act::Probe,
        (Method::Get, "/capture.pcapng") => Act::ReadPayload,
        (Method::Get, _)
            if parts.next() == Some("api") && parts.next().is_some_and(objects::is_guarded) =>
        {
            Act::ReadPayload
        }
        (Method::Get, _) => Act::Read,
        _ => Act::Write,
    }
}

/// A path with its percent-encoding decoded (RFC 3986, section 2.1). Malformed escapes are kept literally.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let escaped = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => Some((high << 4 | low) as u8),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Handler for Web<'_> {
    fn has_time(&self) -> bool {
        self.pages.turns < TURNS
    }

    fn refused(&mut self, refusal: Refusal) {
        self.appliance.refuse(refusal);
    }

    fn handle(&mut self, request: &Request<'_>) -> Response {
        self.pages.turns += 1;
        let token = self.appliance.document().config().http.token_sha256.map(|token| token.0);
        let now = self.appliance.machine().now;
        let mut guesses = core::mem::take(&mut self.pages.guesses);
        let is_ours = &|host: &str| self.is_ours(host);
        let judge = Judge { token: token.as_ref(), is_ours, guesses: &mut guesses, now }
            .judge(request, act(request));
        self.pages.guesses = guesses;
        if let Err(denied) = judge {
            self.refused(denied.refusal(request));
            return denied.response();
        }
        // The configuration was rejected, and `http.hosts` with it: only `/healthz` and `/readyz` answer. `/readyz`
        // names the remedy.
        let document = self.appliance.document();
        let unknown = document.is_closed() && document.config().http.hosts.is_empty();
        if unknown && !matches!(request.path, "/healthz" | "/readyz") {
            let text = "configuration rejected: the hosts that may read this page are unknown; see /readyz\n";
            return Response::new(Status::UNAVAILABLE, Response::TEXT, text);
        }
        if let Some(path) = request.path.strip_prefix("/api")
            && (path.is_empty() || path.starts_with('/'))
        {
            return self.object(&decoded(path), request);
        }
        let page: fn(&mut Self, &Request<'_>) -> Response = match request.path {
            "/metrics" => |web, _| {
                let source = Source::Metrics(metrics::Progress::default());
                web.stream(net::metrics::CONTENT_TYPE, source)
            },
            "/healthz" => |_, _| Response::new(Status::OK, Response::TEXT, "ok\n"),
            "/readyz" => |web, _| web.ready(),
            "/status" => |web, _| web.report(&show::STATUS),
            "/capture.pcapng" => Web::capture,
            _ => {
                let pages = "no such page; there are /metrics, /healthz, /readyz, /status, \
                     /capture.pcapng and /api/…\n";
                return Response::new(Status::NOT_FOUND, Response::TEXT, pages);
            }
        };
        match request.method {
            Method::Get => page(self, request),
            _ => Response::method_not_allowed("GET, HEAD"),
        }
    }

    fn read(&mut self, stream: u64, into: &mut [u8]) -> Read {
        self.pages.turns += 1;
        let Some(place) = self.pages.downloads.iter().position(|d| d.id == stream) else {
            return Read::End;
        };
        let mut download = self.pages.downloads.swap_remove(place);
        // A piece of a report may be empty before the end.
        while download.at == download.piece.len() && download.more {
            self.make_piece(&mut download);
        }
        let count = into.len().min(download.piece.len() - download.at);
        into[..count].copy_from_slice(&download.piece[download.at..download.at + count]);
        download.at += count;
        self.pages.downloads.push(download);
        match count {
            0 => Read::End,
            _ => Read::Bytes(count),
        }
    }

    fn close(&mut self, stream: u64) {
        self.pages.downloads.retain(|d| d.id != stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    #[test]
    fn reading_peer_identities_needs_the_token() {
        let of = |method, path| {
            let from: SocketAddr = "10.0.0.9:4000".parse().unwrap();
            let (query, body, host) = ("", &b""[..], "10.0.0.1");
            let (head_only, origin, bearer) = (false, None, None);
            act(&Request { from, method, head_only, path, query, body, host, origin, bearer })
        };
        for path in ["/api", "/api/disks", "/status", "/metrics", "/api/log", "/usnic", "/"] {
            assert_eq!(of(Method::Get, path), Act::Read, "{path}");
        }
        for path in ["/api/usnic", "/api//usnic/", "/api/%75snic", "//api/usnic", "/capture.pcapng"]
        {
            assert_eq!(of(Method::Get, path), Act::ReadPayload, "{path}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(of(Method::Get, path), Act::Probe);
            assert_eq!(of(Method::Post, path), Act::Write);
        }
        assert_eq!(of(Method::Put, "/api/usnic"), Act::Write);
    }

    #[test]
    fn names_in_paths_may_be_encoded() {
        assert_eq!(decoded("/s%201/ip%3A10.0.0.2%40x"), "/s 1/ip:10.0.0.2@x");
        assert_eq!(decoded("/%C3%bc"), "/ü");
        assert_eq!(decoded("/%SESSNAME%!a%2/%"), "/%SESSNAME%!a%2/%");
    }
}
