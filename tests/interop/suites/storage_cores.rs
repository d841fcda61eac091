//! Two cores with a port each serve the same volumes: one of memory, one of a disk, to two stock clients; of an NVMe
//! drive each over a queue of its own.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::{address, boot_client, map, networked_gateway_spec, storage, system, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{Disk, Vm};

const PATHS: [&str; 2] = [storage::PATH, "ip:10.0.1.2@ip:10.0.1.1"];
const WORDS: &str = "isthmus.net.1.core=1 isthmus.volume.0.name=ram isthmus.volume.0.size=64MiB \
                     isthmus.volume.1.name=data isthmus.volume.1.disk=0 isthmus.volume.1.size=64MiB";

/// The appliance with two cores, a client on the network of each, and the disk.
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
        let spec = networked_gateway_spec(2, 1500, WORDS)?.cpus(2).first_mac(1);
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

    /// Maps a volume at both: the second for migration, which is how two may write.
    fn map_at_both(&mut self, volume: &str) -> Result<()> {
        let modes = ["", "access_mode=migration"];
        for (n, mode) in modes.into_iter().enumerate() {
            map(&mut self.clients[n], &format!("s{n}"), PATHS[n], volume, mode)
                .with_context(|| format!("{volume} at client {n}"))?;
        }
        Ok(())
    }
}

/// Has fio write and verify in 24 MiB from so many MiB on, for so many seconds.
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

/// Both clients write and verify, and read what the other one wrote, while volumes come and go.
fn serve_on_both(cores: &mut Cores) -> Result<()> {
    for volume in ["ram", "data"] {
        cores.map_at_both(volume)?;
    }
    // What one writes the other reads.
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
            ensure!(wrote == read, "client {to} reads other than {from} wrote on rnbd{device}");
        }
    }
    for (n, client) in cores.clients.iter_mut().enumerate() {
        for device in 0..2 {
            begin(client, device, 28 * n as u32, 20)?;
        }
    }
    // Meanwhile volumes come, are used by either, grow and go.
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

/// Requests that the drive has done in the queue of each core, as the appliance tells.
fn done_by_queues(gateway: &mut Vm) -> Result<[u64; 2]> {
    let disks = gateway.run("show disks --json")?.json()?;
    let queues = &disks[0]["queues"];
    let of = |n: usize| queues[n]["requests"].as_u64().filter(|_| queues[n]["core"] == n);
    of(0).zip(of(1)).map(|(first, second)| [first, second]).with_context(|| disks.to_string())
}

/// On an NVMe drive each core has a pair of queues, and what a client asks of one goes through no other.
#[test]
fn each_core_has_a_queue_of_its_own_to_a_drive() -> Result<()> {
    let mut cores = Cores::boot_with(|disk| disk.nvme(0, 1).serial("TWO"))?;
    serve_on_both(&mut cores)?;
    let told = done_by_queues(&mut cores.gateway)?;
    println!("requests by queue: {told:?}");
    ensure!(told.iter().all(|&requests| requests > 2000), "fio went through both: {told:?}");
    cores.map_at_both("data")?;
    for (core, client) in cores.clients.iter_mut().enumerate() {
        let before = done_by_queues(&mut cores.gateway)?;
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=500 iflag=direct 2>/dev/null")?;
        let after = done_by_queues(&mut cores.gateway)?;
        let done = [0, 1].map(|n| after[n] - before[n]);
        ensure!(done[core] >= 500 && done[1 - core] == 0, "client {core}: {done:?} requests");
    }
    let metrics = "busybox wget -q -O - http://10.0.0.1/metrics";
    let told = cores.clients[0].sh(&format!("{metrics} | grep disk_queue_requests"))?;
    ensure!(told.contains("disk=\"disk0\",core=\"1\""), "{told}");
    cores.gateway.run("show log")?.lacks("ERROR")?.lacks("no queue of its own")?;
    Ok(())
}

/// A drive that has one pair, or one interrupt, serves both cores all the same: the second asks the first.
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

/// Until a command's answer has these words: other cores tell what they know in a moment.
fn says(gateway: &mut Vm, command: &str, words: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = gateway.run(command)?;
        if answer.text.contains(words) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{command} does not say {words:?}: {}", answer.text);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Who writes keeps others from writing on whichever core, and a session has its paths on one.
#[test]
fn what_holds_for_one_core_holds_for_all() -> Result<()> {
    let mut cores = Cores::boot()?;
    let [first, second] = &mut cores.clients;
    map(first, "s0", PATHS[0], "ram", "")?;
    ensure!(map(second, "s1", PATHS[1], "ram", "").is_err(), "two may write");
    says(&mut cores.gateway, "show refused", "another session has it open")?;
    map(second, "s1", PATHS[1], "ram", "access_mode=ro")?;
    ensure!(map(second, "s0", PATHS[1], "data", "").is_err(), "a name is two hosts'");
    says(&mut cores.gateway, "show refused", "another address has a session of that name")?;
    unmap(first, 0)?;
    unmap(second, 0)?;
    map(second, "s1", PATHS[1], "ram", "")?;
    // The operator sees and ends what is on either core.
    let gateway = &mut cores.gateway;
    says(gateway, "session list csv", "s1,connected,1,1,")?;
    says(gateway, "device list csv", "ram,s1,ram,rw,")?;
    // Clients of both are counted together, those of the other core a few seconds later.
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
        seen.with_context(|| format!("{sample} is not said"))?;
    }
    unmap(first, 0)?;
    gateway.run("session disconnect s1")?.lacks("error")?;
    says(gateway, "show log", "is down: disconnected by the operator")?;
    let state = "grep -qx connected /sys/class/rtrs-client/s1/paths/*/state";
    second.wait_until(state, Duration::from_secs(60)).context("it does not come back")?;
    second.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    says(gateway, "device list csv", "ram,s1,ram,rw,")?;
    gateway.run("device close ram s1")?.lacks("error")?;
    second.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    Ok(())
}
