//! The appliance as a client of a stock Linux server that restarts, refuses, grows, and stops answering; over one path
//! and over two.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::remote::{self, object, path, run_scenario, wait_for, wait_for_state, words};
use interop_tests::{Site, client_of, gateway_spec, map, networked_gateway_spec, storage, unmap};
use launch::guest::Wire;
use launch::qemu::Disk;

const OPEN: &str = "/dev/ram0,open,";

/// Requests that the appliance sent over each of two paths since the previous call.
fn requests(site: &mut Site) -> Result<Vec<u64>> {
    let mut counts = Vec::new();
    for network in 0..2 {
        let base = format!("{}/paths/{}/stats", remote::SESSION, path(network));
        let stats = object(&mut site.gateway, &format!("{base}/rdma"))?;
        site.gateway.run(&format!("write {base}/reset_all 1"))?.lacks("error")?;
        let count = |key: &str| stats[key].as_u64().unwrap_or(0);
        counts.push(count("rd_cnt") + count("wr_cnt"));
    }
    Ok(counts)
}

/// As in suite `remote`, with a server that keeps its keys.
#[test]
fn a_volume_of_linux_with_fixed_keys_is_exported_again() -> Result<()> {
    remote::chain("always_invalidate=N")
}

/// Delays the server's frames on the second path by 40 ms, and waits until a heartbeat shows the appliance that
/// latency.
fn slow_down_the_second(site: &mut Site) -> Result<()> {
    site.client.sh("tc qdisc replace dev eth1 root netem delay 40ms limit 10000")?;
    let at = format!("{}/paths/{}", remote::SESSION, path(1));
    let deadline = Instant::now() + Duration::from_secs(60);
    while object(&mut site.gateway, &at)?["cur_latency_seconds"].as_f64().is_none_or(|s| s < 0.04) {
        ensure!(Instant::now() < deadline, "no heartbeat shows that the path is slow");
    }
    Ok(())
}

#[test]
fn each_policy_spreads_requests_as_it_says() -> Result<()> {
    run_scenario(remote::site(2, "", &words(0, 1, ""))?, |site| {
        (0..2).try_for_each(|n| wait_for_state(&mut site.gateway, n, "connected", 20))?;
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        for policy in ["round-robin", "min-inflight", "min-latency"] {
            if policy == "min-latency" {
                slow_down_the_second(site)?;
            }
            let order = format!("write {}/mp_policy {policy}", remote::SESSION);
            site.gateway.run(&order)?.lacks("error")?;
            let spreads_well = |counts: &[u64]| {
                let least = counts.iter().min().copied().unwrap_or(0);
                let all: u64 = counts.iter().sum();
                all > 100
                    && match policy {
                        "round-robin" => least * 100 > all * 45,
                        "min-inflight" => least * 100 > all * 15,
                        // All requests go to the path with the lower latency of its last heartbeat.
                        _ => counts[1] * 10 < all,
                    }
            };
            // Three attempts, because on a busy machine a heartbeat of the first path is sometimes late, too.
            let mut tries = Vec::new();
            while !tries.last().is_some_and(|counts: &Vec<u64>| spreads_well(counts)) {
                ensure!(tries.len() < 3, "{policy}: {tries:?} requests");
                requests(site)?;
                storage::fio_verifies(&mut site.client, 4, 16)?;
                tries.push(requests(site)?);
            }
            println!("{policy}: {tries:?} requests");
        }
        unmap(&mut site.client, 0)
    })
}

/// One of two paths is cut under verified load. No I/O fails, and the path reconnects by itself.
fn a_cut_is_survived(policy: &str) -> Result<()> {
    let more = format!("isthmus.remote.0.mp_policy={policy}");
    run_scenario(remote::site(2, "", &words(0, 1, &more))?, |site| {
        (0..2).try_for_each(|n| wait_for_state(&mut site.gateway, n, "connected", 20))?;
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        storage::start_fio(&mut site.client, "/dev/rnbd0", 40, 4)?;
        storage::fio_at_work(&mut site.client, "/dev/rnbd0")?;
        site.client.set_link(1, false)?;
        // On a loaded path a timeout detects the cut within a second; on an idle one heartbeats do.
        wait_for_state(&mut site.gateway, 1, "reconnecting", 60)
            .context("the cut is not noticed")?;
        // The other one carries all of it for a while.
        std::thread::sleep(Duration::from_secs(3));
        site.client.set_link(1, true)?;
        wait_for_state(&mut site.gateway, 1, "connected", 90)
            .context("the path does not reconnect")?;
        storage::finish_fio(&mut site.client, Duration::from_secs(180))?;
        unmap(&mut site.client, 0)
    })
}

#[test]
fn a_cut_path_is_survived_by_round_robin() -> Result<()> {
    a_cut_is_survived("round-robin")
}

