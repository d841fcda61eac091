//! One Linux client and the servers that it is to compare.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use boot_tests::image;
use interop_tests::{map, system};
use launch::guest::{Guest, Wire};
use launch::progress;
use launch::qemu::{Spec, Vm};

use super::fio::{self, Job, Run};
use crate::instructions::{Counters, Plugin};

/// A server. The wires of the client, its block devices and its sessions are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Stock rnbd-server in a Linux guest.
    Linux,
    /// The appliance as it comes.
    Isthmus,
    /// The appliance with `always_invalidate` off.
    FixedKeys,
}

impl Target {
    pub const ALL: [Target; 3] = [Target::Linux, Target::Isthmus, Target::FixedKeys];

    fn number(self) -> usize {
        self as usize
    }

    /// The network that it shares with the client, which is .2 there; it is .1.
    fn network(self) -> String {
        format!("10.0.{}", self.number())
    }
}

/// All machines, connected: /dev/rnbdN of the client is a RAM disk of server N.
pub struct Site {
    client: Guest,
    counters: Vec<Counters>,
    /// Instructions per second of each server when nothing is asked of it.
    idle: Vec<f64>,
    _linux: Guest,
    _appliances: Vec<Vm>,
    // Must outlive the machines.
    _wires: Vec<Wire>,
}

impl Site {
    /// Boots them.
    pub fn boot(plugin: &Plugin) -> Result<Site> {
        let step = progress::step("booting a Linux client, a Linux server and two appliances");
        let addresses = Target::ALL.map(|target| format!("{}.2/24", target.network()));
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut client = system()?.spec("client", &addresses, 1500).first_mac(0x10);
        let (mut wires, mut counters, mut appliances) = (Vec::new(), Vec::new(), Vec::new());
        let mut linux = None;
        for target in Target::ALL {
            let wire = Wire::new()?;
            // Linux to Linux nothing may be lost: rdma_rxe does not survive it.
            let (ours, theirs) = wire.stream();
            client = client.nic(theirs);
            let count = plugin.counters()?;
            let finish = |spec: Spec| {
                spec.nic(ours).first_mac(target.number() as u8).extra(count.arguments())
            };
            let address = format!("{}.1/24", target.network());
            match target {
                Target::Linux => {
                    let spec = system()?.spec("server", &[&address], 1500);
                    linux = Some(Guest::start("server", finish(spec))?);
                }
                _ => appliances.push(finish(appliance(target, &address)?).start()?),
            }
            wires.push(wire);
            counters.push(count);
        }
        let mut linux = linux.context("a Linux server")?;
        let mut client = Guest::start("client", client)?;
        for appliance in &mut appliances {
            appliance.wait_ready()?;
        }
        linux.wait_up()?;
        linux.soft_roce()?;
        linux.sh("modprobe brd rd_nr=1 rd_size=65536 && modprobe -a rtrs-server rnbd-server")?;
        client.wait_up()?;
        client.soft_roce()?;
        client.sh("modprobe rnbd-client")?;
        let mut site = Site {
            client,
            counters,
            idle: Vec::new(),
            _linux: linux,
            _appliances: appliances,
            _wires: wires,
        };
        for target in Target::ALL {
            site.map(target)?;
        }
        step.done("mapped");
        site.count_idle()?;
        Ok(site)
    }

    /// Maps the server's RAM disk, and writes to all of it, so that all of it is there.
    fn map(&mut self, target: Target) -> Result<()> {
        let (network, number) = (target.network(), target.number());
        self.client.sh(&format!("ping -c 1 -W 5 {network}.1"))?;
        let path = format!("ip:{network}.2@ip:{network}.1");
        let volume = if target == Target::Linux { "/dev/ram0" } else { "ram0" };
        map(&mut self.client, &format!("s{number}"), &path, volume, "")?;
        self.client.sh(&format!(
            "dd if=/dev/zero of=/dev/rnbd{number} bs=64k count=1024 oflag=direct 2>/dev/null"
        ))?;
        Ok(())
    }

    fn count_idle(&mut self) -> Result<()> {
        let step = progress::step("counting while idle");
        let read = |counters: &[Counters]| {
            counters.iter().map(Counters::read).collect::<Result<Vec<u64>>>()
        };
        let (before, started) = (read(&self.counters)?, Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let after = read(&self.counters)?;
        let seconds = started.elapsed().as_secs_f64();
        let counts = before.iter().zip(&after);
        self.idle = counts.map(|(before, after)| (after - before) as f64 / seconds).collect();
        step.done(&format!("{:.0?} instructions per second", self.idle));
        Ok(())
    }

    /// Runs a job on a server.
    pub fn run(&mut self, target: Target, job: &Job) -> Result<Run> {
        let number = target.number();
        let (counters, idle) = (&self.counters[number], self.idle[number]);
        let frames = packets(&mut self.client, number)?;
        let (before, started) = (counters.read()?, Instant::now());
        let iops = fio::run(&mut self.client, &format!("/dev/rnbd{number}"), job)?;
        let counted = (counters.read()? - before) as f64 - idle * started.elapsed().as_secs_f64();
        let frames = packets(&mut self.client, number)? - frames;
        let ios = f64::from(job.ios);
        Ok(Run { instructions: counted / ios, packets: frames / ios, iops })
    }
}

/// The appliance's machine, without its wire. It halts as soon as it finds nothing to do, as Linux does:
/// otherwise its waiting for more would be counted as part of every I/O.
fn appliance(target: Target, address: &str) -> Result<Spec> {
    let safe = target == Target::Isthmus;
    Ok(Spec::kernel(image()?).memory(256).append(&format!(
        "isthmus.net.0.address={address} isthmus.system.idle_after_us=0 isthmus.rnbd.always_invalidate={safe}"
    )))
}

/// Frames on wire `number` so far, both ways, as the client counts them.
fn packets(client: &mut Guest, number: usize) -> Result<f64> {
    let text = client.sh(&format!("cat /sys/class/net/eth{number}/statistics/[rt]x_packets"))?;
    let counts = text.split_whitespace().map(str::parse::<f64>);
    Ok(counts.collect::<Result<Vec<f64>, _>>()?.iter().sum())
}
