//! Upgrades: writes a release into the slot that the appliance does not run from, and the record that selects the slot to
//! boot ([`release`]).
//!
//! The record makes the next start a trial. The trial is confirmed after [`CONFIRM`] if the appliance is as ready as the
//! one that ordered it was (`management::not_ready`, also the condition of `/readyz`), and what was in force then still
//! is: exports, rules, lists of hosts and keys, which were noted before the restart. Only the appliance on trial can
//! confirm. Any other end of a trial (panic, hang, power loss, or [`GIVES_UP`]) is followed by a start of the previous
//! release.
//!
//! A power cut at any step leaves a bootable image. The slot's header is erased first and written last. Flushes separate
//! image, header and record. `power_cuts.rs` tries every step, with any part of the unflushed data lost.
//!
//! An upgrade never erases the image inside the front end, so one fallback always remains. The disk of the slots has one
//! user at a time beside `save`: each waits for the other.

mod disk_io;
mod fetch;
mod install;
mod noted;
#[cfg(test)]
mod power_cuts;

use super::disk_transfer;
use super::disks::{self, DiskSlot, Role};
use super::plane::DataPlane;
use super::service::{Service, Surroundings};
use crate::config::DeviceName;
use crate::config::partitions::Stretch;
use crate::console::{Managed, Progress};
use core::time::Duration;
use disk_io::DiskIo;
use drivers::hal::{Arena, Clock, Features, Instant, Operation};
use fetch::Fetch;
use install::{Install, News, PIECE, Source};
use management::status::{SlotStatus, SlotsStatus};
use noted::Noted;
use release::layout::{self, BLOCK};
use release::{Header, NOTE, Record, Slot, newest};

/// How long an image on trial has to run until it counts.
pub(super) const CONFIRM: Duration = Duration::from_secs(30);
/// How long it has to do all that it is configured to do.
const GIVES_UP: Duration = Duration::from_secs(300);
/// How often that is looked at.
const LOOKS: Duration = Duration::from_secs(1);
const SECTOR: u64 = 512;

/// Why an upgrade does not begin: it would lose what the operator has changed.
pub(super) const UNSAVED: &str = "there are changes that were not saved, and an upgrade restarts: `save` first, or `upgrade … force`";

/// What the command line says of the slot that was booted, as the UEFI front end wrote it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Booted {
    slot: Slot,
    trial: bool,
}

impl Booted {
    /// Looks for the word.
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

/// What is under way.
enum Work {
    Nothing,
    /// The record is being written, and then made durable.
    Record {
        flushes: bool,
        then: Then,
    },
    Install(Box<Install>),
    /// What the next release is to have in force is being noted, and then made durable; then this slot is tried.
    Note {
        flushes: bool,
        slot: Slot,
        was_ready: bool,
    },
}

/// What the record was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It was told that a trial has failed.
    Nothing,
    /// The image that runs counts from now on.
    Confirmed,
    /// The next start is of another slot.
    Restart,
}

/// The slots of the disk that the appliance boots from.
pub(super) struct Upgrade {
    disk: usize,
    io: DiskIo,
    record: Record,
    /// The copy of the record that is written over next.
    older: usize,
    held: [Option<Header>; 2],
    noted: Noted,
    /// What is open to whom by the configuration that was in force when a release was ordered.
    in_force: Vec<String>,
    booted: Option<Booted>,
    /// When the image on trial has run for long enough.
    confirm_at: Option<Instant>,
    gives_up_at: Instant,
    /// It was told why the image on trial does not count yet.
    waits: bool,
    /// The trial before this start has failed.
    failed: Option<Slot>,
    work: Work,
    /// Why what is being written is given up, once disks have let go.
    ending: Option<String>,
    /// Whose connection is to be ended.
    leaving: Option<Box<Fetch>>,
}

