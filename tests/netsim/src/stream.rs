//! A bridge that is a connection: bytes that arrive in order, cut anywhere, until the connection
//! ends, which is made anew some time after.

use crate::Rng;
use drivers::hal::Window;
use drivers::ntb::Stream;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes that are on their way at most, each way.
const UNDER_WAY: usize = 32 << 10;
/// Turns between the end of a connection and the next: each end's user sees that the link is down.
const PAUSE: u32 = 60;

/// What joins the ends.
#[derive(Debug, Default)]
struct Wire {
    /// To the first end, and to the second.
    bytes: [VecDeque<u8>; 2],
    /// How many connections have ended.
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
    /// Connections of which this end knows that they have ended.
    ended: u32,
    open: bool,
    pause: u32,
    up: bool,
}

impl StreamEnd {
    /// The ends of a connection between machines that expose `windows`, which are equally large.
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

    /// Whether connections can be made.
    pub fn set_link(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.wire.borrow_mut().end();
            self.turn(0);
        }
    }

    /// The machine is gone, and the connection with it.
    pub fn power_off(&mut self) {
        let some = self.rng.within(0..20) as usize;
        self.turn(some);
        self.wire.borrow_mut().end();
        self.turn(0);
    }

    /// Carries some bytes out and in, and sees to the connection.
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
        let mut left = (self.rng.within(0..most) as usize).min(UNDER_WAY - out.len());
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
