//! Properties of real machines that usual virtual ones lack: many processors, much memory, several PCI host bridges and
//! segments, BARs above 4 GiB, IOMMUs that firmware left enabled, x2APIC, and power-off by ACPI only.
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, image, named_file, spec};
use launch::qemu::{Boot, Disk, Firmware, Machine, Nic, NicModel, Program, Spec, Vm};
use serde_json::{Value, json};

const FIRST: &str = "10.9.0.1";
const SECOND: &str = "10.8.0.1";

/// A port on the last core works, and cores without ports sleep.
#[test]
fn sixty_four_processors_work() -> Result<()> {
    let (mut vm, _first, mut second) = last_core(spec()?.cpus(64).memory(1024), 63)?;
    ensure!(vm.run("show version --json")?.json()?["cpus"] == 64, "not 64 processors");
    second.echo(SECOND, &[7; 1000])?;
    let loops = vm.run("show loops --json")?.json()?;
    ensure!(loops[63]["ports"] == json!(["net1"]), "{loops}");
    ensure!(loops[62]["state"] == "no loop: it has no port", "{loops}");
    Ok(())
}

/// The image touches only memory that it uses: the test machine has less than a tenth of 256 GiB.
#[test]
fn memory_of_256_gib_is_used() -> Result<()> {
    const MIB: u32 = 256 << 10;
    let backend = "memory-backend-ram,id=ram,size=256G,reserve=off";
    let mut peer = Peer::new(&["10.9.0.2/24"])?;
    let mut vm = boot(
        spec()?
            .memory(MIB)
            .extra(["-object", backend, "-machine", "memory-backend=ram"])
            .nic(peer.nic())
            .append(&format!("isthmus.net.0.address={FIRST}/24")),
    )?;
    peer.ping(FIRST, 1000)?;
    let memory = vm.run("show memory --json")?.json()?;
    ensure!(memory["arena"].as_u64().is_some_and(|bytes| bytes > 250 << 30), "{memory}");
    Ok(())
}

/// Processors with x2APIC, and one whose APIC ID does not fit into 8 bits.
#[test]
fn x2apic_and_apic_ids_above_255_work() -> Result<()> {
    let machine = || Ok::<_, anyhow::Error>(spec()?.program(Program::with_vfio_user()?));
    let (mut vm, _first, mut second) = last_core(machine()?.cpus(2), 1)?;
    vm.run("show log")?.contains("x2APIC")?;
    second.echo(SECOND, &[7; 1000])?;
    // The first socket has APIC IDs 0 to 255, so the second socket starts at 256.
    let far = "max-x86_64-cpu,socket-id=1,core-id=0,thread-id=0";
    let sparse = ["-smp", "1,maxcpus=512,sockets=2,cores=256", "-device", far];
    let (mut vm, _first, mut second) = last_core(machine()?.extra(sparse), 1)?;
    ensure!(vm.run("show version --json")?.json()?["cpus"] == 2, "not two processors");
    second.echo(SECOND, &[7; 1000])?;
    Ok(())
}

/// Boots the appliance with a port on this core, between two peers. Its loops halt as soon as they are idle.
fn last_core(spec: Spec, core: u32) -> Result<(Vm, Peer, Peer)> {
    let mut first = Peer::new(&["10.9.0.2/24"])?;
    let mut second = Peer::new(&["10.8.0.2/24"])?;
    let vm = boot(
        spec.nic(first.nic())
            .nic(second.nic())
            .append(&format!("isthmus.net.0.address={FIRST}/24"))
            .append(&format!("isthmus.net.1.address={SECOND}/24 isthmus.net.1.core={core}"))
            .append("isthmus.services.udp_echo=true isthmus.system.idle_after_us=0"),
    )?;
    first.ping(FIRST, 0)?;
    for _ in 0..20 {
        second.ping(SECOND, 100)?;
    }
    Ok((vm, first, second))
}

