//! A port whose frames another loop takes, or the bridge, as the control plane sees it: two rings
//! of frames.

use super::frame_ring::{Receiver, Sender, frame_ring};
use super::loop_waker::LoopWaker;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;

/// Bytes of the ring each way for what is the control plane's.
pub(super) const RING: usize = 64 << 10;
/// Hosts that a loop asks for at a time; those for which there is no room say something again.
const STRANGERS: usize = 64;

/// What both ends see.
#[derive(Debug)]
struct Shared {
    link: AtomicBool,
    /// Frames for the control plane that found no room.
    dropped: AtomicU64,
}

/// The control plane's end: a port like any other, but that it is not told of everything.
pub(super) struct PuntPort {
    mac: [u8; 6],
    mtu: usize,
    from_plane: Receiver,
    to_plane: Sender,
    /// Hosts that the loop asks the neighbour table for.
    strangers: Consumer<IpAddr>,
    /// The frame that was received last.
    frame: Vec<u8>,
    shared: Arc<Shared>,
    /// That of the port's loop.
    waker: LoopWaker,
    /// Something was put into the ring, and the loop was not told yet.
    untold: bool,
    counters: PortCounters,
}

/// The data plane's end.
pub(super) struct PuntQueue {
    to_control: Sender,
    from_control: Receiver,
    strangers: Producer<IpAddr>,
    /// A frame of the control plane's that the port had no room for.
    waiting: Option<Vec<u8>>,
    frame: Vec<u8>,
    /// Bytes of the longest frame.
    longest: usize,
    shared: Arc<Shared>,
    /// That of the first loop.
    waker: LoopWaker,
    untold: bool,
}

/// Both ends for a port with this MAC address and MTU on a loop with the alarm `plane`, while the
/// control plane has `control`. The rings have so many bytes, and room for some of the largest frames at least.
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
    let (asked, strangers) = RingBuffer::new(STRANGERS);
    let shared = Arc::new(Shared { link: AtomicBool::new(true), dropped: AtomicU64::new(0) });
    let punt_port = PuntPort {
        mac,
        mtu,
        from_plane,
        to_plane,
        strangers,
        frame: Vec::with_capacity(longest),
        shared: shared.clone(),
        waker: plane.clone(),
        untold: false,
        counters: PortCounters::default(),
    };
    let punt_queue = PuntQueue {
        to_control,
        from_control,
        strangers: asked,
        waiting: None,
        frame: Vec::with_capacity(longest),
        longest,
        shared,
        waker: control.clone(),
        untold: false,
    };
    (punt_port, punt_queue)
}

impl PuntPort {
    /// Whether the link of the port is up, as its loop says.
    pub fn link(&self) -> bool {
        self.shared.link.load(Ordering::Relaxed)
    }

    /// Whether the loop asks for hosts.
    pub fn has_strangers(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// The hosts that the loop asks the neighbour table for, to be taken out.
    pub fn strangers(&mut self) -> impl Iterator<Item = IpAddr> {
        core::iter::from_fn(|| self.strangers.pop().ok())
    }

    /// Frames for the control plane that found no room in the ring.
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
        self.untold = true;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += packet.len() as u64;
        Ok(())
    }

    /// All of it is copied.
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }

    fn flush(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.waker.wake();
        }
    }

    /// The loop of the port rings whenever there is something.
    fn set_interrupts(&mut self, _: bool) {}

    fn pending(&self) -> bool {
        !self.from_plane.is_empty()
    }

    fn counters(&self) -> PortCounters {
        PortCounters { rx_missed: self.dropped(), ..self.counters }
    }
}

impl PuntQueue {
    /// Hands a frame to the control plane, if there is room.
    pub fn push(&mut self, frame: &[u8]) {
        if self.to_control.push(frame) {
            self.untold = true;
        } else {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks the control plane where a host is, if there is room.
    pub fn ask_for(&mut self, host: IpAddr) {
        self.untold |= self.strangers.push(host).is_ok();
    }

    /// Whether there is room for any frame.
    pub fn has_room(&self) -> bool {
        self.to_control.has_room(self.longest)
    }

    /// Tells the control plane of the link.
    pub fn set_link(&mut self, up: bool) {
        if self.shared.link.load(Ordering::Relaxed) != up {
            self.shared.link.store(up, Ordering::Relaxed);
            self.untold = true;
        }
    }

    /// Gives the control plane's frames to `port`, as many as it has room for; how many.
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
                // The control plane checked the length: it is dropped rather than tried for ever.
                Err(TransmitError::TooLarge) => {}
            }
            self.frame = frame;
        }
    }

    /// Rings the control plane if there is something for it.
    pub fn flush(&mut self) {
        if core::mem::take(&mut self.untold) {
            self.waker.wake();
        }
    }

    /// Whether the control plane has sent something for which the port has room, as far as it can tell.
    pub fn pending(&self, has_room: bool) -> bool {
        match self.waiting {
            Some(_) => has_room,
            None => !self.from_control.is_empty(),
        }
    }
}
