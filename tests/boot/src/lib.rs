//! What the boot tests share: the image under test, a machine to put it in, and a peer on its wire.
//!
//! The tests are run by `./isthmus test SUITE`, which builds the image and tells where it is. Each suite
//! is a file in `tests/`; each case is a story told over the serial console.

pub mod crowd;
pub mod peer;

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

/// A disk by whose serial number the appliance knows that it keeps the configuration.
pub fn keeps_configuration(path: &Path) -> Disk {
    Disk::new(path).serial("isthmus-config")
}

/// Whether machines have nothing of virtio, because somebody wants to know whether all goes without. Then a case that is
/// about something of virtio's is left out, and says why.
pub fn without_virtio(case: &str, about: &str) -> Result<bool> {
    let without = disks_are_nvme();
    if without {
        skip("without virtio", &format!("{case}: {about}"))?;
    }
    Ok(without)
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

/// Says that a case could not run here. Only for what needs hardware that few machines have: the
/// summary of `./isthmus test` lists it.
pub fn skip(case: &str, reason: &str) -> Result<()> {
    let file = std::fs::File::options().append(true).create(true).open(named_file(SKIPPED)?);
    writeln!(file.context("could not note a skipped case")?, "{case}: {reason}")?;
    Ok(())
}
