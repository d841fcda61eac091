//! Upgrades: releases are written into the slots of a disk and started on trial. A ready release is confirmed, any
//! other is rolled back. Runs with UEFI firmware, on the disk that `./isthmus image qcow2` makes.
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, named_file};
use ed25519_dalek::SigningKey;
use launch::qemu::{Boot, Disk, Firmware, Nic, NicModel, Spec, Vm};
use launch::release::{public, sign};
use object::elf::{FileHeader64, PT_LOAD};
use object::endian::LittleEndian;
use object::read::elf::{FileHeader, ProgramHeader};

/// Time limit for firmware and a boot of the appliance, on a busy host.
const START: Duration = Duration::from_secs(120);

/// Time stamp of releases here, later than the commit of the image under test, because older releases are refused.
const LATER: u64 = 4_000_000_000;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[5; 32])
}

fn image() -> Result<Vec<u8>> {
    Ok(std::fs::read(named_file("ISTHMUS_IMAGE")?)?)
}

/// The image with these bytes at its PVH entry point.
fn with_entry(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut image = image()?;
    let at = {
        let data = &image[..];
        let file = FileHeader64::<LittleEndian>::parse(data)?;
        let headers = file.program_headers(LittleEndian, data)?;
        let note = headers.iter().find_map(|header| {
            let mut notes = header.notes(LittleEndian, data).ok()??;
            loop {
                let note = notes.next().ok()??;
                if note.n_type(LittleEndian).0 == 18 && note.name() == b"Xen" {
                    break Some(u64::from(u32::from_le_bytes(*note.desc().first_chunk()?)));
                }
            }
        });
        let entry = note.context("the image has no PVH entry")?;
        let segment = headers.iter().find(|header| {
            let start = header.p_paddr(LittleEndian);
            header.p_type(LittleEndian) == PT_LOAD
                && (start..start + header.p_filesz(LittleEndian)).contains(&entry)
        });
        let segment = segment.context("the entry lies in no segment")?;
        segment.p_offset(LittleEndian) + entry - segment.p_paddr(LittleEndian)
    };
    image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    Ok(image)
}

/// A server's reply to a request.
#[derive(Clone)]
struct Answer {
    header: String,
    body: Vec<u8>,
    then: Then,
}

/// The server's behaviour after the body.
#[derive(Clone, Copy)]
enum Then {
    /// Closes the connection.
    Ends,
    /// Sends nothing until the client closes.
    Waits,
    /// Sends zeros until the client closes.
    GoesOn,
}

impl Answer {
    fn file(body: Vec<u8>) -> Answer {
        let length = body.len();
        let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        Answer { header, body, then: Then::Ends }
    }

    fn refusal(header: &str) -> Answer {
        Answer { header: header.into(), ..Answer::file(Vec::new()) }
    }
}

/// Starts an HTTP server that sends this reply to every request. Returns the URL for `upgrade`.
fn serve(answer: Answer) -> Result<String> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in server.incoming().map_while(Result::ok) {
            // Errors of aborted downloads are ignored.
            let _ = reply(stream, &answer);
        }
    });
    // 10.0.2.2 is the loopback address of the machine that QEMU runs on.
    Ok(format!("http://10.0.2.2:{port}/isthmus.release"))
}

fn reply(mut stream: TcpStream, answer: &Answer) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    stream.write_all(answer.header.as_bytes())?;
    stream.write_all(&answer.body)?;
    match answer.then {
        Then::Ends => Ok(()),
        // Until the client ends the connection.
        Then::Waits => Ok(drop(lines.next())),
        Then::GoesOn => loop {
            stream.write_all(&[0; 4096])?;
        },
    }
}

/// A machine with an installed disk.
struct Installed {
    _directory: tempfile::TempDir,
    disk: Disk,
}

impl Installed {
    fn new() -> Result<Installed> {
        let directory = tempfile::tempdir()?;
        let disk = directory.path().join("own.qcow2");
        std::fs::copy(named_file("ISTHMUS_QCOW2")?, &disk)?;
        Ok(Installed { _directory: directory, disk: Disk::new(disk) })
    }

    fn spec(&self) -> Spec {
        let spec = Spec::new(Boot::OwnDisk(self.disk.clone())).firmware(Firmware::Ovmf);
        spec.memory(256).nic(Nic::user()).reboots()
    }

    /// Boots, and sets the upgrade key.
    fn boot(&self) -> Result<Vm> {
        self.set_upgrade_key(boot(self.spec())?)
    }

