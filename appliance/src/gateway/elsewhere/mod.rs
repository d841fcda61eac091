//! Volumes from elsewhere: sessions with other servers and the devices that are mapped over them,
//! and mirrors, whose members may be such devices.

pub(super) mod manage;
pub(super) mod metrics;
mod mirrors;
pub(super) mod objects;
mod reading;
mod sessions;
#[cfg(test)]
mod tests;
mod ways;

use super::storage::Storage;
use core::time::Duration;
use drivers::hal::Instant;
use mirrors::MirrorSlot;
use rdma::devices::Devices;
use rdma::rnbd::client::Bells;
use rdma::rtrs::Context;
use rdma::verbs::ConnectionEvent;
use rdma::volume::VolumeId;
use rdma::volume::mirror::Clock;
use reading::Reading;
use sessions::Session;
use std::collections::BTreeSet;

/// How often mirrors are looked after.
const TEND_INTERVAL: Duration = Duration::from_secs(1);
/// How often volumes that stand on each other are polled in one round of the loop.
const TURNS: usize = 4;

/// Sessions and mirrors.
#[derive(Default)]
pub(in crate::gateway) struct Elsewhere {
    /// By their numbers.
    pub sessions: Vec<Session>,
    /// Sessions that have something to do, by number, …
    bells: Bells,
    /// … and when others will, though nothing arrives.
    due: BTreeSet<(Instant, u32)>,
    /// Sessions that were looked at.
    #[cfg(test)]
    looked_at: u64,
    pub mirrors: Vec<MirrorSlot>,
    /// When ways to servers are looked for; None while every path is up.
    pub ways_due: Option<Instant>,
    tend_due: Option<Instant>,
    /// What mirrors know of time.
    clock: Clock,
    /// The console's `remote read`.
    pub reading: Option<Reading>,
    /// The mirror that the console's `mirror remove` waits for.
    pub ending: Option<String>,
}

impl Elsewhere {
    /// Takes an event of the connection manager; false if it is none of these sessions'.
    pub fn handle_connection_event(
        &mut self,
        event: &ConnectionEvent,
        ctx: &mut Context<'_, Devices>,
    ) -> bool {
        self.sessions.iter_mut().any(|s| s.client.handle_connection_event(event, ctx))
    }

    /// When there is something to do though nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let now = (self.bells.rung() > 0).then_some(Instant::ZERO);
        let sessions = now.or(self.due.first().map(|&(at, _)| at));
        Instant::first([sessions, self.ways_due, self.tend_due, self.clock.due()])
    }
}

impl Storage {
    /// What is from elsewhere, made when it is first needed.
    fn elsewhere_mut(&mut self) -> &mut Elsewhere {
        self.elsewhere.get_or_insert_default()
    }

    /// Lets remote volumes go on, and what stands on them; how much was done.
    pub(in crate::gateway) fn poll_elsewhere(&mut self, ctx: &mut Context<'_, Devices>) -> usize {
        let mut done = 0;
        let Some(elsewhere) = &mut self.elsewhere else { return done };
        elsewhere.clock.set(ctx.now);
        if elsewhere.tend_due.is_some_and(|due| due <= ctx.now) | elsewhere.clock.take_due() {
            elsewhere.tend_due = Some(ctx.now + TEND_INTERVAL);
            self.volumes.tend(ctx.now);
            elsewhere.mirrors.iter_mut().for_each(|mirror| mirror.tell(ctx.now));
        }
        for _ in 0..TURNS {
            if self.server.is_none() {
                while let Some((_, completion)) = self.volumes.poll(VolumeId(0)) {
                    self.volumes.keep(&completion);
                    done += 1;
                }
            }
            let mut moved = elsewhere.poll_sessions(ctx);
            if let Some(reading) = &mut elsewhere.reading {
                moved += reading.poll(&mut self.volumes, ctx.rng);
            }
            if moved == 0 {
                break;
            }
            done += moved;
            if let Some(server) = &mut self.server {
                done += usize::from(server.poll(&mut self.volumes, ctx));
            }
        }
        done + usize::from(self.volumes.want_turn())
    }
}
