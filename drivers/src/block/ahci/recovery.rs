//! Errors of commands (AHCI 1.3.1, 6.2; Serial ATA 3.2, 13.6): finds the command that failed, ends it, and repeats the
//! others. A drive with a queue names the command in log page 10h, and fails every other command until the page was
//! read. Where there is no such page, the commands are repeated one by one.

use super::command::{self, Failure};
use super::error::Error;
use super::life::{FLAPPED, INTERFACE, LATE, MOST_TRIES, NEIGHBOUR, Own, RESET_BY_OTHERS, Then};
use super::memory::OWN;
use super::port::Port;
use super::registers::Link;
use super::slots::{self, Kind};
use crate::hal::DiskError;

/// Milliseconds for a command with data: a disk may read a bad sector again and again. For any other: Linux's 60 s.
const REQUEST_TIMEOUT: u32 = 30_000;
const FLUSH_TIMEOUT: u32 = 60_000;

/// Commands of which one has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Suspects {
    mask: u32,
    /// The drive has reported the error itself.
    of_drive: bool,
    /// The drive's error register, if its status has an error.
    error: Option<u8>,
}

impl Port {
    /// Reads the port's causes, and handles errors and changes of the link.
    pub(super) fn look_for_errors(&mut self) {
        self.look = false;
        let causes = self.registers.causes();
        if causes.is_absent() {
            return self.leave(Error::Absent);
        }
        if causes.has_link_change() {
            return match self.registers.link() {
                Link::Up if !self.registers.is_running() => self.was_reset(),
                Link::Up => {
                    self.lost |= self.is_dirty();
                    self.keep_completed();
                    self.begin_reset(FLAPPED);
                }
                Link::NoController => self.leave(Error::Absent),
                Link::Nothing | Link::Silent => self.leave(Error::NoDrive),
            };
        }
        if !self.registers.is_running() {
            return self.was_reset();
        }
        if causes.has_error() {
            self.recover(causes.is_of_drive());
        } else if self.memory.has_error() {
            // Left from an error that was handled.
            self.memory.forget_received();
        }
    }

    /// The controller was reset by others, or is absent: nothing that it shows is a completion.
    #[cold]
    pub(super) fn was_reset(&mut self) {
        // Registers of a controller that was pulled out read as all ones, or as zeroes under QEMU.
        if self.registers.causes().is_absent() || self.controller.is_absent() {
            return self.leave(Error::Absent);
        }
        self.lost |= self.is_dirty();
        self.select();
        let by_others = self.controller.resets() == self.controller_resets;
        self.begin_reset(if by_others { RESET_BY_OTHERS } else { NEIGHBOUR });
    }

    /// Stops the port because of an error.
    #[cold]
    pub(super) fn recover(&mut self, of_drive: bool) {
        if !self.registers.is_running() {
            return self.was_reset();
        }
        self.keep_completed();
        let mask = self.slots.sent & !self.slots.fresh;
        let error = self.registers.error();
        self.suspects = Suspects { mask, of_drive, error };
        self.stop(Then::Examine);
    }

    /// The port stands still after an error: finds the command that failed.
    pub(super) fn examine(&mut self) {
        let Suspects { mask, of_drive, error } = self.suspects;
        if !of_drive {
            slots::bits(mask).for_each(|slot| self.count_failure(slot, Failure::Cable));
            return self.begin_reset(INTERFACE);
        }
        let queued = mask & self.slots.queued;
        let logs = self.identity.as_ref().is_some_and(|identity| identity.logs);
        if !self.registers.is_ready() {
            // Only a reset ends the command.
            slots::bits(mask).for_each(|slot| self.count_failure(slot, Failure::Cable));
            return self.begin();
        }
        if queued != 0 && logs {
            self.registers.clear_errors();
            self.memory.forget_received();
            self.registers.start();
            return self.issue_own(Own::Log);
        }
        self.fail_or_find(Failure::of(error.unwrap_or(0)));
        match queued {
            0 => self.restart(),
            // A reset ends the drive's error, and the other commands.
            _ => self.begin(),
        }
    }

    /// Fails the only suspect. If there are several, they are repeated one by one.
    fn fail_or_find(&mut self, failure: Failure) {
        let mask = self.suspects.mask;
        if mask.count_ones() > 1 {
            self.slots.careful |= mask;
        } else {
            slots::bits(mask).for_each(|slot| self.count_failure(slot, failure));
        }
    }

    /// The log page has the command that failed, or could not be read.
    pub(super) fn log_read(&mut self, good: bool) {
        let mut page = [0; 512];
        let read = good && self.memory.data(OWN).read(0, &mut page).is_ok();
        let named = if read { command::failed_in_queue(&page) } else { None };
        match named.filter(|(tag, _)| self.suspects.mask >> tag & 1 != 0) {
            Some((slot, failure)) => {
                self.count_failure(slot, failure);
                self.goes_live();
            }
            None => {
                self.fail_or_find(Failure::of(self.suspects.error.unwrap_or(0)));
                self.stop(Then::Reset);
            }
        }
    }

    /// Starts the port again, without a reset.
    fn restart(&mut self) {
        self.registers.clear_errors();
        self.memory.forget_received();
        self.registers.start();
        self.goes_live();
    }

    /// A command has failed: ends it, unless it is worth another try.
    fn count_failure(&mut self, slot: u8, failure: Failure) {
        let request = self.slots.slot_mut(slot);
        request.tries += 1;
        let (kind, tries) = (request.kind, request.tries);
        // A drive that has failed a flush forgets what it could not write: the next flush would succeed (ACS-4, 7.10).
        let is_final = kind == Kind::Flush && self.suspects.error.is_some();
        match failure {
            _ if is_final => self.end(slot, Err(DiskError::Io)),
            Failure::Cable if tries <= MOST_TRIES => {}
            Failure::Drive if kind == Kind::Discard => self.end(slot, Err(DiskError::Unsupported)),
            _ => self.end(slot, Err(DiskError::Io)),
        }
    }

    /// Resets the link if a request is late.
    pub(super) fn look_for_late_requests(&mut self) {
        if self.pending() {
            return;
        }
        let mut late = false;
        for slot in slots::bits(self.slots.sent & !self.slots.fresh) {
            let request = self.slots.slot_mut(slot);
            let limit = match request.kind {
                slots::Kind::Flush | slots::Kind::Discard => FLUSH_TIMEOUT,
                _ => REQUEST_TIMEOUT,
            };
            if self.age.since(request.since) > limit {
                request.tries += 1;
                late = true;
            }
        }
        if late {
            self.life.aborts += 1;
            self.suspects = Default::default();
            self.begin_reset(LATE);
        }
    }

    /// Ends waiting requests that were late too often.
    pub(super) fn end_hopeless(&mut self) {
        for slot in slots::bits(self.slots.waiting_mask()) {
            if self.slots.slot(slot).tries > MOST_TRIES {
                self.end(slot, Err(DiskError::Io));
            }
        }
    }
}
