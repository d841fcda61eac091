//! Intel's 82599 and its virtual function: the models under Linux's stock drivers (`ixgbe`, `ixgbevf`), which validate
//! the models; faulty models, which Linux detects; and the image at one function of a model, with stock Linux at the
//! other.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use interop_tests::{image_spec, map, storage, system, unmap};
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::{Machine, Program, Vm};

const LIMIT: Duration = Duration::from_secs(240);
/// Address of the guest's function.
const HERE: &str = "10.1.0.1";
/// Address of the other function, in a network namespace of the guest or in the image.
const THERE: &str = "10.1.0.2";
/// Words in the kernel's messages that report a fault.
const WRONG: [&str; 9] =
    ["failed", "rror", "BUG", "WARN", "Oops", "imeout", "Hang", "Call Trace", "polling period"];

/// Kinds of a model's functions.
#[derive(Clone, Copy)]
enum Functions {
    Physical,
    Virtual,
    /// The first is physical, the second is virtual.
    Both,
}

/// Starts a model with two functions on one wire.
fn model(functions: Functions, options: &[&str]) -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test ixgbe")?;
    let count = match functions {
        Functions::Physical => "0",
        Functions::Both => "1",
        Functions::Virtual => "2",
    };
    let options = [&["--virtual-functions", count], options].concat();
    ModelServer::start_several(&server, "ixgbe", 2, &options)
}

/// A guest with functions of the model.
struct Linux {
    model: ModelServer,
    guest: Guest,
}

impl Linux {
    /// Boots a guest with these functions, and loads its drivers.
    fn at(model: ModelServer, numbers: &[usize]) -> Result<Linux> {
        Linux::at_with(model, numbers, 1)
    }

    /// As `at`, with this many processors.
    fn at_with(model: ModelServer, numbers: &[usize], processors: u32) -> Result<Linux> {
        let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
        let mut spec = spec.cpus(processors);
        for number in numbers {
            spec = spec.vfio_user(&model.socket_of(*number));
        }
        let mut guest = Guest::start("linux", spec)?;
        guest.wait_up()?;
        let mut linux = Linux { model, guest };
        linux.sh("modprobe -a ixgbe ixgbevf")?;
        Ok(linux)
    }

    /// Boots a guest with both functions configured, the second in a namespace of its own.
    fn boot(functions: Functions, options: &[&str]) -> Result<Linux> {
        let mut linux = Linux::at(model(functions, options)?, &[0, 1])?;
        linux.configure()?;
        Ok(linux)
    }

    fn configure(&mut self) -> Result<()> {
        let there = "[ -e /sys/class/net/eth0 ] && [ -e /sys/class/net/eth1 ]";
        if self.guest.wait_until(there, LIMIT).is_err() {
            return self.fail("no interfaces");
        }
        self.sh(&format!(
            "set -e
             ip netns add there && ip link set eth1 netns there
             ip link set eth0 up && ip addr add {HERE}/24 dev eth0
             ip netns exec there ip link set lo up
             ip netns exec there ip link set eth1 up
             ip netns exec there ip addr add {THERE}/24 dev eth1"
        ))?;
        self.wait_carrier()
    }

    fn wait_carrier(&mut self) -> Result<()> {
        let up = "[ $(cat /sys/class/net/eth0/operstate) = up ]";
        match self.guest.wait_until(up, LIMIT) {
            Ok(_) => Ok(()),
            Err(_) => self.fail("no carrier"),
        }
    }

    /// Boots a guest with one function, its interface up with this MTU, while the image has the other.
    fn beside_image(model: ModelServer, mtu: u16, number: usize) -> Result<Linux> {
        let mut linux = Linux::at(model, &[number])?;
        linux.guest.wait_until("[ -e /sys/class/net/eth0 ]", LIMIT)?;
        linux.sh(&format!("ip link set eth0 mtu {mtu} up && ip addr add {HERE}/24 dev eth0"))?;
        linux.wait_carrier()?;
        Ok(linux)
    }

