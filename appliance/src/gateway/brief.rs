//! Brief rounds: while only completions of RoCE cards end the halts of a loop, it handles only these and their results
//! before it halts again. This takes at most [`STILL`] between two halts, and ends when there is other work.

use super::network::Network;
use super::service::Service;
use super::state::State;
use super::{CONSOLE_PATIENCE, Gateway, STILL};
use crate::loops::Stage;
use drivers::hal::{Disk, Instant};
use verbs::Ctx;

impl Gateway {
    /// Runs brief rounds from `now` on, while cards complete requests and no other work arrives. `deadline` is the next
    /// deadline of other work. Returns whether there was work.
    #[inline]
    pub(super) fn brief_rounds(&mut self, mut now: Instant, deadline: Option<Instant>) -> bool {
        if self.ending.is_some() || !self.state.may_serve_only_cards() || self.others_pending() {
            return false;
        }
        // The work done here may move other timers, and produce console output.
        self.last_halt.others_known = false;
        let others = Instant::first([deadline, Some(self.console_due + CONSOLE_PATIENCE)]);
        let mut until = now + STILL;
        let mut served = false;
        loop {
            let (done, is_all) = self.state.serve_completions(&mut self.networks, now);
            if done == 0 || !is_all {
                self.state.plane.pace.counters.work(Stage::Serve, done);
                return served || done > 0;
            }
            served = true;
            self.console_quiet = false;
            now = self.machine.now();
            let pace = &mut self.state.plane.pace;
            pace.counters.work(Stage::Serve, done);
            pace.counters.brief_rounds += 1;
            if !pace.round(true, now) || now >= until {
                return served;
            }
            if self.state.cards_have_completed() {
                continue;
            }
            self.state.rearm_cards();
            // Timers of the served users may expire sooner than others.
            let deadline = Instant::first([others, self.state.served_timeout()]);
            if deadline.is_some_and(|at| at <= now)
                || !self.waker.may_halt(|| self.others_pending())
            {
                return served;
            }
            self.machine.halt_until(deadline);
            now = self.machine.now();
            self.state.plane.pace.halted(now);
            if deadline.is_some_and(|at| at <= now) {
                return served;
            }
            until = now + STILL;
        }
    }

    /// Whether work is pending from other sources than cards.
    #[inline]
    fn others_pending(&self) -> bool {
        self.machine.console_has_rung()
            || self.state.plane.ports.iter().any(|slot| slot.port.pending())
            || self.state.disks.iter().any(|slot| slot.disk.pending())
    }
}

impl State {
    /// Whether this loop has only RoCE cards, the IP interfaces, and users of both.
    fn may_serve_only_cards(&self) -> bool {
        let plane = &self.plane;
        plane.cards_pending()
            && plane.has_only_cards()
            && self.workers.is_empty()
            && self.services.allow_brief_rounds()
            && !self.rules_changed
    }

    #[inline]
    fn cards_have_completed(&self) -> bool {
        self.plane.rdma_stack.as_ref().is_some_and(|stack| stack.providers.cards_have_completed())
    }

    #[inline]
    fn rearm_cards(&mut self) {
        if let Some(stack) = &mut self.plane.rdma_stack {
            stack.providers.rearm_cards();
        }
    }

    /// When the next timer of the cards or their users expires.
    #[inline]
    fn served_timeout(&self) -> Option<Instant> {
        let plane = &self.plane;
        let provider = plane.rdma_stack.as_ref().and_then(|stack| stack.providers.cards_timeout());
        let server = plane.storage.server.as_ref().and_then(|server| server.poll_timeout());
        let smc = self.services.smc.as_ref().and_then(|smc| smc.deadline(plane));
        Instant::first([provider, server, smc])
    }

    /// Handles completions of cards. Returns the amount of work, and whether no work is left.
    #[inline]
    fn serve_completions(&mut self, networks: &mut [Network], now: Instant) -> (usize, bool) {
        let plane = &mut self.plane;
        let Some(stack) = &mut plane.rdma_stack else { return (0, false) };
        if !stack.providers.mind_cards(now) {
            return (0, false);
        }
        (self.now, plane.now) = (now, now);
        let mut done = 0;
        if let Some(server) = plane.storage.server.as_mut().filter(|server| server.has_clients()) {
            let (provider, arena) = (&mut stack.providers, &mut plane.arena);
            let mut ctx = Ctx { provider, arena, now, rng: &mut *plane.rng };
            done += usize::from(server.poll(&mut plane.storage.volumes, &mut ctx));
        }
        let (services, mut around) = self.services(networks, now);
        if let Some(smc) = &mut services.smc {
            done += smc.poll(&mut around);
        }
        let plane = &mut self.plane;
        let Some(stack) = &mut plane.rdma_stack else { return (done, false) };
        stack.providers.flush_cards();
        let calm = plane.storage.server.as_mut().is_none_or(|server| server.is_calm())
            && stack.providers.cards_are_calm()
            && !networks.iter().any(Network::wants_poll);
        (done, calm)
    }
}
