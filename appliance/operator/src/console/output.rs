//! The output buffer of the console.

use std::collections::VecDeque;

/// Pending bytes for the terminal, with CR LF line ends. A reply is accepted whole, other output only while there is
/// room.
#[derive(Debug, Default)]
pub struct Output {
    bytes: VecDeque<u8>,
}

impl Output {
    /// No input is handled while more bytes than this are pending.
    pub const ENOUGH: usize = 4096;

    /// Whether there is room for further output.
    pub fn has_room(&self) -> bool {
        self.bytes.len() <= Self::ENOUGH
    }

    /// Whether there is room for a log message. The limit is below that of [`Output::has_room`], so that a flood of
    /// messages does not block input.
    pub fn has_room_for_log(&self) -> bool {
        self.bytes.len() <= Self::ENOUGH / 2
    }

    /// Whether all output was sent.
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

    /// The next contiguous bytes to send. Empty only without output.
    pub fn next(&self) -> &[u8] {
        let (first, second) = self.bytes.as_slices();
        if first.is_empty() { second } else { first }
    }

    /// Removes `count` sent bytes. Frees the memory of a large reply when it is sent.
    pub fn sent(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * Self::ENOUGH {
            self.bytes = VecDeque::new();
        }
    }
}

#[cfg(test)]
impl Output {
    /// All pending bytes, contiguous.
    pub fn bytes_for_test<T>(&mut self, look: impl FnOnce(&[u8]) -> T) -> T {
        look(self.bytes.make_contiguous())
    }

    /// Number of pending bytes.
    pub fn len_for_test(&self) -> usize {
        self.bytes.len()
    }
}
