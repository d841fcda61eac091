//! Rules over channels of rio_cm to a stock Linux, which uses them through `/dev/rio_cm`: a hundred channels from Linux
//! to a TCP server, and a hundred TCP clients to Linux; closes, idle peers, and reboots on both sides.
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::models::ModelServer;
use launch::qemu::{Nic, Vm, free_port};
use serde_json::{Value, json};

use super::pair::{Client, until, wait_for_log};
use super::{Boards, PATIENCE};

const MANY: usize = 100;
/// Bytes of the longest message.
const LONGEST: usize = 4076;

/// Starts a TCP echo server.
fn echo_server() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || -> std::io::Result<()> {
                let mut bytes = vec![0; 16 << 10];
                loop {
                    let count = stream.read(&mut bytes)?;
                    if count == 0 {
                        return Ok(());
                    }
                    stream.write_all(&bytes[..count])?;
                }
            });
        }
    });
    Ok(port)
}

fn message(of: usize, round: usize) -> Vec<u8> {
    let length = 4 + (of * 397 + round * 1009) % (LONGEST - 3);
    (0..length).map(|at| (at * 3 + of * 11 + round) as u8).collect()
}

/// Sends a channel's message: a length in the stream, and the bytes, without a signal number.
fn send(client: &mut Client, bytes: &[u8]) -> Result<()> {
    client.0.write_all(&[&(bytes.len() as u32).to_be_bytes()[..], bytes].concat())?;
    Ok(())
}

fn receive(client: &mut Client) -> Result<Vec<u8>> {
    let (number, rest) = client.receive()?;
    Ok([&number.to_be_bytes()[..], &rest].concat())
}

/// `MANY` concurrent clients, each of which receives its messages again.
fn crowd(port: u16, rounds: usize) -> Result<()> {
    let mut clients = Vec::new();
    for _ in 0..MANY {
        clients.push(Client::connect(port)?);
    }
    for round in 0..rounds {
        for (of, client) in clients.iter_mut().enumerate() {
            send(client, &message(of, round))
                .with_context(|| format!("client {of}, round {round}"))?;
        }
        for (of, client) in clients.iter_mut().enumerate() {
            let back = receive(client).with_context(|| format!("client {of}, round {round}"))?;
            ensure!(
                back == message(of, round),
                "client {of} received another message in round {round}"
            );
        }
    }
    Ok(())
}

fn rule(boards: &mut Boards, name: &str) -> Result<Value> {
    let all = boards.gateway.run("show smc rules --json")?.json()?;
    let one = all.as_array().and_then(|all| all.iter().find(|rule| rule["name"] == name));
    one.cloned().with_context(|| format!("no rule {name} in {all:#}"))
}

