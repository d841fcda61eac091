//! Cases about disks that are not virtio's, for any model: volumes, power cuts, errors, a controller that is pulled out.
//! The suites of the models run them.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, named_file, spec};
use launch::image::config_disk;
use launch::qemu::{Boot, Disk, Fault, Firmware, Machine, Nic, Spec, Vm};
use serde_json::Value;
use tempfile::NamedTempFile;

const CUTS: u32 = 6;

/// A model of disks.
#[derive(Clone, Copy)]
pub struct Model {
    /// Attaches a disk as number `n`.
    pub attach: fn(Disk, u8) -> Disk,
    /// End of the location of disk `n`.
    pub unit: fn(u8) -> String,
    /// QEMU's id of the controller.
    pub controller: &'static str,
    /// The notice that a pulled controller's disks give.
    pub pulled: &'static str,
    /// Largest block that QEMU's model can have.
    pub largest_block: u32,
    /// Whether the drive writes zeroes by itself. Otherwise a new volume takes as long as writing all of it.
    pub writes_zeroes: bool,
    /// Model name; empty if the disk reports none.
    pub model: &'static str,
}

impl Model {
    fn disk(&self, path: &Path, n: u8) -> Disk {
        (self.attach)(Disk::new(path), n)
    }

    fn config(&self, path: &Path) -> Disk {
        self.disk(path, 0).serial("isthmus-config")
    }

    /// A machine with a network interface and one disk.
    fn on(&self, disk: &NamedTempFile, block: u32) -> Result<Spec> {
        let disk = self.disk(disk.path(), 0).block_size(block);
        Ok(spec()?.nic(Nic::user()).append("isthmus.volume.0.size=1MiB").disk(disk))
    }

    fn blocks(&self) -> impl Iterator<Item = u32> + use<> {
        let largest = self.largest_block;
        [512, 4096].into_iter().filter(move |block| *block <= largest)
    }
}

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

pub fn drives_are_found_on_every_machine_with_pci(model: Model) -> Result<()> {
    for machine in [Machine::Pc, Machine::Q35] {
        let (one, two) = (disk(8)?, disk(16)?);
        let spec = spec()?
            .machine(machine)
            .disk(model.disk(one.path(), 0).serial("S1"))
            .disk(model.disk(two.path(), 1).block_size(model.largest_block));
        let mut vm = boot(spec)?;
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["size"] == 8 << 20 && disks[0]["logical_block"] == 512, "{disks}");
        let block = model.largest_block;
        ensure!(disks[1]["size"] == 16 << 20 && disks[1]["logical_block"] == block, "{disks}");
        ensure!(disks[0]["serial"] == "S1" && disks[0]["device"] == "serial:S1", "{disks}");
        for n in 0..2u8 {
            let location = disks[usize::from(n)]["location"].as_str().unwrap_or_default();
            let right = location.starts_with("pci:0000:") && location.ends_with(&(model.unit)(n));
            ensure!(right, "{disks}");
            ensure!(disks[usize::from(n)]["health"]["state"] == "works", "{disks}");
        }
        let name = disks[0]["model"].as_str().unwrap_or_default();
        ensure!(name.contains(model.model), "{disks}");
        vm.run("show log")?.lacks("ERROR")?.lacks("WARN")?;
    }
    Ok(())
}

