//! Namespaces of command sets other than NVM are refused by their descriptors.

use crate::nvme::open;
use models::nvme::{Config, Shape};

#[test]
fn namespaces_of_other_command_sets_are_refused_by_name() {
    let of = |nsid, csi| Shape { command_set: csi, ..Shape::new(nsid, 100, 9) };
    let namespaces =
        || vec![of(1, None), of(2, Some(0)), of(3, Some(2)), of(4, Some(1)), of(5, Some(9))];
    let bench = open(Config { namespaces: namespaces(), ..Config::default() });
    let places: Vec<String> = bench.disks.iter().map(|one| one.location.to_string()).collect();
    assert_eq!(places, ["pci:0000:00:03.0/1", "pci:0000:00:03.0/2"]);
    for (refused, says) in bench.refused.iter().zip([
        "00:03.0/3: the namespace is of zoned command set (CSI 2)",
        "00:03.0/4: the namespace is of key value command set (CSI 1)",
        "00:03.0/5: the namespace is of an unknown command set (CSI 9)",
    ]) {
        assert!(refused.contains(says) && refused.contains("nvme create-ns"), "{refused}");
    }
    assert_eq!(bench.refused.len(), 3);
    // Controllers without the descriptors, or of a version before them, keep working.
    for version in [0x0001_0000, 0x0001_0200, 0x0001_0300, 0x0002_0000] {
        let all =
            Config { version, descriptors: false, namespaces: namespaces(), ..Config::default() };
        assert_eq!(open(all).disks.len(), 5, "{version:#x}");
    }
}
