//! Health of a disk, and notices of drivers for the operator.

use core::fmt;

/// Health as a disk reports it (for example NVMe 1.4, 5.14.1.2), and recovery actions of its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Temperature in degrees Celsius.
    pub celsius: Option<i32>,
    /// Remaining spare blocks in percent.
    pub spare: Option<u8>,
    /// Used endurance in percent of the vendor's estimate; may exceed 100.
    pub used: Option<u8>,
    /// Uncorrectable media errors.
    pub media_errors: Option<u64>,
    /// Power-on hours.
    pub power_on_hours: Option<u64>,
    /// Requests that the driver aborted because they timed out.
    pub aborts: u64,
    /// Resets by the driver.
    pub resets: u64,
    /// The disk accepts no more requests.
    pub gone: bool,
}

/// Severity of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The device works again.
    Information,
    /// The device works, but needs the operator's attention.
    Warning,
    /// The device cannot be used.
    Error,
}

/// An event of a disk or port for the operator: what happened, who is to blame, and what to do. Does not name the
/// device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Severity.
    pub severity: Severity,
    /// Text for the log.
    pub text: &'static str,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}