    /// Runs a command in the guest. If it fails, the error has the messages of kernel and model.
    fn sh(&mut self, command: &str) -> Result<String> {
        match self.guest.try_sh(command, LIMIT)? {
            (0, output) => Ok(output),
            (status, output) => self.fail(&format!("`{command}` ended with {status}: {output}")),
        }
    }

    /// Ends the guest, and returns an error with the messages of kernel and model.
    fn fail<T>(&mut self, what: &str) -> Result<T> {
        let said = self.messages()?;
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        std::thread::sleep(Duration::from_secs(1));
        bail!("{what}\n{said}\n{}", self.model.output())
    }

    /// The kernel's messages on the interfaces.
    fn messages(&mut self) -> Result<String> {
        let words = ["ixgbe", "eth[01]", "BUG", "WARN", "Oops", "Call Trace", "RIP"];
        let words = words.map(|word| format!("-e '{word}'")).join(" ");
        self.guest.sh(&format!("dmesg | grep {words} | tail -60 || true"))
    }

    /// Sends a file over TCP in each direction, and compares it.
    fn tcp_both_ways(&mut self) -> Result<()> {
        self.sh("dd if=/dev/urandom of=/tmp/sent bs=64k count=64")?;
        for (server, client, address) in
            [("ip netns exec there", "", THERE), ("", "ip netns exec there", HERE)]
        {
            self.sh(&format!(
                "set -e
                 {server} sh -c 'sleep 60 | nc -l -p 5000 >/tmp/received' &
                 until {server} grep -q ':1388 [0:]* 0A ' /proc/net/tcp /proc/net/tcp6; do
                     sleep 0.2
                 done
                 {client} nc {address} 5000 </tmp/sent
                 for n in $(seq 60); do cmp -s /tmp/sent /tmp/received && exit 0; sleep 0.5; done
                 cmp /tmp/sent /tmp/received"
            ))?;
        }
        Ok(())
    }

    /// Checks that the error counters of both interfaces are 0.
    fn counts_no_errors(&mut self) -> Result<()> {
        for counters in ["ethtool -S eth0", "ip netns exec there ethtool -S eth1"] {
            let counted = self.sh(counters)?;
            // `tx_dropped` is no error: Linux drops frames while a link goes down.
            let words = ["err", "missed", "timeout", "no_dma", "no_buffer", "rx_dropped"];
            let wrong = counted.lines().filter(|line| {
                words.iter().any(|word| line.contains(word)) && !line.trim_end().ends_with(": 0")
            });
            let wrong: Vec<&str> = wrong.collect();
            ensure!(wrong.is_empty(), "{wrong:?}\n{counted}");
        }
        Ok(())
    }

    /// Switches the guest off, and returns the model's counters.
    fn end(mut self) -> Result<String> {
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        self.model.counters()
    }

    /// As `end`. Fails if the kernel or the model reports a fault.
    fn end_well(mut self) -> Result<String> {
        let said = self.messages()?;
        let counters = self.end()?;
        ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
        for function in ["function0", "function1"] {
            ensure!(counter(&counters, &format!("{function}.complaints"))? == 0, "{counters}");
            ensure!(counter(&counters, &format!("{function}.interrupts"))? > 20, "{counters}");
        }
        Ok(counters)
    }
}

fn counter(counters: &str, name: &str) -> Result<u64> {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in:\n{counters}"))?.parse()?)
}

/// Two interfaces of Linux exchange pings and TCP, with segmentation and checksum offload, over standard and jumbo
/// frames, after the link went down and up, and after a reload of the driver.
fn linux_reaches_itself(functions: Functions, options: &[&str]) -> Result<()> {
    let mut linux = Linux::boot(functions, options)?;
    linux.sh(&format!("ping -c 10 -i 0.2 -W 5 {THERE}"))?;
    linux.sh(&format!("ping -c 10 -i 0.1 -s 1400 -W 5 {THERE}"))?;
    linux.tcp_both_ways()?;
    linux.sh("ip link set eth0 down && ip link set eth0 mtu 9000")?;
    linux.sh("ip netns exec there ip link set eth1 down mtu 9000")?;
    linux.sh("ip link set eth0 up && ip netns exec there ip link set eth1 up")?;
    linux.wait_carrier()?;
    linux.sh(&format!(
        "for n in $(seq 30); do ping -c 1 -W 2 {THERE} && break; done
         ping -c 10 -i 0.1 -s 8900 -W 5 {THERE}"
    ))?;
    linux.tcp_both_ways()?;
    linux.counts_no_errors()?;
    linux.sh("ip netns del there; rmmod ixgbe && rmmod ixgbevf && modprobe -a ixgbe ixgbevf")?;
    linux.configure()?;
    linux.sh(&format!("ping -c 3 -W 5 {THERE}"))?;
    linux.end_well()?;
    Ok(())
}

