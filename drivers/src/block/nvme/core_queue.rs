//! A pair of I/O queues on a core other than the controller's owner. It follows the owner's resets (see
//! [`super::line`]).

use super::line::{Line, Said, Trouble, Word};
use super::pair::{InvalidCompletion, Late, Pair};
use crate::hal::{Completion, CoreQueue, Disk, Geometry, Instant, Request, SubmitError};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The pair of queues, and the line to the controller's owner.
pub struct NvmeQueue {
    pair: Pair,
    line: Arc<Line>,
    /// The owner's state that was applied last.
    seen: Word,
    /// The epoch for which the rings were cleared.
    ready: u32,
}

impl NvmeQueue {
    /// A pair whose rings are clear for epoch `ready`, with its line to the owner.
    pub fn new(pair: Pair, line: Arc<Line>, ready: u32) -> Self {
        let seen = line.word();
        let mut queue = NvmeQueue { pair, line, seen, ready };
        queue.apply_state();
        queue
    }

    /// Whether the owner's state has changed and was not applied yet.
    #[inline]
    fn has_news(&self) -> bool {
        self.line.word() != self.seen
    }

    /// Applies the owner's state if it has changed.
    #[inline]
    fn follow_owner(&mut self) {
        if self.has_news() {
            self.apply_state();
        }
    }

    /// Applies the owner's state (see [`super::line`]).
    #[cold]
    fn apply_state(&mut self) {
        self.seen = self.line.word();
        let epoch = self.seen.epoch();
        match self.seen.said() {
            Said::Made if epoch == self.ready => self.pair.open(),
            Said::Quiet if epoch != self.ready => {
                if self.pair.has_ended() {
                    self.pair.return_from_end();
                }
                self.pair.hold();
                self.pair.restart();
                self.ready = epoch;
                self.line.set_ready(epoch);
            }
            Said::Gone => self.pair.end_all(),
            Said::Made | Said::Quiet | Said::Stopping => self.pair.hold(),
        }
    }

    #[inline]
    fn poll(&mut self, unit: usize) -> Option<Completion> {
        self.follow_owner();
        match self.pair.poll(unit) {
            Ok(done) => {
                if done.is_none() {
                    self.line.count(self.pair.queue.completed());
                }
                done
            }
            Err(InvalidCompletion) => {
                self.line.ask_for_reset(self.seen.epoch(), Trouble::InvalidCompletion);
                self.pair.ended(unit)
            }
        }
    }

    fn watch(&mut self, now: Instant) {
        self.follow_owner();
        self.pair.age.update(now);
        match self.pair.late(self.line.may_abort()) {
            Late::Nothing => {}
            Late::Abort(cid) => self.line.ask_to_abort(cid),
            Late::Reset => {
                self.pair.hold();
                self.line.ask_for_reset(self.seen.epoch(), Trouble::Late);
            }
        }
    }
}

impl CoreQueue for NvmeQueue {
    fn disks(self: Box<Self>) -> Vec<Box<dyn Disk>> {
        let units = self.pair.units.len();
        let queue = Rc::new(RefCell::new(*self));
        let disk = |unit| Box::new(CoreDisk { queue: queue.clone(), unit }) as Box<dyn Disk>;
        (0..units).map(disk).collect()
    }
}

/// A namespace, reached through the pair of another core.
struct CoreDisk {
    /// Shared with the controller's other namespaces, all of the same loop.
    queue: Rc<RefCell<NvmeQueue>>,
    unit: usize,
}

impl Disk for CoreDisk {
    fn geometry(&self) -> Geometry {
        self.queue.borrow().pair.geometry(self.unit)
    }

    fn depth(&self) -> usize {
        self.queue.borrow().pair.depth(self.unit)
    }

    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.queue.borrow_mut().pair.submit(self.unit, request)
    }

    fn flush_queue(&mut self) {
        let queue = &mut *self.queue.borrow_mut();
        queue.follow_owner();
        queue.pair.ring_doorbell();
    }

    fn poll(&mut self) -> Option<Completion> {
        self.queue.borrow_mut().poll(self.unit)
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let queue = &mut *self.queue.borrow_mut();
        // Without requests in flight the loop does not poll, so the owner's state is checked here as well.
        queue.follow_owner();
        queue.pair.signal.set(wanted, &queue.pair.registers);
    }

    fn wakes(&self) -> bool {
        self.queue.borrow().pair.signal.wakes()
    }

    fn capacity_changed(&mut self) -> bool {
        let NvmeQueue { pair, line, .. } = &mut *self.queue.borrow_mut();
        if let Some(sectors) = line.sectors(self.unit) {
            pair.resize(self.unit, sectors);
        }
        pair.take_changed(self.unit)
    }

    fn pending(&self) -> bool {
        let queue = self.queue.borrow();
        queue.has_news() || queue.pair.pending(self.unit)
    }

    fn interrupts(&self) -> u64 {
        self.queue.borrow().pair.signal.count()
    }

    fn watch(&mut self, now: Instant) {
        // One namespace watches the pair for all.
        if self.unit == 0 {
            self.queue.borrow_mut().watch(now);
        }
    }
}
