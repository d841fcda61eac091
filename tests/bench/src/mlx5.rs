//! `./isthmus bench mlx5`: cost of an I/O at an appliance whose card does RoCE.
//!
//! One stock Linux client with `mlx5_ib` has three appliances on three wires, which halt as soon as they are idle: one
//! that serves a volume, one that serves a volume with `always_invalidate` off, and one that speaks SMC-R. Each wire is
//! a model of ConnectX with two functions. A QEMU plugin counts the instructions of each appliance; the model counts
//! accesses to its registers. The cost of an idle appliance is subtracted.
//!
//! No real card was measured: the model completes every request at once and at no cost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::image;
use interop_tests::{map, smc, system};
use launch::guest::Guest;
use launch::models::{self, ModelServer};
use launch::progress;
use launch::qemu::{Machine, Program, Spec, Vm};
use launch::setup::{self, Purpose};

use crate::instructions::{Counters, Plugin};
use crate::report::Report;
use crate::rnbd::{READ_4K_QD32, ROUNDS, WRITE_4K_QD32, fio};

/// Command lines of the appliances: fresh keys for each request, lasting keys, SMC-R.
const WORDS: &str = "isthmus.system.idle_after_us=0 isthmus.volume.0.size=64MiB";
const KINDS: [&str; 3] = [
    "",
    "isthmus.rnbd.always_invalidate=false",
    "isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID",
];
const FRESH: usize = 0;
const LASTING: usize = 1;
const SMC: usize = 2;

/// Connections with one outstanding echo each, corresponding to the `iodepth` of reads and writes.
const DEPTH: u32 = 32;
/// Echoes on a connection; a second run does a tenth of them.
const ECHOES: u32 = 1000;
const IDLING: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures, writes `target/bench/mlx5.json`, and fails if a bar is missed.
pub fn bench() -> Result<()> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let mut site = Site::boot()?;
    let rows = [
        ("reads with lasting keys", LASTING, READ_4K_QD32),
        ("writes with lasting keys", LASTING, WRITE_4K_QD32),
        ("reads with fresh keys", FRESH, READ_4K_QD32),
        ("writes with fresh keys", FRESH, WRITE_4K_QD32),
    ];
    let mut runs = Vec::new();
    for (name, place, job) in rows {
        let step = progress::step(name);
        let run = median((0..ROUNDS).map(|_| site.run(place, &job)).collect::<Result<_>>()?)?;
        step.done(&format!("{run:.2?}"));
        runs.push(run);
    }
    let mut echo_of = |name, connections| {
        let step = progress::step(name);
        let echoes: Result<Vec<Run>> = (0..ROUNDS).map(|_| site.echo(SMC, connections)).collect();
        let echo = median(echoes?)?;
        step.done(&format!("{echo:.2?}"));
        Ok::<_, anyhow::Error>(echo)
    };
    let echo = echo_of("a round of 64 bytes over SMC-R, on 32 connections at once", DEPTH)?;
    let alone = echo_of("a round of 64 bytes over SMC-R, one by one", 1)?;
    let most = |of: fn(&Run) -> f64| runs.iter().map(of).fold(0.0, f64::max);

    let mut report = Report::new("mlx5", Some(0));
    report.add("read4k_instructions", runs[0].instructions);
    report.add("write4k_instructions", runs[1].instructions);
    report.add("read4k_invalidate_instructions", runs[2].instructions);
    report.add("write4k_invalidate_instructions", runs[3].instructions);
    report.add("smcr_echo64_instructions", echo.instructions);
    report.add("mmio_writes_per_io", most(|run| run.writes));
    // The driver polls the card's health five times a second, which is about the cost of an idle card.
    report.add("mmio_reads_per_io", (100.0 * most(|run| run.reads)).round().max(0.0) / 100.0);
    report.add("interrupts_per_io", most(|run| run.interrupts));
    report.add("smcr_echo64_mmio_writes", echo.writes);
    report.add("smcr_echo64_alone_instructions", alone.instructions);
    report.add("smcr_echo64_alone_mmio_writes", alone.writes);
    report.close()
}

