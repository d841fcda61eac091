//! What the provider counts. Plain numbers since the start.

use core::fmt;

/// What a peer wrote that no honest one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A bell of commands says more than can be outstanding.
    CommandBells,
    /// A command is none.
    Command,
    /// A bell of a queue pair says more than fits its ring.
    EntryBell,
    /// An entry of a queue pair is none.
    Entry,
    /// It says that it has done what it was not sent, or answers what it was not asked.
    Done,
    /// A frame, or the bell of frames.
    Frame,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wrong::CommandBells => "a count of commands that cannot be",
            Wrong::Command => "a command that is none",
            Wrong::EntryBell => "a count of a queue pair's entries that does not fit its ring",
            Wrong::Entry => "an entry of a queue pair that makes no sense",
            Wrong::Done => "that it has done what it was not sent",
            Wrong::Frame => "a frame that does not fit its ring",
        })
    }
}

/// All counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Send entries written to the peer, and taken from it.
    pub entries_sent: u64,
    /// Taken from the peer.
    pub entries_received: u64,
    /// Batches announced to the peer.
    pub batches: u64,
    /// Bytes of payload that were left for the peer to read where they lie.
    pub bytes_lent: u64,
    /// Bytes of payload that were written where they belong.
    pub bytes_placed: u64,
    /// Bytes of payload that were written to the peer's memory for payload.
    pub bytes_staged: u64,
    /// Bytes of payload of SENDs and WRITEs that were copied here from where the peer has put them.
    pub bytes_copied: u64,
    /// Times that an entry waited for a receive, or for memory.
    pub not_ready: u64,
    /// What peers wrote that is no honest peer's: indices out of bounds, entries and commands that
    /// are none.
    pub violations: u64,
    /// The last of these.
    pub last_violation: Option<Wrong>,
    /// Ethernet frames written to the peer.
    pub frames_sent: u64,
    /// Taken from it.
    pub frames_received: u64,
    /// Not written, because the link was down or the peer takes none.
    pub frames_lost: u64,
    /// Times that the link came up.
    pub link_up: u64,
    /// Times that it went down.
    pub link_down: u64,
    /// Completions for which their queue had no room.
    pub completions_lost: u64,
    /// Times that the engine that carries payload failed, so that the link was taken down.
    pub engines_lost: u64,
    /// Queue pairs that went to error.
    pub qp_errors: u64,
}

impl Counters {
    /// Counts what a peer wrote.
    #[cold]
    pub(crate) fn wrong(&mut self, what: Wrong) {
        self.violations += 1;
        self.last_violation = Some(what);
    }
}
