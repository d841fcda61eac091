//! Runs network measuring tools of operators in a stock Linux guest against 10.0.0.1 (fd00::1), independent of the
//! server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::guest::Guest;

/// perftest's bandwidth tests of each operation.
pub const BANDWIDTH: [&str; 3] = ["ib_send_bw", "ib_write_bw", "ib_read_bw"];
/// perftest's latency tests of each operation.
pub const LATENCY: [&str; 3] = ["ib_send_lat", "ib_write_lat", "ib_read_lat"];
/// qperf's bandwidth tests of each operation.
pub const QPERF_BANDWIDTH: [&str; 3] = ["rc_bw", "rc_rdma_write_bw", "rc_rdma_read_bw"];
/// qperf's latency tests of each operation.
pub const QPERF_LATENCY: [&str; 3] = ["rc_lat", "rc_rdma_write_lat", "rc_rdma_read_lat"];

const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0002";
const V6: &str = "fd00:0000:0000:0000:0000:0000:0000:0002";

/// How long one run of a tool may take.
const LIMIT: Duration = Duration::from_secs(210);

/// Indexes of the guest's RoCEv2 GIDs, for the tools' options.
#[derive(Clone, Copy, Debug)]
pub struct Gids {
    /// Of 10.0.0.2.
    pub v4: u32,
    /// Of fd00::2.
    pub v6: u32,
}

impl Gids {
    /// Looks up the indexes.
    pub fn of(guest: &mut Guest) -> Result<Gids> {
        Ok(Gids { v4: gid_index(guest, V4)?, v6: gid_index(guest, V6)? })
    }
}

fn gid_index(guest: &mut Guest, gid: &str) -> Result<u32> {
    let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
    let index = guest.sh(&format!("grep -l {gid} {gids}/* | sed 's,.*/,,' | head -1"))?;
    index.trim().parse().with_context(|| format!("the guest has no GID {gid}: {index:?}"))
}

/// Runs a tool with a timeout, and returns its output.
fn run(guest: &mut Guest, command: &str) -> Result<String> {
    let (status, output) = guest.try_sh(&format!("timeout 200 {command}"), LIMIT)?;
    ensure!(status == 0, "`{command}` ended with status {status}:\n{output}");
    Ok(output)
}

/// A shell command for an rping that verifies every byte. It checks rping's output and not only its status: at its end
/// rping closes the event channel that its own thread waits on, and if that thread notices first, rping exits with an
/// error.
pub fn rping_command(address: &str, size: u32, count: u32) -> String {
    format!(
        "{{ timeout 200 rping -c -v -V -a {address} -C {count} -S {size} >/tmp/rping.out 2>&1 || \
         grep -q 'rdma_get_cm_event: Bad file descriptor' /tmp/rping.out; }} && \
         [ $(grep -c '^ping data: rdma-ping-' /tmp/rping.out) = {count} ] || \
         {{ tail -c 2000 /tmp/rping.out; false; }}"
    )
}

/// rping with these sizes, over both address families.
pub fn rping(guest: &mut Guest, sizes: &[u32], count: u32) -> Result<()> {
    for address in ["10.0.0.1", "fd00::1"] {
        for &size in sizes {
            let (status, output) = guest.try_sh(&rping_command(address, size, count), LIMIT)?;
            ensure!(status == 0, "rping to {address} with {size} bytes:\n{output}");
        }
    }
    Ok(())
}

/// `ibv_rc_pingpong` with these sizes: over IPv4, over IPv6, and over IPv6 with TCP over IPv4.
pub fn pingpong(guest: &mut Guest, gids: Gids, sizes: &[u32]) -> Result<()> {
    let ways = [(gids.v4, "10.0.0.1"), (gids.v6, "fd00::1"), (gids.v6, "10.0.0.1")];
    for (index, server) in ways {
        for &size in sizes {
            let count = if size > 65536 { 2 } else { 100 };
            run(guest, &format!("ibv_rc_pingpong -g {index} -s {size} -n {count} {server}"))?;
        }
    }
    Ok(())
}

/// The guest's device and the server of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Name of the RDMA device.
    pub device: &'static str,
    /// Address of the server.
    pub server: &'static str,
}

const RXE: Way = Way { device: "rxe0", server: "10.0.0.1" };

/// Runs each of these perftest tools with each of these options, and checks that it reports a measurement.
pub fn perftest(guest: &mut Guest, tools: &[&str], options: &[&str]) -> Result<()> {
    perftest_by(guest, RXE, tools, options)
}

/// As `perftest`, over another device or server.
pub fn perftest_by(guest: &mut Guest, way: Way, tools: &[&str], options: &[&str]) -> Result<()> {
    let Way { device, server } = way;
    for tool in tools {
        for words in options {
            // -u 18: Linux retransmits after a second, not after 67 ms, because a busy host is that slow
            // with two guests.
            let command = format!("{tool} -d {device} -F -u 18 {words} {server}");
            let output = run(guest, &command)?;
            let measured = output.lines().any(|line| {
                let mut numbers = line.split_whitespace().map(|word| word.parse::<f64>().is_ok());
                line.split_whitespace().count() >= 4 && numbers.all(|is| is)
            });
            ensure!(measured, "`{command}` measured nothing:\n{output}");
            guest.sh("sleep 0.2")?;
        }
    }
    Ok(())
}

/// Runs these qperf tests for `seconds` each, with messages of each of these sizes.
pub fn qperf(guest: &mut Guest, tests: &[&str], sizes: &[&str], seconds: u32) -> Result<()> {
    qperf_by(guest, RXE, tests, sizes, seconds)
}

/// As `qperf`, over another device or server.
pub fn qperf_by(
    guest: &mut Guest,
    way: Way,
    tests: &[&str],
    sizes: &[&str],
    seconds: u32,
) -> Result<()> {
    for test in tests {
        for size in sizes {
            let command = format!("qperf -cm 1 -t {seconds} -m {size} {} {test}", way.server);
            let output = run(guest, &command)?;
            let result =
                output.lines().find_map(|line| line.split_once('=')).map(|(_, value)| value);
            ensure!(
                result.is_some_and(|value| !value.trim().starts_with('0')),
                "`{command}` measured nothing:\n{output}"
            );
        }
    }
    Ok(())
}
