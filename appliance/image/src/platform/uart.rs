//! The serial port that is the console: a 16550, polled (National Semiconductor PC16550D), with one interrupt on, for
//! what is received: it ends a halt, and tells that there is something to read.

pub use super::printer::Printer;
use super::{interrupts, screen};
use core::sync::atomic::{AtomicU16, Ordering};
use x86_64::instructions::port::Port;

const COM1: u16 = 0x3f8;
const COM2: u16 = 0x2f8;
const DATA: u16 = 0;
const INTERRUPT_ENABLE: u16 = 1;
const FIFO_CONTROL: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;

const RECEIVED: u8 = 1;
const TRANSMITTER_EMPTY: u8 = 1 << 5;
const FIFO: usize = 16;
/// A transmitter that stays full for so many looks is not there, or nobody reads the other end.
const PATIENCE: u32 = 1_000_000;

/// Where the registers of the console's port are.
static BASE: AtomicU16 = AtomicU16::new(COM1);

/// The serial port. There is one; whoever prints a last message may use it beside its owner.
#[derive(Debug)]
pub struct Uart {
    /// Interrupts there had been when it was looked at.
    seen: u64,
}

impl Uart {
    /// Takes the port that firmware has its console on, or else the first one that is there: COM2 is where many
    /// management controllers listen. The kernel set up COM1.
    pub fn take(of_firmware: Option<u16>) -> Self {
        const FIFO_ON: u8 = 1;
        /// The interrupt for 14 bytes, or for fewer that have waited four byte times. QEMU takes
        /// this for the room there is: with 1, a paste would come byte by byte.
        const TRIGGER_14: u8 = 0b11 << 6;
        /// DTR and RTS; OUT2 lets the interrupt through.
        const READY_AND_OUT2: u8 = 0b1011;
        const RECEIVE_INTERRUPT: u8 = 1;
        let candidates = of_firmware.into_iter().chain([COM1, COM2]);
        let is_there = |base: &u16| {
            BASE.store(*base, Ordering::Relaxed);
            is_there()
        };
        let base = { candidates }.find(is_there).unwrap_or(COM1);
        BASE.store(base, Ordering::Relaxed);
        if base != COM1 {
            set_line();
        }
        output(INTERRUPT_ENABLE, RECEIVE_INTERRUPT);
        output(FIFO_CONTROL, FIFO_ON | TRIGGER_14);
        output(MODEM_CONTROL, READY_AND_OUT2);
        Uart { seen: 0 }
    }

    /// Where its registers are, if it is there.
    pub fn place(&self) -> Option<u16> {
        is_there().then(|| BASE.load(Ordering::Relaxed))
    }

    /// Whether it has interrupted since it was looked at. Does not access it.
    pub fn has_rung(&self) -> bool {
        interrupts::of_lines() != self.seen
    }

    /// Takes what has arrived; returns how many bytes.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        self.seen = interrupts::of_lines();
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
        screen::show(&bytes[..taken]);
        taken
    }
}

/// A port that is not there reads as all ones.
fn is_there() -> bool {
    input(LINE_STATUS) != 0xff
}

/// Sets the line to 8 bits without parity, at the speed that firmware has set, or 115,200 bit/s.
fn set_line() {
    const DIVISOR: u8 = 1 << 7;
    const EIGHT_BITS: u8 = 3;
    output(LINE_CONTROL, EIGHT_BITS | DIVISOR);
    if (input(DATA), input(INTERRUPT_ENABLE)) == (0, 0) {
        output(DATA, 1);
    }
    output(LINE_CONTROL, EIGHT_BITS);
}

/// Prints at once, waiting for the port: for bring-up and last words.
pub fn print(text: &str) {
    screen::print(text.as_bytes());
    for byte in text.bytes() {
        let mut tries = 0;
        while input(LINE_STATUS) & TRANSMITTER_EMPTY == 0 && tries < PATIENCE {
            tries += 1;
        }
        output(DATA, byte);
    }
}

fn input(register: u16) -> u8 {
    // SAFETY: only called for the registers of a serial port, which have no effect on memory.
    unsafe { Port::new(BASE.load(Ordering::Relaxed) + register).read() }
}

fn output(register: u16, value: u8) {
    // SAFETY: only called for the registers of COM1, which have no effect on memory.
    unsafe { Port::new(BASE.load(Ordering::Relaxed) + register).write(value) }
}
