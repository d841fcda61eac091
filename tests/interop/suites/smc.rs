//! Stock AF_SMC clients against the image, and against the appliance's engines in this process.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::engines::Setup;
use interop_tests::metrics::Metrics;
use interop_tests::relay::Relay;
use interop_tests::smc::{echo, prepare, run_scenario, serve, speaks_smc, until_active};
use interop_tests::{Site, storage};
use launch::guest::{Guest, Wire};
use launch::qemu::Spec;

#[test]
fn a_stock_client_gets_its_echo_from_the_image() -> Result<()> {
    let words = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID";
    let mut site = Site::boot(1500, words)?;
    let guest = &mut site.client;
    prepare(guest)?;
    let mut scenario = || {
        echo(guest, "64 10 1")?;
        speaks_smc(guest, 1)?;
        echo(guest, "4096 4 8")?;
        echo(guest, "200000 2 1")?;
        echo(guest, "64 1 4 early")?;
        echo(guest, "64 1 1 linger0")?;
        echo(guest, "3000 2 2 tcp")?;
        speaks_smc(guest, 8)
    };
    let result = scenario();
    let log = site.gateway.run("show log")?.text;
    result.with_context(|| format!("the appliance's log:\n{log}"))?;
    ensure!(log.contains("link group with 10.0.0.2") && !log.contains("declined"), "{log}");
    Ok(())
}

#[test]
fn a_stock_client_gets_its_echo_over_smc_r() -> Result<()> {
    let report = run_scenario(Setup::default(), |guest| {
        echo(guest, "64 10 1")?;
        speaks_smc(guest, 1)?;
        // Parallel connections that reuse the link; data that wraps; a close without a half-close, and one with linger
        // 0.
        echo(guest, "4096 4 8")?;
        echo(guest, "200000 2 1")?;
        echo(guest, "64 1 4 early")?;
        echo(guest, "64 1 1 linger0")?;
        speaks_smc(guest, 8)
    })?;
    ensure!(report.contains("fallbacks: {}"), "{report}");
    ensure!(report.contains("client: 0, server: 24, first_contacts: 1"), "{report}");
    Ok(())
}

#[test]
fn clients_without_common_smc_use_tcp() -> Result<()> {
    let report = run_scenario(Setup::default(), |guest| {
        // A client that does not offer SMC, then one with another EID.
        echo(guest, "100000 2 3 tcp")?;
        guest.sh("rmmod smc_diag smc && modprobe -a smc smc_diag && smc eid OTHER")?;
        echo(guest, "100000 2 1")
    })?;
    ensure!(report.contains("fallbacks: {Reason(50528256): 1}"), "{report}");
    Ok(())
}

#[test]
fn the_engines_are_clients_of_a_stock_server() -> Result<()> {
    let dial = Some("10.0.0.2:7777".parse()?);
    let report = run_scenario(Setup { dial, ..Setup::default() }, |guest| serve(guest, 7777, ""))?;
    ensure!(report.contains("dialer: fine"), "{report}");
    ensure!(report.contains("client: 1, server: 0, first_contacts: 1, fallbacks: {}"), "{report}");
    Ok(())
}

#[test]
fn peers_are_disconnected_before_a_poweroff() -> Result<()> {
    peers_are_disconnected(|spec| spec, b"poweroff\r", "powering off")
}

#[test]
fn peers_are_disconnected_before_a_reboot() -> Result<()> {
    peers_are_disconnected(|spec| spec, b"reboot\r", "rebooting")
}

/// Ctrl-\\ panics the image for tests.
#[test]
fn peers_are_disconnected_after_a_panic() -> Result<()> {
    let faulty = std::env::var_os("ISTHMUS_FAULTS");
    let faulty = faulty.context("ISTHMUS_FAULTS is not set: run ./isthmus test")?;
    peers_are_disconnected(|spec| spec.elf(faulty), b"\x1c", "peers disconnected")
}

/// Seconds from the key to the last disconnect, by the client's clock.
const DISCONNECTED_WITHIN: f64 = 1.0;

