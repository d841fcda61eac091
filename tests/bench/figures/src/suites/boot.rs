//! Size, memory, boot, UDP echo, idling.

use crate::figure::{Figure, Suite};

const fn code(key: &'static str, meaning: &'static str) -> Figure {
    Figure::value(key, "bytes", meaning)
}

pub const SUITE: Suite = Suite {
    name: "boot",
    conditions: "The machine is QEMU's q35 with one network interface and one disk, booted by PVH. Code of the image is \
        attributed by the modules in the names of its functions.",
    figures: &[
        Figure::value("image_bytes", "bytes", "size of the shipped ELF image").at_most(6_291_456.0),
        Figure::value(
            "memory_floor_mib",
            "MiB",
            "smallest memory with which the console prompt is reached",
        )
        .at_most(32.0),
        Figure::value("boot_instructions", "instructions", "from reset to the prompt")
            .at_most(20_000_000.0),
        Figure::value(
            "boot_seconds",
            "s",
            "time from the start of QEMU to the prompt under TCG, the fastest of five boots on the measuring machine",
        )
        .at_most(0.5),
        Figure::value(
            "udp_echo_instructions",
            "instructions",
            "one UDP echo of 64 bytes, from the halted loop back to the halt",
        )
        .at_most(3_600.0),
        Figure::value(
            "idle_instructions_per_second",
            "instructions",
            "one second of an idle appliance with the shipped `system.idle_after_us`",
        )
        .at_most(60_000.0),
        code("code_bytes_mirror", "code of mirrors"),
        code("code_bytes_measure", "code of the peers of measuring tools"),
        code("code_bytes_remote", "code of remote volumes: the RTRS and RNBD clients"),
        code("code_bytes_ntb", "code of NTRDMA, bridges and DMA engines"),
        code("code_bytes_smc", "code of SMC-R and rules"),
        code("code_bytes_usnic", "code of usNIC"),
        code("code_bytes_linx", "code of LINX"),
        code("code_bytes_rapidio", "code of RapidIO"),
        code("code_bytes_storage", "code of volumes, the RTRS and RNBD servers and disks"),
        code("code_bytes_roce", "code of RoCE and its connection manager"),
        code("code_bytes_tls", "code of TLS"),
        code("code_bytes_ethernet", "code of network drivers and virtio"),
        code("code_bytes_network", "code of IP, TCP and HTTP"),
        code("code_bytes_management", "code of configuration, console, reports and the loop"),
        code("code_bytes_kernel", "code of hermit-kernel, the boot stub and the heap"),
        code("code_bytes_rest", "code of the standard library, and code without a name"),
    ],
};
