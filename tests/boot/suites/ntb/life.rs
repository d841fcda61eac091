//! Resets, restarts and pauses of machines, and pulled cables, all under load: the link and the session recover,
//! requests continue, and no resources leak.

use super::{Bridge, ntb, resources, wait_for_resources, wait_open, wait_traffic};
use anyhow::{Context, Result, ensure};
use boot_tests::boot;
use launch::qemu::Vm;
use serde_json::json;
use std::time::{Duration, Instant};

/// How long a machine pauses, or a cable is unplugged: long enough to lose the link.
const STILL: Duration = Duration::from_millis(1600);

/// Resets a machine, and again after about 15 ms, before it is up.
fn reset_twice(vm: &mut Vm) -> Result<()> {
    vm.serial.take(Duration::ZERO);
    vm.qmp.execute("system_reset", json!({}))?;
    std::thread::sleep(Duration::from_millis(15));
    vm.qmp.execute("system_reset", json!({}))?;
    is_up(vm)
}

/// Reboots from the console, which shuts the appliance down in order.
fn restart(vm: &mut Vm) -> Result<()> {
    vm.serial.take(Duration::ZERO);
    vm.serial.send(b"reboot\r")?;
    is_up(vm)
}

fn is_up(vm: &mut Vm) -> Result<()> {
    vm.wait_for(" ready")?;
    vm.wait_ready()?;
    vm.run("help")?.contains("reboot").map(drop)
}

/// Pauses a machine.
pub fn pause(vm: &mut Vm, time: Duration) -> Result<()> {
    vm.qmp.execute("stop", json!({}))?;
    std::thread::sleep(time);
    vm.qmp.execute("cont", json!({}))?;
    Ok(())
}

/// Unplugs a machine's cable for a while.
fn cut(vm: &mut Vm) -> Result<()> {
    for up in [false, true] {
        vm.qmp.execute("set_link", json!({"name": "net0", "up": up}))?;
        std::thread::sleep(STILL);
    }
    Ok(())
}

/// Resets only the link, from the console.
fn reset_link(vm: &mut Vm) -> Result<()> {
    vm.run("ntb reset").map(drop)
}

type Event = fn(&mut Vm) -> Result<()>;

/// Events that a machine must survive, with their names.
const RESETS: (&str, Event) = ("resets", reset_twice);
const RESTART: (&str, Event) = ("a restart", restart);
const PAUSE: (&str, Event) = ("a pause", |vm| pause(vm, STILL));
const LINK: (&str, Event) = ("a reset of the link", reset_link);
const CUT: (&str, Event) = ("a cut", cut);

/// The first `usual` events happen to the server; with `ISTHMUS_FULL` all of them, five times.
fn link_recovers(bridge: &Bridge, events: &[(&'static str, Event)], usual: usize) -> Result<()> {
    let full = std::env::var_os("ISTHMUS_FULL").is_some();
    let count = if full { 5 * events.len() } else { usual };
    let mut server = boot(bridge.serving()?.reboots())?;
    let mut client = boot(bridge.mapping()?.reboots())?;
    wait_open(&mut client)?;
    let (at_client, at_server) = (resources(&mut client)?, resources(&mut server)?);
    for &(name, event) in events.iter().cycle().take(count) {
        let downs = ntb(&mut client, "link_down")?;
        client.serial.send(b"remote read far count=20000 size=4KiB depth=16\r")?;
        wait_traffic(&mut server)?;
        event(&mut server).with_context(|| format!("{name} of the server"))?;
        let read = client.wait_for("20000 reads of 4096 bytes in");
        read.with_context(|| format!("after {name} of the server"))?;
        client.wait_ready()?;
        wait_open(&mut client)?;
        ensure!(ntb(&mut client, "link_down")? != downs, "{name}: the link did not go down");
        wait_for_resources(&mut client, at_client).context(name)?;
        wait_for_resources(&mut server, at_server).context(name)?;
    }
    client.serial.send(b"remote read far count=1000000 size=4KiB depth=16\r")?;
    wait_traffic(&mut server)?;
    reset_twice(&mut client)?;
    wait_open(&mut client)?;
    wait_for_resources(&mut server, at_server).context("after resets of the client")?;
    wait_for_resources(&mut client, at_client).context("of the client after its resets")?;
    for vm in [&mut server, &mut client] {
        let wrong = ntb(vm, "violations")?;
        ensure!(wrong == 0, "{wrong} violations");
    }
    Ok(())
}

#[test]
fn link_recovers_after_resets_and_pauses() -> Result<()> {
    link_recovers(&Bridge::doorbells()?, &[LINK, RESETS, PAUSE, RESTART], 3)
}

#[test]
fn link_recovers_after_resets_and_cuts_over_tcp() -> Result<()> {
    let Bridge::Tcp(wire, _) = Bridge::tcp()? else { unreachable!("the bridge is TCP") };
    let words = "isthmus.ntb.0.memory=8MiB isthmus.ntb.0.peer_timeout_ms=1000";
    link_recovers(&Bridge::Tcp(wire, words), &[CUT, LINK, RESETS, PAUSE, RESTART], 2)
}

/// A machine announces a power-off or a panic, so that its peer does not wait for a timeout. Several runs, because the
/// last frame must leave the machine before QEMU ends, which happens immediately after a panic.
#[test]
fn link_goes_down_at_once_when_the_peer_ends() -> Result<()> {
    let faulty = boot_tests::named_file(boot_tests::FAULTS)?;
    for bridge in [Bridge::doorbells()?, Bridge::tcp()?, Bridge::tcp()?, Bridge::tcp()?] {
        for end in [b"poweroff\r".as_slice(), b"\x1c"] {
            let mut server = boot(bridge.serving()?.elf(&faulty))?;
            let words = "isthmus.ntb.0.peer_timeout_ms=60000";
            let mut client = boot(bridge.mapping()?.append(words))?;
            wait_open(&mut client)?;
            server.serial.send(end)?;
            server.wait_exit()?;
            let ended = Instant::now();
            while ntb(&mut client, "link")? == "up" {
                let waited = ended.elapsed();
                ensure!(waited < Duration::from_secs(3), "the link is up after {waited:?}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}
