//! Execution of Ethernet send queues.

use super::completion_queue::{REQUEST_DONE, REQUEST_FAILED};
use super::fields::{put16, put32};
use super::memory_key::{Access, LOCAL_READ};
use super::work_queue::{self, WorkQueue};
use super::work_request::{
    BLOCK, Control, Ethernet, LOCAL_OPERATION, NOP, SEGMENT, SEGMENT_TCP, SEND, Segment,
};
use super::{Fault, Mlx5};
use crate::Machine;
use crate::offload::{self, ETHERNET, VLAN};

/// Shortest frame without FCS.
const SHORTEST: usize = 60;
/// Longest frame before segmentation.
const LONGEST: usize = 1 << 17;

impl Mlx5 {
    /// Executes the posted work requests of a send queue.
    pub(super) fn run_send_queue(&mut self, number: u32, machine: &mut dyn Machine) {
        while self.send_one(number, machine) {}
    }

    /// Executes the next work request. Returns whether there was one.
    fn send_one(&mut self, number: u32, machine: &mut dyn Machine) -> bool {
        let Some(queue) = self.state.send_queues.get(&number) else { return false };
        let hangs = self.has(Fault::NeverSends) || {
            let place = self.state.send_queues.range(..number).count();
            self.has(Fault::QueueHangs(place))
        };
        if queue.state != work_queue::READY || hangs {
            return false;
        }
        let consumer = queue.consumer;
        let waiting = queue.posted(true, machine).wrapping_sub(consumer);
        if waiting == 0 {
            return false;
        }
        let queue = queue.clone();
        if u32::from(waiting) > 1 << queue.log {
            self.complain(format!("send queue {number:#x}: {waiting} blocks are posted"));
            return self.fail_send(number, consumer, 0, LOCAL_OPERATION, machine);
        }
        let Some(request) = read_request(&queue, waiting, machine) else {
            self.complain(format!(
                "send queue {number:#x}: no complete work request at {consumer}"
            ));
            return self.fail_send(number, consumer, 0, LOCAL_OPERATION, machine);
        };
        let control = Control::read(&request);
        let opcode = control.opcode;
        if control.counter != consumer || control.queue != number {
            self.complain(format!("send queue {number:#x}: {control:?} lies at {consumer}"));
            return self.fail_send(number, consumer, opcode, LOCAL_OPERATION, machine);
        }
        let fails = |fault| if let Fault::SendFails(with) = fault { Some(with) } else { None };
        if let Some(syndrome) = self.once(fails) {
            return self.fail_send(number, consumer, opcode, syndrome, machine);
        }
        let result = match opcode {
            NOP => Ok(Vec::new()),
            SEND | SEGMENT_TCP if queue.tis != 0 => {
                self.frames_of(&queue, &request, opcode == SEGMENT_TCP, machine)
            }
            _ => Err((LOCAL_OPERATION, format!("opcode {opcode:#x}"))),
        };
        match result {
            Ok(frames) => {
                for frame in frames {
                    self.counts.sent += 1;
                    self.state.vport.count(&frame, true);
                    self.loop_back(&frame, machine);
                    if self.link {
                        self.sent.push(frame);
                    }
                }
            }
            Err((syndrome, why)) => {
                self.complain(format!("send queue {number:#x}: {why}"));
                return self.fail_send(number, consumer, opcode, syndrome, machine);
            }
        }
        if let Some(queue) = self.state.send_queues.get_mut(&number) {
            queue.consumer = consumer.wrapping_add(control.blocks());
        }
        if control.signaled {
            let mut entry = [0; 64];
            put32(&mut entry, 0x38, u32::from(opcode) << 24 | number);
            let another =
                |fault| if let Fault::CompletesAnother(by) = fault { Some(by) } else { None };
            let skipped = self.once(another).unwrap_or(0);
            put16(&mut entry, 0x3c, consumer.wrapping_add(skipped));
            entry[63] = REQUEST_DONE << 4;
            self.complete(queue.completions, entry, false, machine);
        }
        true
    }

