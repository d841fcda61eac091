//! First stage: opens the disks.

use super::resources::{MachineClock, Resources};
use crate::gateway::disk_queues::DeviceQueues;
use crate::gateway::disks::{DiskSlot, Role, SharedDisk, set_permanent_names};
use drivers::driver::Device;
use drivers::hal::CrashWriter;
use management::UnclaimedDevice;

/// The disks.
#[derive(Default)]
pub(super) struct Disks {
    pub slots: Vec<DiskSlot>,
    /// Writer of a panic's record, by number of the disk.
    pub dumps: Vec<Option<Box<dyn CrashWriter>>>,
    /// Locations of devices that could not be opened.
    pub failed: Vec<String>,
    /// Devices that may have queues for other cores.
    pub queues: Vec<DeviceQueues>,
}

impl Disks {
    /// Opens the disks of all devices. Those that fail are logged and unclaimed.
    pub fn open(found: Vec<Device>, resources: &mut Resources) -> Self {
        let mut disks = Disks::default();
        for device in found {
            disks.open_device(&device, resources);
        }
        set_permanent_names(&mut disks.slots);
        disks
    }

    fn open_device(&mut self, device: &Device, resources: &mut Resources) {
        let Resources { machine, platform, unclaimed, .. } = resources;
        let location = device.location().to_string();
        let opened = match device.open_disks(&mut **platform, &MachineClock(&**machine)) {
            Ok(opened) => opened,
            Err(error) => {
                log::error!("{location}: {error}");
                self.failed.push(location.clone());
                return unclaimed.push(UnclaimedDevice::failed(location, error.to_string()));
            }
        };
        for (location, why) in opened.refused {
            log::error!("{location}: {why}");
            unclaimed.push(UnclaimedDevice::failed(location.to_string(), why));
        }
        let first = self.slots.len();
        let disks = (first..first + opened.disks.len()).collect();
        self.queues.extend(opened.queues.map(|queues| DeviceQueues { disks, queues }));
        for one in opened.disks {
            self.dumps.push(one.crash);
            self.slots.push(DiskSlot {
                name: format!("disk{}", self.slots.len()),
                serial: one.serial,
                model: one.model,
                firmware: one.firmware,
                location: one.location.to_string(),
                device: String::new(),
                geometry: one.disk.geometry(),
                disk: SharedDisk::new(one.disk),
                role: Role::Free,
            });
        }
    }
}
