//! Notices to the operator about a virtio device that stalls, or that has written invalid entries to its queues. A
//! stalled device is not reset: the cause is the host, and a reset would lose the requests in flight.

use crate::hal::{Notice, Severity};

/// Seconds without a completion after which a device is reported.
const REPORT_AFTER: u8 = 10;

/// State of the monitor of a device.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// Consecutive checks, a second apart, in which the device had completed nothing.
    still: u8,
    broken: bool,
    notice: Option<Notice>,
}

impl Vigil {
    /// Notes a check, once a second: whether the device has requests and completed none since the last check.
    pub fn see(&mut self, stands_still: bool) {
        let was = self.still;
        self.still = if stands_still { was.saturating_add(1).min(REPORT_AFTER) } else { 0 };
        if self.still == REPORT_AFTER && was < REPORT_AFTER {
            self.note(
                Severity::Warning,
                "has completed nothing for 10 s: its host does not serve its requests",
            );
        }
        if was == REPORT_AFTER && self.still == 0 {
            self.note(Severity::Information, "works again");
        }
    }

    /// Notes that the device wrote invalid entries to its queues, and was reset.
    pub fn broke(&mut self) {
        if !core::mem::replace(&mut self.broken, true) {
            let text = "wrote invalid entries to its queues: it is reset and not used any more; its host is to blame";
            self.note(Severity::Error, text);
        }
    }

    fn note(&mut self, severity: Severity, text: &'static str) {
        self.notice = Some(Notice { severity, text });
    }

    /// Takes the next notice.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notice.take()
    }
}
