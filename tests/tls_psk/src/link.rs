//! A session with its socket, driven by blocking calls with time limits.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tls_psk::{Config, OfferedPsk, Psk, Session};

/// Time limit of each step.
const PATIENCE: Duration = Duration::from_secs(20);

/// An identity and its key.
pub type Key = (Vec<u8>, Psk);

/// A session and its socket.
pub struct Link {
    /// The session.
    pub session: Session,
    stream: TcpStream,
    keys: Vec<Key>,
    begun: Instant,
    /// Bytes from the socket that the session has not taken.
    pending: Vec<u8>,
    /// Text that was received.
    pub text: Vec<u8>,
    /// The peer has closed its connection.
    is_closed: bool,
}

/// A listener on a free port.
pub fn listen() -> Result<(TcpListener, String)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?.to_string();
    Ok((listener, address))
}

impl Link {
    /// Waits for a client of `listener`. The session accepts these keys.
    pub fn accept(listener: &TcpListener, config: Config, keys: Vec<Key>) -> Result<Link> {
        listener.set_nonblocking(true)?;
        let begun = Instant::now();
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(why) if why.kind() == ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(why) => return Err(why).context("no client has connected"),
            }
        };
        stream.set_nonblocking(false)?;
        let random = &mut random;
        let session = Session::server(config, random, drivers::hal::Instant::ZERO);
        Link::new(session, stream, keys)
    }

    /// Connects to a server, as soon as it listens.
    pub fn connect(port: u16, config: Config, keys: Vec<Key>) -> Result<Link> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let begun = Instant::now();
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(_) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(why) => return Err(why).context("the server does not listen"),
            }
        };
        let psks = keys.into_iter().map(|(identity, key)| OfferedPsk { identity, key }).collect();
        let session = Session::client(config, psks, &mut random, drivers::hal::Instant::ZERO);
        Link::new(session, stream, Vec::new())
    }

    fn new(session: Session, stream: TcpStream, keys: Vec<Key>) -> Result<Link> {
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let begun = Instant::now();
        let (pending, text) = (Vec::new(), Vec::new());
        Ok(Link { session, stream, keys, begun, pending, text, is_closed: false })
    }

    fn now(&self) -> drivers::hal::Instant {
        drivers::hal::Instant::ZERO + self.begun.elapsed()
    }

    /// Sends queued records, and receives available bytes.
    fn turn(&mut self) -> Result<()> {
        self.flush()?;
        let mut bytes = [0; 5000];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.pending.extend(&bytes[..count]),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => (),
            Err(why) if why.kind() == ErrorKind::ConnectionReset => self.is_closed = true,
            Err(why) => return Err(why).context("could not read from the peer"),
        }
        loop {
            let now = self.now();
            let taken = self.session.receive(&self.pending, now);
            self.pending.drain(..taken);
            let count = self.session.text().len();
            self.text.extend(self.session.text());
            self.session.consume_text(count);
            self.find_key();
            if taken == 0 && count == 0 {
                break;
            }
        }
        self.flush()
    }

    /// Sends queued records.
    fn flush(&mut self) -> Result<()> {
        let outgoing = self.session.outgoing().to_vec();
        self.session.consume(outgoing.len());
        match self.stream.write_all(&outgoing) {
            Err(why)
                if matches!(why.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                self.is_closed = true;
                Ok(())
            }
            result => result.context("could not send to the peer"),
        }
    }

    fn find_key(&mut self) {
        if !self.session.wants_key() {
            return;
        }
        let offered: Vec<Vec<u8>> = self.session.offered().map(Vec::from).collect();
        for (index, identity) in offered.iter().enumerate() {
            for (name, psk) in &self.keys {
                if name == identity && self.session.try_key(index, psk) {
                    return;
                }
            }
        }
        self.session.refuse();
    }

    /// Goes on until `done`, within the time limit. Fails if the session or the connection ends before.
    pub fn until(&mut self, what: &str, done: impl Fn(&Link) -> bool) -> Result<()> {
        let limit = Instant::now() + PATIENCE;
        while !done(self) {
            if let Some(why) = self.session.failure() {
                bail!("{what}: {why}");
            }
            if self.is_closed && self.pending.is_empty() {
                bail!("{what}: the peer has closed the connection");
            }
            if Instant::now() > limit {
                bail!("{what}: not within {PATIENCE:?}; received {:?}", shown(&self.text));
            }
            self.turn()?;
        }
        self.flush()
    }

    /// Completes the handshake.
    pub fn until_open(&mut self) -> Result<()> {
        self.until("the handshake", |link| link.session.is_open())
    }

    /// Goes on until this text was received.
    pub fn until_text(&mut self, text: &[u8]) -> Result<()> {
        let what = format!("waiting for {:?}", shown(text));
        self.until(&what, |link| link.text.windows(text.len()).any(|part| part == text))
    }

    /// Goes on until the session has failed, and returns why.
    pub fn until_failure(&mut self) -> Result<tls_psk::Failure> {
        let limit = Instant::now() + PATIENCE;
        while Instant::now() < limit {
            if let Some(why) = self.session.failure() {
                let why = *why;
                self.flush()?;
                return Ok(why);
            }
            if self.is_closed && self.pending.is_empty() {
                bail!("the peer has closed the connection, and sent no alert");
            }
            self.turn()?;
        }
        bail!("the session has not failed");
    }

    /// Sends text.
    pub fn write(&mut self, mut text: &[u8]) -> Result<()> {
        while !text.is_empty() {
            let count = self.session.write(text);
            text = &text[count..];
            self.flush()?;
            if count == 0 {
                self.turn()?;
            }
            if let Some(why) = self.session.failure() {
                bail!("{why}");
            }
        }
        Ok(())
    }

    /// Sends close_notify.
    pub fn close(&mut self) -> Result<()> {
        self.session.close();
        self.flush()
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned()
}

/// Random bytes from the operating system.
fn random(into: &mut [u8]) {
    let mut source = std::fs::File::open("/dev/urandom").expect("there is a generator");
    source.read_exact(into).expect("it has bytes");
}
