//! Stock clients against the image, for the durations and configurations that the documentation claims.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::relay::Relay;
use interop_tests::{
    Site, address, boot_client, client_of, gateway_spec, map, networked_gateway_spec, storage,
    system, unmap,
};
use launch::guest::Wire;
use launch::qemu::{Disk, Vm};

/// Without safe mode: keys are valid for the lifetime of a path.
const FIXED_KEYS: &str = "isthmus.rnbd.always_invalidate=false";

#[test]
fn volume_is_mapped_and_unmapped_a_hundred_times() -> Result<()> {
    for words in ["", FIXED_KEYS] {
        Site::run_scenario(1500, words, |site| storage::map_and_unmap(&mut site.client, 100))?;
    }
    Ok(())
}

#[test]
fn fifty_connects_have_no_delay() -> Result<()> {
    Site::run_scenario(1500, "", |site| storage::connects_without_delay(&mut site.client, 50))
}

#[test]
fn ext4_keeps_64_mib() -> Result<()> {
    for (mtu, words) in [(1500, ""), (9000, FIXED_KEYS)] {
        let words = format!("isthmus.volume.0.name=ram0 isthmus.volume.0.size=128MiB {words}");
        Site::run_mapped(mtu, &words, |guest| storage::ext4_keeps_its_data(guest, 64))?;
    }
    Ok(())
}

#[test]
fn fio_verifies_all_of_the_volume_at_depth_32() -> Result<()> {
    for (mtu, words) in [(1500, ""), (1500, FIXED_KEYS), (9000, ""), (9000, FIXED_KEYS)] {
        Site::run_mapped(mtu, words, |guest| storage::fio_verifies(guest, 48, 32))?;
    }
    Ok(())
}

#[test]
fn fsx_finds_nothing_in_ten_thousand_operations() -> Result<()> {
    // fsx is passed to the guest as a disk, whose size must be a whole number of sectors.
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_fsx"))?;
    program.resize(program.len().next_multiple_of(512), 0);
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), program)?;
    for words in ["", FIXED_KEYS] {
        let wire = Wire::new()?;
        let (first, second) = wire.datagrams();
        let mut gateway = gateway_spec(1500, words)?.nic(first).first_mac(1).start()?;
        gateway.wait_ready()?;
        let program = Disk::new(disk.path()).read_only();
        let mut guest = client_of(1500, |spec| spec.nic(second).disk(program))?;
        storage::map_ram0(&mut guest)?;
        storage::fsx_finds_nothing(&mut guest, 10_000)?;
        unmap(&mut guest, 0)?;
    }
    Ok(())
}

#[test]
fn every_depth_and_chunk_size_works() -> Result<()> {
    let shapes = [
        (2, 8),
        (2, 1024),
        (3, 16),
        (8, 8),
        (16, 128),
        (64, 1024),
        (100, 32),
        (512, 8),
        (512, 256),
    ];
    for (turn, (depth, kib)) in shapes.into_iter().enumerate() {
        let keys = if turn % 2 == 0 { "" } else { FIXED_KEYS };
        let words =
            format!("isthmus.rnbd.queue_depth={depth} isthmus.rnbd.chunk_size={kib}KiB {keys}");
        Site::run_mapped(1500, &words, |guest| {
            storage::fio_verifies(guest, 4, 32)?;
            storage::ext4_keeps_its_data(guest, 4)
        })
        .with_context(|| words.clone())?;
    }
    Ok(())
}

/// One frame in fifty to the client is lost, with any number of requests in flight.
#[test]
fn loss_of_two_percent_is_survived() -> Result<()> {
    for words in ["", FIXED_KEYS] {
        let relay = Relay::new(50)?;
        let (first, second) = relay.ends();
        let mut gateway = gateway_spec(1500, words)?.nic(first).first_mac(1).start()?;
        gateway.wait_ready()?;
        let mut guest = client_of(1500, |spec| spec.nic(second))?;
        storage::map_ram0(&mut guest)?;
        storage::fio_verifies(&mut guest, 24, 32)?;
        let paths = "/sys/class/rtrs-client/s1/paths";
        guest.sh(&format!("[ \"$(cat {paths}/*/stats/reconnects)\" = '0 0' ]"))?;
        unmap(&mut guest, 0)?;
        let lost = relay.stop()?;
        ensure!(lost > 100, "only {lost} frames were lost");
    }
    Ok(())
}

