//! The pages of the HTTP server: metrics, health, status, the object tree, captures. [`net::http::access`] decides
//! access. Each write and each refused write is logged with the client's address. Long pages are generated while they
//! are sent, one piece a round.

use crate::api::{self, Answer, Call};
use crate::appliance::{Appliance, Told};
use crate::caller::Caller;
use crate::config::{Role, User, UserCertificate};
use crate::console::{Ended, Made, Managed, Run, System as _};
use crate::log_ring::{audit, audit_refused};
use crate::log_stream::{self, EVENTS, LogStream, Next};
use crate::orders::Order;
use crate::pieces::{Node, ReportStream};
use crate::producers::Producer;
use crate::report::Value;
use crate::system::Operator;
use crate::{metrics, objects, page, show};
use core::net::IpAddr;
use net::capture::{LinkType, Reader};
use net::http::access::{Act, Certificate, Credentials, Guesses, Judge, Known};
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
    /// Pieces of JSON, and the index of the next one.
    Pieces(fn(usize) -> Option<String>, usize),
    /// A page that may have nothing to send for a while.
    Produced(Box<dyn Producer>),
    Log(Box<LogStream>),
    /// A command, whose output is the text of a JSON string.
    Command(Box<Run>, Caller),
}

/// A page that is generated while it is sent.
struct Download {
    id: u64,
    source: Source,
    piece: Vec<u8>,
    at: usize,
    more: bool,
    /// There is nothing to send at present.
    pending: bool,
}

impl Download {
    /// Whether the page is the output of a task that runs.
    fn follows_task(&self) -> bool {
        self.more && matches!(&self.source, Source::Command(run, _) if run.is_task())
    }
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
    /// Answers a request to `/api/v1`.
    fn versioned(&mut self, request: &Request<'_>, caller: &Caller) -> Response {
        let (route, parameters) = match api::find(request.method, request.path) {
            Ok(found) => found,
            Err(response) => return *response,
        };
        let appliance = &mut *self.appliance;
        let mut call = Call { appliance, caller, request, parameters };
        match api::run(route, &mut call) {
            Answer::Whole(response) => response,
            Answer::Produced(kind, producer) => self.produce(kind, producer),
            Answer::Report(node) => self.report(node),
            Answer::Log(log) => self.log(log),
            Answer::Pieces(make) => self.stream(Response::JSON, Source::Pieces(make, 0)),
            Answer::Command(run) => self.command(*run, caller),
        }
    }

    /// The owner of a token or certificate: a user, or the one of `http.token_sha256`. Without either a reader.
    fn caller(&self, known: Option<Known>, request: &Request<'_>) -> Caller {
        let from = Some(request.from);
        let Some(Known { index, by_certificate }) = known else {
            return Caller { from, role: Role::Read, ..Caller::console() };
        };
        match self.appliance.document().config().user.get(index) {
            Some(user) => {
                Caller { name: user.name.to_string(), from, role: user.role, by_certificate }
            }
            None => Caller { from, ..Caller::console() },
        }
    }

    fn object(&mut self, path: &str, request: &Request<'_>, caller: &Caller) -> Response {
        let result = match request.method {
            Method::Get => match objects::find(path) {
                // Long objects are streamed in pieces.
                Ok((node, rest)) if rest.is_empty() && !is_small(node) => {
                    return self.report(node);
                }
                _ => objects::read(self.appliance, path).map(|value| value.to_json() + "\n"),
            },
            Method::Put | Method::Post => match core::str::from_utf8(request.body) {
                Ok(value) => match self.write(path, value.trim(), caller) {
                    Ok(Managed::Started) => {
                        return self.command(Run::of_task(), caller);
                    }
                    done => done.map(|_| "{}\n".to_string()),
                },
                Err(_) => Err("the body is not UTF-8".into()),
            },
            _ => return Response::method_not_allowed("GET, HEAD, PUT, POST"),
        };
        match result {
            Ok(body) => Response::new(Status::OK, Response::JSON, body),
            Err(why) => {
                let exists = objects::read(self.appliance, path).is_ok();
                let status = match (exists, caller.needs(objects::role_to_write(path))) {
                    (_, Err(_)) if request.method != Method::Get => Status::FORBIDDEN,
                    (true, _) => Status::BAD_REQUEST,
                    (false, _) => Status::NOT_FOUND,
                };
                let why = crate::report::Value::object([("error", why.into())]);
                Response::new(status, Response::JSON, why.to_json() + "\n")
            }
        }
    }

