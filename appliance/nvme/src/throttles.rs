//! Limits of namespaces: commands that exceed them wait.
//!
//! A command waits before it gets memory, so that it takes none from commands to other namespaces on its queue. Only data
//! that came in its capsule has a place already. While commands wait, such data gets further memory, a place for each
//! entry of the queue: otherwise a host's own commands to other namespaces would wait behind. All queues together get at
//! most [`EXTRA`]; beyond, a queue is read again when a place is free, which holds up no other connection.

use crate::command::{Command, io};
use crate::controller::Of;
use crate::queue::{Queue, QueueId, Role};
use crate::request::State;
use crate::rounds::BUDGET;
use crate::status::Status;
use crate::subsystem::Namespace;
use crate::target::{Context, Target};
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::{Arena, Instant};
use slab::Slab;
use storage::limits::{Class, Limiter, Limits, Throttle};

/// Most bytes of memory for data in capsules of commands that wait, of all queues together.
const EXTRA: usize = 64 << 20;

#[derive(Debug)]
struct Entry {
    throttle: Throttle<QueueId, u16>,
    /// Its namespace is gone, or has no limits any more.
    is_orphan: bool,
}

/// Commands that wait, by the limits of namespaces.
#[derive(Debug, Default)]
pub(crate) struct Throttles {
    all: Slab<Entry>,
    /// Those with waiting commands.
    waiting: Vec<usize>,
    /// When the next turn is due.
    pub due: Option<Instant>,
    /// Bytes of further memory in use.
    extra: usize,
}

impl Throttles {
    /// Applies the limits of a namespace. They take effect at once, also for commands that wait.
    pub fn apply(&mut self, namespace: &mut Namespace) {
        let limits = &namespace.config.limits;
        namespace.limiter.set(limits);
        match (namespace.throttle, limits.is_none()) {
            (None, false) => namespace.throttle = Some(self.add(&namespace.limiter)),
            (Some(_), true) => self.release(namespace),
            _ => {}
        }
    }

    fn add(&mut self, limiter: &Arc<Limiter>) -> usize {
        self.all.insert(Entry { throttle: Throttle::new(limiter.clone()), is_orphan: false })
    }

    /// A namespace is gone, or is not limited any more: its waiting commands continue.
    pub fn release(&mut self, namespace: &mut Namespace) {
        namespace.limiter.set(&Limits::default());
        let Some(key) = namespace.throttle.take() else { return };
        match self.all.get_mut(key) {
            Some(entry) if !entry.throttle.is_empty() => entry.is_orphan = true,
            Some(_) => drop(self.all.remove(key)),
            None => {}
        }
    }

    fn settle(&mut self) {
        let all = &mut self.all;
        self.waiting.retain(|&key| match all.get(key) {
            Some(entry) if !entry.throttle.is_empty() => true,
            Some(entry) => {
                if entry.is_orphan {
                    all.remove(key);
                }
                false
            }
            None => false,
        });
        let dues = self.waiting.iter().filter_map(|&key| self.all.get(key)?.throttle.due());
        self.due = dues.min();
    }

    /// Removes the commands of a queue.
    fn forget(&mut self, id: QueueId, now: Instant) {
        for (_, entry) in &mut self.all {
            entry.throttle.forget(id, now);
        }
        self.settle();
    }
}

/// Class and bytes of a command, if it is limited.
fn class_of(command: &Command, block: u32) -> Option<(Class, u64)> {
    let bytes = (u64::from(command.u16(48)) + 1) * u64::from(block);
    match command.opcode() {
        io::READ | io::COMPARE | io::VERIFY => Some((Class::Read, bytes)),
        io::WRITE | io::WRITE_ZEROES => Some((Class::Write, bytes)),
        io::DATASET_MANAGEMENT => Some((Class::Write, 0)),
        _ => None,
    }
}

impl Target {
    /// Whether a command has to wait for the limits of its namespace. Otherwise it is charged. Without any limit this
    /// costs a branch.
    #[inline]
    pub(crate) fn delays(&mut self, id: QueueId, slot: u16, now: Instant) -> bool {
        !self.throttles.all.is_empty() && self.delay(id, slot, now)
    }

    #[cold]
    fn delay(&mut self, id: QueueId, slot: u16, now: Instant) -> bool {
        let Some((key, class, bytes)) = self.limit_of(id, slot) else { return false };
        let Some(entry) = self.throttles.all.get_mut(key) else { return false };
        if !entry.throttle.must_wait(class, now) {
            entry.throttle.limiter().charge(class, bytes, now);
            return false;
        }
        let due = entry.throttle.wait(class, id, slot, now);
        self.throttles.due = Some(self.throttles.due.map_or(due, |at| at.min(due)));
        if !self.throttles.waiting.contains(&key) {
            self.throttles.waiting.push(key);
        }
        if let Some(queue) = self.queue(id) {
            queue.request_mut(slot).enter(State::Throttled);
            queue.throttled += 1;
        }
        true
    }

    /// The limits of a command, its class and its bytes.
    fn limit_of(&mut self, id: QueueId, slot: u16) -> Option<(usize, Class, u64)> {
        let queue = self.queue(id)?;
        let command = queue.request_mut(slot).command;
        let Role::Io { controller } = queue.role else { return None };
        if command.is_fabrics() {
            return None;
        }
        let Of::Subsystem(subsystem) = self.controllers.get(controller)?.of else { return None };
        let namespace = self.subsystems.get(subsystem)?.namespace(command.nsid())?;
        let block = namespace.backing.as_ref().ok()?.block;
        let (class, bytes) = class_of(&command, block)?;
        Some((namespace.throttle?, class, bytes))
    }

