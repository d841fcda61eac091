//! The port as smoltcp sees it: one received frame at a time, and a bounded queue of frames that
//! wait to be transmitted.

use crate::smc_option::SmcOption;
use alloc::boxed::Box;
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

/// Frames that wait for room in the port, oldest first. All memory is taken at construction.
#[derive(Debug)]
pub struct Queue {
    frames: Box<[u8]>,
    lengths: Box<[usize]>,
    slot: usize,
    first: usize,
    count: usize,
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
        }
    }

    /// Whether a frame would find no room.
    pub fn is_full(&self) -> bool {
        self.count == self.lengths.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The oldest frame.
    pub fn front(&self) -> Option<&[u8]> {
        let start = self.first * self.slot;
        (self.count > 0).then(|| &self.frames[start..start + self.lengths[self.first]])
    }

    /// Forgets the oldest frame.
    pub fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % self.lengths.len();
            self.count -= 1;
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

    /// Shows `change` the last frame, with all the room that it may fill, and its length, which it
    /// gives back anew.
    pub fn extend_last(&mut self, change: impl FnOnce(&mut [u8], usize) -> usize) {
        let Some(last) = self.count.checked_sub(1) else { return };
        let at = (self.first + last) % self.lengths.len();
        let room = &mut self.frames[at * self.slot..][..self.slot];
        self.lengths[at] = change(room, self.lengths[at]).min(self.slot);
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
        if self.queue.is_full() {
            return None;
        }
        let frame = self.received.take()?;
        Some((Received(frame), Slot(self.queue, self.smc)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Slot<'_>> {
        (!self.queue.is_full()).then_some(Slot(self.queue, self.smc))
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
        assert!(len <= self.0.slot, "smoltcp keeps to the MTU that it was told");
        let result = self.0.push(len, f);
        self.0.extend_last(|room, len| self.1.add(room, len));
        result.expect("a slot is handed out only while there is room")
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
}
