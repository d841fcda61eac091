//! The fast path for parts that arrive in order has the same checks as the general path.

use super::hostile::{ISN, arrive, chunk, header, packet};
use super::world::{Setup, TAG, World};
use crate::wire::header::Header;
use std::vec::Vec;

#[test]
fn put_in_progress_ends_when_its_grant_is_revoked() {
    let mut world = World::new(Setup::default());
    let [first, second] = [0, 1].map(|_| world.window(1, &[7; 50]));
    let endpoint = world.sides[1].endpoint;
    world.sides[1].engine.grant(endpoint, 0x1000, first).unwrap();
    let part = |n: u16| {
        let kind = chunk(1, 50, 10 * u32::from(n));
        let put = Header { put_address: 0x1000, ..header(ISN + n, kind) };
        packet(&put, &[n as u8; 10])
    };
    (0..3).for_each(|n| assert_eq!(arrive(&mut world, &part(n)).puts_refused, 0));
    world.sides[1].engine.revoke(endpoint, 0x1000);
    assert_eq!(arrive(&mut world, &part(3)).puts_refused, 1);
    // The same addresses may be granted for other memory.
    world.sides[1].engine.grant(endpoint, 0x1000, second).unwrap();
    (3..5).for_each(|n| assert_eq!(arrive(&mut world, &part(n)).puts_refused, 1));
    assert_eq!(world.counters(1).puts_received, 1);
    let bytes = [first, second].map(|window| window.read_array::<50>(0).unwrap());
    let expected = [[0, 1, 2, 7, 7], [7, 7, 7, 3, 4]];
    assert_eq!(bytes, expected.map(|parts| core::array::from_fn(|at| parts[at / 10])));
}

#[test]
fn invalid_parts_in_order_are_dropped() {
    let mut world = World::new(Setup::default());
    let part = |kind, put_address, length: usize| {
        let header = Header { put_address, ..header(ISN + 2, kind) };
        packet(&header, &std::vec![9; length])
    };
    arrive(&mut world, &packet(&header(ISN, chunk(2, 50, 0)), &[1; 10]));
    arrive(&mut world, &packet(&header(ISN + 1, chunk(2, 50, 10)), &[2; 10]));
    let lies = [
        part(chunk(2, 51, 20), 0, 10),
        part(chunk(2, 49, 20), 0, 10),
        part(chunk(2, 50, 20), 5, 10),
        part(chunk(2, 50, 20), 0, 0),
        part(chunk(2, 50, 20), 0, 31),
    ];
    for (n, lie) in (1..).zip(lies) {
        assert_eq!(arrive(&mut world, &lie).num_badfrag_recvs, n);
    }
    let forged = Header { sender: 5, ..header(ISN + 2, chunk(2, 50, 20)) };
    assert_eq!(arrive(&mut world, &packet(&forged, &[9; 10])).other_senders, 1);
    // The state is unchanged: a valid part is still accepted.
    arrive(&mut world, &packet(&header(ISN + 2, chunk(2, 50, 20)), &[3; 29]));
    arrive(&mut world, &packet(&header(ISN + 3, chunk(2, 50, 49)), &[4; 1]));
    let expected: Vec<u8> = [&[1; 10][..], &[2; 10], &[3; 29], &[4; 1]].concat();
    assert_eq!(world.sides[1].came, [(TAG, expected)]);
}
