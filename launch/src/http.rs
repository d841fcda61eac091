//! A client of HTTP/1.1 (RFC 9112) for the appliance, with one request per connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Longest response in bytes. The rest is not read.
const LONGEST: u64 = 256 << 20;

/// A server's response.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Status line and header fields as received.
    pub head: String,
    /// The body, with invalid UTF-8 replaced.
    pub body: String,
}

/// Sends a GET for `path` and reads until the connection closes.
pub fn get(server: SocketAddr, path: &str) -> Result<Answer> {
    request(server, "GET", path, &[("Host", &server.to_string())], "")
}

/// Sends a request with these header fields, `Host` among them, and reads until the connection closes.
pub fn request(
    server: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Result<Answer> {
    let (status, head, body) = request_bytes(server, method, path, fields, body)?;
    Ok(Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() })
}

/// As [`request`]. Returns status, head and body.
pub fn request_bytes(
    server: SocketAddr,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: &str,
) -> Result<(u16, String, Vec<u8>)> {
    let what = format!("{method} http://{server}{path}");
    let limit = Duration::from_secs(10);
    let mut connection = TcpStream::connect_timeout(&server, limit).context(what.clone())?;
    connection.set_read_timeout(Some(limit))?;
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    for (name, value) in fields {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("Content-Length: {}\r\n", body.len());
    }
    connection.write_all(format!("{request}\r\n{body}").as_bytes()).context(what.clone())?;
    let mut answer = Vec::new();
    connection.take(LONGEST).read_to_end(&mut answer).context(what.clone())?;
    let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        bail!("{what}: no HTTP answer but {:?}", String::from_utf8_lossy(&answer));
    };
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.with_context(|| format!("{what}: no status in {head:?}"))?;
    let body = match head.contains("Transfer-Encoding: chunked") {
        true => unchunked(body).with_context(|| format!("{what}: malformed chunks"))?,
        false => body.to_vec(),
    };
    Ok((status, head.into(), body))
}

/// Decodes a chunked body (RFC 9112, section 7.1) up to its last chunk.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = usize::from_str_radix(str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        let after = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend(after.get(..size)?);
        rest = after.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn unchunked_joins_chunks_and_rejects_a_cut_body() {
        let unchunked = super::unchunked;
        assert_eq!(
            unchunked(b"3\r\nabc\r\n000a\r\n0123456789\r\n0\r\n\r\n").unwrap(),
            b"abc0123456789"
        );
        assert_eq!(unchunked(b"3\r\nabc\r\n"), None, "it was cut");
    }
}
