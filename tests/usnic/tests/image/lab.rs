//! An appliance in QEMU, and stock peers on its wire.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm};
use serde_json::Value;
use usnic::wire::modex::Modex;
use usnic_tests::stock::{self, Stock};
use usnic_tests::wire::{APPLIANCE, PORTS, Wire};

/// Time limit of each step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// Address for PUTs of peers, as `show usnic` shows it.
pub(crate) const SINK: u64 = 1 << 40;
pub(crate) const ADDRESSES: [Ipv4Addr; 2] =
    [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 3)];
/// First sequence number of each peer. It wraps soon, like the appliance's.
const ISN: u16 = 64_000;
/// Most bytes of a message of `btlpeer`.
pub(crate) const EAGER: usize = 16 << 20;

/// An appliance with an endpoint, and stock peers on its wire.
pub(crate) struct Lab {
    pub vm: Vm,
    pub wire: Wire,
    pub peers: Vec<Stock>,
}

/// The appliance's configuration without its peers.
pub(crate) fn document(mtu: u16, more: &str) -> String {
    let [priority, data, ping] = PORTS;
    format!(
        "[[net]]\naddress = \"{APPLIANCE}/24\"\nmtu = {mtu}\n[[volume]]\nname = \"v\"\nsize = \"1MiB\"\n\
         [[usnic]]\nname = \"mpi\"\nnet = 0\naddress = \"{APPLIANCE}\"\ndata_port = {data}\n\
         priority_port = {priority}\nping_port = {ping}\nisn = 65500\nsender = \"1.0\"\nlink_speed = 10000\n\
         hosts = [\"10.9.0.0/24\"]\n{more}\n"
    )
}

pub(crate) fn peer_section(name: &str, rank: u32, modex: &Modex) -> String {
    format!("[[usnic.peer]]\nname = \"{name}\"\nsender = \"1.{rank}\"\nmodex = \"{modex}\"\n")
}

/// The modex that `show usnic` prints for peers.
pub(crate) fn modex_of(vm: &mut Vm) -> Result<Modex> {
    let reply = vm.run("show usnic")?;
    let line = reply.text.lines().find_map(|line| line.split_once("modex ").map(|(_, hex)| hex));
    Ok(line.context("`show usnic` has no modex")?.trim().parse()?)
}

impl Lab {
    pub fn start(mtu: u16, peers: u32) -> Result<Lab> {
        Lab::start_with(mtu, peers, "", Vec::new())
    }

    /// As [`Lab::start`], with more configuration and interfaces.
    pub fn start_with(mtu: u16, peers: u32, more: &str, nics: Vec<Nic>) -> Result<Lab> {
        Lab::start_patient(mtu, peers, more, nics, None)
    }

    /// As [`Lab::start_with`], with another retransmission timeout of the peers.
    pub fn start_patient(
        mtu: u16,
        peers: u32,
        more: &str,
        nics: Vec<Nic>,
        retransmit: Option<Duration>,
    ) -> Result<Lab> {
        let wire = Wire::new()?;
        let mut text = document(mtu, "services = [\"echo\", \"put-sink\"]\ntag = 65");
        let mut all = Vec::new();
        for (rank, address) in (1..=peers).zip(ADDRESSES) {
            let options = stock::Options {
                rank,
                mtu,
                isn: Some(ISN),
                eager_limit: Some(EAGER),
                retransmit,
                ..Default::default()
            };
            let stock = Stock::start(&options)?;
            let modex = wire.join(&stock.modex, address);
            text += &peer_section(&format!("node-{rank}"), rank, &modex);
            all.push(stock);
        }
        text += more;
        let mut spec = spec()?.memory(512).nic(wire.nic());
        for nic in nics {
            spec = spec.nic(nic);
        }
        let mut vm = boot(spec.config(&text))?;
        let ours = modex_of(&mut vm)?;
        ensure!((ours.isn, ours.max_message) == (65_500, Modex::max_message_of(mtu)), "{ours:?}");
        let ours = wire.translated(&ours);
        for stock in &mut all {
            ask(stock, &format!("peer {ours} 1 0"), "peer ok")?;
        }
        Ok(Lab { vm, wire, peers: all })
    }

    pub fn ask(&mut self, peer: usize, order: &str, answer: &str) -> Result<String> {
        let line = ask(&mut self.peers[peer], order, answer);
        line.with_context(|| self.vm.run("show usnic --json").map(|r| r.text).unwrap_or_default())
    }

    /// Status of a peer in `show usnic`.
    pub fn peer_status(&mut self, peer: &str) -> Result<Value> {
        let status = self.vm.run("show usnic --json")?.json()?;
        let peers = status[0]["peers"].as_array().context("peers")?;
        let found = peers.iter().find(|one| one["name"] == peer);
        Ok(found.with_context(|| format!("no {peer} in {status}"))?.clone())
    }

    pub fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Lab) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self)? {
            let status = self.vm.run("show usnic --json")?.text;
            ensure!(Instant::now() < end, "timeout: {what}; {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

pub(crate) fn ask(stock: &mut Stock, order: &str, answer: &str) -> Result<String> {
    stock.tell(order)?;
    let line = stock.wait(answer, PATIENCE, || std::thread::sleep(Duration::from_millis(1)));
    line.with_context(|| format!("after {order:?}"))
}

/// Lets a stock peer send messages of these counts and lengths, and check every byte of their echoes.
pub(crate) fn echo(
    lab: &mut Lab,
    peer: usize,
    sizes: &[(usize, usize)],
    before: usize,
) -> Result<usize> {
    let mut all = before;
    for (count, size) in sizes {
        let line = lab.ask(peer, &format!("send {count} {size}"), "sent")?;
        if !line.contains(&format!("done {count} acknowledged 1")) {
            let mut reports = String::new();
            for _ in 0..2 {
                for report in ["show interfaces --json", "show usnic --json"] {
                    reports += &lab.vm.run(report)?.text;
                }
            }
            bail!("{line}\n{reports}\n{:?} datagrams", lab.wire.counts()?);
        }
        all += count;
        let line = lab.ask(peer, &format!("recv {all} 60"), "received")?;
        ensure!(line.starts_with(&format!("received {all} bad 0")), "{size} bytes: {line}");
    }
    Ok(all)
}
