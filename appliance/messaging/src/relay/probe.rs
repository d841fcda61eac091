//! Questions to servers whether they are there: connections without a word.

use super::pipe::Side;
use super::{Place, Relay, World, connect};
use drivers::hal::Instant;
use smcr::acceptor::Event;
use verbs::Provider;

/// A question to a server whether it is there.
#[derive(Debug)]
pub(super) struct Probe {
    pub place: Place,
    pub backend: usize,
    pub deadline: Instant,
}

impl Relay {
    /// Asks all servers whether they are there.
    pub(super) fn probe_all<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        for backend in 0..self.balance.backends().len() {
            if self.probes.iter().any(|probe| probe.backend == backend) {
                continue;
            }
            let address = self.balance.backends()[backend].address;
            match connect(&mut self.backs, address, false, world) {
                Some(place) => {
                    let deadline = world.ctx.now + self.rule.connect_timeout;
                    self.probes.push(Probe { place, backend, deadline });
                    self.arm_probes(deadline);
                }
                None => self.backend_failed(backend),
            }
        }
    }

    /// A server has answered the question, or has not.
    pub(super) fn probed<P: Provider + ?Sized>(
        &mut self,
        probe: usize,
        event: Event,
        world: &mut World<'_, '_, P>,
    ) {
        let Probe { place, backend, .. } = self.probes.swap_remove(probe);
        match event {
            Event::Failed(_) | Event::Broken(_) => self.backend_failed(backend),
            Event::Opened(..) | Event::Ready(_) => {
                self.hang_up(Side::Backend, place, false, world);
                if self.balance.answered(backend, false) {
                    self.tell(backend, true);
                }
            }
        }
    }

    /// Gives servers up that have not answered in time.
    pub(super) fn end_probes<P: Provider + ?Sized>(&mut self, world: &mut World<'_, '_, P>) {
        let mut at = 0;
        while let Some(probe) = self.probes.get(at) {
            if probe.deadline <= world.ctx.now {
                let Probe { place, backend, .. } = self.probes.swap_remove(at);
                self.hang_up(Side::Backend, place, true, world);
                self.backend_failed(backend);
            } else {
                let deadline = probe.deadline;
                self.arm_probes(deadline);
                at += 1;
            }
        }
    }
}
