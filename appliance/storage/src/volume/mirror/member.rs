//! A member of a mirror and its state.

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
    /// Jobs for it that have not ended.
    pub in_flight: usize,
    /// Writes that it completed first, minus writes that it completed last.
    pub lead: i32,
    /// Memory that its records are read into.
    pub records: Window,
    /// Its newest record, from when the records were read until the mirror starts.
    pub record: Option<Superblock>,
    /// Which of its two records is written next: never the newest valid one.
    pub next_record: usize,
    pub was_read: bool,
    pub reading: bool,
    /// When the probe in flight was sent.
    pub probe: Option<Instant>,
    /// When a probe failed, if none has succeeded since.
    pub failed_probe: Option<(Instant, VolumeError)>,
    /// When the next probe may be sent.
    pub watch_at: Instant,
    /// When the last successful probe was sent.
    pub alive_at: Instant,
    /// When it last answered a probe late.
    pub recovered_at: Instant,
    /// When the operator detached it.
    pub detached: Option<Instant>,
    /// While it is out: not tried again before this time.
    pub retry_at: Instant,
    /// Its jobs were given up, and it may still execute them.
    pub abandoned: bool,
    /// Memory that it may access while it is abandoned.
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
            alive_at: Instant::ZERO,
            recovered_at: Instant::ZERO,
            detached: None,
            retry_at: Instant::ZERO,
            abandoned: false,
            held: Vec::with_capacity(DEPTH),
        }
    }

    /// Whether it may be read.
    pub fn is_in_sync(&self) -> bool {
        self.state == MemberState::InSync
    }

    /// Whether writes go to it.
    pub fn is_written(&self) -> bool {
        matches!(self.state, MemberState::InSync | MemberState::Syncing)
    }
}
