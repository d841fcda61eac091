//! How a mirror stands.

use super::{Mirror, Resync};
use crate::volume::VolumeError;
use core::fmt;
use drivers::hal::Instant;

/// How a member stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberState {
    /// Its record has not been read.
    #[default]
    Unknown,
    /// It holds what the mirror holds.
    InSync,
    /// It failed, or is behind; it gets nothing.
    Out,
    /// It gets what is written, and is being copied to.
    Syncing,
}

impl MemberState {
    /// The word that the console shows.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberState::Unknown => "unknown",
            MemberState::InSync => "in sync",
            MemberState::Out => "out",
            MemberState::Syncing => "syncing",
        }
    }
}

/// How the mirror stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirrorState {
    /// It waits for its members' records.
    #[default]
    Waiting,
    /// One member can be read, and the other may be newer: it waits for that, or for the operator.
    Alone,
    /// The members are not of one mirror.
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
    /// It did not answer in time.
    Silent,
    /// It failed.
    Failed(VolumeError),
    /// The operator took it out.
    Detached,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Silent => f.write_str("it did not answer in time"),
            Why::Failed(VolumeError::Lost) => f.write_str("it may have lost writes"),
            Why::Failed(error) => write!(f, "it failed: {error}"),
            Why::Detached => f.write_str("the operator detached it"),
        }
    }
}

/// How a mirror and its members stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The mirror.
    pub state: MirrorState,
    /// Its members.
    pub members: [MemberState; 2],
    /// Since when they stand so.
    pub since: [Option<Instant>; 2],
    /// Why they are left out, or were before they are copied to.
    pub why: [Option<Why>; 2],
    /// Since when they do not answer, although they are not left out: the mirror cannot do without them.
    pub silent: [Option<Instant>; 2],
    /// Sectors of the mirror, and of its members.
    pub sectors: u64,
    /// See `sectors`.
    pub member_sectors: [u64; 2],
    /// Sectors that it could have, or will have when it has grown.
    pub possible_sectors: u64,
    /// It grows.
    pub grows: bool,
    /// Regions that have to be copied, of all.
    pub stale: usize,
    /// The same in bytes, at most.
    pub stale_bytes: u64,
    /// Regions in all.
    pub regions: usize,
    /// Regions copied so far.
    pub copied: u64,
    /// Times that a member was left out.
    pub dropped: u64,
    /// Times that one was because it did not answer in time.
    pub timeouts: u64,
    /// Times that the record was written.
    pub records: u64,
}

impl Status {
    /// Whether a member is in sync and answers.
    pub fn is_in_sync(&self, member: usize) -> bool {
        self.members[member] == MemberState::InSync && self.silent[member].is_none()
    }

    /// How a member stands, in a word or two.
    pub fn member(&self, member: usize) -> &'static str {
        match self.silent[member] {
            Some(_) => "silent",
            None => self.members[member].as_str(),
        }
    }

    /// Whether it holds everything twice.
    pub fn is_whole(&self) -> bool {
        self.state == MirrorState::Running && self.is_in_sync(0) && self.is_in_sync(1)
    }
}

/// How it stands, in a few words.
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
    /// A member goes to another state.
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
        // Its owner is to see it at once.
        self.clock.wake_at(self.clock.now());
    }

    /// Brings the counts up to date.
    pub(super) fn tell(&mut self) {
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
