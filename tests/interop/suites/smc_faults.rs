//! Stock AF_SMC clients against the appliance's engines in this process: all MTUs and buffer sizes, loss, killed
//! clients and vanished devices.

use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::engines::Setup;
use interop_tests::smc::{echo, run_scenario, until_active};

#[test]
fn mtus_and_buffers_of_all_sizes_work() -> Result<()> {
    for (mtu, rmb_size) in [(1500, 0), (9000, 5), (5000, 2)] {
        let report = run_scenario(Setup { mtu, rmb_size, ..Setup::default() }, |guest| {
            echo(guest, "5000000 1 1")?;
            // The smallest buffers in the guest.
            guest.sh("sysctl -w net.smc.rmem=16384 net.smc.wmem=16384")?;
            echo(guest, "300000 2 2")
        })?;
        ensure!(report.contains("fallbacks: {}"), "{report}");
        ensure!(report.contains("violations: 0, links_failed: 0"), "{report}");
    }
    Ok(())
}

#[test]
fn loss_and_aborts_are_survived() -> Result<()> {
    let report = run_scenario(Setup { loss: 100, ..Setup::default() }, |guest| {
        echo(guest, "1000000 1 2")?;
        echo(guest, "64 1 1 urgent")?;
        // A client that is killed while idle, and one with unread data.
        let active = until_active(1);
        guest.sh(&format!(
            "smc echo 10.0.0.1 7 64 1 1 hold=60 & {active}; kill -9 $!; wait; true"
        ))?;
        // A second's worth of data.
        guest.sh(&format!("smc flood 10.0.0.1 7 & {active}; sleep 1; kill -9 $!; wait; true"))?;
        echo(guest, "4096 10 4")
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    ensure!(report.contains("violations: 0, links_failed: 0"), "{report}");
    Ok(())
}

#[test]
fn link_group_of_a_vanished_peer_is_released() -> Result<()> {
    let report = run_scenario(Setup::default(), |guest| {
        echo(guest, "64 1 1")?;
        let active = until_active(1);
        guest.sh(&format!("smc echo 10.0.0.1 7 64 1 1 hold > /tmp/held 2>&1 & {active}"))?;
        // The guest's device is removed for 3 s.
        guest.sh("rdma link del rxe0; sleep 3; rdma link add rxe0 type rxe netdev eth0")?;
        // The guest uses a new link group now.
        echo(guest, "4096 2 2")?;
        guest.sh("rmmod smc_diag")?;
        guest.wait_until("rmmod smc", Duration::from_secs(30))?;
        guest.sh("modprobe -a smc smc_diag && smc eid LAB.SMC.EID")?;
        echo(guest, "4096 2 2")
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    Ok(())
}
