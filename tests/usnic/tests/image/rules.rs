//! Rules with a peer at an end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, free_port};
use usnic::InterfaceConfig;
use usnic_tests::pattern;

use super::lab::{Lab, echo};

/// An echo service.
fn serve(listener: TcpListener) -> JoinHandle<Result<()>> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut bytes = vec![0; 64 << 10];
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                count => stream.write_all(&bytes[..count])?,
            }
        }
    })
}

/// Rules relay a peer to a TCP service, and a TCP client to another peer, with lengths before messages in the streams.
#[test]
fn rules_relay_between_peers_and_tcp() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (server, clients) = (listener.local_addr()?.port(), free_port()?);
    let rules = format!(
        "[[net]]\naddress = \"10.0.2.15/24\"\n\
         [[rule]]\nname = \"in\"\nlisten = \"usnic:mpi/node-1\"\nbackend = [\"10.0.2.2:{server}\"]\n\
         max_message = \"1MiB\"\n\
         [[rule]]\nname = \"out\"\nlisten = 7000\nbackend = [\"usnic:mpi/node-2\"]\nmax_message = \"1MiB\"\n"
    );
    let nic = Nic::User { forwards: vec![("tcp", clients, 7000)] };
    let mut lab = Lab::start_with(1500, 2, &rules, vec![nic])?;
    let served = serve(listener);
    echo(&mut lab, 0, &[(1, 1), (1, 8), (100, 300), (50, 5000), (2, 1 << 20)], 0)?;
    // The client sends the pattern that the stock peer checks.
    let mut client = TcpStream::connect(("127.0.0.1", clients))?;
    let sizes = [1usize, 9, 300, 5000, 65_536, 1 << 20];
    for (number, size) in (0..).zip(sizes) {
        client.write_all(&(size as u32).to_be_bytes())?;
        client.write_all(&pattern::message(number, size))?;
    }
    let line = lab.ask(1, &format!("recv {} 60", sizes.len()), "received")?;
    ensure!(line.starts_with(&format!("received {} bad 0", sizes.len())), "{line}");
    // The peer answers.
    lab.ask(1, "send 3 2000", "sent")?;
    for number in 0..3 {
        let mut frame = vec![0; 4 + 2000];
        client.read_exact(&mut frame)?;
        ensure!(frame[..4] == 2000u32.to_be_bytes(), "{:?}", &frame[..4]);
        ensure!(pattern::check(&frame[4..]) == Some(number), "message {number} is wrong");
    }
    // One client at a time, because packets do not identify clients.
    let mut second = TcpStream::connect(("127.0.0.1", clients))?;
    ensure!(!matches!(second.read(&mut [0; 8]), Ok(1..)), "the second client was answered");
    let rules = lab.vm.run("show smc rules --json")?.json()?;
    ensure!(rules[0]["message_clients"] == 1 && rules[0]["messages_lost"] == 0, "{rules}");
    ensure!(rules[1]["refused"] == 1 && rules[1]["messages_lost"] == 0, "{rules}");
    // With the rule the service's connection ends.
    lab.vm.run("unset rule.0")?;
    let ended = served.join().expect("the service");
    println!("the service: {ended:?}, {:?} datagrams", lab.wire.counts()?);
    Ok(())
}

/// The interface of an appliance on the wire between two appliances.
fn between(host: u8) -> InterfaceConfig {
    InterfaceConfig {
        address: Ipv4Addr::new(10, 8, 0, host),
        netmask: Ipv4Addr::new(255, 255, 255, 0),
        priority_port: 7002,
        data_port: 7001,
        ping_port: 7003,
        link_speed: 10_000,
        mtu: 1500,
        isn: 100 * u16::from(host),
    }
}

