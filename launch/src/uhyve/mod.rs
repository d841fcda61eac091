//! uhyve for tests, on machines that cannot run it: a machine of QEMU, set up as uhyve 0.10 sets one up, and the model of
//! its hypercalls and network device (`tests/models/src/uhyve`). The image for uhyve runs there from its first
//! instruction, under translation.
//!
//! QEMU starts a program of ours (`start.s`) in place of a kernel. It puts into memory what uhyve would, the image
//! included, connects the hypercall ports to the model, and enters the image as uhyve does, on each processor.
//!
//! This machine has a PC around it, which the image does not look for, and no deadline timer; the local APIC's countdown
//! replaces it.
//!
//! # The image for uhyve
//!
//! It is the same program, linked to the same address, with the feature `uhyve` from `images/boot` to `appliance/image`.
//! The shipped image does not contain it, and without the feature all tests for it are "no" at compile time. uhyve enters
//! all processors in 64-bit mode (`stub/entry_uhyve.s`). The first one makes the tables of the other entry points and
//! gives the kernel a machine that is still uhyve's, so the kernel looks for no PC and takes the other processors as they
//! come. `drivers::uhyve` is uhyve's interface (output, files, end), which replaces serial port, fw_cfg and reset
//! (`platform/uhyve.rs`, `uhyve_console.rs`). `drivers/src/virtio/dialect.rs` describes how its network device departs
//! from the standard.

mod memory;
mod start;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::models::ModelServer;
use crate::qemu::{Nic, Program, Spec, Vm};
pub use memory::Machine;

/// How long the image may take for what is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// MiB of QEMU's machine; the image gets less.
const MIB: u32 = 256;

/// A machine that runs.
pub struct Pretended {
    server: ModelServer,
    _vm: Vm,
    _directory: TempDir,
}

impl Pretended {
    /// Starts `image` with `models`, the program that serves models. Its network leads to `nic`, a wire of datagrams; a
    /// file, if there is one, is mapped to `/isthmus.toml`.
    pub fn start(
        image: &Path,
        models: &Path,
        machine: &Machine,
        nic: &Nic,
        config: Option<&str>,
    ) -> Result<Pretended> {
        let directory = tempfile::Builder::new().prefix("isthmus-uhyve-").tempdir()?;
        let Nic::Dgram { ours, peer } = nic else { bail!("the model takes a wire of datagrams") };
        let (ours, peer) = (ours.display().to_string(), peer.display().to_string());
        let mut options = vec!["--wire", &ours, &peer];
        let file = directory.path().join("isthmus.toml");
        let name = file.display().to_string();
        if let Some(config) = config {
            fs::write(&file, config)?;
            options.extend(["--config", &name]);
        }
        let server = ModelServer::start(models, "uhyve", &options)?;
        let program = directory.path().join("start.elf");
        fs::write(&program, start::program(image, machine)?)?;
        let spec = Spec::kernel(program)
            .program(Program::with_vfio_user()?)
            .memory(MIB)
            .cpus(machine.processors)
            .vfio_user(&server.socket());
        let vm = spec.start()?;
        Ok(Pretended { server, _vm: vm, _directory: directory })
    }

    /// Waits until the image has printed something, or uhyve would have.
    pub fn wait_for(&mut self, text: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.server.output();
            if output.contains(text) {
                return Ok(output);
            }
            if Instant::now() > deadline {
                bail!("{text:?} was not printed within {PATIENCE:?}, but:\n{output}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All that the image has printed, and uhyve would have.
    pub fn output(&self) -> String {
        self.server.output()
    }

    /// What the model has counted so far.
    pub fn counters(&mut self) -> Result<String> {
        self.server.counters_so_far()
    }
}
