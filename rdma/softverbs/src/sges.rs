//! Scatter/gather elements: the windows of one work request, as one range of bytes.

use drivers::hal::{OutOfWindow, Packet, Window};
use verbs::VerbsError;

/// Most windows in a work request: as many as a packet may have, so that any part of the bytes fits into one packet.
pub const MAX_SGE: usize = Packet::MAX_PAYLOAD_WINDOWS;

/// Up to [`MAX_SGE`] windows.
#[derive(Clone, Copy, Debug)]
pub struct Sges {
    windows: [Window; MAX_SGE],
    count: usize,
}

impl Sges {
    /// No windows.
    pub const fn empty() -> Self {
        Sges { windows: [Window::empty(); MAX_SGE], count: 0 }
    }

    /// A copy of `windows`; `Invalid` if there are too many.
    #[inline]
    pub fn new(windows: &[Window]) -> Result<Self, VerbsError> {
        let mut all = Sges::empty();
        for window in windows {
            if !all.push(*window) {
                return Err(VerbsError::Invalid);
            }
        }
        Ok(all)
    }

    /// Adds a window; false if it is full.
    #[inline]
    pub fn push(&mut self, window: Window) -> bool {
        match self.windows.get_mut(self.count) {
            Some(place) => {
                *place = window;
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// The windows.
    #[inline]
    pub fn as_slice(&self) -> &[Window] {
        self.windows.get(..self.count).unwrap_or_default()
    }

    /// Total bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().iter().map(Window::len).sum()
    }

    /// Removes all windows.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Sets `part` to the `len` bytes from `offset` (or as many as there are).
    #[inline]
    pub fn part(&self, mut offset: usize, mut len: usize, part: &mut Sges) {
        part.clear();
        for window in self.as_slice() {
            if offset >= window.len() {
                offset -= window.len();
                continue;
            }
            let here = len.min(window.len() - offset);
            if here == 0 {
                break;
            }
            part.push(window.slice(offset, here).unwrap_or(Window::empty()));
            offset = 0;
            len -= here;
        }
    }

    /// Copies `bytes` in, from `offset` on.
    #[inline]
    pub fn write(&self, mut offset: usize, mut bytes: &[u8]) -> Result<(), OutOfWindow> {
        for window in self.as_slice() {
            if bytes.is_empty() {
                break;
            }
            if offset >= window.len() {
                offset -= window.len();
                continue;
            }
            let (here, rest) = bytes.split_at(bytes.len().min(window.len() - offset));
            window.write(offset, here)?;
            offset = 0;
            bytes = rest;
        }
        if bytes.is_empty() { Ok(()) } else { Err(OutOfWindow) }
    }

    /// Copies all of `from` in, from `offset` on.
    #[inline]
    pub fn write_window(&self, offset: usize, from: &Window) -> Result<(), OutOfWindow> {
        if let [only] = self.as_slice() {
            return only.write_window(offset, from);
        }
        let mut part = Sges::empty();
        self.part(offset, from.len(), &mut part);
        if part.len() != from.len() {
            return Err(OutOfWindow);
        }
        let mut at = 0;
        for window in part.as_slice() {
            window.write_window(0, &from.slice(at, window.len()).ok_or(OutOfWindow)?)?;
            at += window.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::Arena;
    use netsim::contents;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn sges_are_one_range_of_bytes(
            sizes in proptest::collection::vec(0..40usize, 0..=MAX_SGE), offset in 0..100usize,
            len in 0..100usize,
        ) {
            let mut arena = Arena::on_heap(4096);
            let windows: Vec<Window> = sizes
                .iter()
                .map(|&size| arena.alloc(64, 64).unwrap().slice(0, size).unwrap())
                .collect();
            let all = Sges::new(&windows).unwrap();
            let total: usize = sizes.iter().sum();
            let bytes: Vec<u8> = (0..total as u8).collect();
            prop_assert_eq!(all.len(), total);
            prop_assert!(all.write(0, &bytes).is_ok());
            let mut windows = Sges::empty();
            all.part(offset, len, &mut windows);
            let expected: Vec<u8> = bytes.iter().skip(offset).take(len).copied().collect();
            let found: Vec<u8> = windows.as_slice().iter().flat_map(contents).collect();
            prop_assert_eq!(found, expected);
            let from = arena.alloc(64, 64).unwrap().slice(0, len.clamp(1, 64)).unwrap();
            from.fill(0xee);
            let fits = offset + from.len() <= total;
            prop_assert_eq!(all.write_window(offset, &from).is_ok(), fits);
            if fits {
                let found: Vec<u8> = all.as_slice().iter().flat_map(contents).collect();
                let new = &found[offset..offset + from.len()];
                prop_assert!(new.iter().all(|&byte| byte == 0xee));
                prop_assert_eq!(&found[offset + from.len()..], &bytes[offset + from.len()..]);
            }
            prop_assert_eq!(all.write(offset, &[0; 3]).is_ok(), offset + 3 <= total);
        }
    }
}
