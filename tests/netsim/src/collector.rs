//! A port that collects transmitted frames.

use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};

/// Collects up to `room` frames with an MTU of 1500. It never receives a frame.
#[derive(Debug)]
pub struct Collector {
    /// The transmitted frames.
    pub frames: Vec<Vec<u8>>,
    /// Most frames that it accepts.
    pub room: usize,
}

impl Collector {
    /// Creates an empty collector.
    pub fn new(room: usize) -> Self {
        Collector { frames: Vec::new(), room }
    }
}

impl Port for Collector {
    fn mac(&self) -> [u8; 6] {
        [0; 6]
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn receive(&mut self) -> Option<Frame> {
        None
    }
    fn bytes(&self, _: &Frame) -> &[u8] {
        &[]
    }
    fn recycle(&mut self, _: Frame) {}
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        assert!(packet.len() <= 1514, "longer than the port's packets");
        if self.frames.len() == self.room {
            return Err(TransmitError::Full);
        }
        self.frames.push(crate::bytes(packet));
        Ok(())
    }
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }
    fn flush(&mut self) {}
    fn set_interrupts(&mut self, _: bool) {}
    fn pending(&self) -> bool {
        false
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
