//! fio in the client: one job, and its cost.

use anyhow::{Context, Result, ensure};
use launch::guest::Guest;

/// A number of I/Os of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub name: &'static str,
    /// fio's option `rw`.
    pub rw: &'static str,
    /// Size of an I/O.
    pub kib: u32,
    /// I/Os in flight.
    pub depth: u32,
    /// I/Os in all.
    pub ios: u32,
}

/// Cost of a job, per I/O.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Instructions of the server.
    pub instructions: f64,
    /// Of these, instructions for checksums in Linux's server; 0 for other servers.
    pub checksums: f64,
    /// Packets, both ways.
    pub packets: f64,
    /// I/O per second.
    pub iops: f64,
}

/// Runs a job on a block device; I/O per second.
pub fn run(guest: &mut Guest, device: &str, job: &Job) -> Result<f64> {
    let Job { rw, kib, depth, ios, .. } = job;
    let output = guest.sh(&format!(
        "fio --name=job --filename={device} --direct=1 --ioengine=libaio --thread --rw={rw} --bs={kib}k \
         --iodepth={depth} --size=48m --norandommap --number_ios={ios} --output-format=terse --terse-version=3"
    ))?;
    let line = output.lines().find(|line| line.starts_with("3;"));
    let fields: Vec<&str> = line.context("fio printed no results")?.split(';').collect();
    ensure!(fields.get(4) == Some(&"0"), "fio reports an error:\n{output}");
    // Terse version 3: I/O per second of reads are field 8, of writes field 49.
    let iops = |field: usize| fields.get(field).and_then(|text| text.parse::<f64>().ok());
    let iops = iops(if rw.ends_with("read") { 7 } else { 48 });
    iops.filter(|iops| *iops > 0.0).with_context(|| format!("fio printed no rate:\n{output}"))
}

/// Medians of each value over an odd number of runs.
pub fn median(runs: &[Run]) -> Result<Run> {
    let of = |value: fn(&Run) -> f64| super::median(runs.iter().map(value).collect());
    Ok(Run {
        instructions: of(|run| run.instructions)?,
        checksums: of(|run| run.checksums)?,
        packets: of(|run| run.packets)?,
        iops: of(|run| run.iops)?,
    })
}
