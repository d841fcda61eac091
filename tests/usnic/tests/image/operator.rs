//! usNIC's counters, under the BTL's names, and captures for tshark.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::qemu::{Nic, free_port};
use usnic_tests::{pcap, stock};

use super::lab::{Lab, echo};

/// The token whose SHA-256 is in the document.
const TOKEN: &str = "test-token";
const NETWORK: &str = "[[net]]\naddress = \"10.0.2.15/24\"\n[http]\ntoken_sha256 = \
     \"4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e\"\n";

/// Counters of the BTL's internals, or of a device.
const NOT_OURS: [&str; 2] = ["num_recv_reposts", "num_crc_errors"];

/// Downloads a file from the appliance's HTTP server, at a port of this machine.
fn download(port: u16, path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no HTTP answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    ensure!(head.contains(" 200 "), "{path}: {head}");
    Ok(answer.split_off(end + 4))
}

/// `show usnic` and `/metrics` have the counters of the stock BTL, under its names.
#[test]
fn counters_have_the_names_of_the_btl() -> Result<()> {
    let port = free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let mut lab = Lab::start_with(1500, 1, NETWORK, vec![nic])?;
    echo(&mut lab, 0, &[(10, 100), (10, 5000)], 0)?;
    let status = lab.vm.run("show usnic --json")?.json()?;
    let page = String::from_utf8(download(port, "/metrics")?)?;
    let names = stock::statistics()?;
    ensure!(names.len() > 15, "{names:?}");
    for name in names.iter().filter(|name| !NOT_OURS.contains(&name.as_str())) {
        let of_peer = &status[0]["peers"][0][name];
        let counted = of_peer.as_u64().or(status[0][name].as_u64());
        ensure!(counted.is_some(), "`show usnic` has no {name}: {status}");
        // Maxima, and counters without a peer, are not in the family of counters by peer.
        let sample = format!("{{usnic=\"mpi\",peer=\"node-1\",event=\"{name}\"}} ");
        let is_there = page.contains(&format!("isthmus_usnic_peer_events_total{sample}"));
        let has_sample = of_peer.is_u64() && !name.starts_with("max_");
        ensure!(is_there == has_sample, "{name}: {page}");
    }
    ensure!(page.contains("isthmus_usnic_unknown_senders_total{usnic=\"mpi\"} 0"), "{page}");
    Ok(())
}

/// A capture has messages in both directions, with their payload. tshark decodes them with this project's dissector.
#[test]
fn tshark_decodes_captured_messages() -> Result<()> {
    let port = free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let mut lab = Lab::start_with(1500, 1, NETWORK, vec![nic])?;
    lab.vm.run("capture start udp payload")?.lacks("error")?;
    echo(&mut lab, 0, &[(3, 100), (1, 5000)], 0)?;
    lab.vm.run("usnic ping node-1")?.contains("large PING answered")?;
    lab.vm.run("capture stop")?.lacks("error")?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("capture.pcapng");
    std::fs::write(&file, download(port, "/capture.pcapng")?)?;
    let fields = ["ip.src", "usnic.type", "usnic.tag", "usnic.len", "usnic.ping.type"];
    let read = pcap::tshark(&file, "7001-7003", "4", &fields)?;
    for (from, to) in [("10.9.0.1", "the peer"), ("10.9.0.2", "the image")] {
        let of = |kind: &str, length: &str| {
            let same = |line: &&Vec<String>| {
                let tag = if kind == "1" { "0" } else { "65" };
                line[..4] == [from, kind, tag, length]
            };
            read.iter().filter(same).count()
        };
        // Whole messages, parts of a message, an ACK; more after retransmissions.
        ensure!(of("2", "100") >= 3, "whole messages to {to}: {read:?}");
        ensure!(of("3", "1424") >= 3 && of("3", "728") >= 1, "parts to {to}: {read:?}");
        let pings = read.iter().filter(|line| line[0] == from && !line[4].is_empty());
        ensure!(pings.count() >= 2, "PINGs to {to}: {read:?}");
    }
    Ok(())
}
