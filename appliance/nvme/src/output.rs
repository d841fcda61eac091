//! A log page or structure, written piece by piece; the host reads a range of it.

use drivers::hal::Window;

/// A range of a page. Bytes outside of the range are dropped; bytes that are not written are zero.
pub struct Output {
    window: Window,
    start: u64,
}

impl Output {
    /// The range of `window`'s length from `start`.
    pub fn new(window: Window, start: u64) -> Output {
        window.fill(0);
        Output { window, start }
    }

    /// Puts bytes at an offset of the page.
    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        // The part of `bytes` behind the range's start.
        let skipped = self.start.saturating_sub(at).min(bytes.len() as u64) as usize;
        let Some(rest) = bytes.get(skipped..).filter(|rest| !rest.is_empty()) else { return };
        let Ok(place) = usize::try_from((at + skipped as u64) - self.start) else { return };
        let room = self.window.len().saturating_sub(place);
        let part = rest.get(..room).unwrap_or(rest);
        // It was cut to the window.
        let _ = self.window.write(place, part);
    }

    /// Puts a byte.
    pub fn put_u8(&mut self, at: u64, value: u8) {
        self.put(at, &[value]);
    }

    /// Puts a 16-bit number.
    pub fn put_u16(&mut self, at: u64, value: u16) {
        self.put(at, &value.to_le_bytes());
    }

    /// Puts a 32-bit number.
    pub fn put_u32(&mut self, at: u64, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// Puts a 64-bit number.
    pub fn put_u64(&mut self, at: u64, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    /// Puts a text that is padded with spaces to `len` bytes.
    pub fn put_text(&mut self, at: u64, text: &str, len: usize) {
        let bytes = text.as_bytes();
        let bytes = bytes.get(..len).unwrap_or(bytes);
        self.put(at, bytes);
        for i in bytes.len()..len {
            self.put_u8(at + i as u64, b' ');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;

    #[test]
    fn range_of_a_page_has_the_same_bytes_as_the_whole() {
        let mut arena = Arena::on_heap(1 << 13);
        let write = |output: &mut Output| {
            output.put_u64(0, 0x0807_0605_0403_0201);
            output.put_text(10, "abc", 6);
            output.put_u32(60, u32::MAX);
        };
        let whole = arena.alloc(64, 4).unwrap();
        write(&mut Output::new(whole, 0));
        let mut expected = [0; 64];
        whole.read(0, &mut expected).unwrap();
        assert_eq!(&expected[8..18], b"\0\0abc   \0\0");
        for start in 0..80usize {
            for len in 1..40 {
                let part = arena.alloc(len, 1).unwrap();
                part.fill(0xee);
                write(&mut Output::new(part, start as u64));
                let mut bytes = std::vec![0; len];
                part.read(0, &mut bytes).unwrap();
                let there = expected.get(start..).unwrap_or_default();
                let there = there.get(..len).unwrap_or(there);
                assert_eq!(&bytes[..there.len()], there, "{start} {len}");
                assert!(bytes[there.len()..].iter().all(|&byte| byte == 0));
                arena.free(part);
            }
        }
        write(&mut Output::new(whole, u64::MAX - 3));
    }
}
