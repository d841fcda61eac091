//! What an operator is told of a virtio device: that it broke its queues, or stands still. There is nothing that a driver
//! could do then: the device is the host's, and a reset would lose what it holds back.

use crate::hal::{Notice, Severity};

/// Looks, a second apart, after which a device that completes nothing is told of.
const PATIENCE: u8 = 10;

/// What was seen of a device.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// Looks in a row at which it had completed nothing.
    still: u8,
    broken: bool,
    notice: Option<Notice>,
}

impl Vigil {
    /// Whether it has completed nothing of what it has since the last look.
    pub fn see(&mut self, stands_still: bool) {
        let was = self.still;
        self.still = if stands_still { was.saturating_add(1).min(PATIENCE) } else { 0 };
        if self.still == PATIENCE && was < PATIENCE {
            self.note(
                Severity::Warning,
                "has completed nothing for 10 s of what it was given: its host holds it back",
            );
        }
        if was == PATIENCE && self.still == 0 {
            self.note(Severity::Information, "works again");
        }
    }

    /// It wrote nonsense to its queues, and was reset.
    pub fn broke(&mut self) {
        if !core::mem::replace(&mut self.broken, true) {
            let text = "wrote what makes no sense to its queues: it is reset and not used any more; its host is to blame";
            self.note(Severity::Error, text);
        }
    }

    fn note(&mut self, severity: Severity, text: &'static str) {
        self.notice = Some(Notice { severity, text });
    }

    /// What is to be told.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }
}
