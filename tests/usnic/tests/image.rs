//! The image against the stock BTL: frames of a virtio interface on one side, Open MPI's sockets on the other.

#[path = "image/interfaces.rs"]
mod interfaces;
#[path = "image/lab.rs"]
mod lab;
#[path = "image/network.rs"]
mod network;
#[path = "image/operator.rs"]
mod operator;
#[path = "image/rules.rs"]
mod rules;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use lab::{ADDRESSES, EAGER, Lab, PATIENCE, SINK, ask, document, echo, modex_of, peer_section};
use usnic::EndpointConfig;
use usnic::wire::header::Layout;
use usnic_tests::faults::Rates;
use usnic_tests::host::Host;
use usnic_tests::pattern;
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::{PORTS, Wire};

/// Small and large PINGs, both ways, and by order of the console.
#[test]
fn pings_both_ways() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut lab = Lab::start(mtu, 1)?;
        lab.vm
            .run("usnic ping node-1")?
            .contains("small PING answered")?
            .contains("large PING answered")?;
        echo(&mut lab, 0, &[(1, 100)], 0)?;
        // The stock BTL asks when it acknowledges; it would have ended after ten seconds.
        lab.wait("its PINGs", |lab| {
            let told = lab.vm.run("show usnic --json")?.json()?;
            Ok(told[0]["pings_answered"].as_u64() >= Some(2))
        })?;
        ensure!(lab.told("node-1")?["pings"] == "answered");
        println!("MTU {mtu}: {:?} datagrams", lab.wire.counts()?);
    }
    Ok(())
}

/// Messages in one packet and in many come back, each byte checked.
#[test]
fn messages_come_back() -> Result<()> {
    for mtu in [1500u16, 9000] {
        let mut lab = Lab::start(mtu, 1)?;
        let fragment = usize::from(mtu) - 28 - 32;
        let chunk = fragment - 16;
        let sizes: Vec<(usize, usize)> = [
            1,
            7,
            8,
            100,
            fragment,
            fragment + 1,
            2 * chunk,
            3 * chunk,
            3 * chunk + 1,
            65_536,
            153_600,
            1 << 20,
            16 << 20,
        ]
        .map(|size| (1, size))
        .into();
        let all = echo(&mut lab, 0, &sizes, 0)?;
        let all = echo(&mut lab, 0, &[(1000, 64), (200, 5000)], all)?;
        let told = lab.told("node-1")?;
        ensure!(told["messages"] == all && told["echoed"] == all, "{told}");
        println!("MTU {mtu}: {:?} datagrams, {told}", lab.wire.counts()?);
        let metrics = lab.vm.run("cat usnic")?;
        metrics.contains("node-1")?;
    }
    Ok(())
}

/// PUTs arrive in memory that was granted, as a CRC of it shows.
#[test]
fn puts_arrive_where_they_may() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    let told = lab.told("node-1")?;
    ensure!(told["put_sink"] == format!("{SINK:#x}, {} bytes", 1 << 20), "{told}");
    for (seed, offset, size) in [(5u32, 0u64, 9500usize), (6, 100_001, 250_000), (7, 0, 1 << 20)] {
        lab.ask(0, &format!("put {} {size} {seed}", SINK + offset), "put")?;
        let crc = crc32fast::hash(&pattern::put(seed, size));
        let looked = lab.vm.run(&format!("usnic look node-1 {offset} {size}"))?;
        looked.contains(&format!("crc32 {crc:08x} of {size} bytes"))?;
    }
    let told = lab.told("node-1")?;
    ensure!(told["puts_refused"] == 0 && told["puts_received"].as_u64() >= Some(3), "{told}");
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// What a peer has PUT is PUT to where it says.
#[test]
fn puts_to_the_stock_peer() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut lab = Lab::start(mtu, 1)?;
        let line = lab.ask(0, &format!("window {}", 1 << 20), "window")?;
        let address = line.split(' ').nth(1).context("no address")?.to_string();
        let base = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
        for (seed, size) in [(1u32, 9500usize), (2, 100_000), (3, 1 << 20)] {
            lab.ask(0, &format!("put {SINK} {size} {seed}"), "put")?;
            let order = format!("usnic put node-1 {address} 0 {size}");
            lab.vm.run(&order)?.contains(&format!("{size} bytes acknowledged"))?;
            let line = lab.ask(0, &format!("look 0 {size} {seed}"), "look")?;
            ensure!(line.contains("same"), "{line}");
        }
        // To the middle, from the middle, in one packet; nothing around it changes.
        lab.ask(0, &format!("put {SINK} {} 9", 1 << 20), "put")?;
        lab.vm
            .run(&format!("usnic put node-1 {:#x} 500 700", base + 5000))?
            .contains("700 bytes")?;
        let line = lab.ask(0, &format!("look 0 {} 3", 1 << 20), "look")?;
        ensure!(line.contains("DIFFERENT 5000 "), "{line}");
        lab.ask(0, &format!("put {SINK} {} 3", 1 << 20), "put")?;
        lab.vm.run(&format!("usnic put node-1 {:#x} 5000 700", base + 5000))?;
        let line = lab.ask(0, &format!("look 0 {} 3", 1 << 20), "look")?;
        ensure!(line.contains("same"), "{line}");
        for order in ["usnic put node-1 0 0 10", "usnic put node-1 0x1000 1048576 1"] {
            lab.vm.run(order)?.contains("error")?;
        }
        println!("MTU {mtu}: {:?} datagrams", lab.wire.counts()?);
    }
    Ok(())
}

