//! Released memory from which ports may still transmit. It is freed when they have sent their frames.

use super::plane::DataPlane;
use core::time::Duration;
use drivers::hal::{Instant, TransmitError};

/// Longest halt while released memory waits for ports and other loops share it.
const SENDING: Duration = Duration::from_millis(1);

impl DataPlane {
    /// Makes released memory wait for the ports of this plane. If other loops share the memory, halts are short while
    /// any waits. A single loop frees it in its next round.
    pub fn wait_for_ports(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
        if let Some(rdma_stack) = &mut self.rdma_stack {
            rdma_stack.providers.wait_for_ports();
            self.arena.wait_for_ports(self.ports.len());
            self.storage.wait_for_ports(self.ports.len());
        }
    }

    /// When a halt has to end because other loops may need the waiting memory.
    pub fn retired_timeout(&self) -> Option<Instant> {
        (!self.is_alone && self.has_retired()).then(|| self.now + SENDING)
    }

    fn has_retired(&self) -> bool {
        self.arena.has_retired() || self.storage.is_waiting_for_ports()
    }

    /// Frees released memory from which no port transmits any more.
    #[inline]
    pub fn free_sent(&mut self, now: Instant) {
        let stack = self.rdma_stack.as_ref();
        if stack.is_some_and(|stack| stack.providers.has_retired()) || self.has_retired() {
            self.update_progress(now);
        }
    }

    fn update_progress(&mut self, now: Instant) {
        for place in 0..self.ports.len() {
            // A packet that waits for room is not in the port yet, and uses the same memory.
            if !self.send_waiting(place, now) {
                continue;
            }
            let progress = self.ports[place].port.progress();
            if let Some(rdma_stack) = &mut self.rdma_stack {
                rdma_stack.providers.note_progress(place, progress);
            }
            self.arena.note_progress(place, progress);
            self.storage.note_progress(place, progress);
        }
    }

    /// Passes the packet that waits for room to its port. False if there is still no room. Without a link the packet is
    /// dropped, like all packets then.
    fn send_waiting(&mut self, place: usize, now: Instant) -> bool {
        let Some(rdma_stack) = &mut self.rdma_stack else { return true };
        let (slot, next) = (&mut self.ports[place], &mut rdma_stack.outgoing[place]);
        if next.waiting && slot.link {
            let packet = next.tx.packet();
            if slot.port.transmit(&packet) == Err(TransmitError::Full) {
                return false;
            }
            self.capture.sent(place, &packet, now);
            // The device's doorbell must be rung in this round.
            self.has_work = true;
        }
        next.waiting = false;
        true
    }
}
