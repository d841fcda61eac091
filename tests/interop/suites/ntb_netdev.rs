//! The image with `ntb_transport` at one side of a bridge, and at the other a stock Linux host with its own
//! `ntb_netdev`: pings, HTTP, a volume over soft-RoCE, and reloads and reboots of either side.
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::smc::prepare;
use interop_tests::{image_spec, storage, system};
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::{Machine, Program, Vm};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(90);

const IMAGE: &str = "10.2.0.1";
const LINUX: &str = "10.2.0.2";

/// A bridge: the model with its options, and Linux's modules for it.
#[derive(Clone, Copy)]
struct Kind {
    model: &'static str,
    options: &'static [&'static str],
    modules: &'static str,
}

/// Intel's third generation.
const GEN3: Kind = Kind { model: "intel-ntb", options: &[], modules: "ntb_hw_intel" };

/// The two machines.
struct Hosts {
    kind: Kind,
    image: Vm,
    guest: Guest,
    model: ModelServer,
    program: Program,
}

impl Hosts {
    /// Boots the guest at the upstream side, and the image at the other, with `words` on its command line.
    fn boot(kind: Kind, words: &str) -> Result<Hosts> {
        let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
        let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test ntb_netdev")?;
        let model = ModelServer::start_several(&server, kind.model, 2, kind.options)?;
        let program = Program::with_vfio_user()?;
        let spec = image_spec()?.machine(Machine::Q35).program(program.clone()).reboots();
        let address = format!("isthmus.net.0.address={IMAGE}/24");
        let spec = spec.append(words).append(&address).vfio_user(&model.socket_of(1));
        let mut image = spec.start()?;
        image.wait_ready()?;
        let guest = Hosts::linux(&program, &model)?;
        Ok(Hosts { kind, image, guest, model, program })
    }

    fn linux(program: &Program, model: &ModelServer) -> Result<Guest> {
        let spec = system()?.spec("linux", &[], 1500).program(program.clone()).memory(512);
        let mut guest = Guest::start("linux", spec.vfio_user(&model.socket_of(0)))?;
        guest.wait_up()?;
        Ok(guest)
    }

    /// Loads Linux's modules, and configures the interface with this MTU.
    fn load(&mut self, mtu: u32) -> Result<()> {
        let modules = self.kind.modules;
        self.guest.sh(&format!(
            "modprobe -a {modules} && modprobe -a ntb_transport ntb_netdev &&
             ip addr add {LINUX}/24 dev eth0 && ip link set eth0 mtu {mtu} up"
        ))?;
        self.carrier()
    }

    /// Waits until both sides have a carrier, and Linux transmits. Linux drops frames for up to a second, until shortly
    /// after `operstate` changes (`linkwatch_do_dev`).
    fn carrier(&mut self) -> Result<()> {
        let there = "[ $(cat /sys/class/net/eth0/operstate) = up ]";
        let waited = self.guest.wait_until(there, PATIENCE);
        waited.with_context(|| self.state())?;
        self.until("up")?;
        let passes = self.guest.wait_until(&format!("ping -c 1 -W 1 {IMAGE}"), PATIENCE);
        passes.with_context(|| self.state())
    }

    fn unload(&mut self) -> Result<()> {
        let modules = self.kind.modules;
        self.guest.sh(&format!("rmmod ntb_netdev ntb_transport {modules}"))?;
        Ok(())
    }

