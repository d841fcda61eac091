//! SMC-R scenarios of two stock Linux hosts, with the image in place of either. Each checks every byte, the transport,
//! and that no resources leak.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::Site;
use interop_tests::lab::{BOTH, Lab, WORDS, run_scenario};
use interop_tests::metrics::Metrics;
use interop_tests::relay::Relay;
use interop_tests::smc::until_active;
use launch::guest::Wire;
use launch::qemu::Spec;
use launch::workspace;
use pcap_file::pcap::PcapReader;

#[test]
fn streams_of_all_shapes_work() -> Result<()> {
    run_scenario(Site::boot(1500, WORDS)?, |lab| {
        for port in BOTH {
            // Behind a rule is another socket of the guest.
            let each = if port == 7 { 1 } else { 2 };
            lab.reload("LAB.SMC.EID", "")?;
            lab.echo_over_smc(port, "64 1 1", each).context("first contact")?;
            lab.echo_over_smc(port, "10240 1 1", each).context("reuse")?;
            lab.echo_over_smc(port, "4096 4 8", 8 * each).context("eight at once")?;
            lab.echo(port, "200000 1 1").context("wraps")?;
            lab.echo(port, "64 1 1 early").context("no half-close")?;
            lab.echo(port, "1000 1 1 linger0").context("linger 0")?;
            lab.echo(port, "1000 1 1 urgent").context("urgent data")?;
            lab.echo(port, "5000000 1 1").context("5 MB")?;
        }
        lab.echo(7, "5000000 1 8").context("8 times 5 MB")?;
        lab.echo(7001, "1000000 1 8").context("8 times 1 MB by rule")?;
        Ok(())
    })
}

#[test]
fn full_windows_and_killed_peers_are_handled() -> Result<()> {
    run_scenario(Site::boot(1500, WORDS)?, |lab| {
        // A process of the peer is stopped under load, and continued.
        for (port, stopped) in [(7, "echo"), (7001, "echo"), (7001, "serve 7777")] {
            lab.sh(&format!(
                "smc echo 10.0.0.1 {port} 4000000 1 1 > /tmp/said 2>&1 &
                 until smc sockets | grep -q '^ACTIVE SMCR '; do sleep 0.1; done
                 pid=$(ps -o pid,args | grep 'smc {stopped}' | grep -v grep | busybox awk '{{print $1}}')
                 kill -STOP $pid; sleep 3; kill -CONT $pid"
            ))?;
            let done = lab.site.client.wait_until("grep fine /tmp/said", Duration::from_secs(60));
            done.with_context(|| format!("port {port}, `smc {stopped}` stopped"))?;
        }
        for port in BOTH {
            // A client that is killed while idle, and one with unread data.
            lab.sh(&format!(
                "smc echo 10.0.0.1 {port} 64 1 1 hold=60 &
                 until smc sockets | grep -q '^ACTIVE SMCR '; do sleep 0.1; done
                 kill -9 $!; wait $!; true"
            ))?;
            // A second's worth of data.
            lab.sh(&format!(
                "smc flood 10.0.0.1 {port} &
                 until smc sockets | grep -q '^ACTIVE SMCR '; do sleep 0.1; done
                 sleep 1; kill -9 $!; wait $!; true"
            ))?;
            lab.echo(port, "4096 4 4").context("after clients were killed")?;
        }
        // A killed server: the client's connection ends, and the next client reaches the new server.
        lab.sh(&format!(
            "smc echo 10.0.0.1 7001 64 1 1 hold=20 > /tmp/said 2>&1 & {}",
            until_active(2)
        ))?;
        lab.sh("kill -9 $(ps -o pid,args | grep 'smc serve' | grep -v grep | busybox awk '{print $1}')")?;
        lab.settle().context("after the server was killed")?;
        lab.sh("killall smc; true")?;
        lab.serve()?;
        lab.echo_over_smc(7001, "4096 1 1", 2)
    })
}

