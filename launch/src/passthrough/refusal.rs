//! The reasons not to take a function from the host, each with a remedy.
//!
//! Passing a device to a guest takes it from Linux. A mounted drive, or the interface by which the operator is logged
//! in, would disappear without a question. So all reasons are checked before the first change; in doubt a function is
//! refused.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use anyhow::Result;
use drivers::hal::PciAddress;

use super::host::{Function, Host, list, name, read};

/// Why a function is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The function.
    pub function: PciAddress,
    /// The reason.
    pub why: String,
    /// The remedy.
    pub advice: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.function, self.why, self.advice)
    }
}

/// Collects the reasons against taking all of `wanted`; empty if there are none.
pub fn refusals(host: &Host, wanted: &[PciAddress]) -> Result<Vec<Refusal>> {
    let functions = wanted.iter().map(|&one| host.function(one)).collect::<Result<Vec<_>>>()?;
    let mut found = Vec::new();
    for function in &functions {
        let mut inspection = Inspection { host, function, wanted: &functions, found: &mut found };
        inspection.driver();
        inspection.iommu()?;
        inspection.virtual_functions();
        inspection.disks();
        inspection.interfaces();
        inspection.other_users();
    }
    Ok(found)
}

/// The inspection of one function.
struct Inspection<'a> {
    host: &'a Host,
    function: &'a Function,
    wanted: &'a [Function],
    found: &'a mut Vec<Refusal>,
}

