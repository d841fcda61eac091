//! The devices that a session has open.

use crate::limits::Limiter;
use crate::rnbd::wire::AccessMode;
use crate::volume::{Hold, VolumeId};
use alloc::sync::Arc;
use alloc::vec::Vec;
use net::hosts::Hosts;
use rtrs::Name;

/// An export that a session has open.
#[derive(Debug)]
pub(super) struct Opened {
    pub volume: VolumeId,
    pub mode: AccessMode,
    /// The volume copies the data of a write before `submit` returns.
    pub copies_at_once: bool,
    /// Name in the client's OPEN.
    pub name: Name,
    /// Hosts that the export admitted at the time of the open.
    pub hosts: Hosts,
    /// Keeps the open counted until the device is closed, and shows reservations of the volume.
    pub hold: Hold,
    /// Limits of the export.
    pub limiter: Arc<Limiter>,
    /// Place of the requests that wait for them.
    pub throttle: usize,
}

/// An open device.
#[derive(Debug)]
pub(super) struct Device {
    pub id: u32,
    pub opened: Opened,
}

/// State of a session: its open devices.
#[derive(Debug)]
pub(super) struct Session {
    devices: Vec<Option<Device>>,
    /// Number of opens so far. It is part of device ids, so that an id is not reused soon.
    opened: u32,
}

impl Session {
    /// Most devices: the low 8 bits of an id are the index in the table.
    pub const MAX_DEVICES: usize = 256;

    /// A session whose device ids begin at `first`. The number differs after each boot of the gateway: an id from
    /// before a reboot must not name a device opened after it.
    pub fn new(first: u32) -> Self {
        Session { devices: Vec::new(), opened: first }
    }

    /// Looks up a device by its id.
    #[inline]
    pub fn device(&self, id: u32) -> Option<&Device> {
        self.devices.get(id as usize & 0xff)?.as_ref().filter(|device| device.id == id)
    }

    /// Looks up a device by the name in its OPEN.
    pub fn named(&self, name: &Name) -> Option<&Device> {
        self.devices.iter().flatten().find(|device| device.opened.name == *name)
    }

    /// Adds a device and returns its id; None if the table is full.
    pub fn add(&mut self, opened: Opened, max_devices: usize) -> Option<u32> {
        let index = match self.devices.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.devices.len() < max_devices => {
                self.devices.push(None);
                self.devices.len() - 1
            }
            None => return None,
        };
        let id = self.opened << 8 | index as u32;
        self.opened = self.opened.wrapping_add(1);
        *self.devices.get_mut(index)? = Some(Device { id, opened });
        Some(id)
    }

    /// Removes a device.
    pub fn remove(&mut self, id: u32) -> Option<Device> {
        let place = self.devices.get_mut(id as usize & 0xff)?;
        place.take_if(|device| device.id == id)
    }

    /// The id of the first device.
    pub fn first(&self) -> Option<u32> {
        self.devices.iter().flatten().next().map(|device| device.id)
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::OpenCounts;

    #[test]
    fn ids_of_closed_devices_are_not_reused() {
        let mut session = Session::new(0);
        let counts = Arc::new(OpenCounts::default());
        let opened = || Opened {
            volume: VolumeId(0),
            mode: AccessMode::ReadOnly,
            copies_at_once: false,
            name: Name::new("a").unwrap(),
            hosts: Hosts::default(),
            hold: counts.open(None).unwrap(),
            limiter: Arc::default(),
            throttle: 0,
        };
        let add = |session: &mut Session| session.add(opened(), 2);
        let first = add(&mut session).unwrap();
        let second = add(&mut session).unwrap();
        assert_eq!(add(&mut session), None, "the table is full");
        assert!(session.remove(first).is_some() && session.remove(first).is_none());
        let third = add(&mut session).unwrap();
        assert!(session.device(first).is_none());
        assert_eq!(session.device(third).unwrap().id, third);
        assert_eq!(session.device(second).unwrap().id, second);
        assert!(session.device(u32::MAX).is_none());
    }
}
