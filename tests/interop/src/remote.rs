//! The appliance as a client of a stock Linux server. One guest plays both roles: it serves `/dev/ram0` to the
//! appliance, and maps the volume that the appliance exports from it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use launch::guest::Guest;
use launch::qemu::Vm;

use crate::metrics::Metrics;
use crate::{Site, map, storage, unmap};

/// The appliance's session with the guest, in its object tree.
pub const SESSION: &str = "/rtrs-client/gw";

/// The appliance's path to the guest on a network.
pub fn path(network: usize) -> String {
    format!("ip:10.0.{network}.1@ip:10.0.{network}.2")
}

/// Command-line settings with which the appliance maps the guest's `/dev/ram0` as `far`, over the networks from `first`
/// to `last`.
pub fn words(first: usize, last: usize, more: &str) -> String {
    let paths: Vec<String> = (first..=last).map(path).collect();
    let remote = [
        "volume=[]",
        "remote.0.name=far",
        "remote.0.sessname=gw",
        "remote.0.device_path=/dev/ram0",
        &format!("remote.0.path={}", paths.join(",")),
    ];
    let words: Vec<String> = remote.iter().map(|word| format!("isthmus.{word}")).collect();
    format!("{} {more}", words.join(" "))
}

/// Makes the guest serve a RAM disk of 64 MiB. The disk exists before the server, so that a client may open it at once.
pub fn serve(guest: &mut Guest, parameters: &str) -> Result<()> {
    guest.sh(&format!(
        "modprobe brd rd_nr=1 rd_size=65536 && modprobe -a rnbd-client ext4 && \
         modprobe rtrs-server {parameters} && modprobe rnbd-server"
    ))?;
    Ok(())
}

/// Repeats a console command until its reply contains `wanted`.
pub fn wait_for(gateway: &mut Vm, line: &str, wanted: &str, limit: Duration) -> Result<String> {
    let deadline = Instant::now() + limit;
    loop {
        let reply = gateway.run(line)?;
        if reply.text.contains(wanted) {
            return Ok(reply.text);
        }
        if Instant::now() > deadline {
            bail!("`{line}`: no {wanted:?} within {limit:?} in the reply:\n{}", reply.text);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Boots both machines with this many networks, and waits until the appliance has opened the guest's disk.
pub fn site(networks: usize, parameters: &str, words: &str) -> Result<Site> {
    let mut site = Site::with_networks(networks, 1500, words)?;
    serve(&mut site.client, parameters)?;
    wait_for(&mut site.gateway, "remote list csv", "/dev/ram0,open,", Duration::from_secs(30))?;
    Ok(site)
}

/// Runs a scenario on a site. If it fails, the error has the appliance's log.
pub fn run_scenario(mut site: Site, scenario: impl FnOnce(&mut Site) -> Result<()>) -> Result<()> {
    let result = scenario(&mut site);
    let log =
        site.gateway.run("show log").map_or_else(|error| format!("{error:#}"), |log| log.text);
    result.with_context(|| format!("the appliance's log:\n{log}"))
}

/// Reads an object of the appliance's tree.
pub fn object(gateway: &mut Vm, path: &str) -> Result<serde_json::Value> {
    gateway.run(&format!("cat {path} --json"))?.json()
}

/// Waits until the appliance's path on a network is in a state.
pub fn wait_for_state(gateway: &mut Vm, network: usize, state: &str, seconds: u64) -> Result<()> {
    let line = format!("cat {SESSION}/paths/{}/state", path(network));
    wait_for(gateway, &line, state, Duration::from_secs(seconds)).map(|_| ())
}

/// A stock client behind the appliance behind a stock server: checksums match, and the server's disk holds the client's
/// data.
pub fn chain(parameters: &str) -> Result<()> {
    run_scenario(site(1, parameters, &words(0, 0, ""))?, |site| {
        let guest = &mut site.client;
        map(guest, "s1", storage::PATH, "far", "")?;
        storage::fio_verifies(guest, 16, 32)?;
        storage::ext4_keeps_its_data(guest, 16)?;
        storage::flushes_and_discards(guest)?;
        guest.sh("cmp /dev/rnbd0 /dev/ram0")?;
        unmap(guest, 0)?;
        let stats =
            object(&mut site.gateway, &format!("{}/paths/{}/stats/rdma", SESSION, path(0)))?;
        let count = |key: &str| stats[key].as_u64().unwrap_or(0);
        ensure!(count("rd_cnt") > 100 && count("wr_cnt") > 100, "{stats}");
        ensure!(count("wr_bytes") > 16 << 20 && count("errors") == 0, "{stats}");
        // Session attributes and metrics over HTTP.
        let guest = &mut site.client;
        let policy = guest.sh("wget -q -O - http://10.0.0.1/api/rtrs-client/gw/mp_policy")?;
        ensure!(policy.contains("min-inflight"), "{policy}");
        let metrics = Metrics::read(guest)?;
        let labels = format!("session=\"gw\",path=\"{}\"", path(0));
        let sample = |name: &str| metrics.get(&format!("rtrs_client_path_{name}{{{labels}}}"));
        ensure!(sample("up")? == 1.0 && sample("written_bytes_total")? > 1e6);
        ensure!(metrics.get("remote_open{volume=\"far\"}")? == 1.0);
        Ok(())
    })
}
