//! Cost of a read if two cores with a port each serve one volume, compared with one core. One stock Linux client has a
//! session to each core.

use std::time::{Duration, Instant};

use anyhow::Result;
use boot_tests::image;
use interop_tests::{map, system};
use launch::guest::{Guest, Wire};
use launch::progress;
use launch::qemu::Spec;

use super::fio::Job;
use super::median;
use crate::instructions::{Counters, Plugin};

/// Pairs of runs; their median is the result.
const ROUNDS: usize = 5;
/// How long the idle appliance is counted.
const IDLING: Duration = Duration::from_secs(5);
const VOLUME: &str = "isthmus.volume.0.name=ram0 isthmus.volume.0.size=64MiB";

/// Ratio of instructions per I/O: both cores together to one core alone.
pub fn ratio(plugin: &Plugin, job: &Job) -> Result<f64> {
    let step = progress::step("two cores serve one volume");
    let counters = plugin.counters()?;
    let wires = [Wire::new()?, Wire::new()?];
    let mut gateway = Spec::kernel(image()?).memory(256).cpus(2).first_mac(1).append(VOLUME);
    gateway = gateway.append("isthmus.net.1.core=1 isthmus.system.idle_after_us=0");
    let addresses = [0, 1].map(|n| format!("10.0.{n}.2/24"));
    let addresses = [addresses[0].as_str(), addresses[1].as_str()];
    let mut client = system()?.spec("client", &addresses, 1500).first_mac(0x10);
    for (n, wire) in wires.iter().enumerate() {
        let (ours, theirs) = wire.stream();
        gateway = gateway.nic(ours).append(&format!("isthmus.net.{n}.address=10.0.{n}.1/24"));
        client = client.nic(theirs);
    }
    let mut gateway = gateway.extra(counters.arguments()).start()?;
    let mut client = Guest::start("client", client)?;
    gateway.wait_ready()?;
    client.wait_up()?;
    client.soft_roce()?;
    client.sh("modprobe rnbd-client")?;
    for (n, mode) in ["", "access_mode=ro"].into_iter().enumerate() {
        let path = format!("ip:10.0.{n}.2@ip:10.0.{n}.1");
        map(&mut client, &format!("s{n}"), &path, "ram0", mode)?;
    }
    client.sh("dd if=/dev/zero of=/dev/rnbd0 bs=64k count=1024 oflag=direct 2>/dev/null")?;
    let (before, started) = (counters.read()?, Instant::now());
    std::thread::sleep(IDLING);
    let idle = (counters.read()? - before) as f64 / started.elapsed().as_secs_f64();
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        step.at(&format!("round {round} of {ROUNDS}"));
        let mut cost = |devices: &str, ios| cost(&mut client, &counters, idle, job, devices, ios);
        let one = cost("0", job.ios)?;
        let both = cost("0 1", 2 * job.ios)?;
        ratios.push(both / one);
    }
    let ratio = median(ratios)?;
    step.done(&format!("{ratio:.3}"));
    Ok(ratio)
}

/// Instructions per I/O of a job that runs on several devices at once.
fn cost(
    client: &mut Guest,
    counters: &Counters,
    idle: f64,
    job: &Job,
    devices: &str,
    ios: u32,
) -> Result<f64> {
    let Job { rw, kib, depth, ios: each, .. } = job;
    let (before, started) = (counters.read()?, Instant::now());
    client.sh(&format!(
        "for n in {devices}; do
            fio --name=job --filename=/dev/rnbd$n --direct=1 --ioengine=libaio --thread --rw={rw} \
            --bs={kib}k --iodepth={depth} --size=48m --norandommap --number_ios={each} --readonly \
            >/tmp/fio.$n 2>&1 & pids=\"$pids $!\"
         done
         for pid in $pids; do wait $pid || {{ cat /tmp/fio.*; exit 1; }}; done"
    ))?;
    let counted = (counters.read()? - before) as f64 - idle * started.elapsed().as_secs_f64();
    Ok(counted / f64::from(ios))
}
