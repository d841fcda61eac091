//! A GET over HTTP/1.1 (RFC 9112), enough to ask the appliance: one request, one connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A server's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and header fields as they came.
    pub head: String,
    /// The body.
    pub body: String,
}

/// Asks `server` for `path` and reads until the connection closes.
pub fn get(server: SocketAddr, path: &str) -> Result<Answer> {
    let what = format!("GET http://{server}{path}");
    let limit = Duration::from_secs(10);
    let mut connection = TcpStream::connect_timeout(&server, limit).context(what.clone())?;
    connection.set_read_timeout(Some(limit))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).context(what.clone())?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).context(what.clone())?;
    let answer = String::from_utf8(answer).with_context(|| format!("{what}: not UTF-8"))?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        bail!("{what}: no HTTP answer but {answer:?}");
    };
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.with_context(|| format!("{what}: no status in {head:?}"))?;
    Ok(Answer { status, head: head.into(), body: body.into() })
}
