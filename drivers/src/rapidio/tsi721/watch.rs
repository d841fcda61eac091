//! Periodic checks of the bridge: channels, link, port-writes, errors of its memory.

use super::registers::{
    ECC_CORRECTED, ECC_LOST, EM_ENABLE, EM_PORT_WRITE, EM_STATUS, MESSAGE_INTERRUPT,
    PORT_WRITE_CAPTURE, PORT_WRITE_DISCARDED, PORT_WRITE_STATUS, PORT_WRITE_VALID,
};
use super::{SERIAL, Tsi721, UNDELIVERED, csr, open};
use crate::hal::{Backoff, Instant, Notice, Severity};
use crate::rapidio::{Mailbox, PortWrite, Undelivered};
use alloc::collections::VecDeque;
use core::time::Duration;

/// Interval of checks of the link and for port-writes in a running loop.
const LINK: Duration = Duration::from_millis(20);
/// The same in a loop that halts, while the link is up: errors and port-writes interrupt.
const LINK_HALTED: Duration = ERRORS;
/// The same in a loop that halts, while the link is down.
const LINK_DOWN_HALTED: Duration = Duration::from_millis(250);
/// Time of all ones after which the bridge is gone.
const ABSENCE: Duration = Duration::from_secs(1);
/// Interval of checks for errors that are reported in no other way.
const ERRORS: Duration = Duration::from_secs(1);
/// Maximum number of port-writes, and of notices, that are kept for the user.
const MOST_PORT_WRITES: usize = 64;
const MOST_NOTICES: usize = 16;

/// State of the periodic checks, and their results for the user.
pub struct Watch {
    /// The link works.
    pub link: bool,
    /// The bridge does not respond, or was reset.
    pub gone: bool,
    /// Since when its registers read as all ones.
    absent_since: Option<Instant>,
    backoff: Backoff,
    pub port_writes: VecDeque<PortWrite>,
    pub notices: VecDeque<Notice>,
    now: Instant,
    link_checked: Option<Instant>,
    errors_checked: Instant,
    interrupts: u64,
    error_interrupts: u64,
}

impl Watch {
    /// Before the first check.
    pub fn new() -> Self {
        Watch {
            link: false,
            gone: false,
            absent_since: None,
            backoff: Backoff::default(),
            port_writes: VecDeque::with_capacity(MOST_PORT_WRITES),
            notices: VecDeque::with_capacity(MOST_NOTICES),
            now: Instant::ZERO,
            link_checked: None,
            errors_checked: Instant::ZERO,
            interrupts: 0,
            error_interrupts: 0,
        }
    }

    fn note(&mut self, severity: Severity, text: &'static str) {
        if self.notices.len() < MOST_NOTICES {
            self.notices.push_back(Notice { severity, text });
        }
    }
}

const LOST: &str = "the RapidIO link is down: check the cable, and that the other end has power";
const BACK: &str = "the RapidIO link is up";
const GONE: &str = "the RapidIO bridge does not respond: it was removed, or has lost power. It is tried again, at least \
                    once a minute; check the card";
const RETURNED: &str = "the RapidIO bridge responds again, and was set up anew";
const BAD_MEMORY: &str = "the RapidIO bridge reported uncorrectable memory errors; its message channels were \
                          restarted. If this happens again, replace the card";

impl Tsi721 {
    /// Whether an interrupt may have reported an error or a port-write: the separate interrupt of these, or without
    /// one, any interrupt for which memory shows no event.
    pub(super) fn has_error_interrupt(&mut self) -> bool {
        let count = self.signal.count();
        if count == core::mem::replace(&mut self.watch.interrupts, count) {
            return false;
        }
        match self.signal.error_count() {
            Some(count) => count != core::mem::replace(&mut self.watch.error_interrupts, count),
            None => {
                let mut outbound = self.outbound.iter().flatten();
                !self.has_arrivals() && !outbound.any(|one| one.engine().pending())
            }
        }
    }