/// Devices behind another host bridge, and behind nested bridges.
#[test]
fn devices_of_other_host_bridges_and_behind_bridges_are_found() -> Result<()> {
    let express = [
        "pxb-pcie,id=far,bus_nr=64",
        "pcie-root-port,id=p1,bus=far,slot=1",
        "pcie-root-port,id=b0,bus=pcie.0,slot=2",
        "pcie-pci-bridge,id=b1,bus=b0",
        "pci-bridge,id=b2,bus=b1,chassis_nr=9,addr=1,shpc=off",
    ];
    let plain = [
        "pxb,id=p1,bus_nr=64",
        "pci-bridge,id=b1,bus=pci.0,chassis_nr=2",
        "pci-bridge,id=b2,bus=b1,chassis_nr=3,addr=1,shpc=off",
    ];
    for (machine, bridges) in [(Machine::Q35, &express[..]), (Machine::Pc, &plain)] {
        let (mut near, mut far) = (Peer::new(&["10.9.0.2/24"])?, Peer::new(&["10.8.0.2/24"])?);
        let spec = spec()?.machine(machine);
        let spec = bridges.iter().fold(spec, |spec, bridge| spec.bridge(bridge));
        let mut vm = boot(
            spec.nic_on("p1", far.nic())
                .nic_on("b2", near.nic())
                .append(&format!("isthmus.net.0.address={FIRST}/24"))
                .append(&format!("isthmus.net.1.address={SECOND}/24")),
        )?;
        // Interfaces are numbered by location: devices of the first host bridge come first.
        let shown = vm.run("show interfaces --json")?.json()?;
        ensure!(shown[0]["mac"] == "52:54:00:12:34:57", "{shown}");
        ensure!(shown[1]["mac"] == "52:54:00:12:34:56", "{shown}");
        near.ping(FIRST, 1000)?;
        far.ping(SECOND, 1000)?;
    }
    Ok(())
}

/// UEFI places 64-bit BARs above 4 GiB.
#[test]
fn registers_above_4_gib_are_used() -> Result<()> {
    let medium = tempfile::NamedTempFile::new()?;
    medium.as_file().set_len(64 << 20)?;
    let iso = Spec::new(Boot::Iso(named_file("ISTHMUS_ISO")?)).firmware(Firmware::Ovmf);
    let mut vm = boot(
        iso.memory(512)
            .bridge("pcie-root-port,id=p1,slot=2")
            .nic_on("p1", Nic::user())
            .disk(Disk::new(medium.path()).nvme(0, 1)),
    )?;
    vm.wait_for("10.0.2.15")?;
    let high = addresses(&mut vm)?.into_iter().filter(|address| *address >= 4 << 30).count();
    ensure!(high >= 2, "{:#x?}", addresses(&mut vm)?);
    vm.run("ping 10.0.2.2 3")?.contains("3 of 3 answered")?;
    vm.run("show disks")?.contains("nvme")?;
    vm.run("show log")?.lacks("ERROR")?;
    Ok(())
}

