//! LINX over RIOCM between two images at ports of a switch: each finds the other's endpoint names, and signals of all
//! lengths are echoed. A client of one image also uses redis behind the other, over TCP, RapidIO and TCP.
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::captured::{SET_TOKEN, download};
use interop_tests::system;
use launch::guest::{ENVIRONMENT, Guest, UNPACK, Wire, applications};
use launch::qemu::{Disk, Vm};
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use super::PATIENCE;
use super::pair::{Client, FAR, NEAR, Pair, WIDE, network, ready, until};

/// Longest body of a signal. With the signal number it is `max_message`.
const LONGEST: usize = 65_532;

/// The link of each board to the other.
const LINK: [&str; 2] = [
    "[[linx]]\nname = \"peer\"\ntransport = \"riocm\"\nrapidio = 0\npeer_id = 0\nport = 11\npeer_port = 22\n",
    "[[linx]]\nname = \"peer\"\ntransport = \"riocm\"\nrapidio = 0\npeer_id = 1\nport = 22\npeer_port = 11\n",
];

/// The rule by which a client reaches the other board's echo service, and the service.
const OUT: &str = "services = [\"echo\"]\n[[rule]]\nname = \"out\"\nlisten = 7000\nbackend = [\"linx:peer/echo\"]\n\
                   connect_timeout_ms = 60000\n";

fn is_up(link: &Value) -> bool {
    link["state"] == "up"
}

/// Fetches a page from a board.
fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

fn are_up(boards: &mut [Vm; 2]) -> Result<()> {
    boards.iter_mut().try_for_each(|vm| until(vm, "linx", is_up).map(drop))
}

fn start() -> Result<Pair> {
    let mut pair = Pair::start(LINK.map(|link| format!("{link}{OUT}")))?;
    are_up(&mut pair.boards)?;
    Ok(pair)
}

/// Lengths around the boundaries of RIOCM packets, and many more.
fn lengths() -> Vec<usize> {
    // A packet has 4096 bytes, including 28 bytes of headers in the first packet, 16 in the others, and the signal
    // number.
    let borders = [0, 4064, 4064 + 4080, 4064 + 15 * 4080, LONGEST];
    let about = borders.into_iter().flat_map(|at: usize| at.saturating_sub(2)..=at + 2);
    about.filter(|len| *len <= LONGEST).chain((0..60).map(|n| n * n * 37 % LONGEST)).collect()
}

#[test]
fn signals_of_all_lengths_are_echoed_between_two_images() -> Result<()> {
    let mut pair = start()?;
    let lengths = lengths();
    for board in 0..2 {
        pair.client(board)?.echo(&lengths)?;
    }
    // Both directions at once, over several connections of each board.
    std::thread::scope(|scope| {
        let ports = pair.ports.iter().flat_map(|port| [*port; 3]);
        let echo = |port| move || Client::connect(port)?.echo(&[1000, 60_000, 3, 5000]);
        let clients: Vec<_> = ports.map(|port| scope.spawn(echo(port))).collect();
        clients.into_iter().try_for_each(|client| client.join().expect("no panic"))
    })?;
    let signals = 2 * (lengths.len() as u64 + 12);
    for vm in &mut pair.boards {
        let link = until(vm, "linx", |link| link["received"] == signals)?;
        ensure!(link["mtu"] == 4096 && link["version"] == 2 && link["ups"] == 1, "{link:#}");
        ensure!(link["sent"] == signals && link["dropped"] == 0, "{link:#}");
        vm.run("show log")?.contains("linx peer: up")?.lacks("down")?.lacks("ERROR")?;
    }
    let page = get(pair.web[0], "/metrics")?;
    for sample in [
        "isthmus_linx_up{link=\"peer\"} 1".to_string(),
        "isthmus_linx_link_up_total{link=\"peer\"} 1".to_string(),
        format!("isthmus_linx_transmit_signals_total{{link=\"peer\"}} {signals}"),
        format!("isthmus_linx_receive_signals_total{{link=\"peer\"}} {signals}"),
        "isthmus_linx_dropped_signals_total{link=\"peer\"} 0".to_string(),
        format!("isthmus_linx_echoed_total {}", signals / 2),
    ] {
        ensure!(page.lines().any(|line| line == sample), "no {sample} in\n{page}");
    }
    // A length beyond the link's limit ends only its own connection.
    let mut wrong = pair.client(0)?;
    wrong.0.write_all(&(1u32 << 20).to_be_bytes())?;
    ensure!(wrong.receive().is_err(), "the message was answered");
    pair.boards[0].run("show log")?.contains("announces a message of 1048576 bytes")?;
    pair.client(0)?.echo(&[7])
}

