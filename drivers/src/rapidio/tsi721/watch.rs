//! Looking after the bridge: channels, link, port-writes, errors of its memory.

use super::registers::{
    ECC_CORRECTED, ECC_LOST, EM_PORT_WRITE, EM_STATUS, MESSAGE_INTERRUPT, PORT_WRITE_CAPTURE,
    PORT_WRITE_DISCARDED, PORT_WRITE_STATUS, PORT_WRITE_VALID,
};
use super::{SERIAL, Tsi721, UNDELIVERED, csr};
use crate::hal::{Instant, Notice, Severity};
use crate::rapidio::{Mailbox, PortWrite, Undelivered};
use alloc::collections::VecDeque;
use core::time::Duration;

/// How often a loop that runs looks at the link and for port-writes. What goes wrong with either interrupts, so that one
/// that halts is not woken for it as often.
const LINK: Duration = Duration::from_millis(20);
/// How long it halts at most without a look at a link that is up, and at one that is down.
const REST: Duration = ERRORS;
const REST_DOWN: Duration = Duration::from_millis(250);
/// How often errors are looked for that nothing else tells of.
const ERRORS: Duration = Duration::from_secs(1);
/// Port-writes and notices that are kept until somebody asks.
const MOST_PORT_WRITES: usize = 64;
const MOST_NOTICES: usize = 16;

/// What is seen from time to time.
pub struct Watch {
    /// The link works.
    pub link: bool,
    /// The bridge does not answer any more.
    pub gone: bool,
    pub port_writes: VecDeque<PortWrite>,
    pub notices: VecDeque<Notice>,
    now: Instant,
    looked: Option<Instant>,
    looked_for_errors: Instant,
    interrupts: u64,
    troubles: u64,
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new() -> Self {
        Watch {
            link: false,
            gone: false,
            port_writes: VecDeque::with_capacity(MOST_PORT_WRITES),
            notices: VecDeque::with_capacity(MOST_NOTICES),
            now: Instant::ZERO,
            looked: None,
            looked_for_errors: Instant::ZERO,
            interrupts: 0,
            troubles: 0,
        }
    }

    fn note(&mut self, severity: Severity, text: &'static str) {
        if self.notices.len() < MOST_NOTICES {
            self.notices.push_back(Notice { severity, text });
        }
    }
}

const LOST: &str =
    "the RapidIO link is down: look after the cable, and whether the other end has power";
const BACK: &str = "the RapidIO link is up";
const GONE: &str = "the RapidIO bridge does not answer any more: it was pulled out, or its power is lost; it is \
                    not used until the appliance is restarted";
const BAD_MEMORY: &str = "the RapidIO bridge found errors in its memory that it could not correct; its message \
                          channels were started anew. If this comes again, replace the card";

impl Tsi721 {
    /// Whether an interrupt has come that says something which memory does not show: of errors or port-writes, or, where
    /// these have none of their own, one for which there is nothing there.
    pub(super) fn hears_of_trouble(&mut self) -> bool {
        let count = self.signal.count();
        if count == core::mem::replace(&mut self.watch.interrupts, count) {
            return false;
        }
        match self.signal.troubles() {
            Some(count) => count != core::mem::replace(&mut self.watch.troubles, count),
            None => {
                let mut outbound = self.outbound.iter().flatten();
                !self.has_arrivals() && !outbound.any(|one| one.engine().pending())
            }
        }
    }

    /// One look in a round; registers are read only from time to time, and where there is trouble.
    pub(super) fn look_after(&mut self, now: Instant, trouble: bool) {
        self.watch.now = now;
        if self.watch.gone {
            return;
        }
        let registers = &self.registers;
        self.maintenance.watch(now, trouble, registers);
        self.data.watch(now, trouble, registers);
        for inbound in self.inbound.iter_mut().flatten() {
            inbound.watch(now, registers);
        }
        let (undelivered, counters) = (&mut self.undelivered, &mut self.counters);
        for outbound in self.outbound.iter_mut().flatten() {
            outbound.watch(now, trouble, registers, |one| {
                counters.tx_undelivered += 1;
                keep(undelivered, one);
            });
        }
        if trouble || self.watch.looked.is_none_or(|at| now.since(at) >= LINK) {
            self.watch.looked = Some(now);
            self.look_at_link();
            self.take_port_write();
        }
        if trouble || now.since(self.watch.looked_for_errors) >= ERRORS {
            self.watch.looked_for_errors = now;
            self.look_for_errors();
        }
    }

