//! A bridge over a stream of bytes, such as a TCP connection, for two machines without a bridge device. This module
//! does no I/O: the caller passes received bytes to [`Stream::receive`], and sends the bytes of [`Stream::outgoing`].
//!
//! Writes to the other machine's memory are sent as records, in order; the receiver checks and applies them. The format
//! is this project's own; all numbers are little-endian. Each side begins with a greeting of 16 bytes: a magic number,
//! the version, and the number of exposed bytes (64 bits), which must be equal. Then come records:
//!
//! | kind (32 bits) | place (32 bits) | 32 bits | followed by |
//! |---|---|---|---|
//! | 1: bytes | offset | length | the bytes |
//! | 2: cell | offset, a multiple of 4 | value | |
//! | 3: scratchpad | its number | value | |
//! | 4: doorbell | 0 | 0 | |
//!
//! Memory of the other machine cannot be loaded: the window provides addresses only.

mod ring;
#[cfg(test)]
mod tests;

use super::{Ntb, SCRATCHPADS};
use crate::dma::{Dma, TURN};
use crate::hal::Window;
use core::fmt;
use ring::Ring;

const MAGIC: u32 = u32::from_le_bytes(*b"iNTB");
const VERSION: u32 = 1;
/// Bytes of a greeting, and of a record's header.
const GREETING: usize = 16;
const RECORD: usize = 12;

const BYTES: u32 = 1;
const CELL: u32 = 2;
const SCRATCHPAD: u32 = 3;
const BELL: u32 = 4;

/// Most bytes that wait to be sent: a turn, and another one while the first is sent.
const WAITING: usize = 2 * TURN;

/// Violation of the protocol by the peer, which ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The peer's greeting has another magic number.
    Greeting,
    /// The peer has another version.
    Version(u32),
    /// The peer exposes another number of bytes.
    Size {
        /// Bytes exposed by this machine.
        ours: u64,
        /// Bytes exposed by the peer.
        theirs: u64,
    },
    /// The peer sent a record of an unknown kind.
    Kind(u32),
    /// The peer wrote to an offset that is not exposed, or not aligned.
    Place(u32),
    /// The peer reads too slowly: the ring of bytes to send is full.
    Stuck,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Greeting => f.write_str("the peer is not the bridge of an appliance"),
            Wrong::Version(version) => {
                write!(f, "the peer speaks version {version} of the bridge, this machine {VERSION}")
            }
            Wrong::Size { ours, theirs } => write!(
                f,
                "the peer exposes {theirs} bytes, this machine {ours}: set the same `memory` on both machines"
            ),
            Wrong::Kind(kind) => write!(f, "the peer sent a record of the unknown kind {kind}"),
            Wrong::Place(place) => write!(f, "the peer wrote to {place:#x}, which is not exposed"),
            Wrong::Stuck => f.write_str("the peer reads too slowly"),
        }
    }
}

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no connection, or it was given up.
    Closed,
    /// The peer's greeting has not arrived yet.
    Greeting,
    /// Both sides exchange records.
    Open,
}

/// One end of the bridge.
#[derive(Debug)]
pub struct Stream {
    exposed: Window,
    state: State,
    wrong: Option<Wrong>,
    scratchpads: [u32; SCRATCHPADS],
    rung: bool,
    waiting: Ring,
    /// Received part of a greeting, or of a record's header.
    head: [u8; GREETING],
    filled: usize,
    /// Offset for the next byte of the current record.
    at: usize,
    /// Missing bytes of the current record.
    left: usize,
}

impl Stream {
    /// A bridge without a connection. The peer may write the memory `exposed`.
    pub fn new(exposed: Window) -> Self {
        Stream {
            exposed,
            state: State::Closed,
            wrong: None,
            scratchpads: [0; SCRATCHPADS],
            rung: false,
            waiting: Ring::new(WAITING),
            head: [0; GREETING],
            filled: 0,
            at: 0,
            left: 0,
        }
    }

    /// Starts a new connection. The user of the bridge must have seen [`Ntb::link`] down since the last one.
    pub fn open(&mut self) {
        self.close();
        self.state = State::Greeting;
        let mut greeting = [0; GREETING];
        greeting[..4].copy_from_slice(&MAGIC.to_le_bytes());
        greeting[4..8].copy_from_slice(&VERSION.to_le_bytes());
        greeting[8..].copy_from_slice(&(self.exposed.len() as u64).to_le_bytes());
        self.waiting.push(&greeting);
    }

    /// Ends the connection, and drops all bytes to send and received state.
    pub fn close(&mut self) {
        self.state = State::Closed;
        self.wrong = None;
        self.scratchpads = [0; SCRATCHPADS];
        self.rung = false;
        self.waiting.clear();
        (self.filled, self.left) = (0, 0);
    }

    /// The peer's violation, after which received bytes are ignored and the caller has to end the connection.
    pub fn wrong(&self) -> Option<Wrong> {
        self.wrong
    }

    /// Whether the doorbell was rung since [`Ntb::rung`] was called.
    pub fn pending(&self) -> bool {
        self.rung
    }

