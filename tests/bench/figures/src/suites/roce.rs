//! Instructions per packet of the RoCE provider, and per round of a stock tool.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

pub const SUITE: Suite = Suite {
    name: "roce",
    conditions: "Instructions are counted with callgrind on the host build. The cost of the bench's own wire is subtracted. \
        Payloads are 1,024 bytes unless the meaning says otherwise.",
    figures: &[
        Figure::value(
            "rx_write_packet_instructions",
            UNIT,
            "receiving one packet of an RDMA WRITE, without its ICRC and its copy",
        )
        .at_most(600.0),
        Figure::value(
            "tx_write_packet_instructions",
            UNIT,
            "sending one packet of an RDMA WRITE, without its ICRC; the payload is not copied",
        )
        .at_most(500.0),
        Figure::value(
            "icrc_instructions_per_byte",
            UNIT,
            "the invariant CRC, for each byte of a packet with 4,096 bytes of payload",
        )
        .at_most(0.4),
        Figure::value(
            "icrc_instructions_per_byte_of_1024",
            UNIT,
            "the invariant CRC, for each byte of a packet with 1,024 bytes of payload",
        )
        .at_most(0.4),
        Figure::value(
            "send_64b_round_instructions",
            UNIT,
            "a SEND of 64 bytes and its ACK, at both ends, without ICRC",
        )
        .at_most(4_000.0),
        Figure::value(
            "allocations_after_setup",
            "allocations",
            "memory allocations after connections are set up",
        )
        .at_most(0.0),
        Figure::value("bytes_per_idle_qp", "bytes", "memory of an idle queue pair").at_most(2_130.0),
        Figure::by_linux(
            "guest_write_lat_ratio",
            UNIT,
            "a round of `ib_write_lat` at the server in QEMU; Linux's server program spins while it waits",
        )
        .at_most(0.1),
    ],
};
