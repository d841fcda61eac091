//! Configurations from the VMM: strings in SMBIOS, and a NoCloud seed disk. Cases of the suite `config`.
use std::io::{Cursor, Write as _};

use anyhow::{Result, ensure};
use boot_tests::{boot, keeps_configuration, spec};
use launch::image::config_disk;
use launch::qemu::{Disk, Nic, Spec, Vm};

use super::config::with_http;

/// A machine with these OEM strings in its SMBIOS tables.
pub fn with_strings(spec: Spec, strings: &[&str]) -> Spec {
    // QEMU writes a comma in a value twice.
    let values = strings.iter().map(|string| format!(",value={}", string.replace(',', ",,")));
    spec.extra(["-smbios".to_string(), format!("type=11{}", values.collect::<String>())])
}

/// A FAT volume with this label and these files.
pub fn fat(label: &str, files: &[(&str, &str)]) -> Result<tempfile::NamedTempFile> {
    let mut bytes = vec![0; 1 << 20];
    let mut name = [b' '; 11];
    name[..label.len()].copy_from_slice(label.as_bytes());
    let options = fatfs::FormatVolumeOptions::new().volume_label(name);
    fatfs::format_volume(&mut Cursor::new(&mut bytes[..]), options)?;
    let volume = fscommon::BufStream::new(Cursor::new(&mut bytes[..]));
    let system = fatfs::FileSystem::new(volume, fatfs::FsOptions::new())?;
    for (name, text) in files {
        system.root_dir().create_file(name)?.write_all(text.as_bytes())?;
    }
    system.unmount()?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), bytes)?;
    Ok(file)
}

fn hostname_is(vm: &mut Vm, name: &str) -> Result<()> {
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["hostname"] == name, "the host is not called {name:?}: {version}");
    Ok(())
}

/// `base64` of `[system]\nhostname = "in-smbios"\nlog_level = "warn"\n`.
const DOCUMENT: [&str; 2] =
    ["W3N5c3RlbV0KaG9zdG5hbWUgPSAi", "aW4tc21iaW9zIgpsb2dfbGV2ZWwgPSAid2FybiIK"];

#[test]
fn smbios_strings_configure_between_fw_cfg_and_the_config_disk() -> Result<()> {
    let [one, two] = DOCUMENT.map(|part| format!("isthmus.document={part}"));
    let strings = [
        "io.systemd.credential:other=isthmus.http.port=99",
        &one,
        "isthmus.net.0.address=[\"10.0.2.77/24\", \"fd00::1/64\"]",
        "isthmus.net.0.mtu=1400",
        &two,
    ];
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[[net]]\nmtu = 1300\n"))?)?;
    let passed = "[system]\nhostname = \"passed\"\nidle_after_us = 7\n";
    let spec =
        || -> Result<Spec> { Ok(with_strings(spec()?.nic(Nic::user()).config(passed), &strings)) };
    let mut vm = boot(spec()?)?;
    hostname_is(&mut vm, "in-smbios")?;
    vm.run("show interfaces")?.contains("10.0.2.77")?.contains("1400")?;
    vm.run("show config")?
        .contains("hostname = \"in-smbios\"  # SMBIOS line 2")?
        .contains("mtu = 1400  # SMBIOS strings")?
        .contains("idle_after_us = 7  # fw_cfg line 3")?
        .contains("# fw_cfg document, overridden by SMBIOS document: system.hostname")?;
    drop(vm);
    let mut vm = boot(spec()?.disk(keeps_configuration(disk.path())))?;
    hostname_is(&mut vm, "in-smbios")?;
    vm.run("show config")?
        .contains("mtu = 1300  # config disk line 2")?
        .contains("# SMBIOS strings, overridden by config disk document: net.0.address")?;
    Ok(())
}

/// A wrong restriction in a string closes; the rest of the strings, and the machine, work.
#[test]
fn wrong_smbios_strings_leave_nothing_open() -> Result<()> {
    for (wrong, message) in [
        ("isthmus.export.0.hosts=nobody", "SMBIOS strings: export.0.hosts"),
        ("isthmus.document=W3", "isthmus.document is not base64"),
        ("isthmus.document=XV1dXQo=", "ERROR configuration: SMBIOS"),
    ] {
        let strings = ["isthmus.system.hostname=reached", wrong];
        let (mut vm, server) = with_http(with_strings(spec()?, &strings))?;
        hostname_is(&mut vm, "reached")?;
        vm.run("show log")?.contains(message)?.contains("nothing is exported")?;
        vm.run("show exports")?.contains("(none)")?;
        let ready = launch::http::get(server, "/readyz")?;
        ensure!(ready.status == 503, "/readyz: {}", ready.body);
    }
    Ok(())
}

