//! Volumes and exports from the console: on disks and in memory, kept across reboots and power cuts.
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Disk, Nic, Spec, Vm};
use tempfile::NamedTempFile;

const CUTS: u32 = 8;

fn disk(mib: u64, first: &[u8]) -> Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), first)?;
    file.as_file().set_len(mib << 20)?;
    Ok(file)
}

/// A machine with a network interface, because without one no volumes are exported.
fn machine() -> Result<Spec> {
    Ok(spec()?.nic(Nic::user()))
}

fn with(disk: &NamedTempFile) -> Result<Vm> {
    boot(machine()?.append("isthmus.volume.0.size=1MiB").disk(Disk::new(disk.path())))
}

/// Names and MiB of the volumes on disks.
fn volumes(vm: &mut Vm) -> Result<Vec<(String, u64)>> {
    let list = vm.run("volume list json")?.json()?;
    let list = list.as_array().context("a list")?;
    let on_disk = list.iter().filter(|volume| volume["disk"] == 0);
    let row = |volume: &serde_json::Value| {
        let name = volume["name"].as_str().unwrap_or_default().to_string();
        (name, volume["size"].as_u64().unwrap_or(0) >> 20)
    };
    Ok(on_disk.map(row).collect())
}

#[test]
fn volumes_are_created_grown_and_deleted_and_survive_a_reboot() -> Result<()> {
    let disk = disk(64, &[])?;
    let mut vm = with(&disk)?;
    vm.run("volume create a size=8MiB disk=0")?.contains("volume a has 8MiB on disk 0")?;
    vm.run("volume create b size=4MiB disk=0")?.lacks("error")?;
    vm.run("volume create b size=4MiB disk=0")?.contains("error")?;
    vm.run("volume grow a size=20MiB")?.contains("volume a has 20MiB on disk 0")?;
    vm.run("volume grow a size=1MiB")?.contains("error")?.contains("does not shrink")?;
    vm.run("volume create c size=1GiB disk=0")?.contains("MiB free")?;
    vm.run("export list csv")?.contains("a,a,false,")?;
    drop(vm);
    let mut vm = with(&disk)?;
    ensure!(volumes(&mut vm)? == [("a".into(), 20), ("b".into(), 4)], "after a reboot");
    vm.run("volume delete b force")?.contains("volume b is gone")?;
    vm.run("show disks --json")?.contains("has a table of volumes")?;
    drop(vm);
    ensure!(volumes(&mut with(&disk)?)? == [("a".into(), 20)], "after another");
    Ok(())
}

#[test]
fn data_on_a_disk_are_not_overwritten_without_force() -> Result<()> {
    let disk = disk(16, &[7; 4096])?;
    let mut vm = with(&disk)?;
    vm.run("volume create a size=1MiB disk=0")?.contains("error")?.contains("force")?;
    drop(vm);
    let bytes = std::fs::read(disk.path())?;
    ensure!(
        bytes[..4096] == [7; 4096] && bytes[4096..].iter().all(|&byte| byte == 0),
        "the disk was written to"
    );
    let mut vm = with(&disk)?;
    vm.run("volume create a size=1MiB disk=0 force")?.contains("volume a has 1MiB")?;
    drop(vm);
    let mut bytes = std::fs::read(disk.path())?;
    for copy in [32 << 10, 64 << 10] {
        bytes[copy + 20] ^= 1;
    }
    std::fs::write(disk.path(), &bytes)?;
    let mut vm = with(&disk)?;
    vm.run("show log")?.contains("damaged table of volumes")?;
    vm.run("volume create b size=1MiB disk=0")?.contains("error")?.contains("damaged")?;
    drop(vm);
    ensure!(std::fs::read(disk.path())? == bytes, "a damaged table was overwritten");
    Ok(())
}

