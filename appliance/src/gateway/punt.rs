//! Connects the control plane to a port of another loop, or to a bridge, by two rings of frames.

use super::frame_ring::{Receiver, Sender, frame_ring};
use super::loop_waker::LoopWaker;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;

/// Bytes of each ring for control-plane frames.
pub(super) const RING: usize = 64 << 10;
/// Neighbour requests of a loop that can wait. If there is no room, the next packet of the host repeats the request.
const REQUESTS: usize = 64;

/// State shared by both ends.
#[derive(Debug)]
struct Shared {
    link: AtomicBool,
    /// Frames for the control plane that were dropped because the ring was full.
    dropped: AtomicU64,
}

/// The control plane's end, which is a port. It receives only control-plane frames.
pub(super) struct PuntPort {
    mac: [u8; 6],
    mtu: usize,
    from_plane: Receiver,
    to_plane: Sender,
    /// Hosts that the loop needs neighbour entries of.
    requests: Consumer<IpAddr>,
    /// The frame that was received last.
    frame: Vec<u8>,
    shared: Arc<Shared>,
    /// Waker of the port's loop.
    waker: LoopWaker,
    /// The ring was filled, and the loop not woken yet.
    needs_wake: bool,
    counters: PortCounters,
}

/// The data plane's end.
pub(super) struct PuntQueue {
    to_control: Sender,
    from_control: Receiver,
    requests: Producer<IpAddr>,
    /// A frame of the control plane that the port had no room for.
    waiting: Option<Vec<u8>>,
    frame: Vec<u8>,
    /// Bytes of the longest frame.
    longest: usize,
    shared: Arc<Shared>,
    /// Waker of the first loop.
    waker: LoopWaker,
    needs_wake: bool,
}

/// Creates both ends for a port with this MAC address and MTU. `plane` wakes the port's loop, `control` the control
/// plane's. Each ring has `ring` bytes, but room for at least some of the largest frames.
pub(super) fn connect(
    mac: [u8; 6],
    mtu: usize,
    ring: usize,
    control: &LoopWaker,
    plane: &LoopWaker,
) -> (PuntPort, PuntQueue) {
    let longest = mtu + 18;
    let ring = ring.max(4 * longest);
    let (to_control, from_plane) = frame_ring(ring);
    let (to_plane, from_control) = frame_ring(ring);
    let (requested, requests) = RingBuffer::new(REQUESTS);
    let shared = Arc::new(Shared { link: AtomicBool::new(true), dropped: AtomicU64::new(0) });
    let punt_port = PuntPort {
        mac,
        mtu,
        from_plane,
        to_plane,
        requests,
        frame: Vec::with_capacity(longest),
        shared: shared.clone(),
        waker: plane.clone(),
        needs_wake: false,
        counters: PortCounters::default(),
    };
    let punt_queue = PuntQueue {
        to_control,
        from_control,
        requests: requested,
        waiting: None,
        frame: Vec::with_capacity(longest),
        longest,
        shared,
        waker: control.clone(),
        needs_wake: false,
    };
    (punt_port, punt_queue)
}

impl PuntPort {
    /// Whether the link of the port is up, as its loop reports.
    pub fn link(&self) -> bool {
        self.shared.link.load(Ordering::Relaxed)
    }

    /// Whether the loop has neighbour requests.
    pub fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Removes the neighbour requests of the loop.
    pub fn take_requests(&mut self) -> impl Iterator<Item = IpAddr> {
        core::iter::from_fn(|| self.requests.pop().ok())
    }

    /// Frames for the control plane that were dropped because the ring was full.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Port for PuntPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn link_up(&mut self) -> bool {
        self.link()
    }

    fn receive(&mut self) -> Option<Frame> {
        self.from_plane.pop(&mut self.frame).then(|| {
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += self.frame.len() as u64;
            Frame { buffer: 0, len: self.frame.len() as u32 }
        })
    }

    fn bytes(&self, _: &Frame) -> &[u8] {
        &self.frame
    }

    fn recycle(&mut self, _: Frame) {}

    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        // The control plane's frames have no payload by reference.
        if !packet.payload.is_empty() || packet.len() > self.mtu + 18 {
            return Err(TransmitError::TooLarge);
        }
        if !self.to_plane.push(packet.header) {
            self.counters.tx_full += 1;
            return Err(TransmitError::Full);
        }
        self.needs_wake = true;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += packet.len() as u64;
        Ok(())
    }

    /// Frames are copied.
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }

    fn flush(&mut self) {
        if core::mem::take(&mut self.needs_wake) {
            self.waker.wake();
        }
    }

    /// Does nothing: the port's loop always wakes this one.
    fn set_interrupts(&mut self, _: bool) {}

    fn pending(&self) -> bool {
        !self.from_plane.is_empty()
    }

    fn counters(&self) -> PortCounters {
        PortCounters { rx_missed: self.dropped(), ..self.counters }
    }
}

impl PuntQueue {
    /// Passes a frame to the control plane. Drops and counts it if there is no room.
    pub fn push(&mut self, frame: &[u8]) {
        if self.to_control.push(frame) {
            self.needs_wake = true;
        } else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests the neighbour entry of a host from the control plane, if there is room.
    pub fn request_neighbour(&mut self, host: IpAddr) {
        self.needs_wake |= self.requests.push(host).is_ok();
    }

    /// Whether there is room for any frame.
    pub fn has_room(&self) -> bool {
        self.to_control.has_room(self.longest)
    }

    /// Reports the state of the link to the control plane.
    pub fn set_link(&mut self, up: bool) {
        if self.shared.link.load(Ordering::Relaxed) != up {
            self.shared.link.store(up, Ordering::Relaxed);
            self.needs_wake = true;
        }
    }

    /// Passes the control plane's frames to `port`, as many as it has room for. Returns their number.
    pub fn transmit(
        &mut self,
        mut port: impl FnMut(&Packet<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        let mut count = 0;
        loop {
            let frame = match self.waiting.take() {
                Some(frame) => frame,
                None => {
                    if !self.from_control.pop(&mut self.frame) {
                        return count;
                    }
                    core::mem::take(&mut self.frame)
                }
            };
            let packet = Packet { header: &frame, payload: &[], trailer: &[] };
            match port(&packet) {
                Ok(()) => count += 1,
                Err(TransmitError::Full) => {
                    self.waiting = Some(frame);
                    return count;
                }
                // Not expected, because the control plane has checked the length: drop the frame.
                Err(TransmitError::TooLarge) => {}
            }
            self.frame = frame;
        }
    }

    /// Wakes the control plane if there is work for it.
    pub fn flush(&mut self) {
        if core::mem::take(&mut self.needs_wake) {
            self.waker.wake();
        }
    }

    /// Whether a frame of the control plane is pending, and the port has room (`has_room`) if it had none before.
    pub fn pending(&self, has_room: bool) -> bool {
        match self.waiting {
            Some(_) => has_room,
            None => !self.from_control.is_empty(),
        }
    }
}
