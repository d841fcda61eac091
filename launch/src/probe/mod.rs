//! `./isthmus probe`: Isthmus's own driver on a device of this host, in a process of Linux, so that it is seen whether they
//! get along before the device is given to an appliance. It writes to no disk.

mod disk;
mod port;
mod report;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use drivers::hal::PciAddress;
use drivers::registry::Class;
use vfio::Machine;

use crate::passthrough::{self, Function, Host, VFIO};
use crate::{command, workspace};
use report::Report;

/// Options of `./isthmus probe`.
#[derive(Args)]
pub struct Options {
    /// The device, such as 0000:03:00.0; `./isthmus devices` lists them
    #[arg(value_parser = passthrough::address)]
    address: PciAddress,
    /// Where to write all that was found out, for a bug report [default: target/probe/ADDRESS.txt]
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// Tries the device. An error when something about it does not work.
pub fn probe(options: &Options) -> Result<()> {
    let host = Host::here();
    passthrough::agree(&host, &[options.address])?;
    let function = host.function(options.address)?;
    let dump = match &options.dump {
        Some(path) => path.clone(),
        None => workspace::target().join(format!("probe/{}.txt", options.address)),
    };
    if function.driver.as_deref() != Some(VFIO) {
        return probe_lent(&host, options.address, &dump);
    }
    // It is bound already; what maps memory may be missing.
    let _loan = passthrough::borrow(&host, &[options.address])?;
    let mut report = Report::default();
    let found = carry_out(&function, &mut report);
    if let Err(error) = &found {
        report.say(&format!("error: {error:#}"));
    }
    report.write(&dump)?;
    println!("all of it is in {}", dump.display());
    // It is in the report, which was shown.
    if found.is_err() { bail!("the device did not pass") } else { Ok(()) }
}

/// Binds the function to vfio-pci and gives it back, around another process that tries it: Linux gets it back only when
/// whoever had it open has ended.
fn probe_lent(host: &Host, address: PciAddress, dump: &std::path::Path) -> Result<()> {
    let loan = passthrough::borrow(host, &[address])?;
    let mut again = Command::new(std::env::current_exe().context("this program has no name")?);
    again.arg("probe").arg(address.to_string()).arg("--dump").arg(dump);
    command::end_with_us(&mut again);
    let status = again.status().context("could not start the probe");
    drop(loan);
    if status?.success() { Ok(()) } else { bail!("the device did not pass") }
}

fn carry_out(function: &Function, report: &mut Report) -> Result<()> {
    report.identify(function);
    let mut machine = Machine::open(function.address, function.directory())?;
    report.config(&machine.config());
    for (address, size, mapped) in machine.regions() {
        let how = if mapped { "mapped" } else { "by VFIO's file" };
        report.say(&format!("registers: {size:#x} bytes at {address:#x}, {how}"));
    }
    let Some(device) = machine.device() else {
        bail!(
            "Isthmus's drivers do not recognize it through VFIO: its configuration space is in the dump"
        );
    };
    report.say(&format!("driver: {}", device.driver()));
    let clock = Machine::clock();
    match device.class() {
        Class::Port => port::probe(device, &mut machine, &clock, report),
        Class::Disks => disk::probe(device, &mut machine, &clock, report),
        Class::Entropy => {
            let mut source = opened(device.open_entropy(&mut machine))?;
            let mut bytes = [0; 64];
            source.read(&mut bytes, &clock)?;
            report.say("entropy: 64 bytes came");
            Ok(())
        }
        Class::Dma => {
            let channels = opened(device.open_dma(&mut machine, &clock))?;
            report.say(&format!("channels: {}", channels.len()));
            Ok(())
        }
        Class::Bridge | Class::Console | Class::RapidIo => {
            report.say(
                "a bridge of this kind is not opened here: its driver speaks to what is behind it",
            );
            Ok(())
        }
    }
}

/// A driver's error, which may be none of a thread's.
fn opened<T>(result: Result<T, drivers::registry::OpenError>) -> Result<T> {
    result.map_err(|error| anyhow::anyhow!("its driver does not open it: {error}"))
}
