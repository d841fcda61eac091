//! The target: subsystems, controllers and queues, and the calls of transports.

use crate::accept::{Wrong, check_authentication, check_data, check_opcode};
use crate::auth::Security;
use crate::command::{Command, Outcome, io};
use crate::controller::{Controller, Of};
use crate::fused::{Before, Fuse, FusedPairs};
use crate::queue::{ADMIN_IN_CAPSULE, Action, COMPARED, Queue, QueueId, QueueMemory, Role};
use crate::request::{Memory, State};
use crate::reservations::Reserving;
use crate::status::Status;
use crate::subsystem::Subsystem;
use crate::throttles::Throttles;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use drivers::hal::{Arena, Instant, Window};
use net::refusal::Refusals;
use slab::Slab;
use storage::volume::{VolumeId, Volumes};

/// Bytes of zeroes that are written at a time.
const ZEROES: usize = 64 << 10;

/// Limits of a target.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most queues.
    pub queues: usize,
    /// Most queues of a host. Hosts whose NQN a subsystem lists are told apart by it, all others by their address.
    pub queues_per_host: usize,
    /// Most queues of a host whose Connect has not succeeded yet.
    pub fresh_per_host: usize,
    /// Most discovery controllers of a host, told apart as for `queues_per_host`: they are open to all.
    pub discovery_per_host: usize,
    /// Most I/O queues of a controller.
    pub io_queues: u16,
    /// Most entries of a queue.
    pub entries: u16,
    /// Largest transfer: 4096 times this power of two (MDTS).
    pub transfer: u8,
    /// Most bytes of data in a capsule of an I/O queue, a multiple of 16.
    pub in_capsule: u32,
    /// Places for data in capsules of an I/O queue, at least 3: a fused Compare takes two, and its Write one.
    pub capsules: usize,
    /// Bytes of memory for all other data of an I/O queue, at least the largest transfer and the 16 KiB with which
    /// Compare compares it.
    pub memory: usize,
    /// Port of the I/O controllers, for the discovery log.
    pub port: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            queues: 1024,
            queues_per_host: 512,
            // A host connects up to `io_queues` at a time for each of its controllers.
            fresh_per_host: 64,
            discovery_per_host: 16,
            io_queues: 16,
            entries: 128,
            transfer: 5,
            in_capsule: 8192,
            capsules: 16,
            memory: 256 << 10,
            port: 4420,
        }
    }
}

impl Settings {
    /// Bytes of the largest transfer.
    pub const fn max_transfer(&self) -> u32 {
        4096 << self.transfer
    }

    /// Bytes of memory of an I/O queue: by default 16 capsules of 8 KiB and 256 KiB, 384 KiB.
    pub fn queue_bytes(&self) -> usize {
        self.io_memory(false).bytes()
    }

    /// Memory of an I/O queue. Where many hosts are connected, a queue gets the least with which each of its commands can
    /// be executed: by default 4 capsules of 8 KiB, and 144 KiB for the largest transfer and its Compare, 176 KiB. So
    /// the first quarter of 1024 queues takes 96 MiB and the others 132 MiB; of 10,000 queues 0.92 GiB and 1.26 GiB.
    fn io_memory(&self, is_crowded: bool) -> QueueMemory {
        // Fabrics commands of an I/O queue have their data in the capsule, too.
        let capsule = self.in_capsule.max(ADMIN_IN_CAPSULE) as usize;
        let least = self.max_transfer() as usize + COMPARED;
        let (capsules, data) = (self.capsules.max(3), self.memory.max(least));
        match is_crowded {
            false => QueueMemory { capsules, capsule, data },
            true => QueueMemory { capsules: capsules.min(4), capsule, data: least },
        }
    }
}

/// What a call of the target may use.
pub struct Context<'a> {
    /// The volumes of the loop.
    pub volumes: &'a mut Volumes,
    /// Memory for queues.
    pub arena: &'a mut Arena,
    /// Time.
    pub now: Instant,
    /// A cryptographic generator, for authentication and TLS.
    pub random: nvme_auth::Random<'a>,
}

