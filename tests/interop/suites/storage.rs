//! Stock Linux's rnbd-client against the image.

mod limits;
mod readme;
mod run;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::{Site, client_of, gateway_spec, map, storage, unmap};
use launch::guest::Wire;
use launch::qemu::{Disk, Machine, Vm};

#[test]
fn ext4_keeps_its_data() -> Result<()> {
    Site::run_mapped(1500, "", |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn ext4_keeps_its_data_with_jumbo_frames_and_fixed_keys() -> Result<()> {
    let words = "isthmus.rnbd.always_invalidate=false";
    Site::run_mapped(9000, words, |guest| storage::ext4_keeps_its_data(guest, 32))
}

#[test]
fn fio_verifies() -> Result<()> {
    Site::run_mapped(1500, "", |guest| storage::fio_verifies(guest, 16, 32))
}

#[test]
fn fio_verifies_with_a_short_queue_and_small_chunks() -> Result<()> {
    let words = "isthmus.rnbd.queue_depth=8 isthmus.rnbd.chunk_size=8KiB";
    Site::run_mapped(1500, words, |guest| storage::fio_verifies(guest, 4, 32))
}

#[test]
fn volume_is_mapped_and_unmapped_twenty_times() -> Result<()> {
    Site::run_scenario(1500, "", |site| storage::map_and_unmap(&mut site.client, 20))
}

#[test]
fn connects_without_delay() -> Result<()> {
    Site::run_scenario(1500, "", |site| storage::connects_without_delay(&mut site.client, 10))
}

#[test]
fn access_modes_match_linux() -> Result<()> {
    Site::run_scenario(1500, "", |site| storage::access_modes_match_linux(&mut site.client))
}

/// The object tree has the names of Linux's sysfs, on the console and over HTTP. An open device stays in it when its
/// export is removed.
#[test]
fn object_tree_has_the_names_of_linux() -> Result<()> {
    let words = "isthmus.volume.0.name=a isthmus.volume.0.size=1MiB isthmus.volume.1.name=b \
                 isthmus.volume.1.size=1MiB isthmus.export.0.name=a isthmus.export.0.volume=a \
                 isthmus.export.1.name=other isthmus.export.1.volume=a";
    Site::run_scenario(1500, words, |site| {
        let Site { gateway, client, .. } = site;
        client.sh("modprobe rnbd-client")?;
        map(client, "s1", storage::PATH, "a", "")?;
        ensure!(
            map(client, "s1", storage::PATH, "/dev/a", "access_mode=ro").is_err(),
            "the volume was mapped twice in one session"
        );
        client.sh("dmesg | grep -q 'server responded: -17'")?;
        let path = format!("/rtrs-server/s1/paths/{}", storage::PATH);
        let stats = gateway.run(&format!("cat {path} --json"))?.json()?;
        for name in ["disconnect", "hca_name", "hca_port", "src_addr", "dst_addr"] {
            ensure!(!stats[name].is_null(), "{name} is missing: {stats}");
        }
        ensure!(stats["stats"]["rdma"]["rd_cnt"].as_u64() > Some(0), "{stats}");
        gateway.run(&format!("write {path}/stats/rdma 2"))?.contains("error: accepted: 1")?;
        gateway.run(&format!("write {path}/stats/rdma 1"))?.lacks("error")?;
        let encoded = path.replace(':', "%3A").replace('@', "%40");
        let rdma = client.sh(&format!("wget -q -O - http://10.0.0.1/api{encoded}/stats/rdma"))?;
        ensure!(rdma.contains("\"rd_cnt\":0,"), "{rdma}");
        let devices = |gateway: &mut Vm| gateway.run("cat /rnbd-server/ctl/devices --json")?.json();
        let open = devices(gateway)?;
        ensure!(open["a"]["sessions"]["s1"]["access_mode"] == "rw", "{open}");
        ensure!(
            open["other"]["sessions"]["s1"].is_null(),
            "the device is listed under another export: {open}"
        );
        gateway.run("export add /dev/other volume=b")?.contains("error")?;
        // Data sent from a volume may have to be retransmitted, so its memory is not free at once.
        let free = |gateway: &mut Vm| {
            let memory = gateway.run("show memory --json")?.json()?;
            memory["arena_free"].as_u64().context("no arena_free")
        };
        let before = free(gateway)?;
        gateway.run("volume create gone size=1MiB")?.lacks("error")?;
        gateway.run("volume delete gone force")?.lacks("error")?;
        ensure!(free(gateway)? < before, "the memory is free at once");
        gateway.run("export remove a")?.lacks("error")?;
        client.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct")?;
        let open = devices(gateway)?;
        ensure!(open["a"]["block_dev"] == "a", "{open}");
        gateway
            .run("write /rnbd-server/ctl/devices/a/sessions/s1/force_close 1")?
            .lacks("error")?;
        client.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
        ensure!(devices(gateway)?["a"].is_null(), "a closed device without an export is listed");
        client.sh("echo force >/sys/block/rnbd0/rnbd/unmap_device")?;
        Ok(())
    })
}

/// Secure erase is not advertised, because Linux's client oopses on it (rnbd-clt.c maps the data of a request without
/// data).
#[test]
fn flushes_and_discards() -> Result<()> {
    Site::run_mapped(1500, "", storage::flushes_and_discards)
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
    Site::run_mapped(1500, "", |guest| {
        // Longer than the timeout of heartbeats.
        std::thread::sleep(Duration::from_secs(45));
        guest.sh("[ \"$(cat /sys/class/rtrs-client/s1/paths/*/state)\" = connected ]")?;
        guest.sh("[ $(cut -d' ' -f1 /sys/class/rtrs-client/s1/paths/*/stats/reconnects) = 0 ]")?;
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct")?;
        Ok(())
    })
}

/// A power cut while the client writes. The client reconnects afterwards, and synced data are there.
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
    guest.wait_until("[ -s /mnt/other ]", Duration::from_secs(30))?;
    drop(gateway);
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    // Linux detects the cut at its next request or heartbeat, and reconnects 30 s later.
    let up = "cat /sys/block/rnbd0/rnbd/state /sys/class/rtrs-client/s1/paths/*/state | tr '\\n' ' ' \
              | grep -q 'open connected'";
    guest.wait_until(&format!("! ({up})"), Duration::from_secs(60))?;
    guest.wait_until(up, Duration::from_secs(150))?;
    guest.sh("kill $(cat /tmp/writer); while pidof dd >/dev/null; do sleep 0.2; done
         umount -f /mnt 2>/dev/null; umount -l /mnt 2>/dev/null
         while [ -e /sys/fs/ext4/rnbd0 ]; do sleep 0.2; done")?;
    guest.sh("set -e
         echo 3 >/proc/sys/vm/drop_caches
         fsck.ext4 -p /dev/rnbd0 || [ $? = 1 ]
         fsck.ext4 -f -n /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         sha256sum </mnt/kept | cmp - /tmp/sum
         umount /mnt")?;
    unmap(&mut guest, 0)
}

/// Two namespaces of an NVMe drive, with blocks of 512 and 4096 bytes, mapped by a stock client. Then the drive is
/// pulled out under load: the client gets errors, and the gateway keeps running.
#[test]
fn namespaces_are_mapped_and_a_drive_is_pulled_out_under_load() -> Result<()> {
    let disk = |mib: u64| {
        let disk = tempfile::NamedTempFile::new()?;
        disk.as_file().set_len(mib << 20)?;
        Ok::<_, anyhow::Error>(disk)
    };
    let (small, large, other) = (disk(64)?, disk(64)?, disk(16)?);
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let words = "isthmus.volume.0.name=small isthmus.volume.0.disk=nvme:GONE/1 \
                 isthmus.volume.1.name=large isthmus.volume.1.disk=nvme:GONE/2 \
                 isthmus.volume.2.name=other isthmus.volume.2.disk=nvme:STAYS/1";
    let mut gateway = gateway_spec(1500, words)?
        .machine(Machine::Pc)
        .nic(first)
        .first_mac(1)
        .disk(Disk::new(small.path()).nvme(0, 1).serial("GONE"))
        .disk(Disk::new(large.path()).nvme(0, 2).block_size(4096))
        .disk(Disk::new(other.path()).nvme(1, 1).serial("STAYS"))
        .start()?;
    gateway.wait_ready()?;
    let mut guest = client_of(1500, |spec| spec.nic(second))?;
    guest.sh("modprobe rnbd-client")?;
    for (number, volume) in ["small", "large", "other"].into_iter().enumerate() {
        map(&mut guest, "s1", storage::PATH, volume, "")?;
        let size = if volume == "large" { 4096 } else { 512 };
        guest
            .sh(&format!("[ $(cat /sys/block/rnbd{number}/queue/logical_block_size) = {size} ]"))?;
    }
    storage::fio_verifies(&mut guest, 16, 32)?;
    guest.sh("set -e
         dd if=/dev/urandom of=/tmp/kept bs=1M count=16
         dd if=/tmp/kept of=/dev/rnbd1 bs=1M oflag=direct conv=fsync
         blkdiscard -z -l 1M /dev/rnbd1
         echo 3 >/proc/sys/vm/drop_caches
         tail -c +1048577 /tmp/kept >/tmp/rest
         dd if=/dev/rnbd1 bs=1M count=1 iflag=direct | cmp -n $((1 << 20)) - /dev/zero
         dd if=/dev/rnbd1 bs=1M skip=1 count=15 iflag=direct | cmp - /tmp/rest
         dd if=/tmp/kept of=/dev/rnbd2 bs=1M count=8 oflag=direct conv=fsync")?;
    guest.sh("(while dd if=/dev/zero of=/dev/rnbd0 bs=64k count=256 oflag=direct; do :; done >/dev/null 2>&1
         touch /tmp/failed) & sleep 1; [ ! -e /tmp/failed ]")?;
    let disks = gateway.run("show disks --json")?.json()?;
    let location = disks[0]["location"].as_str().unwrap_or_default();
    gateway.pull_out("nvme0", location)?;
    guest.wait_until("[ -e /tmp/failed ]", Duration::from_secs(60))?;
    gateway.run("show log")?.contains("nvme:GONE/1: the drive does not answer any more")?;
    guest.sh("set -e
         ! dd if=/dev/rnbd1 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
         dd if=/dev/rnbd2 bs=1M count=8 iflag=direct | cmp -n $((8 << 20)) - /tmp/kept")?;
    Ok(())
}

/// A volume of extents is created, mapped, filled, grown while it is mapped, and deleted.
#[test]
fn a_volume_of_a_disk_grows_while_it_is_mapped() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(96 << 20)?;
    let wire = Wire::new()?;
    let (first, second) = wire.datagrams();
    let words = "isthmus.volume.0.size=1MiB";
    let spec = gateway_spec(1500, words)?.nic(first).first_mac(1).disk(Disk::new(disk.path()));
    let mut gateway = spec.start()?;
    gateway.wait_ready()?;
    gateway.run("volume create first size=8MiB disk=0")?.lacks("error")?;
    gateway.run("volume create data size=16MiB disk=0")?.lacks("error")?;
    gateway.run("volume create last size=8MiB disk=0")?.lacks("error")?;
    let mut guest = client_of(1500, |spec| spec.nic(second))?;
    guest.sh("modprobe rnbd-client")?;
    map(&mut guest, "s1", storage::PATH, "data", "")?;
    storage::fio_verifies(&mut guest, 8, 8)?;
    guest.sh("dd if=/dev/urandom of=/tmp/kept bs=1M count=16 && dd if=/tmp/kept of=/dev/rnbd0 bs=64k oflag=direct")?;
    // The next extent is used by another volume, so the volume gets a second extent.
    gateway.run("volume grow data size=40MiB")?.contains("volume data has 40MiB")?;
    gateway.run("volume list csv")?.contains("data,41943040,0,0,2,false,1,online")?;
    guest.sh("echo $((40 << 11)) >/sys/block/rnbd0/rnbd/resize")?;
    guest.sh("set -e
         [ $(cat /sys/block/rnbd0/size) = $((40 << 11)) ]
         echo 3 >/proc/sys/vm/drop_caches
         dd if=/dev/rnbd0 bs=1M count=16 iflag=direct 2>/dev/null | cmp - /tmp/kept
         dd if=/dev/rnbd0 bs=1M skip=16 iflag=direct 2>/dev/null | cmp -n $((24 << 20)) - /dev/zero
         dd if=/tmp/kept of=/dev/rnbd0 bs=96k seek=120 oflag=direct
         dd if=/dev/rnbd0 bs=96k skip=120 count=171 iflag=direct 2>/dev/null | cmp -n $((16 << 20)) - /tmp/kept")?;
    gateway.run("volume delete data")?.contains("error")?.contains("has it open")?;
    gateway.run("device list csv")?.contains("data,s1,data,rw,")?;
    gateway.run("device close data s1")?.lacks("error")?;
    guest.sh("! dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null")?;
    guest.sh("echo force >/sys/block/rnbd0/rnbd/unmap_device")?;
    gateway.run("volume delete data force")?.contains("volume data is gone")?;
    Ok(())
}

/// Sessions that share memory are promised more than there is, and all of their data are correct.
#[test]
fn sessions_share_memory() -> Result<()> {
    let words =
        "isthmus.volume.0.size=32MiB isthmus.rnbd.oversubscribe=64 isthmus.memory.arena=96MiB";
    let mut site = Site::boot(1500, words)?;
    let guest = &mut site.client;
    guest.sh("modprobe -a rnbd-client ext4")?;
    map(guest, "s1", storage::PATH, "ram0", "")?;
    for session in 2..=6 {
        map(guest, &format!("s{session}"), storage::PATH, "ram0", "access_mode=ro")?;
    }
    storage::fio_verifies(guest, 16, 32)?;
    let memory = site.gateway.run("show memory --json")?.json()?;
    ensure!(memory["promised"].as_u64() > memory["arena"].as_u64(), "{memory}");
    ensure!(
        memory["shared"]["size"] == memory["shared"]["free"],
        "shared memory is not free again: {memory}"
    );
    ensure!(memory["shared"]["lowest"].as_u64() < memory["shared"]["size"].as_u64(), "{memory}");
    for number in 0..6 {
        unmap(&mut site.client, number)?;
    }
    Ok(())
}

/// The appliance and the client are on VLAN 5. Soft-RoCE is on the card, and selects the VLAN by the address.
#[test]
fn client_on_a_vlan_maps_and_verifies() -> Result<()> {
    Site::run_scenario(1500, "isthmus.net.0.vlan=5", |site| {
        let client = &mut site.client;
        ensure!(
            client.sh("ping -c 1 -W 2 10.0.0.1").is_err(),
            "the appliance answers untagged frames"
        );
        client.sh("modprobe 8021q && ip addr flush dev eth0 && \
             ip link add link eth0 name eth0.5 type vlan id 5 && \
             ip addr add 10.0.0.2/24 dev eth0.5 && ip link set eth0.5 up")?;
        // Small, full-sized and fragmented.
        for size in [56, 1472, 4000] {
            client.sh(&format!("ping -c 3 -W 2 -s {size} 10.0.0.1"))?;
        }
        storage::map_ram0(client)?;
        storage::fio_verifies(client, 16, 32)
    })
}
