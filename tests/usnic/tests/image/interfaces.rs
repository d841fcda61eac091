//! Peers with two interfaces, each on a separate network with one interface of the appliance.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::Vm;
use serde_json::Value;
use usnic::wire::modex::Modex;
use usnic_tests::mpi::Job;
use usnic_tests::namespace::{self, BOTH_TAPS};
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::APPLIANCE;

use super::lab::{EAGER, SINK, ask};
use super::network::{Client, PORT, document, introduce};

/// An appliance whose two interfaces form one process.
fn appliance(mtu: u16, memory: u32, cpus: &[u32], more: &str) -> Result<Vm> {
    let more = format!("rendezvous = {PORT}\nisn = 65500\n{more}");
    let first = document(mtu, &APPLIANCE.to_string(), &more);
    let second = document(mtu, "10.8.0.1", &more)
        .replace("\"mpi\"\nnet = 0", "\"second\"\nnet = 1")
        .replace("10.9.0.0/24\"]", "10.8.0.0/24\"]");
    let mut text = first + &second;
    for (net, core) in cpus.iter().enumerate().filter(|(_, core)| **core > 0) {
        let host = if net == 0 { "10.9.0.1" } else { "10.8.0.1" };
        let address = format!("[[net]]\naddress = \"{host}/24\"\n");
        text = text.replace(&address, &format!("{address}core = {core}\n"));
    }
    let cores = 1 + cpus.iter().max().copied().unwrap_or(0);
    let spec = spec()?.memory(memory).cpus(cores);
    boot(spec.nic(namespace::nic()).nic(namespace::second_nic()).config(&text))
}

/// Both modexes that `show usnic` prints.
fn modexes(vm: &mut Vm) -> Result<Vec<Modex>> {
    let reply = vm.run("show usnic")?;
    let lines = reply.text.lines().filter_map(|line| line.split_once("modex "));
    lines.map(|(_, hex)| Ok(hex.trim().parse()?)).collect()
}

/// Values of a counter of the peers at both interfaces.
fn counter(status: &Value, key: &str) -> Result<[u64; 2]> {
    let of = |at: usize| {
        status[at]["peers"][0][key].as_u64().with_context(|| format!("{key}: {status}"))
    };
    Ok([of(0)?, of(1)?])
}

/// The stock BTL without MPI sends messages over both interfaces in turn. All come back, over both.
fn stock_btl_echo(cpus: &[u32]) -> Result<()> {
    namespace::within_two(1500, || {
        let mut vm = appliance(1500, 512, cpus, "services = [\"echo\", \"put-sink\"]\ntag = 65")?;
        let eager_limit = Some(EAGER);
        let interface = BOTH_TAPS;
        let mut peer =
            Stock::start(&stock::Options { eager_limit, interface, ..Default::default() })?;
        ensure!(peer.modexes.len() == 2, "{:?}", peer.modexes);
        let mut clients = Vec::new();
        let mut ours = String::new();
        for modex in peer.modexes.clone() {
            let mut client = Client::start(&modex, &["1.1"])?;
            let answer = client.answer()?;
            ours += answer.strip_suffix(" 1 0").with_context(|| answer.clone())?;
            clients.push(client);
        }
        let expected: String = modexes(&mut vm)?.iter().map(Modex::to_string).collect();
        ensure!(ours == expected, "each peer gets the modex of its network: {ours} {expected}");
        ask(&mut peer, &format!("peer {ours} 1 0"), "peer ok")?;
        ensure!(ask(&mut peer, "paths", "paths")? == "paths 2");
        let mut all = 0;
        for (count, size) in
            [(2, 1), (200, 100), (100, 1440), (100, 5000), (6, 300_000), (1, EAGER)]
        {
            let line = ask(&mut peer, &format!("send {count} {size}"), "sent")?;
            ensure!(line.contains(&format!("done {count} acknowledged 1")), "{line}");
            all += count;
            let line = ask(&mut peer, &format!("recv {all} 100"), "received")?;
            ensure!(line.starts_with(&format!("received {all} bad 0")), "{size} bytes: {line}");
        }
        // Successive PUTs go over alternate interfaces, to the same memory.
        let names: Vec<String> =
            peer.modexes.iter().map(|it| format!("{}-{}", it.address, it.data_port)).collect();
        for (seed, offset) in [(7, 0), (8, 400_000)] {
            ask(&mut peer, &format!("put {} 300000 {seed}", SINK + offset), "put")?;
        }
        for (name, (seed, offset)) in names.iter().zip([(8, 400_000), (7, 0)]) {
            let crc = crc32fast::hash(&usnic_tests::pattern::put(seed, 300_000));
            let looked = vm.run(&format!("usnic look {name} {offset} 300000"))?;
            looked.contains(&format!("crc32 {crc:08x}"))?;
        }
        let report = vm.run("show usnic --json")?.json()?;
        let [came, back] = [counter(&report, "messages")?, counter(&report, "echoed")?];
        println!("cores {cpus:?}: {came:?} received, {back:?} echoed");
        for counts in [came, back] {
            let over_both = counts.iter().all(|count| *count > all / 8);
            ensure!(over_both && counts.iter().sum::<u64>() == all, "{report}");
        }
        ensure!(
            report[0]["peers"][0]["one_process_with"] == serde_json::json!([names[1]]),
            "{report}"
        );
        // The endpoint at one interface ends with its connection.
        clients.pop();
        let end = Instant::now() + Duration::from_secs(30);
        while vm.run("show usnic --json")?.json()?[1]["peers"] != serde_json::json!([]) {
            ensure!(Instant::now() < end, "the endpoint stays");
        }
        Ok(())
    })
}

#[test]
fn stock_btl_uses_two_interfaces() -> Result<()> {
    stock_btl_echo(&[0, 0])
}

/// Interfaces that other cores poll.
#[test]
fn interfaces_of_other_cores_work() -> Result<()> {
    stock_btl_echo(&[0, 1])?;
    stock_btl_echo(&[1, 1])
}

/// The image is a rank of a stock job over two interfaces, between which Open MPI distributes its messages.
#[test]
fn rank_of_a_stock_job_uses_two_interfaces() -> Result<()> {
    namespace::within_two(1500, || {
        let mut vm = appliance(1500, 1024, &[0, 0], "services = [\"mpi-mirror\"]")?;
        let ours = modexes(&mut vm)?;
        let sizes = ["0", "1", "1000", "25000", "65536", "153600", "160000", "1048576", "16777216"];
        let words = [&["3"][..], &sizes].concat();
        let mut job = Job::start(&ours, BOTH_TAPS, 1500, &words)?;
        ensure!(job.peers.len() == 2, "{:?}", job.peers);
        let exchanges = introduce(&job)?;
        job.ready()?;
        let end = Instant::now() + Duration::from_secs(300);
        while !job.is_over()? {
            ensure!(Instant::now() < end, "{}", vm.run("show usnic --json")?.text);
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = job.finish()?;
        let report = vm.run("show usnic --json")?.json()?;
        drop(exchanges);
        ensure!(text.contains("done") && !text.contains("differ"), "{text} {report}");
        let came = counter(&report, "messages")?;
        ensure!(came.iter().all(|count| *count > 10), "{report}");
        ensure!(counter(&report, "mpi_refused")? == [0; 2], "{report}");
        println!("{came:?} came; {text}");
        Ok(())
    })
}
