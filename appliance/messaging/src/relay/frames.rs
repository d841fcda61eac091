//! Messages of one direction of a relayed connection, of which at least one side carries messages.
//!
//! In a stream each message has its length before it: four bytes, big-endian, of what follows. Without framing a message
//! is written as it is, and what is read of a stream becomes messages as it comes.
//!
//! What is read of a stream is kept here until its message is whole, and taken; so is a message that goes from one
//! transport to another. Of a message that goes into a stream nothing is kept: it stays in its transport while it is
//! written piece by piece.

use super::pipe::{Pipe, Side, Sides};
use crate::transport::{Carries, Closed, Reason, Unwritten};
use alloc::boxed::Box;

/// Bytes of the length before a message in a stream.
pub const LENGTH: usize = 4;

/// Both sides of a connection, one of which carries messages at least. One call of these is one by piece or message.
pub(super) trait MessageSides: Sides {
    /// What a side carries.
    fn carries(&mut self, side: Side) -> Carries;
    /// Bytes that are left of the first message that has arrived.
    fn message(&mut self, side: Side) -> Result<Option<usize>, Closed>;
    /// Writes bytes, or one message.
    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Unwritten>;
    /// Why a side has ended.
    fn reason(&mut self, side: Side) -> Reason;
}

/// What is known of a message on its way.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes that were read and that the other side has not taken.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The buffer has one message, which is whole.
    is_whole: bool,
    /// Of a message that is being written to a stream: bytes of its length that were written, and bytes that are left.
    writing: Option<(usize, usize)>,
    length: [u8; LENGTH],
}

/// How messages go into streams, and which are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// They have their lengths before them.
    pub lengths: bool,
    /// Bytes of the longest.
    pub longest: usize,
}

impl Frames {
    /// Memory of one for messages of so many bytes.
    pub fn memory(longest: usize) -> usize {
        LENGTH + longest
    }

    /// For messages of so many bytes at most.
    pub fn new(longest: usize) -> Self {
        let buffer = alloc::vec![0; Frames::memory(longest)].into();
        Frames { buffer, ..Frames::default() }
    }

    /// Whether a message, or a part of one, was taken from one side and not given to the other.
    pub fn holds(&self) -> bool {
        self.start != self.end || self.is_whole
    }

    /// Moves what can be moved from `from` to the other side until nothing more can be, or `turn` bytes were: how much.
    /// `piece` is room for what is moved at a time.
    pub fn flow(
        &mut self,
        pipe: &mut Pipe,
        from: Side,
        sides: &mut dyn MessageSides,
        framing: Framing,
        piece: &mut [u8],
        turn: usize,
    ) -> Result<usize, Reason> {
        if pipe.finished {
            return Ok(0);
        }
        let carries = (sides.carries(from), sides.carries(from.other()));
        let mut moved = 0;
        let ended = match carries {
            (Carries::Bytes, Carries::Messages { longest }) => {
                let framing = Framing { longest: longest.min(framing.longest), ..framing };
                self.cut_into_messages(from, sides, framing, turn, &mut moved)
            }
            (Carries::Messages { .. }, Carries::Bytes) => {
                self.join_into_bytes(from, sides, framing, piece, turn, &mut moved)
            }
            (Carries::Messages { .. }, Carries::Messages { longest }) => {
                self.across(from, sides, longest.min(framing.longest), turn, &mut moved)
            }
            (Carries::Bytes, Carries::Bytes) => Err(Reason::Lost),
        };
        pipe.bytes += moved as u64;
        if ended? {
            sides.finish(from.other());
            pipe.finished = true;
        }
        Ok(moved)
    }

    /// True at the end of the stream.
    fn cut_into_messages(
        &mut self,
        from: Side,
        sides: &mut dyn MessageSides,
        framing: Framing,
        turn: usize,
        moved: &mut usize,
    ) -> Result<bool, Reason> {
        loop {
            while let Some((at, end)) = self.next_frame(framing)? {
                let message = self.buffer.get(at..end).unwrap_or_default();
                if !put(sides, from, message)? {
                    return heard(sides, from);
                }
                *moved += end - self.start;
                self.start = end;
            }
            self.compact(LENGTH + framing.longest);
            if *moved >= turn {
                return Ok(false);
            }
            let most = match framing.lengths {
                true => self.buffer.len(),
                false => framing.longest.min(self.buffer.len()),
            };
            let room = self.buffer.get_mut(self.end..most).unwrap_or_default();
            match sides.read(from, room) {
                Ok(0) => return Ok(false),
                Ok(count) => self.end += count,
                Err(Closed::Finished) => return Ok(true),
                Err(Closed::Gone) => return Err(sides.reason(from)),
            }
        }
    }

