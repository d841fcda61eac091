//! `./isthmus ntb`: runs the peer of an appliance's NTB over TCP on this host. It brings the link up, maps a
//! volume of the appliance and reads from it. It writes nothing.

pub mod machine;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::progress;
use machine::Machine;

/// Time limit for each step of the appliance.
const PATIENCE: Duration = Duration::from_secs(30);
/// Series of reads: bytes of a read, reads at a time, and the divisor of `Options::count` for their number.
const READS: [(usize, usize, u64); 3] = [(4096, 1, 4), (4096, 32, 1), (128 << 10, 8, 8)];

/// Options of `./isthmus ntb`.
#[derive(clap::Args)]
pub struct Options {
    /// The address and port of the appliance (`ntb.0.listen`, `ntb.0.port`)
    #[arg(default_value = "127.0.0.1:7471")]
    appliance: SocketAddr,
    /// The volume to read
    #[arg(long, default_value = "ram0")]
    volume: String,
    /// Number of reads of 4 KiB
    #[arg(long, default_value_t = 20_000)]
    count: u64,
    /// The appliance's `ntb.0.peer`
    #[arg(long, default_value = "10.9.0.2")]
    address: IpAddr,
    /// The appliance's `ntb.0.address`
    #[arg(long, default_value = "10.9.0.1")]
    peer: IpAddr,
    /// The appliance's `ntb.0.memory` in MiB
    #[arg(long, default_value_t = 16)]
    memory: usize,
}

/// Runs the peer.
pub fn ntb(options: &Options) -> Result<()> {
    let step = progress::step(format!("connecting to {}", options.appliance));
    let started = Instant::now();
    let mut machine =
        Machine::connect(options.appliance, [options.address, options.peer], options.memory << 20)?;
    wait(&mut machine, Machine::is_up, "the link did not come up")?;
    step.done(&format!("the link is up after {} ms", started.elapsed().as_millis()));
    let step = progress::step(format!("mapping {}", options.volume));
    machine.map(&options.volume)?;
    wait(&mut machine, |machine| machine.size() > 0, "the appliance did not open the volume")?;
    step.done(&format!("{} bytes", machine.size()));
    for (size, depth, part) in READS {
        let count = (options.count / part).max(1);
        let took = machine.read(size, depth, count)?.as_secs_f64();
        println!(
            "{count} reads of {size} bytes, {depth} at once: {:.3} s, {:.0} a second, {:.1} MB/s, \
             mean {:.0} us",
            took,
            count as f64 / took,
            (count * size as u64) as f64 / took / 1e6,
            took * 1e6 * depth as f64 / count as f64,
        );
    }
    Ok(())
}

fn wait(machine: &mut Machine, done: impl Fn(&Machine) -> bool, otherwise: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done(machine) {
        if Instant::now() > deadline {
            bail!("{otherwise}: see `show ntb` and `show log` on the appliance");
        }
        machine.turn()?;
    }
    Ok(())
}
