//! An NBD client of the engine over sockets of the host.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use drivers::hal::{self, Arena, Window};
use nbd::{Action, Client, Error, Failure, Notice, Operation, Request, Settings, State};

/// Longest time that a test waits for something.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client, its sockets and its memory.
pub struct Host {
    /// The client.
    pub client: Client<u32>,
    /// News so far.
    pub notices: Vec<Notice>,
    addresses: Vec<SocketAddr>,
    sockets: Vec<Option<TcpStream>>,
    /// Bytes that a socket has not taken yet.
    unsent: Vec<Vec<u8>>,
    done: BTreeMap<u32, Result<(), Error>>,
    arena: Arena,
    begin: Instant,
    next: u32,
}

impl Host {
    /// A client of an export, with a server at each of these ports of the loopback interface.
    pub fn new(settings: Settings, export: &str, ports: &[u16]) -> Host {
        let settings = Settings { paths: ports.len() as u16, ..settings };
        let client = Client::new(settings, export).expect("a short name");
        let connections = usize::from(client.settings().connections);
        Host {
            client,
            notices: Vec::new(),
            addresses: ports.iter().map(|port| ([127, 0, 0, 1], *port).into()).collect(),
            sockets: (0..connections).map(|_| None).collect(),
            unsent: vec![Vec::new(); connections],
            done: BTreeMap::new(),
            arena: Arena::on_heap(64 << 20),
            begin: Instant::now(),
            next: 0,
        }
    }

    /// A client whose volume is open.
    pub fn open(settings: Settings, export: &str, ports: &[u16]) -> Result<Host> {
        let mut host = Host::new(settings, export, ports);
        host.until("the volume to open", |host| host.state() == State::Open)?;
        Ok(host)
    }

    /// State of the volume.
    pub fn state(&self) -> State {
        self.client.status().state
    }

    fn now(&self) -> hal::Instant {
        hal::Instant::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }

    /// Memory with these bytes.
    pub fn window(&mut self, bytes: &[u8]) -> Window {
        let window = self.arena.alloc(bytes.len(), 4096).expect("memory for the test");
        window.write(0, bytes).expect("it fits");
        window
    }

    /// Submits a request. Returns its tag.
    pub fn submit(&mut self, operation: Operation, offset: u64, data: Window) -> Result<u32> {
        self.next += 1;
        let tag = self.next;
        let request = Request { tag, operation, offset, data };
        let mut submitted = self.client.submit(&request);
        let limit = Instant::now() + PATIENCE;
        while submitted == Err(Error::Busy) {
            ensure!(Instant::now() < limit, "the client stays busy");
            self.step()?;
            submitted = self.client.submit(&request);
        }
        ensure!(submitted.is_ok(), "{operation:?}: {submitted:?}");
        Ok(tag)
    }

    /// Waits for the result of a request.
    pub fn result(&mut self, tag: u32) -> Result<Result<(), Error>> {
        self.until("a reply", |host| host.done.contains_key(&tag))?;
        Ok(self.done.remove(&tag).expect("it was there"))
    }

    /// Executes a request without data.
    pub fn execute(&mut self, operation: Operation, offset: u64) -> Result<Result<(), Error>> {
        let tag = self.submit(operation, offset, Window::empty())?;
        self.result(tag)
    }

    /// Writes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<Result<(), Error>> {
        let window = self.window(bytes);
        let tag = self.submit(Operation::Write { durable: false }, offset, window)?;
        let result = self.result(tag);
        self.arena.free(window);
        result
    }

    /// Reads.
    pub fn read(&mut self, offset: u64, length: usize) -> Result<Result<Vec<u8>, Error>> {
        let window = self.window(&vec![0xee; length]);
        let tag = self.submit(Operation::Read, offset, window)?;
        let result = self.result(tag)?;
        let mut bytes = vec![0; length];
        window.read(0, &mut bytes).expect("it fits");
        self.arena.free(window);
        Ok(result.map(|()| bytes))
    }

    /// Runs until something is so.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Host) -> bool) -> Result<()> {
        let limit = Instant::now() + PATIENCE;
        while !is_so(self) {
            let status = self.client.status();
            ensure!(Instant::now() < limit, "no {what}: {status:?} {:?}", self.notices);
            self.step()?;
        }
        Ok(())
    }

    /// Runs for a time.
    pub fn run(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step()?;
        }
        Ok(())
    }

    /// The failures so far.
    pub fn failures(&self) -> Vec<Failure> {
        let why = |notice: &Notice| match notice {
            Notice::Down { why, .. } => Some(*why),
            _ => None,
        };
        self.notices.iter().filter_map(why).collect()
    }

    /// Moves bytes both ways once, and sleeps a little if there were none.
    fn step(&mut self) -> Result<()> {
        let now = self.now();
        self.client.poll(now);
        while let Some(action) = self.client.next_action(now) {
            self.act(action, now);
        }
        let mut moved = false;
        for connection in 0..self.sockets.len() {
            moved |= self.transfer(connection, now);
        }
        self.notices.extend(std::iter::from_fn(|| self.client.next_notice()));
        self.done.extend(std::iter::from_fn(|| self.client.poll_done()));
        if !moved {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    fn act(&mut self, action: Action, now: hal::Instant) {
        match action {
            Action::Connect { connection, path, .. } => {
                match TcpStream::connect(self.addresses[usize::from(path)]) {
                    Ok(socket) => {
                        socket.set_nonblocking(true).expect("a socket");
                        socket.set_nodelay(true).expect("a socket");
                        self.unsent[connection].clear();
                        self.sockets[connection] = Some(socket);
                        let seed = now.as_nanos() ^ 0x9e37_79b9_7f4a_7c15;
                        self.client.connected(connection, seed, now);
                    }
                    Err(_) => self.client.closed(connection, Failure::Refused, now),
                }
            }
            Action::Close { connection, .. } => {
                if let Some(mut socket) = self.sockets[connection].take() {
                    // A request to disconnect is short.
                    let _ = socket.write(&self.unsent[connection]);
                }
            }
        }
    }

    /// Moves bytes of a connection. Returns whether any moved.
    fn transfer(&mut self, connection: usize, now: hal::Instant) -> bool {
        let Some(mut socket) = self.sockets[connection].take() else { return false };
        let (mut moved, mut is_closed) = (false, false);
        let unsent = &mut self.unsent[connection];
        if unsent.is_empty() && self.client.wants_transmit(connection) {
            unsent.resize(256 << 10, 0);
            let count = self.client.transmit(connection, unsent, now);
            unsent.truncate(count);
        }
        if !unsent.is_empty() {
            match socket.write(unsent) {
                Ok(count) => {
                    unsent.drain(..count);
                    moved |= count > 0;
                }
                Err(why) => is_closed |= why.kind() != ErrorKind::WouldBlock,
            }
        }
        let mut bytes = [0; 64 << 10];
        match socket.read(&mut bytes) {
            Ok(0) => is_closed = true,
            Ok(count) => {
                self.client.receive(connection, &bytes[..count], now);
                moved = true;
            }
            Err(why) => is_closed |= why.kind() != ErrorKind::WouldBlock,
        }
        match is_closed {
            true => self.client.closed(connection, Failure::Closed, now),
            false => self.sockets[connection] = Some(socket),
        }
        moved || is_closed
    }
}