/// The appliance stops on these keys and prints `message`. All its peers see a disconnect in time.
fn peers_are_disconnected(
    image: impl FnOnce(Spec) -> Spec,
    keys: &[u8],
    message: &str,
) -> Result<()> {
    let words = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
        isthmus.rule.0.name=tcp isthmus.rule.0.listen=7000 isthmus.rule.0.backend=10.0.0.2:7777";
    let wire = Wire::new()?;
    let mut site = Site::between(vec![wire.datagrams()], (1500, 1500), words, image, |spec| spec)?;
    let guest = &mut site.client;
    prepare(guest)?;
    serve(guest, 7777, "tcp")?;
    storage::map_ram0(guest)?;
    // Connections to the appliance and through it, with SMC-R in front and TCP behind. Some are idle; one, and the
    // volume, have data in flight all the time.
    guest.sh("smc echo 10.0.0.1 7 64 1 2 hold=100 > /dev/null 2>&1 &")?;
    guest.sh("smc echo 10.0.0.1 7000 64 1 2 hold=100 > /dev/null 2>&1 &")?;
    guest.sh(&until_active(4))?;
    guest.sh("smc echo 10.0.0.1 7000 200000 100000 1 > /dev/null 2>&1 &")?;
    guest.sh(&until_active(5))?;
    storage::start_fio(guest, "/dev/rnbd0", 600, 1)?;
    storage::fio_at_work(guest, "/dev/rnbd0")?;
    let open = "netstat -tn | grep -c '10.0.0.1:.*ESTABLISHED'";
    guest.sh(&format!("[ $({open}) -ge 8 ]"))?;
    // Background loops record when each peer sees its disconnect. Backend connections are matched by the server's
    // address, because the TCP connections of SMC-R handshakes stay with their sockets.
    for (name, connected) in [
        ("smc", "smc sockets | grep -q '^ACTIVE SMCR '"),
        ("back", "netstat -tn | grep '10.0.0.2:7777 .*10.0.0.1:' | grep -q ESTABLISHED"),
        ("rtrs", "grep -qx connected /sys/class/rtrs-client/s1/paths/*/state"),
    ] {
        guest.sh(&format!("{connected}"))?;
        guest.sh(&format!(
            "(while {connected}; do :; done; cat /proc/uptime >/tmp/new.{name}
             mv /tmp/new.{name} /tmp/gone.{name}) </dev/null >/dev/null 2>&1 &"
        ))?;
    }
    let uptime = |text: &str| -> Result<f64> {
        Ok(text.split_whitespace().next().context("no uptime")?.parse()?)
    };
    let before = uptime(&guest.sh("cat /proc/uptime")?)?;
    site.gateway.serial.send(keys)?;
    site.gateway.wait_for(message)?;
    let guest = &mut site.client;
    let mut slowest: f64 = 0.0;
    for name in ["smc", "back", "rtrs"] {
        let gone = format!("[ -e /tmp/gone.{name} ]");
        guest
            .wait_until(&gone, Duration::from_secs(20))
            .with_context(|| format!("{name}: {}", guest.sh("netstat -tn").unwrap_or_default()))?;
        let after = uptime(&guest.sh(&format!("cat /tmp/gone.{name}"))?)? - before;
        println!("{message}: {name} was disconnected within {after:.2} s by the client's clock");
        slowest = slowest.max(after);
    }
    ensure!(slowest <= DISCONNECTED_WITHIN, "disconnected after {slowest} s");
    Ok(())
}

