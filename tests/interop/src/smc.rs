//! Stock AF_SMC guests as clients of the engines, and helpers for SMC-R in a guest.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::guest::Guest;
use launch::workspace;

use crate::engines::{Engines, Setup};
use crate::{client, programs};

/// Runs `scenario` on a guest that speaks SMC-R, at the other end of the engines' wire. Returns the engines' report.
pub fn run_scenario(
    setup: Setup,
    scenario: impl FnOnce(&mut Guest) -> Result<()>,
) -> Result<String> {
    let directory = workspace::target().join("interop");
    fs::create_dir_all(&directory)?;
    let test = std::thread::current().name().unwrap_or("test").to_string();
    let capture = directory.join(format!("{test}.pcap"));
    let engines = Engines::start(setup)?;
    let result = client(engines.nic(), setup.mtu as u16).and_then(|mut guest| {
        guest.capture(0, &capture)?;
        prepare(&mut guest)?;
        scenario(&mut guest)?;
        engines.wait_dialed()
    });
    let report = engines.stop()?;
    result.with_context(|| format!("see {}; the engines report {report:#?}", capture.display()))?;
    fs::remove_file(capture)?;
    Ok(report.join("\n"))
}

/// Enables SMC-R in a guest, with the EID LAB.SMC.EID.
pub fn prepare(guest: &mut Guest) -> Result<()> {
    programs::install(guest, "smc")?;
    guest.sh("modprobe -a smc smc_diag && smc eid LAB.SMC.EID")?;
    Ok(())
}

/// Starts an echo server in the guest, over TCP only if `words` has `tcp`, and waits until it listens.
pub fn serve(guest: &mut Guest, port: u16, words: &str) -> Result<()> {
    guest.sh(&format!("smc serve {port} {words} >/dev/null 2>&1 &"))?;
    wait_listening(guest, port)
}

/// Waits until a socket in the guest listens on a TCP port, which AF_SMC sockets do too.
pub fn wait_listening(guest: &mut Guest, port: u16) -> Result<()> {
    let listens = format!("netstat -ltn | grep -q ':{port} '");
    guest.wait_until(&listens, Duration::from_secs(30))
}

/// A shell command that waits until this many sockets of the guest speak SMC-R. It has no timeout of its own.
pub fn until_active(sockets: usize) -> String {
    format!("until [ $(smc sockets | grep -c '^ACTIVE SMCR ') = {sockets} ]; do sleep 0.1; done")
}

/// Runs an echo against port 7, and checks that it succeeds.
pub fn echo(guest: &mut Guest, words: &str) -> Result<()> {
    let command = format!("timeout 100 smc echo 10.0.0.1 7 {words}");
    let output = guest.sh(&command)?;
    ensure!(output.trim() == "fine", "`{command}` printed {output}");
    Ok(())
}

/// Checks that this many echo connections all use SMC-R.
pub fn speaks_smc(guest: &mut Guest, connections: usize) -> Result<()> {
    guest.sh(&format!("smc echo 10.0.0.1 7 64 1 {connections} hold=4 > /tmp/held 2>&1 &"))?;
    let active = format!("[ $(smc sockets | grep -c '^ACTIVE SMCR ') = {connections} ]");
    let waited = guest.wait_until(&active, Duration::from_secs(30));
    let sockets = guest.sh("smc sockets")?;
    waited.with_context(|| format!("sockets:\n{sockets}"))?;
    guest.wait_until("grep fine /tmp/held", Duration::from_secs(60))
}
