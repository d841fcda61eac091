//! Interrupts: rising edges of causes raise MSI-X vectors, or the level of all causes raises MSI.

use super::{Fault, Tsi721};
use crate::{Interrupt, Machine};

/// MSI-X vectors.
pub const VECTORS: u16 = 70;

impl Tsi721 {
    fn masked(&self, status: u64, enable: u64, bits: u32) -> bool {
        self.kept.get(status) & self.kept.get(enable) & bits != 0
    }

    /// For each vector, whether its cause is active.
    fn causes(&self) -> Vec<bool> {
        let mut causes = vec![false; VECTORS.into()];
        for number in 0..8 {
            let dma = 0x51000 + 0x1000 * number as u64;
            causes[number] = self.masked(dma + 0xc, dma + 0x18, 9);
            causes[8 + number] = self.masked(dma + 0xc, dma + 0x18, !9);
            let channel = 0x61000 + 0x1000 * number as u64;
            if number < 4 {
                causes[17 + number] = self.masked(channel + 0xc, channel + 0x18, 9);
                causes[25 + number] = self.masked(channel + 0xc, channel + 0x18, !9);
            }
            causes[33 + number] = self.masked(channel + 0x248, channel + 0x250, 1);
            causes[41 + number] = self.masked(channel + 0x248, channel + 0x250, !1);
        }
        causes[50] = self.masked(0x20040, 0x20044, 0x10);
        causes[58] = self.masked(0x20040, 0x20044, !0x10);
        causes[68] = self.masked(0x10910, 0x10914, !0) && self.kept.get(0x10930) & 1 != 0;
        causes
    }

    /// The register of interrupting channels (0x29850).
    pub(super) fn channel_interrupts(&self) -> u32 {
        let causes = self.causes();
        let any = |list: &[usize]| list.iter().any(|&n| causes[n]);
        let mut channels = 0;
        for number in 0..8 {
            let outbound = number < 4 && any(&[17 + number, 25 + number]);
            channels |= u32::from(any(&[number, 8 + number])) << number;
            channels |= u32::from(outbound) << (8 + number);
            channels |= u32::from(any(&[33 + number, 41 + number])) << (16 + number);
        }
        channels | u32::from(any(&[50, 58])) << 24
    }

    /// The register of interrupting blocks (0x29844).
    pub(super) fn device_interrupts(&self) -> u32 {
        let enabled = self.channel_interrupts() & self.kept.get(0x2984c);
        let mac = self.causes()[68];
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        bit(enabled & 0xff00_0000 != 0, 0x200)
            | bit(enabled & 0x00ff_ff00 != 0, 0x800)
            | bit(enabled & 0xff != 0, 0x2000)
            | bit(mac, 0x20)
    }

    /// Raises interrupts for causes that have become active.
    pub(super) fn update_interrupts(&mut self, machine: &mut dyn Machine) {
        if self.has(Fault::NoInterrupts) {
            return;
        }
        if self.settings.vectors {
            let causes = self.causes();
            let is_enabled = |vector: usize| vector != 68 || self.kept.get(0x29840) & 0x20 != 0;
            for (vector, &cause) in causes.iter().enumerate() {
                if cause && !self.levels[vector] && is_enabled(vector) {
                    self.counts.interrupts += 1;
                    machine.interrupt(Interrupt::Msix(vector as u16));
                }
            }
            self.levels = causes;
            return;
        }
        let level = self.device_interrupts() & self.kept.get(0x29840) != 0;
        if level && !self.level {
            self.counts.interrupts += 1;
            machine.interrupt(Interrupt::Msi(0));
        }
        self.level = level;
    }
}
