//! Commands that enable, disable, drain and reset the device and its queues, and the tables that configure them.

use super::{
    BATCH, DISABLED, Dsa, ENABLED, ENTRIES, Fault, GROUP, GROUP_TABLE, LONGEST, PERMISSION_TABLE,
    QUEUE, QUEUE_TABLE, QUEUES,
};

// Error codes of commands.
const NO_COMMAND: u8 = 0x01;
const NO_QUEUE: u8 = 0x02;
const IS_ENABLED: u8 = 0x10;
const NO_BUS_MASTER: u8 = 0x12;
const BAD_SIZES: u8 = 0x14;
const BAD_GROUP: u8 = 0x15;
const NOT_ENABLED: u8 = 0x20;
const NO_SIZE: u8 = 0x22;
const NO_PRIORITY: u8 = 0x23;
const BAD_MODE: u8 = 0x24;
const BAD_BATCH: u8 = 0x27;
const BAD_LONGEST: u8 = 0x28;
const IS_DISABLED: u8 = 0x31;
const NOT_ENABLED_FOR_QUEUES: u8 = 0x32;

impl Dsa {
    /// Executes a command. An error is its error code.
    pub(super) fn execute_command(&mut self, word: u32) -> Result<(), u8> {
        let operand = word & 0xf_ffff;
        match word >> 20 & 31 {
            1 => self.enable(),
            2 if self.state != ENABLED => Err(IS_DISABLED),
            2 => {
                self.state = DISABLED;
                self.queues = Default::default();
                Ok(())
            }
            // A device that asks for another reset stays halted.
            5 if self.state >> 2 != 0 => Err(NO_COMMAND),
            5 => {
                self.state = DISABLED;
                self.tables.clear();
                self.queues = Default::default();
                Ok(())
            }
            6 => self.enable_queue(operand as usize),
            // Disable, drain, abort, reset of queues. `drains` has delayed disable and drain until the queues were
            // empty.
            7..=10 if self.state != ENABLED => Err(NOT_ENABLED_FOR_QUEUES),
            command @ 7..=10 => {
                for n in Self::named_queues(word) {
                    let queue = &mut self.queues[n];
                    if command >= 9 {
                        self.counts.aborted += queue.waiting.len() as u64;
                        queue.waiting.clear();
                        (queue.due, queue.hangs) = (None, false);
                    }
                    queue.is_enabled &= !matches!(command, 7 | 10);
                }
                Ok(())
            }
            _ => Err(NO_COMMAND),
        }
    }

    /// The queues that a command names.
    fn named_queues(word: u32) -> impl Iterator<Item = usize> {
        (0..QUEUES).filter(move |queue| word >> 16 & 15 == 0 && word & 1 << queue != 0)
    }

    /// Whether a command must wait: it drains or disables queues that still have descriptors.
    pub(super) fn drains(&self, word: u32) -> bool {
        let is_busy = |n: usize| !self.queues[n].waiting.is_empty();
        self.state == ENABLED
            && matches!(word >> 20 & 31, 7 | 8)
            && Self::named_queues(word).any(is_busy)
    }

    /// Whether a word of the tables is writable now. While the device is enabled, the entry of a disabled queue is
    /// writable except for its size.
    pub(super) fn is_open(&self, at: u64) -> bool {
        let queue = at.checked_sub(QUEUE_TABLE).filter(|_| at < PERMISSION_TABLE);
        let queue = queue.map(|at| ((at / QUEUE) as usize, at % QUEUE));
        match queue {
            _ if at >= PERMISSION_TABLE => true,
            _ if self.fault == Some(Fault::Locked) => false,
            _ if self.state == DISABLED => true,
            Some((n, at)) => at > 0 && self.queues.get(n).is_some_and(|queue| !queue.is_enabled),
            None => false,
        }
    }

    fn enable(&mut self) -> Result<(), u8> {
        let sizes = (0..QUEUES as u64).map(|n| u64::from(self.table(QUEUE_TABLE + n * QUEUE)));
        if self.state != DISABLED {
            return Err(IS_ENABLED);
        }
        if !self.config.is_bus_master() {
            return Err(NO_BUS_MASTER);
        }
        if sizes.sum::<u64>() > ENTRIES {
            return Err(BAD_SIZES);
        }
        self.state = ENABLED;
        Ok(())
    }

    fn enable_queue(&mut self, n: usize) -> Result<(), u8> {
        if n >= QUEUES {
            return Err(NO_QUEUE);
        }
        if self.state != ENABLED {
            return Err(NOT_ENABLED);
        }
        let at = QUEUE_TABLE + n as u64 * QUEUE;
        let (size, mode, limits) = (self.table(at), self.table(at + 8), self.table(at + 12));
        // Exactly one group has the queue, and it has an engine.
        let groups: Vec<u64> = (0..QUEUES as u64)
            .map(|group| GROUP_TABLE + group * GROUP)
            .filter(|group| self.table(*group) & 1 << n != 0)
            .collect();
        let has_engine = |group: &u64| self.table(group + 32) != 0;
        let checks = [
            (size == 0, NO_SIZE),
            (mode >> 4 & 15 == 0, NO_PRIORITY),
            (mode & 1 == 0, BAD_MODE),
            (u64::from(limits & 31) > LONGEST, BAD_LONGEST),
            (u64::from(limits >> 5 & 15) > BATCH, BAD_BATCH),
            (groups.len() != 1 || !groups.iter().all(has_engine), BAD_GROUP),
        ];
        if let Some((_, error)) = checks.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(error);
        }
        self.queues[n].is_enabled = true;
        Ok(())
    }
}
