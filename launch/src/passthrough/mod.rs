//! Devices of the host for the appliance: lists them, and lends them to a machine and back.
//!
//! * `host` reads sysfs and procfs beneath a root, which tests make as a directory tree. `drivers::inventory` decides
//!   from the IDs of a function whether Isthmus has a driver.
//! * `refusal` checks everything before any change, with one function per kind of reason.
//! * `loan` binds to vfio-pci. A shell gives the devices back. It is started before the first change and waits at a
//!   pipe for the borrower's end, so every kind of end takes the same way back.
//! * A probe (`launch/src/probe`) is a process of its own inside the loan, because Linux takes a function back only from
//!   a process that has closed it.
//!
//! The machine of a probe is the crate `launch/vfio`.

mod devices;
mod host;
mod loan;
mod refusal;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};
use drivers::hal::PciAddress;

pub use devices::devices;
pub use host::{Function, Host, address};
pub use loan::{Loan, Plan, VFIO};
pub use refusal::{Refusal, refusals};

/// Takes these functions from Linux, after having looked whether that is safe; says what is done. They are given back
/// when the loan is dropped.
pub fn borrow(host: &Host, wanted: &[PciAddress]) -> Result<Loan> {
    agree(host, wanted)?;
    if !rustix::process::geteuid().is_root() {
        bail!("devices are taken from Linux by root: run this as root, or with sudo");
    }
    Plan::new(host, wanted)?.carry_out()
}

/// Shows what [`borrow`] would do, and does nothing.
pub fn show(host: &Host, wanted: &[PciAddress]) -> Result<()> {
    agree(host, wanted)?;
    let (take, back) = Plan::new(host, wanted)?.shown();
    take.iter().for_each(|line| println!("$ {line}"));
    if !back.is_empty() {
        println!("and at the end:");
    }
    back.iter().for_each(|line| println!("$ {line}"));
    Ok(())
}

/// An error with every reason against taking these functions, if there is any.
pub fn agree(host: &Host, wanted: &[PciAddress]) -> Result<()> {
    let reasons: Vec<String> = refusals(host, wanted)?.iter().map(ToString::to_string).collect();
    if !reasons.is_empty() {
        bail!("not taken from this host:\n{}", reasons.join("\n"));
    }
    Ok(())
}
