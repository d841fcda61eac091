//! Load balancing: the next connection goes to the reachable server with the fewest connections. Also keeps the state
//! and counters of each server.

use crate::names::Target;
use alloc::vec::Vec;
use core::time::Duration;
use drivers::hal::Instant;

/// Failures in a row after which a server counts as down.
const FAILURES: u32 = 2;
/// Most servers of a rule: a 64-bit word holds a set of them.
pub const MAX_BACKENDS: usize = 64;

/// Index of a server that was removed from the rule.
pub(super) const GONE: usize = usize::MAX;

/// A server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its address.
    pub address: Target,
    /// The last connection or probe succeeded, or there was none yet.
    pub up: bool,
    /// Connections to it, including those being opened.
    pub connections: u32,
    /// Connections opened so far.
    pub total: u64,
    /// Failed connections and probes.
    pub failures: u64,
    in_a_row: u32,
}

impl Backend {
    fn new(address: &Target) -> Backend {
        let address = address.clone();
        Backend { address, up: true, connections: 0, total: 0, failures: 0, in_a_row: 0 }
    }
}

/// The servers of a rule.
#[derive(Debug)]
pub struct Balance {
    backends: Vec<Backend>,
    /// Where the search starts, so that equally loaded servers take turns.
    next: usize,
    interval: Option<Duration>,
    /// When servers are probed next.
    due: Option<Instant>,
}

impl Balance {
    /// Balances over these servers, which are probed every `interval`. Servers after the first [`MAX_BACKENDS`] are
    /// ignored.
    pub fn new(addresses: &[Target], interval: Option<Duration>, now: Instant) -> Self {
        let backends = addresses.iter().take(MAX_BACKENDS).map(Backend::new).collect();
        Balance { backends, next: 0, interval, due: interval.map(|_| now) }
    }

    /// Replaces servers and interval. Servers that stay keep their state. Returns the new index of each former server,
    /// None if it was removed.
    pub fn adjust(
        &mut self,
        addresses: &[Target],
        interval: Option<Duration>,
        now: Instant,
    ) -> Vec<Option<usize>> {
        let mut before: Vec<Option<Backend>> =
            core::mem::take(&mut self.backends).into_iter().map(Some).collect();
        let mut places = alloc::vec![None; before.len()];
        for address in addresses.iter().take(MAX_BACKENDS) {
            let same =
                |one: &Option<Backend>| one.as_ref().is_some_and(|one| one.address == *address);
            let at = before.iter().position(same);
            let known = at.and_then(|at| before.get_mut(at)?.take());
            if let Some(place) = at.and_then(|at| places.get_mut(at)) {
                *place = Some(self.backends.len());
            }
            self.backends.push(known.unwrap_or_else(|| Backend::new(address)));
        }
        self.next = 0;
        // Probe new servers at once.
        self.interval = interval;
        self.due = interval.map(|_| now);
        places
    }

    /// The servers.
    pub fn backends(&self) -> &[Backend] {
        &self.backends
    }

    /// Chooses a server that is not in the set `tried`. The connection counts for it until [`Balance::left`]. Servers
    /// that are down come last.
    pub fn choose(&mut self, tried: u64) -> Option<usize> {
        let count = self.backends.len();
        let order = (0..count).map(|n| (self.next + n) % count);
        let fresh = order.filter(|&n| tried >> n & 1 == 0);
        let best = fresh.min_by_key(|&n| (!self.backends[n].up, self.backends[n].connections))?;
        self.next = (best + 1) % count;
        self.backends[best].connections += 1;
        Some(best)
    }

    /// A connection to a server ended, or failed to open.
    pub fn left(&mut self, backend: usize) {
        if let Some(backend) = self.backends.get_mut(backend) {
            backend.connections = backend.connections.saturating_sub(1);
        }
    }

    /// A server has answered a connection (`connection`) or a probe. Returns whether it was down before.
    pub fn answered(&mut self, backend: usize, connection: bool) -> bool {
        let Some(backend) = self.backends.get_mut(backend) else { return false };
        backend.total += u64::from(connection);
        backend.in_a_row = 0;
        !core::mem::replace(&mut backend.up, true)
    }

