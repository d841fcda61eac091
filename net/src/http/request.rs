//! Parses requests. Ambiguous framing is refused (RFC 9112 section 6.3).

use super::Status;
use crate::tls::ClientCertificate;
use core::net::SocketAddr;

/// Maximum number of headers.
const MAX_HEADERS: usize = 48;

/// Request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read (also HEAD).
    Get,
    /// Execute.
    Post,
    /// Replace.
    Put,
    /// Change in part.
    Patch,
    /// Remove.
    Delete,
}

/// A complete request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's address.
    pub from: SocketAddr,
    /// Method.
    pub method: Method,
    /// A HEAD request: the response's body is not sent, so it need not be made.
    pub head_only: bool,
    /// The path as sent: begins with `/`, percent-encoding is not decoded.
    pub path: &'a str,
    /// The part after the first `?`; empty without one.
    pub query: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// The addressed host (`Host`, or the authority of an absolute target), possibly with a port.
    pub host: &'a str,
    /// Origin of the web page that sends it (`Origin`, RFC 6454).
    pub origin: Option<&'a str>,
    /// The token of `Authorization: Bearer …` (RFC 6750).
    pub bearer: Option<&'a [u8]>,
    /// The client's certificate, whose key it has.
    pub certificate: Option<&'a ClientCertificate>,
    /// Entity tags of `If-Match` (RFC 9110, section 13.1.1); empty without one.
    pub if_match: &'a str,
    /// Entity tags of `If-None-Match`; empty without one.
    pub if_none_match: &'a str,
}

/// The parsed head of a request.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub method: Method,
    /// Response without body.
    pub head_only: bool,
    pub path: &'a str,
    pub query: &'a str,
    pub host: &'a str,
    pub origin: Option<&'a str>,
    pub bearer: Option<&'a [u8]>,
    pub if_match: &'a str,
    pub if_none_match: &'a str,
    /// Bytes of the head.
    pub length: usize,
    /// Bytes of the body.
    pub body: usize,
    /// HTTP/1.1.
    pub modern: bool,
    /// The client keeps the connection.
    pub keep: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expects: bool,
}

/// Parses a complete head. The error is the status of the response.
pub(super) fn parse(input: &[u8], max_body: usize) -> Result<Head<'_>, Status> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(input) {
        Ok(httparse::Status::Complete(length)) => length,
        Err(httparse::Error::TooManyHeaders) => return Err(Status::HEADERS_TOO_LARGE),
        Ok(httparse::Status::Partial) | Err(_) => return Err(Status::BAD_REQUEST),
    };
    let modern = request.version == Some(1);
    let (method, head_only) = match request.method.unwrap_or_default() {
        "GET" => (Method::Get, false),
        "HEAD" => (Method::Get, true),
        "POST" => (Method::Post, false),
        "PUT" => (Method::Put, false),
        "PATCH" => (Method::Patch, false),
        "DELETE" => (Method::Delete, false),
        _ => return Err(Status::NOT_IMPLEMENTED),
    };
    let (authority, path, query) = split_target(request.path.unwrap_or_default())?;
    let mut head = Head {
        method,
        head_only,
        path,
        query,
        host: "",
        origin: None,
        bearer: None,
        if_match: "",
        if_none_match: "",
        length,
        body: 0,
        modern,
        keep: modern,
        expects: false,
    };
    let (mut hosts, mut body, mut logins) = (0, None, 0);
    for header in request.headers.iter() {
        let value = header.value;
        if header.name.eq_ignore_ascii_case("host") {
            hosts += 1;
            head.host = core::str::from_utf8(value).map_err(|_| Status::BAD_REQUEST)?.trim();
        } else if header.name.eq_ignore_ascii_case("origin") {
            let origin = core::str::from_utf8(value).map_err(|_| Status::BAD_REQUEST)?;
            if head.origin.replace(origin.trim()).is_some() {
                return Err(Status::BAD_REQUEST);
            }
        } else if header.name.eq_ignore_ascii_case("authorization") {
            logins += 1;
            head.bearer = bearer(value);
        } else if header.name.eq_ignore_ascii_case("if-match") {
            once(&mut head.if_match, value)?;
        } else if header.name.eq_ignore_ascii_case("if-none-match") {
            once(&mut head.if_none_match, value)?;
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let bytes = content_length(value)?;
            if body.is_some_and(|before| before != bytes) {
                return Err(Status::BAD_REQUEST);
            }
            body = Some(bytes);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Status::LENGTH_REQUIRED);
        } else if header.name.eq_ignore_ascii_case("connection") {
            if has_token(value, "close") {
                head.keep = false;
            } else if has_token(value, "keep-alive") {
                head.keep = true;
            }
        } else if header.name.eq_ignore_ascii_case("expect") {
            head.expects = modern && has_token(value, "100-continue");
        }
    }
    if hosts > 1 || logins > 1 || (modern && hosts == 0) {
        return Err(Status::BAD_REQUEST);
    }
    // RFC 9112 section 3.2.2: the authority of the target overrides `Host`.
    head.host = authority.unwrap_or(head.host);
    let body = body.unwrap_or(0);
    head.body = usize::try_from(body).ok().filter(|&b| b <= max_body).ok_or(Status::TOO_LARGE)?;
    Ok(head)
}

