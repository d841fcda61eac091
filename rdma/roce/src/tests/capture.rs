//! The provider in place of the server of a captured session: it answers as Linux did.

use super::arbitrary::seal;
use crate::testing::{Pair, Rng, contents, frame, session};
use crate::wire::bth::Bth;
use crate::wire::extended::Aeth;
use crate::wire::frame::Frame;
use crate::{PortConfig, TxBuffer};
use std::net::{IpAddr, Ipv4Addr};
use verbs::{
    Access, AddressVector, CompletedOperation, GidType, MemoryVerbs, PathMtu, Provider,
    ReadyToReceive, RecvRequest, SendWith,
};

#[test]
fn acks_equal_those_of_linux() {
    let frames = session();
    let ip = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    let server_mac = [0x52, 0x54, 0, 0, 0, 1];
    let mut pair = Pair::new(1, 1500, false);
    let node = &mut pair.nodes[0];
    assert_eq!(
        node.roce.port(0).unwrap(),
        &PortConfig { mac: server_mac, addresses: std::vec![ip(1)], mtu: 1500 }
    );
    let client = ReadyToReceive {
        remote_qpn: 0x11,
        rq_psn: 3504247,
        path_mtu: PathMtu::Mtu1024,
        address: AddressVector {
            local: ip(1),
            remote: ip(2),
            gid_type: GidType::RoceV2,
            remote_mac: [0x52, 0x54, 0, 0, 0, 2],
            source_port: 0xf93d,
            traffic_class: 0,
            hop_limit: 64,
        },
        max_dest_rd_atomic: 0,
        min_rnr_timer: 0,
    };
    node.roce.ready_to_receive(node.qp, &client).unwrap();
    node.roce.ready_to_send(node.qp, &Pair::LINUX).unwrap();
    let number = node.roce.qp_number(node.qp).unwrap();
    let into = node.arena.alloc(4096, 64).unwrap();
    for id in 0..4 {
        node.roce.post_recv(node.qp, &RecvRequest { id, into: &[into] }).unwrap();
    }
    let chunk = node.arena.alloc(4096, 4096).unwrap();
    let region =
        node.roce.register(node.pd, chunk, Access::REMOTE_WRITE, &mut Rng::new(1)).unwrap();

    // INFO_REQ (SEND only), SESS_INFO (WRITE only with immediate), and Linux's ACKs of them.
    for (asked, answered) in [(6, 7), (18, 19)] {
        let mut request = frames[asked].clone();
        request[47..50].copy_from_slice(&number.to_be_bytes()[1..]);
        if asked == 18 {
            request[54..62].copy_from_slice(&region.address.to_be_bytes());
            request[62..66].copy_from_slice(&region.rkey.to_be_bytes());
        }
        seal(&mut request);
        pair.deliver(0, &request);
        let mut tx = TxBuffer::new();
        assert!(pair.nodes[0].roce.poll_transmit(0, pair.network.now, &mut tx));
        let ours = frame(&tx);
        let linux = &frames[answered];
        assert_eq!(ours.len(), linux.len());
        assert_eq!(ours[..18], linux[..18]);
        let (a, b) = (Frame::parse(&ours).unwrap(), Frame::parse(linux).unwrap());
        assert_eq!((a.source(), a.destination()), (b.source(), b.destination()));
        assert_eq!(Bth::parse(a.transport()), Bth::parse(b.transport()));
        assert_eq!(Aeth::parse(&a.transport()[12..]), Aeth::parse(&b.transport()[12..]));
    }
    let node = &mut pair.nodes[0];
    let got: std::vec::Vec<_> = node.completions().iter().map(|c| c.operation).collect();
    assert_eq!(
        got,
        [
            CompletedOperation::Recv { length: 272, with: SendWith::Nothing },
            CompletedOperation::RecvWriteImmediate { length: 60, immediate: 0x48 },
        ]
    );
    assert_eq!(contents(&chunk)[..60], frames[18][74..134]);
}
