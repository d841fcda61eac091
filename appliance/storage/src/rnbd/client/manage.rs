//! Operator's interface to devices: map, remap, unmap, list.

use super::device::{Device, DeviceId, Losses};
use super::state::DeviceState;
use super::volume::RemoteVolume;
use super::{ANSWER, Client, Owner};
use crate::rnbd::wire::{AccessMode, Close};
use core::fmt;
use drivers::hal::{Geometry, Window};
use rtrs::server::RequestKind;
use rtrs::{Errno, Name};
use verbs::{Ctx, RdmaDevice};

/// Why a device was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The session has the device mapped already.
    Exists,
    /// The name is empty, or contains `..`.
    BadName,
    /// No memory.
    Memory,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapError::Exists => "the session has this device mapped already",
            MapError::BadName => "the name of a device must not be empty or contain '..'",
            MapError::Memory => "no memory left",
        })
    }
}

/// Status of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStatus {
    /// Its number in this client.
    pub id: DeviceId,
    /// Its name at the server.
    pub name: Name,
    /// Access mode.
    pub mode: AccessMode,
    /// State.
    pub state: DeviceState,
    /// Errno of the server's last refusal.
    pub last_error: Option<Errno>,
    /// Geometry that the server reported last.
    pub geometry: Geometry,
    /// Requests in flight or queued.
    pub requests: usize,
}

impl Client {
    /// Maps a device. Its volume has no sectors until the server has opened the device.
    pub fn map<P: RdmaDevice + ?Sized>(
        &mut self,
        name: Name,
        mode: AccessMode,
        losses: Losses,
        ctx: &mut Ctx<'_, P>,
    ) -> Result<(DeviceId, RemoteVolume), MapError> {
        if name.as_str().is_empty() || name.as_str().contains("..") {
            return Err(MapError::BadName);
        }
        if self.devices.iter().any(|(_, device)| device.name == name) {
            return Err(MapError::Exists);
        }
        let answer = ctx.arena.alloc(ANSWER, 64).ok_or(MapError::Memory)?;
        let device = Device::new(name, mode, losses, self.config.depth, answer);
        device.queue.borrow_mut().bell = self.bell.clone();
        let volume = RemoteVolume(device.queue.clone());
        self.ring();
        let key = self.devices.insert(device);
        self.open(key, ctx);
        Ok((DeviceId(key as u32), volume))
    }

    /// Opens a device again: one that the server has closed, or an open one to learn its new size.
    /// False if no device has that number.
    pub fn remap<P: RdmaDevice + ?Sized>(&mut self, id: DeviceId, ctx: &mut Ctx<'_, P>) -> bool {
        let known = self.devices.contains(id.0 as usize);
        self.ring();
        self.open(id.0 as usize, ctx);
        known
    }

    /// Changes which requests report losses. False if no device has that number.
    pub fn tell_losses(&mut self, id: DeviceId, losses: Losses) -> bool {
        let device = self.devices.get_mut(id.0 as usize);
        device.map(|device| device.loss_reporting = losses).is_some()
    }

    /// Closes a device and removes it once its requests in flight have ended. Queued requests
    /// fail at once. False if no device has that number.
    pub fn unmap<P: RdmaDevice + ?Sized>(&mut self, id: DeviceId, ctx: &mut Ctx<'_, P>) -> bool {
        let key = id.0 as usize;
        let Some(device) = self.devices.get_mut(key) else { return false };
        device.unmapping = true;
        device.end_queue();
        self.end_device(key, ctx);
        self.ring();
        true
    }

    /// Fails the queued requests of a device that is being unmapped. Removes the device if nothing is in flight.
    pub(super) fn end_device<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        while let Some(slot) = self.devices[key].waiting.pop_front() {
            self.give_up(key, slot);
        }
        let device = &self.devices[key];
        if !device.is_idle() || device.opening {
            return;
        }
        let device = self.devices.remove(key);
        if device.state == DeviceState::Open {
            let close = Close { device: device.id }.emit();
            // If it cannot be sent, the device is closed with the session.
            self.send_request(RequestKind::Write, &close, Window::empty(), Owner::Close, ctx);
        }
        ctx.arena.free(device.answer);
    }

    /// All devices.
    pub fn devices(&self) -> impl Iterator<Item = DeviceStatus> + '_ {
        self.devices.iter().map(|(key, device)| DeviceStatus {
            id: DeviceId(key as u32),
            name: device.name,
            mode: device.mode,
            state: device.state,
            last_error: device.last_error,
            geometry: device.geometry(),
            requests: device.queue.borrow().in_use,
        })
    }
}
