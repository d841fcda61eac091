//! Probes of a path: whether packets of the link's MTU pass.

use crate::common::{Wire, fixed};
use net::path_probe::{Outcome, PathProbe};
use net::ping::StartError;
use std::time::Duration;

/// Probes the path from node 0 to `target` over a wire that loses longer frames. Returns the outcome, and the time.
fn probe(target: &str, longest: usize) -> (Outcome, Duration) {
    let mut wire = Wire::new([fixed("10.0.0.1/24"), fixed("10.0.0.2/24")]);
    wire.longest = longest;
    let start = wire.now;
    let mut probe = PathProbe::start(&mut wire.nodes[0], target.parse().unwrap(), 7, wire.now);
    loop {
        if let Some(outcome) = probe.poll(&mut wire.nodes[0], wire.now) {
            assert_eq!(probe.poll_timeout(), None);
            return (outcome, wire.now.since(start));
        }
        wire.settle();
        wire.now = wire.now + Duration::from_millis(5);
    }
}

#[test]
fn full_packets_pass_on_a_good_path() {
    for target in ["10.0.0.2", "fe80::ff:fe00:2"] {
        let (outcome, took) = probe(target, 1514);
        assert!(outcome.small && outcome.full && outcome.size == 1500, "{outcome:?}");
        assert!(!outcome.is_broken() && took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn path_that_loses_large_packets_is_broken_and_the_largest_that_pass_are_found() {
    for (longest, passes) in [(1513, 1492), (1464, 1450), (1463, 1400), (1294, 1280)] {
        let (outcome, took) = probe("10.0.0.2", longest);
        assert!(outcome.is_broken(), "{longest}: {outcome:?}");
        assert_eq!(outcome.passes, Some(passes), "{longest}");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}

#[test]
fn silent_host_is_no_broken_path() {
    let (outcome, _) = probe("10.0.0.3", 1514);
    assert!(!outcome.small && !outcome.full && !outcome.is_broken(), "{outcome:?}");
    let (outcome, _) = probe("192.0.2.1", 1514);
    assert_eq!(outcome.error, Some(StartError::NoRoute));
    assert!(!outcome.is_broken());
}
