//! Network interfaces and disks of a machine.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::CachedDisk;

/// The backend of a network interface. Its device model is a [`NicModel`].
#[derive(Clone, Debug)]
pub enum Nic {
    /// QEMU's user networking: 10.0.2.0/24 with DHCP, gateway 10.0.2.2, and forwarded ports on
    /// 127.0.0.1.
    User {
        /// `(protocol, host port, guest port)`, protocol `tcp` or `udp`.
        forwards: Vec<(&'static str, u16, u16)>,
    },
    /// Raw Ethernet frames as datagrams between two Unix sockets: `ours` is bound by QEMU, `peer` by
    /// the other end.
    Dgram {
        /// The socket that QEMU binds.
        ours: PathBuf,
        /// The socket that QEMU sends to.
        peer: PathBuf,
    },
    /// A tap device of the host, or of the network namespace that QEMU is started in.
    Tap {
        /// Its name.
        name: String,
    },
    /// Frames over a Unix stream socket to another QEMU: one listens, one connects.
    Stream {
        /// The socket's path.
        path: PathBuf,
        /// Whether this end listens.
        listens: bool,
    },
}

/// QEMU's model of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicModel {
    /// virtio-net.
    Virtio,
    /// Intel 82574L.
    E1000e,
    /// Intel 82576. Debian 12's QEMU lacks it, [`super::Program::with_vfio_user`]'s has it.
    Igb,
    /// VMware vmxnet3.
    Vmxnet3,
    /// Intel 82540EM.
    E1000,
    /// Intel 82545EM.
    E1000Em82545,
}

impl NicModel {
    const ALL: [NicModel; 6] = [
        NicModel::Virtio,
        NicModel::E1000e,
        NicModel::Igb,
        NicModel::Vmxnet3,
        NicModel::E1000,
        NicModel::E1000Em82545,
    ];

    /// The model named `virtio`, `e1000e`, `igb`, `vmxnet3`, `e1000` or `e1000-82545em`.
    pub fn named(name: &str) -> Option<NicModel> {
        NicModel::ALL.into_iter().find(|model| model.name() == name)
    }

    /// The model's name, which is also QEMU's driver name except for virtio.
    pub fn name(self) -> &'static str {
        match self {
            NicModel::Virtio => "virtio",
            NicModel::E1000e => "e1000e",
            NicModel::Igb => "igb",
            NicModel::Vmxnet3 => "vmxnet3",
            NicModel::E1000 => "e1000",
            NicModel::E1000Em82545 => "e1000-82545em",
        }
    }

    /// QEMU's driver name on `bus` (`pci`, `device`). Models other than virtio need PCI.
    pub(super) fn driver(self, bus: &str) -> String {
        match self {
            NicModel::Virtio => format!("virtio-net-{bus}"),
            other => other.name().to_string(),
        }
    }
}

impl Nic {
    /// User networking without forwarded ports.
    pub fn user() -> Nic {
        Nic::User { forwards: Vec::new() }
    }

    /// The value of `-netdev` for the interface numbered `index`.
    pub(super) fn netdev(&self, index: usize) -> Value {
        let id = format!("net{index}");
        match self {
            Nic::User { forwards } => {
                let forwards: Vec<Value> = forwards
                    .iter()
                    .map(|(protocol, host, guest)| {
                        json!({"str": format!("{protocol}:127.0.0.1:{host}-:{guest}")})
                    })
                    .collect();
                json!({"type": "user", "id": id, "hostfwd": forwards})
            }
            Nic::Dgram { ours, peer } => json!({
                "type": "dgram", "id": id,
                "local": {"type": "unix", "path": ours},
                "remote": {"type": "unix", "path": peer},
            }),
            // Without `vnet_hdr` Linux computes all checksums itself.
            Nic::Tap { name } => json!({
                "type": "tap", "id": id, "ifname": name, "script": "no", "downscript": "no",
                "vnet_hdr": false,
            }),
            Nic::Stream { path, listens } => json!({
                "type": "stream", "id": id, "server": listens,
                "addr": {"type": "unix", "path": path},
            }),
        }
    }
}

/// An error that QEMU's `blkdebug` driver injects into a disk's requests.
#[derive(Clone, Debug)]
pub struct Fault {
    /// `read_aio`, `write_aio`, `flush_to_disk` … (QEMU: qapi/block-core.json, BlkdebugEvent).
    pub event: &'static str,
    /// The sector (512 bytes) that a request must touch to fail; `None` means any.
    pub sector: Option<u64>,
    /// Whether only the first such request fails.
    pub once: bool,
}

/// The model of a machine's disks that do not select one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskModel {
    /// virtio-blk.
    Virtio,
    /// NVMe drives with one namespace each. QEMU's cannot be read-only.
    Nvme,
    /// SATA drives at ports of one AHCI controller. QEMU's have blocks of 512 bytes, and cannot be read-only.
    Ahci,
    /// SCSI disks behind one PVSCSI adapter.
    Pvscsi,
}

