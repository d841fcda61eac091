//! Enumeration on model networks: ids, tags and routes as Linux 6.12 gives them (seen with `rio-scan` and `idt_gen2`
//! on the same models), boards that come and go, two hosts, agents.

mod reach;

use drivers::hal::Instant;
use drivers::rapidio::{IdSize, csr};
use models::rapidio::End;
use rapidio::enumeration::{Event, Failed, Kind, Role, State};
use reach::{Lab, Side};
use std::time::Duration;

/// Three end points at a switch.
const STAR: &str = "A=s0.0,B=s0.1,C=s0.5";
/// Two switches in a row.
const ROW: &str = "A=s0.0,s0.4=s1.3,B=s1.2";
/// Eight boards and the host at four switches in a ring, with a link across.
const RING: &str = "A=s0.0,B=s0.1,C=s1.0,D=s1.1,E=s2.0,F=s2.1,G=s3.0,H=s3.1,I=s2.7,s0.4=s1.4,s1.5=s2.4,s2.5=s3.4,\
                    s3.5=s0.5,s0.6=s2.6";

fn host(lab: &Lab, number: usize, id: u16) -> Side {
    Side::new(lab, number, Role::Host(id), IdSize::Small)
}

/// The part of a component tag that Linux has too.
fn number_of(tag: Option<u32>) -> u32 {
    tag.unwrap() & 0x1ffff
}

/// Ids, tags and routes of all devices, for example `B id 0 tag 3` and `s0 tag 2 0>1 1>0`.
fn sheet(lab: &Lab) -> Vec<String> {
    let network = &mut *lab.network();
    let mut lines = Vec::new();
    for number in 0..network.endpoints() {
        let endpoint = network.endpoint(number);
        let (id, tag) = (endpoint.id(false), number_of(endpoint.read(csr::COMPONENT_TAG)));
        lines.push(format!("{} id {id} tag {tag}", (b'A' + number as u8) as char));
    }
    for number in 0..lab.switches {
        let switch = network.switch(number);
        let routes = switch.routes().into_iter().filter(|(id, _)| *id < 0xff);
        let routes: Vec<String> = routes.map(|(id, port)| format!("{id}>{port}")).collect();
        lines.push(format!(
            "s{number} tag {} {}",
            number_of(Some(switch.peek(csr::COMPONENT_TAG))),
            routes.join(" ")
        ));
    }
    lines
}

fn locks_are_free(lab: &Lab) -> bool {
    let network = &mut *lab.network();
    let endpoints = (0..network.endpoints())
        .all(|number| network.endpoint(number).read(csr::HOST_LOCK) == Some(csr::LOCK_FREE));
    endpoints && (0..lab.switches).all(|n| network.switch(n).peek(csr::HOST_LOCK) == csr::LOCK_FREE)
}

#[test]
fn a_switch_with_three_end_points_is_as_linux_leaves_it() {
    let lab = Lab::new(STAR);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    assert_eq!(
        sheet(&lab),
        ["A id 1 tag 1", "B id 0 tag 3", "C id 2 tag 4", "s0 tag 2 0>1 1>0 2>5"]
    );
    assert!(locks_are_free(&lab));
    let network = &mut *lab.network();
    for board in [1, 2] {
        let control = network.endpoint(board).read(0x13c).unwrap();
        assert_eq!(control, csr::CONTROL_DISCOVERED | csr::CONTROL_MASTER);
    }
    let switch = network.switch(0);
    assert_eq!(switch.peek(0x1028), 1 << 16, "port-writes go to the host");
    let closed: Vec<usize> = (0..18).filter(|port| switch.is_locked_out(*port)).collect();
    assert_eq!(closed.len(), 15, "ports without a link are closed");
}

#[test]
fn two_switches_in_a_row_are_as_linux_leaves_them() {
    let lab = Lab::new(ROW);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    assert_eq!(sheet(&lab)[2..], ["s0 tag 2 0>4 1>0", "s1 tag 3 0>2 1>3"]);
}

