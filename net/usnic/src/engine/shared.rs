//! State that endpoints share: memory, tables, queues, timers.

use super::config::{Config, WINDOW};
use super::endpoint::{Endpoint, State};
use super::messages::Message;
use super::put::Grants;
use super::reserve::Reserve;
use super::send::Fragment;
use crate::delays::Delays;
use crate::id_map::IdMap;
use crate::table::{Queue, Table};
use crate::wheel::Wheel;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Buddy, BuddyBlock, Instant, Window};

/// Memory for incoming messages, and for data kept for retransmission.
pub(super) type Blocks = Buddy<128>;
/// A block of it.
pub(super) type Block = BuddyBlock<128>;

/// Shared state. Endpoints are identified by their indices in the table of endpoints.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub blocks: Blocks,
    pub fragments: Table<Fragment>,
    pub messages: Table<Message>,
    /// Reserved parts of the memory.
    pub reserve: Reserve,
    /// Generation of the last message.
    pub generation: u32,
    /// Arriving messages, by endpoint and name of the fragment.
    pub by_fragment: IdMap,
    /// Windows of 4,096 slots, which mark packets that arrived after a missing one.
    pub windows: Vec<Box<[u16]>>,
    pub free_windows: Vec<u16>,
    pub grants: Grants,
    /// Timers of endpoints, and after them of agents.
    pub wheel: Wheel,
    /// Endpoints that owe an ACK, in the order of their deadlines. ACKs with out-of-order deadlines are in the wheel.
    pub acks: Delays,
    /// Endpoints and agents with datagrams to send, and [`ANSWERS`](super::ANSWERS).
    pub ready: Queue,
    /// Endpoints with events for their users.
    pub news: Queue,
}

impl Shared {
    pub fn new(config: Config, memory: Window, secret: u64, now: Instant) -> Self {
        let windows = config.receive_windows.min(u16::MAX.into());
        let blocks = Blocks::new(memory);
        let slots = || alloc::vec![0; WINDOW as usize].into_boxed_slice();
        Shared {
            config,
            reserve: Reserve::new(blocks.available(), config.endpoints),
            blocks,
            fragments: Table::new(config.sends),
            messages: Table::new(config.messages),
            generation: 0,
            by_fragment: IdMap::new(config.messages, secret.rotate_left(31)),
            windows: (0..windows).map(|_| slots()).collect(),
            free_windows: (0..windows as u16).rev().collect(),
            grants: Grants::default(),
            wheel: Wheel::new(2 * config.endpoints, now),
            acks: Delays::new(config.endpoints),
            ready: Queue::new(2 * config.endpoints + 1),
            news: Queue::new(config.endpoints),
        }
    }

    /// Queues an endpoint for [`Engine::next_news`](super::Engine::next_news).
    #[inline]
    pub fn notify_user(&mut self, endpoint: &mut Endpoint) {
        if !endpoint.has_news {
            endpoint.has_news = true;
            self.news.push(endpoint.id.place);
        }
    }

    /// Adds an endpoint to the ready queue.
    #[inline]
    pub fn make_ready(&mut self, endpoint: &mut Endpoint) {
        if !endpoint.is_ready {
            endpoint.is_ready = true;
            endpoint.turn = 0;
            self.ready.push(endpoint.id.place);
        }
    }

    pub fn close_if_drained(&mut self, endpoint: &mut Endpoint) {
        if endpoint.state == State::Closing && endpoint.send.fragments == 0 {
            endpoint.state = State::Closed;
            self.notify_user(endpoint);
        }
    }
}
