//! Who may do what over HTTP.
//!
//! Reading is open to the hosts that [`Doors`] admit. What changes something, and captures, which hold
//! what others send, need the bearer token (RFC 6750) whose SHA-256 is configured; without one configured
//! nobody may. A browser that was lured to a page of somebody else must not act for its user: what changes
//! something has to be sent to a name or address of ours, and by no page but ours.

use super::{Request, Response, Status};
use crate::hosts::Hosts;
use crate::refusal::Refusal;
use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::net::IpAddr;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// Who may connect, and to which addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doors {
    /// The hosts that are admitted.
    pub hosts: Hosts,
    /// The addresses of ours that are listened on; with none, all.
    pub listen: Vec<IpAddr>,
}

impl Doors {
    /// Whether a connection `from` a host to one of our addresses is taken.
    pub fn admit(&self, from: IpAddr, to: IpAddr) -> Result<(), Refusal> {
        let refusal = |reason, advice: String| Refusal {
            who: Some(from),
            what: "http",
            asked: format!("connection to {to}"),
            reason,
            advice: advice.into(),
        };
        if !self.listen.is_empty() && !self.listen.contains(&to) {
            let advice = format!("http.listen does not have {to}");
            return Err(refusal("address_not_listened", advice));
        }
        if !self.hosts.admits(from) {
            let advice = format!("http.hosts admits {} only; add {from} there", self.hosts);
            return Err(refusal("host_not_admitted", advice));
        }
        Ok(())
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It reads what everybody may read.
    Read,
    /// It reads what others have sent.
    ReadPayload,
    /// It changes something.
    Write,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// 401 if a token would help, else 403.
    pub status: Status,
    /// A label.
    pub reason: &'static str,
    /// The same for people, and what to do.
    pub advice: Cow<'static, str>,
}

impl Denied {
    /// The answer that says so.
    pub fn response(&self) -> Response {
        let challenge = match (self.status == Status::UNAUTHORIZED, self.reason) {
            (false, _) => "",
            (true, "wrong_token") => "Bearer realm=\"isthmus\", error=\"invalid_token\"",
            (true, _) => "Bearer realm=\"isthmus\"",
        };
        let text = format!("{}: {}\n", self.status, self.advice);
        Response { challenge, ..Response::new(self.status, Response::TEXT, text) }
    }

    /// The refusal of `request`, to be logged and counted.
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

/// Whether `request` may do that. `token` is the hash of the token that is configured; `is_ours` says whether
/// a host's name or address (without port) is one of ours.
pub fn judge(
    request: &Request<'_>,
    act: Act,
    token: Option<&TokenHash>,
    is_ours: &dyn Fn(&str) -> bool,
) -> Result<(), Denied> {
    let forbidden =
        |reason, advice: Cow<'static, str>| Denied { status: Status::FORBIDDEN, reason, advice };
    if act == Act::Read {
        return Ok(());
    }
    let foreign_host = !host_name(request.host).is_some_and(is_ours);
    if act == Act::Write && foreign_host {
        let host: String = request.host.chars().take(64).collect();
        let advice = format!(
            "{host:?} is no address of ours and not system.hostname; name the appliance by one of them"
        );
        return Err(forbidden("foreign_host", advice.into()));
    }
    if let Some(origin) = request.origin.filter(|origin| !is_same(origin, request.host)) {
        let origin: String = origin.chars().take(64).collect();
        let advice = format!("a page of {origin:?} may not act here");
        return Err(forbidden("foreign_origin", advice.into()));
    }
    let Some(expected) = token else {
        let advice = "HTTP is read-only, and without captures, until http.token_sha256 is set";
        return Err(forbidden("read_only", advice.into()));
    };
    let unauthorized = |reason, advice: &'static str| Denied {
        status: Status::UNAUTHORIZED,
        reason,
        advice: advice.into(),
    };
    let Some(given) = request.bearer else {
        let advice = "send the token of http.token_sha256: Authorization: Bearer TOKEN";
        return Err(unauthorized("no_token", advice));
    };
    let given = Sha256::digest(given);
    match bool::from(given.as_slice().ct_eq(expected)) {
        true => Ok(()),
        false => Err(unauthorized("wrong_token", "this is not the token of http.token_sha256")),
    }
}

/// A host without its port: `10.0.0.1:80`, `[fd00::1]:80` (then without brackets), `name:80`.
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

/// Whether a page's origin is the server itself under the name that the request has for it.
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
        Request { from, method, head_only, path, query, body, host, origin, bearer }
    }

    fn judged(
        act: Act,
        configured: bool,
        request: &Request<'_>,
    ) -> Result<(), (u16, &'static str)> {
        let hash: TokenHash = Sha256::digest(TOKEN).into();
        let ours = |host: &str| ["10.0.0.1", "fd00::1", "gateway-1"].contains(&host);
        judge(request, act, configured.then_some(&hash), &ours).map_err(|d| (d.status.0, d.reason))
    }

    #[test]
    fn reading_is_open_and_nothing_else_without_a_token() {
        let anybody = request("evil.example", Some("http://evil.example"), None);
        assert_eq!(judged(Act::Read, false, &anybody), Ok(()));
        let plain = request("10.0.0.1", None, Some(TOKEN));
        assert_eq!(judged(Act::Write, false, &plain), Err((403, "read_only")));
        assert_eq!(judged(Act::ReadPayload, false, &plain), Err((403, "read_only")));
    }

    #[test]
    fn the_token_opens_and_nothing_like_it() {
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
    fn a_lured_browser_is_refused_although_it_has_the_token() {
        fn write(host: &str, origin: Option<&str>) -> Result<(), (u16, &'static str)> {
            judged(Act::Write, true, &request(host, origin, Some(TOKEN)))
        }
        for host in ["10.0.0.1", "10.0.0.1:8080", "[fd00::1]", "[fd00::1]:80", "gateway-1:80"] {
            assert_eq!(write(host, None), Ok(()), "{host}");
            let own = format!("http://{host}");
            assert_eq!(write(host, Some(&own)), Ok(()), "{host}");
            assert_eq!(write(host, Some("null")), Err((403, "foreign_origin")));
            assert_eq!(write(host, Some("http://evil.example")), Err((403, "foreign_origin")));
            let longer = format!("http://{host}.evil.example");
            assert_eq!(write(host, Some(&longer)), Err((403, "foreign_origin")));
        }
        for host in ["", "evil.example", "10.0.0.2", "gateway-1.evil", "10.0.0.1:x", "[fd00::1]x"] {
            assert_eq!(write(host, None), Err((403, "foreign_host")), "{host}");
        }
        // Captures are read: they need no Host of ours, but no foreign page may fetch them.
        let read = |origin| judged(Act::ReadPayload, true, &request("x", origin, Some(TOKEN)));
        assert_eq!(read(None), Ok(()));
        assert_eq!(read(Some("http://y")), Err((403, "foreign_origin")));
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
