//! Transport of queue pairs: RoCE packets, timers, error completions.

use super::completion_queue::{RECEIVE_FAILED, REQUEST_FAILED};
use super::fields::{be16, put16, put32};
use super::packet::{Packet, Path};
use super::queue_pair::{QueuePair, Service, State};
use super::work_request::{BLOCK, Control, FLUSHED};
use super::{Fault, Mlx5};
use crate::{Machine, Nanoseconds};

/// Interval at which a failed queue pair is polled for new receives, because receives have no doorbell.
const FLUSH_INTERVAL: Nanoseconds = 1_000_000;
/// Number on the wire of management queue pairs.
const MANAGEMENT: u32 = 1;
/// Event: a packet has arrived before the queue pair was ready to send.
const ESTABLISHED: u8 = 2;

impl Mlx5 {
    /// Handles a frame if it is a RoCE packet for this function. Returns false otherwise.
    pub(super) fn take_packet(&mut self, frame: &[u8], machine: &mut dyn Machine) -> bool {
        if !self.state.vport.has_roce() || !self.is_own(&frame[..6]) {
            return false;
        }
        let packet = match Packet::decode(frame) {
            None => return false,
            Some(Ok(packet)) => packet,
            Some(Err(_)) => {
                self.counts.roce_dropped += 1;
                return true;
            }
        };
        if self.once(|fault| (fault == Fault::LosesPacket).then_some(())).is_some() {
            return true;
        }
        self.counts.roce_received += 1;
        let Some(number) = self.pair_of(&packet) else {
            self.counts.roce_dropped += 1;
            return true;
        };
        self.state.active.insert(number);
        self.report_first_packet(number, machine);
        match packet.is_response() {
            true => self.take_response(number, &packet, machine),
            false => self.take_request(number, &packet, machine),
        }
        self.run_queue_pair(number, machine);
        true
    }

    /// Whether this is the MAC address of the function or of one of its GIDs.
    fn is_own(&self, address: &[u8]) -> bool {
        let mut gids = self.state.gids.values();
        address == self.settings.mac || gids.any(|gid| gid[0x12..0x18] == *address)
    }

    /// The destination queue pair of a packet.
    fn pair_of(&self, packet: &Packet) -> Option<u32> {
        let pairs = &self.state.queue_pairs;
        let pair = match packet.pair {
            MANAGEMENT => pairs.values().find(|pair| pair.service == Service::Management)?,
            number => pairs.get(&number)?,
        };
        let is_datagram = matches!(pair.service, Service::Datagram | Service::Management);
        let alive = matches!(pair.state, State::ReadyToReceive | State::ReadyToSend);
        let mut gids = self.state.gids.values();
        let is_ours = gids.any(|gid| gid[..16] == packet.path.destination);
        if is_datagram != packet.datagram.is_some() || !alive || !is_ours {
            return None;
        }
        if packet.partition & 0x7fff != 0x7fff {
            return None;
        }
        // A connection accepts only its peer's packets.
        let (_, remote) = pair.gids();
        (is_datagram || remote == packet.path.source).then_some(pair.number)
    }

