//! Moves bytes and the end of one direction of a relayed connection. Nothing is buffered here: a read takes only as
//! much as the other side has room for, so a slow reader slows the writer down.

use net::tcp::Closed;

/// A side of a relayed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client's.
    Frontend,
    /// The server's.
    Backend,
}

impl Side {
    /// The other side.
    pub fn other(self) -> Side {
        match self {
            Side::Frontend => Side::Backend,
            Side::Backend => Side::Frontend,
        }
    }
}

/// Both sides of a relayed connection.
pub trait Sides {
    /// Reads available data; 0 if there is none now.
    fn read(&mut self, side: Side, into: &mut [u8]) -> Result<usize, Closed>;
    /// Bytes that a write would accept now.
    fn room(&mut self, side: Side) -> usize;
    /// Writes. Accepts all bytes if there is room.
    fn write(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Closed>;
    /// Half-closes our direction, after the written data.
    fn finish(&mut self, side: Side);
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pipe {
    /// Bytes moved.
    pub bytes: u64,
    /// The end was reached, and the other side was half-closed.
    pub finished: bool,
}

impl Pipe {
    /// Moves data from `from` to the other side through `piece`, until there is no more data or room, or `turn` bytes
    /// were moved. Returns the number of bytes. An error if the connection is lost on either side.
    pub fn flow(
        &mut self,
        from: Side,
        sides: &mut impl Sides,
        piece: &mut [u8],
        turn: usize,
    ) -> Result<usize, Closed> {
        let to = from.other();
        let mut moved = 0;
        while !self.finished && moved < turn {
            let room = sides.room(to).min(piece.len());
            // Also without room, because an empty read reports a lost connection.
            match sides.read(from, &mut piece[..room]) {
                Ok(0) => break,
                Ok(count) => {
                    if sides.write(to, &piece[..count]) != Ok(count) {
                        return Err(Closed::Gone);
                    }
                    moved += count;
                }
                Err(Closed::Finished) => {
                    sides.finish(to);
                    self.finished = true;
                }
                Err(Closed::Gone) => return Err(Closed::Gone),
            }
        }
        self.bytes += moved as u64;
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    /// A simulated side.
    #[derive(Debug, Default)]
    struct End {
        arrives: VecDeque<u8>,
        ended: bool,
        lost: bool,
        capacity: usize,
        written: Vec<u8>,
        /// Bytes written and not yet read by the peer.
        held: usize,
        finished: bool,
    }

    #[derive(Debug, Default)]
    struct Endpoints([End; 2]);

    impl Endpoints {
        fn at(&mut self, side: Side) -> &mut End {
            &mut self.0[side as usize]
        }
    }

    impl Sides for Endpoints {
        fn read(&mut self, side: Side, into: &mut [u8]) -> Result<usize, Closed> {
            let end = self.at(side);
            if end.lost {
                return Err(Closed::Gone);
            }
            if end.arrives.is_empty() && end.ended {
                return Err(Closed::Finished);
            }
            let count = end.arrives.len().min(into.len());
            for (to, from) in into.iter_mut().zip(end.arrives.drain(..count)) {
                *to = from;
            }
            Ok(count)
        }
        fn room(&mut self, side: Side) -> usize {
            let end = self.at(side);
            end.capacity - end.held
        }
        fn write(&mut self, side: Side, bytes: &[u8]) -> Result<usize, Closed> {
            let end = self.at(side);
            assert!(!end.finished, "nothing follows the end");
            if end.lost {
                return Err(Closed::Gone);
            }
            let count = bytes.len().min(end.capacity - end.held);
            end.held += count;
            end.written.extend_from_slice(&bytes[..count]);
            Ok(count)
        }
        fn finish(&mut self, side: Side) {
            assert!(!self.at(side).finished, "a side is finished once");
            self.at(side).finished = true;
        }
    }

    #[test]
    fn half_close_is_forwarded_after_the_last_byte() {
        let mut both = Endpoints::default();
        both.at(Side::Backend).capacity = 4;
        both.at(Side::Frontend).arrives = (0..6).collect();
        both.at(Side::Frontend).ended = true;
        let (mut pipe, mut piece) = (Pipe::default(), [0; 16]);
        assert_eq!(pipe.flow(Side::Frontend, &mut both, &mut piece, usize::MAX), Ok(4));
        assert!(!pipe.finished && !both.at(Side::Backend).finished);
        both.at(Side::Backend).held = 0;
        assert_eq!(pipe.flow(Side::Frontend, &mut both, &mut piece, usize::MAX), Ok(2));
        assert!(pipe.finished && both.at(Side::Backend).finished);
        assert_eq!(both.at(Side::Backend).written, [0, 1, 2, 3, 4, 5]);
        assert_eq!(pipe.flow(Side::Frontend, &mut both, &mut piece, usize::MAX), Ok(0));
        assert!(!both.at(Side::Frontend).finished, "the other direction stays open");
    }

    #[test]
    fn lost_connection_is_reported_even_without_room() {
        for lost in [Side::Frontend, Side::Backend] {
            let mut both = Endpoints::default();
            both.at(Side::Backend).capacity = 4;
            both.at(Side::Frontend).arrives = (0..4).collect();
            both.at(lost).lost = true;
            let (mut pipe, mut piece) = (Pipe::default(), [0; 16]);
            assert_eq!(
                pipe.flow(Side::Frontend, &mut both, &mut piece, usize::MAX),
                Err(Closed::Gone)
            );
        }
        let mut both = Endpoints::default();
        both.at(Side::Frontend).lost = true;
        let (mut pipe, mut piece) = (Pipe::default(), [0; 16]);
        assert_eq!(pipe.flow(Side::Frontend, &mut both, &mut piece, usize::MAX), Err(Closed::Gone));
    }

    proptest! {
        /// Bytes arrive unchanged and in order, however arrivals and reads interleave.
        #[test]
        fn stream_arrives_unchanged(
            steps in prop::collection::vec((0usize..50, 0usize..50), 1..60),
            capacity in 1usize..40,
            size in 1usize..20,
        ) {
            let mut both = Endpoints::default();
            both.at(Side::Frontend).capacity = capacity;
            let (mut pipe, mut piece) = (Pipe::default(), vec![0; size]);
            let mut sent = Vec::new();
            for &(arrive, take) in &steps {
                for _ in 0..arrive {
                    sent.push(sent.len() as u8);
                    both.at(Side::Backend).arrives.push_back(*sent.last().unwrap());
                }
                pipe.flow(Side::Backend, &mut both, &mut piece, usize::MAX).unwrap();
                prop_assert!(both.at(Side::Frontend).held <= capacity);
                let front = both.at(Side::Frontend);
                front.held = front.held.saturating_sub(take);
            }
            both.at(Side::Backend).ended = true;
            while !pipe.finished {
                both.at(Side::Frontend).held = 0;
                pipe.flow(Side::Backend, &mut both, &mut piece, usize::MAX).unwrap();
            }
            prop_assert_eq!(&both.at(Side::Frontend).written, &sent);
            prop_assert_eq!(pipe.bytes, sent.len() as u64);
        }
    }
}
