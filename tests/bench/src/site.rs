//! A stock Linux client with several servers, each on its own wire: a stock Linux guest, and appliances. A QEMU plugin
//! counts the instructions of each server.

use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::image;
use interop_tests::system;
use launch::guest::{Guest, Wire};
use launch::qemu::{Disk, Spec, Vm};
use launch::{command, progress};

use crate::instructions::{Counters, Plugin};

/// Number of the Linux server; the others are appliances.
pub const LINUX: usize = 0;

/// Address range of the functions that compute Ethernet's CRC, from lines of kallsyms, each with the line of the next
/// function.
fn checksum_code(symbols: &str) -> Result<Range<u64>> {
    let (mut start, mut end) = (u64::MAX, 0);
    let mut open = false;
    for line in symbols.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[address, _, name, ..] = words.as_slice() else { continue };
        let address = u64::from_str_radix(address, 16).context(line.to_string())?;
        if open {
            end = end.max(address);
        }
        open = name.starts_with("crc32_");
        if open {
            start = start.min(address);
        }
    }
    let sensible = end > start && end - start < 1 << 16;
    ensure!(sensible, "no functions for CRC-32 in\n{symbols}");
    Ok(start..end)
}

/// How long an idle server is counted: the time of two heartbeats of every session.
const IDLING: Duration = Duration::from_secs(10);
/// How long a server may take to become idle.
const PATIENCE: Duration = Duration::from_secs(120);

/// An appliance among the servers.
#[derive(Clone, Debug)]
pub struct Appliance {
    /// Words of its command line.
    words: String,
    /// Its configuration document.
    config: String,
    /// Memory in MiB.
    memory: u32,
    /// `system.idle_after_us`; None for the shipped value.
    idle_after_us: Option<u32>,
    /// A disk in addition to volumes in memory.
    disk: Option<Disk>,
}

impl Appliance {
    /// An appliance that halts as soon as it is idle, as Linux does. Otherwise its polling would be counted.
    pub fn halting(words: &str) -> Appliance {
        let (words, config) = (words.to_string(), String::new());
        Appliance { words, config, memory: 256, idle_after_us: Some(0), disk: None }
    }

    /// An appliance that polls for the shipped time before it halts.
    pub fn as_shipped(words: &str) -> Appliance {
        Appliance { idle_after_us: None, ..Appliance::halting(words) }
    }

    /// With a document.
    pub fn config(self, config: String) -> Appliance {
        Appliance { config, ..self }
    }

    /// With a disk.
    pub fn disk(self, disk: Disk) -> Appliance {
        Appliance { disk: Some(disk), ..self }
    }

    /// With `mib` MiB of memory.
    pub fn memory(self, mib: u32) -> Appliance {
        Appliance { memory: mib, ..self }
    }
}

/// All machines, connected and counted.
pub struct Site {
    pub client: Guest,
    pub linux: Guest,
    _appliances: Vec<Vm>,
    counters: Vec<Counters>,
    /// Instructions per second of each idle server.
    idle: Vec<f64>,
    // Must outlive the machines.
    _wires: Vec<Wire>,
}

/// Start address of the function of the first loop's rounds, from the symbols file beside the image.
fn round_function() -> Result<u64> {
    let symbols = image()?.with_extension("symbols");
    let listing = command::output(Command::new("nm").arg("-C").arg(&symbols))?;
    let function = |line: &&str| line.ends_with(" <appliance::gateway::Gateway>::round");
    let line = listing.lines().find(function);
    let line = line.with_context(|| format!("no Gateway::round in {}", symbols.display()))?;
    let address = line.split(' ').next().unwrap_or_default();
    u64::from_str_radix(address, 16).context(line.to_string())
}

/// Network of server `number` and the client. The server has address .1, the client .2.
pub fn network(number: usize) -> String {
    format!("10.0.{number}")
}

impl Site {
    /// Boots a Linux client, a Linux server, and appliances.
    pub fn boot(plugin: &Plugin, kinds: &[Appliance]) -> Result<Site> {
        Site::boot_with(plugin, kinds, |spec| spec)
    }

