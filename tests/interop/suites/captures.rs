//! Operators at the image's console: measuring another host, and packet captures.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::captured::{SET_TOKEN, TOKEN, download, frames, tshark};
use interop_tests::packet::icrc_is_correct;
use interop_tests::tools::{BANDWIDTH, Gids, perftest, pingpong, rping};
use interop_tests::{SERVICES, Site, client, gateway_spec, lab, smc, storage, unmap};
use launch::guest::Wire;
use launch::qemu::{Nic, free_port};

/// RDMA packets that tshark reports as malformed. SEND Only with Invalidate is excluded, because tshark misreads it
/// between two Linux hosts as well. Other protocols are not checked: when the ring overruns during a download, the
/// capture has only pieces of that download's TCP stream, which tshark reports as malformed.
const MALFORMED: &str = "infiniband && _ws.malformed && !(infiniband.bth.opcode == 23)";

/// Checks that tshark finds no malformed packet in the file.
fn well_formed(file: &Path) -> Result<()> {
    let found = tshark(file, MALFORMED)?;
    let some = found.iter().take(10).cloned().collect::<Vec<_>>().join("\n");
    ensure!(found.is_empty(), "tshark finds {} malformed packets:\n{some}", found.len());
    Ok(())
}

#[test]
fn the_appliance_measures_linux() -> Result<()> {
    Site::run_scenario(1500, SERVICES, |site| {
        for address in ["10.0.0.2", "fd00::2"] {
            // No server listens yet.
            site.gateway.run(&format!("rping {address} 1"))?.contains("start `rping -s` there")?;
            site.client.sh(&format!("rping -s -P -a {address} -S 65535 >/tmp/rping 2>&1 &"))?;
            let listens = "rdma resource show cm_id | grep -q LISTEN";
            site.client.wait_until(listens, Duration::from_secs(30))?;
            for size in [23, 64, 65535] {
                let reply = site.gateway.run(&format!("rping {address} 5 {size}"))?;
                reply.contains(&format!("ping 5, {size} bytes"))?.contains("5 of 5 came back")?;
            }
            site.client
                .sh("killall rping; while killall -0 rping 2>/dev/null; do sleep 0.2; done")?;
        }
        site.gateway
            .run("rping 10.0.0.77 1")?
            .contains("error: 10.0.0.77: the host does not answer")?;
        site.gateway.run("rping 10.1.1.1 1")?.contains("error: 10.1.1.1: no route")?;
        Ok(())
    })
}

