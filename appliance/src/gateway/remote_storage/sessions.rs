//! Sessions with other servers, and the devices that they map.

use super::RemoteStorage;
use super::named_paths::NamedPath;
use crate::config::{Config, PathPair, Remote, RemoteKind, RemotePath};
use crate::families::{self, OfRemote, REMOTE};
use crate::gateway::storage::{Storage, name};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::{Hold, Instant};
use management::remote::path_name;
use management::status::RemoteSession;
use net::dns::Host;
use provider_set::ProviderSet;
use rtrs::client::{AddPathError, DownReason, PathId, PathStatus};
use storage::rnbd::client::{self, Client, DeviceId, DeviceStatus, Losses, Notice};
use storage::volume::VolumeId;
use verbs::{Ctx, Provider};

/// A session with a server.
pub(in crate::gateway) struct Session {
    /// Its number, and the number of its bell.
    number: u32,
    pub client: Client,
    /// Its entry in [`RemoteStorage::due`].
    due: Option<Instant>,
    /// The server's port.
    pub port: u16,
    /// Limit of attempts to reconnect a path. It applies after a path was up. Before that attempts are unlimited,
    /// because the server may boot later than the appliance.
    pub max_reconnect_attempts: Option<u16>,
    /// Its devices, with the names of their volumes here.
    pub devices: Vec<(String, DeviceId)>,
    /// Configured paths to named servers.
    pub(super) named: Vec<NamedPath>,
    /// Reasons of failed paths that were logged.
    logged: Vec<(PathId, DownReason)>,
}

impl Session {
    /// Its name.
    pub fn name(&self) -> &str {
        self.client.transport().name().as_str()
    }

    /// Status for reports.
    pub fn status(&self) -> RemoteSession<'_> {
        let max_reconnect_attempts = self.max_reconnect_attempts;
        RemoteSession { client: &self.client, devices: &self.devices, max_reconnect_attempts }
    }

    /// The device behind a volume.
    pub fn device(&self, volume: &str) -> Option<DeviceStatus> {
        self.status().device(volume)
    }

    pub(super) fn path(&self, id: PathId) -> Option<PathStatus<'_>> {
        self.client.transport().paths().find(|path| path.id == id)
    }

    /// The path between two addresses.
    pub fn path_between(&self, from: IpAddr, to: IpAddr) -> Option<PathStatus<'_>> {
        self.client.transport().paths().find(|path| path.from == from && path.to.ip() == to)
    }

    pub fn add_path(
        &mut self,
        path: PathPair,
        ctx: &mut Ctx<'_, ProviderSet>,
    ) -> Result<PathId, AddPathError> {
        let to = SocketAddr::new(path.to, self.port);
        self.client.transport_mut().add_path(path.from, to, ctx)
    }

    /// Logs a notice. For a path that stays down each reason is logged once.
    fn log_notice(&mut self, notice: &Notice) {
        match notice {
            Notice::PathUp(id) => {
                self.logged.retain(|(other, _)| other != id);
                let most = self.max_reconnect_attempts;
                self.client.transport_mut().set_max_reconnect_attempts(most);
                if let Some(path) = self.path(*id) {
                    log::info!("session {}: path {} is up", self.name(), path_name(&path));
                }
            }
            Notice::PathDown(id, reason) => {
                let Some(path) = self.path(*id) else { return };
                let early = matches!(reason, DownReason::Unreachable | DownReason::NoAddress);
                if self.logged.contains(&(*id, *reason)) || early && path.attempts < 2 {
                    return;
                }
                log::warn!("session {}: path {} is down: {reason}", self.name(), path_name(&path));
                self.logged.retain(|(other, _)| other != id);
                self.logged.push((*id, *reason));
            }
            other => log::info!("session {}: {other}", self.name()),
        }
    }
}

impl RemoteStorage {
    /// Polls the sessions with work. Returns the amount of work.
    pub(super) fn poll_sessions(&mut self, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        while let Some(number) = ctx.provider.next_watched() {
            self.bells.ring(number);
        }
        for &(_, number) in self.due.iter().take_while(|(at, _)| *at <= ctx.now) {
            self.bells.ring(number);
        }
        let mut done = 0;
        // A session whose bell rings meanwhile is polled in the next call.
        for _ in 0..self.bells.rung() {
            let Some(number) = self.bells.answer() else { break };
            let Ok(place) = self.sessions.binary_search_by_key(&number, |s| s.number) else {
                continue;
            };
            done += self.poll_session(place, ctx);
        }
        done
    }

    fn poll_session(&mut self, place: usize, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        #[cfg(test)]
        {
            self.session_polls += 1;
        }
        let session = &mut self.sessions[place];
        let before = session.client.taken();
        while let Some(notice) = session.client.poll(ctx) {
            session.log_notice(&notice);
            if matches!(notice, Notice::PathDown(..)) {
                self.resolve_due = Some(ctx.now);
            }
        }
        let due = session.client.poll_timeout();
        let before_due = core::mem::replace(&mut session.due, due);
        if before_due != due {
            let number = session.number;
            before_due.map(|at| self.due.remove(&(at, number)));
            due.map(|at| self.due.insert((at, number)));
        }
        (session.client.taken() - before) as usize
    }

