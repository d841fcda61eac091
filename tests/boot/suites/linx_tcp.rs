//! LINX over TCP between the image and an independent peer in Python (`tests/linx/peer`).
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use serde_json::Value;

/// Boots the image with a link to a peer on QEMU's user network, and returns the host port of the link.
fn start(words: &str) -> Result<(Vm, u16)> {
    start_with(words, &[])
}

/// As [`start`], with further host ports forwarded to the image.
fn start_with(words: &str, more: &[(u16, u16)]) -> Result<(Vm, u16)> {
    let (port, nowhere) = (free_port()?, free_port()?);
    let mut forwards = vec![("tcp", port, 19790)];
    forwards.extend(more.iter().map(|(ours, images)| ("tcp", *ours, *images)));
    // The image's own connections to the peer are refused, so the peer connects.
    let link = format!(
        "isthmus.linx.0.name=far isthmus.linx.0.transport=tcp isthmus.linx.0.address=10.0.2.2 \
         isthmus.linx.0.peer_port={nowhere} isthmus.linx.0.services=echo isthmus.linx.0.heartbeat_ms=5000 isthmus.net.0.address=10.0.2.15/24 {words}"
    );
    let nic = Nic::User { forwards };
    Ok((boot(spec()?.nic(nic).append(&link))?, port))
}

/// Runs the peer, which hunts for a name and checks this many echoed signals. Returns whether it succeeded, and its
/// output.
fn peer(port: u16, name: &str, signals: u32) -> Result<(bool, String)> {
    let mut python = python(&peer_program());
    python.args(["127.0.0.1", &port.to_string(), name, &signals.to_string()]);
    let output = python.output()?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&printed).into_owned()))
}

fn peer_program() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../linx/peer/tcp.py")).into()
}

fn python(program: &Path) -> Command {
    let mut python = Command::new("timeout");
    python.env("PYTHONDONTWRITEBYTECODE", "1").args(["300", "python3"]).arg(program);
    python
}

