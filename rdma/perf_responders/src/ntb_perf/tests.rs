//! Two providers over every kind of bridge, in virtual time: one measures, and both have to free all resources.

use super::{Figure, NtbPerf};
use core::time::Duration;
use ntrdma::testing::{Pair, Way};
use ntrdma::{Layout, Ntrdma};
use std::format;
use std::vec::Vec;
use verbs::{ConnectionManager, Ctx};

const LAYOUT: Layout = Layout { qps: 16, ring: 32, staging: 256 << 10, landing: 64 << 10 };
const TIME: Duration = Duration::from_millis(50);

/// Two nodes; node 1 measures node 0.
struct World {
    pair: Pair,
    ends: [NtbPerf; 2],
}

impl World {
    fn new(way: Way) -> Self {
        let mut pair = Pair::new(3, LAYOUT, way);
        let ends = [0, 1].map(|n: usize| {
            let (own, peer) = (n as u8 + 1, 2 - n as u8);
            pair.nodes[n].ntrdma.listen(super::PORT).unwrap();
            NtbPerf::new(Pair::address(own), Pair::address(peer))
        });
        World { pair, ends }
    }

    fn with<T>(
        &mut self,
        n: usize,
        act: impl FnOnce(&mut NtbPerf, &mut Ctx<'_, Ntrdma>) -> T,
    ) -> T {
        let end = &mut self.ends[n];
        self.pair.context(n, |ctx| act(end, ctx))
    }

    /// One round of both appliances.
    fn step(&mut self) {
        for n in 0..2 {
            self.with(n, |end, ctx| {
                while let Some(event) = ctx.provider.poll_connection_event() {
                    end.handle_connection_event(&event, ctx);
                }
                end.poll(ctx);
            });
        }
        self.pair.step();
    }

    /// Steps until node 1 has finished, at most `steps` times.
    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.ends[1].is_running() {
                break;
            }
            self.step();
        }
    }

    /// Free memory, queue pairs and connections of both nodes.
    fn resources(&self) -> [(usize, (usize, usize), usize); 2] {
        [0, 1].map(|n: usize| {
            let node = &self.pair.nodes[n];
            (node.arena.available(), node.ntrdma.queue_pairs(), node.ntrdma.connections())
        })
    }

    /// Asserts that both nodes have freed all resources after a while.
    fn assert_all_freed(&mut self, before: [(usize, (usize, usize), usize); 2]) {
        (0..4000).for_each(|_| self.step());
        assert_eq!(self.resources(), before);
    }
}

#[test]
fn all_tests_give_results_and_free_resources() {
    for way in Way::ALL {
        let mut world = World::new(way);
        world.pair.bring_up();
        let before = world.resources();
        world.with(1, |end, ctx| end.start(TIME, ctx));
        world.run(100_000);
        assert_eq!(world.ends[1].failure(), None, "{way:?}");
        let names: Vec<_> = world.ends[1].results.iter().map(|result| result.name).collect();
        assert_eq!(names, super::TESTS.each_ref().map(|test| test.name), "{way:?}");
        for result in &world.ends[1].results {
            match result.figure {
                Figure::Bandwidth(rate) => assert!(rate > 1 << 20, "{way:?} {result:?}"),
                // A step is 50 us, and each message takes several steps.
                Figure::Latency(nanos) => {
                    assert!((10_000..10_000_000).contains(&nanos), "{way:?} {result:?}");
                }
            }
        }
        world.assert_all_freed(before);
    }
}

#[test]
fn failed_test_reports_reason_and_frees_resources() {
    let failure = |world: &mut World| {
        let (test, why) = world.ends[1].failure().unwrap();
        format!("{test}: {why}")
    };
    // The link is down.
    let mut world = World::new(Way::Posted);
    let before = world.resources();
    world.with(1, |end, ctx| end.start(TIME, ctx));
    assert!(failure(&mut world).contains("rc_bw: the link is not up"));
    assert_eq!(world.resources(), before);
    // The link goes down in the middle of each test.
    for test in 0..super::TESTS.len() {
        let mut world = World::new(Way::Posted);
        world.pair.bring_up();
        let before = world.resources();
        world.with(1, |end, ctx| end.start(TIME, ctx));
        while world.ends[1].results.len() < test {
            world.step();
        }
        (0..200).for_each(|_| world.step());
        world.pair.nodes[0].bridge.set_link(false);
        world.pair.nodes[1].bridge.set_link(false);
        world.run(100_000);
        let error = failure(&mut world);
        assert!(error.contains("the connection was lost"), "{error}");
        assert_eq!(world.ends[1].results.len(), test);
        world.assert_all_freed(before);
    }
    // The peer does not listen.
    let mut world = World::new(Way::Posted);
    world.pair.bring_up();
    world.pair.nodes[0].ntrdma.unlisten(super::PORT);
    world.with(1, |end, ctx| end.start(TIME, ctx));
    world.run(1000);
    assert!(failure(&mut world).contains("does not support this test"));
    world.pair.nodes[0].ntrdma.listen(super::PORT).unwrap();
    world.with(1, |end, ctx| end.start(TIME, ctx));
    (0..200).for_each(|_| world.step());
    // Node 1 drops its test without notice: node 0 still serves it and rejects the next.
    world.ends[1].sides.clear();
    world.with(1, |end, ctx| end.start(TIME, ctx));
    world.run(1000);
    assert!(failure(&mut world).contains("it serves another one"));
}

#[test]
fn cancelled_test_frees_resources_without_failure() {
    let mut world = World::new(Way::Stream);
    world.pair.bring_up();
    let before = world.resources();
    world.with(1, |end, ctx| end.start(TIME, ctx));
    (0..200).for_each(|_| world.step());
    assert_ne!(world.resources(), before);
    world.with(1, |end, ctx| end.cancel(ctx));
    assert!(!world.ends[1].is_running() && world.ends[1].failure().is_none());
    world.assert_all_freed(before);
}
