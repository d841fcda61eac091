//! Two cores, each with a port or with a queue of a shared card, serve the same volumes, in memory and on a disk, to
//! two stock clients. On an NVMe drive each core has its own queue.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::hub::Hub;
use interop_tests::metrics::Metrics;
use interop_tests::{address, boot_client, map, networked_gateway_spec, storage, system, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{Disk, NicModel, Vm};
use serde_json::json;

const PATHS: [&str; 2] = [storage::PATH, "ip:10.0.1.2@ip:10.0.1.1"];
const VOLUMES: &str = "isthmus.volume.0.name=ram isthmus.volume.0.size=64MiB \
                       isthmus.volume.1.name=data isthmus.volume.1.disk=0 isthmus.volume.1.size=64MiB";

/// The appliance with two cores, a client on the network of each core, and the disk.
struct Cores {
    gateway: Vm,
    clients: [Guest; 2],
    _wires: [Wire; 2],
    _disk: tempfile::NamedTempFile,
}

impl Cores {
    fn boot() -> Result<Cores> {
        Cores::boot_with(|disk| disk)
    }

    fn boot_with(kind: impl FnOnce(Disk) -> Disk) -> Result<Cores> {
        let wires = [Wire::new()?, Wire::new()?];
        let disk = tempfile::NamedTempFile::new()?;
        disk.as_file().set_len(256 << 20)?;
        let spec = networked_gateway_spec(2, 1500, VOLUMES)?
            .append("isthmus.net.1.core=1")
            .cpus(2)
            .first_mac(1);
        let ends = [wires[0].datagrams(), wires[1].datagrams()];
        let [(first, a), (second, b)] = ends;
        let spec = spec.nic(first).nic(second).disk(kind(Disk::new(disk.path())));
        let mut gateway = spec.start()?;
        gateway.wait_ready()?;
        let client = |network: usize, nic| {
            let spec = system()?.spec("client", &[&address(network, 2)], 1500);
            boot_client(spec.first_mac(0x20 + network as u8).nic(nic))
        };
        let mut clients = [client(0, a)?, client(1, b)?];
        for client in &mut clients {
            client.sh("modprobe rnbd-client")?;
        }
        Ok(Cores { gateway, clients, _wires: wires, _disk: disk })
    }

    /// Maps a volume at both clients, at the second in migration mode, which allows two writers.
    fn map_at_both(&mut self, volume: &str) -> Result<()> {
        let modes = ["", "access_mode=migration"];
        for (n, mode) in modes.into_iter().enumerate() {
            map(&mut self.clients[n], &format!("s{n}"), PATHS[n], volume, mode)
                .with_context(|| format!("{volume} at client {n}"))?;
        }
        Ok(())
    }
}

/// Starts fio with verification on 24 MiB from an offset in MiB, for this many seconds.
fn begin(client: &mut Guest, device: u32, offset: u32, seconds: u32) -> Result<()> {
    client.sh(&format!(
        "rm -f /tmp/fio{device}.*
         (fio --name=verify --filename=/dev/rnbd{device} --direct=1 --ioengine=libaio --thread \
         --rw=randrw --bsrange=4096-16384 --offset={offset}m --size=24m --iodepth=8 --time_based \
         --rate_iops=200,200 --runtime={seconds} --verify=crc32c --verify_backlog=32 --verify_fatal=1 \
         >/tmp/fio{device}.out 2>&1; echo $? >/tmp/fio{device}.status) </dev/null >/dev/null 2>&1 &"
    ))?;
    Ok(())
}

fn end(client: &mut Guest, device: u32) -> Result<()> {
    let file = format!("/tmp/fio{device}");
    let limit = Duration::from_secs(180);
    client.wait_until(&format!("[ -e {file}.status ]"), limit).context("fio does not end")?;
    let status = client.sh(&format!("cat {file}.status"))?;
    ensure!(status.trim() == "0", "{}", client.sh(&format!("cat {file}.out; dmesg | tail -n 20"))?);
    Ok(())
}

#[test]
fn the_same_volumes_are_served_on_both_cores() -> Result<()> {
    serve_on_both(&mut Cores::boot()?)
}

/// Both clients write and verify, and read each other's data, while volumes are created and deleted.
fn serve_on_both(cores: &mut Cores) -> Result<()> {
    for volume in ["ram", "data"] {
        cores.map_at_both(volume)?;
    }
    // Each client reads the other's writes.
    for device in 0..2 {
        for (from, to) in [(0, 1), (1, 0)] {
            let place = 56 + 4 * from;
            let wrote = cores.clients[from].sh(&format!(
                "dd if=/dev/urandom of=/tmp/x bs=1M count=4 2>/dev/null
                 dd if=/tmp/x of=/dev/rnbd{device} bs=64k seek={} oflag=direct 2>/dev/null
                 md5sum </tmp/x",
                place * 16
            ))?;
            let read = cores.clients[to].sh(&format!(
                "dd if=/dev/rnbd{device} bs=64k skip={} count=64 iflag=direct 2>/dev/null | md5sum",
                place * 16
            ))?;
            ensure!(
                wrote == read,
                "client {to} reads other data than client {from} wrote on rnbd{device}"
            );
        }
    }
    for (n, client) in cores.clients.iter_mut().enumerate() {
        for device in 0..2 {
            begin(client, device, 28 * n as u32, 20)?;
        }
    }
    // Meanwhile volumes are created, grown, used by either client, and deleted.
    for round in 0..4 {
        let gateway = &mut cores.gateway;
        gateway.run("volume create extra size=4MiB")?.lacks("error")?;
        gateway.run("volume create more size=4MiB disk=0")?.lacks("error")?;
        gateway.run("volume grow more size=8MiB")?.lacks("error")?;
        let client = &mut cores.clients[round % 2];
        let (session, path) = (format!("s{}", round % 2), PATHS[round % 2]);
        for (name, size) in [("extra", 8192), ("more", 16384)] {
            map(client, &session, path, name, "")?;
            let sectors = client.sh("cat /sys/block/rnbd2/size")?;
            ensure!(sectors.trim() == size.to_string(), "{name} has {sectors} sectors");
            client.sh("dd if=/dev/zero of=/dev/rnbd2 bs=64k oflag=direct count=64 2>/dev/null")?;
            let refused = cores.gateway.run(&format!("volume delete {name} force"))?;
            refused.contains("has it open")?;
            unmap(client, 2)?;
            client.wait_until("[ ! -e /sys/block/rnbd2 ]", Duration::from_secs(10))?;
            cores.gateway.run(&format!("volume delete {name} force"))?.lacks("error")?;
        }
    }
    for client in &mut cores.clients {
        (0..2).try_for_each(|device| end(client, device))?;
        (0..2).try_for_each(|device| unmap(client, device))?;
    }
    Ok(())
}

/// Completed requests in the drive's queue of each core, as the appliance reports.
fn done_by_queues(gateway: &mut Vm) -> Result<[u64; 2]> {
    let disks = gateway.run("show disks --json")?.json()?;
    let queues = &disks[0]["queues"];
    let of = |n: usize| queues[n]["requests"].as_u64().filter(|_| queues[n]["core"] == n);
    of(0).zip(of(1)).map(|(first, second)| [first, second]).with_context(|| disks.to_string())
}

/// Each core has a queue pair of an NVMe drive, and uses no other for its clients' requests.
#[test]
fn each_core_has_a_queue_of_its_own_to_a_drive() -> Result<()> {
    let mut cores = Cores::boot_with(|disk| disk.nvme(0, 1).serial("TWO"))?;
    serve_on_both(&mut cores)?;
    let done = done_by_queues(&mut cores.gateway)?;
    println!("requests by queue: {done:?}");
    ensure!(done.iter().all(|&requests| requests > 2000), "fio did not use both: {done:?}");
    cores.map_at_both("data")?;
    for (core, client) in cores.clients.iter_mut().enumerate() {
        let before = done_by_queues(&mut cores.gateway)?;
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=500 iflag=direct 2>/dev/null")?;
        let after = done_by_queues(&mut cores.gateway)?;
        let done = [0, 1].map(|n| after[n] - before[n]);
        ensure!(done[core] >= 500 && done[1 - core] == 0, "client {core}: {done:?} requests");
    }
    let metrics = "busybox wget -q -O - http://10.0.0.1/metrics";
    let samples = cores.clients[0].sh(&format!("{metrics} | grep disk_queue_requests"))?;
    ensure!(samples.contains("disk=\"disk0\",core=\"1\""), "{samples}");
    cores.gateway.run("show log")?.lacks("ERROR")?.lacks("no queue of its own")?;
    Ok(())
}

/// A drive with one queue pair serves both cores: the second core forwards its requests to the first.
#[test]
fn a_drive_with_one_queue_serves_both_cores() -> Result<()> {
    let mut cores = Cores::boot_with(|disk| disk.nvme(0, 1).nvme_queues(1))?;
    cores.map_at_both("data")?;
    for (n, client) in cores.clients.iter_mut().enumerate() {
        begin(client, 0, 28 * n as u32, 5)?;
    }
    for client in &mut cores.clients {
        end(client, 0)?;
    }
    cores.gateway.run("show log")?.contains("core 1: no queue of its own to disk0")?;
    let disks = cores.gateway.run("show disks --json")?.json()?;
    ensure!(disks[0]["queues"].as_array().is_some_and(|all| all.len() == 1), "{disks}");
    Ok(())
}

/// Waits until a command's reply contains these words, because other cores publish their state with a delay.
fn wait_for_reply(gateway: &mut Vm, command: &str, words: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = gateway.run(command)?;
        if answer.text.contains(words) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "no {words:?} in the reply to {command}: {}",
            answer.text
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Across cores, a writer excludes other writers, and a session name belongs to one host.
#[test]
fn access_rules_hold_across_cores() -> Result<()> {
    let mut cores = Cores::boot()?;
    let [first, second] = &mut cores.clients;
    map(first, "s0", PATHS[0], "ram", "")?;
    ensure!(map(second, "s1", PATHS[1], "ram", "").is_err(), "a second writer was accepted");
    wait_for_reply(&mut cores.gateway, "show refused", "another session has it open")?;
    map(second, "s1", PATHS[1], "ram", "access_mode=ro")?;
    ensure!(map(second, "s0", PATHS[1], "data", "").is_err(), "two hosts share a session name");
    wait_for_reply(
        &mut cores.gateway,
        "show refused",
        "another address has a session of that name",
    )?;
    unmap(first, 0)?;
    unmap(second, 0)?;
    map(second, "s1", PATHS[1], "ram", "")?;
    // The operator lists and ends sessions of both cores.
    let gateway = &mut cores.gateway;
    wait_for_reply(gateway, "session list csv", "s1,connected,1,1,")?;
    wait_for_reply(gateway, "device list csv", "ram,s1,ram,rw,")?;
    // Metrics cover both cores, with those of the other core a few seconds later.
    map(first, "s0", PATHS[0], "ram", "access_mode=ro")?;
    for client in [&mut *first, &mut *second] {
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null")?;
    }
    for sample in [
        "isthmus_rtrs_sessions 2",
        "isthmus_rtrs_session_devices{session=\"s1\"} 1",
        "isthmus_rtrs_path_up{session=\"s1\",path=\"ip:10.0.1.2@ip:10.0.1.1\"} 1",
        "isthmus_volume_read_bytes_total{volume=\"ram\"} [2-9][0-9]\\{6\\}",
        "isthmus_volume_read_seconds_count{volume=\"ram\"} [3-9][0-9]",
    ] {
        let read = format!("busybox wget -q -O - http://10.0.1.1/metrics | grep -x '{sample}'");
        let seen = second.wait_until(&read, Duration::from_secs(20));
        seen.with_context(|| format!("no sample {sample}"))?;
    }
    unmap(first, 0)?;
    gateway.run("session disconnect s1")?.lacks("error")?;
    wait_for_reply(gateway, "show log", "is down: disconnected by the operator")?;
    let state = "grep -qx connected /sys/class/rtrs-client/s1/paths/*/state";
    second.wait_until(state, Duration::from_secs(60)).context("the client does not reconnect")?;
    second.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    wait_for_reply(gateway, "device list csv", "ram,s1,ram,rw,")?;
    gateway.run("device close ram s1")?.lacks("error")?;
    second.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    Ok(())
}

/// One card with a queue for each of two cores, and two clients that have many addresses each.
struct Shared {
    gateway: Vm,
    clients: [Guest; 2],
    /// An address of each client: core 0 serves the first client's, core 1 the second's.
    addresses: [String; 2],
    _hub: Hub,
    _disk: tempfile::NamedTempFile,
}

/// Frames that each core has received so far.
fn received(gateway: &mut Vm) -> Result<[u64; 2]> {
    let loops = gateway.run("show loops --json")?.json()?;
    let of = |core: usize| {
        let stages = loops[core]["stages"].as_array().into_iter().flatten();
        stages.filter(|s| s["stage"] == "receive").filter_map(|s| s["items"].as_u64()).sum()
    };
    Ok([of(0), of(1)])
}

impl Shared {
    fn boot() -> Result<Shared> {
        let hub = Hub::new(3)?;
        let disk = tempfile::NamedTempFile::new()?;
        disk.as_file().set_len(256 << 20)?;
        let spec = networked_gateway_spec(1, 1500, VOLUMES)?.append("isthmus.net.0.core=0,1");
        let spec = spec.cpus(2).nic_model(NicModel::E1000e).first_mac(1).nic(hub.nic(0));
        let mut gateway = spec.disk(Disk::new(disk.path())).start()?;
        gateway.wait_ready()?;
        let client = |n: usize| {
            // The mapping of addresses to cores is random for each boot.
            let all: Vec<_> = (0..12).map(|i| format!("10.0.0.{}/24", 20 * (n + 1) + i)).collect();
            let spec = system()?.spec("client", &[&all.join(",")], 1500);
            boot_client(spec.first_mac(0x20 + n as u8).nic(hub.nic(n + 1)))
        };
        let mut clients = [client(0)?, client(1)?];
        let mut addresses = [const { String::new() }; 2];
        for (core, client) in clients.iter_mut().enumerate() {
            client.sh("modprobe rnbd-client")?;
            for i in 0..12 {
                let address = format!("10.0.0.{}", 20 * (core + 1) + i);
                client.sh(&format!("ping -c 1 -I {address} 10.0.0.1 >/dev/null"))?;
                let before = received(&mut gateway)?;
                client.sh(&format!("ping -c 20 -i 0.05 -I {address} 10.0.0.1 >/dev/null"))?;
                let after = received(&mut gateway)?;
                // The second core forwards pings to the first, which counts them as well.
                let [first, second] = [0, 1].map(|core| after[core] - before[core]);
                ensure!(first >= 20 && (second < 10 || second >= 20), "{first}, {second}");
                if (second >= 20) == (core == 1) {
                    addresses[core] = address;
                    break;
                }
            }
            ensure!(!addresses[core].is_empty(), "core {core} serves none of 12 addresses");
        }
        Ok(Shared { gateway, clients, addresses, _hub: hub, _disk: disk })
    }

    fn map(&mut self, n: usize, volume: &str, mode: &str) -> Result<()> {
        let path = format!("ip:{}@ip:10.0.0.1", self.addresses[n]);
        map(&mut self.clients[n], &format!("s{n}"), &path, volume, mode)
            .with_context(|| format!("{volume} at client {n}"))
    }

    /// Both clients write and verify at once. Each core serves its own client.
    fn both_verify(&mut self, seconds: u32) -> Result<()> {
        let before = received(&mut self.gateway)?;
        let punted = self.punted()?;
        for (n, client) in self.clients.iter_mut().enumerate() {
            begin(client, 0, 28 * n as u32, seconds)?;
        }
        self.clients.iter_mut().try_for_each(|client| end(client, 0))?;
        let after = received(&mut self.gateway)?;
        for core in 0..2 {
            let more = after[core] - before[core];
            ensure!(more > 2000, "core {core} has received {more} frames");
        }
        let more = self.punted()? - punted;
        ensure!(more < 50.0, "core 1 forwarded {more} frames");
        Ok(())
    }

    /// Frames that the second core forwarded to the control plane.
    fn punted(&mut self) -> Result<f64> {
        let metrics = Metrics::read(&mut self.clients[0])?;
        metrics.get("port_queue_control_frames_total{port=\"net0\",loop=\"1\"}")
    }

    fn set_link(&mut self, up: bool) -> Result<()> {
        self.gateway.qmp.execute("set_link", json!({"name": "net0", "up": up}))?;
        Ok(())
    }
}

#[test]
fn one_card_is_served_by_two_cores() -> Result<()> {
    let mut shared = Shared::boot()?;
    shared.gateway.run("show interfaces --json")?.contains("\"loop\":[0,1]")?;
    // Migration mode, because a sole writer could not reconnect while the other client is connected.
    shared.map(0, "ram", "access_mode=migration")?;
    shared.map(1, "ram", "access_mode=migration")?;
    shared.both_verify(15)?;
    let name = |core: usize, what: &str| {
        format!("port_queue_{what}_frames_total{{port=\"net0\",loop=\"{core}\"}}")
    };
    let metrics = Metrics::read(&mut shared.clients[0])?;
    let sum =
        |what| Ok::<_, anyhow::Error>(metrics.get(&name(0, what))? + metrics.get(&name(1, what))?);
    let all = metrics.get("port_receive_frames_total{port=\"net0\"}")?;
    ensure!((sum("receive")? - all).abs() < 50.0, "the port's total is not the sum of its queues");
    // The link is down for so long that the driver resets the chip, which drops the frames in the rings of both queues.
    // Both clients reconnect, and find their data.
    let pattern = |client: &mut Guest, place: u32| {
        client.sh(&format!(
            "dd if=/dev/rnbd0 bs=64k skip={place} count=32 iflag=direct 2>/dev/null | md5sum"
        ))
    };
    let before = [pattern(&mut shared.clients[0], 0)?, pattern(&mut shared.clients[1], 448)?];
    for client in &mut shared.clients {
        client.sh(
            "(while :; do dd if=/dev/rnbd0 of=/dev/null bs=64k count=64 iflag=direct; done) \
             </dev/null >/dev/null 2>&1 &",
        )?;
    }
    shared.set_link(false)?;
    wait_for_reply(&mut shared.gateway, "show log", "net0: link down")?;
    // The driver's timeout before the reset, which nothing reports.
    std::thread::sleep(Duration::from_secs(6));
    shared.set_link(true)?;
    wait_for_reply(&mut shared.gateway, "show log", "net0: link up")?;
    // A client with a pending answer has lost its path, because seven retries take four seconds. Linux's path state
    // stays `connected` until the client detects that, so a read is the test.
    let reads = "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
    for client in &mut shared.clients {
        client
            .wait_until(reads, Duration::from_secs(90))
            .context("the client does not reconnect")?;
    }
    let after = [pattern(&mut shared.clients[0], 0)?, pattern(&mut shared.clients[1], 448)?];
    ensure!(before == after, "the data have changed: {before:?}, {after:?}");
    shared.both_verify(10)?;
    shared.gateway.run("show log")?.lacks("ERROR")?.lacks("PANIC")?;
    Ok(())
}

/// All paths of a session must be on one core. A path from an address that another core serves is refused and reported.
#[test]
fn path_to_another_core_is_refused_and_reported() -> Result<()> {
    let mut shared = Shared::boot()?;
    shared.map(0, "ram", "")?;
    // The other client's address moves to the first, which opens a second path from there. Its ARP request tells the
    // gateway the new MAC address.
    let address = shared.addresses[1].clone();
    shared.clients[1].sh(&format!("ip addr del {address}/24 dev eth0"))?;
    let client = &mut shared.clients[0];
    client.sh(&format!(
        "ip addr add {address}/24 dev eth0; ip neigh flush dev eth0; ping -c 1 -I {address} 10.0.0.1 >/dev/null"
    ))?;
    let added =
        client.sh(&format!("echo ip:{address}@ip:10.0.0.1 >/sys/class/rtrs-client/s0/add_path"));
    ensure!(added.is_err(), "the path was accepted");
    wait_for_reply(&mut shared.gateway, "show refused", "come to another core")?;
    Ok(())
}
