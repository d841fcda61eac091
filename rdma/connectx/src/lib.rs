//! Verbs on a ConnectX (4 Lx and later): RoCEv2 in hardware, whose packets are not visible here. The provider makes the
//! card's objects by commands, writes work requests to queues in memory, and reads completions from there.
//!
//! ```text
//!    protocols ── verbs::Provider ──► ConnectX ── work requests, doorbells ──► card ──► RoCEv2 packets
//!                      ▲                 │
//!                      └── completions ──┘   commands to the firmware (objects, keys, states)
//! ```
//!
//! Invariants:
//!
//! * When a verb that revokes or changes a key has completed, the old key grants nothing.
//! * No register is read on the data path.
//!
//! Tests: `tests/metal/suites/mlx5*.rs` (model, errors of firmware and card), `tests/conformance`, the suite `mlx5`
//! (stock mlx5_ib).
//!
//! [`ConnectX`] shares the [`Function`] with its Ethernet port ([`Function::ethernet`]). Its loop calls
//! [`ConnectX::poll`] in each round, and uses it through the traits of [`verbs`]. Doorbells are rung at the end of the
//! round, by one register write for each queue pair with new requests; no register is read. Users' sends complete in
//! one hardware queue, everything else in another; both are dispatched to the users' completion queues.
//!
//! # Blocking and posted operations
//! Making an object blocks until the firmware answers (tens of microseconds to milliseconds): protection domains, queue
//! pairs. Regions and their keys are changed by a work request on a queue pair of the provider, which also blocks (some
//! microseconds): when [`MemoryVerbs::register`], [`MemoryVerbs::rotate_key`] or [`MemoryVerbs::remap`] returns, the
//! new key grants access to the memory, and the old key to nothing. State transitions and the destruction of objects
//! are commands that no caller waits for. [`MemoryVerbs::revoke_key`] is posted. [`MemoryVerbs::revoke_key_by`] and
//! [`MemoryVerbs::rotate_chunk_key`] are posted to the given queue pair, of the region's domain, and complete there if
//! the caller requests it; requests posted later execute after them.
//!
//! # Keys
//! A key of the card has 24 bits that the firmware chooses when the key is made, which takes a command, and 8 bits that
//! are chosen at each use. So there is a pool of [`Limits::keys`] keys. A fresh key is drawn at random from the spare
//! keys, of which there are at least half of [`Limits::spare_keys`] (otherwise `NoRoom`), and its 8 bits at random from
//! the values that it did not have recently. So:
//! - A key that was rotated, remapped, revoked or deregistered grants nothing once that is in effect, and its value
//!   does not recur before the same key of the pool was used 96 times.
//! - An attacker who knows all former keys, and all numbers of the pool, guesses the next key with a chance of at most
//!   1 in `spare_keys` / 2 × (256 - uses of that key), where uses are counted up to 192: with 256 spare keys 1 in
//!   32,768 if they are fresh, 1 in 8,192 if not. Keys of RoCE in software have 32 random bits. A wrong guess ends the
//!   attacker's connection.
//! - A key grants access to its region only in its protection domain, with the region's access rights. The address of
//!   memory is random too, from bit n on if 2^n bytes hold a chunk.
//!
//! # After a reset of the card
//! All queue pairs are in error with everything flushed, and no key grants anything. Domains, regions and completion
//! queues stay: once the card is back ([`AsyncEvent::PortActive`]), queue pairs can be made again, and regions get
//! fresh keys by `rotate_key`, `remap`, or `rotate_chunk_key`, as after `revoke_key`.
//!
//! # Not supported
//! VLANs for GIDs, memory on demand, shared receive queues, RoCEv1. This was tested only on a model of a card: how real
//! firmware behaves, above all on errors, is not known.
//!
//! [`MemoryVerbs::register`]: verbs::MemoryVerbs::register
//! [`MemoryVerbs::rotate_key`]: verbs::MemoryVerbs::rotate_key
//! [`MemoryVerbs::remap`]: verbs::MemoryVerbs::remap
//! [`MemoryVerbs::revoke_key`]: verbs::MemoryVerbs::revoke_key
//! [`MemoryVerbs::revoke_key_by`]: verbs::MemoryVerbs::revoke_key_by
//! [`MemoryVerbs::rotate_chunk_key`]: verbs::MemoryVerbs::rotate_chunk_key
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
use commands::{CurrentJob, Job};
use core::cell::RefMut;
use core::net::IpAddr;
use domains::Domain;
use drivers::ethernet::mlx5::{Abilities, Mlx5Port};
use drivers::hal::{Arena, Instant, Window};
use management::Management;
use moderation::Moderation;
use pair::Pair;
use pool::Pool;
use rand_core::Rng;
use readings::Readings;
use regions::Registration;
use ring::Ring;
use setup::KeyQueue;
use softverbs::completion::CompletionQueues;
use softverbs::handle_table::HandleTable;
use verbs::{AsyncEvent, PathMtu, QpId};

/// Limits. Memory of keys and of the completion queue is allocated at once.
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
    /// Keys of the card. Some are made first, the others in the background. Each chunk of a region has one,
    /// `spare_keys` are reserved for drawing, and as many for each domain with regions of several chunks.
    pub keys: usize,
    /// Spare keys from which the next key is drawn.
    pub spare_keys: usize,
    /// Work requests in a send or receive queue.
    pub wr: u32,
    /// Completions that all queue pairs may have at a time, as log2: at most 22. Twice as many fit into memory.
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

/// Statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Queue pairs that went to error by themselves.
    pub qp_errors: u64,
    /// Completions lost because their queue was full (its user made it too small).
    pub completions_lost: u64,
    /// Completions of no known request or receive.
    pub completions_unknown: u64,
    /// Commands that the firmware refused.
    pub refused: u64,
    /// MADs received.
    pub mads_received: u64,
    /// MADs sent.
    pub mads_sent: u64,
    /// MADs dropped: malformed, from a wrong sender, or from hosts whose MAC address is not known.
    pub mads_dropped: u64,
}

/// The provider.
pub struct ConnectX {
    function: Function,
    arena: Arena,
    limits: Limits,
    now: Instant,
    /// The card's life (between two resets) in which all objects were made; None while it is down.
    life: Option<u64>,
    /// A life in which the card's setup failed.
    unusable_life: Option<u64>,
    /// Whether the card was set up for RDMA, and may know memory addresses.
    is_rdma_set_up: bool,
    abilities: Abilities,
    /// Limits from the capabilities.
    log_most_reads: u32,
    /// Whether a work request can change a key's right to atomic operations.
    changes_atomics: bool,
    fence: u8,
    /// Whether the card supports moderation of completion events.
    can_moderate: bool,
    moderation: Moderation,
    /// Whether the firmware has congestion counters.
    has_congestion_counters: bool,
    /// The link state that was last reported.
    link: bool,
    /// Most local addresses.
    most_addresses: usize,
    addresses: Vec<Option<IpAddr>>,
    /// Largest packets of the network in bytes (layer 3), over IPv4 and over IPv6.
    mtus: [usize; 2],
    /// The provider's own domain, and its key for all memory.
    own_domain: (u32, u32),
    ring: Ring,
    /// Completion queue of users' sends.
    sent: Ring,
    /// Number of outstanding requests that users wait for.
    awaited: u32,
    /// Whether a user polled a completion queue since the last round.
    is_polled: bool,
    /// Completions that all queue pairs could have at a time.
    reserved: u32,
    key_queue: KeyQueue,
    pool: Pool,
    domains: HandleTable<Domain>,
    regions: HandleTable<Registration>,
    pairs: HandleTable<Pair>,
    /// Handles of queue pairs by number.
    numbers: BTreeMap<u32, QpId>,
    /// Queue pairs that were destroyed by their users and not yet by the card.
    destroying: Vec<QpId>,
    cqs: CompletionQueues,
    /// Whether any of them may have completions.
    has_completions: bool,
    /// Places of queue pairs with requests whose doorbell is not rung yet.
    unflushed: Vec<u32>,
    jobs: VecDeque<Job>,
    /// Number of keys that are still to be made.
    keys_missing: usize,
    current_job: Option<CurrentJob>,
    events: VecDeque<AsyncEvent>,
    cm: Cm,
    management: Management,
    counters: Counters,
    readings: Readings,
}

impl ConnectX {
    /// Sets up RDMA on a card, with these local addresses; blocks until its firmware has answered. If that fails, the
    /// card is reset, unless it lacks a capability.
    pub fn open(
        function: Function,
        arena: Arena,
        addresses: &[IpAddr],
        limits: Limits,
        rng: &mut dyn Rng,
    ) -> Result<Self, Error> {
        setup::open(function, arena, addresses, limits, rng)
    }

    /// The Ethernet port of the same function, for one call. The card's health is monitored through it.
    pub fn port(&self) -> RefMut<'_, Mlx5Port> {
        self.function.port()
    }

    /// Whether an address is one of ours.
    pub fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&Some(address))
    }

    /// Whether there are completions or events that were not handled yet.
    #[inline]
    pub fn pending(&self) -> bool {
        self.ring.completions.pending()
            || self.sent.completions.pending()
            || self.function.has_events()
            || self.management.has_arrivals()
            || self.cm.wants_neighbours()
    }

    /// Whether there are completions that were not handled yet.
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

    /// Changes our addresses (as DHCP does): remaining addresses keep their GIDs, and connections of removed addresses
    /// time out. False if the card has no room for all of them.
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

    /// Sets the largest packets of the network in bytes (layer 3), over IPv4 and over IPv6, as DHCP and routers announce
    /// them; the card's limit stays. It holds for queue pairs that are connected from now on.
    pub fn set_mtus(&mut self, mtus: [usize; 2]) {
        self.mtus = mtus;
    }

    /// Limits the path to `ip` to packets of `mtu` bytes (layer 3), until `until`.
    pub fn limit_path(&mut self, ip: IpAddr, mtu: usize, until: Instant) {
        self.cm.limit_path(ip, mtu, until);
    }

    /// The largest path MTU of the card.
    fn largest_path_mtu(&self) -> PathMtu {
        PathMtu::for_ethernet(self.function.mtu()).unwrap_or(PathMtu::Mtu256)
    }

    /// Statistics.
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
        // Afterwards the card does not access memory any more.
        if self.is_rdma_set_up {
            self.function.end();
        }
        let rings = [&self.ring, &self.sent];
        let mut taken: Vec<Window> =
            rings.iter().flat_map(|ring| [ring.buffer.window, ring.completions.record()]).collect();
        taken.extend(self.key_queue.memory());
        taken.extend(self.management.memory());
        let pairs = self.pairs.iter();
        taken.extend(pairs.flat_map(|pair| [pair.make.buffer.window, pair.make.record]));
        let under_way = self.current_job.take().map(|current_job| current_job.job);
        for job in self.jobs.drain(..).chain(under_way) {
            if let Job::Reset(gone) | Job::Destroy(gone) = job {
                taken.extend([gone.buffer.window, gone.record]);
            }
        }
        taken.into_iter().for_each(|window| self.arena.free(window));
    }
}
