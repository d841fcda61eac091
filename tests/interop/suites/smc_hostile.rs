//! SMC-R clients that keep to no protocol beside a stock one that does: its streams are exact and go on, and
//! nothing of the others is left behind.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use interop_tests::lab::{Lab, WORDS, used};
use interop_tests::port::DgramPort;
use interop_tests::smc_attacker::{Habit, Liar};
use interop_tests::{Site, evidence};
use launch::guest::Wire;
use launch::qemu::Nic;

const HABITS: [Habit; 5] =
    [Habit::Garbage, Habit::Halves, Habit::Cursors, Habit::StaleKeys, Habit::Floods];
/// What differs from time to time: nodes of maps, buffers of the page that tells it.
const SLACK: f64 = 65_536.0;
/// The longest that a round of the good client may take while the others are at it, on a busy host.
const STALL: u64 = 3000;

/// All of them at once, for a while; how often each did what it does.
fn live(ports: &[(PathBuf, PathBuf)], time: Duration) -> Result<Vec<u32>> {
    let lives = ports.iter().zip(HABITS).enumerate().map(|(n, ((ours, theirs), habit))| {
        let mac = [2, 0, 0, 0, 1, n as u8];
        let port = DgramPort::new(ours, theirs, mac, 1500)?;
        Ok(thread::spawn(move || Liar::new(n + 1, port)?.live(habit, time)))
    });
    let lives: Vec<_> = lives.collect::<Result<_>>()?;
    let times = lives.into_iter().map(|life| life.join().map_err(|_| anyhow!("it panicked"))?);
    let times = times.collect();
    for (ours, _) in ports {
        std::fs::remove_file(ours)?;
    }
    times
}

#[test]
fn hostile_clients_beside_a_good_one() -> Result<()> {
    let wire = Wire::new()?;
    let directory = tempfile::Builder::new().prefix("isthmus-liars-").tempdir()?;
    let path = |name: &str, n: usize| directory.path().join(format!("{name}{n}"));
    let ports: Vec<_> =
        (0..HABITS.len()).map(|n| (path("liar", n), path("appliance", n))).collect();
    let (ours, theirs) = wire.datagrams();
    let site = Site::beside(
        (ours, theirs),
        ports
            .iter()
            .map(|(liar, appliance)| Nic::Dgram { ours: appliance.clone(), peer: liar.clone() }),
        WORDS,
    )?;
    let mut lab = Lab::new(site);
    lab.begins()?;
    let told = story(&mut lab, &ports);
    told.with_context(|| evidence(&mut lab.site.gateway, &mut lab.site.client))
}

fn story(lab: &mut Lab, ports: &[(PathBuf, PathBuf)]) -> Result<()> {
    // Tables are as large as they get: on a busy host that takes as long as what is measured.
    live(ports, Duration::from_secs(20))?;
    let before = settled(lab, f64::MAX)?;

    for port in [7, 7001] {
        lab.sh(&format!(
            "smc echo 10.0.0.1 {port} 20000 1000000 2 time seconds=30 > /tmp/good{port} 2>&1 &"
        ))?;
    }
    let open = "[ $(smc sockets | grep -c 'ACTIVE SMCR') = 6 ]";
    lab.site.client.wait_until(open, Duration::from_secs(20))?;
    let times = live(ports, Duration::from_secs(20))?;
    lab.sh(open).context("the good client's connections are no longer open")?;
    for port in [7, 7001] {
        let good = format!("grep fine /tmp/good{port}");
        lab.site.client.wait_until(&good, Duration::from_secs(60))?;
        let said = lab.sh(&format!("cat /tmp/good{port}"))?;
        println!("{HABITS:?} {times:?} times; port {port}: {said}");
        let slowest = said.split("slowest round ").nth(1).and_then(|rest| rest.split(' ').next());
        let slowest: u64 = slowest.context("no time")?.parse()?;
        ensure!(slowest < STALL, "a round of the good client took {slowest} ms");
    }
    settled(lab, before + SLACK)?;
    lab.echo_over_smc(7001, "20000 4 2", 4)?;
    let stats = lab.api("stats")?;
    let violations = stats["violations"].as_u64().context("a count")?;
    ensure!(violations > 0, "nobody was found out: {stats:#}");
    Ok(())
}

/// Waits until the others are forgotten; what the appliance uses then.
fn settled(lab: &mut Lab, most: f64) -> Result<f64> {
    // Some left without a word.
    lab.settle_within(Duration::from_secs(120))?;
    let end = Instant::now() + Duration::from_secs(90);
    loop {
        let groups = lab.api("linkgroups")?;
        let groups = groups.as_array().context("a list")?;
        let good = groups.iter().all(|group| group["peer"] == "10.0.0.2");
        let now = used(&mut lab.site.client)?;
        if good && now < most {
            return Ok(now);
        }
        ensure!(Instant::now() < end, "{now} bytes, not {most}; link groups {groups:#?}");
        lab.sh("sleep 2")?;
    }
}
