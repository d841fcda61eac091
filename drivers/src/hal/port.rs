//! Interface of an Ethernet port: whole frames in batches, transmit by reference.

use super::{
    Arena, Clock, DeviceLife, Instant, Interrupt, Notice, Platform, TransmitProgress, Window,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// A received frame, still in the port's buffer. Give it back with [`Port::recycle`].
#[derive(Debug)]
pub struct Frame {
    /// The driver's number of the buffer.
    pub buffer: u32,
    /// Length of the frame in bytes, from the destination MAC, without FCS.
    pub len: u32,
}

/// One frame to transmit: `header`, then the payload windows in order, then `trailer`.
/// Header and trailer are copied; the device reads the payload in place.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From the destination MAC on. Up to 192 bytes cost least. May hold the whole frame.
    pub header: &'a [u8],
    /// Payload in DMA memory, at most [`Packet::MAX_PAYLOAD_WINDOWS`] windows.
    pub payload: &'a [Window],
    /// Bytes that follow the payload (pad and ICRC for RoCE), at most 16.
    pub trailer: &'a [u8],
}

impl Packet<'_> {
    /// Maximum number of windows of a packet's payload.
    pub const MAX_PAYLOAD_WINDOWS: usize = 4;
    /// Longest trailer in bytes.
    pub const MAX_TRAILER: usize = 16;

    /// Length of the frame in bytes.
    pub fn len(&self) -> usize {
        let payload = match self.payload {
            [] => 0,
            [window] => window.len(),
            windows => windows.iter().map(Window::len).sum(),
        };
        self.header.len() + payload + self.trailer.len()
    }

    /// Whether the frame is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why [`Port::transmit`] refused a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitError {
    /// No room now: poll, then try again.
    Full,
    /// Larger than the port can ever send, or made of too many parts: a mistake of the caller.
    TooLarge,
}

impl fmt::Display for TransmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransmitError::Full => "the transmit queue is full",
            TransmitError::TooLarge => "the frame is larger than the port can send",
        })
    }
}

impl core::error::Error for TransmitError {}

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Buffers that the device returned with an invalid number or length.
    pub rx_errors: u64,
    /// Frames handed to the device.
    pub tx_frames: u64,
    /// Bytes handed to the device.
    pub tx_bytes: u64,
    /// Frames that were refused because the queue was full.
    pub tx_full: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// Frames that the device dropped because it had no buffer or they were damaged, as far as the device reports them.
    pub rx_missed: u64,
    /// Resets by the driver.
    pub resets: u64,
}

impl core::ops::AddAssign for PortCounters {
    fn add_assign(&mut self, more: PortCounters) {
        self.rx_frames += more.rx_frames;
        self.rx_bytes += more.rx_bytes;
        self.rx_errors += more.rx_errors;
        self.tx_frames += more.tx_frames;
        self.tx_bytes += more.tx_bytes;
        self.tx_full += more.tx_full;
        self.interrupts += more.interrupts;
        self.rx_missed += more.rx_missed;
        self.resets += more.resets;
    }
}

/// UDP datagrams to one address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// Destination IPv4 address.
    pub address: [u8; 4],
    /// Destination port.
    pub port: u16,
}

/// Key of the Toeplitz hash by which a device chooses a receive queue (RSS).
pub type HashKey = [u32; 10];