    /// Waits until the link is in this state, and returns the bridge of `show ntb`.
    fn until(&mut self, link: &str) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.image.run("show ntb --json")?.json()?[0].clone();
            if shown["link"] == link {
                return Ok(shown);
            }
            if Instant::now() > deadline {
                bail!("the link is not {link}: {}", self.state());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The state of both machines, for errors.
    fn state(&mut self) -> String {
        let shown = ["show ntb", "show interfaces", "show log"].map(|command| {
            self.image.run(command).map(|reply| reply.text).unwrap_or_else(|why| why.to_string())
        });
        let linux = "ip -s link show eth0; ip neigh; dmesg | tail -20;
            cat /sys/kernel/debug/ntb_transport/*/*/stats";
        let linux = self.guest.sh(linux).unwrap_or_else(|why| why.to_string());
        format!("the image:\n{}\nLinux:\n{linux}\n{}", shown.join("\n"), self.model.output())
    }

    /// Pings in both directions, from Linux with these sizes.
    fn pings(&mut self, sizes: &[u32]) -> Result<()> {
        let answered =
            self.image.run(&format!("ping {LINUX} 3"))?.contains("3 of 3 answered").map(drop);
        answered.with_context(|| self.state())?;
        for size in sizes {
            let ping = format!("ping -c 5 -i 0.1 -W 5 -s {size} {IMAGE} || true");
            let said = self.guest.sh(&ping)?;
            ensure!(said.contains(" 0% packet loss"), "{said}\n{}", self.state());
        }
        Ok(())
    }

    /// Fetches pages over TCP, and checks what they report about the bridge.
    fn http(&mut self) -> Result<()> {
        for _ in 0..3 {
            let page = self.guest.sh(&format!("wget -q -O - http://{IMAGE}/metrics"))?;
            ensure!(page.contains("isthmus_ntb_up{bridge=\"ntb0\"} 1"), "{page}");
            ensure!(page.contains("isthmus_ntb_violations_total{bridge=\"ntb0\"} 0"), "{page}");
        }
        let shown = self.guest.sh(&format!("wget -q -O - http://{IMAGE}/api/ntb"))?;
        let shown: Value = serde_json::from_str(&shown)?;
        ensure!(shown[0]["protocol"] == "ntb_transport", "{shown:#}");
        ensure!(shown[0]["interface"] == "net0", "{shown:#}");
        Ok(())
    }

    /// Maps a volume over soft-RoCE, and verifies its data.
    fn storage(&mut self, mib: u32, depth: u32) -> Result<()> {
        self.guest.sh("modprobe rnbd-client")?;
        let path = format!("ip:{LINUX}@ip:{IMAGE}");
        let mapped = interop_tests::map(&mut self.guest, "s1", &path, "ram0", "");
        mapped.with_context(|| self.state())?;
        let verified = storage::fio_verifies(&mut self.guest, mib, depth);
        verified.with_context(|| self.state())?;
        interop_tests::unmap(&mut self.guest, 0)
    }

    /// Restarts either side under the other. The other side loses its carrier, and frames pass again afterwards.
    fn come_and_go(&mut self) -> Result<()> {
        for _ in 0..2 {
            self.unload()?;
            self.until("down")?;
            self.load(9000)?;
            self.pings(&[56, 8972])?;
        }
        self.guest.sh("ip link set eth0 down")?;
        self.until("waits for the peer's interface")?;
        self.guest.sh("ip link set eth0 up")?;
        self.carrier()?;
        self.pings(&[1400])?;
        self.image.reboot()?;
        self.carrier()?;
        self.pings(&[56, 8972])?;
        // A reset, which the image cannot announce.
        self.image.qmp.execute("system_reset", serde_json::json!({}))?;
        self.image.wait_for(" ready")?;
        self.image.wait_ready()?;
        self.carrier()?;
        self.pings(&[56, 8972])
    }

    /// Runs echoes over SMC-R, and checks that none falls back to TCP.
    fn smc_r(&mut self) -> Result<()> {
        prepare(&mut self.guest)?;
        for words in ["64 10 1", "4096 4 8", "200000 2 1"] {
            let said = self.guest.sh(&format!("timeout 100 smc echo {IMAGE} 7 {words}"))?;
            ensure!(said.trim() == "fine", "{words}: {said}\n{}", self.state());
        }
        let stats = self.image.run("show smc stats --json")?.json()?;
        for key in ["handshake_errors", "tcp_fallback", "malformed", "violations"] {
            ensure!(stats[key] == 0, "{key}: {stats:#}");
        }
        self.image.run("show log")?.contains(&format!("link group with {LINUX}")).map(drop)
    }

    /// Kills Linux, and boots it again.
    fn reboot_linux(&mut self) -> Result<()> {
        self.guest.vm.kill();
        self.until("down")?;
        self.guest = Hosts::linux(&self.program, &self.model)?;
        self.load(9000)?;
        self.guest.soft_roce()
    }

    /// Checks that the idle image halts, and that interrupts wake it.
    fn rests(&mut self) -> Result<()> {
        std::thread::sleep(Duration::from_secs(2));
        let loops = self.image.run("show loops --json")?.json()?;
        let halted = loops[0]["halted"].as_f64().with_context(|| format!("{loops}"))?;
        ensure!(halted > 0.3, "the image halts only {halted} of the time");
        let shown = self.until("up")?;
        ensure!(shown["interrupts"].as_u64() > Some(10), "{shown:#}");
        ensure!(shown["violations"] == 0 && shown["frames_refused"] == 0, "{shown:#}");
        Ok(())
    }

    /// Checks that neither machine reports a fault.
    fn end(mut self) -> Result<()> {
        self.image.run("show log")?.lacks("ERROR")?.lacks("panic")?;
        let said = self.guest.sh("dmesg | grep -e BUG -e Oops -e 'Call Trace' || true")?;
        ensure!(said.is_empty(), "{said}");
        Ok(())
    }
}

#[test]
fn linux_pings_the_image_and_maps_a_volume_over_intel_gen3() -> Result<()> {
    let words =
        "isthmus.ntb.0.device=0 isthmus.ntb.0.protocol=ntb_transport isthmus.ntb.0.trust=peer";
    let mut hosts = Hosts::boot(GEN3, words)?;
    hosts.load(9000)?;
    hosts.pings(&[56, 1, 1400, 8972])?;
    hosts.http()?;
    hosts.guest.soft_roce()?;
    hosts.storage(2, 1)?;
    hosts.rests()?;
    hosts.end()
}

#[test]
fn link_recovers_from_a_restart_of_either_side_over_intel_gen3() -> Result<()> {
    let words = "isthmus.ntb.0.device=pci:0000:00:01.0 isthmus.ntb.0.protocol=ntb_transport isthmus.ntb.0.trust=peer";
    let mut hosts = Hosts::boot(GEN3, words)?;
    hosts.load(9000)?;
    hosts.pings(&[56])?;
    hosts.come_and_go()?;
    hosts.end()
}

#[test]
fn linux_speaks_smc_r_with_the_image_over_intel_gen3() -> Result<()> {
    let words = "isthmus.ntb.0.device=0 isthmus.ntb.0.protocol=ntb_transport isthmus.ntb.0.trust=peer \
                 isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID";
    let mut hosts = Hosts::boot(GEN3, words)?;
    hosts.load(9000)?;
    hosts.pings(&[56])?;
    hosts.guest.soft_roce()?;
    hosts.smc_r()?;
    hosts.end()
}

/// The volume is mapped again after each reboot, and every byte is verified.
#[test]
fn volume_is_mapped_again_after_reboots_of_both_sides_over_intel_gen3() -> Result<()> {
    let words =
        "isthmus.ntb.0.device=0 isthmus.ntb.0.protocol=ntb_transport isthmus.ntb.0.trust=peer";
    let mut hosts = Hosts::boot(GEN3, words)?;
    hosts.load(9000)?;
    hosts.guest.soft_roce()?;
    for _ in 0..2 {
        hosts.storage(1, 1)?;
        hosts.image.reboot()?;
        hosts.carrier()?;
        hosts.pings(&[56])?;
        hosts.storage(1, 1)?;
        hosts.reboot_linux()?;
        hosts.pings(&[56])?;
    }
    hosts.storage(1, 1)?;
    hosts.end()
}

/// The log names a wrongly configured bridge, and the rest of the appliance works.
#[test]
fn the_wrong_bridge_is_named() -> Result<()> {
    let words = "isthmus.ntb.0.device=pci:0000:00:1d.0 isthmus.ntb.0.protocol=ntb_transport isthmus.ntb.0.trust=peer";
    let mut hosts = Hosts::boot(GEN3, words)?;
    hosts.image.run("show log")?.contains("ntb.0: the machine has no such device")?;
    hosts.image.run("show devices")?.contains("a bridge that no [[ntb]] is for")?;
    let shown = hosts.image.run("show ntb --json")?.json()?;
    ensure!(shown[0]["link"] == "closed" && shown[0]["why"].is_string(), "{shown}");
    hosts.image.run("show volumes")?.contains("ram0")?;
    Ok(())
}
