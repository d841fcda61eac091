//! Limits of sockets, link groups and pooled buffers, and evictions.

use super::hostile::{proposal, write};
use crate::engine::{BufferSizes, Config, Ready, Role, SocketId};
use crate::testing::{World, config, ip, pattern};
use crate::wire::{Decline, Reason};
use core::net::Ipv4Addr;
use core::time::Duration;
use std::vec::Vec;
use verbs::RegionsOnDemand;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn socket_limit_is_enforced() {
    let two = || Config { max_sockets: 2, ..config() };
    let mut w = World::with(51, [two(), two()]);
    let ends = [ip(0, 0), ip(1, 0)];
    let open = |w: &mut World, owner| {
        w.with_engine(0, |engine, ctx, _| engine.open(Role::Server, ends, owner, ctx))
    };
    let ids = [open(&mut w, 70).unwrap(), open(&mut w, 71).unwrap()];
    assert_eq!(open(&mut w, 72), None);
    assert_eq!(ids.map(|id| w.hosts[0].engine.owner(id)), [Some(70), Some(71)]);
    w.close(0, ids[0]);
    let next = open(&mut w, 73).expect("a slot is free");
    assert_ne!(next, ids[0], "same slot, another ID");
    assert_eq!(w.hosts[0].engine.owner(ids[0]), None);
    assert_eq!(w.hosts[0].engine.socket_status(ids[0]), None);
    assert_eq!(w.hosts[0].engine.socket_status(next).map(|status| status.id), Some(next));
}

/// Sends a Proposal from a host without other connections.
fn stranger(w: &mut World, last: u8) -> SocketId {
    let ends = [ip(0, 0), Ipv4Addr::new(10, 0, 0, last).into()];
    let id = w.with_engine(0, |engine, ctx, _| engine.open(Role::Server, ends, 0, ctx)).unwrap();
    w.feed_clc(0, id, &proposal());
    id
}

fn declined(w: &mut World, id: SocketId) -> Option<Reason> {
    Decline::parse(&w.take_clc(0, id)).ok().map(|decline| decline.reason)
}

#[test]
fn group_in_use_is_not_evicted() {
    let one = || Config { max_groups: 1, ..config() };
    let mut w = World::with(52, [one(), one()]);
    let ids = w.established();
    let id = stranger(&mut w, 99);
    assert_eq!(declined(&mut w, id), Some(Reason::MEMORY));
    assert_eq!(w.hosts[0].engine.counts(), [2, 1, 1]);
    w.transfer(1, ids, &pattern(5000, 1), 1000);
}

#[test]
fn longest_idle_group_is_evicted() {
    let two = || Config { max_groups: 2, ..config() };
    let mut w = World::with(53, [two(), two()]);
    let ids = w.established();
    let at = w.connect_from(0);
    w.wait(SECOND);
    let others = w.tcp[at].ends.map(Option::unwrap);
    // The first connection is closed last.
    for ids in [others, ids] {
        (0..2).for_each(|n| w.close(n, ids[n]));
        w.wait(SECOND);
    }
    assert_eq!(w.hosts[0].engine.groups().count(), 2);
    let id = stranger(&mut w, 99);
    assert_eq!(declined(&mut w, id), None, "an Accept");
    let groups: Vec<_> = w.hosts[0].engine.groups().map(|group| (group.role, group.id)).collect();
    assert_eq!(groups.len(), 2);
    assert!(groups.contains(&(Role::Server, 1)), "{groups:?}");
    // The client of the evicted group notices.
    w.hosts[0].engine.counters();
    let ids = w.established();
    w.transfer(1, ids, &pattern(5000, 1), 1000);
}

/// A client that sends only a Proposal blocks other hosts for a second at most.
#[test]
fn stalled_first_contact_is_evicted() {
    for (pause, makes_room) in [(SECOND / 2, false), (SECOND, true)] {
        netsim::label!(pause);
        let one = || Config { max_groups: 1, ..config() };
        let mut w = World::with(54, [one(), one()]);
        let stalled = stranger(&mut w, 98);
        assert_eq!(declined(&mut w, stalled), None, "an Accept");
        w.wait(pause);
        let next = stranger(&mut w, 99);
        let expected =
            [makes_room.then_some(Reason::MEMORY), (!makes_room).then_some(Reason::MEMORY)];
        assert_eq!([stalled, next].map(|id| declined(&mut w, id)), expected);
        assert_eq!(w.hosts[0].engine.groups().count(), 1);
    }
}

/// The entry of a host without state is removed.
#[test]
fn departed_hosts_leave_no_state() {
    let mut w = World::new(55);
    let ids = w.established();
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.hosts_known()), [1, 1]);
    for last in 90..99 {
        let id = stranger(&mut w, last);
        // This Proposal is held behind the first.
        let held = stranger(&mut w, last);
        assert_eq!(w.hosts[0].engine.hosts_known(), 2, "{last}");
        w.close(0, id);
        w.close(0, held);
        assert_eq!(w.hosts[0].engine.hosts_known(), 1, "{last}");
    }
    (0..2).for_each(|n| w.close(n, ids[n]));
    w.wait(700 * SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.counts()), [[0; 3]; 2]);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.hosts_known()), [0, 0]);
}