    /// Sets and saves the upgrade key, so that releases signed with [`key`] are accepted.
    fn set_upgrade_key(&self, mut vm: Vm) -> Result<Vm> {
        has_its_address(&mut vm)?;
        let line = public(&key());
        let digits = line.split('"').nth(1).context("a key")?;
        vm.run(&format!("set system.upgrade_key {digits}"))?.contains("now")?;
        vm.run("set system.hostname kept")?.lacks("error")?;
        vm.run("save")?.contains("saved")?;
        Ok(vm)
    }
}

/// Waits until DHCP has answered.
fn has_its_address(vm: &mut Vm) -> Result<()> {
    let deadline = Instant::now() + START;
    while !vm.run("show interfaces --json")?.text.contains("10.0.2.15") {
        ensure!(Instant::now() < deadline, "no address");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Runs `upgrade`, and waits until the started release has its console.
fn upgrade(vm: &mut Vm, from: &str) -> Result<()> {
    // A lease is probed for half a second before it is used.
    has_its_address(vm)?;
    vm.serial.send(format!("upgrade {from}\r").as_bytes())?;
    vm.wait_for_within("written, and read back; restarting", START)?;
    vm.wait_for_within(" ready", START)?;
    vm.wait_ready()?;
    Ok(())
}

/// `show upgrade`: the running slot, whether it is on trial, and a failed slot.
fn slots(vm: &mut Vm) -> Result<serde_json::Value> {
    vm.run("show upgrade --json")?.json()
}

#[test]
fn release_runs_on_trial_and_is_confirmed_when_ready() -> Result<()> {
    let machine = Installed::new()?;
    let mut vm = machine.boot()?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image" && shown["trial"] == false, "{shown:#}");
    let first = serve(Answer::file(sign(&image()?, LATER + 100, "first", &key())))?;
    upgrade(&mut vm, &first)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["trial"] == true, "{shown:#}");
    ensure!(shown["slots"][0]["version"] == "first", "{shown:#}");
    vm.run("show version")?.contains("kept")?;
    vm.run("show log")?.contains("slot a (first) is on trial")?;
    vm.run(&format!("upgrade {first}"))?.contains("on trial")?;
    // It is confirmed automatically after half a minute.
    vm.wait_for_within("slot a is confirmed", START)?;
    vm.reboot()?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["trial"] == false, "{shown:#}");

    // The next release goes into the other slot, and the operator confirms it at once.
    let second = serve(Answer::file(sign(&image()?, LATER + 200, "second", &key())))?;
    upgrade(&mut vm, &second)?;
    vm.run("upgrade confirm")?.contains("the running release is confirmed")?;
    vm.wait_for("slot b is confirmed")?;
    // A power cut.
    drop(vm);
    let mut vm = boot(machine.spec())?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "b" && shown["trial"] == false, "{shown:#}");
    ensure!(shown["slots"][0]["version"] == "first", "{shown:#}");
    // An older release needs `force`.
    has_its_address(&mut vm)?;
    vm.run(&format!("upgrade {first}"))?.contains("older than the running release")?;
    upgrade(&mut vm, &format!("{first} force"))?;
    ensure!(slots(&mut vm)?["runs"] == "a");
    Ok(())
}

/// A release with a configuration in its image, and a plain one after it, which keeps the configuration in force.
#[test]
fn configuration_in_the_image_is_kept_by_an_upgrade() -> Result<()> {
    let machine = Installed::new()?;
    let key_line = public(&key());
    let document = format!(
        "[system]\nhostname = \"carried\"\n{key_line}\n[[export]]\nname = \"mine\"\nvolume = \"ram0\"\n\
         hosts = \"10.0.0.7\"\n"
    );
    let carries = launch::image::configured(&image()?, &document)?;
    let first = serve(Answer::file(sign(&carries, LATER + 100, "carries", &key())))?;
    let plain = serve(Answer::file(sign(&image()?, LATER + 200, "plain", &key())))?;
    // The VMM's document exists only for this boot, and no settings are saved.
    let mut vm = boot(machine.spec().config(&format!("[system]\n{key_line}\n")))?;
    has_its_address(&mut vm)?;
    upgrade(&mut vm, &first)?;
    vm.run("upgrade confirm")?.contains("the running release is confirmed")?;
    vm.wait_for("slot a is confirmed")?;
    drop(vm);
    // Without a configuration disk the settings would be lost.
    let nowhere = ["-fw_cfg", "name=opt/isthmus/config-disk,string=none"];
    let mut vm = boot(machine.spec().extra(nowhere))?;
    has_its_address(&mut vm)?;
    vm.run(&format!("upgrade {plain}"))?.contains("no config disk to keep it")?;
    upgrade(&mut vm, &format!("{plain} force"))?;
    vm.wait_for_within("no longer in force: export mine: hosts = 10.0.0.7/32", START)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "b" && shown["trial"] == true, "{shown:#}");
    drop(vm);
    // The trial has failed, and the previous release runs again.
    let mut vm = boot(machine.spec())?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["failed"] == "b", "{shown:#}");
    has_its_address(&mut vm)?;
    // With a configuration disk the release is confirmed automatically.
    upgrade(&mut vm, &plain)?;
    vm.run("show version")?.contains("carried")?;
    vm.run("show exports")?.contains("mine")?.contains("10.0.0.7/32")?.lacks("everybody")?;
    vm.wait_for_within("slot b is confirmed", START)?;
    Ok(())
}

