//! uhyve for tests on hosts that cannot run it: a QEMU machine, prepared as uhyve 0.10 prepares one, and a model of
//! uhyve's hypercalls and network device (`tests/models/src/uhyve`). The image for uhyve runs there under translation
//! from its first instruction.
//!
//! QEMU starts `start.s` in place of a kernel. `start.s` fills memory as uhyve does, including the image, places the
//! model's ports at the hypercall ports, and enters the image on each processor as uhyve does.
//!
//! In contrast to uhyve's machine, this one has the devices of a PC, which the image does not look for, and no deadline
//! timer, which the local APIC's countdown replaces.
//!
//! # The image for uhyve
//!
//! It is the same program, linked to the same address, with the feature `uhyve` from `images/boot` to
//! `appliance/image`. The shipped image does not contain it: without the feature all tests for uhyve are false at
//! compile time. uhyve enters all processors in 64-bit mode (`stub/entry_uhyve.s`). The first one makes the tables of
//! the other entry points and keeps uhyve as the kernel's platform, so the kernel does not look for a PC and takes the
//! other processors as they arrive. `drivers::uhyve` is uhyve's interface (output, files, end), which replaces serial
//! port, fw_cfg and reset (`platform/uhyve`). `drivers/src/virtio/dialect.rs` describes how its
//! network device departs from the standard.

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

/// Time limit for an expected output.
const PATIENCE: Duration = Duration::from_secs(60);
/// MiB of QEMU's machine; the image gets less.
const MIB: u32 = 256;

/// A running machine in place of uhyve's.
pub struct Pretended {
    server: ModelServer,
    _vm: Vm,
    _directory: TempDir,
}

impl Pretended {
    /// Starts `image` with `models`, the program that serves models. Its network interface is connected to `nic`, a
    /// [`Nic::Dgram`]; `config` is mapped to `/isthmus.toml`.
    pub fn start(
        image: &Path,
        models: &Path,
        machine: &Machine,
        nic: &Nic,
        config: Option<&str>,
    ) -> Result<Pretended> {
        let directory = tempfile::Builder::new().prefix("isthmus-uhyve-").tempdir()?;
        let Nic::Dgram { ours, peer } = nic else { bail!("the model of uhyve needs a Nic::Dgram") };
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

    /// Waits until `text` is in the output of the image and of uhyve's model.
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

    /// The output so far of the image and of uhyve's model.
    pub fn output(&self) -> String {
        self.server.output()
    }

    /// The model's counters so far.
    pub fn counters(&mut self) -> Result<String> {
        self.server.counters_so_far()
    }
}