#[test]
fn a_cut_path_is_survived_by_min_inflight() -> Result<()> {
    a_cut_is_survived("min-inflight")
}

#[test]
fn a_cut_path_is_survived_by_min_latency() -> Result<()> {
    a_cut_is_survived("min-latency")
}

/// All paths are cut for a while: requests wait, and continue afterwards.
#[test]
fn requests_wait_for_the_end_of_an_outage() -> Result<()> {
    run_scenario(remote::site(2, "", &words(1, 1, ""))?, |site| {
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        storage::start_fio(&mut site.client, "/dev/rnbd0", 60, 1)?;
        storage::fio_at_work(&mut site.client, "/dev/rnbd0")?;
        site.client.set_link(1, false)?;
        // The outage.
        std::thread::sleep(Duration::from_secs(40));
        site.client.set_link(1, true)?;
        wait_for_state(&mut site.gateway, 1, "connected", 90)?;
        storage::finish_fio(&mut site.client, Duration::from_secs(180))?;
        unmap(&mut site.client, 0)
    })
}

/// The server's module is reloaded under load. Then the server's operator closes the device.
#[test]
fn session_recovers_from_a_reloaded_server_and_a_closed_device() -> Result<()> {
    run_scenario(remote::site(1, "", &words(0, 0, ""))?, |site| {
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        storage::start_fio(&mut site.client, "/dev/rnbd0", 20, 1)?;
        storage::fio_at_work(&mut site.client, "/dev/rnbd0")?;
        // The module is unloaded for 3 s.
        site.client.sh("rmmod rnbd-server && sleep 3 && modprobe rnbd-server")?;
        storage::finish_fio(&mut site.client, Duration::from_secs(180))?;
        let patience = Duration::from_secs(60);
        wait_for(&mut site.gateway, "remote list csv", OPEN, patience)?;
        // Linux's force_close: I/O fails, and the state is `closed`.
        let close = "for f in /sys/class/rnbd-server/ctl/devices/*/sessions/gw/force_close; do \
                     echo 1 >$f; done";
        site.client.sh(close)?;
        site.client.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        wait_for(&mut site.gateway, "remote list csv", "/dev/ram0,closed,", patience)?;
        site.gateway.run("remote remap far")?.lacks("error")?;
        wait_for(&mut site.gateway, "remote list csv", OPEN, patience)?;
        site.client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        unmap(&mut site.client, 0)
    })
}

/// Read-only volumes reject writers. A second writer is refused until the first is gone. Migration mode allows two.
#[test]
fn access_modes() -> Result<()> {
    let more = "isthmus.remote.1.name=fixed isthmus.remote.1.sessname=ro \
        isthmus.remote.1.path=ip:10.0.0.1@ip:10.0.0.2 isthmus.remote.1.device_path=/dev/ram0 \
        isthmus.remote.1.access_mode=ro";
    run_scenario(remote::site(1, "", &words(0, 0, more))?, |site| {
        let (gateway, guest) = (&mut site.gateway, &mut site.client);
        let patience = Duration::from_secs(20);
        wait_for(gateway, "remote list csv", "fixed,ro,/dev/ram0,open,", patience)?;
        ensure!(
            map(guest, "s1", storage::PATH, "fixed", "").is_err(),
            "a read-only volume was mapped rw"
        );
        map(guest, "s1", storage::PATH, "fixed", "access_mode=ro")?;
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=10 iflag=direct 2>/dev/null")?;
        unmap(guest, 0)?;
        let add = "sessname=other path=ip:10.0.0.1@ip:10.0.0.2 device_path=/dev/ram0";
        gateway.run(&format!("remote add second {add}"))?.contains("in force now")?;
        wait_for(gateway, "remote list csv", "second,other,/dev/ram0,refused,", patience)?;
        gateway.run("remote remove far")?.contains("in force now")?;
        wait_for(gateway, "remote list csv", "second,other,/dev/ram0,open,", patience)?;
        let add = "sessname=third path=ip:10.0.0.1@ip:10.0.0.2 device_path=/dev/ram0";
        gateway.run(&format!("remote add third {add} access_mode=migration"))?.lacks("error")?;
        wait_for(gateway, "remote list csv", "third,third,/dev/ram0,open,", patience)?;
        Ok(())
    })
}

