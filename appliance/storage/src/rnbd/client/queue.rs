//! Queue between a remote volume and its client: requests one way, completions the other. Both belong
//! to one loop.

use super::bell::Bell;
use crate::volume::{Completion, Request};
use alloc::collections::VecDeque;
use drivers::hal::Geometry;

/// Submission and completion queue of a device.
#[derive(Debug)]
pub(super) struct Queue {
    /// Geometry of the device; without sectors before it was first opened.
    pub geometry: Geometry,
    pub submitted: VecDeque<Request>,
    pub done: VecDeque<Completion>,
    /// Requests that the volume's user submitted and whose completion it has not polled.
    pub in_use: usize,
    pub depth: usize,
    /// The volume's user has given up all requests.
    pub give_up: bool,
    /// Given-up requests that the server may still execute, and paths over which some may still arrive.
    pub unsettled: usize,
    /// The device was unmapped.
    pub ended: bool,
    /// Bell of the client: rung when the queue has work for it.
    pub bell: Option<Bell>,
}

impl Queue {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// Queues a request of the volume's user.
    pub fn submit(&mut self, request: &Request) {
        self.in_use += 1;
        self.submitted.push_back(*request);
        self.ring();
    }

    /// Marks all requests as given up by the volume's user.
    pub fn give_up(&mut self) {
        self.give_up = self.in_use > 0;
        self.ring();
    }

    pub fn new(depth: usize) -> Self {
        Queue {
            geometry: Geometry::ABSENT,
            submitted: VecDeque::with_capacity(depth),
            done: VecDeque::with_capacity(depth),
            in_use: 0,
            depth,
            give_up: false,
            unsettled: 0,
            ended: false,
            bell: None,
        }
    }
}
