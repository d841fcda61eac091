//! A bridge that is a stream of bytes, such as a TCP connection: two machines without any bridge
//! device speak to each other as if they had one. No I/O here: what arrives is handed to
//! [`Stream::receive`], and what [`Stream::outgoing`] holds is sent.
//!
//! What one machine writes to the other's memory goes over as records, in the order in which it was
//! written, and is checked and carried out there. The format is this project's own; all numbers are
//! little-endian. Each side begins with a greeting of 16 bytes: a magic number, the version, and
//! how many bytes it exposes (64 bits); both expose the same. Then come records:
//!
//! | kind (32 bits) | place (32 bits) | 32 bits | followed by |
//! |---|---|---|---|
//! | 1: bytes | offset | length | so many bytes |
//! | 2: cell | offset, a multiple of 4 | value | |
//! | 3: scratchpad | its number | value | |
//! | 4: doorbell | 0 | 0 | |
//!
//! Memory of the other machine cannot be loaded: the window only stands for addresses.

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
/// Bytes of a greeting, and of a record without what follows it.
const GREETING: usize = 16;
const RECORD: usize = 12;

const BYTES: u32 = 1;
const CELL: u32 = 2;
const SCRATCHPAD: u32 = 3;
const BELL: u32 = 4;

/// Bytes that wait to be sent, at most: a turn, and another one to send meanwhile.
const WAITING: usize = 2 * TURN;

/// What ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The peer does not greet as a machine like this does.
    Greeting,
    /// It speaks another version.
    Version(u32),
    /// It exposes more or less than we.
    Size {
        /// Bytes that we expose.
        ours: u64,
        /// That it exposes.
        theirs: u64,
    },
    /// It sent a record of no known kind.
    Kind(u32),
    /// It wrote to a place that is not exposed, or not to be written so.
    Place(u32),
    /// It takes so little of what is sent that no more can be kept.
    Stuck,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Greeting => f.write_str("what answers there is not the bridge of an appliance"),
            Wrong::Version(version) => {
                write!(f, "it speaks version {version} of the bridge, and we {VERSION}")
            }
            Wrong::Size { ours, theirs } => write!(
                f,
                "it exposes {theirs} bytes, and we {ours}: set the same `memory` on both machines"
            ),
            Wrong::Kind(kind) => write!(f, "it sent a record of the unknown kind {kind}"),
            Wrong::Place(place) => write!(f, "it wrote to {place:#x}, where nothing is exposed"),
            Wrong::Stuck => f.write_str("it takes too little of what is sent to it"),
        }
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is none, or it was given up.
    Closed,
    /// The peer's greeting is awaited.
    Greeting,
    /// Records come and go.
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
    /// What has arrived of a greeting, or of the head of a record.
    head: [u8; GREETING],
    filled: usize,
    /// Where the bytes of the present record go, and how many are still to come.
    at: usize,
    left: usize,
}

impl Stream {
    /// Without a connection, over memory that the peer may write.
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

    /// There is a connection, on which nothing was said yet. Whoever uses the bridge must have seen
    /// [`Ntb::link`] down since the last one.
    pub fn open(&mut self) {
        self.close();
        self.state = State::Greeting;
        let mut greeting = [0; GREETING];
        greeting[..4].copy_from_slice(&MAGIC.to_le_bytes());
        greeting[4..8].copy_from_slice(&VERSION.to_le_bytes());
        greeting[8..].copy_from_slice(&(self.exposed.len() as u64).to_le_bytes());
        self.waiting.push(&greeting);
    }

    /// The connection is gone, and with it all that was under way.
    pub fn close(&mut self) {
        self.state = State::Closed;
        self.wrong = None;
        self.scratchpads = [0; SCRATCHPADS];
        self.rung = false;
        self.waiting.clear();
        (self.filled, self.left) = (0, 0);
    }

    /// Why the connection is to be given up, once that is so: nothing is taken from it any more.
    pub fn wrong(&self) -> Option<Wrong> {
        self.wrong
    }

    /// Whether the connection's user was rung and has not asked yet.
    pub fn pending(&self) -> bool {
        self.rung
    }

    /// Takes bytes that have arrived, cut anywhere.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.state != State::Closed {
            if self.left > 0 {
                let (now, later) = bytes.split_at(self.left.min(bytes.len()));
                // It was checked with the record's head.
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

    /// The first so many bytes of [`Stream::outgoing`] were sent.
    pub fn sent(&mut self, count: usize) {
        self.waiting.pop(count);
    }

    /// Begins a record that `more` bytes follow; false if there is no connection, or no room on it
    /// any more.
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

    /// Where a part of the window lies.
    fn offset(&self, to: &Window) -> Option<u32> {
        let offset = to.bus_address().wrapping_sub(self.exposed.bus_address());
        self.exposed.contains(to).then_some(offset as u32)
    }
}

impl Ntb for Stream {
    fn link(&self) -> bool {
        self.state == State::Open
    }

    /// Our own exposed memory, which is as large as the peer's: nothing is read or written there,
    /// only its addresses are used.
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
        // Records are carried out in order.
    }

    fn settled(&mut self) -> bool {
        // Whatever is under way is carried out before all that is written from now on.
        true
    }

    fn has_room(&self) -> bool {
        self.waiting.room() >= TURN
    }
}