#[test]
fn physical_functions_work_under_linux() -> Result<()> {
    linux_reaches_itself(Functions::Physical, &[])
}

#[test]
fn physical_functions_work_under_linux_with_msi() -> Result<()> {
    linux_reaches_itself(Functions::Physical, &["--vectors", "0"])
}

#[test]
fn virtual_functions_work_under_linux() -> Result<()> {
    linux_reaches_itself(Functions::Virtual, &[])
}

#[test]
fn a_physical_and_a_virtual_function_work_under_linux() -> Result<()> {
    linux_reaches_itself(Functions::Both, &[])
}

#[test]
fn the_image_at_a_virtual_function_is_reached() -> Result<()> {
    the_image_is_reached(Functions::Both, "ixgbevf", &[])
}

/// With two processors Linux has two queues, and the card spreads frames over them by RSS.
#[test]
fn frames_are_spread_over_queues() -> Result<()> {
    let mut linux = Linux::at_with(model(Functions::Physical, &[])?, &[0, 1], 2)?;
    linux.configure()?;
    linux.sh(&format!(
        "ping -c 3 -W 5 {THERE}
         for port in $(seq 6000 6040); do nc -w 1 {THERE} $port </dev/null; done; true"
    ))?;
    for (command, name) in [("", "eth0"), ("ip netns exec there", "eth1")] {
        let counted = linux.sh(&format!("{command} ethtool -S {name}"))?;
        for queue in 0..2 {
            ensure!(
                counter(&counted.replace(':', ""), &format!("     rx_queue_{queue}_packets"))? > 3,
                "{counted}"
            );
        }
    }
    linux.counts_no_errors()?;
    linux.end_well()?;
    Ok(())
}

/// Boots Linux on a model whose first function is faulty. Returns it with the messages of its drivers.
fn faulty(functions: Functions, fault: &str) -> Result<(Linux, String)> {
    let mut linux = Linux::at(model(functions, &["--fault", fault])?, &[0, 1])?;
    let said = linux.messages()?;
    Ok((linux, said))
}

#[test]
fn a_model_with_a_wrong_checksum_is_noticed() -> Result<()> {
    let (_, said) = faulty(Functions::Physical, "wrong-checksum")?;
    ensure!(said.contains("The EEPROM Checksum Is Not Valid"), "{said}");
    Ok(())
}

#[test]
fn a_model_that_stays_in_reset_is_noticed() -> Result<()> {
    let (_, said) = faulty(Functions::Physical, "stuck-reset")?;
    ensure!(said.contains("HW Init failed"), "{said}");
    Ok(())
}

#[test]
fn a_model_without_a_module_is_noticed() -> Result<()> {
    let (mut linux, said) = faulty(Functions::Physical, "no-module")?;
    ensure!(said.contains("SFP+: 3"), "no SFP+ of the other function: {said}");
    linux.sh("ip link set eth0 up && ip link set eth1 up")?;
    linux.guest.wait_until("dmesg | grep -q 'eth1: detected SFP'", LIMIT)?;
    linux
        .sh("! dmesg | grep 'eth0: detected SFP' && [ $(cat /sys/class/net/eth0/carrier) = 0 ]")?;
    Ok(())
}

#[test]
fn a_model_whose_queues_are_not_enabled_is_noticed() -> Result<()> {
    let (mut linux, _) = faulty(Functions::Physical, "never-enabled")?;
    linux.sh("ip link set eth0 up")?;
    let reported = "dmesg | grep -q 'not set within the polling period'";
    match linux.guest.wait_until(reported, LIMIT) {
        Ok(_) => Ok(()),
        Err(_) => linux.fail("Linux does not report the fault"),
    }
}

