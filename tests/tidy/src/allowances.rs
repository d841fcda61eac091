//! Files and functions that exceeded their limit when the limit was set. They may only shrink, and are removed from the
//! table once they are within the limit. No entries are added.

/// Files: path and lines.
pub const FILES: &[(&str, usize)] = &[
    ("appliance/operator/src/config/tests.rs", 687),
    ("net/rapidio/tests/rio_cm.rs", 713),
    ("rdma/ntrdma/src/lib.rs", 688),
    ("rdma/smcr/src/wire/llc.rs", 659),
    ("tests/conformance/src/late.rs", 799),
    ("tests/metal/suites/ixgbe.rs", 647),
    ("tests/metal/suites/mlx5_verbs.rs", 678),
    ("tests/metal/suites/nvme.rs", 721),
    ("tests/metal/suites/nvme_queues.rs", 610),
    ("tests/models/src/mlx5/requester.rs", 781),
    ("tests/models/src/mlx5/tests.rs", 667),
];

/// Functions: file, name and lines.
pub const FUNCTIONS: &[(&str, &str, usize)] = &[
    ("appliance/src/gateway/usnic/exchange.rs", "take_request", 87),
    ("appliance/storage/src/testing/loopback.rs", "step", 105),
    ("launch/src/qemu/arguments.rs", "command", 113),
    ("net/linx/src/pool.rs", "chains_behave_like_vectors", 87),
    ("net/usnic/src/engine/endpoint.rs", "new", 88),
    ("rdma/cm/src/user.rs", "connect", 111),
    ("rdma/connectx/src/pairs.rs", "add_pair", 100),
    ("rdma/ntrdma/src/tests/threads.rs", "machine", 103),
    ("rdma/roce/src/requester/transmit.rs", "poll_transmit", 95),
    ("rdma/roce/src/tests/connections.rs", "linux_is_served", 91),
    ("rdma/roce/src/tests/faults.rs", "run", 112),
    ("rdma/smcr/src/engine/state.rs", "two_peers_always_end", 84),
    ("rdma/smcr/src/wire/llc.rs", "emit", 81),
    ("tests/fuzz/src/storage/actions.rs", "act", 129),
    ("tests/interop/src/engines.rs", "round", 97),
    ("tests/interop/suites/captures.rs", "tshark_reads_what_was_captured", 87),
    ("tests/interop/suites/rapidio/rules.rs", "run_scenario", 88),
    ("tests/linx/tests/linx/peer.rs", "every_event_in_every_state_matches_the_table", 93),
    ("tests/linx/tests/linx/tshark.rs", "tshark_decodes_linx_over_riocm", 119),
    ("tests/linx/tests/linx/tshark.rs", "tshark_decodes_linx_over_tcp", 81),
    ("tests/metal/suites/bad_registers.rs", "operate", 123),
    ("tests/metal/suites/nvme_chance.rs", "durable_writes_survive_any_power_cut", 81),
    ("tests/metal/suites/nvme_chance.rs", "each_request_ends_once_with_any_fault_of_the_drive", 83),
    ("tests/metal/suites/nvme_queues.rs", "two_threads_with_a_faulty_drive", 114),
    ("tests/models/server/src/main.rs", "main", 111),
    ("tests/models/src/mlx5/packet.rs", "decode_transport", 89),
    ("tests/models/src/mlx5/receive.rs", "receive_at", 102),
    ("tests/models/src/mlx5/requester.rs", "begin", 116),
    ("tests/sim/src/roce/post.rs", "post", 187),
];

/// Maximum number of opening comments that `openings.rs` finds.
pub const OPENINGS: usize = 10;
