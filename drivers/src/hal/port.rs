//! An Ethernet port as its users see it: whole frames in batches, transmit by reference.

use super::{Arena, Clock, Instant, Interrupt, Notice, Platform, TransmitProgress, Window};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

/// A received frame, still in the port's buffer. Give it back with [`Port::recycle`].
#[derive(Debug)]
pub struct Frame {
    /// The driver's name for the buffer.
    pub buffer: u32,
    /// Length of the frame in bytes, from the destination MAC, without FCS.
    pub len: u32,
}

/// One frame to transmit: `header`, then the payload windows in order, then `trailer`.
/// Header and trailer are copied; the payload is read by the device where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// From the destination MAC on. Up to 192 bytes cost least; the whole frame may stand here.
    pub header: &'a [u8],
    /// Payload in DMA memory, at most [`Packet::MAX_PAYLOAD_WINDOWS`] windows.
    pub payload: &'a [Window],
    /// What follows the payload (pad and ICRC for RoCE), at most 16 bytes.
    pub trailer: &'a [u8],
}

impl Packet<'_> {
    /// Most windows a packet's payload may be made of.
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

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitError {
    /// No room now: poll, then try again.
    Full,
    /// Larger than the port can ever send, or made of too many parts: our mistake.
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

/// What a port counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Buffers that the device gave back with an impossible name or length.
    pub rx_errors: u64,
    /// Frames handed to the device.
    pub tx_frames: u64,
    /// Bytes handed to the device.
    pub tx_bytes: u64,
    /// Times a frame found no room.
    pub tx_full: u64,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// Frames that the device could not receive: it had no buffer for them, or they were damaged. As far as it tells.
    pub rx_missed: u64,
    /// Times that its driver had to reset it.
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

/// UDP datagrams to one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// IPv4 address that they are sent to.
    pub address: [u8; 4],
    /// Port that they are sent to.
    pub port: u16,
}

/// Key of the hash (Toeplitz) by which a device that has several queues chooses one.
pub type HashKey = [u32; 10];

/// An Ethernet port, owned by one loop. Nothing here blocks or allocates, but that [`Port::steer`] and [`Port::split`] do.
pub trait Port {
    /// The port's MAC address.
    fn mac(&self) -> [u8; 6];
    /// Largest layer 3 packet in bytes (1500 for plain Ethernet).
    fn mtu(&self) -> usize;
    /// The VLAN whose tag it puts before what it sends; None if it sends frames as they are.
    fn vlan(&self) -> Option<u16> {
        None
    }
    /// Whether the link is up.
    fn link_up(&mut self) -> bool;
    /// The next received frame, if any.
    fn receive(&mut self) -> Option<Frame>;
    /// The bytes of a received frame.
    fn bytes(&self, frame: &Frame) -> &[u8];
    /// Gives the buffer of a frame back to the device (told with the next [`Port::flush`]).
    fn recycle(&mut self, frame: Frame);
    /// Hands frames that were received to `take`, up to `most` of them and for as long as it returns true;
    /// how many. The device has their buffers back after that.
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
    /// Queues a frame; the device is told with the next [`Port::flush`].
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError>;
    /// Tells the device of what was queued and recycled.
    fn flush(&mut self);
    /// Asks for an interrupt at the next received frame, before the loop halts (true), or for
    /// none, while it polls (false). After `true`, look at [`Port::pending`] before halting.
    fn set_interrupts(&mut self, wanted: bool);
    /// As `set_interrupts(true)`, but frames before the one of this number from now on (the first is 1)
    /// need no interrupt. A port that cannot tell them apart interrupts at the first.
    fn interrupt_at(&mut self, _frame: usize) {
        self.set_interrupts(true);
    }
    /// Whether something has arrived that was not received yet, or there is room again for a frame that was
    /// refused.
    fn pending(&self) -> bool;
    /// Whether a frame that was refused ([`TransmitError::Full`]) may be taken now. A port that says no says so by
    /// [`Port::pending`], and by an interrupt, when there is room again; one that cannot always says yes.
    fn has_room(&self) -> bool {
        true
    }
    /// How far the device has come. Takes back what it has sent, so the cost is that of the frames since the last time.
    /// A port that copies what it is given says that all is sent.
    fn progress(&mut self) -> TransmitProgress;
    /// Whether the device has frames that it has not sent yet, for who is about to end the machine: it would lose
    /// them. A port that cannot tell says no.
    fn is_sending(&mut self) -> bool {
        let TransmitProgress { queued, sent } = self.progress();
        sent < queued
    }
    /// Sends its interrupts to another core, as messages of `interrupt`, before it is used. False if it
    /// cannot: then they go where they went.
    fn route(&mut self, _interrupt: &Interrupt) -> bool {
        false
    }
    /// Makes ports of up to `more` further pairs of queues of its device, each for a loop of its own; as many as the device
    /// has, perhaps none. The device chooses among all of them by a hash of both IP addresses of a packet and of nothing
    /// else, so that all from one host comes to one of them; where what has no such addresses comes is not said. What
    /// concerns the device as a whole is this port's business: the others follow when it is reset. To be called before work
    /// begins; may wait for the device.
    fn split(
        &mut self,
        _more: usize,
        _key: &HashKey,
        _platform: &mut dyn Platform,
        _clock: &dyn Clock,
    ) -> Vec<Box<dyn Port + Send>> {
        Vec::new()
    }
    /// Asks that datagrams of this flow be received in a queue of their own, which [`Port::receive`] looks at first:
    /// then no other traffic takes their buffers. Everything is received as before but for that, at once or, where the
    /// device is busy, with one of the next calls of [`Port::watch`]. False if the port cannot: it has no such queue,
    /// no memory for it, or as many flows as it can have. To be called before work begins.
    fn steer(&mut self, _flow: UdpFlow, _arena: &mut Arena) -> bool {
        false
    }
    /// Takes that back.
    fn unsteer(&mut self, _flow: UdpFlow) {}
    /// Whether it can raise interrupts at all. If not, a loop that halts must look again by timer.
    fn wakes(&self) -> bool {
        true
    }
    /// Looks after the device; to be called about once a second.
    fn watch(&mut self, _now: Instant) {}
    /// What has happened to the device since somebody asked, oldest first.
    fn notice(&mut self) -> Option<Notice> {
        None
    }
    /// What was counted so far.
    fn counters(&self) -> PortCounters;
}
