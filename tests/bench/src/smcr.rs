//! `./isthmus bench smcr`: cost of SMC-R at the server, compared with a stock Linux server.
//!
//! One stock Linux client has three servers on three wires: a Linux guest with an AF_SMC echo server; the appliance
//! with its echo service, which halts as soon as it is idle; and an appliance that polls as shipped (keys that end in
//! `_default`). The client makes the same connections to each in turn, while a QEMU plugin counts the instructions of
//! each server. The instructions of an idle server are subtracted. The cost of a round is the difference between many
//! rounds and few.
//!
//! The client is not counted, and times are not measured.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::smc::{prepare, serve};
use launch::progress;
use launch::setup::{self, Purpose};

use crate::instructions::Plugin;
use crate::report::Report;
use crate::site::{Appliance, LINUX, Site, network};

const ISTHMUS: usize = 1;
/// The appliance that polls as shipped; the other halts at once.
const SHIPPED: usize = 2;
const WORDS: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.smc.connections=512 isthmus.smc.connections_per_host=512";

/// Repetitions on each server.
const TIMES: usize = 3;
/// Echoes; a second run does a tenth of them.
const ROUNDS: u32 = 1000;
/// Bytes of the stream.
const STREAM: u32 = 5_000_000;
/// Successive connections.
const CONNECTIONS: u32 = 30;
/// Concurrent idle connections. A link group has at most 255.
const IDLE: u32 = 200;
/// Time limit of each command of the client.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures, writes `target/bench/smcr.json`, and fails if a bar is missed.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let plugin = Plugin::compile()?;
    let appliances = [Appliance::halting(WORDS), Appliance::as_shipped(WORDS)];
    let mut site = Site::boot(&plugin, &appliances)?;
    prepare(&mut site.client)?;
    prepare(&mut site.linux)?;
    serve(&mut site.linux, 7, "")?;
    for server in [LINUX, ISTHMUS, SHIPPED] {
        echo(&mut site, server, "64 10 1")?;
        speaks_smc(&mut site, server)?;
    }
    site.count_idle()?;
    let mut report = Report::new("smcr", Some(0));
    for (name, keys, cost) in COSTS {
        let step = progress::step(name);
        let mut costs = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..TIMES {
            for (server, costs) in [LINUX, ISTHMUS, SHIPPED].into_iter().zip(&mut costs) {
                costs.push(cost(&mut site, server)?);
            }
        }
        let [linux, ours, shipped] = costs.map(median);
        let (linux, ours, shipped) = (linux?, ours?, shipped?);
        step.done(&format!("{ours:.1} instructions, as shipped {shipped:.1}, Linux {linux:.1}"));
        report.ratio(keys[0], ours, linux);
        report.ratio(keys[1], shipped, linux);
    }
    report.add("bytes_per_idle_connection", idle_connection(&mut site)?);
    report.close()
}

/// Measures the cost of an operation at a server.
type Cost = fn(&mut Site, usize) -> Result<f64>;

/// The measurements, with the keys for halting at once and as shipped.
const COSTS: [(&str, [&str; 2], Cost); 4] = [
    ("a round of 64 bytes", ["echo64_ratio", "echo64_ratio_default"], |s, n| round(s, n, 64)),
    ("a round of 4 KiB", ["echo4k_ratio", "echo4k_ratio_default"], |s, n| round(s, n, 4096)),
    ("a byte of a stream", ["stream_ratio", "stream_ratio_default"], stream),
    ("a connection", ["connect_ratio", "connect_ratio_default"], connection),
];

/// Runs the client's echo over SMC-R.
fn echo(site: &mut Site, server: usize, words: &str) -> Result<()> {
    let command = format!("smc echo {}.1 7 {words}", network(server));
    let (status, said) = site.client.try_sh(&command, PATIENCE)?;
    ensure!(status == 0 && said.trim() == "fine", "`{command}` said {said}");
    Ok(())
}

