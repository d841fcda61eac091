//! Register access of a Switchtec bridge, and bring-up of its link.
//!
//! A host programs the translation of the *peer's* windows, so a reset of the peer's partition clears it. A host that
//! starts sends the message "force down", and its peer programs the translation again. There is room for one message,
//! which the next one replaces, so each message causes a check of the translation.

use super::registers;
use super::setup::{Job, Setup};
use super::shared::{self, OwnPage};
use crate::hal::{Instant, Registers, Window};
use crate::ntb::hardware::{Chip, Signal};
use alloc::boxed::Box;
use core::time::Duration;

// Messages.
const LINK_UP: u32 = 1;
const CHECK_LINK: u32 = 3;
const FORCE_DOWN: u32 = 4;

/// Intervals of reading the peer's page, while the link is down and while it is up.
const INTERVAL_DOWN: Duration = Duration::from_millis(20);
const INTERVAL_UP: Duration = Duration::from_millis(200);

/// Resources and parameters of a bridge.
pub struct Parts {
    pub registers: Box<dyn Registers>,
    /// The first lookup window, with the peer's page.
    pub page: Box<dyn Registers>,
    /// This host's page.
    pub own: Window,
    /// Exposed memory.
    pub exposed: Window,
    pub partition: u8,
    pub peer: u8,
    /// Requester ID of this host.
    pub host: u16,
    /// Entries of the peer's lookup table.
    pub entries: u16,
}

/// The registers of a bridge.
pub struct SwitchtecChip {
    parts: Parts,
    own: OwnPage,
    setup: Option<Setup>,
    /// The job after the current one.
    then: Option<Setup>,
    is_set_up: bool,
    up: bool,
    polled: Option<Instant>,
}

impl SwitchtecChip {
    /// Begins the setup.
    pub fn new(parts: Parts) -> Self {
        let own = OwnPage(parts.own);
        own.begin(parts.partition, parts.exposed.len() as u64);
        let requesters = Setup::new(Job::Requesters { host: parts.host }, parts.partition);
        let mut chip = SwitchtecChip {
            own,
            setup: Some(requesters),
            then: None,
            is_set_up: false,
            up: false,
            polled: None,
            parts,
        };
        chip.then = Some(chip.windows());
        chip.open_bells();
        chip
    }

    fn windows(&self) -> Setup {
        let exposed = (self.parts.exposed.bus_address(), self.parts.exposed.len() as u64);
        let job = Job::Windows {
            partition: self.parts.partition,
            entries: self.parts.entries,
            page: self.parts.own.bus_address(),
            exposed,
        };
        Setup::new(job, self.parts.peer)
    }

    /// Whether the peer's windows are still translated to this host.
    fn is_translated(&self) -> bool {
        let at = registers::CONTROL + registers::CONTROL_SIZE * usize::from(self.parts.peer);
        let partition = u64::from(self.parts.partition);
        let page = registers::ENTRY_ENABLE | partition << 1 | self.parts.own.bus_address();
        let direct = partition | self.parts.exposed.bus_address();
        let own = &self.parts.registers;
        own.read64(at + registers::TABLE) == page
            && own.read64(at + registers::WINDOW_TRANSLATION) == direct
    }

    /// Shift of the doorbells of this partition (`own`) or of the peer's.
    fn shift(&self, own: bool) -> u32 {
        let lower = self.parts.partition < self.parts.peer;
        if lower == own { 0 } else { registers::UPPER }
    }

    fn bells(&self) -> usize {
        registers::BELLS + registers::BELLS_SIZE * usize::from(self.parts.partition)
    }

    /// Sets up one doorbell in each direction, without interrupts yet, and routes all doorbells to vector 0. Messages
    /// are polled.
    fn open_bells(&mut self) {
        let at = self.bells();
        let own = &self.parts.registers;
        own.write64(at + registers::IN_ENABLED, 0);
        own.write64(at + registers::OUT_ENABLED, 1 << self.shift(false));
        for bell in 0..registers::BELL_COUNT {
            own.write8(at + registers::VECTORS + bell, 0);
        }
        own.write64(at + registers::IN, u64::MAX);
        let map = (0..4).map(|n| (u32::from(self.parts.peer) << 2 | n) << (8 * n)).sum();
        own.write32(at + registers::MESSAGE_MAP, map);
        own.write8(at + registers::MESSAGE_ARRIVED, 1);
    }

    fn send_message(&self, message: u32) {
        self.parts.registers.write32(self.bells() + registers::MESSAGE_OUT, message);
    }

