//! Stock Linux's rnbd-client against the image.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::{Site, client_of, gateway_spec, map, storage, system, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{Disk, Vm};

/// Tells a story to a guest that has the appliance's default volume before it.
fn tell(mtu: u16, words: &str, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let mut site = Site::boot(mtu, words)?;
    let told = story(&mut site.client);
    let log =
        site.gateway.run("show log").map_or_else(|error| format!("{error:#}"), |log| log.text);
    told.with_context(|| format!("the appliance's log:\n{log}"))
}

/// As `tell`, with /dev/rnbd0 mapped before and unmapped after.
fn tell_mapped(mtu: u16, words: &str, story: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    tell(mtu, words, |guest| {
        storage::map_ram0(guest)?;
        story(guest)?;
        unmap(guest, 0)
    })
}

#[test]
fn ext4_keeps_its_data() -> Result<()> {
    tell_mapped(1500, "", |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn ext4_keeps_its_data_with_jumbo_frames_and_fixed_keys() -> Result<()> {
    let words = "isthmus.rnbd.always_invalidate=false";
    tell_mapped(9000, words, |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn fio_verifies() -> Result<()> {
    tell_mapped(1500, "", |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn fio_verifies_with_a_short_queue_and_small_chunks() -> Result<()> {
    let words = "isthmus.rnbd.queue_depth=8 isthmus.rnbd.chunk_size=8KiB";
    tell_mapped(1500, words, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn maps_and_unmaps_twenty_times() -> Result<()> {
    tell(1500, "", |guest| storage::maps_and_unmaps(guest, 20))
}

#[test]
fn connects_without_delay() -> Result<()> {
    tell(1500, "", |guest| storage::connects_without_delay(guest, 20))
}

#[test]
fn access_modes_are_linux_s() -> Result<()> {
    tell(1500, "", storage::access_modes_are_linux_s)
}

#[test]
fn flushes_and_discards() -> Result<()> {
    tell_mapped(1500, "", storage::flushes_and_discards)
}

#[test]
fn a_client_with_two_cpus_uses_both() -> Result<()> {
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let mut gateway = gateway_spec(1500, "")?.nic(first).first_mac(1).start()?;
    gateway.wait_ready()?;
    let mut guest = client_of(1500, |spec| spec.nic(second).cpus(2))?;
    storage::map_ram0(&mut guest)?;
    guest.sh("[ $(rdma resource show qp | grep -c 'type RC') = 3 ]")?;
    guest.sh("for cpu in 0 1; do taskset $((1 << cpu)) dd if=/dev/rnbd0 of=/dev/null bs=4k count=100 iflag=direct; done")?;
    storage::fio_verifies(&mut guest, 8, 16)?;
    unmap(&mut guest, 0)
}

#[test]
fn an_idle_session_lives_on_heartbeats() -> Result<()> {
    tell_mapped(1500, "", |guest| {
        std::thread::sleep(Duration::from_secs(45));
        guest.sh("[ \"$(cat /sys/class/rtrs-client/s1/paths/*/state)\" = connected ]")?;
        guest.sh("[ $(cut -d' ' -f1 /sys/class/rtrs-client/s1/paths/*/stats/reconnects) = 0 ]")?;
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct")?;
        Ok(())
    })
}

/// The power goes while the client writes; when it is back, so is the client, and what was synced is there.
#[test]
fn flushed_data_survives_a_power_cut() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(128 << 20)?;
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let words = "isthmus.volume.0.name=disk0 isthmus.volume.0.disk=0";
    let spec = gateway_spec(1500, words)?.nic(first).first_mac(1).disk(Disk::new(disk.path()));
    let mut gateway = spec.clone().start()?;
    gateway.wait_ready()?;
    let mut guest = client_of(1500, |spec| spec.nic(second))?;
    guest.sh("modprobe -a rnbd-client ext4")?;
    map(&mut guest, "s1", storage::PATH, "disk0", "")?;
    guest.sh("mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0 && mount -t ext4 /dev/rnbd0 /mnt")?;
    guest.sh("dd if=/dev/urandom of=/mnt/kept bs=1M count=8 && sync")?;
    guest.sh("sha256sum </mnt/kept >/tmp/sum")?;
    guest.sh(
        "while :; do dd if=/dev/urandom of=/mnt/other bs=64k count=64 conv=fsync; done >/dev/null 2>&1 &
         echo $! >/tmp/writer",
    )?;
    std::thread::sleep(Duration::from_secs(2));
    drop(gateway);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    // Linux notices at its next request or heartbeat, and tries again 30 s later.
    let up = "cat /sys/block/rnbd0/rnbd/state /sys/class/rtrs-client/s1/paths/*/state | tr '\\n' ' ' \
              | grep -q 'open connected'";
    guest.wait_until(&format!("! ({up})"), Duration::from_secs(60))?;
    guest.wait_until(up, Duration::from_secs(150))?;
    guest.sh("kill $(cat /tmp/writer); sleep 1; umount -f /mnt 2>/dev/null; umount -l /mnt 2>/dev/null; sleep 1")?;
    guest.sh("set -e
         echo 3 >/proc/sys/vm/drop_caches
         fsck.ext4 -p /dev/rnbd0 || [ $? = 1 ]
         fsck.ext4 -f -n /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         sha256sum </mnt/kept | cmp - /tmp/sum
         umount /mnt")?;
    unmap(&mut guest, 0)
}

/// Two interfaces on two cores, and a client on both: each core serves the volume in memory and the disk,
/// which is the first one's.
#[test]
fn two_cores_serve_two_interfaces_at_once() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(64 << 20)?;
    let words = "isthmus.net.1.address=10.1.0.1/24 isthmus.net.1.core=1 \
                 isthmus.volume.0.name=ram0 isthmus.volume.1.name=disk0 isthmus.volume.1.disk=0";
    let (first, second) = (Wire::new()?, Wire::new()?);
    let ((ours, theirs), (ours_too, theirs_too)) = (first.datagrams(), second.datagrams());
    let spec = gateway_spec(1500, words)?.cpus(2).nic(ours).nic(ours_too).first_mac(1);
    let mut gateway = spec.disk(Disk::new(disk.path())).start()?;
    gateway.wait_ready()?;
    let spec = system()?.spec("client", &["10.0.0.2/24", "10.1.0.2/24"], 1500);
    let spec = spec.nic(theirs).nic(theirs_too).first_mac(11);
    let mut guest = Guest::start("client", spec)?;
    guest.wait_up()?;
    guest.soft_roce()?;
    let told = on_two_cores(&mut gateway, &mut guest).map_err(|error| {
        let log = guest.sh("dmesg | tail -20; rdma statistic show link");
        error.context(log.unwrap_or_default())
    });
    let log = gateway.run("show log").map_or_else(|error| format!("{error:#}"), |log| log.text);
    told.with_context(|| format!("the appliance's log:\n{log}"))
}

fn on_two_cores(gateway: &mut Vm, guest: &mut Guest) -> Result<()> {
    let other = "ip:10.1.0.2@ip:10.1.0.1";
    guest.sh("modprobe rnbd-client")?;
    map(guest, "s1", storage::PATH, "ram0", "")?;
    map(guest, "s2", other, "disk0", "")?;
    ensure!(map(guest, "s2", other, "ram0", "").is_err(), "a second writer, on the other core");
    let fio = |device: &str| {
        format!(
            "fio --name=v --filename=/dev/{device} --direct=1 --ioengine=libaio --thread --rw=randrw \
             --bsrange=512-16384 --size=4m --iodepth=2 --verify=crc32c --verify_fatal=1"
        )
    };
    let (one, two) = (fio("rnbd0"), fio("rnbd1"));
    let both =
        format!("{one} >/tmp/one & other=$!; {two} >/tmp/two; s=$?; wait $other && [ $s = 0 ]");
    let (status, _) = guest.try_sh(&both, Duration::from_secs(300))?;
    ensure!(status == 0, "fio: {}", guest.sh("cat /tmp/one /tmp/two")?);
    // What one core wrote the other reads.
    guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=64k count=32 oflag=direct 2>/dev/null")?;
    guest.sh("dd if=/dev/rnbd0 bs=64k count=32 iflag=direct 2>/dev/null | sha256sum >/tmp/sum")?;
    unmap(guest, 0)?;
    map(guest, "s2", other, "ram0", "")?;
    guest.sh(
        "dd if=/dev/rnbd0 bs=64k count=32 iflag=direct 2>/dev/null | sha256sum | cmp - /tmp/sum",
    )?;
    gateway.run("ls /rtrs-server/s2/paths")?.contains(other)?;
    let loops = gateway.run("show loops --json")?.json()?;
    for core in 0..2 {
        let served = &loops[core]["stages"][2];
        ensure!(served["stage"] == "serve" && served["items"].as_u64() > Some(100), "{loops}");
    }
    // The paths of a session share the order of its requests, which is one loop's affair.
    let add = "echo ip:10.0.0.2@ip:10.0.0.1 >/sys/class/rtrs-client/s2/add_path";
    ensure!(guest.sh(add).is_err(), "a path on another core was let in");
    gateway.run("show log")?.contains("the session has its paths on another core")?;
    gateway
        .run("write /rtrs-server/s2/paths/ip:10.1.0.2@ip:10.1.0.1/stats/reset_all 1")?
        .lacks("error")?;
    unmap(guest, 0)?;
    unmap(guest, 1)
}
