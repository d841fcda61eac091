//! Peers that nobody has configured: they come by rendezvous, over a network that Linux is on, or another appliance.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm};
use usnic::wire::header::Layout;
use usnic::wire::modex::Modex;
use usnic::wire::rendezvous::{Kind, LENGTH, Record};
use usnic_tests::mpi::Job;
use usnic_tests::namespace::{self, TAP};
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::APPLIANCE;

use super::lab::{ask, modex_of};

/// Where the appliance has its rendezvous.
pub(super) const PORT: u16 = 7004;

pub(super) fn document(mtu: u16, address: &str, more: &str) -> String {
    format!(
        "[[net]]\naddress = \"{address}/24\"\nmtu = {mtu}\n[[usnic]]\nname = \"mpi\"\nnet = 0\n\
         address = \"{address}\"\ndata_port = 7001\npriority_port = 7002\nping_port = 7003\n\
         sender = \"1.0\"\nhosts = [\"10.9.0.0/24\"]\n{more}\n"
    )
}

fn stock(rank: u32, mtu: u16) -> Result<Stock> {
    let eager_limit = Some(1 << 20);
    Stock::start(&stock::Options { rank, mtu, eager_limit, interface: TAP, ..Default::default() })
}

/// The example of a client; it is ended when this is dropped.
pub(super) struct Client(Child);

