//! Incremental parser of an HTTP server's response to a request for a file (RFC 9112): a header, then a body of
//! `Content-Length` bytes.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Longest response header.
const HEADER: usize = 8 << 10;

/// A response that is being received.
#[derive(Debug, Default)]
pub struct Answer {
    /// The header as received so far; empty once it is complete.
    header: Vec<u8>,
    /// Bytes of the file still to be received; None until the header is complete.
    left: Option<u64>,
    waiting: VecDeque<u8>,
}

impl Answer {
    /// A response of which nothing has been received.
    pub fn new() -> Answer {
        Answer::default()
    }

    /// Received bytes of the file that the caller has not taken yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Moves received bytes of the file to `into`. Returns their number.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.waiting.len());
        for (to, byte) in into.iter_mut().zip(self.waiting.drain(..count)) {
            *to = byte;
        }
        count
    }

    /// Bytes of the file still to be received; None until the header is complete.
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether the whole file has been received.
    pub fn is_whole(&self) -> bool {
        self.left == Some(0)
    }

    /// Parses bytes received from the server.
    pub fn hear(&mut self, bytes: &[u8]) -> Result<(), String> {
        if let Some(left) = &mut self.left {
            let count = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
            self.waiting.extend(bytes.get(..count).unwrap_or_default());
            *left -= count as u64;
            return Ok(());
        }
        self.header.extend_from_slice(bytes);
        let mut fields = [httparse::EMPTY_HEADER; 48];
        let mut answer = httparse::Response::new(&mut fields);
        let length = match answer.parse(&self.header) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if self.header.len() < HEADER => return Ok(()),
            Ok(httparse::Status::Partial) => {
                return Err("the server's response header is longer than 8 KiB".into());
            }
            Err(why) => return Err(format!("the server's response is not HTTP: {why}")),
        };
        match answer.code {
            Some(200) => {}
            code => {
                let reason = answer.reason.unwrap_or_default();
                return Err(format!("the server answered {} {reason}", code.unwrap_or(0)));
            }
        }
        let field =
            |name: &str| answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        if field("transfer-encoding").is_some() {
            return Err("the server sends the file chunked (Transfer-Encoding): use one that sends Content-Length".into());
        }
        let length_field = field("content-length")
            .and_then(|field| core::str::from_utf8(field.value).ok()?.trim().parse().ok());
        self.left = Some(
            length_field.ok_or("the server does not send the file's length (Content-Length)")?,
        );
        let header = core::mem::take(&mut self.header);
        self.hear(header.get(length..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_received_in_pieces_of_any_size() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nabcdefgh";
        for piece in [1, 7, answer.len()] {
            let mut fetch = Answer::new();
            for bytes in answer.chunks(piece) {
                fetch.hear(bytes).unwrap();
            }
            let mut file = [0; 9];
            assert_eq!((fetch.take(&mut file), &file[..5]), (5, &b"abcde"[..]));
            assert!(fetch.is_whole());
        }
    }

    #[test]
    fn unusable_response_is_reported() {
        let error = |answer: &str| Answer::new().hear(answer.as_bytes()).unwrap_err();
        assert_eq!(error("HTTP/1.1 404 Not Found\r\n\r\n"), "the server answered 404 Not Found");
        assert!(error("HTTP/1.1 200 OK\r\n\r\n").contains("Content-Length"));
        assert!(error("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n").contains("Content-Length"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n";
        assert!(error(chunked).contains("Transfer-Encoding"));
        assert!(error("SSH-2.0-x\r\n").contains("not HTTP"));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEADER));
        assert!(error(&endless).contains("longer than 8 KiB"));
    }
}
