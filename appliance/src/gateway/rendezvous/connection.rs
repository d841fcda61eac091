//! A connection: what is said over it, and when it is over.

use super::Exchange;
use super::sockets::{Sockets, Way};
use crate::gateway::network::Network;
use core::time::Duration;
use drivers::hal::Instant;
use net::connector::Progress;
use usnic::wire::rendezvous::{Kind, LENGTH, MOST_TEXT, Record};

/// How long a connection may take to open, and a record to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being opened by us.
    Opening,
    /// A record is waited for.
    Listening,
    /// All was said.
    Stands,
}

pub(super) struct Connection {
    pub name: u64,
    /// Place of its port.
    pub at: usize,
    pub way: Way,
    pub phase: Phase,
    /// When the phase has to be over.
    pub until: Instant,
    heard: Vec<u8>,
    /// It has ended; by a reset, or what was said still arrives.
    pub over: Option<bool>,
}

impl Connection {
    pub fn new(name: u64, at: usize, way: Way, phase: Phase, now: Instant) -> Self {
        let until = now + PATIENCE;
        Connection { name, at, way, phase, until, heard: Vec::new(), over: None }
    }

    pub fn go_on(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        if self.over.is_some() {
            return;
        }
        if let (Phase::Opening, Way::Made(made), Some(connector)) =
            (self.phase, self.way, &sockets.connector)
        {
            match connector.progress(&network.interface, made) {
                Progress::Opening => {}
                Progress::Gone => self.over = Some(true),
                Progress::Open { .. } => {
                    let request = engine.request(self.name);
                    let sent = request.map(|bytes| sockets.write(network, self.way, &bytes));
                    match sent {
                        Some(Ok(LENGTH)) => self.phase = Phase::Listening,
                        _ => self.over = Some(true),
                    }
                }
            }
        }
        if self.phase != Phase::Opening && self.over.is_none() {
            self.listen(sockets, network, engine, now);
        }
        if self.phase != Phase::Stands && self.until <= now {
            self.over.get_or_insert(true);
        }
    }

    fn listen(
        &mut self,
        sockets: &Sockets,
        network: &mut Network,
        engine: &mut dyn Exchange,
        now: Instant,
    ) {
        let mut bytes = [0; LENGTH + MOST_TEXT];
        let length = match sockets.read(network, self.way, &mut bytes) {
            Ok(0) => return,
            Ok(length) => length,
            Err(_) => {
                self.over = Some(true);
                return;
            }
        };
        if self.phase == Phase::Stands || self.heard.len() + length > bytes.len() {
            // Nothing belongs behind what was said.
            self.over = Some(true);
            return;
        }
        self.heard.extend(bytes.get(..length).unwrap_or_default());
        let Some((record, text)) = self.heard.split_first_chunk::<LENGTH>() else { return };
        let (stays, abort) = match self.way {
            Way::Accepted(..) => {
                let Some((from, port)) = sockets.host(network, self.way) else { return };
                let answer = engine.asked(self.name, (self.at, port), from, record, now);
                let sent = sockets.write(network, self.way, &answer.bytes);
                (answer.stays && text.is_empty() && sent.is_ok(), false)
            }
            Way::Made(_) => {
                // The text of a refusal follows.
                let wanted = match Record::parse(record).map(|record| record.kind) {
                    Ok(Kind::Refused(_, length)) => usize::from(length),
                    _ => 0,
                };
                if text.len() < wanted {
                    return;
                }
                (engine.answered(self.name, record, text, now), true)
            }
        };
        self.heard = Vec::new();
        self.phase = Phase::Stands;
        if !stays {
            self.over = Some(abort);
        }
    }
}
