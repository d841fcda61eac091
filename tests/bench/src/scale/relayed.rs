//! 200 active clients over SMC-R, relayed to a server over TCP: by the appliance, and by haproxy in a Linux guest, with
//! a preloaded library that turns its sockets into AF_SMC.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::programs;
use interop_tests::smc::{prepare, serve, wait_listening};
use launch::guest::{ENVIRONMENT, UNPACK, applications, with_cx16};
use launch::progress;
use launch::qemu::Disk;

use crate::instructions::Plugin;
use crate::report::Report;
use crate::site::{Appliance, LINUX, Site, network};
use crate::smcr::median;

pub const KEYS: &[&str] = &["relay_200_active_ratio"];

const ISTHMUS: usize = 1;
const WORDS: &str = "isthmus.smc.ueid.0=LAB.SMC.EID isthmus.rule.0.name=relay \
    isthmus.rule.0.listen=7001 isthmus.rule.0.backend=10.0.1.2:7777 isthmus.rule.0.connections=256 \
    isthmus.rule.0.connections_per_host=256";
const HAPROXY: &str = "\
global
  nbthread 1
defaults
  mode tcp
  timeout connect 20s
  timeout client 600s
  timeout server 600s
listen relay
  bind 0.0.0.0:7001
  server one 10.0.0.2:7777
";
const PORT: u16 = 7001;
const ACTIVE: u32 = 200;
const BYTES: u32 = 4096;
/// Rounds of each connection in two runs. The result is the difference of the runs.
const ROUNDS: [u32; 2] = [5, 30];
const TIMES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

pub fn measure(plugin: &Plugin, report: &mut Report) -> Result<()> {
    let disk = Disk::new(applications()?).read_only();
    let appliances = [Appliance::halting(WORDS).memory(512)];
    let mut site = Site::boot_with(plugin, &appliances, |spec| with_cx16(spec.disk(disk)))?;
    prepare(&mut site.client)?;
    prepare(&mut site.linux)?;
    serve(&mut site.client, 7777, "tcp")?;
    programs::install_library(&mut site.linux, "smc_preload")?;
    site.linux.sh(UNPACK)?;
    site.linux.sh(&format!(
        "cat >/tmp/haproxy.cfg <<'END'\n{HAPROXY}END
         (export {ENVIRONMENT} LD_PRELOAD=/bin/smc_preload.so
         exec haproxy -db -f /tmp/haproxy.cfg) </dev/null >/tmp/haproxy 2>&1 &"
    ))?;
    let waited = wait_listening(&mut site.linux, PORT);
    let said = site.linux.sh("cat /tmp/haproxy; dmesg | grep haproxy || true")?;
    waited.with_context(|| format!("haproxy does not listen:\n{said}"))?;
    for server in [LINUX, ISTHMUS] {
        are_over_smc(&mut site, server)?;
    }
    site.count_idle()?;
    let step = progress::step(format!("{ACTIVE} active connections through a relay"));
    let (mut linux, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        linux.push(round(&mut site, LINUX)?);
        ours.push(round(&mut site, ISTHMUS)?);
    }
    let (linux, ours) = (median(linux)?, median(ours)?);
    step.done(&format!("{ours:.0} instructions a round, haproxy {linux:.0}"));
    report.ratio("relay_200_active_ratio", ours, linux);
    Ok(())
}

/// Checks that all connections between client and relay use SMC-R, and closes them. Afterwards Linux has made its
/// one-time allocations for so many connections.
fn are_over_smc(site: &mut Site, server: usize) -> Result<()> {
    let held = format!("smc echo {}.1 {PORT} 64 1 {ACTIVE} together hold=20", network(server));
    site.client.sh(&format!("{held} >/tmp/held 2>&1 &"))?;
    let active = format!("[ $(smc sockets | grep -c '^ACTIVE SMCR ') = {ACTIVE} ]");
    let waited = site.client.wait_until(&active, PATIENCE);
    let said = site.client.sh("smc sockets | cut -d' ' -f1,2,5 | uniq -c; cat /tmp/held")?;
    waited.with_context(|| format!("connections to server {server} do not use SMC-R:\n{said}"))?;
    // If a signal ended it, Linux's client would not always close each connection at the server.
    site.client.wait_until("grep fine /tmp/held", PATIENCE)?;
    wait_gone(site, server)
}

/// Waits until all connections are gone.
fn wait_gone(site: &mut Site, server: usize) -> Result<()> {
    // 01 is the state of an established TCP connection. The relay connects to port 7777.
    let none = "[ -z \"$(smc sockets)\" ] && ! grep -q ':1E61 [0-9A-F:]* 01 ' /proc/net/tcp";
    let waited = site.client.wait_until(none, PATIENCE);
    let left =
        site.client.sh("smc sockets | cut -d' ' -f1,2 | uniq -c; grep ':1E61 ' /proc/net/tcp")?;
    waited.with_context(|| format!("connections with server {server} stay open:\n{left}"))?;
    site.wait_quiet(server)
}

/// Instructions of a round of one connection. The connections are set up one after the other: Linux does one SMC-R
/// handshake at a time, and a client waits at most 6 s for its turn (`smc_server_lgr_pending`, `CLC_WAIT_TIME` in
/// net/smc). An emulated server cannot do 200 handshakes in that time. Rounds begin when all are connected.
fn round(site: &mut Site, server: usize) -> Result<f64> {
    let mut count = |rounds: u32| {
        let words = format!("{PORT} {BYTES} {rounds} {ACTIVE} together");
        let command = format!("smc echo {}.1 {words}", network(server));
        let work = |site: &mut Site| {
            let (status, said) = site.client.try_sh(&command, PATIENCE)?;
            ensure!(status == 0 && said.trim() == "fine", "`{command}` said {said}");
            wait_gone(site, server)
        };
        Ok::<_, anyhow::Error>(site.count(server, work)?.1)
    };
    let [few, many] = ROUNDS.map(&mut count);
    Ok((many? - few?) / f64::from((ROUNDS[1] - ROUNDS[0]) * ACTIVE))
}
