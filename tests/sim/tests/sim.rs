//! `./isthmus test sim`: scenarios with many seeds. `--seed N` replays one, and tells what happens.

/// Nodes that connect, send, write, read and add, on a bad network, with outages and reboots.
#[test]
fn roce() {
    fabric::explore("roce", 1500, sim::roce::run);
}

/// Hosts that use the volumes of a gateway, with outages, power cuts and bad disks.
#[test]
fn storage() {
    fabric::explore("storage", 1500, sim::storage::run);
}
