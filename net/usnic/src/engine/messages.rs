//! Messages that have arrived or are arriving: their memory, which is limited for each endpoint, and their state.

use super::endpoint::Endpoint;
use super::shared::{Block, Blocks, Shared};
use super::{EndpointId, Engine, NO_MESSAGE};
use drivers::hal::Window;

/// A message, or a PUT in several parts.
#[derive(Debug)]
pub(super) struct Message {
    pub generation: u32,
    pub endpoint: u32,
    pub tag: u8,
    pub state: Progress,
    /// Memory of the message; None for a PUT.
    pub block: Option<Block>,
    /// Destination of its parts: the memory of the message, or the granted region. Empty if the region has to be
    /// looked up.
    pub window: Window,
    pub size: u32,
    pub received: u32,
    /// Number of bytes from the start that are written or filled with zeros.
    pub written: u32,
    /// Name of the fragment; 0 if it arrived in one packet.
    pub fragment: u32,
    pub put_address: u64,
    /// Highest number of its packets so far.
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
    /// The entry is free.
    #[default]
    Free,
    /// Parts of it are missing; it is in its endpoint's list of arriving messages.
    Arriving,
    /// It waits in a slot of the window for earlier packets.
    Complete,
    /// It is in the inbox.
    Waits,
    /// The user has taken it.
    Taken,
}

/// A message that the user has taken. The user owns its memory until [`Engine::release`].
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Tag of the handler.
    pub tag: u8,
    /// Its bytes.
    pub bytes: Window,
    /// Bytes of memory that it occupies.
    takes: u32,
    place: u16,
    generation: u32,
}

impl Received {
    /// Bytes of the engine's memory that it occupies.
    pub fn takes(&self) -> usize {
        self.takes as usize
    }
}

impl Engine {
    /// Takes the next message of an endpoint. Return it with [`Engine::release`].
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

    /// Releases a message's memory, which makes room for packets that the peer retransmits.
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
    /// Allocates a message, and memory for it, within the limits of the endpoint.
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
        let Shared { messages, blocks, reserve, .. } = shared;
        if self.messages >= self.config.messages || messages.is_full() {
            return None;
        }
        let (mut block, mut window) = (None, Window::empty());
        if memory && size > 0 {
            let takes = Blocks::size_of(size as usize)?;
            let share = self.held.saturating_add(takes);
            if share > self.config.receive_bytes && self.held > 0
                || self.config.leaves_room && !reserve.allows(self.held, takes, blocks.available())
            {
                return None;
            }
            let found = blocks.alloc(size as usize)?;
            window = blocks.front(found, size as usize);
            block = Some(found);
            reserve.take(self.held, takes);
            self.held = share;
        }
        let (place, message) = messages.take()?;
        self.messages += 1;
        // Taken messages may outlive their endpoints, so each message has another generation.
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
        shared.notify_user(self);
    }

    /// Frees all messages except those that the user has taken, which no longer count for the endpoint.
    pub(super) fn drop_messages(&mut self, shared: &mut Shared) {
        self.inbox = (NO_MESSAGE, NO_MESSAGE);
        // Messages may be in a list, in slots of the window, or in neither. This is rare, so all messages are visited.
        for place in 0..shared.messages.capacity() as u16 {
            let Some(message) = shared.messages.get_mut(place.into()) else { continue };
            if message.endpoint == self.id.place {
                match message.state {
                    Progress::Free => (),
                    Progress::Taken => message.endpoint = super::NONE,
                    _ => shared.drop_message(self, place),
                }
            }
        }
        shared.reserve.give(self.held, self.held);
        (self.messages, self.held) = (0, 0);
    }
}

impl Shared {
    /// Removes a message from its endpoint's list of arriving messages.
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

    /// Frees a message of an endpoint, and removes it from the list of arriving messages if it is there.
    pub fn drop_message(&mut self, endpoint: &mut Endpoint, place: u16) {
        let Some(message) = self.messages.get(place.into()) else { return };
        if message.state == Progress::Arriving && message.fragment != 0 {
            self.unlist(endpoint, place);
        }
        self.free(Some(endpoint), place);
    }

    /// Frees a message that is in no list.
    #[inline]
    pub fn free(&mut self, endpoint: Option<&mut Endpoint>, place: u16) {
        let Some(message) = self.messages.get_mut(place.into()) else { return };
        message.state = Progress::Free;
        let block = message.block.take();
        let freed = block.map_or(0, Block::size);
        if let Some(block) = block {
            self.blocks.free_unmerged(block);
        }
        self.messages.give_back(place.into());
        if let Some(endpoint) = endpoint {
            self.reserve.give(endpoint.held, freed);
            endpoint.messages = endpoint.messages.saturating_sub(1);
            endpoint.held = endpoint.held.saturating_sub(freed);
        }
    }
}

/// Key of an endpoint's fragment in [`Shared::by_fragment`].
pub(super) fn fragment_name(place: u32, fragment: u32) -> u64 {
    u64::from(place) << 32 | u64::from(fragment)
}