impl Upgrade {
    /// Looks at the slots of the disk that the machine was started from, before anything else uses it.
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
        let held = [Slot::A, Slot::B].map(|slot| {
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
            held,
            noted: Noted::read([&notes[0], &notes[1]]),
            in_force: Vec::new(),
            booted,
            confirm_at: trial.map(|_| now + CONFIRM),
            gives_up_at: now + GIVES_UP,
            waits: false,
            failed: record.failed,
            work: Work::Nothing,
            ending: None,
            leaving: None,
        });
        upgrade.tell_start();
        Some(upgrade)
    }

    /// Says in the log what this start is.
    fn tell_start(&mut self) {
        if let Some(failed) = self.failed {
            let version = self.version(failed);
            log::error!(
                "upgrade: slot {} ({version}) was started and has not come up: this is what ran before; `show crash` and the syslog server may say why",
                failed.name(),
            );
            self.record.failed = None;
            self.write_record(Then::Nothing);
        }
        if let (Some(booted), Some(_)) = (self.booted, self.confirm_at) {
            log::warn!(
                "upgrade: slot {} ({}) is on trial: it counts when it has run for {} s and is ready, or by `upgrade confirm`",
                booted.slot.name(),
                self.version(booted.slot),
                CONFIRM.as_secs()
            );
        }
    }

    fn version(&self, slot: Slot) -> &str {
        self.held[slot as usize].as_ref().map_or("empty", |header| header.version())
    }

    /// Whether the disk is being used for this.
    pub fn is_busy(&self) -> bool {
        !matches!(self.work, Work::Nothing)
    }

    /// Whether what runs does not count yet.
    #[inline]
    pub fn is_on_trial(&self) -> bool {
        self.confirm_at.is_some()
    }

    /// The operator has changed their mind.
    pub fn cancel(&mut self) {
        if matches!(self.work, Work::Install(_)) {
            self.ending.get_or_insert("cancelled".into());
        }
    }

    fn write_record(&mut self, then: Then) {
        self.record.generation = self.record.generation.wrapping_add(1);
        self.work = Work::Record { flushes: false, then };
        // It is one block of the buffer.
        let _ = self.io.buffer().write(0, &self.record.emit());
        self.io.begin(Operation::Write, layout::RECORDS[self.older], BLOCK);
    }

    /// What is told of the slots.
    pub fn status(&self) -> SlotsStatus<'_> {
        let slots = [Slot::A, Slot::B].map(|slot| {
            let header = self.held[slot as usize].as_ref();
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

    /// Goes on with the disk; news for the console, and whether the machine is to start anew.
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
                Ok(News::Quiet) => return None,
                Ok(News::Line(line)) => return Some(Progress::Line(line)),
                Ok(News::Written) => {
                    self.install_is_over(disks);
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

    fn install_is_over(&mut self, disks: &mut [DiskSlot]) {
        if let Some(Install { slot, header, was_ready, .. }) = self.end_install(disks) {
            let made = header.as_ref().map_or(0, |header| header.made);
            self.held[slot as usize] = header;
            let (place, note) = self.noted.replace(made, core::mem::take(&mut self.in_force));
            // The buffer has room for it.
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
            let told = format!("{} {why}: what boots is what booted before", disk.name);
            return Some(Progress::Done(Err(told)));
        }
        self.record.try_once(slot, was_ready);
        self.write_record(Then::Restart);
        None
    }

    /// Nothing more is written. What was in the slot is not there any more.
    fn end_install(&mut self, disks: &mut [DiskSlot]) -> Option<Install> {
        let work = core::mem::replace(&mut self.work, Work::Nothing);
        let Work::Install(mut install) = work else { return None };
        match core::mem::replace(&mut install.source, Source::Ended) {
            Source::Http(fetch) => self.leaving = Some(fetch),
            Source::Disk(number, ..) => disks[number].role = Role::Free,
            Source::Ended => {}
        }
        self.held[install.slot as usize] = None;
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
            log::error!(
                "upgrade: the record of which slot boots was not written: {} {why}",
                slot.name
            );
            let told = format!("{} {why}: what boots is what booted before", slot.name);
            let done = (then == Then::Restart).then_some(Progress::Done(Err(told)));
            if then == Then::Confirmed {
                // It is on trial still, as far as the disk knows.
                self.confirm_at = Some(now + CONFIRM);
            }
            return (done, false);
        }
        self.older = 1 - self.older;
        match then {
            Then::Nothing => (None, false),
            Then::Confirmed => {
                let name = self.booted.map_or("", |booted| booted.slot.name());
                log::info!("upgrade: slot {name} has come up, and counts from now on");
                (None, false)
            }
            Then::Restart => {
                log::warn!("upgrade: restarting");
                (Some(Progress::Done(Ok("written, and read back; restarting".into()))), true)
            }
        }
    }

    /// Whether what is on trial counts, for all that it lacks, or is over; none if it has time left.
    fn counts(&mut self, lacking: &[String], now: Instant) -> Option<bool> {
        if lacking.is_empty() {
            self.confirm();
            return Some(true);
        }
        let why = lacking.join("; ");
        if self.gives_up_at <= now {
            log::error!(
                "upgrade: not ready within {} s, as what ran before was: it is started again ({why})",
                GIVES_UP.as_secs()
            );
            self.confirm_at = Some(now + CONFIRM);
            return Some(false);
        }
        if !core::mem::replace(&mut self.waits, true) {
            log::warn!(
                "upgrade: trial not ready: {why}. Rolls back in {} s unless ready or `upgrade confirm`",
                self.gives_up_at.since(now).as_secs()
            );
        }
        self.confirm_at = Some(now + LOOKS);
        None
    }

    /// The image that runs counts from now on.
    fn confirm(&mut self) {
        self.confirm_at = None;
        self.record.confirm();
        self.write_record(Then::Confirmed);
    }
}

impl Service for Upgrade {
    fn poll(&mut self, around: &mut Surroundings<'_>) -> usize {
        if let Some(fetch) = self.leaving.take() {
            fetch.end(around.networks);
        }
        let Work::Install(install) = &mut self.work else { return 0 };
        let Source::Http(fetch) = &mut install.source else { return 0 };
        usize::from(fetch.poll(around.networks, around.now))
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
}

/// What an order to write a release goes by.
pub(super) struct Terms {
    /// The key that it has to be signed with.
    pub key: Option<[u8; 32]>,
    /// There are changes of the configuration that were not saved.
    pub unsaved: bool,
    /// The appliance does all that it is configured to do.
    pub is_ready: bool,
    /// What is open to whom by the configuration that the next start reads.
    pub in_force: Vec<String>,
    /// When the commit that runs was made.
    pub committed: u64,
    /// Of random numbers.
    pub seed: u16,
    pub now: Instant,
    /// The disk is being written for `save`.
    pub saves: bool,
}

impl Upgrade {
    /// Whether it is time to judge what is on trial.
    pub fn wants_verdict(&self, now: Instant) -> bool {
        self.confirm_at.is_some_and(|at| at <= now) && !self.is_busy()
    }

    /// Whether what ran before the trial did all that it was configured to do.
    pub fn was_ready(&self) -> bool {
        self.record.was_ready
    }

    /// What was in force when the release on trial was ordered, and is not any more.
    pub fn missing(&self, in_force: &[String]) -> Vec<String> {
        self.noted.missing(in_force)
    }

    /// The image on trial has run for long enough: it counts if it is ready, or if what ran before was not either.
    /// False if it is given up.
    pub fn judge(&mut self, lacking: &[String], now: Instant) -> bool {
        self.counts(lacking, now) != Some(false)
    }

    /// Goes on with the disk; whether anything was done, news for the console, and whether the machine is to start anew.
    pub fn step(&mut self, disks: &mut [DiskSlot], now: Instant) -> (bool, Option<Progress>, bool) {
        let before = self.io.completed();
        let (news, restarts) = self.poll(disks, now);
        // A request that ended is work as well: the loop must not halt on the interrupt that told it.
        (news.is_some() || self.io.completed() != before, news, restarts)
    }

    /// An operator says that what runs has come up.
    pub fn order_confirm(&mut self, saves: bool) -> Result<Managed, String> {
        if !self.is_on_trial() {
            return Err("nothing is on trial".into());
        }
        if saves || self.is_busy() {
            return Err("the disk is being written; try again later".into());
        }
        self.confirm();
        Ok(Managed::Told("it counts from now on\n".into()))
    }

    /// An operator's order: a release is to be written, and started.
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
                "accepted: http://ADDRESS[:PORT]/PATH, or the name of a disk, perhaps with `force`"
                    .into(),
            );
        };
        if terms.unsaved && !force {
            return Err(UNSAVED.into());
        }
        if self.confirm_at.is_some() {
            return Err("what runs is on trial: `upgrade confirm` first, or wait".into());
        }
        let key = terms.key.ok_or(
            "system.upgrade_key is not set: `./isthmus release` tells the key that releases are signed with",
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

    /// The latest time at which anything was made that is, or ever was, taken on this disk, or is running.
    fn not_before(&self, committed: u64) -> u64 {
        let held = self.held.iter().flatten().map(|header| header.made);
        held.chain([self.noted.made, committed]).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_is_read_from_the_command_line() {
        let told = |line: &str| Booted::of(line).map(|booted| (booted.slot, booted.trial));
        assert_eq!(told("a=b isthmus-slot=a"), Some((Slot::A, false)));
        assert_eq!(told("isthmus-slot=b,trial"), Some((Slot::B, true)));
        assert_eq!(told("isthmus-slot=c isthmus.x=1"), None);
        assert_eq!(told(""), None);
    }
}
