//! The image boots, says so, and ends as it should.
use anyhow::{Result, ensure};
use boot_tests::{boot, image, skip, spec};
use launch::qemu::{Accelerator, Disk, Nic, accelerator};

#[test]
fn without_any_device_it_reaches_the_prompt() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("help")?.contains("show")?.contains("poweroff")?;
    Ok(())
}

#[test]
fn version_is_shown() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("show version")?.contains(env!("CARGO_PKG_VERSION"))?;
    Ok(())
}

#[test]
fn poweroff_ends_the_machine() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.serial.send(b"poweroff\r")?;
    let status = vm.wait_exit()?;
    ensure!(status == OK, "QEMU's status is {status} after poweroff, not {OK}");
    Ok(())
}

#[test]
fn reboot_comes_back() -> Result<()> {
    let mut vm = boot(spec()?.reboots())?;
    vm.serial.send(b"reboot\r")?;
    vm.wait_ready()?;
    vm.run("help")?.contains("reboot")?;
    Ok(())
}

#[test]
fn thirty_two_mib_are_enough_with_a_nic_and_a_disk() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(16 << 20)?;
    let mut vm = boot(spec()?.memory(32).nic(Nic::user()).disk(Disk::new(disk.path())))?;
    vm.run("show disks")?.contains("16")?;
    Ok(())
}

#[test]
fn a_page_fault_prints_registers_and_ends_with_its_code() -> Result<()> {
    fault("pf", &["page fault", "cr2", "rax"])
}

#[test]
fn a_general_protection_fault_prints_registers_and_ends_with_its_code() -> Result<()> {
    fault("gp", &["general protection", "rax"])
}

#[test]
fn an_invalid_opcode_prints_registers_and_ends_with_its_code() -> Result<()> {
    fault("ud", &["invalid opcode", "rax"])
}

#[test]
fn a_stack_overflow_hits_the_guard_page() -> Result<()> {
    fault("stack", &["stack"])
}

#[test]
fn a_panic_prints_its_place_and_ends_with_its_code() -> Result<()> {
    fault("panic", &["panic", ".rs:"])
}

#[test]
fn without_entropy_it_refuses_and_says_why() -> Result<()> {
    let mut vm = spec()?.cpu("qemu64,-rdrand,-rdseed").start()?;
    vm.wait_for("entropy")?;
    let status = vm.wait_exit()?;
    ensure!(status != OK, "QEMU's status is that of success");
    Ok(())
}

#[test]
fn virtio_rng_is_a_source_of_entropy() -> Result<()> {
    boot(spec()?.cpu("qemu64,-rdrand,-rdseed").extra(["-device", "virtio-rng-pci"]))?;
    Ok(())
}

#[test]
fn it_boots_under_kvm_where_that_works() -> Result<()> {
    if accelerator(&image()?) == Accelerator::Tcg {
        return skip("boot under KVM", "KVM does not work on this machine");
    }
    boot(spec()?.accelerator(Accelerator::Kvm).cpu("host"))?;
    Ok(())
}

/// QEMU's status after an orderly end: the guest writes 0x10 to isa-debug-exit.
const OK: i32 = 0x10 << 1 | 1;

/// Provokes a fault and checks what is printed (in any case) and that the end is not a success.
fn fault(name: &str, wanted: &[&str]) -> Result<()> {
    let mut vm = spec()?.append(&format!("isthmus.test.fault={name}")).start()?;
    let status = vm.wait_exit()?;
    let printed = vm.serial.tail().to_lowercase();
    for wanted in wanted {
        ensure!(printed.contains(wanted), "{wanted:?} is not in:\n{printed}");
    }
    ensure!(status != OK && status & 1 == 1, "QEMU's status is {status}:\n{printed}");
    Ok(())
}