#[test]
fn volumes_of_the_configuration_are_made_and_exported() -> Result<()> {
    let disk = disk(16, &[])?;
    let words = "isthmus.volume.0.name=data isthmus.volume.0.size=6MiB isthmus.volume.0.disk=0";
    let mut vm = boot(machine()?.append(words).disk(Disk::new(disk.path())))?;
    for _ in 0..300 {
        if vm.run("show log")?.text.contains("volume data has 6MiB on disk 0") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    ensure!(volumes(&mut vm)? == [("data".into(), 6)], "the volume was not created");
    vm.run("export list json")?.contains("\"volume\":\"data\"")?;
    Ok(())
}

#[test]
fn exports_change_at_run_time_and_stay_in_the_configuration() -> Result<()> {
    let mut vm = boot(machine()?.append("isthmus.volume.0.size=1MiB"))?;
    vm.run("volume create scratch size=2MiB")?.contains("in force now")?;
    vm.run("export add own/%SESSNAME% volume=scratch ro sessions=h1,h2")?.contains("in force")?;
    let list = vm.run("export list json")?.json()?;
    ensure!(list[2]["read_only"] == true && list[2]["sessions"][1] == "h2", "{list}");
    vm.run("export set own/%SESSNAME% rw sessions=all")?.lacks("error")?;
    let list = vm.run("export list json")?.json()?;
    let own = list
        .as_array()
        .into_iter()
        .flatten()
        .find(|e| e["volume"] == "scratch" && e["name"] != "scratch");
    let own = own.context("the export")?;
    ensure!(
        own["read_only"] == false && own["sessions"].as_array().is_some_and(Vec::is_empty),
        "{list}"
    );
    vm.run("volume delete scratch")?.contains("error")?.contains("export remove")?;
    vm.run("export remove own/%SESSNAME%")?.lacks("error")?;
    vm.run("export remove scratch")?.lacks("error")?;
    vm.run("export remove ram0")?.contains("error")?.contains("last")?;
    vm.run("volume delete scratch")?.contains("error")?.contains("would be lost")?;
    vm.run("volume delete scratch force")?.lacks("error")?;
    vm.run("show config")?.lacks("scratch")?.contains("name = \"ram0\"")?;
    vm.run("session list")?.lacks("error")?;
    vm.run("session show nobody")?.contains("there is no session")?;
    vm.run("device close ram0")?.contains("no session has")?;
    Ok(())
}

/// SIGKILL ends QEMU at a random moment around each change. Requests that QEMU has passed to the host complete, so
/// these cuts are between requests. The storage engine's tests cover cuts within a request.
#[test]
fn a_power_cut_leaves_a_change_done_or_not_done() -> Result<()> {
    let disk = disk(64, &[])?;
    with(&disk)?.run("volume create a size=1MiB disk=0")?.lacks("error")?;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = seed;
    let mut size = 1;
    for round in 1..=CUTS {
        let mut vm = with(&disk)?;
        vm.serial.send(format!("volume grow a size={}MiB\r", size + 1).as_bytes())?;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x3fff));
        vm.kill();
        let found = volumes(&mut with(&disk)?)?;
        ensure!(
            found == [("a".into(), size)] || found == [("a".into(), size + 1)],
            "round {round}, seed {seed}: {found:?}"
        );
        size = found[0].1;
    }
    println!("seed {seed}: {} of {CUTS} changes were done", size - 1);
    Ok(())
}

/// The console and the log report faults of mirrors, with the remedy.
#[test]
fn mirrors_report_faults_and_remedies() -> Result<()> {
    const DOCUMENT: &str = "\
[[volume]]\nname = \"a\"\nsize = \"64MiB\"\n[[volume]]\nname = \"b\"\nsize = \"64MiB\"\ndisk = 0
[[mirror]]\nname = \"safe\"\nmembers = [\"a\", \"b\"]\ntimeout_ms = 700\n";
    const REMEDY: &str = "mirror create safe a b force";
    // The copy to so slow a disk takes seconds, so that it is under way when the next command comes.
    let slow = disk(96, &[])?;
    let slow = Disk::new(slow.path()).bytes_per_second(24 << 20);
    let mut vm = boot(machine()?.memory(512).disk(slow).config(DOCUMENT))?;
    let deadline = SystemTime::now() + Duration::from_secs(60);
    for command in ["mirror list", "show log"] {
        while !vm.run(command)?.text.contains("the members are not of one mirror") {
            ensure!(SystemTime::now() < deadline, "{}", vm.run(command)?.text);
        }
    }
    vm.run("show log")?.contains(REMEDY)?;
    vm.run("mirror force safe")?.contains(REMEDY)?.lacks("built-in default")?;
    vm.run("mirror create safe b a force")?.contains(REMEDY)?;
    vm.run(REMEDY)?.contains("in force now")?;
    // Removal is refused until the members have been examined, and while they are not in sync.
    loop {
        let reply = vm.run("mirror remove safe")?.lacks("in force now")?.text.clone();
        if reply.contains("is not in sync") && reply.contains("are not copied to it") {
            break;
        }
        ensure!(reply.contains("is not known yet"), "{reply}");
        ensure!(SystemTime::now() < deadline, "{}", vm.run("mirror list")?.text);
    }
    let deadline = SystemTime::now() + Duration::from_secs(60);
    while vm.run("mirror list csv")?.text.matches("in sync").count() < 2 {
        ensure!(SystemTime::now() < deadline, "{}", vm.run("mirror list")?.text);
    }
    vm.run("volume delete a")?
        .contains("a member of mirror safe; run `mirror remove safe` first")?;
    vm.run("volume delete safe")?.contains("error")?.lacks("built-in default")?;
    vm.run(REMEDY)?.contains("mirror safe exists and runs")?;
    vm.run("mirror force safe")?.contains("nothing to force")?;
    vm.run("mirror remove nobody")?.contains("there is no mirror")?.lacks("built-in default")?;
    vm.run("set mirror.0.timeout_ms 10")?.contains("error")?.lacks("built-in default")?;
    vm.run("mirror remove safe")?.contains("in force now")?;
    vm.run("volume delete a force")?.lacks("error")?;
    Ok(())
}

