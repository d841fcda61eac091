//! Transmit: packets are gathered from legacy and advanced descriptors, with checksum and segmentation offload and VLAN
//! tags (82599, 7.2).

use super::engine::Engine;
use super::fault::Fault;
use super::ring::Ring;
use crate::Machine;
use crate::offload;

const END: u32 = 1 << 24;
const INSERT_FCS: u32 = 1 << 25;
const LEGACY_CHECKSUM: u32 = 1 << 26;
const REPORT: u32 = 1 << 27;
const EXTENDED: u32 = 1 << 29;
const TAG: u32 = 1 << 30;
const SEGMENT: u32 = 1 << 31;
const CONTEXT: u32 = 2;
const DATA: u32 = 3;
// Bits in the last word of a descriptor.
const CHECK_CONTEXT: u32 = 1 << 7;
const NETWORK_SUM: u32 = 1 << 8;
const TRANSPORT_SUM: u32 = 1 << 9;
const DONE: u32 = 1;

/// Most bytes of a descriptor, and of a packet to be segmented.
const MOST_PIECE: u32 = 16 << 10;
const MOST_PACKET: usize = 256 << 10;
const SHORTEST: usize = 17;
const PADDED: usize = 60;

/// A context descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    network: usize,
    transport: usize,
    payload: usize,
    tag: u16,
    is_tcp: bool,
    is_udp: bool,
    mss: usize,
}

impl Context {
    fn new(words: [u32; 4]) -> Self {
        let network = (words[0] >> 9 & 0x7f) as usize;
        let transport = network + (words[0] & 0x1ff) as usize;
        let layer = words[2] >> 11 & 3;
        Context {
            network,
            transport,
            payload: transport + (words[3] >> 8 & 0xff) as usize,
            tag: (words[0] >> 16) as u16,
            is_tcp: layer == 1,
            is_udp: layer == 0,
            mss: (words[3] >> 16) as usize,
        }
    }
}

impl Engine {
    /// Sends all posted packets of a queue. Returns whether a descriptor was written back.
    pub fn send(&mut self, queue: usize, machine: &mut dyn Machine) -> bool {
        let mut reported = false;
        while !self.hung
            && self.transmit[queue].works()
            && let Some((at, address)) = self.transmit[queue].take()
        {
            let mut bytes = [0; 16];
            if machine.read(address, &mut bytes).is_err() {
                self.complain("a transmit ring cannot be reached");
                return reported;
            }
            let word =
                |n: usize| u32::from_le_bytes([bytes[n], bytes[n + 1], bytes[n + 2], bytes[n + 3]]);
            let words = [word(0), word(4), word(8), word(12)];
            let ended = match (words[2] & EXTENDED != 0, words[2] >> 20 & 0xf) {
                (true, CONTEXT) => {
                    let index = (words[3] >> 4 & 1) as usize;
                    self.transmit[queue].contexts[index] = Some(Context::new(words));
                    false
                }
                (true, DATA) => self.gather(queue, words, true, machine),
                (false, _) => self.gather(queue, words, false, machine),
                (true, other) => {
                    self.complain(format!("a transmit descriptor of type {other}"));
                    false
                }
            };
            // A context descriptor is written back, too, if it requests a report.
            if words[2] & REPORT != 0 && (ended || words[2] & END == 0) {
                reported |= self.report(queue, at, machine);
            }
        }
        reported
    }

    /// Appends a descriptor's data to the packet. Returns whether it was the last.
    fn gather(
        &mut self,
        queue: usize,
        words: [u32; 4],
        advanced: bool,
        machine: &mut dyn Machine,
    ) -> bool {
        let length = words[2] & 0xffff;
        let address = u64::from(words[1]) << 32 | u64::from(words[0]);
        if length == 0 || length > MOST_PIECE {
            self.complain(format!("a piece of {length} bytes"));
        }
        let mut piece = vec![0; length as usize];
        if machine.read(address, &mut piece).is_err() {
            self.complain(format!("a piece at {address:#x} cannot be reached"));
        }
        let ring = &mut self.transmit[queue];
        if ring.packet.is_empty() {
            (ring.command, ring.options) = (words[2], words[3]);
        }
        ring.packet.extend_from_slice(&piece);
        if words[2] & END == 0 && ring.packet.len() <= MOST_PACKET {
            return false;
        }
        let packet = std::mem::take(&mut ring.packet);
        let (command, options) = (ring.command, ring.options);
        if words[2] & END == 0 {
            self.complain("a packet has no end");
        }
        if words[2] & INSERT_FCS == 0 {
            self.complain("a packet without a frame check sequence");
        }
        match advanced {
            true => self.complete(queue, packet, command, options),
            false => self.complete_legacy(queue, packet, words),
        }
        true
    }

    fn complete_legacy(&mut self, queue: usize, mut packet: Vec<u8>, words: [u32; 4]) {
        if words[2] & LEGACY_CHECKSUM != 0 {
            let (start, field) =
                ((words[3] >> 8 & 0xff) as usize, (words[2] >> 16 & 0xff) as usize);
            match start < packet.len() && field + 2 <= packet.len() {
                true => insert_sum(&mut packet, start, field, false),
                false => self.complain("a checksum goes beyond its packet"),
            }
        }
        if words[2] & TAG != 0 {
            insert_tag(&mut packet, (words[3] >> 16) as u16);
        }
        self.put(queue, packet);
    }

