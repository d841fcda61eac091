//! The setup of every scene: the image, a Linux guest, and a wire between them.

use std::thread;

use anyhow::{Context, Result};

use crate::build::{self, Image, Profile};
use crate::guest::{Guest, System, Wire};
use crate::progress;
use crate::qemu::{Accelerator, Nic, Spec, Vm, accelerator};

/// The image and the guests' system, built.
pub struct Stage {
    pub image: Image,
    pub system: System,
    pub accelerator: Accelerator,
}

/// The gateway at 10.0.0.1 and a Linux host at 10.0.0.2.
pub struct Pair {
    pub gateway: Vm,
    pub host: Guest,
    // Must outlive the machines.
    _wire: Wire,
}

impl Stage {
    /// Builds the image and the guest in parallel. `prepare` makes the guest, with the modules that the scene needs.
    pub fn prepare(prepare: fn() -> Result<System>) -> Result<Stage> {
        let guest = thread::Builder::new().name("guest".into());
        let guest = guest.spawn(prepare).context("no thread for the guest")?;
        let image = build::build(&build::Options { profile: Profile::Quick, ..Default::default() });
        let system = guest.join().map_err(|_| anyhow::anyhow!("preparing the guest panicked"))?;
        let (image, system) = (image?, system?);
        let accelerator = accelerator(&image.elf);
        Ok(Stage { image, system, accelerator })
    }

    /// A machine of the gateway with `words` on its command line, without network interfaces.
    pub fn gateway(&self, words: &str) -> Spec {
        Spec::kernel(&self.image.elf).accelerator(self.accelerator).memory(256).append(words)
    }

    /// Boots the gateway, with what `more` adds, and a Linux host on a wire. The host has soft-RoCE.
    pub fn pair(&self, words: &str, more: impl FnOnce(Spec) -> Spec) -> Result<Pair> {
        let mut pair = self.booted(words, more)?;
        pair.host.soft_roce()?;
        Ok(pair)
    }

    /// Boots the gateway and a Linux host on a wire, without RDMA.
    pub fn plain_pair(&self, words: &str) -> Result<Pair> {
        self.booted(words, |gateway| gateway)
    }

    fn booted(&self, words: &str, more: impl FnOnce(Spec) -> Spec) -> Result<Pair> {
        let wire = Wire::new()?;
        let (ours, theirs) = wire.datagrams();
        let gateway = self.gateway(&format!("isthmus.net.0.address=10.0.0.1/24 {words}"));
        let gateway = more(gateway.nic(ours).first_mac(1));
        let host = self.system.spec("host", &["10.0.0.2/24"], 1500);
        let host = host.accelerator(self.accelerator).nic(theirs).first_mac(0x20);
        let (gateway, host) = boot(gateway, host)?;
        Ok(Pair { gateway, host, _wire: wire })
    }
}

/// A network interface that forwards `port` of this machine's loopback interface to the gateway's HTTP server.
pub fn http_port(port: u16) -> Nic {
    Nic::User { forwards: vec![("tcp", port, 80)] }
}

/// Boots a gateway and a Linux host.
fn boot(gateway: Spec, host: Spec) -> Result<(Vm, Guest)> {
    let step = progress::step("booting the gateway and a Linux host");
    let mut gateway = gateway.start()?;
    step.print(&format!("$ {}", gateway.command_line()));
    let mut host = Guest::start("host", host)?;
    step.print(&format!("$ {}", host.vm.command_line()));
    gateway.wait_ready()?;
    let ready = gateway.age();
    host.wait_up()?;
    step.done(&format!("the gateway was ready after {:.2} s", ready.as_secs_f64()));
    Ok((gateway, host))
}