    /// When it wants to be called again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        if self.watch.gone {
            return None;
        }
        let now = self.watch.now;
        let rest = match (self.signal.wakes(), self.watch.link) {
            (false, _) => LINK,
            (true, true) => REST,
            (true, false) => REST_DOWN,
        };
        let mut first = self.watch.looked.map_or(now, |at| at + rest);
        for at in [self.maintenance.engine().deadline(now), self.data.engine().deadline(now)] {
            first = at.map_or(first, |at| first.min(at));
        }
        for outbound in self.outbound.iter().flatten() {
            first = outbound.engine().deadline(now).map_or(first, |at| first.min(at));
        }
        for inbound in self.inbound.iter().flatten() {
            if inbound.is_starting() {
                first = now;
            }
        }
        Some(first)
    }

    fn look_at_link(&mut self) {
        let at = (SERIAL + csr::PORT_STATUS) as usize;
        let status = self.registers.read(at);
        if status == u32::MAX {
            self.watch.gone = true;
            self.watch.note(Severity::Error, GONE);
            // It must not reach memory that others will have.
            self.function.disable();
            return self.fail_all();
        }
        let link = status & csr::PORT_OK != 0;
        if link == self.watch.link {
            return;
        }
        self.watch.link = link;
        if link {
            self.registers.write(at, status & csr::PORT_ERRORS);
            self.watch.note(Severity::Information, BACK);
        } else {
            self.counters.link_losses += 1;
            self.watch.note(Severity::Warning, LOST);
            self.fail_all();
        }
    }

    /// Nothing of what is under way will end well.
    fn fail_all(&mut self) {
        self.maintenance.fail(&self.registers);
        self.data.fail(&self.registers);
        let (undelivered, counters) = (&mut self.undelivered, &mut self.counters);
        for outbound in self.outbound.iter_mut().flatten() {
            outbound.fail(&self.registers, |one| {
                counters.tx_undelivered += 1;
                keep(undelivered, one);
            });
        }
    }

    /// Takes a port-write out of the one place that the bridge has for them.
    fn take_port_write(&mut self) {
        let status = self.registers.read(PORT_WRITE_STATUS);
        if status == u32::MAX {
            return;
        }
        if status & PORT_WRITE_DISCARDED != 0 {
            self.counters.port_writes_lost += 1;
        }
        if status & PORT_WRITE_VALID != 0 {
            let word = |n: usize| self.registers.read(PORT_WRITE_CAPTURE + 4 * n);
            let port_write = PortWrite {
                component_tag: word(0),
                port_errors: word(1),
                port: word(2),
                logical_errors: word(3),
            };
            self.counters.port_writes += 1;
            match self.watch.port_writes.len() < MOST_PORT_WRITES {
                true => self.watch.port_writes.push_back(port_write),
                false => self.counters.port_writes_lost += 1,
            }
        }
        if status & (PORT_WRITE_VALID | PORT_WRITE_DISCARDED) != 0 {
            // In this order: the next may come as soon as there is room, and is to interrupt.
            self.registers.write(EM_STATUS, EM_PORT_WRITE);
            self.registers.write(PORT_WRITE_STATUS, PORT_WRITE_VALID | PORT_WRITE_DISCARDED);
        }
    }

    fn look_for_errors(&mut self) {
        for inbound in self.inbound.iter_mut().flatten() {
            inbound.check(&self.registers);
        }
        if self.doorbells.outbound_failed(&self.registers) {
            self.counters.tx_doorbells_failed += 1;
        }
        let status = self.registers.read(MESSAGE_INTERRUPT);
        if status == u32::MAX || status & (ECC_CORRECTED | ECC_LOST) == 0 {
            return;
        }
        self.registers.write(MESSAGE_INTERRUPT, status);
        self.counters.ecc[0] += u64::from((status & ECC_CORRECTED).count_ones());
        let lost = (status & ECC_LOST) >> 8;
        self.counters.ecc[1] += u64::from(lost.count_ones());
        if lost == 0 {
            return;
        }
        self.watch.note(Severity::Error, BAD_MEMORY);
        // Inbound channels are 4 to 7.
        for mailbox in Mailbox::ALL {
            if lost & 1 << (mailbox.index() + 4) != 0
                && let Some(inbound) = &mut self.inbound[mailbox.index()]
            {
                inbound.restart(&self.registers);
            }
        }
    }
}

/// Keeps what was not delivered until somebody asks; who never asks loses the oldest.
fn keep(undelivered: &mut VecDeque<Undelivered>, one: Undelivered) {
    if undelivered.len() == UNDELIVERED {
        undelivered.pop_front();
    }
    undelivered.push_back(one);
}
