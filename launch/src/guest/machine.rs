//! A running guest: commands in its root shell, captures of its wire, its cables.
//!
//! The shell is on the second serial port. A marker line with the exit status ends the output of each command.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use super::System;
use crate::qemu::{Boot, Nic, Spec, Vm, boots};

/// A CPU on which rxe and the kernel's CRCs are fast under emulation, and old enough for any host. Not CMPXCHG16B:
/// up to QEMU 7.2 the translator calls its helper without having stored which operation set the flags, and
/// when an interrupt returned just before, operands get into EFLAGS (VM, AC and others): the kernel, which
/// allocates memory with this instruction, then oopses in `__kmalloc_node_track_caller`.
const CPU: &str = "qemu64,-cx16,+ssse3,+sse4.1,+sse4.2,+popcnt,+x2apic";
const CPU_WITH_CX16: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+x2apic";

/// A guest whose CPU has CMPXCHG16B, for programs that use it without checking for it (haproxy). The kernel does
/// not use it.
pub fn with_cx16(spec: Spec) -> Spec {
    spec.cpu(CPU_WITH_CX16).append("clearcpuid=cx16")
}

/// Time limit for booting: it takes seconds, but many on a busy host.
const BOOT: Duration = Duration::from_secs(120);

/// Time limit of a command whose caller sets none.
const COMMAND: Duration = Duration::from_secs(120);

/// A Linux guest in QEMU. Dropping it kills it.
pub struct Guest {
    name: String,
    /// The machine, for operations that `Guest` lacks.
    pub vm: Vm,
    commands: u64,
}

impl System {
    /// A machine with this system, 1 GiB of RAM and one CPU. `addresses` (with prefix, several separated by commas) are
    /// those of eth0, eth1 and so on, which the caller adds with [`Spec::nic`].
    ///
    /// `no_timer_check`: on a busy host Linux may see no timer tick in time, and panics. `maxcpus`: Linux patches its
    /// own code while it boots, and QEMU's TCG may let another processor execute an `int3` that Linux has already
    /// replaced and no longer handles.
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

    /// Waits until the shell is ready.
    pub fn wait_up(&mut self) -> Result<()> {
        self.vm
            .wait_for_within("GUEST-UP", BOOT)
            .with_context(|| format!("booting {}", self.name))?;
        self.sh("true")?;
        boots::note(self.vm.age());
        Ok(())
    }

    /// Runs a shell command, which may be several lines, and returns its output (both streams).
    /// Fails if its exit status is not 0.
    pub fn sh(&mut self, script: &str) -> Result<String> {
        let (status, output) = self.try_sh(script, COMMAND)?;
        if status != 0 {
            let messages = self.kernel_messages();
            bail!("{}: `{script}` ended with status {status}:\n{output}{messages}", self.name);
        }
        Ok(output)
    }

    /// Runs a shell command with a time limit; returns its exit status and its output.
    pub fn try_sh(&mut self, script: &str, limit: Duration) -> Result<(i32, String)> {
        self.commands += 1;
        let end = format!("@end {} ", self.commands);
        // The sent text must not contain the marker, in case the shell echoes it.
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
        let status =
            shell.wait_for("@\n", COMMAND).context("the shell ended within the marker line")?;
        let status = status.trim_end_matches("@\n").parse().context("the shell's exit status")?;
        Ok((status, output.trim_end_matches(&end).to_string()))
    }

    /// Repeats a shell command until it succeeds.
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

    /// Makes a soft-RoCE device `rxeN` on each interface `ethN`, and lets the queue of the interface drop packets
    /// only when it is full: Debian's default (fq_codel) drops packets that wait for more than 5 ms, as all do on a
    /// busy host, and rdma_rxe does not survive that with several requests in flight.
    ///
    /// Also pings host 1 of each of its networks, where servers are, to resolve its address beforehand:
    /// `rdma_resolve_ip` (`drivers/infiniband/core/addr.c`) misses a neighbour's answer that arrives after its request
    /// but before its entry in the list of waiters, and the first connection then waits for half a minute.
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

    /// Starts writing all frames of interface number `index` to the pcap file `path`.
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

    /// Two ends that delay frames rather than lose them. The first end must be started first, and both end when one
    /// ends.
    pub fn stream(&self) -> (Nic, Nic) {
        let end = |listens| Nic::Stream { path: self.path("stream"), listens };
        (end(true), end(false))
    }

    /// Two ends that can be started in any order, and restarted.
    pub fn datagrams(&self) -> (Nic, Nic) {
        let end = |ours, peer| Nic::Dgram { ours: self.path(ours), peer: self.path(peer) };
        (end("a", "b"), end("b", "a"))
    }

    /// A file of the cable, deleted with it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The rate of the host's time stamp counter, which is also the guest's under TCG. A guest on a busy host measures
/// it wrong by up to a half, which makes all its timeouts wrong.
fn tsc_khz() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE.get_or_init(|| {
        // SAFETY: every x86-64 CPU has RDTSC; Linux permits it to programs.
        let counter = || unsafe { core::arch::x86_64::_rdtsc() };
        let (start, first) = (Instant::now(), counter());
        std::thread::sleep(Duration::from_millis(100));
        let cycles = counter().wrapping_sub(first);
        let microseconds = start.elapsed().as_micros().max(1) as u64;
        cycles.saturating_mul(1000) / microseconds
    })
}
