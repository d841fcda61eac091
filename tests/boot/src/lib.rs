//! Shared parts of the boot tests: the image under test, a machine for it, and a peer on its wire.
//!
//! `./isthmus test SUITE` builds the image, passes its path in an environment variable, and runs the tests. Each suite
//! is a module in `suites/`; most cases drive the serial console.

pub mod crowd;
pub mod peer;
pub mod pypi;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use launch::qemu::{Disk, NicModel, Program, Spec, Vm};

/// The environment variable with the path of the image under test.
pub const IMAGE: &str = "ISTHMUS_IMAGE";

/// The environment variable with the path of the file that skipped cases are written to.
pub const SKIPPED: &str = "ISTHMUS_SKIPPED";

/// The image under test.
pub fn image() -> Result<PathBuf> {
    named_file(IMAGE)
}

/// The environment variable with the path of the image for tests, in which faults can be provoked.
pub const FAULTS: &str = "ISTHMUS_FAULTS";

/// A machine as [`spec`] has it, with the image in which faults can be provoked.
pub fn faulty() -> Result<Spec> {
    Spec::kernel(named_file(FAULTS)?).as_told()
}

/// A file that `./isthmus test` made and names in an environment variable.
pub fn named_file(variable: &str) -> Result<PathBuf> {
    let path = std::env::var_os(variable);
    Ok(path.with_context(|| format!("{variable} is not set: run ./isthmus test"))?.into())
}

/// A q35 with 128 MiB that boots the image, without devices.
pub fn spec() -> Result<Spec> {
    Spec::kernel(image()?).as_told()
}

/// A disk with the serial number by which the appliance recognises its configuration disk.
pub fn keeps_configuration(path: &Path) -> Disk {
    Disk::new(path).serial("isthmus-config")
}

/// Whether the machines have no virtio disks (`ISTHMUS_DISK=nvme`). Then a case about a virtio device is skipped, and
/// recorded with what it is about.
pub fn without_virtio(case: &str, about: &str) -> Result<bool> {
    let without = !disks_are_virtio();
    if without {
        skip("without virtio", &format!("{case}: {about}"))?;
    }
    Ok(without)
}

/// Whether disks of machines are virtio disks.
pub fn disks_are_virtio() -> bool {
    std::env::var("ISTHMUS_DISK").map_or(true, |disk| disk == "virtio")
}

/// Whether disks of machines are NVMe drives.
pub fn disks_are_nvme() -> bool {
    std::env::var("ISTHMUS_DISK").is_ok_and(|disk| disk == "nvme")
}

/// The same machine with network interfaces of this model, in a QEMU that has it.
pub fn with_nics(spec: Spec, model: NicModel) -> Result<Spec> {
    let spec = spec.nic_model(model);
    match model {
        NicModel::Igb => Ok(spec.program(Program::with_vfio_user()?)),
        _ => Ok(spec),
    }
}

/// Starts a machine and waits for the prompt.
pub fn boot(spec: Spec) -> Result<Vm> {
    let mut vm = spec.start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// Records that a case could not run here, for the summary of `./isthmus test`. Only for cases that need rare hardware.
pub fn skip(case: &str, reason: &str) -> Result<()> {
    let file = std::fs::File::options().append(true).create(true).open(named_file(SKIPPED)?);
    writeln!(file.context("could not record a skipped case")?, "{case}: {reason}")?;
    Ok(())
}
