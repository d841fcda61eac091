//! Disks: detection, names, sizes, and failures.
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::{
    boot, disks_are_nvme, disks_are_virtio, keeps_configuration, spec, without_virtio,
};
use launch::image::config_disk;
use launch::qemu::{Disk, Fault, Machine, Nic, Vm};
use serde_json::json;
use tempfile::NamedTempFile;

#[test]
fn several_disks_are_shown_with_their_properties() -> Result<()> {
    if without_virtio("read-only disks", "QEMU has no read-only NVMe drives")? {
        return Ok(());
    }
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
    if without_virtio("disks behind a SCSI controller, and without PCI", "they are virtio")? {
        return Ok(());
    }
    for machine in [Machine::Pc, Machine::Q35, Machine::Microvm] {
        for scsi in [false, true] {
            let disk = empty(8)?;
            let one = Disk::new(disk.path());
            let one = if scsi { one.scsi() } else { one };
            let mut vm = boot(spec()?.machine(machine).disk(one))?;
            let disks = vm.run("show disks --json")?.json()?;
            ensure!(disks[0]["size"] == 8 << 20, "{machine:?}, SCSI {scsi}: {disks}");
        }
    }
    Ok(())
}

#[test]
fn disks_behind_a_scsi_controller_have_shapes_and_names_of_their_own() -> Result<()> {
    if without_virtio("disks behind a SCSI controller", "the controller is virtio")? {
        return Ok(());
    }
    let (one, two, three) = (empty(8)?, empty(16)?, config()?);
    let spec = || -> Result<_> {
        Ok(spec()?
            .nic(Nic::user())
            .disk(Disk::new(one.path()).scsi().read_only())
            .disk(Disk::new(two.path()).scsi().block_size(4096).serial("a-serial-number-of-24-c"))
            .disk(Disk::new(three.path()).scsi().serial("isthmus-config")))
    };
    let mut vm = boot(spec()?)?;
    hostname_is(&mut vm, "old")?;
    let disks = vm.run("show disks --json")?.json()?;
    ensure!(disks[0]["size"] == 8 << 20 && disks[0]["read_only"] == true, "{disks}");
    ensure!(disks[1]["size"] == 16 << 20 && disks[1]["logical_block"] == 4096, "{disks}");
    ensure!(disks[1]["device"] == "serial:a-serial-number-of-24-c", "{disks}");
    ensure!(disks[2]["use"] == "configuration", "{disks}");
    let location = disks[1]["location"].as_str().unwrap_or_default().to_string();
    ensure!(location.starts_with("pci:0000:") && location.ends_with("/1:0"), "{disks}");
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.lacks("error")?;
    drop(vm);
    for name in [location.as_str(), "serial:a-serial-number-of-24-c"] {
        let words = format!("isthmus.volume.0.name=data isthmus.volume.0.disk={name}");
        let mut vm = boot(spec()?.append(&words))?;
        hostname_is(&mut vm, "new")?;
        let volumes = vm.run("volume list json")?.json()?;
        ensure!(volumes[0]["size"] == 16 << 20, "{name}: {volumes}");
    }
    Ok(())
}

#[test]
fn a_disk_that_cannot_be_read_does_not_stop_the_boot() -> Result<()> {
    let disk = config()?;
    let fault = Fault { event: "read_aio", sector: None, once: false };
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path()).fault(fault)))?;
    vm.run("show log")?.contains("disk")?;
    hostname_is(&mut vm, "isthmus")
}

#[test]
fn failing_write_is_reported_by_save_and_keeps_the_old_document() -> Result<()> {
    let disk = config()?;
    save_fails(&disk, Fault { event: "write_aio", sector: None, once: false })?;
    hostname_is(&mut boot(spec()?.disk(keeps_configuration(disk.path())))?, "old")
}

#[test]
fn failing_flush_is_reported_by_save() -> Result<()> {
    save_fails(&config()?, Fault { event: "flush_to_disk", sector: None, once: false })
}

#[test]
fn save_works_again_after_one_failure() -> Result<()> {
    let disk = config()?;
    // The first boot writes a revision, before the save. The second one has none to write.
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())))?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    let fault = Fault { event: "write_aio", sector: None, once: true };
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path()).fault(fault)))?;
    vm.run("save")?.contains("error")?;
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    hostname_is(&mut boot(spec()?.disk(keeps_configuration(disk.path())))?, "new")
}

#[test]
fn save_without_a_config_disk_says_what_to_do() -> Result<()> {
    let disk = empty(8)?;
    let mut vm = boot(spec()?.disk(Disk::new(disk.path())))?;
    vm.run("save")?.contains("error")?.contains("config-disk")?;
    drop(vm);
    let untouched = std::fs::read(disk.path())?.iter().all(|byte| *byte == 0);
    ensure!(untouched, "a disk without the configuration serial number was written to");
    Ok(())
}

