//! Messages that arrive, in one packet or in many, and PUTs.
//!
//! Nothing of another's shows: where a part leaves a gap before it, the gap is filled with zeros, so that all of a
//! message up to where it was written is the peer's own or zero, whatever a liar counts as complete.

use super::arrival::Taken;
use super::endpoint::Endpoint;
use super::shared::Shared;
use super::{EndpointId, Engine, NO_MESSAGE};
use crate::blocks::{Block, Blocks};
use crate::wire::header::{Header, Kind};
use drivers::hal::{Instant, Window};

/// A message, or a PUT of several parts.
#[derive(Debug, Default)]
pub(super) struct Message {
    generation: u32,
    endpoint: u32,
    tag: u8,
    state: Progress,
    /// Its memory; a PUT has none.
    block: Option<Block>,
    size: u32,
    received: u32,
    /// Up to where it was written, or filled with zeros.
    written: u32,
    /// Name of the fragment; 0 if it came in one packet.
    fragment: u32,
    put_address: u64,
    /// The last of its packets so far.
    last: u64,
    before: u16,
    after: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// Its place is free.
    #[default]
    Free,
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
    /// Bytes of the memory that it takes.
    takes: u32,
    place: u16,
    generation: u32,
}

impl Received {
    /// Bytes of the engine's memory that it takes.
    pub fn takes(&self) -> usize {
        self.takes as usize
    }
}

impl Engine {
    /// The next message of an endpoint. Give it back with [`Engine::release`].
    #[inline]
    pub fn take_message(&mut self, id: EndpointId) -> Option<Received> {
        let Engine { endpoints, shared, .. } = self;
        let endpoint = super::find(endpoints, id)?;
        let place = endpoint.inbox.0;
        let message = shared.messages.get_mut(place.into())?;
        message.state = Progress::Taken;
        endpoint.inbox.0 = message.after;
        if message.after == NO_MESSAGE {
            endpoint.inbox.1 = NO_MESSAGE;
        }
        let bytes = shared.blocks.window_of(message.block, message.size);
        let takes = message.block.map_or(0, Block::size) as u32;
        Some(Received { tag: message.tag, bytes, takes, place, generation: message.generation })
    }

    /// Gives a message's memory back. It makes room for what the peer sends again.
    #[inline]
    pub fn release(&mut self, message: Received) {
        let Engine { endpoints, shared, .. } = self;
        let Some(known) = shared.messages.get(message.place.into()) else { return };
        if known.generation != message.generation || known.state != Progress::Taken {
            return;
        }
        let endpoint = endpoints.get_mut(known.endpoint as usize).and_then(Option::as_mut);
        shared.free(endpoint, message.place);
    }
}

