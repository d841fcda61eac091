//! Stock Linux against the appliance's engines under faults, and with unusual queue depths and chunk sizes.
use std::time::Duration;

use anyhow::{Context, Result};
use interop_tests::engines::{Engines, Setup};
use interop_tests::{client, storage, system, unmap};
use launch::guest::Guest;
use rtrs::server::Config;

/// Runs a scenario on a client that has mapped the volume. An error has the engines' report.
fn run_scenario(
    setup: Setup,
    cpus: u32,
    scenario: impl FnOnce(&mut Engines, &mut Guest) -> Result<()>,
) -> Result<()> {
    let mut engines = Engines::start(setup)?;
    let result = guest(&engines, setup.mtu as u16, cpus).and_then(|mut guest| {
        storage::map_ram0(&mut guest)?;
        scenario(&mut engines, &mut guest).with_context(|| {
            guest.sh("dmesg | grep -E 'rnbd|rtrs|rxe' | tail -n 20").unwrap_or_default()
        })
    });
    let report = engines.stop()?;
    result.with_context(|| format!("the engines report {report:#?}"))
}

fn guest(engines: &Engines, mtu: u16, cpus: u32) -> Result<Guest> {
    if cpus == 1 {
        return client(engines.nic(), mtu);
    }
    let spec = system()?.spec("client", &["10.0.0.2/24,fd00::2/64"], mtu);
    let mut guest = Guest::start("client", spec.nic(engines.nic()).first_mac(2).cpus(cpus))?;
    guest.wait_up()?;
    guest.soft_roce()?;
    Ok(guest)
}

/// Waits until the client's only path is connected, and the device completes I/O.
fn wait_until_back(guest: &mut Guest) -> Result<()> {
    let back = "[ $(cat /sys/class/rtrs-client/s1/paths/*/state) = connected ] && \
                dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
    guest.wait_until(back, Duration::from_secs(120)).context("the path did not reconnect")
}

#[test]
fn heartbeats_keep_an_idle_session() -> Result<()> {
    run_scenario(Setup::default(), 1, |_, guest| {
        // Longer than the timeout of heartbeats.
        std::thread::sleep(Duration::from_secs(45));
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
             [ \"$(cat /sys/class/rtrs-client/s1/paths/*/stats/reconnects)\" = '0 0' ]")?;
        unmap(guest, 0)
    })
}

#[test]
fn a_silent_outage_of_40_seconds_is_survived() -> Result<()> {
    run_scenario(Setup::default(), 1, |engines, guest| {
        guest.sh("dd if=/dev/urandom of=/tmp/a bs=64k count=8 2>/dev/null
             dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null")?;
        engines.mute(true);
        // The outage.
        std::thread::sleep(Duration::from_secs(40));
        engines.mute(false);
        wait_until_back(guest)?;
        guest.sh("dd if=/dev/rnbd0 of=/tmp/b bs=64k count=8 iflag=direct 2>/dev/null
             cmp /tmp/a /tmp/b")?;
        unmap(guest, 0)
    })
}

#[test]
fn client_reconnects_to_a_restarted_gateway() -> Result<()> {
    run_scenario(Setup::default(), 1, |engines, guest| {
        engines.restart()?;
        wait_until_back(guest)?;
        storage::ext4_keeps_its_data(guest, 4)?;
        unmap(guest, 0)
    })
}

/// Minutes of load with all block sizes. The appliance sends a lost ACK again before the client's soft-RoCE
/// retransmits, which soft-RoCE would not survive.
#[test]
fn loss_of_two_percent_is_survived_at_depth_32() -> Result<()> {
    for always_invalidate in [true, false] {
        let storage = Config { always_invalidate, ..Config::default() };
        run_scenario(Setup { storage, loss: 50, ..Setup::default() }, 1, |_, guest| {
            for _ in 0..3 {
                storage::fio_verifies(guest, 16, 32)?;
            }
            guest
                .sh("[ \"$(cat /sys/class/rtrs-client/s1/paths/*/stats/reconnects)\" = '0 0' ]")?;
            unmap(guest, 0)
        })?;
    }
    Ok(())
}

#[test]
fn a_client_with_two_cpus_uses_three_connections() -> Result<()> {
    run_scenario(Setup::default(), 2, |_, guest| {
        storage::fio_verifies(guest, 8, 32)?;
        unmap(guest, 0)
    })
}

#[test]
fn shallowest_queue_and_largest_chunks_work() -> Result<()> {
    for (queue_depth, chunk_size) in [(64, 1 << 20), (2, 8192)] {
        let storage = Config { queue_depth, chunk_size, ..Config::default() };
        run_scenario(Setup { storage, ..Setup::default() }, 1, |_, guest| {
            storage::ext4_keeps_its_data(guest, 4)?;
            unmap(guest, 0)
        })?;
    }
    Ok(())
}