impl DiskModel {
    /// The model named `virtio`, `nvme`, `ahci` or `pvscsi`.
    pub fn named(name: &str) -> Option<DiskModel> {
        match name {
            "virtio" => Some(DiskModel::Virtio),
            "nvme" => Some(DiskModel::Nvme),
            "ahci" => Some(DiskModel::Ahci),
            "pvscsi" => Some(DiskModel::Pvscsi),
            _ => None,
        }
    }
}

/// How a disk is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attached {
    /// With the machine's [`DiskModel`].
    Usual,
    /// As virtio-blk.
    Virtio,
    /// Behind the machine's one virtio SCSI controller.
    Scsi,
    /// As a namespace of an NVMe controller.
    Nvme { controller: u8, nsid: u32 },
    /// At this port of the machine's one AHCI controller.
    Ahci { port: u8 },
    /// Behind the machine's one PVSCSI adapter.
    Pvscsi,
}

/// A disk: virtio-blk unless the disk or the machine selects another model.
#[derive(Clone, Debug)]
pub struct Disk {
    path: PathBuf,
    format: &'static str,
    read_only: bool,
    block_size: u32,
    serial: String,
    attached: Attached,
    /// Queue pairs of its NVMe controller, if not QEMU's default.
    nvme_queues: Option<u32>,
    faults: Vec<Fault>,
    /// `path` is that of a [`CachedDisk`].
    cached: bool,
    bytes_per_second: Option<u64>,
}

