//! The QEMU command line of a [`Spec`].
//!
//! Devices are given as JSON where QEMU takes it (since 6.0), so that no path needs escaping.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::spec::{Accelerator, Boot, Firmware, Machine, Spec};
use super::{Disk, DiskModel, NicModel, serial};

/// QEMU's exit status after the guest wrote `code` to isa-debug-exit is `code * 2 + 1`.
const DEBUG_EXIT: &str = "isa-debug-exit,iobase=0xf4,iosize=0x04";

/// All that QEMU's seccomp filter can deny.
pub(super) const SANDBOX: [&str; 2] =
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];

/// Paths of OVMF's code and variables on Debian and most other distributions, newest layout first.
const OVMF: &[(&str, &str)] = &[
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
];

/// The value of `-smp`. Before QEMU 8.0 (commit "tcg: Do not elide memory barriers for !CF_PARALLEL in system mode")
/// TCG omits memory barriers on a machine that can never have a second processor. virtio devices, which run in another
/// thread, then miss notifications, and a queue stalls.
fn processors(spec: &Spec) -> String {
    match (spec.accelerator, spec.cpus) {
        (Accelerator::Tcg, 1) => "1,maxcpus=2".into(),
        (_, cpus) => cpus.to_string(),
    }
}

pub(super) fn command(spec: &Spec, directory: &Path) -> Result<Command> {
    let mut qemu = spec.program.command();
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    qemu.args(["-machine", machine(spec), "-cpu", &spec.cpu]);
    qemu.args(["-smp", &processors(spec), "-m", &format!("{}M", spec.memory_mib)]);
    qemu.args(["-accel", if spec.accelerator == Accelerator::Kvm { "kvm" } else { "tcg" }]);
    if !spec.reboots {
        qemu.arg("-no-reboot");
    }
    if !matches!(spec.machine, Machine::Pc | Machine::Q35) {
        // QEMU defaults to the legacy layout of virtio-mmio.
        qemu.args(["-global", "virtio-mmio.force-legacy=false"]);
    }
    // isa-debug-exit would end QEMU at a panic, and the machine could not restart.
    if !spec.reboots {
        qemu.args(["-device", DEBUG_EXIT]);
    }

    let socket = directory.join("qmp");
    qemu.arg("-chardev").arg(format!("socket,id=qmp,path={}", socket.display()));
    qemu.args(["-mon", "chardev=qmp,mode=control"]);
    for port in 0..spec.serial_ports {
        let socket = serial::socket_path(directory, port);
        qemu.arg("-chardev").arg(format!("socket,id=serial{port},path={}", socket.display()));
        match &spec.console {
            Some(devices) if port == 0 => qemu.args(devices),
            _ => qemu.args(["-serial", &format!("chardev:serial{port}")]),
        };
    }

    if spec.firmware == Firmware::Ovmf {
        qemu.args(ovmf(directory)?);
    }
    let mut disks: Vec<Disk> = Vec::new();
    match &spec.boot {
        Boot::Kernel { elf, append, initrd } => {
            qemu.arg("-kernel").arg(elf).arg("-append").arg(append);
            if let Some(initrd) = initrd {
                qemu.arg("-initrd").arg(initrd);
            }
        }
        Boot::Disk(path) => disks.push(Disk::new(path).read_only()),
        Boot::OwnDisk(disk) => disks.push(disk.clone()),
        Boot::Iso(path) => {
            qemu.arg("-cdrom").arg(path);
        }
        // An option of the network interface, below.
        Boot::Network { .. } => {}
    }
    if let Some(toml) = &spec.config {
        let file = directory.join("config.toml");
        fs::write(&file, toml).with_context(|| format!("could not write {}", file.display()))?;
        qemu.arg("-fw_cfg").arg(format!("name=opt/isthmus/config,file={}", file.display()));
    }

    let bus = if matches!(spec.machine, Machine::Pc | Machine::Q35) { "pci" } else { "device" };
    let (nic_model, disk_model) = match bus {
        "pci" => (spec.nic_model, spec.disk_model),
        _ => (NicModel::Virtio, DiskModel::Virtio),
    };
    for bridge in &spec.bridges {
        qemu.args(["-device", bridge]);
    }
    for (index, (nic, model)) in spec.nics.iter().enumerate() {
        let model = model.unwrap_or(nic_model);
        let mut netdev = nic.netdev(index);
        let boots = match &spec.boot {
            Boot::Network { directory, file } if index == 0 => {
                netdev["tftp"] = json!(directory);
                netdev["bootfile"] = json!(file);
                true
            }
            _ => false,
        };
        qemu.args(["-netdev", &netdev.to_string()]);
        let mac = format!("52:54:00:12:34:{:02x}", usize::from(spec.first_mac) + index);
        let mut device = json!({
            "driver": model.driver(bus), "netdev": format!("net{index}"), "mac": mac,
        });
        if let Some((_, bus)) = spec.nic_buses.iter().find(|(nic, _)| *nic == index) {
            device["bus"] = json!(bus);
        } else if model == NicModel::Igb {
            // Its virtual functions take slots as well: 16 and 17 above its own.
            device["addr"] = json!(format!("{:#x}", 8 + 2 * index));
        }
        if boots {
            device["bootindex"] = json!(0);
        } else if bus == "pci" {
            device["romfile"] = json!(""); // not a boot device: no boot ROM
        }
        qemu.args(["-device", &device.to_string()]);
    }
    disks.extend(spec.disks.iter().cloned());
    add_disks(&mut qemu, disks, disk_model, bus);
    if !spec.models.is_empty() {
        // Memory that the models' process can map. Without `share` it would read zeroes, and no error would occur.
        let memory = json!({
            "qom-type": "memory-backend-memfd", "id": "memory", "share": true,
            "size": u64::from(spec.memory_mib) << 20,
        });
        qemu.args(["-object", &memory.to_string(), "-machine", "memory-backend=memory"]);
    }
    for socket in &spec.models {
        // Longer than QEMU's 5 s, after which the device of a slow model would be lost for good.
        let device = json!({
            "driver": "vfio-user-pci", "x-msg-timeout": 60_000,
            "socket": {"type": "unix", "path": socket},
        });
        qemu.args(["-device", &device.to_string()]);
    }
    qemu.args(&spec.extra);
    Ok(qemu)
}