    fn write(&mut self, path: &str, value: &str, caller: &Caller) -> Told {
        Operator::new(self.appliance, caller.clone()).write(path, value)
    }

    /// A response with the output of a command that runs.
    fn command(&mut self, run: Run, caller: &Caller) -> Response {
        let source = Source::Command(Box::new(run), caller.clone());
        let response = self.stream(Response::JSON, source);
        if let Some(download) = self.pages.downloads.last_mut() {
            download.piece = b"{\"output\":\"".to_vec();
        }
        response
    }

    fn capture(&mut self, caller: &Caller) -> Response {
        let captures =
            self.pages.downloads.iter().filter(|d| matches!(d.source, Source::Capture(_)));
        if captures.count() >= MAX_DOWNLOADS {
            return Response::error(Status::UNAVAILABLE);
        }
        audit(caller, format_args!("reads the capture"));
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

    fn log(&mut self, log: Box<LogStream>) -> Response {
        let others = self.pages.downloads.iter().filter_map(|download| match &download.source {
            Source::Log(log) => Some(&**log),
            _ => None,
        });
        let connections = self.appliance.document().config().http.connections;
        if let Err(why) = log.admit(others, connections.into()) {
            return api::error(Status::UNAVAILABLE, why);
        }
        let kind = if log.follows() { EVENTS } else { Response::JSON };
        self.stream(kind, Source::Log(log))
    }

    fn report(&mut self, node: &'static Node) -> Response {
        self.stream(Response::JSON, Source::Report(ReportStream::of(node)))
    }

    fn produce(&mut self, kind: &'static str, producer: Box<dyn Producer>) -> Response {
        let is_one = |download: &&Download| matches!(download.source, Source::Produced(_));
        if self.pages.downloads.iter().filter(is_one).count() >= MAX_DOWNLOADS {
            return Response::error(Status::UNAVAILABLE);
        }
        self.stream(kind, Source::Produced(producer))
    }

    fn stream(&mut self, content_type: &'static str, source: Source) -> Response {
        let id = self.pages.next;
        self.pages.next += 1;
        let (piece, at, more, pending) = (Vec::new(), 0, true, false);
        self.pages.downloads.push(Download { id, source, piece, at, more, pending });
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
        let Download { source, piece, at, more, pending, .. } = download;
        piece.clear();
        (*at, *pending) = (0, false);
        *more = match source {
            Source::Capture(reader) => self.appliance.capture().read(reader, piece, PIECE),
            Source::Metrics(progress) => {
                let mut text = String::with_capacity(2 * REPORT_PIECE);
                let more = metrics::write_piece(self.appliance, progress, &mut text, REPORT_PIECE);
                *piece = text.into_bytes();
                more
            }
            Source::Report(report) => report.piece(self.appliance, piece, REPORT_PIECE),
            Source::Produced(producer) => {
                let made = producer.piece(self.appliance, piece);
                *pending = made == Made::Pending;
                made != Made::End
            }
            Source::Log(log) => {
                let (machine, document) = (self.appliance.machine(), self.appliance.document());
                let source = log_stream::Source {
                    log: self.appliance.log(),
                    config: document.config(),
                    now: machine.now,
                };
                let next = log.piece(source, piece);
                *pending = next == Next::Pending || piece.is_empty();
                next != Next::End
            }
            Source::Pieces(make, next) => match make(*next) {
                Some(text) => {
                    *piece = text.into_bytes();
                    *next += 1;
                    true
                }
                None => false,
            },
            Source::Command(run, caller) => {
                let mut text = String::new();
                let mut operator = Operator::new(self.appliance, caller.clone());
                let polled = run.poll(&mut operator, &mut text);
                piece.extend_from_slice(in_quotes(&text).as_bytes());
                *pending = polled == Ok(false);
                match polled {
                    Ok(_) => true,
                    Err(Ended(Ok(()))) => {
                        piece.extend_from_slice(b"\",\"error\":null}\n");
                        false
                    }
                    Err(Ended(Err(why))) => {
                        let why = format!("\",\"error\":\"{}\"}}\n", in_quotes(&why));
                        piece.extend_from_slice(why.as_bytes());
                        false
                    }
                }
            }
        };
    }
}

/// By what a user is known.
fn credentials_of(user: &User) -> Credentials<'_> {
    let token = user.token_sha256.map(|token| token.0);
    let certificate = user.certificate.as_ref().map(|certificate| match certificate {
        UserCertificate::Fingerprint(fingerprint) => Certificate::Sha256(fingerprint.0),
        UserCertificate::Name(name) => Certificate::Name(name),
    });
    Credentials { token, certificate }
}

