//! The state of a device that the appliance uses, as its driver sees it.

use super::Instant;
use core::fmt;

/// A state of a device in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceState {
    /// It does not answer, or another device is in its place.
    Absent,
    /// Its driver resets it.
    Resetting,
    /// Its driver sets it up.
    Starting,
    /// It works.
    #[default]
    Ready,
    /// It works, with a fault that its driver has noted.
    Degraded,
    /// It does not work.
    Failed,
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeviceState::Absent => "absent",
            DeviceState::Resetting => "resetting",
            DeviceState::Starting => "starting",
            DeviceState::Ready => "ready",
            DeviceState::Degraded => "degraded",
            DeviceState::Failed => "failed",
        })
    }
}

/// The state of a device, why it is not ready, and when its driver tries it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLife {
    /// The state.
    pub state: DeviceState,
    /// Cause and remedy. Empty while the device is ready, and where its driver knows none.
    pub reason: &'static str,
    /// The next try; None if the driver tries nothing.
    pub next_try: Option<Instant>,
}

impl DeviceLife {
    /// A device in this state, for this reason.
    pub fn new(state: DeviceState, reason: &'static str) -> Self {
        DeviceLife { state, reason, next_try: None }
    }
}
