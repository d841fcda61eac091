//! What endpoints have in common: memory, tables, queues, timers.

use super::config::{Config, WINDOW};
use super::endpoint::{Endpoint, State};
use super::messages::Message;
use super::put::Grants;
use super::reserve::Reserve;
use super::send::Fragment;
use crate::blocks::Blocks;
use crate::delays::Delays;
use crate::id_map::IdMap;
use crate::table::{Queue, Table};
use crate::wheel::Wheel;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Instant, Window};

/// What belongs to no endpoint alone. An endpoint is named by its place in the table of endpoints.
#[derive(Debug)]
pub(super) struct Shared {
    pub config: Config,
    pub blocks: Blocks,
    pub fragments: Table<Fragment>,
    pub messages: Table<Message>,
    /// What each endpoint can have of the memory.
    pub kept: Reserve,
    /// Of the last message.
    pub generation: u32,
    /// Messages that are arriving, by endpoint and the name of the fragment.
    pub by_fragment: IdMap,
    /// Which packets have arrived behind one that is missing; each of 4,096 slots.
    pub windows: Vec<Box<[u16]>>,
    pub free_windows: Vec<u16>,
    pub grants: Grants,
    /// Endpoints, and behind them agents.
    pub wheel: Wheel,
    /// Endpoints that owe an ACK, as many of them as wait equally long. The others' deadlines are in the wheel.
    pub acks: Delays,
    /// Endpoints with something to send, agents, and [`ANSWERS`](super::ANSWERS).
    pub ready: Queue,
    /// Endpoints whose users have something to see.
    pub news: Queue,
}

impl Shared {
    pub fn new(config: Config, memory: Window, secret: u64, now: Instant) -> Self {
        let windows = config.receive_windows.min(u16::MAX.into());
        let blocks = Blocks::new(memory);
        let slots = || alloc::vec![0; WINDOW as usize].into_boxed_slice();
        Shared {
            config,
            kept: Reserve::new(blocks.available(), config.endpoints),
            blocks,
            fragments: Table::new(config.sends),
            messages: Table::new(config.messages),
            generation: 0,
            by_fragment: IdMap::new(config.messages, secret.rotate_left(31)),
            windows: (0..windows).map(|_| slots()).collect(),
            free_windows: (0..windows as u16).rev().collect(),
            grants: Grants::new(config.grants),
            wheel: Wheel::new(2 * config.endpoints, now),
            acks: Delays::new(config.endpoints),
            ready: Queue::new(2 * config.endpoints + 1),
            news: Queue::new(config.endpoints),
        }
    }

    /// Tells an endpoint's user to look.
    #[inline]
    pub fn tell(&mut self, endpoint: &mut Endpoint) {
        if !endpoint.has_news {
            endpoint.has_news = true;
            self.news.push(endpoint.id.place);
        }
    }

    /// Puts an endpoint among those with something to send.
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
            self.tell(endpoint);
        }
    }
}
