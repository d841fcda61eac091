//! The engine and the peer, in virtual time.

use std::time::Duration;

use anyhow::{Result, ensure};
use drivers::hal::{Arena, Instant, Window};
use linx::pool::Pool;
use linx::riocm::{Config, ConnectionConfig, ConnectionId, Event, Riocm, State, Status};

use crate::pattern;
use crate::peer::{Frame, Peer};

/// Device id and RIOCM port of the engine.
pub const OURS: (u16, u16) = (0x0101, 11);
/// Device id and RIOCM port of the peer.
pub const PEERS: (u16, u16) = (0x0202, 22);
/// The peer's id of the connection.
pub const PEER_CID: u16 = 9;
/// Milliseconds of a turn.
const TURN: u64 = 20;

/// Memory for an engine.
pub fn memory(bytes: usize) -> Window {
    Arena::on_heap(bytes + 8192).alloc(bytes, 4096).expect("the arena is large enough")
}

/// Changes messages in flight: takes `to_peer` and the message, and returns the messages that arrive instead.
pub type Network = Box<dyn FnMut(bool, Frame) -> Vec<Frame>>;

/// The engine and the peer.
pub struct Session {
    /// The peer.
    pub peer: Peer,
    /// The engine.
    pub riocm: Riocm,
    /// The engine's memory.
    pub pool: Pool,
    /// The engine's connection.
    pub id: ConnectionId,
    /// Milliseconds since the start.
    pub now: u64,
    /// Events of the engine (`ours`) and of the peer, in order.
    pub log: Vec<String>,
    /// Changes of messages between the two.
    pub network: Network,
    port: usize,
}

/// The engine's configuration.
pub fn config() -> ConnectionConfig<'static> {
    ConnectionConfig {
        receive_bytes: 2 << 20,
        send_bytes: 1 << 20,
        max_message: 1 << 20,
        ..ConnectionConfig::new("rio0", PEERS.0, 2, (OURS.1, PEERS.1))
    }
}

impl Session {
    /// A session without a connection. `mtu` and `heartbeat` are the peer's.
    pub fn new(config: &ConnectionConfig<'_>, mtu: u16, heartbeat: u8) -> Result<Session> {
        let mut peer = Peer::start()?;
        let (id, port) = PEERS;
        let (our_id, our_port) = OURS;
        peer.order(&format!(
            "create {id} {port} {our_id} {our_port} 1 {mtu} {heartbeat} {PEER_CID}"
        ))?;
        let mut pool = Pool::new(memory(8 << 20), 8);
        let mut riocm = Riocm::new(Config::default(), &pool, 5);
        let port = riocm.add_port("rio0", OURS.0, 4096)?;
        let id = riocm.create(&mut pool, config, Instant::ZERO)?;
        let network: Network = Box::new(|_, frame| vec![frame]);
        Ok(Session { peer, riocm, pool, id, now: 0, log: Vec::new(), network, port })
    }

    /// A connected session.
    pub fn connected(config: &ConnectionConfig<'_>, mtu: u16, heartbeat: u8) -> Result<Session> {
        let mut session = Session::new(config, mtu, heartbeat)?;
        session.connect()?;
        Ok(session)
    }

    /// Connects the two.
    pub fn connect(&mut self) -> Result<()> {
        self.riocm.connect(self.id);
        self.order(&format!("connect {PEER_CID}"))?;
        let end = self.now + 5000;
        loop {
            self.run(TURN)?;
            let log = self.take_log();
            // A CONN_REQ that crosses a CONN_ACK ends the new connection.
            if log.iter().any(|line| line.starts_with("ours disconnected")) {
                self.riocm.connect(self.id);
            }
            if log.iter().any(|line| line.starts_with("peer disconnected")) {
                self.order(&format!("connect {PEER_CID}"))?;
            }
            let peers = self.peer.order(&format!("state {PEER_CID}"))?;
            if self.state() == State::Connected && peers == ["CONNECTED"] {
                return Ok(());
            }
            ensure!(self.now < end, "engine {:?}, peer {peers:?}; {log:?}", self.state());
        }
    }

