//! COM1, a 16550, polled (National Semiconductor PC16550D). The kernel set it up; it is taken over with
//! one interrupt on, for what is received: it ends a halt, and says nothing at other times.

pub use super::printer::Printer;
use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
const DATA: u16 = COM1;
const INTERRUPT_ENABLE: u16 = COM1 + 1;
const FIFO_CONTROL: u16 = COM1 + 2;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;

const RECEIVED: u8 = 1;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const FIFO: usize = 16;
/// A transmitter that stays full for so many looks is not there, or nobody reads the other end.
const PATIENCE: u32 = 1_000_000;

/// The serial port. There is one; whoever prints a last message may use it beside its owner.
#[derive(Debug)]
pub struct Uart(());

impl Uart {
    /// Takes the port over from the kernel.
    pub fn take() -> Self {
        const FIFO_ON: u8 = 1;
        /// The interrupt for 14 bytes, or for fewer that have waited four byte times. QEMU takes
        /// this for the room there is: with 1, a paste would come byte by byte.
        const TRIGGER_14: u8 = 0b11 << 6;
        /// DTR and RTS; OUT2 lets the interrupt through.
        const READY_AND_OUT2: u8 = 0b1011;
        const RECEIVE_INTERRUPT: u8 = 1;
        output(INTERRUPT_ENABLE, RECEIVE_INTERRUPT);
        output(FIFO_CONTROL, FIFO_ON | TRIGGER_14);
        output(MODEM_CONTROL, READY_AND_OUT2);
        Uart(())
    }

    /// Takes what has arrived; returns how many bytes.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        let mut taken = 0;
        for byte in into {
            if !self.has_received() {
                break;
            }
            *byte = input(DATA);
            taken += 1;
        }
        taken
    }

    /// Whether bytes have arrived. A port that is not there reads as all ones and has none.
    pub fn has_received(&self) -> bool {
        let status = input(LINE_STATUS);
        status & RECEIVED != 0 && status != 0xff
    }

    /// Sends as much as the transmitter takes now; returns how many bytes.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if bytes.is_empty() || input(LINE_STATUS) & TRANSMITTER_EMPTY == 0 {
            return 0;
        }
        let taken = bytes.len().min(FIFO);
        bytes[..taken].iter().for_each(|&byte| output(DATA, byte));
        taken
    }
}

/// Prints at once, waiting for the port: for bring-up and last words.
pub fn print(text: &str) {
    for byte in text.bytes() {
        let mut tries = 0;
        while input(LINE_STATUS) & TRANSMITTER_EMPTY == 0 && tries < PATIENCE {
            tries += 1;
        }
        output(DATA, byte);
    }
}

fn input(port: u16) -> u8 {
    // SAFETY: only called for the registers of COM1, which have no effect on memory.
    unsafe { Port::new(port).read() }
}

fn output(port: u16, value: u8) {
    // SAFETY: only called for the registers of COM1, which have no effect on memory.
    unsafe { Port::new(port).write(value) }
}