    fn report_first_packet(&mut self, number: u32, machine: &mut dyn Machine) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let first = pair.service == Service::Reliable && pair.state == State::ReadyToReceive;
        if first && !std::mem::replace(&mut pair.established, true) {
            self.report_event(ESTABLISHED, number, 0, machine);
        }
    }

    /// Sends a packet from the GID at this index, with the GID's VLAN tag if it has one.
    pub(super) fn send_packet(&mut self, gid: u16, packet: Packet) {
        let Some(entry) = self.state.gids.get(&gid) else { return };
        let mut path = Path {
            source_mac: entry[0x12..0x18].try_into().expect("six bytes"),
            source: entry[..16].try_into().expect("sixteen bytes"),
            ..packet.path
        };
        if entry[0x10] >> 4 & 1 == 1 {
            path.tag = Some(be16(entry, 0x10) & 0xfff);
        }
        let mut frame = Packet { path, ..packet }.encode();
        if self.has(Fault::PacketCrc) {
            let last = frame.len() - 1;
            frame[last] ^= 0x55;
        }
        self.counts.roce_sent += 1;
        match self.is_own(&frame[..6]) {
            true => self.arriving.push_back(frame),
            false if self.link => self.sent.push(frame),
            false => {}
        }
    }

    /// Runs the active queue pairs. Returns the time of the next work.
    pub(super) fn drive_queue_pairs(&mut self, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let mut next: Option<Nanoseconds> = None;
        for number in self.state.active.clone() {
            self.expire(number, machine);
            self.run_queue_pair(number, machine);
            let due = match self.state.queue_pairs.get(&number) {
                Some(pair) => self.due(pair),
                None => None,
            };
            match due {
                Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
                None => {
                    self.state.active.remove(&number);
                }
            }
        }
        next
    }

    fn due(&self, pair: &QueuePair) -> Option<Nanoseconds> {
        if pair.state == State::Failed {
            return Some(self.now + FLUSH_INTERVAL);
        }
        if !pair.answers.is_empty() {
            return Some(self.now);
        }
        [pair.deadline, pair.resend_at].into_iter().flatten().min()
    }

    /// Flushes a failed queue pair: all posted requests, signaled or not, complete with an error.
    pub(super) fn flush(&mut self, number: u32, machine: &mut dyn Machine) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let (receives, sends) = pair.posted(machine);
        let mut sent: Vec<(u8, u16, u8)> = Vec::new();
        for request in pair.requests.drain(..) {
            let syndrome = request.failed().unwrap_or(FLUSHED);
            sent.push((request.control.opcode, request.control.counter, syndrome));
        }
        (pair.deadline, pair.resend_at, pair.message) = (None, None, None);
        pair.answers.clear();
        while pair.has_send_queue && pair.send_consumer != sends {
            let mut block = [0; BLOCK];
            let at = pair.send_block(pair.send_consumer).unwrap_or(0);
            let _ = machine.read(at, &mut block);
            let control = Control::read(&block);
            sent.push((control.opcode, pair.send_consumer, FLUSHED));
            // An invalid request counts as the last.
            let waiting = sends.wrapping_sub(pair.send_consumer);
            let blocks = control.blocks().min(waiting);
            pair.send_consumer = pair.send_consumer.wrapping_add(blocks);
        }
        let mut received = Vec::new();
        while pair.has_receive_queue && pair.receive_consumer != receives {
            received.push(pair.receive_consumer);
            pair.receive_consumer = pair.receive_consumer.wrapping_add(1);
        }
        for (opcode, index, syndrome) in sent {
            self.complete_failed(number, opcode, index, syndrome, true, machine);
        }
        for index in received {
            self.complete_failed(number, 0, index, FLUSHED, false, machine);
        }
    }

    /// Writes an error completion.
    pub(super) fn complete_failed(
        &mut self,
        number: u32,
        opcode: u8,
        index: u16,
        syndrome: u8,
        send: bool,
        machine: &mut dyn Machine,
    ) {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return };
        let mut entry = [0; 64];
        put32(&mut entry, 0x20, pair.user_index);
        entry[0x37] = syndrome;
        put32(&mut entry, 0x38, u32::from(opcode) << 24 | number);
        put16(&mut entry, 0x3c, index);
        let (queue, kind) = match send {
            true => (pair.send_completions(), REQUEST_FAILED),
            false => (pair.receive_completions(), RECEIVE_FAILED),
        };
        entry[63] = kind << 4;
        self.complete(queue, entry, true, machine);
    }

    /// Moves the queue pair to the error state.
    pub(super) fn fail_pair(&mut self, number: u32, machine: &mut dyn Machine) {
        if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
            pair.state = State::Failed;
            self.state.active.insert(number);
            self.flush(number, machine);
        }
    }
}
