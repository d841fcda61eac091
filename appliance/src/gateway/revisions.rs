//! Revisions, trials and the candidate of the configuration, as far as they need disks or the clock: what the config
//! disk keeps is read at boot, and written when it is idle.

use super::disk_transfer;
use super::disks::DiskSlot;
use super::state::State;
use crate::audit::{self, Trail};
use crate::config::disk::ConfigDisk;
use crate::config::slot::{self, SLOT_LEN};
use crate::config::{History, Lifecycle, Revision, Trial};
use crate::console::{Managed, Progress};
use crate::log_ring;
use core::time::Duration;
use drivers::hal::{Arena, Clock, Instant};
use management::Told;
use management::caller::Caller;
use management::configure;
use management::orders::End;

/// How long the end of the machine waits for the audit log.
const LAST_LINES: Duration = Duration::from_millis(500);

/// An order that needs the config disk, and waits until a revision is written.
pub(super) enum Waiting {
    Save,
    /// A trial: its document, and the seconds for its confirmation.
    Arm(String, u64),
    /// The arguments of `upgrade`.
    Upgrade(Vec<String>),
    ConfirmUpgrade,
    Wipe,
}

/// A trial that this boot has started: its document, and the seconds for its confirmation.
pub(super) struct Started {
    pub text: Vec<u8>,
    pub seconds: u64,
}

