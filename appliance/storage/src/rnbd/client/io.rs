//! Requests of volumes, and answers of the server.

use super::request::Active;
use super::state::{DeviceState, Input};
use super::{Client, Notice, Owner, RESERVED_PERMITS, Session};
use crate::volume::VolumeError;
use rtrs::Errno;
use rtrs::client::{Channel, Continuity, Outcome, Permit, Request};
use verbs::EngineContext;
use verbs::RdmaDevice;

impl Client {
    /// Takes what the volume of a device was given, and sends what can be sent.
    pub(super) fn pump<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        ctx: &mut EngineContext<'_, P>,
    ) {
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
                self.wake = Some(self.wake.map_or(deadline, |earlier| earlier.min(deadline)));
            }
            device.active[slot as usize] = Some(active);
            device.waiting.push_back(slot);
        }
        match device.state {
            _ if device.ending => self.end_device(key, ctx),
            DeviceState::Open => self.send_waiting(key, ctx),
            // Nothing will come of it.
            DeviceState::Closed => {
                while let Some(slot) = self.devices[key].waiting.pop_front() {
                    self.give_up(key, slot);
                }
            }
            _ if self.config.wait.is_zero() => self.run_timers(ctx),
            _ => {}
        }
    }

    fn send_waiting<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut EngineContext<'_, P>) {
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
                // The link went down; the event tells.
                Err(Errno::ENOTCONN) => return,
                Err(_) => {
                    device.waiting.pop_front();
                    self.transport.put_permit(permit);
                    self.devices[key].finish(slot, Err(VolumeError::Invalid));
                }
            }
        }
    }

    /// Ends a request that waits, because it cannot be done.
    pub(super) fn give_up(&mut self, key: usize, slot: u32) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if let Some(Some(Active { permit: Some(permit), .. })) = device.active.get(slot as usize) {
            self.transport.put_permit(*permit);
        }
        device.finish(slot, Err(VolumeError::Io));
    }

    /// A step of a request has ended.
    pub(super) fn handle_io<P: RdmaDevice + ?Sized>(
        &mut self,
        permit: Permit,
        key: usize,
        slot: u32,
        outcome: Outcome,
        ctx: &mut EngineContext<'_, P>,
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
            // Whatever the server says: it is over with what came before.
            return device.finish(slot, Ok(()));
        }
        match result {
            Ok(()) => {
                // What was done in part may be lost as well as what was done in whole.
                device.written += u64::from(active.is_volatile());
                let goes_on = active.advance(device);
                device.active[slot as usize] = Some(active);
                if goes_on {
                    // Before requests that came later.
                    device.waiting.push_front(slot);
                    return;
                }
                if active.flushing || active.is_flush() {
                    device.stable = device.stable.max(active.mark);
                }
                let told = device.tell_loss(&active);
                device.finish(slot, told);
            }
            Err(Errno::ENOTCONN) => self.handle_unknown(key, slot, ctx),
            Err(errno) => device.finish(slot, Err(error(errno))),
        }
    }

    /// The server does not know the device. If a path came up since it was opened, the server may
    /// have been started anew while other paths seemed to stand; otherwise somebody closed it.
    fn handle_unknown<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        slot: u32,
        ctx: &mut EngineContext<'_, P>,
    ) {
        let device = &mut self.devices[key];
        let anew = self.paths_up > device.opened_at;
        if anew || device.state != DeviceState::Open {
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

/// What an errno of the server means for a volume's user.
fn error(errno: Errno) -> VolumeError {
    match errno {
        Errno::EROFS => VolumeError::ReadOnly,
        Errno::EOPNOTSUPP => VolumeError::Unsupported,
        Errno::EINVAL => VolumeError::Invalid,
        _ => VolumeError::Io,
    }
}
