//! Handshakes that are lost, slow or hostile; and what a link does between two attempts.

use super::*;
use crate::wire::riocm::{Header, Packet, Part};

/// RLNH's message in a packet of RIOCM, if it has one.
fn control(bytes: &[u8]) -> Option<String> {
    let (Packet { header, .. }, payload) = Packet::parse(bytes).ok()?;
    let Header::Data { part: Part::Single(message), .. } = header else { return None };
    let body = payload.get(..message.size as usize)?;
    (message.destination == 0).then(|| Message::parse(body).unwrap().to_string())
}

/// Lets two nodes talk, each message given to `filter`, which says whether it arrives.
fn run(pair: &mut Pair, millis: u64, mut filter: impl FnMut(usize, &[u8]) -> bool) {
    for _ in 0..millis {
        for _ in 0..10 {
            for side in 0..2 {
                let [a, b] = &mut pair.machines;
                let (from, to) = if side == 0 { (a, b) } else { (b, a) };
                let mut bytes = [0; 4096];
                while let Some(packet) = from.node.poll_transmit(from.now) {
                    let length = packet.write(&mut bytes);
                    if filter(side, &bytes[..length]) {
                        to.node.receive(0, side as u16 + 1, &bytes[..length], to.now);
                    }
                }
                from.events();
                to.events();
            }
        }
        pair.machines.iter_mut().for_each(|it| it.now = it.now + Duration::from_millis(1));
    }
}

/// LINX for Linux 2.5.1 drops what follows our INIT until its RIOCM delivers.
#[test]
fn what_follows_init_is_held_back_for_30_ms_over_riocm() {
    let mut pair = Pair::new();
    let client = pair.machines[0].open("client");
    pair.machines[0].hunt(client, "server");
    pair.machines[1].open("server");
    let (mut time, mut inits, mut others) = (0, [0; 2], [Vec::new(), Vec::new()]);
    for _ in 0..600 {
        time += 1;
        run(&mut pair, 1, |side, bytes| {
            match control(bytes) {
                Some(text) if text.starts_with("INIT version") => inits[side] = time,
                Some(text) => others[side].push((time, text)),
                None => (),
            }
            true
        });
    }
    assert_eq!(pair.machines[0].take_log(), ["link Up", "found server"]);
    for side in 0..2 {
        let (first, text) = &others[side][0];
        assert!(text.starts_with("INIT_REPLY"), "{others:?}");
        let held = first - inits[1 - side];
        assert!((30..33).contains(&held), "{held} ms");
    }
}

/// Whichever packet with one of RLNH's first messages is lost: the link comes up within seconds.
#[test]
fn a_lost_init_or_init_reply_begins_anew() {
    for lost in ["INIT version", "INIT_REPLY"] {
        for loser in 0..2 {
            let mut pair = Pair::new();
            let mut is_lost = false;
            run(&mut pair, 15_000, |side, bytes| {
                let it = control(bytes).is_some_and(|text| text.starts_with(lost));
                let loses = it && side == loser && !core::mem::replace(&mut is_lost, true);
                !loses
            });
            assert!(is_lost);
            for machine in &mut pair.machines {
                assert_eq!(machine.phase(), Phase::Up, "{lost} of {loser}");
                machine.take_log();
            }
            let client = pair.machines[0].open("client");
            pair.machines[1].open("server");
            pair.machines[0].hunt(client, "server");
            run(&mut pair, 100, |_, _| true);
            assert_eq!(pair.machines[0].take_log(), ["found server"], "{lost} of {loser}");
        }
    }
}

