//! Requests of volumes, and responses of the server.

use super::request::Active;
use super::state::{DeviceState, Input};
use super::{Client, Notice, Owner, RESERVED_PERMITS, Session};
use crate::volume::VolumeError;
use rtrs::Errno;
use rtrs::client::{Channel, Continuity, Outcome, Permit, Request};
use verbs::{Ctx, RdmaDevice};

impl Client {
    /// Takes the requests submitted to a device's volume, and sends as many as possible.
    pub(super) fn pump<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if core::mem::take(&mut device.queue.borrow_mut().give_up) {
            self.give_up_all(key, ctx);
        }
        let Some(device) = self.devices.get_mut(key) else { return };
        while let Some(&slot) = device.free.last() {
            let Some(request) = device.queue.borrow_mut().submitted.pop_front() else { break };
            device.free.pop();
            self.taken += 1;
            let mut active = Active::new(request, device);
            if device.state != DeviceState::Open {
                active.waiting_since = Some(ctx.now);
                let deadline = ctx.now + self.config.wait;
                self.next_timer =
                    Some(self.next_timer.map_or(deadline, |earlier| earlier.min(deadline)));
            }
            device.active[slot as usize] = Some(active);
            device.waiting.push_back(slot);
        }
        match device.state {
            _ if device.unmapping => self.end_device(key, ctx),
            DeviceState::Open => self.send_waiting(key, ctx),
            // No request can succeed.
            DeviceState::Closed => {
                while let Some(slot) = self.devices[key].waiting.pop_front() {
                    self.give_up(key, slot);
                }
            }
            _ if self.config.wait.is_zero() => self.run_timers(ctx),
            _ => {}
        }
    }

    fn send_waiting<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        while self.session == Session::Up
            && let Some(device) = self.devices.get_mut(key)
            && let Some(&slot) = device.waiting.front()
        {
            let geometry = device.geometry();
            let Some(Some(active)) = device.active.get_mut(slot as usize) else {
                device.waiting.pop_front();
                continue;
            };
            let permit = match active.permit {
                Some(permit) => permit,
                None if self.transport.available_permits() <= RESERVED_PERMITS => return,
                None => match self.transport.get_permit() {
                    Some(permit) => permit,
                    None => return,
                },
            };
            active.permit = Some(permit);
            let (kind, io, data) = active.step(device.id, &geometry);
            let user = io.emit();
            let channel = Channel::Io(permit.index() as u16);
            let request = Request { kind, user: &user, data, channel };
            match self.transport.submit(permit, &request, ctx) {
                Ok(()) => {
                    active.sent = true;
                    device.waiting.pop_front();
                    self.set_owner(permit, Owner::Io { device: key, slot });
                }
                // The link went down; an event for it follows.
                Err(Errno::ENOTCONN) => return,
                Err(_) => {
                    device.waiting.pop_front();
                    self.transport.put_permit(permit);
                    self.devices[key].finish(slot, Err(VolumeError::Invalid));
                }
            }
        }
    }

    /// Fails a queued request.
    pub(super) fn give_up(&mut self, key: usize, slot: u32) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if let Some(Some(Active { permit: Some(permit), .. })) = device.active.get(slot as usize) {
            self.transport.put_permit(*permit);
        }
        device.finish(slot, Err(VolumeError::Io));
    }

    /// Handles the end of a step of a request.
    pub(super) fn handle_io<P: RdmaDevice + ?Sized>(
        &mut self,
        permit: Permit,
        key: usize,
        slot: u32,
        outcome: Outcome,
        ctx: &mut Ctx<'_, P>,
    ) {
        let Some(device) = self.devices.get_mut(key) else { return };
        let Some(Some(active)) = device.active.get_mut(slot as usize) else { return };
        active.sent = false;
        let Outcome::Answered(result) = outcome else {
            device.park(slot, ctx.now);
            return self.wake_at(ctx.now + self.config.wait);
        };
        active.permit = None;
        active.waiting_since = None;
        let mut active = *active;
        self.transport.put_permit(permit);
        if active.given_up {
            // Any response shows that the server has ended the earlier request with this permit.
            return device.finish(slot, Ok(()));
        }
        match result {
            Ok(()) => {
                // A step may be lost even if the request is not complete.
                device.written += u64::from(active.is_volatile());
                let has_next_step = active.advance(device);
                device.active[slot as usize] = Some(active);
                if has_next_step {
                    // Before requests that came later.
                    device.waiting.push_front(slot);
                    return;
                }
                if active.flushing || active.is_flush() {
                    device.stable = device.stable.max(active.mark);
                }
                let result = device.report_loss(&active);
                device.finish(slot, result);
            }
            Err(Errno::ENOTCONN) => self.handle_unknown(key, slot, ctx),
            Err(errno) => device.finish(slot, Err(error(errno))),
        }
    }

    /// Handles the server's response that the device is not open. If a path came up since the OPEN, the
    /// server may have been restarted while other paths seemed to be up. Otherwise the server's operator closed it.
    fn handle_unknown<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        slot: u32,
        ctx: &mut Ctx<'_, P>,
    ) {
        let device = &mut self.devices[key];
        let may_have_restarted = self.paths_up > device.opened_at;
        if may_have_restarted || device.state != DeviceState::Open {
            device.park(slot, ctx.now);
            if device.state == DeviceState::Open {
                if self.transport.server() != Continuity::Same {
                    device.may_have_lost();
                }
                device.state = DeviceState::Disconnected;
                device.start_waiting(ctx.now);
                self.open(key, ctx);
            }
            return self.wake_at(ctx.now + self.config.wait);
        }
        if let Some(next) = device.state.next(Input::Unknown) {
            device.state = next;
        }
        device.may_have_lost();
        let name = device.name;
        device.finish(slot, Err(VolumeError::Io));
        self.notice(Notice::DeviceClosed { device: name });
    }
}

/// Maps an errno of the server to the error for the volume's user.
fn error(errno: Errno) -> VolumeError {
    match errno {
        Errno::EROFS => VolumeError::ReadOnly,
        Errno::EOPNOTSUPP => VolumeError::Unsupported,
        Errno::EINVAL => VolumeError::Invalid,
        _ => VolumeError::Io,
    }
}
