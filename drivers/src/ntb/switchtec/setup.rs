//! Programming the control blocks of both partitions. A block is locked, written, and configured; the other host may want
//! the same one, and waits. Nothing here waits: the status is looked at every now and then.

use super::registers;
use crate::hal::{Instant, Registers};
use core::time::Duration;

/// How often the status is read (Linux: 50 ms).
const LOOK: Duration = Duration::from_millis(20);
/// How long an operation may take before it is begun anew (Linux gives up after 50 s).
const PATIENCE: Duration = Duration::from_secs(50);

/// What is to be written to a control block.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// Who may reach the other partition: to the own block.
    Requesters {
        /// Requester id of the host.
        host: u16,
    },
    /// Where the other host's windows lead: to its block.
    Windows {
        /// The own partition.
        partition: u8,
        /// Entries of the other's table.
        entries: u16,
        /// Bus address of the page that is shared.
        page: u64,
        /// Bus address and bytes of the memory that is exposed, a power of two.
        exposed: (u64, u64),
    },
}

impl Job {
    /// Writes it to the locked block whose registers begin at `at`.
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

/// One job under way.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    job: Job,
    /// Where the block's registers begin.
    at: usize,
    state: State,
    since: Option<Instant>,
    looked: Option<Instant>,
}

impl Setup {
    /// A job on the control block of a partition.
    pub fn new(job: Job, partition: u8) -> Self {
        let at = registers::CONTROL + registers::CONTROL_SIZE * usize::from(partition);
        Setup { job, at, state: State::Begin, since: None, looked: None }
    }

    /// Goes on with it; whether it is done.
    pub fn poll(&mut self, own: &dyn Registers, now: Instant) -> bool {
        if self.looked.is_some_and(|looked| now.since(looked) < LOOK) {
            return false;
        }
        self.looked = Some(now);
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
                if self.since.is_some_and(|since| now.since(since) < PATIENCE) => {}
            // Somebody has reset the partition, or it has refused what was written.
            _ => self.state = State::Begin,
        }
        false
    }

    fn begin(&mut self, own: &dyn Registers, now: Instant) {
        own.write32(self.at + registers::OPERATION, registers::LOCK);
        (self.state, self.since) = (State::Locking, Some(now));
    }
}
