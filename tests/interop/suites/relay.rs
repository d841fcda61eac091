//! The messaging gateway: rules of the image between stock Linux clients and servers, over SMC-R and TCP on
//! either side.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::Site;
use interop_tests::metrics::Metrics;
use interop_tests::smc::{prepare, serve, wait_listening};

/// Rules to the guest's servers: over TCP, over SMC-R, with one unreachable server of two, with no reachable server,
/// and with the PROXY protocol.
const RULES: &str = "isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.rule.0.name=tcp isthmus.rule.0.listen=7000 isthmus.rule.0.backend=10.0.0.2:7777 \
    isthmus.rule.1.name=smc isthmus.rule.1.listen=7001 isthmus.rule.1.backend=10.0.0.2:7777 \
    isthmus.rule.1.backend_smc=true \
    isthmus.rule.2.name=two isthmus.rule.2.listen=7002 \
    isthmus.rule.2.backend=10.0.0.2:7778,10.0.0.2:7777 isthmus.rule.2.health_interval_s=1 \
    isthmus.rule.3.name=none isthmus.rule.3.listen=7003 isthmus.rule.3.backend=10.0.0.2:7778 \
    isthmus.rule.4.name=proxy isthmus.rule.4.listen=7004 isthmus.rule.4.backend=10.0.0.2:7779 \
    isthmus.rule.4.proxy_protocol=true isthmus.rule.4.idle_timeout_s=2";

/// Runs a scenario on a site with the rules, and a guest whose echo server (7777) accepts SMC-R and TCP.
fn run_scenario(scenario: impl FnOnce(&mut Site) -> Result<()>) -> Result<()> {
    let mut site = Site::boot(1500, RULES)?;
    prepare(&mut site.client)?;
    serve(&mut site.client, 7777, "")?;
    let result = scenario(&mut site);
    result.with_context(|| {
        let replies =
            ["show smc rules", "show smc sockets", "show smc stats", "show log"].map(|line| {
                let reply = site.gateway.run(line);
                reply.map_or_else(|error| format!("{error:#}"), |reply| reply.text)
            });
        format!("the appliance reports:\n{}", replies.join("\n"))
    })
}

fn echo(site: &mut Site, port: u16, words: &str) -> Result<()> {
    let command = format!("timeout 100 smc echo 10.0.0.1 {port} {words}");
    let output = site.client.sh(&command)?;
    ensure!(output.trim() == "fine", "`{command}` printed {output}");
    Ok(())
}

#[test]
fn smc_and_tcp_work_on_either_side() -> Result<()> {
    run_scenario(|site| {
        for port in [7000, 7001, 7002] {
            echo(site, port, "64 10 1")?;
            echo(site, port, "64 10 1 tcp")?;
            // Several windows, in parallel; half-closes are relayed in both directions.
            echo(site, port, "300000 2 2")?;
            echo(site, port, "300000 1 2 tcp")?;
            echo(site, port, "64 1 4 early")?;
        }
        let rules = site.gateway.run("show smc rules --json")?.text;
        ensure!(rules.contains("\"connections\":0"), "{rules}");
        let sockets = site.client.sh("smc sockets")?;
        ensure!(!sockets.contains("ACTIVE"), "{sockets}");
        // The metrics agree.
        let metrics = Metrics::read(&mut site.client)?;
        for (rule, smc) in ["tcp", "smc", "two"].map(|rule| (rule, 7.0)) {
            let clients =
                metrics.get(&format!("rule_clients_total{{rule=\"{rule}\",mode=\"smcr\"}}"))?;
            ensure!(clients == smc, "{clients} clients of rule {rule} used SMC-R");
            let bytes = metrics.get(&format!("rule_transmit_bytes_total{{rule=\"{rule}\"}}"))?;
            ensure!(bytes > 1_800_000.0, "rule {rule} has sent {bytes} bytes");
        }
        ensure!(metrics.get("smc_sockets")? == 0.0 && metrics.get("smc_violations_total")? == 0.0);
        let page = site.client.sh("wget -q -O - http://10.0.0.1/api/smc/rules")?;
        // Rule two is excluded, because its health checks keep changing its counters.
        let quiet = rules.split("{\"name\":\"two\"").next().unwrap_or_default();
        ensure!(page.starts_with(quiet), "{page}\nis not\n{rules}");
        let log = site.gateway.run("show log")?.text;
        ensure!(log.contains("rule two: 10.0.0.2:7778 does not answer"), "{log}");
        Ok(())
    })
}