#[test]
fn tshark_reads_what_was_captured() -> Result<()> {
    let http = free_port()?;
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let forwards = vec![("tcp", http, 80)];
    let words = "isthmus.roce.services=true isthmus.net.1.address=10.0.2.15/24";
    let spec = gateway_spec(1500, words)?.nic(first).nic(Nic::User { forwards }).first_mac(1);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    let mut guest = client(second, 1500)?;
    let server = ([127, 0, 0, 1], http).into();
    gateway.run("cat /capture")?.contains("running      no")?;

    // Only RDMA: connections, datagrams, every kind of request, storage, both address families.
    gateway.run(SET_TOKEN)?.lacks("error")?;
    // Headers only, without the option `payload`.
    gateway.run("capture start roce")?.lacks("error")?;
    rping(&mut guest, &[4000], 1)?;
    gateway.run("capture stop")?.lacks("error")?;
    let longest = frames(&download(server)?)?.iter().map(|frame| frame.bytes.len()).max();
    ensure!(longest.is_some_and(|len| len < 120), "payload was kept: {longest:?} bytes of a frame");
    gateway.run("capture start roce payload")?.lacks("error")?;
    let gids = Gids::of(&mut guest)?;
    rping(&mut guest, &[4000], 3)?;
    pingpong(&mut guest, gids, &[1, 4096])?;
    perftest(&mut guest, &BANDWIDTH, &["-R -s 65536 -n 5"])?;
    storage::map_ram0(&mut guest)?;
    guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=64k count=4 oflag=direct
         dd if=/dev/rnbd0 of=/dev/null bs=64k count=4 iflag=direct")?;
    unmap(&mut guest, 0)?;
    gateway.run("capture stop")?.lacks("error")?;
    let count = gateway.run("cat /capture --json")?.json()?["frames"].as_u64().unwrap_or(0);
    guest.sh("rping -c -a 10.0.0.1 -C 3 -S 64")?;
    let file = download(server)?;
    let kept = frames(&file)?;
    ensure!(kept.len() as u64 == count && count > 500, "{} frames of {count}", kept.len());
    for (number, frame) in kept.iter().enumerate() {
        let right = icrc_is_correct(&frame.bytes);
        let head = &frame.bytes[..frame.bytes.len().min(64)];
        ensure!(right == Some(true), "frame {}: right ICRC {right:?}, {head:02x?}", number + 1);
    }
    let path = tempfile::Builder::new().suffix(".pcapng").tempfile()?;
    std::fs::write(path.path(), &file)?;
    let count = kept.len();
    ensure!(
        tshark(path.path(), "infiniband")?.len() == count,
        "tshark does not see RDMA in all frames"
    );
    well_formed(path.path())?;
    for way in ["ip.src == 10.0.0.1", "ip.src == 10.0.0.2", "ipv6.src == fd00::1"] {
        ensure!(tshark(path.path(), way)?.len() > 10, "hardly a frame with {way}");
    }

    // The capture of docs/measure.md, downloaded as described there.
    gateway.run("capture start roce host 10.0.0.2 payload")?.lacks("error")?;
    rping(&mut guest, &[64], 1)?;
    gateway.run("cat /capture")?.contains("running      yes")?;
    gateway.run("capture stop")?.lacks("error")?;
    ensure!(
        guest.sh("cd /tmp && wget -q http://10.0.0.1/capture.pcapng").is_err(),
        "the download needs a token"
    );
    let login = format!("--header 'Authorization: Bearer {TOKEN}'");
    guest.sh(&format!("cd /tmp && wget -q {login} http://10.0.0.1/capture.pcapng"))?;
    let size: usize = guest.sh("wc -c </tmp/capture.pcapng")?.trim().parse()?;
    let file = download(server)?;
    ensure!(size == file.len(), "the guest received {size} bytes, not {}", file.len());
    std::fs::write(path.path(), &file)?;
    let ours = tshark(path.path(), "ip.addr == 10.0.0.2 && infiniband")?.len();
    ensure!(ours > 10 && ours == frames(&file)?.len(), "not only frames of 10.0.0.2: {ours}");

    // All frames of both ports, more than the ring holds, downloaded while the capture runs.
    gateway.run("capture start payload")?.lacks("error")?;
    perftest(&mut guest, &["ib_write_bw"], &["-s 65536 -n 100"])?;
    let overwritten = gateway.run("cat /capture --json")?.json()?["overwritten"].as_u64();
    ensure!(overwritten.is_some_and(|count| count > 1000), "overwritten: {overwritten:?}");
    download(server)?;
    let file = download(server)?;
    std::fs::write(path.path(), &file)?;
    let kept = frames(&file)?;
    ensure!(kept.iter().any(|frame| frame.port == 1), "no frame of net1 was captured");
    ensure!(tshark(path.path(), "frame")?.len() == kept.len(), "tshark does not read all frames");
    well_formed(path.path())?;
    gateway.run("capture begin")?.contains("accepted: start, stop")?;
    gateway.run("capture start rocky")?.contains("`rocky` is not understood; accepted: arp")?;
    Ok(())
}

#[test]
fn tshark_reads_smc_r() -> Result<()> {
    let http = free_port()?;
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let forwards = vec![("tcp", http, 80)];
    let words = format!("{} isthmus.net.1.address=10.0.2.15/24", lab::WORDS);
    let spec = gateway_spec(1500, &words)?.nic(first).nic(Nic::User { forwards }).first_mac(1);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    let mut guest = client(second, 1500)?;
    smc::prepare(&mut guest)?;
    guest.sh("smc serve 7777 >/dev/null 2>&1 &")?;
    gateway.run(SET_TOKEN)?.lacks("error")?;
    gateway.run("capture start payload")?.lacks("error")?;
    guest.sh("smc echo 10.0.0.1 7001 200000 1 2")?;
    gateway.run("capture stop")?.lacks("error")?;
    let directory = launch::workspace::target().join("interop");
    let path = directory.join("smc.pcapng");
    std::fs::write(&path, download(([127, 0, 0, 1], http).into())?)?;
    well_formed(&path)?;
    // tshark does not understand Linux's version 2 LLC, because Linux writes the length in the CPU's byte order.
    let summaries = tshark(&path, "smc")?.join("\n");
    for message in ["Proposal", "Accept", "Confirm", "Confirm Link", "CDC Message"] {
        ensure!(
            summaries.contains(message),
            "tshark finds no {message}, see {}:\n{summaries}",
            path.display()
        );
    }
    Ok(())
}
