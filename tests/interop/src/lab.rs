//! The image as SMC-R server and client of a stock guest: the echo service on port 7 makes it a server, and rules make
//! it a client of the guest's servers as well.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::guest::Guest;
use serde_json::Value;

use crate::Site;
use crate::metrics::Metrics;
use crate::smc;

/// The image's settings: the backend of rule `smc` is the guest's SMC-R server, that of rule `tcp` is a TCP-only
/// server. The connect timeout is long because a Linux server runs handshakes one after another, and many at once take
/// seconds on a busy host.
pub const WORDS: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.rule.0.name=smc isthmus.rule.0.listen=7001 isthmus.rule.0.backend=10.0.0.2:7777 \
    isthmus.rule.0.backend_smc=true isthmus.rule.0.connect_timeout_ms=20000 \
    isthmus.rule.1.name=tcp isthmus.rule.1.listen=7002 isthmus.rule.1.backend=10.0.0.2:7778 \
    isthmus.rule.1.backend_smc=true isthmus.rule.1.connect_timeout_ms=20000";
/// The echo service, and the rule with an SMC-R server behind it.
pub const BOTH: [u16; 2] = [7, 7001];
/// Bytes that memory use may vary by: nodes of maps, and buffers of the page that reports it.
const SLACK: f64 = 65_536.0;
/// How long the appliance may take to release connections and buffers.
const SETTLING: Duration = Duration::from_secs(40);

/// The two machines.
pub struct Lab {
    /// The image, and the guest.
    pub site: Site,
    /// Memory that the appliance used before the scenario, in bytes.
    memory: f64,
    /// Expected fallbacks to TCP: reason codes, and counts.
    pub fallbacks: Vec<(&'static str, u64)>,
    /// Links that the scenario breaks.
    pub broken_links: u64,
    /// The guest may lose links by itself, so that only the bytes are checked, not the transport. rdma_rxe retransmits
    /// when an ACK takes longer than 134 ms, and moves the queue pair to the error state if a memory region was
    /// registered behind the retransmitted packets (rxe_req.c registers it a second time).
    pub guest_loses_links: bool,
}

impl Lab {
    /// A lab whose machines have not communicated yet.
    pub fn new(site: Site) -> Lab {
        let fallbacks = Vec::new();
        Lab { site, memory: 0.0, fallbacks, broken_links: 0, guest_loses_links: false }
    }

    /// Prepares the guest, warms up all paths so that memory use has peaked, and records it.
    pub fn prepare(&mut self) -> Result<()> {
        smc::prepare(&mut self.site.client)?;
        self.serve()?;
        for port in [7, 7001, 7002] {
            self.echo(port, "300000 1 16")?;
            self.echo(port, "300000 1 16 tcp")?;
        }
        self.settle()?;
        self.memory = used(&mut self.site.client)?;
        Ok(())
    }

    /// Starts the guest's servers.
    pub fn serve(&mut self) -> Result<()> {
        smc::serve(&mut self.site.client, 7777, "")?;
        smc::serve(&mut self.site.client, 7778, "tcp")
    }

    /// Runs a shell command in the guest.
    pub fn sh(&mut self, script: &str) -> Result<String> {
        self.site.client.sh(script)
    }

    /// Runs an echo, in which the guest checks every byte.
    pub fn echo(&mut self, port: u16, words: &str) -> Result<String> {
        let command = format!("timeout 110 smc echo 10.0.0.1 {port} {words}");
        let output = self.sh(&command)?;
        ensure!(output.trim().ends_with("fine"), "`{command}` printed {output}");
        Ok(output)
    }

    /// As `echo`, and checks that this many SMC-R sockets carry it while it is open, and no TCP ones.
    pub fn echo_over_smc(&mut self, port: u16, words: &str, sockets: usize) -> Result<()> {
        let command = format!("smc echo 10.0.0.1 {port} {words} hold=4");
        self.sh(&format!("timeout 110 {command} > /tmp/held 2>&1 &"))?;
        let open = format!("[ $(smc sockets | grep -c 'ACTIVE SMCR') = {sockets} ]");
        let waited = self.site.client.wait_until(&open, Duration::from_secs(60));
        let output = self.sh("smc sockets; cat /tmp/held")?;
        waited.with_context(|| format!("`{command}`:\n{output}"))?;
        ensure!(!output.contains("ACTIVE TCP"), "{output}");
        self.site.client.wait_until("grep fine /tmp/held", Duration::from_secs(60))
    }

    /// Reloads the guest's SMC modules, which drops its link groups as a reboot would, with other settings.
    pub fn reload(&mut self, eid: &str, settings: &str) -> Result<()> {
        // rmmod fails while sockets linger.
        self.sh(&format!(
            "killall smc; n=0; rmmod smc_diag
             until rmmod smc 2>/dev/null; do sleep 0.5; n=$((n+1)); [ $n -lt 60 ] || exit 1; done
             modprobe -a smc smc_diag && smc eid {eid}
             for one in {settings}; do sysctl -w net.smc.$one || exit 1; done"
        ))?;
        self.serve()
    }