/// A host has a connection to one port, and opens connections to a rule, eight at a time, while that rule is changed
/// and moved repeatedly. All of them are in one link group. The connection to the other port and the group survive.
#[test]
fn changed_rule_disturbs_no_other_connection() -> Result<()> {
    let words = format!("isthmus.smc.services=true {RULES}");
    let mut site = Site::boot(1500, &words)?;
    prepare(&mut site.client)?;
    serve(&mut site.client, 7777, "")?;
    let guest = &mut site.client;
    guest.sh("smc echo 10.0.0.1 7 64 1 1 hold=100 > /tmp/other 2>&1 &")?;
    guest.wait_until("smc sockets | grep -q '^ACTIVE SMCR '", Duration::from_secs(20))?;
    guest.sh(
        "(until [ -e /tmp/enough ]; do timeout 20 smc echo 10.0.0.1 7000 64 1 8; done; touch /tmp/ended) \
         > /tmp/storm 2>&1 &",
    )?;
    guest.wait_until("grep -q fine /tmp/storm", Duration::from_secs(30))?;
    for n in 0..25 {
        for line in [
            format!("set rule.0.connections {}", 310 + n % 2),
            format!("set rule.0.listen {} --yes", 7010 + n % 2),
            "set rule.0.listen 7000 --yes".to_string(),
        ] {
            site.gateway.run(&line)?.contains("in force now")?;
            site.client.sh("sleep 0.2")?;
        }
    }
    let guest = &mut site.client;
    guest.sh("touch /tmp/enough")?;
    guest.wait_until("[ -e /tmp/ended ]", Duration::from_secs(60))?;
    guest.wait_until("grep -q . /tmp/other", Duration::from_secs(150))?;
    let said = guest.sh("cat /tmp/other")?;
    ensure!(said.trim() == "fine", "the connection to port 7: {said}");
    // Aborted connections are closed on both sides.
    guest.wait_until("! smc sockets | grep ACTIVE", Duration::from_secs(40))?;
    let log = site.gateway.run("show log")?.text;
    ensure!(!log.contains("failed") && !log.contains("ended by"), "a link was lost:\n{log}");
    let metrics = Metrics::read(&mut site.client)?;
    ensure!(
        metrics.get("smc_violations_total")? == 0.0,
        "the appliance counted violations of the host"
    );
    Ok(())
}

#[test]
fn aborts_and_refusals_are_relayed() -> Result<()> {
    run_scenario(|site| {
        // No server is reachable: the client's connection ends.
        let said = site.client.sh("timeout 20 smc echo 10.0.0.1 7003 64 1 1 2>&1; true")?;
        ensure!(!said.contains("fine"), "{said}");
        // Clients that are killed with data in flight: their server connections end as well.
        for port in [7000, 7001] {
            // Two seconds' worth of data.
            let flood = format!(
                "smc flood 10.0.0.1 {port} &
                 until smc sockets | grep -q '^ACTIVE SMCR '; do sleep 0.1; done
                 sleep 2; kill -9 $!; wait; true"
            );
            site.client.sh(&flood)?;
            echo(site, port, "4096 10 4")?;
        }
        site.client.wait_until("! smc sockets | grep ACTIVE", Duration::from_secs(30))
    })
}

#[test]
fn proxy_protocol_reports_the_address_and_idle_connections_end() -> Result<()> {
    run_scenario(|site| {
        // The server sends nothing, and does not close.
        site.client.sh("(sleep 60 | busybox nc -l -p 7779 > /tmp/got) &")?;
        wait_listening(&mut site.client, 7779)?;
        site.client.sh("(printf hello; sleep 10) | busybox nc 10.0.0.1 7004; true")?;
        let got = site.client.sh("busybox hexdump -C /tmp/got")?;
        ensure!(got.contains("0d 0a 0d 0a 00 0d 0a 51  55 49 54 0a 21 11 00 0c"), "{got}");
        ensure!(got.contains("0a 00 00 02 0a 00 00 01"), "{got}");
        ensure!(got.contains("68 65 6c 6c") && got.contains("|o|"), "{got}");
        let rules = site.gateway.run("show smc rules --json")?.text;
        ensure!(rules.contains("\"timed_out\":1"), "{rules}");
        Ok(())
    })
}

/// A router between client and gateway has a smaller MTU towards the client than the MSS of 1460 in both SYNs: first
/// with ICMP, then without.
#[test]
fn large_answers_pass_a_router_with_a_smaller_mtu() -> Result<()> {
    for icmp in [true, false] {
        let words = format!("{RULES} isthmus.net.0.gateway=10.0.0.2");
        let mut site = Site::boot(1500, &words)?;
        prepare(&mut site.client)?;
        serve(&mut site.client, 7777, "")?;
        // Without ICMP, the veth drops packets longer than the MTU of its peer.
        let (router, client) = if icmp { (1400, 1500) } else { (1500, 1400) };
        // The client sends small packets, but advertises the full MSS.
        site.client.sh(&format!(
            "mkdir -p /var/run/netns && modprobe veth && ethtool -K eth0 gro off && \
             ip netns add far && ip link add vr type veth peer name vc netns far && \
             ip addr add 10.7.0.1/24 dev vr && ip link set vr mtu {router} up && \
             echo 1 > /proc/sys/net/ipv4/ip_forward && ip -n far addr add 10.7.0.2/24 dev vc && \
             ip -n far link set vc mtu {client} up && \
             ip -n far route add default via 10.7.0.1 mtu lock 1400 advmss 1460"
        ))?;
        let command = "ip netns exec far timeout 30 smc echo 10.0.0.1 7000 300000 1 1 tcp";
        let said = site.client.sh(command)?;
        ensure!(said.trim() == "fine", "ICMP: {icmp}: {said}");
        let log = site.gateway.run("show log")?.text;
        ensure!(log.contains("the path MTU to 10.7.0.2 is"), "ICMP: {icmp}: {log}");
    }
    Ok(())
}
