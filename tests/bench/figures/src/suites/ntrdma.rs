//! Bandwidth, latency and instructions of NTRDMA over shared memory.

use crate::figure::{Figure, Suite};

const UNIT: &str = "instructions";
const RATE: &str = "bytes per second";

pub const SUITE: Suite = Suite {
    name: "ntrdma",
    conditions: "Two NTRDMA providers run natively over shared memory, beside the bare memory in the same run. The two ratios of \
        bandwidth and latency, and the figures named after qperf's tests, need two idle processors. Over models of Intel's \
        bridge and I/OAT engines, bytes that processors access, accesses to registers and instructions are counted.",
    figures: &[
        Figure::ratio(
            "write_bw_ratio",
            RATE,
            "bandwidth of RDMA WRITEs, relative to a plain copy through the same memory",
        )
        .at_least(0.85),
        Figure::ratio(
            "write_lat_ratio",
            "ns",
            "latency of an RDMA WRITE, relative to that of the bare memory",
        )
        .at_most(3.0),
        Figure::value(
            "send_instructions",
            UNIT,
            "a SEND from the doorbell to both completions, at both machines",
        )
        .at_most(1_630.0),
        Figure::value(
            "send_and_posts_instructions",
            UNIT,
            "a SEND with both posts, which precede the doorbell, at both machines",
        ),
        Figure::ratio(
            "rnbd_read4k_qd32_ratio",
            UNIT,
            "a 4 KiB read at the server over NTRDMA, relative to RoCE; 32 in flight",
        )
        .at_most(0.5),
        Figure::ratio(
            "ioat_cpu_bytes_per_byte",
            "bytes",
            "bytes of payload that processors access for each byte of a WRITE of 1 MiB, if an engine copies",
        )
        .at_most(0.05),
        Figure::ratio(
            "ioat_cpu_bytes_per_byte_uncovered",
            "bytes",
            "bytes of payload that processors access for each byte of a WRITE of 1 MiB to a region that no window covers, if \
             the peer's processor copies",
        ),
        Figure::value(
            "mmio_writes_per_batch",
            "writes",
            "writes to registers for a batch of requests",
        )
        .at_most(2.0),
        Figure::value("mmio_reads_per_batch", "reads", "reads of registers for a batch of requests")
            .at_most(0.0),
        Figure::ratio(
            "ntb_read4k_ratio",
            UNIT,
            "a 4 KiB read at the server over a model of Intel's bridge with I/OAT, relative to `ivshmem`",
        )
        .at_most(1.19),
        Figure::value("rc_bw", RATE, "SENDs, as qperf's `rc_bw` measures them"),
        Figure::value("rc_lat", "ns", "a SEND, as qperf's `rc_lat` measures it"),
        Figure::value("rc_rdma_write_bw", RATE, "WRITEs, as qperf's `rc_rdma_write_bw` measures them"),
        Figure::value("rc_rdma_write_lat", "ns", "a WRITE, as qperf's `rc_rdma_write_lat` measures it"),
        Figure::value("rc_rdma_read_bw", RATE, "READs, as qperf's `rc_rdma_read_bw` measures them"),
        Figure::value("rc_rdma_read_lat", "ns", "a READ, as qperf's `rc_rdma_read_lat` measures it"),
    ],
};
