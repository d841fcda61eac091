//! Stock Linux against the appliance's engines in this process: what they do on the wire, without the
//! image's kernel and drivers.
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use interop_tests::engines::{Engines, Setup};
use interop_tests::{client, storage, unmap};
use launch::guest::Guest;
use launch::workspace;
use rtrs::server::Config;

/// Where the frames of this test go.
fn capture_path() -> Result<PathBuf> {
    let directory = workspace::target().join("interop");
    fs::create_dir_all(&directory)?;
    let test = std::thread::current().name().unwrap_or("test").to_string();
    Ok(directory.join(format!("{test}.pcap")))
}

/// Tells a story with `setup` and a guest of the same MTU.
fn tell(setup: Setup, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    tell_both(setup, |_, guest| story(guest))
}

/// As `tell`, of the engines too.
fn tell_both(setup: Setup, story: impl FnOnce(&Engines, &mut Guest) -> Result<()>) -> Result<()> {
    let mtu = setup.mtu as u16;
    let engines = Engines::start(setup)?;
    let capture = capture_path()?;
    let told = client(engines.nic(), mtu).and_then(|mut guest| {
        guest.capture(0, &capture)?;
        story(&engines, &mut guest)
    });
    let report = engines.stop()?;
    told.with_context(|| format!("see {}; the engines said {report:#?}", capture.display()))?;
    // What is to be looked at is what went wrong.
    Ok(fs::remove_file(capture)?)
}

/// As `tell`, with /dev/rnbd0 mapped before and unmapped after.
fn tell_mapped(setup: Setup, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    tell(setup, |guest| {
        storage::map_ram0(guest)?;
        story(guest)?;
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
    tell_mapped(Setup::default(), |guest| storage::ext4_keeps_its_data(guest, 16))
}

#[test]
fn ext4_keeps_its_data_with_jumbo_frames_and_fixed_keys() -> Result<()> {
    tell_mapped(Setup { mtu: 9000, ..fixed_keys() }, |guest| {
        storage::ext4_keeps_its_data(guest, 16)
    })
}

#[test]
fn fio_verifies() -> Result<()> {
    tell_mapped(Setup::default(), |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn fio_verifies_with_a_short_queue_and_small_chunks() -> Result<()> {
    let storage = Config { queue_depth: 8, chunk_size: 8192, ..Config::default() };
    tell_mapped(Setup { storage, ..jumbo() }, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn fio_verifies_when_one_frame_in_fifty_is_lost() -> Result<()> {
    let setup = Setup { loss: 50, ..Setup::default() };
    tell_mapped(setup, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn connects_without_delay() -> Result<()> {
    tell(Setup::default(), |guest| storage::connects_without_delay(guest, 10))
}

#[test]
fn maps_and_unmaps_twenty_times() -> Result<()> {
    tell(Setup::default(), |guest| storage::maps_and_unmaps(guest, 20))
}

#[test]
fn access_modes_are_linux_s() -> Result<()> {
    tell(Setup::default(), storage::access_modes_are_linux_s)
}

#[test]
fn flushes_and_discards() -> Result<()> {
    tell_mapped(Setup::default(), storage::flushes_and_discards)
}

/// The guest's server, with or without keys that die with every use, and its own client behind us.
fn tell_remote(parameters: &str, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    tell_both(Setup { remote: true, ..Setup::default() }, |engines, guest| {
        guest.sh(&format!("modprobe rtrs-server {parameters}"))?;
        guest.sh("modprobe rnbd-server && modprobe brd rd_nr=1 rd_size=65536")?;
        engines.wait_mapped()?;
        storage::map_ram0(guest)?;
        story(guest)?;
        unmap(guest, 0)
    })
}

#[test]
fn a_volume_of_linux_is_exported_again() -> Result<()> {
    tell_remote("always_invalidate=Y", |guest| {
        storage::fio_verifies(guest, 16, 32)?;
        storage::ext4_keeps_its_data(guest, 16)
    })
}

#[test]
fn a_volume_of_linux_with_fixed_keys_is_exported_again() -> Result<()> {
    tell_remote("always_invalidate=N", |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn rping_is_answered_over_both_address_families() -> Result<()> {
    tell(Setup::default(), |guest| {
        guest.sh("rping -c -a 10.0.0.1 -C 10 -S 4000 -V")?;
        guest.sh("rping -c -a fd00::1 -C 10 -S 4000 -V")?;
        Ok(())
    })
}
