//! The bridge registers of one machine.

use super::{Counts, Fault, Generation};
use crate::registers::{byte_of, with_half};

/// The doorbell that reports link changes.
pub const LINK_BELL: u64 = 1 << 32;
pub const BELLS: usize = 33;

/// NTBCNTL of the third generation after a reset: secondary side configuration locked, link disabled.
const AT_RESET: u32 = 3;
const LINK_DISABLE: u32 = 2;
/// Fourth generation: link disable in link control, and start of training in PPD0.
const LINK_DISABLE_4: u16 = 0x10;
const START_TRAINING: u32 = 8;
/// Slot status: the link state has changed.
const LINK_CHANGED: u16 = 0x100;

#[derive(Clone, Debug)]
pub struct Side {
    generation: Generation,
    /// The port definition.
    definition: u32,
    control: u32,
    // Fourth generation: link control, link status, slot status, PPD0, LTR.
    link_control: u16,
    link_status: u16,
    slot_status: u16,
    training: u32,
    latency: [u32; 3],
    /// Log2 of each window's bytes, or 0.
    pub index: [u16; 2],
    /// Each window's translation for the other side's accesses, and its limit as an address in this side's BAR.
    pub windows: [(u64, u64); 2],
    /// Addresses of this side's BARs.
    pub bases: [u64; 2],
    /// Limits and BARs of the secondary side.
    outer: [u64; 6],
    pub bells: u64,
    masked: u64,
    /// Doorbells whose interrupt was not raised yet.
    pub unsent: u64,
    pub scratchpads: [u32; 16],
    pub vectors: [u8; BELLS],
    command: u16,
    pub counts: Counts,
}

impl Side {
    pub fn new(generation: Generation, definition: u32) -> Self {
        // The link's doorbell has the first vector.
        let vectors = core::array::from_fn(|bell| if bell == 32 { 0 } else { bell as u8 + 1 });
        Side {
            generation,
            definition,
            control: if generation.is_third() { AT_RESET } else { 0 },
            link_control: LINK_DISABLE_4,
            link_status: 0,
            slot_status: 0,
            training: 0,
            latency: [0; 3],
            index: [0; 2],
            windows: [(0, 0); 2],
            bases: [0; 2],
            outer: [0; 6],
            bells: 0,
            masked: 0,
            unsent: 0,
            scratchpads: [0; 16],
            vectors,
            command: 0,
            counts: Counts::default(),
        }
    }

    /// Restores the power-on state, except for counters.
    pub fn reset(&mut self) {
        *self = Side { counts: self.counts, ..Side::new(self.generation, self.definition) };
    }

    pub fn wants_link(&self) -> bool {
        match self.generation {
            Generation::Third => self.control & LINK_DISABLE == 0,
            _ => self.link_control & LINK_DISABLE_4 == 0 && self.training & START_TRAINING != 0,
        }
    }

    /// Reports a change of the link.
    pub fn link_changed(&mut self, status: u16) {
        self.link_status = status;
        self.slot_status |= LINK_CHANGED;
        self.ring(LINK_BELL);
    }

    pub fn ring(&mut self, bells: u64) {
        self.bells |= bells;
        self.unsent |= bells;
    }

    /// Takes the doorbells whose interrupt is due.
    pub fn due(&mut self) -> impl Iterator<Item = usize> + use<> {
        let due = self.unsent & self.bells & !self.masked;
        self.unsent &= !due;
        (0..BELLS).filter(move |bell| due >> bell & 1 == 1)
    }

    pub fn byte(&self, offset: u64) -> u8 {
        let vectors = self.generation.vectors();
        if (vectors..vectors + BELLS as u64).contains(&offset) {
            return self.vectors[(offset - vectors) as usize];
        }
        let word = |value: u64| byte_of(value, offset % 8);
        match offset {
            0x00..0x04 => byte_of(self.control.into(), offset),
            0x10..0x18 => word(self.windows[0].0),
            0x18..0x20 => word(self.windows[0].1),
            0x20..0x28 => word(self.windows[1].0),
            0x28..0x30 => word(self.windows[1].1),
            0x40..0x48 => word(self.bells),
            0x48..0x50 => word(self.masked),
            0x80..0xc0 => {
                byte_of(self.scratchpads[(offset - 0x80) as usize / 4].into(), offset % 4)
            }
            _ if !self.generation.is_third() => self.byte_4(offset),
            0x4018..0x4020 => word(self.outer[0]),
            0x4028..0x4030 => word(self.outer[1]),
            0x4504..0x4506 => byte_of(self.command.into(), offset - 0x4504),
            0x4510..0x4528 => word(self.outer[3 + (offset - 0x4510) as usize / 8]),
            _ => 0,
        }
    }