    /// The checks of a round. Registers are read only from time to time, and after an error.
    pub(super) fn check(&mut self, now: Instant, has_error: bool) {
        self.watch.now = now;
        if self.watch.gone {
            return self.try_again(now);
        }
        let registers = &self.registers;
        self.maintenance.watch(now, has_error, registers);
        self.data.watch(now, has_error, registers);
        for inbound in self.inbound.iter_mut().flatten() {
            inbound.watch(now, registers);
        }
        let (undelivered, counters) = (&mut self.undelivered, &mut self.counters);
        for outbound in self.outbound.iter_mut().flatten() {
            outbound.watch(now, has_error, registers, |message| {
                counters.tx_undelivered += 1;
                keep(undelivered, message);
            });
        }
        if has_error || self.watch.link_checked.is_none_or(|at| now.since(at) >= LINK) {
            self.watch.link_checked = Some(now);
            self.check_link();
            self.take_port_write();
        }
        if has_error || now.since(self.watch.errors_checked) >= ERRORS {
            self.watch.errors_checked = now;
            self.check_errors();
        }
    }

    /// When [`Tsi721::check`] must be called again.
    pub(super) fn next_check(&self) -> Option<Instant> {
        if self.watch.gone {
            return self.watch.backoff.next_try();
        }
        let now = self.watch.now;
        let interval = match (self.signal.wakes(), self.watch.link) {
            (false, _) => LINK,
            (true, true) => LINK_HALTED,
            (true, false) => LINK_DOWN_HALTED,
        };
        let mut first = self.watch.link_checked.map_or(now, |at| at + interval);
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

    fn check_link(&mut self) {
        let at = (SERIAL + csr::PORT_STATUS) as usize;
        let status = self.registers.read(at);
        if status == u32::MAX {
            // A single look proves nothing: the slot may be retraining its link.
            let since = *self.watch.absent_since.get_or_insert(self.watch.now);
            if self.watch.now.since(since) < ABSENCE {
                return;
            }
            (self.watch.gone, self.watch.link) = (true, false);
            self.watch.note(Severity::Error, GONE);
            self.watch.backoff.note_failed(self.watch.now);
            // The bridge must not access memory that is freed and reused.
            self.function.disable();
            return self.fail_all();
        }
        self.watch.absent_since = None;
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

    /// Sets a bridge up again that was gone, if the next try is due.
    fn try_again(&mut self, now: Instant) {
        if !self.watch.backoff.is_due(now) {
            return;
        }
        let answers = self.saved.restore_lost(&self.function)
            && self.registers.read(csr::DEVICE_IDENTITY as usize) != u32::MAX;
        if !answers {
            return self.watch.backoff.note_failed(now);
        }
        let registers = &self.registers;
        self.function.prepare();
        open::disable_interrupts(registers);
        self.windows.reopen(registers);
        self.function.enable_bus_master();
        self.maintenance.start_over(registers);
        self.data.start_over(registers);
        self.doorbells.start(registers);
        self.inbound.iter_mut().flatten().for_each(|inbound| inbound.restart(registers));
        self.outbound.iter_mut().flatten().for_each(|outbound| outbound.start_over(registers));
        open::set_up(registers);
        if let Some(id) = self.own_id {
            registers.write(csr::BASE_ID as usize, id);
        }
        self.signal.route_again(&self.function);
        registers.write(EM_ENABLE, EM_PORT_WRITE);
        self.signal.apply(registers);
        (self.watch.gone, self.watch.absent_since) = (false, None);
        self.watch.backoff.note_up();
        self.counters.bridge_resets += 1;
        self.watch.note(Severity::Information, RETURNED);
    }

    /// Fails all requests, transfers and messages in flight.
    fn fail_all(&mut self) {
        self.maintenance.fail(&self.registers);
        self.data.fail(&self.registers);
        let (undelivered, counters) = (&mut self.undelivered, &mut self.counters);
        for outbound in self.outbound.iter_mut().flatten() {
            outbound.fail(&self.registers, |message| {
                counters.tx_undelivered += 1;
                keep(undelivered, message);
            });
        }
    }

    /// Reads the port-write that the bridge has captured, if any. It captures one at a time.
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
            // In this order: the second write lets the bridge capture the next port-write, which must interrupt.
            self.registers.write(EM_STATUS, EM_PORT_WRITE);
            self.registers.write(PORT_WRITE_STATUS, PORT_WRITE_VALID | PORT_WRITE_DISCARDED);
        }
    }

    fn check_errors(&mut self) {
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

/// Keeps an undelivered message for the user. Drops the oldest if there are too many.
fn keep(undelivered: &mut VecDeque<Undelivered>, message: Undelivered) {
    if undelivered.len() == UNDELIVERED {
        undelivered.pop_front();
    }
    undelivered.push_back(message);
}
