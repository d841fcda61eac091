//! Handles events of the connection managers and of the ports.

use super::side::{self, Kind, Side, State};
use super::target::Target;
use super::world::{Action, PARAMETERS, World};
use std::time::Duration;
use verbs::{
    AsyncEvent, ConnectionEvent, ConnectionId, ConnectionManager, PrivateData, Provider,
    RejectReason,
};

impl World {
    /// Polls all events of the engines.
    pub fn drive(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(machine) = &mut self.hosts[host].machine {
                if let Some(completion) = machine.roce.poll_cq(machine.cq) {
                    self.complete(host, &completion);
                } else if let Some(event) = machine.roce.poll_connection_event() {
                    self.handle_event(host, event);
                } else if let Some(event) = machine.roce.poll_event() {
                    let link = match event {
                        AsyncEvent::PortActive(_) => true,
                        AsyncEvent::PortError(_) => false,
                        _ => self.hosts[host].link,
                    };
                    assert_eq!(link, self.hosts[host].link, "{event:?} of host {host}");
                } else {
                    break;
                }
            }
        }
    }

    pub fn side_of(&self, host: usize, connection: ConnectionId) -> Option<usize> {
        (0..self.sides.len()).find(|&n| {
            let side = &self.sides[n];
            (side.host, side.connection) == (host, connection) && side.state != State::Gone
        })
    }

    pub fn handle_event(&mut self, host: usize, event: ConnectionEvent) {
        self.trace(&format!("host {host}: {event:?}"));
        match event {
            ConnectionEvent::Request { connection, private_data, .. } => {
                self.requested(host, connection, &private_data);
            }
            ConnectionEvent::Established { connection, private_data } => {
                let Some(number) = self.side_of(host, connection) else { return };
                if self.sides[number].state == State::Asked {
                    self.introduce(number, private_data.as_slice());
                }
                // Some sides post no requests.
                let budget = self.rng.within(0..50).saturating_sub(10) as u32;
                let side = &mut self.sides[number];
                side.state = State::Up;
                side.budget = budget;
                self.later(Duration::ZERO, Action::Post(number));
            }
            ConnectionEvent::Rejected { connection, .. } => {
                let Some(number) = self.side_of(host, connection) else { return };
                assert!(!self.sides[number].sound, "side {number} is rejected");
                self.tear_down(number);
            }
            ConnectionEvent::Disconnected { connection } => {
                let Some(number) = self.side_of(host, connection) else { return };
                let side = &self.sides[number];
                assert!(!side.sound, "side {number} is disconnected");
                let left = side.ops.iter().filter(|op| op.signaled).count() + side.posted.len();
                assert_eq!(left, 0, "a connection ended before all its requests completed");
                self.tear_down(number);
            }
        }
    }

    /// A peer requests a connection.
    pub fn requested(&mut self, host: usize, connection: ConnectionId, private_data: &PrivateData) {
        let number = self.sides.len();
        let refuse = !self.calm && self.healed.is_none() && self.rng.chance(100);
        let now = self.network.now;
        let it = &mut self.hosts[host];
        let (boots, machine) = (it.boots, it.up());
        let side =
            if refuse { None } else { Side::new(number, host, boots, machine, &mut self.rng) };
        let Some(mut side) = side else {
            let reason = RejectReason::CONSUMER;
            machine.roce.reject(connection, reason, b"").expect("the request is unanswered");
            let (peer, _) = side::introduced(private_data.as_slice());
            self.sides[peer].sound = false;
            return;
        };
        let introduction = side.introduction(number, machine);
        side.connection = connection;
        side.state = State::Accepted;
        side.sound = self.calm;
        let (qp, roce) = (side.qp, &mut machine.roce);
        roce.accept(connection, qp, &PARAMETERS, &introduction, now)
            .expect("the request is unanswered");
        self.sides.push(side);
        self.introduce(number, private_data.as_slice());
        let peer = self.sides[number].peer.expect("the side was introduced");
        self.sides[number].sound |= self.sides[peer].sound;
        self.trace(&format!("side {number}: host {host} accepts"));
    }

    /// Sets the peer of a side.
    pub fn introduce(&mut self, number: usize, introduction: &[u8]) {
        let (peer, granted) = side::introduced(introduction);
        let target = Target::new(&self.sides[peer].first);
        let peer_library = self.sides[peer].library_bytes.clone();
        let side = &mut self.sides[number];
        side.peer = Some(peer);
        side.granted = Some(granted);
        side.target = target;
        side.peer_library = peer_library;
    }

    /// Destroys a side with all its resources.
    pub fn tear_down(&mut self, number: usize) {
        self.trace(&format!("side {number} is gone"));
        // Only the side that has this side as its peer could write here; there is at most one.
        let writer = (0..self.sides.len())
            .find(|&n| self.sides[n].peer == Some(number) && Some(n) == self.sides[number].peer);
        let mut target = writer.map(|n| core::mem::take(&mut self.sides[n].target));
        let boots = self.boots_of_peer(number);
        let side = &mut self.sides[number];
        let unsure = side.ops.iter().filter(|op| matches!(op.kind, Kind::Count { .. })).count();
        if let Some(life) = boots {
            self.counts.entry(life).or_default().unsure += unsure as u64;
        }
        side.tear_down(self.hosts[side.host].up(), target.as_ref(), self.mtu);
        side.ops.clear();
        if let (Some(writer), Some(target)) = (writer, target.take()) {
            self.sides[writer].target = target;
        }
    }

    /// The peer's host, and the number of that host's boot to which the peer belongs.
    pub fn boots_of_peer(&self, number: usize) -> Option<(usize, u32)> {
        let peer = &self.sides[self.sides[number].peer?];
        Some((peer.host, peer.boots))
    }
}
