//! Instructions of an echo of 1 KiB over a channel of rio_cm at the appliance, and at a stock Linux in the same run. A
//! third machine with Linux is the host of the network and the client of both.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::image;
use interop_tests::{programs, system};
use launch::guest::Guest;
use launch::models::{self, ModelServer};
use launch::progress;
use launch::qemu::{Machine, Program, Spec, Vm};
use serde_json::Value;

use crate::instructions::{Counters, Plugin};

/// The appliance, the Linux server, and the Linux client, at ports of a switch.
const TOPOLOGY: &str = "A=s0.0,B=s0.4,C=s0.5";
const CHANNEL: u16 = 10;
const ROUNDS: u32 = 2000;
const BYTES: u32 = 1024;
const IDLING: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(120);
const WORDS: &str = "isthmus.rapidio.0.services=echo isthmus.rapidio.0.echo_channel=10 isthmus.system.idle_after_us=0";

/// Cost of an echo.
pub struct Echo {
    /// Instructions of the appliance.
    pub ours: f64,
    /// Instructions of Linux.
    pub linux: f64,
    /// Rounds of the appliance's loop, times that it halted, and interrupts of the bridge.
    pub rounds: f64,
    /// See `rounds`.
    pub halts: f64,
    /// See `rounds`.
    pub interrupts: f64,
}

struct Site {
    asks: Guest,
    appliance: Vm,
    _echoes: Guest,
    counters: [Counters; 2],
    // Must outlive the machines.
    _model: ModelServer,
}

impl Site {
    fn boot() -> Result<Site> {
        let step = progress::step("booting an appliance and two Linux guests on a RapidIO network");
        let program = Program::with_vfio_user()?;
        let plugin = Plugin::compile_for(&program)?;
        let counters = [plugin.counters()?, plugin.counters()?];
        let server = models::build()?;
        let model = ModelServer::start_several(&server, "tsi721", 3, &["--topology", TOPOLOGY])?;
        let appliance = Spec::kernel(image()?).memory(512).machine(Machine::Q35);
        let appliance = appliance.append(WORDS).program(program.clone());
        let appliance = appliance.vfio_user(&model.socket_of(0)).extra(counters[0].arguments());
        let mut appliance = appliance.start()?;
        let linux = |name: &str| {
            Ok::<_, anyhow::Error>(system()?.spec(name, &[], 1500).program(program.clone()))
        };
        let echoes = linux("echoes")?.vfio_user(&model.socket_of(1)).extra(counters[1].arguments());
        let mut echoes = Guest::start("echoes", echoes)?;
        let mut asks = Guest::start("asks", linux("asks")?.vfio_user(&model.socket_of(2)))?;
        appliance.wait_ready()?;
        for (guest, options) in [(&mut echoes, ""), (&mut asks, "hdid=1")] {
            guest.wait_up()?;
            guest
                .sh(&format!("modprobe rapidio {options} && modprobe -a idt_gen2 tsi721_mport"))?;
        }
        // On a machine that is not the host, rio-scan waits until the host enumerates it.
        echoes.sh("modprobe rio-scan scan=1 > /tmp/scan 2>&1 &")?;
        asks.sh("sleep 2; modprobe rio-scan scan=1")?;
        let found = "[ $(ls /sys/bus/rapidio/devices | grep -c :e:) = 2 ] || { echo 0 > /sys/bus/rapidio/scan; false; }";
        asks.wait_until(found, PATIENCE).with_context(|| model.output())?;
        echoes.wait_until("ls /sys/bus/rapidio/devices | grep -q :e:", PATIENCE)?;
        for guest in [&mut echoes, &mut asks] {
            guest.sh("modprobe rio_cm")?;
            programs::install(guest, "rio_cm")?;
        }
        echoes.sh(&format!("rio_cm serve {CHANNEL} 100 > /tmp/serve 2>&1 &"))?;
        step.done("all are up");
        Ok(Site { asks, appliance, _echoes: echoes, counters, _model: model })
    }

    /// Instructions of an echo at the machine with this id, without those of an idle machine.
    fn echo(&mut self, place: usize, id: u16) -> Result<f64> {
        // One-time work is done.
        self.ask(id, 50)?;
        let rate = {
            let (before, started) = (self.counters[place].read()?, Instant::now());
            std::thread::sleep(IDLING);
            (self.counters[place].read()? - before) as f64 / started.elapsed().as_secs_f64()
        };
        let (before, started) = (self.counters[place].read()?, Instant::now());
        self.ask(id, ROUNDS)?;
        let counted = (self.counters[place].read()? - before) as f64;
        Ok((counted - rate * started.elapsed().as_secs_f64()) / f64::from(ROUNDS))
    }

    /// Rounds, halts and interrupts of the appliance so far.
    fn loops(&mut self) -> Result<[f64; 3]> {
        let loops = self.appliance.run("show loops --json")?.json()?;
        let shown = self.appliance.run("show rapidio --json")?.json()?;
        let number = |value: &Value| value.as_f64().with_context(|| format!("{loops} {shown}"));
        let first = &loops[0];
        Ok([number(&first["rounds"])?, number(&first["halts"])?, number(&shown[0]["interrupts"])?])
    }

    fn ask(&mut self, id: u16, rounds: u32) -> Result<()> {
        let line = format!("timeout 100 rio_cm ping {id} {CHANNEL} {BYTES} {rounds}");
        let said = self.asks.sh(&line)?;
        ensure!(said.contains("came back as they were"), "{said}");
        Ok(())
    }
}

/// Measures the echoes.
pub fn measure() -> Result<Echo> {
    let mut site = Site::boot()?;
    let step = progress::step("echoes over rio_cm");
    // The host assigns the lowest free ids, in the order of the switch's ports.
    let [ours, linux] = [(0, 0), (1, 2)].map(|(place, id)| site.echo(place, id));
    let (ours, linux) = (ours?, linux?);
    // A separate run, because the console commands cost instructions. The counts include a few for the console.
    let before = site.loops()?;
    site.ask(0, ROUNDS)?;
    let after = site.loops()?;
    let [rounds, halts, interrupts] =
        [0, 1, 2].map(|at| (after[at] - before[at]) / f64::from(ROUNDS));
    step.done(&format!(
        "{ours:.0} instructions, Linux {linux:.0}; {rounds:.2} rounds, {halts:.2} halts, {interrupts:.2} interrupts"
    ));
    Ok(Echo { ours, linux, rounds, halts, interrupts })
}
