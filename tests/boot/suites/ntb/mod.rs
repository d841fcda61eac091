//! Two appliances that share memory as over a bridge, or use TCP instead. One exports a volume, the other maps it, and
//! either is killed and restarted.
mod hostile;
mod life;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, spec};
use launch::guest::Wire;
use launch::http;
use launch::ntb::machine::Machine;
use launch::qemu::ivshmem::{Server, SharedMemory};
use launch::qemu::{Nic, Spec, Vm, free_port};

/// MiB of shared memory.
const SHARED: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// The connection of the machines.
enum Bridge {
    Memory(SharedMemory),
    Doorbells(Server),
    /// A cable, and further settings for TCP.
    Tcp(Wire, &'static str),
}

impl Bridge {
    fn memory() -> Result<Bridge> {
        Ok(Bridge::Memory(SharedMemory::new(SHARED)?))
    }

    fn doorbells() -> Result<Bridge> {
        Ok(Bridge::Doorbells(SharedMemory::new(SHARED)?.serve()?))
    }

    fn tcp() -> Result<Bridge> {
        Ok(Bridge::Tcp(Wire::new()?, "isthmus.ntb.0.memory=8MiB"))
    }

    /// The doorbell in `show ntb`.
    fn doorbell(&self) -> &'static str {
        match self {
            Bridge::Memory(_) => "polled",
            Bridge::Doorbells(_) => "interrupts",
            Bridge::Tcp(..) => "tcp",
        }
    }

    /// A machine on side 0 or 1, which is 10.9.0.1 or 10.9.0.2. With doorbells the device knows its side.
    fn machine(&self, side: u8, words: &str) -> Result<Spec> {
        let (own, peer) = (side + 1, 2 - side);
        let ends = format!("isthmus.ntb.0.address=10.9.0.{own} isthmus.ntb.0.peer=10.9.0.{peer}");
        let spec = spec()?.append(&ends).append(words);
        Ok(match self {
            Bridge::Memory(memory) => {
                spec.append(&format!("isthmus.ntb.0.side={side}")).extra(memory.plain())
            }
            Bridge::Doorbells(server) => spec.extra(server.doorbell()),
            Bridge::Tcp(wire, words) => {
                let (first, second) = wire.datagrams();
                let nic = if side == 0 { first } else { second };
                let ends = format!(
                    "isthmus.net.0.address=10.0.0.{own}/24 isthmus.ntb.0.tcp=10.0.0.{peer} \
                     isthmus.ntb.0.listen={}",
                    side == 0
                );
                spec.append(&ends).append(words).nic(nic).first_mac(own)
            }
        })
    }

    /// The machine that exports 16 MiB.
    fn serving(&self) -> Result<Spec> {
        self.machine(0, "isthmus.volume.0.size=16MiB isthmus.rnbd.queue_depth=64")
    }

    fn server(&self) -> Result<Vm> {
        boot(self.serving()?)
    }

    fn client(&self) -> Result<Vm> {
        boot(self.mapping()?)
    }

    /// The machine that maps it as `far`, beside an equal volume of its own.
    fn mapping(&self) -> Result<Spec> {
        let words = "isthmus.volume.0.name=near isthmus.volume.0.size=16MiB \
                     isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
                     isthmus.remote.0.device_path=ram0 \
                     isthmus.remote.0.path=ip:10.9.0.2@ip:10.9.0.1";
        self.machine(1, words)
    }
}