/// A volume can use each name of a disk. Disks without a volume are not written to.
pub fn drives_are_volumes_by_their_names_and_others_are_left_alone(model: Model) -> Result<()> {
    let (one, two) = (disk(8)?, disk(16)?);
    let with = |name: &str| -> Result<Vm> {
        let words = format!("isthmus.volume.0.name=data isthmus.volume.0.disk={name}");
        boot(
            spec()?
                .nic(Nic::user())
                .append(&words)
                .disk(model.disk(one.path(), 0).serial("S1"))
                .disk(model.disk(two.path(), 1).serial("S2")),
        )
    };
    let mut vm = with("serial:S2")?;
    let disks = vm.run("show disks --json")?.json()?;
    let location = disks[1]["location"].as_str().context("a location")?.to_string();
    drop(vm);
    for name in ["serial:S2", &location] {
        let mut vm = with(name)?;
        let volumes = vm.run("volume list json")?.json()?;
        ensure!(volumes[0]["size"] == 16 << 20, "{name}: {volumes}");
        vm.run("export list")?.contains("data")?;
        let disks = vm.run("show disks --json")?.json()?;
        ensure!(disks[0]["use"] == "free" && disks[1]["use"] == "volume", "{disks}");
        vm.run("show log")?.lacks("ERROR")?;
    }
    let untouched = std::fs::read(one.path())?.iter().all(|byte| *byte == 0);
    ensure!(untouched, "a disk without a volume was written to");
    Ok(())
}

