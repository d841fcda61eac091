//! The port as a smoltcp device: one received packet at a time, and a queue of frames to be transmitted. smoltcp
//! exchanges IP packets with it, and the device adds the Ethernet header.
//!
//! The queue is unbounded for smoltcp: smoltcp 0.14 drops a fast retransmission that its device refuses, together with
//! its timer, and the connection then stalls until three keep-alives were answered. Callers of smoltcp check first that
//! there is room. One call makes at most one frame for each socket.

use crate::segment;
use crate::smoltcp_gaps::smc_option;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use drivers::hal::Instant;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};

/// Length of an Ethernet header.
pub const ETHERNET_HEADER: usize = 14;
/// Upper bound of the headers of Ethernet, IP and TCP with options.
const HEADERS: usize = 128;

/// Converts `now` to smoltcp's time, which counts microseconds.
pub fn to_smoltcp(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.as_nanos() / 1000) as i64)
}

/// Converts a smoltcp time. smoltcp represents "now" by a time at or before zero.
pub fn from_smoltcp(at: smoltcp::time::Instant) -> Instant {
    Instant::from_nanos((at.total_micros().max(0) as u64).saturating_mul(1000))
}

/// Frames that wait for room in the port, oldest first. Memory for its depth is allocated at construction.
#[derive(Debug)]
pub struct Queue {
    frames: Box<[u8]>,
    lengths: Box<[usize]>,
    slot: usize,
    first: usize,
    count: usize,
    /// Frames beyond the depth; they leave after the others.
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

    /// Whether there is no room for another frame.
    pub fn is_full(&self) -> bool {
        self.count == self.lengths.len() || !self.beyond.is_empty()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of frames.
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

    /// The newest frame.
    pub fn back(&self) -> Option<&[u8]> {
        if let Some(frame) = self.beyond.back() {
            return Some(frame);
        }
        let at = (self.first + self.count.checked_sub(1)?) % self.lengths.len();
        Some(&self.frames[at * self.slot..][..self.lengths[at]])
    }

    /// Discards all frames.
    pub fn clear(&mut self) {
        while !self.is_empty() {
            self.pop();
        }
    }

    /// Discards the oldest frame.
    pub fn pop(&mut self) {
        if self.count > 0 {
            self.first = (self.first + 1) % self.lengths.len();
            self.count -= 1;
        } else if self.beyond.pop_front().is_some() && self.beyond.is_empty() {
            // Many connections at a time can have grown it.
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

    /// As `push`, but also beyond the depth, and only headers are zeroed first. `fill` gets a whole slot, and returns
    /// the frame's final length.
    ///
    /// # Panics
    /// If the frame is longer than a slot.
    pub fn append<R>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> (R, usize)) -> R {
        assert!(len <= self.slot, "smoltcp exceeds the MTU of its device");
        if self.is_full() {
            let mut frame = vec![0; self.slot];
            let (result, len) = fill(&mut frame);
            frame.truncate(len);
            self.beyond.push_back(frame.into());
            return result;
        }
        let at = (self.first + self.count) % self.lengths.len();
        let room = &mut self.frames[at * self.slot..][..self.slot];
        room[..len.min(HEADERS)].fill(0);
        let (result, len) = fill(room);
        self.lengths[at] = len.min(self.slot);
        self.count += 1;
        result
    }
}

/// How packets written by smoltcp are framed.
#[derive(Clone, Copy, Debug)]
pub enum Framing {
    /// IP packets between two stations.
    Ip {
        /// Our MAC address.
        from: [u8; 6],
        /// Destination MAC address.
        to: [u8; 6],
        /// SYNs get the SMC option.
        smc: bool,
    },
}

/// The port during one call into smoltcp.
pub struct Link<'a> {
    /// The packet for smoltcp to process.
    pub received: Option<&'a [u8]>,
    /// Where frames to transmit go.
    pub queue: &'a mut Queue,
    /// Largest layer 3 packet in bytes.
    pub mtu: usize,
    /// Framing of packets that smoltcp writes.
    pub framing: Framing,
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
        let packet = self.received.take()?;
        Some((Received(packet), Slot(self.queue, self.framing)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Slot<'_>> {
        Some(Slot(self.queue, self.framing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = self.mtu;
        capabilities.medium = Medium::Ip;
        // The filter verifies the IPv4 checksum on receive. `segment` verifies and writes TCP's.
        capabilities.checksum.ipv4 = Checksum::Tx;
        capabilities.checksum.tcp = Checksum::None;
        capabilities
    }
}

/// A received packet, for smoltcp.
pub struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Room for one frame in the queue, for smoltcp.
pub struct Slot<'a>(&'a mut Queue, Framing);

impl TxToken for Slot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Framing::Ip { from, to, smc } = self.1;
        let mut len = ETHERNET_HEADER + len;
        self.0.append(len, |room| {
            let result = f(&mut room[ETHERNET_HEADER..len]);
            head(room, from, to);
            if smc {
                len = smc_option::add(room, len);
            }
            segment::seal(&mut room[..len]);
            (result, len)
        })
    }
}

/// Writes the Ethernet header of a frame that holds an IP packet.
pub fn head(frame: &mut [u8], from: [u8; 6], to: [u8; 6]) {
    let Some((header, packet)) = frame.split_first_chunk_mut::<ETHERNET_HEADER>() else { return };
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    header[12..].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
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
            assert_eq!(queue.back(), Some(&[round + 2; 3][..]));
            for n in 0..3 {
                assert_eq!(queue.front().unwrap(), &vec![round + n; 1 + n as usize]);
                queue.pop();
            }
            assert!(queue.is_empty());
        }
        assert!(queue.push(9, |_| ()).is_none(), "longer than a slot");
        assert_eq!(queue.back(), None);
    }

    #[test]
    fn frames_beyond_the_depth_leave_last_and_block_push() {
        let mut queue = Queue::new(2, 8);
        for n in 0..5u8 {
            queue.append(1, |room| {
                room[..2].copy_from_slice(&[n, 9]);
                ((), 2)
            });
            assert_eq!(queue.is_full(), n > 0);
            assert_eq!(queue.back(), Some(&[n, 9][..]));
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
