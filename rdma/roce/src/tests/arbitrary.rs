//! Arbitrary frames to a live provider: no panic, and no byte outside of the grant changes.

use super::transport::request;
use crate::testing::{Pair, Rng, contents, frame};
use crate::wire::bth;
use crate::wire::frame::{ETHERNET_LEN, Frame, Network};
use crate::wire::icrc::Icrc;
use crate::{TxBuffer, Verdict};
use core::time::Duration;
use proptest::prelude::*;
use std::vec::Vec;
use verbs::{
    Access, MemoryVerbs, PathMtu, Payload, Provider, RecvRequest, RemoteAddress, SendOperation,
};

/// Corrects the ICRC, so that changed fields are examined.
pub fn seal(bytes: &mut [u8]) {
    let Ok(parsed) = Frame::parse(bytes) else { return };
    let start = ETHERNET_LEN + parsed.network.len() + bth::LEN;
    let end = ETHERNET_LEN + parsed.headers.len();
    if end < start + 4 {
        return;
    }
    let covered = &bytes[ETHERNET_LEN..end - 4];
    let icrc = Icrc::new().compute(Network::Ipv4, covered, &[], 0);
    bytes[end - 4..end].copy_from_slice(&icrc);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn mutated_frames_change_no_other_memory(
        seed in any::<u64>(),
        // Offset behind the UDP header, and new value.
        changes in proptest::collection::vec((0..60usize, any::<u8>()), 0..5),
        opcode in prop_oneof![Just(None), (0..=255u8).prop_map(Some)],
        times in 1..4usize,
    ) {
        let mut pair = Pair::new(seed, 1500, false);
        pair.connect(PathMtu::Mtu256, Pair::LINUX);
        let mut rng = Rng::new(seed);
        let [a, b] = &mut pair.nodes;
        let memory = b.arena.alloc(3 * 4096, 4096).unwrap();
        memory.fill(0xee);
        let granted = memory.slice(4096, 4096).unwrap();
        let access = Access::all();
        let region = b.roce.register(b.pd, granted, access, &mut rng).unwrap();
        let into = b.arena.alloc(1024, 64).unwrap();
        for id in 0..8 {
            b.roce.post_recv(b.qp, &RecvRequest { id, into: &[into] }).unwrap();
        }
        let from = a.arena.alloc(1000, 64).unwrap();
        let payload = Payload::Windows(&[from]);
        let to = RemoteAddress { address: region.address + 8, rkey: region.rkey };
        let write = SendOperation::Write { payload, to, immediate: Some(1) };
        a.roce.post_send(a.qp, &request(1, write)).unwrap();
        let mut tx = TxBuffer::new();
        let mut frames = Vec::new();
        while a.roce.poll_transmit(0, pair.network.now, &mut tx) {
            frames.push(frame(&tx));
        }
        for (n, original) in frames.iter().enumerate() {
            let mut bytes = original.clone();
            if n % 2 == 1 || frames.len() == 1 {
                for &(at, value) in &changes {
                    // The destination queue pair stays, or the packet would only be dropped.
                    if let Some(byte) = bytes.get_mut(42 + at).filter(|_| !(5..8).contains(&at)) {
                        *byte = value;
                    }
                }
                if let Some(opcode) = opcode {
                    bytes[42] = opcode;
                }
            }
            seal(&mut bytes);
            for _ in 0..times {
                prop_assert_ne!(pair.deliver(1, &bytes), Verdict::NotRoce);
            }
        }
        pair.run(Duration::from_secs(10), |_| false);
        let all = contents(&memory);
        prop_assert!(all[..4096].iter().chain(&all[8192..]).all(|&byte| byte == 0xee));
    }

    #[test]
    fn garbage_frames_do_not_panic(frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 1..8)) {
        let mut pair = Pair::new(1, 1500, false);
        pair.connect(PathMtu::Mtu1024, Pair::LINUX);
        for frame in frames {
            pair.deliver(0, &frame);
        }
    }
}
