//! Groups over two cards, each with its own keys for a buffer.

use crate::engine::{Config, Ready};
use crate::testing::{Kind, World, config, pattern};
use core::time::Duration;
use netsim::Place;

const SECOND: Duration = Duration::from_secs(1);

in_both_versions! {
    streams_continue_over_the_other_card
    lost_card_gets_its_link_again
    new_connections_have_keys_at_both_cards
    closed_connections_leave_no_registrations
    on_demand_buffer_stays_at_one_card
    full_card_delays_the_second_link
}

fn world(version: u8, kind: Kind, seed: u64, ports: [usize; 2]) -> World {
    let two = || Config { max_links: 2, ..config() };
    World::of_version_and_kind((version, kind), seed, [two(), two()], ports)
}

/// Links that carry connections, by host.
fn links(w: &World) -> [usize; 2] {
    w.hosts.each_ref().map(|host| host.engine.links().filter(|link| link.active).count())
}

fn set_up(w: &mut World, port: usize, up: bool) {
    w.network.set_up(Place { node: 0, port }, up);
}

fn streams_continue_over_the_other_card(version: u8) {
    for ports in [[2, 2], [2, 1]] {
        netsim::label!(version, ports);
        let mut w = world(version, Kind::Cards, 61, ports);
        let first = w.established();
        assert!(w.run(SECOND, |w| links(w) == [2, 2]));
        // Its keys are announced when both links are up.
        let second = w.established();
        for ids in [first, second] {
            w.transfer(0, ids, &pattern(20_000, 1), 5000);
        }
        set_up(&mut w, 0, false);
        for ids in [first, second] {
            w.transfer(0, ids, &pattern(50_000, 2), 5000);
            w.transfer(1, ids, &pattern(50_000, 3), 5000);
        }
        // Two links that share no port carry a connection each.
        let moved = if ports == [2, 2] { 1 } else { 2 };
        for host in &w.hosts {
            let counters = host.engine.counters();
            assert_eq!((counters.failovers, counters.aborted), (moved, 0));
        }
    }
}

/// The card has new keys afterwards.
fn lost_card_gets_its_link_again(version: u8) {
    for lost in [0, 1] {
        netsim::label!(version, lost);
        let mut w = world(version, Kind::Cards, 62, [2, 2]);
        let ids = w.established();
        assert!(w.run(SECOND, |w| links(w) == [2, 2]));
        for (at, n) in (0u8..).zip([lost, 1 - lost, lost]) {
            set_up(&mut w, n, false);
            w.transfer(1, ids, &pattern(20_000, at), 5000);
            w.transfer(0, ids, &pattern(20_000, at), 5000);
            assert!(w.run(60 * SECOND, |w| links(w) == [1, 1]), "{at}");
            // A connection that starts while only the other card has a link.
            let later = w.established();
            set_up(&mut w, n, true);
            assert!(w.run(130 * SECOND, |w| links(w) == [2, 2]), "{at}");
            w.transfer(0, later, &pattern(20_000, at), 5000);
            w.close(0, later[0]);
            w.close(1, later[1]);
            w.wait(SECOND);
            let regions = w.hosts.each_ref().map(|host| host.roce.regions);
            assert_eq!(regions, [2, 2], "the buffer, once at each card");
        }
        for host in &w.hosts {
            assert_eq!(host.engine.counters().aborted, 0);
            assert_eq!(host.engine.counters().violations, 0);
        }
    }
}

/// Connections that started over the second card have their first key there.
fn new_connections_have_keys_at_both_cards(version: u8) {
    let mut w = world(version, Kind::Cards, 63, [2, 2]);
    w.established();
    assert!(w.run(SECOND, |w| links(w) == [2, 2]));
    set_up(&mut w, 0, false);
    assert!(w.run(60 * SECOND, |w| links(w) == [1, 1]));
    let ids = w.established();
    set_up(&mut w, 0, true);
    assert!(w.run(130 * SECOND, |w| links(w) == [2, 2]));
    let later = w.established();
    set_up(&mut w, 1, false);
    for ids in [ids, later] {
        w.transfer(0, ids, &pattern(30_000, 1), 5000);
        w.transfer(1, ids, &pattern(30_000, 2), 5000);
    }
    assert!(w.hosts.iter().all(|host| host.engine.counters().aborted == 0));
}

fn closed_connections_leave_no_registrations(version: u8) {
    let mut w = world(version, Kind::Cards, 64, [2, 2]);
    let before = [0, 1].map(|n| w.free(n));
    let first = w.established();
    assert!(w.run(SECOND, |w| links(w) == [2, 2]));
    w.transfer(1, first, &pattern(5000, 1), 1000);
    w.transfer(0, first, &pattern(5000, 1), 1000);
    // The first connection may hold its send buffer, so another one has its own.
    let mut one = None;
    for at in 0..20 {
        let ids = w.established();
        w.transfer(1, ids, &pattern(5000, at), 1000);
        (0..2).for_each(|n| w.close(n, ids[n]));
        w.wait(SECOND / 4);
        let free = [0, 1].map(|n| w.free(n));
        assert_eq!(*one.get_or_insert(free), free, "{at}");
        // The peer finds a buffer by the key on the link that carries the message.
        assert_eq!([0, 1].map(|n| w.hosts[n].engine.keys_of_peer(0)), [1, 1], "{at}");
    }
    (0..2).for_each(|n| w.close(n, first[n]));
    w.wait(700 * SECOND);
    assert_eq!(w.hosts.each_ref().map(|host| host.engine.counts()), [[0; 3]; 2]);
    assert_eq!(w.hosts.each_ref().map(|host| host.roce.regions), [0, 0]);
    let spare = [0, 1].map(|n| w.hosts[n].engine.kept(&w.hosts[n].roce) as usize);
    assert_eq!([0, 1].map(|n| w.free(n) + spare[n]), before);
}

/// A key at the other card would have no memory behind it.
fn on_demand_buffer_stays_at_one_card(version: u8) {
    let mut w = world(version, Kind::CardsOnDemand, 65, [2, 2]);
    let ids = w.established();
    w.wait(5 * SECOND);
    assert_eq!(links(&w), [1, 1]);
    w.transfer(0, ids, &pattern(50_000, 1), 5000);
    w.wait(5 * SECOND);
    w.transfer(1, ids, &pattern(50_000, 2), 5000);
    set_up(&mut w, 0, false);
    w.wait(80 * SECOND);
    assert!((0..2).all(|n| w.has_event(n, ids[n], Ready::ABORTED)), "it was the only link");
}

/// The group continues with its one link; the other is added when the card has room.
fn full_card_delays_the_second_link(version: u8) {
    for n in 0..2 {
        netsim::label!(version, n);
        let mut w = world(version, Kind::Cards, 66, [2, 2]);
        // The first card has room for the buffer.
        w.hosts[n].roce.refuse = Some(1);
        let ids = w.established();
        w.wait(SECOND / 2);
        assert_eq!(w.hosts[n].roce.refuse, None, "it tried to register");
        assert_eq!(links(&w), [1, 1]);
        w.transfer(0, ids, &pattern(20_000, 1), 5000);
        assert!(w.run(130 * SECOND, |w| links(w) == [2, 2]));
        set_up(&mut w, 0, false);
        w.transfer(1, ids, &pattern(50_000, 2), 5000);
        w.transfer(0, ids, &pattern(50_000, 3), 5000);
        assert!(w.hosts.iter().all(|host| host.engine.counters().aborted == 0));
    }
}
