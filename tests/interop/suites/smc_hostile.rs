//! Malicious SMC-R clients beside a stock one. The stock client's streams stay correct and keep flowing, and the
//! malicious clients leak no resources.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use interop_tests::lab::{Lab, WORDS, used};
use interop_tests::port::DgramPort;
use interop_tests::smc_attacker::{Attack, Attacker};
use interop_tests::{Site, evidence};
use launch::guest::Wire;
use launch::qemu::Nic;

const ATTACKS: [Attack; 5] =
    [Attack::Garbage, Attack::HalfHandshakes, Attack::Cursors, Attack::StaleKeys, Attack::Floods];
/// Bytes that memory use may vary by: nodes of maps, and buffers of the page that reports it.
const SLACK: f64 = 65_536.0;
/// Longest time of a round of the stock client during the attacks, in milliseconds, on a busy host.
const STALL: u64 = 3000;

/// Runs all attacks at once for a while, and returns how often each was carried out.
fn attack(ports: &[(PathBuf, PathBuf)], time: Duration) -> Result<Vec<u32>> {
    let threads = ports.iter().zip(ATTACKS).enumerate().map(|(n, ((ours, theirs), attack))| {
        let mac = [2, 0, 0, 0, 1, n as u8];
        let port = DgramPort::new(ours, theirs, mac, 1500)?;
        Ok(thread::spawn(move || Attacker::new(n + 1, port)?.repeat(attack, time)))
    });
    let threads: Vec<_> = threads.collect::<Result<_>>()?;
    let times = threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| anyhow!("an attacker panicked"))?);
    let times = times.collect();
    for (ours, _) in ports {
        std::fs::remove_file(ours)?;
    }
    times
}

#[test]
fn hostile_clients_do_not_disturb_a_stock_client() -> Result<()> {
    let wire = Wire::new()?;
    let directory = tempfile::Builder::new().prefix("isthmus-attackers-").tempdir()?;
    let path = |name: &str, n: usize| directory.path().join(format!("{name}{n}"));
    let ports: Vec<_> =
        (0..ATTACKS.len()).map(|n| (path("attacker", n), path("appliance", n))).collect();
    let (ours, theirs) = wire.datagrams();
    let site = Site::beside(
        (ours, theirs),
        ports.iter().map(|(attacker, appliance)| Nic::Dgram {
            ours: appliance.clone(),
            peer: attacker.clone(),
        }),
        WORDS,
    )?;
    let mut lab = Lab::new(site);
    lab.prepare()?;
    let result = run_scenario(&mut lab, &ports);
    result.with_context(|| evidence(&mut lab.site.gateway, &mut lab.site.client))
}

fn run_scenario(lab: &mut Lab, ports: &[(PathBuf, PathBuf)]) -> Result<()> {
    // Lets tables grow to their final size, which takes as long as the measurement on a busy host.
    attack(ports, Duration::from_secs(20))?;
    let before = settled(lab, f64::MAX)?;

    for port in [7, 7001] {
        lab.sh(&format!(
            "smc echo 10.0.0.1 {port} 20000 1000000 2 time seconds=30 > /tmp/good{port} 2>&1 &"
        ))?;
    }
    let open = "[ $(smc sockets | grep -c 'ACTIVE SMCR') = 6 ]";
    lab.site.client.wait_until(open, Duration::from_secs(20))?;
    let times = attack(ports, Duration::from_secs(20))?;
    lab.sh(open).context("the stock client's connections are no longer open")?;
    for port in [7, 7001] {
        let good = format!("grep fine /tmp/good{port}");
        lab.site.client.wait_until(&good, Duration::from_secs(60))?;
        let said = lab.sh(&format!("cat /tmp/good{port}"))?;
        println!("{ATTACKS:?} {times:?} times; port {port}: {said}");
        let slowest = said.split("slowest round ").nth(1).and_then(|rest| rest.split(' ').next());
        let slowest: u64 = slowest.context("no time")?.parse()?;
        ensure!(slowest < STALL, "a round of the stock client took {slowest} ms");
    }
    settled(lab, before + SLACK)?;
    lab.echo_over_smc(7001, "20000 4 2", 4)?;
    let stats = lab.api("stats")?;
    let violations = stats["violations"].as_u64().context("a count")?;
    ensure!(violations > 0, "no violation was counted: {stats:#}");
    Ok(())
}

/// Waits until the appliance has released the attackers' resources and uses less than `limit` bytes. Returns its memory
/// use.
fn settled(lab: &mut Lab, limit: f64) -> Result<f64> {
    // Some attackers vanished without closing.
    lab.settle_within(Duration::from_secs(120))?;
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let groups = lab.api("linkgroups")?;
        let groups = groups.as_array().context("a list")?;
        let good = groups.iter().all(|group| group["peer"] == "10.0.0.2");
        let now = used(&mut lab.site.client)?;
        if good && now < limit {
            return Ok(now);
        }
        ensure!(Instant::now() < end, "{now} bytes, limit {limit}; link groups {groups:#?}");
        lab.sh("sleep 2")?;
    }
}
