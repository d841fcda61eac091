//! Boot, shutdown, faults and panics of the image.
use anyhow::{Result, ensure};
use boot_tests::{boot, faulty, image, skip, spec, without_virtio};
use launch::qemu::{Accelerator, Disk, Nic, Vm, accelerator};

#[test]
fn prompt_is_reached_without_any_device() -> Result<()> {
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

/// The console, metrics and HTTP show the build of the image.
#[test]
fn shown_build_is_that_of_the_image() -> Result<()> {
    let port = launch::qemu::free_port()?;
    let mut vm = boot(spec()?.nic(Nic::User { forwards: vec![("tcp", port, 80)] }))?;
    let version = vm.run("show version --json")?.json()?;
    let word = |key: &str| version[key].as_str().unwrap_or_default().to_string();
    let (commit, build) = (word("commit"), word("build"));
    let symbols = boot_tests::image()?.with_extension("symbols");
    let symbols = launch::symbolize::Symbols::read(&std::fs::read(symbols)?)?;
    ensure!(build.len() >= 16 && build == symbols.build, "{build}, not {}", symbols.build);
    let digits = commit.trim_end_matches('+');
    let is_one = digits.len() >= 12 && digits.chars().all(|c| c.is_ascii_hexdigit());
    // The commit is unknown only in a build outside of a repository.
    let unknown = digits == "unknown" && launch::build::commit::of_tree() == "unknown";
    ensure!(is_one || unknown, "the commit is {commit:?}");
    let labels = format!("commit=\"{commit}\",build=\"{build}\"}} 1");
    let server = ([127, 0, 0, 1], port).into();
    let metrics = launch::http::get(server, "/metrics")?.body;
    ensure!(metrics.contains(&labels), "no {labels} in {metrics}");
    let status: serde_json::Value =
        serde_json::from_str(&launch::http::get(server, "/status")?.body)?;
    let status = status.to_string();
    for (key, value) in [("commit", &commit), ("build", &build)] {
        ensure!(status.contains(&format!("\"{key}\":\"{value}\"")), "{key} in {status}");
    }
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
    vm.reboot()?;
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
    fault("panic", &["panic", ".rs:", "called from 0x", "build"])
}

#[test]
fn memory_exhaustion_ends_in_a_panic() -> Result<()> {
    fault("memory", &["memory allocation of", "panicked: aborted", "called from 0x", "build"])
}

#[test]
fn the_shipped_image_has_no_faults_to_provoke() -> Result<()> {
    let words =
        ["pf", "gp", "panic", "null", "stack"].map(|name| format!("isthmus.test.fault={name}"));
    let mut vm = boot(spec()?.append(&words.join(" ")))?;
    vm.press("\x1c\x1d\r")?.contains("not ASCII text")?;
    vm.run("show crash")?.lacks("panic")?.lacks("exception")?;
    Ok(())
}

#[test]
fn panic_is_reported_from_memory_after_the_restart() -> Result<()> {
    let mut vm = boot(faulty()?.reboots())?;
    panic_now(&mut vm)?;
    vm.run("show log")?.contains("started again after")?.contains("panicked")?;
    let crash = vm.run("show crash --json")?.json()?;
    ensure!(crash[0]["number"] == 1 && crash[0]["in_a_row"] == 1, "{crash}");
    let text = crash[0]["text"].to_string();
    for wanted in ["panicked at", "called from 0x", "build ", "ready"] {
        ensure!(text.contains(wanted), "{wanted:?} is not in {text}");
    }
    vm.run("show version --json")?.contains("commit")?;
    // A second panic soon after counts as one in a row, and the restart is delayed.
    panic_now(&mut vm)?;
    let crash = vm.run("show crash --json")?.json()?;
    ensure!(crash[0]["number"] == 2 && crash[0]["in_a_row"] == 2, "{crash}");
    Ok(())
}

#[test]
fn a_panic_is_kept_on_the_configuration_disk_and_named_by_its_symbols() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), launch::image::config_disk(None)?)?;
    let words = "isthmus.system.on_panic=poweroff";
    let mut vm = boot(faulty()?.append(words).disk(boot_tests::keeps_configuration(disk.path())))?;
    vm.run("set system.hostname remembered")?.lacks("error")?;
    vm.run("save")?.contains("saved")?;
    vm.serial.send(b"\x1d")?;
    let status = vm.wait_exit()?;
    ensure!(status == (32 + 14 + 0x10) << 1 | 1, "QEMU's status is {status}");
    drop(vm);
    // A new machine, whose memory has no record.
    let port = launch::qemu::free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let mut vm = boot(spec()?.nic(nic).disk(boot_tests::keeps_configuration(disk.path())))?;
    vm.run("show version")?.contains("remembered")?;
    let crash = vm.run("show crash")?;
    crash.contains("page fault")?.contains("cr2 0000200000000000")?.contains("ready")?;
    // The record names the build that panicked, and its functions: the console's reader, and the loop that called it.
    let faulty = boot_tests::named_file(boot_tests::FAULTS)?;
    let symbols = std::fs::read(faulty.with_extension("symbols"))?;
    let symbols = launch::symbolize::Symbols::read(&symbols)?;
    crash.contains(&format!(", build {}", symbols.build))?;
    let named = symbols.name_all(&crash.text);
    for function in ["console_read+0x", "appliance::gateway::Gateway>::round+0x"] {
        ensure!(named.contains(function), "no {function} in {named}");
    }
    let metrics = launch::http::get(([127, 0, 0, 1], port).into(), "/metrics")?;
    ensure!(metrics.body.contains("isthmus_crashes_total 1"), "{}", metrics.body);
    ensure!(metrics.body.contains("isthmus_build_info{version=\""), "{}", metrics.body);
    let status = launch::http::get(([127, 0, 0, 1], port).into(), "/status")?;
    ensure!(status.body.contains("page fault") && status.body.contains("\"commit\""), "/status");
    Ok(())
}

