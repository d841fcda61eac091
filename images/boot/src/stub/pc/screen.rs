//! The top of a screen in text mode, for the stub's error messages. A screen in graphics mode shows nothing.

use core::sync::atomic::{AtomicUsize, Ordering};

const TEXT: usize = 0xb8000;
/// Characters of the lines that are used.
const ROOM: usize = 80 * 3;
/// White on red.
const COLOUR: u16 = 0x4f00;

/// Number of characters that were shown.
static SHOWN: AtomicUsize = AtomicUsize::new(0);

/// Shows text behind earlier text. The ends of lines are not shown.
pub fn print(text: &str) {
    for byte in text.bytes().filter(|byte| !byte.is_ascii_control()) {
        let place = SHOWN.fetch_add(1, Ordering::Relaxed);
        if place < ROOM {
            // SAFETY: the text buffer of a VGA, which firmware has made uncached (MTRR). Without a VGA there is no memory
            // and no other device on a PC.
            unsafe { (TEXT as *mut u16).add(place).write_volatile(COLOUR | u16::from(byte)) };
        }
    }
}
