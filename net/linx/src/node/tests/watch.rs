//! Lost, slow and hostile handshakes, and pauses between attempts.

use super::*;
use crate::wire::riocm::{Header, Packet, Part};

/// RLNH's message in a packet of RIOCM, if it has one.
fn control(bytes: &[u8]) -> Option<String> {
    let (Packet { header, .. }, payload) = Packet::parse(bytes).ok()?;
    let Header::Data { part: Part::Single(message), .. } = header else { return None };
    let body = payload.get(..message.size as usize)?;
    (message.destination == 0).then(|| Message::parse(body).unwrap().to_string())
}

/// Runs two nodes. `filter` gets each message, and returns whether it arrives.
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

/// LINX for Linux 2.5.1 drops messages after our INIT until its RIOCM delivers.
#[test]
fn messages_after_init_are_delayed_by_30_ms_over_riocm() {
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

/// The link comes up within seconds if any one of the handshake's messages is lost.
#[test]
fn lost_init_or_init_reply_restarts_the_handshake() {
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

/// A stock node that has lost our INIT_REPLY waits for ever, while its RIOCM stays connected and sends heartbeats.
#[test]
fn silent_peer_over_riocm_is_probed_once_after_the_handshake() {
    let mut pair = Pair::up();
    let mut probes = Vec::new();
    run(&mut pair, 20_000, |_, bytes| {
        probes.extend(control(bytes));
        true
    });
    // The first probe is answered. It shows the other end that its peer is up.
    assert_eq!(probes, ["PUBLISH 1 isthmus-is-it-up", "UNPUBLISH 1", "UNPUBLISH_ACK 1"]);
    assert!(pair.machines.iter_mut().all(|it| it.take_log().is_empty() && it.phase() == Phase::Up));
    assert_eq!(pair.machines[0].node.link(pair.machines[0].links[0]).unwrap().addresses, (0, 0));
    // A peer whose data is lost, while its heartbeats arrive.
    let mut pair = Pair::up();
    run(&mut pair, 20_000, |side, bytes| side == 0 || control(bytes).is_none());
    let machine = &mut pair.machines[0];
    assert_eq!(machine.take_log()[..1], ["link Down"]);
    let status = machine.node.link(machine.links[0]).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Handshake)));
}

#[test]
fn silent_handshake_over_tcp_ends_after_3_seconds() {
    let mut it = ScriptedPeer::new(|_| ());
    it.sent();
    let start = it.machine.now;
    while it.machine.phase() != Phase::Down {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.receive(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        it.machine.events();
        assert!(it.machine.now.since(start) < Duration::from_secs(4));
    }
    let status = it.machine.node.link(it.link).unwrap();
    assert_eq!(status.why, Some(Down::Fault(riocm::Fault::Handshake)));
    // Over TCP the peer is not probed.
    it.connect();
    it.begin();
    for _ in 0..200 {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.receive(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        assert!(it.sent().iter().all(|line| line == "PONG"));
    }
    assert_eq!(it.machine.phase(), Phase::Up);
}

/// Times of the attempts in a minute of a link whose peer ends it at once.
fn attempts(it: &mut ScriptedPeer, end: impl Fn(&mut ScriptedPeer)) -> Vec<u64> {
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
                it.receive(&conn.emit());
                it.sent();
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
fn failing_link_reconnects_after_doubling_pauses() {
    let mut it = ScriptedPeer::new(|_| ());
    it.sent();
    it.send(Message::Unpublish { address: 1 });
    let times = attempts(&mut it, |it| it.send(Message::Unpublish { address: 1 }));
    let pauses: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((8..=12).contains(&times.len()), "{times:?}");
    for (n, pause) in pauses.iter().enumerate() {
        let least = (200 << n).min(10_000);
        assert!((least..=least * 5 / 4 + 20).contains(pause), "{pauses:?}");
    }
    // An operator's restart skips the pause.
    let (link, now) = (it.link, it.machine.now);
    it.machine.node.restart_link(link, now);
    it.connect();
    assert_eq!(it.machine.now, now);
    it.begin();
    for _ in 0..110 {
        it.machine.now = it.machine.now + Duration::from_millis(100);
        it.receive(&crate::wire::tcp::Header::new(crate::wire::tcp::Kind::Ping, 0, 0, 0).emit());
        it.machine.node.poll(it.machine.now);
        it.sent();
    }
    // A link that was stable reconnects without a pause.
    let (stream, now) = (it.stream, it.machine.now);
    it.machine.node.stream_closed(link, stream, now);
    assert_eq!(it.machine.phase(), Phase::Down);
    assert!(matches!(it.machine.node.next_stream_order(), Some((_, StreamOrder::Open(_)))));
}

/// CONN_RESETs of the peer do not shorten the pauses.
#[test]
fn riocm_link_that_is_reset_repeatedly_backs_off() {
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
