//! Console commands for bridges.

use crate::appliance::{Appliance, Told};
use crate::orders::Order;
use core::time::Duration;

/// Longest test, in seconds.
const LONGEST: u64 = 60;

/// Takes the link of one bridge down, or of the first.
pub(super) fn reset(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    match words {
        [] => appliance.carry_out(Order::ResetBridge(None)),
        [name] => appliance.carry_out(Order::ResetBridge(Some(name))),
        _ => Err("accepted: at most one bridge, by name".into()),
    }
}

/// Measures a bridge, by default the first, for some seconds a test, by default one.
pub(super) fn measure(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let (name, words) = match words {
        [name, rest @ ..] if name.starts_with("ntb") => (Some(*name), rest),
        _ => (None, words),
    };
    let seconds = match words {
        [] => Some(1),
        [word] => word.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds)),
        _ => None,
    };
    let time = seconds.map(Duration::from_secs);
    let time = time.ok_or("accepted: seconds for each test, 1 to 60")?;
    appliance.carry_out(Order::MeasureBridge(name, time))
}
