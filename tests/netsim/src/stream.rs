//! A bridge over a connection: bytes arrive in order, split anywhere, until the connection ends. A new one is made some
//! time later.

use crate::Rng;
use drivers::hal::Window;
use drivers::ntb::Stream;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Most bytes in flight, each way.
const MAX_IN_FLIGHT: usize = 32 << 10;
/// Turns between two connections, so that each end's user notices that the link is down.
const PAUSE: u32 = 60;

/// The connection between the ends.
#[derive(Debug, Default)]
struct Wire {
    /// Bytes to the first end, and to the second.
    bytes: [VecDeque<u8>; 2],
    /// Number of connections that have ended.
    ended: u32,
}

impl Wire {
    fn end(&mut self) {
        self.ended += 1;
        self.bytes.iter_mut().for_each(VecDeque::clear);
    }
}

/// One end.
#[derive(Debug)]
pub struct StreamEnd {
    pub stream: Stream,
    side: usize,
    wire: Rc<RefCell<Wire>>,
    rng: Rng,
    /// Number of ended connections that this end has noticed.
    ended: u32,
    open: bool,
    pause: u32,
    up: bool,
}

impl StreamEnd {
    /// Creates the ends of a connection between machines that expose `windows` of equal size.
    pub fn pair(windows: [Window; 2], rng: &mut Rng) -> [StreamEnd; 2] {
        let wire = Rc::new(RefCell::new(Wire::default()));
        [0, 1].map(|side| StreamEnd {
            stream: Stream::new(windows[side]),
            side,
            wire: wire.clone(),
            rng: rng.fork(),
            ended: 0,
            open: false,
            pause: 0,
            up: true,
        })
    }

    /// Sets whether connections can be made.
    pub fn set_link(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.wire.borrow_mut().end();
            self.turn(0);
        }
    }

    /// Cuts the power of the machine, which ends the connection.
    pub fn power_off(&mut self) {
        let some = self.rng.within(0..20) as usize;
        self.turn(some);
        self.wire.borrow_mut().end();
        self.turn(0);
    }

    /// Carries some bytes in both directions, and handles the connection's end and restart.
    pub fn turn(&mut self, count: usize) {
        let mut wire = self.wire.borrow_mut();
        if self.stream.wrong().is_some() {
            wire.end();
        }
        if self.ended != wire.ended {
            (self.ended, self.open, self.pause) = (wire.ended, false, PAUSE);
            self.stream.close();
        }
        if !self.open {
            self.pause = self.pause.saturating_sub(1);
            if self.pause > 0 || !self.up {
                return;
            }
            self.open = true;
            self.stream.open();
        }
        let most = count as u64 * 1000 + 1;
        let out = &mut wire.bytes[1 - self.side];
        let mut left = (self.rng.within(0..most) as usize).min(MAX_IN_FLIGHT - out.len());
        while left > 0 && !self.stream.outgoing().is_empty() {
            let piece = self.stream.outgoing();
            let piece = &piece[..piece.len().min(left)];
            out.extend(piece);
            let length = piece.len();
            self.stream.sent(length);
            left -= length;
        }
        let mut left = self.rng.within(0..most) as usize;
        while left > 0 && !wire.bytes[self.side].is_empty() {
            let longest = left.min(wire.bytes[self.side].len()) as u64;
            let length = self.rng.within(1..longest + 1) as usize;
            let piece: Vec<u8> = wire.bytes[self.side].drain(..length).collect();
            self.stream.receive(&piece);
            left -= length;
        }
    }
}
