//! A receiver that polls after any subset of a message's writes has arrived receives only complete messages. All
//! subsets are enumerated, as loom does for threads. The order of the writes before the poll,
//! and of those after it, does not matter, because a poll without a message changes no state. The poll may
//! be due to an earlier message whose bell was not seen yet.

use super::verbs::request;
use crate::testing::{Node, Pair, SMALL, Way};
use drivers::hal::{Instant, Window};
use netsim::contents;
use std::vec::Vec;
use verbs::{
    Access, Completion, MemoryVerbs, Payload, Provider, RecvRequest, RemoteAddress, SendOperation,
    SendWith, Status,
};

/// Most writes whose subsets are enumerated: 2^14 cases.
const MOST: usize = 14;

/// A pair whose node 1 receives messages into a window.
struct Talk {
    pair: Pair,
    from: Window,
    into: Window,
    to: RemoteAddress,
    now: Instant,
}

impl Talk {
    fn new(len: usize, seed: u64) -> Self {
        let mut pair = Pair::new(seed, SMALL, Way::Posted);
        pair.connect();
        let (from, into) = (pair.memory(0, len), pair.memory(1, len));
        let [_, b] = &mut pair.nodes;
        let region = b.ntrdma.register(b.pd, into, Access::REMOTE_WRITE, &mut pair.rng).unwrap();
        let to = RemoteAddress { address: region.address, rkey: region.rkey };
        let now = pair.now;
        Talk { pair, from, into, to, now }
    }

    /// Delivers all writes in order, and polls both nodes until none is left.
    fn settle(&mut self) {
        while self.pair.nodes.iter_mut().any(|node| node.bridge.free() > 0) {
            for n in 0..2 {
                while self.pair.nodes[n].bridge.free() > 0 {
                    self.pair.nodes[n].bridge.deliver_one(0);
                }
                self.poll(1 - n);
            }
        }
    }

    fn poll(&mut self, n: usize) {
        let Node { ntrdma, bridge, .. } = &mut self.pair.nodes[n];
        ntrdma.poll(bridge, self.now);
    }

    fn completions(&mut self, n: usize) -> Vec<Completion> {
        self.poll(n);
        self.pair.nodes[n].completions()
    }

    /// Node 0 posts a message, split into pieces by the bits of `cuts`.
    fn post(&mut self, bytes: &[u8], write: bool, cuts: u64) {
        self.from.write(0, bytes).unwrap();
        let payload = Payload::Windows(&[self.from]);
        let operation = if write {
            SendOperation::Write { payload, to: self.to, immediate: Some(7) }
        } else {
            SendOperation::Send { payload, with: SendWith::Nothing }
        };
        let [a, _] = &mut self.pair.nodes;
        a.bridge.reseed(cuts);
        a.ntrdma.post_send(a.qp, &request(1, operation)).unwrap();
        self.poll(0);
    }
}

/// Enumerates all subsets of a message's writes; returns the number of writes, or None if there are too many.
fn all_parts(len: usize, write: bool, cuts: u64) -> Option<usize> {
    let mut talk = Talk::new(len, cuts);
    talk.settle();
    let aside = talk.pair.memory(1, len);
    let mut part = 0;
    loop {
        let bytes: Vec<u8> = (0..len).map(|at| (part * 31 + at * 7 + 1) as u8).collect();
        talk.into.fill(0);
        let [_, b] = &mut talk.pair.nodes;
        for (id, into) in [(0, aside), (1, talk.into)] {
            b.ntrdma.post_recv(b.qp, &RecvRequest { id, into: &[into] }).unwrap();
        }
        talk.poll(1);
        talk.settle();
        talk.post(&[0xee; 100][..len], false, cuts);
        while talk.pair.nodes[0].bridge.free() > 0 {
            talk.pair.nodes[0].bridge.deliver_one(0);
        }
        talk.post(&bytes, write, cuts);
        let writes = talk.pair.nodes[0].bridge.free();
        if writes > MOST {
            return None;
        }
        let mut received = 0;
        let mut poll = |talk: &mut Talk| {
            for completion in talk.completions(1) {
                assert_eq!((completion.id, completion.status), (received, Status::Success));
                if completion.id == 1 {
                    assert_eq!(
                        contents(&talk.into),
                        bytes,
                        "it completes before its data has arrived"
                    );
                }
                received += 1;
            }
        };
        let first = (0..writes).filter(|number| part >> number & 1 == 1);
        for (delivered, number) in first.enumerate() {
            talk.pair.nodes[0].bridge.deliver_one(number - delivered);
        }
        poll(&mut talk);
        while talk.pair.nodes[0].bridge.free() > 0 {
            talk.pair.nodes[0].bridge.deliver_one(0);
            poll(&mut talk);
        }
        assert_eq!(received, 2, "part {part:#x} of {writes} writes");
        talk.settle();
        let ended: Vec<Status> =
            talk.completions(0).iter().map(|completion| completion.status).collect();
        assert_eq!(ended, [Status::Success; 2], "part {part:#x}");
        part += 1;
        if part >> writes == 1 {
            return Some(part);
        }
    }
}

#[test]
fn message_is_complete_after_any_subset_of_its_writes() {
    for (len, write) in [(1, false), (24, true), (100, false), (100, true)] {
        let cases: Vec<usize> = (0..12).filter_map(|cuts| all_parts(len, write, cuts)).collect();
        assert!(cases.iter().any(|&cases| cases >= 1 << 10), "{len} bytes: {cases:?}");
    }
}
