//! The client's objects beside the attributes that Linux documents: `Documentation/ABI/testing/sysfs-class-rtrs-client`,
//! `sysfs-class-rnbd-client` and `sysfs-block-rnbd`.

use super::*;
use crate::rdma_devices::tests::devices;
use core::time::Duration;
use rtrs::client::{PathId, PathState, PathStats};
use storage::rnbd::client::{DeviceId, DeviceState};
use storage::rnbd::wire::AccessMode;

/// Attributes of `/sys/class/rtrs-client/SESSION`.
const SESSION: [&str; 4] = ["add_path", "max_reconnect_attempts", "mp_policy", "paths"];
/// Attributes of a path.
const PATH: [&str; 8] = [
    "state",
    "reconnect",
    "disconnect",
    "remove_path",
    "hca_name",
    "hca_port",
    "src_addr",
    "dst_addr",
];
/// Attributes of a path's `stats`. The last two are those of the document's first version.
const STATS: [&str; 6] =
    ["reset_all", "cpu_migration", "reconnects", "rdma", "rdma_lat", "wc_completion"];
/// Attributes of `/sys/block/rnbdN/rnbd`.
const DEVICE: [&str; 8] = [
    "unmap_device",
    "state",
    "session",
    "mapping_path",
    "access_mode",
    "resize",
    "remap_device",
    "nr_poll_queues",
];

/// The value below `name`.
fn at<'a>(value: &'a Value, name: &str) -> &'a Value {
    let Value::Object(entries) = value else { panic!("{name}: not in an object") };
    let found = entries.iter().find(|(one, _)| one == name);
    &found.unwrap_or_else(|| panic!("{name} is missing")).1
}

/// Fails if a value lacks one of the attributes, or an attribute is empty.
fn has_all(value: &Value, names: &[&str]) {
    for name in names {
        assert!(!matches!(at(value, name), Value::None), "{name} is empty");
    }
}

fn stats() -> PathStats {
    let mut stats = PathStats {
        reads: 1,
        read_bytes: 2,
        writes: 3,
        write_bytes: 4,
        failovers: 6,
        reconnects: 7,
        reconnects_failed: 8,
        completions: 4,
        ..PathStats::default()
    };
    [1, 1, 1, 2].into_iter().for_each(|run| stats.runs.count(run));
    stats.read_latency.record(3_000_000);
    stats.write_latency.record(500);
    stats
}

#[test]
fn path_has_the_attributes_of_linux() {
    let stats = stats();
    let status = PathStatus {
        id: PathId(0),
        from: "10.0.1.1".parse().unwrap(),
        to: "10.0.1.2:1234".parse().unwrap(),
        state: PathState::Connected,
        attempts: 0,
        last_failure: None,
        connections: 2,
        in_flight: 5,
        latency: Duration::ZERO,
        stats: &stats,
    };
    let tree = path(&status, &devices());
    has_all(&tree, &PATH);
    assert_eq!(at(&tree, "hca_name").to_json(), "\"roce1\"");
    assert_eq!(at(&tree, "hca_port").to_json(), "1");
    assert_eq!(at(&tree, "src_addr").to_json(), "\"ip:10.0.1.1\"");
    assert_eq!(at(&tree, "dst_addr").to_json(), "\"ip:10.0.1.2\"");
    let stats = at(&tree, "stats");
    has_all(stats, &STATS);
    // <read-count> <read-total-size> <write-count> <write-total-size> <inflights> <failovered>
    let rdma = at(stats, "rdma").to_json();
    assert!(
        rdma.starts_with(
            "{\"rd_cnt\":1,\"rd_bytes\":2,\"wr_cnt\":3,\"wr_bytes\":4,\"inflight\":5,\"failover\":6,"
        ),
        "{rdma}"
    );
    assert_eq!(at(stats, "reconnects").to_json(), "{\"successful\":7,\"failed\":8}");
    assert_eq!(at(stats, "cpu_migration").to_json(), "{\"from\":0,\"to\":0}");
    assert_eq!(at(stats, "wc_completion").to_json(), "{\"max\":3,\"average\":2}");
    let latencies = at(stats, "rdma_lat");
    let Value::List(classes) = at(latencies, "classes") else { panic!("no classes") };
    assert_eq!(classes[0].to_json(), "{\"below_ms\":1,\"read\":0,\"write\":1}");
    assert_eq!(classes[2].to_json(), "{\"below_ms\":4,\"read\":1,\"write\":0}");
    assert_eq!(classes[16].to_json(), "{\"below_ms\":65536,\"read\":0,\"write\":0}");
    assert_eq!(classes[17].to_json(), "{\"below_ms\":null,\"read\":0,\"write\":0}");
    let longest = at(at(latencies, "maximum_ms"), "read");
    assert!(matches!(longest, Value::Float(ms) if (*ms - 3.0).abs() < 1e-9));
}

