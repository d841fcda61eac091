//! The port as smoltcp sees it: one received frame at a time, and a queue of frames that wait to be
//! transmitted.
//!
//! The queue has no end for smoltcp: 0.14 forgets a fast retransmission that its device refuses, timer and
//! all, and the connection then stands still until three keep-alives were answered. Whoever calls smoltcp
//! looks first whether there is room; one call makes one frame for each socket at most.

use crate::smc_option::SmcOption;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use drivers::hal::Instant;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};

/// Length of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;

/// smoltcp's name for `now`. Its resolution is a microsecond.
pub fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

/// Our name for a time of smoltcp's; what it calls "now" lies at or before zero.
pub fn from_smoltcp(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos((at.total_micros().max(0) as u64).saturating_mul(1000))
}

/// Frames that wait for room in the port, oldest first. Memory for its depth is taken at construction.
#[derive(Debug)]
pub struct Queue {
    frames: Box<[u8]>,
    lengths: Box<[usize]>,
    slot: usize,
    first: usize,
    count: usize,
    /// Those beyond its depth, behind the others.
    beyond: VecDeque<Box<[u8]>>,
}

impl Queue {
    /// A queue of `depth` frames of up to `slot` bytes.
    pub fn new(depth: usize, slot: usize) -> Self {
        Queue {
            frames: vec![0; depth * slot].into(),
            lengths: vec![0; depth].into(),
            slot,
            first: 0,
            count: 0,
            beyond: VecDeque::new(),
        }
    }

    /// Whether a frame would find no room.
    pub fn is_full(&self) -> bool {
        self.count == self.lengths.len() || !self.beyond.is_empty()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count + self.beyond.len()
    }

    /// The oldest frame.
    pub fn front(&self) -> Option<&[u8]> {
        if self.count == 0 {
            return self.beyond.front().map(|frame| &frame[..]);
        }
        let start = self.first * self.slot;
        Some(&self.frames[start..start + self.lengths[self.first]])
    }

    /// Forgets the oldest frame.
    pub fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % self.lengths.len();
            self.count -= 1;
        } else if self.beyond.pop_front().is_some() && self.beyond.is_empty() {
            // A crowd of connections took it.
            self.beyond = VecDeque::new();
        }
    }

    /// Appends a frame of `len` bytes, zeroed and then written by `fill`. None if there is no room
    /// or the frame is longer than a slot.
    pub fn push<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        if self.is_full() || len > self.slot {
            return None;
        }
        let at = (self.first + self.count) % self.lengths.len();
        let frame = &mut self.frames[at * self.slot..][..len];
        frame.fill(0);
        let result = fill(frame);
        self.lengths[at] = len;
        self.count += 1;
        Some(result)
    }

    /// As `push`, also beyond its depth; then `change` is shown the frame with all the room that it may
    /// fill, and its length, which it gives back anew.
    ///
    /// # Panics
    /// If the frame is longer than a slot.
    fn append<R>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
        change: impl FnOnce(&mut [u8], usize) -> usize,
    ) -> R {
        assert!(len <= self.slot, "smoltcp keeps to the MTU that it was told");
        if self.is_full() {
            let mut frame = vec![0; self.slot];
            let result = fill(&mut frame[..len]);
            let len = change(&mut frame, len);
            frame.truncate(len);
            self.beyond.push_back(frame.into());
            return result;
        }
        let result = self.push(len, fill).expect("there is room");
        let at = (self.first + self.count - 1) % self.lengths.len();
        let room = &mut self.frames[at * self.slot..][..self.slot];
        self.lengths[at] = change(room, len).min(self.slot);
        result
    }
}

/// The port during one call into smoltcp.
pub struct Link<'a> {
    /// The frame to take in.
    pub received: Option<&'a [u8]>,
    /// Where frames to transmit go.
    pub queue: &'a mut Queue,
    /// Largest layer 3 packet in bytes.
    pub mtu: usize,
    /// What is added to frames.
    pub smc: &'a SmcOption,
}

impl Device for Link<'_> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Slot<'t>
    where
        Self: 't;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Slot<'_>)> {
        let frame = self.received.take()?;
        Some((Received(frame), Slot(self.queue, self.smc)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Slot<'_>> {
        Some(Slot(self.queue, self.smc))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + ETHERNET_HEADER;
        capabilities
    }
}

/// A received frame, for smoltcp.
pub struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for one frame in the queue, for smoltcp.
pub struct Slot<'a>(&'a mut Queue, &'a SmcOption);

impl TxToken for Slot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.append(len, f, |room, len| self.1.add(room, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_in_order_and_the_queue_is_bounded() {
        let mut queue = Queue::new(3, 8);
        for round in 0..10u8 {
            for n in 0..3 {
                assert!(queue.push(1 + n as usize, |f| f.fill(round + n)).is_some());
            }
            assert!(queue.push(1, |_| ()).is_none());
            for n in 0..3 {
                assert_eq!(queue.front().unwrap(), &vec![round + n; 1 + n as usize]);
                queue.pop();
            }
            assert!(queue.is_empty());
        }
        assert!(queue.push(9, |_| ()).is_none(), "longer than a slot");
    }

    #[test]
    fn what_is_beyond_its_depth_comes_last_and_keeps_others_out() {
        let mut queue = Queue::new(2, 8);
        for n in 0..5u8 {
            queue.append(1, |f| f.fill(n), |room, len| (room[len] = 9, len + 1).1);
            assert_eq!(queue.is_full(), n > 0);
        }
        assert_eq!(queue.len(), 5);
        for n in 0..5 {
            assert_eq!(queue.front(), Some(&[n, 9][..]));
            assert!(queue.push(1, |_| ()).is_none());
            queue.pop();
        }
        assert!(queue.is_empty() && queue.push(1, |_| ()).is_some());
    }
}