#[test]
fn one_side_without_smc_falls_back_to_tcp() -> Result<()> {
    run_scenario(Site::boot(1500, WORDS)?, |lab| {
        for port in [7, 7001, 7002] {
            lab.echo(port, "100000 2 2 tcp").context("a client that has only TCP")?;
        }
        // A TCP-only server behind the rule, with SMC-R in front.
        lab.echo_over_smc(7002, "100000 1 1", 1)?;
        // Another EID: SMC-R is declined, and the same TCP connection is used.
        lab.reload("OTHER.EID", "")?;
        lab.echo(7, "100000 1 1")?;
        lab.echo(7001, "100000 1 1")?;
        let refused = lab.site.gateway.run("show refused")?.contains("SMC-R")?.text.clone();
        ensure!(refused.contains("no common SMC device or EID"), "{refused}");
        // Two fallbacks of the appliance as a server, and one by the guest's server: no common device.
        lab.fallbacks.push(("03030000", 3));
        lab.reload("LAB.SMC.EID", "")?;
        lab.echo_over_smc(7001, "64 1 1", 2)
    })
}

#[test]
fn settings_of_the_peer_are_respected() -> Result<()> {
    let words = format!("{WORDS} isthmus.smc.receive_buffer=512KiB");
    run_scenario(Site::boot(1500, &words)?, |lab| {
        lab.reload("LAB.SMC.EID", "smcr_testlink_time=1")?;
        for port in BOTH {
            let before = lab.api("stats")?["llc_received"].as_u64().context("a count")?;
            lab.echo(port, "64 1 1 hold=6").context("link tests")?;
            let after = lab.api("stats")?["llc_received"].as_u64().context("a count")?;
            ensure!(after >= before + 3, "{before} LLC messages, then {after}: no link tests");
        }
        lab.reload("LAB.SMC.EID", "smcr_max_links_per_lgr=1")?;
        for port in BOTH {
            lab.echo(port, "64 1 1").context("one link at most")?;
        }
        lab.reload("LAB.SMC.EID", "rmem=16384 wmem=16384")?;
        for port in BOTH {
            lab.echo(port, "100000 1 2").context("16 KiB there, 512 KiB here")?;
            lab.echo(port, "2000000 1 1").context("16 KiB there, 512 KiB here")?;
        }
        Ok(())
    })
}

#[test]
fn small_local_buffers_work() -> Result<()> {
    let words = format!("{WORDS} isthmus.smc.receive_buffer=16KiB");
    run_scenario(Site::boot(1500, &words)?, |lab| {
        lab.reload("LAB.SMC.EID", "rmem=524288 wmem=524288")?;
        for port in BOTH {
            lab.echo(port, "100000 1 2").context("512 KiB there, 16 KiB here")?;
            lab.echo(port, "2000000 1 1").context("512 KiB there, 16 KiB here")?;
        }
        Ok(())
    })
}

#[test]
fn large_buffers_work() -> Result<()> {
    let words = format!("{WORDS} isthmus.smc.send_buffer=1MiB isthmus.smc.receive_buffer=1MiB");
    run_scenario(Site::boot(1500, &words)?, |lab| {
        lab.reload("LAB.SMC.EID", "rmem=1048576 wmem=1048576")?;
        for port in BOTH {
            lab.echo(port, "100000 1 2").context("1 MiB on both sides")?;
            lab.echo(port, "4000000 1 1").context("1 MiB on both sides")?;
        }
        let buffers = lab.api("stats")?["tx"]["bufs"][">512KB"].as_u64();
        ensure!(buffers > Some(0), "no send buffer of 1 MiB: {buffers:?}");
        Ok(())
    })
}

/// Checks the path MTU for an MTU of the appliance and one of the guest.
fn with_mtus(here: u16, there: u16, path: u64) -> Result<()> {
    let wire = Wire::new()?;
    let site = Site::between(vec![wire.datagrams()], (here, there), WORDS, |s| s, |s| s)?;
    run_scenario(site, |lab| {
        for port in BOTH {
            lab.echo(port, "100000 1 2")?;
            lab.echo(port, "2000000 1 1")?;
        }
        let links = lab.api("links")?;
        let right = |link: &serde_json::Value| link["path_mtu"] == path;
        ensure!(links.as_array().is_some_and(|links| links.iter().all(right)), "{links:#}");
        Ok(())
    })
}

#[test]
fn mtu_5000_works() -> Result<()> {
    with_mtus(5000, 5000, 4096)
}

#[test]
fn mtu_9000_works() -> Result<()> {
    with_mtus(9000, 9000, 4096)
}

