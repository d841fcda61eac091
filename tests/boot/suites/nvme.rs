//! NVMe drives of QEMU, on machines without a virtio disk: volumes, power cuts, errors, a drive that is pulled out.
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, keeps_configuration, spec};
use launch::image::config_disk;
use launch::qemu::{Disk, Fault, Machine, Nic, Spec, Vm};
use serde_json::json;
use tempfile::NamedTempFile;

const CUTS: u32 = 6;

fn disk(mib: u64) -> Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    file.as_file().set_len(mib << 20)?;
    Ok(file)
}

/// A configuration disk whose document has this host name.
fn config(hostname: &str) -> Result<NamedTempFile> {
    let disk = NamedTempFile::new()?;
    let document = format!("[system]\nhostname = \"{hostname}\"\n");
    std::fs::write(disk.path(), config_disk(Some(&document))?)?;
    Ok(disk)
}

fn hostname_is(vm: &mut Vm, name: &str) -> Result<()> {
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["hostname"] == name, "the host is not called {name:?}: {version}");
    Ok(())
}

/// Repeats a command until its reply contains a text.
fn until(vm: &mut Vm, command: &str, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = vm.run(command)?.text;
        if reply.contains(wanted) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no {wanted:?} in the reply to `{command}`:\n{reply}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_drive_is_found_and_names_itself_on_every_machine_with_pci() -> Result<()> {
    for machine in [Machine::Pc, Machine::Q35] {
        let (one, two) = (disk(8)?, disk(16)?);
        let spec = spec()?
            .machine(machine)
            .disk(Disk::new(one.path()).nvme(0, 1).serial("S1"))
            .disk(Disk::new(two.path()).nvme(0, 5).block_size(4096));
        let mut vm = boot(spec)?;
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["size"] == 8 << 20 && disks[0]["logical_block"] == 512, "{disks}");
        ensure!(disks[1]["size"] == 16 << 20 && disks[1]["logical_block"] == 4096, "{disks}");
        ensure!(disks[0]["device"] == "nvme:S1/1" && disks[1]["device"] == "nvme:S1/5", "{disks}");
        ensure!(disks[0]["serial"] == "S1" && disks[0]["discard"] == true, "{disks}");
        let location = disks[1]["location"].as_str().unwrap_or_default();
        ensure!(location.starts_with("pci:0000:00:") && location.ends_with("/5"), "{disks}");
        let model = disks[0]["model"].as_str().unwrap_or_default();
        ensure!(model.contains("QEMU NVMe"), "{disks}");
        ensure!(disks[0]["health"]["celsius"] == 50.0, "QEMU reports 323 K: {disks}");
        ensure!(disks[0]["health"]["state"] == "works", "{disks}");
        vm.run("show devices")?.contains("QEMU NVMe")?;
        vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    }
    Ok(())
}

/// A volume can use each name of a namespace. Namespaces without a volume are not written to.
#[test]
fn namespaces_are_volumes_by_their_names_and_others_are_left_alone() -> Result<()> {
    let (one, two) = (disk(8)?, disk(16)?);
    let with = |name: &str| -> Result<Vm> {
        let words = format!("isthmus.volume.0.name=data isthmus.volume.0.disk={name}");
        boot(
            spec()?
                .nic(Nic::user())
                .append(&words)
                .disk(Disk::new(one.path()).nvme(0, 1).serial("S1"))
                .disk(Disk::new(two.path()).nvme(0, 2).block_size(4096)),
        )
    };
    let mut vm = with("nvme:S1/2")?;
    let disks = vm.run("show disks --json")?.json()?;
    let location = disks[1]["location"].as_str().context("a location")?.to_string();
    drop(vm);
    for name in ["nvme:S1/2", &location] {
        let mut vm = with(name)?;
        let volumes = vm.run("volume list json")?.json()?;
        ensure!(volumes[0]["size"] == 16 << 20, "{name}: {volumes}");
        vm.run("export list")?.contains("data")?;
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["use"] == "free" && disks[1]["use"] == "volume", "{disks}");
        vm.run("show log")?.lacks("ERROR")?;
    }
    with("serial:S1")?.run("show log")?.contains("two disks have the name serial:S1")?;
    with("nvme:S1/3")?.run("show log")?.contains("there is no disk nvme:S1/3")?;
    let untouched = std::fs::read(one.path())?.iter().all(|byte| *byte == 0);
    ensure!(untouched, "a namespace without a volume was written to");
    Ok(())
}

