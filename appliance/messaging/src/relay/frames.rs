//! Moves messages in one direction of a relayed connection of which at least one side carries messages.
//!
//! In a stream each message follows its length: four bytes, big-endian, without the length itself. Without framing a
//! message is written unchanged, and each read of a stream is a message.
//!
//! Bytes from a stream are buffered here until their message is complete and the other side accepts it. A message from
//! one message transport to another is buffered, too. A message into a stream is not: it stays in its transport while
//! it is written piece by piece.

use super::pipe::{Pipe, Side, Sides};
use crate::transport::{Carries, Closed, Reason, Unwritten};
use alloc::boxed::Box;

/// Bytes of the length before a message in a stream.
pub const LENGTH: usize = 4;

/// Both sides of a connection, at least one of which carries messages. Calls are indirect: one per piece or message.
pub(super) trait MessageSides: Sides {
    /// Whether a side carries bytes or messages.
    fn carries(&mut self, side: Side) -> Carries;
    /// Unread bytes of the first message that has arrived.
    fn message(&mut self, side: Side) -> Result<Option<usize>, Closed>;
    /// Writes bytes, or one message.
    fn put(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Unwritten>;
    /// Why a side has ended.
    fn reason(&mut self, side: Side) -> Reason;
}

/// State of one direction: buffered messages, and the message being written.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes that were read and not yet written to the other side, from `start` to `end`.
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// The buffer holds one complete message.
    is_whole: bool,
    /// The message being written to a stream: written bytes of its length prefix, and unwritten bytes of its body.
    writing: Option<(usize, usize)>,
    length: [u8; LENGTH],
}

/// Framing of messages in streams, and their maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Each message follows its length.
    pub lengths: bool,
    /// Bytes of the longest message.
    pub longest: usize,
}

impl Frames {
    /// Memory for messages of up to `longest` bytes.
    pub fn memory(longest: usize) -> usize {
        LENGTH + longest
    }

    /// Creates the state for messages of up to `longest` bytes.
    pub fn new(longest: usize) -> Self {
        let buffer = alloc::vec![0; Frames::memory(longest)].into();
        Frames { buffer, ..Frames::default() }
    }

    /// Whether a message, or a part of one, was read from one side and not written to the other.
    pub fn holds(&self) -> bool {
        self.start != self.end || self.is_whole
    }

    /// Moves data from `from` to the other side until there is no more data or room, or `turn` bytes were moved.
    /// Returns the number of bytes. `piece` is the buffer for one step.
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

    /// Stream to messages. True at the end of the stream.
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
                    return check_stream(sides, from);
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

    /// Range of the next message in the buffer, if it is complete.
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

    /// Makes room for a complete message behind the buffered bytes.
    fn compact(&mut self, whole: usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.start < whole {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Messages to stream. True when the messages have ended.
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
                    Ok(None) => return check_stream(sides, to),
                    Err(Closed::Finished) => return Ok(true),
                    Err(Closed::Gone) => return Err(sides.reason(from)),
                },
            };
            self.writing = Some((at, left));
            let room = sides.room(to);
            if room == 0 {
                return check_stream(sides, to);
            }
            if let Some(rest) = self.length.get(at..).filter(|rest| !rest.is_empty()) {
                let count = rest.len().min(room);
                let written = put_bytes(sides, to, rest.get(..count).unwrap_or_default())?;
                *moved += written;
                self.writing = Some((at + written, left));
                // Check the room again before the body.
                continue;
            }
            let count = room.min(left).min(piece.len());
            let piece = piece.get_mut(..count).unwrap_or_default();
            let count = match sides.read(from, piece) {
                // A message that has arrived stays until it is read.
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

    /// Messages to messages. True when the messages have ended.
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

/// Checks whether a stream is lost that cannot be read or written now.
fn check_stream(sides: &mut dyn MessageSides, stream: Side) -> Result<bool, Reason> {
    match sides.read(stream, &mut []) {
        Err(Closed::Gone) => Err(sides.reason(stream)),
        Ok(_) | Err(Closed::Finished) => Ok(false),
    }
}

/// Sends a message to the side other than `from`. False if there is no room.
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

    /// A simulated side.
    #[derive(Debug)]
    struct End {
        carries: Carries,
        arrives: VecDeque<u8>,
        messages: VecDeque<Vec<u8>>,
        ended: Option<Closed>,
        /// Bytes, or messages, that it accepts now.
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
            assert!(!self.at(side).finished, "a side is finished once");
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

    /// The direction from the client to the server.
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
    fn stream_with_an_excessive_length_fails_and_a_partial_message_is_held() {
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
    fn message_without_room_is_kept_and_reading_stops() {
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
        // A lost connection is reported all the same.
        way.both.0[0].ended = Some(Closed::Gone);
        assert_eq!(way.flow(), Err(Reason::Lost));
    }

    #[test]
    fn messages_pass_between_transports_until_one_is_too_long() {
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
    fn unframed_bytes_pass_unchanged() {
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
        /// Messages arrive unchanged and in order, for any pieces and any room.
        #[test]
        fn messages_through_a_stream_arrive_unchanged(
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
