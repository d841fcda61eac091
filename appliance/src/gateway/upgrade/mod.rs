//! Upgrades: writes a release into the slot that the appliance does not run from, and the record that selects the slot
//! to boot ([`release`]).
//!
//! The record makes the next start a trial. The trial is confirmed after [`CONFIRM`] if the appliance is as ready as
//! the one that ordered it was (`management::not_ready`, also the condition of `/readyz`), and all access that was in
//! force then still is: exports, rules, lists of hosts and keys, which were noted before the restart. Only the
//! appliance on trial can confirm. Any other end of a trial (panic, hang, power loss, or [`ROLLBACK`]) is followed by a
//! start of the previous release.
//!
//! A power cut at any step leaves a bootable image. The slot's header is erased first and written last. Flushes
//! separate image, header and record. `power_cuts.rs` tries every step, with any part of the unflushed data lost.
//!
//! An upgrade never erases the image inside the front end, so one fallback always remains. The disk of the slots has
//! one user at a time beside `save`: each waits for the other.

mod disk_io;
mod fetch;
mod install;
mod noted;
#[cfg(test)]
mod power_cuts;

use super::disk_transfer;
use super::disks::{self, DiskSlot, Role};
use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use crate::config::DeviceName;
use crate::config::partitions::Stretch;
use crate::console::{Managed, Progress};
use core::time::Duration;
use disk_io::DiskIo;
use drivers::hal::{Arena, Clock, Features, Instant, Operation};
use fetch::Fetch;
use install::{Install, PIECE, Polled, Source};
use management::status::{SlotStatus, SlotsStatus};
use noted::Noted;
use release::layout::{self, BLOCK};
use release::{Header, NOTE, Record, Slot, newest};

/// Time that an image on trial has to run before it is confirmed.
pub(super) const CONFIRM: Duration = Duration::from_secs(30);
/// Time after which a trial that is not ready is rolled back.
const ROLLBACK: Duration = Duration::from_secs(300);
/// Interval of readiness checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const SECTOR: u64 = 512;

/// Refusal of an upgrade that would lose unsaved changes.
pub(super) const UNSAVED: &str =
    "unsaved changes: `save` first, or `upgrade … force` discards them";

/// The booted slot, as the UEFI front end writes it on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Booted {
    slot: Slot,
    trial: bool,
}

impl Booted {
    /// Parses the command line.
    pub fn of(command_line: &str) -> Option<Booted> {
        let mut words = command_line.split_ascii_whitespace().rev();
        let word = words.find_map(|word| word.strip_prefix("isthmus-slot="))?;
        let (slot, trial) = match word.strip_suffix(",trial") {
            Some(slot) => (slot, true),
            None => (word, false),
        };
        let slot = [Slot::A, Slot::B].into_iter().find(|known| known.name() == slot)?;
        Some(Booted { slot, trial })
    }
}

/// The operation in progress.
enum Work {
    Nothing,
    /// Writes the record, and flushes.
    Record {
        flushes: bool,
        then: Then,
    },
    Install(Box<Install>),
    /// Writes the note for the next release, and flushes. Then the record selects this slot for a trial.
    Note {
        flushes: bool,
        slot: Slot,
        was_ready: bool,
    },
}

/// Reason to write the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A failed trial was logged.
    Nothing,
    /// The running image is confirmed.
    Confirmed,
    /// The next boot is from another slot.
    Restart,
}

/// The slots of the disk that the appliance boots from.
pub(super) struct Upgrade {
    disk: usize,
    io: DiskIo,
    record: Record,
    /// The copy of the record that is overwritten next.
    older: usize,
    headers: [Option<Header>; 2],
    noted: Noted,
    /// Access that the configuration granted when a release was ordered.
    in_force: Vec<String>,
    booted: Option<Booted>,
    /// When the trial is checked next.
    confirm_at: Option<Instant>,
    rollback_at: Instant,
    /// The reason why the trial is not ready was logged.
    warned: bool,
    /// The trial before this start has failed.
    failed: Option<Slot>,
    work: Work,
    /// Why the installation is ended, once disks no longer use the buffer.
    ending: Option<String>,
    /// A fetch whose connection is to be closed.
    closing: Option<Box<Fetch>>,
}

