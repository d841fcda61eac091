//! A connection to a syslog server over TCP (RFC 6587 with octet counting) or TLS (RFC 5425). It knows which messages
//! the server's TCP has acknowledged.

use crate::gateway::network::Network;
use core::net::SocketAddr;
use core::time::Duration;
use drivers::hal::Instant;
use net::Interface;
use net::connector::{ConnectionHandle, Connector, Limits, Progress};
use net::syslog::framed;
use net::tls::Client;
use rand_core::Rng;
use std::collections::VecDeque;

/// Buffers of the connection. The send buffer holds what is not acknowledged.
const LIMITS: Limits = Limits { connections: 2, receive: 8 << 10, transmit: 32 << 10 };
/// Time limit of the connection, and of the handshake behind it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time without room for a byte after which the server is reported to take nothing.
const STUCK: Duration = Duration::from_secs(60);

/// Whether a stream takes a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamStatus {
    /// It takes one.
    Ready,
    /// It is being opened, or waits for the server.
    Busy,
}

/// A connection.
pub(super) struct Stream {
    interface: usize,
    connector: Connector,
    connection: ConnectionHandle,
    tls: Option<Client>,
    /// When it has to be open; None once it is.
    opens_by: Option<Instant>,
    /// Bytes of a message that wait for room. With TLS, they wait in the session.
    waiting: Vec<u8>,
    /// Bytes written to the connection so far.
    written: u64,
    /// Since when the server's TCP has taken nothing, and whether that was reported.
    stuck: Option<(Instant, bool)>,
    /// Messages that are not acknowledged: number, and their end in the bytes of the connection.
    under_way: VecDeque<(u64, u64)>,
}

impl Stream {
    /// Starts to connect.
    pub fn open(
        interface: &mut Interface,
        number: usize,
        to: SocketAddr,
        tls: Option<Client>,
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Result<Stream, String> {
        let mut connector = Connector::new(LIMITS, rng.next_u32() as u16);
        let Some(connection) = connector.connect(interface, to, false) else {
            connector.stop(interface);
            return Err("no route or no room for a connection".into());
        };
        Ok(Stream {
            interface: number,
            connector,
            connection,
            tls,
            opens_by: Some(now + PATIENCE),
            waiting: Vec::new(),
            written: 0,
            stuck: None,
            under_way: VecDeque::new(),
        })
    }

    /// When [`Stream::poll`] is due without an event of the connection.
    pub fn deadline(&self) -> Option<Instant> {
        let stuck = self.stuck.filter(|(_, is_told)| !is_told);
        Instant::first([self.opens_by, stuck.map(|(since, _)| since + STUCK)])
    }

    /// Whether to report that the server has taken nothing for a minute. True once.
    pub fn is_newly_stuck(&mut self, now: Instant) -> bool {
        match &mut self.stuck {
            Some((since, is_told)) if !*is_told && now.since(*since) >= STUCK => {
                *is_told = true;
                true
            }
            _ => false,
        }
    }

    /// Moves bytes both ways. An error ends the connection.
    pub fn poll(&mut self, networks: &mut [Network], now: Instant) -> Result<StreamStatus, String> {
        let network = networks.get_mut(self.interface).ok_or("its interface is gone")?;
        let interface = &mut network.interface;
        while self.connector.next_news(interface).is_some() {}
        let is_late = self.opens_by.is_some_and(|at| at <= now);
        match self.connector.progress(interface, self.connection) {
            Progress::Opening if is_late => return Err("does not answer".into()),
            Progress::Opening => return Ok(StreamStatus::Busy),
            Progress::Gone if self.opens_by.is_some() => {
                return Err("refuses the connection, or does not answer".into());
            }
            Progress::Gone => return Err("the connection was reset".into()),
            Progress::Open { .. } => {}
        }
        self.receive(interface)?;
        if let Some(why) = self.tls.as_ref().and_then(Client::failure) {
            return Err(format!("TLS: {why}"));
        }
        let before = self.written;
        self.send(interface)?;
        self.note_acknowledged(interface);
        let is_stuck = !self.outgoing().is_empty() && self.written == before;
        self.stuck = is_stuck.then(|| self.stuck.unwrap_or((now, false)));
        let is_open = self.tls.as_ref().is_none_or(Client::is_open);
        if is_open {
            self.opens_by = None;
        } else if is_late {
            return Err("TLS: no handshake within 10 s".into());
        }
        let is_ready = is_open && self.outgoing().is_empty();
        Ok(if is_ready { StreamStatus::Ready } else { StreamStatus::Busy })
    }

    /// Receives: records of TLS, or bytes that no syslog server has to send.
    fn receive(&mut self, interface: &mut Interface) -> Result<(), String> {
        let mut bytes = [0; 2048];
        loop {
            match self.connector.read(interface, self.connection, &mut bytes) {
                Ok(0) => return Ok(()),
                Ok(length) => {
                    if let Some(tls) = &mut self.tls {
                        tls.receive(&bytes[..length]);
                    }
                }
                Err(_) => return Err("the server closed the connection".into()),
            }
        }
    }

    fn outgoing(&self) -> &[u8] {
        self.tls.as_ref().map_or(&self.waiting, Client::outgoing)
    }

    fn send(&mut self, interface: &mut Interface) -> Result<(), String> {
        // A write without room would make the interface poll again.
        while !self.outgoing().is_empty() && self.connector.room(interface, self.connection) > 0 {
            let bytes = self.tls.as_ref().map_or(&self.waiting[..], Client::outgoing);
            let sent = self.connector.write(interface, self.connection, bytes);
            let sent = sent.map_err(|_| "the server closed the connection")?;
            self.written += sent as u64;
            match &mut self.tls {
                Some(tls) => tls.consume(sent),
                None => drop(self.waiting.drain(..sent)),
            }
            if sent == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Forgets messages that the server's TCP has acknowledged.
    fn note_acknowledged(&mut self, interface: &mut Interface) {
        let room = self.connector.room(interface, self.connection);
        let queued = LIMITS.transmit.saturating_sub(room) as u64;
        let acknowledged = self.written.saturating_sub(queued);
        while self.under_way.front().is_some_and(|&(_, end)| end <= acknowledged) {
            self.under_way.pop_front();
        }
    }

    /// Takes the message of the log entry with this number; [`Stream::poll`] sends it. False if it is not ready.
    pub fn write(&mut self, number: u64, message: &str) -> bool {
        let framed = framed(message);
        let is_taken = match &mut self.tls {
            Some(tls) => tls.write(framed.as_bytes()),
            None => {
                self.waiting.extend_from_slice(framed.as_bytes());
                true
            }
        };
        if is_taken {
            self.under_way.push_back((number, self.written + self.outgoing().len() as u64));
        }
        is_taken
    }

    /// Closes the connection. Returns the number of the first message that may not have arrived.
    pub fn close(self, networks: &mut [Network]) -> Option<u64> {
        if let Some(network) = networks.get_mut(self.interface) {
            self.connector.stop(&mut network.interface);
        }
        self.under_way.front().map(|&(number, _)| number)
    }
}
