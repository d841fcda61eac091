//! Reads the host's PCI functions from sysfs (Documentation/ABI/testing/sysfs-bus-pci).
//!
//! All paths are below a root, which is `/` except in tests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use drivers::driver::Class;
use drivers::hal::{BusAddress, ConfigRegionAccess, Location, PciAddress};
use drivers::inventory;
use drivers::pci;

/// The host.
pub struct Host {
    root: PathBuf,
    /// Whether the kernel reports that another user has opened a block device exclusively.
    pub(super) claimed: fn(&Path) -> std::io::Result<bool>,
}

/// A PCI function of the host.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its address.
    pub address: PciAddress,
    /// Vendor and device ID.
    pub id: (u16, u16),
    /// Base class, subclass and programming interface, as 0xCCSSPP.
    pub class: u32,
    /// Its kind, in words.
    pub what: &'static str,
    /// The driver that it is bound to.
    pub driver: Option<String>,
    /// Its IOMMU group, where there is an IOMMU.
    pub group: Option<u32>,
    /// The physical function of a virtual function.
    pub physical: Option<PciAddress>,
    /// The number of enabled virtual functions of a physical function.
    pub virtual_functions: u32,
    /// Isthmus's driver for it, and the class that the driver opens.
    pub isthmus: Option<(&'static str, Class)>,
    /// Its directory in sysfs, which contains the Linux devices of the function.
    pub(super) place: PathBuf,
}

impl Function {
    /// Its directory in sysfs.
    pub fn directory(&self) -> &Path {
        &self.place
    }
}

impl Host {
    /// This host.
    pub fn here() -> Host {
        Host { root: "/".into(), claimed: is_claimed }
    }

    /// A host whose sysfs and procfs are directories below `root`. `claimed` decides whether a block device is claimed.
    #[cfg(test)]
    pub(super) fn at(root: &Path, claimed: fn(&Path) -> std::io::Result<bool>) -> Host {
        Host { root: root.into(), claimed }
    }

    /// A path of this host.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The directory of a function.
    pub(super) fn directory(&self, address: PciAddress) -> PathBuf {
        self.path(&format!("sys/bus/pci/devices/{address}"))
    }

    /// A text file, trimmed; empty if it does not exist.
    pub(super) fn text(&self, path: &str) -> String {
        read(&self.path(path)).unwrap_or_default()
    }

    /// The entries of a directory, in the order of their names; empty if it does not exist.
    pub(super) fn list(&self, path: &str) -> Vec<PathBuf> {
        list(&self.path(path))
    }

    /// All functions, in the order of their addresses.
    pub fn functions(&self) -> Result<Vec<Function>> {
        let mut all = Vec::new();
        for entry in self.list("sys/bus/pci/devices") {
            all.push(self.function(address(&name(&entry)).map_err(|why| anyhow!(why))?)?);
        }
        Ok(all)
    }

    /// One function.
    pub fn function(&self, address: PciAddress) -> Result<Function> {
        let directory = self.directory(address);
        let Ok(place) = directory.canonicalize() else {
            bail!(
                "this host has no PCI function {address}: `./isthmus devices` lists those it has"
            );
        };
        let number = |name: &str| -> Result<u32> {
            let text = read(&place.join(name)).with_context(|| format!("{address}: no {name}"))?;
            let digits = text.strip_prefix("0x").unwrap_or(&text);
            u32::from_str_radix(digits, 16).with_context(|| format!("{address}: {name} is {text}"))
        };
        let id = (number("vendor")? as u16, number("device")? as u16);
        let class = number("class")?;
        let (isthmus, what) = recognize(id, class);
        let link = |name: &str| fs::read_link(place.join(name)).ok().map(|to| self::name(&to));
        let virtual_functions =
            read(&place.join("sriov_numvfs")).and_then(|text| text.parse().ok());
        Ok(Function {
            address,
            id,
            class,
            what,
            driver: link("driver"),
            group: link("iommu_group").and_then(|name| name.parse().ok()),
            physical: link("physfn").and_then(|name| self::address(&name).ok()),
            virtual_functions: virtual_functions.unwrap_or(0),
            isthmus,
            place,
        })
    }
}

/// An address as operators write it: `0000:03:00.0`, or `03:00.0`.
pub fn address(text: &str) -> Result<PciAddress, String> {
    match format!("pci:{text}").parse::<Location>() {
        Ok(Location { bus: BusAddress::Pci(address), unit: None }) => Ok(address),
        _ => Err(format!("{text:?} is no PCI address: write it as 0000:03:00.0")),
    }
}

/// The configuration space of a single function, with only the registers by which the inventory recognizes it.
struct Face {
    id: (u16, u16),
    class: u32,
}

impl ConfigRegionAccess for Face {
    unsafe fn read(&self, address: PciAddress, offset: u16) -> u32 {
        if address != PciAddress::new(0, 0, 0, 0) {
            return u32::MAX;
        }
        match offset {
            0 => u32::from(self.id.1) << 16 | u32::from(self.id.0),
            8 => self.class << 8,
            _ => 0,
        }
    }

    unsafe fn write(&self, _: PciAddress, _: u16, _: u32) {}
}

/// Looks a function up in the image's inventory: the driver for it, and its kind in words.
fn recognize(id: (u16, u16), class: u32) -> (Option<(&'static str, Class)>, &'static str) {
    // Leaks a few bytes for each function of the host, in a program that ends soon.
    let face: &'static Face = Box::leak(Box::new(Face { id, class }));
    let function = pci::Function::new(PciAddress::new(0, 0, 0, 0), face);
    let device = function.and_then(inventory::device);
    let address = Location::pci(PciAddress::new(0, 0, 0, 0));
    let shown = inventory::Unclaimed { location: address, id, class, chipset: false, error: None };
    (device.map(|device| (device.driver(), device.class())), shown.what())
}

/// The last part of a path.
pub(super) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

pub(super) fn list(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    entries
}

/// Opens a block device exclusively. The kernel refuses that with EBUSY if the device is claimed by a file system,
/// swap, LVM, md or ZFS, in any mount namespace (Linux block/bdev.c, `bd_prepare_to_claim`).
fn is_claimed(device: &Path) -> std::io::Result<bool> {
    use rustix::fs::{Mode, OFlags, open};
    match open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(false),
        Err(rustix::io::Errno::BUSY) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