impl Upgrade {
    /// Reads the slots of the boot disk, before anything else uses the disk.
    pub fn find(
        disks: &mut [DiskSlot],
        slots: Option<(usize, Stretch)>,
        command_line: &str,
        arena: &mut Arena,
        clock: &dyn Clock,
    ) -> Option<Box<Upgrade>> {
        let (disk, area) = slots?;
        let slot = disks.get_mut(disk).filter(|slot| slot.role == Role::Boot)?;
        let mut read = |at: u64, length: usize| {
            disk_transfer::read(slot, area.first + at / SECTOR, length, arena, clock)
        };
        let copies = layout::RECORDS.map(|at| read(at, BLOCK).unwrap_or_default());
        let (record, older) = newest([&copies[0], &copies[1]])?;
        let length = area.sectors * SECTOR;
        let notes = layout::NOTES.map(|at| read(at, NOTE).unwrap_or_default());
        let headers = [Slot::A, Slot::B].map(|slot| {
            let header = read(layout::slot_start(length, slot), BLOCK).ok()?;
            Header::parse(&header).ok()
        });
        let buffer = arena.alloc(PIECE, BLOCK)?;
        let io = DiskIo::new(slot.geometry, area, buffer)?;
        let booted = Booted::of(command_line);
        let now = clock.now();
        let trial = booted.filter(|booted| booted.trial && record.trial == Some(booted.slot));
        let mut upgrade = Box::new(Upgrade {
            disk,
            io,
            record,
            older,
            headers,
            noted: Noted::read([&notes[0], &notes[1]]),
            in_force: Vec::new(),
            booted,
            confirm_at: trial.map(|_| now + CONFIRM),
            rollback_at: now + ROLLBACK,
            warned: false,
            failed: record.failed,
            work: Work::Nothing,
            ending: None,
            closing: None,
        });
        upgrade.log_start();
        Some(upgrade)
    }

    /// Logs a failed or a running trial.
    fn log_start(&mut self) {
        if let Some(failed) = self.failed {
            let version = self.version(failed);
            log::error!(
                "upgrade: the trial of slot {} ({version}) failed: running the previous release; see `show crash` and the syslog server",
                failed.name(),
            );
            self.record.failed = None;
            self.write_record(Then::Nothing);
        }
        if let (Some(booted), Some(_)) = (self.booted, self.confirm_at) {
            log::warn!(
                "upgrade: slot {} ({}) is on trial: auto-confirmed after {} s if ready, or by `upgrade confirm`",
                booted.slot.name(),
                self.version(booted.slot),
                CONFIRM.as_secs()
            );
        }
    }

    fn version(&self, slot: Slot) -> &str {
        self.headers[slot as usize].as_ref().map_or("empty", |header| header.version())
    }

    /// Whether an operation is in progress.
    pub fn is_busy(&self) -> bool {
        !matches!(self.work, Work::Nothing)
    }

    /// Whether the running image is on trial.
    #[inline]
    pub fn is_on_trial(&self) -> bool {
        self.confirm_at.is_some()
    }

    /// Cancels an installation.
    pub fn cancel(&mut self) {
        if matches!(self.work, Work::Install(_)) {
            self.ending.get_or_insert("cancelled".into());
        }
    }

    fn write_record(&mut self, then: Then) {
        self.record.generation = self.record.generation.wrapping_add(1);
        self.work = Work::Record { flushes: false, then };
        // Cannot fail: the record is one block.
        let _ = self.io.buffer().write(0, &self.record.emit());
        self.io.begin(Operation::Write, layout::RECORDS[self.older], BLOCK);
    }