#[test]
fn a_panic_is_recorded_on_a_disk_behind_a_scsi_controller() -> Result<()> {
    if without_virtio(
        "a panic that is recorded behind a SCSI controller",
        "the controller is virtio",
    )? {
        return Ok(());
    }
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), launch::image::config_disk(None)?)?;
    let scsi = || Disk::new(disk.path()).scsi().serial("isthmus-config");
    let mut vm = boot(faulty()?.append("isthmus.system.on_panic=poweroff").disk(scsi()))?;
    vm.serial.send(b"\x1c")?;
    vm.wait_for("recorded; see `show crash`")?;
    drop(vm);
    boot(spec()?.disk(scsi()))?.run("show crash")?.contains("panicked at")?;
    Ok(())
}

#[test]
fn on_panic_halt_halts_the_machine() -> Result<()> {
    let mut vm = boot(faulty()?.append("isthmus.system.on_panic=halt"))?;
    vm.serial.send(b"\x1c")?;
    vm.wait_for("isthmus: halted")?;
    ensure!(vm.is_running(), "the machine ended");
    Ok(())
}

#[test]
fn pvpanic_reports_a_panic_to_the_hypervisor() -> Result<()> {
    for (policy, event) in [("reboot", "GUEST_CRASHLOADED"), ("halt", "GUEST_PANICKED")] {
        let words = format!("isthmus.system.on_panic={policy}");
        let extra = ["-device", "pvpanic", "-action", "panic=none"];
        let mut vm = boot(faulty()?.reboots().append(&words).extra(extra))?;
        vm.serial.send(b"\x1c")?;
        vm.qmp.wait_event(event, std::time::Duration::from_secs(30))?;
    }
    Ok(())
}

/// Makes the appliance panic, and waits until it has restarted.
fn panic_now(vm: &mut Vm) -> Result<()> {
    vm.serial.send(b"\x1c")?;
    vm.wait_for("injected by the command line or a key")?;
    vm.wait_ready()?;
    Ok(())
}

/// The cleanup after a panic panics itself, or never ends: the machine restarts in both cases.
#[test]
fn restart_follows_a_failed_or_endless_panic_cleanup() -> Result<()> {
    for (key, says) in [(b"\x1e", "restarts in"), (b"\x1f", "peers not disconnected in time")] {
        let mut vm = boot(faulty()?.reboots())?;
        panic_now(&mut vm)?;
        vm.serial.send(key)?;
        vm.wait_for("injected by the command line or a key")?;
        vm.wait_for(says)?;
        vm.wait_ready()?;
        let crash = vm.run("show crash --json")?.json()?;
        ensure!(crash[0]["number"] == 2 && crash[0]["in_a_row"] == 2, "{crash}");
    }
    Ok(())
}

