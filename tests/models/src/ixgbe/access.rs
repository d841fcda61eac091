//! Register reads and writes of a physical function.

use super::causes::VECTORS;
use super::fault::Fault;
use super::registers as r;
use super::ring::{self, Kind};
use super::{Ixgbe, statistics};
use crate::Machine;

impl Ixgbe {
    /// The queue of a register, and the register's offset in the queue's block.
    fn ring(at: u64) -> Option<(Kind, usize, u64)> {
        let of = |first: u64, queue: u64| ((at - first) / ring::SPAN + queue) as usize;
        let inside = at % ring::SPAN;
        Some(match at {
            0x1000..0x2000 => (Kind::Receive, of(r::RECEIVE, 0), inside),
            0xd000..0xe000 => (Kind::Receive, of(r::RECEIVE_64, 64), inside),
            0x6000..0x8000 => (Kind::Transmit, of(r::TRANSMIT, 0), inside),
            0x2100..0x2140 => (Kind::Receive, ((at - r::SRRCTL_82598) / 4) as usize, 0x14),
            0x2200..0x2240 => (Kind::Receive, ((at - r::DCA_RXCTRL_82598) / 4) as usize, 0x0c),
            _ => return None,
        })
    }

    /// Reads and clears a queue's statistics register.
    fn queue_statistics(&mut self, at: u64) -> Option<u32> {
        let take = |count: &mut u64| std::mem::take(count).min(u32::MAX.into()) as u32;
        let engine = &mut self.engine;
        Some(match (at, Self::ring(at)) {
            (0x8700..0x8780, _) if at.is_multiple_of(8) => {
                take(&mut engine.transmit[((at - 0x8700) / 8) as usize].bytes)
            }
            (_, Some((Kind::Receive, queue @ 16..32, 0x30))) => {
                take(&mut engine.receive[queue - 16].dropped)
            }
            (_, Some((Kind::Receive, queue, 0x30))) => take(&mut engine.receive[queue].packets),
            (_, Some((Kind::Receive, queue, 0x34))) => take(&mut engine.receive[queue].bytes),
            (_, Some((Kind::Transmit, queue, 0x30))) => take(&mut engine.transmit[queue].packets),
            _ => return None,
        })
    }

    pub(super) fn read32(&mut self, at: u64) -> u32 {
        if let Some(value) = self.queue_statistics(at) {
            return value;
        }
        if let Some((kind, queue, inside)) = Self::ring(at) {
            return match kind {
                Kind::Receive => self.engine.receive[queue].read(inside),
                Kind::Transmit => self.engine.transmit[queue].read(inside),
            };
        }
        if let Some(value) = self.firmware.read(at, &self.engine) {
            return value;
        }
        let causes = &mut self.engine.causes;
        match at {
            r::CTRL => {
                let lags = std::mem::take(&mut self.lags[0]) && self.resets > 0;
                let stuck = self.engine.faults.has(Fault::StuckReset);
                let reset = if lags || stuck { 1 << 26 } else { 0 };
                self.get(r::CTRL) | reset
            }
            r::STATUS => match self.get(r::CTRL) & r::CTRL_MASTER_DISABLE {
                0 => r::STATUS_MASTER_ENABLED,
                _ => 0,
            },
            r::EEC => {
                let read = if std::mem::take(&mut self.lags[1]) { 0 } else { r::EEC_READ };
                r::EEC_PRESENT | read
            }
            r::RDRXCTL => {
                let done =
                    if std::mem::take(&mut self.lags[2]) { 0 } else { r::RDRXCTL_DMA_INIT_DONE };
                self.get(at) | done
            }
            r::I2CCTL => self.module.read(),
            r::EICR => {
                let cause = causes.cause;
                // The read clears the causes, except those that MSI-X clears, and applies the automatic mask.
                let kept = match self.words[(r::GPIE / 4) as usize] & r::GPIE_OTHER_CLEAR_DISABLE {
                    0 => 0,
                    _ => VECTORS,
                };
                causes.cause &= kept;
                if !causes.messages {
                    causes.mask &= !(self.words[(r::EIAM / 4) as usize] & cause);
                }
                cause
            }
            r::EICS => causes.cause,
            r::EIMS | r::EIMC => causes.mask,
            r::EIMS_EX => causes.mask & VECTORS,
            r::LINKS => {
                if self.is_up() {
                    r::LINKS_UP_AT_10G
                } else {
                    0
                }
            }
            r::ANLP1 => self.get(at),
            // No PHY answers: MDIO reads as ones.
            r::MSRWD => 0xffff_0000,
            r::SECRXSTAT => self.get(r::SECRXCTRL) >> 1 & 1,
            at if r::RAL_82598.contains(&at) => self.get(r::RAL + (at - r::RAL_82598.start)),
            _ if statistics::is_statistic(at) => self.engine.statistics.take(at),
            0x8704..0x8780 | 0x2f50..0x2f68 => 0,
            _ => self.get(at),
        }
    }

