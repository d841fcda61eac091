//! The tools with which operators measure a network, on stock Linux, against the image: every tool,
//! both address families, Ethernet MTU 1500 and 9000, messages of 1 byte to 8 MiB. Suite `perf`
//! has a choice of this that takes a minute.

use anyhow::Result;
use interop_tests::tools::{
    BANDWIDTH, Gids, LATENCY, QPERF_BANDWIDTH, QPERF_LATENCY, perftest, pingpong, qperf, rping,
};
use interop_tests::{SERVICES, Site};
use launch::guest::Guest;

/// Runs `story` on a guest beside the image, once with each MTU.
fn tell(mtus: &[u16], mut story: impl FnMut(&mut Guest, Gids) -> Result<()>) -> Result<()> {
    for &mtu in mtus {
        Site::tell(mtu, SERVICES, |site| {
            let gids = Gids::of(&mut site.client)?;
            story(&mut site.client, gids)
        })?;
    }
    Ok(())
}

const BOTH: &[u16] = &[1500, 9000];
const LARGEST: u32 = 8 << 20;

#[test]
fn rping_and_pingpong() -> Result<()> {
    tell(BOTH, |guest, gids| {
        rping(guest, &[23, 4000, 65535], 10)?;
        pingpong(guest, gids, &[1, 1024, 4096, LARGEST])
    })
}

#[test]
fn perftest_over_tcp() -> Result<()> {
    tell(BOTH, |guest, gids| {
        let v6 = format!("-s 4096 -n 100 -x {}", gids.v6);
        perftest(guest, &LATENCY, &["-s 1 -n 200", "-s 65536 -n 20", &v6])?;
        let largest = format!("-s {LARGEST} -n 5");
        perftest(guest, &BANDWIDTH, &["-s 1 -n 500", "-s 65536 -n 100", &largest, &v6])?;
        perftest(guest, &BANDWIDTH, &["-s 4096 -n 100 -q 4"])
    })
}

#[test]
fn perftest_of_all_sizes() -> Result<()> {
    tell(&[1500], |guest, _| {
        perftest(guest, &LATENCY, &["-a -n 5"])?;
        perftest(guest, &BANDWIDTH, &["-a -n 5"])
    })
}

#[test]
fn perftest_over_the_connection_manager() -> Result<()> {
    tell(BOTH, |guest, _| {
        perftest(guest, &LATENCY, &["-R -s 1 -n 200", "-R -s 65536 -n 20"])?;
        let largest = format!("-R -s {LARGEST} -n 5");
        perftest(guest, &BANDWIDTH, &["-R -s 1 -n 500", &largest, "-R -s 4096 -n 100 -q 4"])
    })
}

#[test]
fn qperf_over_the_connection_manager() -> Result<()> {
    tell(BOTH, |guest, _| {
        qperf(guest, &QPERF_BANDWIDTH, &["1", "64K"], 2)?;
        // At least one message has to come through in the time, which a busy host makes long.
        qperf(guest, &QPERF_BANDWIDTH, &["8M"], 40)?;
        qperf(guest, &QPERF_LATENCY, &["1", "64K"], 2)
    })
}
