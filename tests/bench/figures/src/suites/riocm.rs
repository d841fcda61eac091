//! Instructions per message and byte of LINX over RIOCM, and an echo over rio_cm beside Linux.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

pub const SUITE: Suite = Suite {
    name: "riocm",
    conditions: "Instructions of LINX over RIOCM are counted with callgrind at both ends, from the signal sent to the signal \
        delivered, without the driver. The echo over a channel of rio_cm is counted in QEMU on models of the bridge, including driver and \
        machine.",
    figures: &[
        Figure::value("message_64b_instructions", UNIT, "a signal of 64 bytes").at_most(1_050.0),
        Figure::ratio(
            "message_64b_beside_1000_names_ratio",
            UNIT,
            "a signal of 64 bytes beside 1,000 names, relative to none",
        )
        .at_most(1.10),
        Figure::value(
            "message_64k_instructions_per_byte",
            UNIT,
            "a signal of 64 KiB, for each byte, with the driver's copy",
        )
        .at_most(0.36),
        Figure::value(
            "message_64k_patched_instructions_per_byte",
            UNIT,
            "a signal of 64 KiB in the patched fragmentation, for each byte, with the driver's copy",
        )
        .at_most(0.38),
        Figure::value(
            "allocations_after_setup",
            "allocations",
            "memory allocations after the link is up",
        )
        .at_most(0.0),
        Figure::by_linux("rio_cm_echo_ratio", UNIT, "an echo of 1 KiB over a channel of rio_cm")
            .at_most(0.2),
        Figure::value("rio_cm_echo_rounds", "rounds", "rounds of the loop for an echo over rio_cm"),
        Figure::value("rio_cm_echo_halts", "halts", "halts of the loop for an echo over rio_cm"),
        Figure::value(
            "rio_cm_echo_interrupts",
            "interrupts",
            "interrupts of the bridge for an echo over rio_cm",
        ),
    ],
};