impl Inspection<'_> {
    fn refuse(&mut self, why: impl Into<String>, advice: impl Into<String>) {
        let function = self.function.address;
        self.found.push(Refusal { function, why: why.into(), advice: advice.into() });
    }

    fn driver(&mut self) {
        if self.function.isthmus.is_none() {
            let what = self.function.what;
            let (vendor, device) = self.function.id;
            self.refuse(
                format!("is a {what} ({vendor:04x}:{device:04x}) that Isthmus has no driver for"),
                "docs/run.md lists the devices with drivers",
            );
        }
    }

    fn iommu(&mut self) -> Result<()> {
        let Some(group) = self.function.group else {
            self.refuse(
                "is behind no IOMMU, so a guest could read and write all memory of this host through it",
                "switch VT-d (AMD: IOMMU) on in the firmware, and boot Linux with intel_iommu=on \
                 (on AMD it is on by default)",
            );
            return Ok(());
        };
        let directory = format!("sys/kernel/iommu_groups/{group}");
        if self.host.text(&format!("{directory}/name")) == "vfio-noiommu" {
            self.refuse(
                "has an IOMMU group only by name (vfio-noiommu), so that nothing protects the memory of this host from it",
                "switch the IOMMU on and load vfio without enable_unsafe_noiommu_mode",
            );
        }
        let regions = self.host.text(&format!("{directory}/reserved_regions"));
        if regions.lines().any(|line| line.split_whitespace().nth(2) == Some("direct")) {
            self.refuse(
                "has memory that the firmware reads and writes through it (RMRR), so Linux passes it to no guest",
                "switch that use off in the firmware (remote management of this device, legacy USB)",
            );
        }
        // Functions of a group can access each other without the IOMMU.
        let mut beside = Vec::new();
        for entry in self.host.list(&format!("{directory}/devices")) {
            let Ok(address) = super::host::address(&name(&entry)) else { continue };
            let other = self.host.function(address)?;
            let is_bridge = other.class >> 16 == 6;
            let is_wanted = self.wanted.iter().any(|one| one.address == address);
            if !is_bridge && !is_wanted {
                let driver = other.driver.as_deref().unwrap_or("no driver");
                beside.push(format!("{address} ({}, {driver})", other.what));
            }
        }
        if !beside.is_empty() {
            self.refuse(
                format!("shares its IOMMU group {group} with {}", beside.join(", ")),
                "pass all of them (--device for each), or put the card into a slot of its own whose port has ACS",
            );
        }
        Ok(())
    }

    fn virtual_functions(&mut self) {
        let count = self.function.virtual_functions;
        if count > 0 {
            self.refuse(
                format!(
                    "has {count} virtual functions that are switched on and would be lost with it"
                ),
                format!(
                    "pass one of those, or run `echo 0 > /sys/bus/pci/devices/{}/sriov_numvfs`",
                    self.function.address
                ),
            );
        }
    }

    fn disks(&mut self) {
        for disk in self.block_devices() {
            let holders = list(&disk.directory.join("holders"));
            for holder in &holders {
                let holder = name(holder);
                self.refuse(
                    format!("has {}, which is a part of {}", disk.name, self.holder(&holder)),
                    format!(
                        "remove it from there first (`lsblk /dev/{}` shows its users)",
                        disk.name
                    ),
                );
            }
            let mounts = self.mounts(&disk);
            for at in &mounts {
                self.refuse(
                    format!("has {}, which is mounted at {at}", disk.name),
                    format!("`umount {at}` first, if this host can do without it"),
                );
            }
            let swaps = self.host.text("proc/swaps");
            let path = format!("/dev/{}", disk.name);
            let is_swap = swaps.lines().any(|line| line.split_whitespace().next() == Some(&path));
            if is_swap {
                self.refuse(
                    format!("has {}, which is swap", disk.name),
                    format!("`swapoff {path}` first"),
                );
            }
            if holders.is_empty() && mounts.is_empty() && !is_swap {
                self.claim(&disk, &path);
            }
        }
    }

    /// Asks the kernel whether the block device has a user that sysfs and procfs do not show.
    fn claim(&mut self, disk: &BlockDevice, path: &str) {
        match (self.host.claimed)(&self.host.path(&path[1..])) {
            Ok(false) => {}
            Ok(true) => {
                let udev = self.host.text(&format!("run/udev/data/b{}", disk.number));
                let zfs = udev.lines().any(|line| line == "E:ID_FS_TYPE=zfs_member");
                let by = if zfs {
                    "a ZFS pool"
                } else {
                    "the kernel (ZFS, DRBD, a target, a file system in another mount namespace)"
                };
                self.refuse(
                    format!("has {}, which is in use by {by}", disk.name),
                    "stop that use first, for a pool with `zpool export`",
                );
            }
            Err(error) => self.refuse(
                format!(
                    "has {}, and the kernel does not report whether it is in use ({error})",
                    disk.name
                ),
                "run as root; `lsblk` shows the users of disks",
            ),
        }
    }

    /// The name of a device-mapper, md or other device, as its own tools use it.
    fn holder(&self, holder: &str) -> String {
        let of = |file| self.host.text(&format!("sys/class/block/{holder}/{file}"));
        let (kind, name) = (of("dm/uuid"), of("dm/name"));
        match kind.split('-').next().unwrap_or_default() {
            "LVM" => format!("the LVM volume {name}"),
            "CRYPT" => format!("the encrypted volume {name}"),
            "mpath" => format!("the multipath device {name}"),
            _ if holder.starts_with("md") => format!("the md array {holder}"),
            _ => holder.to_string(),
        }
    }

    fn mounts(&self, disk: &BlockDevice) -> Vec<String> {
        let text = self.host.text("proc/self/mountinfo");
        let mut at = Vec::new();
        for line in text.lines() {
            // proc(5): ID, parent, major:minor, root, mount point, options, optional fields, "-", type, source. btrfs
            // has a number of its own, so the source is compared as well.
            let words: Vec<&str> = line.split(' ').collect();
            let source =
                words.iter().position(|word| *word == "-").and_then(|dash| words.get(dash + 2));
            let source = source.and_then(|path| path.strip_prefix('/'));
            let source = source.map(|path| self.host.path(path));
            let source = source.map(|path| name(&path.canonicalize().unwrap_or(path)));
            let is_mounted =
                words.get(2) == Some(&disk.number.as_str()) || source.as_ref() == Some(&disk.name);
            if let (true, Some(place)) = (is_mounted, words.get(4)) {
                at.push(place.to_string());
            }
        }
        at
    }

    /// Disks and partitions of the function.
    fn block_devices(&self) -> Vec<BlockDevice> {
        // The namespaces of an NVMe drive with several controllers are in the directory of its subsystem.
        let mut places = vec![self.function.place.clone()];
        for subsystem in self.host.list("sys/class/nvme-subsystem") {
            let controllers =
                list(&subsystem).into_iter().filter_map(|one| one.canonicalize().ok());
            if controllers.into_iter().any(|one| one.starts_with(&self.function.place)) {
                places.extend(subsystem.canonicalize());
            }
        }
        let mut all = Vec::new();
        for entry in self.host.list("sys/class/block") {
            let Ok(directory) = entry.canonicalize() else { continue };
            // A single path of a multipath namespace has no number, and cannot be opened.
            if let Some(number) = read(&directory.join("dev"))
                && places.iter().any(|place| directory.starts_with(place))
                && read(&directory.join("hidden")).as_deref() != Some("1")
            {
                all.push(BlockDevice { name: name(&entry), number, directory });
            }
        }
        all
    }

    fn interfaces(&mut self) {
        let mine = self.interfaces_of(|place| place.starts_with(&self.function.place));
        if mine.is_empty() {
            let driver = self.function.driver.clone().unwrap_or_default();
            if self.function.class >> 16 == 2 && !driver.is_empty() && driver != "vfio-pci" {
                self.refuse(
                    format!(
                        "has the driver {driver}, but no network interface in this network namespace"
                    ),
                    format!(
                        "move the interface back from its network namespace (perhaps a container's), or run \
                         `echo {} > /sys/bus/pci/drivers/{driver}/unbind`",
                        self.function.address
                    ),
                );
            }
            return;
        }
        let default = self.default_routes();
        for interface in &mine {
            let upper = list(&self.host.path(&format!("sys/class/net/{interface}")));
            let upper = upper
                .iter()
                .filter_map(|entry| name(entry).strip_prefix("upper_").map(String::from));
            let upper: Vec<String> = upper.collect();
            if default.contains(interface) {
                self.refuse(
                    format!("is {interface}, which carries the default route"),
                    "give the host another default route first: you may be connected through this one",
                );
            } else if let Some(upper) = upper.first() {
                self.refuse(
                    format!("is {interface}, which is a part of {upper}"),
                    format!("remove it from there first (`ip link set {interface} nomaster`, or remove {upper})"),
                );
            }
        }
        let others = self.interfaces_of(|place| {
            !self.wanted.iter().any(|function| place.starts_with(&function.place))
        });
        if others.is_empty() {
            self.refuse(
                format!("is {}, the only network interface of this host", mine.join(" and ")),
                "pass a virtual function of it instead (`echo 1 > /sys/bus/pci/devices/…/sriov_numvfs`), or add another card",
            );
        }
    }

    /// Interfaces with a device whose directory `wanted` accepts.
    fn interfaces_of(&self, wanted: impl Fn(&std::path::Path) -> bool) -> Vec<String> {
        let all = self.host.list("sys/class/net").into_iter();
        let with_device = all.filter(|interface| {
            interface.join("device").canonicalize().is_ok_and(|device| wanted(&device))
        });
        with_device.map(|interface| name(&interface)).collect()
    }

    /// Interfaces that carry a default route.
    fn default_routes(&self) -> BTreeSet<String> {
        const REJECT: u32 = 0x200;
        let flags =
            |word: Option<&&str>| u32::from_str_radix(word.unwrap_or(&"0"), 16).unwrap_or(0);
        let mut found = BTreeSet::new();
        for line in self.host.text("proc/net/route").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let zero = |at: usize| words.get(at) == Some(&"00000000");
            if zero(1) && zero(7) && flags(words.get(3)) & REJECT == 0 {
                found.extend(words.first().map(|name| name.to_string()));
            }
        }
        for line in self.host.text("proc/net/ipv6_route").lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let to_all = words.first().is_some_and(|to| to.bytes().all(|digit| digit == b'0'));
            if to_all && words.get(1) == Some(&"00") && flags(words.get(8)) & REJECT == 0 {
                found.extend(
                    words.get(9).filter(|name| **name != "lo").map(|name| name.to_string()),
                );
            }
        }
        found
    }

    /// Finds programs that have the function, or a disk of it, open.
    fn other_users(&mut self) {
        let mut paths: BTreeSet<String> =
            self.block_devices().iter().map(|disk| format!("/dev/{}", disk.name)).collect();
        paths.extend(self.function.group.map(|group| format!("/dev/vfio/{group}")));
        for process in self.host.list("proc") {
            let number = name(&process);
            if !number.bytes().all(|digit| digit.is_ascii_digit()) {
                continue;
            }
            let open =
                list(&process.join("fd")).into_iter().filter_map(|file| fs::read_link(file).ok());
            let open = open.map(|to| to.to_string_lossy().into_owned());
            if let Some(path) = open.into_iter().find(|to| paths.contains(to)) {
                let program = read(&process.join("comm")).unwrap_or_default();
                self.refuse(
                    format!("is in use by {program} (process {number}), which has {path} open"),
                    "stop that program first",
                );
            }
        }
    }
}

/// A disk, or a partition of one.
struct BlockDevice {
    name: String,
    /// Major and minor number.
    number: String,
    directory: std::path::PathBuf,
}