    /// Takes a received message, if there is one.
    fn take_message(&self) -> Option<u32> {
        let at = self.bells();
        let arrived = self.parts.registers.read8(at + registers::MESSAGE_ARRIVED);
        if arrived == u8::MAX || arrived & 1 == 0 {
            return None;
        }
        let message = self.parts.registers.read32(at + registers::MESSAGE_IN);
        self.parts.registers.write8(at + registers::MESSAGE_ARRIVED, 1);
        Some(message)
    }

    /// Takes the next step of the setup. True if it is complete.
    fn set_up(&mut self, now: Instant) -> bool {
        let Some(setup) = &mut self.setup else { return true };
        if !setup.poll(&*self.parts.registers, now) {
            return false;
        }
        self.setup = self.then.take();
        if self.setup.is_none() && !self.is_translated() {
            // The peer's partition was reset meanwhile.
            self.setup = Some(self.windows());
        }
        if self.setup.is_some() {
            return false;
        }
        // The reset of this host's partition may have cleared the peer's translation.
        if !core::mem::replace(&mut self.is_set_up, true) {
            self.send_message(FORCE_DOWN);
        }
        self.own.set_link(true);
        self.send_message(LINK_UP);
        self.polled = None;
        true
    }

    /// Reads the peer's page, at intervals or after a message, and updates the state of the link.
    fn poll_peer(&mut self, now: Instant, message: bool) {
        let interval = if self.up { INTERVAL_UP } else { INTERVAL_DOWN };
        if !message && self.polled.is_some_and(|polled| now.since(polled) < interval) {
            return;
        }
        self.polled = Some(now);
        let up = shared::peer_wants_link(&*self.parts.page);
        if up != core::mem::replace(&mut self.up, up) {
            self.send_message(CHECK_LINK);
        }
    }
}

impl Chip for SwitchtecChip {
    fn link(&mut self, now: Instant) -> bool {
        let message = self.take_message();
        let is_undone = || message.is_some() && self.setup.is_none() && !self.is_translated();
        if self.is_set_up && (message == Some(FORCE_DOWN) || is_undone()) {
            self.up = false;
            self.setup = Some(self.windows());
        }
        if self.set_up(now) {
            self.poll_peer(now, message.is_some());
        }
        self.up
    }

    fn link_speed(&self) -> Option<(u8, u8)> {
        let own = &self.parts.registers;
        let partition = usize::from(self.parts.partition);
        let function = own.read32(registers::ENDPOINT + registers::ENDPOINT_SIZE * partition);
        let at = registers::FUNCTIONS + registers::FUNCTION_SIZE * (function & 0xff) as usize;
        let status = own.read32(at + registers::LINK_STATUS) >> 16;
        Some(((status & 0xf) as u8, (status >> 4 & 0x3f) as u8))
    }

    fn scratchpads(&self) -> usize {
        shared::SCRATCHPAD_COUNT
    }

    /// The direct window.
    fn windows(&self) -> usize {
        1
    }

    fn renew(&mut self) {
        let Parts { partition, exposed, .. } = &self.parts;
        self.own.renew(*partition, exposed.len() as u64, self.is_set_up);
    }

    fn clear_scratchpads(&mut self) {
        self.own.clear_scratchpads();
    }

    fn scratchpad(&self, n: usize) -> u32 {
        self.own.scratchpad(n)
    }

    fn send(&mut self, signal: Signal) {
        match signal {
            Signal::Scratchpad(n, value) => {
                shared::set_peer_scratchpad(&*self.parts.page, n, value);
            }
            Signal::Bell => {
                let bell = 1 << self.shift(false);
                self.parts.registers.write64(self.bells() + registers::OUT, bell);
            }
        }
    }

    fn is_rung(&self) -> bool {
        let bells = self.parts.registers.read64(self.bells() + registers::IN);
        bells != u64::MAX && bells >> self.shift(true) & 1 == 1
    }

    fn take_bell(&mut self) -> bool {
        let rung = self.is_rung();
        if rung {
            let bell = 1 << self.shift(true);
            self.parts.registers.write64(self.bells() + registers::IN, bell);
        }
        rung
    }

    fn set_interrupts(&mut self, wanted: bool) {
        let bell = if wanted { 1 << self.shift(true) } else { 0 };
        self.parts.registers.write64(self.bells() + registers::IN_ENABLED, bell);
    }

    fn flush(&self) {
        shared::touch(&*self.parts.page);
    }

    fn disable_link(&mut self) {
        self.own.set_link(false);
        self.send_message(CHECK_LINK);
    }
}