    /// Sends a packet of advanced descriptors, with the first one's command and options.
    fn complete(&mut self, queue: usize, mut packet: Vec<u8>, command: u32, options: u32) {
        let needed = command & (SEGMENT | TAG) != 0 || options & TRANSPORT_SUM != 0;
        let context = self.transmit[queue].contexts[(options >> 4 & 1) as usize];
        if self.is_virtual && options & CHECK_CONTEXT == 0 {
            self.complain("a packet of a virtual function names no context");
        }
        let context = match context {
            Some(context) => context,
            None if needed || self.is_virtual => {
                return self.complain("a packet names a context that does not exist");
            }
            None => Context::new([0; 4]),
        };
        if self.is_virtual && context.network != super::engine::ETHERNET {
            self.complain(format!(
                "a context of a virtual function has MACLEN {}",
                context.network
            ));
        }
        let announced = (options >> 14) as usize;
        let header = if command & SEGMENT != 0 { context.payload } else { 0 };
        if announced + header != packet.len() {
            self.complain(format!("PAYLEN {announced} of {} bytes", packet.len()));
        }
        if command & SEGMENT != 0 {
            return self.complete_segments(queue, &packet, context, command);
        }
        if options & NETWORK_SUM != 0 {
            let range = context.network..context.transport;
            match packet.len() >= range.end && range.len() >= 20 {
                true => {
                    packet[range.start + 10..range.start + 12].fill(0);
                    let sum = !offload::sum(&packet[range.clone()], 0);
                    packet[range.start + 10..range.start + 12].copy_from_slice(&sum.to_be_bytes());
                }
                false => self.complain("a checksum is requested for an invalid IP header"),
            }
        }
        if options & TRANSPORT_SUM != 0 {
            let field = context.transport + if context.is_tcp { 16 } else { 6 };
            match field + 2 <= packet.len() && (context.is_tcp || context.is_udp) {
                true => insert_sum(&mut packet, context.transport, field, context.is_udp),
                false => self.complain("a checksum is requested without a layer 4 header"),
            }
        }
        if command & TAG != 0 {
            insert_tag(&mut packet, context.tag);
        }
        self.put(queue, packet);
    }

    fn complete_segments(&mut self, queue: usize, packet: &[u8], context: Context, command: u32) {
        match offload::segment(packet, context.payload, context.mss) {
            Some(segments) if context.is_tcp => {
                for mut segment in segments {
                    if command & TAG != 0 {
                        insert_tag(&mut segment, context.tag);
                    }
                    self.put(queue, segment);
                }
            }
            _ => self.complain("a packet cannot be segmented"),
        }
    }

    /// Sends a frame to the wire.
    fn put(&mut self, queue: usize, mut frame: Vec<u8>) {
        if frame.len() < SHORTEST {
            return self.complain(format!("a frame of {} bytes", frame.len()));
        }
        if frame.len() < PADDED && self.pads {
            frame.resize(PADDED, 0);
        }
        if frame.len() < PADDED {
            self.complain("a frame is shorter than 60 bytes, and is not padded");
        }
        if frame.len() > self.longest {
            return self.complain(format!(
                "a frame of {} bytes, not {}",
                frame.len(),
                self.longest
            ));
        }
        self.statistics.send(&frame);
        let ring = &mut self.transmit[queue];
        ring.packets += 1;
        ring.bytes += frame.len() as u64;
        self.sent.push(frame);
    }

    /// Writes a transmit descriptor back as done.
    fn report(&mut self, queue: usize, at: u32, machine: &mut dyn Machine) -> bool {
        if self.faults.has(Fault::NeverReportsAgain) {
            return false;
        }
        if self.faults.take_one(Fault::NeverReports) {
            self.hung = true;
            return false;
        }
        let another = |fault| match fault {
            Fault::ReportsAnother(by) => Some(by),
            _ => None,
        };
        let by = self.faults.take(another).unwrap_or(0);
        let twice = self.faults.take_one(Fault::ReportsTwice);
        let ring: &Ring = &self.transmit[queue];
        for place in [Some(at + by), twice.then_some(at + 1)].into_iter().flatten() {
            // The ring was readable, so it is writable.
            let _ = machine.write(ring.address(place) + 12, &DONE.to_le_bytes());
        }
        true
    }
}

/// Writes the checksum from `start` to the end into `field`. The field's old value, the pseudo header's sum, is
/// included.
fn insert_sum(packet: &mut [u8], start: usize, field: usize, is_udp: bool) {
    let sum = match !offload::sum(&packet[start..], 0) {
        0 if is_udp => 0xffff,
        sum => sum,
    };
    packet[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn insert_tag(packet: &mut Vec<u8>, tag: u16) {
    let [high, low] = tag.to_be_bytes();
    packet.splice(12..12, [0x81, 0x00, high, low]);
}