/// Configuration of an appliance with the other one as peer, and a LINX link to it.
fn pair(net: u8, host: u8, other: u8) -> String {
    let ours = between(host);
    format!(
        "[[usnic]]\nname = \"pair\"\nnet = {net}\naddress = \"{}\"\ndata_port = 7001\npriority_port = 7002\n\
         ping_port = 7003\nisn = {}\nsender = \"2.{host}\"\n[[usnic.peer]]\nname = \"other\"\n\
         sender = \"2.{other}\"\nmodex = \"{}\"\n[[linx]]\nname = \"other\"\ntransport = \"tcp\"\n\
         address = \"10.8.0.{other}\"\nhosts = [\"10.8.0.0/24\"]\n",
        ours.address,
        ours.isn,
        between(other).modex()
    )
}

/// A TCP client of one appliance reaches a service behind another one over usNIC. The messages of a stock peer reach a
/// service over LINX.
#[test]
fn two_appliances_relay_messages() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let wire = |listens| Nic::Stream { path: directory.path().join("wire"), listens };
    let services = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [over_usnic, over_linx] =
        [services[0].local_addr()?.port(), services[1].local_addr()?.port()];
    let clients = free_port()?;
    let here = format!(
        "[[net]]\naddress = \"10.8.0.1/24\"\n[[net]]\naddress = \"10.0.2.15/24\"\n{}\
         [[rule]]\nname = \"usnic\"\nlisten = 7000\nbackend = [\"usnic:pair/other\"]\nmax_message = \"1MiB\"\n\
         [[rule]]\nname = \"linx\"\nlisten = \"usnic:mpi/node-1\"\nbackend = [\"linx:other/gate\"]\nsignal = 7\n\
         max_message = \"64KiB\"\n",
        pair(1, 1, 2)
    );
    let there = format!(
        "[[net]]\naddress = \"10.8.0.2/24\"\n[[net]]\naddress = \"10.0.2.15/24\"\n{}\
         [[rule]]\nname = \"usnic\"\nlisten = \"usnic:pair/other\"\nbackend = [\"10.0.2.2:{over_usnic}\"]\n\
         max_message = \"1MiB\"\n\
         [[rule]]\nname = \"linx\"\nlisten = \"linx:other/gate\"\nbackend = [\"10.0.2.2:{over_linx}\"]\nsignal = 7\n\
         max_message = \"64KiB\"\n",
        pair(0, 2, 1)
    );
    let user = |forwards| Nic::User { forwards };
    let nics = vec![wire(true), user(vec![("tcp", clients, 7000)])];
    let mut lab = Lab::start_with(1500, 1, &here, nics)?;
    let spec = spec()?.memory(512).nic(wire(false)).nic(user(Vec::new()));
    let mut other = boot(spec.config(&there))?;
    let served = services.map(serve);
    other.run("usnic ping other")?.contains("large PING answered")?;

    let mut client = TcpStream::connect(("127.0.0.1", clients))?;
    for (number, size) in (0..).zip([1usize, 9, 1440, 5000, 65_536, 1 << 20]) {
        let frame = [&(size as u32).to_be_bytes()[..], &pattern::message(number, size)].concat();
        client.write_all(&frame)?;
        let mut answer = vec![0; frame.len()];
        client.read_exact(&mut answer)?;
        ensure!(answer == frame, "the answer to {size} bytes is wrong");
    }
    echo(&mut lab, 0, &[(1, 1), (1, 8), (100, 300), (20, 5000), (5, 60_000)], 0)?;
    for vm in [&mut lab.vm, &mut other] {
        let rules = vm.run("show smc rules --json")?.json()?;
        for rule in 0..2 {
            ensure!(rules[rule]["messages_lost"] == 0, "{rules}");
        }
        // With both rules the connections to the services end.
        vm.run("unset rule.1")?;
        vm.run("unset rule.0")?;
    }
    drop(client);
    let ended = served.map(|thread| thread.join().expect("the service"));
    println!("the services: {ended:?}, {:?} datagrams", lab.wire.counts()?);
    Ok(())
}
