//! Stock AF_SMC clients against the appliance's engines in this process.

use std::fs;

use anyhow::{Context, Result, ensure};
use interop_tests::engines::{Engines, Setup};
use interop_tests::{client, programs};
use launch::guest::Guest;
use launch::workspace;

/// Runs `story` on a guest that speaks SMC-R, at the other end of the engines' wire.
fn tell(setup: Setup, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<String> {
    let directory = workspace::target().join("interop");
    fs::create_dir_all(&directory)?;
    let test = std::thread::current().name().unwrap_or("test").to_string();
    let capture = directory.join(format!("{test}.pcap"));
    let engines = Engines::start(setup)?;
    let told = client(engines.nic(), setup.mtu as u16).and_then(|mut guest| {
        guest.capture(0, &capture)?;
        programs::install(&mut guest, "smc")?;
        guest.sh("modprobe -a smc smc_diag && smc eid LAB.SMC.EID")?;
        story(&mut guest)
    });
    let report = engines.stop()?;
    told.with_context(|| format!("see {}; the engines said {report:#?}", capture.display()))?;
    fs::remove_file(capture)?;
    Ok(report.join("\n"))
}

/// Echoes over SMC-R, and looks while it does that no socket has fallen back.
fn echo(guest: &mut Guest, words: &str) -> Result<()> {
    let command = format!("timeout 100 smc echo 10.0.0.1 7 {words}");
    let said = guest.sh(&command)?;
    ensure!(said.trim() == "fine", "`{command}` said {said}");
    Ok(())
}

/// Whether all sockets of the guest that are in use speak SMC-R.
fn speaks_smc(guest: &mut Guest, connections: usize) -> Result<()> {
    guest.sh(&format!("smc echo 10.0.0.1 7 64 1 {connections} hold > /tmp/held 2>&1 &"))?;
    guest.sh("sleep 1")?;
    let sockets = guest.sh("smc sockets")?;
    let active = sockets.lines().filter(|line| line.starts_with("ACTIVE SMCR ")).count();
    ensure!(active == connections, "sockets:\n{sockets}");
    guest.sh("sleep 2; grep fine /tmp/held")?;
    Ok(())
}

#[test]
fn a_stock_client_gets_its_echo_over_smc_r() -> Result<()> {
    let report = tell(Setup::default(), |guest| {
        echo(guest, "64 10 1")?;
        speaks_smc(guest, 1)?;
        // Reuse, in parallel; data that wraps; a close without a half-close, and one with linger 0.
        echo(guest, "4096 4 8")?;
        echo(guest, "200000 2 1")?;
        echo(guest, "64 1 4 early")?;
        echo(guest, "64 1 1 linger0")?;
        speaks_smc(guest, 8)
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    ensure!(report.contains("client: 0, server: 24, first_contacts: 1"), "{report}");
    Ok(())
}
