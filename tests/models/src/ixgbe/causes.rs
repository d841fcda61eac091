//! Causes of interrupts, their mask, and the vectors that they are sent by (82599, 7.3). Not modelled: throttling, and
//! vectors of queues from 16 on.

use crate::{Interrupt, Machine};

/// Causes that are vectors of queues.
pub const VECTORS: u32 = 0xffff;
/// The link has changed; there is mail.
pub const LINK: u32 = 1 << 20;
const VALID: u32 = 1 << 7;

/// What it is about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Receive = 0,
    Transmit = 1,
}

/// Causes and their mask.
#[derive(Debug)]
pub struct Causes {
    pub cause: u32,
    pub mask: u32,
    /// Bits that a message clears, and that it masks.
    pub clears: u32,
    pub masks: u32,
    /// By messages of MSI-X; else by MSI.
    pub messages: bool,
    /// Vectors of queues, a byte each: of two queues in a register.
    pub queues: [u32; 64],
    /// The vector of all else.
    pub other: u32,
    pub raised: u64,
}

impl Default for Causes {
    fn default() -> Self {
        Causes {
            cause: 0,
            mask: 0,
            clears: 0,
            masks: 0,
            messages: false,
            queues: [0; 64],
            other: 0,
            raised: 0,
        }
    }
}

impl Causes {
    /// The cause that a queue has.
    pub fn of(&self, queue: usize, of: Of) -> u32 {
        let entry = self.queues[queue / 2] >> (16 * (queue % 2) + 8 * of as usize);
        if entry & VALID != 0 { 1 << (entry & 0xf) } else { 0 }
    }

    /// Notes causes, and lets those in `unmasked` through that were noted before.
    pub fn raise(&mut self, causes: u32, unmasked: u32, silent: bool, machine: &mut dyn Machine) {
        let new = causes & !self.cause;
        self.cause |= causes;
        let fired = (new | unmasked & self.cause) & self.mask;
        if fired == 0 || silent {
            return;
        }
        if !self.messages {
            self.raised += 1;
            machine.interrupt(Interrupt::Msi(0));
            return;
        }
        self.cause &= !(fired & self.clears);
        self.mask &= !(fired & self.masks & VECTORS);
        for vector in (0..16).filter(|vector| fired >> vector & 1 == 1) {
            self.raised += 1;
            machine.interrupt(Interrupt::Msix(vector));
        }
        if fired & !VECTORS != 0 && self.other & VALID != 0 {
            self.raised += 1;
            machine.interrupt(Interrupt::Msix((self.other & 0x3f) as u16));
        }
    }
}
