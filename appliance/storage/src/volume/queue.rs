//! Shares one disk among several users: the requests of all users go into its queue, and each user polls its own
//! completions.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use drivers::hal::{Completion, Disk, Geometry, Request, SubmitError};

/// Bits of a tag that the user may set; the bits above hold the user's number.
const TAG_BITS: u32 = 48;

#[derive(Debug)]
struct Shared<D> {
    disk: D,
    /// By user: completions that were not polled yet; None if the user is gone.
    users: Vec<Option<VecDeque<Completion>>>,
}

/// A user's handle of a disk. The queue is shared, so other users' requests may fill it.
#[derive(Debug)]
pub struct DiskHandle<D> {
    shared: Rc<RefCell<Shared<D>>>,
    user: usize,
}

impl<D: Disk> DiskHandle<D> {
    /// The first user of a disk.
    pub fn new(disk: D) -> Self {
        let users = alloc::vec![Some(VecDeque::with_capacity(disk.depth()))];
        DiskHandle { shared: Rc::new(RefCell::new(Shared { disk, users })), user: 0 }
    }

    /// Another user.
    pub fn another(&self) -> Self {
        let shared = &mut *self.shared.borrow_mut();
        let queue = Some(VecDeque::with_capacity(shared.disk.depth()));
        let user = match shared.users.iter().position(Option::is_none) {
            Some(user) => user,
            None => {
                shared.users.push(None);
                shared.users.len() - 1
            }
        };
        if let Some(place) = shared.users.get_mut(user) {
            *place = queue;
        }
        DiskHandle { shared: self.shared.clone(), user }
    }
}

impl<D> Drop for DiskHandle<D> {
    /// The user must have no requests in flight, because another user may get its number.
    fn drop(&mut self) {
        if let Some(place) = self.shared.borrow_mut().users.get_mut(self.user) {
            *place = None;
        }
    }
}

impl<D: Disk> Disk for DiskHandle<D> {
    fn geometry(&self) -> Geometry {
        self.shared.borrow().disk.geometry()
    }
    fn depth(&self) -> usize {
        self.shared.borrow().disk.depth()
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        debug_assert!(request.tag >> TAG_BITS == 0, "the upper bits of tags are reserved");
        let tag = request.tag | (self.user as u64) << TAG_BITS;
        self.shared.borrow_mut().disk.submit(&Request { tag, ..*request })
    }
    fn flush_queue(&mut self) {
        self.shared.borrow_mut().disk.flush_queue();
    }
    fn poll(&mut self) -> Option<Completion> {
        let shared = &mut *self.shared.borrow_mut();
        while let Some(done) = shared.disk.poll() {
            let user = (done.tag >> TAG_BITS) as usize;
            let tag = done.tag & ((1 << TAG_BITS) - 1);
            if let Some(Some(queue)) = shared.users.get_mut(user) {
                queue.push_back(Completion { tag, ..done });
            }
        }
        shared.users.get_mut(self.user)?.as_mut()?.pop_front()
    }
    fn set_interrupts(&mut self, wanted: bool) {
        self.shared.borrow_mut().disk.set_interrupts(wanted);
    }
    fn wakes(&self) -> bool {
        self.shared.borrow().disk.wakes()
    }
    fn pending(&self) -> bool {
        self.shared.borrow().disk.pending()
    }
    fn interrupts(&self) -> u64 {
        self.shared.borrow().disk.interrupts()
    }
}
