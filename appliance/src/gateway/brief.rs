//! A brief round: where a loop that halts has nothing but completions of cards, these alone are seen to, and what follows
//! from them, before it halts again. While there are more and more of them everything else stands still for as long as
//! [`super::STILL`] at most; what follows may not have left anything to anybody else.

use super::network::Network;
use super::state::State;
use drivers::hal::{Disk, Instant};
use verbs::EngineContext;

impl State {
    /// Serves what cards have completed. How much was done, and whether that is all that there is to do.
    #[inline]
    pub fn serve_completions(&mut self, networks: &mut [Network], now: Instant) -> (usize, bool) {
        if !self.has_only_completions() {
            return (0, false);
        }
        let plane = &mut self.plane;
        let Some(stack) = &mut plane.rdma_stack else { return (0, false) };
        if !stack.providers.mind_cards(now) || plane.ports.iter().any(|slot| slot.port.pending()) {
            return (0, false);
        }
        (self.now, plane.now) = (now, now);
        let mut done = 0;
        if let Some(server) = &mut plane.storage.server {
            let (provider, arena) = (&mut stack.providers, &mut plane.arena);
            let mut ctx = EngineContext { provider, arena, now, rng: &mut *plane.rng };
            done += usize::from(server.poll(&mut plane.storage.volumes, &mut ctx));
        }
        done += self.poll_smc(networks, now);
        let plane = &mut self.plane;
        let Some(stack) = &mut plane.rdma_stack else { return (done, false) };
        stack.providers.flush_cards();
        let calm = plane.storage.server.as_mut().is_none_or(|server| server.is_calm())
            && stack.providers.cards_are_calm()
            && !networks.iter().any(Network::wants_poll);
        (done, calm)
    }

    /// Whether completions of cards are there and nothing else, as far as is known without looking closer.
    fn has_only_completions(&self) -> bool {
        let plane = &self.plane;
        plane.cards_pending()
            && plane.has_cards_alone()
            && self.workers.is_empty()
            && self.rendezvous.is_none()
            && !self.rules_changed
            && !self.disks.iter().any(|slot| slot.disk.pending())
    }
}