pub fn volumes_are_created_grown_and_deleted_and_survive_a_reboot(model: Model) -> Result<()> {
    for block in model.blocks() {
        let disk = disk(64)?;
        let boot = || boot(model.on(&disk, block)?);
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

/// Names and MiB of the volumes on disks.
fn sizes(vm: &mut Vm) -> Result<Vec<(String, u64)>> {
    let list = vm.run("volume list json")?.json()?;
    let list = list.as_array().context("a list")?;
    let on_disk = list.iter().filter(|volume| volume["disk"] == 0);
    let row = |volume: &Value| {
        let name = volume["name"].as_str().unwrap_or_default().to_string();
        (name, volume["size"].as_u64().unwrap_or(0) >> 20)
    };
    Ok(on_disk.map(row).collect())
}

/// SIGKILL ends QEMU at a random moment around each change.
pub fn power_cut_leaves_a_change_done_or_not_done(model: Model) -> Result<()> {
    let disk = disk(64)?;
    let on = || model.on(&disk, model.largest_block);
    boot(on()?)?.run("volume create a size=1MiB disk=0")?.lacks("error")?;
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = seed;
    let mut size = 1;
    for round in 1..=CUTS {
        let mut vm = boot(on()?)?;
        vm.serial.send(format!("volume grow a size={}MiB\r", size + 1).as_bytes())?;
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(random >> 33 & 0x3fff));
        vm.kill();
        let found = sizes(&mut boot(on()?)?)?;
        ensure!(
            found == [("a".into(), size)] || found == [("a".into(), size + 1)],
            "round {round}, seed {seed}: {found:?}"
        );
        size = found[0].1;
    }
    println!("seed {seed}: {} of {CUTS} changes were done", size - 1);
    Ok(())
}

pub fn configuration_is_kept_on_a_drive(model: Model) -> Result<()> {
    let disk = config("old")?;
    let boot = || boot(spec()?.disk(model.config(disk.path())));
    let mut vm = boot()?;
    hostname_is(&mut vm, "old")?;
    vm.run("show disks --json")?.contains("\"use\":\"configuration\"")?;
    vm.run("set system.hostname new")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    hostname_is(&mut boot()?, "new")
}

pub fn errors_of_the_drive_are_reported_and_keep_the_old_document(model: Model) -> Result<()> {
    for event in ["write_aio", "flush_to_disk"] {
        let disk = config("old")?;
        let fault = Fault { event, sector: None, once: false };
        let mut vm = boot(spec()?.disk(model.config(disk.path()).fault(fault)))?;
        vm.run("set system.hostname new")?.lacks("error")?;
        vm.run("save")?.contains("error")?;
        vm.run("show disks --json")?.contains("\"state\":\"works\"")?;
        drop(vm);
        if event == "write_aio" {
            hostname_is(&mut boot(spec()?.disk(model.config(disk.path())))?, "old")?;
        }
    }
    let disk = config("old")?;
    let fault = Fault { event: "read_aio", sector: None, once: false };
    let mut vm = boot(spec()?.disk(model.config(disk.path()).fault(fault)))?;
    vm.run("show log")?.contains("disk0")?;
    hostname_is(&mut vm, "isthmus")
}

/// A surprise removal: the hotplug controller of `pc` ejects the slot, as firmware does.
pub fn pulled_out_controller_is_reported_and_the_rest_works(model: Model) -> Result<()> {
    let (gone, stays) = (disk(64)?, disk(8)?);
    let mut vm = boot(
        spec()?
            .machine(Machine::Pc)
            .nic(Nic::user())
            .append("isthmus.volume.0.size=1MiB")
            .disk(model.disk(gone.path(), 0).serial("GONE"))
            .disk(Disk::new(stays.path()).nvme(1, 1).serial("STAYS")),
    )?;
    let disks = vm.run("show disks --json")?.json()?;
    let list = disks.as_array().context("a list")?;
    let number = |serial: &str| list.iter().position(|disk| disk["serial"] == serial);
    let (gone, stays) = (number("GONE").context("GONE")?, number("STAYS").context("STAYS")?);
    vm.run(&format!("volume create a size=8MiB disk={gone}"))?.lacks("error")?;
    let location = disks[gone]["location"].as_str().context("a location")?;
    vm.pull_out(model.controller, location)?;
    until(&mut vm, "show log", model.pulled)?;
    vm.run("show log")?.contains("serial:GONE")?;
    until(&mut vm, "show disks --json", "does not work")?;
    vm.run("volume grow a size=9MiB")?.contains("error")?;
    vm.run(&format!("volume create b size=1MiB disk={stays}"))?.contains("volume b has 1MiB")?;
    let disks = vm.run("show disks --json")?.json()?;
    ensure!(disks[stays]["health"]["state"] == "works", "{disks}");
    Ok(())
}

pub fn large_sparse_drive_holds_large_volumes(model: Model) -> Result<()> {
    let disk = disk(64 << 10)?;
    let on = || model.on(&disk, model.largest_block);
    if !model.writes_zeroes {
        let whole = on()?.append("isthmus.volume.1.name=a isthmus.volume.1.disk=0");
        boot(whole)?.run("volume list json")?.contains("68719476736")?;
        return Ok(());
    }
    let mut vm = boot(on()?)?;
    vm.run("volume create a size=60GiB disk=0")?.contains("volume a has 60GiB on disk 0")?;
    vm.run("volume create b size=1GiB disk=0")?.lacks("error")?;
    drop(vm);
    let found = sizes(&mut boot(on()?)?)?;
    ensure!(found == [("a".into(), 60 << 10), ("b".into(), 1 << 10)], "{found:?}");
    Ok(())
}

/// OVMF starts the image from the drive, and settings are saved there. Debian's OVMF has no driver for `pvscsi`.
pub fn image_boots_from_the_drive_and_saves_there(model: Model) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let own = directory.path().join("own.qcow2");
    std::fs::copy(named_file("ISTHMUS_QCOW2")?, &own)?;
    let spec = || Spec::new(Boot::OwnDisk(model.disk(&own, 0))).firmware(Firmware::Ovmf).as_told();
    let mut vm = boot(spec()?)?;
    vm.run("show disks --json")?.contains("\"use\":\"boot\"")?;
    vm.run("set system.hostname kept")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    hostname_is(&mut boot(spec()?)?, "kept")
}

/// Defines each case for a model.
macro_rules! cases {
    ($model:expr) => {
        crate::drives::cases!(
            @ $model,
            drives_are_found_on_every_machine_with_pci,
            drives_are_volumes_by_their_names_and_others_are_left_alone,
            volumes_are_created_grown_and_deleted_and_survive_a_reboot,
            power_cut_leaves_a_change_done_or_not_done,
            configuration_is_kept_on_a_drive,
            errors_of_the_drive_are_reported_and_keep_the_old_document,
            pulled_out_controller_is_reported_and_the_rest_works,
            large_sparse_drive_holds_large_volumes,
        );
    };
    (@ $model:expr, $($case:ident),* $(,)?) => {
        $(
            #[test]
            fn $case() -> anyhow::Result<()> {
                crate::drives::$case($model)
            }
        )*
    };
}
pub(crate) use cases;
