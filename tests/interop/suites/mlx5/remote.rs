//! The image as a client of a stock Linux server over cards that do RoCE; it exports the server's volume again.

use interop_tests::remote::{serve, wait_for};

use super::faults::until;
use super::*;

/// Settings with which the image maps the guest's disk.
const FAR: &str = "isthmus.volume=[] isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
    isthmus.remote.0.device_path=/dev/ram0 isthmus.remote.0.path=ip:10.1.0.2@ip:10.1.0.1";
const OPEN: &str = "/dev/ram0,open,";

/// Stock Linux serves with this parameter of `rtrs-server`, and maps the volume that the image exports again; and once
/// more after a reset of the image's card.
fn a_volume_of_linux_is_exported_again(parameter: &str) -> Result<()> {
    let mut cards = Cards::boot(&[], FAR)?;
    serve(&mut cards.linux.guest, parameter)?;
    wait_for(&mut cards.vm, "remote list csv", OPEN, LIMIT)?;
    map(&mut cards.linux.guest, "s1", &format!("ip:{HERE}@ip:{THERE}"), "far", "")?;
    storage::fio_verifies(&mut cards.linux.guest, 8, 16)?;
    storage::flushes_and_discards(&mut cards.linux.guest)?;
    cards.linux.sh("cmp /dev/rnbd0 /dev/ram0")?;
    let counters = cards.linux.model.counters_so_far()?;
    are_zero(&counters, &BOTH, &["roce_dropped"])?;
    unmap(&mut cards.linux.guest, 0)?;

    let reads = "remote read far count=2000 size=4KiB depth=32";
    cards.vm.run(reads)?.contains("2000 reads of 4096 bytes")?;
    cards.linux.model.order(1, "all-ones")?;
    until(&mut cards.vm, |port| port["resets"] != 0 && port["link"] != "down")?;
    wait_for(
        &mut cards.vm,
        "cat /rtrs-client/gw/paths/ip:10.1.0.2@ip:10.1.0.1/state",
        "connected",
        LIMIT,
    )?;
    cards.vm.run(reads)?.contains("2000 reads of 4096 bytes")?;
    map(&mut cards.linux.guest, "s2", &format!("ip:{HERE}@ip:{THERE}"), "far", "")?;
    storage::fio_verifies(&mut cards.linux.guest, 8, 16)?;
    cards.linux.sh("cmp /dev/rnbd0 /dev/ram0")?;
    unmap(&mut cards.linux.guest, 0)?;
    drop(cards.vm);
    let counters = cards.linux.end()?;
    are_zero(&counters, &BOTH, &RULES)?;
    have_sent_roce(&counters, &BOTH, 10_000)
}

#[test]
fn a_volume_of_linux_with_fresh_keys_is_exported_again() -> Result<()> {
    a_volume_of_linux_is_exported_again("always_invalidate=Y")
}

#[test]
fn a_volume_of_linux_with_lasting_keys_is_exported_again() -> Result<()> {
    a_volume_of_linux_is_exported_again("always_invalidate=N")
}
