//! The image maps a namespace of stock Linux's NVMe/TCP target (nvmet of the guest's kernel), and exports it over NVMe/TCP
//! to the guest's own host.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::Site;
use launch::guest::Guest;

/// Subsystem of the guest's target, and of the image.
const FAR: &str = "nqn.2026-01.com.example:far";
const NEAR: &str = "nqn.2026-01.com.example:near";
/// The image as a host of the guest's target.
const IMAGE: &str = "nqn.2026-01.com.example:image";
const IMAGE_SECRET: &str = "DHHC-1:01:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:";
const TARGET_SECRET: &str = "DHHC-1:00:oTGLJIkEQBPfhHOj3d/MJNiBuDc8/rsGEaEuShBpkVLVlkod:";
/// The guest's own host, and the UUID of the image's namespace.
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
const HOST_ID: &str = "6e8d1a52-0f0c-4f5e-9e3c-5d8f0b8f7f11";
const UUID: &str = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f1";

/// The image's configuration: the remote with further keys, and its export.
fn words(more: &str) -> String {
    let far = "isthmus.remote.0";
    let near = "isthmus.subsystem.0";
    format!(
        "{far}.name=far {far}.kind=nvme-tcp {far}.address=10.0.0.2 {far}.nqn={FAR} {far}.host_nqn={IMAGE} \
         {far}.connections=2 {far}.keepalive_ms=5000 {more} {near}.nqn={NEAR} {near}.hosts={HOST} \
         {near}.namespace.0.nsid=1 {near}.namespace.0.volume=far {near}.namespace.0.uuid={UUID}"
    )
}

/// Starts the guest's target with a disk in memory. `admit` are commands that admit the image.
fn start_target(guest: &mut Guest, admit: &str) -> Result<()> {
    guest.sh(&format!(
        "set -e
         modprobe brd rd_nr=1 rd_size=65536
         modprobe nvmet_tcp
         [ -d /sys/kernel/config/nvmet ] || mount -t configfs none /sys/kernel/config
         cd /sys/kernel/config/nvmet
         mkdir -p subsystems/{FAR}/namespaces/1 ports/1
         {admit}
         echo /dev/ram0 >subsystems/{FAR}/namespaces/1/device_path
         echo 1 >subsystems/{FAR}/namespaces/1/enable
         echo tcp >ports/1/addr_trtype
         echo ipv4 >ports/1/addr_adrfam
         echo 10.0.0.2 >ports/1/addr_traddr
         echo 4420 >ports/1/addr_trsvcid
         ln -s /sys/kernel/config/nvmet/subsystems/{FAR} ports/1/subsystems/{FAR}"
    ))?;
    Ok(())
}

/// Connects the guest's host to the image. Returns the block device, once the image has mapped the target.
fn connect(guest: &mut Guest) -> Result<String> {
    guest.sh("modprobe nvme-tcp")?;
    guest
        .sh(&format!("nvme connect -t tcp -a 10.0.0.1 -s 4420 -n {NEAR} -q {HOST} -I {HOST_ID}"))?;
    let found = format!("grep -l {UUID} /sys/block/nvme*/uuid | grep -v c[0-9]*n");
    guest.wait_until(&found, Duration::from_secs(30)).context("the namespace does not appear")?;
    let path = guest.sh(&found)?;
    let name = path.split('/').nth(3).context("no block device")?;
    Ok(format!("/dev/{name}"))
}

fn fio(device: &str, sizes: &str) -> String {
    format!(
        "fio --name=verify --filename={device} --direct=1 --ioengine=libaio --thread --rw=randrw \
         --bsrange={sizes} --size=16m --iodepth=32 --verify=crc32c --verify_backlog=64 \
         --verify_fatal=1 --output-format=terse"
    )
}

fn verify(guest: &mut Guest, device: &str, sizes: &str) -> Result<()> {
    let (status, output) = guest.try_sh(&fio(device, sizes), Duration::from_secs(300))?;
    ensure!(status == 0, "fio ended with status {status}:\n{output}");
    Ok(())
}

const ANY_HOST: &str = "echo 1 >subsystems/nqn.2026-01.com.example:far/attr_allow_any_host";

#[test]
fn namespace_of_stock_linux_is_mapped_and_exported_again() -> Result<()> {
    Site::run_scenario(1500, &words("isthmus.remote.0.digests=both"), |site| {
        let Site { gateway, client, .. } = site;
        start_target(client, ANY_HOST)?;
        let device = connect(client)?;
        ensure!(client.sh(&format!("blockdev --getsize64 {device}"))?.trim() == "67108864");
        for sizes in ["512-65536", "4096-4096", "1048576-1048576"] {
            verify(client, &device, sizes)?;
        }
        // What was written over both is on the guest's own disk.
        client.sh(&format!(
            "set -e
             dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
             dd if=/tmp/data of={device} bs=1M oflag=direct conv=fsync 2>/dev/null
             dd if=/dev/ram0 bs=1M count=4 iflag=direct 2>/dev/null | cmp - /tmp/data
             blkdiscard {device} || true"
        ))?;
        gateway.run("cat /nvme-host/far/state")?.contains("open")?;
        gateway.run("remote list")?.contains("nvme-tcp")?;
        client.sh(&format!("nvme disconnect -n {NEAR}"))?;
        Ok(())
    })
}

#[test]
fn target_that_goes_away_under_load_loses_no_data() -> Result<()> {
    Site::run_scenario(1500, &words(""), |site| {
        let Site { gateway, client, .. } = site;
        start_target(client, ANY_HOST)?;
        let device = connect(client)?;
        let link = format!("/sys/kernel/config/nvmet/ports/1/subsystems/{FAR}");
        client.sh(&format!("{} >/tmp/fio 2>&1 & echo $! >/tmp/pid", fio(&device, "4096-65536")))?;
        for _ in 0..3 {
            client.sh(&format!(
                "sleep 2; rm {link}; sleep 3; ln -s /sys/kernel/config/nvmet/subsystems/{FAR} {link}"
            ))?;
        }
        client.wait_until("! kill -0 $(cat /tmp/pid) 2>/dev/null", Duration::from_secs(300))?;
        let output = client.sh("cat /tmp/fio")?;
        ensure!(!output.contains("verify:") && !output.contains("error="), "{output}");
        gateway.run("cat /nvme-host/far/state")?.contains("open")?;
        client.sh(&format!("nvme disconnect -n {NEAR}"))?;
        Ok(())
    })
}

#[test]
fn image_authenticates_itself_and_the_target() -> Result<()> {
    let admit = format!(
        "mkdir hosts/{IMAGE}
         echo -n {IMAGE_SECRET} >hosts/{IMAGE}/dhchap_key
         echo -n {TARGET_SECRET} >hosts/{IMAGE}/dhchap_ctrl_key
         echo ffdhe2048 >hosts/{IMAGE}/dhchap_dhgroup
         ln -s /sys/kernel/config/nvmet/hosts/{IMAGE} subsystems/{FAR}/allowed_hosts/{IMAGE}"
    );
    let secrets = format!(
        "isthmus.remote.0.dhchap_secret={IMAGE_SECRET} \
         isthmus.remote.0.dhchap_controller_secret={TARGET_SECRET}"
    );
    Site::run_scenario(1500, &words(&secrets), |site| {
        let Site { gateway, client, .. } = site;
        start_target(client, &admit)?;
        let device = connect(client)?;
        verify(client, &device, "4096-65536")?;
        gateway.run("show log")?.lacks("DHHC-1")?;
        client.sh(&format!("nvme disconnect -n {NEAR}"))?;
        Ok(())
    })
}
