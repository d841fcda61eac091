//! Sessions and volumes: 64 of each, compared with one.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::map;
use launch::progress;

use crate::instructions::Plugin;
use crate::report::Report;
use crate::rnbd::fio::{self, Job};
use crate::site::{Appliance, Site, network};
use crate::smcr::median;

pub const KEYS: &[&str] = &[
    "read4k_64_sessions_ratio",
    "idle_64_sessions_instructions_per_second",
    "volumes_64_ratio",
    "metrics_longest_round_instructions",
];

/// An appliance with one volume, and one with 64.
const FEW: usize = 1;
const MANY: usize = 2;
const SESSIONS: usize = 64;
const VOLUMES: usize = 64;
/// Reads of each session when all sessions read.
const EACH: u32 = 150;
const TIMES: usize = 3;
const READ: Job = Job { name: "4 KiB read, depth 1", rw: "randread", kib: 4, depth: 1, ios: 3000 };
const SESSION: &str = "isthmus.rnbd.queue_depth=16 isthmus.limits.sessions_per_host=64 \
    isthmus.limits.memory_per_host=16TiB";

/// The volume that is read, and 63 others.
fn volumes() -> String {
    let mut document = String::from("[[volume]]\nname = \"ram0\"\nsize = \"64MiB\"\n");
    for number in 1..VOLUMES {
        let _ = writeln!(document, "[[volume]]\nname = \"v{number}\"\nsize = \"1MiB\"");
    }
    document
}

pub fn measure(plugin: &Plugin, report: &mut Report) -> Result<()> {
    let appliances = [
        Appliance::halting(SESSION).memory(512),
        Appliance::halting(SESSION).memory(512).config(volumes()),
    ];
    let mut site = Site::boot(plugin, &appliances)?;
    site.client.sh("modprobe rnbd-client")?;
    for (device, server) in [FEW, MANY].into_iter().enumerate() {
        connect(&mut site, server, 0, "")?;
        site.client.sh(&format!(
            "dd if=/dev/zero of=/dev/rnbd{device} bs=64k count=1024 oflag=direct 2>/dev/null"
        ))?;
    }
    site.count_idle()?;
    let one = reads(&mut site, FEW, &[0])?;
    report.add("read4k_instructions", one.round());
    if report.wants(&["volumes_64_ratio"]) {
        let step = progress::step("reads beside 64 volumes");
        let many = reads(&mut site, MANY, &[1])?;
        report.ratio("volumes_64_ratio", many, one);
        step.done(&format!("{one:.0} instructions a read beside none, {many:.0} beside 64"));
    }
    if report.wants(&["read4k_64_sessions_ratio", "idle_64_sessions_instructions_per_second"]) {
        sessions(&mut site, report, one)?;
    }
    if report.wants(&["metrics_longest_round_instructions"]) {
        let step = progress::step("a round while /metrics is read");
        connect_more(&mut site, MANY, 1..SESSIONS)?;
        let mut longest = 0.0f64;
        for _ in 0..TIMES {
            longest = longest.max(site.longest_round(MANY, metrics)?);
        }
        report.add("metrics_longest_round_instructions", longest);
        step.done(&format!("{longest:.0} instructions at the longest"));
    }
    Ok(())
}

/// Measures a read with an increasing number of sessions, up to all. With one session a read costs `one`.
fn sessions(site: &mut Site, report: &mut Report, one: f64) -> Result<()> {
    let mut connected = 1;
    for (sessions, [active, idle]) in [
        (4, ["read4k_4_active_sessions_ratio", "read4k_beside_3_idle_sessions_ratio"]),
        (16, ["read4k_16_active_sessions_ratio", "read4k_beside_15_idle_sessions_ratio"]),
        (SESSIONS, ["read4k_64_active_sessions_ratio", "read4k_beside_63_idle_sessions_ratio"]),
    ] {
        let step = progress::step(format!("{sessions} sessions"));
        connect_more(site, FEW, connected..sessions)?;
        connected = sessions;
        site.count_idle()?;
        // The appliance's own device is the first; the second belongs to the other appliance.
        let all: Vec<usize> = [0].into_iter().chain(2..sessions + 1).collect();
        let each = reads(site, FEW, &all)?;
        let alone = reads(site, FEW, &[0])?;
        report.ratio(active, each, one);
        report.ratio(idle, alone, one);
        step.done(&format!(
            "{each:.0} instructions a read when all read, {alone:.0} when one does"
        ));
        if sessions == SESSIONS {
            let idle = site.idle(FEW)?;
            report.add("idle_64_sessions_instructions_per_second", idle.round());
            report.ratio("read4k_64_sessions_ratio", each.max(alone), one);
        }
    }
    Ok(())
}

/// Connects more sessions to a server. They read the same volume as the first.
fn connect_more(site: &mut Site, server: usize, numbers: Range<usize>) -> Result<()> {
    for number in numbers {
        connect(site, server, number, "access_mode=ro")?;
    }
    Ok(())
}

/// Connects a session of the client to a server, and maps its volume `ram0`.
fn connect(site: &mut Site, server: usize, number: usize, options: &str) -> Result<()> {
    let network = network(server);
    let path = format!("ip:{network}.2@ip:{network}.1");
    map(&mut site.client, &format!("s{server}-{number}"), &path, "ram0", options)
}

/// Instructions of a server for a read, depth 1, from each of these devices at once: the median.
fn reads(site: &mut Site, server: usize, devices: &[usize]) -> Result<f64> {
    let ios = if devices.len() == 1 { READ.ios } else { EACH };
    let jobs: Vec<String> = devices
        .iter()
        .map(|device| format!("--name=j{device} --filename=/dev/rnbd{device} --number_ios={ios}"))
        .collect();
    let fio = format!(
        "fio --direct=1 --ioengine=libaio --iodepth=1 --thread --rw={} --bs={}k --size=48m \
         --norandommap --output-format=terse --terse-version=3 {}",
        READ.rw,
        READ.kib,
        jobs.join(" ")
    );
    let mut costs = Vec::new();
    for _ in 0..TIMES {
        let (said, count) = site.count(server, |site| match devices {
            [device] => {
                fio::run(&mut site.client, &format!("/dev/rnbd{device}"), &READ).map(|_| None)
            }
            _ => site.client.try_sh(&fio, Duration::from_secs(300)).map(Some),
        })?;
        if let Some((status, output)) = said {
            let fine = output.lines().filter(|line| line.starts_with("3;"));
            let fine = fine.filter(|line| line.split(';').nth(4) == Some("0")).count();
            ensure!(status == 0 && fine == devices.len(), "fio:\n{output}");
        }
        costs.push(count / f64::from(ios) / devices.len() as f64);
    }
    median(costs)
}

/// Reads /metrics.
fn metrics(site: &mut Site) -> Result<()> {
    let url = format!("http://{}.1/metrics", network(MANY));
    let bytes = site.client.sh(&format!("busybox wget -q -O - {url} | wc -c"))?;
    ensure!(bytes.trim().parse::<u64>()? > 10_000, "/metrics has {bytes} bytes");
    Ok(())
}
