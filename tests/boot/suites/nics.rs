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

/// Each story, on each card.
macro_rules! on_each_card {
    ($($story:ident),* $(,)?) => {
        on_each_card!(@ e1000e, E1000e, $($story),*);
        on_each_card!(@ igb, Igb, $($story),*);
        on_each_card!(@ vmxnet3, Vmxnet3, $($story),*);
    };
    (@ $module:ident, $model:ident, $($story:ident),*) => {
        mod $module {
            $(
                #[test]
                fn $story() -> anyhow::Result<()> {
                    super::$story(launch::qemu::NicModel::$model)
                }
            )*
        }
    };
}

on_each_card!(
    it_gets_an_address_and_serves_http,
    it_is_found_on_both_buses,
    frames_of_every_size_come_back_as_they_were,
    many_frames_pass_both_ways,
    jumbo_frames_pass,
    jumbo_frames_pass_between_two_appliances,
    a_link_that_goes_down_and_comes_back_is_told,
    noise_on_the_wire_does_no_harm,
    it_halts_and_is_woken,
);

fn machine(model: NicModel) -> Result<Spec> {
    with_nics(Spec::kernel(image()?), model)
}

/// Repeats a command until its answer contains a text.
fn until(vm: &mut Vm, command: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let said = vm.run(command)?.text;
        if said.contains(wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "`{command}` did not say {wanted:?} but:\n{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The appliance at 10.9.0.1 and fd09::1, and a peer that knows it.
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

/// What is counted of the first interface.
fn counter(vm: &mut Vm, name: &str) -> Result<f64> {
    let interfaces = vm.run("show interfaces --json")?.json()?;
    interfaces[0][name].as_f64().with_context(|| format!("no {name} in {interfaces}"))
}

fn it_gets_an_address_and_serves_http(model: NicModel) -> Result<()> {
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
    vm.run("show devices")?.contains(model.name())?.contains("link up")?;
    vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    ensure!(counter(&mut vm, "resets")? == 0.0, "resets");
    Ok(())
}

fn it_is_found_on_both_buses(model: NicModel) -> Result<()> {
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

fn frames_of_every_size_come_back_as_they_were(model: NicModel) -> Result<()> {
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
    // Often enough that some go over the end of the ring.
    for n in 0..1500usize {
        let payload: Vec<u8> = (0..8900 - n % 7).map(|i| (i * 31 + n) as u8).collect();
        peer.echo(APPLIANCE, &payload)?;
    }
    ensure!(counter(&mut vm, "mtu")? == 9000.0, "MTU");
    ensure!(counter(&mut vm, "rx_errors")? == 0.0, "errors");
    Ok(())
}

/// RDMA reads and writes of their memory, in packets of 4 KiB that the cards send from where it lies; what comes back is
/// compared.
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
    // Either may have come up before the other's link.
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

fn a_link_that_goes_down_and_comes_back_is_told(model: NicModel) -> Result<()> {
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
        // A full queue loses frames, which is as good.
        let _ = peer.send_frame(&frame);
    }
    peer.ping(APPLIANCE, 56)?;
    peer.echo(APPLIANCE, &[7; 1000])?;
    Ok(())
}

/// A loop that polls for ever needs no interrupt; this one halts at once.
fn it_halts_and_is_woken(model: NicModel) -> Result<()> {
    let (mut vm, mut peer) = pair(model, "isthmus.system.idle_after_us=0")?;
    let before = counter(&mut vm, "interrupts")?;
    let mut slow = 0;
    for n in 0..200 {
        std::thread::sleep(Duration::from_millis(5));
        slow += u32::from(peer.echo(APPLIANCE, &[n; 100])? > Duration::from_millis(500));
    }
    let raised = counter(&mut vm, "interrupts")? - before;
    ensure!(raised >= 100.0, "{raised} interrupts for 200 frames");
    // Without any, the loop would look once a second, at the link.
    ensure!(slow < 20, "{slow} of 200 took half a second");
    Ok(())
}
