//! Shared parts of the interoperability tests: Linux guests on a wire, the appliance's machine, and the commands with
//! which Linux maps a volume.
//!
//! Run by `./isthmus test SUITE`, which makes the guest's system and builds the image.

pub mod bridge_peer;
pub mod captured;
pub mod crafter;
mod dialer;
pub mod engines;
pub mod host;
pub mod hub;
pub mod lab;
pub mod metrics;
pub mod movdir64b;
pub mod overheard;
pub mod packet;
pub mod port;
pub mod relay;
pub mod remote;
pub mod rtrs_attacker;
mod site;
pub mod smc;
pub mod smc_attacker;
pub mod storage;
pub mod tools;

use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use launch::guest::{self, Guest, System, Wire};
use launch::qemu::{Nic, Spec};

pub use launch::guest::programs;
pub use site::{SERVICES, Site, evidence};

/// The system that guests boot, made by the first test that uses it.
pub fn system() -> Result<&'static System> {
    static SYSTEM: OnceLock<Result<System, String>> = OnceLock::new();
    let system = SYSTEM.get_or_init(|| guest::prepare().map_err(|error| format!("{error:#}")));
    system.as_ref().map_err(|error| anyhow!("{error}"))
}

/// Two guests with soft-RoCE, 10.0.0.1 (fd00::1) and 10.0.0.2 (fd00::2), on one wire.
pub struct Pair {
    /// 10.0.0.1
    pub server: Guest,
    /// 10.0.0.2
    pub client: Guest,
    // Must outlive the machines.
    _wire: Wire,
}

impl Pair {
    /// Boots both.
    pub fn boot(mtu: u16) -> Result<Pair> {
        let wire = Wire::new()?;
        let (first, second) = wire.stream();
        let spec =
            |name, addresses| Ok::<_, anyhow::Error>(system()?.spec(name, &[addresses], mtu));
        let server = spec("server", "10.0.0.1/24,fd00::1/64")?.nic(first).first_mac(1);
        let client = spec("client", "10.0.0.2/24,fd00::2/64")?.nic(second).first_mac(2);
        let mut server = Guest::start("server", server)?;
        let mut client = Guest::start("client", client)?;
        for guest in [&mut server, &mut client] {
            guest.wait_up()?;
            guest.soft_roce()?;
        }
        Ok(Pair { server, client, _wire: wire })
    }
}

/// The addresses of a host on a network, with prefix lengths.
pub fn address(network: usize, host: u8) -> String {
    format!("10.0.{network}.{host}/24,fd00:0:0:{network}::{host}/64")
}

/// The machine of the appliance, without its network interface.
pub fn gateway_spec(mtu: u16, words: &str) -> Result<Spec> {
    networked_gateway_spec(1, mtu, words)
}

/// The machine of the appliance, configured for this many network interfaces, without the interfaces.
pub fn networked_gateway_spec(networks: usize, mtu: u16, words: &str) -> Result<Spec> {
    let spec = (0..networks).fold(image_spec()?, |spec, n| {
        let address = address(n, 1);
        spec.append(&format!("isthmus.net.{n}.address={address} isthmus.net.{n}.mtu={mtu}"))
    });
    Ok(spec.append(words))
}

/// The machine of the appliance, without a configuration.
pub fn image_spec() -> Result<Spec> {
    let image = std::env::var_os("ISTHMUS_IMAGE");
    let image = image.context("ISTHMUS_IMAGE is not set: run ./isthmus test")?;
    Spec::kernel(image).memory(512).as_told()
}

/// Boots a guest with soft-RoCE, 10.0.0.2 (fd00::2), on `nic`, as a client of 10.0.0.1 (fd00::1).
pub fn client(nic: Nic, mtu: u16) -> Result<Guest> {
    client_of(mtu, |spec| spec.nic(nic))
}

/// As [`client`], on a machine that `more` extends.
pub fn client_of(mtu: u16, more: impl FnOnce(Spec) -> Spec) -> Result<Guest> {
    boot_client(more(system()?.spec("client", &[&address(0, 2)], mtu).first_mac(2)))
}

/// Boots a guest, and creates soft-RoCE devices on its interfaces.
pub fn boot_client(spec: Spec) -> Result<Guest> {
    let mut guest = Guest::start("client", spec)?;
    guest.wait_up()?;
    guest.soft_roce()?;
    Ok(guest)
}

/// Maps a volume with Linux's rnbd-client; the block device is /dev/rnbdN, N counting from 0.
pub fn map(
    guest: &mut Guest,
    session: &str,
    path: &str,
    volume: &str,
    options: &str,
) -> Result<()> {
    let words = format!("sessname={session} path={path} device_path={volume} {options}");
    guest.sh(&format!("echo '{words}' > /sys/class/rnbd-client/ctl/map_device"))?;
    Ok(())
}

/// Unmaps /dev/rnbdN.
pub fn unmap(guest: &mut Guest, number: u32) -> Result<()> {
    guest.sh(&format!("echo normal > /sys/block/rnbd{number}/rnbd/unmap_device"))?;
    Ok(())
}
