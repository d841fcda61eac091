//! Counters of the provider, since its start.

use core::fmt;

/// A protocol violation of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A command bell exceeds the ring.
    CommandBells,
    /// A command is invalid.
    Command,
    /// A bell of a queue pair exceeds its ring.
    EntryBell,
    /// An entry of a queue pair is invalid.
    Entry,
    /// It reports requests as done that were not sent, or an invalid response to an atomic.
    Done,
    /// A frame, or the bell of frames, is invalid.
    Frame,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wrong::CommandBells => "an impossible count of commands",
            Wrong::Command => "an invalid command",
            Wrong::EntryBell => "a count of a queue pair's entries that does not fit its ring",
            Wrong::Entry => "an invalid entry of a queue pair",
            Wrong::Done => "a completion of requests that were not sent",
            Wrong::Frame => "a frame that does not fit its ring",
        })
    }
}

/// All counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Send entries written to the peer.
    pub entries_sent: u64,
    /// Send entries of the peer that were executed.
    pub entries_received: u64,
    /// Batches announced to the peer.
    pub batches: u64,
    /// Bytes of payload that the peer reads in place.
    pub bytes_lent: u64,
    /// Bytes of payload written directly to their destination.
    pub bytes_placed: u64,
    /// Bytes of payload written to the peer's staging memory.
    pub bytes_staged: u64,
    /// Bytes of payload of the peer's SENDs and WRITEs that were copied here.
    pub bytes_copied: u64,
    /// Times that an entry waited for a receive, or for memory on demand.
    pub not_ready: u64,
    /// Protocol violations of peers: indices out of bounds, invalid entries and commands.
    pub violations: u64,
    /// The last violation.
    pub last_violation: Option<Wrong>,
    /// Ethernet frames written to the peer.
    pub frames_sent: u64,
    /// Ethernet frames received from the peer.
    pub frames_received: u64,
    /// Ethernet frames dropped, because the link was down or the peer has no ring for frames.
    pub frames_lost: u64,
    /// Times that the link came up.
    pub link_up: u64,
    /// Times that the link went down.
    pub link_down: u64,
    /// Completions dropped because their queue was full.
    pub completions_lost: u64,
    /// Failures of the copy engine, after which the link was taken down.
    pub engines_lost: u64,
    /// Queue pairs that went to error.
    pub qp_errors: u64,
}

impl Counters {
    /// Counts a violation.
    #[cold]
    pub(crate) fn wrong(&mut self, what: Wrong) {
        self.violations += 1;
        self.last_violation = Some(what);
    }
}
