//! Stock Linux's rnbd-client against the image.
use anyhow::{Context, Result};
use interop_tests::{Site, storage, unmap};
use launch::guest::Guest;

/// Tells a story to a guest that has the appliance's default volume before it.
fn tell(mtu: u16, words: &str, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let mut site = Site::boot(mtu, words)?;
    let told = story(&mut site.client);
    let log =
        site.gateway.run("show log").map_or_else(|error| format!("{error:#}"), |log| log.text);
    told.with_context(|| format!("the appliance's log:\n{log}"))
}

/// As `tell`, with /dev/rnbd0 mapped before and unmapped after.
fn tell_mapped(mtu: u16, words: &str, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    tell(mtu, words, |guest| {
        storage::map_ram0(guest)?;
        story(guest)?;
        unmap(guest, 0)
    })
}

#[test]
fn ext4_keeps_its_data() -> Result<()> {
    tell_mapped(1500, "", |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn ext4_keeps_its_data_with_jumbo_frames_and_fixed_keys() -> Result<()> {
    let words = "isthmus.rnbd.always_invalidate=false";
    tell_mapped(9000, words, |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn fio_verifies() -> Result<()> {
    tell_mapped(1500, "", |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn fio_verifies_with_a_short_queue_and_small_chunks() -> Result<()> {
    let words = "isthmus.rnbd.queue_depth=8 isthmus.rnbd.chunk_size=8KiB";
    tell_mapped(1500, words, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn maps_and_unmaps_twenty_times() -> Result<()> {
    tell(1500, "", |guest| storage::maps_and_unmaps(guest, 20))
}

#[test]
fn access_modes_are_linux_s() -> Result<()> {
    tell(1500, "", storage::access_modes_are_linux_s)
}

#[test]
fn flushes_and_discards() -> Result<()> {
    tell_mapped(1500, "", storage::flushes_and_discards)
}
