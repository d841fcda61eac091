//! A pair of queues of a controller that the loop of another core owns, as that loop has it.

use super::line::{Line, Said, Trouble, Word};
use super::pair::{Late, Nonsense, Pair};
use crate::hal::{Completion, CoreQueue, Disk, Geometry, Instant, Request, SubmitError};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

/// The pair, and the line to the owner.
pub struct NvmeQueue {
    pair: Pair,
    line: Arc<Line>,
    /// What the owner said when it was listened to last.
    heard: Word,
    /// The epoch for which the rings were made as new.
    ready: u32,
}

impl NvmeQueue {
    /// A pair whose rings are new in epoch `ready`, and that the owner knows by `line`.
    pub fn new(pair: Pair, line: Arc<Line>, ready: u32) -> Self {
        let heard = line.word();
        let mut queue = NvmeQueue { pair, line, heard, ready };
        queue.heed();
        queue
    }

    /// Whether the owner has said something that was not heeded yet.
    #[inline(always)]
    fn has_news(&self) -> bool {
        self.line.word() != self.heard
    }

    /// Listens to the owner.
    #[inline(always)]
    fn listen(&mut self) {
        if self.has_news() {
            self.heed();
        }
    }

    /// Does what the owner says (see [`super::line`]).
    #[cold]
    fn heed(&mut self) {
        self.heard = self.line.word();
        let epoch = self.heard.epoch();
        match self.heard.said() {
            Said::Made if epoch == self.ready => self.pair.open(),
            Said::Quiet if epoch != self.ready => {
                self.pair.hold();
                self.pair.begin_anew();
                self.ready = epoch;
                self.line.set_ready(epoch);
            }
            Said::Gone => self.pair.end_all(),
            Said::Made | Said::Quiet | Said::Stopping => self.pair.hold(),
        }
    }

    #[inline(always)]
    fn poll(&mut self, unit: usize) -> Option<Completion> {
        self.listen();
        match self.pair.poll(unit) {
            Ok(done) => {
                if done.is_none() {
                    self.line.count(self.pair.queue.completed());
                }
                done
            }
            Err(Nonsense) => {
                self.line.ask_for_reset(self.heard.epoch(), Trouble::Nonsense);
                self.pair.ended(unit)
            }
        }
    }

    fn watch(&mut self, now: Instant) {
        self.listen();
        self.pair.age.grow(now);
        match self.pair.late(self.line.may_abort()) {
            Late::Nothing => {}
            Late::Abort(cid) => self.line.ask_to_abort(cid),
            Late::Reset => {
                self.pair.hold();
                self.line.ask_for_reset(self.heard.epoch(), Trouble::Late);
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

/// A namespace, over such a pair.
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
        queue.listen();
        queue.pair.tell();
    }

    fn poll(&mut self) -> Option<Completion> {
        self.queue.borrow_mut().poll(self.unit)
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let queue = &mut *self.queue.borrow_mut();
        // Who has nothing under way does not poll.
        queue.listen();
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
        // Once for all namespaces.
        if self.unit == 0 {
            self.queue.borrow_mut().watch(now);
        }
    }
}