/// A client has a whole disk as a volume, and copies the layout of the boot disk to it.
#[test]
fn a_disk_that_imitates_the_boot_disk_is_a_volume_and_has_no_slots() -> Result<()> {
    let machine = Installed::new()?;
    let file = machine._directory.path().join("client");
    let mut qemu_img = std::process::Command::new("qemu-img");
    qemu_img.args(["convert", "-O", "raw"]).arg(named_file("ISTHMUS_QCOW2")?).arg(&file);
    launch::command::run(&mut qemu_img)?;
    // The file system of the first partition is erased, so that firmware does not boot from it.
    let write = std::fs::File::options().write(true).open(&file)?;
    std::os::unix::fs::FileExt::write_all_at(&write, &[0; 64 << 10], 1 << 20)?;
    let mut vm = machine.boot()?;
    vm.run("set volume.1.name data")?.lacks("error")?;
    vm.run("set volume.1.disk serial:client")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    drop(vm);
    let release = serve(Answer::file(sign(&image()?, LATER + 100, "first", &key())))?;
    let mut vm = boot(machine.spec().disk(Disk::new(&file).serial("client")))?;
    has_its_address(&mut vm)?;
    vm.run("show version")?.contains("kept")?;
    let disks = vm.run("show disks --json")?.json()?;
    let uses: Vec<&str> =
        disks.as_array().context("disks")?.iter().filter_map(|disk| disk["use"].as_str()).collect();
    ensure!(uses == ["boot", "volume"], "{disks:#}");
    vm.run("show exports")?.contains("data")?;
    upgrade(&mut vm, &release)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["slots"][0]["version"] == "first", "{shown:#}");
    Ok(())
}

