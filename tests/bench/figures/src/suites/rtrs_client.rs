//! Instructions per I/O of the client of a remote server, beside Linux; failover.

use crate::figure::{Figure, Suite};

pub const SUITE: Suite = Suite {
    name: "rtrs-client",
    conditions: "The appliance is the client of a stock Linux server. Linux's client is counted including fio, the \
        appliance including `remote read` of its console.",
    figures: &[
        Figure::by_linux(
            "read4k_qd32_ratio",
            "instructions",
            "a 4 KiB read at the client, 32 in flight",
        )
        .at_most(0.15),
        Figure::value(
            "failover_ms",
            "ms",
            "longest time of a request whose path is cut, in virtual time with the default timers",
        )
        .at_most(1_000.0),
    ],
};