#[test]
fn a_model_without_interrupts_is_noticed() -> Result<()> {
    let (mut linux, _) = faulty(Functions::Physical, "no-interrupts")?;
    linux.configure()?;
    linux.sh(&format!("! ping -c 2 -W 1 {THERE} | grep 'time=0'; grep eth0 /proc/interrupts"))?;
    let said = linux.sh("grep eth0-TxRx-0 /proc/interrupts")?;
    ensure!(said.split_whitespace().nth(1) == Some("0"), "{said}");
    Ok(())
}

#[test]
fn a_model_that_does_not_report_is_noticed() -> Result<()> {
    let (mut linux, _) = faulty(Functions::Physical, "never-reports")?;
    linux.configure()?;
    let hang = "dmesg | grep -q 'Detected Tx Unit Hang'";
    if linux.guest.wait_until(hang, LIMIT).is_err() {
        return linux.fail("Linux does not report the fault");
    }
    // Linux resets the function, which works afterwards.
    let reached = format!("ping -c 1 -W 2 {THERE}");
    match linux.guest.wait_until(&reached, LIMIT) {
        Ok(_) => Ok(()),
        Err(_) => linux.fail("the function does not work after its reset"),
    }
}

#[test]
fn a_physical_function_without_a_driver_is_noticed() -> Result<()> {
    let (_, said) = faulty(Functions::Virtual, "deaf")?;
    ensure!(said.contains("PF still in reset state"), "{said}");
    Ok(())
}

/// Stock `rnbd-client` maps the image's volume, and verifies its writes.
fn maps_and_verifies(linux: &mut Linux) -> Result<()> {
    linux.sh("modprobe rnbd-client")?;
    let path = format!("ip:{HERE}@ip:{THERE}");
    if let Err(why) = map(&mut linux.guest, "s1", &path, "ram0", "") {
        return linux.fail(&format!("the volume was not mapped: {why:#}"));
    }
    storage::fio_verifies(&mut linux.guest, 8, 16)?;
    unmap(&mut linux.guest, 0)
}

/// Boots the image with a function of a model, which this many cores serve.
fn image(model: &ModelServer, number: usize, cores: u32) -> Result<Vm> {
    let address = format!("isthmus.net.0.address={THERE}/24 isthmus.net.0.mtu=9000");
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let mut vm = spec
        .vfio_user(&model.socket_of(number))
        .append(&address)
        .append("isthmus.volume.0.size=32MiB")
        .cpus(cores)
        .append(&format!("isthmus.net.0.core={}", if cores > 1 { "0,1" } else { "" }))
        .start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// Ping both ways, frames of all sizes, HTTP, a link that goes down and up, and a volume mapped by stock `rnbd-client`.
fn the_image_is_reached(functions: Functions, driver: &str, options: &[&str]) -> Result<()> {
    let model = model(functions, options)?;
    let mut vm = image(&model, 1, 1)?;
    let mut linux = Linux::beside_image(model, 9000, 0)?;
    vm.run("show devices")?.contains(driver)?;
    // Linux may see the link before the image does.
    wait_for_link(&mut vm, "link up")?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["mac"] == "90:e2:ba:01:02:02", "{interfaces}");
    ensure!(interfaces[0]["mtu"] == 9000, "{interfaces}");
    for size in [0, 56, 1472, 8900, 8972] {
        linux.sh(&format!("ping -c 10 -i 0.1 -s {size} -W 5 {THERE}"))?;
    }
    vm.run(&format!("ping {HERE}"))?.contains(HERE)?.lacks("no answer")?;
    for _ in 0..5 {
        let page = linux.sh(&format!("wget -q -O - http://{THERE}/metrics"))?;
        ensure!(page.contains("isthmus_port_resets_total{"), "{page}");
    }
    // Linux switches the laser off.
    linux.sh("ip link set eth0 down")?;
    wait_for_link(&mut vm, "no link")?;
    linux.sh("ip link set eth0 up")?;
    linux.wait_carrier()?;
    wait_for_link(&mut vm, "link up")?;
    linux.sh(&format!("for n in $(seq 30); do ping -c 1 -W 2 {THERE} && exit 0; done; exit 1"))?;
    linux.guest.soft_roce()?;
    maps_and_verifies(&mut linux)?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["rx_errors"] == 0 && interfaces[0]["resets"] == 0, "{interfaces}");
    ensure!(interfaces[0]["interrupts"].as_u64().is_some_and(|count| count > 0), "{interfaces}");
    vm.run("show log")?.lacks("ERROR")?;
    drop(vm);
    linux.end_well()?;
    Ok(())
}

