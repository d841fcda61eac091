//! `./isthmus bench rnbd`: what an I/O costs the server, beside what it costs a stock Linux server.
//!
//! One stock Linux client has four servers on four wires: a Linux guest (rnbd-server on a brd RAM
//! disk), the appliance, the appliance with `always_invalidate` off, both of which halt as soon as they have
//! nothing to do, and the appliance as it is shipped, which polls for a while first: keys that end in
//! `_default` are of that one. The same fio job runs on
//! each in turn, several times over, while a QEMU plugin counts the instructions that each server
//! executes. What the server executes per second while nothing is asked of it is taken off.
//!
//! Nothing is counted of the client, and no time matters but that of `iops_ratio` and `iops_qd1_ratio`: at
//! depth 1 a server that makes the client wait, for an ACK or its answer, shows at once.

pub mod fio;
mod sessions;
mod two_cores;
pub mod volumes;

use anyhow::{Context, Result};
use launch::progress;
use launch::setup::{self, Purpose};

use crate::instructions::Plugin;
use crate::report::{Bar, Report};
use crate::site::{Appliance, LINUX, Site};
use fio::{Job, Run};

/// The appliance, halting at once; one with `always_invalidate` off; and one that polls as it is shipped.
const ISTHMUS: usize = 1;
const FIXED_KEYS: usize = 2;
const SHIPPED: usize = 3;
const SERVERS: [usize; 4] = [LINUX, ISTHMUS, FIXED_KEYS, SHIPPED];

/// Times that every job runs on every server.
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

/// The fewest packets that a 4 KiB read takes over path MTU 1024: the request and its ACK, four packets of
/// data, and the answer with the chunk's next key; ACKs of those are shared by many. That answer is a message
/// of its own because Linux's client takes keys from SENDs only (`rtrs-clt.c`, `rtrs_clt_rkey_rsp_done`), and
/// data by RDMA WRITE only.
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
    drop(site);
    let idle = sessions::measure()?;
    let two_cores = two_cores::ratio(&plugin, &READ_4K_QD32)?;
    print(&table);

    let mut report = Report::new("rnbd", Some(0));
    report.add("read4k_qd32_ratio", reads.ratio(), 0.10);
    report.add("write4k_qd32_ratio", writes.ratio(), 0.11);
    report.add("read4k_qd1_ratio", single_reads.ratio(), 0.15);
    report.add("write4k_qd1_ratio", single_writes.ratio(), 0.15);
    report.add("read64k_ratio", large_reads.ratio(), 0.15);
    report.add("safe_mode_cost", reads.safe_mode_cost(), 0.20);
    report.check("iops_ratio", reads.iops_ratio, Bar::AtLeast(1.0));
    report.check("iops_qd1_ratio", single_reads.iops_ratio, Bar::AtLeast(1.0));
    report.add("read4k_two_cores_ratio", two_cores, 1.10);
    report.add("memory_mib_64_sessions", idle.mib.into(), 64.0);
    report.add("bytes_per_idle_session", idle.bytes_per_session, 65_536.0);
    // Linux has no use for carry-less multiplication on the CPU that these machines have.
    report.check("linux_read4k_qd32_icrc_share", reads.linux_checksums(), Bar::None);
    report.check(
        "read4k_qd32_ratio_without_linux_icrc",
        reads.ratio_without_linux_icrc(),
        Bar::None,
    );
    for (key, figures) in [
        ("read4k_qd32_ratio_default", &reads),
        ("write4k_qd32_ratio_default", &writes),
        ("read4k_qd1_ratio_default", &single_reads),
        ("write4k_qd1_ratio_default", &single_writes),
        ("read64k_ratio_default", &large_reads),
    ] {
        report.check(key, figures.ratio_as_shipped(), Bar::None);
    }
    report.add("idle_session_instructions_per_second_default", idle_shipped, 20_000.0);
    report.check("packets_per_read4k", single_reads.ours.packets, Bar::None);
    report.check("packets_per_read4k_minimum", MINIMUM_PACKETS, Bar::None);
    report.close()
}

/// What a job took on each server.
#[derive(Clone, Debug)]
struct Figures {
    linux: Run,
    ours: Run,
    fixed_keys: Run,
    shipped: Run,
    /// Our I/O per second by Linux's: the median over the rounds.
    iops_ratio: f64,
}

impl Figures {
    fn ratio(&self) -> f64 {
        self.ours.instructions / self.linux.instructions
    }

    fn ratio_as_shipped(&self) -> f64 {
        self.shipped.instructions / self.linux.instructions
    }

    /// How much of what Linux executes is checksums.
    fn linux_checksums(&self) -> f64 {
        self.linux.checksums / self.linux.instructions
    }

    /// With our checksums, but without Linux's.
    fn ratio_without_linux_icrc(&self) -> f64 {
        self.ours.instructions / (self.linux.instructions - self.linux.checksums)
    }

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

/// The middle one, of an odd number.
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
