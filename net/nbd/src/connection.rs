//! State of one connection.

use crate::handshake::Handshake;
use crate::wire::REQUEST_LENGTH;
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::Instant;

/// Life of a connection.
#[derive(Debug)]
pub(crate) enum Life {
    /// Closed; it may be opened again at this time.
    Down(Instant),
    /// TCP opens since then.
    Opening(Instant),
    /// The handshake runs since then.
    Greeting(Instant, Box<Handshake>),
    /// Requests flow since then.
    Ready(Instant),
    /// It ends after the request to disconnect was sent.
    Leaving(Instant),
}

/// Part of a reply that is expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// The first word of a reply.
    Word,
    /// A simple reply.
    Simple,
    /// The header of a chunk.
    Chunk,
    /// The offset of a chunk of data: slot, length of the payload, last chunk.
    Offset(u16, u32, bool),
    /// The payload of a hole: slot, last chunk.
    Hole(u16, bool),
    /// Errno and text length of an error: slot, length of the payload, last chunk.
    Error(u16, u32, bool),
    /// Data: slot, place in its window, bytes that are missing, last chunk.
    Data(u16, usize, usize, bool),
    /// Bytes without use: slot, their number, last chunk.
    Skip(u16, usize, bool),
}

/// A request that is being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// Its slot; None for a request to disconnect.
    pub slot: Option<u16>,
    pub head: [u8; REQUEST_LENGTH],
    /// Bytes of `head` and then of the data that were sent.
    pub sent: usize,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub life: Life,
    /// The caller has to close it: by a reset, or else after the data that was written.
    pub to_close: Option<bool>,
    /// Failed attempts in a row.
    pub attempts: u32,
    /// Number of the address that it goes to.
    pub path: u16,
    /// The client's count of acknowledged writes when it became ready.
    pub since: u64,
    /// The server sends structured replies.
    pub structured: bool,
    /// Requests in flight.
    pub in_flight: u16,
    /// Secret of its cookies, and number of the next one.
    pub secret: u64,
    pub next_cookie: u64,
    /// Bytes of the handshake to send, and how many were sent.
    pub out: Vec<u8>,
    pub out_sent: usize,
    pub sending: Option<Sending>,
    pub expect: Expect,
    /// Beginning of the part that is expected.
    pub kept: [u8; 24],
    pub length: usize,
}

impl Connection {
    pub fn new() -> Connection {
        Connection {
            life: Life::Down(Instant::ZERO),
            to_close: None,
            attempts: 0,
            path: 0,
            since: 0,
            structured: false,
            in_flight: 0,
            secret: 0,
            next_cookie: 0,
            out: Vec::new(),
            out_sent: 0,
            sending: None,
            expect: Expect::Word,
            kept: [0; 24],
            length: 0,
        }
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.life, Life::Ready(_))
    }

    /// Whether the caller has a TCP connection for it, or is to open one.
    pub fn is_down(&self) -> bool {
        matches!(self.life, Life::Down(_))
    }

    /// Forgets everything about the TCP connection, which has ended.
    pub fn reset(&mut self, again_at: Instant) {
        self.life = Life::Down(again_at);
        self.in_flight = 0;
        self.out.clear();
        (self.out_sent, self.sending) = (0, None);
        (self.expect, self.length) = (Expect::Word, 0);
    }

    /// A new cookie for a slot. Without the secret the next ones cannot be guessed.
    pub fn cookie(&mut self, slot: u16) -> u64 {
        self.next_cookie += 1;
        mix(self.secret.wrapping_add(mix(self.next_cookie))) << 16 | u64::from(slot)
    }

    /// Moves bytes to `kept` until it has `wanted` of them. Returns whether it has.
    pub fn gather(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let missing = wanted.saturating_sub(self.length).min(bytes.len());
        let (taken, rest) = bytes.split_at(missing);
        *bytes = rest;
        if let Some(room) = self.kept.get_mut(self.length..self.length + missing) {
            room.copy_from_slice(taken);
        }
        self.length += missing;
        self.length >= wanted
    }
}

/// The finalizer of splitmix64.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
