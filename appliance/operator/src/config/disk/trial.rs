//! Trials on the config disk: which one the boot has found, and which one may still be armed.

use super::{ConfigDisk, HEADER_LEN, SECTOR, SLOT_LEN, SLOTS, WITHDRAW, Writing, slot};

impl ConfigDisk {
    /// Takes the trial that the load has found: the seconds for its confirmation, the document, and the sector and
    /// bytes that mark it as spent. They must be durable before the trial is started.
    pub fn take_trial(&mut self) -> Option<(u64, Vec<u8>, u64, Vec<u8>)> {
        let (slot, seconds, text) = self.trial.take()?;
        self.armed = Some(slot);
        let mut bytes = vec![0; SLOT_LEN];
        slot::write_as(&mut bytes, slot::SPENT, seconds, "").ok()?;
        bytes.truncate(HEADER_LEN);
        Some((seconds, text, self.first + (SLOTS[slot] / SECTOR) as u64, bytes))
    }

    /// Notes that the trial of [`Self::take_trial`] is durably marked as spent.
    pub fn note_spent(&mut self) {
        self.armed = None;
    }

    /// Whether the disk may hold a trial that the next boot starts, although this program has refused it.
    #[inline]
    pub fn is_in_doubt(&self) -> bool {
        self.armed.is_some() && self.steps.is_empty()
    }

    /// Starts to withdraw a trial in doubt.
    pub fn withdraw(&mut self) {
        if self.is_in_doubt() && !self.is_read_only() {
            self.begin_withdrawal();
        }
    }

    pub(super) fn begin_withdrawal(&mut self) {
        let mut bytes = vec![0; SLOT_LEN];
        slot::write_as(&mut bytes, slot::SPENT, 0, "").expect("an empty text fits");
        self.buffer.write(0, &bytes[..HEADER_LEN]).expect("the buffer holds a slot");
        (self.writing, self.steps, self.done) = (Writing::Withdrawal, WITHDRAW, 0);
    }
}
