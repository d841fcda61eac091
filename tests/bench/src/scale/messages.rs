//! TCP and SMC-R: a byte of a stream, compared with Linux; a round, a relayed round and a connection, beside a thousand
//! idle connections.

use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::smc::{prepare, serve};
use launch::progress;

use super::crowd::{self, Kind};
use crate::instructions::Plugin;
use crate::report::Report;
use crate::site::{Appliance, LINUX, Site, network};
use crate::smcr::median;

pub const KEYS: &[&str] = &[
    "tcp_stream_per_byte_ratio",
    "tcp_echo_1000_connections_ratio",
    "relay_1000_connections_ratio",
    "smc_connect_1000_connections_ratio",
];

const ISTHMUS: usize = 1;
/// Echo and discard on ports 7 and 9; a rule for clients over SMC-R and TCP, to a server on the client.
const WORDS: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.smc.connections=1100 isthmus.smc.connections_per_host=1100 isthmus.rule.0.name=relay isthmus.rule.0.listen=7001 \
    isthmus.rule.0.backend=10.0.1.2:7777 isthmus.rule.0.connections=1100 \
    isthmus.rule.0.connections_per_host=1100";
const ECHO: u16 = 7;
const RELAY: u16 = 7001;
/// Linux's echo server has TCP only.
const LINUX_ECHO: u16 = 8;
/// Numbers of idle connections, in increasing order.
const CROWDS: [usize; 3] = [250, 500, 1000];
const TIMES: usize = 3;
const ROUNDS: u32 = 1000;
const STREAM: u32 = 5_000_000;
const CONNECTIONS: u32 = 30;
const PATIENCE: Duration = Duration::from_secs(300);
/// Each idle connection sends one keep-alive in this time (`KEEP_ALIVE` of `net::connections`).
const KEEP_ALIVE: Duration = Duration::from_secs(28);

pub fn measure(plugin: &Plugin, report: &mut Report) -> Result<()> {
    let mut site = Site::boot(plugin, &[Appliance::halting(WORDS).memory(2048)])?;
    prepare(&mut site.client)?;
    prepare(&mut site.linux)?;
    serve(&mut site.linux, LINUX_ECHO, "tcp")?;
    serve(&mut site.client, 7777, "tcp")?;
    for (port, words) in [(ECHO, "64 10 1"), (ECHO, "64 10 1 tcp"), (RELAY, "64 10 1")] {
        echo(&mut site, ISTHMUS, port, words)?;
    }
    site.count_idle()?;
    if report.wants(&["tcp_stream_per_byte_ratio"]) {
        let step = progress::step("a byte of a stream over TCP");
        let linux = times(|| stream(&mut site, LINUX, LINUX_ECHO))?;
        let ours = times(|| stream(&mut site, ISTHMUS, ECHO))?;
        step.done(&format!("{ours:.2} instructions, Linux {linux:.2}"));
        report.ratio("tcp_stream_per_byte_ratio", ours, linux);
    }
    if report.wants(&["tcp_echo_1000_connections_ratio"]) {
        let cost: Cost = |site| round(site, ECHO, "tcp");
        let found = beside(&mut site, "TCP echo", ECHO, Kind::Tcp, &[cost])?;
        add(report, "tcp_echo", &found);
        report.add("tcp_echo_instructions", found[0].none.round());
    }
    if report.wants(&["relay_1000_connections_ratio"]) {
        let costs: [Cost; 2] = [|site| round(site, RELAY, ""), |site| round(site, RELAY, "tcp")];
        let found = beside(&mut site, "relay", RELAY, Kind::Tcp, &costs)?;
        // From SMC-R to TCP, and from TCP to TCP: the worse of the two is the figure.
        add(report, "relay", &found);
        report.add("relay_smc_to_tcp_instructions", found[0].none.round());
        report.add("relay_tcp_to_tcp_instructions", found[1].none.round());
    }
    if report.wants(&["smc_connect_1000_connections_ratio"]) {
        let found = beside(&mut site, "SMC-R connect", ECHO, Kind::Smc, &[connect])?;
        add(report, "smc_connect", &found);
        report.add("smc_connect_instructions", found[0].none.round());
    }
    Ok(())
}

/// Measures the cost of an operation at the appliance.
type Cost = fn(&mut Site) -> Result<f64>;

