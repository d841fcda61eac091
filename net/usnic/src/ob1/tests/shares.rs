//! Tests of the memory budget of mirrors: limits of a greedy peer, and the release of overdue messages.

use super::*;
use core::time::Duration;
use drivers::hal::Instant;

const ALL: u64 = 120 << 20;

/// A RNDV of 32 bytes for a message of that length.
fn promise(sequence: u16, length: u64) -> Vec<u8> {
    let header = Header::Rendezvous { envelope: envelope(sequence), length, request: 5 };
    message(header, b"")
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

/// A peer announces a message of 64 MiB and many more. The 200 KB of another peer are requested at once.
#[test]
fn greedy_peer_leaves_memory_to_others() {
    for (length, count) in [(64 << 20, 1), (64 << 20, 500), (1 << 20, 500), (1, 500)] {
        netsim::label!(length, count);
        let limits = Limits { rendezvous: 512, ..LIMITS };
        let mut budget = Budget::new(ALL);
        let [mut greedy, mut honest] = [0; 2].map(|_| Mirror::new(RANK, limits));
        for n in 0..count {
            give(&mut greedy, &mut budget, promise(n, length)).unwrap();
        }
        let mut rank = Rank::new(153_568, 1);
        let data = data(200_000, 1);
        let first = vec![rank.begin(1, &data)];
        carry(&mut honest, &mut budget, &mut rank, first);
        assert!(rank.done == [(1, data)]);
    }
}

/// Peers hold all memory together and make no progress: their memory is released while others wait, and only then.
#[test]
fn memory_of_overdue_messages_is_released_for_others() {
    let mut budget = Budget::new(ALL);
    let mut mirrors: Vec<_> = (0..4).map(|_| Mirror::new(RANK, LIMITS)).collect();
    for (n, mirror) in mirrors.iter_mut().enumerate() {
        for sequence in 0..8 {
            give(mirror, &mut budget, promise(sequence, 16 << 20 >> n)).unwrap();
        }
    }
    // Their rest is requested, and they do not respond.
    let requested = mirrors.iter_mut().map(|mirror| out(mirror, &mut budget).len());
    assert_eq!(requested.sum::<usize>(), 7);
    let mut honest = Mirror::new(RANK, Limits { parts: 1024, ..LIMITS });
    let mut rank = Rank::new(153_568, 1);
    let data = data(20_000_000, 1);
    give(&mut honest, &mut budget, rank.begin(1, &data)).unwrap();
    assert_eq!(honest.under_way(), (1, 1));
    assert!(budget.take_waits() && !budget.take_waits());
    budget.set_contended(true);
    budget.set_time(at(5));
    assert_eq!(mirrors.iter_mut().map(|one| one.give_up_overdue(&mut budget)).sum::<usize>(), 0);
    budget.set_time(at(60));
    let mut given_up = 0;
    for mirror in &mut mirrors {
        given_up += mirror.give_up_overdue(&mut budget);
        assert!(out(mirror, &mut budget).is_empty());
    }
    assert!(given_up > 0);
    assert_eq!(honest.admit_in_turn(&mut budget), Turn::Done);
    let acks = out(&mut honest, &mut budget);
    let parts = acks.iter().flat_map(|ack| rank.answer(ack)).collect();
    carry(&mut honest, &mut budget, &mut rank, parts);
    assert!(rank.done == [(1, data)]);
    // A late part belongs to no message.
    let late = Header::Fragment { offset: 0, sender: 5, receiver: 1 << 32 };
    let late = message(late, b"late");
    assert!(matches!(give(&mut mirrors[0], &mut budget, late), Err((Refused::Mismatch, _))));
    mirrors.iter_mut().for_each(|mirror| mirror.clear(&mut budget, |_| {}));
    assert_eq!(budget.free(), ALL);
}

/// A message that makes progress is kept: for as long as its length allows, and a minute until its peer takes it back.
#[test]
fn message_that_makes_progress_is_kept() {
    let mut budget = Budget::new(ALL);
    let mut mirror = Mirror::new(RANK, LIMITS);
    let mut rank = Rank::new(153_568, 1);
    let data = data(2_000_000, 1);
    give(&mut mirror, &mut budget, rank.begin(1, &data)).unwrap();
    let acks = out(&mut mirror, &mut budget);
    budget.set_time(at(11));
    assert_eq!(mirror.give_up_overdue(&mut budget), 0);
    let parts: Vec<_> = acks.iter().flat_map(|ack| rank.answer(ack)).collect();
    for part in parts {
        give(&mut mirror, &mut budget, part).unwrap();
    }
    budget.set_time(at(70));
    assert_eq!(mirror.give_up_overdue(&mut budget), 0, "its rank may compute");
    let offers = out(&mut mirror, &mut budget);
    let answers = offers.iter().flat_map(|offer| rank.answer(offer)).collect();
    carry(&mut mirror, &mut budget, &mut rank, answers);
    assert!(rank.done == [(1, data)]);
    assert_eq!((mirror.counters().overdue, budget.free()), (0, ALL));
}

/// A peer that releases memory does not get it again before others that wait.
#[test]
fn freed_memory_goes_to_others_first() {
    let mut budget = Budget::new(ALL);
    let mut greedy = Mirror::new(RANK, Limits { parts: 1024, ..LIMITS });
    let mut rank = Rank::new(153_568, 1);
    let data = data(30_000_000, 1);
    let begins = [1, 2, 3].map(|n| rank.begin(n, &data));
    for bytes in begins {
        give(&mut greedy, &mut budget, bytes).unwrap();
    }
    assert_eq!(greedy.under_way(), (3, 2));
    let mut other = Mirror::new(RANK, LIMITS);
    give(&mut other, &mut budget, promise(1, 64 << 20)).unwrap();
    assert_eq!(other.under_way(), (1, 1));
    budget.set_contended(true);
    let acks = out(&mut greedy, &mut budget);
    let parts = acks.iter().flat_map(|ack| rank.answer(ack)).collect();
    carry(&mut greedy, &mut budget, &mut rank, parts);
    assert_eq!((greedy.under_way(), budget.free()), ((2, 2), ALL));
    assert_eq!(other.admit_in_turn(&mut budget), Turn::Done);
    assert_eq!(greedy.admit_in_turn(&mut budget), Turn::Waits);
}
