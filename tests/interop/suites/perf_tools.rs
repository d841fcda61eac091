//! Network measuring tools of operators on stock Linux against the image: every tool, both address families, Ethernet
//! MTU 1500 and 9000, messages of 1 byte to 8 MiB. Suite `perf` is a selection that takes a minute.

use anyhow::Result;
use interop_tests::tools::{
    BANDWIDTH, Gids, LATENCY, QPERF_BANDWIDTH, QPERF_LATENCY, perftest, pingpong, qperf, rping,
};
use interop_tests::{SERVICES, Site};
use launch::guest::Guest;

/// Runs `scenario` on a guest beside the image, once with each MTU.
fn run_scenario(
    mtus: &[u16],
    mut scenario: impl FnMut(&mut Guest, Gids) -> Result<()>,
) -> Result<()> {
    for &mtu in mtus {
        Site::run_scenario(mtu, SERVICES, |site| {
            let gids = Gids::of(&mut site.client)?;
            scenario(&mut site.client, gids)
        })?;
    }
    Ok(())
}

const BOTH: &[u16] = &[1500, 9000];
const LARGEST: u32 = 8 << 20;

#[test]
fn rping_and_pingpong() -> Result<()> {
    run_scenario(BOTH, |guest, gids| {
        rping(guest, &[23, 4000, 65535], 10)?;
        pingpong(guest, gids, &[1, 1024, 4096, LARGEST])
    })
}

#[test]
fn perftest_over_tcp() -> Result<()> {
    run_scenario(BOTH, |guest, gids| {
        let v6 = format!("-s 4096 -n 100 -x {}", gids.v6);
        perftest(guest, &LATENCY, &["-s 1 -n 200", "-s 65536 -n 20", &v6])?;
        let largest = format!("-s {LARGEST} -n 5");
        perftest(guest, &BANDWIDTH, &["-s 1 -n 500", "-s 65536 -n 100", &largest, &v6])?;
        perftest(guest, &BANDWIDTH, &["-s 4096 -n 100 -q 4"])
    })
}

#[test]
fn perftest_of_all_sizes() -> Result<()> {
    run_scenario(&[1500], |guest, _| {
        perftest(guest, &LATENCY, &["-a -n 5"])?;
        perftest(guest, &BANDWIDTH, &["-a -n 5"])
    })
}

#[test]
fn perftest_over_the_connection_manager() -> Result<()> {
    run_scenario(BOTH, |guest, _| {
        perftest(guest, &LATENCY, &["-R -s 1 -n 200", "-R -s 65536 -n 20"])?;
        let largest = format!("-R -s {LARGEST} -n 5");
        perftest(guest, &BANDWIDTH, &["-R -s 1 -n 500", &largest, "-R -s 4096 -n 100 -q 4"])
    })
}

#[test]
fn qperf_over_the_connection_manager() -> Result<()> {
    run_scenario(BOTH, |guest, _| {
        qperf(guest, &QPERF_BANDWIDTH, &["1", "64K"], 2)?;
        // At least one message must complete in the time, which takes long on a busy host.
        qperf(guest, &QPERF_BANDWIDTH, &["8M"], 40)?;
        qperf(guest, &QPERF_LATENCY, &["1", "64K"], 2)
    })
}
