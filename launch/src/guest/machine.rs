//! A running guest: commands in its root shell, captures of its wire, its cables.
//!
//! The shell is on the second serial port; what a command printed ends with a line of ours that holds its
//! exit status.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use super::System;
use crate::qemu::{Boot, Nic, Spec, Vm, boots};

/// What rxe and the kernel's CRCs run well on under emulation, and old enough for any host. Not CMPXCHG16B:
/// up to QEMU 7.2 the translator calls its helper without having stored which operation set the flags, and
/// when an interrupt returned just before, operands get into EFLAGS (VM, AC and others): the kernel, which
/// allocates memory with this instruction, then oopses in `__kmalloc_node_track_caller`.
const CPU: &str = "qemu64,-cx16,+ssse3,+sse4.1,+sse4.2,+popcnt,+x2apic";
const CPU_WITH_CX16: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+x2apic";

/// A guest whose CPU has CMPXCHG16B, for programs that do not ask whether it is there (haproxy); the kernel
/// does without.
pub fn with_cx16(spec: Spec) -> Spec {
    spec.cpu(CPU_WITH_CX16).append("clearcpuid=cx16")
}

/// How long a guest may take to boot: seconds, but many on a busy host.
const BOOT: Duration = Duration::from_secs(120);

/// How long a command may take that nobody gave a limit.
const COMMAND: Duration = Duration::from_secs(120);

/// A Linux guest in QEMU. Dropping it kills it.
pub struct Guest {
    name: String,
    /// The machine, for what is not done here.
    pub vm: Vm,
    commands: u64,
}

impl System {
    /// A machine with this system (`no_timer_check`: on a busy host Linux may find no timer tick in
    /// its time, and panics; `maxcpus`: while it starts Linux changes its own code, and QEMU's TCG may let another
    /// processor run what was there for a moment, an `int3` that nobody knows of any more): `addresses` (with prefix, several separated by commas) go to eth0, eth1
    /// and so on, which the caller adds with [`Spec::nic`]. 1 GiB of RAM, one CPU.
    pub fn spec(&self, name: &str, addresses: &[&str], mtu: u16) -> Spec {
        let append = format!(
            "console=ttyS0 loglevel=6 panic=-1 mitigations=off net.ifnames=0 no_timer_check \
             maxcpus=1 tsc_early_khz={} \
             guest.name={name} guest.mtu={mtu}",
            tsc_khz()
        );
        let boot =
            Boot::Kernel { elf: self.kernel.clone(), append, initrd: Some(self.initramfs.clone()) };
        let spec = Spec::new(boot).cpu(CPU).memory(1024).serial_ports(2);
        let spec = spec.extra(["-device", "virtio-rng-pci"]);
        addresses.iter().enumerate().fold(spec, |spec, (index, address)| {
            spec.append(&format!("guest.address{index}={address}"))
        })
    }
}

impl Guest {
    /// Starts the machine. Does not wait: see [`Guest::wait_up`].
    pub fn start(name: &str, spec: Spec) -> Result<Guest> {
        Ok(Guest { name: name.into(), vm: spec.start()?, commands: 0 })
    }

    /// Waits until the shell is there.
    pub fn wait_up(&mut self) -> Result<()> {
        self.vm
            .wait_for_within("GUEST-UP", BOOT)
            .with_context(|| format!("booting {}", self.name))?;
        self.sh("true")?;
        boots::note(self.vm.age());
        Ok(())
    }

    /// Runs a shell command, which may be several lines, and returns what it printed (to both outputs).
    /// An error when its exit status is not 0.
    pub fn sh(&mut self, script: &str) -> Result<String> {
        let (status, output) = self.try_sh(script, COMMAND)?;
        if status != 0 {
            let messages = self.kernel_messages();
            bail!("{}: `{script}` ended with status {status}:\n{output}{messages}", self.name);
        }
        Ok(output)
    }

    /// Runs a shell command with a time limit; returns its exit status and what it printed.
    pub fn try_sh(&mut self, script: &str, limit: Duration) -> Result<(i32, String)> {
        self.commands += 1;
        let end = format!("@end {} ", self.commands);
        // The line that ends the output must not be in what is sent, should that ever be echoed.
        let line = format!("( {script}\n) 2>&1; echo \"@\"\"{}$?@\"\n", &end[1..]);
        let shell = self.vm.serials.first_mut().context("a guest has two serial ports")?;
        shell.send(line.as_bytes()).with_context(|| format!("{}: the shell is gone", self.name))?;
        let Some(output) = shell.wait_for(&end, limit) else {
            let printed = shell.tail();
            bail!(
                "{}: `{script}` did not end within {limit:?}:\n{printed}\n{}",
                self.name,
                self.console()
            );
        };
        let status = shell.wait_for("@\n", COMMAND).context("the shell was cut off")?;
        let status = status.trim_end_matches("@\n").parse().context("the shell's exit status")?;
        Ok((status, output.trim_end_matches(&end).to_string()))
    }

