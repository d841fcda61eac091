//! One loop per core: ports on several cores, tested from the network and from the console.
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, faulty, spec};
use launch::qemu::Vm;
use serde_json::Value;

const FIRST: &str = "10.9.0.1";
const SECOND: &str = "10.8.0.1";
const SECOND_6: &str = "fd08::1";

#[test]
fn a_port_of_the_second_core_answers_as_any_other() -> Result<()> {
    let (mut vm, _first, mut second) = two(2, "isthmus.net.1.core=1")?;
    second.ping(SECOND, 1400)?;
    second.ping(SECOND_6, 56)?;
    for length in [0, 64, 1472] {
        second.echo(SECOND, &vec![7; length])?;
    }
    let loops = loops(&mut vm)?;
    ensure!(loops[1]["ports"] == serde_json::json!(["net1"]), "{loops}");
    let items = |name: &str| {
        let stages = loops[1]["stages"].as_array().into_iter().flatten();
        stages.filter(|s| s["stage"] == name).filter_map(|s| s["items"].as_u64()).sum::<u64>()
    };
    ensure!(items("receive") >= 5 && items("transmit") >= 2, "{loops}");
    let interfaces = until_echoed(&mut vm, 1, 3)?;
    ensure!(interfaces[1]["loop"] == 1, "{interfaces}");
    Ok(())
}

/// Waits until an interface reports this many echoes. Another core's loop publishes its counters periodically.
fn until_echoed(vm: &mut Vm, interface: usize, echoes: u64) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let interfaces = vm.run("show interfaces --json")?.json()?;
        if interfaces[interface]["echoes"] == echoes {
            return Ok(interfaces);
        }
        ensure!(Instant::now() < deadline, "{interfaces}");
    }
}

#[test]
fn both_cores_work_at_once() -> Result<()> {
    let (mut vm, mut first, mut second) = two(2, "isthmus.net.1.core=1")?;
    std::thread::scope(|scope| {
        let one =
            scope.spawn(move || (0..300).try_for_each(|_| first.echo(FIRST, &[1; 512]).map(drop)));
        let other = (0..300).try_for_each(|_| second.echo(SECOND, &[2; 512]).map(drop));
        one.join().expect("the thread does not panic").and(other)
    })?;
    let interfaces = until_echoed(&mut vm, 1, 300)?;
    ensure!(interfaces[0]["echoes"] == 300, "{interfaces}");
    Ok(())
}

#[test]
fn idle_loops_halt_and_cores_without_ports_sleep() -> Result<()> {
    let (mut vm, _first, mut second) = two(4, "isthmus.net.1.core=3")?;
    let before = loops(&mut vm)?;
    // The measurement: four idle seconds.
    std::thread::sleep(Duration::from_secs(4));
    let after = loops(&mut vm)?;
    for core in [0, 3] {
        let halted = after[core]["halted"].as_f64().unwrap_or_default();
        let shares =
            ["busy", "idle", "halted"].map(|s| after[core][s].as_f64().unwrap_or_default());
        let halts = |at: &Value| at[core]["halts"].as_u64().unwrap_or_default();
        ensure!(halted > 0.5, "loop {core} is halted {halted} of its time: {after}");
        ensure!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{after}");
        ensure!(halts(&after) > halts(&before), "loop {core} has not halted: {after}");
        ensure!(after[core]["state"] == "running", "{after}");
    }
    for core in [1, 2] {
        ensure!(after[core]["state"] == "no loop: it has no port", "{after}");
    }
    // A frame wakes the halted loop.
    second.ping(SECOND, 56)?;
    second.echo(SECOND, b"awake")?;
    Ok(())
}

#[test]
fn missing_core_is_logged() -> Result<()> {
    let (mut vm, _first, mut second) = two(2, "isthmus.net.1.core=2")?;
    second.ping(SECOND, 56)?;
    vm.run("show log")?.contains("net1: there is no core 2; accepted: 0 to 1")?;
    Ok(())
}

#[test]
fn fault_on_another_core_is_reported_and_ends_the_machine() -> Result<()> {
    let mut vm = faulty()?.cpus(2).append("isthmus.test.fault=core1").start()?;
    let status = vm.wait_exit()?;
    let printed = vm.serial.tail().to_lowercase();
    ensure!(printed.contains("page fault") && printed.contains("cr2"), "{printed}");
    // Exit code 32 plus the vector, as isa-debug-exit encodes it.
    ensure!(status == (32 + 14 + 0x10) << 1 | 1, "QEMU's status is {status}:\n{printed}");
    Ok(())
}

/// The appliance with `cpus` cores between two peers.
fn two(cpus: u32, words: &str) -> Result<(Vm, Peer, Peer)> {
    let mut first = Peer::new(&["10.9.0.2/24"])?;
    let mut second = Peer::new(&["10.8.0.2/24", "fd08::2/64"])?;
    let vm = boot(
        spec()?
            .cpus(cpus)
            .nic(first.nic())
            .nic(second.nic())
            .append(&format!("isthmus.net.0.address={FIRST}/24"))
            .append(&format!("isthmus.net.1.address={SECOND}/24,{SECOND_6}/64"))
            .append("isthmus.services.udp_echo=true")
            .append(words),
    )?;
    first.ping(FIRST, 0)?;
    second.ping(SECOND, 0)?;
    Ok((vm, first, second))
}

fn loops(vm: &mut Vm) -> Result<Value> {
    vm.run("show loops --json")?.json()
}