impl Client {
    pub(super) fn start(modex: &Modex, words: &[&str]) -> Result<Client> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peer/rendezvous.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).args([&APPLIANCE.to_string(), &PORT.to_string()]);
        command.arg(words[0]).arg(modex.to_string()).args(&words[1..]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Client(command.spawn().context("no python3")?))
    }

    /// What it prints: `HEX JOB RANK`, of the appliance.
    pub(super) fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        let output = self.0.stdout.take().context("it was asked before")?;
        BufReader::new(output).read_line(&mut line)?;
        let said = line.trim().strip_prefix("modex ").map(str::to_string);
        said.with_context(|| format!("{line:?} {:?}", self.complaint()))
    }

    /// How it has failed.
    fn complaint(&mut self) -> Result<String> {
        let mut text = String::new();
        let mut errors = self.0.stderr.take().context("it was asked before")?;
        errors.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(vm: &mut Vm, what: &str, mut done: impl FnMut(&str) -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let told = vm.run("show usnic")?.text;
        if done(&told) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "waited in vain: {what}; {told}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The stock BTL sends to the appliance and has it all back; neither was told of the other by hand.
#[test]
fn the_stock_peer_comes_by_rendezvous() -> Result<()> {
    namespace::within(1500, || {
        let more = format!("rendezvous = {PORT}\nservices = [\"echo\"]\ntag = 65");
        let text = document(1500, &APPLIANCE.to_string(), &more);
        let mut vm = boot(spec()?.memory(256).nic(namespace::nic()).config(&text))?;
        for (rank, round) in [(1, "first"), (2, "another process in its place")] {
            let mut peer = stock(rank, 1500)?;
            let mut client = Client::start(&peer.modex, &[&format!("1.{rank}")])?;
            let ours = client.answer()?;
            ensure!(ours.ends_with(" 1 0"), "it names itself as it is configured to: {ours}");
            ask(&mut peer, &format!("peer {ours}"), "peer ok")?;
            let mut all = 0;
            for (count, size) in [(10, 100), (100, 1440), (50, 5000), (5, 300_000)] {
                let line = ask(&mut peer, &format!("send {count} {size}"), "sent")?;
                ensure!(line.contains(&format!("done {count} acknowledged 1")), "{round}: {line}");
                all += count;
                let line = ask(&mut peer, &format!("recv {all} 60"), "received")?;
                ensure!(line.starts_with(&format!("received {all} bad 0")), "{round}: {line}");
            }
            vm.run("show usnic")?.contains(&format!("10.9.0.2-{}", peer.modex.data_port))?;
            drop(client);
            wait(&mut vm, "the end of its endpoint", |told| !told.contains("10.9.0.2-"))?;
        }
        // Who connects and says nothing keeps nobody waiting.
        let to = SocketAddr::new(APPLIANCE.into(), PORT);
        let connect = |_| TcpStream::connect_timeout(&to, Duration::from_millis(100)).ok();
        let silent: Vec<TcpStream> = (0..80).filter_map(connect).collect();
        ensure!(silent.len() > 16, "{} connections", silent.len());
        let peer = stock(4, 1500)?;
        let asked = Instant::now();
        Client::start(&peer.modex, &["1.4"])?.answer()?;
        ensure!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        drop(silent);
        // Who has another MTU, and who is in none of the networks.
        let modex = stock(3, 1500)?.modex;
        let other = Modex { max_message: Modex::max_message_of(9000), ..modex };
        let told = Client::start(&other, &["1.3"])?.complaint()?;
        ensure!(told.contains("refused (3)") && told.contains("same MTU"), "{told}");
        let other = Modex { address: [10, 9, 1, 2].into(), ..modex };
        let told = Client::start(&other, &["1.3"])?.complaint()?;
        ensure!(told.contains("refused (2)") && told.contains("10.9.1.2 is in none"), "{told}");
        vm.run("show refused")?.contains("rendezvous at TCP port 7004")?;
        // What is no record, and what says more than a record.
        for bytes in [vec![0; LENGTH], vec![b'x'; 10_000]] {
            let mut stranger = TcpStream::connect(SocketAddr::new(APPLIANCE.into(), PORT))?;
            stranger.set_read_timeout(Some(Duration::from_secs(30)))?;
            stranger.write_all(&bytes)?;
            let mut answer = Vec::new();
            // A reset is an end as well.
            let _ = stranger.read_to_end(&mut answer);
        }
        vm.run("show usnic")?.lacks("10.9.0.2-")?;
        Ok(())
    })
}

/// One appliance asks the other for its modex, and again when that has begun anew.
#[test]
fn two_appliances_find_each_other() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let wire = |listens| Nic::Stream { path: directory.path().join("wire"), listens };
    let here = format!("rendezvous = {PORT}\nservices = [\"echo\"]");
    let there = format!(
        "[[usnic.peer]]\nname = \"other\"\nsender = \"1.0\"\nrendezvous = \"{APPLIANCE}:{PORT}\""
    );
    let text = document(1500, &APPLIANCE.to_string(), &here);
    let mut first = boot(spec()?.memory(256).nic(wire(true)).config(&text).reboots())?;
    let text = document(1500, "10.9.0.9", &there).replace("\"1.0\"\nhosts", "\"1.9\"\nhosts");
    let mut second = boot(spec()?.memory(256).nic(wire(false)).config(&text))?;
    for round in ["at first", "after a reboot"] {
        wait(&mut second, round, |told| told.contains("10.9.0.1") && told.contains("open"))?;
        second.run("usnic ping other")?.contains("large PING answered")?;
        first.run("show usnic")?.contains("10.9.0.9-7001")?;
        first.run("usnic ping 10.9.0.9-7001")?.contains("large PING answered")?;
        if round == "at first" {
            // Both endpoints end with the connection, whichever end it is that ends it.
            first.run("usnic reset 10.9.0.9-7001")?;
            wait(&mut second, "a new exchange", |told| told.contains("open"))?;
            first.reboot()?;
        }
    }
    Ok(())
}

/// Rank 1 of a stock job is the image: it sends back what rank 0 sends, up to 64 MiB, and rank 0 compares.
#[test]
fn a_rank_of_a_stock_job() -> Result<()> {
    a_rank(1500)
}

/// The same in jumbo frames.
#[test]
fn a_rank_of_a_stock_job_with_an_mtu_of_9000() -> Result<()> {
    a_rank(9000)
}

/// Tells the appliance of the others of a job, as its courier does; its modexes, and the connections that endpoints live
/// as long as.
pub(super) fn introduce(job: &Job) -> Result<Vec<(Modex, TcpStream)>> {
    let introduced = |&(modex, sender): &(Modex, u64)| {
        let mut exchange = TcpStream::connect(SocketAddr::new(APPLIANCE.into(), PORT))?;
        let request = Record {
            kind: Kind::Request,
            layout: Layout::V4,
            sender,
            receiver: job.name,
            modex: Some(modex),
        };
        exchange.write_all(&request.emit())?;
        let mut bytes = [0; LENGTH];
        exchange.read_exact(&mut bytes)?;
        let answer = Record::parse(&bytes)?;
        ensure!(answer.kind == Kind::Taken, "{answer:?}");
        Ok((answer.modex.context("a modex")?, exchange))
    };
    job.peers.iter().map(introduced).collect()
}

fn a_rank(mtu: u16) -> Result<()> {
    namespace::within(mtu, || {
        let more = format!("rendezvous = {PORT}\nisn = 65500\nservices = [\"mpi-mirror\"]");
        let text = document(mtu, &APPLIANCE.to_string(), &more);
        let mut vm = boot(spec()?.memory(1024).nic(namespace::nic()).config(&text))?;
        let ours = modex_of(&mut vm)?;
        let sizes = ["0", "1", "1000", "1427", "65536", "153600", "160000", "1048576", "67108864"];
        let words = [&["2"][..], &sizes].concat();
        let mut job = Job::start(&[ours], TAP, mtu, &words)?;
        let exchanges = introduce(&job)?;
        let told: Vec<Modex> = exchanges.iter().map(|(modex, _)| *modex).collect();
        ensure!(told == [ours], "{told:?}");
        job.ready()?;
        let end = Instant::now() + Duration::from_secs(400);
        while !job.is_over()? {
            ensure!(Instant::now() < end, "{}", vm.run("show usnic --json")?.text);
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = job.finish()?;
        let told = vm.run("show usnic --json")?.json()?;
        let peer = &told[0]["peers"][0];
        ensure!(text.contains("done") && !text.contains("differ"), "{text} {told}");
        // Of each size one by MPI_Ssend, which begins as those in parts do.
        ensure!(peer["mpi_refused"] == 0 && peer["mpi_under_way"] == 0, "{told}");
        ensure!(peer["mpi_rendezvous"].as_u64() > Some(9), "{told}");
        println!("MTU {mtu}: {text}{peer}");
        Ok(())
    })
}
