//! A rendezvous connection: exchanges one record each way, then stays open without data.

use super::Exchange;
use super::sockets::{ConnectionId, Sockets};
use crate::gateway::network::Network;
use core::time::Duration;
use drivers::hal::Instant;
use net::connector::Progress;
use usnic::wire::rendezvous::{Kind, LENGTH, MOST_TEXT, Record};

/// Time limit of opening a connection, and of receiving a record.
const PATIENCE: Duration = Duration::from_secs(10);

/// Phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// We are connecting.
    Opening,
    /// A record is expected.
    Receiving,
    /// Records were exchanged.
    Established,
}

pub(super) struct Connection {
    pub name: u64,
    /// Index of its port.
    pub at: usize,
    pub id: ConnectionId,
    pub phase: Phase,
    /// Time limit of the phase.
    pub until: Instant,
    received: Vec<u8>,
    /// The connection is to be closed: true by a reset, false in order, after the sent bytes.
    pub over: Option<bool>,
}

impl Connection {
    pub fn new(name: u64, at: usize, id: ConnectionId, phase: Phase, now: Instant) -> Self {
        let until = now + PATIENCE;
        Connection { name, at, id, phase, until, received: Vec::new(), over: None }
    }

    pub fn poll(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        if self.over.is_some() {
            return;
        }
        if let (Phase::Opening, ConnectionId::Made(made), Some(connector)) =
            (self.phase, self.id, &sockets.connector)
        {
            match connector.progress(&network.interface, made) {
                Progress::Opening => {}
                Progress::Gone => self.over = Some(true),
                Progress::Open { .. } => {
                    let request = engine.request(self.name);
                    let sent = request.map(|bytes| sockets.write(network, self.id, &bytes));
                    match sent {
                        Some(Ok(LENGTH)) => self.phase = Phase::Receiving,
                        _ => self.over = Some(true),
                    }
                }
            }
        }
        if self.phase != Phase::Opening && self.over.is_none() {
            self.receive(sockets, network, engine, now);
        }
        if self.phase != Phase::Established && self.until <= now {
            self.over.get_or_insert(true);
        }
    }

    fn receive(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        let mut bytes = [0; LENGTH + MOST_TEXT];
        let length = match sockets.read(network, self.id, &mut bytes) {
            Ok(0) => return,
            Ok(length) => length,
            Err(_) => {
                self.over = Some(true);
                return;
            }
        };
        if self.phase == Phase::Established || self.received.len() + length > bytes.len() {
            // Data after the record is a protocol error.
            self.over = Some(true);
            return;
        }
        self.received.extend(bytes.get(..length).unwrap_or_default());
        let Some((record, text)) = self.received.split_first_chunk::<LENGTH>() else { return };
        let (stays, abort) = match self.id {
            ConnectionId::Accepted(..) => {
                let Some((from, port)) = sockets.host(network, self.id) else { return };
                let answer = engine.handle_request(self.name, (self.at, port), from, record, now);
                let sent = sockets.write(network, self.id, &answer.bytes);
                (answer.stays && text.is_empty() && sent.is_ok(), false)
            }
            ConnectionId::Made(_) => {
                // The text of a refusal follows its record.
                let wanted = match Record::parse(record).map(|record| record.kind) {
                    Ok(Kind::Refused(_, length)) => usize::from(length),
                    _ => 0,
                };
                if text.len() < wanted {
                    return;
                }
                (engine.handle_reply(self.name, record, text, now), true)
            }
        };
        self.received = Vec::new();
        self.phase = Phase::Established;
        if !stays {
            self.over = Some(abort);
        }
    }
}