#[test]
fn volumes_are_created_grown_and_deleted_and_survive_a_reboot() -> Result<()> {
    for block in [512, 4096] {
        let disk = disk(64)?;
        let boot = || boot(on(&disk, block)?);
        let mut vm = boot()?;
        vm.run("volume create a size=8MiB disk=0")?.contains("volume a has 8MiB on disk 0")?;
        vm.run("volume create b size=4MiB disk=0")?.lacks("error")?;
        vm.run("volume grow a size=20MiB")?.contains("volume a has 20MiB on disk 0")?;
        drop(vm);
        let mut vm = boot()?;
        ensure!(sizes(&mut vm)? == [("a".into(), 20), ("b".into(), 4)], "after a reboot");
        vm.run("volume delete b force")?.contains("volume b is gone")?;
        drop(vm);
        ensure!(sizes(&mut boot()?)? == [("a".into(), 20)], "after another");
    }
    Ok(())
}

/// A machine with a network interface and one drive.
fn on(disk: &NamedTempFile, block: u32) -> Result<Spec> {
    let disk = Disk::new(disk.path()).nvme(0, 1).block_size(block);
    Ok(spec()?.nic(Nic::user()).append("isthmus.volume.0.size=1MiB").disk(disk))
}

/// Names and MiB of the volumes on disks.
fn sizes(vm: &mut Vm) -> Result<Vec<(String, u64)>> {
    let list = vm.run("volume list json")?.json()?;
    let list = list.as_array().context("a list")?;
    let on_disk = list.iter().filter(|volume| volume["disk"] == 0);
    let row = |volume: &serde_json::Value| {
        let name = volume["name"].as_str().unwrap_or_default().to_string();
        (name, volume["size"].as_u64().unwrap_or(0) >> 20)
    };
    Ok(on_disk.map(row).collect())
}

/// SIGKILL ends QEMU at a random moment around each change.
#[test]
fn a_power_cut_leaves_a_change_done_or_not_done() -> Result<()> {
    let disk = disk(64)?;
    boot(on(&disk, 4096)?)?.run("volume create a size=1MiB disk=0")?.lacks("error")?;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = seed;
    let mut size = 1;
    for round in 1..=CUTS {
        let mut vm = boot(on(&disk, 4096)?)?;
        vm.serial.send(format!("volume grow a size={}MiB\r", size + 1).as_bytes())?;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x3fff));
        vm.kill();
        let found = sizes(&mut boot(on(&disk, 4096)?)?)?;
        ensure!(
            found == [("a".into(), size)] || found == [("a".into(), size + 1)],
            "round {round}, seed {seed}: {found:?}"
        );
        size = found[0].1;
    }
    println!("seed {seed}: {} of {CUTS} changes were done", size - 1);
    Ok(())
}

#[test]
fn the_configuration_is_kept_on_a_namespace() -> Result<()> {
    let disk = config("old")?;
    let boot = || boot(spec()?.disk(Disk::new(disk.path()).nvme(0, 1).serial("isthmus-config")));
    let mut vm = boot()?;
    hostname_is(&mut vm, "old")?;
    vm.run("show disks --json")?.contains("\"use\":\"configuration\"")?;
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    hostname_is(&mut boot()?, "new")
}

#[test]
fn errors_of_the_drive_are_reported_and_keep_the_old_document() -> Result<()> {
    for event in ["write_aio", "flush_to_disk"] {
        let disk = config("old")?;
        let one = || keeps_configuration(disk.path()).nvme(0, 1);
        let fault = Fault { event, sector: None, once: false };
        let mut vm = boot(spec()?.disk(one().fault(fault)))?;
        vm.run("set system.hostname new")?.lacks("error")?;
        vm.run("save")?.contains("error")?;
        vm.run("show disks --json")?.contains("\"state\":\"works\"")?;
        drop(vm);
        if event == "write_aio" {
            hostname_is(&mut boot(spec()?.disk(one()))?, "old")?;
        }
    }
    let disk = config("old")?;
    let fault = Fault { event: "read_aio", sector: None, once: false };
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path()).nvme(0, 1).fault(fault)))?;
    vm.run("show log")?.contains("disk0")?;
    hostname_is(&mut vm, "isthmus")
}