#[test]
fn a_direct_link_needs_no_switch() {
    let lab = Lab::new("A=B");
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    assert_eq!(sheet(&lab), ["A id 1 tag 1", "B id 0 tag 2"]);
    assert!(a.master.network().end_point(0).unwrap().has_messages());
    assert!(a.requests() <= 24, "Linux asks 24 times: {}", a.requests());
}

#[test]
fn eight_boards_in_a_ring_reach_each_other() {
    let lab = Lab::new(RING);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    assert_eq!(a.master.network().end_points().count(), 8);
    assert!(locks_are_free(&lab));
    // Seen with rio-scan and idt_gen2 of Linux 6.12.117 on this very network (`models-server tsi721`).
    assert_eq!(
        sheet(&lab),
        [
            "A id 1 tag 1",
            "B id 0 tag 3",
            "C id 2 tag 5",
            "D id 3 tag 6",
            "E id 4 tag 8",
            "F id 5 tag 9",
            "G id 6 tag 11",
            "H id 7 tag 12",
            "I id 8 tag 13",
            "s0 tag 2 0>1 1>0 2>4 3>4 4>4 5>4 6>4 7>4 8>4",
            "s1 tag 4 0>4 1>4 2>0 3>1 4>5 5>5 6>5 7>5 8>5",
            "s2 tag 7 0>4 1>4 2>4 3>4 4>0 5>1 6>5 7>5 8>7",
            "s3 tag 10 0>4 1>4 2>4 3>4 4>4 5>4 6>0 7>1 8>4",
        ]
    );
    let closed = |n| (0..18).filter(|port| lab.network().switch(n).is_locked_out(*port)).count();
    assert_eq!([0, 1, 2, 3].map(closed), [13, 14, 12, 14]);
    assert!(a.requests() <= 1743, "Linux asks 1743 times: {}", a.requests());
    let ids: Vec<u16> = (0..9).map(|n| lab.network().endpoint(n).id(false)).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..9).collect::<Vec<_>>(), "the lowest, each once");
    for from in 1..9 {
        for (to, &id) in ids.iter().enumerate().skip(1).filter(|(to, _)| *to != from) {
            let tag = lab.network().maintain(from, false, id, 0xff, csr::COMPONENT_TAG, None);
            let wanted = lab.network().endpoint(to).read(csr::COMPONENT_TAG);
            assert_eq!(tag, wanted, "{from} to {to}");
        }
    }
    // Links that close a loop are recorded at both ends.
    let joined: usize = a
        .master
        .network()
        .devices
        .iter()
        .map(|device| match &device.kind {
            Kind::Switch { neighbours, .. } => neighbours.iter().flatten().count(),
            Kind::EndPoint => 0,
        })
        .sum();
    // Each switch but the first is found through one port; the two links that close loops are seen from both ends.
    assert_eq!(joined, 8 + 3 + 2 * 2);
}

#[test]
fn switches_of_the_third_generation_are_routed_by_their_own_table() {
    let lab = Lab::new("A=r0.0,B=r0.7,r0.20=r1.3,C=r1.2");
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    assert_eq!(sheet(&lab)[3..], ["s0 tag 2 0>7 1>0 2>20", "s1 tag 4 0>3 1>3 2>2"]);
    lab.network().cut(End::Endpoint(1), true);
    a.settle();
    assert_eq!(a.master.network().end_points().count(), 1, "a port-write reported it");
}

#[test]
fn large_ids_are_assigned_and_routed() {
    let lab = Lab::new(ROW);
    let mut a = Side::new(&lab, 0, Role::Host(0x0300), IdSize::Large);
    a.until(State::Ready);
    assert_eq!(lab.network().endpoint(1).id(true), 0);
    assert_eq!(lab.network().endpoint(0).id(true), 0x0300);
    let tag = lab.network().maintain(1, true, 0x0300, 0xff, csr::COMPONENT_TAG, None);
    assert_eq!(number_of(tag), 1);
    assert_eq!(lab.network().switch(0).peek(0x1028), 0x0300_8000);
    let mut b = Side::agent_at(&lab, 1, IdSize::Large);
    b.until(State::Ready);
    assert_eq!(b.master.network().own_id, 0);
}