    pub(super) fn write32(&mut self, at: u64, value: u32, machine: &mut dyn Machine) {
        if let Some((kind, queue, inside)) = Self::ring(at) {
            return self.engine.write_ring(kind, queue, inside, value);
        }
        if self.firmware.write(at, value, &mut self.engine) || self.write_causes(at, value, machine)
        {
            return;
        }
        match at {
            r::CTRL if value & r::CTRL_RESETS != 0 => {
                if self.get(r::CTRL) & r::CTRL_MASTER_DISABLE == 0 {
                    self.engine.complain("a reset without CTRL.MASTER_DISABLE");
                }
                self.resets += 1;
                self.clear_state();
            }
            r::EERD => {
                let word = self.nvm.get((value >> 2 & 0x3fff) as usize).copied();
                if word.is_none() {
                    self.engine.complain(format!("the EEPROM has no word {:#x}", value >> 2));
                }
                self.set(at, u32::from(word.unwrap_or(0xffff)) << 16 | 2);
            }
            r::I2CCTL if !self.firmware.may_use_module() => {
                self.engine.complain("I2CCTL is written without SW_FW_SYNC");
            }
            r::I2CCTL => self.module.write(value),
            r::MSCA => self.set(at, value & !(1 << 30)),
            r::AUTOC => {
                if value & r::AUTOC_RESTART != 0 {
                    self.set(r::ANLP1, 1 << 16); // the state of negotiation is not 0
                }
                self.set(at, value & !r::AUTOC_RESTART);
            }
            r::RXCTRL if value & 1 == 1 && self.get(r::SECRXCTRL) & r::SECRXCTRL_DISABLE == 0 => {
                self.engine.complain("RXCTRL.RXEN is set while frames come in (SECRXCTRL.RX_DIS)");
            }
            r::FDIRCTRL => self.set(at, value | 1 << 3),
            r::FDIRCMD => self.set(at, value & !3),
            // The 82598's offsets of the receive addresses.
            at if r::RAL_82598.contains(&at) => {
                self.set(r::RAL + (at - r::RAL_82598.start), value);
            }
            _ => self.set(at, value),
        }
        if at == r::RXCTRL {
            self.set(at, value);
        }
        self.engine.pads = self.get(r::HLREG0) & r::HLREG0_PAD != 0;
    }

    /// Returns false if the address is not an interrupt register.
    fn write_causes(&mut self, at: u64, value: u32, machine: &mut dyn Machine) -> bool {
        let causes = &mut self.engine.causes;
        match at {
            r::EICR => causes.cause &= !value,
            r::EICS => self.engine.raise(value, 0, machine),
            r::EICS_EX => self.engine.raise(value & VECTORS, 0, machine),
            r::EIMS => {
                let new = value & !causes.mask;
                causes.mask |= value;
                self.engine.raise(0, new, machine);
            }
            r::EIMS_EX => {
                let new = value & VECTORS & !causes.mask;
                causes.mask |= value & VECTORS;
                self.engine.raise(0, new, machine);
            }
            r::EIMC => causes.mask &= !value,
            r::EIMC_EX => causes.mask &= !(value & VECTORS),
            r::EIAC => causes.clears = value,
            r::EIAM_EX | r::GPIE => {
                self.set(at, value);
                let masks = self.get(r::GPIE) & r::GPIE_AUTO_MASK != 0;
                let causes = &mut self.engine.causes;
                causes.masks = if masks { self.words[(r::EIAM_EX / 4) as usize] } else { 0 };
                causes.messages = self.words[(r::GPIE / 4) as usize] & r::GPIE_MSIX != 0;
            }
            r::IVAR_MISC => {
                causes.other = value >> 8 & 0xff;
                self.set(at, value);
            }
            at if r::IVAR.contains(&at) => {
                causes.queues[((at - r::IVAR.start) / 4) as usize] = value;
                let vectors = value.to_le_bytes();
                if vectors.iter().any(|vector| vector & 0x80 != 0 && vector & 0x3f > 15) {
                    self.engine.complain(format!("IVAR {value:#x}: vectors from 16 on"));
                }
                self.set(at, value);
            }
            _ => return false,
        }
        true
    }
}
