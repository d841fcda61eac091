//! All that a reset forgets.

use super::command::Pending;
use super::completion_queue::CompletionQueue;
use super::event_queue::EventQueue;
use super::memory_key::MemoryKey;
use super::objects::{Indirection, Kind, Tir};
use super::queue_pair::QueuePair;
use super::steering::Table;
use super::work_queue::WorkQueue;
use super::{Config, capabilities, vport};
use crate::Nanoseconds;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far the driver has brought the function up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing yet.
    Off,
    /// ENABLE_HCA.
    Enabled,
    /// INIT_HCA.
    Running,
    /// TEARDOWN_HCA.
    TornDown,
}

/// All that a reset forgets.
pub struct State {
    /// When the firmware is up.
    pub ready: Nanoseconds,
    pub stage: Stage,
    /// The interface step sequence id that was set.
    pub issi: u16,
    /// Where the command queue is, and the half of its address that was written ahead.
    pub queue: u64,
    pub queue_high: u32,
    /// What the driver wants of the function: 0 everything, 1 nothing, 7 a reset.
    pub interface: u8,
    pub pending: Vec<Pending>,
    /// Capabilities by type, as they are and as they could be.
    pub capabilities: BTreeMap<u16, Vec<u8>>,
    pub pages: VecDeque<u64>,
    /// Pages that an event asked for and that were not given; if negative, offered and not taken.
    pub owed: i32,
    /// Pages that the firmware wants beside these, when somebody asks, or will hear of it.
    pub wanted: i32,
    /// Commands that make something wait for pages.
    pub stalls: bool,
    next: BTreeMap<u16, u32>,
    /// How often each command was given.
    pub given: BTreeMap<u16, usize>,
    pub event_queues: BTreeMap<u32, EventQueue>,
    pub completion_queues: BTreeMap<u32, CompletionQueue>,
    /// Those of which moderation holds an event back.
    pub moderated: Vec<u32>,
    pub send_queues: BTreeMap<u32, WorkQueue>,
    pub receive_queues: BTreeMap<u32, WorkQueue>,
    pub tirs: BTreeMap<u32, Tir>,
    pub indirections: BTreeMap<u32, Indirection>,
    pub keys: BTreeMap<u32, MemoryKey>,
    pub queue_pairs: BTreeMap<u32, QueuePair>,
    pub gids: BTreeMap<u16, [u8; 32]>,
    /// Objects of which only the number matters.
    pub plain: BTreeSet<(Kind, u32)>,
    pub tables: BTreeMap<u32, Table>,
    /// Root tables by type.
    pub roots: BTreeMap<u8, u32>,
    pub vport: vport::Context,
    /// The port's registers that were written.
    pub registers: BTreeMap<u16, Vec<u8>>,
    /// The state of the link that the driver was told.
    pub told_link: bool,
    /// Queue pairs that have something to send, or were only begun.
    pub active: BTreeSet<u32>,
}

impl State {
    /// As after a reset at `now`.
    pub fn new(settings: &Config, now: Nanoseconds) -> State {
        State {
            ready: now + settings.start_up,
            stage: Stage::Off,
            issi: 0,
            queue: 0,
            queue_high: 0,
            interface: 0,
            pending: Vec::new(),
            capabilities: capabilities::all(settings, &[]),
            pages: VecDeque::new(),
            owed: 0,
            wanted: 0,
            stalls: false,
            next: BTreeMap::new(),
            given: BTreeMap::new(),
            event_queues: BTreeMap::new(),
            completion_queues: BTreeMap::new(),
            moderated: Vec::new(),
            send_queues: BTreeMap::new(),
            receive_queues: BTreeMap::new(),
            tirs: BTreeMap::new(),
            indirections: BTreeMap::new(),
            keys: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            gids: BTreeMap::new(),
            plain: BTreeSet::new(),
            tables: BTreeMap::new(),
            roots: BTreeMap::new(),
            vport: vport::Context::new(settings),
            registers: BTreeMap::new(),
            told_link: true,
            active: BTreeSet::new(),
        }
    }

    /// A new number for what the command `opcode` makes, from `first` on.
    pub fn number(&mut self, opcode: u16, first: u32) -> u32 {
        let next = self.next.entry(opcode).or_insert(first);
        *next += 1;
        *next - 1
    }

    /// What a TEARDOWN_HCA leaves of `old`.
    pub fn tear_down(&mut self, old: State) {
        let State { ready, issi, queue, queue_high, interface, pending, capabilities, .. } = old;
        let State { pages, registers, .. } = old;
        self.stage = Stage::TornDown;
        (self.ready, self.issi, self.queue) = (ready, issi, queue);
        (self.queue_high, self.interface) = (queue_high, interface);
        (self.pending, self.capabilities) = (pending, capabilities);
        (self.pages, self.registers) = (pages, registers);
    }

    /// What was made and not taken away.
    pub fn left(&self) -> Vec<(&'static str, usize)> {
        let plain = |kind| self.plain.iter().filter(|(of, _)| *of == kind).count();
        let groups = self.tables.values().map(|table| table.groups.len()).sum();
        let entries = self.tables.values().map(|table| table.entries.len()).sum();
        let all = [
            ("event queues", self.event_queues.len()),
            ("completion queues", self.completion_queues.len()),
            ("send queues", self.send_queues.len()),
            ("receive queues", self.receive_queues.len()),
            ("queue pairs", self.queue_pairs.len()),
            ("memory keys", self.keys.len()),
            ("TIRs", self.tirs.len()),
            ("RQTs", self.indirections.len()),
            ("flow tables", self.tables.len()),
            ("flow groups", groups),
            ("flow entries", entries),
            ("TISs", plain(Kind::Tis)),
            ("protection domains", plain(Kind::ProtectionDomain)),
            ("transport domains", plain(Kind::TransportDomain)),
            ("doorbell pages", plain(Kind::Uar)),
            ("XRC domains", plain(Kind::XrcDomain)),
            ("shared receive queues", plain(Kind::SharedReceiveQueue)),
            ("counter sets", plain(Kind::CounterSet)),
        ];
        all.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}
