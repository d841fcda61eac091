//! Network cards of QEMU that are not virtio, on machines without any virtio device.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, image, with_nics};
use launch::http;
use launch::qemu::{Machine, Nic, NicModel, Spec, Vm, free_port};
use serde_json::json;

const APPLIANCE: &str = "10.9.0.1";
const APPLIANCE_6: &str = "fd09::1";

/// Defines each case for each card.
macro_rules! on_each_card {
    ($($case:ident),* $(,)?) => {
        on_each_card!(@ e1000e, E1000e, $($case),*);
        on_each_card!(@ igb, Igb, $($case),*);
        on_each_card!(@ vmxnet3, Vmxnet3, $($case),*);
        on_each_card!(@ e1000, E1000, $($case),*);
        on_each_card!(@ e1000_82545em, E1000Em82545, $($case),*);
    };
    (@ $module:ident, $model:ident, $($case:ident),*) => {
        mod $module {
            $(
                #[test]
                fn $case() -> anyhow::Result<()> {
                    super::$case(launch::qemu::NicModel::$model)
                }
            )*
        }
    };
}

on_each_card!(
    card_gets_an_address_and_serves_http,
    card_is_found_on_both_buses,
    frames_of_every_size_are_echoed_unchanged,
    many_frames_pass_both_ways,
    jumbo_frames_pass,
    jumbo_frames_pass_between_two_appliances,
    link_changes_are_reported,
    noise_on_the_wire_does_no_harm,
    idle_loop_halts_and_is_woken,
);

fn machine(model: NicModel) -> Result<Spec> {
    with_nics(Spec::kernel(image()?), model)
}

/// Repeats a command until its answer contains a text.
fn until(vm: &mut Vm, command: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = vm.run(command)?.text;
        if reply.contains(wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no {wanted:?} in the reply to `{command}`:\n{reply}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Boots the appliance at 10.9.0.1 and fd09::1, and a peer in its neighbour table.
fn pair(model: NicModel, append: &str) -> Result<(Vm, Peer)> {
    let mut peer = Peer::new(&["10.9.0.2/24", "fd09::2/64"])?;
    let addresses = format!("isthmus.net.0.address={APPLIANCE}/24,{APPLIANCE_6}/64");
    let vm = boot(
        machine(model)?
            .nic(peer.nic())
            .append(&addresses)
            .append("isthmus.services.udp_echo=true")
            .append(append),
    )?;
    peer.ping(APPLIANCE, 0)?;
    Ok((vm, peer))
}

/// A counter of the first interface.
fn counter(vm: &mut Vm, name: &str) -> Result<f64> {
    let interfaces = vm.run("show interfaces --json")?.json()?;
    interfaces[0][name].as_f64().with_context(|| format!("no {name} in {interfaces}"))
}

fn card_gets_an_address_and_serves_http(model: NicModel) -> Result<()> {
    let port = free_port()?;
    let mut vm = boot(machine(model)?.nic(Nic::User { forwards: vec![("tcp", port, 80)] }))?;
    until(&mut vm, "show interfaces", "10.0.2.15")?;
    vm.run("ping 10.0.2.2")?.contains("10.0.2.2")?.lacks("no answer")?;
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // More than a page of segments.
    for _ in 0..20 {
        let answer = http::get(server, "/metrics")?;
        ensure!(answer.status == 200, "status {}", answer.status);
        ensure!(answer.body.contains("isthmus_port_resets_total{"), "{}", answer.body);
    }
    let driver = model.name().split('-').next().unwrap_or_default();
    vm.run("show devices")?.contains(driver)?.contains("link up")?;
    vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    ensure!(counter(&mut vm, "resets")? == 0.0, "resets");
    Ok(())
}

fn card_is_found_on_both_buses(model: NicModel) -> Result<()> {
    for bus in [Machine::Pc, Machine::Q35] {
        let spec = machine(model)?.machine(bus).nic(Nic::user()).nic(Nic::user());
        let mut vm = boot(spec)?;
        until(&mut vm, "show interfaces", "10.0.2.15")?;
        let interfaces = vm.run("show interfaces --json")?.json()?;
        ensure!(interfaces[0]["mac"] == "52:54:00:12:34:56", "{interfaces}");
        ensure!(interfaces[1]["mac"] == "52:54:00:12:34:57", "{interfaces}");
        ensure!(interfaces[1]["mtu"] == 1500, "{interfaces}");
    }
    Ok(())
}

fn frames_of_every_size_are_echoed_unchanged(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "")?;
    for length in (0..=1472).step_by(7).chain([1472]) {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7 + length) as u8).collect();
        peer.echo(APPLIANCE, &payload)?;
    }
    for length in [0, 56, 1400] {
        peer.ping(APPLIANCE_6, length)?;
    }
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    Ok(())
}

