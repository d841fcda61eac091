//! Devices of the host for the appliance: which there are, what may be taken, lending and giving back.

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