/// A surprise removal: the hotplug controller of `pc` ejects the slot, as firmware does.
#[test]
fn pulled_out_drive_is_reported_and_the_rest_works() -> Result<()> {
    let (gone, stays) = (disk(64)?, disk(8)?);
    let mut vm = boot(
        spec()?
            .machine(Machine::Pc)
            .nic(Nic::user())
            .append("isthmus.volume.0.size=1MiB")
            .disk(Disk::new(gone.path()).nvme(0, 1).serial("GONE"))
            .disk(Disk::new(stays.path()).nvme(1, 1).serial("STAYS")),
    )?;
    vm.run("volume create a size=8MiB disk=0")?.lacks("error")?;
    let disks = vm.run("show disks --json")?.json()?;
    let location = disks[0]["location"].as_str().context("a location")?;
    vm.pull_out("nvme0", location)?;
    until(&mut vm, "show log", "pulled out")?;
    vm.run("show log")?.contains("nvme:GONE/1")?;
    until(&mut vm, "show disks --json", "does not work")?;
    vm.run("volume grow a size=9MiB")?.contains("error")?;
    vm.run("volume create b size=1MiB disk=1")?.contains("volume b has 1MiB on disk 1")?;
    let disks = vm.run("show disks --json")?.json()?;
    ensure!(disks[1]["health"]["state"] == "works", "{disks}");
    Ok(())
}

/// A volume of more bytes than 32 bits count, all of them zeroed.
#[test]
fn a_large_sparse_drive_holds_large_volumes() -> Result<()> {
    let disk = disk(20 << 10)?;
    let mut vm = boot(on(&disk, 4096)?)?;
    vm.run("volume create a size=17GiB disk=0")?.contains("volume a has 17GiB on disk 0")?;
    vm.run("volume create b size=1GiB disk=0")?.lacks("error")?;
    drop(vm);
    let found = sizes(&mut boot(on(&disk, 4096)?)?)?;
    ensure!(found == [("a".into(), 17 << 10), ("b".into(), 1 << 10)], "{found:?}");
    Ok(())
}

/// A drive with a small MDTS, so that transfers are split.
#[test]
fn a_drive_with_a_small_limit_of_transfers_works() -> Result<()> {
    let disk = disk(64)?;
    let drive = json!({"driver": "nvme", "id": "small", "serial": "SMALL", "mdts": 1});
    let backend = json!({
        "node-name": "small", "driver": "raw",
        "file": {"driver": "file", "filename": disk.path()},
    });
    let namespace = json!({"driver": "nvme-ns", "drive": "small", "bus": "small", "nsid": 1});
    let mut words = vec!["-device".to_string(), drive.to_string()];
    words.extend(["-blockdev".to_string(), backend.to_string()]);
    words.extend(["-device".to_string(), namespace.to_string()]);
    let spec = spec()?.nic(Nic::user()).append("isthmus.volume.0.size=1MiB").extra(words);
    let mut vm = boot(spec)?;
    vm.run("volume create a size=8MiB disk=0")?.contains("volume a has 8MiB on disk 0")?;
    vm.run("show log")?.lacks("ERROR")?;
    Ok(())
}

/// QEMU's zoned namespace beside a usual one.
#[test]
fn zoned_namespace_is_refused_by_name() -> Result<()> {
    let (usual, zoned) = (disk(8)?, disk(16)?);
    let backend = json!({
        "node-name": "zoned", "driver": "raw",
        "file": {"driver": "file", "filename": zoned.path()},
    });
    let namespace = json!({
        "driver": "nvme-ns", "drive": "zoned", "bus": "nvme0", "nsid": 2,
        "zoned": true, "zoned.zone_size": 1 << 20,
    });
    let words = ["-blockdev".into(), backend.to_string(), "-device".into(), namespace.to_string()];
    let mut vm = boot(spec()?.disk(Disk::new(usual.path()).nvme(0, 1)).extra(words))?;
    vm.run("show log")?.contains("/2: the namespace is of zoned command set (CSI 2)")?;
    let disks = vm.run("show disks --json")?.json()?;
    let count = disks.as_array().map(Vec::len);
    ensure!(count == Some(1) && disks[0]["size"] == 8 << 20, "{disks:#}");
    Ok(())
}
