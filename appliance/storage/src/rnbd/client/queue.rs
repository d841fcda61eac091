//! What a remote volume and its client share: requests one way, completions the other. Both belong
//! to one loop.

use super::bell::Bell;
use crate::volume::{Completion, Request};
use alloc::collections::VecDeque;
use drivers::hal::Geometry;

/// The queue pair of a device, so to speak.
#[derive(Debug)]
pub(super) struct Queue {
    /// Shape of the device; without sectors before it was first opened.
    pub geometry: Geometry,
    pub submitted: VecDeque<Request>,
    pub done: VecDeque<Completion>,
    /// Requests taken from the volume's user and not given back.
    pub in_use: usize,
    pub depth: usize,
    /// The volume's user gives up all requests.
    pub give_up: bool,
    /// Requests that were given up and that the server may still be at, and paths that may bring some.
    pub unsettled: usize,
    /// The device was unmapped.
    pub ended: bool,
    /// The client's: rung when there is something for it to do.
    pub bell: Option<Bell>,
}

impl Queue {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }

    /// Takes a request of the volume's user.
    pub fn submit(&mut self, request: &Request) {
        self.in_use += 1;
        self.submitted.push_back(*request);
        self.ring();
    }

    /// The volume's user gives up all requests.
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
