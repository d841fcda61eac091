//! Memory that was given back while ports may still send from it, and becomes free when they have.

use super::plane::DataPlane;
use core::time::Duration;
use drivers::hal::{Instant, TransmitError};

/// After so long a loop that halts looks whether its ports have sent what others wait for.
const SENDING: Duration = Duration::from_millis(1);

impl DataPlane {
    /// Has memory that is given back wait for the ports of this plane. If other loops share the memory, a halt is short
    /// while any waits; a loop that is alone frees it when it has something to do again.
    pub fn wait_for_ports(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
        if let Some(rdma_stack) = &mut self.rdma_stack {
            rdma_stack.providers.wait_for_ports();
            self.arena.wait_for_ports(self.ports.len());
            self.storage.wait_for_ports(self.ports.len());
        }
    }

    /// When a halt has to end because memory waits that other loops may want.
    pub fn retired_timeout(&self) -> Option<Instant> {
        (!self.is_alone && self.has_retired()).then(|| self.now + SENDING)
    }

    fn has_retired(&self) -> bool {
        self.arena.has_retired() || self.storage.is_waiting_for_ports()
    }

    /// Frees what was given back, and the ports send no more.
    #[inline(always)]
    pub fn free_sent(&mut self, now: Instant) {
        let stack = self.rdma_stack.as_ref();
        if stack.is_some_and(|stack| stack.providers.has_retired()) || self.has_retired() {
            self.look_what_was_sent(now);
        }
    }

    fn look_what_was_sent(&mut self, now: Instant) {
        for place in 0..self.ports.len() {
            // A packet that waits for room is not one of the port's yet, and is sent from the same memory.
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

    /// Hands the packet that waits for room in a port to it; false if it waits on. Without a link it is lost, like all
    /// that is sent then.
    fn send_waiting(&mut self, place: usize, now: Instant) -> bool {
        let Some(rdma_stack) = &mut self.rdma_stack else { return true };
        let (slot, next) = (&mut self.ports[place], &mut rdma_stack.outgoing[place]);
        if next.waiting && slot.link {
            let packet = next.tx.packet();
            if slot.port.transmit(&packet) == Err(TransmitError::Full) {
                return false;
            }
            self.capture.sent(place, &packet, now);
            // The device has to be told of it in this round.
            self.has_work = true;
        }
        next.waiting = false;
        true
    }
}