    /// Status for reports.
    pub fn status(&self) -> SlotsStatus<'_> {
        let slots = [Slot::A, Slot::B].map(|slot| {
            let header = self.headers[slot as usize].as_ref();
            SlotStatus {
                name: slot.name(),
                version: header.map_or("", |header| header.version()),
                bytes: header.map_or(0, |header| header.length),
                made: header.map_or(0, |header| header.made),
                runs: self.booted.is_some_and(|booted| booted.slot == slot),
                boots: match (self.record.trial, self.record.current) {
                    (Some(trial), _) if trial == slot => "next, on trial",
                    (None, Some(current)) if current == slot => "next",
                    _ => "",
                },
            }
        });
        SlotsStatus {
            runs: self.booted.map_or("the disk's own image", |booted| booted.slot.name()),
            trial: self.confirm_at.is_some(),
            failed: self.failed.map(Slot::name),
            slots,
        }
    }

    /// Continues the operation. Returns progress for the console, and whether the machine is to restart.
    fn poll(&mut self, disks: &mut [DiskSlot], now: Instant) -> (Option<Progress>, bool) {
        match &mut self.work {
            Work::Nothing => (None, false),
            Work::Record { .. } => self.poll_record(disks, now),
            Work::Install(_) => (self.poll_install(disks), false),
            Work::Note { .. } => (self.poll_note(disks), false),
        }
    }

    fn poll_install(&mut self, disks: &mut [DiskSlot]) -> Option<Progress> {
        let Work::Install(install) = &mut self.work else { return None };
        if self.ending.is_none() {
            match install.poll(&mut self.io, self.disk, disks) {
                Ok(Polled::Pending) => return None,
                Ok(Polled::Line(line)) => return Some(Progress::Line(line)),
                Ok(Polled::Written) => {
                    self.finish_install(disks);
                    return None;
                }
                Err(why) => self.ending = Some(why),
            }
        }
        // Disks may still use the buffer.
        if let Some(slot) = disks.get_mut(self.disk) {
            let _ = self.io.poll(&mut slot.disk);
        }
        if self.io.is_busy() || install.is_reading(disks) {
            return None;
        }
        self.end_install(disks);
        Some(Progress::Done(Err(self.ending.take().unwrap_or_default())))
    }

    fn finish_install(&mut self, disks: &mut [DiskSlot]) {
        if let Some(Install { slot, header, was_ready, .. }) = self.end_install(disks) {
            let made = header.as_ref().map_or(0, |header| header.made);
            self.headers[slot as usize] = header;
            let (place, note) = self.noted.replace(made, core::mem::take(&mut self.in_force));
            // Cannot fail: the buffer is larger than a note.
            let _ = self.io.buffer().write(0, &note[..]);
            self.io.begin(Operation::Write, place, NOTE);
            self.work = Work::Note { flushes: false, slot, was_ready };
        }
    }

    fn poll_note(&mut self, disks: &mut [DiskSlot]) -> Option<Progress> {
        let disk = disks.get_mut(self.disk)?;
        let result = self.io.poll(&mut disk.disk)?;
        let Work::Note { flushes, slot, was_ready } = &mut self.work else { return None };
        let (slot, was_ready) = (*slot, *was_ready);
        if result.is_ok() && !core::mem::replace(flushes, true) {
            self.io.flush();
            return None;
        }
        if let Err(why) = result {
            self.work = Work::Nothing;
            let error = format!("{} {why}: the next boot is as before", disk.name);
            return Some(Progress::Done(Err(error)));
        }
        self.record.try_once(slot, was_ready);
        self.write_record(Then::Restart);
        None
    }

    /// Ends the installation. The slot no longer has its former release.
    fn end_install(&mut self, disks: &mut [DiskSlot]) -> Option<Install> {
        let work = core::mem::replace(&mut self.work, Work::Nothing);
        let Work::Install(mut install) = work else { return None };
        match core::mem::replace(&mut install.source, Source::Ended) {
            Source::Http(fetch) => self.closing = Some(fetch),
            Source::Disk(number, ..) => disks[number].role = Role::Free,
            Source::Ended => {}
        }
        self.headers[install.slot as usize] = None;
        Some(*install)
    }

    fn poll_record(&mut self, disks: &mut [DiskSlot], now: Instant) -> (Option<Progress>, bool) {
        let Some(slot) = disks.get_mut(self.disk) else { return (None, false) };
        let Some(result) = self.io.poll(&mut slot.disk) else { return (None, false) };
        let Work::Record { flushes, then } = &mut self.work else { return (None, false) };
        let then = *then;
        if result.is_ok() && !core::mem::replace(flushes, true) {
            self.io.flush();
            return (None, false);
        }
        self.work = Work::Nothing;
        if let Err(why) = result {
            log::error!("upgrade: could not write the boot record: {} {why}", slot.name);
            let error = format!("{} {why}: the next boot is as before", slot.name);
            let done = (then == Then::Restart).then_some(Progress::Done(Err(error)));
            if then == Then::Confirmed {
                // The disk still has the trial.
                self.confirm_at = Some(now + CONFIRM);
            }
            return (done, false);
        }
        self.older = 1 - self.older;
        match then {
            Then::Nothing => (None, false),
            Then::Confirmed => {
                let name = self.booted.map_or("", |booted| booted.slot.name());
                log::info!("upgrade: slot {name} is confirmed");
                (None, false)
            }
            Then::Restart => {
                log::warn!("upgrade: restarting");
                (Some(Progress::Done(Ok("written, and read back; restarting".into()))), true)
            }
        }
    }

    /// Confirms the trial if nothing is lacking: Some(true). Some(false) if its time is over. None if there is time
    /// left.
    fn check_trial(&mut self, lacking: &[String], now: Instant) -> Option<bool> {
        if lacking.is_empty() {
            self.confirm();
            return Some(true);
        }
        let why = lacking.join("; ");
        if self.rollback_at <= now {
            log::error!(
                "upgrade: trial not ready within {} s: rolling back ({why})",
                ROLLBACK.as_secs()
            );
            self.confirm_at = Some(now + CONFIRM);
            return Some(false);
        }
        if !core::mem::replace(&mut self.warned, true) {
            log::warn!(
                "upgrade: trial not ready: {why}. Rolls back in {} s unless ready or `upgrade confirm`",
                self.rollback_at.since(now).as_secs()
            );
        }
        self.confirm_at = Some(now + CHECK_INTERVAL);
        None
    }

    /// Confirms the running image.
    fn confirm(&mut self) {
        self.confirm_at = None;
        self.record.confirm();
        self.write_record(Then::Confirmed);
    }
}