/// Removing a rule, or changing its port, disconnects its clients and servers. Connections of other rules continue, and
/// so do those of a rule whose backend changes.
#[test]
fn peers_of_a_removed_rule_are_disconnected() -> Result<()> {
    let words = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
        isthmus.rule.0.name=gone isthmus.rule.0.listen=7000 isthmus.rule.0.backend=10.0.0.2:7777 \
        isthmus.rule.1.name=smc isthmus.rule.1.listen=7001 isthmus.rule.1.backend=10.0.0.2:7777 \
        isthmus.rule.1.backend_smc=true \
        isthmus.rule.2.name=stays isthmus.rule.2.listen=7002 isthmus.rule.2.backend=10.0.0.2:7777";
    let mut site = Site::boot(1500, words)?;
    let guest = &mut site.client;
    prepare(guest)?;
    serve(guest, 7777, "")?;
    // SMC-R and TCP in front, TCP and SMC-R behind. The clients send data, and keep the connections open.
    for (port, how) in [(7000, ""), (7000, "tcp"), (7001, ""), (7002, ""), (7002, "tcp")] {
        guest.sh(&format!(
            "smc echo 10.0.0.1 {port} 64 1 1 hold=100 {how} > /tmp/{port}{how} 2>&1 &"
        ))?;
    }
    // The sockets of three clients, and of one client's server.
    let active_smc =
        |count: usize| format!("[ $(smc sockets | grep -c '^ACTIVE SMCR ') = {count} ]");
    guest.wait_until(&active_smc(4), Duration::from_secs(30))?;
    let established = |end: &str, count: usize| {
        format!("[ $(netstat -tn | grep '{end}' | grep -c ESTABLISHED) = {count} ]")
    };
    let (first, last) = ("10.0.0.1:7000 ", "10.0.0.1:7002 ");
    let backs = "10.0.0.2:7777 .*10.0.0.1:";
    for (end, count) in [(first, 2), (last, 2), (backs, 5)] {
        guest.wait_until(&established(end, count), Duration::from_secs(10))?;
    }
    // What ends connections is asked for.
    let asked = "ends with";
    site.gateway.run("unset rule.0")?.contains(asked)?.contains("with `force` at its end")?;
    for (line, active, behind) in [
        ("unset rule.0 force", 3, 3),
        ("set rule.0.backend 10.0.0.2:7778", 3, 3),
        ("set rule.0.connections 10", 3, 3),
        ("set rule.0.listen 7009 --yes", 1, 2),
    ] {
        site.gateway.run(line)?.contains("in force now")?;
        let guest = &mut site.client;
        let all = [(first, 0), (last, 2), (backs, behind)];
        let all = all.map(|(end, count)| established(end, count)).join(" && ");
        let all = format!("{} && {all}", active_smc(active));
        if let Err(error) = guest.wait_until(&all, Duration::from_secs(3)) {
            let seen = guest.sh("netstat -tn; smc sockets")?;
            let log = site.gateway.run("show log")?.text;
            anyhow::bail!("{line}: {error:#}\n{seen}\n{log}");
        }
    }
    // The port of the removed rule is closed, and a new rule can use it.
    let said = site.client.sh("timeout 20 smc echo 10.0.0.1 7000 64 1 1 tcp 2>&1; true")?;
    ensure!(!said.contains("fine"), "{said}");
    for line in ["set rule.2.name new", "set rule.2.listen 7000"] {
        site.gateway.run(line)?.contains("pending")?;
    }
    site.gateway.run("set rule.2.backend 10.0.0.2:7777")?.contains("in force now")?;
    for (port, how) in [(7000, ""), (7000, "tcp"), (7002, "")] {
        let said = site.client.sh(&format!("timeout 20 smc echo 10.0.0.1 {port} 64 1 1 {how}"))?;
        ensure!(said.trim() == "fine", "{port} {how}: {said}");
    }
    let rules = site.gateway.run("show smc rules --json")?.text;
    ensure!(!rules.contains("\"gone\"") && !rules.contains("left_out"), "{rules}");
    // The echo service holds its port until the next boot, even if it is switched off in the configuration.
    site.gateway.run("set smc.services false")?;
    site.gateway.run("set rule.2.listen 7 --yes")?;
    site.gateway.wait_for("port 7 is still in use")?;
    site.gateway.run("show smc rules --json")?.contains("left_out")?;
    let said = site.client.sh("timeout 20 smc echo 10.0.0.1 7000 64 1 1 tcp 2>&1; true")?;
    ensure!(!said.contains("fine"), "the rule still listens on its old port: {said}");
    site.gateway.run("set rule.2.listen 7000 --yes")?;
    let said = site.client.sh("timeout 20 smc echo 10.0.0.1 7000 64 1 1")?;
    ensure!(said.trim() == "fine", "{said}");
    Ok(())
}

