//! [`Port`] of the transport: frames to and from the rings.

use super::protocol::NUMBER;
use super::{ETHERNET_HEADER, NtbNetdev, State};
use crate::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};

impl Port for NtbNetdev {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn link_up(&mut self) -> bool {
        self.state == State::Up
    }

    fn receive(&mut self) -> Option<Frame> {
        let (buffer, len) = self.take()?;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        Some(Frame { buffer, len: len as u32 })
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        let buffer = self.buffers.get(frame.buffer as usize);
        buffer.and_then(|buffer| buffer.get(..frame.len as usize)).unwrap_or(&[])
    }

    fn recycle(&mut self, frame: Frame) {
        if self.free.len() < self.buffers.len() {
            self.free.push(frame.buffer);
        }
    }

    /// Frames are dropped while the link is down, as on any cable.
    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let len = packet.len();
        let staged = packet.header.len() + packet.trailer.len();
        let most = (self.mtu + ETHERNET_HEADER + Packet::MAX_TRAILER).min(NUMBER);
        if len > most || staged > most || packet.payload.len() > Packet::MAX_PAYLOAD_WINDOWS {
            return Err(TransmitError::TooLarge);
        }
        if self.state != State::Up {
            return Ok(());
        }
        match self.room() {
            Some(count) if count == 0 || !self.bridge.has_room() => {
                self.counters.tx_full += 1;
                self.refused.set(true);
                return Err(TransmitError::Full);
            }
            Some(_) => {}
            None => {
                self.refuse();
                return Ok(());
            }
        }
        self.sending.write(self.bridge.bridge(), packet);
        self.must_ring = true;
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        Ok(())
    }

    /// Counts copies of the engine, as of the last [`NtbNetdev::poll`]. The CPU's copies are complete at once.
    fn progress(&mut self) -> TransmitProgress {
        let queued = self.bridge.submitted();
        TransmitProgress { queued, sent: self.done.min(queued) }
    }

    /// Checks the whole bridge instead of tickets: short writes have no ticket, and the doorbell comes last.
    fn is_sending(&mut self) -> bool {
        !self.bridge.settled()
    }

    fn flush(&mut self) {
        if let Some(index) = self.consumed.take() {
            self.sending.write_consumed(self.bridge.bridge(), index);
            self.is_busy = self.bridge.start();
        }
        if core::mem::take(&mut self.must_ring) {
            self.bridge.ring();
            self.is_busy = self.bridge.start();
        }
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.bridge.set_interrupts(wanted);
        self.bridge.rung();
    }

    fn pending(&self) -> bool {
        let is_waiting = |ring: &super::Receiving| self.state == State::Up && ring.is_waiting();
        self.receiving.as_ref().is_some_and(is_waiting) || self.refused.get() && self.has_room()
    }

    /// The peer sends no event when it has consumed frames, so this is polled: see [`NtbNetdev::deadline`].
    fn has_room(&self) -> bool {
        let has_room = self.state != State::Up || self.room() != Some(0) && self.bridge.has_room();
        if has_room {
            self.refused.set(false);
        }
        has_room
    }

    fn wakes(&self) -> bool {
        self.bridge.wakes()
    }

    fn counters(&self) -> PortCounters {
        PortCounters { interrupts: self.bridge.interrupts(), ..self.counters }
    }
}
