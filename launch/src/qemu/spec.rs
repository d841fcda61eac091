//! The description of a machine to start, in QEMU's terms.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{Disk, DiskModel, Nic, NicModel, Program, Vm, arguments};

/// QEMU's machine models that the appliance boots on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// `pc`: i440FX, PCI by ports CF8/CFC.
    Pc,
    /// `q35`: PCI Express with ECAM.
    Q35,
    /// `microvm`: no PCI, devices on virtio-mmio.
    Microvm,
    /// `microvm` without ACPI tables.
    MicrovmNoAcpi,
}

/// The machine's firmware. `Boot::Kernel` does not run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// SeaBIOS (qboot on microvm), which QEMU includes.
    Bios,
    /// OVMF (UEFI) from package `ovmf`.
    Ovmf,
}

/// The boot source.
#[derive(Clone, Debug)]
pub enum Boot {
    /// `-kernel`: an ELF with a PVH note (or a Linux kernel), with its command line.
    Kernel {
        /// The ELF.
        elf: PathBuf,
        /// The kernel command line.
        append: String,
        /// A module or initial RAM disk.
        initrd: Option<PathBuf>,
    },
    /// A disk image (raw, or qcow2 by its name), attached read-only as the first virtio disk.
    Disk(PathBuf),
    /// The first disk, with its own options: the guest may write to it.
    OwnDisk(Disk),
    /// A CD-ROM image.
    Iso(PathBuf),
    /// The first network interface, which must be [`Nic::user`]: DHCP offers its boot ROM this file.
    Network {
        /// The directory that QEMU's TFTP server serves.
        directory: PathBuf,
        /// The file's name in the directory, or a URL, which the boot ROM (iPXE) accepts as well.
        file: String,
    },
}

/// How QEMU executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// Translation: slow, and the same on every host.
    Tcg,
    /// The host's virtualisation.
    Kvm,
}

/// A machine to start. [`Spec::new`] is a q35 with 128 MiB, one CPU, no devices, under TCG.
#[derive(Clone, Debug)]
pub struct Spec {
    pub(super) program: Program,
    pub(super) boot: Boot,
    pub(super) machine: Machine,
    pub(super) firmware: Firmware,
    pub(super) accelerator: Accelerator,
    pub(super) cpu: String,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    pub(super) bridges: Vec<String>,
    pub(super) nics: Vec<(Nic, Option<NicModel>)>,
    /// The PCI bus of each interface that was added with one, by the number of the interface.
    pub(super) nic_buses: Vec<(usize, String)>,
    pub(super) nic_model: NicModel,
    pub(super) disk_model: DiskModel,
    pub(super) first_mac: u8,
    pub(super) disks: Vec<Disk>,
    pub(super) config: Option<String>,
    pub(super) reboots: bool,
    pub(super) serial_ports: usize,
    pub(super) console: Option<Vec<String>>,
    pub(super) models: Vec<PathBuf>,
    pub(super) extra: Vec<OsString>,
}

impl Spec {
    /// A machine that boots `boot`.
    pub fn new(boot: Boot) -> Spec {
        Spec {
            program: Program::Installed,
            boot,
            machine: Machine::Q35,
            firmware: Firmware::Bios,
            accelerator: Accelerator::Tcg,
            cpu: "max".into(),
            cpus: 1,
            memory_mib: 128,
            bridges: Vec::new(),
            nics: Vec::new(),
            nic_buses: Vec::new(),
            nic_model: NicModel::Virtio,
            disk_model: DiskModel::Virtio,
            first_mac: 0x56,
            disks: Vec::new(),
            config: None,
            reboots: false,
            serial_ports: 1,
            console: None,
            models: Vec::new(),
            extra: Vec::new(),
        }
    }

    /// Sets the models of network interfaces and disks from the environment, if set there: `ISTHMUS_NIC` names a
    /// [`NicModel`], `ISTHMUS_DISK` a [`DiskModel`]. A machine with `e1000e` and `nvme` has no virtio device.
    pub fn as_told(self) -> Result<Spec> {
        let value_of = |variable| std::env::var(variable).ok();
        let mut spec = self;
        if let Some(name) = value_of("ISTHMUS_NIC") {
            let model = NicModel::named(&name).context(
                "ISTHMUS_NIC must be virtio, e1000e, igb, vmxnet3, e1000 or e1000-82545em",
            )?;
            spec = spec.nic_model(model);
            if model == NicModel::Igb {
                spec = spec.program(Program::with_vfio_user()?);
            }
        }
        if let Some(name) = value_of("ISTHMUS_DISK") {
            spec.disk_model = DiskModel::named(&name)
                .context("ISTHMUS_DISK must be virtio, nvme, ahci or pvscsi")?;
        }
        Ok(spec)
    }

    /// A machine that boots the ELF at `elf` directly, with an empty command line.
    pub fn kernel(elf: impl Into<PathBuf>) -> Spec {
        Spec::new(Boot::Kernel { elf: elf.into(), append: String::new(), initrd: None })
    }

    /// Adds words to the kernel command line.
    ///
    /// # Panics
    /// If the machine does not boot with `-kernel`: other sources have the command line in the image.
    pub fn append(mut self, words: &str) -> Spec {
        let Boot::Kernel { append, .. } = &mut self.boot else {
            panic!("only Boot::Kernel has a command line")
        };
        if !append.is_empty() {
            append.push(' ');
        }
        append.push_str(words);
        self
    }

    /// Boots another ELF, with the same command line.
    pub fn elf(self, path: impl Into<PathBuf>) -> Spec {
        match self.boot {
            Boot::Kernel { append, initrd, .. } => {
                Spec { boot: Boot::Kernel { elf: path.into(), append, initrd }, ..self }
            }
            _ => Spec::kernel(path),
        }
    }