/// What happens to the data in a command's capsule.
#[derive(Clone, Copy, Debug)]
pub enum Placement {
    /// The capsule has no data.
    None,
    /// The data goes into this window. Then call [`Target::data_arrived`].
    Into {
        /// Slot of the request.
        slot: u16,
        /// As long as the data.
        window: Window,
    },
    /// The data is not used: the command was completed.
    Discard,
    /// There is no memory at present. Call [`Target::command`] again when the queue has work.
    Wait,
    /// The host sent more commands than the queue has entries, or lied about its data: end the connection.
    Fatal,
}

/// A target.
#[derive(Debug)]
pub struct Target {
    pub(crate) settings: Settings,
    pub(crate) subsystems: Slab<Subsystem>,
    pub(crate) controllers: Slab<Controller>,
    pub(crate) queues: Slab<Queue>,
    pub(crate) generation: u32,
    /// Queues with actions that the transport has not taken.
    listed: VecDeque<QueueId>,
    /// By volume: requests that it refused as busy, in order of arrival.
    pub(crate) busy: Vec<(VolumeId, VecDeque<(QueueId, u16)>)>,
    /// Sectors that were zeroed or deallocated at once in this round.
    pub(crate) worked: u64,
    /// Requests that have used their share of a round.
    pub(crate) yielding: VecDeque<(QueueId, u16)>,
    /// Connects that wait for the end of older controllers.
    pub(crate) held: Vec<(QueueId, u16)>,
    /// Changes of reservations that are being written, and commands that wait for such.
    pub(crate) reserving: Reserving,
    /// Memory for reads of volumes that lend theirs; only its length is used.
    pub(crate) scratch: Window,
    /// Zeroes, for volumes that cannot write them without data.
    pub(crate) zeroes: Window,
    /// Requests were submitted to volumes since the last doorbell.
    pub(crate) submitted: bool,
    /// Identifier of the next controller of the discovery subsystem.
    pub(crate) next_discovery: u16,
    pub(crate) check_at: Option<Instant>,
    pub(crate) retry_at: Option<Instant>,
    /// Generation of the discovery log.
    pub(crate) discovery_generation: u64,
    /// Revision of the volumes when namespaces were looked up last.
    pub(crate) volumes_revision: u64,
    pub(crate) refusals: Refusals,
    /// Fused operations.
    pub(crate) fused: FusedPairs,
    /// Limits of namespaces.
    pub(crate) throttles: Throttles,
    /// Authentication and TLS.
    pub(crate) security: Security,
}

impl Target {
    /// A target without subsystems. None without memory.
    pub fn new(settings: Settings, arena: &mut Arena) -> Option<Target> {
        let scratch = arena.alloc(settings.max_transfer() as usize, 4096)?;
        let zeroes = arena.alloc(ZEROES, 4096)?;
        zeroes.fill(0);
        Some(Target {
            settings,
            subsystems: Slab::new(),
            controllers: Slab::new(),
            queues: Slab::new(),
            generation: 0,
            listed: VecDeque::new(),
            busy: Vec::new(),
            worked: 0,
            yielding: VecDeque::new(),
            held: Vec::new(),
            reserving: Reserving::default(),
            scratch,
            zeroes,
            submitted: false,
            next_discovery: 1,
            check_at: None,
            retry_at: None,
            discovery_generation: 1,
            volumes_revision: u64::MAX,
            refusals: Refusals::default(),
            fused: FusedPairs::default(),
            throttles: Throttles::default(),
            security: Security::default(),
        })
    }

    /// Its limits.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Connections and Connects that were refused.
    pub fn refusals(&mut self) -> &mut Refusals {
        &mut self.refusals
    }

