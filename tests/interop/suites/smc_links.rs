//! Link groups with two links between the image and stock Linux, each with two ports on one network. When a link is
//! lost, streams continue over the other, and the link is replaced automatically.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::lab::{Lab, WORDS, run_scenario};
use interop_tests::{Site, boot_client, image_spec, system};
use launch::guest::Wire;

/// Both addresses of each host are in one subnet, as Linux requires.
const NETS: &str = "isthmus.net.0.address=10.0.0.1/24 isthmus.net.0.pnetid=LAB \
    isthmus.net.1.address=10.0.0.11/24 isthmus.net.1.pnetid=LAB";

/// The image's roles, each with a link group.
const BOTH: &[&str] = &["SERV", "CLNT"];

/// Waits until the newest link groups of these roles have this many active links. Linux creates another group if it
/// loses a link by itself during a handshake.
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
fn lost_link_is_replaced() -> Result<()> {
    let wires = [Wire::new()?, Wire::new()?];
    let [(ours0, theirs0), (ours1, theirs1)] = [wires[0].datagrams(), wires[1].datagrams()];
    let gateway = image_spec()?.append(NETS).append(WORDS).nic(ours0).nic(ours1).first_mac(1);
    let mut gateway = gateway.start()?;
    gateway.wait_ready()?;
    let client = system()?.spec("client", &["10.0.0.2/24", "10.0.0.12/24"], 1500);
    let client = boot_client(client.nic(theirs0).nic(theirs1).first_mac(0x20))?;
    run_scenario(Site::of(gateway, client), |lab| {
        lab.guest_loses_links = true;
        have_links(lab, BOTH, 2, Duration::from_secs(20)).context("at first")?;
        begin_streams(lab)?;
        // Each wire carries a link. Each is cut at Linux's end, and reconnected.
        for wire in [0, 1] {
            lab.site.client.set_link(wire, false)?;
            have_links(lab, BOTH, 1, Duration::from_secs(20))
                .with_context(|| format!("wire {wire} is cut"))?;
            // The streams continue over the other link for a while.
            std::thread::sleep(Duration::from_secs(2));
            lab.site.client.set_link(wire, true)?;
            have_links(lab, BOTH, 2, Duration::from_secs(60))
                .with_context(|| format!("wire {wire} is reconnected"))?;
        }
        // A cut at the appliance's end, which Linux does not detect. As a server it then waits for ever for the
        // completion of its sends on the lost link, because rdma_rxe never stops retransmitting.
        set_link(lab, 0, false)?;
        have_links(lab, BOTH, 1, Duration::from_secs(60)).context("wire 0 is cut here")?;
        set_link(lab, 0, true)?;
        have_links(lab, &["SERV"], 2, Duration::from_secs(60))
            .context("wire 0 is reconnected here")?;
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

/// Starts two clients of each port. With the servers behind the rule, six sockets use SMC-R. If the guest loses a link
/// meanwhile, handshakes on it fall back to TCP, and the start is repeated.
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
