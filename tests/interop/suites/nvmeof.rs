//! Stock Linux's NVMe/TCP host (nvme-tcp and nvme-cli of Debian 12) against the image.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::Site;
use launch::guest::Guest;

const SUBSYSTEM: &str = "nqn.2026-01.com.example:store";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
const HOST_ID: &str = "6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
/// The namespace's UUID: block devices are found by it, because their numbers are not those of namespaces.
const UUID: &str = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0";

/// A subsystem with a volume in memory, for the host.
fn words() -> String {
    format!(
        "isthmus.volume.0.name=ram0 isthmus.volume.0.size=64MiB isthmus.subsystem.0.nqn={SUBSYSTEM} \
         isthmus.subsystem.0.hosts={HOST} isthmus.subsystem.0.namespace.0.nsid=1 \
         isthmus.subsystem.0.namespace.0.volume=ram0 isthmus.subsystem.0.namespace.0.uuid={UUID}"
    )
}

/// Secrets of the host and of the controller, and one that neither has.
const HOST_SECRET: &str = "DHHC-1:01:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:";
const CONTROLLER_SECRET: &str = "DHHC-1:00:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:";
const OTHER_SECRET: &str = "DHHC-1:01:8bn5e1ZTqKOZs7ZuiJCc6WVVh8kHNq9qyY1ukHgOwqZ/+puB:";

/// The same subsystem, for a host that proves its name.
fn secret_words(groups: &str) -> String {
    format!(
        "{} isthmus.nvme.dhchap_groups={groups} isthmus.nvme_host.0.nqn={HOST} \
         isthmus.nvme_host.0.dhchap_secret={HOST_SECRET} \
         isthmus.nvme_host.0.dhchap_controller_secret={CONTROLLER_SECRET} \
         isthmus.subsystem.0.dhchap=required",
        words()
    )
}

/// Connects with further options. Returns the block device.
fn connect(guest: &mut Guest, options: &str) -> Result<String> {
    guest.sh("modprobe nvme-tcp")?;
    guest
        .sh(&format!(
            "nvme connect -t tcp -a 10.0.0.1 -s 4420 -n {SUBSYSTEM} -q {HOST} -I {HOST_ID} {options}"
        ))
        .with_context(|| guest.sh("dmesg | tail -n 20").unwrap_or_default())?;
    // Not the hidden device of a path, `nvme0c0n1`.
    let found = format!("grep -l {UUID} /sys/block/nvme*/uuid | grep -v c[0-9]*n");
    guest.wait_until(&found, Duration::from_secs(20)).context("the namespace does not appear")?;
    let path = guest.sh(&found)?;
    let name = path.split('/').nth(3).context("no block device")?;
    Ok(format!("/dev/{name}"))
}

fn disconnect(guest: &mut Guest) -> Result<()> {
    guest.sh(&format!("nvme disconnect -n {SUBSYSTEM}"))?;
    Ok(())
}

fn fio(guest: &mut Guest, device: &str, depth: u32, sizes: &str) -> Result<()> {
    let fio = format!(
        "fio --name=verify --filename={device} --direct=1 --ioengine=libaio --thread --rw=randrw \
         --bsrange={sizes} --size=16m --iodepth={depth} --verify=crc32c --verify_backlog=64 \
         --verify_fatal=1 --output-format=terse"
    );
    let (status, output) = guest.try_sh(&fio, Duration::from_secs(300))?;
    ensure!(status == 0, "fio ended with status {status}:\n{output}");
    Ok(())
}

#[test]
fn volume_is_mapped_and_keeps_its_data() -> Result<()> {
    Site::run_scenario(1500, &words(), |site| {
        let guest = &mut site.client;
        let device = connect(guest, "")?;
        ensure!(guest.sh(&format!("blockdev --getsize64 {device}"))?.trim() == "67108864");
        guest.sh(&format!(
            "set -e
             dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
             dd if=/tmp/data of={device} bs=1M oflag=direct conv=fsync 2>/dev/null
             echo 3 >/proc/sys/vm/drop_caches
             dd if={device} bs=1M count=4 iflag=direct 2>/dev/null | cmp - /tmp/data"
        ))?;
        fio(guest, &device, 32, "512-65536")?;
        fio(guest, &device, 128, "4096-4096")?;
        fio(guest, &device, 4, "1048576-1048576")?;
        disconnect(guest)
    })
}

#[test]
fn ext4_keeps_its_data_with_digests_in_all_settings() -> Result<()> {
    Site::run_scenario(1500, &words(), |site| {
        let guest = &mut site.client;
        guest.sh("modprobe ext4")?;
        for digests in ["", "-g", "-G", "-g -G"] {
            let device = connect(guest, digests).with_context(|| format!("with {digests:?}"))?;
            guest.sh(&format!(
                "set -e
                 mkfs.ext4 -q -F -E lazy_itable_init=0 {device}
                 mount -t ext4 -o discard {device} /mnt
                 dd if=/dev/urandom of=/mnt/file bs=1M count=16 2>/dev/null
                 sync
                 sha256sum </mnt/file >/tmp/sum
                 umount /mnt
                 echo 3 >/proc/sys/vm/drop_caches
                 fsck.ext4 -f -n {device}
                 mount -t ext4 {device} /mnt
                 sha256sum </mnt/file | cmp - /tmp/sum
                 rm /mnt/file
                 umount /mnt"
            ))?;
            disconnect(guest)?;
        }
        Ok(())
    })
}

