//! Status of a mirror and its members, for the console, metrics and the log.

use super::{Mirror, Resync};
use crate::volume::VolumeError;
use core::fmt;
use drivers::hal::Instant;

/// State of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberState {
    /// Its record has not been read.
    #[default]
    Unknown,
    /// It holds the mirror's data.
    InSync,
    /// It is left out: it failed, or missed writes. It gets no requests of the user.
    Out,
    /// It gets writes, and stale regions are being copied to it.
    Syncing,
}

impl MemberState {
    /// The state as the console shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberState::Unknown => "unknown",
            MemberState::InSync => "in sync",
            MemberState::Out => "out",
            MemberState::Syncing => "syncing",
        }
    }
}

/// State of the mirror.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorState {
    /// It waits for its members' records.
    #[default]
    Waiting,
    /// One member can be read, and the other may be newer: the mirror waits for the other one, or for the operator.
    Alone,
    /// The members' records do not belong to one mirror.
    Strangers,
    /// It works.
    Running,
}

impl fmt::Display for MirrorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MirrorState::Waiting => "waiting for its members",
            MirrorState::Alone => "waiting for the other member, which may be newer",
            MirrorState::Strangers => "the members are not of one mirror",
            MirrorState::Running => "running",
        })
    }
}

/// Why a member was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It did not respond in time.
    Silent,
    /// It failed.
    Failed(VolumeError),
    /// The operator detached it.
    Detached,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Silent => f.write_str("it did not answer in time"),
            Why::Failed(VolumeError::Lost) => f.write_str("it may have lost unflushed writes"),
            Why::Failed(error) => write!(f, "it failed: {error}"),
            Why::Detached => f.write_str("the operator detached it"),
        }
    }
}

/// Status of a mirror and its members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// State of the mirror.
    pub state: MirrorState,
    /// States of its members.
    pub members: [MemberState; 2],
    /// Since when each member has its state.
    pub since: [Option<Instant>; 2],
    /// Why each member is left out, or was left out before the current copy.
    pub why: [Option<Why>; 2],
    /// Since when each member has not responded, although it is not left out.
    pub silent: [Option<Instant>; 2],
    /// Sectors of the mirror.
    pub sectors: u64,
    /// Sectors of its members.
    pub member_sectors: [u64; 2],
    /// Sectors that the mirror could grow to, or is growing to.
    pub possible_sectors: u64,
    /// Whether growth is in progress.
    pub grows: bool,
    /// Stale regions, which have to be copied.
    pub stale: usize,
    /// Upper bound of the bytes to copy.
    pub stale_bytes: u64,
    /// Regions in all.
    pub regions: usize,
    /// Regions copied so far.
    pub copied: u64,
    /// Times that a member was left out.
    pub dropped: u64,
    /// Times that a member was left out because it did not respond in time.
    pub timeouts: u64,
    /// Times that the record was written.
    pub records: u64,
}

impl Status {
    /// Whether a member is in sync and responds.
    pub fn is_in_sync(&self, member: usize) -> bool {
        self.members[member] == MemberState::InSync && self.silent[member].is_none()
    }

    /// State of a member as the console shows it.
    pub fn member(&self, member: usize) -> &'static str {
        match self.silent[member] {
            Some(_) => "silent",
            None => self.members[member].as_str(),
        }
    }

    /// Whether both members are in sync and respond.
    pub fn is_whole(&self) -> bool {
        self.state == MirrorState::Running && self.is_in_sync(0) && self.is_in_sync(1)
    }
}

/// Summary of the status.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.state, [0, 1].map(|n| self.is_in_sync(n))) {
            (MirrorState::Running, [true, true]) => f.write_str("running"),
            (MirrorState::Running, [false, false]) => {
                f.write_str("not answering: requests wait for its members")
            }
            (MirrorState::Running, _) => f.write_str("running on one member"),
            (state, _) => state.fmt(f),
        }
    }
}

impl Mirror {
    /// Changes the state of a member.
    pub(super) fn set_member(&mut self, member: usize, state: MemberState) {
        self.members[member].state = state;
        let mut status = self.status.get();
        status.members[member] = state;
        status.since[member] = Some(self.clock.now());
        if state == MemberState::InSync {
            status.why[member] = None;
        }
        self.members[member].failed_probe = None;
        self.status.set(status);
        // The owner publishes the change at once.
        self.clock.wake_at(self.clock.now());
    }

    /// Updates the counts in the status.
    pub(super) fn publish_status(&mut self) {
        let mut status = self.status.get();
        status.stale = self.stale.count();
        let regions = |s: super::Shape| s.sectors.div_ceil(s.region_sectors) as usize;
        status.regions = self.shape.map_or(0, regions);
        let region = |s: super::Shape| s.region_sectors.min(s.sectors).saturating_mul(512);
        let bytes = |s: super::Shape| region(s).saturating_mul(status.stale as u64);
        let all = |s: super::Shape| s.sectors.saturating_mul(512);
        status.stale_bytes = self.shape.map_or(0, |shape| bytes(shape).min(all(shape)));
        let Resync { copied, .. } = self.resync;
        status.copied = copied;
        status.records = self.log.durable;
        status.sectors = self.shape.map_or(0, |shape| shape.sectors);
        status.member_sectors = [0, 1].map(|n| self.members[n].volume.geometry().sectors);
        status.possible_sectors = self.possible_sectors();
        status.grows = self.resync.growth.is_some();
        self.status.set(status);
    }
}
