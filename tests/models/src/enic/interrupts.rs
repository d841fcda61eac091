//! Interrupts: events are counted as credits, which the driver returns. An interrupt is raised while it has credits and
//! is not masked.

use super::{Enic, Fault};
use crate::{Interrupt, Machine};

/// An interrupt's registers.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Timer, value and type of coalescing, which is not modelled.
    coalescing: [u32; 3],
    mask_on_assertion: bool,
    masked: bool,
    pub credits: u32,
}

impl Default for Line {
    fn default() -> Self {
        Line { coalescing: [0; 3], mask_on_assertion: false, masked: true, credits: 0 }
    }
}

const UNMASK: u32 = 1 << 16;

impl Line {
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            0x00 | 0x08 | 0x10 => self.coalescing[(offset / 8) as usize],
            0x18 => self.mask_on_assertion.into(),
            0x20 => self.masked.into(),
            0x28 => self.credits,
            _ => 0,
        }
    }
}

impl Enic {
    pub(super) fn write_line(
        &mut self,
        n: usize,
        offset: u64,
        value: u32,
        machine: &mut dyn Machine,
    ) {
        let line = &mut self.lines[n];
        match offset {
            0x00 | 0x08 | 0x10 => line.coalescing[(offset / 8) as usize] = value,
            0x18 => line.mask_on_assertion = value & 1 != 0,
            0x20 => line.masked = value & 1 != 0,
            0x28 => line.credits = value,
            0x30 => {
                let returned = value & 0xffff;
                let left = line.credits.checked_sub(returned);
                line.credits = left.unwrap_or(0);
                line.masked &= value & UNMASK == 0;
                if left.is_none() {
                    self.complain(format!(
                        "more credits than counted, {returned}, are returned to interrupt {n}"
                    ));
                }
            }
            _ => self.complain(format!("{value:#x} goes to {offset:#x} of interrupt {n}")),
        }
        self.raise(n, machine);
    }

    /// Counts an event as a credit of interrupt `n`.
    pub(super) fn event(&mut self, n: u32, machine: &mut dyn Machine) {
        match self.lines.get_mut(n as usize) {
            Some(line) => line.credits += 1,
            None => return self.complain(format!("there is no interrupt {n}")),
        }
        self.raise(n as usize, machine);
    }

    fn raise(&mut self, n: usize, machine: &mut dyn Machine) {
        let line = self.lines[n];
        if line.credits == 0 || line.masked || self.has(Fault::NoInterrupts) {
            return;
        }
        let interrupt = match self.settings.vectors {
            0 => Interrupt::Intx,
            _ => Interrupt::Msix(n as u16),
        };
        if machine.interrupt(interrupt) {
            self.counts.interrupts += 1;
            self.lines[n].masked |= line.mask_on_assertion;
        }
    }

    /// A bit for each interrupt that has credits.
    pub(super) fn legacy_pending(&self) -> u32 {
        let pending = self.lines.iter().enumerate().filter(|(_, line)| line.credits > 0);
        pending.fold(0, |all, (n, _)| all | 1 << n)
    }
}
