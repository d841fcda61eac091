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

#[test]
fn mtus_and_buffers_of_all_sizes() -> Result<()> {
    for (mtu, rmb_size) in [(1500, 0), (9000, 5), (5000, 2)] {
        let report = tell(Setup { mtu, rmb_size, ..Setup::default() }, |guest| {
            echo(guest, "5000000 1 1")?;
            // The guest's own buffers at the other end of what is possible.
            guest.sh("sysctl -w net.smc.rmem=16384 net.smc.wmem=16384")?;
            echo(guest, "300000 2 2")
        })?;
        ensure!(report.contains("fallbacks: {}"), "{report}");
        ensure!(report.contains("violations: 0, links_failed: 0"), "{report}");
    }
    Ok(())
}

#[test]
fn loss_and_bad_ends() -> Result<()> {
    let report = tell(Setup { loss: 100, ..Setup::default() }, |guest| {
        echo(guest, "1000000 1 2")?;
        echo(guest, "64 1 1 urgent")?;
        // Killed while idle, and with data that it never reads.
        guest.sh("smc echo 10.0.0.1 7 64 1 1 hold & sleep 1; kill -9 $!; wait; true")?;
        guest.sh("smc flood 10.0.0.1 7 & sleep 1; kill -9 $!; wait; true")?;
        echo(guest, "4096 10 4")
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    ensure!(report.contains("violations: 0, links_failed: 0"), "{report}");
    Ok(())
}

#[test]
fn tcp_where_smc_cannot_be() -> Result<()> {
    let report = tell(Setup::default(), |guest| {
        // A client that does not offer SMC, then one of another enterprise.
        echo(guest, "100000 2 3 tcp")?;
        guest.sh("rmmod smc_diag smc && modprobe -a smc smc_diag && smc eid OTHER")?;
        echo(guest, "100000 2 1")
    })?;
    ensure!(report.contains("fallbacks: {Reason(50528256): 1}"), "{report}");
    Ok(())
}

#[test]
fn a_peer_that_is_gone_is_let_go() -> Result<()> {
    let report = tell(Setup::default(), |guest| {
        echo(guest, "64 1 1")?;
        guest.sh("smc echo 10.0.0.1 7 64 1 1 hold > /tmp/held 2>&1 & sleep 1")?;
        guest.sh("rdma link del rxe0; sleep 3; rdma link add rxe0 type rxe netdev eth0")?;
        // Its link group is another one now.
        echo(guest, "4096 2 2")?;
        guest.sh("rmmod smc_diag; sleep 1; rmmod smc")?;
        guest.sh("modprobe -a smc smc_diag && smc eid LAB.SMC.EID")?;
        echo(guest, "4096 2 2")
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    Ok(())
}
