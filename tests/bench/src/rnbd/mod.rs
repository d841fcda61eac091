//! `./isthmus bench rnbd`: cost of an I/O at the server, beside a stock Linux server.
//!
//! One stock Linux client has four servers on four wires: a Linux guest (rnbd-server on a brd RAM disk); the appliance,
//! and the appliance with `always_invalidate` off, which both halt as soon as they are idle; and the appliance as
//! shipped, which polls before it halts (keys that end in `_default`). The same fio job runs on each in turn, several
//! times, while a QEMU plugin counts the instructions of each server. The instructions of an idle server are
//! subtracted.
//!
//! The client is not counted. Times matter only for `iops_ratio` and `iops_qd1_ratio`: depth 1 exposes a server that
//! makes the client wait for an ACK or an answer.

pub mod fio;
mod sessions;
mod two_cores;
pub mod volumes;

use anyhow::{Context, Result};
use launch::progress;
use launch::setup::{self, Purpose};

use crate::instructions::Plugin;
use crate::report::Report;
use crate::site::{Appliance, LINUX, Site};
use fio::{Job, Run};

/// The appliance that halts at once; with `always_invalidate` off; and as shipped, with polling.
const ISTHMUS: usize = 1;
const FIXED_KEYS: usize = 2;
const SHIPPED: usize = 3;
const SERVERS: [usize; 4] = [LINUX, ISTHMUS, FIXED_KEYS, SHIPPED];

/// Runs of each job on each server.
pub const ROUNDS: usize = 3;

/// Reads of 4 KiB, many at a time.
pub const READ_4K_QD32: Job =
    Job { name: "4 KiB read, depth 32", rw: "randread", kib: 4, depth: 32, ios: 6000 };
/// Writes, the same.
pub const WRITE_4K_QD32: Job =
    Job { name: "4 KiB write, depth 32", rw: "randwrite", kib: 4, depth: 32, ios: 6000 };
const READ_4K_QD1: Job =
    Job { name: "4 KiB read, depth 1", rw: "randread", kib: 4, depth: 1, ios: 2000 };
const WRITE_4K_QD1: Job =
    Job { name: "4 KiB write, depth 1", rw: "randwrite", kib: 4, depth: 1, ios: 2000 };
const READ_64K: Job = Job { name: "64 KiB read, depth 8", rw: "read", kib: 64, depth: 8, ios: 800 };
/// Sizes in between, for the cost of a read only.
const SIZES: [(&str, Job); 3] = [
    (
        "read4k_qd8_ratio",
        Job { name: "4 KiB read, depth 8", rw: "randread", kib: 4, depth: 8, ios: 3000 },
    ),
    (
        "read16k_ratio",
        Job { name: "16 KiB read, depth 8", rw: "randread", kib: 16, depth: 8, ios: 1600 },
    ),
    (
        "read32k_ratio",
        Job { name: "32 KiB read, depth 8", rw: "read", kib: 32, depth: 8, ios: 1200 },
    ),
];

/// The fewest packets of a 4 KiB read over path MTU 1024: the request and its ACK, four packets of data, and the answer
/// with the chunk's next key; many of these share an ACK. The answer is a separate message, because Linux's client
/// takes keys only from SENDs (`rtrs-clt.c`, `rtrs_clt_rkey_rsp_done`), and data only by RDMA WRITE.
const MINIMUM_PACKETS: f64 = 7.0;