/// So many packets each way that the numbers of both wrap. Few at a time: the stock sender sends all of those again that a
/// slow machine has not acknowledged within 8 ms, and makes it slower. With `--full` there are a million, from a peer that
/// waits for half a second: what is looked at are the numbers.
#[test]
fn numbers_wrap() -> Result<()> {
    let all = std::env::var_os("ISTHMUS_FULL").is_some();
    let (rounds, count) = if all { (1000, 1000) } else { (50, 200) };
    let retransmit = all.then_some(Duration::from_millis(500));
    let mut lab = Lab::start_patient(1500, 1, "", Vec::new(), retransmit)?;
    let start = Instant::now();
    let mut echoed = 0;
    for _ in 0..rounds {
        echoed = echo(&mut lab, 0, &[(count, 64)], echoed)?;
    }
    let told = lab.told("node-1")?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:.0} echoes a second, {:?} datagrams; {told}",
        echoed as f64 / seconds,
        lab.wire.counts()?
    );
    ensure!(told["messages"] == echoed && told["echoed"] == echoed, "{told}");
    ensure!(told["num_frag_sends"].as_u64() >= Some(echoed as u64), "{told}");
    Ok(())
}

/// Two peers at the same time: each has back what it sent, and nothing of the other's.
#[test]
fn two_peers_at_once() -> Result<()> {
    let mut lab = Lab::start(1500, 2)?;
    let loads = [(500, 3000), (2000, 400)];
    for (peer, (count, size)) in lab.peers.iter_mut().zip(loads) {
        peer.tell(&format!("post {count} {size}"))?;
        peer.tell(&format!("recv {count} 100"))?;
    }
    for (peer, (count, size)) in loads.into_iter().enumerate() {
        let stock = &mut lab.peers[peer];
        let line =
            stock.wait("received", PATIENCE, || std::thread::sleep(Duration::from_millis(1)))?;
        let expected = format!("received {count} bad 0 bytes {} ", count * size);
        ensure!(line.starts_with(&expected), "{line}");
    }
    for (name, (count, _)) in ["node-1", "node-2"].into_iter().zip(loads) {
        let told = lab.told(name)?;
        ensure!(told["messages"] == count && told["echoed"] == count, "{told}");
    }
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// Datagrams that are lost, come twice, late, or damaged, either way: every message comes back, once and whole.
#[test]
fn a_bad_network() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    let mut all = 0;
    let rates = |loss, twice, late, damaged| Rates { loss, twice, late, damaged };
    let networks = [
        rates(1, 0, 0, 0),
        rates(10, 0, 0, 0),
        rates(50, 0, 0, 0),
        rates(0, 30, 100, 0),
        rates(0, 0, 0, 30),
        rates(20, 20, 20, 20),
    ];
    for (seed, rates) in (0..).zip(networks) {
        lab.wire.set_faults(rates, seed);
        let before = lab.wire.damaged();
        all = echo(&mut lab, 0, &[(100, 300), (100, 3000), (10, 65_536)], all)?;
        let told = lab.told("node-1")?;
        let damaged = lab.wire.damaged();
        println!(
            "{rates:?}: {} again, {} twice, {damaged:?} damaged",
            told["num_resends"], told["num_dup_recvs"]
        );
        let both_ways = damaged[0] > before[0] && damaged[1] > before[1];
        ensure!(rates.damaged == 0 || both_ways, "{damaged:?}");
    }
    let told = lab.told("node-1")?;
    ensure!(told["state"] == "open" && told["num_resends"].as_u64() > Some(0), "{told}");
    ensure!(told["malformed"] == 0, "damaged datagrams do not get as far: {told}");
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// A peer that is killed while it is echoed to, and one with another modex that takes its place; beside both
/// another peer, to which that is nothing.
#[test]
fn a_peer_that_is_killed_and_one_that_takes_its_place() -> Result<()> {
    let mut lab = Lab::start(1500, 2)?;
    echo(&mut lab, 0, &[(10, 3000)], 0)?;
    echo(&mut lab, 1, &[(10, 3000)], 0)?;
    // What is echoed from now on reaches nobody.
    lab.peers[0].tell("post 500 3000")?;
    lab.peers[0].kill()?;
    let all = echo(&mut lab, 1, &[(100, 5000)], 10)?;
    let options = stock::Options { eager_limit: Some(EAGER), ..Default::default() };
    let mut fresh = Stock::start(&options)?;
    let modex = lab.wire.join(&fresh.modex, ADDRESSES[0]);
    lab.vm.run(&format!("set usnic.0.peer.0.modex {modex}"))?.contains("in force now")?;
    let ours = modex_of(&mut lab.vm)?;
    ask(&mut fresh, &format!("peer {} 1 0", lab.wire.translated(&ours)), "peer ok")?;
    lab.peers[0] = fresh;
    lab.vm.run("usnic ping node-1")?.contains("large PING answered")?;
    echo(&mut lab, 0, &[(1, 10), (10, 5000), (2, 100_000)], 0)?;
    echo(&mut lab, 1, &[(100, 5000)], all)?;
    ensure!(lab.told("node-1")?["state"] == "open" && lab.told("node-2")?["state"] == "open");
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// Datagrams of strangers, and such as are damaged, reach no endpoint, and the operator hears of them.
#[test]
fn strangers_are_refused_and_counted() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    echo(&mut lab, 0, &[(1, 100)], 0)?;
    let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 99), 4000);
    for port in PORTS {
        lab.wire.send(stranger, port, &[0; 64]);
    }
    // From a peer's address, but none of its ports.
    lab.wire.send(SocketAddrV4::new(ADDRESSES[0], 9), PORTS[1], &[0; 64]);
    lab.wait("refusals", |lab| {
        let told = lab.vm.run("show usnic --json")?.json()?;
        Ok(told[0]["num_unk_recvs"] == 3 && told[0]["pings_ignored"] == 1)
    })?;
    let refused = lab.vm.run("show refused")?;
    refused
        .contains("unknown_sender")?
        .contains("10.9.0.99")?
        .contains("UDP port 7001 from port 4000")?;
    echo(&mut lab, 0, &[(10, 3000)], 1)?;
    // Peers come and go while it runs.
    let modex = lab.wire.join(&lab.peers[0].modex, ADDRESSES[0]);
    lab.vm.run("unset usnic.0.peer.0")?.contains("in force now")?;
    lab.vm.run("show usnic")?.lacks("node-1")?;
    let list = format!("[{{name = \"node-9\", sender = \"1.1\", modex = \"{modex}\"}}]");
    lab.vm.run(&format!("set usnic.0.peer {list}"))?.contains("in force now")?;
    lab.vm.run("usnic ping node-9")?.contains("large PING answered")?;
    lab.wire.counts()?;
    Ok(())
}

