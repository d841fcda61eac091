//! Register access of an AMD bridge.

use super::Error;
use super::registers;
use crate::hal::{Instant, Registers, Window};
use crate::ntb::Side;
use crate::ntb::hardware::{Chip, Signal};
use crate::pci::Function;
use alloc::boxed::Box;

/// The registers of a bridge.
pub struct AmdChip {
    registers: Box<dyn Registers>,
    function: Function<'static>,
    /// Events have reported the link as down.
    down: bool,
    /// The peer's driver has announced its end (doorbell 15).
    gone: bool,
    /// Memory exposed to the peer, once the translation is set up.
    exposed: Option<Window>,
    /// The translation was checked since the peer is ready: its registers are in the peer's bank, and a reset of the
    /// peer's function clears them.
    is_checked: bool,
}

impl AmdChip {
    pub fn new(registers: Box<dyn Registers>, function: Function<'static>) -> Self {
        AmdChip { registers, function, down: false, gone: false, exposed: None, is_checked: false }
    }

    /// This machine's side; None while the device does not answer.
    pub fn side(&self) -> Option<Side> {
        match self.registers.read32(registers::SIDE) {
            u32::MAX => None,
            side if side & registers::SECONDARY != 0 => Some(Side::B),
            _ => Some(Side::A),
        }
    }

    /// Offset of the scratchpads of this side (`own`) or of the peer's.
    fn scratchpads_at(&self, own: bool) -> usize {
        let half = 4 * registers::SCRATCHPAD_COUNT;
        let secondary = self.side() == Some(Side::B);
        registers::SCRATCHPADS + if secondary == own { half } else { 0 }
    }

    /// Begins the setup: not ready for the peer, doorbells masked, events polled without interrupts.
    pub fn begin(&mut self) {
        self.set_ready(false);
        self.registers.write16(registers::BELLS_MASKED, u16::MAX);
        self.registers.write32(registers::EVENTS_MASKED, registers::ALL_EVENTS);
    }

    fn set_ready(&self, ready: bool) {
        let side = self.registers.read32(registers::SIDE) & !registers::READY;
        let bits = if ready { registers::READY } else { 0 };
        self.registers.write32(registers::SIDE, side | bits);
    }

    fn write(&self, name: &'static str, register: usize, value: u64) -> Result<(), Error> {
        self.registers.write64(register, value);
        let reads = self.registers.read64(register);
        let same = reads == value;
        same.then_some(()).ok_or(Error::Locked { register: name, wrote: value, reads })
    }

    /// Lets the peer reach `exposed`, and no other memory.
    pub fn translate(&mut self, exposed: &Window) -> Result<(), Error> {
        self.exposed = Some(*exposed);
        let (translation, limit) =
            (registers::PEER + registers::TRANSLATION, registers::PEER + registers::LIMIT);
        self.registers.write64(registers::PEER + registers::SECOND_TRANSLATION, 0);
        self.registers.write64(registers::PEER + registers::SECOND_LIMIT, 0);
        // The old limit must not apply to the new translation.
        self.registers.write64(limit, 0);
        let set = self
            .write("translation (BAR23XLAT)", translation, exposed.bus_address())
            .and_then(|()| self.write("limit (BAR23LMT)", limit, exposed.len() as u64));
        if set.is_err() {
            self.registers.write64(limit, 0);
            self.registers.write64(translation, 0);
        }
        set
    }

    /// Checks that the peer reaches the exposed memory, and sets the translation up again if a reset of the peer's
    /// function has cleared it.
    fn is_translated(&mut self) -> bool {
        let Some(exposed) = self.exposed else { return false };
        let reads = |register| self.registers.read64(registers::PEER + register);
        let is = (reads(registers::TRANSLATION), reads(registers::LIMIT));
        is == (exposed.bus_address(), exposed.len() as u64) || self.translate(&exposed).is_ok()
    }

    /// Clears scratchpads, doorbells and events of before.
    pub fn clear(&mut self) {
        self.clear_scratchpads();
        self.registers.write16(registers::BELLS, u16::MAX);
        self.registers.write32(registers::EVENTS, registers::ALL_EVENTS);
    }

    /// Lets the link come up.
    pub fn enable(&mut self) {
        let control = self.registers.read32(registers::CONTROL);
        self.registers.write32(registers::CONTROL, control | registers::CONTROL_ENABLE);
        self.set_ready(true);
    }

    /// Handles and acknowledges events.
    fn handle_events(&mut self) {
        let events = self.registers.read32(registers::EVENTS);
        if events == u32::MAX || events & registers::ALL_EVENTS == 0 {
            return;
        }
        if events & registers::DOWN != 0 {
            self.down = true;
        } else if events & registers::UP != 0 {
            self.down = false;
        }
        let acknowledged = self.registers.read32(registers::ACKNOWLEDGE);
        self.registers.write32(registers::ACKNOWLEDGE, acknowledged | events);
        self.registers.write32(registers::EVENTS, events);
    }

    fn bells(&self) -> u16 {
        match self.registers.read16(registers::BELLS) {
            u16::MAX => 0,
            bells => bells,
        }
    }
}

impl Chip for AmdChip {
    fn link(&mut self, _: Instant) -> bool {
        self.handle_events();
        let peer = self.registers.read32(registers::PEER + registers::SIDE);
        let ready = peer != u32::MAX && peer & registers::READY != 0;
        if self.bells() & registers::GONE != 0 {
            // The peer may be ready again already, so the link is reported down once.
            self.registers.write16(registers::BELLS, registers::GONE);
            self.gone = true;
        }
        let is_there = ready && !self.down && !core::mem::take(&mut self.gone);
        self.is_checked = is_there && (self.is_checked || self.is_translated());
        self.is_checked
    }

    fn link_speed(&self) -> Option<(u8, u8)> {
        let express = self.function.capabilities().find(|one| one.id == registers::EXPRESS)?;
        let status = self.function.read32(express.offset + registers::LINK_STATUS) >> 16;
        Some(((status & 0xf) as u8, (status >> 4 & 0x3f) as u8))
    }

    fn scratchpads(&self) -> usize {
        registers::SCRATCHPAD_COUNT
    }

    /// Eight scratchpads suffice for two of the three windows.
    fn windows(&self) -> usize {
        2
    }

    fn clear_scratchpads(&mut self) {
        let own = self.scratchpads_at(true);
        for n in 0..registers::SCRATCHPAD_COUNT {
            self.registers.write32(own + 4 * n, 0);
        }
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.registers.read32(self.scratchpads_at(true) + 4 * n)
    }

    fn send(&mut self, signal: Signal) {
        match signal {
            Signal::Scratchpad(n, value) => {
                self.registers.write32(self.scratchpads_at(false) + 4 * n, value);
            }
            Signal::Bell => self.registers.write16(registers::PEER_BELL, registers::BELL),
        }
    }

    fn is_rung(&self) -> bool {
        self.bells() & registers::BELL != 0
    }

    fn take_bell(&mut self) -> bool {
        let rung = self.is_rung();
        if rung {
            self.registers.write16(registers::BELLS, registers::BELL);
        }
        rung
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let masked = if wanted { !registers::BELL } else { u16::MAX };
        self.registers.write16(registers::BELLS_MASKED, masked);
    }

    fn flush(&self) {
        self.registers.read32(self.scratchpads_at(false));
    }

    fn disable_link(&mut self) {
        self.set_ready(false);
        self.registers.write64(registers::PEER + registers::LIMIT, 0);
        self.registers.write16(registers::PEER_BELL, registers::GONE);
    }
}
