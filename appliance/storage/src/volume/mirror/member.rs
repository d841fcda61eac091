//! A member.

use super::DEPTH;
use super::buffers::Piece;
use super::status::MemberState;
use super::superblock::Superblock;
use crate::volume::{Volume, VolumeError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use drivers::hal::{Instant, Window};

pub(super) struct Member {
    pub volume: Box<dyn Volume>,
    pub state: MemberState,
    /// Requests given to it that have not ended.
    pub in_flight: usize,
    /// Writes at which it was the first to be done, less those at which it was the last.
    pub lead: i32,
    /// Its records are read into here, …
    pub records: Window,
    /// … and this is the newest one, once they were read.
    pub record: Option<Superblock>,
    /// Which of the two is written next: not the newest one that is whole, by all that is known.
    pub next_record: usize,
    pub was_read: bool,
    pub reading: bool,
    /// When it was asked for a sign of life that it has not given yet.
    pub probe: Option<Instant>,
    /// When it failed to give one, if it has given none since.
    pub failed_probe: Option<(Instant, VolumeError)>,
    /// When it is asked for one next, if it has nothing to do.
    pub watch_at: Instant,
    /// When it was asked for the last one that it gave, …
    pub there: Instant,
    /// … and when it last gave one after a while.
    pub back: Instant,
    /// Since when the operator wants to do without it.
    pub detached: Option<Instant>,
    /// Not tried again before this, once it is out.
    pub retry_at: Instant,
    /// What it had was given up, and it may still be at it.
    pub let_go: bool,
    /// Memory that it may use until then.
    pub held: Vec<Piece>,
}

impl Member {
    pub fn new(volume: Box<dyn Volume>, records: Window) -> Self {
        Member {
            volume,
            state: MemberState::Unknown,
            in_flight: 0,
            lead: 0,
            records,
            record: None,
            next_record: 0,
            was_read: false,
            reading: false,
            probe: None,
            failed_probe: None,
            watch_at: Instant::ZERO,
            there: Instant::ZERO,
            back: Instant::ZERO,
            detached: None,
            retry_at: Instant::ZERO,
            let_go: false,
            held: Vec::with_capacity(DEPTH),
        }
    }

    /// Whether it may be read.
    pub fn is_in_sync(&self) -> bool {
        self.state == MemberState::InSync
    }

    /// Whether it gets what is written.
    pub fn is_written(&self) -> bool {
        matches!(self.state, MemberState::InSync | MemberState::Syncing)
    }
}
