//! Whether memory is what it has to be.

use super::side::{Kind, State};
use super::target::Target;
use super::world::World;
use std::collections::BTreeSet;

/// What was added to the counter of a host in one of its lives.
#[derive(Debug, Default)]
pub struct Count {
    /// The values before each addition that is known to be done: no two are the same.
    pub before: BTreeSet<u64>,
    /// Additions that may or may not be done.
    pub unsure: u64,
}

impl World {
    /// Panics if any byte of any host is not what it should be.
    pub fn check(&mut self) {
        for host in 0..self.hosts.len() {
            self.check_host(host);
        }
    }

    /// Likewise for one host.
    pub fn check_host(&mut self, host: usize) {
        let Some(machine) = &self.hosts[host].machine else { return };
        machine.memory.check(host);
        for (number, side) in self.sides.iter().enumerate() {
            if side.host == host && side.state != State::Gone {
                let writer = side.peer.map(|peer| &self.sides[peer]);
                match writer.filter(|writer| writer.peer == Some(number)) {
                    Some(writer) => writer.target.check(&side.window.memory, self.mtu),
                    None => Target::new(&side.first).check(&side.window.memory, self.mtu),
                }
            }
        }
    }

    /// Panics if the counter of a host is not what was added to it.
    pub fn check_count(&mut self, host: usize) {
        let boots = self.hosts[host].boots;
        let Some(machine) = &self.hosts[host].machine else { return };
        let under_way: usize = (0..self.sides.len())
            .filter(|&number| self.boots_of_peer(number) == Some((host, boots)))
            .map(|n| {
                self.sides[n].ops.iter().filter(|op| matches!(op.kind, Kind::Count { .. })).count()
            })
            .sum();
        let counts = self.counts.entry((host, boots)).or_default();
        let least = counts.before.len() as u64;
        let most = least + counts.unsure + under_way as u64;
        let found = machine.count();
        assert!((least..=most).contains(&found), "{found} additions, not {least} to {most}");
        assert!(counts.before.iter().all(|&before| before < found));
    }
}
