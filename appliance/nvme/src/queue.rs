//! A queue: a connection of a host, with its commands and their memory.

use crate::auth::Auth;
use crate::command::{Command, Outcome, io};
use crate::fused::Before;
use crate::pool::Pool;
use crate::request::{Memory, Request, State};
use crate::tls::Proven;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::{Arena, Instant, Window};

/// Bytes of a unit of the larger pool.
const UNIT: usize = 4096;
/// Bytes that Compare reads at a time.
pub const COMPARED: usize = 16 << 10;
/// Most bytes of data in a capsule of an admin queue, and of fabrics commands, whatever IOCCSZ says (Linux:
/// `NVME_TCP_ADMIN_CCSZ`).
pub const ADMIN_IN_CAPSULE: u32 = 8192;

/// Name of a queue. It is not reused: lists may have it after the queue is gone, while a disk is silent for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    pub(crate) index: u16,
    pub(crate) generation: u32,
}

impl QueueId {
    /// The word of a volume's tag for a request of the queue.
    pub(crate) fn word(self, slot: u16) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index) << 16 | u64::from(slot)
    }

    /// The queue and the slot of a volume's tag.
    pub(crate) fn of_word(word: u64) -> (QueueId, u16) {
        let (generation, index) = ((word >> 32) as u32, (word >> 16) as u16);
        (QueueId { index, generation }, word as u16)
    }
}

/// Both ends of a queue's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The host's address.
    pub host: IpAddr,
    /// Our address, by which the host came.
    pub ours: IpAddr,
    /// Our port.
    pub port: u16,
}

/// What the transport has to do for a queue.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Fetch data of a command from the host into `window`, then call [`crate::Target::data_arrived`].
    Fetch {
        /// Identifier of the command.
        cid: u16,
        /// Slot of the request.
        slot: u16,
        /// Place of the data.
        window: Window,
    },
    /// Send data of a command, then call [`crate::Target::data_sent`].
    Send {
        /// Identifier of the command.
        cid: u16,
        /// Slot of the request.
        slot: u16,
        /// The data.
        window: Window,
        /// The data completes the command: no [`Action::Complete`] follows.
        success: bool,
    },
    /// Send a completion.
    Complete {
        /// The completion queue entry.
        cqe: [u8; 16],
    },
    /// Close the connection, after the actions that were queued before.
    Close,
    /// Close the connection at once: its host does not read the answers that were queued before.
    Cut,
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// No Connect has succeeded yet.
    Fresh,
    /// Admin queue of the controller.
    Admin { controller: usize },
    /// I/O queue of the controller.
    Io { controller: usize },
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    pub id: QueueId,
    pub ends: Ends,
    pub role: Role,
    pub qid: u16,
    /// Entries.
    pub size: u16,
    pub sq_head: u16,
    /// The host asked for no flow control of the submission queue.
    pub no_flow_control: bool,
    pub requests: Vec<Request>,
    free: Vec<u16>,
    pub small: Pool,
    pub large: Pool,
    memory: Window,
    /// Further memory for data in capsules, while commands wait for limits.
    extra: Pool,
    extra_memory: Window,
    /// Commands that wait for the limits of their namespaces.
    pub throttled: u16,
    /// Requests that wait for memory, in order of arrival.
    pub waiting: VecDeque<u16>,
    pub actions: VecDeque<Action>,
    /// Requests that a volume has.
    pub in_volumes: usize,
    /// The connection has ended.
    pub is_closed: bool,
    /// The queue is to be closed: no more commands are executed.
    pub is_ending: bool,
    /// Checks since it is to be closed.
    pub ending_for: u8,
    pub opened: Instant,
    /// The queue is listed: it has actions that the transport has not taken.
    pub is_listed: bool,
    /// A command in a capsule found no memory.
    pub is_stalled: bool,
    /// Commands other than those of authentication are refused.
    pub is_locked: bool,
    /// The command before, if it was the first of a fused operation.
    pub before: Before,
    /// Its authentication, if one is demanded or possible.
    pub auth: Option<Box<Auth>>,
    /// The names that the host has proven by TLS.
    pub tls: Option<Box<Proven>>,
    /// Its TLS handshake waits for its turn.
    pub awaits_turn: bool,
}