    /// Number of queues, also of those whose connection has ended.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    pub(crate) fn queue(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.queues.get_mut(usize::from(id.index)).filter(|queue| queue.id == id)
    }

    /// The controller of a queue.
    pub(crate) fn controller_of(&self, id: QueueId) -> Option<usize> {
        let queue = self.queues.get(usize::from(id.index)).filter(|queue| queue.id == id)?;
        match queue.role {
            Role::Fresh => None,
            Role::Admin { controller } | Role::Io { controller } => Some(controller),
        }
    }

    /// Lists a queue for the transport.
    pub(crate) fn list(&mut self, id: QueueId) {
        let Some(queue) = self.queue(id) else { return };
        if !core::mem::replace(&mut queue.is_listed, true) {
            self.listed.push_back(id);
        }
    }

    /// The next queue with actions, or with memory for a command that waited.
    pub fn next_ready(&mut self) -> Option<QueueId> {
        let id = self.listed.pop_front()?;
        if let Some(queue) = self.queue(id) {
            queue.is_listed = false;
        }
        Some(id)
    }

    /// The next action for a queue.
    pub fn next_action(&mut self, id: QueueId) -> Option<Action> {
        self.queue(id)?.actions.pop_front()
    }

    /// Most bytes of data in a capsule that the queue accepts, and its number of entries.
    pub fn limits(&mut self, id: QueueId) -> Option<(u32, u16)> {
        let in_capsule = self.settings.in_capsule.max(ADMIN_IN_CAPSULE);
        let queue = self.queue(id)?;
        match queue.role {
            Role::Io { .. } => Some((in_capsule, queue.size)),
            _ => Some((ADMIN_IN_CAPSULE, queue.size)),
        }
    }

    /// Handles a command, with `in_capsule` bytes of data in its capsule.
    pub fn command(
        &mut self,
        id: QueueId,
        sqe: &[u8; 64],
        in_capsule: u32,
        ctx: &mut Context<'_>,
    ) -> Placement {
        let command = Command(*sqe);
        // A queue that is not authenticated says nothing about the host.
        if let Some(controller) = self.controller_of(id)
            && self.queue(id).is_some_and(|queue| !queue.is_locked)
            && let Some(controller) = self.controllers.get_mut(controller)
        {
            controller.active = ctx.now;
        }
        let max_transfer = self.settings.max_transfer();
        let Some(queue) = self.queue(id) else { return Placement::Fatal };
        if queue.is_ending {
            return if in_capsule > 0 { Placement::Discard } else { Placement::None };
        }
        let refused = match check_data(&command, in_capsule, max_transfer) {
            Err(Wrong::Capsule) => return Placement::Fatal,
            Err(Wrong::Status(status)) => Some(status),
            // Its Connect replaces the queue's memory, in which no other command may have a part.
            Ok(()) if queue.role == Role::Fresh && queue.has_commands() => Some(Status::SEQUENCE),
            Ok(()) if queue.role != Role::Fresh && command.is_authentication() => {
                check_authentication(&command, queue.auth.is_some())
            }
            Ok(()) if queue.is_locked => Some(Status::AUTH_REQUIRED),
            Ok(()) => check_opcode(&command, queue.role),
        };
        let before = queue.before;
        let fuse = match (before, command.is_fused()) {
            (Before::Other, false) => refused.map_or(Ok(Fuse::None), Err),
            _ => self.check_fuse(id, &command, refused),
        };
        let Some(queue) = self.queue(id) else { return Placement::Fatal };
        let length = command.u32(32);
        if let Err(status) = fuse {
            // The command takes no slot, so a host with a full queue gets its answer, too.
            queue.advance_head();
            queue.complete(command.cid(), status.into());
            self.list(id);
            return if in_capsule > 0 { Placement::Discard } else { Placement::None };
        }
        let place = match in_capsule {
            0 => None,
            bytes => match self.take_capsule(id, &command, bytes as usize, ctx.arena) {
                Some(taken) => Some(taken),
                None => {
                    self.restore_fuse(id, fuse, before);
                    return Placement::Wait;
                }
            },
        };
        let Some(queue) = self.queue(id) else { return Placement::Fatal };
        let Some(slot) = queue.take_slot(command, length) else {
            if let Some(taken) = place {
                queue.give_back(taken);
            }
            return Placement::Fatal;
        };
        queue.advance_head();
        if let Ok(part @ (Fuse::First | Fuse::Second)) = fuse {
            queue.note_fuse(slot, part, before);
        }
        if let Some((window, other, origin)) = place {
            let request = queue.request_mut(slot);
            (request.data, request.other) = (Some((window, origin)), other);
            request.enter(State::Arriving);
            return Placement::Into { slot, window };
        }
        self.begin(id, slot, ctx);
        Placement::None
    }

    /// Takes memory for data in a capsule. None: the queue is listed when there is some.
    fn take_capsule(
        &mut self,
        id: QueueId,
        command: &Command,
        bytes: usize,
        arena: &mut Arena,
    ) -> Option<(Window, Option<Window>, Memory)> {
        let taken = self.queue(id)?.take_capsule(command, bytes);
        if taken.is_some() {
            return taken;
        }
        if self.add_capsules(id, arena) {
            return self.queue(id)?.take_capsule(command, bytes);
        }
        self.queue(id)?.is_stalled = true;
        None
    }

    /// All data of a request has arrived. `intact`: its digests were right.
    pub fn data_arrived(&mut self, id: QueueId, slot: u16, intact: bool, ctx: &mut Context<'_>) {
        let Some(queue) = self.queue(id) else { return };
        let Some(request) = queue.request(slot) else { return };
        if !matches!(request.state, State::Arriving | State::Fetching) {
            return;
        }
        if !intact {
            self.finish(id, slot, Status::TRANSIENT_TRANSPORT.into());
            return;
        }
        let is_new = self.is_in(id, slot, State::Arriving);
        if is_new && self.delays(id, slot, ctx.now) {
            return;
        }
        self.execute(id, slot, ctx);
    }

    /// The data of a request was copied.
    pub fn data_sent(&mut self, id: QueueId, slot: u16, ctx: &mut Context<'_>) {
        let Some(queue) = self.queue(id) else { return };
        if queue.request(slot).is_some_and(|request| request.state == State::Sending) {
            queue.release(slot);
            self.memory_freed(id, ctx);
        }
    }

    /// Begins a request without data in its capsule, if the limits of its namespace allow.
    fn begin(&mut self, id: QueueId, slot: u16, ctx: &mut Context<'_>) {
        if !self.delays(id, slot, ctx.now) {
            self.begin_admitted(id, slot, ctx);
        }
    }

    /// Gets memory for a request's data, and executes or fetches.
    pub(crate) fn begin_admitted(&mut self, id: QueueId, slot: u16, ctx: &mut Context<'_>) {
        let lends = self.lends(id, slot, ctx.volumes);
        let Some(queue) = self.queue(id) else { return };
        let waits = !queue.waiting.is_empty();
        let is_io = matches!(queue.role, Role::Io { .. });
        let request = queue.request_mut(slot);
        let command = request.command;
        let verifies = is_io && command.opcode() == io::VERIFY;
        if verifies {
            // It has no data, but reads into memory.
            request.length = COMPARED as u32;
        }
        let length = request.length as usize;
        let reads = command.receives_data() || verifies;
        let needs_memory = length > 0 && (command.sends_data() || (reads && !lends));
        if !needs_memory {
            return self.execute(id, slot, ctx);
        }
        let taken = if waits { None } else { queue.take_memory(Memory::Large, &command, length) };
        let Some(taken) = taken else {
            queue.request_mut(slot).enter(State::AwaitingMemory);
            queue.waiting.push_back(slot);
            return;
        };
        self.with_memory(id, slot, taken, ctx);
    }

    fn with_memory(
        &mut self,
        id: QueueId,
        slot: u16,
        (window, other): (Window, Option<Window>),
        ctx: &mut Context<'_>,
    ) {
        let Some(queue) = self.queue(id) else { return };
        let request = queue.request_mut(slot);
        (request.data, request.other) = (Some((window, Memory::Large)), other);
        if !request.command.sends_data() {
            return self.execute(id, slot, ctx);
        }
        request.enter(State::Fetching);
        let cid = request.command.cid();
        queue.actions.push_back(Action::Fetch { cid, slot, window });
        self.list(id);
    }

    /// Memory of a queue was freed: requests that wait for it continue.
    pub(crate) fn memory_freed(&mut self, id: QueueId, ctx: &mut Context<'_>) {
        loop {
            let Some(queue) = self.queue(id) else { return };
            if core::mem::take(&mut queue.is_stalled) {
                self.list(id);
                continue;
            }
            let Some(&slot) = queue.waiting.front() else { return };
            let request = queue.request_mut(slot);
            let (command, length) = (request.command, request.length as usize);
            let Some(taken) = queue.take_memory(Memory::Large, &command, length) else { return };
            queue.waiting.pop_front();
            self.with_memory(id, slot, taken, ctx);
        }
    }

    /// Executes a request whose data is there.
    pub(crate) fn execute(&mut self, id: QueueId, slot: u16, ctx: &mut Context<'_>) {
        let Some(queue) = self.queue(id) else { return };
        let command = queue.request_mut(slot).command;
        if queue.is_ending {
            // The host may be back over another connection: nothing of the old one follows.
            return self.finish(id, slot, Status::ABORTED_QUEUE.into());
        }
        let is_fused = queue.request_mut(slot).fuse != Fuse::None;
        if is_fused && !self.may_execute_fused(id, slot, ctx) {
            return;
        }
        let Some(queue) = self.queue(id) else { return };
        match queue.role {
            _ if command.is_fabrics() => self.execute_fabrics(id, slot, &command, ctx),
            Role::Fresh => self.finish(id, slot, Status::SEQUENCE.into()),
            Role::Admin { controller } => self.execute_admin(id, slot, controller, &command, ctx),
            Role::Io { controller } => self.execute_io(id, slot, controller, &command, ctx),
        }
    }

    /// Completes a request without data.
    pub(crate) fn finish(&mut self, id: QueueId, slot: u16, outcome: Outcome) {
        let Some(queue) = self.queue(id) else { return };
        let request = queue.request_mut(slot);
        let fused = (request.fuse, request.partner);
        queue.finish(slot, outcome);
        self.list(id);
        if fused.0 != Fuse::None {
            self.fused_ended((id, slot), fused, outcome.status);
        }
        // The caller has no volumes at hand here; waiting requests continue in `poll`.
        if let Some(queue) = self.queue(id)
            && (!queue.waiting.is_empty() || queue.is_stalled)
        {
            self.yielding.push_back((id, u16::MAX));
        }
    }

    /// Completes a request with data.
    pub(crate) fn finish_with(&mut self, id: QueueId, slot: u16, window: Window) {
        let Some(queue) = self.queue(id) else { return };
        if window.is_empty() {
            return self.finish(id, slot, Outcome::SUCCESS);
        }
        queue.finish_with(slot, window);
        self.list(id);
    }

    pub(crate) fn is_in(&mut self, id: QueueId, slot: u16, state: State) -> bool {
        self.queue(id).and_then(|queue| queue.request(slot)).is_some_and(|it| it.state == state)
    }

    /// Notifies devices of requests. Call it after commands were handled.
    pub fn flush(&mut self, volumes: &mut Volumes) {
        if core::mem::take(&mut self.submitted) {
            volumes.flush_queues();
        }
    }

    /// When to call [`Target::poll`] next.
    pub fn deadline(&self) -> Option<Instant> {
        let has_work =
            !self.yielding.is_empty() || self.reserving.is_due() || self.security.has_work();
        let now = has_work.then_some(Instant::ZERO);
        Instant::first([self.check_at, self.retry_at, self.throttles.due, now])
    }

    /// Memory of an I/O queue, or of an admin queue.
    pub(crate) fn memory_of(&self, is_admin: bool) -> QueueMemory {
        match is_admin {
            true => QueueMemory {
                capsules: 2,
                capsule: ADMIN_IN_CAPSULE as usize,
                data: self.settings.max_transfer() as usize,
            },
            false => self.settings.io_memory(self.queues.len() > self.settings.queues / 4),
        }
    }

    /// The subsystem of a controller; None for the discovery subsystem.
    pub(crate) fn subsystem_of(&self, controller: usize) -> Option<&Subsystem> {
        match self.controllers.get(controller)?.of {
            Of::Subsystem(index) => self.subsystems.get(index),
            Of::Discovery => None,
        }
    }
}
