//! Memory for received frames: the one kind of DMA memory of which slices are made.

use super::Window;

/// Buffers that a device fills, shown as slices while the device does not have them. Nobody else has a window to the
/// memory: it is neither `Copy` nor given away, and what is written to it needs `&mut self`, which no slice outlives.
#[derive(Debug)]
pub struct FrameMemory {
    memory: Window,
}

impl FrameMemory {
    /// Memory for frames.
    ///
    /// # Safety
    /// Nobody reads or writes the memory through another window for as long as this exists, the device apart.
    pub const unsafe fn new(memory: Window) -> FrameMemory {
        FrameMemory { memory }
    }

    /// The address of a byte as the device has it.
    pub const fn bus_address(&self, offset: usize) -> u64 {
        self.memory.bus_address() + offset as u64
    }

    /// `len` bytes from `offset`; none if they are not all inside.
    ///
    /// # Safety
    /// The device does not have these bytes for as long as they are used, and keeps to that (the promise of `Platform`:
    /// one that does not could write to any memory of the program).
    #[inline(always)]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        let Some(part) = self.memory.slice(offset, len) else { return &[] };
        // SAFETY: inside the memory (checked), which is mapped for ever and initialised, as all of the arena is (promise
        // of `Window::from_raw`). Nobody writes to it while it is borrowed: no other window is used (promise of `new`),
        // `copy_within` needs `&mut self`, and the device does not have it (the caller's promise).
        unsafe { core::slice::from_raw_parts(part.as_ptr().as_ptr(), len) }
    }

    /// Copies `len` bytes from the beginning to `to`; false if they are not all inside.
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