#[test]
fn agent_waits_for_the_host_and_discovers_its_network() {
    let lab = Lab::new(RING);
    let mut e = Side::agent_at(&lab, 4, IdSize::Small);
    e.rounds(100);
    assert_eq!(e.master.state(), State::Waiting);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    e.until(State::Ready);
    let mut found: Vec<u16> = e.master.network().end_points().map(|device| device.id).collect();
    found.push(e.master.network().own_id);
    found.sort_unstable();
    assert_eq!(found, (0..9).collect::<Vec<_>>());
    assert!(locks_are_free(&lab), "the agent has released the switches");
    assert_eq!(e.events(), [Event::Changed]);
}

#[test]
fn lower_of_two_hosts_retreats_and_becomes_an_agent() {
    let lab = Lab::new("A=s0.0,B=s0.1,C=s0.2,D=s0.3");
    let mut a = host(&lab, 0, 1);
    let mut b = host(&lab, 1, 9);
    for _ in 0..20_000 {
        a.round();
        b.round();
    }
    assert_eq!((a.master.role(), b.master.role()), (Role::Agent, Role::Host(9)));
    assert_eq!((a.master.state(), b.master.state()), (State::Ready, State::Ready));
    assert!(a.events().contains(&Event::Retreated));
    assert!(locks_are_free(&lab));
    assert_eq!(b.master.network().end_points().count(), 3);
    assert_eq!(a.master.network().end_points().count(), 3);
    let ids: Vec<u16> = (0..4).map(|n| lab.network().endpoint(n).id(false)).collect();
    assert_eq!(ids, [1, 9, 0, 2]);
}

#[test]
fn a_host_that_comes_later_takes_the_network_or_leaves_it_alone() {
    const NETWORK: &str = "A=s0.0,B=s0.1,C=s1.0,D=s1.3,s0.5=s1.5";
    for (first, second) in [(0, 1), (1, 0), (0, 3), (3, 0)] {
        let lab = Lab::new(NETWORK);
        let id = |board: usize| if board == 0 { 2 } else { 9 };
        let mut one = host(&lab, first, id(first));
        one.until(State::Ready);
        one.settle();
        let before = sheet(&lab);
        let mut other = host(&lab, second, id(second));
        for _ in 0..300_000 {
            one.round();
            other.round();
        }
        let (high, low) = if first == 0 { (other, one) } else { (one, other) };
        let sheet_now = format!("{first} {second}: {:#?}", sheet(&lab));
        assert_eq!((low.master.role(), high.master.role()), (Role::Agent, Role::Host(9)));
        assert_eq!((low.master.state(), high.master.state()), (State::Ready, State::Ready));
        assert_eq!(
            (high.master.network().own_id, high.master.network().end_points().count()),
            (9, 3)
        );
        assert_eq!(low.master.network().end_points().count(), 3, "{sheet_now}");
        assert!(locks_are_free(&lab), "{sheet_now}");
        if first != 0 {
            // The first host has only noticed that a board was enumerated again.
            assert_eq!(sheet(&lab), before);
        }
        let ids: Vec<u16> = (0..4).map(|n| lab.network().endpoint(n).id(false)).collect();
        for from in 0..4 {
            for (to, &id) in ids.iter().enumerate().filter(|(to, _)| *to != from) {
                let tag = lab.network().maintain(from, false, id, 0xff, csr::COMPONENT_TAG, None);
                let wanted = lab.network().endpoint(to).read(csr::COMPONENT_TAG);
                assert_eq!(tag, wanted, "{from} to {to}, {sheet_now}");
            }
        }
    }
}

