//! A card of the image on a core other than the first, with RoCE in hardware; and a card that two cores share, with
//! RoCE in software.

use super::*;
use serde_json::json;

const VOLUME: &str = "isthmus.volume.0.size=32MiB";
/// Further addresses of the guest.
const HOSTS: std::ops::Range<u32> = 10..42;

/// A card of core 1. The control plane on core 0 resolves the address of a host that sends its first packet to the
/// card.
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
    for metric in ["isthmus_roce_card_mads_total{port=\"net0\"} ", "isthmus_roce_card_up{port"] {
        let line = page.lines().find_map(|line| line.split_once(metric)).map(|(_, value)| value);
        ensure!(line.is_some_and(|value| value != "0"), "{metric}:\n{page}");
    }
    cards.end()
}

#[test]
fn a_card_of_another_core_that_reads_all_ones_under_load_is_reset() -> Result<()> {
    faults::a_card_is_reset(2, "isthmus.net.0.core=1", "all-ones", "does not answer")
}

/// A function for each of two cores, with RoCE in hardware on both. One client maps a volume over both, and reads over
/// each the data that it wrote over the other.
#[test]
fn two_cores_serve_a_function_each() -> Result<()> {
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
            return linux.fail(&format!("core {n}: the volume was not mapped: {why:#}"));
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
    are_zero(&counters, &["function1", "function2"], &["complaints"])?;
    have_sent_roce(&counters, &["function1", "function2"], 20)
}

/// Frames that each core has received.
fn received(linux: &mut Linux) -> Result<[u64; 2]> {
    let page = linux.sh(&format!("wget -q -O - http://{THERE}/metrics"))?;
    let of = |core: usize| {
        let name =
            format!("isthmus_port_queue_receive_frames_total{{port=\"net0\",loop=\"{core}\"}}");
        counter(&page, &name)
    };
    Ok([of(0)?, of(1)?])
}

/// A shell command that pings the image from each host, and fails without an answer.
fn pings(options: &str) -> String {
    let hosts: Vec<String> = HOSTS.map(|host| host.to_string()).collect();
    let ping = format!("ping {options} -I 10.1.0.$host {THERE} >/tmp/ping");
    format!("for host in {}; do {ping} || {{ cat /tmp/ping; exit 1; }}; done", hosts.join(" "))
}

/// Checks that each host reaches the image, and that each core serves some of them.
fn hosts_are_spread(linux: &mut Linux) -> Result<()> {
    let before = received(linux)?;
    linux.sh(&pings("-c 2 -i 0.1 -W 5"))?;
    let after = received(linux)?;
    let few = |core: usize| after[core] < before[core] + 10;
    ensure!(!few(0) && !few(1), "frames of each core: {before:?}, {after:?}");
    Ok(())
}

#[test]
fn two_cores_share_a_card_and_survive_a_reset() -> Result<()> {
    let model = model(2, &[])?;
    let words = format!("{VOLUME} isthmus.net.0.core=0,1");
    let mut vm = image_on(2, &model, 4200, &words)?;
    let mut linux = Linux::beside_image(model, 4200)?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["loop"] == json!([0, 1]), "{interfaces}");
    ensure!(interfaces[0]["roce"] == "software", "{interfaces}");
    vm.run("show log")?
        .contains("net0: RoCE in software: hardware RoCE needs a port of one core")?;
    let hosts = HOSTS.map(|host| format!("ip addr add 10.1.0.{host}/24 dev eth0"));
    linux.sh(&hosts.collect::<Vec<_>>().join("\n"))?;
    hosts_are_spread(&mut linux)?;
    linux.guest.soft_roce()?;
    maps_and_verifies(&mut linux)?;
    linux.model.order(1, "all-ones")?;
    faults::until(&mut vm, |port| port["resets"] != 0)?;
    vm.run("show log")?.contains("does not answer")?;
    linux.guest.wait_until(&pings("-c 1 -W 1"), LIMIT)?;
    hosts_are_spread(&mut linux)?;
    maps_and_verifies(&mut linux)?;
    vm.run("show log")?.contains("works again")?.lacks("ERROR")?;
    drop(vm);
    let counters = linux.end()?;
    are_zero(&counters, &["function1"], &RULES)?;
    Ok(())
}