/// Addresses of all BARs, including those behind bridges.
fn addresses(vm: &mut Vm) -> Result<Vec<u64>> {
    fn walk(value: &Value, found: &mut Vec<u64>) {
        match value {
            Value::Array(all) => all.iter().for_each(|one| walk(one, found)),
            Value::Object(all) => {
                if all.contains_key("bar") {
                    found.extend(all.get("address").and_then(Value::as_u64));
                }
                all.values().for_each(|one| walk(one, found));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&vm.qmp.execute("query-pci", json!({}))?, &mut found);
    Ok(found)
}

/// A machine without ECAM, whose ACPI tables place the ECAM of another segment in the memory of an ivshmem device. The
/// image finds functions there that QEMU does not know.
#[test]
fn functions_of_another_segment_are_found() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    // Configuration space of buses 16 and 17: an Intel network interface without a driver, behind a bridge.
    let mut space = vec![0xff; 2 << 20];
    let mut function = |at: usize, id: u32, class: u32, header: u8, buses: u32| {
        space[at..at + 4096].fill(0);
        space[at..at + 4].copy_from_slice(&id.to_le_bytes());
        space[at + 8..at + 12].copy_from_slice(&(class << 8).to_le_bytes());
        space[at + 14] = header;
        space[at + 24..at + 28].copy_from_slice(&buses.to_le_bytes());
    };
    function(3 << 15, 0x3420_8086, 0x06_0400, 1, 0x11_11_10);
    function(1 << 20, 0x1592_8086, 0x02_0000, 0, 0);
    std::fs::write(path("space"), space)?;
    let backend = format!(
        "memory-backend-file,id=space,size=2M,share=on,mem-path={}",
        path("space").display()
    );
    let machine = |table: &std::path::Path| -> Result<Vm> {
        let table = format!("sig=MCFG,data={}", table.display());
        let device = "ivshmem-plain,memdev=space,master=on";
        let spec = Spec::kernel(image()?).machine(Machine::Pc);
        boot(spec.extra(["-object", &backend, "-device", device, "-acpitable", &table]))
    };
    // Firmware chooses the address of the memory, the same one at each boot.
    let table = path("mcfg");
    std::fs::write(&table, [0; 8])?;
    let found = addresses(&mut machine(&table)?)?;
    let place =
        found.into_iter().find(|address| address % (2 << 20) == 0).context("no BAR of 2 MiB")?;
    let mut mcfg = vec![0; 8];
    mcfg.extend((place - (16 << 20)).to_le_bytes());
    mcfg.extend([5, 0, 16, 17, 0, 0, 0, 0]);
    std::fs::write(&table, mcfg)?;
    let mut vm = machine(&table)?;
    vm.run("show devices")?.contains("pci:0005:10:03.0")?.contains("pci:0005:11:00.0")?;
    vm.run("show log")?.contains("pci:0005:11:00.0")?;
    Ok(())
}

/// Firmware with DMA protection leaves the IOMMU enabled. The test enables it through qtest before the first
/// instruction.
#[test]
fn an_iommu_that_was_left_on_is_turned_off() -> Result<()> {
    const REGISTERS: u64 = 0xfed9_0000;
    const COMMAND: u64 = REGISTERS + 0x18;
    const STATUS: u64 = REGISTERS + 0x1c;
    /// Sets the root table and interrupt remapping table pointers, then enables both. The tables are empty.
    const COMMANDS: [u32; 3] = [1 << 30, 1 << 24, 1 << 31 | 1 << 25];
    let directory = tempfile::tempdir()?;
    let listener = UnixListener::bind(directory.path().join("qtest"))?;
    let qtest = format!("unix:{}", directory.path().join("qtest").display());
    let mut peer = Peer::new(&["10.9.0.2/24"])?;
    let mut vm = spec()?
        .nic_model(NicModel::E1000e)
        .nic(peer.nic())
        .append(&format!("isthmus.net.0.address={FIRST}/24"))
        .extra(["-device", "intel-iommu,intremap=on"])
        .extra(["-S", "-qtest", &qtest, "-qtest-log", "/dev/null"])
        .start()?;
    let mut registers = BufReader::new(listener.accept()?.0);
    let mut ask = |words: String| -> Result<String> {
        writeln!(registers.get_mut(), "{words}")?;
        let mut line = String::new();
        registers.read_line(&mut line)?;
        ensure!(line.starts_with("OK"), "{words}: {line}");
        Ok(line)
    };
    for command in COMMANDS {
        ask(format!("writel {COMMAND:#x} {command:#x}"))?;
    }
    let on = ask(format!("readl {STATUS:#x}"))?;
    ensure!(on.contains("c3000000") || on.contains("C3000000"), "{on}");
    vm.qmp.execute("cont", json!({}))?;
    vm.wait_ready()?;
    vm.run("show log")?.contains("IOMMU at 0xfed90000: firmware left it enabled: disabled now")?;
    peer.ping(FIRST, 1000)?;
    let off = ask(format!("readl {STATUS:#x}"))?;
    ensure!(off.contains("0x0000000041000000"), "{off}");
    Ok(())
}

/// Power-off and reboot by ACPI, on machines without isa-debug-exit.
#[test]
fn acpi_switches_the_machine_off_and_on_again() -> Result<()> {
    let uefi = || {
        let iso = named_file("ISTHMUS_ISO")?;
        Ok::<_, anyhow::Error>(Spec::new(Boot::Iso(iso)).firmware(Firmware::Ovmf).memory(512))
    };
    let on = |machine| Ok::<_, anyhow::Error>(spec()?.machine(machine));
    for spec in [on(Machine::Pc)?, on(Machine::Q35)?, on(Machine::Microvm)?, uefi()?] {
        // `reboots` removes isa-debug-exit.
        let mut vm = boot(spec.reboots())?;
        vm.reboot()?;
        vm.serial.send(b"poweroff\r")?;
        let event = vm.qmp.wait_event("SHUTDOWN", Duration::from_secs(30))?;
        ensure!(event["data"]["reason"] == "guest-shutdown", "{event}");
        ensure!(vm.wait_exit()? == 0, "QEMU's status is not 0");
    }
    Ok(())
}

/// The power button (`virsh shutdown`, `qm shutdown`) is an orderly power-off, also while the loop is at rest.
#[test]
fn power_button_is_an_orderly_poweroff() -> Result<()> {
    for machine in [Machine::Pc, Machine::Q35] {
        // `reboots` removes isa-debug-exit.
        let mut vm = boot(spec()?.machine(machine).reboots())?;
        vm.run("show version")?;
        vm.qmp.execute("system_powerdown", json!({}))?;
        vm.wait_for("power button: poweroff")?;
        let event = vm.qmp.wait_event("SHUTDOWN", Duration::from_secs(30))?;
        ensure!(event["data"]["reason"] == "guest-shutdown", "{event}");
        ensure!(vm.wait_exit()? == 0, "QEMU's status is not 0");
    }
    Ok(())
}
