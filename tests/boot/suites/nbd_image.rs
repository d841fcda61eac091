//! Remote volumes over NBD: the image beside qemu-nbd and nbdkit on QEMU's user network.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use serde_json::Value;
use tempfile::TempDir;

/// The build machine, as the image reaches it.
const HOST: &str = "10.0.2.2";
const MIB: usize = 1 << 20;

/// A stock server. It ends with this value.
struct Server(Child);

impl Server {
    fn start(program: &str, port: u16, arguments: &[&str]) -> Result<Server> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("could not start {program}"))?;
        let server = Server(child);
        let limit = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < limit, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// qemu-nbd with a raw file as the export `disk`.
    fn qemu_nbd(file: &Path, port: u16) -> Result<Server> {
        let (file, port_option) = (file.display().to_string(), format!("--port={port}"));
        let arguments = [
            "--persistent",
            "--format=raw",
            "--export-name=disk",
            "--bind=127.0.0.1",
            &port_option,
            "--shared=8",
            "--discard=unmap",
            &file,
        ];
        Server::start("qemu-nbd", port, &arguments)
    }

    fn nbdkit(port: u16, more: &[&str]) -> Result<Server> {
        let port_option = format!("--port={port}");
        let mut arguments = vec!["--foreground", "--ipaddr=127.0.0.1", &port_option];
        arguments.extend(more);
        Server::start("nbdkit", port, &arguments)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file of this many bytes of the value 0xa5.
fn disk(size: usize) -> Result<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("disk");
    fs::write(&file, vec![0xa5; size])?;
    Ok((directory, file))
}

/// Boots the image with a remote `far` of this port, and these further words.
fn start(port: u16, words: &str) -> Result<Vm> {
    let remote = format!(
        "isthmus.remote.0.name=far isthmus.remote.0.kind=nbd isthmus.remote.0.address={HOST}:{port} \
         isthmus.remote.0.reconnect_ms=200"
    );
    let address = "isthmus.net.0.address=10.0.2.15/24 isthmus.net.0.gateway=10.0.2.2";
    let nic = Nic::User { forwards: Vec::new() };
    boot(spec()?.nic(nic).append(&format!("{address} {remote} {words}")))
}

/// Repeats a command until its output, as JSON, is as wanted.
fn until(vm: &mut Vm, command: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let shown = vm.run(&format!("{command} --json"))?.json()?;
        if wanted(&shown) {
            return Ok(shown);
        }
        ensure!(Instant::now() < limit, "`{command}` is not as wanted: {shown:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Waits for a state of the remote.
fn until_state(vm: &mut Vm, state: &str) -> Result<Value> {
    until(vm, "remote list", |shown| shown[0]["state"] == state)
}

#[test]
fn volume_of_qemu_nbd_is_read_and_comes_back_after_a_kill() -> Result<()> {
    let ((_directory, file), port) = (disk(8 * MIB)?, free_port()?);
    let server = Server::qemu_nbd(&file, port)?;
    let mut vm = start(port, "isthmus.remote.0.export=disk isthmus.remote.0.connections=4")?;
    let shown = until_state(&mut vm, "open")?;
    ensure!(shown[0]["size"] == 8 * MIB, "{shown:#}");
    vm.run("remote read far count=500 size=4096 depth=16")?.lacks("error")?;
    let able = vm.run("volume show far --json")?.json()?;
    ensure!(able[0]["flush"] == "yes" && able[0]["fua"] == "yes", "{able:#}");
    drop(server);
    until_state(&mut vm, "reconnecting")?;
    let server = Server::qemu_nbd(&file, port)?;
    until_state(&mut vm, "open")?;
    vm.run("remote read far count=500 size=65536 depth=8")?.lacks("error")?;
    // A grown file is visible after the next connection.
    drop(server);
    File::options().write(true).open(&file)?.set_len(16 * MIB as u64)?;
    let _server = Server::qemu_nbd(&file, port)?;
    until(&mut vm, "remote list", |shown| shown[0]["size"] == 16 * MIB)?;
    Ok(())
}

#[test]
fn mirror_copies_to_qemu_nbd_and_resyncs_after_a_kill() -> Result<()> {
    let ((_directory, file), port) = (disk(8 * MIB)?, free_port()?);
    let server = Server::qemu_nbd(&file, port)?;
    let volume = "isthmus.volume.0.name=ram0 isthmus.volume.0.size=8MiB";
    let mut vm = start(port, &format!("isthmus.remote.0.export=disk {volume}"))?;
    until_state(&mut vm, "open")?;
    vm.run("mirror create safe ram0 far force")?.lacks("error")?;
    let in_sync = |shown: &Value| shown[0]["members"][1]["state"] == "in sync";
    until(&mut vm, "mirror list", in_sync)?;
    // Zeroes of the RAM disk, behind the mirror's own record.
    ensure!(fs::read(&file)?[65536..].iter().all(|byte| *byte == 0));
    drop(server);
    until(&mut vm, "mirror list", |shown| shown[0]["members"][1]["state"] == "out")?;
    let _server = Server::qemu_nbd(&file, port)?;
    until(&mut vm, "mirror list", in_sync)?;
    Ok(())
}

#[test]
fn errors_and_refusals_of_the_server_are_shown() -> Result<()> {
    let ((_directory, file), port) = (disk(MIB)?, free_port()?);
    let _server = Server::qemu_nbd(&file, port)?;
    let mut vm = start(port, "isthmus.remote.0.export=other")?;
    let shown = until_state(&mut vm, "refused")?;
    ensure!(shown[0]["last_error"].as_str().is_some_and(|why| why.contains("no such export")));
    vm.run("remote remove far")?.lacks("error")?;
    let port = free_port()?;
    let filter = ["--filter=error", "memory", "4M", "error=EIO", "error-pread-rate=100%"];
    let _failing = Server::nbdkit(port, &filter)?;
    let add = format!("remote add bad kind=nbd address={HOST}:{port} give_up_ms=5000");
    vm.run(&add)?.lacks("error")?;
    until_state(&mut vm, "open")?;
    vm.run("remote read bad count=10")?.contains("error")?;
    vm.run("show log")?.contains("remote bad: the server answered a request with error 5")?;
    vm.run("remote add worse kind=nbd")?.contains("missing server")?;
    vm.run("remote remove bad")?.lacks("error")?;
    until(&mut vm, "remote list", |shown| shown.as_array().is_some_and(Vec::is_empty))?;
    Ok(())
}
