//! `show upgrade`: the slots and the watchdog.

use crate::report::Value;
use crate::status::{SlotStatus, UpgradeStatus};

/// The slots, and the watchdog that supervises a trial.
pub(crate) fn report(status: &UpgradeStatus<'_>) -> Value {
    let (watchdog, seconds) = status.watchdog;
    let Some(slots) = &status.slots else {
        return Value::object([
            ("runs", "without slots".into()),
            ("watchdog", watchdog.into()),
            ("watchdog_seconds", u64::from(seconds).into()),
        ]);
    };
    Value::object([
        ("runs", slots.runs.into()),
        ("trial", slots.trial.into()),
        ("watchdog", watchdog.into()),
        ("watchdog_seconds", u64::from(seconds).into()),
        ("failed", slots.failed.into()),
        ("slots", Value::list(slots.slots.iter().map(slot))),
    ])
}

fn slot(slot: &SlotStatus<'_>) -> Value {
    Value::object([
        ("slot", slot.name.into()),
        ("version", slot.version.to_string().into()),
        ("bytes", slot.bytes.into()),
        ("made", slot.made.into()),
        ("runs", slot.runs.into()),
        ("boots", slot.boots.into()),
    ])
}
