//! Verbs on a ConnectX (4 Lx and later): RoCEv2 in hardware, of which there is no packet here to see. The provider makes
//! the card's objects by commands, writes work requests to queues in memory, and reads completions from there.
//!
//! [`ConnectX`] shares the [`Function`] with its Ethernet port ([`Function::ethernet`]). Its loop calls [`ConnectX::poll`] in each
//! round, and uses it through the traits of [`verbs`]. What is posted is told to the card at the end of the round, by one
//! write to a register for each queue pair that has something new; no register is read. What users send completes in one
//! queue, all else in another, and both are handed on to those of the users.
//!
//! # What waits
//! Objects are made while the caller waits for the firmware (tens of microseconds to milliseconds): protection domains,
//! queue pairs. Regions and their keys are given by a work request of a queue pair of the provider's own, which is waited
//! for (some microseconds): when [`Provider::register`], [`Provider::rotate_key`] or [`Provider::remap`] returns, the new key
//! opens the memory, and the one before nothing. Changes of state, and all ends, are commands that nobody waits for.
//! [`Provider::revoke_key`] is posted; [`Provider::revoke_key_by`] and [`Provider::rotate_chunk_key`] are posted to the queue
//! pair that they name, of the region's domain, and complete there if that is wanted: what is posted behind them finds them
//! done.
//!
//! # Keys
//! A key of the card has 24 bits that the firmware chooses when it is made, which takes a command, and 8 that are chosen with
//! each use. There is therefore a pool of [`Limits::keys`] keys. A fresh one is drawn at random from those that are
//! spare, of which there are half of [`Limits::spare_keys`] at least (else `NoRoom`), and its 8 bits at random from the
//! values that it did not have lately. So:
//! - A key that was rotated, remapped, revoked or deregistered opens nothing once that is in force, and its value does not
//!   come again before the same key of the pool was used 96 times.
//! - Who knows all keys that ever were, and all numbers of the pool, guesses the next one with a chance of 1 in
//!   `spare_keys` / 2 × (256 - uses of that key) at best, where uses are counted up to 192: with 256 spare ones 1 in
//!   32,768 if they are fresh, 1 in 8,192 if not. Software's keys have 32 random bits. A wrong guess costs the guesser its
//!   connection.
//! - A key opens its region in its protection domain alone, for what the region allows; and the address of memory is
//!   random too, from bit n on if 2^n bytes hold a chunk.
//!
//! # After a reset of the card
//! All queue pairs are in error with everything flushed, and no key opens anything. Domains, regions and completion queues
//! stay: once the card is back ([`AsyncEvent::PortActive`]), queue pairs can be made again, and regions get fresh keys by
//! `rotate_key`, `remap`, or `rotate_chunk_key`, as after `revoke_key`.
//!
//! # Not offered
//! VLANs of their own for GIDs, memory on demand, shared receive queues, RoCEv1. Nothing of this was seen on a card, only on
//! a model of one: what its firmware thinks of it, above all of errors, is not known.
//!
//! [`Provider::register`]: verbs::Provider::register
//! [`Provider::rotate_key`]: verbs::Provider::rotate_key
//! [`Provider::remap`]: verbs::Provider::remap
//! [`Provider::revoke_key`]: verbs::Provider::revoke_key
//! [`Provider::revoke_key_by`]: verbs::Provider::revoke_key_by
//! [`Provider::rotate_chunk_key`]: verbs::Provider::rotate_chunk_key
//! [`AsyncEvent::PortActive`]: verbs::AsyncEvent::PortActive
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod commands;
mod context;
mod domains;
mod engine;
mod error;
mod function;
mod management;
mod memory;
mod mkey;
mod moderation;
mod pair;
mod pairs;
mod pool;
mod provider;
mod readings;
mod receive_queue;
mod regions;
mod requests;
mod ring;
mod send_queue;
mod setup;

pub use error::Error;
pub use function::{EthernetPort, Function};
pub use readings::{CardCounters, FlowControl};

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use cm::Cm;
use commands::{Doing, Job};
use core::cell::RefMut;
use core::net::IpAddr;
use domains::Domain;
use drivers::ethernet::mlx5::{Abilities, Mlx5Port};
use drivers::hal::{Arena, Instant, Window};
use management::Management;
use moderation::Moderation;
use pair::Pair;
use pool::Pool;
use rand_core::RngCore;
use readings::Readings;
use regions::Registration;
use ring::Ring;
use setup::KeyQueue;
use softverbs::completion::CompletionQueues;
use softverbs::handle_table::HandleTable;
use verbs::{AsyncEvent, QpId};

/// Limits. Memory of keys and of the completion queue is taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs (at most 2^20).
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Protection domains.
    pub pds: usize,
    /// Memory regions.
    pub regions: usize,
    /// Keys of the card, of which a thousand or so are made at first, and the others beside all else. Each chunk of a region has one, `spare_keys` are for what is drawn, and as many for each domain
    /// with regions of several chunks.
    pub keys: usize,
    /// Keys of which the next one is drawn.
    pub spare_keys: usize,
    /// Work requests in a send or receive queue.
    pub wr: u32,
    /// Completions that all queue pairs may have at a time, as log2: at most 22. There is memory for twice as many.
    pub log_completions: u32,
    /// Connections.
    pub connections: cm::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            qps: 4096,
            cqs: 1024,
            pds: 256,
            regions: 4096,
            keys: 32_768,
            spare_keys: 256,
            wr: 4096,
            log_completions: 18,
            connections: cm::Limits::default(),
        }
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Queue pairs that went to error by themselves.
    pub qp_errors: u64,
    /// Completions that found their queue full (its user made it too small).
    pub completions_lost: u64,
    /// Completions that are of nothing that is known.
    pub completions_unknown: u64,
    /// Commands that the firmware refused.
    pub refused: u64,
    /// MADs received, and sent.
    pub mads_received: u64,
    /// See `mads_received`.
    pub mads_sent: u64,
    /// MADs that were dropped: of nobody's, or from hosts whose MAC address is not known.
    pub mads_dropped: u64,
}

