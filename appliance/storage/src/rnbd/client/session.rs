//! The session: SESS_INFO when the link comes up, then OPEN for each device.

use super::state::{DeviceState, Input};
use super::{Client, Owner};
use crate::rnbd::wire::{Open, OpenResponse, SessionInfo, VERSION};
use core::fmt;
use drivers::hal::{Instant, Window};
use rtrs::client::{Channel, Continuity, DownReason, Event, Outcome, PathId, Request};
use rtrs::server::RequestKind;
use rtrs::{Errno, Name};
use verbs::{Ctx, RdmaDevice};

/// State of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Session {
    /// No path is up.
    Down,
    /// SESS_INFO was sent, or will be sent.
    Greeting,
    /// Devices can be opened.
    Up,
}

/// An event for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A path came up.
    PathUp(PathId),
    /// A path is down, or an attempt to bring it up failed.
    PathDown(PathId, DownReason),
    /// A device is open.
    DeviceOpen {
        /// Its name.
        device: Name,
        /// Its size.
        sectors: u64,
    },
    /// The server refused to open a device; OPEN is sent again later.
    DeviceRefused {
        /// Its name.
        device: Name,
        /// Errno of the refusal.
        errno: Errno,
    },
    /// The server has closed a device.
    DeviceClosed {
        /// Its name.
        device: Name,
    },
    /// The server was (or may have been) restarted, and may have lost writes that it had acknowledged. The next
    /// flush of the device fails.
    WritesLost {
        /// Its name.
        device: Name,
        /// Whether it is certain that the server was restarted.
        certain: bool,
    },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::PathUp(path) => write!(f, "path {} is up", path.0),
            Notice::PathDown(path, reason) => write!(f, "path {} is down: {reason}", path.0),
            Notice::DeviceOpen { device, sectors } => {
                write!(f, "device {device} is open: {sectors} sectors")
            }
            Notice::DeviceRefused { device, errno } => {
                write!(f, "the server refused to open device {device}: {errno}")
            }
            Notice::DeviceClosed { device } => write!(f, "the server has closed device {device}"),
            Notice::WritesLost { device, certain } => write!(
                f,
                "the server {} restarted: unflushed writes to device {device} may be lost",
                if *certain { "was" } else { "may have been" }
            ),
        }
    }
}

impl Client {
    /// Handles an event of the transport.
    pub(super) fn handle_event<P: RdmaDevice + ?Sized>(
        &mut self,
        event: Event,
        ctx: &mut Ctx<'_, P>,
    ) {
        match event {
            Event::PathUp(path) => {
                self.paths_up += 1;
                self.settle_path(path);
                self.notice(Notice::PathUp(path));
            }
            Event::PathDown(path, reason) => self.notice(Notice::PathDown(path, reason)),
            Event::LinkUp { fresh, server } => self.link_up(fresh, server, ctx),
            Event::LinkDown => self.link_down(ctx.now),
            Event::Done(permit, outcome) => {
                let owner = self.owners.get_mut(permit.index());
                let owner = owner.map_or(Owner::Nothing, |o| core::mem::replace(o, Owner::Nothing));
                match owner {
                    Owner::Io { device, slot } => {
                        return self.handle_io(permit, device, slot, outcome, ctx);
                    }
                    Owner::SessionInfo => self.handle_session_info(outcome, ctx),
                    Owner::Open(device) => self.handle_open(device, outcome, ctx),
                    Owner::Close | Owner::Nothing => {}
                }
                self.transport.put_permit(permit);
            }
        }
    }

    fn link_up<P: RdmaDevice + ?Sized>(
        &mut self,
        fresh: bool,
        server: Continuity,
        ctx: &mut Ctx<'_, P>,
    ) {
        for key in 0..self.devices.capacity() {
            let Some(device) = self.devices.get_mut(key) else { continue };
            if fresh {
                device.active.iter_mut().flatten().for_each(|active| active.permit = None);
                device.drop_given_up();
            }
            if server != Continuity::Same {
                let known = device.losses;
                device.may_have_lost();
                if device.losses > known {
                    let (device, certain) = (device.name, server == Continuity::Anew);
                    self.notice(Notice::WritesLost { device, certain });
                }
            }
        }
        self.session = Session::Greeting;
        self.send_session_info(ctx);
    }

    fn link_down(&mut self, now: Instant) {
        self.session = Session::Down;
        for (_, device) in &mut self.devices {
            device.opening = false;
            if let Some(next) = device.state.next(Input::Disconnect) {
                device.state = next;
            }
            device.start_waiting(now);
        }
        self.wake_at(now + self.config.wait);
    }