/// Whether a node of the tree fits into one piece.
fn is_small(node: &Node) -> bool {
    matches!(node, Node::Whole(_) | Node::Guarded(..))
}

/// A text as the contents of a JSON string.
fn in_quotes(text: &str) -> String {
    let quoted = Value::display(text).to_json();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().into()
}

/// The kind of access that a request needs, and the role if it needs a token. Values that identify peers need the same
/// access as a capture. Without `anonymous` all but probes need a token.
fn act(request: &Request<'_>, anonymous: bool) -> (Act, Role) {
    let path = decoded(request.path);
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let open = if anonymous { Act::Read } else { Act::ReadPayload };
    if request.path.starts_with(api::TOP) {
        let role = api::find(request.method, request.path).map_or(None, |(route, _)| route.role);
        return match (role, request.method) {
            (None, _) => (open, Role::Read),
            (Some(role), Method::Get) => (Act::ReadPayload, role),
            (Some(role), _) => (Act::Write, role),
        };
    }
    match (request.method, path.as_str()) {
        (Method::Get, "/healthz" | "/readyz") => (Act::Probe, Role::Read),
        // The page has no data.
        (Method::Get, "/") => (Act::Read, Role::Read),
        (Method::Get, "/capture.pcapng") => (Act::ReadPayload, Role::Operate),
        (Method::Get, _)
            if parts.next() == Some("api") && parts.next().is_some_and(objects::is_guarded) =>
        {
            (Act::ReadPayload, Role::Read)
        }
        (Method::Get, _) => (open, Role::Read),
        _ => (Act::Write, Role::Operate),
    }
}

