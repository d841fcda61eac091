//! Instructions per request of drivers of real hardware, on device models.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";

pub const SUITE: Suite = Suite {
    name: "metal",
    conditions: "Instructions of drivers are counted with callgrind on models of the devices. The cost of the model is \
        subtracted. A request is counted from submission to completion, polled, 32 at a time. A packet is one frame of 64 bytes \
        received and one sent, 32 at a time.",
    figures: &[
        Figure::value("nvme_read4k_instructions", UNIT, "a 4 KiB read by the driver `nvme`").at_most(500.0),
        Figure::value("ahci_read4k_instructions", UNIT, "a 4 KiB read by the driver `ahci`").at_most(600.0),
        Figure::value("pvscsi_read4k_instructions", UNIT, "a 4 KiB read by the driver `pvscsi`").at_most(600.0),
        Figure::value("igb_packet_instructions", UNIT, "a packet by the driver `igb`").at_most(262.0),
        Figure::value("e1000_packet_instructions", UNIT, "a packet by the driver `e1000`").at_most(400.0),
        Figure::value("enic_packet_instructions", UNIT, "a packet by the driver `enic`").at_most(250.0),
        Figure::value(
            "boot_instructions_metal",
            UNIT,
            "from reset to the prompt in QEMU with `e1000e` and `nvme` and without virtio; two thirds are firmware",
        )
        .at_most(20_000_000.0),
        Figure::ratio(
            "nvme_rnbd_read4k_ratio",
            UNIT,
            "a 4 KiB read by a stock client from an NVMe drive, relative to memory",
        )
        .at_most(1.30),
    ],
};