/// Between two images, IDs may have 16 bits, and the bridges use MSI-X vectors, which wake a halted image.
#[test]
fn signals_of_all_lengths_are_echoed_with_16_bit_ids() -> Result<()> {
    let more =
        LINK.map(|link| format!("{}{OUT}", link.replace("peer_id = 1\n", "peer_id = 1000\n")));
    let mut pair = Pair::start_as(WIDE, more)?;
    are_up(&mut pair.boards)?;
    for board in 0..2 {
        pair.client(board)?.echo(&lengths())?;
    }
    let [near, far] = pair.boards.each_mut().map(|vm| until(vm, "rapidio", |_| true));
    for (shown, id) in [(near?, 1000), (far?, 0)] {
        ensure!(shown["id"] == id && shown["interrupts"].as_u64() > Some(10), "{shown:#}");
    }
    Ok(())
}

/// Kills either board at any moment. The other board ends its clients' connections, and the link works again once the
/// killed board is back.
#[test]
fn link_recovers_when_a_killed_board_returns() -> Result<()> {
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 50 } else { 4 };
    let mut pair = start()?;
    let mut rng = rand::rngs::StdRng::seed_from_u64(19);
    for round in 0..rounds {
        // Each board is killed twice at least.
        let victim = if round < 4 { round % 2 } else { rng.random_range(0..2) };
        let other = 1 - victim;
        let case = || format!("round {round}: board {victim} was killed");
        let mut client = pair.client(other)?;
        client.echo(&[100])?;
        let port = pair.ports[victim];
        let load = std::thread::spawn(move || {
            // Until the board is killed.
            while Client::connect(port).and_then(|mut one| one.echo(&[60_000, 5, 4000])).is_ok() {}
        });
        let until_then = Instant::now() + Duration::from_millis(rng.random_range(0..1500));
        while Instant::now() < until_then {
            client.echo(&[rng.random_range(0..LONGEST)])?;
        }
        pair.boards[victim].kill();
        // The other board reports the loss of its client's pending signals by closing the connection.
        let ended = client.send(1, &[1; 3000]).is_err() || client.receive().is_err();
        ensure!(ended, "{}: the signal was answered", case());
        load.join().expect("no panic");
        let shown = until(&mut pair.boards[other], "linx", |link| link["state"] == "down");
        shown.with_context(case)?;
        pair.restart(victim)?;
        are_up(&mut pair.boards).with_context(case)?;
        for board in 0..2 {
            pair.client(board)?.echo(&[0, 9000, LONGEST]).with_context(case)?;
        }
        let rule = until(&mut pair.boards[other], "smc rules", |rule| rule["connections"] == 0);
        rule.with_context(case)?;
    }
    pair.boards.iter_mut().try_for_each(|vm| vm.run("show log")?.lacks("panic").map(drop))
}

/// One image serves the clients, the other reaches the server, and a guest runs both clients and server.
#[test]
fn redis_is_reached_over_tcp_rapidio_and_tcp() -> Result<()> {
    let model = network()?;
    let wires = [Wire::new()?, Wire::new()?];
    let [(near_nic, clients), (far_nic, server)] = [wires[0].datagrams(), wires[1].datagrams()];
    let rule = |listen: &str, backend: &str| {
        format!(
            "[[rule]]\nname = \"redis\"\nlisten = {listen}\nbackend = [\"{backend}\"]\nframing = \"none\"\n\
             signal = 1000\nconnections = 512\nconnect_timeout_ms = 20000\n"
        )
    };
    let far = FAR.document("10.0.1.1/24", LINK[1], &rule("\"linx:peer/redis\"", "10.0.1.2:6380"));
    let mut far = ready(FAR.spec(&model, far_nic, &far)?)?;
    until(&mut far, "rapidio", |shown| shown["state"] == "waits for a host")?;
    let near = NEAR.document("10.0.0.1/24", LINK[0], &rule("6379", "linx:peer/redis"));
    let mut near = ready(NEAR.spec(&model, near_nic, &near)?)?;
    let spec = system()?.spec("linux", &["10.0.0.2/24", "10.0.1.2/24"], 1500);
    let spec =
        spec.nic(clients).nic(server).first_mac(0x30).disk(Disk::new(applications()?).read_only());
    let mut guest = Guest::start("linux", spec)?;
    guest.wait_up()?;
    guest.sh(UNPACK)?;
    for vm in [&mut near, &mut far] {
        until(vm, "linx", is_up)?;
    }
    let result = redis(&mut guest);
    let report = [&mut near, &mut far].map(|vm| {
        ["show linx", "show smc rules", "show log"]
            .map(|line| vm.run(line).map_or_else(|error| format!("{error:#}"), |reply| reply.text))
    });
    result.with_context(|| format!("the images report:\n{}", report.concat().join("\n")))?;
    for vm in [&mut near, &mut far] {
        let rule = until(vm, "smc rules", |rule| rule["connections"] == 0)?;
        ensure!(rule["messages_lost"] == 0 && rule["refused"] == 0, "{rule:#}");
        vm.run("show log")?.lacks("ERROR")?;
    }
    Ok(())
}

