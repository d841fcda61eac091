//! Checks of the contents of memory.

use super::side::{Kind, State};
use super::target::Target;
use super::world::World;
use std::collections::BTreeSet;

/// Additions to the counter of a host during one of its boots.
#[derive(Debug, Default)]
pub struct Count {
    /// The values before each completed addition, which are unique.
    pub before: BTreeSet<u64>,
    /// Additions that may have been executed or not.
    pub unsure: u64,
}

impl World {
    /// Panics if a byte of a host's memory is wrong.
    pub fn check(&mut self) {
        for host in 0..self.hosts.len() {
            self.check_host(host);
        }
    }

    /// Panics if a byte of this host's memory is wrong.
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

    /// Panics if the counter of a host differs from the additions to it.
    pub fn check_count(&mut self, host: usize) {
        let boots = self.hosts[host].boots;
        let Some(machine) = &self.hosts[host].machine else { return };
        let in_flight: usize = (0..self.sides.len())
            .filter(|&number| self.boots_of_peer(number) == Some((host, boots)))
            .map(|n| {
                self.sides[n].ops.iter().filter(|op| matches!(op.kind, Kind::Count { .. })).count()
            })
            .sum();
        let counts = self.counts.entry((host, boots)).or_default();
        let least = counts.before.len() as u64;
        let most = least + counts.unsure + in_flight as u64;
        let found = machine.count();
        assert!((least..=most).contains(&found), "{found} additions, not {least} to {most}");
        assert!(counts.before.iter().all(|&before| before < found));
    }
}