/// Takes the trial from the config disk, and marks it as spent there. None without one, or if it cannot be marked: then
/// another boot could start it again.
pub(super) fn take_trial(
    engine: &mut ConfigDisk,
    slot: &mut DiskSlot,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Option<Started> {
    let (seconds, text, sector, spent) = engine.take_trial()?;
    match disk_transfer::write(slot, sector, &spent, arena, clock) {
        Ok(()) => {
            engine.note_spent();
            Some(Started { text, seconds })
        }
        Err(why) => {
            log::error!(
                "configuration: the trial is not started: {}: {why}; it is withdrawn when the disk can be written",
                slot.name
            );
            None
        }
    }
}

/// Reads the revisions from the config disk. Damaged ones are skipped.
pub(super) fn read(
    engine: &ConfigDisk,
    slot: &mut DiskSlot,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> History {
    let mut found = Vec::new();
    for sector in engine.revisions() {
        let mut part = |len: usize| disk_transfer::read(slot, sector, len, arena, clock);
        let Ok(head) = part(disk_transfer::BLOCK) else { break };
        if !head.starts_with(slot::REVISION) {
            continue;
        }
        let len = slot::length(&head).next_multiple_of(disk_transfer::BLOCK).min(SLOT_LEN);
        let whole = if len > head.len() { part(len) } else { Ok(head) };
        let Ok(bytes) = whole else { break };
        let text = slot::read_as(&bytes, slot::REVISION).map(|(_, text)| text);
        let text = text.and_then(|text| core::str::from_utf8(text).ok());
        found.extend(text.and_then(Revision::of_slot));
    }
    History::of(found)
}

/// Reads the audit log from the config disk, around some blocks that cannot be read. What a disk keeps that does not
/// answer is unknown, so nothing is written over it in this boot.
pub(super) fn read_audit(
    engine: &ConfigDisk,
    slot: &mut DiskSlot,
    arena: &mut Arena,
    clock: &dyn Clock,
) -> Trail {
    /// Blocks in one request.
    const TOGETHER: usize = 16;
    /// Errors after which the rest is not read: each may take seconds of the start.
    const MOST_BAD: usize = 4;
    let is_silent = |why: &String| why == disk_transfer::SILENT;
    let firsts: Vec<u64> = engine.audit().collect();
    let (mut found, mut bad, mut wrong) = (Vec::new(), 0, None);
    for (group, firsts) in firsts.chunks(TOGETHER).enumerate() {
        let mut read = |at: usize, count: usize| -> Result<(), String> {
            let (first, len) = (firsts[at], count * audit::BLOCK);
            let bytes = disk_transfer::read(slot, first, len, arena, clock)?;
            let blocks = bytes.chunks(audit::BLOCK).map(<[u8]>::to_vec).enumerate();
            found.extend(blocks.map(|(next, block)| (group * TOGETHER + at + next, block)));
            Ok(())
        };
        let Err(why) = read(0, firsts.len()) else { continue };
        wrong = Some(why).filter(is_silent);
        for at in 0..firsts.len() {
            if wrong.is_none()
                && let Err(why) = read(at, 1)
            {
                bad += 1;
                wrong = Some(why).filter(|why| bad > MOST_BAD || is_silent(why));
            }
        }
        if wrong.is_some() {
            break;
        }
    }
    let mut trail = Trail::of(found);
    match wrong {
        Some(why) => {
            log::error!("audit log: {} {why}: in memory only until the next boot", slot.name);
            trail.set_volatile();
        }
        None if bad > 0 => log::error!("audit log: {bad} blocks of {} cannot be read", slot.name),
        None => {}
    }
    trail
}

/// The state of the configuration's life at boot.
pub(super) fn at_boot(
    history: History,
    seconds: Option<u64>,
    salt: u64,
    now: Instant,
) -> Lifecycle {
    let trial = seconds.map(|seconds| Trial {
        until: now + Duration::from_secs(seconds),
        before: None,
        by: Caller { name: "before the reboot".into(), ..Caller::console() },
    });
    Lifecycle { history, trial, salt, ..Lifecycle::default() }
}

impl State {
    /// Records the configuration of this boot as a revision, if it differs from the last one.
    pub fn record_boot(&mut self) {
        let caller = Caller { name: "boot".into(), ..Caller::console() };
        configure::record(self, &caller, "boot", "");
        log_ring::audit(&caller, format_args!("start of isthmus {}", env!("CARGO_PKG_VERSION")));
        if let Some(left) = self.lifecycle.left(self.now) {
            log::warn!(
                "configuration: on trial; without `confirm` within {} s the machine reboots to the saved one",
                left.as_secs()
            );
        }
    }

    /// Takes back the commit that was not confirmed in time.
    #[cold]
    pub fn end_trial(&mut self) {
        if configure::revert(self) {
            self.end = Some(End::Reboot);
        }
    }

    /// Starts to withdraw a trial that may still be armed after an I/O error, when the config disk is idle.
    #[cold]
    pub fn withdraw_trial(&mut self) {
        if !self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy())
            && let Some((_, engine)) = &mut self.config_disk
        {
            engine.withdraw();
        }
    }

    /// Whether the config disk may hold a trial that the next boot starts, although it was refused.
    pub fn has_trial_in_doubt(&self) -> bool {
        self.config_disk.as_ref().is_some_and(|(_, engine)| engine.is_in_doubt())
    }

    /// Whether a revision is being written to the config disk.
    pub fn is_recording(&self) -> bool {
        self.is_saving() && self.saving.is_none() && !self.arming && !self.wiping
    }

    /// Lets an order wait until the config disk is idle. Only one can.
    pub(super) fn wait(&mut self, order: Waiting) -> Told {
        if self.waiting.is_some() {
            return Err("another order waits for the config disk; try again later".into());
        }
        self.waiting = Some(order);
        Ok(Managed::Started)
    }

    /// Executes the order that has waited for the config disk.
    pub fn resume(&mut self) {
        let done = match self.waiting.take() {
            None => return,
            Some(Waiting::Save) => self.save(),
            Some(Waiting::Arm(text, seconds)) => self.arm_trial(&text, seconds),
            Some(Waiting::Upgrade(words)) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.order_upgrade(&words, false)
            }
            Some(Waiting::ConfirmUpgrade) => self.confirm_upgrade(),
            Some(Waiting::Wipe) => self.begin_wipe(),
        };
        match done {
            Ok(Managed::Started) => {}
            Ok(Managed::Told(text)) => {
                self.progress.push_back(Progress::Done(Ok(text.trim_end().into())));
            }
            Err(why) => self.progress.push_back(Progress::Done(Err(why))),
        }
    }

    /// Writes lines of the audit log to the config disk, if it is idle.
    #[cold]
    pub fn write_audit(&mut self) {
        let is_upgrading = self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy());
        let Some((_, engine)) = &mut self.config_disk else { return self.audit.set_volatile() };
        if is_upgrading || engine.is_busy() {
            return self.audit.postpone(self.now);
        }
        if !engine.has_audit() || engine.is_read_only() {
            return self.audit.set_volatile();
        }
        let Some((write, bytes)) = self.audit.next_write() else { return };
        match engine.write_audit(write.place, &bytes) {
            Ok(()) => self.noting = Some(write),
            Err(_) => self.audit.note_failed(write, self.now),
        }
    }

    /// Whether the machine may end: the audit log is on the disk, or has waited for it for long enough.
    pub fn may_end(&mut self, now: Instant) -> bool {
        self.audit.poll(self.log, now);
        let until = *self.end_by.get_or_insert(now + LAST_LINES);
        let waits = self.audit.has_unwritten() && now < until;
        if waits && self.noting.is_none() {
            self.audit.hurry(now);
        }
        !waits
    }

    /// Writes the next revision to the config disk, if it is idle.
    #[cold]
    pub fn write_revision(&mut self) {
        let is_upgrading = self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy());
        let history = &mut self.lifecycle.history;
        let Some((_, engine)) = &mut self.config_disk else { return history.note_all_written() };
        if is_upgrading || engine.is_busy() {
            return;
        }
        let Some(revision) = history.unwritten() else { return };
        let number = revision.number;
        if !engine.has_history() || engine.is_read_only() {
            return history.note_all_written();
        }
        if let Err(why) = engine.record(number, &revision.to_slot()) {
            log::warn!("configuration: revision {number} is kept in memory only: {why}");
            history.note_written(number);
        }
    }
}

#[cfg(test)]
#[path = "revisions_tests.rs"]
mod tests;