/// A document that a client has written to a disk that is exported as a whole.
#[test]
fn document_that_a_client_writes_to_a_disk_is_ignored() -> Result<()> {
    const DOCUMENT: &str = "[system]\nhostname = \"owned\"\n";
    let bare = launch::image::bare_config_area(Some(DOCUMENT))?;
    let partition = config_disk(Some(DOCUMENT))?;
    let whole = "isthmus.volume.0.name=data isthmus.volume.0.disk=";
    for (forged, name) in [(&bare, "0"), (&partition, "0"), (&partition, "serial:data")] {
        let disk = empty(8)?;
        let mut vm = boot(
            spec()?
                .nic(Nic::user())
                .append(&format!("{whole}{name}"))
                .disk(Disk::new(disk.path()).serial("data")),
        )?;
        hostname_is(&mut vm, "isthmus")?;
        vm.run("export list")?.contains("data")?;
        drop(vm);
        // Writes as a client of the volume would.
        let file = std::fs::File::options().write(true).open(disk.path())?;
        std::os::unix::fs::FileExt::write_all_at(&file, forged, 0)?;
        let spec = spec()?.nic(Nic::user()).append(&format!("{whole}{name}"));
        let mut vm = boot(spec.disk(Disk::new(disk.path()).serial("data")))?;
        hostname_is(&mut vm, "isthmus")?;
        vm.run("export list")?.contains("data")?;
    }
    // The forged document is ignored beside the real one, too.
    let (disk, real) = (empty(8)?, config()?);
    std::fs::write(disk.path(), &partition)?;
    let disks = [Disk::new(disk.path()), Disk::new(real.path()).serial("isthmus-config")];
    let spec = disks.into_iter().fold(spec()?, |spec, disk| spec.disk(disk));
    hostname_is(&mut boot(spec)?, "old")
}

#[test]
fn unmarked_configuration_disk_is_reported_and_can_be_named() -> Result<()> {
    let disk = NamedTempFile::new()?;
    let area = launch::image::bare_config_area(Some("[system]\nhostname = \"old\"\n"))?;
    std::fs::write(disk.path(), area)?;
    let mut vm = boot(spec()?.disk(Disk::new(disk.path())))?;
    hostname_is(&mut vm, "isthmus")?;
    vm.run("show config")?.contains("# Closed")?.contains("enabled = false")?;
    let disks = vm.run("show disks --json")?.json()?;
    let device = disks[0]["device"].as_str().unwrap_or_default().to_string();
    let kind = if disks_are_nvme() { "nvme:" } else { "pci:0000:" };
    ensure!(device.starts_with(kind), "{disks}");
    let named = format!("config_disk={device}");
    vm.run("show log")?.contains("isthmus-config")?.contains(&named)?;
    drop(vm);
    let named = |words: &str| Ok::<_, anyhow::Error>(spec()?.append(words));
    let words = format!("isthmus.config_disk={device}");
    let mut vm = boot(named(&words)?.disk(Disk::new(disk.path())))?;
    hostname_is(&mut vm, "old")?;
    vm.run("show disks --json")?.contains("\"use\":\"configuration\"")?;
    vm.run("volume create x size=1MiB disk=0 force")?.contains("never a volume")?;
    drop(vm);
    let by_fw_cfg = ["-fw_cfg", "name=opt/isthmus/config-disk,string=serial:mine"];
    let spec = spec()?.extra(by_fw_cfg).disk(Disk::new(disk.path()).serial("mine"));
    hostname_is(&mut boot(spec)?, "old")?;
    let mut vm = boot(named("isthmus.config_disk=serial:other")?.disk(Disk::new(disk.path())))?;
    hostname_is(&mut vm, "isthmus")?;
    vm.run("show log")?.contains("the machine has no such disk")?;
    vm.run("show config")?.contains("# Closed")?;
    drop(vm);
    let mut vm = boot(named("isthmus.config_disk=none")?.disk(Disk::new(disk.path())))?;
    hostname_is(&mut vm, "isthmus")?;
    vm.run("show config")?.lacks("# Closed")?;
    Ok(())
}