/// Cost of an I/O.
#[derive(Clone, Copy, Debug)]
struct Run {
    instructions: f64,
    /// Accesses to registers of the card.
    writes: f64,
    reads: f64,
    interrupts: f64,
}

impl Run {
    const NOTHING: Run = Run { instructions: 0.0, writes: 0.0, reads: 0.0, interrupts: 0.0 };

    /// Combines each value of two runs.
    fn with(self, other: Run, of: impl Fn(f64, f64) -> f64) -> Run {
        Run {
            instructions: of(self.instructions, other.instructions),
            writes: of(self.writes, other.writes),
            reads: of(self.reads, other.reads),
            interrupts: of(self.interrupts, other.interrupts),
        }
    }

    fn less(self, other: Run) -> Run {
        self.with(other, |one, other| one - other)
    }

    fn by(self, count: f64) -> Run {
        self.with(self, |one, _| one / count)
    }
}

/// Median of each value.
fn median(runs: Vec<Run>) -> Result<Run> {
    let of = |value: fn(&Run) -> f64| crate::smcr::median(runs.iter().map(value).collect());
    Ok(Run {
        instructions: of(|run| run.instructions)?,
        writes: of(|run| run.writes)?,
        reads: of(|run| run.reads)?,
        interrupts: of(|run| run.interrupts)?,
    })
}

/// An appliance, and the model whose second function it drives.
struct Appliance {
    counters: Counters,
    /// Cost per second while idle.
    idle: Run,
    _vm: Vm,
    // Must outlive the machines.
    model: ModelServer,
}

impl Appliance {
    fn boot(plugin: &Plugin, program: &Program, number: usize) -> Result<Appliance> {
        let server = models::build()?;
        let model =
            ModelServer::start_several(&server, "mlx5", 2, &["--number", &number.to_string()])?;
        let counters = plugin.counters()?;
        let spec =
            Spec::kernel(image()?).memory(512).machine(Machine::Q35).program(program.clone());
        let address = format!("isthmus.net.0.address=10.0.{number}.1/24");
        let spec = spec.append(&format!("{address} {WORDS} {}", KINDS[number]));
        let spec = spec.vfio_user(&model.socket_of(1)).extra(counters.arguments());
        let mut vm = spec.start()?;
        vm.wait_ready()?;
        let shown = vm.run("show interfaces --json")?.json()?;
        ensure!(shown[0]["roce"] == "hardware", "{shown}");
        Ok(Appliance { counters, idle: Run::NOTHING, _vm: vm, model })
    }

