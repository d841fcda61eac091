//! Wire formats against captures of stock Linux, and round trips.

use super::transport::request;
use crate::TxBuffer;
use crate::testing::{Pair, disconnect, frame, session};
use crate::wire::bth::{self, Bth};
use crate::wire::cm::{About, Brief, BriefKind, Message, Rej, Rep, Req};
use crate::wire::extended::{Aeth, AtomicEth, Deth, Nak, Reth, Syndrome};
use crate::wire::frame::{Frame, Gid, Network};
use crate::wire::icrc::Icrc;
use crate::wire::ip_cm::{self, IpCm};
use crate::wire::mad::{self, Mad};
use crate::wire::opcode::{Class, Opcode, Service};
use proptest::prelude::*;
use std::format;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::string::ToString;
use std::vec::Vec;
use verbs::{PathMtu, Payload, Provider, RemoteAddress, SendOperation, SendWith};

/// Every frame of Linux is the same after parsing and emitting it.
#[test]
fn captures_survive_a_round_trip() {
    let icrc = Icrc::new();
    for frame in session().iter().chain(&disconnect()) {
        let parsed = Frame::parse(frame).unwrap();
        assert_eq!(parsed.network, Network::Ipv4);
        let transport = parsed.transport();
        let bth = Bth::parse(transport).unwrap();
        let mut again = [0; bth::LEN];
        bth.emit(&mut again);
        assert_eq!(again, transport[..bth::LEN]);

        let (covered, stored) = parsed.headers.split_last_chunk().unwrap();
        assert_eq!(icrc.compute(Network::Ipv4, covered, &[], 0), *stored);

        let extended = &transport[bth::LEN..];
        match (bth.opcode.service(), bth.opcode.class()) {
            (Service::Ud, _) => {
                let deth = Deth::parse(extended).unwrap();
                assert_eq!(deth, Deth { qkey: mad::GSI_QKEY, source_qp: mad::GSI_QPN });
                let (header, data) = Mad::parse(&extended[Deth::LEN..]).unwrap();
                let message = Message::parse(header.attribute, &data).unwrap();
                let mut again = [0; mad::DATA_LEN];
                assert_eq!(message.emit(&mut again), header.attribute);
                assert_eq!(again, data, "{message}");
                let mut whole = [0; mad::LEN];
                header.emit(&again, &mut whole);
                assert_eq!(whole, extended[Deth::LEN..Deth::LEN + mad::LEN]);
            }
            (_, Class::Acknowledge) => {
                let aeth = Aeth::parse(extended).unwrap();
                assert_eq!(aeth.syndrome, Syndrome::ACK);
                let mut again = [0; Aeth::LEN];
                aeth.emit(&mut again);
                assert_eq!(again, extended[..Aeth::LEN]);
            }
            (_, Class::Write) if bth.opcode.begins() => {
                let mut again = [0; Reth::LEN];
                Reth::parse(extended).unwrap().emit(&mut again);
                assert_eq!(again, extended[..Reth::LEN]);
            }
            _ => (),
        }
    }
}

#[test]
fn captured_connection_setup_is_parsed() {
    let frames = session();
    let message = |n: usize| {
        let parsed = Frame::parse(&frames[n]).unwrap();
        let (header, data) = Mad::parse(&parsed.transport()[20..]).unwrap();
        Message::parse(header.attribute, &data).unwrap()
    };
    let Message::Req(req) = message(0) else { panic!("not a REQ") };
    assert_eq!(req.qpn, 0x11);
    assert_eq!(ip_cm::tcp_port(req.service_id), Some(1234));
    assert_eq!((req.path_mtu, req.retry_count, req.rnr_retry_count), (3, 7, 7));
    assert_eq!((req.ack_timeout, req.starting_psn), (17, 4968422));
    assert_eq!(req.local_gid, Gid::from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))).to_bytes());
    let ip = IpCm::parse(&req.private_data).unwrap();
    assert_eq!(ip.to_string(), "10.0.0.2 port 33199 > 10.0.0.1");
    let Message::Rep(rep) = message(1) else { panic!("not a REP") };
    assert_eq!((rep.remote_id, rep.target_ack_delay), (req.local_id, 15));
    assert_eq!(rep.starting_psn, 3504247);
    assert!(matches!(message(2), Message::Brief(Brief { kind: BriefKind::Rtu, .. })));
    for (n, name) in [(0, "CM REQ"), (1, "CM REP"), (2, "CM Rtu")] {
        assert!(message(n).to_string().starts_with(name), "{}", message(n));
    }
    let bth = Bth::parse(Frame::parse(&frames[6]).unwrap().transport()).unwrap();
    assert_eq!(format!("{bth}"), "SEND only qp 0x11 psn 3504247 ackreq");
}