#[test]
fn disks_are_named_by_stable_properties() -> Result<()> {
    let (one, two) = (empty(8)?, empty(16)?);
    let words = "isthmus.volume.0.name=data isthmus.volume.0.disk=";
    let boot_with = |name: &str| {
        let spec = spec()?.nic(Nic::user()).append(&format!("{words}{name}"));
        let spec = spec.disk(Disk::new(one.path())).disk(Disk::new(two.path()).serial("big"));
        boot(spec)
    };
    let size = |vm: &mut Vm| {
        Ok::<_, anyhow::Error>(vm.run("volume list json")?.json()?[0]["size"].clone())
    };
    let mut vm = boot_with("serial:big")?;
    ensure!(size(&mut vm)? == 16 << 20, "by its serial number");
    vm.run("show log")?.lacks("is a position")?;
    let disks = vm.run("show disks --json")?.json()?;
    let location = disks[1]["location"].as_str().unwrap_or_default().to_string();
    let name = if disks_are_nvme() { "nvme:big/1" } else { "serial:big" };
    ensure!(location.starts_with("pci:0000:") && disks[1]["device"] == name, "{disks}");
    drop(vm);
    ensure!(size(&mut boot_with(&location)?)? == 16 << 20, "by its address");
    let mut vm = boot_with("1")?;
    ensure!(size(&mut vm)? == 16 << 20, "by its position");
    vm.run("show log")?.contains("is a position")?.contains(name)?;
    drop(vm);
    boot_with("serial:none")?.run("show log")?.contains("there is no disk serial:none")?;
    if without_virtio("disks without PCI", "they are virtio")? {
        return Ok(());
    }
    let spec =
        || Ok::<_, anyhow::Error>(spec()?.machine(Machine::Microvm).disk(Disk::new(one.path())));
    let disks = boot(spec()?)?.run("show disks --json")?.json()?;
    let location = disks[0]["location"].as_str().unwrap_or_default().to_string();
    ensure!(location.starts_with("mmio:0x"), "{disks}");
    let mut vm = boot(spec()?.append(&format!("{words}{location}")))?;
    ensure!(size(&mut vm)? == 8 << 20, "by its registers");
    Ok(())
}

/// QEMU reports the new size of a disk behind a SCSI controller by an event.
#[test]
fn resized_disk_behind_a_scsi_controller_has_its_new_size() -> Result<()> {
    if without_virtio("resized disks behind a SCSI controller", "they are virtio")? {
        return Ok(());
    }
    let (resized, other) = (empty(8)?, empty(8)?);
    let spec = spec()?.disk(Disk::new(other.path()).scsi()).disk(Disk::new(resized.path()).scsi());
    let mut vm = boot(spec)?;
    vm.run("show log")?.lacks("resized")?;
    vm.qmp.execute("block_resize", json!({"node-name": "disk1", "size": 16 << 20}))?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["size"] == 8 << 20, "{disks}");
        if disks[1]["size"] == 16 << 20 {
            break;
        }
        ensure!(Instant::now() < deadline, "the disk keeps its size: {disks}");
        std::thread::sleep(Duration::from_millis(100));
    }
    vm.run("show log")?.contains("disk1: resized to 32768 sectors")?;
    Ok(())
}

#[test]
fn a_device_without_a_driver_is_a_warning() -> Result<()> {
    let devices = ["-device", "lsi53c895a", "-device", "rtl8139"];
    let mut vm = boot(spec()?.extra(devices))?;
    let log = vm.run("show log")?;
    log.contains("WARN")?
        .contains("SCSI controller 1000:0012")?
        .contains("Ethernet interface 10ec:8139")?;
    drop(vm);
    boot(spec()?.nic(Nic::user()))?.run("show log")?.lacks("no driver")?;
    Ok(())
}

fn save_fails(disk: &NamedTempFile, fault: Fault) -> Result<()> {
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path()).fault(fault)))?;
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

/// The write caches of disks with volumes are flushed before the machine ends. A failed flush is reported, and does not
/// delay the end.
#[test]
fn disk_caches_are_flushed_before_the_machine_ends() -> Result<()> {
    let words = "isthmus.volume.0.name=data isthmus.volume.0.disk=0";
    for keys in [&b"poweroff\r"[..], b"reboot\r"] {
        let disk = empty(8)?;
        let fault = Fault { event: "flush_to_disk", sector: None, once: false };
        let mut vm = boot(spec()?.disk(Disk::new(disk.path()).fault(fault)).append(words))?;
        // Writes as a client does, because QEMU skips the flush without writes.
        let device = match disks_are_virtio() {
            true => "/machine/peripheral/disk0/virtio-backend",
            false => "/machine/peripheral/disk0",
        };
        let write = format!("qemu-io -d {device} \"write 0 512\"");
        let reply = vm.qmp.execute("human-monitor-command", json!({"command-line": write}))?;
        ensure!(!reply.to_string().contains("Error"), "{reply}");
        vm.serial.send(keys)?;
        vm.wait_for("ending: disk0: its write cache was not flushed")?;
        vm.wait_exit()?;
    }
    Ok(())
}
