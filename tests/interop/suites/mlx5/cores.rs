//! The image's card on another core than the first, which does RoCE there, and a function for each of two cores.

use super::*;

const VOLUME: &str = "isthmus.volume.0.size=32MiB";

/// Of a card of core 1: who says something to it first is found by the control plane, which is core 0's.
#[test]
fn a_card_of_another_core_serves_a_volume_in_hardware() -> Result<()> {
    let words = format!("{VOLUME} isthmus.net.0.core=1 isthmus.roce.services=true");
    let mut cards = Cards::boot_on(2, &[], &words)?;
    let interfaces = cards.vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["loop"] == 1, "{interfaces}");
    cards.vm.run("show log")?.contains("net0: RoCE in hardware")?;
    cards.linux.sh(&format!("timeout 60 rping -c -a {THERE} -C 10 -S 4096 -V -v"))?;
    maps_and_verifies(&mut cards.linux)?;
    let page = cards.linux.sh(&format!("wget -q -O - http://{THERE}/metrics"))?;
    for told in ["isthmus_roce_card_mads_total{port=\"net0\"} ", "isthmus_roce_card_up{port"] {
        let line = page.lines().find_map(|line| line.split_once(told)).map(|(_, value)| value);
        ensure!(line.is_some_and(|value| value != "0"), "{told}:\n{page}");
    }
    cards.end()
}

#[test]
fn a_card_of_another_core_that_reads_all_ones_under_load_is_reset() -> Result<()> {
    faults::a_card_is_reset(2, "isthmus.net.0.core=1", "all-ones", "does not answer")
}

/// A function for each of two cores: RoCE in hardware on both, for one client, who reads over either what it wrote over the
/// other.
#[test]
fn two_cores_have_a_function_each() -> Result<()> {
    let model = model(3, &[])?;
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?).cpus(2);
    let spec = spec.vfio_user(&model.socket_of(1)).vfio_user(&model.socket_of(2));
    let net =
        |n: usize| format!("isthmus.net.{n}.address=10.{}.0.2/24 isthmus.net.{n}.mtu=4200", n + 1);
    let spec = spec.append(&net(0)).append(&net(1)).append("isthmus.net.1.core=1").append(VOLUME);
    let mut vm = spec.start()?;
    vm.wait_ready()?;
    let mut linux = Linux::beside_image(model, 4200)?;
    linux.sh("ip addr add 10.2.0.1/24 dev eth0 && modprobe -a mlx5_ib rnbd-client && sleep 1")?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    for n in 0..2 {
        let port = &interfaces[n];
        ensure!(port["roce"] == "hardware" && port["loop"] == n, "{interfaces}");
        let path = format!("ip:10.{}.0.1@ip:10.{}.0.2", n + 1, n + 1);
        let mode = if n == 0 { "" } else { "access_mode=migration" };
        if let Err(why) = map(&mut linux.guest, &format!("s{n}"), &path, "ram0", mode) {
            return linux.fail(&format!("core {n}: it was not mapped: {why:#}"));
        }
    }
    linux.sh("set -e
         dd if=/dev/urandom of=/tmp/a bs=64k count=64 2>/dev/null
         dd if=/tmp/a of=/dev/rnbd0 bs=64k oflag=direct 2>/dev/null
         dd if=/dev/rnbd1 of=/tmp/b bs=64k count=64 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b
         dd if=/tmp/a of=/dev/rnbd1 bs=64k seek=64 oflag=direct 2>/dev/null
         dd if=/dev/rnbd0 of=/tmp/b bs=64k skip=64 count=64 iflag=direct 2>/dev/null
         cmp /tmp/a /tmp/b")?;
    unmap(&mut linux.guest, 1)?;
    unmap(&mut linux.guest, 0)?;
    vm.run("show log")?.lacks("ERROR")?;
    drop(vm);
    let counters = linux.end()?;
    for function in ["function1", "function2"] {
        ensure!(counter(&counters, &format!("{function}.complaints"))? == 0, "{counters}");
        ensure!(counter(&counters, &format!("{function}.roce_sent"))? > 20, "{counters}");
    }
    Ok(())
}
