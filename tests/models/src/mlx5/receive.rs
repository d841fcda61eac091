//! Execution of Ethernet receive queues.

use super::completion_queue::{RECEIVE_FAILED, SEND};
use super::fields::{be32, put16, put32};
use super::memory_key::{Access, LOCAL_WRITE, TERMINATE};
use super::objects::To;
use super::work_queue;
use super::work_request::{SEGMENT, Segment};
use super::{Fault, Mlx5};
use crate::Machine;
use crate::offload::{self, ETHERNET, IPV4, IPV6, Layers, TCP, UDP};

/// Frames received per poll.
const AT_A_TIME: usize = 256;
/// Hash type in completions: addresses and TCP ports.
const HASHED: u8 = 1;

impl Mlx5 {
    /// Receives frames from the wire.
    pub(super) fn take_in(&mut self, machine: &mut dyn Machine) {
        for _ in 0..AT_A_TIME {
            let Some(frame) = self.arriving.pop_front() else { break };
            if self.link && frame.len() >= ETHERNET {
                self.receive_frame(&frame, machine);
            }
        }
    }

    fn receive_frame(&mut self, frame: &[u8], machine: &mut dyn Machine) {
        // RoCE packets go to queue pairs, independent of flow tables.
        if self.take_packet(frame, machine) {
            return;
        }
        if !self.passes_switch(&frame[..6]) {
            self.counts.filtered += 1;
            return;
        }
        self.receive_in_function(frame, machine);
    }

    /// Receives a frame that has reached the function.
    fn receive_in_function(&mut self, frame: &[u8], machine: &mut dyn Machine) {
        if !self.state.vport.accepts(&frame[..6]) {
            self.counts.filtered += 1;
            return;
        }
        let places = self.steer(frame);
        if places.is_empty() {
            self.counts.unmatched += 1;
        }
        for (place, tag) in places {
            self.receive_at(place, tag, frame, machine);
        }
    }

    /// Receives a frame that the function has sent itself (local loopback).
    pub(super) fn loop_back(&mut self, frame: &[u8], machine: &mut dyn Machine) {
        if self.state.vport.loops_back(&frame[..6]) {
            self.receive_in_function(frame, machine);
        }
    }

    /// Delivers a frame to a TIR, with the tag of its flow entry.
    fn receive_at(&mut self, place: u32, tag: u32, frame: &[u8], machine: &mut dyn Machine) {
        let Some(tir) = self.state.tirs.get(&place) else { return };
        let hash = match tir.hash {
            2 => offload::toeplitz(&tir.key, frame, tir.fields & 15),
            _ => 0,
        };
        let (hashed, to) = (tir.hash != 0, tir.to);
        let number = match to {
            To::Queue(number) => number,
            To::Table(table) => {
                let Some(table) = self.state.indirections.get(&table) else { return };
                table.queues[hash as usize % table.queues.len()]
            }
        };
        let Some(queue) = self.state.receive_queues.get(&number) else { return };
        if queue.state != work_queue::READY {
            self.counts.not_ready += 1;
            return;
        }
        let waiting = queue.posted(false, machine).wrapping_sub(queue.consumer);
        if waiting == 0 {
            self.counts.no_buffers += 1;
            self.state.vport.out_of_buffers += 1;
            return;
        }
        let queue = queue.clone();
        if u32::from(waiting) > 1 << queue.log {
            self.complain(format!("receive queue {number:#x}: {waiting} blocks are posted"));
        }
        let layers = Layers::of(frame);
        let strips = !queue.keeps_tags && layers.tag.is_some();
        let mut bytes = frame.to_vec();
        if strips {
            bytes.drain(12..16);
        }
        let mut list = vec![0; 1 << queue.stride];
        let at = queue.block(queue.consumer).unwrap_or(0);
        let mut syndrome = machine.read(at, &mut list).err().map(|_| 4);
        let access = Access {
            domain: Some(queue.domain),
            right: LOCAL_WRITE,
            reserved_key: queue.reserved_key,
            pair: None,
        };
        let mut rest = &bytes[..];
        for part in list.chunks_exact(SEGMENT) {
            let Segment { key, address, length } = Segment::of_receive(part);
            if rest.is_empty() || syndrome.is_some() || key == TERMINATE {
                break;
            }
            let (now, behind) = rest.split_at(rest.len().min(length as usize));
            syndrome = self.scatter(access, key, address, now, machine).err();
            if syndrome.is_some() {
                self.complain(format!("receive queue {number:#x}: key {key:#x} at {address:#x}"));
            }
            rest = behind;
        }
        // The frame is longer than its buffers.
        if !rest.is_empty() && syndrome.is_none() {
            self.complain(format!("receive queue {number:#x}: {} bytes do not fit", bytes.len()));
            syndrome = Some(1);
        }
        let fails = |fault| if let Fault::ReceiveFails(with) = fault { Some(with) } else { None };
        let syndrome = self.once(fails).or(syndrome);
        if let Some(queue) = self.state.receive_queues.get_mut(&number) {
            queue.consumer = queue.consumer.wrapping_add(1);
            if syndrome.is_some() {
                queue.state = work_queue::FAILED;
            }
        }
        let mut entry = [0; 64];
        put32(&mut entry, 0x38, tag);
        let at = |fault| if let Fault::ReceivesAt(by) = fault { Some(by) } else { None };
        let skipped = self.once(at).unwrap_or(0);
        put16(&mut entry, 0x3c, queue.consumer.wrapping_add(skipped));
        if let Some(syndrome) = syndrome {
            entry[0x37] = syndrome;
            put32(&mut entry, 0x38, number);
            entry[63] = RECEIVE_FAILED << 4;
            return self.complete(queue.completions, entry, false, machine);
        }
        self.counts.received += 1;
        self.state.vport.count(frame, false);
        if hashed {
            put32(&mut entry, 0x0c, hash);
            entry[0x10] = HASHED;
        }
        let wrong = u16::from(self.has(Fault::Checksum));
        put16(&mut entry, 0x14, offload::sum(&bytes[ETHERNET..], 0) ^ wrong);
        entry[0x1c] = sums(&bytes);
        entry[0x1d] = kinds(&layers) | u8::from(strips);
        if let Some(tag) = layers.tag.filter(|_| strips) {
            put16(&mut entry, 0x1e, tag);
        }
        let another = |fault| if let Fault::Length(length) = fault { Some(length) } else { None };
        let length = self.once(another).unwrap_or(bytes.len() as u32);
        put32(&mut entry, 0x2c, length);
        let other = |fault| if let Fault::Opcode(opcode) = fault { Some(opcode) } else { None };
        entry[63] = self.once(other).unwrap_or(SEND) << 4;
        debug_assert_eq!(be32(&entry, 0x20), 0);
        self.complete(queue.completions, entry, false, machine);
    }
}

/// Correct checksums: bit 1 layer 3, bit 2 layer 4.
fn sums(frame: &[u8]) -> u8 {
    let (network, transport) = offload::check_sums(frame);
    u8::from(network) << 1 | u8::from(transport) << 2
}

/// Types of layers 4 and 3 as in completions.
fn kinds(layers: &Layers) -> u8 {
    let network = match layers.ethertype {
        IPV6 => 1,
        IPV4 => 2,
        _ => 0,
    };
    let transport = match layers.transport {
        Some((TCP, _)) => 1,
        Some((UDP, _)) => 2,
        _ => 0,
    };
    transport << 4 | network << 2
}
