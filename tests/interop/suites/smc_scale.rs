//! Many SMC-R connections from stock Linux, concurrent and sequential.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use interop_tests::Site;
use interop_tests::lab::used;
use interop_tests::smc::prepare;

const SERVICES: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID isthmus.smc.connections=1100 \
    isthmus.smc.connections_per_host=1100";
/// Connections of one run of the client.
const EACH: usize = 200;
/// Concurrent connections.
const AT_ONCE: usize = 1000;
/// Sequential connections.
const IN_ALL: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(300);
/// Waits for two sweeps, which free unused receive buffers and which no counter reports.
const SWEEPS: &str = "sleep 5";
/// How long the appliance may take to free memory after the last close.
const SETTLING: Duration = Duration::from_secs(40);
/// Bytes that memory use may vary by: nodes of maps, and buffers of the page that reports it.
const SLACK: f64 = 65_536.0;

/// Opens a thousand connections, uses them, holds them, and closes them.
fn hold_many(site: &mut Site) -> Result<()> {
    for n in 1..=AT_ONCE / EACH {
        let held = format!("smc echo 10.0.0.1 7 64 1 {EACH} hold=180");
        site.client.sh(&format!("{held} > /tmp/held{n} 2>&1 &"))?;
        let open = format!("[ $(smc sockets | grep -c 'ACTIVE SMCR') = {} ]", n * EACH);
        site.client.wait_until(&open, PATIENCE)?;
    }
    let sockets = site.gateway.run("show smc sockets --json")?.text;
    let open = sockets.matches("ACTIVE").count();
    ensure!(open == AT_ONCE, "the appliance has {open} sockets");
    // Other connections are not disturbed.
    let said = site.client.sh("timeout 60 smc echo 10.0.0.1 7 4096 100 4")?;
    ensure!(said.trim() == "fine", "{said}");
    site.client.wait_until("! pidof smc > /dev/null", PATIENCE)?;
    let said = site.client.sh("cat /tmp/held*")?;
    ensure!(said.matches("fine").count() == AT_ONCE / EACH, "{said}");
    let end = Instant::now() + SETTLING;
    while site.gateway.run("show smc sockets --json")?.text.trim() != "[]" {
        ensure!(Instant::now() < end, "sockets remain");
        site.client.sh("sleep 1")?;
    }
    site.client.sh(SWEEPS)?;
    Ok(())
}

#[test]
fn thousand_concurrent_and_ten_thousand_sequential_connections_work() -> Result<()> {
    Site::run_scenario(1500, SERVICES, |site| {
        prepare(&mut site.client)?;
        hold_many(site)?;
        // Tables have their final size now.
        let before = used(&mut site.client)?;
        let one = format!("smc echo 10.0.0.1 7 64 1 {EACH}");
        let all = format!(
            "for n in $(seq {}); do {one} > /tmp/said 2>&1 || {{ cat /tmp/said; exit 1; }}; done",
            IN_ALL / EACH
        );
        let (status, said) = site.client.try_sh(&all, PATIENCE)?;
        ensure!(status == 0, "a connection failed: {said}");
        let end = Instant::now() + SETTLING;
        loop {
            let grown = used(&mut site.client)? - before;
            if grown < SLACK {
                break;
            }
            ensure!(Instant::now() < end, "{grown} bytes were not freed");
            site.client.sh("sleep 1")?;
        }
        let stats = site.gateway.run("show smc stats --json")?.text;
        let (served, fallbacks) = (AT_ONCE + 4 + IN_ALL, "\"tcp_fallback\":0,");
        ensure!(stats.contains(&served.to_string()) && stats.contains(fallbacks), "{stats}");
        Ok(())
    })
}
