//! Disks: what is seen of them, and disks that fail.
use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::image::config_disk;
use launch::qemu::{Disk, Fault, Machine, Vm};
use tempfile::NamedTempFile;

#[test]
fn several_disks_are_shown_with_their_properties() -> Result<()> {
    let (small, large) = (empty(8)?, empty(64)?);
    let spec = spec()?
        .disk(Disk::new(small.path()).read_only())
        .disk(Disk::new(large.path()).block_size(4096));
    let disks = boot(spec)?.run("show disks --json")?.json()?;
    ensure!(disks[0]["size"] == 8 << 20 && disks[0]["read_only"] == true, "{disks}");
    ensure!(disks[1]["size"] == 64 << 20 && disks[1]["logical_block"] == 4096, "{disks}");
    Ok(())
}

#[test]
fn disks_are_found_on_every_bus() -> Result<()> {
    for machine in [Machine::Pc, Machine::Q35, Machine::Microvm] {
        let disk = empty(8)?;
        let mut vm = boot(spec()?.machine(machine).disk(Disk::new(disk.path())))?;
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["size"] == 8 << 20, "{machine:?}: {disks}");
    }
    Ok(())
}

#[test]
fn a_disk_that_cannot_be_read_does_not_stop_the_boot() -> Result<()> {
    let disk = config()?;
    let fault = Fault { event: "read_aio", sector: None, once: false };
    let mut vm = boot(spec()?.disk(Disk::new(disk.path()).fault(fault)))?;
    vm.run("show log")?.contains("disk")?;
    hostname_is(&mut vm, "isthmus")
}

#[test]
fn a_failing_write_is_told_by_save_and_leaves_the_old_document() -> Result<()> {
    let disk = config()?;
    save_fails(&disk, Fault { event: "write_aio", sector: None, once: false })?;
    hostname_is(&mut boot(spec()?.disk(Disk::new(disk.path())))?, "old")
}

#[test]
fn a_failing_flush_is_told_by_save() -> Result<()> {
    save_fails(&config()?, Fault { event: "flush_to_disk", sector: None, once: false })
}

#[test]
fn save_works_again_after_one_failure() -> Result<()> {
    let disk = config()?;
    let fault = Fault { event: "write_aio", sector: None, once: true };
    let mut vm = boot(spec()?.disk(Disk::new(disk.path()).fault(fault)))?;
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.contains("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    hostname_is(&mut boot(spec()?.disk(Disk::new(disk.path())))?, "new")
}

#[test]
fn save_without_a_config_disk_says_what_to_do() -> Result<()> {
    let disk = empty(8)?;
    let mut vm = boot(spec()?.disk(Disk::new(disk.path())))?;
    vm.run("save")?.contains("error")?.contains("config-disk")?;
    drop(vm);
    let untouched = std::fs::read(disk.path())?.iter().all(|byte| *byte == 0);
    ensure!(untouched, "a disk that is no config disk was written to");
    Ok(())
}

fn save_fails(disk: &NamedTempFile, fault: Fault) -> Result<()> {
    let mut vm = boot(spec()?.disk(Disk::new(disk.path()).fault(fault)))?;
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.contains("error")?;
    vm.run("show version")?.contains("new")?;
    Ok(())
}

fn hostname_is(vm: &mut Vm, name: &str) -> Result<()> {
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["hostname"] == name, "the host is not called {name:?}: {version}");
    Ok(())
}

fn config() -> Result<NamedTempFile> {
    let disk = NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"old\"\n"))?)?;
    Ok(disk)
}

fn empty(mib: u64) -> Result<NamedTempFile> {
    let disk = NamedTempFile::new()?;
    disk.as_file().set_len(mib << 20)?;
    Ok(disk)
}
