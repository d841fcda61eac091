//! `./isthmus probe`: runs Isthmus's driver on a device of this host in a Linux process, to test the device before it
//! is passed to an appliance. It writes to no disk.

mod disk;
mod port;
mod report;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use drivers::driver::Class;
use drivers::hal::PciAddress;
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
    /// The file for the full report, to attach to a bug report [default: target/probe/ADDRESS.txt]
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// Probes the device. Fails if a step fails.
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
    // The device is bound already, but the module that maps memory may not be loaded.
    let _loan = passthrough::borrow(&host, &[options.address])?;
    let mut report = Report::default();
    let found = probe_bound(&function, &mut report);
    if let Err(error) = &found {
        report.print(&format!("error: {error:#}"));
    }
    report.write(&dump)?;
    println!("full report: {}", dump.display());
    // The error is in the report, which was printed.
    if found.is_err() { bail!("the device failed the probe") } else { Ok(()) }
}

/// Binds the function to vfio-pci, probes it in a child process, and returns it to its driver. A child process, because
/// Linux can rebind the function only when every process that had it open has ended.
fn probe_lent(host: &Host, address: PciAddress, dump: &std::path::Path) -> Result<()> {
    let loan = passthrough::borrow(host, &[address])?;
    let mut again =
        Command::new(std::env::current_exe().context("this program's path is unknown")?);
    again.arg("probe").arg(address.to_string()).arg("--dump").arg(dump);
    command::end_with_us(&mut again);
    let status = again.status().context("could not start the probe");
    drop(loan);
    if status?.success() { Ok(()) } else { bail!("the device failed the probe") }
}

fn probe_bound(function: &Function, report: &mut Report) -> Result<()> {
    report.identify(function);
    let mut machine = Machine::open(function.address, function.directory())?;
    report.config(&machine.config());
    for (address, size, mapped) in machine.regions() {
        let how = if mapped { "mapped" } else { "accessed through VFIO's file" };
        report.print(&format!("registers: {size:#x} bytes at {address:#x}, {how}"));
    }
    let Some(device) = machine.device() else {
        bail!(
            "no Isthmus driver recognizes the device through VFIO; the report has its configuration space"
        );
    };
    report.print(&format!("driver: {}", device.driver()));
    let clock = Machine::clock();
    match device.class() {
        Class::Port => port::probe(device, &mut machine, &clock, report),
        Class::Disks => disk::probe(device, &mut machine, &clock, report),
        Class::Entropy => {
            let mut source = opened(device.open_entropy(&mut machine))?;
            let mut bytes = [0; 64];
            source.read(&mut bytes, &clock)?;
            report.print("entropy: received 64 bytes");
            Ok(())
        }
        Class::Dma => {
            let channels = opened(device.open_dma(&mut machine, &clock))?;
            report.print(&format!("channels: {}", channels.len()));
            Ok(())
        }
        Class::Bridge | Class::Console | Class::RapidIo => {
            report.print(
                "not opened: the driver of such a device also accesses the devices behind it",
            );
            Ok(())
        }
    }
}

/// Converts a driver's error, which may not be `Send`.
fn opened<T>(result: Result<T, drivers::driver::OpenError>) -> Result<T> {
    result.map_err(|error| anyhow::anyhow!("the driver could not open the device: {error}"))
}
