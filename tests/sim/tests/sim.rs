//! `./isthmus test sim`: scenarios with many seeds. `--seed N` replays one, and tells what happens.

/// Nodes that connect, send, write, read and add, on a bad network, with outages and reboots.
#[test]
fn roce() {
    netsim::explore("roce", 1500, sim::roce::run);
}

/// A mirror whose members fail, come back and forget, with power cuts.
#[test]
fn mirror() {
    netsim::explore("mirror", 1000, sim::mirror::run);
}

/// Hosts that use the volumes of a gateway, with outages, power cuts and bad disks.
#[test]
fn storage() {
    netsim::explore("storage", 800, sim::storage::run);
}

/// Hosts that keep to no protocol see nothing of others.
#[test]
fn leak() {
    netsim::explore("leak", 400, sim::storage::leak::run);
}

/// A station with another host's IP address gets nothing, and disturbs nobody.
#[test]
fn thief() {
    netsim::explore("thief", 100, sim::storage::leak::thief);
}

/// A path that is cut is left within a second, with the timers as they come.
#[test]
fn failover() {
    let longest = sim::storage::failover::longest(1, 40);
    assert!(longest <= std::time::Duration::from_secs(1), "{longest:?}");
    assert!(longest >= std::time::Duration::from_millis(100), "nothing was cut: {longest:?}");
}

/// Loss and window against goodput and repetitions, as it was reviewed. When a change is meant:
/// `ISTHMUS_UPDATE=1 ./isthmus test sim --case grid`, and look at the difference.
#[test]
fn grid() {
    let table = sim::roce::grid::table();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grid.txt");
    if std::env::var_os("ISTHMUS_UPDATE").is_some() {
        std::fs::write(path, &table).expect("the table can be written");
    }
    let reviewed = std::fs::read_to_string(path).expect("the table is there");
    assert!(table == reviewed, "it was\n{reviewed}and is\n{table}");
}
