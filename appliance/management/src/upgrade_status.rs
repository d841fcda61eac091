//! Statuses of the slots that releases boot from.

/// A slot that releases boot from.
#[derive(Clone, Copy, Debug)]
pub struct SlotStatus<'a> {
    /// Letter of the slot.
    pub name: &'static str,
    /// Version of the slot's release; empty without one.
    pub version: &'a str,
    /// Size of the release in bytes.
    pub bytes: u64,
    /// Time when the release was made, in seconds since 1970.
    pub made: u64,
    /// The release is running.
    pub runs: bool,
    /// Whether the slot boots next, in words.
    pub boots: &'static str,
}

/// The slots of the disk that the appliance was booted from.
pub struct SlotsStatus<'a> {
    /// Letter of the running slot.
    pub runs: &'static str,
    /// The running release is on trial.
    pub trial: bool,
    /// Letter of the slot whose trial failed before this boot.
    pub failed: Option<&'static str>,
    /// Both slots.
    pub slots: [SlotStatus<'a>; 2],
}

/// Slots and watchdog for `upgrade`.
pub struct UpgradeStatus<'a> {
    /// Driver of the watchdog, and its timeout in seconds.
    pub watchdog: (Option<&'static str>, u16),
    /// The slots. None if the boot disk has none.
    pub slots: Option<SlotsStatus<'a>>,
}
