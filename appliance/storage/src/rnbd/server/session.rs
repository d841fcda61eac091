//! The devices that a session has open.

use crate::rnbd::wire::AccessMode;
use crate::volume::{Hold, VolumeId};
use alloc::vec::Vec;
use net::hosts::Hosts;
use rtrs::Name;

/// An export, as a session has opened it.
#[derive(Debug)]
pub(super) struct Opened {
    pub volume: VolumeId,
    pub mode: AccessMode,
    /// The volume copies what is written to it at once.
    pub copies_at_once: bool,
    /// As the client asked for it.
    pub name: Name,
    /// Hosts that the export admitted when it was opened.
    pub hosts: Hosts,
    /// Counts it until it is closed.
    pub _hold: Hold,
}

/// A device that is open.
#[derive(Debug)]
pub(super) struct Device {
    pub id: u32,
    pub opened: Opened,
}

/// What the server keeps of a session.
#[derive(Debug)]
pub(super) struct Session {
    devices: Vec<Option<Device>>,
    /// Counts the devices that are opened: part of their ids, so that an id is not soon used again.
    opened: u32,
}

impl Session {
    /// Most devices: the low 8 bits of an id are the place in the table.
    pub const MAX_DEVICES: usize = 256;

    /// Of a session whose ids begin at some number, which another life of the gateway does not
    /// begin at: an id of that life must not name a device of this one.
    pub fn new(first: u32) -> Self {
        Session { devices: Vec::new(), opened: first }
    }

    /// The device of that id.
    #[inline]
    pub fn device(&self, id: u32) -> Option<&Device> {
        self.devices.get(id as usize & 0xff)?.as_ref().filter(|device| device.id == id)
    }

    /// The device opened under that name.
    pub fn named(&self, name: &Name) -> Option<&Device> {
        self.devices.iter().flatten().find(|device| device.opened.name == *name)
    }

    /// Adds a device, if there is room; its id.
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

    /// Takes a device out.
    pub fn remove(&mut self, id: u32) -> Option<Device> {
        let place = self.devices.get_mut(id as usize & 0xff)?;
        place.take_if(|device| device.id == id)
    }

    /// Any device.
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
    use alloc::sync::Arc;

    #[test]
    fn ids_of_closed_devices_are_not_used_again() {
        let mut session = Session::new(0);
        let counts = Arc::new(OpenCounts::default());
        let opened = || Opened {
            volume: VolumeId(0),
            mode: AccessMode::ReadOnly,
            copies_at_once: false,
            name: Name::new("a").unwrap(),
            hosts: Hosts::default(),
            _hold: counts.open(None).unwrap(),
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
