//! Ring of bytes that carries frames from one loop to another, each frame behind its length. A full ring refuses a
//! frame; nothing blocks.

use rtrb::chunks::ChunkError;
use rtrb::{Consumer, Producer, RingBuffer};

/// Bytes of the length before a frame.
const HEAD: usize = 2;

/// The producer's end.
pub(super) struct Sender(Producer<u8>);

/// The consumer's end.
pub(super) struct Receiver(Consumer<u8>);

/// Creates a ring of `bytes` bytes.
pub(super) fn frame_ring(bytes: usize) -> (Sender, Receiver) {
    let (producer, consumer) = RingBuffer::new(bytes);
    (Sender(producer), Receiver(consumer))
}

impl Sender {
    /// Whether there is room for a frame of `length` bytes.
    pub fn has_room(&self, length: usize) -> bool {
        self.0.slots() >= HEAD + length
    }

    /// Adds a frame. False if there is no room now.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        let Ok(length) = u16::try_from(frame.len()) else { return false };
        let Ok(mut chunk) = self.0.write_chunk(HEAD + frame.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        put(&length.to_le_bytes(), 0, first, second);
        put(frame, HEAD, first, second);
        chunk.commit_all();
        true
    }
}

/// Copies `bytes` into two pieces of memory, to offset `at` of both together.
fn put(bytes: &[u8], at: usize, first: &mut [u8], second: &mut [u8]) {
    let from = at.min(first.len());
    let (here, there) = bytes.split_at(bytes.len().min(first.len() - from));
    first[from..][..here.len()].copy_from_slice(here);
    // The second piece gets the bytes that the first has no room for.
    let from = (at + here.len()).saturating_sub(first.len());
    second[from..][..there.len()].copy_from_slice(there);
}

impl Receiver {
    /// Whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the next frame into `frame`. False if there is none.
    pub fn pop(&mut self, frame: &mut Vec<u8>) -> bool {
        let Some(head) = self.take(HEAD, frame) else { return false };
        let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        self.take(length, frame).is_some()
    }

    /// Removes `count` bytes. They are present, because the sender adds a frame as a whole.
    fn take<'a>(&mut self, count: usize, into: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let chunk = match self.0.read_chunk(count) {
            Ok(chunk) => chunk,
            Err(ChunkError::TooFewSlots(_)) => return None,
        };
        into.clear();
        let (first, second) = chunk.as_slices();
        into.extend_from_slice(first);
        into.extend_from_slice(second);
        chunk.commit_all();
        Some(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn frames_arrive_unchanged_and_are_refused_without_room(
            steps in proptest::collection::vec((any::<bool>(), 0usize..300), 0..200),
        ) {
            const BYTES: usize = 512;
            let (mut sender, mut receiver) = frame_ring(BYTES);
            let mut model = VecDeque::new();
            let mut used = 0;
            let mut frame = Vec::new();
            for (number, (push, length)) in steps.into_iter().enumerate() {
                if push {
                    let sent: Vec<u8> = (0..length).map(|i| (number + i) as u8).collect();
                    let fits = used + HEAD + length <= BYTES;
                    prop_assert_eq!(sender.has_room(length), fits);
                    prop_assert_eq!(sender.push(&sent), fits);
                    if fits {
                        used += HEAD + length;
                        model.push_back(sent);
                    }
                } else {
                    prop_assert_eq!(receiver.is_empty(), model.is_empty());
                    let there = receiver.pop(&mut frame);
                    prop_assert_eq!(there, !model.is_empty());
                    if let Some(expected) = model.pop_front() {
                        used -= HEAD + expected.len();
                        prop_assert_eq!(&frame, &expected);
                    }
                }
            }
        }
    }

    #[test]
    fn oversized_frame_is_refused() {
        let (mut sender, receiver) = frame_ring(1 << 18);
        assert!(!sender.push(&[0; 1 << 16]));
        assert!(receiver.is_empty());
    }
}