    /// Runs a shell command again and again until it succeeds.
    pub fn wait_until(&mut self, script: &str, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let (status, output) = self.try_sh(script, COMMAND)?;
            if status == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{}: `{script}` still failed after {limit:?}:\n{output}", self.name);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Makes a soft-RoCE device `rxeN` on each interface `ethN`, whose queue then only drops what it has no
    /// room for: Debian's default (fq_codel) drops what waits for more than 5 ms, as everything does on a
    /// busy host, and rdma_rxe does not survive that with several requests in flight.
    ///
    /// Looks for host 1 of each of its networks as well, where servers are: a neighbour's answer that
    /// comes while `rdma_resolve_ip` has asked but is not yet in the list of those that wait
    /// (`drivers/infiniband/core/addr.c`) is missed, and the first connection then waits for half a minute.
    pub fn soft_roce(&mut self) -> Result<()> {
        self.sh("modprobe -a rdma_rxe ib_uverbs rdma_ucm && for path in /sys/class/net/eth*; do \
                 number=${path##*eth}; rdma link add rxe$number type rxe netdev eth$number && \
                 tc qdisc replace dev eth$number root pfifo limit 10000 || exit 1; done")?;
        self.sh(r"for first in $(ip -o addr show scope global |
                      sed -n 's,.* inet6* \([^ ]*[.:]\)[0-9]*/.*,\11,p'); do
                      ping -q -c 1 -W 1 $first >/dev/null 2>&1 &
                  done; wait")?;
        Ok(())
    }

    /// Begins to write all frames of interface number `index` to the pcap file `path`.
    pub fn capture(&mut self, index: usize, path: &Path) -> Result<()> {
        let filter = json!({
            "qom-type": "filter-dump", "id": format!("capture{index}"),
            "netdev": format!("net{index}"), "file": path, "maxlen": 65536,
        });
        self.vm.qmp.execute("object-add", filter)?;
        Ok(())
    }

    /// Ends a capture.
    pub fn end_capture(&mut self, index: usize) -> Result<()> {
        self.vm.qmp.execute("object-del", json!({"id": format!("capture{index}")}))?;
        Ok(())
    }

    /// Plugs or unplugs the cable of interface number `index`, at this end.
    pub fn set_link(&mut self, index: usize, up: bool) -> Result<()> {
        self.vm.qmp.execute("set_link", json!({"name": format!("net{index}"), "up": up}))?;
        Ok(())
    }

    /// Gives disk number `index` another size.
    pub fn resize_disk(&mut self, index: usize, bytes: u64) -> Result<()> {
        let disk = json!({"node-name": format!("disk{index}"), "size": bytes});
        self.vm.qmp.execute("block_resize", disk)?;
        Ok(())
    }

    /// The newest kernel messages, for an error's text.
    fn kernel_messages(&mut self) -> String {
        let messages = self.try_sh("dmesg | tail -20", Duration::from_secs(10));
        messages
            .map_or_else(|error| error.to_string(), |(_, text)| format!("--- dmesg:\n{text}---"))
    }

    fn console(&self) -> String {
        format!("--- console:\n{}---", self.vm.serial.tail())
    }
}

/// A cable between two machines.
pub struct Wire {
    directory: TempDir,
}

impl Wire {
    /// A new cable.
    pub fn new() -> Result<Wire> {
        Ok(Wire { directory: tempfile::Builder::new().prefix("isthmus-wire-").tempdir()? })
    }

    /// Two ends that hold frames back rather than lose them. The first must be started first, and both go
    /// when one goes.
    pub fn stream(&self) -> (Nic, Nic) {
        let end = |listens| Nic::Stream { path: self.path("stream"), listens };
        (end(true), end(false))
    }

    /// Two ends that can be started in any order, and again.
    pub fn datagrams(&self) -> (Nic, Nic) {
        let end = |ours, peer| Nic::Dgram { ours: self.path(ours), peer: self.path(peer) };
        (end("a", "b"), end("b", "a"))
    }

    /// A file of the cable's, which goes with it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The rate of the host's time stamp counter, which is the guest's under TCG. Left to itself, a guest on a
/// busy host measures it wrong by as much as half, and then all its timeouts are off.
fn tsc_khz() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // SAFETY: every x86-64 CPU has RDTSC; Linux leaves it open to programs.
        let counter = || unsafe { core::arch::x86_64::_rdtsc() };
        let (start, first) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(100));
        let cycles = counter().wrapping_sub(first);
        let microseconds = start.elapsed().as_micros().max(1) as u64;
        cycles.saturating_mul(1000) / microseconds
    })
}