    /// Fetches a topic of the appliance's /api/smc.
    pub fn api(&mut self, topic: &str) -> Result<Value> {
        api(&mut self.site.client, topic)
    }

    /// The appliance's fallbacks to TCP with a reason code.
    pub fn fallbacks(&mut self, code: &str) -> Result<u64> {
        let stats = self.api("stats")?;
        let reasons = stats["tcp_fallback_reasons"].as_array().context("no reasons")?;
        let one = reasons.iter().find(|one| one["code"] == code);
        Ok(one.and_then(|one| one["count"].as_u64()).unwrap_or(0))
    }

    /// Waits until no connection is left on either side.
    pub fn settle(&mut self) -> Result<()> {
        self.settle_within(SETTLING)
    }

    /// As `settle`, within another time. If a peer vanishes, the appliance sends a keepalive on each of its TCP
    /// connections every 20 to 28 s, finds it unreachable when the neighbour entry expires, and drops it 30 s later.
    pub fn settle_within(&mut self, time: Duration) -> Result<()> {
        let quiet = "! smc sockets | grep -v -e LISTEN -e CLOSED";
        self.site.client.wait_until(quiet, SETTLING)?;
        let end = Instant::now() + time;
        loop {
            let sockets = self.api("sockets")?;
            if sockets.as_array().is_some_and(Vec::is_empty) {
                // Receive buffers are freed after two sweeps without traffic, which no counter reports.
                self.sh("sleep 5")?;
                return Ok(());
            }
            ensure!(Instant::now() < end, "the appliance still has {sockets:#}");
            self.sh("sleep 1")?;
        }
    }

    /// Checks that the appliance is back in its state before the scenario.
    pub fn verify(&mut self) -> Result<()> {
        self.settle()?;
        let stats = self.api("stats")?;
        ensure!(stats["violations"] == 0, "{stats:#}");
        let groups = self.api("linkgroups")?;
        let groups = groups.as_array().context("a list")?;
        if !self.guest_loses_links {
            let wanted: u64 = self.fallbacks.iter().map(|&(_, count)| count).sum();
            ensure!(stats["tcp_fallback"] == wanted, "not {wanted} fallbacks: {stats:#}");
            for (code, count) in self.fallbacks.clone() {
                ensure!(self.fallbacks(code)? == count, "not {count} of {code}: {stats:#}");
            }
            ensure!(stats["links_failed"] == self.broken_links, "{stats:#}");
            ensure!(groups.len() <= 2, "more than one link group of each role: {groups:#?}");
        }
        ensure!(groups.iter().all(|group| group["conns"] == 0), "{groups:#?}");
        // Closed TCP connections take a while to disappear.
        let end = Instant::now() + SETTLING;
        loop {
            let grown = used(&mut self.site.client)? - self.memory;
            if grown < SLACK {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{grown} bytes were not released");
            self.sh("sleep 1")?;
        }
    }
}

/// Fetches a topic of the appliance's /api/smc.
pub fn api(guest: &mut Guest, topic: &str) -> Result<Value> {
    let page = guest.sh(&format!("wget -q -O - http://10.0.0.1/api/smc/{topic}"))?;
    serde_json::from_str(&page).with_context(|| format!("/api/smc/{topic} is {page}"))
}

/// Bytes that the appliance uses, without the buffers that it keeps for reuse.
pub fn used(guest: &mut Guest) -> Result<f64> {
    let kept = api(guest, "stats")?["buffers_kept"].as_f64().context("no buffers_kept")?;
    Ok(Metrics::read(guest)?.memory()? - kept)
}

/// Runs a scenario on a site. If it fails, the error has the state and the logs of both machines.
pub fn run_scenario(site: Site, scenario: impl FnOnce(&mut Lab) -> Result<()>) -> Result<()> {
    let mut lab = Lab::new(site);
    let result = lab.prepare().and_then(|()| scenario(&mut lab)).and_then(|()| lab.verify());
    let Err(error) = result else { return Ok(()) };
    let lines =
        ["linkgroups", "sockets", "stats", "rules"].map(|topic| format!("show smc {topic}"));
    let replies = lines.iter().map(String::as_str).chain(["show log"]).map(|line| {
        let reply = lab.site.gateway.run(line);
        reply.map_or_else(|error| format!("{error:#}"), |reply| reply.text)
    });
    let replies: Vec<String> = replies.collect();
    let guest = lab.sh("smc sockets; dmesg | tail -n 20").unwrap_or_default();
    bail!("{error:#}\nthe appliance reports:\n{}\nthe guest reports:\n{guest}", replies.join("\n"))
}