fn rule_until(boards: &mut Boards, name: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let shown = rule(boards, name)?;
        if wanted(&shown) {
            return Ok(shown);
        }
        ensure!(
            std::time::Instant::now() < deadline,
            "rule {name} is not in the expected state: {shown:#}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn serve(boards: &mut Boards) -> Result<()> {
    boards.guest.sh("rio_cm crowd 30 > /tmp/crowd 2>&1 &")?;
    boards.guest.wait_until("grep listens /tmp/crowd", PATIENCE)
}

fn run_scenario(
    boards: &mut Boards,
    ports: [u16; 2],
    boot_image: impl Fn(&ModelServer) -> Result<Vm>,
) -> Result<()> {
    let [out, quiet] = ports;
    // From Linux to a TCP server: a hundred concurrent channels receive their echoes. Twice.
    for run in 1..=2 {
        let said = boards.guest.sh(&format!("timeout 110 rio_cm many 3 20 {MANY} 20"))?;
        ensure!(said.contains("2000 messages came back as they were"), "{said}");
        let shown = rule_until(boards, "in", |rule| rule["connections"] == 0)?;
        ensure!(shown["message_clients"] == run * MANY, "{shown:#}");
        ensure!(shown["messages_lost"] == 0 && shown["refused"] == 0, "{shown:#}");
    }
    // From clients over TCP to Linux, twice.
    serve(boards)?;
    for run in 1..=2 {
        crowd(out, 10)?;
        let shown = rule_until(boards, "out", |rule| rule["connections"] == 0)?;
        ensure!(shown["tcp_clients"] == run * MANY && shown["messages_lost"] == 0, "{shown:#}");
    }
    // Both at once.
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| crowd(out, 5));
        let said = boards.guest.sh(&format!("timeout 110 rio_cm many 3 20 {MANY} 5"))?;
        ensure!(said.contains("500 messages came back as they were"), "{said}");
        clients.join().expect("no panic")
    })?;
    let shown = until(&mut boards.gateway, "rapidio", |_| true)?;
    ensure!(shown["rio_cm_overflowed"] == 0 && shown["undelivered"] == 0, "{shown:#}");
    // A process of Linux is killed: its TCP client's connection ends.
    let mut client = Client::connect(out)?;
    send(&mut client, &message(1, 1))?;
    ensure!(receive(&mut client)? == message(1, 1));
    boards.guest.sh("killall -9 rio_cm")?;
    ensure!(receive(&mut client).is_err(), "the server was killed");
    // No server listens: the client's connection ends within the timeout.
    let mut client = Client::connect(out)?;
    ensure!(receive(&mut client).is_err(), "no server listens");
    // Linux freezes: the rule's idle timeout ends the connection, and the log reports it.
    serve(boards)?;
    let mut client = Client::connect(quiet)?;
    send(&mut client, &message(2, 2))?;
    ensure!(receive(&mut client)? == message(2, 2));
    boards.guest.vm.qmp.execute("stop", json!({}))?;
    send(&mut client, &message(3, 3))?;
    ensure!(receive(&mut client).is_err(), "Linux is frozen");
    wait_for_log(
        &mut boards.gateway,
        "rule quiet: connections ended: 1, the last because the idle timeout expired",
    )?;
    boards.guest.vm.qmp.execute("cont", json!({}))?;
    // Linux loses power: the client's connection ends, without a timeout of the rule.
    let mut client = Client::connect(out)?;
    send(&mut client, &message(4, 4))?;
    ensure!(receive(&mut client)? == message(4, 4));
    boards.guest.vm.kill();
    ensure!(receive(&mut client).is_err(), "Linux has no power");
    wait_for_log(
        &mut boards.gateway,
        "rule out: connections ended: 1, the last because the peer is gone",
    )?;
    until(&mut boards.gateway, "rapidio", |shown| shown["rionet_peers"] == 0)?;
    boards.guest = Boards::linux(&boards.model)?;
    boards.enumerate("")?;
    until(&mut boards.gateway, "rapidio", |shown| shown["rionet_peers"] == 1)?;
    serve(boards)?;
    crowd(out, 2)?;
    let said = boards.guest.sh(&format!("timeout 110 rio_cm many 3 20 {MANY} 2"))?;
    ensure!(said.contains("200 messages came back as they were"), "{said}");
    // The appliance powers off in order, and closes each channel.
    boards.guest.sh("rio_cm hold 3 20 > /tmp/hold 2>&1 &")?;
    boards.guest.wait_until("grep connected /tmp/hold", PATIENCE)?;
    boards.gateway.run("show log")?.lacks("panic")?;
    boards.gateway.run("poweroff").ok();
    boards.guest.wait_until("grep ended /tmp/hold", PATIENCE)?;
    // After a reboot it is reached as before, because Linux keeps its ID.
    boards.gateway.kill();
    boards.gateway = boot_image(&boards.model)?;
    until(&mut boards.gateway, "rapidio", |shown| shown["rionet_peers"] == 1)?;
    crowd(out, 2)?;
    let said = boards.guest.sh(&format!("timeout 110 rio_cm many 3 20 {MANY} 2"))?;
    ensure!(said.contains("200 messages came back as they were"), "{said}");
    boards.gateway.run("show log")?.lacks("panic")?;
    let said = boards.guest.sh("dmesg | grep -e BUG -e Oops -e 'Call Trace' || true")?;
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

#[test]
fn hundred_channels_of_linux_work_both_ways_and_report_closes() -> Result<()> {
    let server = echo_server()?;
    let ports = [free_port()?, free_port()?];
    let words = format!(
        "isthmus.rapidio.0.role=host isthmus.rapidio.0.id=3 isthmus.net.0.address=10.0.2.15/24 \
         isthmus.net.1.address=10.1.0.1/24 \
         isthmus.rule.0.name=in isthmus.rule.0.listen=rio_cm:3:20 isthmus.rule.0.backend=10.0.2.2:{server} \
         isthmus.rule.0.connections=200 isthmus.rule.0.connect_timeout_ms=20000 \
         isthmus.rule.1.name=out isthmus.rule.1.listen=7000 isthmus.rule.1.backend=rio_cm:1:30 \
         isthmus.rule.1.connections=200 isthmus.rule.1.connect_timeout_ms=20000 \
         isthmus.rule.2.name=quiet isthmus.rule.2.listen=7001 isthmus.rule.2.backend=rio_cm:1:30 \
         isthmus.rule.2.idle_timeout_s=3"
    );
    let forwards = vec![("tcp", ports[0], 7000), ("tcp", ports[1], 7001)];
    let nic = || Some(Nic::User { forwards: forwards.clone() });
    let mut boards = Boards::boot_with(&words, nic())?;
    boards.enumerate("")?;
    until(&mut boards.gateway, "rapidio", |shown| shown["rionet_peers"] == 1)?;
    let result = run_scenario(&mut boards, ports, |model| Boards::image(model, &words, nic()));
    if result.is_ok() {
        return Ok(());
    }
    let state = boards.state();
    let report = ["show smc rules", "show log"].map(|line| {
        boards.gateway.run(line).map_or_else(|error| format!("{error:#}"), |reply| reply.text)
    });
    result.with_context(|| format!("{state}\n{}", report.join("\n")))
}