/// Four hosts at once, each with a volume of its own.
#[test]
fn four_clients_work_at_once() -> Result<()> {
    const CLIENTS: usize = 4;
    let wires = (0..CLIENTS).map(|_| Wire::new()).collect::<Result<Vec<_>>>()?;
    let volumes: Vec<String> = (0..CLIENTS)
        .map(|n| format!("isthmus.volume.{n}.name=v{n} isthmus.volume.{n}.size=64MiB"))
        .collect();
    let mut gateway = networked_gateway_spec(CLIENTS, 1500, &volumes.join(" "))?.memory(1024);
    for wire in &wires {
        gateway = gateway.nic(wire.datagrams().0);
    }
    let mut gateway = gateway.first_mac(1).start()?;
    gateway.wait_ready()?;
    let mut guests = Vec::new();
    for (n, wire) in wires.iter().enumerate() {
        // The first has two CPUs.
        let cpus = if n == 0 { 2 } else { 1 };
        let spec = system()?.spec("client", &[&address(n, 2)], 1500).cpus(cpus).memory(768);
        let mut guest = boot_client(spec.nic(wire.datagrams().1).first_mac(0x20 + n as u8))?;
        guest.sh("modprobe rnbd-client")?;
        let path = format!("ip:10.0.{n}.2@ip:10.0.{n}.1");
        map(&mut guest, &format!("s{n}"), &path, &format!("v{n}"), "")?;
        guests.push(guest);
    }
    for guest in &mut guests {
        storage::start_fio(guest, "/dev/rnbd0", 60, 4)?;
    }
    for (n, guest) in guests.iter_mut().enumerate() {
        storage::finish_fio(guest, Duration::from_secs(180))?;
        let reconnects = guest.sh("cat /sys/class/rtrs-client/*/paths/*/stats/reconnects")?;
        ensure!(reconnects.trim() == "0 0", "client {n} reconnected: {reconnects}");
        unmap(guest, 0)?;
    }
    Ok(())
}

