//! State of the function that a reset clears.

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

/// How far the driver has initialised the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// No command yet.
    Off,
    /// After ENABLE_HCA.
    Enabled,
    /// After INIT_HCA.
    Running,
    /// After TEARDOWN_HCA.
    TornDown,
}

/// State that a reset clears.
pub struct State {
    /// When the firmware is ready.
    pub ready: Nanoseconds,
    pub stage: Stage,
    /// The selected interface step sequence id.
    pub issi: u16,
    /// Address of the command queue.
    pub queue: u64,
    /// Upper half of the command queue's address, which the driver writes first.
    pub queue_high: u32,
    /// NIC interface mode that the driver has set: 0 full driver, 1 disabled, 7 software reset.
    pub interface: u8,
    pub pending: Vec<Pending>,
    /// Current capabilities by type.
    pub capabilities: BTreeMap<u16, Vec<u8>>,
    pub pages: VecDeque<u64>,
    /// Pages that an event has requested and the driver has not supplied; negative: offered and not reclaimed.
    pub owed: i32,
    /// Further pages that the firmware needs. It requests them in QUERY_PAGES, or by an event once an event queue
    /// exists.
    pub wanted: i32,
    /// Commands that create objects wait for pages.
    pub stalls: bool,
    next: BTreeMap<u16, u32>,
    /// Number of commands by opcode.
    pub command_counts: BTreeMap<u16, usize>,
    pub event_queues: BTreeMap<u32, EventQueue>,
    pub completion_queues: BTreeMap<u32, CompletionQueue>,
    /// Completion queues with an event that moderation delays.
    pub moderated: Vec<u32>,
    pub send_queues: BTreeMap<u32, WorkQueue>,
    pub receive_queues: BTreeMap<u32, WorkQueue>,
    pub tirs: BTreeMap<u32, Tir>,
    pub indirections: BTreeMap<u32, Indirection>,
    pub keys: BTreeMap<u32, MemoryKey>,
    pub queue_pairs: BTreeMap<u32, QueuePair>,
    pub gids: BTreeMap<u16, [u8; 32]>,
    /// Objects that have only a number.
    pub plain: BTreeSet<(Kind, u32)>,
    pub tables: BTreeMap<u32, Table>,
    /// Root tables by type.
    pub roots: BTreeMap<u8, u32>,
    pub vport: vport::Context,
    /// Addresses in the table of the switch of physical functions, by index.
    pub switch_table: BTreeMap<u32, [u8; 6]>,
    /// Written port registers.
    pub registers: BTreeMap<u16, Vec<u8>>,
    /// The link state that was last reported to the driver.
    pub reported_link: bool,
    /// Queue pairs to run at the next poll.
    pub active: BTreeSet<u32>,
}

impl State {
    /// The state after a reset at `now`.
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
            command_counts: BTreeMap::new(),
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
            switch_table: BTreeMap::new(),
            registers: BTreeMap::new(),
            reported_link: true,
            active: BTreeSet::new(),
        }
    }

    /// Allocates the next number, from `first` on, for an object that the command `opcode` creates.
    pub fn number(&mut self, opcode: u16, first: u32) -> u32 {
        let next = self.next.entry(opcode).or_insert(first);
        *next += 1;
        *next - 1
    }

    /// Keeps the part of `old` that survives TEARDOWN_HCA.
    pub fn tear_down(&mut self, old: State) {
        let State { ready, issi, queue, queue_high, interface, pending, capabilities, .. } = old;
        let State { pages, registers, .. } = old;
        self.stage = Stage::TornDown;
        (self.ready, self.issi, self.queue) = (ready, issi, queue);
        (self.queue_high, self.interface) = (queue_high, interface);
        (self.pending, self.capabilities) = (pending, capabilities);
        (self.pages, self.registers) = (pages, registers);
    }

    /// Number of objects that the driver has not destroyed, by kind.
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
