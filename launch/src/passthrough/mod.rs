//! Lists devices of the host, and lends them to an appliance.
//!
//! * `host` reads sysfs and procfs below a root, which is a directory tree in tests. `drivers::inventory` decides
//!   from the IDs of a function whether Isthmus has a driver.
//! * `refusal` checks everything before any change, with one function per kind of reason.
//! * `loan` binds to vfio-pci. A shell returns the devices. It is started before the first change and waits on a pipe
//!   for the end of the borrower, so that every kind of end returns them in the same way.
//! * A probe (`launch/src/probe`) is a process of its own inside the loan, because Linux takes a function back only
//!   from a process that has closed it.
//!
//! The platform for the drivers of a probe is the crate `launch/vfio`.

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

/// Takes these functions from Linux after checking that this is safe, and prints every step. They are returned when the
/// loan is dropped.
pub fn borrow(host: &Host, wanted: &[PciAddress]) -> Result<Loan> {
    agree(host, wanted)?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root can take devices from Linux: run this as root, or with sudo");
    }
    Plan::new(host, wanted)?.carry_out()
}

/// Prints the steps of [`borrow`] without performing them.
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

/// Fails with every reason against taking these functions, if there is any.
pub fn agree(host: &Host, wanted: &[PciAddress]) -> Result<()> {
    let reasons: Vec<String> = refusals(host, wanted)?.iter().map(ToString::to_string).collect();
    if !reasons.is_empty() {
        bail!("cannot take these devices from this host:\n{}", reasons.join("\n"));
    }
    Ok(())
}