/// Memory of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueMemory {
    /// Places for data in capsules, and their size.
    pub capsules: usize,
    pub capsule: usize,
    /// Bytes for all other data.
    pub data: usize,
}

impl QueueMemory {
    /// Bytes in all.
    pub const fn bytes(&self) -> usize {
        self.capsules * self.capsule + self.data
    }
}

impl Queue {
    /// A queue for a new connection. None without memory.
    pub fn new(id: QueueId, ends: Ends, arena: &mut Arena, now: Instant) -> Option<Queue> {
        let mut queue = Queue {
            id,
            ends,
            role: Role::Fresh,
            qid: 0,
            size: 2,
            sq_head: 0,
            no_flow_control: false,
            requests: Vec::new(),
            free: Vec::new(),
            small: Pool::empty(),
            large: Pool::empty(),
            memory: Window::empty(),
            extra: Pool::empty(),
            extra_memory: Window::empty(),
            throttled: 0,
            waiting: VecDeque::new(),
            actions: VecDeque::new(),
            in_volumes: 0,
            is_closed: false,
            is_ending: false,
            ending_for: 0,
            opened: now,
            is_listed: false,
            is_stalled: false,
            is_locked: false,
            before: Before::Other,
            auth: None,
            tls: None,
            awaits_turn: false,
        };
        // One Connect, with its data in the capsule or not.
        let memory = QueueMemory { capsules: 1, capsule: ADMIN_IN_CAPSULE as usize, data: UNIT };
        queue.allocate(2, memory, arena).then_some(queue)
    }

    /// Replaces the queue's memory and makes room for `size` commands at a time. False if there is not enough, or a
    /// request has memory: nothing is changed.
    pub fn allocate(&mut self, size: u16, memory: QueueMemory, arena: &mut Arena) -> bool {
        if self.requests.iter().any(|one| one.data.is_some() || one.other.is_some()) {
            return false;
        }
        let QueueMemory { capsules, capsule, data } = memory;
        let small = capsules * capsule;
        let Some(window) = arena.alloc(small + data, UNIT) else { return false };
        // What other users of the memory left must not reach the host.
        window.fill(0);
        let old = core::mem::replace(&mut self.memory, window);
        if !old.is_empty() {
            arena.free(old);
        }
        self.small = Pool::new(window.slice(0, small).unwrap_or(Window::empty()), capsule);
        self.large = Pool::new(window.slice(small, data).unwrap_or(Window::empty()), UNIT);
        self.size = size;
        for slot in self.requests.len()..usize::from(size) {
            self.requests.push(Request::default());
            self.free.insert(0, slot as u16);
        }
        self.waiting.reserve(usize::from(size));
        self.actions.reserve(2 * usize::from(size) + 2);
        true
    }

    /// Returns the memory to the arena.
    pub fn free_memory(&mut self, arena: &mut Arena) {
        let memory = core::mem::replace(&mut self.memory, Window::empty());
        if !memory.is_empty() {
            arena.free(memory);
        }
    }

    /// Bytes of further memory that the queue gets: a place for each entry.
    pub fn extra_bytes(&self) -> usize {
        usize::from(self.size) * self.small.unit()
    }

    /// Adds further memory for data in capsules. False if it has some, or there is none.
    pub fn add_extra(&mut self, arena: &mut Arena) -> bool {
        if !self.extra_memory.is_empty() {
            return false;
        }
        let Some(window) = arena.alloc(self.extra_bytes(), UNIT) else { return false };
        window.fill(0);
        self.extra_memory = window;
        self.extra = Pool::new(window, self.small.unit());
        true
    }

    /// Frees further memory, if no command uses it. Returns its bytes.
    pub fn free_extra(&mut self, arena: &mut Arena) -> usize {
        if self.extra_memory.is_empty() || !self.extra.is_unused() {
            return 0;
        }
        self.extra = Pool::empty();
        let memory = core::mem::replace(&mut self.extra_memory, Window::empty());
        let bytes = memory.len();
        arena.free(memory);
        bytes
    }

    /// Takes memory for data in a capsule.
    pub fn take_capsule(
        &mut self,
        command: &Command,
        bytes: usize,
    ) -> Option<(Window, Option<Window>, Memory)> {
        [Memory::Small, Memory::Extra].into_iter().find_map(|origin| {
            let (window, other) = self.take_memory(origin, command, bytes)?;
            Some((window, other, origin))
        })
    }

