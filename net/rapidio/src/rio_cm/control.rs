//! What channels say of themselves: control messages on their way out, and signs of life.

use super::channel::{Channel, State};
use super::flow::Tick;
use super::wire::{HEADER, Header, Operation};
use super::{Engine, Error, MOST_CHANNELS, Peer};
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::Destination;

/// Control messages that wait for room: four for each channel.
const MOST_OUTGOING: usize = 4 * MOST_CHANNELS;
/// Closes that answer who speaks of a channel that there is none of, beside all others.
pub(super) const MOST_ANSWERS: usize = MOST_CHANNELS;
/// Between ticks of a channel between our own.
const TICK: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn send(&mut self, peer: Peer, operation: Operation, from_channel: u16) {
        self.send_word(peer, operation, from_channel, 0);
    }

    pub(super) fn send_word(
        &mut self,
        peer: Peer,
        operation: Operation,
        from_channel: u16,
        word: u16,
    ) {
        let Peer { device, channel } = peer;
        let header =
            Header::new(self.own_id, device, self.mailbox, operation, channel, from_channel);
        let header = Header { word, ..header };
        if self.outgoing.len() < MOST_OUTGOING {
            self.outgoing.push_back((device, header));
        }
    }

    /// The next control message, and who it goes to. It stays until [`Engine::was_sent`].
    pub fn outgoing(&self) -> Option<(Destination, [u8; HEADER])> {
        let (to, mut header) = *self.outgoing.front()?;
        let flow = self.channels.get(&header.from_channel).and_then(|it| it.flow.as_ref());
        if matches!(header.operation, Operation::Credit | Operation::Finish)
            && let Some(flow) = flow
        {
            header.word = flow.promised();
        }
        Some((to, header.bytes()))
    }

    /// The control message was taken by the port.
    pub fn was_sent(&mut self) {
        let Some((_, header)) = self.outgoing.pop_front() else { return };
        let flow = self.channels.get_mut(&header.from_channel).and_then(|it| it.flow.as_mut());
        if matches!(header.operation, Operation::Credit | Operation::Finish)
            && let Some(flow) = flow
        {
            flow.is_queued &= header.operation != Operation::Credit;
            flow.say();
        }
    }

    /// The other end is told how much it may send: as of when that leaves, or as of now if the channel is closed by then.
    pub(super) fn tell_promised(&mut self, number: u16) {
        let Ok(Some(peer)) = self.peer(number) else { return };
        let flow = self.channels.get(&number).and_then(|it| it.flow.as_ref());
        if let Some(word) = flow.map(|flow| flow.promised()) {
            self.send_word(peer, Operation::Credit, number, word);
        }
    }

    pub(super) fn start_ticks(&mut self, number: u16, now: Instant) {
        let at = now + TICK;
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.tick = at;
            self.ticks.push_back((at, number));
        }
    }

    pub(super) fn tick(&mut self, number: u16, at: Instant, now: Instant) {
        // What lies in the mailbox is not looked at.
        let is_deaf = self.is_congested();
        let Some(channel) = self.channels.get_mut(&number).filter(|it| it.tick == at) else {
            return;
        };
        let Channel { state: State::Connected(peer), flow: Some(flow), .. } = channel else {
            return;
        };
        let peer = *peer;
        if is_deaf {
            flow.excuse();
        }
        // Who has said and heard everything waits for nothing.
        if flow.finished && flow.has_ended() {
            return;
        }
        match flow.tick() {
            Tick::Silent => {
                self.send(peer, Operation::Close, number);
                return self.broken(number, Error::Silent);
            }
            Tick::Speak => self.tell_promised(number),
            Tick::Rest => {}
        }
        self.start_ticks(number, now);
    }
}
