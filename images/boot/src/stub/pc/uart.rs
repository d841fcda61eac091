//! COM1 output for the stub's error messages.

use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
/// Most reads of the status, because an absent UART never becomes ready.
const MAX_READS: u32 = 100_000;

/// Prints with the settings of the firmware or the boot loader.
pub fn print(text: &str) {
    for byte in text.bytes() {
        // SAFETY: the standard registers of COM1; nothing else drives it yet.
        unsafe {
            let mut status = Port::<u8>::new(COM1 + 5);
            let mut tries = 0;
            while status.read() & TRANSMITTER_EMPTY == 0 && tries < MAX_READS {
                tries += 1;
            }
            Port::new(COM1).write(byte);
        }
    }
}