    /// State of the engine's connection.
    pub fn state(&self) -> State {
        self.status().state
    }

    /// Status of the engine's connection.
    pub fn status(&self) -> Status {
        self.riocm.status(self.id).expect("the connection exists")
    }

    /// Sends the peer a command.
    pub fn order(&mut self, order: &str) -> Result<()> {
        let lines = self.peer.order(order)?;
        self.log.extend(lines.into_iter().map(|line| format!("peer {line}")));
        Ok(())
    }

    /// Lets the peer send a packet with these fields.
    pub fn frame(&mut self, text: &str) -> Result<()> {
        self.order(&format!("frame {text} to={}", OURS.0))?;
        self.deliver();
        Ok(())
    }

    /// Sends a message from the engine.
    pub fn send(&mut self, size: usize, seed: usize) -> Result<()> {
        let message = pattern::bytes(seed, size);
        self.riocm.send(&mut self.pool, self.id, (3, 4), &[], &message)?;
        Ok(())
    }

    /// Takes the log.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// Lets `millis` milliseconds pass.
    pub fn run(&mut self, millis: u64) -> Result<()> {
        let end = self.now + millis;
        loop {
            while self.turn()? {}
            if self.now >= end {
                return Ok(());
            }
            self.now += TURN;
        }
    }

    /// Carries messages in both directions. Returns whether there were any.
    pub fn turn(&mut self) -> Result<bool> {
        let mut any = self.ours()?;
        self.order(&format!("at {}", self.now))?;
        any |= self.deliver();
        Ok(any)
    }

    fn instant(&self) -> Instant {
        Instant::ZERO + Duration::from_millis(self.now)
    }

    /// Carries the engine's messages to the peer.
    fn ours(&mut self) -> Result<bool> {
        let now = self.instant();
        let mut sent = Vec::new();
        while let Some(packet) = self.riocm.poll_transmit(&mut self.pool, now) {
            let mut bytes = vec![0x77; packet.len().next_multiple_of(8)];
            packet.write(&mut bytes);
            let (destination, mailbox) = (packet.destination, packet.mailbox);
            sent.push(Frame { source: OURS.0, destination, mailbox, bytes });
        }
        self.events();
        let any = !sent.is_empty();
        for frame in sent {
            ensure!((frame.destination, frame.mailbox) == (PEERS.0, 2), "{frame:?}");
            for frame in (self.network)(true, frame) {
                self.peer.receive(&frame)?;
            }
        }
        Ok(any)
    }

    /// Delivers the peer's messages to the engine.
    pub fn deliver(&mut self) -> bool {
        let now = self.instant();
        let sent = std::mem::take(&mut self.peer.sent);
        let any = !sent.is_empty();
        for frame in sent {
            for frame in (self.network)(false, frame) {
                let Frame { source, bytes, .. } = &frame;
                self.riocm.receive(&mut self.pool, self.port, *source, bytes, now);
                self.events();
            }
        }
        any
    }

    fn events(&mut self) {
        while let Some(event) = self.riocm.next_event() {
            let text = match event {
                Event::Connected(_) => "connected".into(),
                Event::Disconnected { why, unsent, .. } => format!("disconnected {why:?} {unsent}"),
                Event::Message { message, .. } => {
                    let mut bytes = vec![0; message.chain.len()];
                    self.pool.read(&message.chain, 0, &mut bytes);
                    self.pool.free(message.chain);
                    let (from, to) = (message.source, message.destination);
                    format!("deliver {from} {to} {}", pattern::summary(&bytes))
                }
                Event::Sent { cookie, done, .. } => format!("sent {cookie} {done}"),
                Event::Room(_) => "room".into(),
            };
            self.log.push(format!("ours {text}"));
        }
    }
}
