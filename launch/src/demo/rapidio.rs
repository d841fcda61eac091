//! The gateway as the host of a RapidIO network, on models of its bridges and a switch, beside a stock Linux host.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::Stage;
use super::wait;
use crate::guest::Guest;
use crate::models::{self, ModelServer};
use crate::progress;
use crate::qemu::{Machine, Program};

/// The gateway at port 5 of a switch, Linux at port 0.
const TOPOLOGY: &str = "A=s0.5,B=s0.0";
const PATIENCE: Duration = Duration::from_secs(90);

pub fn show(stage: &Stage) -> Result<Vec<String>> {
    let qemu = Program::with_vfio_user()?;
    let server = models::build()?;
    let model = ModelServer::start_several(&server, "tsi721", 2, &["--topology", TOPOLOGY])?;
    let step = progress::step("booting the gateway and a Linux host on the models");
    let gateway = stage
        .gateway("isthmus.net.0.address=10.1.0.1/24 isthmus.rapidio.0.role=agent")
        .machine(Machine::Q35);
    let mut gateway = gateway.program(qemu.clone()).vfio_user(&model.socket_of(0)).start()?;
    gateway.wait_ready()?;
    let host = stage.system.spec("host", &[], 1500).program(qemu);
    let mut host = Guest::start("host", host.vfio_user(&model.socket_of(1)))?;
    host.wait_up()?;
    step.done("both have a Tsi721");

    let step =
        progress::step("Linux enumerates the network with its own rio-scan, and brings up rionet");
    host.sh("modprobe rapidio hdid=1 && modprobe -a idt_gen2 tsi721_mport")?;
    let (status, output) = host.try_sh("modprobe rio-scan scan=1", PATIENCE)?;
    ensure!(status == 0, "rio-scan: {output}");
    let found = host.wait_until(
        "ls /sys/bus/rapidio/devices | grep -q :e: || { echo 0 > /sys/bus/rapidio/scan; false; }",
        PATIENCE,
    );
    found.with_context(|| {
        let shown = gateway.run("show rapidio").map(|reply| reply.text).unwrap_or_default();
        let kernel = host.sh("dmesg | tail -40").unwrap_or_default();
        format!("the gateway's `show rapidio`:\n{shown}\nthe host's kernel log:\n{kernel}")
    })?;
    host.sh("modprobe rionet && ip addr add 10.1.0.2/24 dev eth0 && ip link set eth0 mtu 4000 up")?;
    wait::for_json(&mut gateway, "show rapidio --json", |shown| shown[0]["rionet_peers"] == 1)?;
    let ping = host.sh("ping -c 3 -W 5 -s 1001 10.1.0.1")?;
    ensure!(ping.contains(" 0% packet loss"), "{ping}");
    step.done("3 of 3 pings came back");

    let step = progress::step("mapping a volume over soft-RoCE over rionet, and comparing 4 MiB");
    host.soft_roce()?;
    host.sh("modprobe rnbd-client && echo 'sessname=demo path=ip:10.1.0.2@ip:10.1.0.1 device_path=ram0' \
             > /sys/class/rnbd-client/ctl/map_device")?;
    host.sh("set -e; dd if=/dev/urandom of=/tmp/data bs=1M count=4 2>/dev/null
             dd if=/tmp/data of=/dev/rnbd0 bs=1M oflag=direct 2>/dev/null
             dd if=/dev/rnbd0 bs=1M count=4 iflag=direct 2>/dev/null | cmp - /tmp/data")?;
    step.done("every byte is the same");
    println!(
        "\nThe gateway's console, `show rapidio`:\n{}",
        gateway.run("show rapidio")?.text.trim_end()
    );
    host.sh("echo normal > /sys/block/rnbd0/rnbd/unmap_device")?;
    Ok(vec![
        "Two Tsi721 bridges and a switch were models, which stock Linux drivers accept.".into(),
        format!(
            "A stock Debian kernel ({}) enumerated the network and found the gateway.",
            stage.system.release
        ),
        "Ethernet over RapidIO (rionet) carried pings, then RoCEv2,".into(),
        "and the host mapped the gateway's volume ram0 with rnbd-client over that.".into(),
    ])
}
