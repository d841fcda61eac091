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

/// Small and large PINGs in both directions, and by a console command.
#[test]
fn pings_are_answered_both_ways() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut lab = Lab::start(mtu, 1)?;
        lab.vm
            .run("usnic ping node-1")?
            .contains("small PING answered")?
            .contains("large PING answered")?;
        echo(&mut lab, 0, &[(1, 100)], 0)?;
        // The stock BTL sends PINGs with its first ACK, and would end after ten seconds without answers.
        lab.wait("PINGs of the peer", |lab| {
            let status = lab.vm.run("show usnic --json")?.json()?;
            Ok(status[0]["pings_answered"].as_u64() >= Some(2))
        })?;
        ensure!(lab.peer_status("node-1")?["pings"] == "answered");
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
        let status = lab.peer_status("node-1")?;
        ensure!(status["messages"] == all && status["echoed"] == all, "{status}");
        println!("MTU {mtu}: {:?} datagrams, {status}", lab.wire.counts()?);
        let metrics = lab.vm.run("cat usnic")?;
        metrics.contains("node-1")?;
    }
    Ok(())
}

/// PUTs arrive in granted memory, verified by CRC.
#[test]
fn puts_arrive_in_granted_memory() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    let status = lab.peer_status("node-1")?;
    ensure!(status["put_sink"] == format!("{SINK:#x}, {} bytes", 1 << 20), "{status}");
    for (seed, offset, size) in [(5u32, 0u64, 9500usize), (6, 100_001, 250_000), (7, 0, 1 << 20)] {
        lab.ask(0, &format!("put {} {size} {seed}", SINK + offset), "put")?;
        let crc = crc32fast::hash(&pattern::put(seed, size));
        let looked = lab.vm.run(&format!("usnic look node-1 {offset} {size}"))?;
        looked.contains(&format!("crc32 {crc:08x} of {size} bytes"))?;
    }
    let status = lab.peer_status("node-1")?;
    ensure!(status["puts_refused"] == 0 && status["puts_received"].as_u64() >= Some(3), "{status}");
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// The appliance PUTs a peer's data back to addresses of the peer.
#[test]
fn puts_to_the_stock_peer_arrive() -> Result<()> {
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
        // From and to the middle, in one packet. Memory around it does not change.
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

/// Enough packets in each direction that the sequence numbers of both wrap. Few at a time, because the stock sender
/// retransmits everything that a slow machine has not acknowledged within 8 ms, which makes the machine slower. With
/// `--full` there are a million packets, from a peer with a timeout of half a second.
#[test]
fn sequence_numbers_wrap() -> Result<()> {
    let all = std::env::var_os("ISTHMUS_FULL").is_some();
    let (rounds, count) = if all { (1000, 1000) } else { (50, 200) };
    let retransmit = all.then_some(Duration::from_millis(500));
    let mut lab = Lab::start_patient(1500, 1, "", Vec::new(), retransmit)?;
    let start = Instant::now();
    let mut echoed = 0;
    for _ in 0..rounds {
        echoed = echo(&mut lab, 0, &[(count, 64)], echoed)?;
    }
    let status = lab.peer_status("node-1")?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:.0} echoes a second, {:?} datagrams; {status}",
        echoed as f64 / seconds,
        lab.wire.counts()?
    );
    ensure!(status["messages"] == echoed && status["echoed"] == echoed, "{status}");
    ensure!(status["num_frag_sends"].as_u64() >= Some(echoed as u64), "{status}");
    Ok(())
}

/// Two peers at the same time: each receives only echoes of its own messages.
#[test]
fn two_peers_work_at_once() -> Result<()> {
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
        let status = lab.peer_status(name)?;
        ensure!(status["messages"] == count && status["echoed"] == count, "{status}");
    }
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// Lost, duplicated, late or damaged datagrams in both directions: every message comes back exactly once, and correct.
#[test]
fn messages_survive_a_bad_network() -> Result<()> {
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
        let status = lab.peer_status("node-1")?;
        let damaged = lab.wire.damaged();
        println!(
            "{rates:?}: {} again, {} twice, {damaged:?} damaged",
            status["num_resends"], status["num_dup_recvs"]
        );
        let both_ways = damaged[0] > before[0] && damaged[1] > before[1];
        ensure!(rates.damaged == 0 || both_ways, "{damaged:?}");
    }
    let status = lab.peer_status("node-1")?;
    ensure!(status["state"] == "open" && status["num_resends"].as_u64() > Some(0), "{status}");
    ensure!(status["malformed"] == 0, "damaged datagrams do not reach the engine: {status}");
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// A peer is killed during echoes, and another one with a new modex replaces it. A third peer is not affected.
#[test]
fn killed_peer_is_replaced_by_a_new_one() -> Result<()> {
    let mut lab = Lab::start(1500, 2)?;
    echo(&mut lab, 0, &[(10, 3000)], 0)?;
    echo(&mut lab, 1, &[(10, 3000)], 0)?;
    // Echoes from now on reach no peer.
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
    ensure!(
        lab.peer_status("node-1")?["state"] == "open"
            && lab.peer_status("node-2")?["state"] == "open"
    );
    println!("{:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// Datagrams of unknown peers and malformed ones reach no endpoint, and the appliance reports them.
#[test]
fn unknown_peers_are_refused_and_counted() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    echo(&mut lab, 0, &[(1, 100)], 0)?;
    let stranger = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 99), 4000);
    for port in PORTS {
        lab.wire.send(stranger, port, &[0; 64]);
    }
    // From a peer's address, but from none of its ports.
    lab.wire.send(SocketAddrV4::new(ADDRESSES[0], 9), PORTS[1], &[0; 64]);
    lab.wait("refusals", |lab| {
        let status = lab.vm.run("show usnic --json")?.json()?;
        Ok(status[0]["num_unk_recvs"] == 3 && status[0]["pings_ignored"] == 1)
    })?;
    let refused = lab.vm.run("show refused")?;
    refused
        .contains("unknown_sender")?
        .contains("10.9.0.99")?
        .contains("UDP port 7001 from port 4000")?;
    echo(&mut lab, 0, &[(10, 3000)], 1)?;
    // Peers are removed and added at run time.
    let modex = lab.wire.join(&lab.peers[0].modex, ADDRESSES[0]);
    lab.vm.run("unset usnic.0.peer.0")?.contains("in force now")?;
    lab.vm.run("show usnic")?.lacks("node-1")?;
    let list = format!("[{{name = \"node-9\", sender = \"1.1\", modex = \"{modex}\"}}]");
    lab.vm.run(&format!("set usnic.0.peer {list}"))?.contains("in force now")?;
    lab.vm.run("usnic ping node-9")?.contains("large PING answered")?;
    lab.wire.counts()?;
    Ok(())
}

/// With this project's engine as the peer: empty messages, which the stock sender cannot send, the layout of Open MPI
/// 5, and PUTs to memory that was not granted.
#[test]
fn empty_messages_and_the_layout_of_version_5_work() -> Result<()> {
    for layout in [Layout::V4, Layout::V5] {
        let wire = Wire::new()?;
        let mut host = Host::new(1500, 65_400)?;
        let theirs = host.engine.modex(0).context("the engine has no interface")?;
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
            came.bytes.read(0, &mut bytes).expect("the lengths are equal");
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
        ensure!(
            host.engine.next_completion(endpoint).is_none(),
            "a PUT to memory that was not granted completed"
        );
        let status = vm.run("show usnic --json")?.json()?;
        ensure!(status[0]["peers"][0]["puts_refused"].as_u64() > Some(0), "{status}");
        wire.counts()?;
    }
    Ok(())
}