/// The pool has 1 MiB, with at least 4 and at most 16 buffers; further ones are freed.
#[test]
fn receive_buffer_pool_has_its_size() {
    for (rmb_size, stock) in [(0, 16), (2, 16), (3, 8), (4, 4), (6, 4)] {
        netsim::label!(rmb_size);
        let sized = || Config { rmb_size, ..config() };
        let mut w = World::with(56, [sized(), sized()]);
        let size = 16u64 << 10 << rmb_size;
        let before = w.hosts[0].arena.available();
        let ids = w.established();
        assert_eq!(w.hosts[0].roce.odp_pool(size as usize) as u64, stock);
        w.transfer(1, ids, b"takes one", 100);
        assert_eq!(
            w.hosts[0].roce.odp_pool(size as usize) as u64,
            stock,
            "another one replaces it"
        );
        assert_eq!(w.hosts[0].engine.kept(&w.hosts[0].roce), stock * size);
        w.wait(SECOND / 10);
        // The client also keeps a spare send buffer.
        let kept = w.hosts[1].engine.kept(&w.hosts[1].roce);
        assert_eq!(kept, stock * size + (16 << 10));
        w.wait(10 * SECOND);
        assert_eq!(w.hosts[0].roce.odp_pool(size as usize) as u64, stock);
        // A buffer in use when its connection ends.
        w.transfer(1, ids, b"takes one", 100);
        (0..2).for_each(|n| w.close(n, ids[n]));
        w.wait(SECOND);
        assert_eq!(w.hosts[0].roce.odp_pool(size as usize) as u64, stock);
        w.wait(700 * SECOND);
        let kept = [0, 1].map(|n| w.hosts[n].engine.kept(&w.hosts[n].roce));
        assert_eq!(kept, [stock * size; 2], "the spare send buffer was idle");
        assert_eq!(w.hosts[0].arena.available() as u64, before as u64 - stock * size);
    }
}

/// Sockets of one host have buffers of their own sizes, each size with its own pool.
#[test]
fn buffers_of_sockets_have_their_own_sizes() {
    let mut w = World::new(59);
    let small = w.established();
    let at = w.connect_from(1);
    let ids = w.tcp[at].ends.map(Option::unwrap);
    let sizes = BufferSizes { send: 64 << 10, receive: 2 };
    (0..2).for_each(|n| w.hosts[n].engine.set_buffer_sizes(ids[n], sizes));
    let is_up = |w: &mut World| (0..2).all(|n| w.has_event(n, ids[n], Ready::ESTABLISHED));
    assert!(w.run(SECOND, is_up));
    let buffers = |w: &World, ids: [SocketId; 2]| {
        [0, 1].map(|n| w.hosts[n].engine.socket_status(ids[n]).unwrap().buffers)
    };
    assert_eq!(buffers(&w, small), [(16 << 10, 16 << 10); 2]);
    assert_eq!(buffers(&w, ids), [(64 << 10, 64 << 10); 2]);
    assert_eq!([0, 1].map(|n| w.hosts[n].engine.writable(ids[n])), [64 << 10; 2]);
    for n in 0..2 {
        let pools = [16 << 10, 64 << 10].map(|size| w.hosts[n].roce.odp_pool(size));
        assert_eq!(pools, [16, 16]);
        w.transfer(n, ids, &pattern(300_000, 1), 50_000);
        w.transfer(n, small, &pattern(100_000, 2), 50_000);
    }
    let tx = w.hosts[0].engine.counters().tx;
    assert!(tx.buffers[1] > 0 && tx.buffers[3] > 0, "{tx:?}");
    assert_eq!(tx.buffers.iter().sum::<u64>(), tx.buffers[1] + tx.buffers[3]);
    // Too late, and invalid sizes.
    let larger = BufferSizes { send: 128 << 10, receive: 3 };
    w.hosts[0].engine.set_buffer_sizes(ids[0], larger);
    assert_eq!(w.hosts[0].engine.writable(ids[0]), 64 << 10);
}

/// A send buffer that no connection has needed for a minute is freed.
#[test]
fn idle_spare_send_buffer_is_freed() {
    let mut w = World::new(60);
    let ids = w.established();
    let kept = |w: &World| w.hosts[1].engine.kept(&w.hosts[1].roce);
    let none = kept(&w);
    w.transfer(1, ids, &pattern(1000, 1), 1000);
    w.wait(SECOND);
    assert_eq!(kept(&w), none + (16 << 10));
    for _ in 0..6 {
        w.wait(30 * SECOND);
        w.transfer(1, ids, &pattern(1000, 1), 1000);
    }
    w.wait(SECOND);
    assert_eq!(kept(&w), none + (16 << 10), "it is in use");
    assert!(w.hosts[1].engine.counters().tx.reused >= 6);
    w.wait(130 * SECOND);
    assert_eq!(kept(&w), none);
    w.transfer(1, ids, &pattern(1000, 1), 1000);
}

