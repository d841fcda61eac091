//! Access control of HTTP.
//!
//! * Reading is open to the hosts that [`Doors`] admit.
//! * Changes, captures (they contain the traffic of others) and identities of peers need a bearer token (RFC 6750)
//!   whose SHA-256 is configured. If none is configured, they are disabled. What its owner may do, the caller decides.
//! * Instead of a token, a client may have a certificate whose SHA-256 is configured, or in which an authority of the
//!   operator vouches for a configured name, and prove that it has its key.
//! * A foreign web page must not use a browser to act for its user or to read for the page (DNS rebinding). So every
//!   request except a probe must name an address or the name of the appliance as its host, and must not come from a
//!   page of another origin.
//! * [`Guesses`] slows down hosts that send wrong tokens.

use super::{Request, Response, Status};
use crate::hosts::Hosts;
use crate::hosts::accountable;
use crate::refusal::Refusal;
use crate::tls::{ClientCertificate, SubjectName};
use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// Admission of connections, by source and destination address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doors {
    /// Hosts that may connect.
    pub hosts: Hosts,
    /// Our addresses that accept connections; empty: all.
    pub listen: Vec<IpAddr>,
}

impl Doors {
    /// Checks a connection from the host `from` to our address `to`.
    pub fn admit(&self, from: IpAddr, to: IpAddr) -> Result<(), Refusal> {
        let refusal = |reason, advice: String| Refusal {
            who: Some(from),
            what: "http",
            asked: format!("connection to {to}"),
            reason,
            advice: advice.into(),
        };
        if !self.listen.is_empty() && !self.listen.contains(&to) {
            let advice = format!("HTTP does not listen on {to}; add it to http.listen");
            return Err(refusal("address_not_listened", advice));
        }
        if !self.hosts.admits(from) {
            let advice = format!("http.hosts admits {} only; add {from} there", self.hosts);
            return Err(refusal("host_not_admitted", advice));
        }
        Ok(())
    }
}

/// Class of a request, by the access that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A liveness or readiness probe.
    Probe,
    /// Reads public state.
    Read,
    /// Reads traffic of others, or identities of peers.
    ReadPayload,
    /// Changes state.
    Write,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// 401 if the right token would be accepted, 429 if the token came too soon after a wrong one, else 403.
    pub status: Status,
    /// Reason as a label of metrics and reports.
    pub reason: &'static str,
    /// Reason and remedy for the operator.
    pub advice: Cow<'static, str>,
}

impl Denied {
    /// The error response.
    pub fn response(&self) -> Response {
        let challenge = match (self.status == Status::UNAUTHORIZED, self.reason) {
            (false, _) => "",
            (true, "wrong_token") => "Bearer realm=\"isthmus\", error=\"invalid_token\"",
            (true, _) => "Bearer realm=\"isthmus\"",
        };
        let text = format!("{}: {}\n", self.status, self.advice);
        Response { challenge, ..Response::new(self.status, Response::TEXT, text) }
    }

    /// The refusal of `request`, for log and counters.
    pub fn refusal(&self, request: &Request<'_>) -> Refusal {
        Refusal {
            who: Some(request.from.ip()),
            what: "http",
            asked: request.path.to_string(),
            reason: self.reason,
            advice: self.advice.clone(),
        }
    }
}

/// How long further tokens of a host are not checked after a wrong one.
const PENALTY: Duration = Duration::from_secs(1);
/// Maximum number of hosts in [`Guesses`].
const GUESSERS: usize = 1024;

/// Hosts that have sent a wrong token within the last second, and when that was.
#[derive(Debug, Default)]
pub struct Guesses {
    wrong: BTreeMap<IpAddr, Instant>,
}

impl Guesses {
    /// Whether a token of the host is checked at present.
    fn admits(&self, host: IpAddr, now: Instant) -> bool {
        self.wrong.get(&accountable(host)).is_none_or(|&at| at + PENALTY <= now)
    }

    /// Records a wrong token of the host. The oldest entry is evicted if there is no room.
    fn note(&mut self, host: IpAddr, now: Instant) {
        let host = accountable(host);
        if self.wrong.len() >= GUESSERS && !self.wrong.contains_key(&host) {
            self.wrong.retain(|_, at| now < *at + PENALTY);
            if self.wrong.len() >= GUESSERS
                && let Some(oldest) = self.wrong.iter().min_by_key(|(_, at)| **at)
            {
                let oldest = *oldest.0;
                self.wrong.remove(&oldest);
            }
        }
        self.wrong.insert(host, now);
    }
}