/// Takes a header that may be given once.
fn once<'a>(field: &mut &'a str, value: &'a [u8]) -> Result<(), Status> {
    let value = core::str::from_utf8(value).map_err(|_| Status::BAD_REQUEST)?.trim();
    match core::mem::replace(field, value) {
        "" => Ok(()),
        _ => Err(Status::BAD_REQUEST),
    }
}

/// Splits a target in absolute form into authority, path and query, one in origin form into path and query.
fn split_target(target: &str) -> Result<(Option<&str>, &str, &str), Status> {
    let (authority, origin) = match target.strip_prefix("http://") {
        Some(absolute) => {
            let end = absolute.find(['/', '?']).unwrap_or(absolute.len());
            let (authority, rest) = absolute.split_at(end);
            (Some(authority), if rest.is_empty() { "/" } else { rest })
        }
        None => (None, target),
    };
    if !origin.starts_with('/') {
        return Err(Status::BAD_REQUEST);
    }
    let (path, query) = origin.split_once('?').unwrap_or((origin, ""));
    Ok((authority, path, query))
}

/// The token of an `Authorization` header with the scheme Bearer.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

/// Parses a length: digits only. A number that does not fit is refused as too large.
fn content_length(value: &[u8]) -> Result<u64, Status> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Status::BAD_REQUEST);
    }
    let text = core::str::from_utf8(value).map_err(|_| Status::BAD_REQUEST)?;
    text.parse().map_err(|_| Status::TOO_LARGE)
}

/// Whether the comma-separated list `value` contains `token`.
fn has_token(value: &[u8], token: &str) -> bool {
    value.split(|&b| b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    fn status(request: &str) -> Option<Status> {
        parse(request.as_bytes(), 100).err()
    }

    #[test]
    fn parse_reads_target_and_headers() {
        let head = parse(b"HEAD http://a:1/x/y?q=1?2 HTTP/1.1\r\nhOST: a\r\n\r\n", 0).unwrap();
        assert_eq!((head.path, head.query, head.head_only), ("/x/y", "q=1?2", true));
        assert_eq!((head.host, head.origin, head.bearer), ("a:1", None, None));
        assert!(head.keep && head.modern);
        let text = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\nExpect: 100-Continue\r\n\
            Connection: TE, Close\r\n\r\nrest";
        let head = parse(text, 7).unwrap();
        assert_eq!((head.body, head.length), (7, text.len() - 4));
        assert!(head.expects && !head.keep);
        assert!(!parse(b"GET / HTTP/1.0\r\n\r\n", 0).unwrap().keep);
        let text = b"PUT / HTTP/1.1\r\nHost: b:80\r\nOrigin: http://b:80\r\n\
            authorization: bearer  s3cret \r\n\r\n";
        let head = parse(text, 0).unwrap();
        assert_eq!((head.host, head.origin), ("b:80", Some("http://b:80")));
        assert_eq!(head.bearer, Some(&b"s3cret"[..]));
        let text =
            b"PATCH / HTTP/1.1\r\nHost: b\r\nIf-Match: \"a\", \"b\"\r\nif-none-match: *\r\n\r\n";
        let head = parse(text, 0).unwrap();
        assert_eq!(
            (head.method, head.if_match, head.if_none_match),
            (Method::Patch, "\"a\", \"b\"", "*")
        );
    }

    #[test]
    fn parse_refuses_ambiguous_and_oversized_heads() {
        let with =
            |header: &str| status(&format!("POST / HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\n"));
        assert_eq!(with("X: y"), None);
        assert_eq!(with("Host: b"), Some(Status::BAD_REQUEST));
        assert_eq!(with("Origin: a\r\nOrigin: b"), Some(Status::BAD_REQUEST));
        assert_eq!(with("If-Match: a\r\nIf-Match: b"), Some(Status::BAD_REQUEST));
        let logins = "Authorization: Bearer a\r\nAuthorization: Bearer b";
        assert_eq!(with(logins), Some(Status::BAD_REQUEST));
        assert_eq!(with("Content-Length: -1"), Some(Status::BAD_REQUEST));
        assert_eq!(with("Content-Length: 5\r\nContent-Length: 6"), Some(Status::BAD_REQUEST));
        assert_eq!(with("Content-Length: 5\r\nContent-Length: 5"), None);
        assert_eq!(with("Content-Length: 101"), Some(Status::TOO_LARGE));
        assert_eq!(with("Content-Length: 99999999999999999999"), Some(Status::TOO_LARGE));
        assert_eq!(with("Transfer-Encoding: chunked"), Some(Status::LENGTH_REQUIRED));
        assert_eq!(with(&"A: b\r\n".repeat(60)), Some(Status::HEADERS_TOO_LARGE));
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), Some(Status::BAD_REQUEST));
        assert_eq!(status("GET * HTTP/1.0\r\n\r\n"), Some(Status::BAD_REQUEST));
        assert_eq!(status("BREW / HTTP/1.0\r\n\r\n"), Some(Status::NOT_IMPLEMENTED));
        assert_eq!(status("\x16\x03\x01 / HTTP/1.0\r\n\r\n"), Some(Status::BAD_REQUEST));
    }
}
