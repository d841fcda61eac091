//! Reassembly of messages, in one or several packets, and of PUTs.
//!
//! A message never shows other users' data: a gap before a part is filled with zeros, so that all bytes of a
//! message are either the peer's or zero, even if a malicious peer's parts overlap.

use super::NO_MESSAGE;
use super::arrival::Taken;
use super::endpoint::Endpoint;
use super::messages::{Message, Progress, fragment_name};
use super::shared::Shared;
use crate::wire::header::{Header, Kind};
use drivers::hal::{Instant, Window};

impl Endpoint {
    /// Stores a payload at its destination.
    #[inline]
    pub(super) fn take(
        &mut self,
        shared: &mut Shared,
        number: u64,
        header: &Header,
        payload: &[u8],
        now: Instant,
    ) -> Taken {
        match header.kind {
            Kind::Chunk { fragment, size, offset } => {
                let part = Part { number, fragment, size, offset, payload };
                self.take_part(shared, header, &part, now)
            }
            _ if header.put_address != 0 => self.take_whole_put(shared, header, payload),
            _ => self.take_whole(shared, number, header.tag, payload),
        }
    }

    fn take_whole_put(&mut self, shared: &Shared, header: &Header, payload: &[u8]) -> Taken {
        let Some(window) = self.granted(&shared.grants, header.put_address, payload.len() as u32)
        else {
            return Taken::No;
        };
        // The window has the length of the payload.
        let _ = window.write(0, payload);
        self.counters.puts_received += 1;
        Taken::Complete { message: None }
    }

    #[inline]
    fn take_whole(&mut self, shared: &mut Shared, number: u64, tag: u8, payload: &[u8]) -> Taken {
        let size = payload.len() as u32;
        let Some(place) = self.allocate(shared, tag, size, true) else { return Taken::No };
        let Some(message) = shared.messages.get_mut(place.into()) else { return Taken::No };
        message.state = Progress::Complete;
        message.last = number;
        // The window has the length of the payload.
        let _ = message.window.write(0, payload);
        Taken::Complete { message: Some((place, number)) }
    }

    fn take_part(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        part: &Part,
        now: Instant,
    ) -> Taken {
        let length = part.payload.len() as u32;
        let inside = part.offset.checked_add(length).is_some_and(|end| end <= part.size);
        if part.fragment == 0 || length == 0 || !inside {
            return self.bad();
        }
        let place = match self.current {
            (fragment, place) if fragment == part.fragment => place,
            _ => match self.message_of(shared, header, part, now) {
                Ok(place) => place,
                Err(taken) => return taken,
            },
        };
        let Shared { messages, grants, .. } = shared;
        let Some(message) = messages.get_mut(place.into()) else { return Taken::No };
        let address = header.put_address;
        let same = message.size == part.size && message.put_address == address;
        if !same || length > part.size - message.received {
            return self.bad();
        }
        if address != 0 && message.window.is_empty() {
            let Some(window) = self.granted(grants, address, part.size) else { return Taken::No };
            message.window = window;
        }
        message.write(part);
        message.received += length;
        message.last = message.last.max(part.number);
        self.part_at = now;
        if message.received < message.size {
            return Taken::Yes;
        }
        let complete = (place, message.last);
        self.completed(shared, place);
        if self.arriving == NO_MESSAGE {
            self.silence_at = None;
        }
        Taken::Complete { message: (address == 0).then_some(complete) }
    }

    /// The message of a part whose fragment differs from that of the last part. Creates it for the first part.
    fn message_of(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        part: &Part,
        now: Instant,
    ) -> Result<u16, Taken> {
        let longest = u32::try_from(shared.config.max_message).unwrap_or(u32::MAX);
        if header.put_address == 0 && part.size > longest {
            return Err(self.bad());
        }
        let name = fragment_name(self.id.place, part.fragment);
        let place = match shared.by_fragment.get(name) {
            Some(place) => place as u16,
            None => {
                let place = self.begin(shared, header, part, now).ok_or(Taken::No)?;
                if !shared.by_fragment.insert(name, place.into()) {
                    shared.drop_message(self, place);
                    return Err(Taken::No);
                }
                place
            }
        };
        self.current = (part.fragment, place);
        Ok(place)
    }

    /// Creates the message for the first part of a fragment that arrives, which may have any offset.
    fn begin(
        &mut self,
        shared: &mut Shared,
        header: &Header,
        part: &Part,
        now: Instant,
    ) -> Option<u16> {
        let is_put = header.put_address != 0;
        if is_put {
            self.granted(&shared.grants, header.put_address, part.size)?;
        }
        let place = self.allocate(shared, header.tag, part.size, !is_put)?;
        let first = core::mem::replace(&mut self.arriving, place);
        if let Some(next) = shared.messages.get_mut(first.into()) {
            next.before = place;
        }
        let message = shared.messages.get_mut(place.into())?;
        message.fragment = part.fragment;
        message.put_address = header.put_address;
        message.after = first;
        if self.silence_at.is_none() {
            let at = now.after_nanos(self.config.silence);
            self.silence_at = Some(at);
            shared.wheel.schedule(self.id.place, at);
        }
        Some(place)
    }

    /// Handles the completion of a fragment.
    fn completed(&mut self, shared: &mut Shared, place: u16) {
        shared.unlist(self, place);
        let Some(message) = shared.messages.get_mut(place.into()) else { return };
        message.state = Progress::Complete;
        if message.put_address != 0 {
            self.counters.puts_received += 1;
            return shared.drop_message(self, place);
        }
        // A malicious peer's parts may overlap, and leave bytes at the end unwritten.
        if message.written < message.size {
            fill(&message.window, message.written, message.size);
        }
    }

    /// Counts a part that does not fit its fragment.
    #[cold]
    fn bad(&mut self) -> Taken {
        self.counters.num_badfrag_recvs += 1;
        Taken::No
    }
}

/// A part of a fragment, with the fields of its packet.
struct Part<'a> {
    number: u64,
    fragment: u32,
    size: u32,
    offset: u32,
    payload: &'a [u8],
}

impl Message {
    /// Accounts a part that arrives in order: it belongs to the fragment `current`, follows the last part, and does not
    /// complete the fragment. Returns the destination of its payload; None for any other part.
    #[inline]
    pub(super) fn next_part(
        &mut self,
        current: u32,
        number: u64,
        header: &Header,
        payload: &[u8],
    ) -> Option<Window> {
        let Kind::Chunk { fragment, size, offset } = header.kind else { return None };
        let length = payload.len() as u32;
        if fragment != current
            || size != self.size
            || header.put_address != self.put_address
            || offset != self.written
            || length == 0
            || length >= size - self.received
        {
            return None;
        }
        let window = self.window.slice(offset as usize, payload.len())?;
        self.received += length;
        self.written = offset + length;
        self.last = number;
        Some(window)
    }

    fn write(&mut self, part: &Part) {
        // Gaps of a PUT keep the contents of the region.
        if part.offset > self.written && self.put_address == 0 {
            fill(&self.window, self.written, part.offset);
        }
        // The caller checked that the part fits.
        let _ = self.window.write(part.offset as usize, part.payload);
        self.written = self.written.max(part.offset + part.payload.len() as u32);
    }
}

fn fill(whole: &Window, from: u32, to: u32) {
    if let Some(gap) = whole.slice(from as usize, to.saturating_sub(from) as usize) {
        gap.fill(0);
    }
}
