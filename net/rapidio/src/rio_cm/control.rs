//! The queue of outgoing control messages, and the keepalive ticks of flow-controlled channels.

use super::channel::{Channel, State};
use super::flow::Tick;
use super::wire::{HEADER, Header, Operation};
use super::{Engine, Error, MOST_CHANNELS, Peer};
use core::time::Duration;
use drivers::hal::Instant;
use drivers::rapidio::Destination;

/// Maximum number of queued control messages: four per channel.
const MOST_OUTGOING: usize = 4 * MOST_CHANNELS;
/// Length of the queue up to which messages for unknown channels are answered by a close.
pub(super) const MOST_ANSWERS: usize = MOST_CHANNELS;
/// Interval of ticks of a flow-controlled channel.
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

    /// The next control message, and its destination. It stays queued until [`Engine::was_sent`].
    pub fn outgoing(&self) -> Option<(Destination, [u8; HEADER])> {
        let (to, mut header) = *self.outgoing.front()?;
        let flow = self.channels.get(&header.from_channel).and_then(|it| it.flow.as_ref());
        if matches!(header.operation, Operation::Credit | Operation::Finish)
            && let Some(flow) = flow
        {
            header.word = flow.granted();
        }
        Some((to, header.bytes()))
    }

    /// Removes the control message that the port has accepted.
    pub fn was_sent(&mut self) {
        let Some((_, header)) = self.outgoing.pop_front() else { return };
        let flow = self.channels.get_mut(&header.from_channel).and_then(|it| it.flow.as_mut());
        if matches!(header.operation, Operation::Credit | Operation::Finish)
            && let Some(flow) = flow
        {
            flow.is_queued &= header.operation != Operation::Credit;
            flow.advertise();
        }
    }

    /// Queues a credit for the peer. [`Engine::outgoing`] updates its count; if the channel is closed by then, the
    /// current count is sent.
    pub(super) fn send_credit(&mut self, number: u16) {
        let Ok(Some(peer)) = self.peer(number) else { return };
        let flow = self.channels.get(&number).and_then(|it| it.flow.as_ref());
        if let Some(word) = flow.map(|flow| flow.granted()) {
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
        // While the engine is congested, the mailbox is not read.
        let is_congested = self.is_congested();
        let Some(channel) = self.channels.get_mut(&number).filter(|it| it.tick == at) else {
            return;
        };
        let Channel { state: State::Connected(peer), flow: Some(flow), .. } = channel else {
            return;
        };
        let peer = *peer;
        if is_congested {
            flow.suspend_timeout();
        }
        // Both sides have finished: no keepalives are due.
        if flow.finished && flow.has_ended() {
            return;
        }
        match flow.tick() {
            Tick::TimedOut => {
                self.send(peer, Operation::Close, number);
                return self.break_channel(number, Error::Silent);
            }
            Tick::Keepalive => self.send_credit(number),
            Tick::Idle => {}
        }
        self.start_ticks(number, now);
    }
}