#[test]
fn server_without_a_roce_path_is_reached_over_tcp() -> Result<()> {
    let words = "isthmus.smc.ueid.0=LAB.SMC.EID isthmus.rule.0.name=smc isthmus.rule.0.listen=7000 \
        isthmus.rule.0.backend=10.0.0.2:7777 isthmus.rule.0.backend_smc=true";
    let cable = Relay::without_roce()?;
    let mut site =
        Site::between(vec![cable.ends()], (1500, 1500), words, |spec| spec, |spec| spec)?;
    prepare(&mut site.client)?;
    serve(&mut site.client, 7777, "")?;
    for n in 0..5 {
        let said = site.client.sh("timeout 30 smc echo 10.0.0.1 7000 64 1 1 tcp 2>&1; true")?;
        let rules = site.gateway.run("show smc rules --json")?.text;
        if !said.contains("fine") {
            let log = site.gateway.run("show log")?.text;
            let stats = site.gateway.run("show smc stats")?.text;
            anyhow::bail!("connection {n}: {said}\n{rules}\n{stats}\n{log}");
        }
    }
    let rules = site.gateway.run("show smc rules --json")?.text;
    ensure!(rules.contains("\"state\":\"up\"") && rules.contains("\"failures\":0"), "{rules}");
    let stats = site.gateway.run("show smc stats --json")?.text;
    ensure!(
        stats.contains("\"tcp_fallback\":3,"),
        "SMC-R to the server is not suspended after three failures: {stats}"
    );
    Ok(())
}

/// A client with two addresses, one of which is in `smc.hosts` and in a rule's `hosts`, the other in neither. A host
/// that is not in `smc.hosts` and offers SMC-R is reset, not served over TCP: it must connect without the offer.
#[test]
fn hosts_of_smc_and_of_rules_are_refused_and_admitted() -> Result<()> {
    let words = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
        isthmus.smc.hosts=10.0.0.3/32 \
        isthmus.rule.0.name=open isthmus.rule.0.listen=7000 isthmus.rule.0.backend=10.0.0.2:7777 \
        isthmus.rule.1.name=shut isthmus.rule.1.listen=7001 isthmus.rule.1.backend=10.0.0.2:7777 \
        isthmus.rule.1.hosts=10.0.0.3/32";
    let mut site = Site::boot(1500, words)?;
    prepare(&mut site.client)?;
    serve(&mut site.client, 7777, "tcp")?;
    site.client.sh("ip addr add 10.0.0.3/24 dev eth0")?;
    let mut refused = 0;
    for (address, admitted) in [("10.0.0.2", false), ("10.0.0.3", true), ("10.0.0.2", false)] {
        site.client.sh(&format!("ip route replace 10.0.0.1/32 dev eth0 src {address}"))?;
        for (port, how) in
            [(7, ""), (7, "tcp"), (7000, ""), (7000, "tcp"), (7001, ""), (7001, "tcp")]
        {
            let fine = admitted || (port, how) == (7000, "tcp");
            let echo = format!("timeout 20 smc echo 10.0.0.1 {port} 64 1 1 {how} 2>&1; true");
            let said = site.client.sh(&echo)?;
            let case = format!("{address}, port {port} {how}: {said}");
            ensure!(
                (said.trim() == "fine") == fine,
                "{case}\n{}",
                site.gateway.run("show log")?.text
            );
            // The refusal is a reset, without a delay.
            ensure!(fine || said.contains("reset"), "{case}");
            refused += i32::from(!fine);
        }
    }
    let refusals = site.gateway.run("show refused")?;
    for word in ["10.0.0.2", "host_not_admitted", "shut", "smc.hosts does", "rule.N.hosts does"] {
        refusals.contains(word)?;
    }
    refusals.lacks("10.0.0.3")?;
    let metric = "refused_total{what=\"connection\",reason=\"host_not_admitted\"}";
    let refused_to = |guest: &mut Guest| Metrics::read(guest)?.get(metric);
    let count = refused_to(&mut site.client)?;
    let said = format!("{refused} attempts were refused, {count} counted: {}", refusals.text);
    println!("{said}");
    // Each attempt counts once, or twice if data of the client arrive after the connection was reset.
    let counted = f64::from(refused)..=f64::from(2 * refused);
    ensure!(counted.contains(&count), "{said}");
    // The changed rule admits the host from now on.
    site.gateway.run("set rule.1.hosts 10.0.0.0/24")?.contains("in force now")?;
    let said = site.client.sh("timeout 20 smc echo 10.0.0.1 7001 64 1 1 tcp")?;
    ensure!(said.trim() == "fine", "{said}");
    ensure!(refused_to(&mut site.client)? == count, "another attempt was refused");
    Ok(())
}