/// The provider.
pub struct ConnectX {
    function: Function,
    arena: Arena,
    limits: Limits,
    now: Instant,
    /// The card's life in which everything here was made; None while it is down.
    life: Option<u64>,
    /// A life in which the card was of no use.
    useless: Option<u64>,
    /// The card was changed for RDMA, and may know of memory here.
    has_begun: bool,
    abilities: Abilities,
    /// What capabilities allow.
    log_most_reads: u32,
    fence: u8,
    /// The card can hold events of completions back, and how it is to.
    moderates: bool,
    moderation: Moderation,
    /// The firmware tells what it counts of congestion.
    tells_congestion: bool,
    /// The link, as was told.
    link: bool,
    /// Our addresses, by the index of their GIDs, and how many there may be.
    most_addresses: usize,
    addresses: Vec<Option<IpAddr>>,
    /// The provider's own domain, and its key for all memory.
    own_domain: (u32, u32),
    ring: Ring,
    /// That of what users send.
    sent: Ring,
    /// Requests of which their users are to hear.
    awaited: u32,
    /// Somebody has looked into a completion queue since the last round.
    is_polled: bool,
    /// Completions that all queue pairs could have at a time.
    promised: u32,
    key_queue: KeyQueue,
    pool: Pool,
    domains: HandleTable<Domain>,
    regions: HandleTable<Registration>,
    pairs: HandleTable<Pair>,
    /// Their names by number.
    numbers: BTreeMap<u32, QpId>,
    /// Those that were destroyed, and that the card has not let go of.
    leaving: Vec<QpId>,
    cqs: CompletionQueues,
    /// Some of them may have completions.
    has_completions: bool,
    /// Places of queue pairs with requests that the card was not told of.
    news: Vec<u32>,
    jobs: VecDeque<Job>,
    /// Keys that are still to be made.
    keys_missing: usize,
    doing: Option<Doing>,
    events: VecDeque<AsyncEvent>,
    cm: Cm,
    management: Management,
    counters: Counters,
    readings: Readings,
}

impl ConnectX {
    /// Sets RDMA up on a card, with these addresses; waits for its firmware. If it fails, the card is reset, but for
    /// what it lacks.
    pub fn open(
        function: Function,
        arena: Arena,
        addresses: &[IpAddr],
        limits: Limits,
        rng: &mut dyn RngCore,
    ) -> Result<Self, Error> {
        setup::open(function, arena, addresses, limits, rng)
    }

    /// The Ethernet port of the same function, for a call. What looks after it looks after the card.
    pub fn port(&self) -> RefMut<'_, Mlx5Port> {
        self.function.port()
    }

    /// Whether an address is one of ours.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&Some(address))
    }

    /// Whether something has completed or happened that was not taken in.
    #[inline]
    pub fn pending(&self) -> bool {
        self.ring.completions.pending()
            || self.sent.completions.pending()
            || self.function.has_news()
            || self.management.has_arrivals()
            || self.cm.wants_neighbours()
    }

    /// Whether there are completions that were not taken in.
    #[inline]
    pub fn has_completed(&self) -> bool {
        self.ring.completions.pending() || self.sent.completions.pending()
    }

    /// Whether the card is up, with RDMA.
    pub fn is_active(&self) -> bool {
        self.is_up()
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.cm.connections()
    }

    /// Changes our addresses (as DHCP does): those that stay keep their GIDs, and connections of those that are gone die
    /// of their timers. False if the card has no room for all of them.
    pub fn set_addresses(&mut self, addresses: &[IpAddr]) -> bool {
        for index in 0..self.addresses.len() {
            if self.addresses[index].is_some_and(|known| !addresses.contains(&known)) {
                self.addresses[index] = None;
                self.jobs.push_back(Job::SetGid(index as u16));
            }
        }
        let mut all = true;
        for address in addresses {
            if self.addresses.contains(&Some(*address)) {
                continue;
            }
            let free = self.addresses.iter().position(|known| known.is_none());
            let index = free.unwrap_or(self.addresses.len());
            if index >= self.most_addresses {
                all = false;
                continue;
            }
            if index == self.addresses.len() {
                self.addresses.push(None);
            }
            self.addresses[index] = Some(*address);
            self.jobs.push_back(Job::SetGid(index as u16));
        }
        all
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Number of queue pairs.
    pub fn queue_pairs(&self) -> usize {
        self.pairs.len()
    }
}

impl Drop for ConnectX {
    fn drop(&mut self) {
        // It does not reach memory any more.
        if self.has_begun {
            self.function.end();
        }
        let rings = [&self.ring, &self.sent];
        let mut taken: Vec<Window> =
            rings.iter().flat_map(|ring| [ring.buffer.window, ring.completions.record()]).collect();
        taken.extend(self.key_queue.memory());
        taken.extend(self.management.memory());
        let pairs = self.pairs.iter();
        taken.extend(pairs.flat_map(|pair| [pair.make.buffer.window, pair.make.record]));
        let under_way = self.doing.take().map(|doing| doing.job);
        for job in self.jobs.drain(..).chain(under_way) {
            if let Job::Reset(gone) | Job::Destroy(gone) = job {
                taken.extend([gone.buffer.window, gone.record]);
            }
        }
        taken.into_iter().for_each(|window| self.arena.free(window));
    }
}