fn many_frames_pass_both_ways(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "")?;
    // Four times around rings of 1,024.
    for n in 0..4096usize {
        let payload: Vec<u8> = (0..n % 1400).map(|i| (i * 31 + n) as u8).collect();
        peer.echo(APPLIANCE, &payload)?;
    }
    ensure!(counter(&mut vm, "echoes")? == 4096.0, "echoes");
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    ensure!(counter(&mut vm, "resets")? == 0.0, "resets");
    Ok(())
}

fn jumbo_frames_pass(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "isthmus.net.0.mtu=9000")?;
    for length in [1473, 2006, 2007, 4054, 8900, 8952] {
        peer.ping(APPLIANCE, length)?;
    }
    // Enough that some frames wrap around the end of the ring.
    for n in 0..1500usize {
        let payload: Vec<u8> = (0..8900 - n % 7).map(|i| (i * 31 + n) as u8).collect();
        peer.echo(APPLIANCE, &payload)?;
    }
    ensure!(counter(&mut vm, "mtu")? == 9000.0, "MTU");
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    Ok(())
}

/// RDMA reads and writes between two appliances, in packets of 4 KiB that the cards send directly from memory. The data
/// are compared.
fn jumbo_frames_pass_between_two_appliances(model: NicModel) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("wire");
    let end = |listens, n: u8| -> Result<Vm> {
        let words = format!("isthmus.net.0.address=10.9.0.{n}/24 isthmus.net.0.mtu=9000");
        let nic = Nic::Stream { path: path.clone(), listens };
        let spec = machine(model)?.nic(nic).first_mac(n).append(&words);
        boot(spec.append("isthmus.roce.services=true"))
    };
    let (mut first, mut second) = (end(true, 1)?, end(false, 2)?);
    // Each may have booted before the other's link was up.
    until(&mut first, "ping 10.9.0.2 1", "1 of 1 answered")?;
    for (vm, other) in [(&mut first, "10.9.0.2"), (&mut second, "10.9.0.1")] {
        vm.run(&format!("ping {other}"))?.contains(other)?.lacks("no answer")?;
        for size in [64, 4096, 65535] {
            let said = vm.run(&format!("rping {other} 20 {size}"))?;
            said.contains("20 of 20 came back")?;
        }
        ensure!(counter(vm, "rx_errors")? == 0.0, "errors");
    }
    Ok(())
}

fn link_changes_are_reported(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "")?;
    for _ in 0..2 {
        vm.qmp.execute("set_link", json!({"name": "net0", "up": false}))?;
        until(&mut vm, "show interfaces --json", "\"link\":\"down\"")?;
        vm.run("show devices")?.contains("no link")?;
        vm.qmp.execute("set_link", json!({"name": "net0", "up": true}))?;
        until(&mut vm, "show interfaces --json", "\"link\":\"up\"")?;
        peer.ping(APPLIANCE, 1000)?;
    }
    vm.run("show log")?.contains("link down")?.contains("link up")?;
    ensure!(counter(&mut vm, "resets")? == 0.0, "resets");
    Ok(())
}

fn noise_on_the_wire_does_no_harm(model: NicModel) -> Result<()> {
    let (_vm, mut peer) = pair(model, "")?;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for length in (0..2000).map(|i| 1 + i * 37 % 9000) {
        let frame: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        // Frames lost to a full queue do not matter.
        let _ = peer.send_frame(&frame);
    }
    peer.ping(APPLIANCE, 56)?;
    peer.echo(APPLIANCE, &[7; 1000])?;
    Ok(())
}

/// The loop halts as soon as it is idle, so that it depends on interrupts.
fn idle_loop_halts_and_is_woken(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "isthmus.system.idle_after_us=0")?;
    let before = counter(&mut vm, "interrupts")?;
    let mut slow = 0;
    for n in 0..200 {
        std::thread::sleep(Duration::from_millis(5));
        slow += u32::from(peer.echo(APPLIANCE, &[n; 100])? > Duration::from_millis(500));
    }
    let raised = counter(&mut vm, "interrupts")? - before;
    ensure!(raised >= 100.0, "{raised} interrupts for 200 frames");
    // Without interrupts the loop would wake only once a second, to check the link.
    ensure!(slow < 20, "{slow} of 200 took half a second");
    Ok(())
}

/// A UDP frame from host 10.9.0.`host` to the appliance's echo, from a port for this host and round.
fn echo_request(to: &[u8], host: u8, round: u8) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 128, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, host, 10, 9, 0, 1];
    let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&folded.to_be_bytes());
    let mut frame = [to, &[2, 0, 0, 0, 9, host, 8, 0], &ip[..]].concat();
    frame.extend([0x80 | round, host, 0, 7, 0, 108, 0, 0]);
    frame.extend([host ^ round; 100]);
    frame
}