    /// Sets the machine model.
    pub fn machine(self, machine: Machine) -> Spec {
        Spec { machine, ..self }
    }

    /// Sets the firmware.
    pub fn firmware(self, firmware: Firmware) -> Spec {
        Spec { firmware, ..self }
    }

    /// Sets how QEMU executes the guest.
    pub fn accelerator(self, accelerator: Accelerator) -> Spec {
        Spec { accelerator, ..self }
    }

    /// Sets QEMU's CPU model (`max`, `qemu64,-rdrand`).
    pub fn cpu(self, model: &str) -> Spec {
        Spec { cpu: model.into(), ..self }
    }

    /// Sets the number of CPUs.
    pub fn cpus(self, cpus: u32) -> Spec {
        Spec { cpus, ..self }
    }

    /// Sets the size of RAM in MiB.
    pub fn memory(self, mib: u32) -> Spec {
        Spec { memory_mib: mib, ..self }
    }

    /// Adds a network interface. MAC addresses count up from 52:54:00:12:34:56, QEMU's default, unless
    /// [`Spec::first_mac`] sets another.
    pub fn nic(mut self, nic: Nic) -> Spec {
        self.nics.push((nic, None));
        self
    }

    /// Adds a network interface of this model.
    pub fn nic_of(mut self, model: NicModel, nic: Nic) -> Spec {
        self.nics.push((nic, Some(model)));
        self
    }

    /// Adds a PCI bridge, as the value of QEMU's `-device`. Bridges precede all other devices.
    pub fn bridge(mut self, device: &str) -> Spec {
        self.bridges.push(device.into());
        self
    }

    /// Adds a network interface on the PCI bus of this name.
    pub fn nic_on(mut self, bus: &str, nic: Nic) -> Spec {
        self.nic_buses.push((self.nics.len(), bus.into()));
        self.nic(nic)
    }

    /// Sets the model of network interfaces that were added without one. On a machine without PCI network interfaces
    /// and disks are always virtio.
    pub fn nic_model(self, nic_model: NicModel) -> Spec {
        Spec { nic_model, ..self }
    }

    /// Sets the model of disks that do not select one.
    pub fn disk_model(self, disk_model: DiskModel) -> Spec {
        Spec { disk_model, ..self }
    }

    /// Sets the last byte of the first interface's MAC address, so that machines on one wire differ.
    pub fn first_mac(self, last_byte: u8) -> Spec {
        Spec { first_mac: last_byte, ..self }
    }

    /// Adds a disk.
    pub fn disk(mut self, disk: Disk) -> Spec {
        self.disks.push(disk);
        self
    }

    /// Passes a configuration document by fw_cfg, as `opt/isthmus/config`.
    pub fn config(self, toml: &str) -> Spec {
        Spec { config: Some(toml.into()), ..self }
    }

    /// Restarts the machine when the guest resets it, instead of ending QEMU. The machine then has no
    /// isa-debug-exit, so that QEMU's exit status is always 0.
    pub fn reboots(self) -> Spec {
        Spec { reboots: true, ..self }
    }

    /// Sets the number of serial ports; COM1 is the console.
    pub fn serial_ports(self, count: usize) -> Spec {
        Spec { serial_ports: count, ..self }
    }

    /// Replaces COM1 by these devices, as arguments of QEMU: the console's `chardev` is `serial0`. Without devices the
    /// machine has no console.
    pub fn console_on<S: Into<String>>(self, devices: impl IntoIterator<Item = S>) -> Spec {
        Spec { console: Some(devices.into_iter().map(Into::into).collect()), ..self }
    }

    /// Sets the QEMU that runs the machine.
    pub fn program(self, program: Program) -> Spec {
        Spec { program, ..self }
    }

    /// Adds a PCI function that another process serves over vfio-user at this socket. Needs the QEMU of
    /// [`Program::with_vfio_user`] and a q35: other machines have no extended configuration space.
    pub fn vfio_user(mut self, socket: &std::path::Path) -> Spec {
        self.models.push(socket.into());
        self
    }

    /// Passes through a PCI function of the host that is bound to vfio-pci, such as `0000:03:00.0`. Needs PCI.
    pub fn passed_through(self, function: &str) -> Spec {
        // Not a boot device, so its ROM is not needed.
        let device = serde_json::json!({"driver": "vfio-pci", "host": function, "rombar": 0});
        self.extra(["-device".to_string(), device.to_string()])
    }

    /// Keeps QEMU from starting programs, from raising its privileges, and from system calls that it does not need. For
    /// a QEMU that root starts with devices of the host.
    pub fn sandboxed(self) -> Spec {
        self.extra(super::arguments::SANDBOX)
    }

    /// The QEMU command as a shell line. The directory of its sockets does not exist any more.
    pub fn shown(&self) -> Result<String> {
        let directory = tempfile::Builder::new().prefix("isthmus-").tempdir()?;
        Ok(crate::command::shell_line(&self.command(directory.path())?))
    }

    /// Adds QEMU arguments verbatim.
    pub fn extra<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Spec {
        self.extra.extend(words.into_iter().map(Into::into));
        self
    }

    /// Starts QEMU and connects to it. Does not wait for the guest.
    pub fn start(self) -> Result<Vm> {
        Vm::start(&self)
    }

    /// The QEMU command, with its sockets and small files in `directory`.
    pub(super) fn command(&self, directory: &std::path::Path) -> Result<Command> {
        arguments::command(self, directory)
    }
}