    /// Processes received bytes. Records may be split at any byte.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Closed {
            if self.left > 0 {
                let (now, later) = bytes.split_at(self.left.min(bytes.len()));
                // The range was checked with the record's header.
                let _ = self.exposed.write(self.at, now);
                self.at += now.len();
                self.left -= now.len();
                bytes = later;
                continue;
            }
            let wanted = if self.state == State::Open { RECORD } else { GREETING };
            let (now, later) = bytes.split_at((wanted - self.filled).min(bytes.len()));
            self.head[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled == wanted {
                self.filled = 0;
                let done = if wanted == RECORD { self.record() } else { self.greeting() };
                if let Err(wrong) = done {
                    self.give_up(wrong);
                }
            }
        }
    }

    fn word(&self, n: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.head[4 * n..4 * n + 4]);
        u32::from_le_bytes(bytes)
    }

    fn greeting(&mut self) -> Result<(), Wrong> {
        if self.word(0) != MAGIC {
            return Err(Wrong::Greeting);
        }
        if self.word(1) != VERSION {
            return Err(Wrong::Version(self.word(1)));
        }
        let ours = self.exposed.len() as u64;
        let theirs = u64::from(self.word(3)) << 32 | u64::from(self.word(2));
        if theirs != ours {
            return Err(Wrong::Size { ours, theirs });
        }
        self.state = State::Open;
        Ok(())
    }

    fn record(&mut self) -> Result<(), Wrong> {
        let [kind, place, value] = [0, 1, 2].map(|n| self.word(n));
        let at = place as usize;
        match kind {
            BYTES => {
                self.exposed.slice(at, value as usize).ok_or(Wrong::Place(place))?;
                (self.at, self.left) = (at, value as usize);
            }
            CELL => {
                let cell = self.exposed.slice(at, 4).filter(|_| at.is_multiple_of(4));
                cell.ok_or(Wrong::Place(place))?.store32(0, value);
            }
            SCRATCHPAD => {
                *self.scratchpads.get_mut(at).ok_or(Wrong::Place(place))? = value;
            }
            BELL => self.rung = true,
            _ => return Err(Wrong::Kind(kind)),
        }
        Ok(())
    }

    fn give_up(&mut self, wrong: Wrong) {
        self.state = State::Closed;
        self.wrong = Some(wrong);
    }

    /// The next bytes to send; empty when there are none.
    pub fn outgoing(&self) -> &[u8] {
        self.waiting.front()
    }

    /// Removes the first `count` bytes of [`Stream::outgoing`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.waiting.pop(count);
    }

    /// Adds the header of a record that `more` bytes follow. False if there is no connection, or no room.
    #[inline(never)]
    fn begin(&mut self, kind: u32, place: u32, value: u32, more: usize) -> bool {
        if self.state != State::Open {
            return false;
        }
        if self.waiting.room() < RECORD + more {
            self.give_up(Wrong::Stuck);
            return false;
        }
        let mut head = [0; RECORD];
        for (to, word) in head.as_chunks_mut().0.iter_mut().zip([kind, place, value]) {
            *to = word.to_le_bytes();
        }
        self.waiting.push(&head);
        true
    }

    /// Offset of a part of the window.
    fn offset(&self, to: &Window) -> Option<u32> {
        let offset = to.bus_address().wrapping_sub(self.exposed.bus_address());
        self.exposed.contains(to).then_some(offset as u32)
    }
}

impl Ntb for Stream {
    fn link(&self) -> bool {
        self.state == State::Open
    }

    /// This side's exposed memory, which has the size of the peer's. Only its addresses are used: nothing is read or
    /// written there.
    fn window(&self) -> Window {
        if self.link() { self.exposed } else { Window::empty() }
    }

    fn exposed(&self) -> Window {
        self.exposed
    }

    fn loads(&self) -> bool {
        false
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.scratchpads[n.min(SCRATCHPADS - 1)]
    }

    fn set_peer_scratchpad(&mut self, n: usize, value: u32) {
        self.begin(SCRATCHPAD, n as u32, value, 0);
    }

    fn ring(&mut self) {
        self.begin(BELL, 0, 0, 0);
    }

    fn rung(&mut self) -> bool {
        core::mem::take(&mut self.rung)
    }
}

impl Dma for Stream {
    fn submit(&mut self, to: &Window, from: &Window) {
        let length = from.len().min(to.len());
        let (Some(offset), Some(from)) = (self.offset(to), from.slice(0, length)) else { return };
        if self.begin(BYTES, offset, length as u32, length) {
            self.waiting.push_window(&from);
        }
    }

    fn put(&mut self, to: &Window, words: &[u64]) {
        let words = &words[..words.len().min(to.len() / 8)];
        let Some(offset) = self.offset(to) else { return };
        if self.begin(BYTES, offset, 8 * words.len() as u32, 8 * words.len()) {
            words.iter().for_each(|word| self.waiting.push(&word.to_le_bytes()));
        }
    }

    fn put32(&mut self, to: &Window, value: u32) {
        if let Some(offset) = self.offset(to) {
            self.begin(CELL, offset, value, 0);
        }
    }

    fn order(&mut self) {
        // The peer applies records in order.
    }

    fn settled(&mut self) -> bool {
        // The peer applies all earlier records before any later one.
        true
    }

    fn has_room(&self) -> bool {
        self.waiting.room() >= TURN
    }
}