/// Adds the disks, each with its controller and rate limit, if it has them. `bus` is that of virtio devices.
fn add_disks(qemu: &mut Command, disks: Vec<Disk>, model: DiskModel, bus: &str) {
    let numbered = disks.into_iter().enumerate();
    let disks: Vec<Disk> = numbered.map(|(index, disk)| disk.of(model, index)).collect();
    if disks.iter().any(Disk::is_scsi) {
        qemu.args(["-device", &format!("virtio-scsi-{bus},id=scsi")]);
    }
    if disks.iter().any(Disk::is_ahci) {
        qemu.args(["-device", "ich9-ahci,id=ahci0"]);
    }
    if disks.iter().any(Disk::is_pvscsi) {
        qemu.args(["-device", "pvscsi,id=pvscsi0"]);
    }
    let mut controllers: Vec<u8> = Vec::new();
    for (index, disk) in disks.iter().enumerate() {
        if let Some(controller) = disk.nvme_controller()
            && !controllers.contains(&controller)
        {
            controllers.push(controller);
            qemu.args(["-device", &disk.nvme_device(controller).to_string()]);
        }
        if let Some(group) = disk.throttle_group(index) {
            qemu.args(["-object", &group.to_string()]);
        }
        qemu.args(["-blockdev", &disk.blockdev(index).to_string()]);
        let device = disk.device(bus, index);
        qemu.args(["-device", &device.to_string()]);
    }
}

fn machine(spec: &Spec) -> &'static str {
    match spec.machine {
        Machine::Pc => "pc",
        Machine::Q35 => "q35",
        Machine::Microvm => "microvm",
        Machine::MicrovmNoAcpi => "microvm,acpi=off",
    }
}

/// The flash chips with OVMF's code and a fresh copy of its variables.
fn ovmf(directory: &Path) -> Result<Vec<String>> {
    let Some((code, template)) = OVMF.iter().find(|(code, _)| Path::new(code).exists()) else {
        bail!("no OVMF firmware at {}: install package ovmf (./isthmus setup)", OVMF[0].0);
    };
    let variables: PathBuf = directory.join("ovmf-variables");
    fs::copy(template, &variables).with_context(|| format!("could not copy {template}"))?;
    Ok(vec![
        "-drive".into(),
        format!("if=pflash,format=raw,readonly=on,file={code}"),
        "-drive".into(),
        format!("if=pflash,format=raw,file={}", variables.display()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxed_qemu_denies_everything_its_filter_can() {
        let directory = Path::new("/nowhere");
        let words = |spec: &Spec| -> Vec<String> {
            let command = command(spec, directory).expect("nothing is read or written");
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
        };
        let spec = Spec::kernel("isthmus.elf").passed_through("0000:03:00.0");
        assert!(!words(&spec).contains(&"-sandbox".into()));
        let words = words(&spec.sandboxed());
        let at = words.iter().position(|word| word == "-sandbox").expect("the option is present");
        for denied in ["obsolete", "elevateprivileges", "spawn", "resourcecontrol"] {
            assert!(words[at + 1].contains(&format!("{denied}=deny")), "{words:?}");
        }
    }
}
