//! Devices that were found and are not used, and why.

use drivers::inventory::Unclaimed;

/// One of them.
#[derive(Clone, Debug)]
pub struct UnclaimedDevice {
    /// Its name, such as `pci:0000:00:04.0`.
    pub device: String,
    /// Vendor and device, as `8086:10d3`; empty if the device is told by its driver.
    pub id: String,
    /// What it is, in words; empty likewise.
    pub class: &'static str,
    /// Why it is not used.
    pub why: String,
    /// It is a bridge, which `show ntb` lists as well.
    pub is_bridge: bool,
}

impl UnclaimedDevice {
    /// Of what no driver took. Said in the log if an operator may miss the device: a disk, or a network
    /// interface, that is not a part of the chipset.
    pub fn of(device: &Unclaimed) -> Self {
        let (vendor, id) = device.id;
        let why = device.error.map_or("no driver for it".to_string(), |error| error.to_string());
        let unclaimed = UnclaimedDevice {
            device: device.location.to_string(),
            id: format!("{vendor:04x}:{id:04x}"),
            class: device.what(),
            why,
            is_bridge: false,
        };
        if device.error.is_some() {
            log::error!("{unclaimed}");
        } else if device.is_missed() {
            log::warn!("{unclaimed}; `show devices` lists what there is");
        }
        unclaimed
    }

    /// What it is and why it is not used.
    pub fn note(&self) -> String {
        match self.id.is_empty() {
            true => self.why.clone(),
            false => format!("{} {}: {}", self.class, self.id, self.why),
        }
    }

    /// Of what could not be set up, which was said already.
    pub fn failed(device: String, why: String) -> Self {
        UnclaimedDevice { device, id: String::new(), class: "", why, is_bridge: false }
    }

    /// Of a bridge that stays closed, which was said already.
    pub fn closed_bridge(device: String, why: String) -> Self {
        UnclaimedDevice { is_bridge: true, ..UnclaimedDevice::failed(device, why) }
    }
}

impl core::fmt::Display for UnclaimedDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.device, self.note())
    }
}
