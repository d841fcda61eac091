//! A file from an HTTP server (RFC 9112), as it comes: `http://ADDRESS[:PORT]/PATH`. Names are not looked up, and there is
//! no TLS: what is fetched is signed.

use crate::gateway::network::Network;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use std::collections::VecDeque;

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes that have come and were not taken, at most.
const WAITING: usize = 32 << 10;
/// Longest header of an answer.
const HEADER: usize = 8 << 10;
const LIMITS: Limits = Limits { connections: 1, receive: 64 << 10, transmit: 4 << 10 };

/// A file that is being fetched.
pub(super) struct Fetch {
    server: SocketAddr,
    request: String,
    connector: Connector,
    /// The interface that it goes over, and the connection.
    connection: Option<(usize, ConnectionHandle)>,
    sent: usize,
    /// The header of the answer as far as it has come, until it is whole.
    header: Vec<u8>,
    /// Bytes of the file that are still to come, once they are known.
    left: Option<u64>,
    waiting: VecDeque<u8>,
    /// When it is given up.
    until: Instant,
    failed: Option<String>,
}

/// Takes an address apart: the server, what it is called in the request, and the path.
fn parts(url: &str) -> Result<(SocketAddr, &str, &str), String> {
    let rest = url.strip_prefix("http://").ok_or(
        "accepted: http://ADDRESS[:PORT]/PATH, or the name of a disk. There is no TLS: the file is signed",
    )?;
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().map(|address| SocketAddr::new(address, 80));
    let server = host.parse().or(address).map_err(|_| {
        format!("{host:?} is no IP address, with or without a port: names are not looked up")
    })?;
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a path has no spaces: write them as %20".into());
    }
    Ok((server, host, path))
}

impl Fetch {
    /// Begins; `seed` is random.
    pub fn new(url: &str, seed: u16, now: Instant) -> Result<Fetch, String> {
        let (server, host, path) = parts(url)?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: isthmus\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        Ok(Fetch {
            server,
            request,
            connector: Connector::new(LIMITS, seed),
            connection: None,
            sent: 0,
            header: Vec::new(),
            left: None,
            waiting: VecDeque::new(),
            until: now + PATIENCE,
            failed: None,
        })
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes bytes that have come; how many.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.waiting.len());
        for (to, byte) in into.iter_mut().zip(self.waiting.drain(..count)) {
            *to = byte;
        }
        count
    }

    /// Whether all has come.
    pub fn is_whole(&self) -> bool {
        self.left == Some(0)
    }

    /// What went wrong, if something has.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// When it is given up if nothing comes.
    pub fn until(&self) -> Option<Instant> {
        (self.failed.is_none() && !self.is_whole()).then_some(self.until)
    }

    /// Goes on; whether something has happened.
    pub fn poll(&mut self, networks: &mut [Network], now: Instant) -> bool {
        if self.failed.is_some() || self.is_whole() {
            return false;
        }
        let result = self.go_on(networks, now);
        if let Err(why) = &result {
            self.failed = Some(format!("{}: {why}", self.server));
        }
        result != Ok(false)
    }

    /// Ends the connection.
    pub fn end(self, networks: &mut [Network]) {
        if let Some((number, _)) = self.connection
            && let Some(network) = networks.get_mut(number)
        {
            self.connector.stop(&mut network.interface);
        }
    }

    fn go_on(&mut self, networks: &mut [Network], now: Instant) -> Result<bool, String> {
        if self.until <= now {
            return Err(match self.left {
                Some(left) => format!("{left} bytes have not come, and nothing more came for 20 s"),
                None => "no answer within 20 s".into(),
            });
        }
        let Some((number, connection)) = self.connection else {
            for (number, network) in networks.iter_mut().enumerate() {
                let made = self.connector.connect(&mut network.interface, self.server, false);
                if let Some(made) = made {
                    self.connection = Some((number, made));
                    return Ok(true);
                }
            }
            return Err("no interface has a way there".into());
        };
        let network = networks.get_mut(number).ok_or("its interface is gone")?;
        let interface = &mut network.interface;
        while self.connector.next_news(interface).is_some() {}
        match self.connector.progress(interface, connection) {
            Progress::Opening => return Ok(false),
            Progress::Gone if self.sent == 0 => {
                return Err("it does not take the connection".into());
            }
            Progress::Open { .. } | Progress::Gone => {}
        }
        let ended = || "it has ended the connection before the file was whole".to_string();
        let rest = self.request.as_bytes().get(self.sent..).unwrap_or_default();
        if !rest.is_empty() {
            self.sent += self.connector.write(interface, connection, rest).map_err(|_| ended())?;
        }
        let mut any = false;
        let mut bytes = [0; 4096];
        while self.waiting.len() + bytes.len() <= WAITING {
            let read = self.connector.read(interface, connection, &mut bytes);
            let count = read.map_err(|_| ended())?;
            if count == 0 {
                break;
            }
            self.until = now + PATIENCE;
            any = true;
            self.hear(bytes.get(..count).unwrap_or_default())?;
            if self.is_whole() {
                break;
            }
        }
        if self.waiting.len() + bytes.len() > WAITING {
            // It is the disk that is slow.
            self.until = now + PATIENCE;
        }
        Ok(any)
    }

    /// Takes what has come.
    fn hear(&mut self, bytes: &[u8]) -> Result<(), String> {
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

    fn fetch() -> Fetch {
        Fetch::new("http://10.0.0.1:8000/isthmus.release", 0, Instant::ZERO).unwrap()
    }

    #[test]
    fn addresses_are_taken_apart() {
        let told =
            |url: &str| parts(url).map(|(server, host, path)| format!("{server} {host} {path}"));
        assert_eq!(told("http://10.0.0.1/a").unwrap(), "10.0.0.1:80 10.0.0.1 /a");
        assert_eq!(told("http://10.0.0.1:8000").unwrap(), "10.0.0.1:8000 10.0.0.1:8000 /");
        assert_eq!(told("http://[fd00::1]/a").unwrap(), "[fd00::1]:80 [fd00::1] /a");
        assert_eq!(told("http://[fd00::1]:81/a").unwrap(), "[fd00::1]:81 [fd00::1]:81 /a");
        for wrong in ["https://10.0.0.1/", "10.0.0.1", "http://host/a", "http://10.0.0.1/a\r\nX: y"]
        {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_file_is_what_comes_behind_the_header_however_it_comes() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nabcdefgh";
        for piece in [1, 7, answer.len()] {
            let mut fetch = fetch();
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
        let heard = |answer: &str| fetch().hear(answer.as_bytes()).unwrap_err();
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
