//! Models of non-transparent bridges under stock Linux drivers, which validate the models: two guests with a bridge
//! between them, and the clients of Linux's NTB core. Faulty models show that these cases detect faults.

mod dsa;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use interop_tests::system;
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::Program;

const PATIENCE: Duration = Duration::from_secs(90);
/// debugfs directories of the NTB clients.
const TOOL: &str = "/sys/kernel/debug/ntb_tool/0000*";
const PERF: &str = "/sys/kernel/debug/ntb_perf/0000*";
const PINGPONG: &str = "/sys/kernel/debug/ntb_pingpong/0000*";

/// A bridge: the model with its options, Linux's modules for it, and the bytes of its first window.
#[derive(Clone, Copy)]
struct Kind {
    model: &'static str,
    options: &'static [&'static str],
    modules: &'static str,
    window: u32,
}

const GEN3: Kind =
    Kind { model: "intel-ntb", options: &[], modules: "ntb_hw_intel", window: 1 << 20 };
const ICE_LAKE: Kind = Kind { options: &["--device", "347e", "--revision", "4"], ..GEN3 };
const SAPPHIRE_RAPIDS: Kind = Kind { options: &["--device", "347e", "--revision", "20"], ..GEN3 };
const AMD: Kind = Kind { model: "amd-ntb", modules: "ntb_hw_amd", ..GEN3 };
const AMD_THREE_WINDOWS: Kind = Kind { options: &["--device", "145b"], ..AMD };
const SWITCHTEC: Kind =
    Kind { model: "switchtec", modules: "switchtec ntb_hw_switchtec", window: 1 << 19, ..GEN3 };

/// Starts the model's server, with this many functions for guests.
fn serve(kind: Kind, guests: usize, more: &[&str]) -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test ntb_hw")?;
    ModelServer::start_several(&server, kind.model, guests, &[kind.options, more].concat())
}

fn start(model: &ModelServer, n: usize) -> Result<Guest> {
    let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
    Guest::start(["a", "b"][n], spec.memory(512).vfio_user(&model.socket_of(n)))
}

