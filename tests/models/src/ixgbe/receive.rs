//! Receive: frames are scattered over buffers, and written back as legacy or advanced descriptors (82599, 7.1.5 and
//! 7.1.6).

use super::engine::Engine;
use super::fault::Fault;
use super::registers::PACKET_BUFFER;
use super::ring::Format;
use crate::Machine;
use crate::offload::{self, IPV4, IPV6, Layers, TCP, UDP};

const DONE: u32 = 1;
const END: u32 = 1 << 1;
const TAGGED: u32 = 1 << 3;
const TRANSPORT_CHECKED: u32 = 1 << 5;
const NETWORK_CHECKED: u32 = 1 << 6;
const MAC_ERROR: u32 = 1 << 29;
const TRANSPORT_ERROR: u32 = 1 << 30;
const NETWORK_ERROR: u32 = 1 << 31;

/// Queue and hash of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Receive queue of the frame.
    pub queue: usize,
    /// The hash, and its RSS type.
    pub hash: Option<(u32, u32)>,
}

/// Result of a frame's receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Taken,
    Dropped,
    /// The frame waits for buffers, and so do the later ones.
    Waits,
}

impl Engine {
    /// Receives a frame. `waiting`: bytes that wait after it.
    pub fn accept(
        &mut self,
        frame: &[u8],
        known: Known,
        waiting: usize,
        machine: &mut dyn Machine,
    ) -> Outcome {
        let ring = &mut self.receive[known.queue];
        if !ring.works() {
            self.statistics.dropped += 1;
            return Outcome::Dropped;
        }
        let mut bytes = std::borrow::Cow::Borrowed(frame);
        let mut tag = None;
        if ring.strips_tags() && frame.get(12..14) == Some(&[0x81, 0x00]) && frame.len() >= 18 {
            tag = Some(u16::from_be_bytes([frame[14], frame[15]]));
            bytes.to_mut().drain(12..16);
        }
        let needed = bytes.len().div_ceil(ring.buffer().max(1));
        if (ring.available() as usize) < needed {
            if !ring.drops() && waiting + frame.len() <= PACKET_BUFFER as usize {
                return Outcome::Waits;
            }
            match ring.drops() {
                true => ring.dropped += 1,
                false => self.statistics.count(super::statistics::MISSED, 1),
            }
            self.statistics.dropped += 1;
            return Outcome::Dropped;
        }
        ring.packets += 1;
        ring.bytes += frame.len() as u64;
        self.statistics.receive(frame);
        self.scatter(&bytes, known, tag, machine);
        Outcome::Taken
    }

    fn scatter(&mut self, frame: &[u8], known: Known, tag: Option<u16>, machine: &mut dyn Machine) {
        let skew = |fault| match fault {
            Fault::ReceivesAt(by) => Some(by),
            _ => None,
        };
        if let Some(by) = self.faults.take(skew) {
            self.skewed = by;
        }
        let length = |fault| match fault {
            Fault::Length(length) => Some(length),
            _ => None,
        };
        let lies = self.faults.take(length);
        let no_end = self.faults.take_one(Fault::NoEnd);
        let damaged = self.faults.take_one(Fault::Damaged);
        let twice = self.faults.take_one(Fault::ReceivesTwice);
        let buffer = self.receive[known.queue].buffer();
        let count = frame.chunks(buffer).count();
        let (kind, checks) = describe(frame);
        for (n, piece) in frame.chunks(buffer).enumerate() {
            let Some((at, address)) = self.receive[known.queue].take() else { return };
            let mut descriptor = [0; 16];
            if machine.read(address, &mut descriptor).is_err() {
                return self.complain("a receive ring cannot be reached");
            }
            let place = u64::from_le_bytes(descriptor[..8].try_into().unwrap_or_default());
            if machine.write(place, piece).is_err() {
                self.complain(format!("a buffer at {place:#x} cannot be reached"));
            }
            let last = n + 1 == count;
            let mut status = DONE;
            if last && !no_end {
                status |= END | checks | if tag.is_some() { TAGGED } else { 0 };
            }
            if last && damaged {
                status |= MAC_ERROR;
            }
            let length = lies.filter(|_| last).unwrap_or(piece.len() as u16);
            let tag = tag.filter(|_| last).unwrap_or(0);
            let ring = &self.receive[known.queue];
            let (first, second) = match ring.format() {
                Format::Advanced => {
                    let (hash, of) = known.hash.unwrap_or((0, 0));
                    (words(kind | of, hash), [status, u32::from(tag) << 16 | u32::from(length)])
                }
                // 8 bits of status, and 8 bits of errors.
                Format::Legacy => {
                    let state = status & 0xff | status >> 16 & 0xff00 | u32::from(tag) << 16;
                    (descriptor[..8].try_into().unwrap_or_default(), [length.into(), state])
                }
            };
            let place = ring.address(at + self.skewed);
            for _ in 0..=u32::from(twice) {
                // The ring was readable, so it is writable.
                let _ = machine.write(place, &first);
                let _ = machine.write(place + 8, &words(second[0], second[1]));
            }
        }
    }
}

fn words(low: u32, high: u32) -> [u8; 8] {
    (u64::from(high) << 32 | u64::from(low)).to_le_bytes()
}

/// Packet type and checksum status of a frame, as descriptor fields.
fn describe(frame: &[u8]) -> (u32, u32) {
    let layers = Layers::of(frame);
    let mut kind = match layers.ethertype {
        IPV4 => 1 << 4,
        IPV6 => 1 << 6,
        _ => return (0, 0),
    };
    let protocol = layers.transport.filter(|_| !layers.fragment).map(|(protocol, _)| protocol);
    kind |= match protocol {
        Some(TCP) => 1 << 8,
        Some(UDP) => 1 << 9,
        _ => 0,
    };
    let (network, transport) = offload::check_sums(frame);
    let mut status = 0;
    if layers.ethertype == IPV4 {
        status |= NETWORK_CHECKED | if network { 0 } else { NETWORK_ERROR };
    }
    if matches!(protocol, Some(TCP | UDP)) {
        status |= TRANSPORT_CHECKED | if transport { 0 } else { TRANSPORT_ERROR };
    }
    (kind, status)
}