    /// As `boot`; `more` extends the Linux server.
    pub fn boot_with(
        plugin: &Plugin,
        kinds: &[Appliance],
        more: impl FnOnce(Spec) -> Spec,
    ) -> Result<Site> {
        let step = progress::step("booting a Linux client, a Linux server and appliances");
        let addresses: Vec<String> =
            (0..=kinds.len()).map(|number| format!("{}.2/24", network(number))).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut client = system()?.spec("client", &addresses, 1500).first_mac(0x10);
        let (mut wires, mut counters) = (Vec::new(), Vec::new());
        // Between two Linux machines no packet may be lost: rdma_rxe does not survive it.
        let mut connect = |number: usize, server: Spec, client: Spec| {
            let wire = Wire::new()?;
            let (ours, theirs) = wire.stream();
            let count = plugin.counters()?;
            let server = server.nic(ours).first_mac(number as u8).extra(count.arguments());
            wires.push(wire);
            counters.push(count);
            Ok::<_, anyhow::Error>((server, client.nic(theirs)))
        };
        let address = |number: usize| format!("{}.1/24", network(number));
        let mut linux = more(system()?.spec("server", &[&address(LINUX)], 1500));
        (linux, client) = connect(LINUX, linux, client)?;
        let mut linux = Guest::start("server", linux)?;
        let mut appliances = Vec::new();
        for (number, kind) in (1..).zip(kinds) {
            let net = format!("isthmus.net.0.address={} {}", address(number), kind.words);
            let mut spec = Spec::kernel(image()?).memory(kind.memory).append(&net);
            if let Some(time) = kind.idle_after_us {
                spec = spec.append(&format!("isthmus.system.idle_after_us={time}"));
            }
            if !kind.config.is_empty() {
                spec = spec.config(&kind.config);
            }
            if let Some(disk) = &kind.disk {
                spec = spec.disk(disk.clone());
            }
            (spec, client) = connect(number, spec, client)?;
            appliances.push(spec.start()?);
        }
        let mut client = Guest::start("client", client)?;
        for appliance in &mut appliances {
            appliance.wait_ready()?;
        }
        for guest in [&mut linux, &mut client] {
            guest.wait_up()?;
            guest.soft_roce()?;
        }
        for number in 0..=kinds.len() {
            client.sh(&format!("ping -c 1 -W 5 {}.1", network(number)))?;
        }
        step.done("all are up");
        Ok(Site {
            client,
            linux,
            _appliances: appliances,
            counters,
            idle: Vec::new(),
            _wires: wires,
        })
    }

    /// Counts the instructions of every server while idle.
    pub fn count_idle(&mut self) -> Result<()> {
        self.count_idle_for(IDLING)
    }

    /// As [`Site::count_idle`], for this time.
    pub fn count_idle_for(&mut self, time: Duration) -> Result<()> {
        let step = progress::step("counting while idle");
        let read =
            |counters: &[Counters]| counters.iter().map(Counters::read).collect::<Result<Vec<_>>>();
        let (before, started) = (read(&self.counters)?, Instant::now());
        std::thread::sleep(time);
        let after = read(&self.counters)?;
        let seconds = started.elapsed().as_secs_f64();
        let counts = before.iter().zip(&after);
        self.idle = counts.map(|(before, after)| (after - before) as f64 / seconds).collect();
        step.done(&format!("{:.0?} instructions per second", self.idle));
        Ok(())
    }

    /// Waits until a server executes no more in a second than in the second before, within a tenth.
    pub fn wait_quiet(&mut self, number: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = f64::INFINITY;
        loop {
            let (before, started) = (self.counters[number].read()?, Instant::now());
            std::thread::sleep(Duration::from_secs(1));
            let counted = (self.counters[number].read()? - before) as f64;
            let rate = counted / started.elapsed().as_secs_f64();
            if rate <= 1.1 * last && last <= 1.1 * rate {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "server {number} does not become idle: {rate:.0}");
            last = rate;
        }
    }

    /// Instructions per second of a server while idle.
    pub fn idle(&self, number: usize) -> Result<f64> {
        self.idle.get(number).copied().context("the idle servers were not counted")
    }

    /// Instructions of the longest round of an appliance's first loop during `work`.
    pub fn longest_round(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut Site) -> Result<()>,
    ) -> Result<f64> {
        self.counters[number].mark(round_function()?)?;
        work(self)?;
        Ok(self.counters[number].longest()? as f64)
    }

    /// Counts checksums of the Linux server separately. Its soft-RoCE uses `crc32` of the kernel's crypto API, which on
    /// this CPU is `crc32_le`, with tables.
    pub fn watch_checksums(&mut self) -> Result<()> {
        let symbols =
            self.linux.sh("sort /proc/kallsyms | grep -A1 ' [tTwW] crc32_\\(le\\|body\\)'")?;
        self.counters[LINUX].watch(&checksum_code(&symbols)?)
    }

    /// Instructions that the Linux server has spent on checksums so far.
    pub fn checksums(&self) -> Result<f64> {
        Ok(self.counters[LINUX].watched()? as f64)
    }

    /// Returns the result of `work`, and the instructions of server `number` meanwhile, without those of an idle
    /// server, if they were counted.
    pub fn count<T>(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut Site) -> Result<T>,
    ) -> Result<(T, f64)> {
        let (before, started) = (self.counters[number].read()?, Instant::now());
        let done = work(self)?;
        let counted = (self.counters[number].read()? - before) as f64;
        let idle = self.idle.get(number).copied().unwrap_or(0.0);
        Ok((done, counted - idle * started.elapsed().as_secs_f64()))
    }

    /// Frames on the wire to server `number` so far, in both directions, as the client counts them.
    pub fn frames(&mut self, number: usize) -> Result<f64> {
        let files = format!("/sys/class/net/eth{number}/statistics/[rt]x_packets");
        let text = self.client.sh(&format!("cat {files}"))?;
        let counts = text.split_whitespace().map(str::parse::<f64>);
        Ok(counts.collect::<Result<Vec<f64>, _>>()?.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_range_of_checksum_code_is_found() {
        let symbols = "\
ffffffff81a00000 t crc32_body
ffffffff81a00100 T crc32_le_base
ffffffff81a00300 T other
--
ffffffff81a00600 W crc32_le
ffffffff81a00620 T another
";
        assert_eq!(checksum_code(symbols).unwrap(), 0xffff_ffff_81a0_0000..0xffff_ffff_81a0_0620);
        assert!(checksum_code("").is_err());
    }
}
