//! Network measuring tools of operators on stock Linux against the image: a selection of suite `perf_tools` that takes
//! half a minute.

use anyhow::Result;
use interop_tests::tools::{
    BANDWIDTH, Gids, LATENCY, QPERF_BANDWIDTH, QPERF_LATENCY, perftest, pingpong, qperf, rping,
};
use interop_tests::{SERVICES, Site};

#[test]
fn every_measuring_tool_measures() -> Result<()> {
    Site::run_scenario(1500, SERVICES, |site| {
        let guest = &mut site.client;
        let gids = Gids::of(guest)?;
        rping(guest, &[4000], 5)?;
        pingpong(guest, gids, &[1, 4096])?;
        let v6 = format!("-s 65536 -n 10 -x {}", gids.v6);
        perftest(guest, &LATENCY, &["-s 1 -n 50", "-R -s 4096 -n 20"])?;
        perftest(guest, &BANDWIDTH, &[&v6, "-R -s 65536 -n 20"])?;
        qperf(guest, &QPERF_BANDWIDTH, &["64K"], 1)?;
        qperf(guest, &QPERF_LATENCY, &["1"], 1)
    })
}
