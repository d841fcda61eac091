//! Register access of an Intel bridge.

use super::Error;
use super::registers::{self, Generation};
use crate::hal::{Instant, Registers, Window};
use crate::ntb::hardware::{Chip, Signal};
use crate::pci::{Bar, Function};
use alloc::boxed::Box;

/// The registers of a bridge.
pub struct IntelChip {
    registers: Box<dyn Registers>,
    function: Function<'static>,
    generation: Generation,
}

impl IntelChip {
    pub fn new(
        registers: Box<dyn Registers>,
        function: Function<'static>,
        generation: Generation,
    ) -> Self {
        IntelChip { registers, function, generation }
    }

    /// The firmware's setup of the port: its connection, and whether it is the downstream side.
    pub fn port(&self) -> (u32, bool) {
        match self.generation {
            Generation::Third => {
                let port = self.function.read32(registers::PORT_DEFINITION);
                (port & registers::CONNECTION, port & registers::DOWNSTREAM != 0)
            }
            other => {
                let port = self.registers.read32(registers::PORT_DEFINITION_4);
                let downstream = match other {
                    Generation::IceLake => registers::DOWNSTREAM_ICE_LAKE,
                    _ => registers::DOWNSTREAM_4,
                };
                let connection = match port & registers::CONNECTION_4 {
                    registers::BACK_TO_BACK_4 => registers::BACK_TO_BACK,
                    0 => 0,
                    _ => registers::CONNECTION,
                };
                (connection, port & downstream != 0)
            }
        }
    }

    /// Begins the setup: takes the link down, so that the peer reaches no memory, and masks doorbells.
    pub fn begin(&mut self) -> Result<(), Error> {
        if self.registers.read32(registers::CONTROL) == u32::MAX {
            return Err(Error::Absent);
        }
        self.disable_link();
        self.registers.write64(registers::BELLS_MASKED, registers::ALL_BELLS);
        Ok(())
    }

    fn write(&self, name: &'static str, register: usize, value: u64) -> Result<(), Error> {
        self.registers.write64(register, value);
        let reads = self.registers.read64(register);
        let same = reads == value;
        same.then_some(()).ok_or(Error::Locked { register: name, wrote: value, reads })
    }

    /// Lets the peer reach `exposed`, and no other memory.
    pub fn translate(&mut self, bar: &Bar, exposed: &Window) -> Result<(), Error> {
        let own = &self.registers;
        own.write64(registers::SECOND_TRANSLATION, 0);
        own.write64(registers::SECOND_LIMIT, 0);
        own.write64(registers::LIMIT, bar.address);
        let limit = bar.address + exposed.len() as u64;
        let set = self
            .write("translation (IMBAR1XBASE)", registers::TRANSLATION, exposed.bus_address())
            .and_then(|()| self.write("limit (IMBAR1XLMT)", registers::LIMIT, limit))
            .and_then(|()| self.translate_more(exposed));
        if set.is_err() {
            own.write64(registers::TRANSLATION, 0);
            own.write64(registers::LIMIT, bar.address);
        }
        set
    }

    /// Sets further registers of the generation.
    fn translate_more(&self, exposed: &Window) -> Result<(), Error> {
        match self.generation {
            Generation::Third => {
                let outer = self.registers.read64(registers::OUTER_BAR) & !0xf;
                let limit = outer + exposed.len() as u64;
                self.write("outer limit (EMBAR1XLMT)", registers::OUTER_LIMIT, limit)
            }
            Generation::IceLake => {
                let log2 = exposed.len().ilog2() as u16;
                self.registers.write16(registers::TRANSLATION_INDEX, log2);
                let reads = self.registers.read16(registers::TRANSLATION_INDEX);
                let (wrote, reads) = (log2.into(), reads.into());
                let same = wrote == reads;
                let register = "index of the translation (IMBAR1XBASEIDX)";
                same.then_some(()).ok_or(Error::Locked { register, wrote, reads })
            }
            Generation::SapphireRapids | Generation::DiamondRapids => Ok(()),
        }
    }

    /// Clears scratchpads and doorbells of before, and routes all doorbells to vector 0.
    pub fn clear(&mut self) {
        for bell in 0..registers::BELL_COUNT {
            self.registers.write8(self.generation.vectors() + bell, 0);
        }
        self.clear_scratchpads();
        self.clear_bells(registers::ALL_BELLS | registers::LINK_BELL);
    }

