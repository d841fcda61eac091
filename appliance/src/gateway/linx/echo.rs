//! The LINX echo service: returns each signal to its sender, with the same number and bytes.

use ::linx::{EndpointId, Node, Origin, SendError, Sender, Signal};
use drivers::hal::Instant;
use std::collections::VecDeque;

/// The service, at all of its endpoints.
#[derive(Default)]
pub(super) struct Echo {
    /// Names and endpoints.
    endpoints: Vec<(String, EndpointId)>,
    /// Signals whose echo found no room. They hold their link's memory, so flow control slows a peer over TCP down.
    held: VecDeque<(EndpointId, Signal)>,
    /// Buffer of the signal being sent.
    body: Vec<u8>,
    /// Signals echoed.
    pub count: u64,
}

impl Echo {
    /// Publishes the service under these names, and no others. Several links may name one endpoint.
    #[cold]
    pub fn configure(&mut self, node: &mut Node, names: &[&str], now: Instant) {
        let Echo { endpoints, held, .. } = self;
        endpoints.retain(|(name, endpoint)| {
            let stays = names.contains(&name.as_str());
            if !stays {
                for _ in 0..held.len() {
                    match held.pop_front() {
                        Some((of, signal)) if of == *endpoint => node.release(signal),
                        Some(other) => held.push_back(other),
                        None => {}
                    }
                }
                node.close(*endpoint, now);
            }
            stays
        });
        for name in names {
            if endpoints.iter().any(|(known, _)| known == name) {
                continue;
            }
            match node.open(name.as_bytes(), now) {
                Ok(endpoint) => endpoints.push(((*name).into(), endpoint)),
                Err(why) => log::error!("linx: {name}: {why}"),
            }
        }
    }

    /// Published names.
    #[cfg(test)]
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|(name, _)| name.as_str())
    }

    /// Echoes the signals of an endpoint.
    pub fn answer(&mut self, node: &mut Node, endpoint: EndpointId, now: Instant) {
        while let Some(signal) = node.next_signal(endpoint) {
            // Signals of one sender stay in order.
            let waits = self.held.iter().any(|(_, held)| held.from == signal.from);
            if waits || !self.send_back(node, endpoint, &signal, now) {
                self.held.push_back((endpoint, signal));
            } else {
                node.release(signal);
            }
        }
    }

    /// Echoes held signals, after a link has room again.
    pub fn resume(&mut self, node: &mut Node, now: Instant) {
        let mut still: Vec<Origin> = Vec::new();
        for _ in 0..self.held.len() {
            let Some((endpoint, signal)) = self.held.pop_front() else { return };
            if still.contains(&signal.from) || !self.send_back(node, endpoint, &signal, now) {
                still.push(signal.from);
                self.held.push_back((endpoint, signal));
            } else {
                node.release(signal);
            }
        }
    }

    /// Echoes one signal. False if there is no room.
    fn send_back(
        &mut self,
        node: &mut Node,
        endpoint: EndpointId,
        signal: &Signal,
        now: Instant,
    ) -> bool {
        let Origin::Peer(to) = signal.from else { return true };
        self.body.resize(signal.len(), 0);
        node.read(signal, 0, &mut self.body);
        let sent = node.send(Sender::Endpoint(endpoint), to, signal.number, &self.body, now);
        self.count += u64::from(sent.is_ok());
        // Another error means that the peer is gone.
        sent != Err(SendError::Full)
    }
}