impl Disk {
    /// A disk whose image is the raw file (or, by its name, the qcow2 file) at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Disk {
        let path = path.into();
        let format = if path.extension().is_some_and(|e| e == "qcow2") { "qcow2" } else { "raw" };
        Disk {
            path,
            format,
            read_only: false,
            block_size: 512,
            serial: String::new(),
            attached: Attached::Usual,
            nvme_queues: None,
            faults: Vec::new(),
            cached: false,
            bytes_per_second: None,
        }
    }

    /// A disk whose cache can be lost in a power cut.
    pub fn cached(disk: &CachedDisk) -> Disk {
        Disk { cached: true, ..Disk::new(disk.path()) }
    }

    /// Makes the disk read-only.
    pub fn read_only(self) -> Disk {
        Disk { read_only: true, ..self }
    }

    /// Sets the logical and physical block size in bytes.
    pub fn block_size(self, bytes: u32) -> Disk {
        Disk { block_size: bytes, ..self }
    }

    /// Sets the serial number: up to 20 characters, or 36 behind the SCSI controller. An NVMe controller has
    /// the serial number of its first disk.
    pub fn serial(self, serial: &str) -> Disk {
        Disk { serial: serial.into(), ..self }
    }

    /// Puts the disk behind the machine's one virtio SCSI controller, as a target of its own.
    pub fn scsi(self) -> Disk {
        Disk { attached: Attached::Scsi, ..self }
    }

    /// Makes the disk namespace `nsid` of an NVMe controller, a number from 0 on. QEMU's id of
    /// controller 0 is `nvme0`. Needs PCI.
    pub fn nvme(self, controller: u8, nsid: u32) -> Disk {
        Disk { attached: Attached::Nvme { controller, nsid }, ..self }
    }

    /// Puts the disk at a port, 0 to 5, of the machine's one AHCI controller, whose id in QEMU is `ahci0`. Needs PCI.
    pub fn ahci(self, port: u8) -> Disk {
        Disk { attached: Attached::Ahci { port }, ..self }
    }

    /// Puts the disk behind the machine's one PVSCSI adapter, whose id in QEMU is `pvscsi0`, as a target of its own.
    /// Needs PCI.
    pub fn pvscsi(self) -> Disk {
        Disk { attached: Attached::Pvscsi, ..self }
    }

    /// Replaces [`Attached::Usual`] by the machine's model, for the disk numbered `index`.
    pub(super) fn of(self, model: DiskModel, index: usize) -> Disk {
        /// Above the controller numbers that callers choose.
        const CONTROLLERS: u8 = 100;
        let attached = match (self.attached, model) {
            (Attached::Usual, DiskModel::Virtio) => Attached::Virtio,
            (Attached::Usual, DiskModel::Nvme) => {
                Attached::Nvme { controller: CONTROLLERS + index as u8, nsid: 1 }
            }
            (Attached::Usual, DiskModel::Ahci) => Attached::Ahci { port: index as u8 },
            (Attached::Usual, DiskModel::Pvscsi) => Attached::Pvscsi,
            (attached, _) => attached,
        };
        Disk { attached, ..self }
    }

    /// Sets the number of queue pairs of the NVMe controller whose first disk this is.
    pub fn nvme_queues(self, pairs: u32) -> Disk {
        Disk { nvme_queues: Some(pairs), ..self }
    }

    /// Whether it is behind the SCSI controller.
    pub(super) fn is_scsi(&self) -> bool {
        self.attached == Attached::Scsi
    }

    /// Whether it is at a port of the AHCI controller.
    pub(super) fn is_ahci(&self) -> bool {
        matches!(self.attached, Attached::Ahci { .. })
    }

    /// Whether it is behind the PVSCSI adapter.
    pub(super) fn is_pvscsi(&self) -> bool {
        self.attached == Attached::Pvscsi
    }

    /// The number of its NVMe controller, if it has one.
    pub(super) fn nvme_controller(&self) -> Option<u8> {
        match self.attached {
            Attached::Nvme { controller, .. } => Some(controller),
            _ => None,
        }
    }

    /// The properties of `-device` for the NVMe controller with this number, whose first disk this is.
    pub(super) fn nvme_device(&self, controller: u8) -> Value {
        let id = format!("nvme{controller}");
        let serial = if self.serial.is_empty() { &id } else { &self.serial };
        let mut device = json!({"driver": "nvme", "id": id, "serial": serial});
        if let Some(pairs) = self.nvme_queues {
            device["max_ioqpairs"] = json!(pairs);
        }
        device
    }

    /// Makes requests fail with EIO.
    pub fn fault(mut self, fault: Fault) -> Disk {
        self.faults.push(fault);
        self
    }

    /// Limits reads and writes together to this rate.
    pub fn bytes_per_second(self, rate: u64) -> Disk {
        Disk { bytes_per_second: Some(rate), ..self }
    }

    /// The value of `-object` for the rate limit of the disk numbered `index`, if it has one.
    pub(super) fn throttle_group(&self, index: usize) -> Option<Value> {
        let rate = self.bytes_per_second?;
        Some(
            json!({"qom-type": "throttle-group", "id": format!("rate{index}"), "x-bps-total": rate}),
        )
    }

    /// The image's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of `-blockdev` for the disk numbered `index`.
    pub(super) fn blockdev(&self, index: usize) -> Value {
        let mut file = match self.cached {
            true => json!({"driver": "nbd", "server": {
                "type": "unix", "path": CachedDisk::socket(&self.path),
            }}),
            false => json!({"driver": "file", "filename": self.path}),
        };
        if !self.faults.is_empty() {
            let faults: Vec<Value> = self.faults.iter().map(fault).collect();
            file = json!({"driver": "blkdebug", "image": file, "inject-error": faults});
        }
        if self.bytes_per_second.is_some() {
            let group = format!("rate{index}");
            file = json!({"driver": "throttle", "throttle-group": group, "file": file});
        }
        json!({
            "node-name": format!("disk{index}"), "driver": self.format, "file": file,
            "read-only": self.read_only, "discard": "unmap",
        })
    }

    /// The properties of `-device` for the disk numbered `index`, as virtio-blk on `bus` (`pci`, `device`),
    /// behind a SCSI controller, where the number is that of the target, as an NVMe namespace, or at a SATA port.
    pub(super) fn device(&self, bus: &str, index: usize) -> Value {
        let driver = match self.attached {
            Attached::Scsi | Attached::Pvscsi => "scsi-hd".to_string(),
            Attached::Ahci { .. } => "ide-hd".to_string(),
            Attached::Nvme { .. } => "nvme-ns".to_string(),
            Attached::Virtio | Attached::Usual => format!("virtio-blk-{bus}"),
        };
        let mut device = json!({
            "driver": driver, "id": format!("disk{index}"), "drive": format!("disk{index}"),
            "logical_block_size": self.block_size, "physical_block_size": self.block_size,
        });
        match self.attached {
            Attached::Virtio | Attached::Usual => {}
            Attached::Scsi => {
                (device["bus"], device["scsi-id"]) = (json!("scsi.0"), json!(index));
            }
            Attached::Pvscsi => {
                (device["bus"], device["scsi-id"]) = (json!("pvscsi0.0"), json!(index));
            }
            Attached::Ahci { port } => device["bus"] = json!(format!("ahci0.{port}")),
            Attached::Nvme { controller, nsid } => {
                (device["bus"], device["nsid"]) = (json!(format!("nvme{controller}")), json!(nsid));
                return device;
            }
        }
        if !self.serial.is_empty() {
            device["serial"] = json!(self.serial);
        }
        device
    }
}

fn fault(fault: &Fault) -> Value {
    let mut rule = json!({"event": fault.event, "errno": 5, "once": fault.once});
    if let Some(sector) = fault.sector {
        rule["sector"] = json!(sector);
    }
    rule
}