/// A shell command that loads modules, and waits until each has probed its devices. `switchtec` makes the kernel load
/// `ntb_hw_switchtec` in the background, and modprobe returns at once for a module that is being loaded already.
fn load(modules: &str) -> String {
    format!(
        "for module in {modules}; do
             modprobe $module || exit 1
             until [ \"$(cat /sys/module/$module/initstate)\" = live ]; do sleep 0.05; done
         done"
    )
}

/// Two guests with a bridge between them.
struct Hosts {
    kind: Kind,
    model: ModelServer,
    guests: [Guest; 2],
}

impl Hosts {
    fn boot(kind: Kind) -> Result<Hosts> {
        Hosts::with(kind, &[])
    }

    /// As `boot`, with more options for the model.
    fn with(kind: Kind, more: &[&str]) -> Result<Hosts> {
        let model = serve(kind, 2, more)?;
        let mut guests = [start(&model, 0)?, start(&model, 1)?];
        guests.iter_mut().try_for_each(Guest::wait_up)?;
        let mut hosts = Hosts { kind, model, guests };
        hosts.load(kind.modules)?;
        Ok(hosts)
    }

    /// Runs a command in both guests.
    fn both(&mut self, script: &str) -> Result<()> {
        for guest in &mut self.guests {
            guest.sh(script).with_context(|| {
                format!("the output of the model server:\n{}", self.model.output())
            })?;
        }
        Ok(())
    }

    fn load(&mut self, modules: &str) -> Result<()> {
        self.both(&load(modules))
    }

    /// Waits until a command succeeds in both guests.
    fn until(&mut self, script: &str) -> Result<()> {
        for guest in &mut self.guests {
            guest.wait_until(script, PATIENCE)?;
        }
        Ok(())
    }

    /// Exchanges doorbells and scratchpads with ntb_pingpong.
    fn pings_and_pongs(&mut self) -> Result<()> {
        self.both("modprobe ntb_pingpong delay_ms=1")?;
        self.until(&format!("[ $(cat {PINGPONG}/count) -gt 200 ]"))?;
        self.both("rmmod ntb_pingpong")
    }

    /// Checks that ntb_pingpong makes no progress within some seconds.
    fn ping_pong_stalls(&mut self) -> Result<()> {
        self.both("modprobe ntb_pingpong delay_ms=1")?;
        for guest in &mut self.guests {
            let count = guest.sh(&format!("sleep 4; cat {PINGPONG}/count"))?;
            ensure!(count.trim() == "0", "{count}");
        }
        Ok(())
    }

    /// Brings the link up with ntb_tool.
    fn tool(&mut self) -> Result<()> {
        self.load("ntb_tool")?;
        // AMD's driver reports an error on the secondary side, which cannot set the link.
        let or = if self.kind.model == "amd-ntb" { "|| true" } else { "" };
        self.both(&format!("echo Y > $(echo {TOOL})/link {or}"))?;
        let up = self.until(&format!("[ $(cat {TOOL}/peer0/link) = Y ]"));
        if up.is_err() {
            let said = self.messages()?;
            bail!("{} has no link:\n{said}", self.kind.model);
        }
        Ok(())
    }

    /// Writes scratchpads and doorbells with ntb_tool, one at a time.
    fn signals_arrive(&mut self) -> Result<()> {
        let [a, b] = &mut self.guests;
        for (n, value) in [(0, "0x12345678"), (3, "0x9abcdef0"), (7, "0x1")] {
            a.sh(&format!("echo {value} > $(echo {TOOL})/peer0/spad{n}"))?;
            let seen = b.sh(&format!("cat {TOOL}/spad{n}"))?;
            ensure!(seen.trim() == value, "scratchpad {n} is {seen:?} and not {value}");
            let seen = a.sh(&format!("cat {TOOL}/peer0/spad{n}"))?;
            ensure!(seen.trim() == value, "the peer's scratchpad {n} is read as {seen:?}");
        }
        b.sh(&format!("echo 'c 0xff' > $(echo {TOOL})/db"))?;
        a.sh(&format!("echo 's 0x5' > $(echo {TOOL})/peer_db"))?;
        let seen = b.sh(&format!("cat {TOOL}/db"))?;
        ensure!(seen.trim() == "0x5", "the doorbells are {seen:?}");
        b.sh(&format!("echo 'c 0x4' > $(echo {TOOL})/db"))?;
        let seen = b.sh(&format!("cat {TOOL}/db"))?;
        ensure!(seen.trim() == "0x1", "the doorbells are {seen:?}");
        Ok(())
    }

    /// Sets up the first window in both directions, and returns the exit statuses.
    fn windows(&mut self) -> Result<[i32; 2]> {
        let window = self.kind.window;
        let script = format!(
            "d=$(echo {TOOL}) && echo {window} > $d/peer0/mw_trans0 &&
             echo 0:{window} > $d/peer0/peer_mw_trans0"
        );
        let [a, b] = &mut self.guests;
        Ok([a.try_sh(&script, PATIENCE)?.0, b.try_sh(&script, PATIENCE)?.0])
    }

    /// Writes through a window in both directions. Returns whether the peer's memory and the data read back are equal
    /// to the data written.
    fn windows_carry(&mut self) -> Result<bool> {
        let status = self.windows()?;
        ensure!(status == [0, 0], "the windows cannot be set up: {status:?}");
        let mut same = true;
        for (from, to) in [(0, 1), (1, 0)] {
            let sent = self.guests[from].sh(&format!(
                "d=$(echo {TOOL})/peer0; dd if=/dev/urandom of=/tmp/sent bs=4096 count=12 2>/dev/null
                 dd if=/tmp/sent of=$d/peer_mw0 bs=4096 2>/dev/null; sha256sum < /tmp/sent"
            ))?;
            let read = self.guests[from].sh(&format!(
                "dd if=$(echo {TOOL})/peer0/peer_mw0 bs=4096 count=12 2>/dev/null | sha256sum"
            ))?;
            let seen = self.guests[to].sh(&format!(
                "dd if=$(echo {TOOL})/peer0/mw0 bs=4096 count=12 2>/dev/null | sha256sum"
            ))?;
            same &= sent == seen && sent == read;
        }
        Ok(same)
    }

    /// Runs ntb_perf, and prints its results.
    fn performs(&mut self) -> Result<()> {
        self.both("modprobe ntb_perf total_order=18 chunk_order=14")?;
        for n in 0..2 {
            self.guests[n].wait_until(&format!("echo 0 > $(echo {PERF})/run"), PATIENCE)?;
            let result = self.guests[n].sh(&format!("cat {PERF}/run"))?;
            ensure!(result.contains("MBytes/s"), "{result}");
            println!("{} {result}", self.kind.model);
        }
        // Writes pass through QEMU for a while, and must not arrive after the window is gone.
        self.both("sleep 1")?;
        self.both("rmmod ntb_perf")
    }

    /// Ethernet over ntb_transport: pings of several sizes, a mebibyte over TCP each way.
    fn networks(&mut self) -> Result<()> {
        self.load("ntb_transport ntb_netdev")?;
        for (n, guest) in self.guests.iter_mut().enumerate() {
            let address = n + 1;
            guest
                .sh(&format!("ip addr add 10.2.0.{address}/24 dev eth0 && ip link set eth0 up"))?;
        }
        self.until("[ $(cat /sys/class/net/eth0/operstate) = up ]")?;
        for size in ["56", "1", "1400", "9000"] {
            let said = self.guests[0].sh(&format!("ping -c 5 -i 0.2 -W 5 -s {size} 10.2.0.2"))?;
            ensure!(said.contains(" 0% packet loss"), "{said}");
        }
        for (from, to) in [(0, 1), (1, 0)] {
            self.guests[to]
                .sh("rm -f /tmp/got; (sleep 60 | nc -l -p 9 > /tmp/got) 2>/dev/null &")?;
            let address = to + 1;
            let sent = self.guests[from].sh(&format!(
                "dd if=/dev/urandom of=/tmp/sent bs=4096 count=256 2>/dev/null; sleep 1
                 (cat /tmp/sent; sleep 30) | nc 10.2.0.{address} 9 >/dev/null 2>&1 &
                 sha256sum < /tmp/sent"
            ))?;
            let whole = "[ $(wc -c < /tmp/got) = 1048576 ]";
            self.guests[to].wait_until(whole, PATIENCE)?;
            let got = self.guests[to].sh("sha256sum < /tmp/got")?;
            ensure!(sent == got, "the received data differ from the sent data");
            self.both("killall nc sleep 2>/dev/null || true")?;
        }
        Ok(())
    }

    /// Runs all of Linux's NTB clients.
    fn works(&mut self) -> Result<()> {
        self.pings_and_pongs()?;
        self.tool()?;
        self.signals_arrive()?;
        ensure!(self.windows_carry()?, "the data differ after a write through a window");
        // On unload, ntb_tool frees its debugfs files before its windows, and then uses their pointers.
        self.both(&format!(
            "d=$(echo {TOOL})/peer0 && echo 0 > $d/mw_trans0 && echo 0:0 > $d/peer_mw_trans0 && rmmod ntb_tool"
        ))?;
        if self.kind.model != "switchtec" {
            self.performs()?;
        }
        self.networks()
    }

    /// Checks that neither kernel reports a fault.
    fn kernels_report_no_fault(&mut self) -> Result<()> {
        for guest in &mut self.guests {
            let said =
                guest.sh("dmesg | grep -e BUG -e Oops -e 'Call Trace' -e WARNING || true")?;
            ensure!(said.is_empty(), "{said}");
        }
        Ok(())
    }

    /// Checks that no fault was reported, and that the model was used. Up to `missed` accesses to a window may have hit
    /// no memory.
    fn end(mut self, missed: u64) -> Result<()> {
        self.kernels_report_no_fault()?;
        for guest in &mut self.guests {
            guest.vm.qmp.execute("quit", serde_json::json!({}))?;
            guest.vm.wait_exit()?;
            let said = std::fs::read_to_string(guest.vm.directory().join("output"))?;
            ensure!(!said.contains("Broken pipe"), "{said}");
        }
        let counters = self.model.counters()?;
        for n in 0..2 {
            let count = |name: &str| counter(&counters, &format!("function{n}.{name}"));
            ensure!(count("interrupts")? > 200, "{counters}");
            ensure!(count("window_writes")? > 10_000, "{counters}");
            ensure!(count("missed")? <= missed && count("unreachable")? == 0, "{counters}");
        }
        Ok(())
    }

    /// Messages of Linux's drivers.
    fn messages(&mut self) -> Result<String> {
        let script = "dmesg | grep -i -e ntb -e switchtec -e 0000:00";
        Ok(self.guests[0].sh(script)? + &self.guests[1].sh(script)?)
    }
}

fn counter(counters: &str, name: &str) -> Result<u64> {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in:\n{counters}"))?.parse()?)
}

#[test]
fn intel_gen3_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(GEN3)?;
    hosts.works()?;
    // One side reloads its driver while the other keeps running.
    hosts.guests[1].sh("ip link set eth0 down; rmmod ntb_netdev ntb_transport ntb_hw_intel")?;
    hosts.guests[0].wait_until("[ $(cat /sys/class/net/eth0/carrier) = 0 ]", PATIENCE)?;
    hosts.guests[1].sh("modprobe -a ntb_hw_intel ntb_transport ntb_netdev
         ip addr add 10.2.0.2/24 dev eth0 && ip link set eth0 up")?;
    hosts.until("[ $(cat /sys/class/net/eth0/operstate) = up ]")?;
    hosts.guests[0].sh("ping -c 5 -i 0.2 -W 5 10.2.0.2")?;
    hosts.end(0)
}

#[test]
fn intel_gen4_of_ice_lake_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(ICE_LAKE)?;
    hosts.works()?;
    hosts.end(0)
}

