//! The tools with which operators measure a fabric, on stock Linux, against the appliance's engines.

use anyhow::{Context, Result, ensure};
use interop_tests::client;
use interop_tests::engines::{Engines, Setup};
use launch::guest::Guest;

/// Runs `story` on a guest at the other end of the engines' wire.
fn tell(mtu: usize, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let engines = Engines::start(Setup { mtu, ..Setup::default() })?;
    let told = client(engines.nic(), mtu as u16).and_then(|mut guest| story(&mut guest));
    let report = engines.stop()?;
    told.with_context(|| format!("the engines said {report:#?}"))
}

/// The index of the guest's RoCEv2 GID of that address.
fn gid_index(guest: &mut Guest, gid: &str) -> Result<String> {
    let gids = "/sys/class/infiniband/rxe0/ports/1/gids";
    let index = guest.sh(&format!("grep -l {gid} {gids}/* | sed 's,.*/,,' | head -1"))?;
    ensure!(!index.trim().is_empty(), "the guest has no GID {gid}");
    Ok(index.trim().to_string())
}

const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0002";
const V6: &str = "fd00:0000:0000:0000:0000:0000:0000:0002";

#[test]
fn ibv_rc_pingpong() -> Result<()> {
    for mtu in [1500, 9000] {
        tell(mtu, |guest| {
            for (gid, server) in [(V4, "10.0.0.1"), (V6, "fd00::1"), (V6, "10.0.0.1")] {
                let index = gid_index(guest, gid)?;
                for size in [1, 1024, 4096, 8 << 20] {
                    let count = if size > 65536 { 2 } else { 200 };
                    let words = format!("-g {index} -s {size} -n {count} {server}");
                    guest.sh(&format!("ibv_rc_pingpong {words}"))?;
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Runs each of perftest's tools with each of these options, and looks that it measured something.
fn perftest(guest: &mut Guest, tools: &[&str], options: &[&str]) -> Result<()> {
    for tool in tools {
        for words in options {
            let command = format!("timeout 60 {tool} -d rxe0 -F {words} 10.0.0.1");
            let said = guest.sh(&command)?;
            let measured = said.lines().any(|line| {
                let numbers = line.split_whitespace().map(|word| word.parse::<f64>().is_ok());
                line.split_whitespace().count() >= 4 && numbers.into_iter().all(|is| is)
            });
            ensure!(measured, "`{command}` measured nothing:\n{said}");
            guest.sh("sleep 0.2")?;
        }
    }
    Ok(())
}

const BANDWIDTH: [&str; 3] = ["ib_send_bw", "ib_write_bw", "ib_read_bw"];
const LATENCY: [&str; 3] = ["ib_send_lat", "ib_write_lat", "ib_read_lat"];

#[test]
fn perftest_over_tcp() -> Result<()> {
    for mtu in [1500, 9000] {
        tell(mtu, |guest| {
            let v6 = gid_index(guest, V6)?;
            let v6 = format!("-s 4096 -n 100 -x {v6}");
            perftest(guest, &LATENCY, &["-s 1 -n 200", "-s 65536 -n 20", &v6])?;
            let eight = "-s 8388608 -n 5";
            perftest(guest, &BANDWIDTH, &["-s 1 -n 500", "-s 65536 -n 100", eight, &v6])?;
            perftest(guest, &BANDWIDTH, &["-s 4096 -n 100 -q 4"])
        })?;
    }
    Ok(())
}

#[test]
fn perftest_of_all_sizes() -> Result<()> {
    tell(1500, |guest| {
        perftest(guest, &["ib_send_lat", "ib_write_lat", "ib_read_lat"], &["-a -n 5"])?;
        perftest(guest, &["ib_send_bw", "ib_write_bw", "ib_read_bw"], &["-a -n 5"])
    })
}

#[test]
fn perftest_over_the_connection_manager() -> Result<()> {
    tell(1500, |guest| {
        perftest(guest, &LATENCY, &["-R -s 64 -n 200"])?;
        perftest(guest, &BANDWIDTH, &["-R -s 65536 -n 100", "-R -s 4096 -n 100 -q 4"])
    })
}

#[test]
fn qperf() -> Result<()> {
    tell(1500, |guest| {
        for test in ["rc_bw", "rc_rdma_write_bw", "rc_rdma_read_bw"] {
            for size in ["1", "64K", "8M"] {
                guest.sh(&format!("timeout 60 qperf -cm 1 -t 2 -m {size} 10.0.0.1 {test}"))?;
            }
        }
        for test in ["rc_lat", "rc_rdma_write_lat", "rc_rdma_read_lat"] {
            for size in ["1", "64K"] {
                guest.sh(&format!("timeout 60 qperf -cm 1 -t 2 -m {size} 10.0.0.1 {test}"))?;
            }
        }
        Ok(())
    })
}
