//! A stock Linux client with several servers, each on a wire of its own: a stock Linux guest, and
//! appliances. A QEMU plugin counts the instructions that each server executes.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::image;
use interop_tests::system;
use launch::guest::{Guest, Wire};
use launch::progress;
use launch::qemu::{Spec, Vm};

use crate::instructions::{Counters, Plugin};

/// The server that is Linux; the others are appliances.
pub const LINUX: usize = 0;

/// From the first of the functions that compute Ethernet's CRC to behind the last, by lines of kallsyms
/// with the function that follows each.
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

/// All machines, connected and counted.
pub struct Site {
    pub client: Guest,
    pub linux: Guest,
    _appliances: Vec<Vm>,
    counters: Vec<Counters>,
    /// Instructions per second of each server when nothing is asked of it.
    idle: Vec<f64>,
    // Must outlive the machines.
    _wires: Vec<Wire>,
}

/// The network that server `number` shares with the client: it is .1 there, the client .2.
pub fn network(number: usize) -> String {
    format!("10.0.{number}")
}

impl Site {
    /// Boots a Linux client, a Linux server, and an appliance for each of `words`, which are for its
    /// command line.
    ///
    /// Appliances halt as soon as they find nothing to do, as Linux does: otherwise their waiting for
    /// more would be counted as part of whatever is counted.
    pub fn boot(plugin: &Plugin, words: &[&str]) -> Result<Site> {
        let step = progress::step("booting a Linux client, a Linux server and appliances");
        let addresses: Vec<String> =
            (0..=words.len()).map(|number| format!("{}.2/24", network(number))).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut client = system()?.spec("client", &addresses, 1500).first_mac(0x10);
        let (mut wires, mut counters) = (Vec::new(), Vec::new());
        // Linux to Linux nothing may be lost: rdma_rxe does not survive it.
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
        let mut linux = system()?.spec("server", &[&address(LINUX)], 1500);
        (linux, client) = connect(LINUX, linux, client)?;
        let mut linux = Guest::start("server", linux)?;
        let mut appliances = Vec::new();
        for (number, words) in (1..).zip(words) {
            let mut spec = Spec::kernel(image()?).memory(256).append(&format!(
                "isthmus.net.0.address={} isthmus.system.idle_after_us=0 {words}",
                address(number)
            ));
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
        for number in 0..=words.len() {
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

    /// Counts what every server executes while nothing is asked of it.
    pub fn count_idle(&mut self) -> Result<()> {
        let step = progress::step("counting while idle");
        let read =
            |counters: &[Counters]| counters.iter().map(Counters::read).collect::<Result<Vec<_>>>();
        let (before, started) = (read(&self.counters)?, Instant::now());
        std::thread::sleep(Duration::from_secs(3));
        let after = read(&self.counters)?;
        let seconds = started.elapsed().as_secs_f64();
        let counts = before.iter().zip(&after);
        self.idle = counts.map(|(before, after)| (after - before) as f64 / seconds).collect();
        step.done(&format!("{:.0?} instructions per second", self.idle));
        Ok(())
    }

    /// Watches the Linux server compute checksums. Its soft-RoCE asks the kernel's crypto API for `crc32`,
    /// which on its CPU is `crc32_le`, by tables.
    pub fn watch_checksums(&mut self) -> Result<()> {
        let symbols =
            self.linux.sh("sort /proc/kallsyms | grep -A1 ' [tTwW] crc32_\\(le\\|body\\)'")?;
        self.counters[LINUX].watch(&checksum_code(&symbols)?)
    }

    /// Instructions that the Linux server has spent on checksums so far.
    pub fn checksums(&self) -> Result<f64> {
        Ok(self.counters[LINUX].watched()? as f64)
    }

    /// What the client gets from doing something with server `number`, and the instructions that it
    /// took there; without those of an idle server, if they were counted.
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

    /// Frames on the wire to server `number` so far, both ways, as the client counts them.
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
    fn the_code_of_checksums_is_found() {
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
