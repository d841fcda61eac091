//! Messages that have arrived or are arriving: their memory, of which each endpoint has a share at most, and who has
//! them.

use super::endpoint::Endpoint;
use super::shared::Shared;
use super::{EndpointId, Engine, NO_MESSAGE};
use crate::blocks::{Block, Blocks};
use drivers::hal::Window;

/// A message, or a PUT of several parts.
#[derive(Debug)]
pub(super) struct Message {
    pub generation: u32,
    pub endpoint: u32,
    pub tag: u8,
    pub state: Progress,
    /// Its memory; a PUT has none.
    pub block: Option<Block>,
    /// Where its parts belong: all of that memory, or what the peer was granted. Empty if that has to be found out.
    pub window: Window,
    pub size: u32,
    pub received: u32,
    /// Up to where it was written, or filled with zeros.
    pub written: u32,
    /// Name of the fragment; 0 if it came in one packet.
    pub fragment: u32,
    pub put_address: u64,
    /// The last of its packets so far.
    pub last: u64,
    pub before: u16,
    pub after: u16,
}

impl Default for Message {
    fn default() -> Self {
        Message {
            generation: 0,
            endpoint: super::NONE,
            tag: 0,
            state: Progress::Free,
            block: None,
            window: Window::empty(),
            size: 0,
            received: 0,
            written: 0,
            fragment: 0,
            put_address: 0,
            last: 0,
            before: NO_MESSAGE,
            after: NO_MESSAGE,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
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
        let takes = message.block.map_or(0, Block::size) as u32;
        let (tag, bytes, generation) = (message.tag, message.window, message.generation);
        Some(Received { tag, bytes, takes, place, generation })
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
    /// A message, and memory for it, if its endpoint may have them.
    #[inline]
    pub(super) fn allocate(
        &mut self,
        shared: &mut Shared,
        tag: u8,
        size: u32,
        memory: bool,
    ) -> Option<u16> {
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
        let Shared { messages, blocks, kept, .. } = shared;
        if self.messages >= self.config.messages || messages.is_full() {
            return None;
        }
        let (mut block, mut window) = (None, Window::empty());
        if memory && size > 0 {
            let takes = Blocks::size_of(size as usize)?;
            let share = self.held.saturating_add(takes);
            if share > self.config.receive_bytes && self.held > 0
                || self.config.leaves_room && !kept.allows(self.held, takes, blocks.available())
            {
                return None;
            }
            let found = blocks.alloc(size as usize)?;
            window = blocks.window(found, size as usize);
            block = Some(found);
            kept.take(self.held, takes);
            self.held = share;
        }
        let (place, message) = messages.take()?;
        self.messages += 1;
        // Taken messages outlive their endpoints; the number is another for each.
        shared.generation = shared.generation.wrapping_add(1);
        *message = Message {
            generation: shared.generation,
            endpoint: self.id.place,
            tag,
            state: Progress::Arriving,
            block,
            window,
            size,
            ..Message::default()
        };
        Some(place as u16)
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
        shared.kept.give(self.held, self.held);
        (self.messages, self.held) = (0, 0);
    }
}

impl Shared {
    /// Takes a message off the list of those that are arriving at its endpoint.
    pub fn unlist(&mut self, endpoint: &mut Endpoint, place: u16) {
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
    pub fn forget(&mut self, endpoint: &mut Endpoint, place: u16) {
        let Some(message) = self.messages.get(place.into()) else { return };
        if message.state == Progress::Arriving && message.fragment != 0 {
            self.unlist(endpoint, place);
        }
        self.free(Some(endpoint), place);
    }

    /// Frees a message that stands on no list.
    #[inline]
    pub fn free(&mut self, endpoint: Option<&mut Endpoint>, place: u16) {
        let Some(message) = self.messages.get_mut(place.into()) else { return };
        message.state = Progress::Free;
        let block = message.block.take();
        let freed = block.map_or(0, Block::size);
        if let Some(block) = block {
            self.blocks.free(block);
        }
        self.messages.give_back(place.into());
        if let Some(endpoint) = endpoint {
            self.kept.give(endpoint.held, freed);
            endpoint.messages = endpoint.messages.saturating_sub(1);
            endpoint.held = endpoint.held.saturating_sub(freed);
        }
    }
}

/// The name by which a fragment of an endpoint is found.
pub(super) fn fragment_name(place: u32, fragment: u32) -> u64 {
    u64::from(place) << 32 | u64::from(fragment)
}