    /// Adds a session, under the first free number.
    fn add(&mut self, session: OfRemote<Session>, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        let numbered =
            |(place, session): &(usize, &OfRemote<Session>)| session.number as usize == *place;
        let place = self.sessions.iter().enumerate().take_while(numbered).count();
        self.sessions.insert(place, session);
        let session = &mut *self.sessions[place];
        session.number = place as u32;
        session.client.ring_when_asked(self.bells.bell(session.number), ctx);
        place
    }

    /// Ends the sessions without devices.
    fn end_unused(&mut self, ctx: &mut Ctx<'_, ProviderSet>) {
        while let Some(place) = self.sessions.iter().position(|s| s.devices.is_empty()) {
            let Session { number, client, due, .. } = self.sessions.remove(place).into_part();
            due.map(|at| self.due.remove(&(at, number)));
            client.end(ctx);
        }
    }

    /// The session with a device behind a volume, and the device.
    pub fn find_device(&self, volume: &str) -> Option<(&Session, DeviceStatus)> {
        self.sessions.iter().find_map(|session| Some((&**session, session.device(volume)?)))
    }

    /// Maps the configured devices. Failures are logged.
    pub(super) fn add_remotes(
        &mut self,
        config: &Config,
        storage: &mut Storage,
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        for remote in config.remote.iter().filter(|remote| remote.kind == RemoteKind::Rnbd) {
            if let Err(why) = self.add_remote(remote, config, storage, ctx) {
                log::error!("remote {}: {why}", remote.name);
            }
        }
    }

    /// Maps a device, and makes it a volume of `storage`.
    pub(super) fn add_remote(
        &mut self,
        remote: &Remote,
        config: &Config,
        storage: &mut Storage,
        ctx: &mut Ctx<'_, ProviderSet>,
    ) -> Result<VolumeId, String> {
        if !REMOTE {
            return Err(families::missing("remote"));
        }
        if storage.volumes.find(remote.name.as_str()).is_some() {
            return Err("the name is taken".into());
        }
        let (Some(session_name), Some(device_name)) = (&remote.sessname, &remote.device_path)
        else {
            return Err("it has no session or no device".into());
        };
        let (session_name, device_name) = (name(session_name)?, name(device_name)?);
        let (volume_name, mode) = (name(&remote.name)?, remote.access_mode.0);
        // A mirror has another copy of the data.
        let losses = match config.mirror_of(remote.name.as_str()) {
            Some(_) => Losses::ToAll,
            None => Losses::ToFlush,
        };
        let known = self.sessions.iter().position(|s| s.name() == session_name.as_str());
        let place = match known {
            Some(place) => place,
            None => {
                let wait = Duration::from_secs(remote.wait_seconds.into());
                let devices = client::Config { wait, ..client::Config::default() };
                let transport = rtrs::client::Config {
                    connections: 1 + remote.nr_poll_queues,
                    policy: remote.mp_policy.0,
                    ..rtrs::client::Config::default()
                };
                let client = Client::new(devices, transport, session_name, ctx)
                    .map_err(|why| format!("no memory or other resources left: {why}"))?;
                let session = OfRemote::hold(|| Session {
                    number: 0,
                    client,
                    due: None,
                    port: remote.dest_port,
                    max_reconnect_attempts: remote.max_reconnect_attempts.0,
                    devices: Vec::new(),
                    named: Vec::new(),
                    logged: Vec::new(),
                });
                let session = session.ok_or_else(|| families::missing("remote"))?;
                self.add(session, ctx)
            }
        };
        let session = &mut self.sessions[place];
        for path @ RemotePath { from, to } in &remote.path {
            let added = match to {
                Host::Address(to) => session.add_path(PathPair { from: *from, to: *to }, ctx),
                Host::Name(name) => {
                    session.add_named(*from, name);
                    continue;
                }
            };
            match added {
                Ok(_) | Err(AddPathError::Exists) => {}
                Err(why) => log::error!("remote {}: path {path}: {why}", remote.name),
            }
        }
        self.resolve_due = Some(ctx.now);
        let mapped = session.client.map(device_name, mode, losses, ctx);
        let (id, volume) = mapped.map_err(|why| why.to_string())?;
        session.devices.push((remote.name.to_string(), id));
        let added = storage.volumes.add(volume_name, Box::new(volume));
        added.ok_or_else(|| "the name is taken".into())
    }

    /// Removes a remote volume, which must be unused. The session ends with its last device.
    pub(super) fn remove_remote(
        &mut self,
        volume: &str,
        storage: &mut Storage,
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        if let Some(id) = storage.volumes.find(volume) {
            drop(storage.volumes.remove(id));
        }
        for session in &mut self.sessions {
            let session = &mut **session;
            session.devices.retain(|(name, id)| {
                let kept = name != volume;
                if !kept {
                    session.client.unmap(*id, ctx);
                }
                kept
            });
        }
        self.end_unused(ctx);
    }
}
