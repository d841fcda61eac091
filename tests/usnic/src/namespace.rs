//! A network namespace with tap devices: peers on this machine and machines in QEMU are hosts of one isolated network.
//! Requires root.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use launch::qemu::Nic;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// The device, for peers' sockets and for QEMU.
pub const TAP: &str = "tap0";
/// Address of this end, on the appliance's network.
pub const ADDRESS: &str = "10.9.0.2";
/// A second device, and its address on a second network.
pub const SECOND_TAP: &str = "tap1";
/// See [`SECOND_TAP`].
pub const SECOND_ADDRESS: &str = "10.8.0.2";
/// Both devices, in the form for peers.
pub const BOTH_TAPS: &str = "tap0,tap1";

/// The interface to give to the machine.
pub fn nic() -> Nic {
    Nic::Tap { name: TAP.into() }
}

/// The interface of the second device.
pub fn second_nic() -> Nic {
    Nic::Tap { name: SECOND_TAP.into() }
}

/// Runs `f` in a namespace with [`TAP`], in a separate thread. Processes that it starts are in the namespace as well.
pub fn within<T: Send>(mtu: u16, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    alone(|| {
        add(TAP, ADDRESS, mtu)?;
        f()
    })
}

/// As [`within`], with [`SECOND_TAP`] in addition.
pub fn within_two<T: Send>(mtu: u16, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    alone(|| {
        add(TAP, ADDRESS, mtu)?;
        add(SECOND_TAP, SECOND_ADDRESS, mtu)?;
        f()
    })
}

fn add(tap: &str, address: &str, mtu: u16) -> Result<()> {
    ip(&format!("tuntap add dev {tap} mode tap"))?;
    ip(&format!("link set {tap} mtu {mtu} up"))?;
    ip(&format!("addr add {address}/24 dev {tap}"))
}

/// Runs `f` in a namespace with these tap devices on a bridge.
pub fn bridged<T: Send>(taps: &[&str], f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    alone(|| {
        ip("link add br0 type bridge")?;
        ip("link set br0 up")?;
        for tap in taps {
            ip(&format!("tuntap add dev {tap} mode tap"))?;
            ip(&format!("link set {tap} master br0 up"))?;
        }
        f()
    })
}

/// Runs `f` in an empty namespace with its loopback device up, in a separate thread.
pub fn alone<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    ensure!(rustix::process::geteuid().is_root(), "a network namespace requires root");
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: Only this thread's network changes. Files, memory and signals stay shared, so objects of other
            // threads keep their meaning.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("no network namespace")?;
            ip("link set lo up")?;
            f()
        });
        inside.join().map_err(|_| anyhow!("the thread in the namespace has panicked"))?
    })
}

/// Runs `ip` with these words.
pub fn ip(words: &str) -> Result<()> {
    let output = Command::new("ip").args(words.split(' ')).output().context("no ip")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {words}: {errors}");
    Ok(())
}