/// A path with its percent-encoding decoded (RFC 3986, section 2.1). Malformed escapes are kept literally.
pub(crate) fn decoded(path: &str) -> String {
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
        let document = self.appliance.document();
        let config = document.config();
        // The configuration was rejected, and `http.hosts` with it: only `/healthz` and `/readyz` answer. `/readyz`
        // names the remedy.
        let unknown = document.is_closed() && config.http.hosts.is_empty();
        if unknown && !matches!(request.path, "/healthz" | "/readyz") {
            let text = "configuration rejected: the hosts that may read this page are unknown; see /readyz\n";
            return Response::new(Status::UNAVAILABLE, Response::TEXT, text);
        }
        let mut credentials: Vec<Credentials<'_>> =
            config.user.iter().map(credentials_of).collect();
        let token = config.http.token_sha256.map(|token| token.0);
        if token.is_some() {
            credentials.push(Credentials { token, certificate: None });
        }
        let (wanted, role) = act(request, config.http.anonymous);
        let now = self.appliance.machine().now;
        let mut guesses = core::mem::take(&mut self.pages.guesses);
        let is_ours = &|host: &str| self.is_ours(host);
        let judge = Judge { credentials: &credentials, is_ours, guesses: &mut guesses, now }
            .judge(request, wanted);
        self.pages.guesses = guesses;
        let known = match judge {
            Ok(known) => known,
            Err(denied) => {
                self.refused(denied.refusal(request));
                return denied.response();
            }
        };
        let caller = self.caller(known, request);
        if wanted != Act::Probe
            && let Err(why) = caller.needs(role)
        {
            let path: String = request.path.chars().take(64).collect();
            audit_refused(&caller, format_args!("{:?} {path}: refused: {why}", request.method));
            return api::error(Status::FORBIDDEN, why);
        }
        log::debug!("{caller}: {:?} {}", request.method, crate::system::cut(request.path));
        if request.path.starts_with(api::TOP) {
            return self.versioned(request, &caller);
        }
        if let Some(path) = request.path.strip_prefix("/api")
            && (path.is_empty() || path.starts_with('/'))
        {
            return self.object(&decoded(path), request, &caller);
        }
        if (request.method, request.path) == (Method::Get, "/") {
            return page::response(request);
        }
        let page: fn(&mut Self, &Caller) -> Response = match request.path {
            "/metrics" => |web, _| {
                let source = Source::Metrics(metrics::Progress::default());
                web.stream(net::metrics::CONTENT_TYPE, source)
            },
            "/healthz" => |_, _| Response::new(Status::OK, Response::TEXT, "ok\n"),
            "/readyz" => |web, _| web.ready(),
            "/status" => |web, _| web.report(&show::STATUS),
            "/capture.pcapng" => |web, caller| web.capture(caller),
            _ => {
                let pages = "no such page; there are /, /metrics, /healthz, /readyz, /status, \
                     /capture.pcapng, /api/… and /api/v1/…\n";
                return Response::new(Status::NOT_FOUND, Response::TEXT, pages);
            }
        };
        match request.method {
            Method::Get => page(self, &caller),
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
        download.pending = false;
        while download.at == download.piece.len() && download.more && !download.pending {
            self.make_piece(&mut download);
        }
        let pending = download.pending && download.more;
        let count = into.len().min(download.piece.len() - download.at);
        into[..count].copy_from_slice(&download.piece[download.at..download.at + count]);
        download.at += count;
        self.pages.downloads.push(download);
        match count {
            0 if pending => Read::Pending,
            0 => Read::End,
            _ => Read::Bytes(count),
        }
    }

    fn close(&mut self, stream: u64) {
        let ended = self.pages.downloads.iter().find(|d| d.id == stream);
        // The client has disconnected: its command is cancelled. A long report is no command, and cancels none.
        if ended.is_some_and(Download::follows_task) {
            let _ = self.appliance.carry_out(Order::Cancel);
            self.appliance.task().leave();
        }
        if let Some(Download { source: Source::Log(log), .. }) = ended
            && log.was_slow(self.appliance.log())
        {
            self.appliance.log().note_slow_follower();
        }
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
            let (if_match, if_none_match) = ("", "");
            let request = Request {
                from,
                method,
                head_only,
                path,
                query,
                body,
                host,
                origin,
                bearer,
                certificate: None,
                if_match,
                if_none_match,
            };
            let (open, closed) = (act(&request, true).0, act(&request, false).0);
            let is_closed = open == Act::Read && path != "/";
            assert_eq!(closed, if is_closed { Act::ReadPayload } else { open }, "{path}");
            open
        };
        for path in ["/api", "/api/disks", "/status", "/metrics", "/api/log", "/usnic", "/"] {
            assert_eq!(of(Method::Get, path), Act::Read, "{path}");
        }
        for path in ["/api/usnic", "/api//usnic/", "/api/%75snic", "//api/usnic", "/capture.pcapng"]
        {
            assert_eq!(of(Method::Get, path), Act::ReadPayload, "{path}");
        }
        for path in ["/api/v1/schema", "/api/v1/openapi.json", "/api/v1/nothing"] {
            assert_eq!(of(Method::Get, path), Act::Read, "{path}");
        }
        for path in ["/api/v1/config/running", "/api/v1/exports", "/api/v1/users/a"] {
            assert_eq!(of(Method::Get, path), Act::ReadPayload, "{path}");
        }
        assert_eq!(of(Method::Put, "/api/v1/exports/a"), Act::Write);
        assert_eq!(of(Method::Post, "/api/v1/commands"), Act::Write);
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
