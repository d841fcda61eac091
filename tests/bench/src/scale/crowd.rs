//! Connections of the client that have sent an echo request and then stay idle.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::site::{Site, network};

/// Connections that one run of the client's program makes.
const EACH: usize = 250;
const PATIENCE: Duration = Duration::from_secs(400);

/// Protocol of the connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Smc,
    Tcp,
}

/// Opens the connections `range` to a port of a server, in addition to the earlier ones. They stay until [`close`].
pub fn open(
    site: &mut Site,
    server: usize,
    port: u16,
    kind: Kind,
    range: Range<usize>,
) -> Result<()> {
    let address = format!("{}.1", network(server));
    let word = if kind == Kind::Tcp { "tcp" } else { "" };
    if range.start == 0 {
        site.client.sh("rm -f /tmp/crowd.*")?;
    }
    for run in range.start / EACH + 1..=range.end.div_ceil(EACH) {
        let held = format!("smc echo {address} {port} 64 1 {EACH} {word} hold=100000");
        site.client.sh(&format!("{held} >/tmp/crowd.{run} 2>&1 & echo $! >>/tmp/crowd.pids"))?;
        let wanted = run * EACH;
        // 01 is the state of an established TCP connection; it follows the remote address.
        let open = match kind {
            Kind::Smc => format!("[ $(smc sockets | grep -c '^ACTIVE SMCR ') -ge {wanted} ]"),
            Kind::Tcp => format!("[ $(grep -c ':{port:04X} 01 ' /proc/net/tcp) -ge {wanted} ]"),
        };
        let opened = site.client.wait_until(&open, PATIENCE);
        let said =
            site.client.sh("cat /tmp/crowd.[0-9]*; smc sockets | cut -d' ' -f1,2 | uniq -c")?;
        opened.with_context(|| format!("connections {wanted} to {port}:\n{said}"))?;
        ensure!(!said.contains("smc: "), "{said}");
    }
    // When the server is idle, each connection has received its echo.
    site.wait_quiet(server)
}

/// Closes the connections, and waits until the server has none.
pub fn close(site: &mut Site, server: usize) -> Result<()> {
    site.client.sh("kill $(cat /tmp/crowd.pids); rm -f /tmp/crowd.*")?;
    let url = format!("http://{}.1/api/smc/sockets", network(server));
    let none = format!("[ \"$(busybox wget -q -O - {url})\" = '[]' ]");
    site.client.wait_until(&none, PATIENCE).context("connections stay open")?;
    site.wait_quiet(server)
}