/// A stock node whose INIT_REPLY from us was lost waits for ever, with its RIOCM connected and its heartbeats going.
#[test]
fn a_peer_over_riocm_that_says_nothing_after_the_handshake_is_asked_once() {
    let mut pair = Pair::up();
    let mut asked = Vec::new();
    run(&mut pair, 20_000, |_, bytes| {
        asked.extend(control(bytes));
        true
    });
    // The first that asks is answered, and the other has heard of it by that.
    assert_eq!(asked, ["PUBLISH 1 isthmus-is-it-up", "UNPUBLISH 1", "UNPUBLISH_ACK 1"]);
    assert!(pair.machines.iter_mut().all(|it| it.take_log().is_empty() && it.phase() == Phase::Up));
    assert_eq!(pair.machines[0].node.link(pair.machines[0].links[0]).unwrap().addresses, (0, 0));
    // One whose data do not arrive, though its heartbeats do.
    let mut pair = Pair::up();
    run(&mut pair, 20_000, |side, bytes| side == 0 || control(bytes).is_none());
    let machine = &mut pair.machines[0];
    assert_eq!(machine.take_log()[..1], ["link Down"]);
    let status = machine.node.link(machine.links[0]).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Handshake)));
}

#[test]
fn a_silent_handshake_ends_in_3_seconds_over_tcp() {
    let mut it = Against::new(|_| ());
    it.said();
    let start = it.machine.now;
    while it.machine.phase() != Phase::Down {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.show(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        it.machine.events();
        assert!(it.machine.now.since(start) < Duration::from_secs(4));
    }
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Handshake)));
    // Nothing comes over TCP without a question: one is not asked.
    it.connect();
    it.begin();
    for _ in 0..200 {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.show(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        assert!(it.said().iter().all(|line| line == "PONG"));
    }
    assert_eq!(it.machine.phase(), Phase::Up);
}

/// Attempts of a link whose peer ends it at once, in a minute.
fn attempts(it: &mut Against, end: impl Fn(&mut Against)) -> Vec<u64> {
    let start = it.machine.now;
    let mut times = Vec::new();
    while it.machine.now.since(start) < Duration::from_secs(60) {
        match it.machine.node.next_stream_order() {
            Some((_, StreamOrder::Open(stream))) => {
                times.push(it.machine.now.since(start).as_millis() as u64);
                assert!(times.len() < 1000, "it does not pause");
                it.stream = stream;
                it.machine.node.stream_opened(it.link, stream, it.machine.now);
                let conn = crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Connect, 0, 0, 0);
                it.show(&conn.emit());
                it.said();
                end(it);
            }
            Some(_) => (),
            None => {
                it.machine.now = it.machine.now + Duration::from_millis(10);
                it.machine.node.poll(it.machine.now);
                it.machine.events();
            }
        }
    }
    times
}

#[test]
fn a_link_that_ends_at_once_begins_anew_after_pauses_that_double() {
    let mut it = Against::new(|_| ());
    it.said();
    it.tell(Message::Unpublish { address: 1 });
    let times = attempts(&mut it, |it| it.tell(Message::Unpublish { address: 1 }));
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((8..=12).contains(&times.len()), "{times:?}");
    for (n, pause) in pauses.iter().enumerate() {
        let least = (200 << n).min(10_000);
        assert!((least..=least * 5 / 4 + 20).contains(pause), "{pauses:?}");
    }
    // An operator does not wait.
    let (link, now) = (it.link, it.machine.now);
    it.machine.node.restart_link(link, now);
    it.connect();
    assert_eq!(it.machine.now, now);
    it.begin();
    for _ in 0..110 {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.show(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        it.said();
    }
    // Nor does a link that was up for a while.
    let (stream, now) = (it.stream, it.machine.now);
    it.machine.node.stream_closed(link, stream, now);
    assert_eq!(it.machine.phase(), Phase::Down);
    assert!(matches!(it.machine.node.next_stream_order(), Some((_, StreamOrder::Open(_)))));
}

/// CONN_RESETs of a peer that does not want us are no reason to ask more often.
#[test]
fn a_link_over_riocm_that_is_reset_again_and_again_backs_off() {
    let mut pair = Pair::new();
    let mut connects = 0;
    let reset = |machine: &mut Machine| {
        let link = machine.links[0];
        let now = machine.now;
        machine.node.restart_link(link, now);
    };
    for _ in 0..60_000 {
        run(&mut pair, 1, |_, _| true);
        if pair.machines[1].phase() != Phase::Down {
            connects += 1;
            reset(&mut pair.machines[1]);
        }
    }
    assert!((6..40).contains(&connects), "{connects} attempts in a minute");
}
