//! `save`: power cuts, reboots and refusals. After a power cut the disk has either the old or the new document,
//! complete.
//!
//! SIGKILL ends QEMU at a random moment around the save. Requests that QEMU has passed to the host complete, so these
//! cuts are between requests. The unit tests of the config disk cover cuts within a request.
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, keeps_configuration, named_file, spec};
use launch::image::config_disk;
use launch::qemu::{Boot, CachedDisk, Disk, Firmware, Nic, Spec};

const CUTS: u32 = 20;

#[test]
fn a_power_cut_leaves_the_old_or_the_new_document() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"h0\"\n"))?)?;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = seed;
    let mut outcomes = [0; 2];
    let mut old = String::from("h0");
    for round in 1..=CUTS {
        let new = format!("h{round}");
        let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())))?;
        let found = vm.run("show version --json")?.json()?;
        let found = found["hostname"].as_str().context("a hostname")?.to_string();
        ensure!(
            found == old || found == format!("h{}", round - 1),
            "round {round}, seed {seed}: found {found:?}, neither old nor new"
        );
        outcomes[usize::from(found != old)] += 1;
        old = found;
        vm.run(&format!("set system.hostname {new}"))?.lacks("error")?;
        vm.serial.send(b"save\r")?;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A save takes a few milliseconds, so cuts fall before, within and after it.
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x3fff));
        vm.kill();
    }
    println!("seed {seed}: {} times the old, {} times the new document", outcomes[0], outcomes[1]);
    Ok(())
}

/// Cuts fall during commits that the next boot tries, during rollbacks with `save`, and during their boots. Every boot
/// has one whole document: a saved one, or once the trial.
#[test]
fn a_power_cut_during_trials_and_rollbacks_leaves_one_whole_document() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"h0\"\n"))?)?;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = seed;
    let mut saved = vec![String::from("h0")];
    let (mut trial, mut tried) = (String::new(), 0);
    for round in 1..=CUTS {
        let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())).reboots())?;
        let found = vm.run("show version --json")?.json()?;
        let found = found["hostname"].as_str().context("a hostname")?.to_string();
        let is_trial = found == trial;
        ensure!(
            is_trial || saved.contains(&found),
            "round {round}, seed {seed}: {found:?} is neither {trial:?} nor of {saved:?}"
        );
        vm.run("show config")?.lacks("# Closed")?;
        tried += u32::from(is_trial);
        if !is_trial {
            saved = vec![found];
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        trial.clear();
        let new = format!("h{round}");
        if is_trial {
            // The next boot must have the saved document.
            vm.kill();
            continue;
        }
        vm.run(&format!("configure set system.hostname {new}"))?.lacks("error")?;
        if round % 2 == 0 {
            trial = new;
            vm.serial.send(b"commit confirmed 10 reboot\r")?;
        } else {
            vm.run("commit")?.lacks("error")?;
            saved.push(new);
            vm.serial.send(b"save\r")?;
        }
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x7fff));
        vm.kill();
    }
    println!("seed {seed}: {tried} trials started");
    Ok(())
}

#[test]
fn saved_settings_survive_a_reboot() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(None)?)?;
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())).reboots())?;
    vm.run("set system.hostname kept")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    vm.reboot()?;
    vm.run("show version")?.contains("kept")?;
    Ok(())
}

/// Linux drops a path for good when the queue depth changes. Creating a volume in memory keeps the depth.
#[test]
fn queue_depth_is_kept_when_a_memory_volume_is_created() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(None)?)?;
    let spec =
        spec()?.memory(160).nic(Nic::user()).disk(keeps_configuration(disk.path())).reboots();
    let mut vm = boot(spec)?;
    let log = vm.run("show log")?.text;
    let depth = log.split("queue depth reduced from 512 to ").nth(1);
    let depth = depth.and_then(|rest| rest.split(':').next());
    let depth = depth.with_context(|| log.clone())?;
    vm.run("save")?.contains("saved")?;
    vm.run("show config")?.contains("offered_depth = 0")?;
    vm.run("volume create more size=40MiB")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    vm.reboot()?;
    vm.run("show volumes")?.contains("more")?;
    vm.run("show log")?.contains(&format!("a queue depth of {depth}, as before"))?;
    // Without `offered_depth` the depth is computed again.
    vm.run("unset rnbd.offered_depth")?.lacks("error")?;
    vm.run("set rnbd.queue_depth 256")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    vm.reboot()?;
    vm.run("show log")?.contains("too little memory")?.lacks("as before")?;
    Ok(())
}

#[test]
fn save_refuses_settings_that_cannot_start() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(None)?)?;
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())).reboots())?;
    vm.run("set volume.0.size 1TiB")?.lacks("error")?;
    vm.run("save")?.contains("error")?.contains("volumes in memory need 1TiB")?;
    vm.run("set volume.0.size 1MiB")?.lacks("error")?;
    vm.run("set volume.1.name x")?.lacks("error")?;
    vm.run("set volume.1.disk 0")?.lacks("error")?;
    vm.run("save")?.contains("error")?.contains("keeps the configuration")?;
    vm.run("unset volume.1 force")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    Ok(())
}

/// `save` can use the disk that the appliance boots from, which cannot hold volumes.
#[test]
fn settings_saved_on_a_boot_disk_survive_a_reboot() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let own = directory.path().join("own.qcow2");
    std::fs::copy(named_file("ISTHMUS_QCOW2")?, &own)?;
    let spec = || Spec::new(Boot::OwnDisk(Disk::new(&own))).firmware(Firmware::Ovmf).as_told();
    let mut vm = boot(spec()?)?;
    vm.run("show disks --json")?.contains("\"use\":\"boot\"")?;
    vm.run("volume create x size=1MiB disk=0 force")?.contains("never a volume")?;
    vm.run("set volume.0.disk 0")?.lacks("error")?;
    vm.run("save")?.contains("error")?.contains("never a volume")?;
    vm.run("unset volume.0.disk")?.lacks("error")?;
    vm.run("set system.hostname kept")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    let mut vm = boot(spec()?)?;
    vm.run("show version")?.contains("kept")?;
    vm.run("show disks --json")?.contains("\"use\":\"boot\"")?;
    Ok(())
}

/// The named config disk takes requests and answers none of them, so its restrictions are unknown.
#[test]
fn silent_config_disk_leaves_nothing_open() -> Result<()> {
    let silent = CachedDisk::new(8)?;
    let named = ["-fw_cfg", "name=opt/isthmus/config-disk,string=serial:mine"];
    let disk = Disk::cached(&silent).serial("mine");
    // QEMU itself reads the disk while it starts, so the disk is silenced before the machine runs.
    let mut vm = spec()?.nic(Nic::user()).extra(named).extra(["-S"]).disk(disk).start()?;
    silent.be_silent(true);
    vm.qmp.execute("cont", serde_json::json!({}))?;
    vm.wait_ready()?;
    vm.run("show log")?.contains("does not answer")?.contains("nothing is exported")?;
    vm.run("show config")?.contains("# Closed")?.contains("does not answer")?;
    vm.run("show exports")?.contains("(none)")?;
    silent.be_silent(false);
    Ok(())
}