impl Endpoint {
    /// Puts a payload where it belongs.
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
        // The window is as long.
        let _ = window.write(0, payload);
        self.counters.puts_received += 1;
        Taken::Complete { message: None }
    }

    #[inline]
    fn take_whole(&mut self, shared: &mut Shared, number: u64, tag: u8, payload: &[u8]) -> Taken {
        let size = payload.len() as u32;
        let Some(place) = self.allocate(shared, tag, size, true) else { return Taken::No };
        let Shared { messages, blocks, .. } = shared;
        let Some(message) = messages.get_mut(place.into()) else { return Taken::No };
        message.state = Progress::Complete;
        message.last = number;
        if let Some(block) = message.block {
            // The block is as long at least.
            let _ = blocks.window(block, payload.len()).write(0, payload);
        }
        Taken::Complete { message: Some((place, number)) }
    }

    #[inline]
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
        let Shared { messages, blocks, grants, .. } = shared;
        let Some(message) = messages.get_mut(place.into()) else { return Taken::No };
        let address = header.put_address;
        let same = message.size == part.size && message.put_address == address;
        if !same || length > part.size - message.received {
            return self.bad();
        }
        if address == 0 {
            message.write(blocks, part);
        } else if let Some(window) = self.granted(grants, address, part.size) {
            // It was found to lie inside.
            let _ = window.write(part.offset as usize, part.payload);
        } else {
            return Taken::No;
        }
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

    /// The message of a part that is of another one than the last part was; it begins if this is its first.
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
                    shared.forget(self, place);
                    return Err(Taken::No);
                }
                place
            }
        };
        self.current = (part.fragment, place);
        Ok(place)
    }

    /// The first part of a fragment has arrived, which need not be the one at its beginning.
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
            shared.wheel.put(self.id.place, at);
        }
        Some(place)
    }

    /// A message, and memory for it, if its endpoint may have them.
    #[inline]
    fn allocate(&mut self, shared: &mut Shared, tag: u8, size: u32, memory: bool) -> Option<u16> {
        let found = self.allocate_if(shared, tag, size, memory);
        if found.is_none() {
            self.counters.no_room += 1;
        }
        found
    }

    #[inline]
    fn allocate_if(
        &mut self,
        shared: &mut Shared,
        tag: u8,
        size: u32,
        memory: bool,
    ) -> Option<u16> {
        if self.messages >= self.config.messages || shared.messages.is_full() {
            return None;
        }
        let mut block = None;
        if memory && size > 0 {
            let share = self.held.saturating_add(Blocks::size_of(size as usize)?);
            if share > self.config.receive_bytes && self.held > 0 {
                return None;
            }
            block = Some(shared.blocks.alloc(size as usize)?);
            self.held = share;
        }
        let (place, message) = shared.messages.take()?;
        self.messages += 1;
        // Taken messages outlive their endpoints; the number is another for each.
        shared.generation = shared.generation.wrapping_add(1);
        *message = Message {
            generation: shared.generation,
            endpoint: self.id.place,
            tag,
            state: Progress::Arriving,
            block,
            size,
            received: 0,
            written: 0,
            fragment: 0,
            put_address: 0,
            last: 0,
            before: NO_MESSAGE,
            after: NO_MESSAGE,
        };
        Some(place as u16)
    }

    /// All of a fragment is there.
    fn completed(&mut self, shared: &mut Shared, place: u16) {
        shared.unlist(self, place);
        let Shared { messages, blocks, .. } = shared;
        let Some(message) = messages.get_mut(place.into()) else { return };
        message.state = Progress::Complete;
        if message.put_address != 0 {
            self.counters.puts_received += 1;
            return shared.forget(self, place);
        }
        // A liar's parts may lie on each other, and leave the end open.
        if let Some(block) = message.block
            && message.written < message.size
        {
            let whole = blocks.window(block, message.size as usize);
            fill(&whole, message.written, message.size);
        }
    }

    /// Puts a message into the inbox.
    #[inline]
    pub(super) fn hand_over(&mut self, shared: &mut Shared, place: u16) {
        let Some(message) = shared.messages.get_mut(place.into()) else { return };
        message.state = Progress::Waits;
        message.after = NO_MESSAGE;
        self.counters.messages_received += 1;
        match shared.messages.get_mut(self.inbox.1.into()) {
            Some(last) => last.after = place,
            None => self.inbox.0 = place,
        }
        self.inbox.1 = place;
        shared.tell(self);
    }

    /// A part that does not fit its fragment.
    #[cold]
    fn bad(&mut self) -> Taken {
        self.counters.num_badfrag_recvs += 1;
        Taken::No
    }

    /// Frees all messages but those that were taken, which are counted for nobody any more.
    pub(super) fn drop_messages(&mut self, shared: &mut Shared) {
        self.inbox = (NO_MESSAGE, NO_MESSAGE);
        // Some stand on a list, some in the window's slots, and some nowhere. It is rare: all are looked at.
        for place in 0..shared.messages.capacity() as u16 {
            let Some(message) = shared.messages.get_mut(place.into()) else { continue };
            if message.endpoint == self.id.place {
                match message.state {
                    Progress::Free => (),
                    Progress::Taken => message.endpoint = super::NONE,
                    _ => shared.forget(self, place),
                }
            }
        }
        (self.messages, self.held) = (0, 0);
    }
}

/// A part of a fragment, as its packet says.
struct Part<'a> {
    number: u64,
    fragment: u32,
    size: u32,
    offset: u32,
    payload: &'a [u8],
}

impl Message {
    fn write(&mut self, blocks: &Blocks, part: &Part) {
        let Some(block) = self.block else { return };
        let whole = blocks.window(block, self.size as usize);
        if part.offset > self.written {
            fill(&whole, self.written, part.offset);
        }
        // It was found to lie inside.
        let _ = whole.write(part.offset as usize, part.payload);
        self.written = self.written.max(part.offset + part.payload.len() as u32);
    }
}

impl Shared {
    /// Takes a message off the list of those that are arriving at its endpoint.
    fn unlist(&mut self, endpoint: &mut Endpoint, place: u16) {
        let Some(message) = self.messages.get_mut(place.into()) else { return };
        let (before, after) = (message.before, message.after);
        (message.before, message.after) = (NO_MESSAGE, NO_MESSAGE);
        if endpoint.current.0 == message.fragment {
            endpoint.current = (0, NO_MESSAGE);
        }
        self.by_fragment.remove(fragment_name(endpoint.id.place, message.fragment));
        if let Some(next) = self.messages.get_mut(after.into()) {
            next.before = before;
        }
        match self.messages.get_mut(before.into()) {
            Some(previous) => previous.after = after,
            None => endpoint.arriving = after,
        }
    }

    /// Frees a message of an endpoint that stands on no list, or on that of arriving ones.
    fn forget(&mut self, endpoint: &mut Endpoint, place: u16) {
        let Some(message) = self.messages.get(place.into()) else { return };
        if message.state == Progress::Arriving && message.fragment != 0 {
            self.unlist(endpoint, place);
        }
        self.free(Some(endpoint), place);
    }

    /// Frees a message that stands on no list.
    #[inline]
    fn free(&mut self, endpoint: Option<&mut Endpoint>, place: u16) {
        let Some(message) = self.messages.get_mut(place.into()) else { return };
        message.state = Progress::Free;
        let block = message.block.take();
        let freed = block.map_or(0, Block::size);
        if let Some(block) = block {
            self.blocks.free(block);
        }
        self.messages.give_back(place.into());
        if let Some(endpoint) = endpoint {
            endpoint.messages = endpoint.messages.saturating_sub(1);
            endpoint.held = endpoint.held.saturating_sub(freed);
        }
    }
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