    /// Gives back memory of a command that got no slot.
    pub fn give_back(&mut self, (window, other, origin): (Window, Option<Window>, Memory)) {
        let pool = self.pool(origin);
        [Some(window), other].into_iter().flatten().for_each(|it| pool.give(it));
    }

    /// Whether the host has not proven yet that it may use the queue: no Connect has succeeded, or no authentication.
    pub fn is_fresh(&self) -> bool {
        (self.role == Role::Fresh || self.is_locked) && !self.is_ending
    }

    /// Whether any command has a slot.
    pub fn has_commands(&self) -> bool {
        self.free.len() < self.requests.len()
    }

    /// Takes memory for a command's data, and for Compare also for what it reads. Both are taken at once: commands that
    /// hold one and wait for the other would wait for each other.
    pub fn take_memory(
        &mut self,
        origin: Memory,
        command: &Command,
        bytes: usize,
    ) -> Option<(Window, Option<Window>)> {
        let is_io = matches!(self.role, Role::Io { .. }) && !command.is_fabrics();
        let pool = self.pool(origin);
        let data = pool.take(bytes)?;
        if !is_io || command.opcode() != io::COMPARE {
            return Some((data, None));
        }
        let other = pool.take(bytes.min(COMPARED));
        if other.is_none() {
            pool.give(data);
        }
        other.map(|other| (data, Some(other)))
    }

    fn pool(&mut self, origin: Memory) -> &mut Pool {
        match origin {
            Memory::Small => &mut self.small,
            Memory::Extra => &mut self.extra,
            Memory::Large => &mut self.large,
        }
    }

    /// Takes a slot for a command; None if the host has more commands in flight than the queue has entries.
    pub fn take_slot(&mut self, command: Command, length: u32) -> Option<u16> {
        let slot = self.free.pop()?;
        let request = self.requests.get_mut(usize::from(slot))?;
        *request = Request { command, length, ..Request::default() };
        Some(slot)
    }

    /// The request in a slot.
    pub fn request(&mut self, slot: u16) -> Option<&mut Request> {
        self.requests.get_mut(usize::from(slot)).filter(|it| it.state != State::Free)
    }

    /// The request in a slot, also before it has a state.
    pub fn request_mut(&mut self, slot: u16) -> &mut Request {
        &mut self.requests[usize::from(slot)]
    }

    /// Frees a slot and its memory.
    pub fn release(&mut self, slot: u16) {
        self.release_memory(slot);
        let Some(request) = self.requests.get_mut(usize::from(slot)) else { return };
        request.enter(State::Free);
        request.hold = None;
        self.free.push(slot);
    }

    /// Frees the memory of a slot.
    pub fn release_memory(&mut self, slot: u16) {
        let Some(request) = self.requests.get_mut(usize::from(slot)) else { return };
        let (data, other) = (request.data.take(), request.other.take());
        let Some((window, origin)) = data else { return };
        let pool = self.pool(origin);
        [Some(window), other].into_iter().flatten().for_each(|it| pool.give(it));
    }

    /// Counts a command that arrived.
    pub fn advance_head(&mut self) {
        self.sq_head = (self.sq_head + 1) % self.size.max(1);
    }

    /// Queues the completion of a command that has no slot any more.
    pub fn complete(&mut self, cid: u16, outcome: Outcome) {
        let head = if self.no_flow_control { u16::MAX } else { self.sq_head };
        let cqe = outcome.emit(head, self.qid, cid);
        self.actions.push_back(Action::Complete { cqe });
    }

    /// Completes the command in a slot without data, and frees the slot.
    pub fn finish(&mut self, slot: u16, outcome: Outcome) {
        let cid = self.request_mut(slot).command.cid();
        self.release(slot);
        self.complete(cid, outcome);
    }

    /// Completes the command in a slot with data, which the transport sends. The slot is freed when it was copied.
    pub fn finish_with(&mut self, slot: u16, window: Window) {
        let request = self.request_mut(slot);
        request.enter(State::Sending);
        let cid = request.command.cid();
        // Without flow control the completion says nothing.
        let success = self.no_flow_control;
        self.actions.push_back(Action::Send { cid, slot, window, success });
        if !success {
            self.complete(cid, Outcome::SUCCESS);
        }
    }
}