#[test]
fn intel_gen4_of_sapphire_rapids_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(SAPPHIRE_RAPIDS)?;
    hosts.works()?;
    hosts.end(0)
}

#[test]
fn amd_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(AMD)?;
    hosts.works()?;
    hosts.end(0)
}

#[test]
fn amd_with_three_windows_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(AMD_THREE_WINDOWS)?;
    hosts.works()?;
    hosts.end(0)
}

#[test]
fn switchtec_works_under_the_driver_of_linux() -> Result<()> {
    let mut hosts = Hosts::boot(SWITCHTEC)?;
    hosts.works()?;
    // The driver reads the link state from the peer's memory before there is memory behind the window.
    hosts.end(8)
}

/// `ntb_perf` has a race over a Switchtec. The side that is loaded last reads the link state from memory, and sends its
/// first command at once. The other side learns of the link by a message, which it handles in the background, and drops
/// a command whose doorbell arrives earlier (`perf_spad_cmd_recv`). Then both wait for ever. This model delays
/// doorbells.
#[test]
fn switchtec_carries_what_ntb_perf_measures() -> Result<()> {
    let mut hosts = Hosts::with(SWITCHTEC, &["--fault", "late-bells"])?;
    hosts.performs()?;
    hosts.kernels_report_no_fault()
}

