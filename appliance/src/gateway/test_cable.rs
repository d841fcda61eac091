//! A port of tests: frames in queues in place of a device.

use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Frames to and from a port.
#[derive(Debug, Default)]
pub struct Ends {
    pub arrives: VecDeque<Vec<u8>>,
    pub sent: VecDeque<Vec<u8>>,
}

/// The port.
#[derive(Debug)]
pub struct Cable {
    mac: [u8; 6],
    ends: Arc<Mutex<Ends>>,
    frame: Vec<u8>,
}

impl Cable {
    pub fn new(mac: [u8; 6], ends: Arc<Mutex<Ends>>) -> Cable {
        Cable { mac, ends, frame: Vec::new() }
    }
}

impl Port for Cable {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn receive(&mut self) -> Option<Frame> {
        self.frame = self.ends.lock().unwrap().arrives.pop_front()?;
        Some(Frame { buffer: 0, len: self.frame.len() as u32 })
    }
    fn bytes(&self, _: &Frame) -> &[u8] {
        &self.frame
    }
    fn recycle(&mut self, _: Frame) {}
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        self.ends.lock().unwrap().sent.push_back(bytes(packet));
        Ok(())
    }
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }
    fn flush(&mut self) {}
    fn set_interrupts(&mut self, _: bool) {}
    fn pending(&self) -> bool {
        !self.ends.lock().unwrap().arrives.is_empty()
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// The bytes of a packet.
pub fn bytes(packet: &Packet<'_>) -> Vec<u8> {
    let mut frame = packet.header.to_vec();
    for window in packet.payload {
        window.for_each_block(|block| frame.extend(block));
    }
    frame.extend(packet.trailer);
    frame
}
