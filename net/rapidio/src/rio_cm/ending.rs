//! How a channel ends: in good order, in the middle, and because the other end is gone.

use super::channel::{Channel, State};
use super::data::CROWDED;
use super::wire::Operation;
use super::{Engine, Error, Peer};
use alloc::vec::Vec;
use drivers::rapidio::Destination;

impl Engine {
    /// Says, where the other end is ours, that nothing more is sent; what comes from there still does.
    pub fn finish(&mut self, number: u16) {
        let Ok(Some(peer)) = self.peer(number) else { return };
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        if let Some(flow) = flow
            && !core::mem::replace(&mut flow.finished, true)
        {
            let (len, word) = (flow.sent(), flow.promised());
            self.send_word(peer, Operation::Finish, number, word);
            if let Some((_, header)) = self.outgoing.back_mut()
                && (header.operation, header.from_channel) == (Operation::Finish, number)
            {
                header.len = len;
            }
        }
    }

    /// Closes a channel, and forgets it; what it has received and nobody read is lost. Where the other end is ours, and
    /// both have said that nothing more comes ([`Engine::finish`]), that is the end in good order; else it is one in the
    /// middle, and the other end is told.
    pub fn close(&mut self, number: u16) {
        let Some(channel) = self.channels.remove(&number) else { return };
        match &channel.flow {
            Some(flow) => self.memory.release(flow.held(), flow.held()),
            None => self.memory.forget(channel.received.len()),
        }
        self.patient -= usize::from(channel.holds_up);
        let is_crowded = channel.holds_up && channel.received.len() >= CROWDED;
        self.crowded -= usize::from(is_crowded);
        self.spare.extend(channel.received);
        let is_over = channel.flow.is_some_and(|flow| flow.finished && flow.has_ended());
        if let State::Connected(peer) = channel.state
            && !is_over
        {
            self.send(peer, Operation::Close, number);
        }
    }

    /// Closes all channels that are connected: this end point leaves.
    pub fn leave(&mut self) {
        let connected: Vec<(u16, Peer)> = self
            .channels
            .iter()
            .filter_map(|(number, channel)| match channel.state {
                State::Connected(peer) => Some((*number, peer)),
                _ => None,
            })
            .collect();
        for (number, peer) in connected {
            self.send(peer, Operation::Close, number);
            self.broken(number, Error::State);
        }
    }

    /// A message to a device was not delivered: whose it was nobody knows.
    pub fn undelivered(&mut self, to: Destination) {
        let is_its = |channel: &Channel| match channel.state {
            State::Connected(peer) | State::Connecting(peer, _) => peer.device == to,
            _ => false,
        };
        let all = self.channels.iter().filter(|(_, channel)| is_its(channel));
        let all: Vec<u16> = all.map(|(number, _)| *number).collect();
        all.into_iter().for_each(|number| self.broken(number, Error::Undelivered));
    }

    pub(super) fn broken(&mut self, number: u16, why: Error) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.state = State::Broken(why);
            self.tell(number);
        }
    }

    /// Devices that are gone: channels to them are closed.
    pub fn devices_gone(&mut self, is_gone: impl Fn(Destination) -> bool) {
        let mut told = Vec::new();
        for (number, channel) in &mut self.channels {
            match channel.state {
                State::Connected(peer) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    told.push(*number);
                }
                State::Connecting(peer, _) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    told.push(*number);
                }
                _ => {}
            }
        }
        told.into_iter().for_each(|number| self.tell(number));
    }

    /// Ends a channel between our own whose counts are wrong.
    #[cold]
    pub(super) fn fail(&mut self, number: u16, why: Error) {
        if let Ok(Some(peer)) = self.peer(number) {
            self.send(peer, Operation::Close, number);
        }
        self.broken(number, why);
    }
}