#[test]
fn discovery_lists_the_reached_address_and_a_stranger_is_refused() -> Result<()> {
    Site::run_scenario(1500, &words(), |site| {
        let Site { gateway, client, .. } = site;
        client.sh("modprobe nvme-tcp")?;
        for port in [8009, 4420] {
            let log = client.sh(&format!(
                "nvme discover -t tcp -a 10.0.0.1 -s {port} -q {HOST} -I {HOST_ID}"
            ))?;
            for wanted in ["trtype:  tcp", "traddr:  10.0.0.1", "trsvcid: 4420", SUBSYSTEM] {
                ensure!(log.contains(wanted), "{wanted}:\n{log}");
            }
        }
        let stranger = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001";
        let (status, output) = client.try_sh(
            &format!(
                "nvme connect -t tcp -a 10.0.0.1 -s 4420 -n {SUBSYSTEM} -q {stranger} \
                 -I 00000000-0000-4000-8000-000000000001"
            ),
            Duration::from_secs(60),
        )?;
        ensure!(status != 0, "a host that is not listed was admitted: {output}");
        gateway.run("show refused")?.contains("host_not_admitted")?;
        let all = client.sh(&format!(
            "nvme connect-all -t tcp -a 10.0.0.1 -q {HOST} -I {HOST_ID}; nvme list-subsys"
        ))?;
        ensure!(all.contains(SUBSYSTEM), "{all}");
        disconnect(client)
    })
}

#[test]
fn connection_lives_without_io_and_disconnects_at_once() -> Result<()> {
    Site::run_scenario(1500, &words(), |site| {
        let guest = &mut site.client;
        for turn in 0..5 {
            let device = connect(guest, "")?;
            if turn == 0 {
                std::thread::sleep(Duration::from_secs(20));
            }
            guest.sh(&format!(
                "dd if={device} of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null"
            ))?;
            disconnect(guest)?;
        }
        let log = guest.sh("dmesg | grep -cE 'reconnect|timeout|I/O error' || true")?;
        ensure!(log.trim() == "0", "{}", guest.sh("dmesg | tail -n 30")?);
        Ok(())
    })
}

/// A second host on the same machine: another NQN and another identifier.
const SECOND: &str = "nqn.2014-08.org.nvmexpress:uuid:7f9e2b63-1a1d-4b6f-8f4d-6e9f1c9a8a22";
const SECOND_ID: &str = "7f9e2b63-1a1d-4b6f-8f4d-6e9f1c9a8a22";

/// The block device of a controller of that host. Without multipath each controller has devices of its own.
fn device_of(guest: &mut Guest, host: &str) -> Result<String> {
    let found = format!(
        "for c in /sys/class/nvme/nvme*; do \
         if grep -qx {host} $c/hostnqn; then ls $c | grep -E '^nvme[0-9]+n[0-9]+$'; fi; done | grep ."
    );
    guest.wait_until(&found, Duration::from_secs(20)).context("the namespace does not appear")?;
    Ok(format!("/dev/{}", guest.sh(&found)?.trim()))
}

#[test]
fn reservation_of_one_host_excludes_writes_of_the_other() -> Result<()> {
    let words = words().replace(&format!("hosts={HOST}"), "hosts=*");
    Site::run_scenario(1500, &words, |site| {
        let Site { gateway, client: guest, .. } = site;
        guest.sh("modprobe nvme-core multipath=0; modprobe nvme-tcp")?;
        let hosts = [(HOST, HOST_ID), (SECOND, SECOND_ID)];
        for (host, id) in hosts {
            // nvme-cli takes another host at the same address for the same connection.
            guest.sh(&format!(
                "echo transport=tcp,traddr=10.0.0.1,trsvcid=4420,nqn={SUBSYSTEM},hostnqn={host},hostid={id} \
                 > /dev/nvme-fabrics"
            ))?;
        }
        let one = device_of(guest, HOST)?;
        let two = device_of(guest, SECOND)?;
        // CPTPL 0: a volume in memory keeps nothing through a power loss.
        let register = |device: &str, key: u32| {
            format!("nvme resv-register {device} -n 1 --nrkey={key} --rrega=0 --cptpl=0")
        };
        guest.sh(&register(&one, 0x11))?;
        guest.sh(&register(&two, 0x22))?;
        // Write Exclusive.
        guest.sh(&format!("nvme resv-acquire {one} -n 1 --crkey=0x11 --rtype=1 --racqa=0"))?;
        let report = guest.sh(&format!("nvme resv-report {one} -n 1 --eds -o json"))?;
        for wanted in ["\"rtype\":1", "\"regctl\":2"] {
            let dense: String = report.split_whitespace().collect();
            ensure!(dense.contains(wanted), "{wanted}:\n{report}");
        }
        let write =
            |device: &str| format!("dd if=/dev/zero of={device} bs=4k count=1 oflag=direct 2>&1");
        guest.sh(&write(&one))?;
        let (status, output) = guest.try_sh(&write(&two), Duration::from_secs(60))?;
        ensure!(status != 0, "the other host has written: {output}");
        guest.sh(&format!("dd if={two} of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null"))?;
        let refused = format!("nvme resv-acquire {two} -n 1 --crkey=0x22 --rtype=1 --racqa=0");
        let (status, output) = guest.try_sh(&refused, Duration::from_secs(60))?;
        ensure!(status != 0, "both hold the reservation: {output}");
        gateway
            .run(&format!("nvme show {SUBSYSTEM}"))?
            .contains("reservation write-exclusive, 2")?;
        // The second host preempts the first, which may not write any more.
        guest.sh(&format!(
            "nvme resv-acquire {two} -n 1 --crkey=0x22 --prkey=0x11 --rtype=1 --racqa=2"
        ))?;
        guest.sh(&write(&two))?;
        let (status, output) = guest.try_sh(&write(&one), Duration::from_secs(60))?;
        ensure!(status != 0, "the preempted host has written: {output}");
        let notices = guest.sh(&format!("nvme resv-notif-log {}", one.trim_end_matches("n1")))?;
        // 1: registration preempted (NVMe Base 2.0, figure 222). nvme-cli 2.3 calls it an empty page, and 2 so.
        let words: Vec<&str> = notices.split_whitespace().collect();
        ensure!(words.windows(3).any(|words| words == ["Type", ":", "1"]), "{notices}");
        guest.sh(&format!("nvme resv-release {two} -n 1 --crkey=0x22 --rtype=1 --rrela=0"))?;
        guest.sh(&write(&one))?;
        disconnect(guest)
    })
}