/// Hosts are spread over the listed cores, each core answers its own hosts, and the control plane gets its frames from
/// every queue.
fn cores_share_a_card(model: NicModel, cores: u32) -> Result<()> {
    let mut peer = Peer::new(&["10.9.0.2/24", "fd09::2/64"])?;
    let list: Vec<String> = (0..cores).map(|core| core.to_string()).collect();
    let spec = machine(model)?.cpus(cores).nic(peer.nic());
    let mut vm = boot(
        spec.append(&format!("isthmus.net.0.address={APPLIANCE}/24,{APPLIANCE_6}/64"))
            .append("isthmus.services.udp_echo=true")
            .append(&format!("isthmus.net.0.core={}", list.join(","))),
    )?;
    peer.ping(APPLIANCE, 100)?;
    peer.ping(APPLIANCE_6, 100)?;
    // All queues transmit once the link is up.
    until(&mut vm, "show interfaces --json", "\"link\":\"up\"")?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["loop"] == json!((0..cores).collect::<Vec<_>>()), "{interfaces}");
    let mac = interfaces[0]["mac"].as_str().context("no MAC address")?;
    let mac: Vec<u8> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    let before = vm.run("show loops --json")?.json()?;
    for round in 0..5 {
        for host in 10..60 {
            let request = echo_request(&mac, host, round);
            peer.send_frame_soon(&request)?;
            let deadline = Instant::now() + Duration::from_secs(5);
            while peer.receive_frame(Duration::from_millis(500))?.is_none_or(|answer| {
                answer.len() < 142
                    || answer[30..34] != request[26..30]
                    || answer[42..] != request[42..]
            }) {
                ensure!(Instant::now() < deadline, "host {host} has no answer in round {round}");
            }
        }
    }
    until(&mut vm, "show interfaces --json", "\"echoes\":250")?;
    let deadline = Instant::now() + Duration::from_secs(10);
    // Cores publish their counts at intervals.
    let after = loop {
        let after = vm.run("show loops --json")?.json()?;
        let items = |at: &serde_json::Value, core: usize| {
            at[core]["stages"][0]["items"].as_u64().unwrap_or(0)
        };
        let idle = (0..cores as usize).find(|&at| items(&after, at) <= items(&before, at) + 10);
        let Some(core) = idle else { break after };
        ensure!(Instant::now() < deadline, "core {core} has no hosts: {before} {after}");
        std::thread::sleep(Duration::from_millis(200));
    };
    for core in 0..cores as usize {
        ensure!(after[core]["ports"] == json!(["net0"]), "{after}");
    }
    // The cores halt, and each is woken by its own queue.
    ensure!(counter(&mut vm, "interrupts")? > 0.0, "no core was woken");
    vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    Ok(())
}

#[test]
fn two_cores_share_an_e1000e() -> Result<()> {
    cores_share_a_card(NicModel::E1000e, 2)
}

#[test]
fn four_cores_share_an_igb() -> Result<()> {
    cores_share_a_card(NicModel::Igb, 4)
}

/// The log names cores without a queue, and the other cores serve.
#[test]
fn card_with_too_few_queues_is_served_by_fewer_cores() -> Result<()> {
    for (model, words, message) in [
        (NicModel::Virtio, "0,1", "net0: its device has no queues for cores [1]"),
        (NicModel::E1000e, "0,1,2", "net0: its device has no queues for cores [2]"),
        (NicModel::E1000e, "0,5", "net0: some cores of its list do not exist; accepted: 0 to 2"),
    ] {
        let mut peer = Peer::new(&["10.9.0.2/24"])?;
        let mut vm = boot(
            machine(model)?
                .cpus(3)
                .nic(peer.nic())
                .append(&format!("isthmus.net.0.address={APPLIANCE}/24 isthmus.net.0.core={words}"))
                .append("isthmus.services.udp_echo=true"),
        )?;
        peer.ping(APPLIANCE, 100)?;
        peer.echo(APPLIANCE, &[7; 64])?;
        vm.run("show log")?.contains(message)?;
    }
    Ok(())
}

/// QEMU's vmxnet3 delivers every frame to its first queue and ignores RSS, so core 0 gets all frames, and the other
/// idles.
#[test]
fn cores_share_a_vmxnet3_within_the_limits_of_qemu() -> Result<()> {
    let mut peer = Peer::new(&["10.9.0.2/24"])?;
    let mut vm = boot(
        machine(NicModel::Vmxnet3)?
            .cpus(2)
            .nic(peer.nic())
            .append(&format!("isthmus.net.0.address={APPLIANCE}/24 isthmus.net.0.core=0,1"))
            .append("isthmus.services.udp_echo=true"),
    )?;
    peer.ping(APPLIANCE, 1400)?;
    for n in 0..50 {
        peer.echo(APPLIANCE, &[n; 700])?;
    }
    vm.run("show interfaces --json")?.contains("\"loop\":[0,1]")?;
    vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    Ok(())
}
