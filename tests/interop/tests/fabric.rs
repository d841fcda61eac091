//! The tools with which operators measure a fabric, on stock Linux, against the image: a choice of suite
//! `services` that takes half a minute.

use anyhow::{Context, Result};
use interop_tests::Site;
use interop_tests::tools::{
    BANDWIDTH, Gids, LATENCY, QPERF_BANDWIDTH, QPERF_LATENCY, perftest, pingpong, qperf, rping,
};

/// The image with the peers of the measuring tools, and a guest.
fn tell(mtu: u16, story: impl FnOnce(&mut Site) -> Result<()>) -> Result<()> {
    let mut site = Site::boot(mtu, "isthmus.roce.services=true")?;
    let told = story(&mut site);
    told.with_context(|| {
        let log = site.gateway.run("show log");
        let log = log.map_or_else(|error| format!("{error:#}"), |log| log.text);
        format!("the appliance's log:\n{log}")
    })
}

#[test]
fn every_measuring_tool_measures() -> Result<()> {
    tell(1500, |site| {
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
