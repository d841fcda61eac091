//! Instructions per I/O of the storage server and of SMC-R on models of a ConnectX.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

pub const SUITE: Suite = Suite {
    name: "mlx5",
    conditions: "A stock Linux client uses `mlx5_ib`, and the appliance lets the card do RoCE. Both are on a model of \
        ConnectX, which completes every request at once and at no cost. Reads, writes and echoes are 32 at a time. No real \
        card was measured.",
    figures: &[
        Figure::value("read4k_instructions", UNIT, "a 4 KiB read with `always_invalidate` off")
            .at_most(1_600.0),
        Figure::value("write4k_instructions", UNIT, "a 4 KiB write with `always_invalidate` off")
            .at_most(1_690.0),
        Figure::value(
            "read4k_invalidate_instructions",
            UNIT,
            "a 4 KiB read with a fresh key for each request",
        )
        .at_most(2_520.0),
        Figure::value(
            "write4k_invalidate_instructions",
            UNIT,
            "a 4 KiB write with a fresh key for each request",
        )
        .at_most(2_520.0),
        Figure::value(
            "smcr_echo64_instructions",
            UNIT,
            "an SMC-R echo of 64 bytes, on 32 connections at once",
        )
        .at_most(2_680.0),
        Figure::value(
            "smcr_echo64_alone_instructions",
            UNIT,
            "an SMC-R echo of 64 bytes, on one connection",
        ),
        Figure::value(
            "mmio_writes_per_io",
            "writes",
            "writes to registers of the card for a read or write",
        )
        .at_most(1.0),
        Figure::value(
            "mmio_reads_per_io",
            "reads",
            "reads of registers of the card for a read or write",
        )
        .at_most(0.0),
        Figure::value("interrupts_per_io", "interrupts", "interrupts for a read or write"),
        Figure::value(
            "smcr_echo64_mmio_writes",
            "writes",
            "writes to registers of the card for an SMC-R echo, on 32 connections at once",
        ),
        Figure::value(
            "smcr_echo64_alone_mmio_writes",
            "writes",
            "writes to registers of the card for an SMC-R echo, on one connection",
        ),
    ],
};
