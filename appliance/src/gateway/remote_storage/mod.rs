//! Volumes of other servers: sessions, the devices mapped over them, and mirrors, whose members may be such devices.
//!
//! It resolves servers by ARP and neighbour discovery, on the interface with the path's own address. A mirror takes its
//! members out of the set of volumes. In a round, sessions and server are polled in turns until nothing moves, so
//! another server's response is forwarded in the same round. Without configuration none of this exists.

mod mirrors;
mod named_paths;
mod orders;
mod path_resolution;
mod read_benchmark;
mod reconnecting;
mod sessions;
#[cfg(test)]
mod tests;

use super::network::Network;
use super::plane_user::{PlaneUser, Setup};
use super::ports::PortSlot;
use super::storage::Storage;
use crate::families::{OfMeasure, OfMirror, OfRemote};
use core::time::Duration;
use drivers::hal::Instant;
use management::status::RemoteStatus;
use mirrors::MirrorSlot;
use provider_set::ProviderSet;
use read_benchmark::Reading;
pub(in crate::gateway) use reconnecting::Reconnecting;
use sessions::Session;
use std::collections::BTreeSet;
use storage::rnbd::client::Bells;
use storage::volume::mirror::Clock;
use storage::volume::{User, VolumeId};
use verbs::{ConnectionEvent, Ctx};

/// Interval of [`Volumes::tend`](storage::volume::Volumes::tend).
const TEND_INTERVAL: Duration = Duration::from_secs(1);
/// How often volumes that depend on each other are polled in one round of the loop.
const TURNS: usize = 4;

/// Sessions and mirrors.
#[derive(Default)]
pub(in crate::gateway) struct RemoteStorage {
    /// Sessions, sorted by number.
    pub sessions: Vec<OfRemote<Session>>,
    /// Sessions with work, by number.
    bells: Bells,
    /// Next timers of sessions, with their numbers.
    due: BTreeSet<(Instant, u32)>,
    /// Polls of sessions.
    #[cfg(test)]
    session_polls: u64,
    pub mirrors: Vec<OfMirror<MirrorSlot>>,
    /// When paths to servers are resolved next; None while every path is up.
    pub resolve_due: Option<Instant>,
    tend_due: Option<Instant>,
    /// Clock of mirrors.
    clock: Clock,
    /// The console's `remote read`.
    pub reading: Option<OfMeasure<Reading>>,
    /// A path that the operator reconnects and waits for.
    pub reconnecting: Option<Reconnecting>,
}

impl RemoteStorage {
    /// Whether it has no session, no mirror, and no running command.
    fn is_unused(&self) -> bool {
        let runs = self.reading.is_some() || self.reconnecting.is_some();
        self.sessions.is_empty() && self.mirrors.is_empty() && !runs
    }

    /// Status for reports.
    pub fn status(&self) -> RemoteStatus<'_> {
        RemoteStatus {
            is_there: true,
            sessions: self.sessions.iter().map(|one| one.status()).collect(),
            mirrors: self.mirrors.iter().map(|one| one.status()).collect(),
            nbd: Vec::new(),
            nvme: Vec::new(),
        }
    }
}

impl PlaneUser for RemoteStorage {
    /// Maps the configured remote volumes, and assembles the configured mirrors.
    fn of(setup: &mut Setup<'_>) -> Option<Self> {
        let Setup { config, is_first, storage, ctx } = setup;
        if !*is_first {
            return None;
        }
        let mut remote_storage = RemoteStorage::default();
        remote_storage.add_remotes(config, storage, ctx);
        remote_storage.add_mirrors(config, storage, ctx.arena, ctx.now);
        (!remote_storage.is_unused()).then_some(remote_storage)
    }

    fn on_connection(&mut self, event: &ConnectionEvent, ctx: &mut Ctx<'_, ProviderSet>) -> bool {
        self.sessions.iter_mut().any(|s| s.client.handle_connection_event(event, ctx))
    }

    /// At once if sessions have work.
    fn deadline(&self) -> Option<Instant> {
        let now = (self.bells.rung() > 0).then_some(Instant::ZERO);
        let sessions = now.or(self.due.first().map(|&(at, _)| at));
        Instant::first([sessions, self.resolve_due, self.tend_due, self.clock.due()])
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn wants_control(&self, now: Instant) -> bool {
        self.resolve_due.is_some_and(|at| at <= now)
    }

    fn resolve(
        &mut self,
        _: &[PortSlot],
        networks: &mut [Network],
        ctx: &mut Ctx<'_, ProviderSet>,
    ) {
        self.resolve_paths(networks, ctx);
    }

    fn bridge_came_up(&mut self, now: Instant) {
        self.resolve_due = Some(now);
    }

    /// Polls remote volumes, and the volumes of `storage` that depend on them.
    fn poll(&mut self, storage: &mut Storage, ctx: &mut Ctx<'_, ProviderSet>) -> usize {
        let Storage { volumes, server, .. } = storage;
        let mut done = 0;
        self.clock.set(ctx.now);
        if self.tend_due.is_some_and(|due| due <= ctx.now) | self.clock.take_due() {
            self.tend_due = Some(ctx.now + TEND_INTERVAL);
            volumes.tend(ctx.now);
            self.mirrors.iter_mut().for_each(|mirror| mirror.log_changes(ctx.now));
        }
        for _ in 0..TURNS {
            if server.is_none() {
                // Without a server, poll here, so that completions are kept for their users.
                while volumes.poll(User::SERVER, VolumeId(0)).is_some() {
                    done += 1;
                }
            }
            let mut moved = self.poll_sessions(ctx);
            if let Some(reading) = &mut self.reading {
                moved += reading.poll(volumes, ctx.rng);
            }
            if moved == 0 {
                break;
            }
            done += moved;
            if let Some(server) = server {
                done += usize::from(server.poll(volumes, ctx));
            }
        }
        done + usize::from(volumes.want_turn())
    }
}
