//! The cases that the short tier runs of suites that take minutes: at least one with every stock peer, and one of every
//! device model.

/// Suites whose cases here run only stock Linux on the models, so that no image is built for them.
pub(super) const WITHOUT_IMAGE: &[&str] = &["ixgbe", "mlx5", "ntb_hw"];

/// Suites, and parts of the names of their cases.
pub(super) const CASES: &[(&str, &[&str])] = &[
    // Without the cases that provoke faults, which boot an image of their own.
    (
        "boot",
        &[
            "without_any_device",
            "version_is_shown",
            "shown_build_is_that",
            "poweroff_ends",
            "reboot_comes_back",
            "thirty_two_mib",
            "the_shipped_image_has_no_faults",
            "without_entropy",
            "image_boots_under_kvm",
            "image_has_no_paths",
        ],
    ),
    ("cores", &["a_port_of_the_second_core", "both_cores_work"]),
    // Open MPI's btl/usnic.
    ("usnic", &["check_0"]),
    // Models under the drivers of stock Linux: NVMe, I/OAT, PTDMA; NTB; VIC; 82599; ConnectX; Tsi721 and switch; DSA.
    ("models", &["nvme_works", "ioat_3_2", "ptdma_passes"]),
    (
        "ntb_hw",
        &[
            "intel_gen3_works",
            "intel_gen4_of_ice_lake",
            "amd_works",
            "switchtec_works_under",
            "idxd_of_linux_passes_dmatest_with_stores",
        ],
    ),
    ("enic", &["the_image_and_linux_reach"]),
    ("ixgbe", &["a_physical_and_a_virtual_function_work_under_linux"]),
    ("mlx5", &["verbs_of_virtual_functions"]),
    ("rapidio", &["linux_enumerates_the_image"]),
    ("ntb_netdev", &["linux_pings_the_image"]),
    // rnbd-client, rnbd-server, AF_SMC, rping and perftest and qperf, redis, tshark.
    ("storage", &["ext4_keeps_its_data", "fio_verifies", "flushed_data_survives", "first_use"]),
    ("remote", &["a_volume_of_linux_is_exported_again"]),
    ("smc", &["a_stock_client_gets_its_echo_from_the_image", "hosts_of_smc_and_of_rules"]),
    ("perf", &["every_measuring_tool"]),
    ("messaging", &["redis", "nginx_and_wrk"]),
    ("captures", &["tshark_reads_what_was_captured"]),
];
