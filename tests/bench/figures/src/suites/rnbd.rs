//! Instructions per I/O of the storage server, beside Linux.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";
const RATE: &str = "reads per second";

const fn cost(key: &'static str, meaning: &'static str) -> Figure {
    Figure::by_linux(key, UNIT, meaning)
}

pub const SUITE: Suite = Suite {
    name: "rnbd",
    conditions: "One stock Linux client maps a RAM disk of a stock Linux server (brd), one of the appliance, one of the \
        appliance with `always_invalidate` off, and one of the appliance as shipped. The same fio jobs run on each in turn. \
        The instructions of the servers are counted, those of the client are not. With `always_invalidate` the server sends \
        five packets for a 4 KiB read and not four, because Linux's client takes a chunk's next key only from a separate \
        message.",
    figures: &[
        cost("read4k_qd32_ratio", "a 4 KiB read at the server, 32 in flight").at_most(0.10),
        cost(
            "write4k_qd32_ratio",
            "a 4 KiB write at the server, 32 in flight; it depends on how often the loop halts between two frames",
        )
        .at_most(0.12),
        cost("read4k_qd1_ratio", "a 4 KiB read at the server, one in flight").at_most(0.15),
        cost("write4k_qd1_ratio", "a 4 KiB write at the server, one in flight").at_most(0.15),
        cost("read4k_qd8_ratio", "a 4 KiB read at the server, eight in flight"),
        cost("read16k_ratio", "a 16 KiB read at the server, eight in flight"),
        cost("read32k_ratio", "a 32 KiB read at the server, eight in flight"),
        cost("read64k_ratio", "a 64 KiB read at the server, eight in flight").at_most(0.15),
        Figure::value(
            "safe_mode_cost",
            "share",
            "additional instructions for a 4 KiB read with `always_invalidate` on, as a share of those with it off",
        )
        .at_most(0.20),
        Figure::by_linux(
            "iops_ratio",
            RATE,
            "4 KiB reads per second in QEMU under TCG, 32 in flight; the ratio is the median of the rounds",
        )
        .at_least(1.0),
        Figure::by_linux(
            "iops_qd1_ratio",
            RATE,
            "4 KiB reads per second in QEMU under TCG, one in flight; the ratio is the median of the rounds",
        )
        .at_least(1.0),
        Figure::ratio(
            "read4k_two_cores_ratio",
            UNIT,
            "a 4 KiB read with two cores that serve one volume, each to its own client, relative to one core",
        )
        .at_most(1.12),
        Figure::value(
            "memory_mib_64_sessions",
            "MiB",
            "memory of the smallest machine that holds 64 idle sessions",
        )
        .at_most(64.0),
        Figure::value("bytes_per_idle_session", "bytes", "memory of an idle session").at_most(65_536.0),
        Figure::value(
            "idle_session_instructions_per_second_default",
            UNIT,
            "one second of an idle session with the shipped `system.idle_after_us`",
        )
        .at_most(20_000.0),
        Figure::value(
            "packets_per_read4k",
            "packets",
            "packets for a 4 KiB read, one in flight, both ways",
        ),
        Figure::value(
            "packets_per_read4k_minimum",
            "packets",
            "fewest packets for a 4 KiB read: the request and its ACK, four packets of data, and the answer with the chunk's next key",
        ),
        Figure::value(
            "linux_read4k_qd32_icrc_share",
            "share",
            "share of CRC in Linux's instructions for a 4 KiB read; Linux uses tables on QEMU's CPU",
        ),
        cost(
            "read4k_qd32_ratio_without_linux_icrc",
            "a 4 KiB read at the server, 32 in flight, without Linux's CRC and with that of Isthmus",
        ),
        cost(
            "read4k_qd32_ratio_default",
            "a 4 KiB read, 32 in flight, with the shipped `system.idle_after_us`",
        ),
        cost(
            "write4k_qd32_ratio_default",
            "a 4 KiB write, 32 in flight, with the shipped `system.idle_after_us`",
        ),
        cost(
            "read4k_qd1_ratio_default",
            "a 4 KiB read, one in flight, with the shipped `system.idle_after_us`",
        ),
        cost(
            "write4k_qd1_ratio_default",
            "a 4 KiB write, one in flight, with the shipped `system.idle_after_us`",
        ),
        cost(
            "read64k_ratio_default",
            "a 64 KiB read, eight in flight, with the shipped `system.idle_after_us`",
        ),
    ],
};
