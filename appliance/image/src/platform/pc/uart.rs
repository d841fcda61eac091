//! The console's serial port: a 16550 (National Semiconductor PC16550D), polled. Only its receive interrupt is enabled,
//! which ends a halt and shows that there is something to read.

pub use crate::platform::printer::Printer;
use crate::platform::{interrupts, screen};
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
/// Polls after which a full transmitter counts as missing, or as not read at the other end.
const PATIENCE: u32 = 1_000_000;

/// First register of the console's port.
static BASE: AtomicU16 = AtomicU16::new(COM1);

/// The serial port. There is one. [`print`] uses it beside its owner for a last message.
#[derive(Debug)]
pub struct Uart {
    /// Count of line interrupts at the last read.
    seen: u64,
}

impl Uart {
    /// Takes the console port of firmware, else COM1, else COM2, which many management controllers use. The kernel has
    /// set up COM1.
    pub fn take(of_firmware: Option<u16>) -> Self {
        const FIFO_ON: u8 = 1;
        /// Interrupt for 14 bytes, or for fewer that have waited four byte times. QEMU takes this as the free room:
        /// with 1, a paste would come byte by byte.
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

    /// First register of the port, if it is present.
    pub fn base(&self) -> Option<u16> {
        is_there().then(|| BASE.load(Ordering::Relaxed))
    }

    /// Whether the port has interrupted since the last read. Does not access the port.
    pub fn has_rung(&self) -> bool {
        interrupts::line_interrupts() != self.seen
    }

    /// Reads received bytes. Returns their number.
    pub fn read(&mut self, into: &mut [u8]) -> usize {
        self.seen = interrupts::line_interrupts();
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

    /// Whether bytes have arrived. A missing port reads as all ones and has none.
    pub fn has_received(&self) -> bool {
        let status = input(LINE_STATUS);
        status & RECEIVED != 0 && status != 0xff
    }

    /// Sends as many bytes as the transmitter takes now. Returns their number.
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

/// Whether the port is present: a missing port reads as all ones.
fn is_there() -> bool {
    input(LINE_STATUS) != 0xff
}

/// Sets the line to 8 bits without parity, at firmware's speed, or 115,200 bit/s if it has set none.
fn set_line() {
    const DIVISOR: u8 = 1 << 7;
    const EIGHT_BITS: u8 = 3;
    output(LINE_CONTROL, EIGHT_BITS | DIVISOR);
    if (input(DATA), input(INTERRUPT_ENABLE)) == (0, 0) {
        output(DATA, 1);
    }
    output(LINE_CONTROL, EIGHT_BITS);
}

/// Prints at once, waiting for the port: for bring-up and fatal errors.
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
    // SAFETY: only called for the registers of a serial port, which have no effect on memory.
    unsafe { Port::new(BASE.load(Ordering::Relaxed) + register).write(value) }
}
