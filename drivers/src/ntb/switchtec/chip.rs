//! The registers of a bridge, and how its link comes up.
//!
//! A host programs where the *other's* windows lead, so that a reset of the other's partition undoes what this one has
//! programmed. Whoever begins tells by the message "force down", and the other programs it again. There is room for one
//! message, which the next one replaces: with each it is looked whether what was programmed is still there.

use super::registers;
use super::setup::{Job, Setup};
use super::shared::{self, Own};
use crate::hal::{Instant, Registers, Window};
use crate::ntb::hardware::{Chip, Signal};
use alloc::boxed::Box;
use core::time::Duration;

// Messages.
const LINK_UP: u32 = 1;
const CHECK_LINK: u32 = 3;
const FORCE_DOWN: u32 = 4;

/// How often the other's page is looked at, while the link is down, and while it is up.
const LOOK_DOWN: Duration = Duration::from_millis(20);
const LOOK_UP: Duration = Duration::from_millis(200);

/// What a bridge consists of.
pub struct Parts {
    pub registers: Box<dyn Registers>,
    /// The first window by lookup, behind which the other's page is.
    pub page: Box<dyn Registers>,
    /// The own page.
    pub own: Window,
    /// Memory that is exposed.
    pub exposed: Window,
    pub partition: u8,
    pub peer: u8,
    /// Requester id of the host.
    pub host: u16,
    /// Entries of the other's table for lookups.
    pub entries: u16,
}

/// The registers of a bridge.
pub struct SwitchtecChip {
    parts: Parts,
    own: Own,
    setup: Option<Setup>,
    /// What comes behind the setup that is under way.
    then: Option<Setup>,
    is_set_up: bool,
    up: bool,
    looked: Option<Instant>,
}

impl SwitchtecChip {
    /// Begins to set it up.
    pub fn new(parts: Parts) -> Self {
        let own = Own(parts.own);
        own.begin(parts.partition, parts.exposed.len() as u64);
        let requesters = Setup::new(Job::Requesters { host: parts.host }, parts.partition);
        let mut chip = SwitchtecChip {
            own,
            setup: Some(requesters),
            then: None,
            is_set_up: false,
            up: false,
            looked: None,
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

    /// Whether the other's windows lead here, as they were programmed.
    fn is_translated(&self) -> bool {
        let at = registers::CONTROL + registers::CONTROL_SIZE * usize::from(self.parts.peer);
        let partition = u64::from(self.parts.partition);
        let page = registers::ENTRY_ENABLE | partition << 1 | self.parts.own.bus_address();
        let direct = partition | self.parts.exposed.bus_address();
        let own = &self.parts.registers;
        own.read64(at + registers::TABLE) == page
            && own.read64(at + registers::WINDOW_TRANSLATION) == direct
    }

    /// How far the bells of a partition are shifted.
    fn shift(&self, own: bool) -> u32 {
        let lower = self.parts.partition < self.parts.peer;
        if lower == own { 0 } else { registers::UPPER }
    }

    fn bells(&self) -> usize {
        registers::BELLS + registers::BELLS_SIZE * usize::from(self.parts.partition)
    }

    /// One bell each way, none of which interrupts yet; everything that would goes to vector 0. Messages are looked at.
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

    fn tell(&self, message: u32) {
        self.parts.registers.write32(self.bells() + registers::MESSAGE_OUT, message);
    }

    /// The message that has arrived, if any.
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

    /// Goes on with the setup; whether it is done.
    fn set_up(&mut self, now: Instant) -> bool {
        let Some(setup) = &mut self.setup else { return true };
        if !setup.poll(&*self.parts.registers, now) {
            return false;
        }
        self.setup = self.then.take();
        if self.setup.is_none() && !self.is_translated() {
            // It was reset meanwhile.
            self.setup = Some(self.windows());
        }
        if self.setup.is_some() {
            return false;
        }
        // The other's may have been reset by this host's partition, or not know of it yet.
        if !core::mem::replace(&mut self.is_set_up, true) {
            self.tell(FORCE_DOWN);
        }
        self.own.set_link(true);
        self.tell(LINK_UP);
        self.looked = None;
        true
    }

    fn look(&mut self, now: Instant, message: bool) {
        let pause = if self.up { LOOK_UP } else { LOOK_DOWN };
        if !message && self.looked.is_some_and(|looked| now.since(looked) < pause) {
            return;
        }
        self.looked = Some(now);
        let up = shared::peer_wants_link(&*self.parts.page);
        if up != core::mem::replace(&mut self.up, up) {
            self.tell(CHECK_LINK);
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
            self.look(now, message.is_some());
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

    /// A direct one.
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

    fn push(&self) {
        shared::touch(&*self.parts.page);
    }

    fn shut(&mut self) {
        self.own.set_link(false);
        self.tell(CHECK_LINK);
    }
}
