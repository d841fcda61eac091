//! Two appliances that share memory, as if a bridge joined them: one exports a volume, the other maps
//! it, and either is killed and started anew. Neither has a network.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, spec};
use launch::http;
use launch::qemu::ivshmem::{Server, SharedMemory};
use launch::qemu::{Nic, Spec, Vm, free_port};

/// MiB of memory that the two share.
const SHARED: u32 = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// What joins the machines.
struct Bridge {
    memory: SharedMemory,
    /// With doorbells.
    server: Option<Server>,
}

impl Bridge {
    fn new(doorbells: bool) -> Result<Bridge> {
        let memory = SharedMemory::new(SHARED)?;
        let server = doorbells.then(|| memory.serve()).transpose()?;
        Ok(Bridge { memory, server })
    }

    /// A machine on side 0 or 1, which is 10.9.0.1 or 10.9.0.2. Doorbells tell the sides by themselves.
    fn machine(&self, side: u8, words: &str) -> Result<Spec> {
        let (own, peer) = (side + 1, 2 - side);
        let ends = format!("isthmus.ntb.0.address=10.9.0.{own} isthmus.ntb.0.peer=10.9.0.{peer}");
        let spec = spec()?.append(&ends).append(words);
        Ok(match &self.server {
            None => spec.append(&format!("isthmus.ntb.0.side={side}")).extra(self.memory.plain()),
            Some(server) => spec.extra(server.doorbell()),
        })
    }

    /// The one that exports 16 MiB.
    fn server(&self) -> Result<Vm> {
        boot(self.machine(0, "isthmus.volume.0.size=16MiB isthmus.rnbd.queue_depth=64")?)
    }

    /// The one that maps it as `far`, beside as much of its own.
    fn client(&self) -> Result<Vm> {
        let words = "isthmus.volume.0.name=near isthmus.volume.0.size=16MiB \
                     isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
                     isthmus.remote.0.device_path=ram0 \
                     isthmus.remote.0.path=ip:10.9.0.2@ip:10.9.0.1";
        boot(self.machine(1, words)?)
    }
}