#[test]
fn spare_send_buffers_are_bounded() {
    for most in [0, 1, 2] {
        let settings = || Config { spare_buffers: most, ..config() };
        let mut w = World::with(57, [settings(), settings()]);
        let all: Vec<_> = (0..3).map(|_| w.established()).collect();
        all.iter().for_each(|ids| assert_eq!(w.send(1, ids[1], b"each has one"), 12));
        w.wait(SECOND);
        let stock = w.hosts[1].roce.odp_pool(16 << 10) as u64 * (16 << 10);
        let kept = w.hosts[1].engine.kept(&w.hosts[1].roce) - stock;
        assert_eq!(kept, most as u64 * (16 << 10), "{most}");
    }
}

/// Completely read buffers are freed even behind many others in the list.
#[test]
fn idle_buffers_behind_many_busy_ones_are_freed() {
    let mut w = World::new(58);
    let all: Vec<_> = (0..70).map(|_| w.established()).collect();
    for ids in &all {
        assert_eq!(w.send(1, ids[1], b"said"), 4);
        w.wait(SECOND / 1000);
    }
    let free = w.free(0);
    for ids in &all[64..] {
        assert_eq!(w.recv(0, ids[0]), b"said");
    }
    w.wait(10 * SECOND);
    assert_eq!(w.free(0), free + 6 * (16 << 10));
    for ids in &all[..64] {
        assert_eq!(w.recv(0, ids[0]), b"said");
    }
    w.wait(10 * SECOND);
    assert_eq!(w.free(0), free + 70 * (16 << 10));
    assert!(w.hosts[0].engine.poll_timeout() > Some(w.network.now), "no further search is due");
    // They get memory again when needed.
    for &ids in &all {
        w.transfer(1, ids, b"and again", 100);
    }
}

/// Bytes written but not announced are kept for any time.
#[test]
fn written_buffer_keeps_its_memory() {
    let mut w = World::new(59);
    let [server, client] = w.established();
    w.transfer(1, [server, client], b"first", 100);
    let free = w.free(0);
    super::hostile::write(&mut w, client, b"second");
    w.wait(10 * SECOND);
    assert_eq!(w.free(0), free, "it is kept");
    assert!(!w.has_event(0, server, Ready::ABORTED));
}

/// With the default limits, a host with many peer IDs has its share of link groups, and another host finds room.
#[test]
fn greedy_host_leaves_link_groups_to_others() {
    let shipped = || Config { eids: config().eids, rmb_size: 0, ..Config::default() };
    let mut w = World::with(59, [shipped(), shipped()]);
    let mut taken = 0;
    let greedy = Ipv4Addr::new(10, 0, 0, 98).into();
    for n in 0..60u8 {
        let id = w
            .with_engine(0, |engine, ctx, _| engine.open(Role::Server, [ip(0, 0), greedy], 0, ctx))
            .unwrap();
        let mut proposal = proposal();
        // The peer ID of another instance.
        proposal[8] = n;
        w.feed_clc(0, id, &proposal);
        w.with_engine(0, |engine, ctx, _| {
            // Completes the first contact, so that the group is in use.
            engine.forge_first_contact(id, ctx.now);
        });
        taken += usize::from(declined(&mut w, id).is_none());
    }
    assert_eq!(taken, 32);
    let ids = w.established();
    w.transfer(1, ids, &pattern(5000, 1), 1000);
}

/// A host that has used its share of receive buffer memory falls back to TCP; other hosts use SMC-R.
#[test]
fn greedy_host_leaves_memory_for_buffers_to_others() {
    let size = 16u64 << 10;
    let settings = || Config { memory_per_host: 3 * size, ..config() };
    let mut w = World::with(60, [settings(), settings()]);
    let all: Vec<_> = (0..3).map(|_| w.established()).collect();
    let at = w.connect_from(1);
    let [server, client] = w.tcp[at].ends.map(Option::unwrap);
    w.wait(SECOND);
    for (n, id) in [server, client].into_iter().enumerate() {
        assert!(w.has_event(n, id, Ready::FALLBACK));
        assert_eq!(w.hosts[n].engine.fallback(id), Some(Reason::MEMORY));
    }
    let other = stranger(&mut w, 99);
    assert_eq!(declined(&mut w, other), None, "an Accept");
    w.transfer(1, all[0], &pattern(5000, 1), 1000);
    // Freed memory is available to the next connection.
    (0..2).for_each(|n| w.close(n, all[1][n]));
    w.wait(SECOND);
    let ids = w.established();
    w.transfer(1, ids, &pattern(5000, 1), 1000);
}

/// A peer that writes on many connections without CDC messages empties the pool; other connections continue.
#[test]
fn peer_without_cdc_messages_leaves_memory_to_others() {
    let mut w = World::new(61);
    let good = w.established();
    let silent: Vec<_> = (0..40).map(|_| w.established()).collect();
    for ids in &silent {
        write(&mut w, ids[1], b"unannounced");
    }
    let begun = w.network.now;
    w.transfer(1, good, &pattern(5000, 1), 1000);
    assert!(w.network.now.since(begun) < SECOND);
}
