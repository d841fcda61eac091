//! Instructions per message and byte of the usNIC engine, and messages beside the stock sender.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

pub const SUITE: Suite = Suite {
    name: "usnic",
    conditions: "Instructions are counted with callgrind within the calls of the engines at both ends, from `send` or `put` \
        until the message is delivered and its ACK processed. The one copy of the payload is included. The bench's own wire \
        and loop and the UDP checksum are not. The two figures of loss need two idle processors: if both ends share them \
        with other programs, a message waits for the other end to be scheduled, and the ratio measures how the processors were \
        shared.",
    figures: &[
        Figure::value(
            "send_64b_instructions",
            UNIT,
            "a message of 64 bytes, among eight that are sent, delivered and acknowledged in one round of both ends",
        )
        .at_most(1_030.0),
        Figure::value(
            "send_64b_alone_instructions",
            UNIT,
            "a single message of 64 bytes, with rounds of both loops, a delayed ACK and its own timers",
        ),
        Figure::ratio(
            "send_64b_beside_1000_idle_ratio",
            UNIT,
            "a message of 64 bytes beside 1,000 idle endpoints, relative to none",
        )
        .at_most(1.10),
        Figure::value(
            "put_1m_instructions_per_byte_mtu1500",
            UNIT,
            "a PUT of 1 MiB, for each byte, with an MTU of 1,500",
        )
        .at_most(0.4),
        Figure::value(
            "put_1m_instructions_per_byte_mtu9000",
            UNIT,
            "a PUT of 1 MiB, for each byte, with an MTU of 9,000",
        )
        .at_most(0.11),
        Figure::value(
            "allocations_after_setup",
            "allocations",
            "memory allocations after endpoints are set up",
        )
        .at_most(0.0),
        Figure::value("bytes_per_idle_endpoint", "bytes", "memory of an idle endpoint").at_most(8_192.0),
        Figure::ratio(
            "loss_1pct_64k_ratio",
            "messages per second",
            "messages of 64 KiB to Open MPI's stock receiver that loses 1 % of packets, each sent when the last is \
             acknowledged, relative to the stock sender",
        )
        .at_least(3.0),
        Figure::ratio(
            "loss_1pct_bulk_ratio",
            "messages per second",
            "messages of 64 KiB to Open MPI's stock receiver that loses 1 % of packets, all posted at once, relative to the \
             stock sender",
        )
        .at_least(0.9),
    ],
};