/// What identifies a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// SHA-256 of the token.
    pub token: Option<TokenHash>,
    /// The certificate.
    pub certificate: Option<Certificate<'a>>,
}

/// By what the certificate of a user is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate<'a> {
    /// Its SHA-256.
    Sha256([u8; 32]),
    /// A name in it, which an authority vouches for.
    Name(&'a SubjectName),
}

/// Who sends a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Index in [`Judge::credentials`].
    pub index: usize,
    /// Known by the certificate, not by the token.
    pub by_certificate: bool,
}

/// The state that access checks need.
pub struct Judge<'a> {
    /// Those who are known by a token or a certificate.
    pub credentials: &'a [Credentials<'a>],
    /// Whether a host name or address (without port) is the appliance's.
    pub is_ours: &'a dyn Fn(&str) -> bool,
    /// Hosts that have sent wrong tokens.
    pub guesses: &'a mut Guesses,
    /// Present time.
    pub now: Instant,
}

impl Judge<'_> {
    /// Checks whether `request` may perform `act`. Returns who sends it, if that was needed. A token counts before a
    /// certificate.
    pub fn judge(&mut self, request: &Request<'_>, act: Act) -> Result<Option<Known>, Denied> {
        if act == Act::Probe {
            return Ok(None);
        }
        if !host_name(request.host).is_some_and(self.is_ours) {
            let host: String = request.host.chars().take(64).collect();
            let advice = format!(
                "{host:?} is neither an address of the appliance nor system.hostname; use one of them in the URL"
            );
            return Err(forbidden("foreign_host", advice.into()));
        }
        if act == Act::Read {
            return Ok(None);
        }
        // A browser sends a certificate by itself, so a page of http:// must not use it: anybody on the way can make one.
        let is_certain = |origin: &str| request.certificate.is_none() || is_secure(origin);
        let is_own = |origin: &str| is_same(origin, request.host) && is_certain(origin);
        if let Some(origin) = request.origin.filter(|origin| !is_own(origin)) {
            let origin: String = origin.chars().take(64).collect();
            let advice = format!("requests from pages of {origin:?} are not accepted");
            return Err(forbidden("foreign_origin", advice.into()));
        }
        if self.credentials.is_empty() {
            let advice = "changes and captures over HTTP are disabled until a [[user]] or http.token_sha256 is \
                          configured";
            return Err(forbidden("read_only", advice.into()));
        }
        let unauthorized = |reason, advice: &'static str| Denied {
            status: Status::UNAUTHORIZED,
            reason,
            advice: advice.into(),
        };
        if let (None, Some(certificate)) = (request.bearer, request.certificate) {
            let index = self.owner(certificate)?;
            return Ok(Some(Known { index, by_certificate: true }));
        }
        let Some(given) = request.bearer else {
            let advice = "send the token of a [[user]] or of http.token_sha256 (Authorization: Bearer TOKEN), or the certificate \
                 of a [[user]]";
            return Err(unauthorized("no_token", advice));
        };
        let host = request.from.ip();
        if !self.guesses.admits(host, self.now) {
            let (status, reason) = (Status::TOO_MANY_REQUESTS, "token_too_soon");
            let advice =
                "this host sent a wrong token less than a second ago; this token was not checked";
            return Err(Denied { status, reason, advice: advice.into() });
        }
        let given = Sha256::digest(given);
        // All are compared, so that the time does not tell which one is similar.
        let mut found = None;
        for (index, one) in self.credentials.iter().enumerate() {
            if let Some(token) = &one.token
                && bool::from(given.as_slice().ct_eq(token))
            {
                found = Some(Known { index, by_certificate: false });
            }
        }
        if found.is_some() {
            return Ok(found);
        }
        self.guesses.note(host, self.now);
        Err(unauthorized(
            "wrong_token",
            "this is the token of no [[user]], and not that of http.token_sha256",
        ))
    }
}

