//! Messages that arrive, in one packet or in many, and PUTs.
//!
//! Nothing of another's shows: where a part leaves a gap before it, the gap is filled with zeros, so that all of a
//! message up to where it was written is the peer's own or zero, whatever a liar counts as complete.

use super::arrival::Taken;
use super::{EndpointId, Engine, NO_MESSAGE};
use crate::blocks::{Block, Blocks};
use crate::wire::header::{Header, Kind};
use drivers::hal::{Instant, Window};

/// A message, or a PUT of several parts.
#[derive(Debug)]
pub(super) struct Message {
    generation: u32,
    endpoint: u32,
    tag: u8,
    /// Its memory; a PUT has none.
    block: Option<Block>,
    size: u32,
    received: u32,
    /// Up to where it was written, or filled with zeros.
    written: u32,
    /// Name of the fragment.
    fragment: u32,
    put_address: u64,
    /// The last of its packets so far.
    last: u64,
    state: Progress,
    before: u16,
    after: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Parts of it are missing; it stands on its endpoint's list.
    Arriving,
    /// It waits for its turn, in a slot of the window.
    Complete,
    /// It is in the inbox.
    Waits,
    /// Its user has it.
    Taken,
}

/// A message that was taken. Its memory is the user's until [`Engine::release`].
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// For which handler it is.
    pub tag: u8,
    /// Its bytes.
    pub bytes: Window,
    place: u16,
    generation: u32,
}

impl Engine {
    /// The next message of an endpoint. Give it back with [`Engine::release`].
    pub fn take_message(&mut self, id: EndpointId) -> Option<Received> {
        let place = self.endpoint(id)?.inbox.0;
        let message = self.messages.get_mut(place.into())?;
        message.state = Progress::Taken;
        let (next, tag, size) = (message.after, message.tag, message.size);
        let generation = message.generation;
        let block = message.block;
        let endpoint = self.endpoint_mut(id)?;
        endpoint.inbox.0 = next;
        if next == NO_MESSAGE {
            endpoint.inbox.1 = NO_MESSAGE;
        }
        let bytes = block.map_or(Window::empty(), |block| self.blocks.window(block, size as usize));
        Some(Received { tag, bytes, place, generation })
    }

    /// Gives a message's memory back. It makes room for what the peer sends again.
    pub fn release(&mut self, message: Received) {
        let found = self.messages.get(message.place.into());
        let right = |found: &&Message| {
            found.generation == message.generation && found.state == Progress::Taken
        };
        if found.filter(right).is_some() {
            self.forget(message.place);
        }
    }

    /// Puts a payload where it belongs.
    pub(super) fn take(
        &mut self,
        place: u32,
        number: u64,
        header: &Header,
        payload: &[u8],
        now: Instant,
    ) -> Taken {
        let (id, size, offset) = match header.kind {
            Kind::Chunk { fragment, size, offset } => (fragment, size, offset),
            _ if header.put_address != 0 => {
                let taken =
                    self.write_granted(place, header.put_address, payload.len(), 0, payload);
                if taken && let Some(endpoint) = self.at(place) {
                    endpoint.counters.puts_received += 1;
                }
                return if taken { Taken::Complete { message: None } } else { Taken::No };
            }
            _ => return self.take_whole(place, number, header.tag, payload),
        };
        let length = payload.len() as u32;
        let inside = offset.checked_add(length).is_some_and(|end| end <= size);
        let longest = u32::try_from(self.config.max_message).unwrap_or(u32::MAX);
        if id == 0 || length == 0 || !inside || (header.put_address == 0 && size > longest) {
            return self.bad(place);
        }
        let name = fragment_name(place, id);
        let message = match self.by_fragment.get(name) {
            Some(message) => message as u16,
            None => match self.begin(place, header, id, size) {
                Some(message) if self.by_fragment.insert(name, message.into()) => message,
                Some(message) => {
                    self.forget(message);
                    return Taken::No;
                }
                None => return Taken::No,
            },
        };
        let Some(known) = self.messages.get(message.into()) else { return Taken::No };
        let same = known.size == size && known.put_address == header.put_address;
        if !same || known.received.checked_add(length).is_none_or(|sum| sum > size) {
            return self.bad(place);
        }
        if header.put_address != 0 {
            let whole = size as usize;
            if !self.write_granted(place, header.put_address, whole, offset, payload) {
                if known_is_empty(self.messages.get(message.into())) {
                    self.forget(message);
                }
                return Taken::No;
            }
        } else {
            Self::write_part(&self.blocks, self.messages.get_mut(message.into()), offset, payload);
        }
        let Some(known) = self.messages.get_mut(message.into()) else { return Taken::No };
        known.received += length;
        known.last = known.last.max(number);
        let (complete, last) = (known.received == size, known.last);
        let is_put = known.put_address != 0;
        let silence = self.at(place).map(|endpoint| endpoint.config.timing.silence);
        if complete {
            self.completed(place, message, is_put);
        }
        if let Some(endpoint) = self.at(place) {
            let waits = endpoint.arriving != NO_MESSAGE;
            endpoint.silence_at = silence.filter(|_| waits).map(|silence| now + silence);
        }
        match complete {
            true => Taken::Complete { message: (!is_put).then_some((message, last)) },
            false => Taken::Yes,
        }
    }

