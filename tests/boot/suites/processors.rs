//! Every processor that QEMU offers, on each of its machines: the image reaches its prompt, or one line says why not.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::spec;
use launch::command;
use launch::qemu::{Machine, Vm};
use serde_json::json;

/// Time limit for a boot or a refusal, on a busy host.
const LIMIT: Duration = Duration::from_secs(60);
const PROMPT: &str = "isthmus>";
/// Beginning of a refusal: by the boot stub, and by the image.
const REFUSALS: [&str; 2] = ["isthmus: cannot boot: ", "cannot start: "];

/// QEMU's processors, except those that only KVM or another accelerator has.
fn processors() -> Result<Vec<String>> {
    let list = command::output(Command::new("qemu-system-x86_64").args(["-cpu", "help"]))?;
    let names = list.lines().filter_map(|line| line.strip_prefix("x86 "));
    let names = names.filter_map(|line| line.split_whitespace().next()).map(String::from);
    Ok(names.filter(|name| !matches!(name.as_str(), "host" | "kvm32" | "kvm64")).collect())
}

/// The processor without what QEMU's translation cannot do. On Opteron_G4 and G5 QEMU 7.2 repeats the MOV to CR4 that
/// sets OSXSAVE for ever; Linux 6.12 stops at the same place.
fn as_it_works(cpu: &str) -> String {
    let hangs = cpu.starts_with("Opteron_G4") || cpu.starts_with("Opteron_G5");
    if hangs { format!("{cpu},-xsave") } else { cpu.to_string() }
}

/// The prompt, or the refusal.
fn outcome(vm: &mut Vm, cpu: &str) -> Result<String> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let text = vm.serial.tail();
        if text.contains(PROMPT) {
            return Ok("boots".into());
        }
        let refusal = text.lines().find(|line| REFUSALS.iter().any(|start| line.contains(start)));
        if let Some(line) = refusal
            && vm.ends_within(Duration::from_secs(5))
        {
            let lines = vm.serial.tail().lines().filter(|line| line.contains("isthmus:")).count();
            ensure!(lines <= 1, "{cpu}: {lines} lines instead of one:\n{}", vm.serial.tail());
            return Ok(line.trim().to_string());
        }
        ensure!(Instant::now() < deadline, "{cpu}: neither a prompt nor a refusal:\n{text}");
        // Serial input arrives while something waits for it.
        let _ = vm.wait_for_within(PROMPT, Duration::from_millis(200));
    }
}

fn on(machine: Machine) -> Result<()> {
    let mut wrong = Vec::new();
    for cpu in processors()? {
        let source = match machine {
            Machine::Microvm => "virtio-rng-device",
            _ => "virtio-rng-pci",
        };
        // Begins once its monitor is connected: a machine that refuses is gone at once.
        let spec =
            spec()?.machine(machine).cpu(&as_it_works(&cpu)).extra(["-S", "-device", source]);
        let run = spec.start().and_then(|mut vm| {
            // The machine may end before it replies.
            let _ = vm.qmp.execute("cont", json!({}));
            outcome(&mut vm, &cpu)
        });
        match run {
            Ok(outcome) => println!("{machine:?} {cpu}: {outcome}"),
            Err(why) => wrong.push(format!("{cpu}: {why:#}")),
        }
    }
    ensure!(wrong.is_empty(), "{machine:?}:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn every_processor_boots_or_is_refused_on_pc() -> Result<()> {
    on(Machine::Pc)
}

#[test]
fn every_processor_boots_or_is_refused_on_q35() -> Result<()> {
    on(Machine::Q35)
}

#[test]
fn every_processor_boots_or_is_refused_on_microvm() -> Result<()> {
    on(Machine::Microvm)
}
