//! SMC-R version 1 between two images, each with two ports on one network: a rule of one connects to the echo service
//! of the other. The wire carries RoCEv1, and connections survive the loss of a link.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::captured::{SET_TOKEN, download, frames, tshark};
use interop_tests::image_spec;
use interop_tests::remote::wait_for;
use launch::guest::Wire;
use launch::qemu::{Nic, Vm, free_port};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const ROCE_V1: [u8; 2] = [0x89, 0x15];

/// Settings of a host with two ports on one network.
fn nets(host: u8) -> String {
    format!(
        "isthmus.net.0.address=10.0.0.{host}/24 isthmus.net.0.pnetid=LAB \
         isthmus.net.1.address=10.0.0.1{host}/24 isthmus.net.1.pnetid=LAB "
    )
}

/// Boots the machine with the echo service, and the one with a rule to it, each with further settings.
fn boot(
    wires: &[Wire; 2],
    forwards: &[(&'static str, u16, u16)],
    words: [&str; 2],
) -> Result<[Vm; 2]> {
    let [(far0, near0), (far1, near1)] = [wires[0].datagrams(), wires[1].datagrams()];
    let far = image_spec()?.append(&nets(1)).append("isthmus.smc.services=true").append(words[0]);
    let mut far = far.nic(far0).nic(far1).first_mac(9).start()?;
    far.wait_ready()?;
    let rule = "isthmus.net.2.address=10.0.2.15/24 isthmus.rule.0.name=echo \
        isthmus.rule.0.listen=7001 isthmus.rule.0.backend=10.0.0.1:7 isthmus.rule.0.backend_smc=true";
    let near = image_spec()?.append(&nets(2)).append(rule).append(words[1]);
    let user = Nic::User { forwards: forwards.to_vec() };
    let mut near = near.nic(near0).nic(near1).nic(user).first_mac(1).start()?;
    near.wait_ready()?;
    // The GID of version 1 is the link-local address, in use after duplicate address detection.
    for vm in [&mut far, &mut near] {
        let end = Instant::now() + PATIENCE;
        while vm.run("show interfaces")?.text.matches("fe80::").count() < 2 {
            ensure!(Instant::now() < end, "a link-local address is not in use");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    wait_for(&mut near, "ping 10.0.0.1 1", "1 of 1 answered", PATIENCE)?;
    Ok([far, near])
}

/// Sends bytes, and checks the echo.
fn echo(server: SocketAddr, len: usize) -> Result<()> {
    let bytes: Vec<u8> = (0..len).map(|n| ((n * 2_654_435_761) >> 13) as u8).collect();
    let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut writer = connection.try_clone()?;
    let sent = bytes.clone();
    let thread = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut back = Vec::new();
    connection.read_to_end(&mut back)?;
    thread.join().ok().context("the writer panicked")??;
    ensure!(back == bytes, "the echo of {len} bytes differs ({} received)", back.len());
    Ok(())
}

fn list(vm: &mut Vm, topic: &str) -> Result<Vec<Value>> {
    let said = vm.run(&format!("show smc {topic} --json"))?.json()?;
    Ok(said.as_array().with_context(|| format!("no list: {said}"))?.clone())
}

/// Waits until there are this many active links.
fn have_links(vm: &mut Vm, count: usize) -> Result<Vec<Value>> {
    let end = Instant::now() + PATIENCE;
    loop {
        let links = list(vm, "links")?;
        if links.iter().filter(|link| link["link_state"] == "LINK_ACTIVE").count() == count {
            return Ok(links);
        }
        ensure!(Instant::now() < end, "not {count} links: {links:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Bytes that a machine has sent over SMC-R.
fn sent(vm: &mut Vm) -> Result<u64> {
    let stats = vm.run("show smc stats --json")?.json()?;
    stats["tx_bytes"].as_u64().with_context(|| format!("no tx_bytes: {stats:#}"))
}

/// Waits until a machine has sent this many bytes over SMC-R.
fn have_sent(vm: &mut Vm, bytes: u64) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while sent(vm)? < bytes {
        ensure!(Instant::now() < end, "the stream does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn two_appliances_speak_version_1_over_rocev1() -> Result<()> {
    let (http, port) = (free_port()?, free_port()?);
    let wires = [Wire::new()?, Wire::new()?];
    let [mut far, mut near] = boot(&wires, &[("tcp", http, 80), ("tcp", port, 7001)], [""; 2])?;
    let server = ([127, 0, 0, 1], port).into();
    near.run(SET_TOKEN)?.lacks("error")?;
    near.run("capture start payload")?.lacks("error")?;
    for len in [1, 64, 300_000] {
        echo(server, len)?;
    }
    for vm in [&mut far, &mut near] {
        let links = have_links(vm, 2)?;
        for link in &links {
            for gid in ["local_gid", "peer_gid"] {
                let gid = link[gid].as_str().unwrap_or_default();
                ensure!(gid.starts_with("fe80::"), "{link:#}");
            }
        }
        let groups = list(vm, "linkgroups")?;
        let group = groups.first().context("no link group")?;
        ensure!(
            groups.len() == 1 && group["version"] == "1" && group["lg_type"] == "SYM",
            "{groups:#?}"
        );
    }
    near.run("capture stop")?.lacks("error")?;
    let file = download(([127, 0, 0, 1], http).into())?;
    let kept = frames(&file)?;
    let roce = kept.iter().filter(|frame| frame.bytes.get(12..14) == Some(&ROCE_V1)).count();
    ensure!(roce > 300, "{roce} frames of RoCEv1");
    let path = tempfile::Builder::new().suffix(".pcapng").tempfile()?;
    std::fs::write(path.path(), &file)?;
    let seen = tshark(path.path(), "infiniband")?.len();
    ensure!(seen == roce, "tshark sees {seen} frames of RoCE, not {roce}");
    let summaries = tshark(path.path(), "smc")?.join("\n");
    for what in ["Confirm Link", "Add Link", "Add Link Continuous", "Confirm Rkey", "CDC"] {
        ensure!(
            summaries.contains(&format!("[SMC-R] {what}")),
            "tshark sees no {what}:\n{summaries}"
        );
    }
    // CLC is parsed here, because tshark takes port 7 for another protocol: message type, and the byte with the version
    // and the offered types.
    let clc = kept.iter().filter_map(|frame| {
        let at = frame.bytes.windows(4).position(|four| four == [0xe2, 0xd4, 0xc3, 0xd9])?;
        let header = frame.bytes.get(at + 4..at + 8)?;
        Some((header[0], header[3]))
    });
    let clc: Vec<_> = clc.take(3).collect();
    ensure!(clc == [(1, 0x28), (2, 0x18), (3, 0x18)], "CLC: {clc:02x?}");

    // One link is cut under a stream, which continues over the other link. The lost link is replaced.
    let sent = sent(&mut near)?;
    let stream = std::thread::spawn(move || echo(server, 20_000_000));
    have_sent(&mut near, sent + 1_000_000)?;
    far.qmp.execute("set_link", json!({"name": "net0", "up": false}))?;
    have_links(&mut near, 1)?;
    far.qmp.execute("set_link", json!({"name": "net0", "up": true}))?;
    have_links(&mut near, 2)?;
    stream.join().ok().context("the stream panicked")??;
    echo(server, 300_000)?;
    for vm in [&mut far, &mut near] {
        let stats = vm.run("show smc stats --json")?.json()?;
        for key in ["tcp_fallback", "malformed", "aborted", "violations"] {
            ensure!(stats[key] == 0, "{key}: {stats:#}");
        }
        ensure!(stats["smc_connections"] == 5, "{stats:#}");
    }
    let stats = near.run("show smc stats --json")?.json()?;
    ensure!(stats["failovers"].as_u64() >= Some(1), "{stats:#}");
    Ok(())
}

/// A host with version 1 switched off is reached over TCP. Version 2 is preferred if both hosts share an EID.
#[test]
fn version_1_can_be_switched_off_and_yields_to_version_2() -> Result<()> {
    const EID: &str = "isthmus.smc.ueid.0=LAB.SMC.EID";
    const OFF: &str = "isthmus.smc.ueid.0=LAB.SMC.OTHER isthmus.smc.version1=false";
    for (words, version) in [([OFF, EID], None), ([EID; 2], Some("2"))] {
        let port = free_port()?;
        let wires = [Wire::new()?, Wire::new()?];
        let [mut far, mut near] = boot(&wires, &[("tcp", port, 7001)], words)?;
        echo(([127, 0, 0, 1], port).into(), 300_000)?;
        for vm in [&mut far, &mut near] {
            let groups = list(vm, "linkgroups")?;
            let found = groups.first().and_then(|group| group["version"].as_str());
            ensure!(found == version, "{groups:#?}");
            let stats = vm.run("show smc stats --json")?.json()?;
            let reason = &stats["tcp_fallback_reasons"][0]["code"];
            ensure!(version.is_some() || *reason == "03030000", "{stats:#}");
        }
    }
    Ok(())
}
