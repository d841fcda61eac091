//! Sessions with two paths: a client and the appliance with two networks between them.
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use interop_tests::{Site, map, storage, unmap};
use launch::guest::Guest;

const SESSION: &str = "/sys/class/rtrs-client/s1";
const SECOND: &str = "ip:10.0.1.2@ip:10.0.1.1";

/// Boots both, and maps `ram0` over both networks.
fn mapped(words: &str) -> Result<Site> {
    let mut site = Site::with_networks(2, 1500, words)?;
    site.client.sh("modprobe rnbd-client")?;
    map(&mut site.client, "s1", storage::PATH, "ram0", "")?;
    site.client.sh(&format!("echo {SECOND} >{SESSION}/add_path"))?;
    wait_for_states(&mut site.client, "connected connected", 10)?;
    Ok(site)
}

/// Waits until the paths, in the order of their names, are in these states.
fn wait_for_states(client: &mut Guest, states: &str, seconds: u64) -> Result<()> {
    let test = format!("[ \"$(cat {SESSION}/paths/*/state | xargs)\" = '{states}' ]");
    client.wait_until(&test, Duration::from_secs(seconds))
}

/// Reads and writes that the client sent over each path since the previous call.
fn requests(client: &mut Guest) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for path in [storage::PATH, SECOND] {
        let stats = client.sh(&format!("cat {SESSION}/paths/{path}/stats/rdma"))?;
        client.sh(&format!(
            "echo 0 >{SESSION}/paths/{path}/stats/reset_all 2>/dev/null || \
                            echo 1 >{SESSION}/paths/{path}/stats/reset_all"
        ))?;
        let fields: Vec<u64> =
            stats.split_whitespace().map(str::parse).collect::<Result<_, _>>().context("stats")?;
        ensure!(fields.len() >= 4, "stats/rdma holds {stats:?}");
        counts.push(fields[0] + fields[2]);
    }
    Ok(counts)
}

#[test]
fn each_policy_spreads_requests_as_it_says() -> Result<()> {
    let mut site = mapped("")?;
    let client = &mut site.client;
    let mut spread = |policy: &str| -> Result<(u64, u64)> {
        client.sh(&format!("echo {policy} >{SESSION}/mpath_policy"))?;
        requests(client)?;
        storage::fio_verifies(client, 4, 16)?;
        let counts = requests(client)?;
        let (least, all) = (counts.iter().min().copied().unwrap_or(0), counts.iter().sum::<u64>());
        ensure!(all > 100, "{policy}: {counts:?} requests");
        Ok((least, all))
    };
    for (policy, share) in [("round-robin", 45), ("min-inflight", 20)] {
        let (least, all) = spread(policy)?;
        ensure!(least * 100 > all * share, "{policy}: {least} of {all} requests");
    }
    // All requests go to the path with the lower latency of its last heartbeat, until the next heartbeat.
    for _ in 0..3 {
        if spread("min-latency")?.0 == 0 {
            return unmap(&mut site.client, 0);
        }
    }
    bail!("min-latency spreads requests")
}

/// Cuts a path while fio writes and verifies. No I/O fails, and the path reconnects by itself.
fn a_cut_is_survived(words: &str, policy: &str, cut: usize) -> Result<()> {
    let mut site = mapped(words)?;
    site.client.sh(&format!("echo {policy} >{SESSION}/mpath_policy"))?;
    storage::start_fio(&mut site.client, "/dev/rnbd0", 90, 4)?;
    storage::fio_at_work(&mut site.client, "/dev/rnbd0")?;
    // The client keeps its carrier, but no frames pass.
    let states = ["disconnected connected", "connected disconnected"];
    let link = |up| serde_json::json!({"name": format!("net{cut}"), "up": up});
    site.gateway.qmp.execute("set_link", link(false))?;
    wait_for_states(&mut site.client, states[cut], 60).context("the cut is not noticed")?;
    // The other path carries all of it for a while.
    std::thread::sleep(Duration::from_secs(3));
    site.gateway.qmp.execute("set_link", link(true))?;
    wait_for_states(&mut site.client, "connected connected", 120)
        .context("the path does not reconnect")?;
    requests(&mut site.client)?;
    storage::finish_fio(&mut site.client, Duration::from_secs(180))?;
    let log = site.client.sh("dmesg | grep -i 'i/o error' || true")?;
    ensure!(log.is_empty(), "the client reports I/O errors:\n{log}");
    if policy != "min-latency" {
        let counts = requests(&mut site.client)?;
        ensure!(counts.iter().all(|&count| count > 0), "after the reconnect: {counts:?} requests");
    }
    unmap(&mut site.client, 0)
}

#[test]
fn a_cut_path_is_survived_by_round_robin() -> Result<()> {
    a_cut_is_survived("", "round-robin", 1)
}

#[test]
fn a_cut_path_is_survived_by_min_inflight_with_fixed_keys() -> Result<()> {
    a_cut_is_survived("isthmus.rnbd.always_invalidate=false", "min-inflight", 0)
}

#[test]
fn a_cut_path_is_survived_by_min_latency() -> Result<()> {
    a_cut_is_survived("", "min-latency", 0)
}

/// A path that the appliance's operator disconnects can reconnect; one that the client's operator removes does not.
#[test]
fn paths_are_ended_from_both_sides() -> Result<()> {
    let mut site = mapped("")?;
    storage::start_fio(&mut site.client, "/dev/rnbd0", 20, 4)?;
    let path = "/rtrs-server/s1/paths/ip:10.0.1.2@ip:10.0.1.1";
    site.gateway.run(&format!("write {path}/disconnect 1"))?.lacks("error")?;
    wait_for_states(&mut site.client, "connected disconnected", 20)?;
    site.client.sh(&format!("echo 1 >{SESSION}/paths/{SECOND}/reconnect"))?;
    wait_for_states(&mut site.client, "connected connected", 20)?;
    site.client.sh(&format!("echo 1 >{SESSION}/paths/{SECOND}/disconnect"))?;
    wait_for_states(&mut site.client, "connected disconnected", 20)?;
    site.client.sh(&format!("echo 1 >{SESSION}/paths/{SECOND}/reconnect"))?;
    site.client.sh(&format!("echo 1 >{SESSION}/paths/{}/remove_path", storage::PATH))?;
    wait_for_states(&mut site.client, "connected", 20)?;
    storage::finish_fio(&mut site.client, Duration::from_secs(120))?;
    unmap(&mut site.client, 0)
}