/// A peer that publishes a name and echoes signals.
struct Server {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(port: u16, name: &str) -> Result<Server> {
        let mut python = Command::new("python3");
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(peer_program());
        python.args(["127.0.0.1", &port.to_string(), name, "--serve"]);
        let mut child = python.stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Server { child, output })
    }

    /// Reads the peer's output until a line starts with `beginning`.
    fn until(&mut self, beginning: &str) -> Result<()> {
        let mut line = String::new();
        while !line.starts_with(beginning) {
            line.clear();
            ensure!(self.output.read_line(&mut line)? > 0, "the peer did not print {beginning:?}");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The image's rule in `show smc rules`.
fn rule(vm: &mut Vm) -> Result<Value> {
    Ok(vm.run("show smc rules --json")?.json()?[0].clone())
}

/// Waits until `wanted` accepts the rule.
fn rule_until(vm: &mut Vm, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let shown = rule(vm)?;
        if wanted(&shown) {
            return Ok(shown);
        }
        ensure!(Instant::now() < deadline, "the rule is not in the expected state: {shown:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The example client of docs/messaging.md.
fn documented_client() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/messaging.md"))?;
    let (_, rest) = text.split_once("```python\n").context("no client in docs/messaging.md")?;
    let (code, _) = rest.split_once("```").context("no end of the client")?;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documented_client.py");
    std::fs::write(&path, code)?;
    Ok(path)
}

/// Accepts a connection, echoes until the other end closes, and returns the number of bytes.
fn echo_one(listener: &TcpListener) -> Result<u64> {
    let (mut stream, _) = listener.accept()?;
    let (mut bytes, mut all) = (vec![0; 64 << 10], 0);
    loop {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Ok(all);
        }
        all += count as u64;
        stream.write_all(&bytes[..count])?;
    }
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
        ensure!(Instant::now() < deadline, "the link is not {state}: {shown:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn peer_finds_the_echo_and_receives_every_signal_repeatedly() -> Result<()> {
    let (mut vm, port) = start("isthmus.linx.0.publish=mirror")?;
    ensure!(link(&mut vm)?["state"] == "down", "the link is up without a peer");
    for run in 1..=3u64 {
        let (succeeded, said) = peer(port, "mirror", 60)?;
        ensure!(succeeded && said.contains("60 signals came back"), "run {run}: {said}");
        let shown = until(&mut vm, "down")?;
        ensure!(shown["ups"] == run && shown["received"] == 60 * run, "{shown:#}");
        ensure!(shown["sent"] == 60 * run && shown["dropped"] == 0, "{shown:#}");
    }
    vm.run("show log")?.contains("linx far: up")?.contains("linx far: down")?.lacks("ERROR")?;
    Ok(())
}

#[test]
fn only_the_configured_peer_is_accepted() -> Result<()> {
    let (mut vm, port) = start("")?;
    vm.run("set linx.0.address 10.0.2.99")?.contains("in force now")?;
    let (succeeded, said) = peer(port, "echo", 1)?;
    ensure!(!succeeded, "{said}");
    vm.run("show refused")?.contains("10.0.2.2")?.contains("no [[linx]] has this host")?;
    vm.run("set linx.0.address 10.0.2.2")?.contains("in force now")?;
    let (succeeded, said) = peer(port, "echo", 3)?;
    ensure!(succeeded, "{said}");
    Ok(())
}

#[test]
fn links_are_added_and_removed_while_the_image_runs() -> Result<()> {
    let (mut vm, port) = start("")?;
    vm.run("unset linx.0")?.lacks("error")?;
    ensure!(vm.run("show linx --json")?.json()? == serde_json::json!([]), "the link is there");
    let (succeeded, said) = peer(port, "echo", 1)?;
    ensure!(!succeeded, "{said}");
    for setting in [
        "name again",
        "transport tcp",
        "services echo",
        "attributes rack:3",
        "peer_port 9",
        "address 10.0.2.2",
    ] {
        vm.run(&format!("set linx.0.{setting}"))?.lacks("error:")?;
    }
    let (succeeded, said) = peer(port, "echo", 20)?;
    ensure!(succeeded, "{said}");
    let shown = vm.run("show linx again --json")?.json()?;
    ensure!(shown["attributes"] == "rack:3" && shown["rlnh"]["received"] == 20, "{shown:#}");
    vm.run("show linx nobody")?.contains("there is no link")?;
    vm.run("show log")?.contains("linx far: removed")?.contains("linx again: up")?;
    Ok(())
}

#[test]
fn a_peer_reaches_a_tcp_service_by_a_name_that_a_rule_publishes() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = listener.local_addr()?.port();
    let words = format!(
        "isthmus.rule.0.name=gate isthmus.rule.0.listen=linx:far/gate isthmus.rule.0.backend=10.0.2.2:{server}"
    );
    let (mut vm, port) = start(&words)?;
    let served = std::thread::spawn(move || -> Result<[u64; 2]> {
        Ok([echo_one(&listener)?, echo_one(&listener)?])
    });
    for run in 1..=2u64 {
        let (succeeded, said) = peer(port, "gate", 60)?;
        ensure!(succeeded && said.contains("60 signals came back"), "run {run}: {said}");
        let shown = rule_until(&mut vm, |shown| shown["connections"] == 0)?;
        ensure!(shown["message_clients"] == run && shown["refused"] == 0, "{shown:#}");
        ensure!(
            shown["bytes_in"] == shown["bytes_out"] && shown["messages_lost"] == 0,
            "{shown:#}"
        );
    }
    let served = served.join().expect("the server")?;
    // Each signal is preceded by its length and its number.
    let all: u64 = (0..60u64).map(|number| 8 + number * number * 37 % 65533).sum();
    ensure!(served == [all, all], "{served:?}, not {all}");
    vm.run("show log")?.contains("linx far: down")?.lacks("ERROR")?;
    Ok(())
}

#[test]
fn a_tcp_client_reaches_an_endpoint_of_the_peer() -> Result<()> {
    let clients = free_port()?;
    let words = "isthmus.rule.0.name=out isthmus.rule.0.listen=7000 isthmus.rule.0.backend=linx:far/mirror \
                 isthmus.rule.0.connect_timeout_ms=20000";
    let (mut vm, port) = start_with(words, &[(clients, 7000)])?;
    let client = documented_client()?;
    let run = |count: u32| -> Result<String> {
        let mut python = python(&client);
        let output =
            python.args(["127.0.0.1", &clients.to_string(), &count.to_string()]).output()?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let mut server = Server::start(port, "mirror")?;
    server.until("up")?;
    let said = run(60)?;
    ensure!(said.contains("60 signals were answered"), "{said}");
    // When the client closes, the peer sees its endpoint unpublished.
    server.until("unpublished out.1")?;
    let shown = rule_until(&mut vm, |shown| shown["connections"] == 0)?;
    ensure!(shown["tcp_clients"] == 1 && shown["messages_lost"] == 0, "{shown:#}");
    // A length beyond the link's limit ends the connection, and the log has the reason.
    let mut wrong = TcpStream::connect(("127.0.0.1", clients))?;
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    ensure!(!matches!(wrong.read(&mut [0; 8]), Ok(1..)), "the message was answered");
    vm.run("show log")?.contains("announces a message of 1195725856 bytes")?;
    // The peer is killed: the client's connection ends.
    let mut held = TcpStream::connect(("127.0.0.1", clients))?;
    held.write_all(&[0, 0, 0, 5, 0, 0, 0, 9, 7])?;
    let mut answer = [0; 9];
    held.read_exact(&mut answer)?;
    ensure!(answer == [0, 0, 0, 5, 0, 0, 0, 9, 7], "{answer:?}");
    drop(server);
    ensure!(!matches!(held.read(&mut answer), Ok(1..)), "the connection is still open");
    rule_until(&mut vm, |shown| shown["connections"] == 0)?;
    // The log reports it with a delay, because its rate is limited to once a second.
    let deadline = Instant::now() + Duration::from_secs(60);
    while vm.run("show log")?.contains("the link to the peer is down").is_err() {
        ensure!(Instant::now() < deadline, "the log does not report it");
        std::thread::sleep(Duration::from_millis(100));
    }
    // After a restart of the peer, clients reach it again.
    let mut server = Server::start(port, "mirror")?;
    server.until("up")?;
    let said = run(3)?;
    ensure!(said.contains("3 signals were answered"), "{said}");
    Ok(())
}
