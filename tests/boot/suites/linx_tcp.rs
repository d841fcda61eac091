//! LINX over TCP: the image, and a peer in Python that was written apart from it (`tests/linx/peer`).
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use serde_json::Value;

/// The image with a link to whoever comes from QEMU's user network; the port of this host that leads to it.
fn start(words: &str) -> Result<(Vm, u16)> {
    let (port, nowhere) = (free_port()?, free_port()?);
    // Connections to the link's peer are refused: the peer connects.
    let link = format!(
        "isthmus.linx.0.name=far isthmus.linx.0.transport=tcp isthmus.linx.0.address=10.0.2.2 \
         isthmus.linx.0.peer_port={nowhere} isthmus.linx.0.services=echo isthmus.linx.0.heartbeat_ms=5000 isthmus.net.0.address=10.0.2.15/24 {words}"
    );
    let nic = Nic::User { forwards: vec![("tcp", port, 19790)] };
    Ok((boot(spec()?.nic(nic).append(&link))?, port))
}

/// The peer: hunts for a name, and has so many signals sent back.
fn peer(port: u16, name: &str, signals: u32) -> Result<(bool, String)> {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../linx/peer"));
    let mut python = Command::new("timeout");
    python
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["100", "python3"])
        .arg(directory.join("tcp.py"));
    python.args(["127.0.0.1", &port.to_string(), name, &signals.to_string()]);
    let output = python.output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn link(vm: &mut Vm) -> Result<Value> {
    Ok(vm.run("show linx --json")?.json()?[0].clone())
}

fn until(vm: &mut Vm, state: &str) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let shown = link(vm)?;
        if shown["state"] == state {
            return Ok(shown);
        }
        ensure!(Instant::now() < deadline, "it is not {state}: {shown:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_peer_finds_the_echo_and_has_every_signal_back_again_and_again() -> Result<()> {
    let (mut vm, port) = start("isthmus.linx.0.publish=mirror")?;
    ensure!(link(&mut vm)?["state"] == "down", "nobody is there yet");
    for life in 1..=3u64 {
        let (is_well, said) = peer(port, "mirror", 60)?;
        ensure!(is_well && said.contains("60 signals came back"), "life {life}: {said}");
        let shown = until(&mut vm, "down")?;
        ensure!(shown["ups"] == life && shown["received"] == 60 * life, "{shown:#}");
        ensure!(shown["sent"] == 60 * life && shown["dropped"] == 0, "{shown:#}");
    }
    vm.run("show log")?.contains("linx far: up")?.contains("linx far: down")?.lacks("ERROR")?;
    Ok(())
}

#[test]
fn nobody_but_the_peer_is_taken() -> Result<()> {
    let (mut vm, port) = start("")?;
    vm.run("set linx.0.address 10.0.2.99")?;
    // A link is what it was when the appliance started: the peer is taken still.
    let (is_well, said) = peer(port, "echo", 3)?;
    ensure!(is_well, "{said}");
    drop(vm);
    let (mut vm, port) = start("isthmus.linx.0.address=10.0.2.99")?;
    let (is_well, said) = peer(port, "echo", 1)?;
    ensure!(!is_well, "{said}");
    vm.run("show log")?.contains("10.0.2.2 may not connect")?;
    Ok(())
}
