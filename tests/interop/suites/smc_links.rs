//! Link groups with two links between the image and stock Linux, each with two ports on one network: a link
//! that is lost, streams that go on over the other, and the link that is there again by itself.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::lab::{Lab, WORDS, tell};
use interop_tests::{Site, boot_client, image_spec, system};
use launch::guest::Wire;

/// Both hosts have both addresses in one subnet, as Linux wants it.
const NETS: &str = "isthmus.net.0.address=10.0.0.1/24 isthmus.net.0.pnetid=LAB \
    isthmus.net.1.address=10.0.0.11/24 isthmus.net.1.pnetid=LAB";

/// Both roles of the image, each with a link group.
const BOTH: &[&str] = &["SERV", "CLNT"];

/// Waits until the newest link groups of these roles have so many links that carry connections. (Linux makes
/// another group when it has lost a link by itself while a connection came.)
fn have_links(lab: &mut Lab, roles: &[&str], links: usize, limit: Duration) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let all = lab.site.gateway.run("show smc links --json")?.json()?;
        let all_links = all.as_array().context("a list")?;
        let active = |role: &&str| {
            let of_role = all_links.iter().filter(|link| link["lg_role"] == **role);
            let newest = of_role.clone().filter_map(|link| link["lg_id"].as_str()).max();
            let of_group = of_role.filter(|link| link["lg_id"].as_str() == newest);
            of_group.filter(|link| link["link_state"] == "LINK_ACTIVE").count()
        };
        if roles.iter().map(active).all(|active| active == links) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "not {links} links each: {all:#}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn a_link_is_lost_and_made_anew() -> Result<()> {
    let wires = [Wire::new()?, Wire::new()?];
    let [(ours0, theirs0), (ours1, theirs1)] = [wires[0].datagrams(), wires[1].datagrams()];
    let gateway = image_spec()?.append(NETS).append(WORDS).nic(ours0).nic(ours1).first_mac(1);
    let mut gateway = gateway.start()?;
    gateway.wait_ready()?;
    let client = system()?.spec("client", &["10.0.0.2/24", "10.0.0.12/24"], 1500);
    let client = boot_client(client.nic(theirs0).nic(theirs1).first_mac(0x20))?;
    tell(Site::of(gateway, client), |lab| {
        lab.guest_loses_links = true;
        have_links(lab, BOTH, 2, Duration::from_secs(20)).context("at first")?;
        begin_streams(lab)?;
        // Links are over wire 0 and wire 1; each is cut at Linux's end, and mended.
        for wire in [0, 1] {
            lab.site.client.set_link(wire, false)?;
            have_links(lab, BOTH, 1, Duration::from_secs(20))
                .with_context(|| format!("wire {wire} is cut"))?;
            // The streams go on over the other one for a while.
            std::thread::sleep(Duration::from_secs(2));
            lab.site.client.set_link(wire, true)?;
            have_links(lab, BOTH, 2, Duration::from_secs(60))
                .with_context(|| format!("wire {wire} is mended"))?;
        }
        // And at this end, which Linux does not see. (As a server it then waits for what it has sent over
        // the link that is gone, for ever: rdma_rxe does not give up.)
        set_link(lab, 0, false)?;
        have_links(lab, BOTH, 1, Duration::from_secs(60)).context("wire 0 is cut here")?;
        set_link(lab, 0, true)?;
        have_links(lab, &["SERV"], 2, Duration::from_secs(60)).context("wire 0 is mended here")?;
        for port in [7, 7001] {
            let good = format!("grep fine /tmp/good{port}");
            let done = lab.site.client.wait_until(&good, Duration::from_secs(90));
            let said = lab.sh(&format!("cat /tmp/good{port}"))?;
            done.with_context(|| format!("port {port}: {said}"))?;
            println!("port {port}: {said}");
        }
        let stats = lab.api("stats")?;
        ensure!(stats["failovers"].as_u64() >= Some(4), "{stats:#}");
        Ok(())
    })
}

/// Two clients of each port: with the servers behind the rule six sockets that speak SMC-R. A link that the guest
/// loses meanwhile takes handshakes with it, which go back to TCP.
fn begin_streams(lab: &mut Lab) -> Result<()> {
    let six = "[ $(smc sockets | grep -c 'ACTIVE SMCR') = 6 ]";
    for last in [false, false, true] {
        for port in [7, 7001] {
            lab.sh(&format!(
                "smc echo 10.0.0.1 {port} 20000 1000000 2 time seconds=90 > /tmp/good{port} 2>&1 &"
            ))?;
        }
        let waited = lab.site.client.wait_until(six, Duration::from_secs(30));
        if waited.is_ok() || last {
            return waited.context("six sockets");
        }
        lab.sh("killall smc; true")?;
        lab.settle()?;
        lab.serve()?;
    }
    Ok(())
}

/// Plugs or unplugs a cable at the appliance.
fn set_link(lab: &mut Lab, wire: usize, up: bool) -> Result<()> {
    let arguments = serde_json::json!({"name": format!("net{wire}"), "up": up});
    lab.site.gateway.qmp.execute("set_link", arguments)?;
    Ok(())
}
