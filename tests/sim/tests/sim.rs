//! `./isthmus test sim`: scenarios with many seeds. `--seed N` replays one with a trace.

/// Nodes that connect, and use SEND, WRITE, READ and atomics, on a bad network, with outages and reboots.
#[test]
fn roce() {
    netsim::explore("roce", 1500, sim::roce::run);
}

/// A mirror whose members fail, come back and lose data, with power cuts.
#[test]
fn mirror() {
    netsim::explore("mirror", 1000, sim::mirror::run);
}

/// Hosts that use the volumes of a gateway, with outages, power cuts and bad disks.
#[test]
fn storage() {
    netsim::explore("storage", 800, sim::storage::run);
}

/// Malicious hosts receive no data of others.
#[test]
fn leak() {
    netsim::explore("leak", 400, sim::storage::leak::run);
}

/// A station with another host's IP address gets no answers, and does not disturb that host.
#[test]
fn thief() {
    netsim::explore("thief", 100, sim::storage::leak::thief);
}

/// Failover from a cut path takes less than a second with the default timers.
#[test]
fn failover() {
    let longest = sim::storage::failover::longest(1, 40);
    assert!(longest <= std::time::Duration::from_secs(1), "{longest:?}");
    assert!(longest >= std::time::Duration::from_millis(100), "nothing was cut: {longest:?}");
}

/// Goodput and retransmissions by loss and window, compared with the reviewed table. After an intended change run
/// `ISTHMUS_UPDATE=1 ./isthmus test sim --case grid`, and review the difference.
#[test]
fn grid() {
    let table = sim::roce::grid::table();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/grid.txt");
    if std::env::var_os("ISTHMUS_UPDATE").is_some() {
        std::fs::write(path, &table).expect("the table is writable");
    }
    let reviewed = std::fs::read_to_string(path).expect("the table exists");
    assert!(table == reviewed, "the reviewed table\n{reviewed}differs from\n{table}");
}