#[test]
fn host_proves_its_name_and_the_controller_its_own() -> Result<()> {
    for groups in ["ffdhe3072,ffdhe2048,null", "ffdhe8192", "null"] {
        Site::run_scenario(1500, &secret_words(groups), |site| {
            let Site { gateway, client, .. } = site;
            for (options, proof) in [
                (format!("-S {HOST_SECRET}"), "DH-HMAC-CHAP"),
                (format!("-S {HOST_SECRET} -C {CONTROLLER_SECRET}"), "DH-HMAC-CHAP both ways"),
            ] {
                let device = connect(client, &options)
                    .with_context(|| format!("with {options} and the groups {groups}"))?;
                gateway.run("nvme hosts --json")?.contains(&format!("\"{proof}\""))?;
                fio(client, &device, 32, "512-65536")?;
                // Writing the secret makes the host authenticate again, on all queues, while it reads.
                client.sh(&format!(
                    "set -e
                     dmesg -c >/dev/null
                     dd if={device} of=/dev/null bs=64k count=512 iflag=direct 2>/dev/null &
                     for secret in /sys/class/nvme/nvme*/dhchap_secret; do
                         echo {HOST_SECRET} >$secret
                     done
                     wait"
                ))?;
                client.wait_until(
                    "dmesg | grep -q re-authenticating && ! dmesg | grep -q 'authentication failed'",
                    Duration::from_secs(20),
                )?;
                std::thread::sleep(Duration::from_secs(3));
                fio(client, &device, 8, "4096-4096")?;
                let failed = client.sh("dmesg | grep -cE 'failed|reconnect|timeout' || true")?;
                ensure!(failed.trim() == "0", "{}", client.sh("dmesg | tail -n 30")?);
                disconnect(client)?;
            }
            gateway.run("show refused")?.lacks("dhchap")?;
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn host_with_a_wrong_secret_or_none_is_refused() -> Result<()> {
    Site::run_scenario(1500, &secret_words("ffdhe2048"), |site| {
        let Site { gateway, client, .. } = site;
        client.sh("modprobe nvme-tcp")?;
        for (options, reason) in [
            (format!("-S {OTHER_SECRET}"), Some("dhchap_failed")),
            // The host rejects the controller.
            (format!("-S {HOST_SECRET} -C {OTHER_SECRET}"), Some("dhchap_failed")),
            (String::new(), None),
        ] {
            let begun = std::time::Instant::now();
            let (status, output) = client.try_sh(
                &format!(
                    "nvme connect -t tcp -a 10.0.0.1 -s 4420 -n {SUBSYSTEM} -q {HOST} -I {HOST_ID} \
                     {options}"
                ),
                Duration::from_secs(90),
            )?;
            ensure!(status != 0, "a host with {options:?} was admitted: {output}");
            // Linux waits for 60 s for a completion if the connection ends before.
            ensure!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
            if let Some(reason) = reason {
                gateway.run("show refused")?.contains(reason)?;
            }
            let found = client.sh("ls /sys/block | grep -c nvme || true")?;
            ensure!(found.trim() == "0", "a block device appeared");
        }
        gateway.run("show config")?.lacks("DHHC-1")?;
        gateway.run("show log")?.lacks("DHHC-1")?;
        connect(client, &format!("-S {HOST_SECRET} -C {CONTROLLER_SECRET}"))?;
        disconnect(client)
    })
}
