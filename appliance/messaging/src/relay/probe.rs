//! Health probes of servers: TCP connections that are closed without data.

use super::pipe::Side;
use super::streams::{Backs, Stream};
use super::{Place, Relay, World};
use crate::names::Target;
use crate::transport::Transport;
use drivers::hal::Instant;
use smcr::SmcDevice;

/// A health probe in progress.
#[derive(Debug)]
pub(super) struct Probe {
    pub place: Stream,
    pub backend: usize,
    pub deadline: Instant,
}

impl Relay {
    /// Starts a probe of each server.
    pub(super) fn probe_all<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        for backend in 0..self.balance.backends().len() {
            if self.probes.iter().any(|probe| probe.backend == backend) {
                continue;
            }
            // Only connections test a server over a message transport.
            let Target::Socket(address) = self.balance.backends()[backend].address else {
                continue;
            };
            let connectors = &mut self.backs;
            match (Backs { connectors, at: 0, smc: false, world: &mut *world }).connect(&address) {
                Some(place) => {
                    let deadline = world.ctx.now + self.rule.connect_timeout;
                    self.probes.push(Probe { place, backend, deadline });
                    self.arm_probes(deadline);
                }
                None => self.backend_failed(backend),
            }
        }
    }

    /// Ends a probe that was answered or has failed.
    pub(super) fn finish_probe<P: SmcDevice + ?Sized>(
        &mut self,
        probe: usize,
        answers: bool,
        world: &mut World<'_, '_, P>,
    ) {
        let Probe { place, backend, .. } = self.probes.swap_remove(probe);
        if !answers {
            return self.backend_failed(backend);
        }
        self.hang_up(Side::Backend, Place::Stream(place), false, world);
        if self.balance.answered(backend, false) {
            self.notify_backend(backend, true);
        }
    }

    /// Ends probes that have timed out.
    pub(super) fn end_probes<P: SmcDevice + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let mut at = 0;
        while let Some(probe) = self.probes.get(at) {
            if probe.deadline <= world.ctx.now {
                let Probe { place, backend, .. } = self.probes.swap_remove(at);
                self.hang_up(Side::Backend, Place::Stream(place), true, world);
                self.backend_failed(backend);
            } else {
                let deadline = probe.deadline;
                self.arm_probes(deadline);
                at += 1;
            }
        }
    }
}