    /// Continues commands that have waited for limits, in turns of their queues. Returns their number.
    pub(crate) fn poll_throttles(&mut self, ctx: &mut Context<'_>) -> usize {
        if self.throttles.due.is_none_or(|due| due > ctx.now) {
            return 0;
        }
        let mut budget = BUDGET;
        // The first of this turn is the last of the next, if the budget ends it.
        let mut keys = core::mem::take(&mut self.throttles.waiting);
        for &key in &keys {
            let Some(entry) = self.throttles.all.get_mut(key) else { continue };
            entry.throttle.begin_turn(ctx.now);
            while budget > 0
                && let Some(entry) = self.throttles.all.get_mut(key)
                && let Some((id, slot)) = entry.throttle.next(ctx.now)
            {
                budget -= 1;
                self.continue_throttled(id, slot, ctx);
            }
            if let Some(entry) = self.throttles.all.get_mut(key) {
                entry.throttle.end_turn(budget == 0, ctx.now);
            }
        }
        if !keys.is_empty() {
            keys.rotate_left(1);
        }
        keys.append(&mut self.throttles.waiting);
        self.throttles.waiting = keys;
        self.throttles.settle();
        BUDGET - budget
    }

    fn continue_throttled(&mut self, id: QueueId, slot: u16, ctx: &mut Context<'_>) {
        if !self.is_in(id, slot, State::Throttled) {
            return;
        }
        if let Some((key, class, bytes)) = self.limit_of(id, slot)
            && let Some(entry) = self.throttles.all.get(key)
        {
            entry.throttle.limiter().charge(class, bytes, ctx.now);
        }
        let Some(queue) = self.queue(id) else { return };
        queue.throttled -= 1;
        match queue.request_mut(slot).data {
            // It came in the capsule.
            Some(_) => self.execute(id, slot, ctx),
            None => self.begin_admitted(id, slot, ctx),
        }
    }

    /// The connection of a queue has ended.
    pub(crate) fn forget_throttled(&mut self, id: QueueId, now: Instant) {
        if !self.throttles.all.is_empty() {
            self.throttles.forget(id, now);
        }
        if let Some(queue) = self.queue(id) {
            queue.throttled = 0;
        }
    }

    /// Aborts a command that waits. False if there is none with that identifier on that queue of the controller.
    pub(crate) fn abort_throttled(
        &mut self,
        controller: usize,
        (qid, cid): (u16, u16),
        now: Instant,
    ) -> bool {
        let io = self.controllers.get(controller).map(|one| one.io.iter().flatten().copied());
        let ids: Vec<QueueId> = io.into_iter().flatten().collect();
        let is_it = |queue: &&mut Queue| queue.qid == qid;
        let Some(id) = ids.into_iter().find(|&id| self.queue(id).as_ref().is_some_and(is_it))
        else {
            return false;
        };
        let Some(queue) = self.queue(id) else { return false };
        let waits = |one: &crate::request::Request| {
            one.state == State::Throttled && one.command.cid() == cid
        };
        let Some(slot) = queue.requests.iter().position(waits) else { return false };
        let slot = slot as u16;
        queue.throttled -= 1;
        for (_, entry) in &mut self.throttles.all {
            entry.throttle.extract(now, |owner, one| (owner, one) == (id, slot));
        }
        self.throttles.settle();
        self.finish(id, slot, Status::ABORTED.into());
        true
    }

    /// Gives a queue whose commands wait more memory for data in capsules. False if it has it, or there is none.
    pub(crate) fn add_capsules(&mut self, id: QueueId, arena: &mut Arena) -> bool {
        let used = self.throttles.extra;
        let Some(queue) = self.queue(id).filter(|queue| queue.throttled > 0) else { return false };
        let bytes = queue.extra_bytes();
        let added = used + bytes <= EXTRA && queue.add_extra(arena);
        self.throttles.extra += if added { bytes } else { 0 };
        added
    }

    /// Frees the further memory of a queue, if it is not used. Returns whether there was any.
    pub(crate) fn free_capsules(&mut self, id: QueueId, arena: &mut Arena) {
        if let Some(freed) = self.queue(id).map(|queue| queue.free_extra(arena)) {
            self.throttles.extra -= freed;
        }
    }

    /// Frees further memory that is not used any more.
    pub(crate) fn check_capsules(&mut self, arena: &mut Arena) {
        if self.throttles.extra == 0 {
            return;
        }
        let unused = self.queues.iter().filter(|(_, queue)| queue.throttled == 0);
        let ids: Vec<QueueId> = unused.map(|(_, queue)| queue.id).collect();
        ids.into_iter().for_each(|id| self.free_capsules(id, arena));
    }

    /// Bytes of further memory in use.
    #[cfg(test)]
    pub(crate) fn extra_capsules(&self) -> usize {
        self.throttles.extra
    }

    /// Number of limits that are kept, also of those of namespaces that are gone.
    #[cfg(test)]
    pub(crate) fn kept_limits(&self) -> usize {
        self.throttles.all.len()
    }
}