#[test]
fn restarted_host_keeps_the_ids_of_boards() {
    let lab = Lab::new("A=s0.0,B=s0.1,C=s0.2,D=s0.3");
    host(&lab, 0, 1).until(State::Ready);
    let ids = |lab: &Lab| [0, 1, 2, 3].map(|n| lab.network().endpoint(n).id(false));
    let first = ids(&lab);
    // One board has an id that the walk would not assign.
    lab.network().maintain(0, false, first[2], 0xff, csr::BASE_ID, Some(40 << 16));
    let before = ids(&lab);
    assert_eq!(before[2], 40);
    host(&lab, 0, 1).until(State::Ready);
    assert_eq!(ids(&lab), before);
    for from in 0..4 {
        for (to, &id) in before.iter().enumerate().filter(|(to, _)| *to != from) {
            let tag = lab.network().maintain(from, false, id, 0xff, csr::COMPONENT_TAG, None);
            let wanted = lab.network().endpoint(to).read(csr::COMPONENT_TAG);
            assert_eq!(tag, wanted, "{from} to {to}");
        }
    }
    // Of two boards with the same id only one keeps it.
    lab.network().maintain(0, false, before[3], 0xff, csr::BASE_ID, Some(40 << 16));
    host(&lab, 0, 1).until(State::Ready);
    let mut now = ids(&lab).to_vec();
    now.sort_unstable();
    now.dedup();
    assert_eq!(now.len(), 4);
}

#[test]
fn boards_are_pulled_and_put_back_fifty_times_and_keep_their_ids() {
    let lab = Lab::new(RING);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    let before = sheet(&lab);
    for n in 0..50 {
        let board = 1 + n * 5 % 8;
        lab.network().power(board, false);
        a.settle();
        assert_eq!(a.master.network().end_points().count(), 7, "{n}: {board} has gone");
        lab.network().power(board, true);
        a.settle();
        assert_eq!(a.master.network().end_points().count(), 8, "{n}: {board} is back");
        assert_eq!(sheet(&lab), before, "{n}");
    }
    assert!(locks_are_free(&lab));
}

#[test]
fn a_new_board_and_a_new_switch_are_enumerated_without_disturbing_others() {
    let lab = Lab::new("A=s0.0,B=s0.1,C=s1.0,D=s1.1");
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    let before = sheet(&lab);
    assert_eq!(before[3], "D id 255 tag 0");
    lab.network().join(End::Switch(0, 5), End::Switch(1, 7));
    a.settle();
    let after = sheet(&lab);
    assert_eq!(after[..2], before[..2]);
    assert_eq!(after[2..4], ["C id 2 tag 5", "D id 3 tag 6"]);
    assert_eq!(after[4..], ["s0 tag 2 0>1 1>0 2>5 3>5", "s1 tag 4 0>7 1>7 2>0 3>1"]);
    let tag = lab.network().maintain(1, false, 3, 0xff, csr::COMPONENT_TAG, None);
    assert_eq!(number_of(tag), 6, "B reaches D");
    // The link to it goes down, and comes back.
    lab.network().cut(End::Switch(0, 5), true);
    a.settle();
    assert_eq!(a.master.network().end_points().count(), 1);
    lab.network().cut(End::Switch(0, 5), false);
    a.settle();
    assert_eq!(a.master.network().end_points().count(), 3);
    assert_eq!(sheet(&lab)[2..4], ["C id 2 tag 5", "D id 3 tag 6"]);
}

#[test]
fn changes_are_found_without_port_writes() {
    let lab = Lab::new(STAR);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    a.drops_port_writes = true;
    lab.network().power(2, false);
    a.settle();
    assert_eq!(a.master.network().end_points().count(), 1);
}

#[test]
fn ports_are_checked_a_few_at_a_time() {
    // 18 ports, and 72.
    for (network, ports, boards) in [(STAR, 18, 2), (RING, 72, 8)] {
        let lab = Lab::new(network);
        let mut a = host(&lab, 0, 1);
        a.until(State::Ready);
        a.drops_port_writes = true;
        let mut most = 0;
        for _ in 0..20 {
            let before = a.requests();
            a.pass(Duration::from_secs(2));
            most = most.max(a.requests() - before);
        }
        assert!((16..=32).contains(&most), "{most} requests for {ports} ports");
        // The bound that docs/rapidio.md states.
        let all = Duration::from_secs(2 * (u64::div_ceil(ports, 16) + 1));
        for board in 1..=boards {
            for (power, count) in [(false, boards - 1), (true, boards)] {
                lab.network().power(board, power);
                a.pass(all);
                assert_eq!(a.master.network().end_points().count(), count, "{board}");
            }
        }
        assert!(locks_are_free(&lab));
    }
}

