//! Names, time and logs: the image beside Debian's dnsmasq, chrony and rsyslog on QEMU's user network, and beside
//! servers that are silent, slow, lying and gone.

mod logs;
mod peers;
mod time;
mod troubles;

use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm, free_port};
use peers::{Act, Liar, Stock};
use serde_json::Value;

/// The build machine, as the image reaches it.
const HOST: &str = "10.0.2.2";
const HOST_V6: &str = "fec0::2";

/// Boots the image with a fixed address on QEMU's user network and these words on its command line.
fn start(words: &str, forwards: &[(u16, u16)]) -> Result<Vm> {
    let forwards = forwards.iter().map(|(ours, images)| ("tcp", *ours, *images)).collect();
    let address = "isthmus.net.0.address=10.0.2.15/24 isthmus.net.0.gateway=10.0.2.2";
    boot(spec()?.nic(Nic::User { forwards }).append(&format!("{address} {words}")))
}

/// Repeats a command until its output, as JSON, is as wanted.
fn until(vm: &mut Vm, command: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(40);
    loop {
        let shown = vm.run(&format!("{command} --json"))?.json()?;
        if wanted(&shown) {
            return Ok(shown);
        }
        ensure!(Instant::now() < deadline, "`{command}` is not as wanted: {shown:#}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// dnsmasq on both loopback addresses, with these hosts.
fn dnsmasq(directory: &Path, port: u16, hosts: &str) -> Result<Stock> {
    let file = directory.join("hosts");
    std::fs::write(&file, hosts)?;
    let port_option = format!("--port={port}");
    let hosts = format!("--addn-hosts={}", file.display());
    let stock = Stock::start(
        "dnsmasq",
        &[
            "--no-daemon",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--bind-interfaces",
            "--listen-address=127.0.0.1,::1",
            "--local=/test/",
            "--local-ttl=30",
            "--cname=alias.test,nas.test",
            &port_option,
            &hosts,
        ],
    )?;
    // Its TCP port is open when it serves.
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        ensure!(Instant::now() < deadline, "dnsmasq does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(stock)
}

#[test]
fn names_are_resolved_by_dnsmasq_over_udp_and_tcp() -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let mut hosts = "10.1.0.7 nas.test\nfd00::7 nas.test\n".to_string();
    for n in 1..=60 {
        hosts += &format!("10.2.0.{n} big.test\n");
    }
    let _server = dnsmasq(directory.path(), port, &hosts)?;
    let mut vm = start(&format!("isthmus.system.dns={HOST}:{port}"), &[])?;
    vm.run("resolve nas.test")?.contains("nas.test: fd00::7, 10.1.0.7")?;
    vm.run("resolve ALIAS.test.")?.contains("alias.test: fd00::7, 10.1.0.7")?;
    vm.run("resolve missing.test")?.contains("error: missing.test: the name does not exist")?;
    // The answer exceeds a datagram.
    vm.run("resolve big.test")?.contains("10.2.0.1, 10.2.0.")?;
    let shown = vm.run("show dns --json")?.json()?;
    ensure!(shown["over_tcp"].as_u64() >= Some(1), "{shown:#}");
    ensure!(shown["servers"][0]["timeouts"] == 0 && shown["foreign_datagrams"] == 0, "{shown:#}");
    let sent = shown["servers"][0]["sent"].as_u64();
    // The cache answers.
    vm.run("resolve nas.test")?.contains("10.1.0.7")?;
    let again = vm.run("show dns --json")?.json()?;
    ensure!(again["servers"][0]["sent"].as_u64() == sent, "{again:#}");
    for (wrong, why) in [
        ("localhost", "the appliance itself"),
        ("10.0.0", "neither an address"),
        ("10.0.0.1", "is an address"),
        ("a..b", "not a name"),
    ] {
        vm.run(&format!("resolve {wrong}"))?.contains("error")?.contains(why)?;
    }
    vm.run("set http.hosts nas.test")?.contains("a name proves nothing")?;
    vm.run("set system.dns ns.test")?.contains("needs an address")?;
    Ok(())
}

#[test]
fn name_server_of_dhcp_yields_to_a_configured_one() -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let _server = dnsmasq(directory.path(), port, "10.1.0.7 nas.test\n")?;
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    let announced = |servers: &Value, address: &str, from: &str| {
        let all = servers["servers"].as_array();
        all.is_some_and(|all| {
            all.iter().any(|one| {
                one["address"] == address && one["from"] == from && one["interface"] == "net0"
            })
        })
    };
    until(&mut vm, "show dns", |shown| announced(shown, "10.0.2.3:53", "DHCP"))?;
    // A configured server takes its place, here over IPv6.
    vm.run(&format!("set system.dns [{HOST_V6}]:{port}"))?.lacks("error")?;
    let shown = until(&mut vm, "show dns", |shown| {
        shown["servers"].as_array().is_some_and(|all| all.len() == 1)
    })?;
    ensure!(shown["servers"][0]["from"] == "system.dns", "{shown:#}");
    vm.run("resolve nas.test")?.contains("nas.test: 10.1.0.7")?;
    Ok(())
}

#[test]
fn forged_answers_are_ignored() -> Result<()> {
    let liar = Liar::start(Act::Forge)?;
    let mut vm = start(&format!("isthmus.system.dns={HOST}:{}", liar.port), &[])?;
    vm.run("resolve nas.test")?.contains("nas.test: 10.1.0.1")?.lacks("10.6.6.6")?;
    let shown = vm.run("show dns --json")?.json()?;
    // Of each family: another ID, another name, no answer at all, and one from another port.
    ensure!(shown["foreign_datagrams"].as_u64() >= Some(6), "{shown:#}");
    Ok(())
}

#[test]
fn silent_server_costs_a_second_and_a_gone_one_is_reported() -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let server = dnsmasq(directory.path(), port, "10.1.0.7 nas.test\n10.1.0.8 b.test\n")?;
    let silent = UdpSocket::bind(("127.0.0.1", 0))?;
    let silent_port = silent.local_addr()?.port();
    let words = format!(
        "isthmus.system.dns={HOST}:{silent_port},{HOST}:{port} isthmus.rule.0.name=web \
         isthmus.rule.0.listen=8000 isthmus.rule.0.backend=gone.test:80"
    );
    let ours = free_port()?;
    let mut vm = start(&words, &[(ours, 8000)])?;
    let begun = Instant::now();
    vm.run("resolve nas.test")?.contains("10.1.0.7")?;
    ensure!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // A name of the configuration that does not exist.
    until(&mut vm, "show refused", |shown| {
        let rows = shown.as_array();
        rows.is_some_and(|rows| {
            rows.iter().any(|row| row["asked"] == "gone.test" && row["reason"] == "no_such_name")
        })
    })?;
    vm.run("show dns")?.contains("the name does not exist")?;
    // A client of the rule is refused with the reason.
    let mut client = TcpStream::connect(("127.0.0.1", ours))?;
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let _ = std::io::Read::read(&mut client, &mut [0; 1]);
    until(&mut vm, "show refused", |shown| {
        shown.to_string().contains("no name in rule.N.backend has an address")
    })?;
    drop((server, silent));
    vm.run("resolve other.test")?.contains("error: other.test: no name server answers")?;
    Ok(())
}

/// Accepts one connection, and sends a word.
fn greet(listener: TcpListener, word: &'static str) {
    std::thread::spawn(move || {
        // Connections stay open until the test ends.
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = std::io::Write::write_all(&mut stream, word.as_bytes());
            open.push(stream);
        }
    });
}