impl Judge<'_> {
    /// The index of the user with this certificate. Its fingerprint counts before the names in it. One that names several
    /// users is that of none.
    fn owner(&self, certificate: &ClientCertificate) -> Result<usize, Denied> {
        let is_own = |one: &Credentials<'_>| {
            one.certificate == Some(Certificate::Sha256(certificate.sha256))
        };
        if let Some(index) = self.credentials.iter().position(is_own) {
            return Ok(index);
        }
        let names = match &certificate.names {
            Ok(names) => names,
            Err(why) => return Err(unknown_certificate(certificate, why)),
        };
        let is_named = |one: &Credentials<'_>| match one.certificate {
            Some(Certificate::Name(name)) => names.contains(name),
            _ => false,
        };
        let mut named = self.credentials.iter().enumerate().filter(|(_, one)| is_named(one));
        let (reason, about) = match (named.next(), named.next()) {
            (Some((index, _)), None) => return Ok(index),
            (None, _) => ("unknown_subject", "is that of no [[user]]"),
            (Some(_), Some(_)) => ("ambiguous_certificate", "names more than one [[user]]"),
        };
        let list: Vec<String> = names.iter().map(ToString::to_string).collect();
        let list: String = list.join(", ").chars().take(128).collect();
        let advice =
            format!("the client's certificate {about}; http.client_ca vouches for: {list}");
        Err(Denied { status: Status::UNAUTHORIZED, reason, advice: advice.into() })
    }
}

/// The refusal of a certificate that no authority vouches for, with its fingerprint.
fn unknown_certificate(certificate: &ClientCertificate, why: &str) -> Denied {
    let digits: String = certificate.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    let advice = format!(
        "the client's certificate is that of no [[user]]; its SHA-256 is {digits}; the names in it do not count: {why}"
    );
    Denied { status: Status::UNAUTHORIZED, reason: "wrong_certificate", advice: advice.into() }
}

fn forbidden(reason: &'static str, advice: Cow<'static, str>) -> Denied {
    Denied { status: Status::FORBIDDEN, reason, advice }
}

/// Removes the port and brackets of a host: `10.0.0.1:80`, `[fd00::1]:80`, `name:80`.
fn host_name(host: &str) -> Option<&str> {
    let is_port = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let port = if port.is_empty() { "" } else { port.strip_prefix(':')? };
        return is_port(port).then_some(address);
    }
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    (!name.is_empty() && is_port(port)).then_some(name)
}

/// Whether a page came over TLS.
fn is_secure(origin: &str) -> bool {
    origin.starts_with("https://")
}

