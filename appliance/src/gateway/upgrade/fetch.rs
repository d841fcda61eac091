//! Fetches a file from an HTTP server (RFC 9112), piece by piece: `http://HOST[:PORT]/PATH`. There is no TLS, because
//! the file is signed.

use crate::gateway::network::Network;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::answer::Answer;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use net::dns::{Endpoint, Host, Lookup, Resolver};

/// Time limit of the header of a response, and interval in which at least [`LEAST`] bytes of the file have to arrive.
const PATIENCE: Duration = Duration::from_secs(20);
/// Minimum of bytes in each interval: 4 KiB a second. The last interval may be shorter.
const LEAST: u64 = 4096 * 20;
/// Time limit of the whole file.
const WHOLE: Duration = Duration::from_secs(3600);
/// Most received bytes that wait for the disk.
const WAITING: usize = 32 << 10;
const LIMITS: Limits = Limits { connections: 1, receive: 64 << 10, transmit: 4 << 10 };

/// Minimum speed of a server, so that a slow one does not block upgrades for ever.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Time limit of the whole file.
    end: Instant,
    /// End of the interval.
    until: Instant,
    /// Bytes received in the interval.
    received: u64,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { end: now + WHOLE, until: now + PATIENCE, received: 0 }
    }

    /// When to check next.
    fn next(&self) -> Instant {
        self.until.min(self.end)
    }

    /// Starts a new interval, for example because the server's bytes wait for the disk.
    fn restart(&mut self, now: Instant) {
        (self.until, self.received) = (now + PATIENCE, 0);
    }

    /// An error if the server is too slow. `left` is the number of missing bytes of the file, once it is known.
    fn check(&mut self, left: Option<u64>, now: Instant) -> Result<(), String> {
        if now < self.next() {
            return Ok(());
        }
        match left {
            None => Err("no response within 20 s".into()),
            Some(left) if now >= self.end => Err(format!("{left} bytes are missing after an hour")),
            Some(left) if self.received < LEAST => Err(format!(
                "{left} bytes are missing, and {} came in the last 20 s: less than 4 KiB a second",
                self.received
            )),
            Some(_) => {
                self.restart(now);
                Ok(())
            }
        }
    }
}

/// A file that is being fetched.
pub(super) struct Fetch {
    server: Endpoint,
    request: String,
    connector: Connector,
    /// Number of the interface, and the connection.
    connection: Option<(usize, ConnectionHandle)>,
    sent: usize,
    answer: Answer,
    pace: Pace,
    failed: Option<String>,
}

/// Parses an address: the server, its name in the request, and the path.
fn parts(url: &str) -> Result<(Endpoint, &str, &str), String> {
    let rest = url.strip_prefix("http://").ok_or(
        "accepted: http://HOST[:PORT]/PATH, or the name of a disk. There is no TLS: the file is signed",
    )?;
    let (host, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let server = Endpoint::parse(host, Some(80)).map_err(|why| format!("{host:?}: {why}"))?;
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a path has no spaces: write them as %20".into());
    }
    Ok((server, host, path))
}

impl Fetch {
    /// Starts to fetch. `seed` is random.
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

    /// Received bytes that were not taken yet.
    pub fn waiting(&self) -> usize {
        self.answer.waiting()
    }

    /// Takes received bytes. Returns their number.
    pub fn take(&mut self, into: &mut [u8]) -> usize {
        self.answer.take(into)
    }

    /// Whether the file is complete.
    pub fn is_complete(&self) -> bool {
        self.answer.is_whole()
    }

    /// Error, if it has failed.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// When the next timeout is checked.
    pub fn until(&self) -> Option<Instant> {
        (self.failed.is_none() && !self.is_complete()).then(|| self.pace.next())
    }

    /// Continues. Returns whether there was progress.
    pub fn poll(
        &mut self,
        networks: &mut [Network],
        resolver: &mut Resolver,
        now: Instant,
    ) -> bool {
        if self.failed.is_some() || self.is_complete() {
            return false;
        }
        let result = self.advance(networks, resolver, now);
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

    /// Connects to the first address of the server that has a route. False while its name is being resolved.
    fn connect(
        &mut self,
        networks: &mut [Network],
        resolver: &mut Resolver,
        now: Instant,
    ) -> Result<bool, String> {
        let addresses = match &self.server.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match resolver.lookup(name, now) {
                Lookup::Known(addresses) => addresses,
                Lookup::Pending => return Ok(false),
                Lookup::Failed(problem) => return Err(problem.to_string()),
            },
        };
        for address in addresses {
            let server = SocketAddr::new(address, self.server.port);
            for (number, network) in networks.iter_mut().enumerate() {
                let made = self.connector.connect(&mut network.interface, server, false);
                if let Some(made) = made {
                    self.connection = Some((number, made));
                    return Ok(true);
                }
            }
        }
        Err("no interface has a route to it".into())
    }

