//! `./isthmus bench rtrs-client`: cost of an I/O at the client of a storage server (a Linux guest with a brd RAM disk),
//! compared with a stock Linux client of the same server; and the duration of a request whose path is cut, in virtual
//! time, with the default timers.
//!
//! Linux's client is counted including fio, the appliance including `remote read` of its console. The instructions of
//! idle clients are subtracted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use boot_tests::image;
use interop_tests::{map, system};
use launch::guest::{Guest, Wire};
use launch::progress;
use launch::qemu::{Spec, Vm};
use launch::setup::{self, Purpose};

use crate::instructions::{Counters, Plugin};
use crate::report::Report;

const ROUNDS: usize = 3;
const READS: u32 = 6000;
const CUTS: u32 = 100;

/// Instruction counters of a client.
struct Counted {
    counters: Counters,
    /// Instructions per second while idle.
    idle: f64,
}

impl Counted {
    fn new(plugin: &Plugin) -> Result<Self> {
        Ok(Counted { counters: plugin.counters()?, idle: 0.0 })
    }

    fn count_idle(&mut self) -> Result<()> {
        let (before, started) = (self.counters.read()?, Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let counted = (self.counters.read()? - before) as f64;
        self.idle = counted / started.elapsed().as_secs_f64();
        Ok(())
    }

    /// Instructions per read of `work`.
    fn count(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let (before, started) = (self.counters.read()?, Instant::now());
        work()?;
        let counted = (self.counters.read()? - before) as f64;
        Ok((counted - self.idle * started.elapsed().as_secs_f64()) / f64::from(READS))
    }
}

/// Measures, writes `target/bench/rtrs-client.json`, and fails if a bar is missed.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let plugin = Plugin::compile()?;
    let step = progress::step("booting a Linux server, a Linux client and the appliance");
    let wires = [Wire::new()?, Wire::new()?];
    let mut server =
        system()?.spec("server", &["10.0.0.1/24", "10.0.1.1/24"], 1500).first_mac(0x10);
    let mut theirs = Counted::new(&plugin)?;
    let mut ours = Counted::new(&plugin)?;
    // Between two Linux machines no packet may be lost: rdma_rxe does not survive it.
    let mut ends = wires.iter().map(Wire::stream);
    let mut connect = || ends.next().context("a wire is missing");
    let (near, client) = connect()?;
    server = server.nic(near);
    let (near, appliance) = connect()?;
    server = server.nic(near);
    let mut server = Guest::start("server", server)?;
    let client = system()?.spec("client", &["10.0.0.2/24"], 1500).first_mac(0x20).nic(client);
    let mut client = Guest::start("client", client.extra(theirs.counters.arguments()))?;
    let words = "isthmus.net.0.address=10.0.1.2/24 isthmus.system.idle_after_us=0 isthmus.volume=[] \
        isthmus.remote.0.name=far isthmus.remote.0.sessname=gw isthmus.remote.0.device_path=/dev/ram1 \
        isthmus.remote.0.path=ip:10.0.1.2@ip:10.0.1.1";
    let spec = Spec::kernel(image()?).memory(256).append(words).nic(appliance).first_mac(0x30);
    let mut appliance = spec.extra(ours.counters.arguments()).start()?;
    appliance.wait_ready()?;
    for guest in [&mut server, &mut client] {
        guest.wait_up()?;
        guest.soft_roce()?;
    }
    server.sh("modprobe brd rd_nr=2 rd_size=65536 && modprobe -a rtrs-server rnbd-server")?;
    for disk in 0..2 {
        server.sh(&format!("dd if=/dev/zero of=/dev/ram{disk} bs=1M count=64 2>/dev/null"))?;
    }
    client.sh("modprobe rnbd-client")?;
    // The client resolves the server's address only once, and waits half a minute for the answer.
    client.sh("ping -c 1 -W 5 10.0.0.1")?;
    map(&mut client, "s1", "ip:10.0.0.2@ip:10.0.0.1", "/dev/ram0", "")?;
    wait_open(&mut appliance)?;
    theirs.count_idle()?;
    ours.count_idle()?;
    step.done(&format!("idle: {:.0} and {:.0} a second", theirs.idle, ours.idle));
    let (mut linux, mut isthmus) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        linux.push(theirs.count(|| fio(&mut client))?);
        isthmus.push(ours.count(|| read(&mut appliance))?);
    }
    drop((client, appliance, server));
    let (linux, isthmus) = (median(linux)?, median(isthmus)?);
    println!(
        "\n4 KiB read, depth 32, instructions of the client: Linux {linux:.0}, Isthmus {isthmus:.0}"
    );
    let failover = sim::storage::failover::longest(1, CUTS);

    let mut report = Report::new("rtrs-client", Some(0));
    report.ratio("read4k_qd32_ratio", isthmus, linux);
    report.add("failover_ms", failover.as_secs_f64() * 1e3);
    report.close()
}

fn wait_open(appliance: &mut Vm) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !appliance.run("remote list csv")?.text.contains("/dev/ram1,open,") {
        if Instant::now() > deadline {
            bail!("the appliance does not reach the server:\n{}", appliance.run("show log")?.text);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    Ok(())
}

fn fio(client: &mut Guest) -> Result<()> {
    client.sh(&format!(
        "fio --name=job --filename=/dev/rnbd0 --direct=1 --ioengine=libaio --thread --rw=randread --bs=4k \
         --iodepth=32 --size=48m --norandommap --number_ios={READS} --output-format=terse >/dev/null"
    ))?;
    Ok(())
}

fn read(appliance: &mut Vm) -> Result<()> {
    let reply = appliance.run(&format!("remote read far count={READS} size=4KiB depth=32"))?;
    reply.contains(&format!("{READS} reads of 4096 bytes"))?;
    Ok(())
}

/// Median of an odd number of values.
fn median(mut values: Vec<f64>) -> Result<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().context("a median needs a run")
}