/// The operator closes a session's device. Its I/O fails, and the client can map it again.
#[test]
fn a_device_that_was_force_closed_is_mapped_again() -> Result<()> {
    let mut site = Site::boot(1500, "")?;
    storage::map_ram0(&mut site.client)?;
    site.client.sh("dd if=/dev/urandom of=/tmp/a bs=64k count=8 2>/dev/null
         dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null")?;
    let close = "write /rnbd-server/ctl/devices/ram0/sessions/s1/force_close 1";
    site.gateway.run(close)?.lacks("error")?;
    site.client.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    site.client
        .sh("dmesg | grep -q 'rnbd_client.*-107' || dmesg | grep -q 'I/O error, dev rnbd0'")?;
    site.client.sh("echo force >/sys/block/rnbd0/rnbd/unmap_device")?;
    site.client.wait_until("! ls /sys/class/rtrs-client | grep s1", Duration::from_secs(40))?;
    map(&mut site.client, "s1", storage::PATH, "ram0", "")?;
    site.client.sh("dd if=/dev/rnbd0 of=/tmp/b bs=64k count=8 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b")?;
    unmap(&mut site.client, 0)
}

/// Linux drops a path for good if the server offers another queue depth on reconnect. On machines that are short of
/// memory, each of two sessions keeps its depth across a power cut.
#[test]
fn two_sessions_on_128_mib_survive_a_power_cut() -> Result<()> {
    two_sessions_survive_a_power_cut(128)
}

#[test]
fn two_sessions_on_160_mib_survive_a_power_cut() -> Result<()> {
    two_sessions_survive_a_power_cut(160)
}

#[test]
fn two_sessions_on_192_mib_survive_a_power_cut() -> Result<()> {
    two_sessions_survive_a_power_cut(192)
}

fn two_sessions_survive_a_power_cut(mib: u32) -> Result<()> {
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let spec = gateway_spec(1500, "")?.memory(mib).nic(first).first_mac(1);
    let mut gateway = spec.clone().start()?;
    gateway.wait_ready()?;
    let mut guest = client_of(1500, |spec| spec.nic(second))?;
    guest.sh("modprobe rnbd-client")?;
    for session in ["s1", "s2"] {
        map(&mut guest, session, storage::PATH, "ram0", "access_mode=ro")?;
    }
    let before = depths(&mut gateway)?;
    ensure!(before.len() == 2 && before[0] == before[1], "{mib} MiB: {before:?}");
    drop(gateway);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    let up = "[ $(cat /sys/class/rtrs-client/s[12]/paths/*/state | grep -cx connected) = 2 ]";
    let states = "cat /sys/class/rtrs-client/s[12]/paths/*/state; dmesg | tail -n 5";
    // Linux detects the cut by missing heartbeats, and reconnects 30 s later.
    guest
        .wait_until(&format!("! {up}"), Duration::from_secs(120))
        .with_context(|| guest.sh(states).unwrap_or_default())?;
    guest
        .wait_until(up, Duration::from_secs(150))
        .with_context(|| guest.sh(states).unwrap_or_default())?;
    ensure!(depths(&mut gateway)? == before, "another depth than {before:?}");
    guest.wait_until(
        "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct &&
         dd if=/dev/rnbd1 of=/dev/null bs=4k count=1 iflag=direct",
        Duration::from_secs(60),
    )?;
    unmap(&mut guest, 0)?;
    unmap(&mut guest, 1)
}

/// Three hosts with a session each write while the power of a machine with little memory is cut. All sessions reconnect
/// with their previous depth, and no device fails.
#[test]
fn three_hosts_survive_a_power_cut() -> Result<()> {
    const HOSTS: usize = 3;
    let wires = (0..HOSTS).map(|_| Wire::new()).collect::<Result<Vec<_>>>()?;
    let volumes: Vec<String> = (0..HOSTS)
        .map(|n| format!("isthmus.volume.{n}.name=v{n} isthmus.volume.{n}.size=4MiB"))
        .collect();
    let spec = networked_gateway_spec(HOSTS, 1500, &volumes.join(" "))?.memory(160).first_mac(1);
    let spec = wires.iter().fold(spec, |spec, wire| spec.nic(wire.datagrams().0));
    let mut gateway = spec.clone().start()?;
    gateway.wait_ready()?;
    let mut guests = Vec::new();
    for (n, wire) in wires.iter().enumerate() {
        let spec = system()?.spec("client", &[&address(n, 2)], 1500);
        let mut guest = boot_client(spec.nic(wire.datagrams().1).first_mac(0x20 + n as u8))?;
        guest.sh("modprobe rnbd-client")?;
        let path = format!("ip:10.0.{n}.2@ip:10.0.{n}.1");
        map(&mut guest, &format!("s{n}"), &path, &format!("v{n}"), "")?;
        // Until a write fails.
        guest.sh("dd='dd if=/dev/zero of=/dev/rnbd0 bs=64k count=64 oflag=direct'
             sh -c \"while $dd; do :; done\" >/dev/null 2>&1 &")?;
        guests.push(guest);
    }
    let before = depths(&mut gateway)?;
    ensure!(before == [before[0]; HOSTS], "{before:?}");
    drop(gateway);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    for (n, guest) in guests.iter_mut().enumerate() {
        let states = format!("cat /sys/class/rtrs-client/s{n}/paths/*/state; dmesg | tail -n 5");
        let up = format!("[ $(cat /sys/class/rtrs-client/s{n}/paths/*/state) = connected ]");
        // Requests in flight fail, so a successful read shows that Linux has reconnected.
        let read = "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
        guest
            .wait_until(&format!("{up} && {read}"), Duration::from_secs(240))
            .with_context(|| guest.sh(&states).unwrap_or_default())?;
    }
    ensure!(depths(&mut gateway)? == before, "another depth than {before:?}");
    guests.iter_mut().try_for_each(|guest| unmap(guest, 0))
}

/// The queue depths of all sessions.
fn depths(gateway: &mut Vm) -> Result<Vec<u64>> {
    let list = gateway.run("session list --json")?.json()?;
    let sessions = list.as_array().context("a list of sessions")?;
    sessions.iter().map(|s| s["queue_depth"].as_u64().context("no queue_depth")).collect()
}

/// An export that is restricted to other hosts: no connection, then EACCES, then access.
#[test]
fn hosts_are_refused_and_admitted() -> Result<()> {
    let words = "isthmus.volume.0.name=ram0 isthmus.export.0.name=ram0 isthmus.export.0.volume=ram0 \
                 isthmus.export.0.hosts=10.0.0.9/32";
    let mut site = Site::boot(1500, words)?;
    let Site { gateway, client, .. } = &mut site;
    client.sh("modprobe rnbd-client")?;
    let refused = |client: &mut launch::guest::Guest| -> Result<()> {
        let mapped = map(client, "s1", storage::PATH, "ram0", "");
        ensure!(mapped.is_err(), "a host that is not admitted mapped the volume");
        Ok(())
    };
    refused(client)?;
    client.sh("dmesg | grep -i 'rejected' | grep -q -e '-13'")?;
    gateway.run("show refused")?.contains("host_not_admitted")?.contains("10.0.0.2")?;
    // Another export admits the host, so that the server accepts its connection.
    gateway.run("export add other volume=ram0 ro hosts=10.0.0.0/24")?.lacks("error")?;
    refused(client)?;
    gateway.run("show refused")?.contains("ram0 by session s1")?;
    map(client, "s1", storage::PATH, "other", "access_mode=ro")?;
    unmap(client, 0)?;
    gateway.run("export set ram0 hosts=10.0.0.2/32,fd00::/8")?.lacks("error")?;
    map(client, "s1", storage::PATH, "ram0", "")?;
    gateway.run("export list")?.contains("10.0.0.2/32, fd00::/8")?;
    client.sh("dd if=/dev/zero of=/dev/rnbd0 bs=4k count=1 oflag=direct")?;
    unmap(client, 0)
}

/// An outage of 40 s: requests fail when heartbeats are missing, and the client reconnects after the outage.
#[test]
fn a_silent_outage_of_40_seconds_is_survived() -> Result<()> {
    let mut site = Site::boot(1500, "")?;
    storage::map_ram0(&mut site.client)?;
    site.client.sh("dd if=/dev/urandom of=/tmp/a bs=64k count=8 2>/dev/null
         dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null")?;
    let link = |up| serde_json::json!({"name": "net0", "up": up});
    site.gateway.qmp.execute("set_link", link(false))?;
    // The outage.
    std::thread::sleep(Duration::from_secs(40));
    site.gateway.qmp.execute("set_link", link(true))?;
    let back = "[ $(cat /sys/class/rtrs-client/s1/paths/*/state) = connected ] && \
                dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
    site.client.wait_until(back, Duration::from_secs(120)).context("the path did not reconnect")?;
    site.client.sh("dd if=/dev/rnbd0 of=/tmp/b bs=64k count=8 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b")?;
    unmap(&mut site.client, 0)
}
