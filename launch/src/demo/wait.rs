//! Waits for a state of the gateway.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::qemu::Vm;

const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(300);

/// Runs a console command until `is_right` accepts its output. Fails with the last output after 90 s.
pub fn for_text(gateway: &mut Vm, line: &str, is_right: impl Fn(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = gateway.run(line)?.text;
        if is_right(&reply) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("after {PATIENCE:?} `{line}` still prints:\n{reply}");
        }
        sleep(PAUSE);
    }
}

/// As [`for_text`], for a command that prints JSON.
pub fn for_json(gateway: &mut Vm, line: &str, is_right: impl Fn(&Value) -> bool) -> Result<()> {
    for_text(gateway, line, |text| serde_json::from_str(text).is_ok_and(|value| is_right(&value)))
}