/// An engine of ours as the peer: messages of no bytes, which the stock sender cannot make, the layout of Open MPI
/// 5, and PUTs to where nobody may.
#[test]
fn messages_of_no_bytes_and_the_layout_of_version_5() -> Result<()> {
    for layout in [Layout::V4, Layout::V5] {
        let wire = Wire::new()?;
        let mut host = Host::new(1500, 65_400)?;
        let theirs = host.engine.modex(0).context("there is an interface")?;
        let modex = wire.join(&theirs, ADDRESSES[0]);
        let version = if layout == Layout::V4 { 4 } else { 5 };
        let more = format!("services = [\"echo\"]\nlayout = \"{version}\"");
        let text = document(1500, &more) + &peer_section("engine", 1, &modex);
        let mut vm = boot(spec()?.memory(256).nic(wire.nic()).config(&text))?;
        let ours = wire.translated(&modex_of(&mut vm)?);
        let config =
            EndpointConfig { layout, ..EndpointConfig::new(0, 1 << 32 | 1, 1 << 32, ours) };
        let now = host.now();
        let endpoint = host.engine.add_endpoint(&config, now)?;
        for (tag, size) in [(1, 0usize), (2, 1), (3, 1000), (4, 1447), (5, 1448), (6, 100_000)] {
            let message = pattern::message(7, size);
            let now = host.now();
            host.engine.send(endpoint, tag, &message, now)?;
            let mut came = None;
            host.run(PATIENCE, |host| {
                came = host.engine.take_message(endpoint);
                came.is_some()
            });
            let came =
                came.with_context(|| format!("{layout:?}: {size} bytes did not come back"))?;
            let mut bytes = vec![0; came.bytes.len()];
            came.bytes.read(0, &mut bytes).expect("it is as long");
            ensure!(came.tag == tag && bytes == message, "{layout:?}: {size} bytes changed");
            host.engine.release(came);
        }
        let pinged =
            host.run(PATIENCE, |host| host.engine.connectivity(endpoint) == Some((true, true)));
        ensure!(pinged, "PINGs of version {version} are not answered");
        host.engine.permit_put(endpoint, SINK, 1 << 20);
        let window = host.window(&[7; 5000]);
        let now = host.now();
        host.engine.put(endpoint, SINK, [window, drivers::hal::Window::empty()], 1, now)?;
        host.run(Duration::from_secs(1), |_| false);
        ensure!(host.engine.next_completion(endpoint).is_none(), "nothing was granted");
        let told = vm.run("show usnic --json")?.json()?;
        ensure!(told[0]["peers"][0]["puts_refused"].as_u64() > Some(0), "{told}");
        wire.counts()?;
    }
    Ok(())
}
