//! How a disk fares: what it measures of itself, and what its driver noticed.

use core::fmt;

/// What a disk measures of itself (for example NVMe 1.4, 5.14.1.2), and what its driver had to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Temperature in degrees Celsius.
    pub celsius: Option<i32>,
    /// Spare blocks that are left, in percent.
    pub spare: Option<u8>,
    /// How much of its life is used up, in percent of what the vendor expects; may exceed 100.
    pub used: Option<u8>,
    /// Times that it found data which it could not correct.
    pub media_errors: Option<u64>,
    /// Hours that it was powered.
    pub power_on_hours: Option<u64>,
    /// Requests that its driver had it abort, because they took too long.
    pub aborts: u64,
    /// Times that its driver had to reset it.
    pub resets: u64,
    /// It takes no more requests.
    pub gone: bool,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// All is well again.
    Information,
    /// It goes on, but somebody should see to it.
    Warning,
    /// The device cannot be used.
    Error,
}

/// Something that has happened to a disk or port: what, whose fault it is, and what to do. Does not name the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub text: &'static str,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}
