//! The image boots on every machine, by every boot path, with little and much memory, on one and more CPUs.
//!
//! Without `ISTHMUS_FULL`, only a covering selection runs: every boot path on every machine, and every memory size and
//! CPU count with every machine.
use anyhow::{Result, ensure};
use boot_tests::{boot, image, named_file};
use launch::qemu::{Boot, Firmware, Machine, Spec};
use libtest_mimic::{Arguments, Trial};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Pvh,
    Iso(Firmware),
    Raw,
    Qcow2,
}

const MEMORY_MIB: [u32; 4] = [64, 512, 4096, 8192];
const CPUS: [u32; 3] = [1, 2, 4];

fn main() {
    let full = std::env::var_os("ISTHMUS_FULL").is_some();
    let mut trials = Vec::new();
    for (number, (way, machine)) in places().into_iter().enumerate() {
        for (m, memory) in MEMORY_MIB.into_iter().enumerate() {
            for (c, cpus) in CPUS.into_iter().enumerate() {
                // Without ACPI tables the image cannot find further CPUs.
                let possible = machine != Machine::MicrovmNoAcpi || cpus == 1;
                // A diagonal that shifts from place to place. PVH is quick, so it gets all memory sizes.
                let chosen = (m + c + number) % 4 == 0 || way == Way::Pvh && (m + number) % 3 == c;
                if possible && (full || chosen) {
                    let name = format!("{way:?} {machine:?} {memory} MiB {cpus} CPUs");
                    let case = move || Ok(boots(way, machine, memory, cpus)?);
                    trials.push(Trial::test(name, case));
                }
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// All boot paths with the machines that support them.
fn places() -> Vec<(Way, Machine)> {
    let mut places: Vec<_> = [Machine::Pc, Machine::Q35, Machine::Microvm, Machine::MicrovmNoAcpi]
        .map(|machine| (Way::Pvh, machine))
        .into();
    for way in [Way::Iso(Firmware::Bios), Way::Iso(Firmware::Ovmf), Way::Raw, Way::Qcow2] {
        places.push((way, Machine::Pc));
        places.push((way, Machine::Q35));
    }
    places
}

fn boots(way: Way, machine: Machine, memory: u32, cpus: u32) -> Result<()> {
    let spec = match way {
        Way::Pvh => Spec::kernel(image()?),
        Way::Iso(firmware) => Spec::new(Boot::Iso(named_file("ISTHMUS_ISO")?)).firmware(firmware),
        Way::Raw => Spec::new(Boot::Disk(named_file("ISTHMUS_RAW")?)).firmware(Firmware::Ovmf),
        Way::Qcow2 => Spec::new(Boot::Disk(named_file("ISTHMUS_QCOW2")?)).firmware(Firmware::Ovmf),
    };
    let mut vm = boot(spec.machine(machine).memory(memory).cpus(cpus))?;
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["cpus"] == cpus, "not {cpus} CPUs: {version}");
    Ok(())
}