#[test]
fn session_and_device_have_the_attributes_of_linux() {
    let tree = session_tree(None, Policy::MinInflight, None, Vec::new());
    has_all(&tree, &SESSION);
    assert_eq!(at(&tree, "max_reconnect_attempts").to_json(), "\"-1\"");
    let status = DeviceStatus {
        id: DeviceId(0),
        name: rtrs::Name::new("/dev/ram0").unwrap(),
        mode: AccessMode::ReadWrite,
        state: DeviceState::Open,
        last_error: None,
        geometry: drivers::hal::Geometry::ABSENT,
        requests: 0,
    };
    let tree = device_tree(&status, "s1", 2);
    has_all(&tree, &DEVICE);
    assert_eq!(at(&tree, "mapping_path").to_json(), "\"/dev/ram0\"");
    assert_eq!(at(&tree, "nr_poll_queues").to_json(), "2");
}

#[test]
fn ends_are_read_as_linux_writes_them() {
    let addresses = ["10.0.0.2", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap());
    for text in ["ip:10.0.0.2", "10.0.0.2", "gid:::ffff:10.0.0.2", "gid:::ffff:a00:2"] {
        assert_eq!(end(text), Ok(addresses[0]), "{text}");
    }
    for text in ["ip:fd00::2", "gid:fd00:0000:0000:0000:0000:0000:0000:0002"] {
        assert_eq!(end(text), Ok(addresses[1]), "{text}");
    }
    for text in ["", "ip:", "gid:10.0.0.2", "gid:x", "ip:10.0.0.2:1234"] {
        assert!(end(text).is_err(), "{text}");
    }
}

#[test]
fn map_device_is_remote_add_and_unmap_device_remote_remove() {
    const MAP: &str = "/rnbd-client/ctl/map_device";
    let remote = |verb, rest: &str| Some(Ok((ObjectVerb::Remote(verb), rest.to_string())));
    assert_eq!(
        command(MAP, "sessname=s path=ip:10.0.0.2 device_path=/dev/ram0"),
        remote(RemoteVerb::Add, "dev.ram0 sessname=s path=ip:10.0.0.2 device_path=/dev/ram0")
    );
    assert_eq!(
        command(MAP, "name=far sessname=s path=ip:10.0.0.2 device_path=/dev/ram0"),
        remote(RemoteVerb::Add, "far sessname=s path=ip:10.0.0.2 device_path=/dev/ram0")
    );
    assert!(matches!(command(MAP, "sessname=s"), Some(Err(_))));
    assert!(matches!(command(MAP, "name=a/b device_path=/x"), Some(Err(_))));
    let unmap = "/rnbd-client/ctl/devices/far/unmap_device";
    assert_eq!(command(unmap, "normal"), remote(RemoteVerb::Remove, "far"));
    assert!(matches!(command(unmap, "force"), Some(Err(_))));
    assert_eq!(command("/rnbd-client/ctl/devices/far/resize", "1"), None);
}
