//! A client on the engines: it connects to the guest's echo service, over SMC-R if the guest offers it, and verifies
//! the echo.

use std::net::{IpAddr, SocketAddr};

use drivers::hal::Instant;
use net::Interface;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use roce::Roce;
use smcr::engine::{Engine, Ready, Role, SocketId};
use verbs::Ctx;

/// Time between two attempts.
const PERIOD: std::time::Duration = std::time::Duration::from_millis(300);
/// Bytes that each connection sends and must receive again.
const BYTES: usize = 300_000;

/// Connects repeatedly until an echo is correct.
pub struct Dialer {
    connector: Connector,
    peer: SocketAddr,
    again: Option<Instant>,
    link: Option<ConnectionHandle>,
    socket: Option<SocketId>,
    sent: usize,
    got: usize,
    /// Result of the last attempt.
    pub outcome: String,
}

fn byte(at: usize) -> u8 {
    (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]
}

impl Dialer {
    /// A dialer that connects to `peer`.
    pub fn new(peer: SocketAddr) -> Dialer {
        let limits = Limits { connections: 8, receive: 4096, transmit: 4096 };
        let connector = Connector::new(limits, 7);
        let outcome = "dialer: no attempt yet".to_string();
        Dialer { connector, peer, again: None, link: None, socket: None, sent: 0, got: 0, outcome }
    }

    /// Advances the connection: TCP connect, then the CLC handshake.
    pub fn poll(
        &mut self,
        interface: &mut Interface,
        engine: &mut Engine,
        context: &mut Ctx<'_, Roce>,
    ) {
        self.connector.poll(interface, context.now);
        if self.outcome == "dialer: fine" {
            return;
        }
        match (self.link, self.socket) {
            (None, _) if self.again.is_none_or(|at| at <= context.now) => {
                self.again = Some(context.now + PERIOD);
                self.link = self.connector.connect(interface, self.peer, true);
            }
            (Some(link), None) => match self.connector.progress(interface, link) {
                Progress::Opening => {}
                Progress::Open { smc: true } => {
                    let local = self.connector.local(interface, link);
                    let local = local.map_or(IpAddr::from([0; 4]), |end| end.ip());
                    self.socket = engine.open(Role::Client, [local, self.peer.ip()], 0, context);
                }
                Progress::Open { smc: false } | Progress::Gone => {
                    self.connector.close(interface, link, true);
                    self.link = None;
                    self.outcome = "dialer: the peer does not offer SMC".into();
                }
            },
            (Some(link), Some(socket)) => self.shake(link, socket, interface, engine, context),
            _ => {}
        }
    }

    fn shake(
        &mut self,
        link: ConnectionHandle,
        socket: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        context: &mut Ctx<'_, Roce>,
    ) {
        let mut bytes = [0; 1024];
        let count = engine.poll_clc_bytes(socket, &mut bytes);
        let written = self.connector.write(interface, link, &bytes[..count]);
        assert_eq!(written, Ok(count), "handshakes are shorter than the buffer");
        let count = self.connector.read(interface, link, &mut bytes).unwrap_or(0);
        let mut taken = 0;
        // The engine holds back bytes only briefly, and no further bytes follow those.
        while taken < count {
            taken += engine.handle_clc_bytes(socket, &bytes[taken..count], context, interface);
            if engine.sockets().any(|status| status.id == socket && status.established) {
                break;
            }
        }
    }

    /// Handles an event of the engine. Returns false if the event is of another socket.
    pub fn handle_event(
        &mut self,
        id: SocketId,
        ready: Ready,
        interface: &mut Interface,
        engine: &mut Engine,
        context: &mut Ctx<'_, Roce>,
    ) -> bool {
        if self.socket != Some(id) {
            return false;
        }
        if ready.intersects(Ready::FALLBACK | Ready::FAILED) {
            self.outcome = format!("dialer: {ready:?} {:?}", engine.fallback(id));
            self.hang_up(id, interface, engine, context);
            return true;
        }
        let bytes: Vec<u8> = (self.sent..BYTES).map(byte).collect();
        match engine.send(id, &bytes, context) {
            Ok(count) => self.sent += count,
            Err(error) => self.outcome = format!("dialer: {error:?}"),
        }
        let mut buffer = vec![0; 65536];
        while let Ok(count @ 1..) = engine.recv(id, &mut buffer) {
            let right = (self.got..).map(byte).zip(&buffer[..count]).all(|(a, b)| a == *b);
            self.got += count;
            if !right {
                self.outcome = "dialer: wrong data".into();
            }
        }
        if self.got == BYTES {
            self.outcome = "dialer: fine".into();
            self.hang_up(id, interface, engine, context);
        }
        true
    }

    fn hang_up(
        &mut self,
        id: SocketId,
        interface: &mut Interface,
        engine: &mut Engine,
        context: &mut Ctx<'_, Roce>,
    ) {
        engine.close(id, context);
        if let Some(link) = self.link.take() {
            self.connector.close(interface, link, false);
        }
        self.socket = None;
        (self.sent, self.got) = (0, 0);
    }
}
