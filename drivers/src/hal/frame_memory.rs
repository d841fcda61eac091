//! Memory for received frames: the only DMA memory that is borrowed as slices.

use super::Window;

/// Receive buffers, which are borrowed as slices while the device does not own them. No other window to the memory is
/// used: this type is not `Copy` and never hands out its window. Writes need `&mut self`, which ends all slices.
#[derive(Debug)]
pub struct FrameMemory {
    memory: Window,
}

impl FrameMemory {
    /// Memory for frames.
    ///
    /// # Safety
    /// While this exists, only the device accesses the memory by other means: no other window to it is used.
    pub const unsafe fn new(memory: Window) -> FrameMemory {
        FrameMemory { memory }
    }

    /// Bus address of the byte at `offset`.
    pub const fn bus_address(&self, offset: usize) -> u64 {
        self.memory.bus_address() + offset as u64
    }

    /// `len` bytes from `offset`; empty if they are not all inside.
    ///
    /// # Safety
    /// The device does not own these bytes while the slice is used, and does not write to buffers that it does not own
    /// (the promise of `Platform`: a device that breaks it could write to any memory of the program).
    #[inline]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let Some(part) = self.memory.slice(offset, len) else { return &[] };
        // SAFETY: inside the memory (checked), which is mapped for ever and initialised, as all of the arena is
        // (promise of `Window::from_raw`). It is not written while it is borrowed: no other window is used (promise of
        // `new`), `copy_first` needs `&mut self`, and the device does not own it (the caller's promise).
        unsafe { core::slice::from_raw_parts(part.as_ptr().as_ptr(), len) }
    }

    /// Copies the first `len` bytes of the memory to offset `to`; false if source or destination is not all inside.
    pub fn copy_first(&mut self, to: usize, len: usize) -> bool {
        let first = self.memory.slice(0, len);
        first.is_some_and(|first| self.memory.write_window(to, &first).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Arena;

    #[test]
    fn bytes_beyond_the_memory_are_none() {
        let window = Arena::on_heap(8192).alloc(64, 64).unwrap();
        window.fill(7);
        // SAFETY: the window is not used any more.
        let mut memory = unsafe { FrameMemory::new(window) };
        for (offset, len, shown) in
            [(0, 64, 64), (60, 4, 4), (60, 5, 0), (65, 0, 0), (usize::MAX, 2, 0)]
        {
            // SAFETY: there is no device.
            assert_eq!(unsafe { memory.bytes(offset, len) }.len(), shown, "{offset} {len}");
        }
        assert!(memory.copy_first(32, 32) && !memory.copy_first(33, 32));
        assert_eq!(memory.bus_address(3), window.bus_address() + 3);
    }
}
