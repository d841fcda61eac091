//! The image as SMC-R server and client of a stock guest: echo on port 7 has it as server; rules have it as
//! client of the guest's own servers, too.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::guest::Guest;
use serde_json::Value;

use crate::Site;
use crate::metrics::Metrics;
use crate::smc;

/// The image's settings: rule `smc` goes to the guest's SMC-R server, rule `tcp` to one that has only TCP. Linux
/// as a server makes one handshake after another, which takes seconds for many at once on a busy host.
pub const WORDS: &str = "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.rule.0.name=smc isthmus.rule.0.listen=7001 isthmus.rule.0.backend=10.0.0.2:7777 \
    isthmus.rule.0.backend_smc=true isthmus.rule.0.connect_timeout_ms=20000 \
    isthmus.rule.1.name=tcp isthmus.rule.1.listen=7002 isthmus.rule.1.backend=10.0.0.2:7778 \
    isthmus.rule.1.backend_smc=true isthmus.rule.1.connect_timeout_ms=20000";
/// The echo service, and the rule with an SMC-R server behind it.
pub const BOTH: [u16; 2] = [7, 7001];
/// What differs from time to time: nodes of maps, buffers of the page that tells it.
const SLACK: f64 = 65_536.0;
/// How long connections and buffers may take to go.
const SETTLING: Duration = Duration::from_secs(40);

/// The two machines.
pub struct Lab {
    /// The image, and the guest.
    pub site: Site,
    /// What the appliance used before the story.
    memory: f64,
    /// Fallbacks that the story wants: their codes, and how many.
    pub fallbacks: Vec<(&'static str, u64)>,
    /// Links that it breaks.
    pub broken_links: u64,
    /// The guest may lose links by itself: rdma_rxe takes a queue pair on which it repeats packets to the error
    /// state if a memory region was registered behind them (rxe_req.c registers it a second time). It does so when
    /// an answer takes longer than 134 ms. Then only bytes count, not what carries them.
    pub guest_loses_links: bool,
}

impl Lab {
    /// Two machines that have not spoken yet.
    pub fn new(site: Site) -> Lab {
        let fallbacks = Vec::new();
        Lab { site, memory: 0.0, fallbacks, broken_links: 0, guest_loses_links: false }
    }

    /// Has the machines speak SMC-R, and everything be as large as it gets.
    pub fn begins(&mut self) -> Result<()> {
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

    /// A shell command in the guest.
    pub fn sh(&mut self, script: &str) -> Result<String> {
        self.site.client.sh(script)
    }

    /// Echoes, and checks every byte.
    pub fn echo(&mut self, port: u16, words: &str) -> Result<String> {
        let command = format!("timeout 110 smc echo 10.0.0.1 {port} {words}");
        let said = self.sh(&command)?;
        ensure!(said.trim().ends_with("fine"), "`{command}` said {said}");
        Ok(said)
    }

    /// As `echo`, and looks while it stands open what carries it: so many SMC-R sockets and no others.
    pub fn echo_over_smc(&mut self, port: u16, words: &str, sockets: usize) -> Result<()> {
        let command = format!("smc echo 10.0.0.1 {port} {words} hold=4");
        self.sh(&format!("timeout 110 {command} > /tmp/held 2>&1 &"))?;
        let open = format!("[ $(smc sockets | grep -c 'ACTIVE SMCR') = {sockets} ]");
        let waited = self.site.client.wait_until(&open, Duration::from_secs(60));
        let said = self.sh("smc sockets; cat /tmp/held")?;
        waited.with_context(|| format!("`{command}`:\n{said}"))?;
        ensure!(!said.contains("ACTIVE TCP"), "{said}");
        self.site.client.wait_until("grep fine /tmp/held", Duration::from_secs(60))
    }

    /// Throws the guest's link groups away, as a new boot would, and gives it other settings.
    pub fn fresh(&mut self, eid: &str, settings: &str) -> Result<()> {
        // rmmod fails while sockets linger.
        self.sh(&format!(
            "killall smc; n=0; rmmod smc_diag
             until rmmod smc 2>/dev/null; do sleep 0.5; n=$((n+1)); [ $n -lt 60 ] || exit 1; done
             modprobe -a smc smc_diag && smc eid {eid}
             for one in {settings}; do sysctl -w net.smc.$one || exit 1; done"
        ))?;
        self.serve()
    }

    /// A topic of /api/smc.
    pub fn api(&mut self, topic: &str) -> Result<Value> {
        api(&mut self.site.client, topic)
    }

    /// How often the appliance went back to TCP for a reason.
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

    /// The same within another time: a peer that left without a word is asked over each of its TCP connections every 20
    /// to 28 s whether it is there, found to be silent when its neighbour entry is over, and given up 30 s after that.
    pub fn settle_within(&mut self, time: Duration) -> Result<()> {
        let quiet = "! smc sockets | grep -v -e LISTEN -e CLOSED";
        self.site.client.wait_until(quiet, SETTLING)?;
        let end = Instant::now() + time;
        loop {
            let sockets = self.api("sockets")?;
            if sockets.as_array().is_some_and(Vec::is_empty) {
                // Receive buffers go when nothing came for two sweeps, of which nobody tells.
                self.sh("sleep 5")?;
                return Ok(());
            }
            ensure!(Instant::now() < end, "the appliance still has {sockets:#}");
            self.sh("sleep 1")?;
        }
    }

    /// Everything is as it was before the story.
    pub fn ends(&mut self) -> Result<()> {
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
        // TCP connections that are over take a while to go.
        let end = Instant::now() + SETTLING;
        loop {
            let grown = used(&mut self.site.client)? - self.memory;
            if grown < SLACK {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{grown} bytes did not come back");
            self.sh("sleep 1")?;
        }
    }
}

/// A topic of the appliance's /api/smc.
pub fn api(guest: &mut Guest, topic: &str) -> Result<Value> {
    let page = guest.sh(&format!("wget -q -O - http://10.0.0.1/api/smc/{topic}"))?;
    serde_json::from_str(&page).with_context(|| format!("/api/smc/{topic} is {page}"))
}

/// Bytes that the appliance uses, without the buffers that it keeps for the next connection.
pub fn used(guest: &mut Guest) -> Result<f64> {
    let kept = api(guest, "stats")?["buffers_kept"].as_f64().context("no buffers_kept")?;
    Ok(Metrics::read(guest)?.memory()? - kept)
}

/// Tells a story on a site; what the machines say when it fails.
pub fn tell(site: Site, story: impl FnOnce(&mut Lab) -> Result<()>) -> Result<()> {
    let mut lab = Lab::new(site);
    let told = lab.begins().and_then(|()| story(&mut lab)).and_then(|()| lab.ends());
    let Err(error) = told else { return Ok(()) };
    let lines =
        ["linkgroups", "sockets", "stats", "rules"].map(|topic| format!("show smc {topic}"));
    let said = lines.iter().map(String::as_str).chain(["show log"]).map(|line| {
        let said = lab.site.gateway.run(line);
        said.map_or_else(|error| format!("{error:#}"), |said| said.text)
    });
    let said: Vec<String> = said.collect();
    let guest = lab.sh("smc sockets; dmesg | tail -n 20").unwrap_or_default();
    bail!("{error:#}\nthe appliance says:\n{}\nthe guest says:\n{guest}", said.join("\n"))
}
