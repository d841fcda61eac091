//! Multipath policies: choice of the path of a request (rtrs-clt.c, `get_next_path_rr` and others).

use core::time::Duration;

/// Multipath policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each path in turn.
    RoundRobin,
    /// The path with the fewest requests outstanding.
    #[default]
    MinInflight,
    /// The path whose last heartbeat was answered fastest.
    MinLatency,
}

impl Policy {
    /// Parses the names, abbreviations and numbers of Linux's sysfs.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "round-robin" | "rr" | "0" => Policy::RoundRobin,
            "min-inflight" | "mi" | "1" => Policy::MinInflight,
            "min-latency" | "ml" | "2" => Policy::MinLatency,
            _ => return None,
        })
    }

    /// Linux's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin",
            Policy::MinInflight => "min-inflight",
            Policy::MinLatency => "min-latency",
        }
    }

    /// The text in Linux's sysfs.
    pub const fn describe(self) -> &'static str {
        match self {
            Policy::RoundRobin => "round-robin (RR: 0)",
            Policy::MinInflight => "min-inflight (MI: 1)",
            Policy::MinLatency => "min-latency (ML: 2)",
        }
    }

    /// Chooses among the paths that can take a request, in the order of the session; `last`: the path of the previous
    /// request.
    pub(super) fn choose(
        self,
        candidates: impl Iterator<Item = Candidate> + Clone,
        last: usize,
    ) -> Option<usize> {
        let best = match self {
            Policy::RoundRobin => {
                let behind = candidates.clone().find(|candidate| candidate.path > last);
                behind.or_else(|| candidates.clone().next())
            }
            Policy::MinInflight => candidates.min_by_key(|candidate| candidate.in_flight),
            Policy::MinLatency => candidates.min_by_key(|candidate| candidate.latency),
        };
        best.map(|candidate| candidate.path)
    }
}

/// A path that a request can take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub path: usize,
    pub in_flight: u32,
    pub latency: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_policy_chooses_its_path() {
        let candidate = |(path, in_flight, micros)| Candidate {
            path,
            in_flight,
            latency: Duration::from_micros(micros),
        };
        let all: Vec<Candidate> = [(0, 3, 20), (2, 1, 30), (5, 1, 10)].map(candidate).to_vec();
        let choose = |policy: Policy, last| policy.choose(all.iter().copied(), last);
        let turns = [0, 1, 2, 4, 5, 9].map(|last| choose(Policy::RoundRobin, last).unwrap());
        assert_eq!(turns, [2, 2, 5, 5, 0, 0]);
        assert_eq!(choose(Policy::MinInflight, 2), Some(2), "the first of equals");
        assert_eq!(choose(Policy::MinLatency, 2), Some(5));
        for policy in [Policy::RoundRobin, Policy::MinInflight, Policy::MinLatency] {
            assert_eq!(policy.choose(core::iter::empty(), 0), None);
            assert_eq!(Policy::parse(policy.as_str()), Some(policy));
        }
    }
}