#[test]
fn different_mtus_work() -> Result<()> {
    with_mtus(5000, 2500, 2048)
}

#[test]
fn loss_is_survived() -> Result<()> {
    // 2 % of the frames to the guest, and 2 % of those from it.
    let relay = Relay::new(50)?;
    let site = Site::between(vec![relay.ends()], (1500, 1500), WORDS, |s| s, |s| s)?;
    run_scenario(site, |lab| {
        lab.sh("tc qdisc replace dev eth0 root netem loss 2% limit 10000")?;
        for port in BOTH {
            lab.echo(port, "100000 1 1")?;
            lab.echo_over_smc(port, "4096 4 2", if port == 7 { 2 } else { 4 })?;
        }
        lab.sh("tc qdisc replace dev eth0 root pfifo limit 10000")?;
        Ok(())
    })?;
    ensure!(relay.stop()? > 0, "nothing was lost");
    Ok(())
}

#[test]
fn links_removed_by_the_peer_are_replaced() -> Result<()> {
    run_scenario(Site::boot(1500, WORDS)?, |lab| {
        let hold = |lab: &mut Lab| {
            lab.sh(&format!(
                "for port in 7 7001; do smc echo 10.0.0.1 $port 64 1 1 hold=8 > /tmp/said 2>&1 & done
                 {}",
                until_active(3)
            ))
        };
        // SMC handles a new device's port in a work item, whose end is not visible.
        let device = "rdma link add rxe0 type rxe netdev eth0
             until rdma link show rxe0/1 | grep -q 'state ACTIVE'; do sleep 0.1; done; sleep 1";
        // The guest's device is removed while connections are open. They end on both sides, and new ones work.
        hold(lab)?;
        lab.sh("rdma link del rxe0")?;
        lab.settle().context("after the device was removed")?;
        lab.sh(device)?;
        for port in BOTH {
            lab.echo_over_smc(port, "4096 2 2", if port == 7 { 2 } else { 4 })?;
        }
        lab.settle()?;
        // The guest's module is unloaded, which announces the end of its link groups.
        lab.reload("LAB.SMC.EID", "")?;
        let groups = lab.api("linkgroups")?;
        ensure!(groups.as_array().is_some_and(Vec::is_empty), "{groups:#}");
        for port in BOTH {
            lab.echo_over_smc(port, "4096 2 2", if port == 7 { 2 } else { 4 })?;
        }
        lab.settle()?;
        // The guest's device is removed for a second while there are no connections, so that the guest drops its link
        // groups without an announcement. A client that reuses an old link group is declined (04000000, out of sync),
        // falls back to TCP, and then creates a new group.
        lab.sh(&format!("rdma link del rxe0; sleep 1; {device}"))?;
        lab.fallbacks.push(("04000000", 1));
        lab.broken_links = 3;
        for port in BOTH {
            lab.echo(port, "4096 1 1")
                .context("the first after the guest dropped its link groups")?;
            lab.echo_over_smc(port, "4096 2 2", if port == 7 { 2 } else { 4 })?;
        }
        Ok(())
    })
}

