//! Instructions per round, byte and connection of SMC-R, beside Linux.

use crate::figure::{Figure, Suite};

const fn cost(key: &'static str, meaning: &'static str) -> Figure {
    Figure::by_linux(key, "instructions", meaning)
}

pub const SUITE: Suite = Suite {
    name: "smcr",
    conditions: "One stock Linux client speaks SMC-R to a stock Linux server and to the appliance. The instructions of the \
        servers are counted. A round is the difference between many rounds and few.",
    figures: &[
        cost("echo64_ratio", "an SMC-R echo of 64 bytes at the server").at_most(0.11),
        cost("echo4k_ratio", "an SMC-R echo of 4 KiB at the server").at_most(0.105),
        cost("stream_ratio", "a byte of an echoed SMC-R stream").at_most(0.15),
        cost("connect_ratio", "an SMC-R connection: connect, 64 bytes both ways, close")
            .at_most(0.25),
        Figure::value("bytes_per_idle_connection", "bytes", "memory of an idle SMC-R connection")
            .at_most(4_096.0),
        cost("echo64_ratio_default", "an echo of 64 bytes with the shipped `system.idle_after_us`"),
        cost("echo4k_ratio_default", "an echo of 4 KiB with the shipped `system.idle_after_us`"),
        cost("stream_ratio_default", "a byte of a stream with the shipped `system.idle_after_us`"),
        cost("connect_ratio_default", "a connection with the shipped `system.idle_after_us`"),
    ],
};
