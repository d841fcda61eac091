//! Maps changed paths of the source to the suites that test them.

use std::collections::BTreeSet;

/// Prefixes of paths, and the suites of the long tier that run that code against peers or models.
const REACH: &[(&[&str], &[&str])] = &[
    (
        &["rdma/rtrs", "appliance/storage", "appliance/src/gateway/storage"],
        &[
            "storage",
            "rnbd_faults",
            "rnbd_soak",
            "paths",
            "rtrs_hostile",
            "remote",
            "remote_faults",
            "remote_mirror",
            "power_cuts",
            "storage_cores",
            "inprocess",
        ],
    ),
    (
        &["rdma/smcr", "appliance/messaging"],
        &[
            "smc",
            "smc_faults",
            "smc_scenarios",
            "smc_links",
            "smc_hostile",
            "smc_version1",
            "relay",
            "messaging",
        ],
    ),
    (
        &["rdma/roce", "rdma/softverbs", "rdma/cm", "rdma/verbs"],
        &["roce_hostile", "perf_tools", "perf_lossy", "captures", "rnbd_faults", "smc_links"],
    ),
    (&["rdma/connectx", "drivers/src/ethernet/mlx5", "tests/models/src/mlx5"], &["mlx5"]),
    (
        &["rdma/ntrdma", "drivers/src/ntb", "drivers/src/dma", "tests/models/src/ntb"],
        &["ntb", "ntb_hw", "ntb_netdev", "ntb_bridges", "ntb_chain"],
    ),
    (&["net/usnic"], &["usnic", "usnic_image", "usnic_guests", "enic"]),
    (&["net/linx", "net/rapidio", "drivers/src/rapidio"], &["rapidio", "linx"]),
    (&["net/tls_psk"], &["tls_psk"]),
    (&["net/nbd", "appliance/src/gateway/tcp_remotes"], &["nbd", "nbd_image"]),
    (&["net/nvme_host", "appliance/src/gateway/tcp_remotes"], &["nvme_remote"]),
    (&["drivers/src/block"], &["disk_metal", "volumes_metal", "power_cuts", "storage_metal"]),
    (&["drivers/src/ethernet"], &["enic", "ixgbe", "net_metal", "mlx5"]),
    (&["drivers/src/hal", "drivers/src/pci"], &["platform", "boot_metal", "models"]),
    (
        &["images", "appliance/image", "appliance/kernel"],
        &["matrix", "netboot", "platform", "save", "consoles"],
    ),
    (&["appliance/src/gateway/upgrade", "images/release"], &["upgrade"]),
    (&["launch/recipes/ansible", "appliance/management/src/api"], &["fleet"]),
    (&["launch/recipes"], &["recipes", "monitoring", "libvirt"]),
    (&["launch/src/passthrough", "launch/src/probe"], &["passthrough"]),
    (&["tests/fuzz"], &["guided"]),
    (&["drivers/src/hal", "tests/threads"], &["races"]),
];

/// The suites that test these paths.
pub(super) fn reached(paths: &BTreeSet<String>) -> BTreeSet<&'static str> {
    let touches =
        |starts: &[&str]| paths.iter().any(|path| starts.iter().any(|s| path.starts_with(s)));
    REACH
        .iter()
        .filter(|(starts, _)| touches(starts))
        .flat_map(|(_, suites)| *suites)
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::suites::SUITES;

    #[test]
    fn reach_table_names_existing_suites_and_directories() {
        for (starts, suites) in REACH {
            for start in *starts {
                let path = crate::workspace::root().join(start);
                assert!(path.exists() || path.with_extension("rs").exists(), "{start}");
            }
            for name in *suites {
                assert!(SUITES.iter().any(|suite| suite.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn a_change_of_the_storage_server_reaches_stock_clients() {
        let paths = BTreeSet::from(["appliance/storage/src/rnbd/server/io.rs".to_string()]);
        assert!(reached(&paths).contains("rnbd_soak"));
        assert!(reached(&BTreeSet::from(["README.md".to_string()])).is_empty());
    }
}