/// Measures, writes `target/bench/rnbd.json`, and fails if a bar is missed.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let plugin = Plugin::compile()?;
    let appliances = [
        Appliance::halting(""),
        Appliance::halting("isthmus.rnbd.always_invalidate=false"),
        Appliance::as_shipped(""),
    ];
    let mut site = Site::boot(&plugin, &appliances)?;
    volumes::serve(&mut site)?;
    for server in SERVERS {
        volumes::map_and_fill(&mut site, server)?;
    }
    site.count_idle()?;
    let idle_shipped = site.idle(SHIPPED)?;
    let mut table = Vec::new();
    let mut figures = |job: &Job| {
        let figures = measure(&mut site, job)?;
        table.push((job.name, figures.clone()));
        Ok::<_, anyhow::Error>(figures)
    };
    let reads = figures(&READ_4K_QD32)?;
    let writes = figures(&WRITE_4K_QD32)?;
    let single_reads = figures(&READ_4K_QD1)?;
    let single_writes = figures(&WRITE_4K_QD1)?;
    let large_reads = figures(&READ_64K)?;
    let sizes =
        SIZES.map(|(key, job)| Ok::<_, anyhow::Error>((key, beside_linux(&mut site, &job)?)));
    let sizes = sizes.into_iter().collect::<Result<Vec<_>>>()?;
    drop(site);
    let idle = sessions::measure()?;
    let two_cores = two_cores::ratio(&plugin, &READ_4K_QD32)?;
    print(&table);

    let mut report = Report::new("rnbd", Some(0));
    for ([key, as_shipped], figures) in [
        (["read4k_qd32_ratio", "read4k_qd32_ratio_default"], &reads),
        (["write4k_qd32_ratio", "write4k_qd32_ratio_default"], &writes),
        (["read4k_qd1_ratio", "read4k_qd1_ratio_default"], &single_reads),
        (["write4k_qd1_ratio", "write4k_qd1_ratio_default"], &single_writes),
        (["read64k_ratio", "read64k_ratio_default"], &large_reads),
    ] {
        let Figures { linux, ours, shipped, .. } = figures;
        report.ratio(key, ours.instructions, linux.instructions);
        report.ratio(as_shipped, shipped.instructions, linux.instructions);
    }
    for (key, [ours, linux]) in sizes {
        report.ratio(key, ours, linux);
    }
    report.add("safe_mode_cost", reads.safe_mode_cost());
    for (key, figures) in [("iops_ratio", &reads), ("iops_qd1_ratio", &single_reads)] {
        report.ratio_of(key, figures.iops_ratio, figures.ours.iops, figures.linux.iops);
    }
    report.add("read4k_two_cores_ratio", two_cores);
    report.add("memory_mib_64_sessions", idle.mib.into());
    report.add("bytes_per_idle_session", idle.bytes_per_session);
    // On the CPU of these machines Linux does not use carry-less multiplication.
    let Run { instructions, checksums, .. } = reads.linux;
    report.add("linux_read4k_qd32_icrc_share", checksums / instructions);
    let without = instructions - checksums;
    report.ratio("read4k_qd32_ratio_without_linux_icrc", reads.ours.instructions, without);
    report.add("idle_session_instructions_per_second_default", idle_shipped);
    report.add("packets_per_read4k", single_reads.ours.packets);
    report.add("packets_per_read4k_minimum", MINIMUM_PACKETS);
    report.close()
}

/// Cost of a job on each server.
#[derive(Clone, Debug)]
struct Figures {
    linux: Run,
    ours: Run,
    fixed_keys: Run,
    shipped: Run,
    /// Ratio of the appliance's I/O per second to Linux's: the median over the rounds.
    iops_ratio: f64,
}

impl Figures {
    fn safe_mode_cost(&self) -> f64 {
        self.ours.instructions / self.fixed_keys.instructions - 1.0
    }
}

/// Runs a job on the servers in turn.
fn measure(site: &mut Site, job: &Job) -> Result<Figures> {
    let step = progress::step(job.name);
    let mut runs: [Vec<Run>; 4] = Default::default();
    for round in 1..=ROUNDS {
        step.at(&format!("round {round} of {ROUNDS}"));
        for (server, runs) in SERVERS.into_iter().zip(&mut runs) {
            runs.push(volumes::run(site, server, job)?);
        }
    }
    let [linux, ours, fixed_keys, shipped] = runs;
    let ratios = ours.iter().zip(&linux).map(|(ours, linux)| ours.iops / linux.iops).collect();
    let figures = Figures {
        iops_ratio: median(ratios)?,
        linux: fio::median(&linux)?,
        ours: fio::median(&ours)?,
        fixed_keys: fio::median(&fixed_keys)?,
        shipped: fio::median(&shipped)?,
    };
    step.done(&format!(
        "{:.0} instructions, Linux {:.0}",
        figures.ours.instructions, figures.linux.instructions
    ));
    Ok(figures)
}

/// Instructions per I/O of the appliance and of Linux, in turn.
fn beside_linux(site: &mut Site, job: &Job) -> Result<[f64; 2]> {
    let step = progress::step(job.name);
    let (mut ours, mut linux) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        linux.push(volumes::run(site, LINUX, job)?.instructions);
        ours.push(volumes::run(site, ISTHMUS, job)?.instructions);
    }
    let (ours, linux) = (median(ours)?, median(linux)?);
    step.done(&format!("{ours:.0} instructions, Linux {linux:.0}"));
    Ok([ours, linux])
}

/// Median of an odd number of values.
fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("a median needs a run")
}

fn print(table: &[(&str, Figures)]) {
    println!("\nper I/O, medians of {ROUNDS} rounds; RAM disk (Linux: brd), Ethernet MTU 1500");
    println!("\n| job | | Linux | Isthmus | fixed keys | as shipped |\n|---|---|--:|--:|--:|--:|");
    for (job, figures) in table {
        let of = |value: fn(&Run) -> f64| {
            [&figures.linux, &figures.ours, &figures.fixed_keys, &figures.shipped].map(value)
        };
        let [linux, ours, fixed, shipped] = of(|run| run.instructions);
        println!("| {job} | instructions | {linux:.0} | {ours:.0} | {fixed:.0} | {shipped:.0} |");
        let [linux, ours, fixed, shipped] = of(|run| run.packets);
        println!("| | packets | {linux:.2} | {ours:.2} | {fixed:.2} | {shipped:.2} |");
        let [linux, ours, fixed, shipped] = of(|run| run.iops);
        println!("| | I/O per second | {linux:.0} | {ours:.0} | {fixed:.0} | {shipped:.0} |");
    }
}
