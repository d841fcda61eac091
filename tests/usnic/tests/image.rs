//! The image against the stock BTL: frames of a virtio interface on one side, Open MPI's sockets on the other.

#[path = "image/network.rs"]
mod network;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use serde_json::Value;
use usnic::EndpointConfig;
use usnic::wire::header::Layout;
use usnic::wire::modex::Modex;
use usnic_tests::faults::Rates;
use usnic_tests::host::Host;
use usnic_tests::pattern;
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::{APPLIANCE, PORTS, Wire};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where peers PUT, by `show usnic`.
const SINK: u64 = 1 << 40;
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 3)];
/// Bytes that `btlpeer` sends as one message.
const EAGER: usize = 16 << 20;

/// An appliance with an endpoint, and stock peers on its wire.
struct Lab {
    vm: Vm,
    wire: Wire,
    peers: Vec<Stock>,
}

/// What the appliance is configured with, but for its peers.
fn document(mtu: u16, more: &str) -> String {
    let [priority, data, ping] = PORTS;
    format!(
        "[[net]]\naddress = \"{APPLIANCE}/24\"\nmtu = {mtu}\n[[volume]]\nname = \"v\"\nsize = \"1MiB\"\n\
         [[usnic]]\nname = \"mpi\"\nnet = 0\naddress = \"{APPLIANCE}\"\ndata_port = {data}\n\
         priority_port = {priority}\nping_port = {ping}\nisn = 65500\nsender = \"1.0\"\nlink_speed = 10000\n\
         hosts = [\"10.9.0.0/24\"]\n{more}\n"
    )
}

fn peer_section(name: &str, rank: u32, modex: &Modex) -> String {
    format!("[[usnic.peer]]\nname = \"{name}\"\nsender = \"1.{rank}\"\nmodex = \"{modex}\"\n")
}

/// The modex that `show usnic` prints for peers.
fn modex_of(vm: &mut Vm) -> Result<Modex> {
    let reply = vm.run("show usnic")?;
    let line = reply.text.lines().find_map(|line| line.split_once("modex ").map(|(_, hex)| hex));
    Ok(line.context("`show usnic` has no modex")?.trim().parse()?)
}

impl Lab {
    fn start(mtu: u16, peers: u32) -> Result<Lab> {
        Lab::start_with(mtu, peers, "", None)
    }

    /// As [`Lab::start`], with more in the document, and another interface.
    fn start_with(mtu: u16, peers: u32, more: &str, nic: Option<Nic>) -> Result<Lab> {
        let wire = Wire::new()?;
        let mut text = document(mtu, "services = [\"echo\", \"put-sink\"]\ntag = 65");
        let mut all = Vec::new();
        for (rank, address) in (1..=peers).zip(ADDRESSES) {
            let options =
                stock::Options { rank, mtu, eager_limit: Some(EAGER), ..Default::default() };
            let stock = Stock::start(&options)?;
            let modex = wire.join(&stock.modex, address);
            text += &peer_section(&format!("node-{rank}"), rank, &modex);
            all.push(stock);
        }
        text += more;
        let mut spec = spec()?.memory(512).nic(wire.nic());
        if let Some(nic) = nic {
            spec = spec.nic(nic);
        }
        let mut vm = boot(spec.config(&text))?;
        let ours = modex_of(&mut vm)?;
        ensure!((ours.isn, ours.max_message) == (65_500, Modex::max_message_of(mtu)), "{ours:?}");
        let ours = wire.translated(&ours);
        for stock in &mut all {
            ask(stock, &format!("peer {ours} 1 0"), "peer ok")?;
        }
        Ok(Lab { vm, wire, peers: all })
    }

    fn ask(&mut self, peer: usize, order: &str, answer: &str) -> Result<String> {
        let line = ask(&mut self.peers[peer], order, answer);
        line.with_context(|| self.vm.run("show usnic --json").map(|r| r.text).unwrap_or_default())
    }

    /// What `show usnic` tells of a peer.
    fn told(&mut self, peer: &str) -> Result<Value> {
        let told = self.vm.run("show usnic --json")?.json()?;
        let peers = told[0]["peers"].as_array().context("peers")?;
        let found = peers.iter().find(|one| one["name"] == peer);
        Ok(found.with_context(|| format!("no {peer} in {told}"))?.clone())
    }