/// An Ethernet port, owned by one loop. Only [`Port::steer`] and [`Port::split`] block or allocate.
pub trait Port {
    /// The port's MAC address.
    fn mac(&self) -> [u8; 6];
    /// Largest layer 3 packet in bytes (1500 for plain Ethernet).
    fn mtu(&self) -> usize;
    /// The VLAN whose tag the port inserts into frames that it sends; None if it inserts no tag.
    fn vlan(&self) -> Option<u16> {
        None
    }
    /// Whether the link is up.
    fn link_up(&mut self) -> bool;
    /// The next received frame, if any.
    fn receive(&mut self) -> Option<Frame>;
    /// The bytes of a received frame.
    fn bytes(&self, frame: &Frame) -> &[u8];
    /// Returns the buffer of a frame to the device, with the next [`Port::flush`].
    fn recycle(&mut self, frame: Frame);
    /// Passes received frames to `take`, at most `most` of them, until `take` returns false. Recycles their buffers,
    /// and returns the number of frames.
    fn receive_each(&mut self, most: usize, take: &mut dyn FnMut(&[u8]) -> bool) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(frame) = self.receive()
        {
            taken += 1;
            let go_on = take(self.bytes(&frame));
            self.recycle(frame);
            if !go_on {
                break;
            }
        }
        taken
    }
    /// Queues a frame. The next [`Port::flush`] notifies the device.
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError>;
    /// Notifies the device of queued frames and recycled buffers.
    fn flush(&mut self);
    /// Enables the interrupt for the next received frame, before the loop halts (true), or disables it, while the loop
    /// polls (false). After `true`, check [`Port::pending`] before halting.
    fn set_interrupts(&mut self, wanted: bool);
    /// As `set_interrupts(true)`, but the interrupt may wait for the frame of this number, counted from now (the first
    /// is 1). A port that does not support this interrupts at the first frame.
    fn interrupt_at(&mut self, _frame: usize) {
        self.set_interrupts(true);
    }
    /// Whether frames wait for [`Port::receive`], or a port that refused a frame has room again.
    fn pending(&self) -> bool;
    /// Whether the port may accept a frame that it refused ([`TransmitError::Full`]). A port that returns false reports
    /// by [`Port::pending`] and by an interrupt when it has room again. A port that cannot do so always returns true.
    fn has_room(&self) -> bool {
        true
    }
    /// Transmit progress of the device. Reclaims sent frames, so the cost grows with the frames sent since the last
    /// call. A port that copies frames reports all of them as sent.
    fn progress(&mut self) -> TransmitProgress;
    /// Whether the device still has frames to send, which a shutdown of the machine would lose. A port that cannot tell
    /// returns false.
    fn is_sending(&mut self) -> bool {
        let TransmitProgress { queued, sent } = self.progress();
        sent < queued
    }
    /// Routes the port's interrupts to another core, as messages of `interrupt`. Call it before the port is used. False
    /// if the port does not support it; the routing is then unchanged.
    fn route(&mut self, _interrupt: &Interrupt) -> bool {
        false
    }
    /// Makes ports of up to `more` further pairs of queues of the device, each for a loop of its own; perhaps fewer or
    /// none. The device steers a packet by a hash of its two IP addresses alone, so that all packets of a host arrive
    /// at one port. Frames without IP addresses may arrive at any of them. This port handles the device as a whole: the
    /// others follow its resets. Call it before the port is used; it may wait for the device.
    fn split(
        &mut self,
        _more: usize,
        _key: &HashKey,
        _platform: &mut dyn Platform,
        _clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        Vec::new()
    }
    /// Steers datagrams of this flow to a receive queue of their own, so that no other traffic takes their buffers.
    /// [`Port::receive`] polls that queue first. Takes effect at once or, if the device is busy, with one of the next
    /// calls of [`Port::watch`]. False if the port has no such queue, no memory for it, or no room for another flow.
    /// Call it before the port is used.
    fn steer(&mut self, _flow: UdpFlow, _arena: &mut Arena) -> bool {
        false
    }
    /// Undoes [`Port::steer`].
    fn unsteer(&mut self, _flow: UdpFlow) {}
    /// Whether the port can raise interrupts. If not, a loop that halts must poll it by timer.
    fn wakes(&self) -> bool {
        true
    }
    /// Periodic work of the driver. Call it about once a second.
    fn watch(&mut self, _now: Instant) {}
    /// The next event for the operator, oldest first. Each is returned once.
    fn notice(&mut self) -> Option<Notice> {
        None
    }
    /// State of the device.
    fn life(&self) -> DeviceLife {
        DeviceLife::default()
    }
    /// Counters since the port was opened.
    fn counters(&self) -> PortCounters;
}
