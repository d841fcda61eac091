//! Models of the stock BTL's sender and receiver, with the timing measured on Open MPI 4.1.4.

use super::world::{TAG, sender};
use crate::engine::WINDOW;
use crate::wire::header::{Header, Kind, Layout, MAX_HEADER};
use core::time::Duration;
use drivers::hal::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

/// Its timer is set to 5 ms, and was observed to expire after 8 ms.
const RETRANSMIT: Duration = Duration::from_millis(8);
/// Retransmissions in one call of its progress function.
const RESENDS: usize = 16;
/// Duration of such a call.
const CALL: Duration = Duration::from_micros(10);
/// Delay of an ACK: four calls.
const ACK_DELAY: Duration = Duration::from_micros(30);
const CHUNK: usize = 1424;

/// A sender of messages.
pub trait Sender {
    /// Queues a message of so many bytes; false if there is no room.
    fn give(&mut self, bytes: usize, now: Instant) -> bool;
    fn is_drained(&self) -> bool;
    fn receive(&mut self, datagram: &[u8], now: Instant);
    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>>;
    fn deadline(&mut self) -> Option<Instant>;
}

fn packet(header: &Header, payload: usize) -> Vec<u8> {
    let mut bytes = [0; MAX_HEADER];
    let length = header.emit(Layout::V4, payload as u16, &mut bytes);
    let mut packet = bytes[..length].to_vec();
    packet.resize(length + payload, 0);
    packet
}

/// A part of a message, which is one packet.
struct Part {
    offset: usize,
    size: usize,
    message: u32,
    /// When its timer expires, and whether it is queued for retransmission.
    due: Instant,
    is_queued: bool,
}

/// The sending side: no pacing, a timer for each packet that never gives up, and one duplicate ACK is enough.
#[derive(Default)]
pub struct StockSender {
    next: u64,
    /// All packets before this number are acknowledged.
    acknowledged: u64,
    /// Unacknowledged packets, and the packets not sent yet.
    packets: VecDeque<Part>,
    waits: VecDeque<Part>,
    messages: u32,
    /// One for each transmission of a packet; only the last one is valid.
    timers: BTreeSet<(Instant, u64)>,
    again: Vec<u64>,
    /// Retransmissions in this call, and when the next call begins.
    calls: (usize, Option<Instant>),
}

impl StockSender {
    fn part(&mut self, number: u64) -> Option<&mut Part> {
        self.packets.get_mut(number.checked_sub(self.acknowledged)? as usize)
    }

    fn queue(&mut self, number: u64) {
        if let Some(part) = self.part(number).filter(|part| !part.is_queued) {
            part.is_queued = true;
            self.again.push(number);
        }
    }

    fn make(&mut self, number: u64, now: Instant) -> Option<Vec<u8>> {
        let due = now + RETRANSMIT;
        let part = self.part(number)?;
        (part.due, part.is_queued) = (due, false);
        let Part { offset, size, message, .. } = *part;
        self.timers.insert((due, number));
        let header = Header {
            sender: sender(0),
            sequence: number as u16,
            acknowledged: None,
            put_address: 0,
            tag: TAG,
            kind: Kind::Chunk { fragment: message + 1, size: size as u32, offset: offset as u32 },
        };
        Some(packet(&header, CHUNK.min(size - offset)))
    }
}

impl Sender for StockSender {
    fn give(&mut self, bytes: usize, _now: Instant) -> bool {
        if self.waits.len() > 4 * WINDOW as usize {
            return false;
        }
        let message = self.messages;
        let part =
            |offset| Part { offset, size: bytes, message, due: Instant::ZERO, is_queued: false };
        let parts = (0..bytes).step_by(CHUNK).map(part);
        self.waits.extend(parts);
        self.messages += 1;
        true
    }

    fn is_drained(&self) -> bool {
        self.packets.is_empty() && self.waits.is_empty()
    }

    fn receive(&mut self, datagram: &[u8], _now: Instant) {
        let (header, _) = Header::parse(Layout::V4, datagram).expect("it is valid");
        let Some(number) = header.acknowledged else { return };
        let behind = number.wrapping_sub(self.acknowledged as u16).wrapping_add(1) as i16;
        if behind > 0 {
            self.acknowledged += behind as u64;
            self.packets.drain(..behind as usize);
        } else if behind == 0 {
            self.queue(self.acknowledged);
        }
    }

    fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        while let Some(&(due, number)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if self.part(number).is_some_and(|part| part.due == due) {
                self.queue(number);
            }
        }
        if self.calls.1.is_none_or(|at| at <= now) {
            self.calls = (0, None);
        }
        // The packet that was queued last is sent first.
        while self.calls.0 < RESENDS
            && let Some(number) = self.again.pop()
        {
            if let Some(packet) = self.make(number, now) {
                self.calls = (self.calls.0 + 1, Some(now + CALL));
                return Some(packet);
            }
        }
        if self.next - self.acknowledged < WINDOW - 1
            && let Some(part) = self.waits.pop_front()
        {
            self.packets.push_back(part);
            self.next += 1;
            return self.make(self.next - 1, now);
        }
        None
    }

    fn deadline(&mut self) -> Option<Instant> {
        let timer = self.timers.first().map(|&(at, _)| at);
        let call = self.calls.1.filter(|_| !self.again.is_empty());
        Instant::first([timer, call])
    }
}

/// The receiving side: cumulative ACKs, sent at once for old or duplicate packets, and for the end of a message.
#[derive(Default)]
pub struct StockReceiver {
    pub expected: u64,
    arrived: BTreeSet<u64>,
    /// Bytes of messages that are arriving.
    messages: BTreeMap<u32, usize>,
    pub complete: u32,
    /// When an ACK is to be sent.
    ack: Option<Instant>,
    pub acks: u64,
    pub twice: u64,
}

impl StockReceiver {
    pub fn receive(&mut self, datagram: &[u8], now: Instant) {
        let (header, payload) = Header::parse(Layout::V4, datagram).expect("it is valid");
        let ahead = header.sequence.wrapping_sub(self.expected as u16) as i16;
        let number = self.expected.wrapping_add_signed(ahead.into());
        if ahead < 0 || ahead as u64 >= WINDOW || self.arrived.contains(&number) {
            self.twice += 1;
            self.ack = Some(now);
            return;
        }
        let Kind::Chunk { fragment, size, .. } = header.kind else { panic!("{header:?}") };
        self.arrived.insert(number);
        while self.arrived.remove(&self.expected) {
            self.expected += 1;
        }
        let bytes = self.messages.entry(fragment).or_default();
        *bytes += payload.len();
        let whole = *bytes == size as usize;
        if whole {
            self.messages.remove(&fragment);
            self.complete += 1;
        }
        let at = if whole { now } else { now + ACK_DELAY };
        self.ack = Instant::first([self.ack, Some(at)]);
    }

    pub fn transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.ack.take_if(|at| *at <= now)?;
        self.acks += 1;
        let header = Header {
            sender: sender(1),
            sequence: 0,
            acknowledged: Some(self.expected.wrapping_sub(1) as u16),
            put_address: 0,
            tag: 0,
            kind: Kind::Ack,
        };
        Some(packet(&header, 0))
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.ack
    }
}