    /// All of a fragment is there.
    fn completed(&mut self, place: u32, message: u16, is_put: bool) {
        self.unlist(message);
        if is_put {
            if let Some(endpoint) = self.at(place) {
                endpoint.counters.puts_received += 1;
            }
            return self.forget(message);
        }
        let Some(known) = self.messages.get_mut(message.into()) else { return };
        known.state = Progress::Complete;
        let (block, size, written) = (known.block, known.size, known.written);
        // A liar's parts may lie on each other, and leave the end open.
        if let Some(block) = block
            && written < size
        {
            let whole = self.blocks.window(block, size as usize);
            fill(&whole, written, size);
        }
    }

    fn take_whole(&mut self, place: u32, number: u64, tag: u8, payload: &[u8]) -> Taken {
        let size = payload.len() as u32;
        let Some(message) = self.allocate(place, tag, size, true) else { return Taken::No };
        let Some(known) = self.messages.get_mut(message.into()) else { return Taken::No };
        known.state = Progress::Complete;
        known.last = number;
        if let Some(block) = known.block {
            // The block is as long at least.
            let _ = self.blocks.window(block, payload.len()).write(0, payload);
        }
        Taken::Complete { message: Some((message, number)) }
    }

    /// The first part of a fragment has arrived, which need not be the one at its beginning.
    fn begin(&mut self, place: u32, header: &Header, id: u32, size: u32) -> Option<u16> {
        let is_put = header.put_address != 0;
        if is_put && !self.is_granted(place, header.put_address, size as usize) {
            self.refuse_put(place);
            return None;
        }
        let message = self.allocate(place, header.tag, size, !is_put)?;
        let Engine { endpoints, messages, .. } = self;
        let endpoint = endpoints.get_mut(place as usize)?.as_mut()?;
        let first = core::mem::replace(&mut endpoint.arriving, message);
        if let Some(next) = messages.get_mut(first.into()) {
            next.before = message;
        }
        let known = messages.get_mut(message.into())?;
        known.fragment = id;
        known.put_address = header.put_address;
        known.after = first;
        Some(message)
    }

    /// A message, and memory for it, if its endpoint may have them.
    fn allocate(&mut self, place: u32, tag: u8, size: u32, memory: bool) -> Option<u16> {
        let room = self.messages.len() < self.config.messages;
        let generation = self.generation;
        let endpoint = self.endpoints.get_mut(place as usize)?.as_mut()?;
        let needed = if memory && size > 0 { Blocks::size_of(size as usize)? } else { 0 };
        let share = endpoint.held.saturating_add(needed) <= endpoint.config.receive_bytes
            || endpoint.held == 0;
        let block = if room && share && endpoint.messages < endpoint.config.messages {
            match needed {
                0 => Some(None),
                _ => self.blocks.alloc(size as usize).map(Some),
            }
        } else {
            None
        };
        let Some(block) = block else {
            endpoint.counters.no_room += 1;
            return None;
        };
        endpoint.messages += 1;
        endpoint.held += needed;
        // Taken messages outlive their endpoints; the number is another for each.
        self.generation = generation.wrapping_add(1);
        let message = Message {
            generation: self.generation,
            endpoint: place,
            tag,
            block,
            size,
            received: 0,
            written: 0,
            fragment: 0,
            put_address: 0,
            last: 0,
            state: Progress::Arriving,
            before: NO_MESSAGE,
            after: NO_MESSAGE,
        };
        Some(self.messages.insert(message) as u16)
    }