    /// A server could not be reached. Returns whether it counts as down from now on.
    pub fn failed(&mut self, backend: usize) -> bool {
        let Some(backend) = self.backends.get_mut(backend) else { return false };
        backend.failures += 1;
        backend.in_a_row = backend.in_a_row.saturating_add(1);
        backend.in_a_row >= FAILURES && core::mem::replace(&mut backend.up, false)
    }

    /// Whether probes are due. If so, the next are due an interval later.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.due.is_some_and(|at| at <= now);
        if due {
            self.due = self.interval.map(|interval| now + interval);
        }
        due
    }

    /// When the next probes are due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    fn three() -> Balance {
        let addresses = [1, 2, 3].map(|n| Target::Socket(([10, 0, 0, n], 80).into()));
        Balance::new(&addresses, None, Instant::ZERO)
    }

    #[test]
    fn equally_loaded_servers_take_turns_and_the_least_loaded_comes_first() {
        let mut balance = three();
        assert_eq!([0; 4].map(|_| balance.choose(0).unwrap()), [0, 1, 2, 0]);
        balance.left(2);
        assert_eq!(balance.choose(0), Some(2), "it has none");
        balance.left(1);
        assert_eq!(balance.choose(0), Some(1));
    }

    #[test]
    fn failed_server_comes_last_until_it_answers() {
        let mut balance = three();
        assert!(!balance.failed(1), "once may be bad luck");
        assert!(balance.failed(1));
        assert!(!balance.failed(1), "it is down already");
        assert_eq!([0; 4].map(|_| balance.choose(0).unwrap()), [0, 2, 0, 2]);
        assert_eq!(balance.choose(0b101), Some(1), "better than none");
        assert_eq!(balance.choose(0b111), None);
        assert!(balance.answered(1, false));
        assert_eq!(balance.choose(0), Some(1), "it has the fewest");
        assert_eq!(balance.backends()[1].failures, 3);
    }

    #[test]
    fn adjusted_servers_keep_the_state_of_those_that_stay() {
        let mut balance = three();
        let taken = [0; 3].map(|_| balance.choose(0).unwrap());
        assert_eq!(taken, [0, 1, 2]);
        balance.failed(2);
        assert!(balance.failed(2));
        let second = Some(Duration::from_secs(1));
        let addresses = [3, 4, 1].map(|n| Target::Socket(([10, 0, 0, n], 80).into()));
        let places = balance.adjust(&addresses, second, Instant::ZERO);
        assert_eq!(places, [Some(2), None, Some(0)]);
        let up = balance.backends().iter().map(|one| (one.up, one.connections));
        assert_eq!(up.collect::<Vec<_>>(), [(false, 1), (true, 0), (true, 1)]);
        assert_eq!(balance.choose(0), Some(1), "the new one has none");
        balance.left(GONE);
        assert!(!balance.answered(GONE, true) && !balance.failed(GONE));
        assert!(balance.is_due(Instant::ZERO));
        // The same address twice is two servers.
        let twice = [1, 1].map(|n| Target::Socket(([10, 0, 0, n], 80).into()));
        assert_eq!(balance.adjust(&twice, None, Instant::ZERO), [None, None, Some(0)]);
        assert_eq!((balance.backends().len(), balance.poll_timeout()), (2, None));
    }

    #[test]
    fn probes_are_due_at_once_and_then_every_interval() {
        let second = Duration::from_secs(1);
        let address = Target::Socket(SocketAddr::from(([10, 0, 0, 1], 80)));
        let mut balance = Balance::new(&[address], Some(second), Instant::ZERO);
        assert!(balance.is_due(Instant::ZERO) && !balance.is_due(Instant::ZERO));
        assert_eq!(balance.poll_timeout(), Some(Instant::ZERO + second));
        assert!(balance.is_due(Instant::ZERO + second));
    }
}
