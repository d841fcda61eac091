//! One machine's registers.

use super::Fault;
use crate::registers::{byte_of, with_half};

/// The bell that tells of the link.
pub const LINK_BELL: u64 = 1 << 32;
pub const BELLS: usize = 33;

/// NTBCNTL: the secondary side cannot be configured, and the link is off.
const AT_RESET: u32 = 3;
const LINK_DISABLE: u32 = 2;

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub window_writes: u64,
    /// Accesses through a window that led nowhere.
    pub missed: u64,
    /// Such as led to where there is no memory.
    pub unreachable: u64,
    pub rung: u64,
    pub interrupts: u64,
}

#[derive(Clone, Debug)]
pub struct Side {
    control: u32,
    /// Of each window: where the other's accesses go, and up to which address of our BAR.
    pub windows: [(u64, u64); 2],
    /// Addresses of our BARs.
    pub bases: [u64; 2],
    /// Limits and BARs of the secondary side.
    outer: [u64; 6],
    pub bells: u64,
    masked: u64,
    /// Bells whose interrupt was not raised yet.
    pub unsent: u64,
    pub scratchpads: [u32; 16],
    pub vectors: [u8; BELLS],
    command: u16,
    pub counts: Counts,
}

impl Side {
    pub fn new() -> Self {
        // The vector of the link's bell comes first.
        let vectors = core::array::from_fn(|bell| if bell == 32 { 0 } else { bell as u8 + 1 });
        Side {
            control: AT_RESET,
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

    pub fn wants_link(&self) -> bool {
        self.control & LINK_DISABLE == 0
    }

    /// Bells whose interrupt is due now.
    pub fn due(&mut self) -> impl Iterator<Item = usize> + use<> {
        let due = self.unsent & self.bells & !self.masked;
        self.unsent &= !due;
        (0..BELLS).filter(move |bell| due >> bell & 1 == 1)
    }

    pub fn byte(&self, offset: u64) -> u8 {
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
            0xd0..0xf1 => self.vectors[(offset - 0xd0) as usize],
            0x4018..0x4020 => word(self.outer[0]),
            0x4028..0x4030 => word(self.outer[1]),
            0x4504..0x4506 => byte_of(self.command.into(), offset - 0x4504),
            0x4510..0x4528 => word(self.outer[3 + (offset - 0x4510) as usize / 8]),
            _ => 0,
        }
    }

    /// A register of our own is written.
    pub fn write(&mut self, offset: u64, value: u64, bytes: &[u8], fault: Option<Fault>) {
        let merged = |old: u64| match bytes.len() {
            8 => value,
            _ => with_half(old, offset % 8, value as u32),
        };
        let (limits, translations) =
            (fault != Some(Fault::NoLimit), fault != Some(Fault::NoTranslation));
        match offset {
            0x00 => self.control = value as u32,
            0x10..0x18 if translations => self.windows[0].0 = merged(self.windows[0].0),
            0x18..0x20 if limits => self.windows[0].1 = merged(self.windows[0].1),
            0x20..0x28 if translations => self.windows[1].0 = merged(self.windows[1].0),
            0x28..0x30 if limits => self.windows[1].1 = merged(self.windows[1].1),
            0x40..0x48 => {
                self.bells &= !merged(0);
                self.unsent &= self.bells;
            }
            0x48..0x50 => {
                let opened = self.masked & !merged(self.masked);
                self.masked = merged(self.masked);
                self.unsent |= self.bells & opened;
            }
            0x80..0xc0 => self.scratchpads[(offset - 0x80) as usize / 4] = value as u32,
            0xd0..0xf1 => {
                for (vector, &byte) in
                    self.vectors[(offset - 0xd0) as usize..].iter_mut().zip(bytes)
                {
                    *vector = byte;
                }
            }
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