/// Whether a page's origin is this server, under the name in the request's `Host`.
fn is_same(origin: &str, host: &str) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Method;
    use core::net::SocketAddr;

    const TOKEN: &[u8] = b"s3cret";

    fn request<'a>(
        host: &'a str,
        origin: Option<&'a str>,
        bearer: Option<&'a [u8]>,
    ) -> Request<'a> {
        let from: SocketAddr = "10.0.0.9:4000".parse().unwrap();
        let (path, query, body) = ("/api/capture", "", &b"start"[..]);
        let (method, head_only) = (Method::Post, false);
        let (if_match, if_none_match) = ("", "");
        Request {
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
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn judged_by(
        guesses: &mut Guesses,
        now: Instant,
        act: Act,
        configured: bool,
        request: &Request<'_>,
    ) -> Result<(), (u16, &'static str)> {
        let hash: TokenHash = Sha256::digest(TOKEN).into();
        let is_ours = &|host: &str| ["10.0.0.1", "fd00::1", "gateway-1"].contains(&host);
        let all = [
            Credentials { token: Some([0; 32]), certificate: Some(Certificate::Sha256([7; 32])) },
            Credentials { token: Some(hash), certificate: None },
        ];
        let credentials: &[Credentials<'_>] = if configured { &all } else { &[] };
        let judged = Judge { credentials, is_ours, guesses, now }.judge(request, act);
        let is_wrong = |known: Known| known.index != usize::from(!known.by_certificate);
        assert!(!judged.as_ref().is_ok_and(|known| known.is_some_and(is_wrong)));
        judged.map(drop).map_err(|denied| (denied.status.0, denied.reason))
    }

    fn judged(
        act: Act,
        configured: bool,
        request: &Request<'_>,
    ) -> Result<(), (u16, &'static str)> {
        judged_by(&mut Guesses::default(), at(9), act, configured, request)
    }

    #[test]
    fn reading_is_open_and_nothing_else_without_a_token() {
        let plain = request("10.0.0.1", None, Some(TOKEN));
        assert_eq!(judged(Act::Read, false, &plain), Ok(()));
        assert_eq!(judged(Act::Write, false, &plain), Err((403, "read_only")));
        assert_eq!(judged(Act::ReadPayload, false, &plain), Err((403, "read_only")));
    }

    #[test]
    fn only_the_exact_token_is_accepted() {
        for act in [Act::Write, Act::ReadPayload] {
            let with = |bearer| judged(act, true, &request("10.0.0.1:80", None, bearer));
            assert_eq!(with(Some(TOKEN)), Ok(()));
            assert_eq!(with(None), Err((401, "no_token")));
            for wrong in [&b""[..], b"s3cre", b"s3cret ", b"S3CRET", b"s3crett"] {
                assert_eq!(with(Some(wrong)), Err((401, "wrong_token")));
            }
        }
        let denied = |reason| Denied { status: Status::UNAUTHORIZED, reason, advice: "".into() };
        assert_eq!(denied("no_token").response().challenge, "Bearer realm=\"isthmus\"");
        assert!(denied("wrong_token").response().challenge.ends_with("error=\"invalid_token\""));
    }

    #[test]
    fn certificate_is_accepted_instead_of_a_token_and_never_beside_a_wrong_one() {
        let [own, other] = [7, 8].map(|byte| certificate(byte, Err("none".into())));
        let with = |certificate, bearer| {
            let request = Request { certificate, ..request("10.0.0.1", None, bearer) };
            judged(Act::Write, true, &request)
        };
        assert_eq!(with(Some(&own), None), Ok(()));
        assert_eq!(with(Some(&other), None), Err((401, "wrong_certificate")));
        assert_eq!(with(Some(&own), Some(b"wrong")), Err((401, "wrong_token")));
        assert_eq!(with(Some(&other), Some(TOKEN)), Ok(()), "the token counts");
        let foreign = Request {
            certificate: Some(&own),
            ..request("10.0.0.1", Some("http://evil.example"), None)
        };
        assert_eq!(judged(Act::Write, true, &foreign), Err((403, "foreign_origin")));
        let from_page = |origin| Request { origin: Some(origin), ..foreign };
        let plain = from_page("http://10.0.0.1");
        assert_eq!(judged(Act::Write, true, &plain), Err((403, "foreign_origin")));
        assert_eq!(judged(Act::Write, true, &from_page("https://10.0.0.1")), Ok(()));
        let advice = unknown_certificate(&certificate(0xab, Err("none".into())), "why").advice;
        assert!(advice.contains(&"ab".repeat(32)) && advice.ends_with("do not count: why"));
    }

    fn certificate(byte: u8, names: Result<Vec<SubjectName>, String>) -> ClientCertificate {
        ClientCertificate { sha256: [byte; 32], names }
    }

    #[test]
    fn certificate_names_exactly_one_user() {
        let [ann, bob, both] =
            ["CN=ann", "DNS:bob.example.net", "CN=ann2"].map(|one| one.parse().unwrap());
        let user = |one| Credentials { token: None, certificate: Some(one) };
        let credentials = [
            user(Certificate::Sha256([9; 32])),
            user(Certificate::Name(&ann)),
            user(Certificate::Name(&bob)),
        ];
        let owner = |byte: u8, names: &[&SubjectName]| {
            let names = Ok(names.iter().map(|&name| name.clone()).collect());
            let one = certificate(byte, names);
            let request = Request { certificate: Some(&one), ..request("10.0.0.1", None, None) };
            let (is_ours, now) = (&|_: &str| true, at(1));
            let guesses = &mut Guesses::default();
            let mut judge = Judge { credentials: &credentials, is_ours, guesses, now };
            let judged = judge.judge(&request, Act::Write);
            judged.map(|known| known.unwrap().index).map_err(|denied| denied.reason)
        };
        assert_eq!(owner(1, &[&ann]), Ok(1));
        assert_eq!(owner(1, &[&both, &bob]), Ok(2), "any name in it");
        assert_eq!(owner(1, &[&both]), Err("unknown_subject"));
        assert_eq!(owner(1, &[&ann, &bob]), Err("ambiguous_certificate"));
        assert_eq!(owner(9, &[&ann, &bob]), Ok(0), "the fingerprint counts first");
        // A name in another part of the certificate is another name.
        assert_eq!(owner(1, &[&"DNS:ann".parse().unwrap()]), Err("unknown_subject"));
    }

    #[test]
    fn requests_to_foreign_names_are_refused_except_probes() {
        for act in [Act::Read, Act::ReadPayload, Act::Write] {
            let to = |host| judged(act, true, &request(host, None, Some(TOKEN)));
            for host in ["10.0.0.1", "10.0.0.1:8080", "[fd00::1]", "[fd00::1]:80", "gateway-1:80"] {
                assert_eq!(to(host), Ok(()), "{host}");
            }
            for host in
                ["", "evil.example", "10.0.0.2", "gateway-1.evil", "10.0.0.1:x", "[fd00::1]x"]
            {
                assert_eq!(to(host), Err((403, "foreign_host")), "{host} {act:?}");
            }
        }
        let foreign = request("evil.example", Some("http://evil.example"), None);
        assert_eq!(judged(Act::Probe, false, &foreign), Ok(()));
    }

    #[test]
    fn foreign_origin_is_refused_even_with_the_token() {
        for act in [Act::ReadPayload, Act::Write] {
            for host in ["10.0.0.1", "[fd00::1]:80", "gateway-1:80"] {
                let of =
                    |origin: &str| judged(act, true, &request(host, Some(origin), Some(TOKEN)));
                assert_eq!(of(&format!("http://{host}")), Ok(()), "{host}");
                assert_eq!(of("null"), Err((403, "foreign_origin")));
                assert_eq!(of("http://evil.example"), Err((403, "foreign_origin")));
                assert_eq!(
                    of(&format!("http://{host}.evil.example")),
                    Err((403, "foreign_origin"))
                );
            }
        }
    }

    #[test]
    fn wrong_token_blocks_further_tokens_of_the_host_for_a_second() {
        let mut guesses = Guesses::default();
        let mut with = |bearer, from: &str, now| {
            let from: SocketAddr = from.parse().unwrap();
            let request = Request { from, ..request("10.0.0.1", None, Some(bearer)) };
            judged_by(&mut guesses, now, Act::Write, true, &request)
        };
        assert_eq!(with(b"wrong", "10.0.0.9:1", at(5)), Err((401, "wrong_token")));
        let soon = at(5) + Duration::from_millis(999);
        assert_eq!(with(TOKEN, "10.0.0.9:2", soon), Err((429, "token_too_soon")));
        assert_eq!(with(TOKEN, "10.0.0.8:2", soon), Ok(()), "another host");
        assert_eq!(with(TOKEN, "10.0.0.9:2", at(6)), Ok(()));
        // Addresses of one /64 count as one host.
        assert_eq!(with(b"wrong", "[fd00::1]:1", at(7)), Err((401, "wrong_token")));
        assert_eq!(with(TOKEN, "[fd00::2]:1", at(7)), Err((429, "token_too_soon")));
    }

    #[test]
    fn guessing_hosts_are_stored_up_to_a_limit() {
        let mut guesses = Guesses::default();
        for host in 0..5000u32 {
            guesses.note(IpAddr::V4(core::net::Ipv4Addr::from_bits(host)), at(1));
            assert!(guesses.wrong.len() <= GUESSERS);
        }
        let last = IpAddr::V4(core::net::Ipv4Addr::from_bits(4999));
        assert!(!guesses.admits(last, at(1)) && guesses.admits(last, at(2)));
        guesses.note(IpAddr::V6(core::net::Ipv6Addr::LOCALHOST), at(3));
        assert_eq!(guesses.wrong.len(), 1, "expired entries are removed");
    }

    #[test]
    fn doors_admit_hosts_and_addresses() {
        let hosts = Hosts::new(["10.0.0.0/24".parse().unwrap()].into());
        let doors = Doors { hosts, listen: ["10.0.0.1".parse().unwrap()].into() };
        let admit = |from: &str, to: &str| {
            doors.admit(from.parse().unwrap(), to.parse().unwrap()).map_err(|r| r.reason)
        };
        assert_eq!(admit("10.0.0.9", "10.0.0.1"), Ok(()));
        assert_eq!(admit("10.0.1.9", "10.0.0.1"), Err("host_not_admitted"));
        assert_eq!(admit("10.0.0.9", "10.0.0.2"), Err("address_not_listened"));
        let open = Doors::default();
        assert!(open.admit("192.0.2.1".parse().unwrap(), "::1".parse().unwrap()).is_ok());
    }
}