#[test]
fn switchtec_works_with_slow_operations() -> Result<()> {
    let mut hosts = Hosts::with(SWITCHTEC, &["--fault", "slow"])?;
    hosts.pings_and_pongs()
}

/// Doorbells, or their interrupts, that do not arrive.
#[test]
fn lost_doorbells_are_noticed() -> Result<()> {
    for (kind, fault) in [
        (GEN3, "no-bell"),
        (ICE_LAKE, "no-interrupt"),
        (AMD, "no-interrupt"),
        (SWITCHTEC, "no-bell"),
    ] {
        let mut hosts = Hosts::with(kind, &["--fault", fault])?;
        hosts.ping_pong_stalls().with_context(|| format!("{} {fault}", kind.model))?;
    }
    Ok(())
}

#[test]
fn corrupt_bytes_are_noticed() -> Result<()> {
    for kind in [GEN3, ICE_LAKE, AMD, SWITCHTEC] {
        let mut hosts = Hosts::with(kind, &["--fault", "corrupt"])?;
        hosts.tool()?;
        ensure!(!hosts.windows_carry()?, "{}: the fault was not detected", kind.model);
    }
    Ok(())
}

#[test]
fn lost_scratchpad_writes_are_noticed() -> Result<()> {
    for kind in [GEN3, AMD] {
        let mut hosts = Hosts::with(kind, &["--fault", "no-scratchpad"])?;
        hosts.tool()?;
        ensure!(hosts.signals_arrive().is_err(), "{}: the fault was not detected", kind.model);
    }
    Ok(())
}

/// Window registers that do not keep their values.
#[test]
fn windows_that_cannot_be_set_up_are_noticed() -> Result<()> {
    for (kind, fault) in [
        (GEN3, "no-limit"),
        (GEN3, "no-translation"),
        (ICE_LAKE, "no-index"),
        (AMD, "no-limit"),
        (AMD, "no-translation"),
    ] {
        let mut hosts = Hosts::with(kind, &["--fault", fault])?;
        hosts.tool()?;
        let status = hosts.windows()?;
        ensure!(status.iter().all(|&status| status != 0), "{} {fault}: {status:?}", kind.model);
    }
    Ok(())
}

