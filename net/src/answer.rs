//! The answer of an HTTP server to a request for a file (RFC 9112), as it comes: a header, and as many bytes as that says.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Longest header of an answer.
const HEADER: usize = 8 << 10;

/// What has come of it.
#[derive(Debug, Default)]
pub struct Answer {
    /// The header as far as it has come, until it is whole.
    header: Vec<u8>,
    /// Bytes of the file that are still to come, once they are known.
    left: Option<u64>,
    waiting: VecDeque<u8>,
}

impl Answer {
    /// Nothing yet.
    pub fn new() -> Answer {
        Answer::default()
    }

    /// Bytes of the file that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes bytes of the file that have come; how many.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.waiting.len());
        for (to, byte) in into.iter_mut().zip(self.waiting.drain(..count)) {
            *to = byte;
        }
        count
    }

    /// Bytes of the file that are still to come, once the header has come.
    pub fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether all has come.
    pub fn is_whole(&self) -> bool {
        self.left == Some(0)
    }

    /// Takes what has come.
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
                return Err("the header of its answer has no end".into());
            }
            Err(why) => return Err(format!("what it says is no HTTP: {why}")),
        };
        match answer.code {
            Some(200) => {}
            code => {
                let reason = answer.reason.unwrap_or_default();
                return Err(format!("it answers {} {reason}", code.unwrap_or(0)));
            }
        }
        let field =
            |name: &str| answer.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        if field("transfer-encoding").is_some() {
            return Err("it sends the file in pieces (Transfer-Encoding): use a server that tells its length".into());
        }
        let told = field("content-length")
            .and_then(|field| core::str::from_utf8(field.value).ok()?.trim().parse().ok());
        self.left = Some(told.ok_or("it does not tell how long the file is (Content-Length)")?);
        let header = core::mem::take(&mut self.header);
        self.hear(header.get(length..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_what_comes_behind_the_header_however_it_comes() {
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
    fn what_cannot_be_is_told() {
        let heard = |answer: &str| Answer::new().hear(answer.as_bytes()).unwrap_err();
        assert_eq!(heard("HTTP/1.1 404 Not Found\r\n\r\n"), "it answers 404 Not Found");
        assert!(heard("HTTP/1.1 200 OK\r\n\r\n").contains("Content-Length"));
        assert!(heard("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n").contains("Content-Length"));
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n";
        assert!(heard(chunked).contains("Transfer-Encoding"));
        assert!(heard("SSH-2.0-x\r\n").contains("no HTTP"));
        let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEADER));
        assert!(heard(&endless).contains("no end"));
    }
}
