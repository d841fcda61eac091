//! Network measuring tools of operators on stock Linux with a card, against a card of the image.

use interop_tests::tools::{
    BANDWIDTH, LATENCY, QPERF_BANDWIDTH, QPERF_LATENCY, Way, perftest_by, qperf_by,
};

use super::*;

const CARD: Way = Way { device: "mlx5_0", server: THERE };

#[test]
fn perftest_and_qperf_measure_a_card_of_the_image() -> Result<()> {
    let mut cards = Cards::boot(&[], "isthmus.roce.services=true")?;
    let guest = &mut cards.linux.guest;
    let gids = "/sys/class/infiniband/mlx5_0/ports/1";
    let index = guest.sh(&format!(
        "cd {gids}; for n in $(grep -l ffff:0a01:0001 gids/* | sed 's,.*/,,'); do
             grep -q v2 gid_attrs/types/$n && echo $n && break
         done"
    ))?;
    let index = index.trim();
    ensure!(index.parse::<u32>().is_ok(), "no GID of RoCEv2: {index:?}");
    let by_gid = format!("-x {index} -s 1 -n 50");
    perftest_by(guest, CARD, &LATENCY, &[&by_gid, "-R -s 4096 -n 20"])?;
    // The card does not report incoming RDMA WRITEs, so the image polls memory for them, at any size.
    perftest_by(guest, CARD, &["ib_write_lat"], &[&format!("-x {index} -a -n 20")])?;
    perftest_by(guest, CARD, &["ib_write_lat"], &[&format!("-x {index} -s 1000 -n 1000")])?;
    perftest_by(guest, CARD, &["ib_write_lat"], &[&format!("-x {index} -s 65536 -n 20")])?;
    let by_gid = format!("-x {index} -s 65536 -n 10");
    perftest_by(guest, CARD, &BANDWIDTH, &[&by_gid, "-R -s 65536 -n 20"])?;
    qperf_by(guest, CARD, &QPERF_BANDWIDTH, &["64K"], 1)?;
    qperf_by(guest, CARD, &QPERF_LATENCY, &["1"], 1)?;
    cards.vm.run("show log")?.lacks("ERROR")?;
    drop(cards.vm);
    let counters = cards.linux.end()?;
    // `roce_dropped` is not checked, because packets to queue pairs of ended tools are dropped.
    are_zero(&counters, &BOTH, &RULES)?;
    have_sent_roce(&counters, &BOTH, 10_000)
}
