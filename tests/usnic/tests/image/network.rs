//! Peers without configuration, which register by rendezvous: stock peers on a Linux network, and another appliance.

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

/// Port of the appliance's rendezvous.
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

/// The example client, which is ended on drop.
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

    /// Its output, `HEX JOB RANK` of the appliance.
    pub(super) fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        let output = self.0.stdout.take().context("the output was read before")?;
        BufReader::new(output).read_line(&mut line)?;
        let modex = line.trim().strip_prefix("modex ").map(str::to_string);
        modex.with_context(|| format!("{line:?} {:?}", self.complaint()))
    }

    /// Its error message.
    fn complaint(&mut self) -> Result<String> {
        let mut text = String::new();
        let mut errors = self.0.stderr.take().context("the output was read before")?;
        errors.read_to_string(&mut text)?;
        Ok(text)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Fails if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait(vm: &mut Vm, what: &str, mut done: impl FnMut(&str) -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let status = vm.run("show usnic")?.text;
        if done(&status) {
            return Ok(());
        }
        ensure!(Instant::now() < end, "timeout: {what}; {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The appliance echoes messages of the stock BTL. Neither is configured with the other.
#[test]
fn stock_peer_registers_by_rendezvous() -> Result<()> {
    namespace::within(1500, || {
        let more = format!("rendezvous = {PORT}\nservices = [\"echo\"]\ntag = 65");
        let text = document(1500, &APPLIANCE.to_string(), &more);
        let mut vm = boot(spec()?.memory(256).nic(namespace::nic()).config(&text))?;
        for (rank, round) in [(1, "first"), (2, "another process in its place")] {
            let mut peer = stock(rank, 1500)?;
            let mut client = Client::start(&peer.modex, &[&format!("1.{rank}")])?;
            let ours = client.answer()?;
            ensure!(ours.ends_with(" 1 0"), "the appliance uses its configured name: {ours}");
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
            wait(&mut vm, "the end of the endpoint", |status| !status.contains("10.9.0.2-"))?;
        }
        // A silent connection does not delay others.
        let to = SocketAddr::new(APPLIANCE.into(), PORT);
        let connect = |_| TcpStream::connect_timeout(&to, Duration::from_millis(100)).ok();
        let silent: Vec<TcpStream> = (0..80).filter_map(connect).collect();
        ensure!(silent.len() > 16, "{} connections", silent.len());
        let peer = stock(4, 1500)?;
        let asked = Instant::now();
        Client::start(&peer.modex, &["1.4"])?.answer()?;
        ensure!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
        drop(silent);
        // A peer with another MTU, and a peer in none of the networks.
        let modex = stock(3, 1500)?.modex;
        let other = Modex { max_message: Modex::max_message_of(9000), ..modex };
        let why = Client::start(&other, &["1.3"])?.complaint()?;
        ensure!(why.contains("refused (3)") && why.contains("same MTU"), "{why}");
        let other = Modex { address: [10, 9, 1, 2].into(), ..modex };
        let why = Client::start(&other, &["1.3"])?.complaint()?;
        ensure!(why.contains("refused (2)") && why.contains("10.9.1.2 is in none"), "{why}");
        vm.run("show refused")?.contains("rendezvous at TCP port 7004")?;
        // A malformed record, and more data than a record.
        for bytes in [vec![0; LENGTH], vec![b'x'; 10_000]] {
            let mut stranger = TcpStream::connect(SocketAddr::new(APPLIANCE.into(), PORT))?;
            stranger.set_read_timeout(Some(Duration::from_secs(30)))?;
            stranger.write_all(&bytes)?;
            let mut answer = Vec::new();
            // The connection may end by a reset.
            let _ = stranger.read_to_end(&mut answer);
        }
        vm.run("show usnic")?.lacks("10.9.0.2-")?;
        Ok(())
    })
}

/// An appliance requests the modex of another one, and again after that has rebooted.
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
        wait(&mut second, round, |status| status.contains("10.9.0.1") && status.contains("open"))?;
        second.run("usnic ping other")?.contains("large PING answered")?;
        first.run("show usnic")?.contains("10.9.0.9-7001")?;
        first.run("usnic ping 10.9.0.9-7001")?.contains("large PING answered")?;
        if round == "at first" {
            // Both endpoints end with the connection, whichever end closes it.
            first.run("usnic reset 10.9.0.9-7001")?;
            wait(&mut second, "a new exchange", |status| status.contains("open"))?;
            first.reboot()?;
        }
    }
    Ok(())
}

/// The image is rank 1 of a stock job, and echoes the messages of rank 0, up to 64 MiB. Rank 0 compares.
#[test]
fn rank_of_a_stock_job_echoes_messages() -> Result<()> {
    echo_as_rank(1500)
}

/// The same in jumbo frames.
#[test]
fn rank_of_a_stock_job_echoes_messages_with_an_mtu_of_9000() -> Result<()> {
    echo_as_rank(9000)
}

/// Registers the other ranks of a job at the appliance, as its courier does. Returns the appliance's modexes, and the
/// connections that keep the endpoints open.
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
        Ok((answer.modex.context("the answer has no modex")?, exchange))
    };
    job.peers.iter().map(introduced).collect()
}

fn echo_as_rank(mtu: u16) -> Result<()> {
    namespace::within(mtu, || {
        let more = format!("rendezvous = {PORT}\nisn = 65500\nservices = [\"mpi-mirror\"]");
        let text = document(mtu, &APPLIANCE.to_string(), &more);
        let mut vm = boot(spec()?.memory(1024).nic(namespace::nic()).config(&text))?;
        let ours = modex_of(&mut vm)?;
        let sizes = ["0", "1", "1000", "1427", "65536", "153600", "160000", "1048576", "67108864"];
        let words = [&["2"][..], &sizes].concat();
        let mut job = Job::start(&[ours], TAP, mtu, &words)?;
        let exchanges = introduce(&job)?;
        let answers: Vec<Modex> = exchanges.iter().map(|(modex, _)| *modex).collect();
        ensure!(answers == [ours], "{answers:?}");
        job.ready()?;
        let end = Instant::now() + Duration::from_secs(400);
        while !job.is_over()? {
            ensure!(Instant::now() < end, "{}", vm.run("show usnic --json")?.text);
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = job.finish()?;
        let status = vm.run("show usnic --json")?.json()?;
        let peer = &status[0]["peers"][0];
        ensure!(text.contains("done") && !text.contains("differ"), "{text} {status}");
        // One message of each size by MPI_Ssend, which begins like a message in parts.
        ensure!(peer["mpi_refused"] == 0 && peer["mpi_under_way"] == 0, "{status}");
        ensure!(peer["mpi_rendezvous"].as_u64() > Some(9), "{status}");
        println!("MTU {mtu}: {text}{peer}");
        Ok(())
    })
}
