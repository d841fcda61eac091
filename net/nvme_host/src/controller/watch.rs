//! Keep alive, asynchronous events, and what they lead to.

use super::{Answer, EVENT, KEEP_ALIVE, Life, Path, Shared, Step};
use crate::command;
use crate::failure::Failure;
use crate::identify::Access;
use core::time::Duration;
use drivers::hal::{Instant, Window};

/// Delay before the next event is asked for, so that a controller cannot keep the loop busy with events.
const BETWEEN_EVENTS: Duration = Duration::from_millis(100);
/// Delay before the ANA log of an unusable path is read again without an event.
const ANA_AGAIN: Duration = Duration::from_secs(5);

/// Types of events and their information: a notice of changed namespaces, or of changed ANA.
const NAMESPACES: u64 = 0x0002;
const ANA: u64 = 0x0302;

impl Path {
    /// Starts to watch a controller that is set up.
    pub(super) fn begin_watch(&mut self, shared: &Shared, now: Instant) {
        self.keepalive_period = shared.settings.keepalive / 2;
        self.keepalive_due = now + self.keepalive_period;
        self.keepalive_sent = None;
        self.event_due = Some(now);
    }

    /// Whether the path is to do something when it is idle.
    pub(super) fn has_pending(&self) -> bool {
        self.is_ready() && (self.pending.namespace || self.pending.changed || self.pending.ana)
    }

    /// Sends what is due, and enforces the time limit of keep alive.
    pub(super) fn poll_watch(&mut self, shared: &Shared, now: Instant) -> Result<(), Failure> {
        if !matches!(self.life, Life::Ready(_)) {
            return Ok(());
        }
        let keepalive = shared.settings.keepalive;
        if self.keepalive_sent.is_some_and(|at| at + keepalive <= now) {
            return Err(Failure::Silent);
        }
        let Some(admin) = self.queues.first_mut() else { return Ok(()) };
        if self.keepalive_due <= now && self.keepalive_sent.is_none() {
            let entry = command::keep_alive().finish(KEEP_ALIVE, 0, false);
            if admin.submit(&entry, Window::empty(), false, false) {
                self.keepalive_sent = Some(now);
            }
        }
        let asks = self.controller.is_some_and(|controller| controller.events != 0);
        if asks && self.event_due.is_some_and(|at| at <= now) {
            let entry = command::event_request().finish(EVENT, 0, false);
            if admin.submit(&entry, Window::empty(), false, false) {
                self.event_due = None;
            }
        }
        if self.ana_due.is_some_and(|at| at <= now) {
            (self.ana_due, self.pending.ana) = (None, true);
        }
        if self.step == Step::Idle {
            let pending = &mut self.pending;
            if core::mem::take(&mut pending.changed) {
                self.begin(Step::Changed, now);
            } else if core::mem::take(&mut pending.namespace) {
                self.begin(Step::Namespace, now);
            } else if core::mem::take(&mut pending.ana) {
                self.begin(Step::Ana(None), now);
            }
        }
        Ok(())
    }

    /// Takes a status that says that the namespace is not reached over this path now. The ANA log is read after a short
    /// while. False if the controller does not report ANA states.
    pub fn lose_access(&mut self, status: u16, now: Instant) -> bool {
        if !self.controller.is_some_and(|controller| controller.ana) {
            return false;
        }
        self.access = match status & 0xff {
            1 => Access::PersistentLoss,
            3 => Access::Change,
            _ => Access::Inaccessible,
        };
        self.ana_due = Some(now + BETWEEN_EVENTS);
        true
    }

    /// Reads the ANA log again after a while, unless the path is usable.
    pub(super) fn watch_access(&mut self, now: Instant) {
        self.ana_due = (!self.access.is_usable()).then_some(now + ANA_AGAIN);
    }

    /// Takes the completion of a command of the admin queue that is not a step's.
    pub(super) fn watch(&mut self, cid: u16, answer: &Answer, now: Instant) -> Result<(), Failure> {
        match cid {
            KEEP_ALIVE => {
                let sent = self.keepalive_sent.take();
                if answer.status() != 0 {
                    return Err(Failure::Rejected("Keep Alive", answer.status()));
                }
                // Half of the timeout after the last one was sent.
                if let Some(sent) = sent {
                    self.keepalive_due = sent + self.keepalive_period;
                }
                Ok(())
            }
            EVENT => {
                self.event_due = Some(now + BETWEEN_EVENTS);
                if answer.status() != 0 {
                    return Ok(());
                }
                match answer.result() & 0xffff {
                    NAMESPACES => self.pending.changed = true,
                    ANA => self.pending.ana = true,
                    _ => {}
                }
                Ok(())
            }
            _ => Err(Failure::Protocol("it completes a command that was not sent")),
        }
    }

    /// When [`Path::poll_watch`] is due.
    pub(super) fn watch_deadline(&self) -> Option<Instant> {
        if !self.is_ready() {
            return None;
        }
        let keepalive = match self.keepalive_sent {
            Some(sent) => sent + self.keepalive_period * 2,
            None => self.keepalive_due,
        };
        let asks = self.controller.is_some_and(|controller| controller.events != 0);
        let event = self.event_due.filter(|_| asks);
        Instant::first([Some(keepalive), event, self.ana_due])
    }
}
