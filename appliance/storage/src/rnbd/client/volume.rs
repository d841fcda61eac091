//! A device of a server as a volume.

use super::queue::Queue;
use crate::volume::{Completion, Request, Submitted, Volume, VolumeError, check};
use alloc::rc::Rc;
use core::cell::RefCell;
use drivers::hal::Geometry;

/// A mapped device. Its requests make progress when its [`super::Client`] is polled.
#[derive(Debug)]
pub struct RemoteVolume(pub(super) Rc<RefCell<Queue>>);

impl Volume for RemoteVolume {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let mut queue = self.0.borrow_mut();
        if queue.ended {
            return Err(VolumeError::Io);
        }
        check(&queue.geometry, request)?;
        if queue.in_use == queue.depth {
            return Err(VolumeError::Busy);
        }
        queue.submit(request);
        Ok(Submitted::Pending)
    }

    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        let mut queue = self.0.borrow_mut();
        let done = queue.done.pop_front()?;
        queue.in_use -= 1;
        Some(done)
    }

    fn is_idle(&self) -> bool {
        let queue = self.0.borrow();
        queue.in_use == 0 && queue.unsettled == 0
    }

    fn give_up(&mut self) {
        self.0.borrow_mut().give_up();
    }

    /// A request ends when no path refers to its memory any more.
    fn releases_memory(&self) -> bool {
        true
    }
}