fn redis(guest: &mut Guest) -> Result<()> {
    let run = |guest: &mut Guest, command: &str| -> Result<String> {
        let (status, said) =
            guest.try_sh(&format!("export {ENVIRONMENT}; {command}"), 4 * PATIENCE)?;
        ensure!(status == 0, "`{command}` ended with {status}:\n{said}");
        Ok(said)
    };
    run(guest, "redis-server --port 6380 --save '' --protected-mode no --daemonize yes")?;
    guest.wait_until(&format!("export {ENVIRONMENT}; redis-cli -p 6380 ping"), PATIENCE)?;
    let there = "redis-cli -h 10.0.0.1 -p 6379";
    run(guest, "head -c 300000 /dev/urandom | busybox base64 > /tmp/value")?;
    run(guest, &format!("{there} -x set one < /tmp/value"))?;
    run(guest, "redis-cli -p 6380 --raw get one > /tmp/direct")?;
    run(guest, &format!("{there} --raw get one > /tmp/relayed"))?;
    run(
        guest,
        "cmp /tmp/direct /tmp/relayed && head -c 300000 /tmp/direct > /tmp/a && \
                head -c 300000 /tmp/value | cmp - /tmp/a",
    )?;
    let said = run(
        guest,
        "redis-benchmark -h 10.0.0.1 -p 6379 -t ping,set,get,lrange_100 -n 1000 -c 20 -d 1000 --csv",
    )?;
    ensure!(said.contains("LRANGE_100") && !said.contains("Error"), "{said}");
    Ok(())
}

/// tshark reads a capture of the near board with the project's dissector: the link setup, the names, and the signals.
#[test]
fn tshark_dissects_a_capture_of_the_link() -> Result<()> {
    let mut pair = start()?;
    let server = ("127.0.0.1", pair.web[0]).to_socket_addrs()?.next().context("an address")?;
    pair.boards[0].run(SET_TOKEN)?;
    pair.boards[0].run("capture start rapidio payload")?.lacks("error")?;
    // The link comes up again during the capture.
    pair.boards[1].kill();
    until(&mut pair.boards[0], "linx", |link| link["state"] == "down")?;
    pair.restart(1)?;
    are_up(&mut pair.boards)?;
    pair.client(0)?.echo(&[7, 20_000])?;
    pair.boards[0].run("capture stop")?;
    let file = download(server)?;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rapidio.pcapng");
    std::fs::write(&path, file)?;
    let script =
        concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../net/linx/wireshark/riocm.lua");
    let mut tshark = Command::new("tshark");
    tshark.args(["-X", script, "-n", "-T", "fields", "-E", "separator=|", "-r"]).arg(&path);
    let fields = [
        "riomsg.source",
        "riomsg.destination",
        "riomsg.mailbox",
        "riocm.type",
        "rlnh.type",
        "rlnh.name",
        "rlnh.signo",
        "riocm.payl_size",
        "_ws.expert.message",
    ];
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = tshark.output().context("tshark (./isthmus setup)")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success() && !said.contains("Lua:"), "tshark: {said}");
    let text = String::from_utf8(output.stdout)?;
    for line in [
        // CONN_REQ and CONN_ACK of both, INIT of both, the hunt and its answer, and signals in both directions, in
        // one packet and in several.
        "0x0001|0x0000|2|0x81|",
        "0x0001|0x0000|2|0x82|",
        "0x0000|0x0001|2|0x82|",
        "0x0001|0x0000|2|0x01|5||",
        "0x0000|0x0001|2|0x01|5||",
        "0x0001|0x0000|2|0x01|1|echo||",
        "0x0000|0x0001|2|0x01|2|echo||",
        "0x0001|0x0000|2|0x01|||1000|11|",
        "0x0000|0x0001|2|0x01|||1000|11|",
        "0x0001|0x0000|2|0x02|||1001|20004|",
        "0x0000|0x0001|2|0x03|",
        "0x0001|0x0000|2|0x06|",
    ] {
        ensure!(text.lines().any(|one| one.starts_with(line)), "no {line} in\n{text}");
    }
    ensure!(!text.contains("Shorter"), "{text}");
    Ok(())
}