    fn advance(
        &mut self,
        networks: &mut [Network],
        resolver: &mut Resolver,
        now: Instant,
    ) -> Result<bool, String> {
        self.pace.check(self.answer.left(), now)?;
        let Some((number, connection)) = self.connection else {
            return self.connect(networks, resolver, now);
        };
        let network = networks.get_mut(number).ok_or("its interface is gone")?;
        let interface = &mut network.interface;
        while self.connector.next_news(interface).is_some() {}
        match self.connector.progress(interface, connection) {
            Progress::Opening => return Ok(false),
            Progress::Gone if self.sent == 0 => {
                return Err("it refuses the connection".into());
            }
            Progress::Open { .. } | Progress::Gone => {}
        }
        let ended = || "it closed the connection before the end of the file".to_string();
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
            self.receive(bytes.get(..count).unwrap_or_default(), now)?;
            if self.is_complete() {
                break;
            }
        }
        if self.waiting() + bytes.len() > WAITING {
            // The disk is slow, not the server.
            self.pace.restart(now);
        }
        Ok(any)
    }

    /// Handles received bytes.
    fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), String> {
        let had_header = self.answer.left().is_some();
        self.answer.hear(bytes)?;
        if had_header {
            self.pace.received = self.pace.received.saturating_add(bytes.len() as u64);
        } else if self.answer.left().is_some() {
            // The header is complete. The first interval of the file starts.
            self.pace.restart(now);
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
    fn urls_are_parsed_and_malformed_ones_refused() {
        let parsed =
            |url: &str| parts(url).map(|(server, host, path)| format!("{server} {host} {path}"));
        assert_eq!(parsed("http://10.0.0.1/a").unwrap(), "10.0.0.1:80 10.0.0.1 /a");
        assert_eq!(parsed("http://10.0.0.1:8000").unwrap(), "10.0.0.1:8000 10.0.0.1:8000 /");
        assert_eq!(parsed("http://[fd00::1]/a").unwrap(), "[fd00::1]:80 [fd00::1] /a");
        assert_eq!(parsed("http://[fd00::1]:81/a").unwrap(), "[fd00::1]:81 [fd00::1]:81 /a");
        assert_eq!(parsed("http://Host.x/a").unwrap(), "host.x:80 Host.x /a");
        assert_eq!(parsed("http://host.x:81/a").unwrap(), "host.x:81 host.x:81 /a");
        for wrong in [
            "https://10.0.0.1/",
            "10.0.0.1",
            "http://localhost/a",
            "http://me@host.x/a",
            "http://10.0.0/a",
            "http:///a",
            "http://10.0.0.1/a\r\nX: y",
        ] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    /// Simulates a server that sends `count` bytes each `pause` seconds. Returns the second of the timeout, None if
    /// there is none within `most` seconds.
    fn seconds_until_given_up(count: usize, pause: u64, most: u64) -> Option<u64> {
        let mut fetch = fetch();
        let mut second = 0;
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n";
        fetch.receive(answer, Instant::ZERO).unwrap();
        while second < most {
            second += 1;
            let now = Instant::ZERO + Duration::from_secs(second);
            if second.is_multiple_of(pause) {
                for piece in vec![0; count].chunks(4096) {
                    fetch.receive(piece, now).unwrap();
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
    fn slow_server_times_out() {
        // A byte each 19 s, a byte each second, and just too little.
        assert_eq!(seconds_until_given_up(1, 19, 10_000), Some(20));
        assert_eq!(seconds_until_given_up(1, 1, 10_000), Some(20));
        assert_eq!(seconds_until_given_up(4000, 1, 10_000), Some(20));
        // A burst does not excuse a following pause.
        assert_eq!(seconds_until_given_up(4096 * 30, 30, 10_000), Some(20));
        // Fast enough, but not for ever.
        assert_eq!(seconds_until_given_up(4096, 1, 3500), None);
        assert_eq!(seconds_until_given_up(1 << 20, 1, 900), None);
        assert_eq!(seconds_until_given_up(4096, 1, 10_000), Some(3600));
    }

    #[test]
    fn slow_header_times_out() {
        let mut fetch = fetch();
        for second in 0..20 {
            let now = Instant::ZERO + Duration::from_secs(second);
            assert!(fetch.pace.check(fetch.answer.left(), now).is_ok());
            fetch
                .receive(b"HTTP/1.1 200 OK\r\nX: y"[second as usize..][..1].as_ref(), now)
                .unwrap();
        }
        let error = fetch.pace.check(fetch.answer.left(), Instant::ZERO + PATIENCE).unwrap_err();
        assert_eq!(error, "no response within 20 s");
    }

    #[test]
    fn slow_disk_does_not_time_the_server_out() {
        let mut pace = Pace::new(Instant::ZERO);
        for second in 1..3600 {
            let now = Instant::ZERO + Duration::from_secs(second);
            pace.restart(now);
            assert!(pace.check(Some(1), now).is_ok());
        }
        assert!(pace.check(Some(1), Instant::ZERO + WHOLE).is_err());
    }
}