    fn wait(&mut self, what: &str, mut done: impl FnMut(&mut Lab) -> Result<bool>) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            let told = self.vm.run("show usnic --json")?.text;
            ensure!(Instant::now() < end, "waited in vain: {what}; {told}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn ask(stock: &mut Stock, order: &str, answer: &str) -> Result<String> {
    stock.tell(order)?;
    let line = stock.wait(answer, PATIENCE, || std::thread::sleep(Duration::from_millis(1)));
    line.with_context(|| format!("after {order:?}"))
}

/// Sends messages of these lengths, and has every byte of what comes back checked by the stock peer.
fn echo(lab: &mut Lab, peer: usize, sizes: &[(usize, usize)], before: usize) -> Result<usize> {
    let mut all = before;
    for (count, size) in sizes {
        let line = lab.ask(peer, &format!("send {count} {size}"), "sent")?;
        if !line.contains(&format!("done {count} acknowledged 1")) {
            let mut said = String::new();
            for _ in 0..2 {
                for report in ["show interfaces --json", "show usnic --json"] {
                    said += &lab.vm.run(report)?.text;
                }
            }
            bail!("{line}\n{said}\n{:?} datagrams", lab.wire.counts()?);
        }
        all += count;
        let line = lab.ask(peer, &format!("recv {all} 60"), "received")?;
        ensure!(line.starts_with(&format!("received {all} bad 0")), "{size} bytes: {line}");
    }
    Ok(all)
}

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

/// Datagrams that are lost, come twice, or late, either way.
#[test]
fn a_bad_network() -> Result<()> {
    let mut lab = Lab::start(1500, 1)?;
    let mut all = 0;
    let rates = |loss, twice, late| Rates { loss, twice, late };
    for (seed, rates) in (0..).zip([rates(10, 0, 0), rates(50, 0, 0), rates(20, 20, 20)]) {
        lab.wire.set_faults(rates, seed);
        all = echo(&mut lab, 0, &[(100, 300), (100, 3000), (10, 65_536)], all)?;
        let told = lab.told("node-1")?;
        println!("{rates:?}: {} again, {} twice", told["num_resends"], told["num_dup_recvs"]);
    }
    let told = lab.told("node-1")?;
    ensure!(told["state"] == "open" && told["num_resends"].as_u64() > Some(0), "{told}");
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

/// A peer talks to a TCP service, and a TCP client to another peer, by rules: lengths before messages in the streams.
#[test]
fn rules_join_peers_and_tcp() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (server, clients) = (listener.local_addr()?.port(), free_port()?);
    let rules = format!(
        "[[net]]\naddress = \"10.0.2.15/24\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"usnic:mpi/node-1\"\nbackend = [\"10.0.2.2:{server}\"]\n\
         max_message = \"1MiB\"\n\
         [[rule]]\nname = \"out\"\nlisten = 7000\nbackend = [\"usnic:mpi/node-2\"]\nmax_message = \"1MiB\"\n"
    );
    let nic = Nic::User { forwards: vec![("tcp", clients, 7000)] };
    let mut lab = Lab::start_with(1500, 2, &rules, Some(nic))?;
    // The service sends back what comes.
    let served = std::thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut bytes = vec![0; 64 << 10];
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                count => stream.write_all(&bytes[..count])?,
            }
        }
    });
    echo(&mut lab, 0, &[(1, 1), (1, 8), (100, 300), (50, 5000), (2, 1 << 20)], 0)?;
    // The client sends what the stock peer checks.
    let mut client = TcpStream::connect(("127.0.0.1", clients))?;
    let sizes = [1usize, 9, 300, 5000, 65_536, 1 << 20];
    for (number, size) in (0..).zip(sizes) {
        client.write_all(&(size as u32).to_be_bytes())?;
        client.write_all(&pattern::message(number, size))?;
    }
    let line = lab.ask(1, &format!("recv {} 60", sizes.len()), "received")?;
    ensure!(line.starts_with(&format!("received {} bad 0", sizes.len())), "{line}");
    // And it answers.
    lab.ask(1, "send 3 2000", "sent")?;
    for number in 0..3 {
        let mut frame = vec![0; 4 + 2000];
        client.read_exact(&mut frame)?;
        ensure!(frame[..4] == 2000u32.to_be_bytes(), "{:?}", &frame[..4]);
        ensure!(pattern::check(&frame[4..]) == Some(number), "message {number} is another one");
    }
    // One client at a time: there is nothing on the wire that would tell them apart.
    let mut second = TcpStream::connect(("127.0.0.1", clients))?;
    ensure!(!matches!(second.read(&mut [0; 8]), Ok(1..)), "it was answered");
    let rules = lab.vm.run("show smc rules --json")?.json()?;
    ensure!(rules[0]["message_clients"] == 1 && rules[0]["messages_lost"] == 0, "{rules}");
    ensure!(rules[1]["refused"] == 1 && rules[1]["messages_lost"] == 0, "{rules}");
    // The rule ends, and so does the service's connection.
    lab.vm.run("unset rule.0")?;
    let ended = served.join().expect("the service");
    println!("the service: {ended:?}, {:?} datagrams", lab.wire.counts()?);
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