#[test]
fn opcodes_are_consistent() {
    let known: Vec<u8> = (0..=255).filter(|&b| Opcode::from_byte(b).is_ok()).collect();
    assert_eq!(known, Opcode::ALL.iter().map(|&o| o as u8).collect::<Vec<_>>());
    for &opcode in Opcode::ALL {
        assert!(!(opcode.has_immediate() && opcode.has_invalidate()), "{opcode}");
        let extra = 4 * (opcode.has_immediate() || opcode.has_invalidate()) as usize;
        assert!(opcode.extended_len() >= extra, "{opcode}");
    }
}

proptest! {
    #[test]
    fn transport_headers_survive_a_round_trip(
        which in 0..Opcode::ALL.len(), flags in any::<[bool; 2]>(), pad in 0..4u8,
        pkey in any::<u16>(), qp in 0..1u32 << 24, psn in 0..1u32 << 24, a in any::<u64>(),
        b in any::<u64>(), c in any::<u64>(), rkey in any::<u32>(),
    ) {
        let bth = Bth {
            opcode: Opcode::ALL[which], solicited: flags[0], pad, pkey, destination_qp: qp,
            ack_request: flags[1], psn,
        };
        let mut bytes = [0xee; bth::LEN];
        bth.emit(&mut bytes);
        prop_assert_eq!(Bth::parse(&bytes), Ok(bth));

        let reth = Reth { address: a, rkey, length: b as u32 };
        let mut bytes = [0xee; Reth::LEN];
        reth.emit(&mut bytes);
        prop_assert_eq!(Reth::parse(&bytes), Ok(reth));

        let atomic = AtomicEth { address: a, rkey, swap_or_add: b, compare: c };
        let mut bytes = [0xee; AtomicEth::LEN];
        atomic.emit(&mut bytes);
        prop_assert_eq!(AtomicEth::parse(&bytes), Ok(atomic));

        let deth = Deth { qkey: rkey, source_qp: qp };
        let mut bytes = [0xee; Deth::LEN];
        deth.emit(&mut bytes);
        prop_assert_eq!(Deth::parse(&bytes), Ok(deth));

        for syndrome in [
            Syndrome::Ack { credits: pad },
            Syndrome::ReceiverNotReady { timer: pad + 28 },
            Syndrome::Nak([
                Nak::SequenceError, Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation,
            ][pad as usize]),
        ] {
            let aeth = Aeth { syndrome, msn: psn };
            let mut bytes = [0xee; Aeth::LEN];
            aeth.emit(&mut bytes);
            prop_assert_eq!(Aeth::parse(&bytes), Ok(aeth));
        }
    }

    #[test]
    fn connection_manager_messages_survive_a_round_trip(
        ids in any::<(u32, u32)>(), longs in any::<[u64; 3]>(), x24 in proptest::array::uniform3(0..1u32 << 24),
        b in any::<[u8; 16]>(), fill in any::<u8>(),
    ) {
        let req = Req {
            local_id: ids.0, service_id: longs[0], ca_guid: longs[1], qpn: x24[0],
            responder_resources: b[0], initiator_depth: b[1],
            remote_response_timeout: b[2] & 31, transport: b[3] & 3, starting_psn: x24[1],
            local_response_timeout: b[4] & 31, retry_count: b[5] & 7, pkey: ids.1 as u16,
            path_mtu: b[6] & 15, rnr_retry_count: b[7] & 7, max_cm_retries: b[8] & 15,
            local_gid: [fill; 16], remote_gid: b, flow_label: x24[2] >> 4, traffic_class: b[9],
            hop_limit: b[10], ack_timeout: b[11] & 31, private_data: [fill; 92],
        };
        let rep = Rep {
            local_id: ids.0, remote_id: ids.1, qpn: x24[0], starting_psn: x24[1],
            responder_resources: b[0], initiator_depth: b[1], target_ack_delay: b[2] & 31,
            rnr_retry_count: b[3] & 7, ca_guid: longs[0], private_data: [fill; 196],
        };
        let rej = Rej {
            local_id: ids.0, remote_id: ids.1, about: About::Rep, reason: ids.0 as u16,
            private_data: [fill; 148],
        };
        let brief = |kind| Message::Brief(Brief { local_id: ids.0, remote_id: ids.1, kind });
        for message in [
            Message::Req(req), Message::Rep(rep), Message::Rej(rej), brief(BriefKind::Rtu),
            brief(BriefKind::Drep), brief(BriefKind::Dreq { remote_qpn: x24[0] }),
            brief(BriefKind::Mra { about: About::Req, service_timeout: b[2] & 31 }),
        ] {
            let mut data = [0; mad::DATA_LEN];
            let attribute = message.emit(&mut data);
            prop_assert_eq!(Message::parse(attribute, &data), Ok(message));
        }
    }

    #[test]
    fn ip_cm_headers_survive_a_round_trip(port in any::<u16>(), a in any::<[u8; 16]>(), b in any::<[u8; 16]>(), v4: bool) {
        let address = |x: [u8; 16]| if v4 {
            IpAddr::V4(Ipv4Addr::new(x[0], x[1], x[2], x[3]))
        } else {
            Ipv6Addr::from(x).to_canonical()
        };
        let header = IpCm { source_port: port, source: address(a), destination: address(b) };
        prop_assume!(header.source.is_ipv4() == header.destination.is_ipv4());
        let mut bytes = [0xee; ip_cm::LEN];
        header.emit(&mut bytes);
        prop_assert_eq!(IpCm::parse(&bytes), Ok(header));
        prop_assert_eq!(ip_cm::tcp_port(ip_cm::service_id(port)), Some(port));
    }

    #[test]
    fn garbage_does_not_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Bth::parse(&data), Reth::parse(&data), Aeth::parse(&data), IpCm::parse(&data));
        let _ = (AtomicEth::parse(&data), Deth::parse(&data), Mad::parse(&data));
    }
}

