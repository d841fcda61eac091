//! The same work with and without many sessions, volumes and connections.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

const fn beside(key: &'static str, meaning: &'static str) -> Figure {
    Figure::ratio(key, UNIT, meaning)
}

pub const SUITE: Suite = Suite {
    name: "scale",
    conditions: "The same work is done with and without many sessions, volumes or connections. If there are two ways to do it, \
        the bar applies to the worse one.",
    figures: &[
        beside(
            "read4k_64_sessions_ratio",
            "a 4 KiB read with 64 sessions, relative to one session: the worse of all active and one active",
        )
        .at_most(1.11),
        beside("read4k_4_active_sessions_ratio", "a 4 KiB read with 4 active sessions, relative to one session"),
        beside("read4k_16_active_sessions_ratio", "a 4 KiB read with 16 active sessions, relative to one session"),
        beside("read4k_64_active_sessions_ratio", "a 4 KiB read with 64 active sessions, relative to one session"),
        beside("read4k_beside_3_idle_sessions_ratio", "a 4 KiB read beside 3 idle sessions, relative to none"),
        beside("read4k_beside_15_idle_sessions_ratio", "a 4 KiB read beside 15 idle sessions, relative to none"),
        beside("read4k_beside_63_idle_sessions_ratio", "a 4 KiB read beside 63 idle sessions, relative to none"),
        Figure::value("read4k_instructions", UNIT, "a 4 KiB read with one session, one in flight"),
        Figure::value(
            "idle_64_sessions_instructions_per_second",
            UNIT,
            "one second of 64 idle sessions",
        )
        .at_most(162_000.0),
        beside("volumes_64_ratio", "a 4 KiB read with 64 volumes, relative to one volume").at_most(1.10),
        Figure::value(
            "metrics_longest_round_instructions",
            UNIT,
            "the longest round of the loop while `/metrics` is read, with 64 sessions and 64 volumes",
        )
        .at_most(300_000.0),
        Figure::by_linux("tcp_stream_per_byte_ratio", UNIT, "a byte of an echoed TCP stream")
            .at_most(1.0),
        Figure::value("tcp_echo_instructions", UNIT, "a TCP echo of 64 bytes"),
        beside("tcp_echo_250_connections_ratio", "a TCP echo beside 250 idle connections, relative to none"),
        beside("tcp_echo_500_connections_ratio", "a TCP echo beside 500 idle connections, relative to none"),
        beside("tcp_echo_1000_connections_ratio", "a TCP echo beside 1,000 idle connections, relative to none")
            .at_most(1.15),
        Figure::value("relay_smc_to_tcp_instructions", UNIT, "a relayed round of 64 bytes, from SMC-R to TCP"),
        Figure::value("relay_tcp_to_tcp_instructions", UNIT, "a relayed round of 64 bytes, from TCP to TCP"),
        beside("relay_250_connections_ratio", "a relayed round beside 250 idle connections, relative to none"),
        beside("relay_500_connections_ratio", "a relayed round beside 500 idle connections, relative to none"),
        beside(
            "relay_1000_connections_ratio",
            "a relayed round beside 1,000 idle connections, relative to none: the worse of SMC-R and TCP",
        )
        .at_most(1.19),
        Figure::value("smc_connect_instructions", UNIT, "an SMC-R connection: connect, 64 bytes both ways, close"),
        beside("smc_connect_250_connections_ratio", "an SMC-R connection beside 250 idle ones, relative to none"),
        beside("smc_connect_500_connections_ratio", "an SMC-R connection beside 500 idle ones, relative to none"),
        beside("smc_connect_1000_connections_ratio", "an SMC-R connection beside 1,000 idle ones, relative to none")
            .at_most(1.17),
        Figure::by_linux(
            "relay_200_active_ratio",
            UNIT,
            "a round of 4 KiB of one of 200 active SMC-R clients through a rule to a TCP server; Linux's value is that of HAProxy \
             with a preloaded library that turns its sockets into AF_SMC",
        )
        .at_most(0.5),
    ],
};
