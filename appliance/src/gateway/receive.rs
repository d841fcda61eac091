//! Receives frames from the ports of a plane, and dispatches each to RoCE, a UDP engine, UDP echo, or the control
//! plane.

use super::plane::DataPlane;
use super::ports::PlanePort;
use super::rapidio;
use ::rapidio::end_point::Polled;
use drivers::hal::{Instant, Packet};
use net::{Class, classify, vlan};
use roce::Verdict;

/// Frames taken from a port in one round.
pub(super) const BATCH: usize = 64;

impl DataPlane {
    /// Receives a batch of frames from each port. Returns their number. Control-plane frames go to `control`, with the
    /// index of their port.
    pub fn receive(&mut self, now: Instant, mut control: impl FnMut(usize, &[u8])) -> usize {
        self.now = now;
        self.has_work = false;
        self.free_sent(now);
        if !self.transports.is_empty() {
            let ports = &mut self.ports;
            self.transports.iter_mut().for_each(|one| one.poll(ports, now));
        }
        let rapidio = match self.rapidio.is_empty() {
            true => Polled::default(),
            false => rapidio::poll(&mut self.rapidio, &mut self.ports, &mut self.capture, now),
        };
        self.has_work |= rapidio.leaves_work;
        let mut received = rapidio.done;
        for (i, slot) in self.ports.iter_mut().enumerate() {
            if slot.poll_link(now) {
                self.links_polled = true;
                if let Some(rdma_stack) = &mut self.rdma_stack {
                    rdma_stack.providers.roce.set_mac(i, slot.local.mac);
                    rdma_stack.providers.roce.set_link(i, slot.link);
                }
            }
            let (capture, has_work) = (&mut self.capture, &mut self.has_work);
            let udp_engines = &mut self.udp_engines;
            let mut roce =
                self.rdma_stack.as_mut().map(|rdma_stack| &mut rdma_stack.providers.roce);
            let mut left = BATCH;
            let PlanePort { port, local, reply, echo, echoes, untagged, .. } = slot;
            let (lan, of_other_vlans) = (slot.vlan, &mut slot.of_other_vlans);
            while left > 0 {
                let mut answer = None;
                left -= port.receive_each(left, &mut |bytes| {
                    capture.received(i, bytes, now);
                    let Some(tagged) = lan.admits(bytes) else {
                        *of_other_vlans += 1;
                        return true;
                    };
                    // RoCE counts frames that it drops.
                    match roce.as_mut().map(|roce| roce.handle_frame(i, bytes, now)) {
                        Some(Verdict::Absorbed) => return true,
                        Some(Verdict::Consumed) => {
                            *has_work = true;
                            return true;
                        }
                        Some(Verdict::NotRoce) | None => *has_work = true,
                    }
                    let bytes = match tagged {
                        false => bytes,
                        true => vlan::untag(bytes, untagged).unwrap_or_default(),
                    };
                    match classify(bytes) {
                        Class::UdpEcho if *echo => {
                            answer = net::echo::answer(bytes, local, reply);
                        }
                        Class::Roce => (),
                        Class::Udp(to) if udp_engines.receive(i, to, local, bytes, now) => (),
                        _ => control(i, bytes),
                    }
                    answer.is_none()
                });
                let Some(length) = answer else { break };
                let header = &reply[..length];
                let packet = Packet { header, payload: &[], trailer: &[] };
                capture.sent(i, &packet, now);
                // A full port drops the answer, as UDP may.
                *echoes += u64::from(port.transmit(&packet).is_ok());
            }
            received += BATCH - left;
        }
        received
    }

    /// Rings the doorbells of the devices for queued frames.
    pub fn flush(&mut self) {
        self.ports.iter_mut().for_each(|slot| slot.port.flush());
    }
}
