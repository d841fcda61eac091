//! `./isthmus test sim`: scenarios with many seeds. `--seed N` replays one, and tells what happens.

/// Nodes that connect, send, write, read and add, on a bad network, with outages and reboots.
#[test]
fn roce() {
    fabric::explore("roce", 1500, sim::roce::run);
}
