//! Probes of the paths to peers, for `doctor`. They run only when an operator asks, a few at a time.

use super::network::Network;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Instant;
use management::status::PathProbes as Status;
use net::path_probe::{Outcome, PathProbe};
use std::collections::VecDeque;

/// Probes at a time.
const AT_ONCE: usize = 4;
/// Results are reused for this time, so that many operators do not probe more than one.
const FRESH: Duration = Duration::from_secs(5);

/// The probes that run, and the results of the last ones.
#[derive(Default)]
pub(super) struct PathProbes {
    queue: VecDeque<IpAddr>,
    /// Number of the interface, and the probe.
    running: Vec<(usize, PathProbe)>,
    results: Vec<Outcome>,
    finished: Option<Instant>,
    /// Probes wait for their start.
    is_new: bool,
    identifier: u16,
}

impl PathProbes {
    /// Starts to probe the paths to these hosts, unless probes run or the results are fresh.
    pub fn start(&mut self, targets: &[IpAddr], now: Instant) {
        let is_running = self.is_running();
        if is_running || self.finished.is_some_and(|at| now.since(at) < FRESH) {
            return;
        }
        self.results.clear();
        self.queue.extend(targets);
        self.is_new = !targets.is_empty();
        self.finished = targets.is_empty().then_some(now);
        self.identifier = now.as_nanos() as u16;
    }

    fn is_running(&self) -> bool {
        !self.queue.is_empty() || !self.running.is_empty()
    }

    /// Whether there is work without a frame or a timer.
    #[inline]
    pub fn wants_poll(&self) -> bool {
        self.is_new
    }

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.running.iter().filter_map(|(_, probe)| probe.poll_timeout()).min()
    }

    pub fn status(&self) -> Status<'_> {
        Status { is_running: self.is_running(), results: &self.results, finished: self.finished }
    }

    /// Continues the probes. Returns the amount of work.
    pub fn poll(&mut self, networks: &mut [Network], now: Instant) -> usize {
        if !self.is_running() {
            return 0;
        }
        self.is_new = false;
        let mut worked = self.running.len();
        let mut at = 0;
        while let Some((number, probe)) = self.running.get_mut(at) {
            let interface = &mut networks[*number].interface;
            match probe.poll(interface, now) {
                Some(outcome) => {
                    self.results.push(outcome);
                    self.running.remove(at).1.stop(interface);
                }
                None => at += 1,
            }
        }
        while self.running.len() < AT_ONCE
            && let Some(target) = self.queue.pop_front()
        {
            worked += 1;
            let route = networks.iter().position(|n| n.interface.next_hop(target).is_some());
            // A host without a route is reported by other checks.
            let Some(number) = route else { continue };
            self.identifier = self.identifier.wrapping_add(16);
            let interface = &mut networks[number].interface;
            let mut probe = PathProbe::start(interface, target, self.identifier, now);
            match probe.poll(interface, now) {
                Some(outcome) => self.results.push(outcome),
                None => self.running.push((number, probe)),
            }
        }
        for (number, _) in &self.running {
            networks[*number].interface.poll(now);
        }
        if !self.is_running() {
            self.finished = Some(now);
        }
        worked
    }
}