/// Costs of an operation beside no idle connection, and beside each crowd.
struct Costs {
    none: f64,
    beside: [f64; CROWDS.len()],
}

/// Adds the ratio of each crowd: the worst of several costs.
fn add(report: &mut Report, name: &str, found: &[Costs]) {
    for (place, crowd) in CROWDS.into_iter().enumerate() {
        let ratio = |costs: &&Costs| costs.beside[place] / costs.none;
        let worst = found.iter().max_by(|one, other| ratio(one).total_cmp(&ratio(other)));
        let worst = worst.expect("there is a measured cost");
        report.ratio(&format!("{name}_{crowd}_connections_ratio"), worst.beside[place], worst.none);
    }
}

/// Measures costs beside no idle connection, and beside each crowd on a port. A crowd over SMC-R is not closed, so it
/// must come last.
fn beside(
    site: &mut Site,
    name: &str,
    port: u16,
    kind: Kind,
    costs: &[Cost],
) -> Result<Vec<Costs>> {
    let step = progress::step(format!("{name}, beside none and beside {CROWDS:?}"));
    let all =
        |site: &mut Site| costs.iter().map(|cost| times(|| cost(site))).collect::<Result<Vec<_>>>();
    let none = all(site)?;
    let mut found: Vec<Costs> =
        none.into_iter().map(|none| Costs { none, beside: [none; CROWDS.len()] }).collect();
    let mut connected = 0;
    for (place, crowd) in CROWDS.into_iter().enumerate() {
        step.at(&format!("connecting {crowd}"));
        crowd::open(site, ISTHMUS, port, kind, connected..crowd)?;
        connected = crowd;
        // New connections send their first keep-alive only after a while.
        step.at("waiting for keep-alives");
        std::thread::sleep(KEEP_ALIVE);
        site.count_idle_for(KEEP_ALIVE)?;
        for (costs, cost) in found.iter_mut().zip(all(site)?) {
            costs.beside[place] = cost;
        }
    }
    if kind == Kind::Tcp {
        crowd::close(site, ISTHMUS)?;
        site.count_idle()?;
    }
    let costs: Vec<_> = found.iter().map(|costs| (costs.none, costs.beside)).collect();
    step.done(&format!("{costs:.0?} instructions"));
    Ok(found)
}

/// Median of [`TIMES`] measurements.
fn times(mut cost: impl FnMut() -> Result<f64>) -> Result<f64> {
    median((0..TIMES).map(|_| cost()).collect::<Result<_>>()?)
}

fn echo(site: &mut Site, server: usize, port: u16, words: &str) -> Result<()> {
    let command = format!("smc echo {}.1 {port} {words}", network(server));
    let (status, said) = site.client.try_sh(&command, PATIENCE)?;
    ensure!(status == 0 && said.trim() == "fine", "`{command}` said {said}");
    Ok(())
}

/// Cost of an echo of 64 bytes.
fn round(site: &mut Site, port: u16, word: &str) -> Result<f64> {
    let few = ROUNDS / 10;
    let mut count = |rounds: u32| {
        let words = format!("64 {rounds} 1 {word}");
        Ok::<_, anyhow::Error>(site.count(ISTHMUS, |site| echo(site, ISTHMUS, port, &words))?.1)
    };
    Ok((count(ROUNDS)? - count(few)?) / f64::from(ROUNDS - few))
}

/// Cost of an echoed byte of a stream over TCP.
fn stream(site: &mut Site, server: usize, port: u16) -> Result<f64> {
    let mut count = |bytes: u32| {
        let words = format!("{bytes} 1 1 tcp");
        Ok::<_, anyhow::Error>(site.count(server, |site| echo(site, server, port, &words))?.1)
    };
    Ok((count(STREAM)? - count(64)?) / f64::from(STREAM - 64))
}

/// Cost of a connection over SMC-R: connect, an echo of 64 bytes, close.
fn connect(site: &mut Site) -> Result<f64> {
    let one = format!("smc echo {}.1 {ECHO} 64 1 1 > /tmp/said", network(ISTHMUS));
    let all = format!("for n in $(seq {CONNECTIONS}); do {one} || exit 1; done");
    let (done, count) = site.count(ISTHMUS, |site| site.client.try_sh(&all, PATIENCE))?;
    ensure!(done.0 == 0, "a connection failed: {}", done.1);
    Ok(count / f64::from(CONNECTIONS))
}