    /// Fails a work request, and the queue with it.
    fn fail_send(
        &mut self,
        number: u32,
        index: u16,
        opcode: u8,
        syndrome: u8,
        machine: &mut dyn Machine,
    ) -> bool {
        let Some(queue) = self.state.send_queues.get_mut(&number) else { return false };
        queue.state = work_queue::FAILED;
        let completions = queue.completions;
        let mut entry = [0; 64];
        entry[0x37] = syndrome;
        put32(&mut entry, 0x38, u32::from(opcode) << 24 | number);
        put16(&mut entry, 0x3c, index);
        entry[63] = REQUEST_FAILED << 4;
        self.complete(completions, entry, false, machine);
        false
    }

    /// The frames of a work request. An error is the syndrome and its reason.
    fn frames_of(
        &mut self,
        queue: &WorkQueue,
        request: &[u8],
        segments: bool,
        machine: &mut dyn Machine,
    ) -> Result<Vec<Vec<u8>>, (u8, String)> {
        let short = || (LOCAL_OPERATION, "the work request is too short".to_string());
        let head = Ethernet::read(request.get(16..32).ok_or_else(short)?);
        let inlined = request.get(30..30 + head.inlined).ok_or_else(short)?;
        let mut frame = inlined.to_vec();
        let mut at = 32 + head.inlined.saturating_sub(2).div_ceil(SEGMENT) * SEGMENT;
        let access = Access {
            domain: None,
            right: LOCAL_READ,
            reserved_key: queue.reserved_key,
            pair: None,
        };
        while at + SEGMENT <= request.len() {
            match Segment::read(&request[at..]) {
                Some(Segment { length: 0, .. }) => {
                    return Err((LOCAL_OPERATION, "a segment of no bytes".into()));
                }
                Some(Segment { key, address, length }) => {
                    if frame.len() + length as usize > LONGEST {
                        return Err((1, "a frame that is too long".into()));
                    }
                    let gathered =
                        self.gather(access, key, address, length as usize, &mut frame, machine);
                    let why = |syndrome| (syndrome, format!("key {key:#x}, address {address:#x}"));
                    gathered.map_err(why)?;
                    at += SEGMENT;
                }
                None => {
                    let length = super::fields::be32(request, at) as usize & 0x3ff;
                    let bytes = request.get(at + 4..at + 4 + length).ok_or_else(short)?;
                    frame.extend_from_slice(bytes);
                    at += (4 + length).next_multiple_of(SEGMENT);
                }
            }
        }
        // An inserted tag counts as inline.
        let least = match self.settings.min_inline.min(queue.min_inline.max(1)) {
            0 => 0,
            _ if head.tag.is_some() => 0,
            _ => ETHERNET,
        };
        if head.inlined < least || frame.len() < ETHERNET {
            return Err((LOCAL_OPERATION, format!("{} bytes inline", head.inlined)));
        }
        if let Some(tag) = head.tag {
            let [a, b] = VLAN.to_be_bytes();
            let [c, d] = tag.to_be_bytes();
            frame.splice(12..12, [a, b, c, d]);
        }
        let frames = match segments {
            true => offload::segment(&frame, head.inlined, head.mss)
                .ok_or((LOCAL_OPERATION, "segmentation of a frame that is not TCP".to_string()))?,
            false => {
                offload::fill_sums(&mut frame, head.sums);
                vec![frame]
            }
        };
        let longest = usize::from(self.settings.mtu) + ETHERNET + 4;
        if let Some(long) = frames.iter().find(|frame| frame.len() > longest) {
            return Err((1, format!("a frame of {} bytes", long.len())));
        }
        let padded = |mut frame: Vec<u8>| {
            frame.resize(frame.len().max(SHORTEST), 0);
            frame
        };
        Ok(frames.into_iter().map(padded).collect())
    }
}

/// Reads the next work request of a queue with `waiting` posted blocks, if it is complete.
fn read_request(queue: &WorkQueue, waiting: u16, machine: &mut dyn Machine) -> Option<Vec<u8>> {
    let mut bytes = vec![0; BLOCK];
    machine.read(queue.block(queue.consumer)?, &mut bytes).ok()?;
    let control = Control::read(&bytes);
    if control.segments == 0 || control.blocks() > waiting {
        return None;
    }
    for index in 1..control.blocks() {
        let mut block = [0; BLOCK];
        machine.read(queue.block(queue.consumer.wrapping_add(index))?, &mut block).ok()?;
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(control.segments * SEGMENT);
    Some(bytes)
}