    /// Counts so far.
    fn read(&mut self) -> Result<Run> {
        let text = self.model.counters_so_far()?;
        let counter = |name: &str| {
            let prefix = format!("function1.{name} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            let value = line.and_then(|line| line.parse().ok());
            value.with_context(|| format!("no {name} in:\n{text}"))
        };
        Ok(Run {
            instructions: self.counters.read()? as f64,
            writes: counter("register_writes")?,
            reads: counter("register_reads")?,
            interrupts: counter("interrupts")?,
        })
    }

    /// Total cost of `work`, without the cost of an idle appliance.
    fn count<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<Run> {
        let (before, started) = (self.read()?, Instant::now());
        work()?;
        let all = self.read()?.less(before);
        let seconds = started.elapsed().as_secs_f64();
        Ok(all.with(self.idle, |all, idle| all - seconds * idle))
    }
}

/// The client, and the appliances.
struct Site {
    client: Guest,
    appliances: Vec<Appliance>,
}

impl Site {
    fn boot() -> Result<Site> {
        let step =
            progress::step("booting three appliances and a Linux client, with models of ConnectX");
        let program = Program::with_vfio_user()?;
        let plugin = Plugin::compile_for(&program)?;
        let appliances = (0..KINDS.len()).map(|n| Appliance::boot(&plugin, &program, n));
        let appliances = appliances.collect::<Result<Vec<_>>>()?;
        let mut spec = system()?.spec("client", &[], 1500).program(program);
        for appliance in &appliances {
            spec = spec.vfio_user(&appliance.model.socket_of(0));
        }
        let mut client = Guest::start("client", spec)?;
        client.wait_up()?;
        client.sh("modprobe mlx5_core")?;
        client.wait_until("[ -e /sys/class/net/eth2 ]", PATIENCE)?;
        for n in 0..KINDS.len() {
            client.sh(&format!("ip link set eth{n} up && ip addr add 10.0.{n}.2/24 dev eth{n}"))?;
            let up = format!("[ $(cat /sys/class/net/eth{n}/operstate) = up ]");
            client.wait_until(&up, PATIENCE)?;
        }
        client.sh("modprobe -a mlx5_ib rnbd-client && sleep 1")?;
        for n in 0..KINDS.len() {
            client.sh(&format!("ping -c 1 -W 5 10.0.{n}.1"))?;
        }
        for n in [FRESH, LASTING] {
            let path = format!("ip:10.0.{n}.2@ip:10.0.{n}.1");
            map(&mut client, &format!("s{n}"), &path, "ram0", "")?;
            client.sh(&format!(
                "dd if=/dev/zero of=/dev/rnbd{n} bs=64k count=1024 oflag=direct 2>/dev/null"
            ))?;
        }
        smc::prepare(&mut client)?;
        let mut site = Site { client, appliances };
        site.ask(SMC, 10, 1)?;
        site.speaks_smc(SMC)?;
        step.done("all are up");
        let step = progress::step("counting while idle");
        for appliance in &mut site.appliances {
            let started = Instant::now();
            let run = appliance.count(|| {
                std::thread::sleep(IDLING);
                Ok(())
            })?;
            appliance.idle = run.by(started.elapsed().as_secs_f64());
        }
        let idle: Vec<Run> = site.appliances.iter().map(|appliance| appliance.idle).collect();
        step.done(&format!("{idle:.1?}"));
        Ok(site)
    }

    fn run(&mut self, place: usize, job: &fio::Job) -> Result<Run> {
        let Site { client, appliances } = self;
        let device = format!("/dev/rnbd{place}");
        let run = appliances[place].count(|| fio::run(client, &device, job))?;
        Ok(run.by(job.ios.into()))
    }

    /// Total cost of echoes of 64 bytes over SMC-R, on several connections at once.
    fn ask(&mut self, place: usize, rounds: u32, connections: u32) -> Result<Run> {
        let Site { client, appliances } = self;
        let command = format!("smc echo 10.0.{place}.1 7 64 {rounds} {connections}");
        appliances[place].count(|| {
            let (status, said) = client.try_sh(&command, PATIENCE)?;
            ensure!(status == 0 && said.trim() == "fine", "`{command}` said {said}");
            Ok(())
        })
    }

    /// Cost of an echo: the difference between many and few.
    fn echo(&mut self, place: usize, connections: u32) -> Result<Run> {
        let few = ECHOES / 10;
        let many = self.ask(place, ECHOES, connections)?;
        let all = many.less(self.ask(place, few, connections)?);
        Ok(all.by(f64::from(connections * (ECHOES - few))))
    }

    /// Checks that connections to the appliance use SMC-R.
    fn speaks_smc(&mut self, place: usize) -> Result<()> {
        let command = format!("smc echo 10.0.{place}.1 7 64 1 1 hold=4 > /tmp/held 2>&1 &");
        self.client.sh(&command)?;
        let waited = self.client.wait_until("smc sockets | grep -q '^ACTIVE SMCR '", PATIENCE);
        let sockets = self.client.sh("smc sockets")?;
        waited.with_context(|| format!("sockets:\n{sockets}"))?;
        self.client.wait_until("grep fine /tmp/held", PATIENCE)
    }
}