#[test]
fn release_that_does_not_start_is_rolled_back() -> Result<()> {
    let machine = Installed::new()?;
    let mut vm = machine.boot()?;
    // An invalid opcode without an exception handler resets the machine.
    let broken =
        serve(Answer::file(sign(&with_entry(&[0x0f, 0x0b])?, LATER + 100, "broken", &key())))?;
    upgrade(&mut vm, &broken)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image" && shown["failed"] == "a", "{shown:#}");
    vm.run("show log")?.contains("the trial of slot a (broken) failed")?;
    vm.run("show version")?.contains("kept")?;
    // The failure is reported once.
    vm.reboot()?;
    let shown = slots(&mut vm)?;
    ensure!(shown["failed"] == serde_json::Value::Null, "{shown:#}");
    // A good release is still accepted.
    let good = serve(Answer::file(sign(&image()?, LATER + 200, "good", &key())))?;
    upgrade(&mut vm, &good)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["trial"] == true, "{shown:#}");
    // A power failure before the release is confirmed.
    drop(vm);
    let mut vm = boot(machine.spec())?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image" && shown["failed"] == "a", "{shown:#}");
    Ok(())
}

#[test]
fn unsigned_or_incomplete_releases_are_refused() -> Result<()> {
    let machine = Installed::new()?;
    let mut vm = machine.boot()?;
    let good = sign(&image()?, LATER + 100, "good", &key());
    let changed = |at: usize| {
        let mut release = good.clone();
        release[at] ^= 1;
        Answer::file(release)
    };
    let other = SigningKey::from_bytes(&[6; 32]);
    let cut = Answer { body: good[..good.len() / 2].to_vec(), ..Answer::file(good.clone()) };
    let short = Answer::file(good[..good.len() - 1].to_vec());
    let stalls = Answer { then: Then::Waits, ..cut.clone() };
    let missing = Answer::refusal("HTTP/1.1 404 Not Found\r\n\r\n");
    let pieces = Answer::refusal("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    let endless = Answer {
        header: "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n".into(),
        then: Then::GoesOn,
        ..changed(good.len() - 1)
    };
    let long = Answer::file(sign(&vec![1; 16 << 20], LATER + 100, "long", &key()));
    let trials = [
        (Answer::file(b"<html>".repeat(1000)), "no release of the appliance"),
        (
            Answer::file(sign(&image()?, LATER + 100, "x", &other)),
            "another key than system.upgrade_key",
        ),
        // Older than the commit of the running factory image.
        (
            Answer::file(sign(&image()?, 1_000_000_000, "old", &key())),
            "older than the running release",
        ),
        (changed(25), "signature is wrong"),
        (changed(good.len() - 1), "not the one that was signed"),
        (cut, "closed the connection before the end of the file"),
        (short, "shorter than its header says"),
        (stalls.clone(), "in the last 20 s: less than 4 KiB a second"),
        (endless, "not the one that was signed"),
        (long, "a slot has room for 16773120"),
        (missing, "404 Not Found"),
        (pieces, "Transfer-Encoding"),
    ];
    for (answer, message) in trials {
        let from = serve(answer)?;
        vm.run(&format!("upgrade {from}"))?.contains("error")?.contains(message)?;
    }
    // Ctrl-C cancels a stalled download.
    vm.serial.send(format!("upgrade {}\r", serve(stalls)?).as_bytes())?;
    vm.wait_for("into slot a")?;
    vm.press("\x03")?.contains("cancelled")?;
    vm.run("upgrade http://10.0.2.2:1/x")?.contains("refuses the connection")?;
    vm.run("upgrade http://localhost/x")?.contains("the appliance itself")?;
    vm.run("upgrade serial:nobody")?.contains("there is no disk")?;
    vm.run("upgrade disk0")?.contains("error")?;
    vm.run("set system.hostname other")?.lacks("error")?;
    let from = serve(Answer::file(good.clone()))?;
    vm.run(&format!("upgrade {from}"))?.contains("unsaved")?;
    vm.run("set system.hostname kept")?.lacks("error")?;
    vm.run("unset system.upgrade_key")?.lacks("error")?;
    vm.run(&format!("upgrade {from} force"))?.contains("upgrade_key is not set")?;
    drop(vm);
    let mut vm = boot(machine.spec())?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image", "{shown:#}");
    ensure!(shown["slots"][0]["version"] == "", "an incomplete release is listed: {shown:#}");
    Ok(())
}

/// A release that runs without a network link, so that no operator could reach it.
#[test]
fn release_without_network_is_rolled_back() -> Result<()> {
    let machine = Installed::new()?;
    let mut vm = machine.boot()?;
    let release = serve(Answer::file(sign(&image()?, LATER + 100, "deaf", &key())))?;
    vm.serial.send(format!("upgrade {release}\r").as_bytes())?;
    vm.wait_for_within("written, and read back; restarting", START)?;
    let link = |vm: &mut Vm, up: bool| {
        vm.qmp.execute("set_link", serde_json::json!({"name": "net0", "up": up}))
    };
    link(&mut vm, false)?;
    vm.wait_for_within("slot a (deaf) is on trial", START)?;
    vm.wait_for_within("trial not ready: net0: no link", START)?;
    vm.wait_for_within("rolling back (net0: no link)", Duration::from_secs(500))?;
    link(&mut vm, true)?;
    vm.wait_for_within("the trial of slot a (", START)?;
    vm.wait_for_within(" ready", START)?;
    vm.wait_ready()?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image" && shown["failed"] == "a", "{shown:#}");
    Ok(())
}

/// A server with an NVMe drive, which is larger than the image written to it, and without virtio devices.
#[test]
fn an_installed_nvme_drive_boots_keeps_the_configuration_and_is_upgraded() -> Result<()> {
    let mut machine = Installed::new()?;
    let raw = machine._directory.path().join("drive");
    let mut qemu_img = std::process::Command::new("qemu-img");
    qemu_img.args(["convert", "-O", "raw"]).arg(named_file("ISTHMUS_QCOW2")?).arg(&raw);
    launch::command::run(&mut qemu_img)?;
    std::fs::File::options().write(true).open(&raw)?.set_len(4 << 30)?;
    machine.disk = Disk::new(raw).serial("SYSTEM").nvme(0, 1);
    let spec = || {
        let spec = Spec::new(Boot::OwnDisk(machine.disk.clone())).firmware(Firmware::Ovmf);
        spec.memory(256).nic_of(NicModel::E1000e, Nic::user()).reboots()
    };
    let mut vm = machine.set_upgrade_key(boot(spec())?)?;
    vm.run("show devices")?.contains("NVMe")?.lacks("virtio")?;
    let disks = vm.run("show disks --json")?.json()?;
    ensure!(disks[0]["use"] == "boot", "{disks:#}");
    vm.run("volume create x size=1MiB disk=0 force")?.contains("never a volume")?;
    let release = serve(Answer::file(sign(&image()?, LATER + 100, "first", &key())))?;
    upgrade(&mut vm, &release)?;
    vm.run("upgrade confirm")?.contains("the running release is confirmed")?;
    vm.wait_for("slot a is confirmed")?;
    drop(vm);
    let mut vm = boot(spec())?;
    ensure!(slots(&mut vm)?["runs"] == "a");
    vm.run("show version")?.contains("kept")?;
    Ok(())
}

/// The machine's watchdog resets a release that hangs at its first instruction.
fn a_watchdog_ends_a_trial_that_hangs(device: [&str; 2], name: &str) -> Result<()> {
    let machine = Installed::new()?;
    let mut vm = machine.set_upgrade_key(boot(machine.spec().extra(device))?)?;
    let shown = slots(&mut vm)?;
    ensure!(shown["watchdog"] == name && shown["watchdog_seconds"] == 0, "{shown:#}");
    // An endless loop.
    let hangs =
        serve(Answer::file(sign(&with_entry(&[0xeb, 0xfe])?, LATER + 100, "hangs", &key())))?;
    vm.serial.send(format!("upgrade {hangs}\r").as_bytes())?;
    vm.wait_for_within("written, and read back; restarting", START)?;
    // The boot stub sets two minutes, and TCO counts them twice.
    vm.wait_for_within("the trial of slot a (", Duration::from_secs(400))?;
    vm.wait_for_within(" ready", START)?;
    vm.wait_ready()?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "the disk's own image" && shown["failed"] == "a", "{shown:#}");
    // The watchdog is off unless `system.watchdog` sets a timeout.
    ensure!(shown["watchdog_seconds"] == 0, "{shown:#}");
    vm.run("set system.watchdog 5")?.contains("now")?;
    let shown = slots(&mut vm)?;
    ensure!(shown["watchdog_seconds"] == 5, "{shown:#}");
    // The appliance runs for longer than the timeout, because it keeps the watchdog alive.
    has_its_address(&mut vm)?;
    vm.run("ping 10.0.2.2 15")?.contains("15 of 15")?;
    Ok(())
}

#[test]
fn i6300esb_ends_a_trial_that_hangs() -> Result<()> {
    a_watchdog_ends_a_trial_that_hangs(["-device", "i6300esb"], "i6300esb")
}

#[test]
fn tco_ends_a_trial_that_hangs() -> Result<()> {
    a_watchdog_ends_a_trial_that_hangs(["-global", "ICH9-LPC.noreboot=false"], "iTCO_wdt")
}

#[test]
fn a_release_is_taken_from_a_disk() -> Result<()> {
    let machine = Installed::new()?;
    let file = tempfile::NamedTempFile::new()?;
    let mut release = sign(&image()?, LATER + 100, "carried", &key());
    release.resize(release.len().next_multiple_of(1 << 20), 0);
    std::fs::write(file.path(), release)?;
    drop(machine.boot()?);
    let stick = Disk::new(file.path()).serial("stick");
    let data = tempfile::NamedTempFile::new()?;
    data.as_file().set_len(8 << 20)?;
    let data = Disk::new(data.path()).serial("data");
    let mut vm = boot(machine.spec().disk(stick).disk(data))?;
    vm.run("volume create x size=1MiB disk=2")?.contains("on disk 2")?;
    vm.run("upgrade serial:data force")?.contains("is in use: volumes")?;
    upgrade(&mut vm, "serial:stick force")?;
    let shown = slots(&mut vm)?;
    ensure!(shown["runs"] == "a" && shown["slots"][0]["version"] == "carried", "{shown:#}");
    Ok(())
}
