//! Cisco's VIC: the model under Linux's stock driver, which validates the model; faulty models, which Linux detects;
//! and the image on the same model, with stock Linux at the other end of its wire.
mod usnic;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::{image_spec, system};
use launch::guest::{Guest, Wire};
use launch::models::ModelServer;
use launch::qemu::{Machine, Nic, Program, Vm};

/// Address of the project's driver in the model's process.
const OURS: &str = "10.1.0.9";
/// Address of stock Linux.
const LINUX: &str = "10.1.0.2";
/// Address of the image.
const IMAGE: &str = "10.1.0.1";

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a model of the interface.
fn model(options: &[&str]) -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test enic")?;
    ModelServer::start(&server, "enic", options)
}

/// Boots a Linux guest with this interface, and tries to load its driver.
fn linux(model: &ModelServer) -> Result<Guest> {
    let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
    let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
    guest.wait_up()?;
    let loaded = guest.try_sh("modprobe enic", LIMIT);
    loaded.with_context(|| format!("the output of the model server:\n{}", model.output()))?;
    Ok(guest)
}

/// Gives the guest's interface its address.
fn configure(guest: &mut Guest) -> Result<()> {
    let there = guest.wait_until("[ -e /sys/class/net/eth0 ]", LIMIT);
    if there.is_err() {
        anyhow::bail!("no interface:\n{}", messages(guest)?);
    }
    guest.sh(&format!("ip link set eth0 mtu 9000 up && ip addr add {LINUX}/24 dev eth0"))?;
    let up = guest.wait_until("[ $(cat /sys/class/net/eth0/operstate) = up ]", LIMIT);
    up.with_context(|| messages(guest).unwrap_or_default())
}

/// The kernel's messages on the interface.
fn messages(guest: &mut Guest) -> Result<String> {
    guest.sh("dmesg | grep -i -e enic -e eth0 -e 0000: -e BUG -e WATCHDOG | tail -40 || true")
}

/// Switches the guest off, and returns the model's counters.
fn end(mut guest: Guest, model: ModelServer) -> Result<String> {
    guest.vm.qmp.execute("quit", serde_json::json!({}))?;
    guest.vm.wait_exit()?;
    model.counters()
}

fn counter(counters: &str, name: &str) -> Result<u64> {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in:\n{counters}"))?.parse()?)
}

/// Linux's driver and the project's, each on the model, ping each other over one cable: small and jumbo frames, the
/// interface down and up, the driver reloaded. The model reports no complaint.
fn linux_and_ours_ping_each_other(options: &[&str]) -> Result<()> {
    let options = [&["--own-address", OURS], options].concat();
    let model = model(&options)?;
    let mut guest = linux(&model)?;
    configure(&mut guest)?;
    guest.sh(&format!("ping -c 20 -i 0.1 -W 5 {OURS}"))?;
    guest.sh(&format!("ping -c 20 -i 0.1 -s 8900 -W 5 {OURS}"))?;
    // A datagram to the UDP port that a filter steers to the second queue.
    guest.sh(&format!("timeout 5 tftp -g -l /tmp/x -r x {OURS} 4000 || true"))?;
    guest.sh("ip link set eth0 down && ip link set eth0 mtu 1500 up")?;
    guest.wait_until("[ $(cat /sys/class/net/eth0/operstate) = up ]", LIMIT)?;
    guest.sh(&format!("ping -c 300 -i 0.01 -s 1400 -W 5 {OURS}"))?;
    let counted = guest.sh("ethtool -i eth0; ethtool -S eth0; cat /proc/interrupts")?;
    ensure!(counted.contains("driver: enic") && counted.contains("1.0(model)"), "{counted}");
    guest.sh("rmmod enic && modprobe enic")?;
    configure(&mut guest)?;
    guest.sh(&format!("ping -c 3 -W 5 {OURS}"))?;
    let said = messages(&mut guest)?;
    let wrong = ["Error", "BUG", "WATCHDOG", "timed out", "Timedout", "failed", "Busy"];
    ensure!(!wrong.iter().any(|word| said.contains(word)), "{said}");
    let counters = end(guest, model)?;
    ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
    ensure!(counter(&counters, "function0.failed")? == 0, "{counters}");
    ensure!(counter(&counters, "function0.interrupts")? > 100, "{counters}");
    ensure!(counter(&counters, "own.complaints")? == 0, "{counters}");
    ensure!(counter(&counters, "own.pings")? >= 343, "{counters}");
    ensure!(counter(&counters, "own.filters")? == 1, "{counters}");
    ensure!(counter(&counters, "own.steered")? > 0, "{counters}");
    Ok(())
}