/// One line names what the processor lacks, whatever stage finds it.
#[test]
fn processors_that_are_too_old_are_refused_with_one_line() -> Result<()> {
    for (cpu, lack) in [
        ("qemu32", "no 64-bit mode"),
        ("qemu64,-nx", "no 64-bit mode with NX"),
        ("phenom", "no leaf 7"),
        ("Opteron_G3", "no leaf 7"),
    ] {
        let mut vm = spec()?.cpu(cpu).start()?;
        vm.wait_for("isthmus: cannot boot: the processor is too old: ")?;
        vm.wait_for(lack)?;
        ensure!(vm.wait_exit()? == REFUSED, "{cpu}: QEMU's status is not that of a refusal");
        let lines = vm.serial.tail().matches("isthmus:").count();
        ensure!(lines == 1, "{cpu}: {lines} lines");
    }
    Ok(())
}

#[test]
fn boot_is_refused_without_entropy() -> Result<()> {
    let mut vm = spec()?.cpu("qemu64,-rdrand,-rdseed").start()?;
    vm.wait_for("entropy")?;
    let status = vm.wait_exit()?;
    ensure!(status != OK, "QEMU's status is that of success");
    Ok(())
}

/// What the kernel would panic for is refused before it starts, by one line: a CPU without CPUID leaf 7, and memory that
/// does not suffice for its heap.
#[test]
fn machines_that_are_too_old_or_too_small_are_refused() -> Result<()> {
    let machines =
        [(spec()?.cpu("phenom"), "this CPU is too old"), (spec()?.memory(24), "at least 27 MiB")];
    for (machine, says) in machines {
        let mut vm = machine.start()?;
        vm.wait_for(says)?;
        ensure!(vm.wait_exit()? != OK, "QEMU's status is that of success");
    }
    Ok(())
}

/// QEMU's CPU without the hypervisor bit counts as bare metal, whose time-stamp counter is not invariant.
#[test]
fn a_clock_that_changes_its_rate_is_refused_on_metal() -> Result<()> {
    let mut vm = spec()?.cpu("max,-hypervisor").start()?;
    vm.wait_for("cannot start: no clock: this CPU's time-stamp counter changes its rate")?;
    ensure!(vm.wait_exit()? != OK, "QEMU's status is that of success");
    // With the hypervisor bit, the counter is accepted.
    boot(spec()?)?.run("show log")?.lacks("time-stamp counter")?;
    Ok(())
}

#[test]
fn virtio_rng_is_a_source_of_entropy() -> Result<()> {
    if without_virtio("virtio-rng as a source of entropy", "the machine has no virtio-rng")? {
        return Ok(());
    }
    boot(spec()?.cpu("qemu64,-rdrand,-rdseed").extra(["-device", "virtio-rng-pci"]))?;
    Ok(())
}

#[test]
fn image_boots_under_kvm_if_available() -> Result<()> {
    if accelerator(&image()?) == Accelerator::Tcg {
        return skip("boot under KVM", "KVM does not work on this machine");
    }
    boot(spec()?.accelerator(Accelerator::Kvm).cpu("host"))?;
    Ok(())
}

/// QEMU's status after a refusal by the boot stub: the guest writes 0x12 to isa-debug-exit.
const REFUSED: i32 = 0x12 << 1 | 1;

/// QEMU's status after an orderly end: the guest writes 0x10 to isa-debug-exit.
const OK: i32 = 0x10 << 1 | 1;

/// Injects a fault, and checks that these words are printed, in any case, and that the status is not success.
fn fault(name: &str, wanted: &[&str]) -> Result<()> {
    let mut vm = faulty()?.append(&format!("isthmus.test.fault={name}")).start()?;
    let status = vm.wait_exit()?;
    let printed = vm.serial.tail().to_lowercase();
    for wanted in wanted {
        ensure!(printed.contains(wanted), "{wanted:?} is not in:\n{printed}");
    }
    ensure!(status != OK && status & 1 == 1, "QEMU's status is {status}:\n{printed}");
    Ok(())
}

/// The image has no paths of the build machine, so a commit gives the same image in any folder.
#[test]
fn image_has_no_paths_of_the_build_machine() -> Result<()> {
    let bytes = std::fs::read(image()?)?;
    let here = launch::workspace::root().display().to_string();
    // The build replaces the path by "/isthmus".
    let here = Some(here.as_str()).filter(|here| *here != "/isthmus");
    for path in here.into_iter().chain(["/registry/src/", "/.cargo/"]) {
        let found = bytes.windows(path.len()).any(|window| window == path.as_bytes());
        ensure!(!found, "the image holds {path:?}");
    }
    Ok(())
}
