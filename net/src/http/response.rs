//! Responses of a handler.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt::{self, Write};

/// A status code with its phrase (RFC 9110 section 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16, pub &'static str);

impl Status {
    /// 200.
    pub const OK: Status = Status(200, "OK");
    /// 201: a resource was created.
    pub const CREATED: Status = Status(201, "Created");
    /// 202: the request is being executed.
    pub const ACCEPTED: Status = Status(202, "Accepted");
    /// 304: the client's copy is current.
    pub const NOT_MODIFIED: Status = Status(304, "Not Modified");
    /// 400: malformed request.
    pub const BAD_REQUEST: Status = Status(400, "Bad Request");
    /// 401: a token is required.
    pub const UNAUTHORIZED: Status = Status(401, "Unauthorized");
    /// 403: not allowed for this client, or disabled by the configuration.
    pub const FORBIDDEN: Status = Status(403, "Forbidden");
    /// 404: no such path.
    pub const NOT_FOUND: Status = Status(404, "Not Found");
    /// 405: the path does not support this method.
    pub const METHOD_NOT_ALLOWED: Status = Status(405, "Method Not Allowed");
    /// 408: the request was not received in time.
    pub const REQUEST_TIMEOUT: Status = Status(408, "Request Timeout");
    /// 409: the request conflicts with the state, and may be confirmed.
    pub const CONFLICT: Status = Status(409, "Conflict");
    /// 411: a body needs a length.
    pub const LENGTH_REQUIRED: Status = Status(411, "Length Required");
    /// 412: the resource has another entity tag.
    pub const PRECONDITION_FAILED: Status = Status(412, "Precondition Failed");
    /// 413: the body is too large.
    pub const TOO_LARGE: Status = Status(413, "Content Too Large");
    /// 429: a token too soon after a wrong one.
    pub const TOO_MANY_REQUESTS: Status = Status(429, "Too Many Requests");
    /// 431: line and headers are too large.
    pub const HEADERS_TOO_LARGE: Status = Status(431, "Request Header Fields Too Large");
    /// 500: a fault of the appliance.
    pub const INTERNAL_ERROR: Status = Status(500, "Internal Server Error");
    /// 501: unknown method.
    pub const NOT_IMPLEMENTED: Status = Status(501, "Not Implemented");
    /// 503: temporarily unavailable.
    pub const UNAVAILABLE: Status = Status(503, "Service Unavailable");
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

/// The body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The complete body.
    Bytes(Cow<'static, [u8]>),
    /// A stream, read by [`super::Handler::read`] while it is sent.
    Stream {
        /// The handler's name for it.
        id: u64,
        /// Total length, if known; otherwise it is sent in chunks.
        length: Option<u64>,
    },
}

/// Result of [`super::Handler::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Number of bytes written, at least one.
    Bytes(usize),
    /// No bytes at present; call again.
    Pending,
    /// End of the stream.
    End,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Status.
    pub status: Status,
    /// Media type of the body.
    pub content_type: &'static str,
    /// For 405: the methods that are allowed, separated by commas; otherwise empty.
    pub allow: &'static str,
    /// For 401: the challenge (`WWW-Authenticate`); otherwise empty.
    pub challenge: &'static str,
    /// Entity tag with its quotes (`ETag`); otherwise empty.
    pub etag: String,
    /// Further header lines, each with its line end; otherwise empty.
    pub headers: &'static str,
    /// The body.
    pub body: Body,
}

impl Response {
    /// Media type of JSON.
    pub const JSON: &'static str = "application/json";
    /// Media type of text.
    pub const TEXT: &'static str = "text/plain; charset=utf-8";

    /// A response with a complete body.
    pub fn new(status: Status, content_type: &'static str, body: impl Into<String>) -> Self {
        let body = Body::Bytes(body.into().into_bytes().into());
        let (allow, challenge, etag, headers) = ("", "", String::new(), "");
        Response { status, content_type, allow, challenge, etag, headers, body }
    }

    /// A response with a streamed body.
    pub fn stream(content_type: &'static str, id: u64, length: Option<u64>) -> Self {
        let body = Body::Stream { id, length };
        Response {
            status: Status::OK,
            content_type,
            allow: "",
            challenge: "",
            etag: String::new(),
            headers: "",
            body,
        }
    }

    /// A response with the status as its text.
    pub fn error(status: Status) -> Self {
        let mut text = String::new();
        let _ = writeln!(text, "{status}");
        Response::new(status, Self::TEXT, text)
    }

    /// 405 with the allowed methods.
    pub fn method_not_allowed(allow: &'static str) -> Self {
        Response { allow, ..Response::error(Status::METHOD_NOT_ALLOWED) }
    }
}
