//! Stock Linux against the appliance's engines in this process: their protocols on the wire, without the image's kernel
//! and drivers.
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use interop_tests::engines::{Engines, Setup};
use interop_tests::{client, storage, unmap};
use launch::guest::Guest;
use launch::workspace;
use rtrs::server::Config;

/// The capture file of this test.
fn capture_path() -> Result<PathBuf> {
    let directory = workspace::target().join("interop");
    fs::create_dir_all(&directory)?;
    let test = std::thread::current().name().unwrap_or("test").to_string();
    Ok(directory.join(format!("{test}.pcap")))
}

/// Runs a scenario with `setup` and a guest of the same MTU.
fn run_scenario(setup: Setup, scenario: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    run_with_engines(setup, |_, guest| scenario(guest))
}

/// As `run_scenario`, with access to the engines.
fn run_with_engines(
    setup: Setup,
    scenario: impl FnOnce(&Engines, &mut Guest) -> Result<()>,
) -> Result<()> {
    let mtu = setup.mtu as u16;
    let engines = Engines::start(setup)?;
    let capture = capture_path()?;
    let result = client(engines.nic(), mtu).and_then(|mut guest| {
        guest.capture(0, &capture)?;
        scenario(&engines, &mut guest)
    });
    let report = engines.stop()?;
    result.with_context(|| format!("see {}; the engines report {report:#?}", capture.display()))?;
    // Captures of failed tests are kept.
    Ok(fs::remove_file(capture)?)
}

/// As `run_scenario`, with /dev/rnbd0 mapped before and unmapped after.
fn run_mapped(setup: Setup, scenario: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    run_scenario(setup, |guest| {
        storage::map_ram0(guest)?;
        scenario(guest)?;
        unmap(guest, 0)
    })
}

fn jumbo() -> Setup {
    Setup { mtu: 9000, ..Setup::default() }
}

fn fixed_keys() -> Setup {
    Setup { storage: Config { always_invalidate: false, ..Config::default() }, ..Setup::default() }
}

#[test]
fn ext4_keeps_its_data() -> Result<()> {
    run_mapped(Setup::default(), |guest| storage::ext4_keeps_its_data(guest, 16))
}

#[test]
fn ext4_keeps_its_data_with_jumbo_frames_and_fixed_keys() -> Result<()> {
    run_mapped(Setup { mtu: 9000, ..fixed_keys() }, |guest| storage::ext4_keeps_its_data(guest, 16))
}

#[test]
fn fio_verifies() -> Result<()> {
    run_mapped(Setup::default(), |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn fio_verifies_with_a_short_queue_and_small_chunks() -> Result<()> {
    let storage = Config { queue_depth: 8, chunk_size: 8192, ..Config::default() };
    run_mapped(Setup { storage, ..jumbo() }, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn fio_verifies_when_one_frame_in_fifty_is_lost() -> Result<()> {
    let setup = Setup { loss: 50, ..Setup::default() };
    run_mapped(setup, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn connects_without_delay() -> Result<()> {
    run_scenario(Setup::default(), |guest| storage::connects_without_delay(guest, 10))
}

#[test]
fn volume_is_mapped_and_unmapped_twenty_times() -> Result<()> {
    run_scenario(Setup::default(), |guest| storage::map_and_unmap(guest, 20))
}

#[test]
fn access_modes_match_linux() -> Result<()> {
    run_scenario(Setup::default(), storage::access_modes_match_linux)
}

#[test]
fn flushes_and_discards() -> Result<()> {
    run_mapped(Setup::default(), storage::flushes_and_discards)
}

/// Runs a scenario in which the engines export a volume of the guest's server back to the guest's client.
fn run_remote(parameters: &str, scenario: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    run_with_engines(Setup { remote: true, ..Setup::default() }, |engines, guest| {
        guest.sh(&format!("modprobe rtrs-server {parameters}"))?;
        guest.sh("modprobe rnbd-server && modprobe brd rd_nr=1 rd_size=65536")?;
        engines.wait_mapped()?;
        storage::map_ram0(guest)?;
        scenario(guest)?;
        unmap(guest, 0)
    })
}

#[test]
fn a_volume_of_linux_is_exported_again() -> Result<()> {
    run_remote("always_invalidate=Y", |guest| {
        storage::fio_verifies(guest, 16, 32)?;
        storage::ext4_keeps_its_data(guest, 16)
    })
}

#[test]
fn a_volume_of_linux_with_fixed_keys_is_exported_again() -> Result<()> {
    run_remote("always_invalidate=N", |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn rping_is_answered_over_both_address_families() -> Result<()> {
    run_scenario(Setup::default(), |guest| {
        guest.sh("rping -c -a 10.0.0.1 -C 10 -S 4000 -V")?;
        guest.sh("rping -c -a fd00::1 -C 10 -S 4000 -V")?;
        Ok(())
    })
}