/// Repeats a command until its reply contains `wanted`.
fn wait_for(vm: &mut Vm, line: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = vm.run(line)?;
        if reply.text.contains(wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let log = vm.run("show log")?.text;
            bail!("`{line}`: no {wanted:?} in the reply:\n{}\n{log}", reply.text);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A value of `show ntb`.
fn ntb(vm: &mut Vm, key: &str) -> Result<serde_json::Value> {
    let shown = vm.run("show ntb --json")?.json()?;
    Ok(shown[0][key].clone())
}

/// Waits until an entry from the other machine arrives.
fn wait_traffic(vm: &mut Vm) -> Result<()> {
    let before = ntb(vm, "entries_received")?;
    let deadline = Instant::now() + PATIENCE;
    while ntb(vm, "entries_received")? == before {
        ensure!(Instant::now() < deadline, "there is no traffic");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Queue pairs, free queue pairs, connections, and free memory.
fn resources(vm: &mut Vm) -> Result<(u64, u64, u64, u64)> {
    let count = |value: serde_json::Value| value.as_u64().context("no count");
    let free = vm.run("show memory --json")?.json()?["arena_free"].clone();
    let pairs = count(ntb(vm, "queue_pairs")?)?;
    let free_pairs = count(ntb(vm, "queue_pairs_free")?)?;
    Ok((pairs, free_pairs, count(ntb(vm, "connections")?)?, count(free)?))
}

/// Waits until a machine has these resources again.
fn wait_for_resources(vm: &mut Vm, wanted: (u64, u64, u64, u64)) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = resources(vm)?;
        if now == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "resources {now:?}, before {wanted:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// qperf's tests, in the order of `ntb measure`.
const MEASURED: [&str; 6] = [
    "rc_bw",
    "rc_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
];

/// Runs `ntb measure`: each test has a result on the console and in reports, and all memory is freed.
fn measures(vm: &mut Vm, peer: &mut Vm) -> Result<()> {
    let before = (resources(vm)?, resources(peer)?);
    let reply = vm.run("ntb measure")?;
    MEASURED.iter().try_for_each(|name| reply.contains(name).map(drop))?;
    let shown = ntb(vm, "measured")?;
    for (n, name) in MEASURED.iter().enumerate() {
        let key = if name.ends_with("bw") { "bytes_per_second" } else { "nanoseconds" };
        let figure = shown[n][key].as_u64().unwrap_or(0);
        ensure!(shown[n]["test"] == *name && figure > 1000, "{shown}");
    }
    println!("{}", reply.text);
    wait_for_resources(vm, before.0)?;
    wait_for_resources(peer, before.1)
}

fn wait_open(client: &mut Vm) -> Result<()> {
    wait_for(client, "remote list csv", "far,gw,ram0,open,")
}

/// Reads the volume, and then writes all of it: a mirror makes it a copy of the client's own volume.
fn a_volume_is_used(bridge: &Bridge) -> Result<()> {
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    client.run("remote read far count=2000 size=4KiB depth=32")?.contains("2000 reads of 4096")?;
    client.run("remote read far count=100 size=512KiB depth=4")?.contains("100 reads of 524288")?;
    client.run("mirror create both near far force")?.contains("in force now")?;
    wait_for(&mut client, "mirror list json", r#""name":"far","state":"in sync""#)?;
    client.run("remote read both count=500 size=4KiB depth=8")?.contains("500 reads of 4096")?;
    for vm in [&mut server, &mut client] {
        for (key, wanted) in [("link", "up"), ("doorbell", bridge.doorbell())] {
            let is = ntb(vm, key)?;
            ensure!(is == wanted, "{key} is {is}");
        }
        for key in ["violations", "qp_errors", "link_down"] {
            let count = ntb(vm, key)?;
            ensure!(count == 0, "{key}: {count}");
        }
        let interrupts = ntb(vm, "interrupts")?.as_u64().unwrap_or(0);
        let rings = matches!(bridge, Bridge::Doorbells(_));
        ensure!((interrupts > 0) == rings, "{interrupts} interrupts");
    }
    let written = ntb(&mut client, "bytes_staged")?.as_u64().unwrap_or(0);
    ensure!(written > 15 << 20, "{written} bytes went over the bridge");
    server.run("show ntb")?.contains("10.9.0.2")?;
    server.run("cat /ntb")?.contains("10.9.0.2")?;
    measures(&mut client, &mut server)
}

#[test]
fn a_volume_is_used_over_shared_memory_alone() -> Result<()> {
    a_volume_is_used(&Bridge::memory()?)
}

#[test]
fn a_volume_is_used_with_doorbells() -> Result<()> {
    a_volume_is_used(&Bridge::doorbells()?)
}

#[test]
fn a_volume_is_used_over_tcp() -> Result<()> {
    a_volume_is_used(&Bridge::tcp()?)
}

/// Kills each machine under load, repeatedly. The link and the session recover, requests continue, and no resources
/// leak.
fn session_recovers_from_a_kill_of_either_machine(bridge: &Bridge, rounds: u64) -> Result<()> {
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 50 } else { rounds };
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    let (mut at_client, mut at_server) = (resources(&mut client)?, resources(&mut server)?);
    for round in 0..rounds {
        let moment = Duration::from_millis(37 * round % 400);
        let case = |what: &str| format!("round {round}: {what}");

        client.serial.send(b"remote read far count=20000 size=4KiB depth=16\r")?;
        std::thread::sleep(moment);
        server.kill();
        server = bridge.server()?;
        let read = client.wait_for("reads of 4096 bytes in");
        read.with_context(|| case("the client does not recover"))?;
        client.wait_ready()?;
        wait_open(&mut client)?;
        let now = resources(&mut client)?;
        ensure!(now == at_client, "{}: {now:?}, before {at_client:?}", case("the client"));
        at_server = if round == 0 { resources(&mut server)? } else { at_server };

        client.serial.send(b"remote read far count=100000 size=4KiB depth=16\r")?;
        std::thread::sleep(moment);
        client.kill();
        client = bridge.client()?;
        wait_open(&mut client).with_context(|| case("after the client was killed"))?;
        // The old session ends with the link, or when its heartbeats are missing.
        wait_for_resources(&mut server, at_server).with_context(|| case("the server"))?;
        at_client = resources(&mut client)?;
    }
    for vm in [&mut server, &mut client] {
        let wrong = ntb(vm, "violations")?;
        ensure!(wrong == 0, "{wrong} violations");
    }
    Ok(())
}

#[test]
fn session_recovers_from_a_kill_of_either_machine_with_doorbells() -> Result<()> {
    session_recovers_from_a_kill_of_either_machine(&Bridge::doorbells()?, 2)
}

#[test]
fn session_recovers_from_a_kill_of_either_machine_over_tcp() -> Result<()> {
    session_recovers_from_a_kill_of_either_machine(&Bridge::tcp()?, 1)
}

/// Ping, and HTTP from outside: through a rule of the first machine, over the bridge, to the second.
#[test]
fn an_interface_over_the_bridge_carries_ping_and_http() -> Result<()> {
    let bridge = Bridge::doorbells()?;
    let port = free_port()?;
    // net0 has no default gateway, because the first interface with one is used for all other destinations.
    let words = "isthmus.net.0.address=10.0.2.15/24 \
                 isthmus.ntb.0.mtu=65500 isthmus.net.1.address=10.8.0.1/24 \
                 isthmus.rule.0.name=web isthmus.rule.0.listen=8080 \
                 isthmus.rule.0.backend=10.8.0.2:80";
    let forwards = vec![("tcp", port, 8080)];
    let mut first = boot(bridge.machine(0, words)?.nic(Nic::User { forwards }))?;
    let words = "isthmus.ntb.0.mtu=65500 isthmus.net.0.address=10.8.0.2/24";
    let mut second = boot(bridge.machine(1, words)?)?;
    wait_for(&mut first, "ping 10.8.0.2 3", "3 of 3 answered")?;
    second.run("ping 10.8.0.1 20")?.contains("20 of 20 answered")?;
    let server = (std::net::Ipv4Addr::LOCALHOST, port).into();
    for _ in 0..20 {
        let answer = http::get(server, "/status")?;
        ensure!(answer.status == 200 && answer.body.contains("10.8.0.2/24"), "{}", answer.body);
    }
    for vm in [&mut first, &mut second] {
        let frames = ntb(vm, "frames_received")?.as_u64().unwrap_or(0);
        ensure!(frames > 50, "{frames} frames");
        let violations = ntb(vm, "violations")?;
        ensure!(violations == 0, "{violations} violations");
    }
    second.run("ntb measure")?.contains("rc_rdma_read_lat")?;
    let answer = http::get(server, "/api/ntb")?;
    ensure!(answer.body.contains("rc_rdma_write_lat"), "{}", answer.body);
    // The other machine is killed, and booted again.
    first.run("ntb measure 0")?.contains("error: accepted")?;
    first.serial.send(b"ntb measure 60\r")?;
    wait_traffic(&mut second)?;
    second.kill();
    first.wait_for("error: rc_bw: the connection was lost")?;
    first.wait_ready()?;
    first.run("ntb measure")?.contains("error: rc_bw: the link is not up")?;
    first.run("ntb reset")?.contains("error: the link is not up")?;
    wait_for(&mut first, "show ntb", "waits for the peer")?;
    let _second = boot(bridge.machine(1, words)?)?;
    wait_for(&mut first, "ping 10.8.0.2 3", "3 of 3 answered")
}

#[test]
fn two_machines_on_one_side_are_reported() -> Result<()> {
    let bridge = Bridge::memory()?;
    let mut first = boot(bridge.machine(0, "")?)?;
    let _second = boot(bridge.machine(0, "")?)?;
    wait_for(&mut first, "show log", "the other machine has the same side")?;
    let mut third = boot(bridge.machine(0, "")?.append("isthmus.ntb.0.side="))?;
    third.run("show log")?.contains("set `side` to 0 on one")?;
    Ok(())
}

/// Boots an appliance that waits for `peer` to connect over TCP. Returns it with the host port of the bridge.
/// Connections through that port come from 10.0.2.2, which is QEMU's address.
fn listener(peer: &str) -> Result<(Vm, u16)> {
    let port = free_port()?;
    let words = "isthmus.net.0.address=10.0.2.15/24 isthmus.ntb.0.listen=true \
                 isthmus.ntb.0.memory=1MiB isthmus.ntb.0.address=10.9.0.1 isthmus.ntb.0.peer=10.9.0.2";
    let forwards = vec![("tcp", port, 7471)];
    let spec = spec()?.append(words).append(&format!("isthmus.ntb.0.tcp={peer}"));
    Ok((boot(spec.nic(Nic::User { forwards }))?, port))
}

/// Waits until the appliance closes a connection.
fn ends(mut connection: TcpStream) -> Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = [0; 64];
    loop {
        match connection.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error).context("the connection is not closed"),
            Ok(_) => (),
        }
    }
}

/// The engine of `./isthmus ntb` connects, maps a volume and reads.
#[test]
fn host_program_works_as_the_other_machine() -> Result<()> {
    let (mut vm, port) = listener("10.0.2.2")?;
    let ends = ["10.9.0.2", "10.9.0.1"].map(|address| address.parse().expect("an address"));
    let at = (Ipv4Addr::LOCALHOST, port).into();
    let mut machine = Machine::connect(at, ends, 1 << 20)?;
    let deadline = Instant::now() + PATIENCE;
    while !machine.is_up() {
        ensure!(Instant::now() < deadline, "the link does not come up");
        machine.turn()?;
    }
    machine.map("ram0")?;
    while machine.size() == 0 {
        ensure!(Instant::now() < deadline, "the volume is not opened");
        machine.turn()?;
    }
    machine.read(4096, 32, 2000)?;
    machine.read(256 << 10, 4, 100)?;
    for key in ["violations", "qp_errors", "link_down"] {
        let count = ntb(&mut vm, key)?;
        ensure!(count == 0, "{key}: {count}");
    }
    drop(machine);
    wait_for(&mut vm, "show ntb", "waits for the peer")
}

#[test]
fn only_the_configured_peer_connects_over_tcp() -> Result<()> {
    let (mut vm, port) = listener("10.0.2.9")?;
    ends(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
    let message = "of 10.0.2.2: only the host in its `tcp`, 10.0.2.9, may connect";
    wait_for(&mut vm, "show log", message)?;
    vm.run("show refused")?.contains("ntb0 over TCP")?;
    wait_for(&mut vm, "show ntb", "waits for the peer")
}

#[test]
fn invalid_peer_over_tcp_is_disconnected_and_reported() -> Result<()> {
    let (mut vm, port) = listener("10.0.2.2")?;
    let greeting = |version: u32, size: u64| {
        [&b"iNTB"[..], &version.to_le_bytes(), &size.to_le_bytes()].concat()
    };
    let record = |words: [u32; 3]| words.map(u32::to_le_bytes).concat();
    let good = greeting(1, 1 << 20);
    let cases = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "is not the bridge of an appliance"),
        (greeting(7, 1 << 20), "speaks version 7"),
        (greeting(1, 8 << 20), "set the same `memory` on both"),
        ([good.clone(), record([9, 0, 0])].concat(), "unknown kind 9"),
        ([good.clone(), record([1, 0xffff0, 17])].concat(), "wrote to 0xffff0"),
        ([good.clone(), record([1, 0, u32::MAX])].concat(), "wrote to 0x0"),
    ];
    let count = cases.len();
    for (bytes, message) in cases {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        connection.write_all(&bytes)?;
        ends(connection).context(message)?;
        wait_for(&mut vm, "show log", message)?;
    }
    let violations = ntb(&mut vm, "violations")?;
    ensure!(violations == count, "{violations} violations");
    // A connection that stops after half a record, and a second one that replaces it.
    let mut first = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    first.write_all(&[good.clone(), record([1, 0, 100]), vec![1; 50]].concat())?;
    wait_for(&mut vm, "show ntb", " connected")?;
    let mut second = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    ends(first).context("the first connection")?;
    second.write_all(&good)?;
    wait_for(&mut vm, "show ntb", " connected")?;
    vm.run("show memory")?.contains("arena")?;
    Ok(())
}
