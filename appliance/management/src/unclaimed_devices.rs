//! Devices that the appliance found but does not use, with the reason.

use drivers::inventory::Unclaimed;

/// A device that the appliance does not use.
#[derive(Clone, Debug)]
pub struct UnclaimedDevice {
    /// Name of the device, such as `pci:0000:00:04.0`.
    pub device: String,
    /// Vendor and device id, as `8086:10d3`. Empty if a driver reported the device.
    pub id: String,
    /// Kind of device, in words. Empty if a driver reported the device.
    pub class: &'static str,
    /// Reason why the device is not used.
    pub why: String,
    /// The device is a bridge. `show ntb` lists it, too.
    pub is_bridge: bool,
    /// An operator may miss it: a disk or a network interface, or a device that failed.
    pub is_missed: bool,
}

impl UnclaimedDevice {
    /// A device that no driver claimed. Logged as an error if a driver failed, and as a warning if the operator may
    /// miss the device: a disk or network interface that is not part of the chipset.
    pub fn of(device: &Unclaimed) -> Self {
        let (vendor, id) = device.id;
        let why = device.error.map_or("no driver for it".to_string(), |error| error.to_string());
        let unclaimed = UnclaimedDevice {
            device: device.location.to_string(),
            id: format!("{vendor:04x}:{id:04x}"),
            class: device.what(),
            why,
            is_bridge: false,
            is_missed: device.error.is_some() || device.is_missed(),
        };
        if device.error.is_some() {
            log::error!("{unclaimed}");
        } else if device.is_missed() {
            log::warn!("{unclaimed}; `show devices` lists all devices");
        }
        unclaimed
    }

    /// Kind of device, and the reason why it is not used.
    pub fn note(&self) -> String {
        match self.id.is_empty() {
            true => self.why.clone(),
            false => format!("{} {}: {}", self.class, self.id, self.why),
        }
    }

    /// A device that its driver failed to set up. The driver has logged the reason.
    pub fn failed(device: String, why: String) -> Self {
        let (is_bridge, is_missed) = (false, true);
        UnclaimedDevice { device, id: String::new(), class: "", why, is_bridge, is_missed }
    }

    /// A bridge that stays closed. The reason is already logged.
    pub fn closed_bridge(device: String, why: String) -> Self {
        UnclaimedDevice { is_bridge: true, ..UnclaimedDevice::failed(device, why) }
    }
}

impl core::fmt::Display for UnclaimedDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.device, self.note())
    }
}