proptest! {
    /// A packet does not depend on the packet that was in the buffer before.
    #[test]
    fn packets_do_not_depend_on_earlier_buffer_contents(
        lengths in proptest::collection::vec((0..9000usize, any::<bool>(), any::<bool>()), 1..6),
    ) {
        let frames = [false, true].map(|fresh| {
            let mut pair = Pair::new(3, 1500, false);
            pair.connect(PathMtu::Mtu1024, Pair::LINUX);
            let node = &mut pair.nodes[0];
            let memory = node.arena.alloc(9000, 64).unwrap();
            for &(length, writes, immediate) in &lengths {
                let windows = [memory.slice(0, length).unwrap()];
                let payload = Payload::Windows(&windows);
                let operation = if writes {
                    let to = RemoteAddress { address: 0x1000, rkey: 7 };
                    SendOperation::Write { payload, to, immediate: immediate.then_some(9) }
                } else {
                    let with = if immediate { SendWith::Immediate(9) } else { SendWith::Nothing };
                    SendOperation::Send { payload, with }
                };
                node.roce.post_send(node.qp, &request(1, operation)).unwrap();
            }
            let (mut tx, mut frames) = (TxBuffer::new(), Vec::new());
            while node.roce.poll_transmit(0, pair.network.now, &mut tx) {
                frames.push(frame(&tx));
                if fresh {
                    tx = TxBuffer::new();
                }
            }
            frames
        });
        prop_assert_eq!(&frames[0], &frames[1]);
        let packets: usize = lengths.iter().map(|(length, ..)| length.div_ceil(1024).max(1)).sum();
        prop_assert_eq!(frames[0].len(), packets);
    }
}
