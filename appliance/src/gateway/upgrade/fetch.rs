//! A file from an HTTP server (RFC 9112), as it comes: `http://ADDRESS[:PORT]/PATH`. Names are not looked up, and there is
//! no TLS: what is fetched is signed.

use crate::gateway::network::Network;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use net::answer::Answer;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};

/// How long the header of an answer may take, and in which time so many bytes of the file have to come.
const PATIENCE: Duration = Duration::from_secs(20);
/// Least bytes of the file in each of these times: 4 KiB a second. The last of them may be shorter.
const LEAST: u64 = 4096 * 20;
/// How long the whole may take.
const WHOLE: Duration = Duration::from_secs(3600);
/// Bytes that have come and were not taken, at most.
const WAITING: usize = 32 << 10;
const LIMITS: Limits = Limits { connections: 1, receive: 64 << 10, transmit: 4 << 10 };

/// How fast a server has to be: one that drips does not hold an upgrade for ever.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// When the whole is given up.
    end: Instant,
    /// When it is given up if not enough has come by then, and how much has.
    until: Instant,
    came: u64,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { end: now + WHOLE, until: now + PATIENCE, came: 0 }
    }

    /// When something is to be decided.
    fn next(&self) -> Instant {
        self.until.min(self.end)
    }

    /// The server is not to blame for the time that passes: its bytes wait for the disk.
    fn excuse(&mut self, now: Instant) {
        (self.until, self.came) = (now + PATIENCE, 0);
    }

    /// An error if the server is too slow. `left` are bytes of the file that are still to come, once that is known.
    fn check(&mut self, left: Option<u64>, now: Instant) -> Result<(), String> {
        if now < self.next() {
            return Ok(());
        }
        match left {
            None => Err("no answer within 20 s".into()),
            Some(left) if now >= self.end => Err(format!("{left} bytes have not come in an hour")),
            Some(left) if self.came < LEAST => Err(format!(
                "{left} bytes have not come, and {} in the last 20 s: less than 4 KiB a second",
                self.came
            )),
            Some(_) => {
                self.excuse(now);
                Ok(())
            }
        }
    }
}

/// A file that is being fetched.
pub(super) struct Fetch {
    server: SocketAddr,
    request: String,
    connector: Connector,
    /// The interface that it goes over, and the connection.
    connection: Option<(usize, ConnectionHandle)>,
    sent: usize,
    answer: Answer,
    pace: Pace,
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
            answer: Answer::new(),
            pace: Pace::new(now),
            failed: None,
        })
    }

    /// Bytes that wait to be taken.
    pub fn waiting(&self) -> usize {
        self.answer.waiting()
    }

    /// Takes bytes that have come; how many.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        self.answer.take(into)
    }

    /// Whether all has come.
    pub fn is_whole(&self) -> bool {
        self.answer.is_whole()
    }

    /// What went wrong, if something has.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// When it may be given up.
    pub fn until(&self) -> Option<Instant> {
        (self.failed.is_none() && !self.is_whole()).then(|| self.pace.next())
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
        self.pace.check(self.answer.left(), now)?;
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
        while self.waiting() + bytes.len() <= WAITING {
            let read = self.connector.read(interface, connection, &mut bytes);
            let count = read.map_err(|_| ended())?;
            if count == 0 {
                break;
            }
            any = true;
            self.take_in(bytes.get(..count).unwrap_or_default(), now)?;
            if self.is_whole() {
                break;
            }
        }
        if self.waiting() + bytes.len() > WAITING {
            // It is the disk that is slow.
            self.pace.excuse(now);
        }
        Ok(any)
    }

    /// Takes what has come at this time.
    fn take_in(&mut self, bytes: &[u8], now: Instant) -> Result<(), String> {
        let had_header = self.answer.left().is_some();
        self.answer.hear(bytes)?;
        if had_header {
            self.pace.came = self.pace.came.saturating_add(bytes.len() as u64);
        } else if self.answer.left().is_some() {
            // From here on the file is what counts.
            self.pace.excuse(now);
        }
        Ok(())
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

    /// Has a server send `count` bytes each `pause` seconds until it is given up, or `most` seconds have passed.
    fn seconds_until_given_up(count: usize, pause: u64, most: u64) -> Option<u64> {
        let mut fetch = fetch();
        let mut second = 0;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        fetch.take_in(answer, Instant::ZERO).unwrap();
        while second < most {
            second += 1;
            let now = Instant::ZERO + Duration::from_secs(second);
            if second.is_multiple_of(pause) {
                for piece in vec![0; count].chunks(4096) {
                    fetch.take_in(piece, now).unwrap();
                    fetch.take(&mut [0; 4096]);
                }
            }
            if fetch.pace.check(fetch.answer.left(), now).is_err() {
                return Some(second);
            }
        }
        None
    }

    #[test]
    fn a_server_that_drips_is_given_up() {
        // A byte each 19 s, each second, and all but enough.
        assert_eq!(seconds_until_given_up(1, 19, 10_000), Some(20));
        assert_eq!(seconds_until_given_up(1, 1, 10_000), Some(20));
        assert_eq!(seconds_until_given_up(4000, 1, 10_000), Some(20));
        // What is fast enough for a while is no licence for the rest.
        assert_eq!(seconds_until_given_up(4096 * 30, 30, 10_000), Some(20));
        // Fast enough, but not for ever.
        assert_eq!(seconds_until_given_up(4096, 1, 3500), None);
        assert_eq!(seconds_until_given_up(1 << 20, 1, 900), None);
        assert_eq!(seconds_until_given_up(4096, 1, 10_000), Some(3600));
    }

    #[test]
    fn a_header_that_drips_is_given_up() {
        let mut fetch = fetch();
        for second in 0..20 {
            let now = Instant::ZERO + Duration::from_secs(second);
            assert!(fetch.pace.check(fetch.answer.left(), now).is_ok());
            fetch
                .take_in(b"HTTP/1.1 200 OK\r\nX: y"[second as usize..][..1].as_ref(), now)
                .unwrap();
        }
        let told = fetch.pace.check(fetch.answer.left(), Instant::ZERO + PATIENCE).unwrap_err();
        assert_eq!(told, "no answer within 20 s");
    }

    #[test]
    fn a_slow_disk_is_no_fault_of_the_server() {
        let mut pace = Pace::new(Instant::ZERO);
        for second in 1..3600 {
            let now = Instant::ZERO + Duration::from_secs(second);
            pace.excuse(now);
            assert!(pace.check(Some(1), now).is_ok());
        }
        assert!(pace.check(Some(1), Instant::ZERO + WHOLE).is_err());
    }
}
