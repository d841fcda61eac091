//! The configuration: every source, which one wins, and documents with mistakes.
use anyhow::{Result, ensure};
use boot_tests::{boot, image, spec};
use launch::image::{config_disk, configured};
use launch::qemu::{Disk, Nic, Spec, Vm};

#[test]
fn without_a_document_every_nic_asks_dhcp_and_there_is_a_volume() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    // The lease takes a moment.
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    vm.run("show interfaces")?.contains("10.0.2.15")?;
    vm.run("show volumes")?.contains("ram0")?;
    Ok(())
}

#[test]
fn the_image_carries_a_document() -> Result<()> {
    let elf = configured_image("[system]\nhostname = \"carried\"\n")?;
    let mut vm = boot(Spec::kernel(elf.path()))?;
    hostname_is(&mut vm, "carried")
}

#[test]
fn fw_cfg_wins_over_the_image() -> Result<()> {
    let elf = configured_image("[system]\nhostname = \"carried\"\n")?;
    let mut vm = boot(Spec::kernel(elf.path()).config("[system]\nhostname = \"passed\"\n"))?;
    hostname_is(&mut vm, "passed")
}

#[test]
fn the_config_disk_wins_over_fw_cfg() -> Result<()> {
    let disk = disk_with("[system]\nhostname = \"kept\"\n")?;
    let spec = spec()?.config("[system]\nhostname = \"passed\"\n").disk(Disk::new(disk.path()));
    hostname_is(&mut boot(spec)?, "kept")
}

#[test]
fn the_command_line_wins_over_the_config_disk() -> Result<()> {
    let disk = disk_with("[system]\nhostname = \"kept\"\n")?;
    let spec = spec()?.disk(Disk::new(disk.path())).append("isthmus.system.hostname=told");
    hostname_is(&mut boot(spec)?, "told")
}

#[test]
fn the_console_wins_over_the_command_line() -> Result<()> {
    let mut vm = boot(spec()?.append("isthmus.system.hostname=told"))?;
    vm.run("set system.hostname typed")?.lacks("error")?;
    hostname_is(&mut vm, "typed")
}

#[test]
fn sources_are_laid_over_each_other_key_by_key() -> Result<()> {
    let spec = spec()?.nic(Nic::user()).config("[[net]]\naddress = \"10.9.0.1/24\"\n");
    let mut vm = boot(spec.append("isthmus.net.0.mtu=1400"))?;
    vm.run("show interfaces")?.contains("10.9.0.1")?.contains("1400")?;
    Ok(())
}

#[test]
fn a_document_with_a_mistake_leaves_the_defaults_and_tells_the_line() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()).config("[system]\nhostnam = \"x\"\n"))?;
    vm.run("show log")?.contains("fw_cfg line 2")?.contains("hostname")?;
    hostname_is(&mut vm, "isthmus")
}

#[test]
fn a_document_that_is_no_toml_leaves_the_defaults() -> Result<()> {
    for text in ["]]]]", "\u{0}\u{1}\u{7f}", "[system", "a = ", &"x".repeat(20_000)] {
        let mut vm = boot(spec()?.config(text))?;
        vm.run("show log")?.contains("fw_cfg")?;
        hostname_is(&mut vm, "isthmus")?;
    }
    Ok(())
}

#[test]
fn a_wrong_setting_on_the_command_line_leaves_the_others() -> Result<()> {
    let words = "isthmus.system.hostname=told isthmus.net.0.mtu=7 isthmus.nonsense=1";
    let mut vm = boot(spec()?.nic(Nic::user()).append(words))?;
    vm.run("show log")?.contains("mtu")?.contains("nonsense")?;
    hostname_is(&mut vm, "told")
}

#[test]
fn a_wrong_setting_on_the_console_is_refused_with_what_is_accepted() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    vm.run("set net.0.mtu tall")?.contains("error")?.contains("accepted")?;
    vm.run("set net.0.mtuu 1400")?.contains("mtu")?;
    Ok(())
}

#[test]
fn mistakes_are_told_in_status_too() -> Result<()> {
    let port = launch::qemu::free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let _vm = boot(spec()?.nic(nic).config("[system]\nhostnam = \"x\"\n"))?;
    let answer = launch::http::get(([127, 0, 0, 1], port).into(), "/status")?;
    ensure!(answer.body.contains("fw_cfg line 2"), "/status says {}", answer.body);
    Ok(())
}

fn hostname_is(vm: &mut Vm, name: &str) -> Result<()> {
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["hostname"] == name, "the host is not called {name:?}: {version}");
    Ok(())
}

fn configured_image(text: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), configured(&std::fs::read(image()?)?, text)?)?;
    Ok(file)
}

fn disk_with(text: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), config_disk(Some(text))?)?;
    Ok(file)
}