    /// Clears doorbells. In the fourth generation the link's doorbell stays set while the slot reports a link change.
    fn clear_bells(&self, bells: u64) {
        if bells & registers::LINK_BELL != 0 && self.generation != Generation::Third {
            self.registers.write16(registers::SLOT_STATUS, registers::LINK_CHANGED);
        }
        self.registers.write64(registers::BELLS, bells);
    }

    /// Lets the link come up.
    pub fn enable(&mut self) -> Result<(), Error> {
        match self.generation {
            Generation::Third => {
                self.registers.write16(registers::OUTER_COMMAND, registers::OUTER_ENABLE);
                let off = registers::CONTROL_DISABLE | registers::CONTROL_LOCK;
                let control = self.registers.read32(registers::CONTROL) & !off;
                self.registers.write32(registers::CONTROL, control | registers::CONTROL_SNOOP);
                Ok(())
            }
            generation => {
                if generation != Generation::IceLake {
                    self.registers
                        .write32(registers::LATENCY_ACTIVE, registers::LATENCY_ACTIVE_VALUE);
                    self.registers.write32(registers::LATENCY_IDLE, registers::LATENCY_IDLE_VALUE);
                    self.registers.write8(registers::LATENCY_SELECT, registers::LATENCY_IS_ACTIVE);
                }
                self.registers.write32(registers::CONTROL, registers::CONTROL_SNOOP);
                let control = self.registers.read16(registers::LINK_CONTROL);
                let enabled = control & !registers::LINK_DISABLE;
                self.registers.write16(registers::LINK_CONTROL, enabled);
                let port = self.registers.read32(generation.port_control());
                self.registers.write32(generation.port_control(), port | registers::START_TRAINING);
                // The bit stays set during the training and after it.
                let port = self.registers.read32(generation.port_control());
                let started = port & registers::START_TRAINING != 0;
                started.then_some(()).ok_or(Error::NotTraining)
            }
        }
    }

    /// Link status of PCI Express (16 bits); None while the device does not answer.
    fn status(&self) -> Option<u32> {
        let status = match self.generation {
            Generation::Third => self.function.read32(registers::LINK_STATUS) >> 16,
            _ => self.registers.read16(registers::LINK_STATUS_4).into(),
        };
        (status != 0xffff).then_some(status)
    }

    fn bells(&self) -> u64 {
        match self.registers.read64(registers::BELLS) {
            u64::MAX => 0,
            bells => bells,
        }
    }
}

impl Chip for IntelChip {
    fn link(&mut self, _: Instant) -> bool {
        self.status().is_some_and(|status| status & registers::LINK_ACTIVE != 0)
    }

    fn link_speed(&self) -> Option<(u8, u8)> {
        let status = self.status()?;
        let width = (status & registers::LINK_WIDTH) >> 4;
        Some(((status & registers::LINK_SPEED) as u8, width as u8))
    }

    fn scratchpads(&self) -> usize {
        registers::SCRATCHPAD_COUNT
    }

    fn windows(&self) -> usize {
        2
    }

    fn clear_scratchpads(&mut self) {
        for n in 0..registers::SCRATCHPAD_COUNT {
            self.registers.write32(registers::SCRATCHPADS + 4 * n, 0);
        }
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.registers.read32(registers::SCRATCHPADS + 4 * n)
    }

    fn send(&mut self, signal: Signal) {
        match signal {
            Signal::Scratchpad(n, value) => {
                self.registers.write32(self.generation.peer_scratchpads() + 4 * n, value);
            }
            Signal::Bell => self.registers.write32(registers::PEER_BELL, 1),
        }
    }

    fn is_rung(&self) -> bool {
        self.bells() & registers::BELL != 0
    }

    fn take_bell(&mut self) -> bool {
        let bells = self.bells();
        if bells & (registers::BELL | registers::LINK_BELL) != 0 {
            self.clear_bells(bells);
        }
        bells & registers::BELL != 0
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let masked =
            if wanted { registers::ALL_BELLS & !registers::BELL } else { registers::ALL_BELLS };
        self.registers.write64(registers::BELLS_MASKED, masked);
    }

    fn flush(&self) {
        self.registers.read32(self.generation.peer_scratchpads());
    }

    fn disable_link(&mut self) {
        match self.generation {
            Generation::Third => {
                let control = self.registers.read32(registers::CONTROL);
                self.registers.write32(registers::CONTROL, control | registers::CONTROL_DISABLE);
            }
            _ => {
                let control = self.registers.read16(registers::LINK_CONTROL);
                let off = control | registers::LINK_DISABLE;
                self.registers.write16(registers::LINK_CONTROL, off);
            }
        }
    }
}