#[test]
fn smbios_names_the_config_disk() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), config_disk(Some("[system]\nhostname = \"kept\"\n"))?)?;
    let named = || Ok::<_, anyhow::Error>(with_strings(spec()?, &["isthmus.config_disk=serial:c"]));
    let mut vm = boot(named()?.disk(Disk::new(disk.path()).serial("c")))?;
    hostname_is(&mut vm, "kept")?;
    drop(vm);
    let mut vm = boot(named()?)?;
    vm.run("show log")?.contains("config_disk=serial:c: the machine has no such disk")?;
    vm.run("show exports")?.contains("(none)")?;
    Ok(())
}

const SEEDED: &str = "#isthmus-config\n[system]\nlog_level = \"debug\"\n[[volume]]\nname = \"first\"\n\
                      size = \"1MiB\"\n";
const META: &str = "instance-id: i-1\nlocal-hostname: seeded\n";

#[test]
fn seed_disk_configures_until_something_is_saved() -> Result<()> {
    let seed = fat("CIDATA", &[("user-data", SEEDED), ("meta-data", META)])?;
    let kept = tempfile::NamedTempFile::new()?;
    std::fs::write(kept.path(), config_disk(None)?)?;
    let by_serial = Disk::new(seed.path()).serial("isthmus-seed").read_only();
    let mut vm = boot(spec()?.disk(by_serial.clone()).disk(keeps_configuration(kept.path())))?;
    hostname_is(&mut vm, "seeded")?;
    vm.run("show log")?.contains("seed on disk0: i-1")?;
    vm.run("show volumes")?.contains("first")?.lacks("ram0")?;
    vm.run("show config")?.contains("log_level = \"debug\"  # seed line 3")?;
    vm.run("show disks")?.contains("seed")?;
    vm.run("volume create x size=1MiB disk=0")?.contains("holds the seed: it is never a volume")?;
    vm.run("set system.hostname changed")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    let mut vm = boot(spec()?.disk(by_serial).disk(keeps_configuration(kept.path())))?;
    hostname_is(&mut vm, "changed")?;
    vm.run("show config")?.contains("# seed document, overridden by config disk document")?;
    Ok(())
}

/// The label of a volume selects no seed, and a seed that is named and cannot be used leaves nothing open.
#[test]
fn seed_disk_is_named_from_outside() -> Result<()> {
    let seed = fat("CIDATA", &[("user-data", SEEDED), ("meta-data", META)])?;
    let disk = || Disk::new(seed.path()).serial("client-7");
    let mut vm = boot(spec()?.disk(disk()).append("ds=nocloud"))?;
    vm.run("show volumes")?.contains("ram0")?.lacks("first")?;
    drop(vm);
    let mut vm = boot(with_strings(spec()?, &["isthmus.seed=serial:client-7"]).disk(disk()))?;
    hostname_is(&mut vm, "seeded")?;
    drop(vm);
    let by_fw_cfg = ["-fw_cfg", "name=opt/isthmus/seed,string=serial:client-7"];
    let mut vm = boot(spec()?.extra(by_fw_cfg).disk(disk()))?;
    hostname_is(&mut vm, "seeded")?;
    drop(vm);
    let data = fat("DATA", &[("user-data", SEEDED)])?;
    let cloud = fat("CIDATA", &[("user-data", "#cloud-config\n{}\n")])?;
    let whole = "[[volume]]\nname = \"v\"\ndisk = \"serial:client-7\"\n";
    for (file, config, why) in [
        (None, "", "seed=serial:client-7: the machine has no such disk"),
        (Some(&data), "", "its volume is not labelled cidata"),
        (Some(&cloud), "", "user-data is for cloud-init"),
        (Some(&seed), whole, "is the seed disk and also a volume of clients"),
    ] {
        let mut spec = spec()?.append("isthmus.seed=serial:client-7").config(config);
        if let Some(file) = file {
            spec = spec.disk(Disk::new(file.path()).serial("client-7"));
        }
        let mut vm = boot(spec)?;
        vm.run("show log")?.contains(why)?.contains("nothing is exported")?;
        vm.run("show exports")?.contains("(none)")?;
    }
    Ok(())
}
