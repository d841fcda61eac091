//! `./isthmus test sim`: scenarios with many seeds. `--seed N` replays one with a trace.

/// Nodes that connect, and use SEND, WRITE, READ and atomics, on a bad network, with outages and reboots.
#[test]
fn roce() {
    netsim::explore("roce", 1500, sim::roce::run);
}

/// Two latency faults of one link once multiplied to 7.5 s. Frames were late after all faults had ended, and delayed new
/// connections.
#[test]
fn roce_link_slowed_twice_connects_after_faults() {
    sim::roce::run(2_629_221_523);
}

/// The request of a host that lost power, delayed by a slow link, arrived while all connections were ended.
#[test]
fn roce_request_delayed_beyond_end_times_out() {
    sim::roce::run(80_156_042_623);
}

/// A mirror whose members fail, come back and lose data, with power cuts.
#[test]
fn mirror() {
    netsim::explore("mirror", 1000, sim::mirror::run);
}

/// The only disk in sync fell silent while the other one was detached: the mirror has to wait for it.
#[test]
fn mirror_detached_disk_leaves_other_disk_answering() {
    sim::mirror::run(452_713_585_508);
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