#[test]
fn resources_of_a_powered_off_peer_are_released() -> Result<()> {
    let mut lab = Lab::new(Site::boot(1500, WORDS)?);
    lab.prepare()?;
    lab.sh(&format!(
        "smc echo 10.0.0.1 7001 64 1 1 hold=100 > /tmp/said 2>&1 & {}",
        until_active(2)
    ))?;
    let Lab { site, .. } = lab;
    let mut gateway = site.gateway;
    drop(site.client);
    let gone = Instant::now();
    loop {
        let left = |gateway: &mut launch::qemu::Vm, topic| {
            gateway.run(&format!("show smc {topic} --json"))?.json()
        };
        let (sockets, groups) = (left(&mut gateway, "sockets")?, left(&mut gateway, "linkgroups")?);
        let none = |list: &serde_json::Value| list.as_array().is_some_and(Vec::is_empty);
        if none(&sockets) && none(&groups) {
            break;
        }
        // 30 s without traffic, and 2 s for the answer to a link test.
        ensure!(gone.elapsed() < Duration::from_secs(60), "still there: {sockets:#} {groups:#}");
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

#[test]
fn peers_reconnect_after_a_reboot_of_the_appliance() -> Result<()> {
    let wire = Wire::new()?;
    let nics = vec![wire.datagrams()];
    let site = Site::between(nics, (1500, 1500), WORDS, Spec::reboots, |s| s)?;
    let mut lab = Lab::new(site);
    lab.prepare()?;
    let directory = workspace::target().join("interop");
    let capture = directory.join("peers_reconnect_after_a_reboot_of_the_appliance.pcap");
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        // Open connections, which the reboot ends.
        lab.sh(&format!(
            "for port in 7 7001; do smc echo 10.0.0.1 $port 64 1 1 hold=60 > /tmp/said 2>&1 & done
             {}",
            until_active(3)
        ))?;
        lab.site.client.capture(0, &capture)?;
        lab.site.gateway.reboot()?;
        lab.echo(7, "64 1 1")?;
        lab.site.client.end_capture(0)?;
        fastest = fastest.min(first_answer(&capture)?);
        lab.echo(7001, "64 1 1")?;
        let groups = lab.api("linkgroups")?;
        ensure!(groups.as_array().is_some_and(|groups| groups.len() == 2), "{groups:#}");
        let stats = lab.api("stats")?;
        ensure!(stats["tcp_fallback"] == 0 && stats["handshake_errors"] == 0, "{stats:#}");
        lab.sh("killall smc; while pidof smc >/dev/null; do sleep 0.1; done")?;
        lab.serve()?;
    }
    println!("from the first frame after a boot to the first answer over SMC-R: {fastest:?}");
    ensure!(fastest <= Duration::from_millis(100), "{fastest:?}, see {}", capture.display());
    fs::remove_file(capture)?;
    Ok(())
}

/// Time from the appliance's first frame after a boot to its first WRITE.
fn first_answer(capture: &Path) -> Result<Duration> {
    let mut reader = PcapReader::new(fs::File::open(capture)?)?;
    let (mut first, mut answer) = (None, None);
    while let Some(packet) = reader.next_packet() {
        let packet = packet?;
        let bytes = &packet.data;
        // UDP to RoCE's port behind an IPv4 header without options, WRITE ONLY.
        let written =
            bytes.get(36..38) == Some(&4791u16.to_be_bytes()) && bytes.get(42) == Some(&10);
        if bytes.get(6..12) == Some(&[0x52, 0x54, 0, 0x12, 0x34, 1]) {
            // Frames of the previous boot come first in the capture.
            if bytes.get(12..14) == Some(&[8, 6]) && first.is_none() {
                first = Some(packet.timestamp);
            }
            if written && first.is_some() && answer.is_none() {
                answer = Some(packet.timestamp);
            }
        }
    }
    Ok(answer.context("no answer")? - first.context("no announcement")?)
}

/// Waits until the appliance has three SMC-R sockets that have echoed 1000 bytes, and one TCP socket.
fn all_have_echoed(lab: &mut Lab) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(15);
    loop {
        let page = lab.api("sockets")?;
        let sockets = page.as_array().context("a list")?;
        let smc = sockets.iter().filter(|socket| {
            socket["mode"] == "SMCR" && socket["rx_bytes"] == 1000 && socket["tx_bytes"] == 1000
        });
        if smc.count() == 3 && sockets.len() == 4 {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{page:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// All topics of the console and of `/api/smc` while connections are open, by the columns of the SMC tools.
#[test]
fn every_topic_is_reported() -> Result<()> {
    let words = format!("{WORDS} isthmus.net.0.pnetid=LAB");
    run_scenario(Site::boot(1500, &words)?, |lab| {
        lab.sh("for port in 7 7001; do smc echo 10.0.0.1 $port 1000 1 1 hold=20 > /tmp/s$port 2>&1 & done
                smc echo 10.0.0.1 7 1000 1 1 tcp hold=20 > /tmp/tcp 2>&1 &")?;
        all_have_echoed(lab)?;
        let mut topics = std::collections::BTreeMap::new();
        for topic in ["sockets", "linkgroups", "links", "devices", "stats", "ueid", "rules"] {
            let page = lab.api(topic)?;
            let reply = lab.site.gateway.run(&format!("show smc {topic} --json"))?.json()?;
            ensure!(reply == page, "show smc {topic}: {reply:#}\n/api/smc/{topic}: {page:#}");
            topics.insert(topic, page);
        }
        let all = lab.api("")?;
        ensure!(all.as_object().is_some_and(|all| all.len() == 7), "{all:#}");

        let sockets = topics["sockets"].as_array().context("a list")?;
        let of = |mode: &str, role: &str, state: &str| {
            let found = sockets.iter().filter(|socket| {
                let has = |key: &str, value: &str| socket[key].as_str().unwrap_or("") == value;
                has("mode", mode) && has("role", role) && has("state", state)
            });
            found.collect::<Vec<_>>()
        };
        let (servers, clients) = (of("SMCR", "SERV", "ACTIVE"), of("SMCR", "CLNT", "ACTIVE"));
        ensure!(servers.len() == 2 && clients.len() == 1 && sockets.len() == 4, "{sockets:#?}");
        ensure!(of("TCP", "", "ACTIVE").len() == 1, "{sockets:#?}");
        for socket in servers.iter().chain(&clients) {
            ensure!(socket["rx_bytes"] == 1000 && socket["tx_bytes"] == 1000, "{socket:#}");
            ensure!(socket["rcvbuf"] == 65536 && socket["peerbuf"] == 65536, "{socket:#}");
            ensure!(socket["intf"] == "net0" && socket["rx_queued"] == 0, "{socket:#}");
        }
        ensure!(clients[0]["foreign_address"] == "10.0.0.2:7777", "{clients:#?}");

        let groups = topics["linkgroups"].as_array().context("a list")?;
        ensure!(groups.len() == 2, "{groups:#?}");
        for group in groups {
            let conns = if group["lg_role"] == "SERV" { 2 } else { 1 };
            ensure!(group["conns"] == conns && group["lg_type"] == "SINGLE", "{group:#}");
            ensure!(group["peer"] == "10.0.0.2" && group["eid"] == "LAB.SMC.EID", "{group:#}");
            ensure!(group["version"] == "2" && group["release"] == 1, "{group:#}");
        }
        let links = topics["links"].as_array().context("a list")?;
        ensure!(links.len() == 2, "{links:#?}");
        for link in links {
            ensure!(link["local_gid"] == "::ffff:10.0.0.1", "{link:#}");
            ensure!(link["peer_gid"] == "::ffff:10.0.0.2" && link["path_mtu"] == 1024, "{link:#}");
            ensure!(link["link_state"] == "LINK_ACTIVE" && link["net_dev"] == "net0", "{link:#}");
        }
        let devices = topics["devices"].as_array().context("a list")?;
        ensure!(devices.len() == 1 && devices[0]["links"] == 2, "{devices:#?}");
        ensure!(
            devices[0]["pnet_id"] == "LAB" && devices[0]["ib_state"] == "ACTIVE",
            "{devices:#?}"
        );
        ensure!(topics["ueid"] == serde_json::json!(["LAB.SMC.EID"]), "{:#}", topics["ueid"]);
        let rules = topics["rules"].as_array().context("a list")?;
        ensure!(rules.len() == 2 && rules[0]["connections"] == 1, "{rules:#?}");
        ensure!(rules[0]["backends"][0]["state"] == "up", "{rules:#?}");

        // The metrics agree with `stats`.
        let (stats, metrics) = (lab.api("stats")?, Metrics::read(&mut lab.site.client)?);
        for (metric, key) in [
            ("smc_connections_total{role=\"client\"}", "smc_connections_client"),
            ("smc_connections_total{role=\"server\"}", "smc_connections_server"),
            ("smc_first_contacts_total", "first_contacts"),
            ("smc_receive_bytes_total", "rx_bytes"),
            ("smc_transmit_bytes_total", "tx_bytes"),
            ("smc_violations_total", "violations"),
        ] {
            let (counted, reported) = (metrics.get(metric)?, stats[key].as_f64());
            ensure!(reported == Some(counted), "{metric} is {counted}, {key} is {reported:?}");
        }
        ensure!(metrics.get("smc_sockets")? == 3.0 && metrics.get("smc_link_groups")? == 2.0);
        lab.sh("killall smc; true")?;
        lab.serve()
    })
}
