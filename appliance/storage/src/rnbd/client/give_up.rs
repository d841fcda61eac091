//! Requests that the volume's user gives up: the user owns their memory again at once, but the server may still
//! execute them.
//!
//! An Isthmus server accepts another request with the same permit only after the first one has ended. A stock server
//! lets a path come up again only after all requests that arrived over it have ended. So a device is settled after
//! both: the server responded to a flush with each of the permits, and the paths are up.

use super::{Client, Owner};
use crate::volume::{Operation, Request, Tag, VolumeError};
use drivers::hal::{Instant, Window};
use rtrs::client::{PathId, PathState};
use verbs::{Ctx, RdmaDevice};

impl Client {
    /// Gives up all requests of a device.
    pub(super) fn give_up_all<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let Some(device) = self.devices.get_mut(key) else { return };
        device.refuse_submitted();
        for slot in 0..device.active.len() as u32 {
            let Some(device) = self.devices.get_mut(key) else { return };
            let Some(Some(active)) = device.active.get_mut(slot as usize) else { continue };
            if active.given_up {
                continue;
            }
            if let (true, Some(permit)) = (active.sent, active.permit) {
                active.sent = false;
                device.waiting.push_front(slot);
                self.transport.take_back(permit, ctx);
                self.set_owner(permit, Owner::Nothing);
            }
            self.complete_given_up(key, slot, ctx.now);
        }
        let down = self.transport.paths().filter(|path| path.state != PathState::Connected);
        let down = down.map(|path| path.id).collect();
        if let Some(device) = self.devices.get_mut(key)
            && device.active.iter().flatten().any(|active| active.given_up)
        {
            device.down_paths = down;
            device.down_paths_deadline = ctx.now + self.config.wait;
            device.count_unsettled();
        }
        self.wake_at(ctx.now + self.config.wait);
    }

    /// Reports to its user that a queued request failed. If a step of it was sent, a flush takes its place.
    pub(super) fn complete_given_up(&mut self, key: usize, slot: u32, now: Instant) {
        let Some(device) = self.devices.get_mut(key) else { return };
        let Some(Some(active)) = device.active.get_mut(slot as usize) else { return };
        if active.permit.is_none() {
            // No step of it was sent.
            device.waiting.retain(|other| *other != slot);
            return device.finish(slot, Err(VolumeError::Io));
        }
        let tag = active.request.tag;
        let data = Window::empty();
        active.request =
            Request { tag: Tag::default(), operation: Operation::Flush, sector: 0, data };
        (active.done, active.part, active.flushing, active.given_up) = (0, 0, false, true);
        active.waiting_since = Some(now);
        device.complete(tag, Err(VolumeError::Io));
        device.count_unsettled();
    }

    /// A path came up, so the server has ended the requests that arrived over it before.
    pub(super) fn settle_path(&mut self, path: PathId) {
        for (_, device) in &mut self.devices {
            if !device.down_paths.is_empty() {
                device.down_paths.retain(|other| *other != path);
                device.count_unsettled();
            }
        }
    }

    /// Ends the wait for paths that stay down until the deadline.
    pub(super) fn expire_down_paths(&mut self, key: usize, now: Instant) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if device.down_paths.is_empty() {
            return;
        }
        let until = device.down_paths_deadline;
        if until <= now {
            device.down_paths.clear();
            device.count_unsettled();
        } else {
            self.wake_at(until);
        }
    }
}
