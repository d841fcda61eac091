//! Timeouts of connections: retransmission, and the end of retries.

use super::connection::State;
use super::wire::message::About;
use super::{Manager, Transport};
use drivers::hal::Instant;
use verbs::{ConnectionId, RejectReason};

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// Runs the expired timers of connections, and handles messages that waited for the neighbour table.
    pub fn run_timers(&mut self, now: Instant) {
        self.handle_released(now);
        for _ in 0..self.cm().table.timers.len() {
            let Some(id) = self.cm().table.take_due(now) else { break };
            match self.cm().table.get(id).and_then(|connection| connection.deadline) {
                Some(at) if at <= now => self.expire(id, now),
                Some(at) => self.cm().table.arm(id, at),
                None => (),
            }
        }
    }

    fn expire(&mut self, id: ConnectionId, now: Instant) {
        let Some(connection) = self.cm().table.get_mut(id) else { return };
        connection.deadline = None;
        if connection.superseded {
            connection.superseded = false;
            return self.end(id);
        }
        if let (Some((transaction, message)), 1..) = (connection.message, connection.retries_left) {
            connection.retries_left -= 1;
            let (address, interval) = (connection.address, connection.interval);
            self.cm().send(address, transaction, message);
            return self.cm().table.arm(id, now + interval);
        }
        match connection.state {
            State::TimeWait => {
                self.cm().table.remove(id);
            }
            State::ReqSent => {
                self.cm().refuse(id, About::Req, RejectReason::TIMEOUT);
                self.fail_request(id, RejectReason::TIMEOUT);
            }
            State::RepSent => {
                self.cm().refuse(id, About::Rep, RejectReason::TIMEOUT);
                self.ended_by_peer(id, now);
            }
            State::DreqSent => self.time_wait(id, now),
            State::ReqReceived | State::Established | State::Refused => (),
        }
    }
}