    /// Sends a request of the session's own; false if no permit is free or the link is down.
    pub(super) fn send_request<P: RdmaDevice + ?Sized>(
        &mut self,
        kind: RequestKind,
        user: &[u8],
        data: Window,
        owner: Owner,
        ctx: &mut Ctx<'_, P>,
    ) -> bool {
        let Some(permit) = self.transport.get_permit() else { return false };
        let request = Request { kind, user, data, channel: Channel::Service };
        let sent = self.transport.submit(permit, &request, ctx).is_ok();
        if sent {
            self.set_owner(permit, owner);
        } else {
            self.transport.put_permit(permit);
        }
        sent
    }

    /// Sends SESS_INFO.
    pub(super) fn send_session_info<P: RdmaDevice + ?Sized>(&mut self, ctx: &mut Ctx<'_, P>) {
        let data = self.answer.slice(0, SessionInfo::SIZE).unwrap_or(Window::empty());
        let user = SessionInfo { version: VERSION }.emit();
        if !self.send_request(RequestKind::Read, &user, data, Owner::SessionInfo, ctx) {
            // Queued requests hold all permits. The timer retries until one of them is released.
            self.retry_soon(ctx);
        }
    }

    fn handle_session_info<P: RdmaDevice + ?Sized>(
        &mut self,
        outcome: Outcome,
        ctx: &mut Ctx<'_, P>,
    ) {
        if self.session != Session::Greeting {
            return;
        }
        let mut bytes = [0; SessionInfo::SIZE];
        let answered = outcome == Outcome::Answered(Ok(()))
            && self.answer.read(0, &mut bytes).is_ok()
            && SessionInfo::parse_response(&bytes).is_ok();
        if !answered {
            return self.retry_soon(ctx);
        }
        self.session = Session::Up;
        for key in 0..self.devices.capacity() {
            self.open(key, ctx);
        }
    }

    /// Sends OPEN for a device that is not open, if the session is up.
    pub(super) fn open<P: RdmaDevice + ?Sized>(&mut self, key: usize, ctx: &mut Ctx<'_, P>) {
        let Some(device) = self.devices.get_mut(key) else { return };
        if self.session != Session::Up || device.opening {
            return;
        }
        if let Some(next) = device.state.next(Input::Open) {
            device.state = next;
        }
        device.opening = true;
        let user = Open { mode: Ok(device.mode), name: device.name }.emit();
        let data = device.answer.slice(0, OpenResponse::SIZE).unwrap_or(Window::empty());
        if !self.send_request(RequestKind::Read, &user, data, Owner::Open(key), ctx) {
            self.devices[key].opening = false;
            self.retry_soon(ctx);
        }
    }

    fn handle_open<P: RdmaDevice + ?Sized>(
        &mut self,
        key: usize,
        outcome: Outcome,
        ctx: &mut Ctx<'_, P>,
    ) {
        let max_io_size = self.transport.shape().map_or(0, |shape| shape.max_io_size);
        let (paths_up, delay) = (self.paths_up, self.config.open_delay);
        let Some(device) = self.devices.get_mut(key) else { return };
        device.opening = false;
        let Outcome::Answered(result) = outcome else { return };
        let name = device.name;
        let mut bytes = [0; OpenResponse::SIZE];
        let result = result.and_then(|()| {
            device.answer.read(0, &mut bytes).map_err(|_| Errno::EINVAL)?;
            let response = OpenResponse::parse(&bytes).map_err(|_| Errno::EINVAL)?;
            device.adopt(&response, max_io_size).then_some(response).ok_or(Errno::EINVAL)
        });
        match result {
            Ok(response) => {
                device.opened_at = paths_up;
                device.last_error = None;
                if let Some(next) = device.state.next(Input::Opened) {
                    device.state = next;
                }
                self.notice(Notice::DeviceOpen { device: name, sectors: response.sectors });
            }
            Err(errno) => {
                let repeated = device.last_error == Some(errno);
                device.last_error = Some(errno);
                if let Some(next) = device.state.next(Input::Refuse) {
                    device.state = next;
                    device.retry_at = ctx.now + delay;
                    let retry_at = device.retry_at;
                    self.wake_at(retry_at);
                }
                if !repeated {
                    self.notice(Notice::DeviceRefused { device: name, errno });
                }
            }
        }
    }

    /// Whether a device is to be opened and its OPEN is not in flight.
    pub(super) fn wants_open(&self, key: usize) -> bool {
        self.session == Session::Up
            && self.devices.get(key).is_some_and(|device| {
                !device.opening
                    && matches!(
                        device.state,
                        DeviceState::Disconnected | DeviceState::Opening | DeviceState::Refused
                    )
            })
    }
}
