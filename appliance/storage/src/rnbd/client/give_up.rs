//! Requests that their user gives up: their memory is his again at once, but the server may still do what it
//! was asked for.
//!
//! A server of ours takes another request with the same permit only when it is over with the first one; a
//! stock one lets a path come up again only when all is over that came by it before. So a device is
//! settled when both is done: a flush was answered with each of the permits, and the paths are up.

use super::{Client, Owner};
use crate::volume::{Operation, Request, Tag, VolumeError};
use drivers::hal::{Instant, Window};
use rtrs::client::{PathId, PathState};
use verbs::EngineContext;
use verbs::RdmaDevice;

impl Client {
    /// Gives up all requests of a device.
    pub(super) fn give_up_all<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
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
            self.tell_given_up(key, slot, ctx.now);
        }
        let down = self.transport.paths().filter(|path| path.state != PathState::Connected);
        let down = down.map(|path| path.id).collect();
        if let Some(device) = self.devices.get_mut(key)
            && device.active.iter().flatten().any(|active| active.given_up)
        {
            device.behind = down;
            device.behind_until = ctx.now + self.config.wait;
            device.count_unsettled();
        }
        self.wake_at(ctx.now + self.config.wait);
    }

    /// Ends a request that waits, as far as its user is concerned.
    pub(super) fn tell_given_up(&mut self, key: usize, slot: u32, now: Instant) {
        let Some(device) = self.devices.get_mut(key) else { return };
        let Some(Some(active)) = device.active.get_mut(slot as usize) else { return };
        if active.permit.is_none() {
            // Nothing was sent.
            device.waiting.retain(|other| *other != slot);
            return device.finish(slot, Err(VolumeError::Io));
        }
        let tag = active.request.tag;
        let data = Window::empty();
        active.request =
            Request { tag: Tag::default(), operation: Operation::Flush, sector: 0, data };
        (active.done, active.part, active.flushing, active.given_up) = (0, 0, false, true);
        active.waiting_since = Some(now);
        device.tell(tag, Err(VolumeError::Io));
        device.count_unsettled();
    }

    /// A path is up: what it had brought before is over.
    pub(super) fn settle_path(&mut self, path: PathId) {
        for (_, device) in &mut self.devices {
            if !device.behind.is_empty() {
                device.behind.retain(|other| *other != path);
                device.count_unsettled();
            }
        }
    }

    /// Stops waiting for paths that do not come back.
    pub(super) fn forget_paths(&mut self, key: usize, now: Instant) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if device.behind.is_empty() {
            return;
        }
        let until = device.behind_until;
        if until <= now {
            device.behind.clear();
            device.count_unsettled();
        } else {
            self.wake_at(until);
        }
    }
}