fn word_of(stream: &mut TcpStream) -> Result<String> {
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut word = [0; 3];
    std::io::Read::read_exact(stream, &mut word).context("the rule's server sent nothing")?;
    Ok(String::from_utf8_lossy(&word).into_owned())
}

#[test]
fn rule_follows_its_names_and_keeps_open_connections() -> Result<()> {
    let v4 = TcpListener::bind(("127.0.0.1", 0))?;
    let port = v4.local_addr()?.port();
    let v6 = TcpListener::bind(("::1", port))?;
    greet(v4, "one");
    greet(v6, "two");
    let liar = Liar::start(Act::Answer(HOST.parse()?))?;
    let ours = free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", ours, 8000)] };
    let words = format!(
        "isthmus.system.dns={HOST}:{} isthmus.rule.0.name=web isthmus.rule.0.listen=8000 \
         isthmus.rule.0.backend=web.test:{port}",
        liar.port
    );
    let mut vm = boot(spec()?.nic(nic).append(&words))?;
    let has = |address: &str| {
        let address = format!("\"{address}\"");
        move |shown: &Value| shown.to_string().contains(&address)
    };
    until(&mut vm, "show smc rules", has(&format!("{HOST}:{port}")))?;
    let mut first = TcpStream::connect(("127.0.0.1", ours))?;
    ensure!(word_of(&mut first)? == "one");
    // The answer's TTL is a second, and the appliance's floor five.
    liar.set(Act::Answer(HOST_V6.parse::<IpAddr>()?));
    until(&mut vm, "show smc rules", has(&format!("[{HOST_V6}]:{port}")))?;
    let mut second = TcpStream::connect(("127.0.0.1", ours))?;
    ensure!(word_of(&mut second)? == "two");
    first.set_nonblocking(true)?;
    let waits = std::io::Read::read(&mut first, &mut [0; 1]);
    ensure!(waits.is_err_and(|why| why.kind() == std::io::ErrorKind::WouldBlock), "it has ended");
    Ok(())
}
