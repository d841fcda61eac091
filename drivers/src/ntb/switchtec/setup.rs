//! Programs the control blocks of both partitions as a state machine that never waits: the status is polled at
//! intervals. A block is locked, written, and configured; the lock excludes the other host meanwhile.

use super::registers;
use crate::hal::{Instant, Registers};
use core::time::Duration;

/// Interval of reading the status (Linux: 50 ms).
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time for an operation before it is started again (Linux gives up after 50 s).
const TIMEOUT: Duration = Duration::from_secs(50);

/// Settings to write to a control block.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// Admitted requesters, in this host's block.
    Requesters {
        /// Requester ID of this host.
        host: u16,
    },
    /// Translation of the peer's windows, in the peer's block.
    Windows {
        /// This host's partition.
        partition: u8,
        /// Entries of the peer's lookup table.
        entries: u16,
        /// Bus address of this host's page.
        page: u64,
        /// Exposed memory: bus address, and bytes, a power of two.
        exposed: (u64, u64),
    },
}

impl Job {
    /// Writes the settings to the locked block at offset `at`.
    fn write(self, own: &dyn Registers, at: usize) {
        match self {
            Job::Requesters { host } => {
                own.write32(at + registers::FLAGS, registers::UNPROTECTED);
                // The root complex, and the host.
                for (n, id) in [0, u32::from(host)].into_iter().enumerate() {
                    let entry = id << 16 | registers::REQUESTER_ENABLE;
                    own.write32(at + registers::REQUESTERS + 4 * n, entry);
                }
            }
            Job::Windows { partition, entries, page, exposed } => {
                let control = own.read32(at + registers::WINDOW) & registers::WINDOW_KEPT;
                let control = control
                    | registers::WINDOW_LOOKED_UP
                    | registers::LOOKED_UP.ilog2() << registers::ENTRY_LOG2_SHIFT
                    | u32::from(entries - 1) << registers::ENTRIES_SHIFT;
                let partition = u64::from(partition);
                let entry = registers::ENTRY_ENABLE | partition << 1 | page;
                own.write64(at + registers::TABLE, entry);
                let (address, bytes) = exposed;
                own.write32(at + registers::WINDOW, control | registers::WINDOW_DIRECT);
                own.write32(at + registers::WINDOW_SIZE, bytes.ilog2() | bytes as u32);
                own.write64(at + registers::WINDOW_TRANSLATION, partition | address);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Locking,
    Configuring,
}

/// A job and its progress.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    job: Job,
    /// Offset of the control block.
    at: usize,
    state: State,
    since: Option<Instant>,
    polled: Option<Instant>,
}

impl Setup {
    /// A job on the control block of a partition.
    pub fn new(job: Job, partition: u8) -> Self {
        let at = registers::CONTROL + registers::CONTROL_SIZE * usize::from(partition);
        Setup { job, at, state: State::Begin, since: None, polled: None }
    }

    /// Takes the next step. True if the job is done.
    pub fn poll(&mut self, own: &dyn Registers, now: Instant) -> bool {
        if self.polled.is_some_and(|polled| now.since(polled) < POLL_INTERVAL) {
            return false;
        }
        self.polled = Some(now);
        let status = own.read32(self.at + registers::STATUS) & 0xffff;
        match (self.state, status) {
            (State::Begin, _) => self.begin(own, now),
            (State::Locking, registers::LOCKED) => {
                self.job.write(own, self.at);
                own.write32(self.at + registers::OPERATION, registers::CONFIGURE);
                (self.state, self.since) = (State::Configuring, Some(now));
            }
            (State::Configuring, registers::NORMAL) => return true,
            (State::Locking, registers::LOCKING) | (State::Configuring, registers::CONFIGURING)
                if self.since.is_some_and(|since| now.since(since) < TIMEOUT) => {}
            // The partition was reset, it refused the settings, or the operation timed out.
            _ => self.state = State::Begin,
        }
        false
    }

    fn begin(&mut self, own: &dyn Registers, now: Instant) {
        own.write32(self.at + registers::OPERATION, registers::LOCK);
        (self.state, self.since) = (State::Locking, Some(now));
    }
}