    /// Reads registers that only the fourth generation has.
    fn byte_4(&self, offset: u64) -> u8 {
        match offset {
            0x74..0x78 => byte_of(self.index[(offset - 0x74) as usize / 2].into(), offset % 2),
            0x30ec..0x30f8 => {
                byte_of(self.latency[(offset - 0x30ec) as usize / 4].into(), offset % 4)
            }
            0xb050..0xb052 => byte_of(self.link_control.into(), offset % 2),
            0xb052..0xb054 => byte_of(self.link_status.into(), offset % 2),
            0xb05a..0xb05c => byte_of(self.slot_status.into(), offset % 2),
            _ if offset & !3 == self.generation.port_control() => {
                byte_of(self.training.into(), offset % 4)
            }
            0xb4c0..0xb4c4 => byte_of(self.definition.into(), offset % 4),
            _ => 0,
        }
    }

    fn write_4(&mut self, offset: u64, value: u64, fault: Option<Fault>) {
        match offset {
            0x74 | 0x76 if fault != Some(Fault::NoIndex) => {
                self.index[(offset - 0x74) as usize / 2] = value as u16;
            }
            0x30ec..0x30f8 => self.latency[(offset - 0x30ec) as usize / 4] = value as u32,
            0xb050 => {
                self.link_control = value as u16;
                if self.link_control & LINK_DISABLE_4 != 0 {
                    self.training &= !START_TRAINING;
                }
            }
            0xb05a => self.slot_status &= !(value as u16),
            _ if offset == self.generation.port_control() => self.training = value as u32,
            _ => {}
        }
    }

    /// Handles the machine's write to its own registers.
    pub fn write(&mut self, offset: u64, value: u64, bytes: &[u8], fault: Option<Fault>) {
        let merged = |old: u64| match bytes.len() {
            8 => value,
            _ => with_half(old, offset % 8, value as u32),
        };
        let vectors = self.generation.vectors();
        if (vectors..vectors + BELLS as u64).contains(&offset) {
            let places = self.vectors[(offset - vectors) as usize..].iter_mut();
            return places.zip(bytes).for_each(|(vector, &byte)| *vector = byte);
        }
        let (limits, translations) =
            (fault != Some(Fault::NoLimit), fault != Some(Fault::NoTranslation));
        match offset {
            0x00 => self.control = value as u32,
            0x10..0x18 if translations => self.windows[0].0 = merged(self.windows[0].0),
            0x18..0x20 if limits => self.windows[0].1 = merged(self.windows[0].1),
            0x20..0x28 if translations => self.windows[1].0 = merged(self.windows[1].0),
            0x28..0x30 if limits => self.windows[1].1 = merged(self.windows[1].1),
            0x40..0x48 => {
                // The link's doorbell cannot be cleared while the slot status reports a change.
                let held = !self.generation.is_third() && self.slot_status & LINK_CHANGED != 0;
                self.bells &= !merged(0) | if held { LINK_BELL } else { 0 };
                self.unsent &= self.bells;
            }
            0x48..0x50 => {
                let opened = self.masked & !merged(self.masked);
                self.masked = merged(self.masked);
                self.unsent |= self.bells & opened;
            }
            0x80..0xc0 => self.scratchpads[(offset - 0x80) as usize / 4] = value as u32,
            _ if !self.generation.is_third() => self.write_4(offset, value, fault),
            0x4018..0x4020 => self.outer[0] = merged(self.outer[0]),
            0x4028..0x4030 => self.outer[1] = merged(self.outer[1]),
            0x4504 => self.command = value as u16,
            0x4510..0x4528 => {
                let at = 3 + (offset - 0x4510) as usize / 8;
                self.outer[at] = merged(self.outer[at]);
            }
            _ => {}
        }
    }
}