    fn write_part(blocks: &Blocks, message: Option<&mut Message>, offset: u32, payload: &[u8]) {
        let Some(message) = message else { return };
        let Some(block) = message.block else { return };
        let whole = blocks.window(block, message.size as usize);
        if offset > message.written {
            fill(&whole, message.written, offset);
        }
        // It was found to lie inside.
        let _ = whole.write(offset as usize, payload);
        message.written = message.written.max(offset + payload.len() as u32);
    }

    /// Puts a message into its endpoint's inbox.
    pub(super) fn hand_over(&mut self, place: u32, message: u16) {
        let Engine { endpoints, messages, .. } = self;
        let Some(Some(endpoint)) = endpoints.get_mut(place as usize) else { return };
        let Some(known) = messages.get_mut(message.into()) else { return };
        known.state = Progress::Waits;
        known.after = NO_MESSAGE;
        endpoint.counters.messages_received += 1;
        match messages.get_mut(endpoint.inbox.1.into()) {
            Some(last) => last.after = message,
            None => endpoint.inbox.0 = message,
        }
        endpoint.inbox.1 = message;
        self.tell(place);
    }

    /// A part that does not fit its fragment.
    fn bad(&mut self, place: u32) -> Taken {
        if let Some(endpoint) = self.at(place) {
            endpoint.counters.num_badfrag_recvs += 1;
        }
        Taken::No
    }

    /// Takes a message off the list of those that are arriving.
    fn unlist(&mut self, message: u16) {
        let Engine { endpoints, messages, by_fragment, .. } = self;
        let Some(known) = messages.get_mut(message.into()) else { return };
        let (before, after, place) = (known.before, known.after, known.endpoint);
        by_fragment.remove(fragment_name(place, known.fragment));
        (known.before, known.after) = (NO_MESSAGE, NO_MESSAGE);
        if let Some(next) = messages.get_mut(after.into()) {
            next.before = before;
        }
        match messages.get_mut(before.into()) {
            Some(previous) => previous.after = after,
            None => {
                if let Some(Some(endpoint)) = endpoints.get_mut(place as usize) {
                    endpoint.arriving = after;
                }
            }
        }
    }

    /// Frees a message that stands on no list, or on that of arriving ones.
    fn forget(&mut self, message: u16) {
        let arriving = |known: &&Message| known.state == Progress::Arriving && known.fragment != 0;
        if self.messages.get(message.into()).filter(arriving).is_some() {
            self.unlist(message);
        }
        let Some(known) = self.messages.try_remove(message.into()) else { return };
        let freed = known.block.map_or(0, Block::size);
        if let Some(block) = known.block {
            self.blocks.free(block);
        }
        if let Some(endpoint) = self.at(known.endpoint) {
            endpoint.messages = endpoint.messages.saturating_sub(1);
            endpoint.held = endpoint.held.saturating_sub(freed);
        }
    }

    /// Frees all messages of an endpoint but those that were taken, which are counted for nobody any more.
    pub(super) fn drop_messages(&mut self, place: u32) {
        let Some(endpoint) = self.at(place) else { return };
        let (mut next, _) = core::mem::replace(&mut endpoint.inbox, (NO_MESSAGE, NO_MESSAGE));
        while let Some(message) = self.messages.get(next.into()) {
            let after = message.after;
            self.forget(next);
            next = after;
        }
        while let Some(arriving) = self.at(place).map(|endpoint| endpoint.arriving)
            && arriving != NO_MESSAGE
        {
            self.forget(arriving);
        }
        // Those that wait for their turn stand in the window's slots, and those that were taken nowhere. It is
        // rare: all are looked at.
        for number in 0..self.messages.capacity() {
            let Some(message) = self.messages.get_mut(number) else { continue };
            if message.endpoint == place {
                match message.state {
                    Progress::Taken => message.endpoint = super::NONE,
                    _ => self.forget(number as u16),
                }
            }
        }
        if let Some(endpoint) = self.at(place) {
            (endpoint.messages, endpoint.held) = (0, 0);
        }
    }
}

fn known_is_empty(message: Option<&Message>) -> bool {
    message.is_some_and(|message| message.received == 0)
}

fn fill(whole: &Window, from: u32, to: u32) {
    if let Some(gap) = whole.slice(from as usize, to.saturating_sub(from) as usize) {
        gap.fill(0);
    }
}

/// The name by which a fragment of an endpoint is found.
fn fragment_name(place: u32, fragment: u32) -> u64 {
    u64::from(place) << 32 | u64::from(fragment)
}
