//! Pairs the interfaces of two processes that have several. As in the BTL, the weights of all pairs are added: pairs in
//! one subnet come before all others, then faster ones. Both sides have to compute the same pairs, so the process
//! with the lower name is the left side.
//!
//! If two pairings have the same weight, the first one in the order of interfaces is used. The stock BTL may choose
//! another one, so each interface should be in a subnet of its own.

use crate::wire::modex::Modex;
use alloc::vec::Vec;

/// Most interfaces of a side.
pub const MOST: usize = 8;

/// Pairs of interface numbers, the local one first. Only the first [`MOST`] interfaces of a side are used.
pub fn pair(ours: &[Modex], sender: u64, peers: &[Modex], peer_sender: u64) -> Vec<(usize, usize)> {
    let [ours, peers] = [ours, peers].map(|side| side.get(..MOST).unwrap_or(side));
    let we_are_left = sender < peer_sender;
    let (left, right) = if we_are_left { (ours, peers) } else { (peers, ours) };
    let mut search = Search { left, right, taken: [None; MOST], best: [None; MOST], most: 0 };
    search.choose(0, 0);
    let pairs = search.best.iter().enumerate();
    let pairs = pairs.filter_map(|(left, right)| right.map(|right| (left, right)));
    let mut pairs: Vec<_> = pairs
        .map(|(left, right)| if we_are_left { (left, right) } else { (right, left) })
        .collect();
    pairs.sort_unstable();
    pairs
}

struct Search<'a> {
    left: &'a [Modex],
    right: &'a [Modex],
    /// Current pairing: number on the right side, by number on the left side.
    taken: [Option<usize>; MOST],
    best: [Option<usize>; MOST],
    most: u64,
}

impl Search<'_> {
    /// Tries all pairings of the left interfaces from `at` on; `sum` is the weight of the pairs before.
    fn choose(&mut self, at: usize, sum: u64) {
        let Some(left) = self.left.get(at) else {
            if sum > self.most {
                (self.most, self.best) = (sum, self.taken);
            }
            return;
        };
        for (number, right) in self.right.iter().enumerate() {
            if !self.taken.contains(&Some(number)) {
                self.taken[at] = Some(number);
                self.choose(at + 1, sum + weight(left, right));
                self.taken[at] = None;
            }
        }
        // The interface may stay without a pair, because the right side may have fewer.
        self.choose(at + 1, sum);
    }
}

fn weight(left: &Modex, right: &Modex) -> u64 {
    let together = left.is_together_with(right);
    let speed = u64::from(left.link_speed.min(right.link_speed) / 1000).min(255);
    u64::from(together) << 48 | speed << 40 | 1 << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use netsim::Rng;

    fn modex(subnet: u8, host: u8, gigabits: u32) -> Modex {
        Modex {
            address: Ipv4Addr::new(10, 0, subnet, host),
            priority_port: 1,
            data_port: 2,
            netmask: Ipv4Addr::new(255, 255, 255, 0),
            ping_port: 3,
            link_speed: gigabits * 1000,
            max_message: 1536,
            isn: 0,
        }
    }

    #[test]
    fn pairing_prefers_subnets_then_speed() {
        let ours = [modex(1, 1, 10), modex(2, 1, 10), modex(3, 1, 40)];
        let peers = [modex(2, 2, 40), modex(9, 2, 40), modex(1, 2, 10)];
        assert_eq!(pair(&ours, 1, &peers, 2), [(0, 2), (1, 0), (2, 1)]);
        assert_eq!(pair(&ours, 1, &peers[..1], 2), [(1, 0)]);
        assert_eq!(pair(&ours, 1, &[], 2), []);
        let same = [modex(1, 1, 10), modex(1, 2, 40)];
        assert_eq!(pair(&same, 1, &[modex(1, 3, 40)], 2), [(1, 0)]);
    }

    #[test]
    fn both_sides_compute_the_same_pairs() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut side = |host| -> Vec<Modex> {
                let count = rng.within(0..5) as usize;
                let one = |_| modex(rng.within(0..3) as u8, host, rng.pick(&[10, 40]));
                (0..count).map(one).collect()
            };
            let (ours, peers) = (side(1), side(2));
            let here = pair(&ours, 1, &peers, 2);
            let there = pair(&peers, 2, &ours, 1);
            let mut there: Vec<_> = there.into_iter().map(|(a, b)| (b, a)).collect();
            there.sort_unstable();
            assert_eq!(here, there, "seed {seed}");
            assert_eq!(here.len(), ours.len().min(peers.len()));
        }
    }
}
