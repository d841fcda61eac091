//! Ends of channels: orderly shutdown, abort, and loss of the peer.

use super::channel::{Channel, State};
use super::data::CROWDED;
use super::wire::Operation;
use super::{Engine, Error, Peer};
use alloc::vec::Vec;
use drivers::rapidio::Destination;

impl Engine {
    /// Half-closes a flow-controlled channel: notifies the peer that no more data follows. Receiving continues.
    pub fn finish(&mut self, number: u16) {
        let Ok(Some(peer)) = self.peer(number) else { return };
        let flow = self.channels.get_mut(&number).and_then(|channel| channel.flow.as_mut());
        if let Some(flow) = flow
            && !core::mem::replace(&mut flow.finished, true)
        {
            let (len, word) = (flow.sent(), flow.granted());
            self.send_word(peer, Operation::Finish, number, word);
            if let Some((_, header)) = self.outgoing.back_mut()
                && (header.operation, header.from_channel) == (Operation::Finish, number)
            {
                header.len = len;
            }
        }
    }

    /// Closes and removes a channel, and discards its unread messages. If both sides of a flow-controlled channel have
    /// finished ([`Engine::finish`]), no message is sent: it is an orderly shutdown. Otherwise the peer gets a close.
    pub fn close(&mut self, number: u16) {
        let Some(channel) = self.channels.remove(&number) else { return };
        match &channel.flow {
            Some(flow) => self.memory.release(flow.held(), flow.held()),
            None => self.memory.free(channel.received.len()),
        }
        self.holding_up -= usize::from(channel.holds_up);
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

    /// Closes all connected channels, because this end point leaves.
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
            self.break_channel(number, Error::State);
        }
    }

    /// Ends all channels to a device to which a message could not be delivered. The channel of the message is not
    /// known.
    pub fn undelivered(&mut self, to: Destination) {
        let is_to_device = |channel: &Channel| match channel.state {
            State::Connected(peer) | State::Connecting(peer, _) => peer.device == to,
            _ => false,
        };
        let all = self.channels.iter().filter(|(_, channel)| is_to_device(channel));
        let all: Vec<u16> = all.map(|(number, _)| *number).collect();
        all.into_iter().for_each(|number| self.break_channel(number, Error::Undelivered));
    }

    pub(super) fn break_channel(&mut self, number: u16, why: Error) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.state = State::Broken(why);
            self.notify(number);
        }
    }

    /// Ends all channels to devices that are gone.
    pub fn devices_gone(&mut self, is_gone: impl Fn(Destination) -> bool) {
        let mut broken = Vec::new();
        for (number, channel) in &mut self.channels {
            match channel.state {
                State::Connected(peer) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    broken.push(*number);
                }
                State::Connecting(peer, _) if is_gone(peer.device) => {
                    channel.state = State::Broken(Error::Gone);
                    broken.push(*number);
                }
                _ => {}
            }
        }
        broken.into_iter().for_each(|number| self.notify(number));
    }

    /// Ends a flow-controlled channel whose peer has sent invalid counts.
    #[cold]
    pub(super) fn fail(&mut self, number: u16, why: Error) {
        if let Ok(Some(peer)) = self.peer(number) {
            self.send(peer, Operation::Close, number);
        }
        self.break_channel(number, why);
    }
}