    /// Where the next message lies in the buffer, if it is whole.
    fn next_frame(&self, framing: Framing) -> Result<Option<(usize, usize)>, Reason> {
        let bytes = self.buffer.get(self.start..self.end).unwrap_or_default();
        if !framing.lengths {
            return Ok((!bytes.is_empty()).then_some((self.start, self.end)));
        }
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        if length as usize > framing.longest {
            return Err(Reason::BadLength(length.into()));
        }
        let (at, length) = (self.start + LENGTH, length as usize);
        Ok((rest.len() >= length).then_some((at, at + length)))
    }

    /// Makes room for a whole message behind what is kept.
    fn compact(&mut self, whole: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < whole {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// True when all was said.
    fn join_into_bytes(
        &mut self,
        from: Side,
        sides: &mut dyn MessageSides,
        framing: Framing,
        piece: &mut [u8],
        turn: usize,
        moved: &mut usize,
    ) -> Result<bool, Reason> {
        let to = from.other();
        while *moved < turn {
            let (at, left) = match self.writing {
                Some(writing) => writing,
                None => match sides.message(from) {
                    Ok(Some(length)) => {
                        if length > framing.longest {
                            return Err(Reason::TooLong(length));
                        }
                        self.length = (length as u32).to_be_bytes();
                        (if framing.lengths { 0 } else { LENGTH }, length)
                    }
                    Ok(None) => return heard(sides, to),
                    Err(Closed::Finished) => return Ok(true),
                    Err(Closed::Gone) => return Err(sides.reason(from)),
                },
            };
            self.writing = Some((at, left));
            let room = sides.room(to);
            if room == 0 {
                return heard(sides, to);
            }
            if let Some(rest) = self.length.get(at..).filter(|rest| !rest.is_empty()) {
                let count = rest.len().min(room);
                let written = put_bytes(sides, to, rest.get(..count).unwrap_or_default())?;
                *moved += written;
                self.writing = Some((at + written, left));
                // Its bytes go when there is room again.
                continue;
            }
            let count = room.min(left).min(piece.len());
            let piece = piece.get_mut(..count).unwrap_or_default();
            let count = match sides.read(from, piece) {
                // A message that was there is there until it was read.
                Ok(0) if left > 0 => return Err(Reason::Lost),
                Ok(count) => count,
                Err(_) => return Err(sides.reason(from)),
            };
            let bytes = piece.get(..count).unwrap_or_default();
            if !bytes.is_empty() && put_bytes(sides, to, bytes)? != count {
                return Err(sides.reason(to));
            }
            *moved += count;
            let left = left - count.min(left);
            self.writing = (left > 0).then_some((at, left));
        }
        Ok(false)
    }

    /// True when all was said.
    fn across(
        &mut self,
        from: Side,
        sides: &mut dyn MessageSides,
        longest: usize,
        turn: usize,
        moved: &mut usize,
    ) -> Result<bool, Reason> {
        loop {
            if self.is_whole {
                let message = self.buffer.get(..self.end).unwrap_or_default();
                if !put(sides, from, message)? {
                    return Ok(false);
                }
                *moved += self.end;
                (self.end, self.is_whole) = (0, false);
            }
            if *moved >= turn {
                return Ok(false);
            }
            match sides.message(from) {
                Ok(Some(length)) if length > longest => return Err(Reason::TooLong(length)),
                Ok(Some(length)) => {
                    let room = self.buffer.get_mut(..length).unwrap_or_default();
                    match sides.read(from, room) {
                        Ok(count) => (self.end, self.is_whole) = (count, true),
                        Err(_) => return Err(sides.reason(from)),
                    }
                }
                Ok(None) => return Ok(false),
                Err(Closed::Finished) => return Ok(true),
                Err(Closed::Gone) => return Err(sides.reason(from)),
            }
        }
    }
}

/// Hears whether a stream into which nothing can be written now is lost.
fn heard(sides: &mut dyn MessageSides, stream: Side) -> Result<bool, Reason> {
    match sides.read(stream, &mut []) {
        Err(Closed::Gone) => Err(sides.reason(stream)),
        Ok(_) | Err(Closed::Finished) => Ok(false),
    }
}

/// Sends a message to the other side than it came from; false if there is no room.
fn put(sides: &mut dyn MessageSides, from: Side, message: &[u8]) -> Result<bool, Reason> {
    match sides.put(from.other(), message) {
        Ok(_) => Ok(true),
        Err(Unwritten::Full) => Ok(false),
        Err(Unwritten::Length) => Err(Reason::BadLength(message.len() as u64)),
        Err(Unwritten::Ended(_)) => Err(sides.reason(from.other())),
    }
}

fn put_bytes(sides: &mut dyn MessageSides, to: Side, bytes: &[u8]) -> Result<usize, Reason> {
    match sides.put(to, bytes) {
        Ok(count) => Ok(count),
        Err(Unwritten::Full) => Ok(0),
        Err(_) => Err(sides.reason(to)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    const LONGEST: usize = 40;

    /// A side as a test has it.
    #[derive(Debug)]
    struct End {
        carries: Carries,
        arrives: VecDeque<u8>,
        messages: VecDeque<Vec<u8>>,
        ended: Option<Closed>,
        /// Bytes, or messages, that it takes now.
        room: usize,
        written: Vec<u8>,
        sent: Vec<Vec<u8>>,
        finished: bool,
    }

    fn end(carries: Carries) -> End {
        End {
            carries,
            arrives: VecDeque::new(),
            messages: VecDeque::new(),
            ended: None,
            room: usize::MAX,
            written: Vec::new(),
            sent: Vec::new(),
            finished: false,
        }
    }

    fn messages() -> End {
        end(Carries::Messages { longest: LONGEST })
    }

    struct Both([End; 2]);

    impl Both {
        fn at(&mut self, side: Side) -> &mut End {
            &mut self.0[side as usize]
        }
    }

    impl Sides for Both {
        fn read(&mut self, side: Side, into: &mut [u8]) -> Result<usize, Closed> {
            let end = self.at(side);
            if let Some(first) = end.messages.front_mut() {
                let count = first.len().min(into.len());
                into[..count].copy_from_slice(&first[..count]);
                first.drain(..count);
                if first.is_empty() {
                    end.messages.pop_front();
                }
                return Ok(count);
            }
            match (end.ended, end.arrives.is_empty()) {
                (Some(Closed::Gone), _) => return Err(Closed::Gone),
                (Some(closed), true) => return Err(closed),
                _ => {}
            }
            let count = end.arrives.len().min(into.len());
            for (to, from) in into.iter_mut().zip(end.arrives.drain(..count)) {
                *to = from;
            }
            Ok(count)
        }
        fn room(&mut self, side: Side) -> usize {
            self.at(side).room
        }
        fn write(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Closed> {
            Ok(self.put(side, bytes).unwrap_or(0))
        }
        fn finish(&mut self, side: Side) {
            assert!(!self.at(side).finished, "the end is said once");
            self.at(side).finished = true;
        }
    }

    impl MessageSides for Both {
        fn carries(&mut self, side: Side) -> Carries {
            self.at(side).carries
        }
        fn message(&mut self, side: Side) -> Result<Option<usize>, Closed> {
            let end = self.at(side);
            match (end.messages.front(), end.ended) {
                (Some(first), _) => Ok(Some(first.len())),
                (None, Some(closed)) => Err(closed),
                (None, None) => Ok(None),
            }
        }
        fn put(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Unwritten> {
            let end = self.at(side);
            if end.carries == Carries::Bytes {
                assert!(bytes.len() <= end.room, "no more than there is room for");
                end.room -= bytes.len();
                end.written.extend_from_slice(bytes);
            } else if end.room == 0 {
                return Err(Unwritten::Full);
            } else {
                end.room -= 1;
                end.sent.push(bytes.to_vec());
            }
            Ok(bytes.len())
        }
        fn reason(&mut self, _: Side) -> Reason {
            Reason::Lost
        }
    }

    const FRAMED: Framing = Framing { lengths: true, longest: LONGEST };
    const PLAIN: Framing = Framing { lengths: false, longest: LONGEST };

    fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u32).to_be_bytes()[..], message].concat()
    }

    /// A direction from the client.
    struct Way {
        both: Both,
        frames: Frames,
        pipe: Pipe,
        framing: Framing,
    }

    impl Way {
        fn new(from: End, to: End, framing: Framing) -> Way {
            let (frames, pipe) = (Frames::new(LONGEST), Pipe::default());
            Way { both: Both([from, to]), frames, pipe, framing }
        }
        fn flow(&mut self) -> Result<usize, Reason> {
            let Way { both, frames, pipe, framing } = self;
            frames.flow(pipe, Side::Frontend, both, *framing, &mut [0; 7], usize::MAX)
        }
    }

    #[test]
    fn a_length_that_is_too_long_is_told_and_a_part_counts_as_lost() {
        let mut way = Way::new(end(Carries::Bytes), messages(), FRAMED);
        way.both.0[0].arrives.extend(framed(b"good"));
        way.both.0[0].arrives.extend(b"GET ");
        assert_eq!(way.flow(), Err(Reason::BadLength(0x4745_5420)));
        assert_eq!(way.both.0[1].sent, [b"good"]);
        let mut way = Way::new(end(Carries::Bytes), messages(), FRAMED);
        way.both.0[0].arrives.extend(&framed(b"whole")[..6]);
        way.both.0[0].ended = Some(Closed::Finished);
        assert_eq!(way.flow(), Ok(0));
        assert!(way.pipe.finished && way.frames.holds() && way.both.0[1].finished);
    }

    #[test]
    fn what_finds_no_room_waits_and_no_more_is_read() {
        let mut way = Way::new(end(Carries::Bytes), messages(), FRAMED);
        way.both.0[1].room = 1;
        for n in 0..50u8 {
            way.both.0[0].arrives.extend(framed(&[n; 20]));
        }
        way.flow().unwrap();
        assert_eq!(way.both.0[1].sent.len(), 1);
        let left = way.both.0[0].arrives.len();
        assert!(left >= 49 * 24 - Frames::memory(LONGEST) && way.frames.holds());
        way.flow().unwrap();
        assert_eq!(way.both.0[0].arrives.len(), left, "nothing more is read");
        // But that the connection is lost is heard of.
        way.both.0[0].ended = Some(Closed::Gone);
        assert_eq!(way.flow(), Err(Reason::Lost));
    }

    #[test]
    fn messages_go_across_and_one_that_is_too_long_ends_it() {
        let mut way = Way::new(messages(), messages(), FRAMED);
        way.both.0[0].messages.extend([vec![1; 40], vec![2; 3], vec![3; 5]]);
        way.both.0[1].room = 1;
        way.flow().unwrap();
        assert!(way.frames.holds());
        way.both.0[1].room = 9;
        way.flow().unwrap();
        assert_eq!(way.both.0[1].sent, [vec![1; 40], vec![2; 3], vec![3; 5]]);
        assert!(!way.frames.holds());
        way.both.0[0].messages.push_back(vec![0; 41]);
        assert_eq!(way.flow(), Err(Reason::TooLong(41)));
    }

    #[test]
    fn without_framing_bytes_pass_as_they_are() {
        let mut way = Way::new(end(Carries::Bytes), messages(), PLAIN);
        way.both.0[0].arrives.extend([5; 100]);
        way.flow().unwrap();
        assert_eq!(way.both.0[1].sent, [vec![5; 40], vec![5; 40], vec![5; 20]]);
        let mut way = Way::new(messages(), end(Carries::Bytes), PLAIN);
        way.both.0[0].messages.extend([b"PI".to_vec(), b"NG\r\n".to_vec()]);
        way.both.0[0].ended = Some(Closed::Finished);
        way.flow().unwrap();
        assert_eq!(way.both.0[1].written, b"PING\r\n");
        assert!(way.both.0[1].finished && way.pipe.finished);
    }

    proptest! {
        /// Whatever comes in which pieces, and finds room when: the same messages, in order.
        #[test]
        fn messages_are_the_same_behind_a_stream(
            wanted in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..=LONGEST), 0..20),
            steps in prop::collection::vec((0usize..60, 0usize..60), 1..60),
        ) {
            let mut to = Way::new(messages(), end(Carries::Bytes), FRAMED);
            to.both.0[0].messages.extend(wanted.iter().cloned());
            to.both.0[0].ended = Some(Closed::Finished);
            let mut from = Way::new(end(Carries::Bytes), messages(), FRAMED);
            for &(room, other) in &steps {
                to.both.0[1].room = room;
                to.flow().unwrap();
                from.both.0[0].arrives.extend(to.both.0[1].written.drain(..));
                from.both.0[1].room = other / 10;
                from.flow().unwrap();
            }
            to.both.0[1].room = usize::MAX;
            to.flow().unwrap();
            from.both.0[0].arrives.extend(to.both.0[1].written.drain(..));
            from.both.0[0].ended = Some(Closed::Finished);
            from.both.0[1].room = usize::MAX;
            from.flow().unwrap();
            prop_assert!(to.pipe.finished && from.pipe.finished && !from.frames.holds());
            prop_assert_eq!(&from.both.0[1].sent, &wanted);
        }
    }
}