/// Runs a command until its answer contains `wanted`.
fn wait_for(vm: &mut Vm, line: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = vm.run(line)?;
        if reply.text.contains(wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let log = vm.run("show log")?.text;
            bail!("`{line}` does not come to say {wanted:?}, but:\n{}\n{log}", reply.text);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What `show ntb` says.
fn ntb(vm: &mut Vm, key: &str) -> Result<serde_json::Value> {
    let shown = vm.run("show ntb --json")?.json()?;
    Ok(shown[0][key].clone())
}

fn wait_open(client: &mut Vm) -> Result<()> {
    wait_for(client, "remote list csv", "far,gw,ram0,open,")
}

/// Reads, and then writes all of it: a mirror makes it a copy of the volume beside it.
fn a_volume_is_used(doorbells: bool) -> Result<()> {
    let bridge = Bridge::new(doorbells)?;
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    client.run("remote read far count=2000 size=4KiB depth=32")?.contains("2000 reads of 4096")?;
    client.run("remote read far count=100 size=512KiB depth=4")?.contains("100 reads of 524288")?;
    client.run("mirror create both near far force")?.contains("in force now")?;
    wait_for(&mut client, "mirror list json", r#""name":"far","state":"in sync""#)?;
    client.run("remote read both count=500 size=4KiB depth=8")?.contains("500 reads of 4096")?;
    for vm in [&mut server, &mut client] {
        for (key, wanted) in
            [("link", "up"), ("doorbell", ["polled", "interrupts"][usize::from(doorbells)])]
        {
            let is = ntb(vm, key)?;
            ensure!(is == wanted, "{key} is {is}");
        }
        for key in ["violations", "qp_errors", "link_down"] {
            let count = ntb(vm, key)?;
            ensure!(count == 0, "{key}: {count}");
        }
        let interrupts = ntb(vm, "interrupts")?.as_u64().unwrap_or(0);
        ensure!((interrupts > 0) == doorbells, "{interrupts} interrupts");
    }
    let written = ntb(&mut client, "bytes_staged")?.as_u64().unwrap_or(0);
    ensure!(written > 15 << 20, "{written} bytes went over the bridge");
    server.run("show ntb")?.contains("10.9.0.2")?;
    server.run("cat /ntb")?.contains("10.9.0.2")?;
    Ok(())
}

#[test]
fn a_volume_is_used_over_shared_memory_alone() -> Result<()> {
    a_volume_is_used(false)
}

#[test]
fn a_volume_is_used_with_doorbells() -> Result<()> {
    a_volume_is_used(true)
}

/// Each of them is killed under load, again and again: the link and the session come back, requests go
/// on, and nothing is left over.
#[test]
fn either_machine_is_killed_under_load_and_comes_back() -> Result<()> {
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 50 } else { 2 };
    let bridge = Bridge::new(true)?;
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    let left = |vm: &mut Vm| -> Result<_> {
        let free = vm.run("show memory --json")?.json()?["arena_free"].clone();
        Ok((ntb(vm, "queue_pairs")?, ntb(vm, "queue_pairs_free")?, ntb(vm, "connections")?, free))
    };
    let (mut at_client, mut at_server) = (left(&mut client)?, left(&mut server)?);
    for round in 0..rounds {
        let moment = Duration::from_millis(37 * round % 400);
        let told = |what: &str| format!("round {round}: {what}");

        client.serial.send(b"remote read far count=20000 size=4KiB depth=16\r")?;
        std::thread::sleep(moment);
        server.kill();
        server = bridge.server()?;
        let read = client.wait_for("reads of 4096 bytes in");
        read.with_context(|| told("the client does not go on"))?;
        client.wait_ready()?;
        wait_open(&mut client)?;
        let now = left(&mut client)?;
        ensure!(now == at_client, "{}: {now:?}, before {at_client:?}", told("the client"));
        at_server = if round == 0 { left(&mut server)? } else { at_server };

        client.serial.send(b"remote read far count=100000 size=4KiB depth=16\r")?;
        std::thread::sleep(moment);
        client.kill();
        client = bridge.client()?;
        wait_open(&mut client).with_context(|| told("after the client's end"))?;
        // The old session goes when its heartbeats are missed, or with the link.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = left(&mut server)?;
            if now == at_server {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{}: {now:?}, before {at_server:?}",
                told("the server")
            );
        }
        at_client = left(&mut client)?;
    }
    for vm in [&mut server, &mut client] {
        let wrong = ntb(vm, "violations")?;
        ensure!(wrong == 0, "{wrong} violations");
    }
    Ok(())
}

/// Ping, and HTTP from outside: through a rule of the first machine, over the bridge, to the second.
#[test]
fn an_interface_over_the_bridge_carries_ping_and_http() -> Result<()> {
    let bridge = Bridge::new(true)?;
    let port = free_port()?;
    // Without a default gateway: the first interface that has one is taken for all strangers.
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
    // The other machine goes, and comes back.
    second.kill();
    wait_for(&mut first, "show ntb", "waits for the peer")?;
    let _second = boot(bridge.machine(1, words)?)?;
    wait_for(&mut first, "ping 10.8.0.2 3", "3 of 3 answered")
}

#[test]
fn two_machines_on_one_side_are_told_so() -> Result<()> {
    let bridge = Bridge::new(false)?;
    let mut first = boot(bridge.machine(0, "")?)?;
    let _second = boot(bridge.machine(0, "")?)?;
    wait_for(&mut first, "show log", "the other machine has the same side")?;
    let mut third = boot(bridge.machine(0, "")?.append("isthmus.ntb.0.side="))?;
    third.run("show log")?.contains("set `side` to 0 on one")?;
    Ok(())
}