/// Bridges whose link does not come up, or comes up for one side only. On a Switchtec, the side that enables the link
/// second reads the first side's state from memory, and the first side learns of the second by a message.
#[test]
fn links_that_do_not_come_up_are_noticed() -> Result<()> {
    for (kind, fault, words, links) in [
        (GEN3, "no-training", "", ["N", "N"]),
        (SAPPHIRE_RAPIDS, "no-training", "", ["N", "N"]),
        (SWITCHTEC, "no-message", "", ["N", "Y"]),
        (SWITCHTEC, "no-translation", "", ["N", "N"]),
        (GEN3, "not-back-to-back", "", ["", ""]),
        (SWITCHTEC, "alone", "peer partition is not NT partition", ["", ""]),
    ] {
        let mut hosts = Hosts::with(kind, &["--fault", fault])?;
        let said = hosts.messages()?;
        ensure!(said.contains(words), "{} {fault}: {said}", kind.model);
        hosts.load("ntb_tool")?;
        // Without a device there is no directory.
        hosts.both(&format!("[ ! -d {TOOL} ] || echo Y > $(echo {TOOL})/link; sleep 3"))?;
        for (guest, expected) in hosts.guests.iter_mut().zip(links) {
            let link = guest.sh(&format!("[ ! -d {TOOL} ] || cat {TOOL}/peer0/link"))?;
            if link.trim() != expected {
                bail!("{} {fault}: the link is {link:?} and not {expected:?}", kind.model);
            }
        }
    }
    Ok(())
}

/// Stock Linux at one side of a bridge, and at the other the project's drivers with `ntb_netdev`, in the model's
/// process: pings of all sizes, Linux's interface down and up, its driver reloaded.
fn linux_and_ours_ping_each_other(kind: Kind) -> Result<()> {
    let model = serve(kind, 1, &["--own-address", "10.2.0.9"])?;
    let mut guest = start(&model, 0)?;
    guest.wait_up()?;
    // AMD's driver reports the link a second time one second later, on which ntb_transport would start again.
    let load = format!(
        "{}; sleep 3
         modprobe -a ntb_transport ntb_netdev && ip addr add 10.2.0.1/24 dev eth0",
        load(kind.modules)
    );
    let unload: Vec<&str> = kind.modules.split(' ').rev().collect();
    let unload = format!("rmmod ntb_netdev ntb_transport {}", unload.join(" "));
    let up = "ip link set eth0 up mtu 9000";
    let carrier = |guest: &mut Guest| {
        let waited = guest.wait_until("[ $(cat /sys/class/net/eth0/operstate) = up ]", PATIENCE);
        waited.with_context(|| format!("the output of the model server:\n{}", model.output()))
    };
    let ping = |guest: &mut Guest| -> Result<()> {
        for size in ["56", "1", "1400", "8972"] {
            let said = guest.sh(&format!(
                "ping -c 10 -i 0.05 -W 5 -s {size} 10.2.0.9 || cat /sys/kernel/debug/ntb_transport/*/*/stats"
            ))?;
            if !said.contains(" 0% packet loss") {
                // The model's process prints the counters of the project's driver once its clients are gone.
                guest.vm.qmp.execute("quit", serde_json::json!({}))?;
                std::thread::sleep(Duration::from_secs(2));
                bail!("{said}\n{}", model.output());
            }
        }
        Ok(())
    };
    guest.sh(&load)?;
    guest.sh(up)?;
    carrier(&mut guest)?;
    ping(&mut guest)?;
    for _ in 0..3 {
        guest.sh("ip link set eth0 down")?;
        guest.sh(up)?;
        carrier(&mut guest)?;
        ping(&mut guest)?;
    }
    for _ in 0..2 {
        guest.sh(&unload)?;
        guest.sh(&load)?;
        guest.sh(up)?;
        carrier(&mut guest)?;
        ping(&mut guest)?;
    }
    let said = guest.sh("dmesg | grep -e BUG -e Oops -e 'Call Trace' -e WARNING || true")?;
    ensure!(said.is_empty(), "{said}");
    guest.vm.qmp.execute("quit", serde_json::json!({}))?;
    guest.vm.wait_exit()?;
    let counters = model.counters()?;
    ensure!(counter(&counters, "own.pings")? >= 240, "{counters}");
    ensure!(counter(&counters, "own.ups")? >= 6, "{counters}");
    ensure!(counter(&counters, "own.violations")? == 0, "{counters}");
    Ok(())
}

#[test]
fn linux_and_ours_ping_each_other_over_intel_gen3() -> Result<()> {
    linux_and_ours_ping_each_other(GEN3)
}

#[test]
fn linux_and_ours_ping_each_other_over_intel_gen4() -> Result<()> {
    linux_and_ours_ping_each_other(ICE_LAKE)
}

#[test]
fn linux_and_ours_ping_each_other_over_amd() -> Result<()> {
    linux_and_ours_ping_each_other(AMD)
}

#[test]
fn linux_and_ours_ping_each_other_over_switchtec() -> Result<()> {
    linux_and_ours_ping_each_other(SWITCHTEC)
}