#[test]
fn lost_link_loses_the_network_until_it_comes_back() {
    let lab = Lab::new(STAR);
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    a.events();
    lab.network().cut(End::Endpoint(0), true);
    a.settle();
    assert_eq!((a.master.state(), a.events()), (State::NoLink, vec![Event::Lost]));
    assert_eq!(a.master.network().end_points().count(), 0);
    lab.network().cut(End::Endpoint(0), false);
    a.until(State::Ready);
    assert_eq!(a.master.network().end_points().count(), 2);
}

#[test]
fn walk_survives_a_lost_link_at_any_step() {
    for after in 1..400 {
        let lab = Lab::new(ROW);
        let mut a = host(&lab, 0, 1);
        a.rounds(after);
        lab.network().cut(End::Endpoint(0), true);
        a.rounds(10);
        lab.network().cut(End::Endpoint(0), false);
        a.until(State::Ready);
        assert_eq!(a.master.network().end_points().count(), 1, "{after}");
        assert_eq!(sheet(&lab)[2..], ["s0 tag 2 0>4 1>0", "s1 tag 3 0>2 1>3"], "{after}");
    }
}

#[test]
fn stuck_lock_is_reported_and_tried_again() {
    let lab = Lab::new("A=s0.0,B=s0.1");
    lab.network().switch(0).write(csr::HOST_LOCK, 0);
    let mut a = host(&lab, 0, 1);
    a.pass(Duration::from_secs(60));
    assert_eq!(a.master.state(), State::Failed(Failed::StuckLock(0)));
    assert_eq!(a.events(), [Event::Failed(Failed::StuckLock(0))]);
    lab.network().switch(0).write(csr::HOST_LOCK, 0);
    a.pass(Duration::from_secs(3));
    assert_eq!(a.master.state(), State::Ready);
}

#[test]
fn hostile_registers_cause_no_panic_and_no_endless_walk() {
    // A circular list of blocks, a switch with 255 ports, a board that poses as a switch.
    let cases: [&[(u32, u32)]; 5] = [
        &[(0x100, 0x0100_0008)],
        &[(0x10, 0x1000_0008), (0x14, 0xff00)],
        &[(0x10, 0x1000_0000), (0x14, 0)],
        &[(0x18, 0), (0x1c, 0)],
        &[(0x6c, 1), (0x68, 5)],
    ];
    for registers in cases {
        let lab = Lab::new(STAR);
        for (offset, value) in registers {
            lab.network().endpoint(1).force(*offset, *value);
        }
        let mut a = host(&lab, 0, 1);
        a.pass(Duration::from_secs(30));
        let known = a.master.network().devices.len();
        assert!(known <= 3, "{registers:x?}: {known}");
    }
    // Noise: any answer may be changed at random.
    for seed in 1..200 {
        let lab = Lab::new(RING);
        let mut a = host(&lab, 0, 1);
        a.noise = Some(seed);
        a.rounds(20_000);
        assert!(a.master.network().devices.len() <= 256);
        let _ = a.master.deadline().map(Instant::as_nanos);
    }
}

#[test]
fn the_network_is_shown_as_a_tree() {
    let lab = Lab::new("A=s0.0,B=s0.1,s0.4=s1.3,C=s1.2,s0.5=s1.9");
    let mut a = host(&lab, 0, 1);
    a.until(State::Ready);
    let network = a.master.network();
    let line = |row: &rapidio::enumeration::Row| {
        let device = &network.devices[row.device];
        let what = if device.is_switch() { "switch".into() } else { format!("id {}", device.id) };
        let port = row.port.map_or(String::new(), |port| format!("{port}: "));
        let again = if row.is_loop { ", again" } else { "" };
        format!("{}{port}{what}{again}", "  ".repeat(row.depth))
    };
    let lines: Vec<String> = network.tree().iter().map(line).collect();
    assert_eq!(
        lines,
        [
            "switch",
            "  1: id 0",
            "  4: switch",
            "    2: id 2",
            "    9: switch, again",
            "  5: switch, again"
        ]
    );
}