/// Waits until `show devices` shows this state of the link.
fn wait_for_link(vm: &mut Vm, wanted: &str) -> Result<()> {
    for _ in 0..100 {
        if vm.run("show devices")?.text.contains(wanted) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    vm.run("show devices")?.contains(wanted)?;
    Ok(())
}

#[test]
fn the_image_at_a_physical_function_is_reached() -> Result<()> {
    the_image_is_reached(Functions::Physical, "ixgbe", &[])
}

/// Two cores serve the card, each the hosts whose addresses hash to its queue. One host of each core maps a volume.
fn two_cores_serve_the_card(options: &[&str], resets: u64) -> Result<()> {
    let model = model(Functions::Physical, options)?;
    // Faults affect the first function.
    let mut vm = image(&model, 0, 2)?;
    let mut linux = Linux::beside_image(model, 9000, 1)?;
    let reached = format!("ping -c 1 -W 2 {THERE}");
    if linux.guest.wait_until(&reached, LIMIT).is_err() {
        return linux.fail("the image is not reached");
    }
    let received = |vm: &mut Vm| -> Result<[u64; 2]> {
        let loops = vm.run("show loops --json")?.json()?;
        Ok([0, 1].map(|core| loops[core]["stages"][0]["items"].as_u64().unwrap_or(0)))
    };
    let mut hosts: [Option<String>; 2] = [None, None];
    for n in 10..34 {
        let host = format!("10.1.0.{n}");
        linux.sh(&format!(
            "ip addr add {host}/24 dev eth0 && ping -c 2 -W 5 -I {host} {THERE} >/dev/null"
        ))?;
        let before = received(&mut vm)?;
        linux.sh(&format!("ping -c 20 -i 0.05 -W 5 -I {host} {THERE} >/dev/null"))?;
        let after = received(&mut vm)?;
        // The second core forwards pings to the first, which counts them as well.
        let core = usize::from(after[1] - before[1] >= 20);
        hosts[core].get_or_insert(host);
    }
    linux.guest.soft_roce()?;
    linux.sh("modprobe rnbd-client")?;
    for (core, host) in hosts.into_iter().enumerate() {
        let host = host.with_context(|| format!("core {core} serves none of 24 hosts"))?;
        let before = received(&mut vm)?;
        let path = format!("ip:{host}@ip:{THERE}");
        if let Err(why) = map(&mut linux.guest, &format!("s{core}"), &path, "ram0", "") {
            return linux.fail(&format!("the volume was not mapped from {host}: {why:#}"));
        }
        storage::fio_verifies(&mut linux.guest, 8, 16)?;
        unmap(&mut linux.guest, 0)?;
        let after = received(&mut vm)?;
        let [own, other] = [core, 1 - core].map(|core| after[core] - before[core]);
        ensure!(own > 500 && other < own / 10, "core {core}: {own}, and {other} by the other");
    }
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["rx_errors"] == 0 && interfaces[0]["resets"] == resets, "{interfaces}");
    vm.run("show log")?.lacks("ERROR")?;
    drop(vm);
    linux.end_well()?;
    Ok(())
}

#[test]
fn two_cores_serve_one_card() -> Result<()> {
    two_cores_serve_the_card(&[], 0)
}

#[test]
fn two_cores_recover_from_a_reset_of_their_card() -> Result<()> {
    two_cores_serve_the_card(&["--fault", "never-reports"], 1)
}