/// A mirror grows to the size of its grown members at run time, and keeps the size after a power cut.
#[test]
fn mirror_grows_after_its_members_and_keeps_its_size_after_a_power_cut() -> Result<()> {
    let disks = [disk(64, &[])?, disk(64, &[])?];
    let words = "isthmus.volume.0.name=pa isthmus.volume.0.size=8MiB isthmus.volume.0.disk=0 \
        isthmus.volume.1.name=pb isthmus.volume.1.size=8MiB isthmus.volume.1.disk=1";
    let machine = |more: &str| -> Result<Spec> {
        let spec = machine()?.append(words).append(more);
        Ok(disks.iter().fold(spec, |spec, disk| spec.disk(Disk::new(disk.path()))))
    };
    let mirror =
        |vm: &mut Vm| -> Result<serde_json::Value> { vm.run("cat /mirrors/m --json")?.json() };
    let wait_for = |vm: &mut Vm, what: &str, wanted: &dyn Fn(&serde_json::Value) -> bool| {
        for _ in 0..300 {
            if mirror(vm).is_ok_and(|mirror| wanted(&mirror)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        anyhow::bail!("{what}: {}\n{}", mirror(vm)?, vm.run("show log")?.text)
    };
    let in_sync =
        |mirror: &serde_json::Value| (0..2).all(|n| mirror["members"][n]["state"] == "in sync");
    let mut vm = boot(machine("")?)?;
    for _ in 0..300 {
        if volumes_named(&mut vm, ["pa", "pb"])? {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    vm.run("mirror create m pa pb force")?.contains("in force now")?;
    wait_for(&mut vm, "in sync", &in_sync)?;
    vm.run("mirror grow m")?.contains("error")?.contains("grow both members first")?;
    vm.run("volume grow m size=20MiB")?.contains("error")?.contains("mirror grow m")?;
    vm.run("volume grow pa size=20MiB")?.lacks("error")?;
    vm.run("mirror grow m")?.contains("error")?;
    vm.run("volume grow pb size=24MiB")?.lacks("error")?;
    let mut sizes = Vec::new();
    for _ in 0..50 {
        let list = vm.run("volume list json")?.json()?;
        let rows = list.as_array().into_iter().flatten();
        sizes = rows.filter_map(|row| row["size"].as_u64()).take(2).collect();
        if sizes == [20 << 20, 24 << 20] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    ensure!(sizes == [20 << 20, 24 << 20], "{sizes:?}");
    vm.run("mirror grow m")?.contains("grows from")?;
    let size = (20u64 << 20) - (32 << 10);
    let grown = |mirror: &serde_json::Value| mirror["size"] == size && in_sync(mirror);
    wait_for(&mut vm, "grown", &grown)?;
    drop(vm);
    let mut vm = boot(machine("isthmus.mirror.0.name=m isthmus.mirror.0.members=pa,pb")?)?;
    wait_for(&mut vm, "after a power cut", &grown)?;
    Ok(())
}

/// Whether all of these volumes are online.
fn volumes_named(vm: &mut Vm, names: [&str; 2]) -> Result<bool> {
    let list = vm.run("volume list json")?.json()?;
    let there = |name: &str| {
        let mut rows = list.as_array().into_iter().flatten();
        rows.any(|volume| volume["name"] == name && volume["state"] == "online")
    };
    Ok(names.iter().all(|name| there(name)))
}
