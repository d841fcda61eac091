//! LINX over TCP: the image, and a peer in Python that was written apart from it (`tests/linx/peer`).
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use serde_json::Value;

/// The image with a link to whoever comes from QEMU's user network; the port of this host that leads to it.
fn start(words: &str) -> Result<(Vm, u16)> {
    start_with(words, &[])
}

/// As [`start`], with these ports of this host leading to others of the image.
fn start_with(words: &str, more: &[(u16, u16)]) -> Result<(Vm, u16)> {
    let (port, nowhere) = (free_port()?, free_port()?);
    let mut forwards = vec![("tcp", port, 19790)];
    forwards.extend(more.iter().map(|(ours, images)| ("tcp", *ours, *images)));
    // Connections to the link's peer are refused: the peer connects.
    let link = format!(
        "isthmus.linx.0.name=far isthmus.linx.0.transport=tcp isthmus.linx.0.address=10.0.2.2 \
         isthmus.linx.0.peer_port={nowhere} isthmus.linx.0.services=echo isthmus.linx.0.heartbeat_ms=5000 isthmus.net.0.address=10.0.2.15/24 {words}"
    );
    let nic = Nic::User { forwards };
    Ok((boot(spec()?.nic(nic).append(&link))?, port))
}

/// The peer: hunts for a name, and has so many signals sent back.
fn peer(port: u16, name: &str, signals: u32) -> Result<(bool, String)> {
    let mut python = python(&peer_program());
    python.args(["127.0.0.1", &port.to_string(), name, &signals.to_string()]);
    let output = python.output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

fn peer_program() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../linx/peer/tcp.py")).into()
}

fn python(program: &Path) -> Command {
    let mut python = Command::new("timeout");
    python.env("PYTHONDONTWRITEBYTECODE", "1").args(["300", "python3"]).arg(program);
    python
}

/// A peer that publishes a name and sends signals back.
struct Server {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(port: u16, name: &str) -> Result<Server> {
        let mut python = Command::new("python3");
        python.env("PYTHONDONTWRITEBYTECODE", "1").arg(peer_program());
        python.args(["127.0.0.1", &port.to_string(), name, "--serve"]);
        let mut child = python.stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Server { child, said })
    }

    /// Reads what it says until a line begins like that.
    fn until(&mut self, beginning: &str) -> Result<()> {
        let mut line = String::new();
        while !line.starts_with(beginning) {
            line.clear();
            ensure!(self.said.read_line(&mut line)? > 0, "it has not said {beginning:?}");
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

/// The rule of the image, as it is shown.
fn rule(vm: &mut Vm) -> Result<Value> {
    Ok(vm.run("show smc rules --json")?.json()?[0].clone())
}

/// Waits until what is shown of the rule is as wanted.
fn rule_until(vm: &mut Vm, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let shown = rule(vm)?;
        if wanted(&shown) {
            return Ok(shown);
        }
        ensure!(Instant::now() < deadline, "it does not become so: {shown:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The client that docs/messaging.md shows.
fn documented_client() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/messaging.md"))?;
    let (_, rest) = text.split_once("```python\n").context("no client in docs/messaging.md")?;
    let (code, _) = rest.split_once("```").context("no end of the client")?;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documented_client.py");
    std::fs::write(&path, code)?;
    Ok(path)
}

/// Takes a connection and sends back what comes, until the other end closes; what came.
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
    vm.run("show refused")?.contains("10.0.2.2")?.contains("no [[linx]] has this host")?;
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
    for life in 1..=2u64 {
        let (is_well, said) = peer(port, "gate", 60)?;
        ensure!(is_well && said.contains("60 signals came back"), "life {life}: {said}");
        let shown = rule_until(&mut vm, |shown| shown["connections"] == 0)?;
        ensure!(shown["message_clients"] == life && shown["refused"] == 0, "{shown:#}");
        ensure!(
            shown["bytes_in"] == shown["bytes_out"] && shown["messages_lost"] == 0,
            "{shown:#}"
        );
    }
    let served = served.join().expect("the server")?;
    // Each signal has its length and its number before its bytes.
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
    // Whose client has closed is told so, by the end of its endpoint.
    server.until("unpublished out.1")?;
    let shown = rule_until(&mut vm, |shown| shown["connections"] == 0)?;
    ensure!(shown["tcp_clients"] == 1 && shown["messages_lost"] == 0, "{shown:#}");
    // A length that no link takes ends the connection, and says why.
    let mut wrong = TcpStream::connect(("127.0.0.1", clients))?;
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    ensure!(!matches!(wrong.read(&mut [0; 8]), Ok(1..)), "it was answered");
    vm.run("show log")?.contains("announces a message of 1195725856 bytes")?;
    // The peer dies: its client hears of it.
    let mut held = TcpStream::connect(("127.0.0.1", clients))?;
    held.write_all(&[0, 0, 0, 5, 0, 0, 0, 9, 7])?;
    let mut answer = [0; 9];
    held.read_exact(&mut answer)?;
    ensure!(answer == [0, 0, 0, 5, 0, 0, 0, 9, 7], "{answer:?}");
    drop(server);
    ensure!(!matches!(held.read(&mut answer), Ok(1..)), "there is more");
    rule_until(&mut vm, |shown| shown["connections"] == 0)?;
    // That is told once a second at most.
    let deadline = Instant::now() + Duration::from_secs(60);
    while vm.run("show log")?.contains("the link to the peer is down").is_err() {
        ensure!(Instant::now() < deadline, "the log does not tell of it");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Another life of it: who waits finds it.
    let mut server = Server::start(port, "mirror")?;
    server.until("up")?;
    let said = run(3)?;
    ensure!(said.contains("3 signals were answered"), "{said}");
    Ok(())
}
