//! What waits to be sent to the terminal.

use std::collections::VecDeque;

/// Bytes for the terminal, with CR LF line ends. A reply is taken whole, everything else only while
/// there is room.
#[derive(Debug, Default)]
pub struct Output {
    bytes: VecDeque<u8>,
}

impl Output {
    /// With more than this waiting, no input is handled.
    pub const ENOUGH: usize = 4096;

    /// Whether there is room for more than the reply that is being sent.
    pub fn has_room(&self) -> bool {
        self.bytes.len() <= Self::ENOUGH
    }

    /// Whether there is room for a log message. Less than [`Output::has_room`] asks for, so that
    /// many messages cannot keep input from being handled.
    pub fn has_room_for_log(&self) -> bool {
        self.bytes.len() <= Self::ENOUGH / 2
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends text; `\n` becomes CR LF.
    pub fn text(&mut self, text: &str) {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.bytes.push_back(b'\r');
            }
            self.bytes.push_back(byte);
        }
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Appends `byte` `count` times.
    pub fn repeat(&mut self, byte: u8, count: usize) {
        self.bytes.extend(core::iter::repeat_n(byte, count));
    }

    /// The next bytes to send, as many as lie together; empty only if there are none.
    pub fn next(&self) -> &[u8] {
        let (first, second) = self.bytes.as_slices();
        if first.is_empty() { second } else { first }
    }

    /// Forgets `count` bytes that were sent; after a large reply gives its memory back.
    pub fn sent(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * Self::ENOUGH {
            self.bytes = VecDeque::new();
        }
    }
}

#[cfg(test)]
impl Output {
    /// Everything that waits, in one piece.
    pub fn bytes_for_test<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.bytes.make_contiguous())
    }

    /// How many bytes wait.
    pub fn len_for_test(&self) -> usize {
        self.bytes.len()
    }
}
