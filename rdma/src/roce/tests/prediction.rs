//! What is predicted of the packets of a WRITE, and what is not.

use super::transport::request;
use crate::roce::testing::{Pair, Rng};
use crate::roce::wire::frame::Frame;
use crate::roce::wire::prediction::Prediction;
use crate::verbs::{Access, PathMtu, Payload, Provider, QpId, RemoteAddress, SendOperation};
use std::vec::Vec;

/// Where the IPv4 header is.
const IP: usize = 14;
/// Bytes before the payload.
const LEN: usize = 54;

/// The frames of a WRITE of four packets.
fn frames() -> Vec<Vec<u8>> {
    let mut pair = Pair::new(5, 1500, false);
    pair.connect(PathMtu::Mtu1024, Pair::LINUX);
    let [a, b] = &mut pair.nodes;
    let (from, into) = (a.arena.alloc(4096, 64).unwrap(), b.arena.alloc(4096, 64).unwrap());
    let region = b.roce.register(b.pd, into, Access::REMOTE_WRITE, &mut Rng::new(1)).unwrap();
    let to = RemoteAddress { address: region.address, rkey: region.rkey };
    let payload = Payload::Windows(&[from]);
    let write = SendOperation::Write { payload, to, immediate: None };
    a.roce.post_send(a.qp, &request(1, write)).unwrap();
    pair.network.record = Some(Vec::new());
    pair.step();
    pair.network.record.take().unwrap().into_iter().map(|(_, frame)| frame).collect()
}

#[test]
fn the_middle_is_predicted_and_no_bit_may_differ() {
    let frames = frames();
    let first = Frame::parse(&frames[0]).unwrap();
    let prediction = Prediction::after(&first, 1, QpId(7)).unwrap();
    let fits = |frame: &[u8]| prediction.matches(1, frame).map(|(_, psn, _)| psn);
    let psn = fits(&frames[1]).unwrap();
    assert_eq!(fits(&frames[2]), Some(psn + 1));
    assert_eq!((fits(&frames[0]), fits(&frames[3])), (None, None));
    assert!(prediction.matches(0, &frames[1]).is_none(), "it came in elsewhere");
    for bit in 0..8 * LEN {
        let mut frame = frames[1].clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let of_psn = bit / 8 >= LEN - 3;
        assert_eq!(fits(&frame).is_some(), of_psn, "bit {bit}");
    }
    let mut asking = frames[0].clone();
    asking[LEN - 4] |= 0x80;
    let prediction = Prediction::after(&Frame::parse(&asking).unwrap(), 1, QpId(7)).unwrap();
    assert!(prediction.matches(1, &frames[1]).is_some(), "that one asks for none");
    let mut renamed = frames[1].clone();
    // The identification is 0, and its checksum the lower.
    renamed[IP + 5] += 1;
    renamed[IP + 11] = renamed[IP + 11].checked_sub(1).unwrap();
    assert_eq!(fits(&renamed), Some(psn));
    for len in 0..frames[1].len() {
        assert_eq!(fits(&frames[1][..len]), None);
    }
}