impl Service for Upgrade {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        if let Some(fetch) = self.closing.take() {
            fetch.end(around.networks);
        }
        let Work::Install(install) = &mut self.work else { return 0 };
        let Source::Http(fetch) = &mut install.source else { return 0 };
        usize::from(fetch.poll(around.networks, around.resolver, around.now))
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        let fetch = match &self.work {
            Work::Install(install) => match &install.source {
                Source::Http(fetch) => fetch.until(),
                Source::Disk(..) | Source::Ended => None,
            },
            Work::Nothing | Work::Record { .. } | Work::Note { .. } => None,
        };
        Instant::first([fetch, self.confirm_at])
    }

    fn allows_brief_rounds(&self) -> bool {
        true
    }
}

/// Conditions of an order to install a release.
pub(super) struct Terms {
    /// The key that its signature is checked with.
    pub key: Option<[u8; 32]>,
    /// The configuration has unsaved changes.
    pub unsaved: bool,
    /// The appliance is ready.
    pub is_ready: bool,
    /// Access that the saved configuration grants.
    pub in_force: Vec<String>,
    /// Time of the running commit.
    pub committed: u64,
    /// Random seed.
    pub seed: u16,
    pub now: Instant,
    /// `save` is writing to the disk.
    pub saves: bool,
}

impl Upgrade {
    /// Whether a check of the trial is due.
    pub fn is_check_due(&self, now: Instant) -> bool {
        self.confirm_at.is_some_and(|at| at <= now) && !self.is_busy()
    }

    /// Whether the release before the trial was ready.
    pub fn was_ready(&self) -> bool {
        self.record.was_ready
    }

