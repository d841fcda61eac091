//! The echo service: each signal goes back to who sent it, with the same number and bytes.

use ::linx::{EndpointId, Node, Origin, SendError, Sender, Signal};
use drivers::hal::Instant;
use std::collections::VecDeque;

/// The service, at all of its endpoints.
#[derive(Default)]
pub(super) struct Echo {
    endpoints: Vec<EndpointId>,
    /// Signals that found no room on the way back: they hold their link's memory, which holds up a peer over TCP.
    held: VecDeque<(EndpointId, Signal)>,
    /// The signal that is sent.
    body: Vec<u8>,
    pub count: u64,
}

impl Echo {
    /// Is found under this name, too.
    pub fn open(&mut self, node: &mut Node, name: &str, now: Instant) {
        match node.open(name.as_bytes(), now) {
            Ok(endpoint) => self.endpoints.push(endpoint),
            // Several links may publish the same name: it is one endpoint.
            Err(::linx::Refused::Exists) => {}
            Err(why) => log::error!("linx: {name}: {why}"),
        }
    }

    /// Signals have come to an endpoint.
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

    /// There is room again, on one of the links.
    pub fn go_on(&mut self, node: &mut Node, now: Instant) {
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

    /// False if it has to wait.
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
        // Whoever is gone does not wait for an answer.
        sent != Err(SendError::Full)
    }
}
