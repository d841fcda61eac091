//! Interrupt causes, their mask, and their vectors (82599, 7.3). Not modelled: throttling, and queue vectors from 16
//! on.

use crate::{Interrupt, Machine};

/// Cause bits of queue vectors.
pub const VECTORS: u32 = 0xffff;
/// Link status change (LSC).
pub const LINK: u32 = 1 << 20;
const VALID: u32 = 1 << 7;

/// Direction of a queue's events.
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
    /// Causes that are cleared when MSI-X sends them (EIAC).
    pub clears: u32,
    /// Causes that are masked when MSI-X sends them (EIAM).
    pub masks: u32,
    /// Interrupts use MSI-X, otherwise MSI.
    pub messages: bool,
    /// IVAR registers: each has the vectors of two queues, a byte for each direction.
    pub queues: [u32; 64],
    /// The vector of all other causes (IVAR_MISC).
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
    /// The cause bit of a queue's events.
    pub fn of(&self, queue: usize, of: Of) -> u32 {
        let entry = self.queues[queue / 2] >> (16 * (queue % 2) + 8 * of as usize);
        if entry & VALID != 0 { 1 << (entry & 0xf) } else { 0 }
    }

    /// Records causes, and raises unmasked interrupts. Of the causes that were already set, those in `unmasked` fire
    /// again.
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