    /// Access that was in force when the release on trial was ordered, and is no longer.
    pub fn missing(&self, in_force: &[String]) -> Vec<String> {
        self.noted.missing(in_force)
    }

    /// Checks the trial: confirms it if nothing is lacking. False if it is rolled back.
    pub fn judge(&mut self, lacking: &[String], now: Instant) -> bool {
        self.check_trial(lacking, now) != Some(false)
    }

    /// Continues the operation. Returns whether there was work, progress for the console, and whether the machine is to
    /// restart.
    pub fn step(&mut self, disks: &mut [DiskSlot], now: Instant) -> (bool, Option<Progress>, bool) {
        let before = self.io.completed();
        let (progress, restarts) = self.poll(disks, now);
        // A completed request is work: its interrupt is consumed, so the loop must not halt.
        (progress.is_some() || self.io.completed() != before, progress, restarts)
    }

    /// Confirms the trial by order of the operator.
    pub fn order_confirm(&mut self, saves: bool) -> Result<Managed, String> {
        if !self.is_on_trial() {
            return Err("no release is on trial".into());
        }
        if saves || self.is_busy() {
            return Err("the disk is being written; try again later".into());
        }
        self.confirm();
        Ok(Managed::Told("the running release is confirmed\n".into()))
    }

    /// Starts to install a release, by order of the operator.
    pub fn order(
        &mut self,
        words: &[&str],
        terms: Terms,
        disks: &mut [DiskSlot],
    ) -> Result<Managed, String> {
        if terms.saves || self.is_busy() {
            return Err("the disk is being written; try again later".into());
        }
        let (force, words) = match words {
            [rest @ .., "force"] => (true, rest),
            _ => (false, words),
        };
        let [from] = words else {
            return Err(
                "accepted: http://HOST[:PORT]/PATH, or the name of a disk, perhaps with `force`"
                    .into(),
            );
        };
        if terms.unsaved && !force {
            return Err(UNSAVED.into());
        }
        if self.confirm_at.is_some() {
            return Err("the running release is on trial: `upgrade confirm` first, or wait".into());
        }
        let key = terms.key.ok_or(
            "system.upgrade_key is not set: `./isthmus release` prints the public key of its signatures",
        )?;
        if disks[self.disk].geometry.features.contains(Features::READ_ONLY) {
            return Err("the disk with the slots is read-only".into());
        }
        let runs = self.booted.map(|booted| booted.slot);
        let slot = runs.or(self.record.current).map_or(Slot::A, Slot::other);
        let not_before = if force { 0 } else { self.not_before(terms.committed) };
        let source = match from.contains("://") {
            true => Source::Http(Box::new(Fetch::new(from, terms.seed, terms.now)?)),
            false => {
                let name: DeviceName = from.parse()?;
                let number = disks::number_of(disks, &name)?;
                let slot = &mut disks[number];
                slot.check_free()?;
                let area = Stretch { first: 0, sectors: slot.geometry.sectors };
                let io = DiskIo::new(slot.geometry, area, self.io.buffer());
                let io = io.ok_or("its blocks are too large")?;
                slot.role = Role::Release;
                Source::Disk(number, io, 0)
            }
        };
        let install = Install::new(source, slot, key, not_before, terms.is_ready, self.io.buffer());
        self.work = Work::Install(Box::new(install));
        self.in_force = terms.in_force;
        self.ending = None;
        Ok(Managed::Started)
    }

    /// Latest time of any release that was installed on this disk, and of the running commit.
    fn not_before(&self, committed: u64) -> u64 {
        let headers = self.headers.iter().flatten().map(|header| header.made);
        headers.chain([self.noted.made, committed]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booted_slot_is_parsed_from_the_command_line() {
        let booted = |line: &str| Booted::of(line).map(|booted| (booted.slot, booted.trial));
        assert_eq!(booted("a=b isthmus-slot=a"), Some((Slot::A, false)));
        assert_eq!(booted("isthmus-slot=b,trial"), Some((Slot::B, true)));
        assert_eq!(booted("isthmus-slot=c isthmus.x=1"), None);
        assert_eq!(booted(""), None);
    }
}
