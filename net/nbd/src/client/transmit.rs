//! Sending: which request goes over which connection, and its bytes.

use super::Client;
use crate::connection::{Life, Sending};
use crate::request::Operation;
use crate::wire::{self, COMMAND_FUA, Command, REQUEST_LENGTH};
use drivers::hal::{Instant, Window};

/// How many requests more than another one a connection may have in flight.
const AHEAD: u16 = 8;

impl<T: Copy> Client<T> {
    /// Writes bytes to be sent to `space`. Returns their number.
    pub fn transmit(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize {
        let mut filled = 0;
        while let Some(space) = space.get_mut(filled..).filter(|space| !space.is_empty()) {
            let Some(one) = self.connections.get_mut(connection) else { break };
            if one.to_close.is_some() {
                break;
            }
            let out = one.out.get(one.out_sent..).unwrap_or_default();
            if !out.is_empty() {
                let count = out.len().min(space.len());
                space[..count].copy_from_slice(&out[..count]);
                one.out_sent += count;
                filled += count;
                continue;
            }
            if one.sending.is_none() && !self.begin(connection, now) {
                break;
            }
            filled += self.send(connection, space, now);
        }
        filled
    }

    /// Whether [`Client::transmit`] has bytes for a connection.
    pub fn wants_transmit(&self, connection: usize) -> bool {
        let Some(one) = self.connections.get(connection) else { return false };
        one.to_close.is_none()
            && (one.out_sent < one.out.len()
                || one.sending.is_some()
                || self.next(connection).is_some())
    }

    /// The number of the ready connection that was opened first: its flush covers what the others wrote.
    fn oldest(&self) -> Option<usize> {
        let ready = self.connections.iter().enumerate().filter(|(_, one)| one.is_ready());
        ready.min_by_key(|(_, one)| one.since).map(|(number, _)| number)
    }

    /// The step that a ready connection sends next, and whether it is a flush.
    fn next(&self, connection: usize) -> Option<(u16, bool)> {
        let one = self.connections.get(connection).filter(|one| one.is_ready())?;
        let others = self.connections.iter().filter(|other| other.is_ready());
        if others.map(|other| other.in_flight).any(|count| one.in_flight >= count + AHEAD) {
            return None;
        }
        let active = |slot: u16| self.slots.get(usize::from(slot)).and_then(Option::as_ref);
        let flush = self.flushes.front().copied().filter(|_| self.oldest() == Some(connection));
        if self.is_remapping {
            // Only the flush of its own.
            let own = |slot: &u16| active(*slot).is_some_and(|active| active.tag.is_none());
            return flush.filter(own).map(|slot| (slot, true));
        }
        let turn = |slot: u16| active(slot).map_or(u64::MAX, |active| active.turn);
        match (flush, self.waiting.front().copied()) {
            (Some(flush), Some(other)) if turn(other) < turn(flush) => Some((other, false)),
            (Some(flush), _) => Some((flush, true)),
            (None, other) => other.map(|slot| (slot, false)),
        }
    }

    /// Begins to send the next step. False if there is none.
    fn begin(&mut self, connection: usize, now: Instant) -> bool {
        let Some((slot, is_flush)) = self.next(connection) else { return false };
        if is_flush {
            self.flushes.pop_front();
        } else {
            self.waiting.pop_front();
        }
        let payload = self.export.map_or(0, |export| export.payload);
        let (acknowledged, due) = (self.acknowledged, now + self.settings.keepalive);
        let Some(one) = self.connections.get_mut(connection) else { return false };
        let cookie = one.cookie(slot);
        one.in_flight += 1;
        let Some(active) = self.active(slot) else { return false };
        (active.on, active.is_sent, active.cookie) = (Some(connection as u16), false, cookie);
        active.sent_at = now;
        if is_flush {
            active.mark = acknowledged;
        }
        let left = (active.data.len() - active.done).min(payload as usize) as u32;
        let (command, offset, length) = match active.operation {
            _ if is_flush => (Command::Flush, 0, 0),
            Operation::Flush => (Command::Flush, 0, 0),
            Operation::Read => (Command::Read, active.offset + active.done as u64, left),
            Operation::Write { .. } => (Command::Write, active.offset + active.done as u64, left),
            Operation::Discard(bytes) => (Command::Trim, active.offset, bytes),
            Operation::WriteZeroes(bytes) => (Command::WriteZeroes, active.offset, bytes),
        };
        active.part = length;
        let active = *active;
        let flags = if self.carries_fua(&active) { COMMAND_FUA } else { 0 };
        let head = wire::request(command, flags, cookie, offset, length);
        self.count(command, length);
        self.timer = Instant::first([self.timer, Some(due)]);
        if let Some(one) = self.connections.get_mut(connection) {
            one.sending = Some(Sending { slot: Some(slot), head, sent: 0 });
        }
        true
    }

    fn count(&mut self, command: Command, length: u32) {
        let stats = &mut self.stats;
        match command {
            Command::Read => {
                stats.reads += 1;
                stats.read_bytes += u64::from(length);
            }
            Command::Write => {
                stats.writes += 1;
                stats.written_bytes += u64::from(length);
            }
            Command::Flush => stats.flushes += 1,
            Command::Trim | Command::WriteZeroes => stats.others += 1,
            Command::Disconnect => {}
        }
    }

    /// Continues to send a request.
    fn send(&mut self, connection: usize, space: &mut [u8], now: Instant) -> usize {
        let Some(one) = self.connections.get_mut(connection) else { return 0 };
        let Some(mut sending) = one.sending else { return 0 };
        let active = sending.slot.and_then(|slot| self.slots.get_mut(usize::from(slot))?.as_mut());
        let data = match &active {
            Some(active) if active.sends_data() => {
                active.data.slice(active.done, active.part as usize).unwrap_or(Window::empty())
            }
            _ => Window::empty(),
        };
        let mut count = 0;
        if let Some(head) = sending.head.get(sending.sent..) {
            count = head.len().min(space.len());
            space[..count].copy_from_slice(&head[..count]);
            sending.sent += count;
        }
        if sending.sent >= REQUEST_LENGTH {
            let at = sending.sent - REQUEST_LENGTH;
            let length = (data.len() - at).min(space.len() - count);
            // The slice is inside the window, whose memory stays.
            let _ = data.read(at, &mut space[count..count + length]);
            count += length;
            sending.sent += length;
        }
        if sending.sent < REQUEST_LENGTH + data.len() {
            one.sending = Some(sending);
            return count;
        }
        one.sending = None;
        match active {
            Some(active) => active.is_sent = true,
            None => {
                // The request to disconnect: the connection ends behind it.
                one.reset(now);
                one.to_close = Some(false);
            }
        }
        count
    }

    /// Makes a ready connection, without requests in flight, disconnect.
    pub(super) fn leave(&mut self, connection: usize, now: Instant) {
        let Some(one) = self.connections.get_mut(connection).filter(|one| one.is_ready()) else {
            return;
        };
        let head = wire::request(Command::Disconnect, 0, 0, 0, 0);
        one.sending = Some(Sending { slot: None, head, sent: 0 });
        one.life = Life::Leaving(now);
    }
}