/// Checks that connections to the server use SMC-R.
fn speaks_smc(site: &mut Site, server: usize) -> Result<()> {
    let command = format!("smc echo {}.1 7 64 1 1 hold=4 > /tmp/held 2>&1 &", network(server));
    site.client.sh(&command)?;
    let waited = site.client.wait_until("smc sockets | grep -q '^ACTIVE SMCR '", PATIENCE);
    let sockets = site.client.sh("smc sockets")?;
    waited.with_context(|| format!("sockets:\n{sockets}"))?;
    site.client.wait_until("grep fine /tmp/held", PATIENCE)
}

fn round(site: &mut Site, server: usize, bytes: u32) -> Result<f64> {
    let few = ROUNDS / 10;
    let mut count = |rounds: u32| {
        let words = format!("{bytes} {rounds} 1");
        Ok::<_, anyhow::Error>(site.count(server, |site| echo(site, server, &words))?.1)
    };
    Ok((count(ROUNDS)? - count(few)?) / f64::from(ROUNDS - few))
}

fn stream(site: &mut Site, server: usize) -> Result<f64> {
    let mut count = |bytes: u32| {
        let words = format!("{bytes} 1 1");
        Ok::<_, anyhow::Error>(site.count(server, |site| echo(site, server, &words))?.1)
    };
    Ok((count(STREAM)? - count(64)?) / f64::from(STREAM - 64))
}

/// Cost of a connection: connect, an echo of 64 bytes, close.
fn connection(site: &mut Site, server: usize) -> Result<f64> {
    let one = format!("smc echo {}.1 7 64 1 1 > /tmp/said", network(server));
    let all = format!("for n in $(seq {CONNECTIONS}); do {one} || exit 1; done");
    let (done, count) = site.count(server, |site| site.client.try_sh(&all, PATIENCE))?;
    ensure!(done.0 == 0, "a connection failed: {}", done.1);
    Ok(count / f64::from(CONNECTIONS))
}

/// Memory, in heap and arena, of an open connection after it was used.
fn idle_connection(site: &mut Site) -> Result<f64> {
    let step = progress::step("memory of idle connections");
    // Now the appliance has the memory that it retains for later connections.
    echo(site, ISTHMUS, &format!("64 1 {IDLE}"))?;
    site.client.sh("sleep 3")?;
    let before = memory(site)?;
    let held = format!("smc echo {}.1 7 64 1 {IDLE} hold=60", network(ISTHMUS));
    site.client.sh(&format!("{held} > /tmp/held 2>&1 &"))?;
    let open = format!("[ $(smc sockets | grep -c 'ACTIVE SMCR') = {IDLE} ]");
    site.client.wait_until(&open, PATIENCE)?;
    site.client.sh("sleep 10")?;
    let with = memory(site)?;
    let each = (with - before) / f64::from(IDLE);
    step.done(&format!("{each:.0} bytes each"));
    Ok(each)
}

/// Memory in use: the heap, and the used part of the arena, without the buffers that are retained for later writers.
/// There are as many of these as were in use at a time.
fn memory(site: &mut Site) -> Result<f64> {
    let url = format!("http://{}.1/metrics", network(ISTHMUS));
    let page = site.client.sh(&format!("busybox wget -q -O - {url}"))?;
    let value = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|text| text.trim().parse::<f64>().ok()).with_context(|| format!("no {name}"))
    };
    let arena = value("isthmus_arena_size_bytes")? - value("isthmus_arena_free_bytes")?;
    let url = format!("http://{}.1/api/smc/stats", network(ISTHMUS));
    let stats = site.client.sh(&format!("busybox wget -q -O - {url}"))?;
    let stats: serde_json::Value = serde_json::from_str(&stats)?;
    let kept = stats["buffers_kept"].as_f64().context("no buffers_kept")?;
    Ok(arena + value("isthmus_memory_heap_bytes")? - kept)
}

/// Median of an odd number of values.
pub fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("a median needs a run")
}
