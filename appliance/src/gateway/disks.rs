//! Disks: the role of each, and sharing of a disk between a volume and the loop.

use crate::config::{DeviceName, namespace_of};
use drivers::hal::{
    Completion, DeviceLife, Disk, Geometry, Health, Instant, Notice, QueueCount, Request, Severity,
    SubmitError,
};
use std::cell::RefCell;
use std::rc::Rc;

/// Role of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Unused.
    Free,
    /// The appliance boots from it. It is never exported, and only its configuration and slots for releases are
    /// written.
    Boot,
    /// It holds the configuration.
    Configuration,
    /// It is a volume.
    Volume,
    /// It holds volumes, or is being examined for them.
    Volumes,
    /// A release is being read from it.
    Release,
    /// It holds the seed of the configuration.
    Seed,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Free => "free",
            Role::Boot => "boot",
            Role::Configuration => "configuration",
            Role::Volume => "volume",
            Role::Volumes => "volumes",
            Role::Release => "release",
            Role::Seed => "seed",
        }
    }
}

/// A disk that a volume uses, while the loop handles its interrupts.
pub(super) struct SharedDisk(Rc<RefCell<Box<dyn Disk>>>);

impl SharedDisk {
    pub fn new(disk: Box<dyn Disk>) -> Self {
        SharedDisk(Rc::new(RefCell::new(disk)))
    }

    /// Another handle of the same disk. Only one handle may submit requests, because completions are not told apart by
    /// user.
    pub fn share(&self) -> Self {
        SharedDisk(self.0.clone())
    }
}

impl Disk for SharedDisk {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry()
    }
    fn depth(&self) -> usize {
        self.0.borrow().depth()
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        self.0.borrow_mut().submit(request)
    }
    fn flush_queue(&mut self) {
        self.0.borrow_mut().flush_queue();
    }
    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
    fn set_interrupts(&mut self, wanted: bool) {
        self.0.borrow_mut().set_interrupts(wanted);
    }
    fn wakes(&self) -> bool {
        self.0.borrow().wakes()
    }
    fn capacity_changed(&mut self) -> bool {
        self.0.borrow_mut().capacity_changed()
    }
    fn pending(&self) -> bool {
        self.0.borrow().pending()
    }
    fn interrupts(&self) -> u64 {
        self.0.borrow().interrupts()
    }
    fn advance(&mut self, now: Instant) {
        self.0.borrow_mut().advance(now);
    }
    fn watch(&mut self, now: Instant) {
        self.0.borrow_mut().watch(now);
    }
    fn notice(&mut self) -> Option<Notice> {
        self.0.borrow_mut().notice()
    }
    fn shut_down(&mut self) {
        self.0.borrow_mut().shut_down();
    }
    fn is_shut_down(&self) -> bool {
        self.0.borrow().is_shut_down()
    }
    fn health(&self) -> Option<Health> {
        self.0.borrow().health()
    }
    fn life(&self) -> DeviceLife {
        self.0.borrow().life()
    }
    fn queue_counts(&self) -> Vec<QueueCount> {
        self.0.borrow().queue_counts()
    }
}

/// A disk, its identity and its role.
pub(super) struct DiskSlot {
    pub name: String,
    /// Serial number; empty if it has none.
    pub serial: String,
    /// Model name; empty if unknown.
    pub model: String,
    /// Revision of its firmware; empty if unknown.
    pub firmware: String,
    /// Its location, as [`drivers::hal::Location`] is written.
    pub location: String,
    /// Permanent name: of an NVMe namespace the drive's serial number with its NSID, of another disk the serial number,
    /// if no other disk has the same. Else its location.
    pub device: String,
    pub disk: SharedDisk,
    pub geometry: Geometry,
    pub role: Role,
}

/// Sets the permanent name of each disk, which stays the same when disks are added.
pub(super) fn set_permanent_names(disks: &mut [DiskSlot]) {
    let by_serial = |slot: &DiskSlot| match namespace_of(&slot.location) {
        // With the NSID, because the drive may get another namespace later.
        Some(nsid) => format!("nvme:{}/{nsid}", slot.serial),
        None => format!("serial:{}", slot.serial),
    };
    let names: Vec<String> = disks.iter().map(by_serial).collect();
    for (slot, name) in disks.iter_mut().zip(&names) {
        let same = names.iter().filter(|&other| other == name).count();
        slot.device = match same == 1 && !slot.serial.is_empty() {
            true => name.clone(),
            false => slot.location.clone(),
        };
    }
}

/// Number of the disk with this name.
pub(super) fn number_of(disks: &[DiskSlot], name: &DeviceName) -> Result<usize, String> {
    let mut numbers = disks.iter().enumerate().filter_map(|(number, slot)| {
        name.is_disk(number, &slot.location, &slot.serial).then_some(number)
    });
    let first = numbers.next();
    let first = first.ok_or_else(|| format!("there is no disk {name}; `show disks` lists them"))?;
    match numbers.next() {
        None => Ok(first),
        Some(_) => Err(format!(
            "two disks have the name {name}; name it as `show disks` does, or by its pci: address"
        )),
    }
}

impl DiskSlot {
    /// An error if it is in use.
    pub fn check_free(&self) -> Result<(), String> {
        match self.role {
            Role::Free => Ok(()),
            Role::Boot => {
                Err(format!("the appliance boots from {}: it is never a volume", self.name))
            }
            Role::Configuration => {
                Err(format!("{} keeps the configuration: it is never a volume", self.name))
            }
            Role::Seed => Err(format!("{} holds the seed: it is never a volume", self.name)),
            role => Err(format!("{} is in use: {}", self.name, role.name())),
        }
    }

    /// Checks requests for timeouts, logs notices, and checks whether the disk was resized.
    pub fn look_after(&mut self, now: Instant) {
        self.disk.watch(now);
        while let Some(notice) = self.disk.notice() {
            let (name, device) = (&self.name, &self.device);
            match notice.severity {
                Severity::Information => log::info!("{name}, {device}: {notice}"),
                Severity::Warning => log::warn!("{name}, {device}: {notice}"),
                Severity::Error => log::error!("{name}, {device}: {notice}"),
            }
        }
        if self.disk.capacity_changed() {
            self.geometry = self.disk.geometry();
            log::warn!("{}: resized to {} sectors", self.name, self.geometry.sectors);
        }
    }
}
