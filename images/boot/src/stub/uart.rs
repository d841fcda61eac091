//! COM1 for the stub's last words.

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// A UART that is not there never becomes ready.
const PATIENCE: u32 = 100_000;

/// Prints as the firmware or the boot loader set the port up.
pub fn print(text: &str) {
    for byte in text.bytes() {
        // SAFETY: the standard registers of COM1; nothing else drives it yet.
        unsafe {
            let mut status = Port::<u8>::new(COM1 + 5);
            let mut tries = 0;
            while status.read() & TRANSMITTER_EMPTY == 0 && tries < PATIENCE {
                tries += 1;
            }
            Port::new(COM1).write(byte);
        }
    }
}