#[test]
fn linux_and_ours_ping_each_other_by_devcmd2() -> Result<()> {
    linux_and_ours_ping_each_other(&[])
}

#[test]
fn linux_and_ours_ping_each_other_by_devcmd() -> Result<()> {
    linux_and_ours_ping_each_other(&["--mailbox"])
}

#[test]
fn linux_works_with_intx_alone() -> Result<()> {
    let model = model(&["--own-address", OURS, "--vectors", "0"])?;
    let mut guest = linux(&model)?;
    configure(&mut guest)?;
    guest.sh(&format!("ping -c 50 -i 0.05 -W 5 {OURS}"))?;
    let said = messages(&mut guest)?;
    ensure!(said.contains("intr mode legacy PCI INTx"), "{said}");
    let counters = end(guest, model)?;
    ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
    Ok(())
}

#[test]
fn a_model_without_a_resource_table_is_noticed() -> Result<()> {
    let mut guest = linux(&model(&["--fault", "no-table"])?)?;
    let said = messages(&mut guest)?;
    ensure!(said.contains("res magic/version error"), "{said}");
    Ok(())
}

#[test]
fn a_model_that_never_opens_is_noticed() -> Result<()> {
    let mut guest = linux(&model(&["--fault", "never-opens"])?)?;
    let said = messages(&mut guest)?;
    ensure!(said.contains("vNIC dev open failed"), "{said}");
    Ok(())
}

#[test]
fn a_model_without_interrupts_is_noticed() -> Result<()> {
    let model = model(&["--fault", "no-interrupts", "--own-address", OURS])?;
    let mut guest = linux(&model)?;
    // Linux learns of the link by an interrupt.
    guest.sh("ip link set eth0 up && sleep 5 && [ $(cat /sys/class/net/eth0/carrier) = 0 ]")?;
    Ok(())
}

/// Boots the image with this interface.
fn image(model: &ModelServer) -> Result<Vm> {
    let address = format!("isthmus.net.0.address={IMAGE}/24 isthmus.net.0.mtu=9000");
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let mut vm = spec.vfio_user(&model.socket()).append(&address).start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// The image and stock Linux, each on a model, with a wire between the models: ping both ways, HTTP.
#[test]
fn the_image_and_linux_reach_each_other() -> Result<()> {
    let wire = Wire::new()?;
    let (Nic::Dgram { ours, peer }, _) = wire.datagrams() else { anyhow::bail!("no datagrams") };
    let [ours, peer] = [ours, peer].map(|path| path.display().to_string());
    let image_model = model(&["--number", "1", "--wire", &ours, &peer])?;
    let linux_model = model(&["--number", "2", "--wire", &peer, &ours])?;
    let mut guest = linux(&linux_model)?;
    configure(&mut guest)?;
    let mut vm = image(&image_model)?;
    vm.run("show devices")?.contains("enic")?.contains("link up")?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["mac"] == "00:25:b5:01:02:01", "{interfaces}");
    ensure!(interfaces[0]["mtu"] == 9000, "{interfaces}");
    guest.sh(&format!("ping -c 20 -i 0.1 -W 5 {IMAGE}"))?;
    guest.sh(&format!("ping -c 20 -i 0.1 -s 8900 -W 5 {IMAGE}"))?;
    vm.run(&format!("ping {LINUX}"))?.contains(LINUX)?.lacks("no answer")?;
    for _ in 0..5 {
        let page = guest.sh(&format!("wget -q -O - http://{IMAGE}/metrics"))?;
        ensure!(page.contains("isthmus_port_resets_total{"), "{page}");
    }
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["rx_errors"] == 0 && interfaces[0]["resets"] == 0, "{interfaces}");
    ensure!(interfaces[0]["interrupts"].as_u64().is_some_and(|count| count > 0), "{interfaces}");
    vm.run("show log")?.lacks("ERROR")?;
    drop(vm);
    let counters = image_model.counters()?;
    ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
    let counters = end(guest, linux_model)?;
    ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
    Ok(())
}