/// Reconnect attempts to a missing server continue for ever, or up to the configured limit.
#[test]
fn reconnect_limit_is_applied() -> Result<()> {
    let limited = words(0, 0, "isthmus.remote.0.max_reconnect_attempts=3");
    run_scenario(remote::site(1, "", &limited)?, |site| {
        site.client.sh("rmmod rnbd-server")?;
        wait_for_state(&mut site.gateway, 0, "closed", 40)?;
        site.client.sh("modprobe rnbd-server")?;
        // Time for further attempts, which must not happen.
        std::thread::sleep(Duration::from_secs(4));
        wait_for_state(&mut site.gateway, 0, "closed", 1).context("after the last attempt")?;
        let base = format!("{}/paths/{}", remote::SESSION, path(0));
        site.gateway.run(&format!("write {}/max_reconnect_attempts -1", remote::SESSION))?;
        site.gateway.run(&format!("write {base}/reconnect 1"))?.lacks("error")?;
        wait_for_state(&mut site.gateway, 0, "connected", 20)?;
        site.client.sh("rmmod rnbd-server")?;
        // Time for more than three attempts.
        std::thread::sleep(Duration::from_secs(15));
        wait_for_state(&mut site.gateway, 0, "connecting", 5)?;
        site.client.sh("modprobe rnbd-server")?;
        wait_for_state(&mut site.gateway, 0, "connected", 20)?;
        site.gateway.run(&format!("write {base}/disconnect 1"))?.lacks("error")?;
        wait_for_state(&mut site.gateway, 0, "closed", 5)?;
        site.gateway.run(&format!("write {base}/remove_path 1"))?.lacks("error")?;
        site.gateway.run(&format!("cat {base}/state"))?.contains("error")?;
        site.gateway.run(&format!("write {}/add_path {}", remote::SESSION, path(0)))?;
        wait_for(&mut site.gateway, "remote list csv", OPEN, Duration::from_secs(20))?;
        Ok(())
    })
}

/// The server's disk grows, and a client of the appliance's export sees the new size.
#[test]
fn growth_of_the_servers_disk_reaches_clients() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(16 << 20)?;
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let words = words(0, 0, "").replace("/dev/ram0", "/dev/vda");
    let mut gateway = gateway_spec(1500, &words)?.nic(first).first_mac(1).start()?;
    gateway.wait_ready()?;
    let mut guest = client_of(1500, |spec| spec.nic(second).disk(Disk::new(disk.path())))?;
    remote::serve(&mut guest, "")?;
    let patience = Duration::from_secs(30);
    wait_for(&mut gateway, "remote list csv", "/dev/vda,open,16777216", patience)?;
    map(&mut guest, "s1", storage::PATH, "far", "")?;
    guest.resize_disk(0, 24 << 20)?;
    gateway.run("write /rnbd-client/ctl/devices/far/resize 1")?.lacks("error")?;
    wait_for(&mut gateway, "remote list csv", "/dev/vda,open,25165824", patience)?;
    guest.sh("echo $((24 << 11)) >/sys/block/rnbd0/rnbd/resize")?;
    guest.sh("[ $(cat /sys/block/rnbd0/size) = $((24 << 11)) ] &&
         dd if=/dev/urandom of=/tmp/kept bs=1M count=8 2>/dev/null &&
         dd if=/tmp/kept of=/dev/rnbd0 bs=1M seek=16 oflag=direct 2>/dev/null &&
         dd if=/dev/vda bs=1M skip=16 iflag=direct 2>/dev/null | cmp - /tmp/kept")?;
    unmap(&mut guest, 0)
}

/// A stock client uses an appliance that exports a RAM volume of a second appliance.
#[test]
fn client_uses_an_appliance_behind_an_appliance() -> Result<()> {
    let (near, far) = (Wire::new()?, Wire::new()?);
    let ((one, client), (two, other)) = (near.datagrams(), far.datagrams());
    let remote = "isthmus.volume=[] isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
        isthmus.remote.0.path=ip:10.0.1.1@ip:10.0.1.9 isthmus.remote.0.device_path=ram0";
    let spec = networked_gateway_spec(2, 1500, remote)?.nic(one).nic(two).first_mac(1);
    let mut gateway = spec.start()?;
    let words = "isthmus.net.0.address=10.0.1.9/24";
    let server_spec = gateway_spec(1500, words)?.nic(other).first_mac(0x40);
    let mut server = server_spec.clone().start()?;
    gateway.wait_ready()?;
    server.wait_ready()?;
    let patience = Duration::from_secs(30);
    wait_for(&mut gateway, "remote list csv", "ram0,open,67108864", patience)?;
    let mut guest = client_of(1500, |spec| spec.nic(client))?;
    guest.sh("modprobe -a rnbd-client ext4")?;
    map(&mut guest, "s1", storage::PATH, "far", "")?;
    storage::fio_verifies(&mut guest, 16, 32)?;
    storage::ext4_keeps_its_data(&mut guest, 16)?;
    // The second appliance reboots, and the session recovers by itself.
    drop(server);
    let mut server = server_spec.start()?;
    server.wait_ready()?;
    guest.wait_until(
        "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null",
        Duration::from_secs(60),
    )?;
    unmap(&mut guest, 0)
}
