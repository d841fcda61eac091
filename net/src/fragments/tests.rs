//! Reassembly of valid and invalid fragments.

use super::*;
use crate::testing::{OUR_MAC, PEER_MAC, udp};
use proptest::prelude::*;

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn ends(v6: bool) -> (IpAddr, IpAddr) {
    let (from, to) = if v6 { ("fe80::2", "fe80::1") } else { ("10.0.0.2", "10.0.0.1") };
    (from.parse().unwrap(), to.parse().unwrap())
}

/// The bytes `range` of the data of a packet, as a fragment.
fn piece(whole: &[u8], range: Range<usize>, more: bool, identification: u16) -> Vec<u8> {
    let v4 = whole[14] >> 4 == 4;
    let header = if v4 { IPV4 } else { IPV6 };
    let data = &whole[14 + header..][range.clone()];
    let mut frame = whole[..14 + header].to_vec();
    let flags = range.start as u16;
    if v4 {
        frame[16..18].copy_from_slice(&((20 + data.len()) as u16).to_be_bytes());
        frame[18..20].copy_from_slice(&identification.to_be_bytes());
        frame[20..22].copy_from_slice(&((flags / 8) | (u16::from(more) << 13)).to_be_bytes());
        write_checksum(&mut frame[14..]);
    } else {
        frame[18..20].copy_from_slice(&((8 + data.len()) as u16).to_be_bytes());
        frame.extend([frame[20], 0]);
        frame.extend((flags | u16::from(more)).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(identification.to_be_bytes());
        frame[20] = FRAGMENT;
    }
    frame.extend(data);
    frame
}

fn datagram(v6: bool, length: usize) -> Vec<u8> {
    let (from, to) = ends(v6);
    let data: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    let mut frame = udp(from, to, 9999, 53, &data);
    if !v6 {
        // Clears Don't Fragment.
        frame[20..22].fill(0);
        write_checksum(&mut frame[14..34]);
    }
    frame
}

fn cut(whole: &[u8], size: usize, identification: u16) -> Vec<Vec<u8>> {
    let header = if whole[14] >> 4 == 4 { IPV4 } else { IPV6 };
    let length = whole.len() - 14 - header;
    let starts = (0..length).step_by(size);
    let cut = |start: usize| {
        let end = (start + size).min(length);
        piece(whole, start..end, end < length, identification)
    };
    starts.map(cut).collect()
}

fn without_id(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[14] >> 4 == 4 {
        frame[18..20].fill(0);
        write_checksum(&mut frame[14..34]);
    }
    frame
}

proptest! {
    #[test]
    fn fragments_in_any_order_make_the_packet(
        v6: bool,
        length in 100usize..20_000,
        size in 4usize..180,
        order in any::<u64>(),
        again in 0usize..10,
    ) {
        let whole = datagram(v6, length);
        let mut pieces = cut(&whole, (8 * size).max(length.div_ceil(60).next_multiple_of(8)), 7);
        if pieces.len() > 1 {
            pieces.push(pieces[again % pieces.len()].clone());
        }
        let count = pieces.len();
        for n in 0..count {
            pieces.swap(n, (order.rotate_left(n as u32) % count as u64) as usize);
        }
        let mut fragments = Fragments::default();
        let made: Vec<Vec<u8>> =
            pieces.iter().filter_map(|piece| fragments.take(piece, at(0))).collect();
        prop_assert_eq!(made.len(), 1);
        prop_assert_eq!(without_id(made[0].clone()), without_id(whole));
    }

    #[test]
    fn arbitrary_frames_do_no_harm(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut fragments = Fragments::default();
        fragments.take(&frame, at(0));
        let mut queue = Queue::new(2, 1514);
        answer_echo(&frame, 1500, 1, &mut queue);
    }
}

#[test]
fn overlapping_fragments_are_refused() {
    for v6 in [false, true] {
        let whole = datagram(v6, 2992);
        let (first, last) = (piece(&whole, 0..1480, true, 7), piece(&whole, 1480..3000, false, 7));
        for bad in [
            piece(&whole, 1472..1600, true, 7),
            piece(&whole, 0..1472, true, 7),
            piece(&whole, 8..16, true, 7),
        ] {
            let mut fragments = Fragments::default();
            for frame in [&first, &bad, &last, &first, &last] {
                assert_eq!(fragments.take(frame, at(0)), None);
            }
        }
        // Two last fragments with different ends.
        let mut fragments = Fragments::default();
        let shorter = piece(&whole, 2960..2992, false, 7);
        for frame in [&shorter, &last, &first, &last] {
            assert_eq!(fragments.take(frame, at(0)), None);
        }
    }
}

#[test]
fn impossible_fragment_is_ignored() {
    let whole = datagram(false, 2992);
    let mut fragments = Fragments::default();
    let mut odd = piece(&whole, 0..1479, true, 7);
    assert!(fragments.take(&odd, at(0)).is_none() && fragments.packets.is_empty());
    odd = piece(&whole, 0..100, false, 7);
    // Its end exceeds 65,535 bytes.
    odd[20..22].copy_from_slice(&0x1fff_u16.to_be_bytes());
    assert!(fragments.take(&odd, at(0)).is_none() && fragments.packets.is_empty());
}

#[test]
fn late_fragments_do_not_complete_a_packet() {
    let whole = datagram(false, 2992);
    let pieces = cut(&whole, 1480, 7);
    let mut fragments = Fragments::default();
    assert!(fragments.take(&pieces[0], at(0)).is_none());
    assert!(fragments.take(&pieces[1], at(0)).is_none());
    assert!(fragments.take(&pieces[2], at(5)).is_none());
    assert_eq!(fragments.packets.len(), 1);
}

/// Thousands of incomplete packets, from one host or from many.
#[test]
fn memory_is_bounded_and_one_host_does_not_evict_others() {
    let mut fragments = Fragments::default();
    let honest = cut(&datagram(true, 5000), 1440, 1);
    for frame in &honest[..3] {
        fragments.take(frame, at(0));
    }
    for n in 0..5000 {
        let whole = datagram(false, 60_000);
        fragments.take(&piece(&whole, 59_200..60_000, true, n), at(0));
        assert!(fragments.packets.len() <= 1 + OF_HOST);
    }
    let held: usize = fragments.packets.iter().map(|p| p.data.capacity()).sum();
    assert!(held <= MEMORY, "{held}");
    assert!(fragments.take(&honest[3], at(0)).is_some());
    for n in 0..5000_u16 {
        let mut frame = piece(&datagram(false, 60_000), 59_200..60_000, true, 1);
        frame[28..30].copy_from_slice(&n.to_be_bytes());
        fragments.take(&frame, at(0));
        assert!(fragments.packets.len() <= PACKETS);
    }
    let held: usize = fragments.packets.iter().map(|p| p.data.capacity()).sum();
    assert!(held <= MEMORY, "{held}");
}

#[test]
fn echo_request_in_fragments_is_answered_in_fragments() {
    for v6 in [false, true] {
        let (from, to) = ends(v6);
        let mut whole = datagram(v6, 4992);
        let header = if v6 { IPV6 } else { IPV4 };
        let (kind, protocol) = if v6 { (128, ICMPV6) } else { (8, ICMP) };
        whole[14 + if v6 { 6 } else { 9 }] = protocol;
        let message = &mut whole[14 + header..];
        message[..8].copy_from_slice(&[kind, 0, 0, 0, 1, 2, 0, 3]);
        let addresses = if v6 { pseudo(from, to, ICMPV6, message.len()) } else { 0 };
        let checksum = !fold(addresses + sum(message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut queue = Queue::new(8, 1514);
        assert!(answer_echo(&whole, 1500, 77, &mut queue));
        let mut fragments = Fragments::default();
        let mut answer = None;
        while let Some(frame) = queue.front() {
            assert!(frame.len() <= 1514);
            assert_eq!((&frame[..6], &frame[6..12]), (&PEER_MAC[..], &OUR_MAC[..]));
            answer = fragments.take(frame, at(0));
            queue.pop();
        }
        let answer = answer.unwrap();
        assert_eq!(answer[14 + header], kind / 128 * 129);
        assert_eq!(answer[14 + header + 4..], whole[14 + header + 4..]);
        let message = &answer[14 + header..];
        assert_eq!(fold(addresses + sum(message)), 0xffff);
        whole[14 + header + 20] ^= 1;
        assert!(!answer_echo(&whole, 1500, 77, &mut queue), "damaged");
        assert!(!answer_echo(&datagram(v6, 4992), 1500, 77, &mut queue), "no echo request");
    }
}
