//! RIOCM against the peer in Python.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use linx::riocm::{ConnectionConfig, Fragmentation, State};
use linx::wire::riocm::{Ends, Header, LONGEST, Packet, Part};
use linx_tests::pattern;
use linx_tests::peer::directory;
use linx_tests::session::{OURS, PEER_CID, PEERS, Session, config};
use netsim::Rng;

use crate::snapshot;

/// The fields of a packet, with their names in the peer's vectors.
fn fields(packet: &Packet, payload: &[u8]) -> (&'static str, BTreeMap<&'static str, u64>) {
    let Ends { to_port, sender, from_port } = packet.ends;
    let mut fields = BTreeMap::from([
        ("dst_port", to_port.into()),
        ("sender", sender.into()),
        ("src_port", from_port.into()),
    ]);
    let mut add = |name, value: u64| {
        fields.insert(name, value);
    };
    let kind = match packet.header {
        Header::Request { generation, mtu, heartbeat } => {
            add("generation", generation.into());
            add("mtu", mtu.into());
            add("hb", heartbeat.into());
            "CONN_REQ"
        }
        Header::Ack { generation, mtu, acknowledged, heartbeat, cid } => {
            add("generation", generation.into());
            add("mtu", mtu.into());
            add("generation_ack", acknowledged.into());
            add("hb", heartbeat.into());
            add("my_cid", cid.into());
            "CONN_ACK"
        }
        Header::Reset { generation } => {
            add("generation", generation.into());
            "CONN_RESET"
        }
        Header::Heartbeat { cid } => {
            add("dst_cid", cid.into());
            "HEARTBEAT"
        }
        Header::Data { id, sequence, cid, part } => {
            add("msgid", id.into());
            add("seqno", sequence.into());
            add("dst_cid", cid.into());
            let (kind, message) = match part {
                Part::Single(message) => ("SINGLE", Some(message)),
                Part::Start(message) => ("FRAG_START", Some(message)),
                Part::Fragment => ("FRAG", None),
                Part::PatchStart { message, fragments, patches } => {
                    add("count_frag", fragments.into());
                    add("count_patch", patches.into());
                    ("PATCH_START", Some(message))
                }
                Part::Patch => ("PATCH", None),
            };
            if let Some(message) = message {
                add("src", message.source.into());
                add("dst", message.destination.into());
                add("size", message.size.into());
            }
            kind
        }
    };
    let number = payload.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    if !payload.is_empty() {
        add("payload", number);
    }
    (kind, fields)
}

/// The peer's vectors, which were written by hand.
#[test]
fn vectors_are_parsed_and_emitted() -> Result<()> {
    let text = std::fs::read_to_string(directory().join("vectors.txt"))?;
    let mut kinds = 0;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (names, hex) = line.split_once('|').context("the line has no bar")?;
        let hex: String = hex.split_whitespace().collect();
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16))
            .collect::<Result<_, _>>()?;
        let (packet, payload) = Packet::parse(&bytes).context("the vector is not a packet")?;
        let mut words = names.split_whitespace();
        let kind = words.next().context("the line has no kind")?;
        let expected: BTreeMap<&str, u64> = words
            .map(|word| {
                let (name, value) = word.split_once('=').context("name=value")?;
                let radix = if name == "payload" { 16 } else { 10 };
                Ok((name, u64::from_str_radix(value, radix)?))
            })
            .collect::<Result<_>>()?;
        assert_eq!(fields(&packet, payload), (kind, expected));
        let mut header = [0; LONGEST];
        let length = packet.emit(payload.len(), &mut header);
        assert_eq!([&header[..length], payload].concat(), bytes);
        kinds += 1;
    }
    ensure!(kinds == 9, "{kinds} kinds");
    Ok(())
}

/// The connection comes up, whichever side is first, with any MTU and heartbeat of either side.
#[test]
fn connection_comes_up_from_either_side() -> Result<()> {
    for (ours, heartbeat, mtu, peers_heartbeat) in
        [(0, 0, 4096, 5), (1000, 3, 4096, 20), (0, 10, 512, 2), (72, 0, 65, 0)]
    {
        for first in 0..3 {
            let config = ConnectionConfig { mtu: ours, heartbeat, ..config() };
            let mut session = Session::new(&config, mtu, peers_heartbeat)?;
            if first != 1 {
                session.riocm.connect(session.id);
            }
            if first == 0 {
                session.run(900)?;
            }
            session.order(&format!("connect {PEER_CID}"))?;
            session.run(900)?;
            if first == 1 {
                session.riocm.connect(session.id);
            }
            session.run(900)?;
            let mut log = session.take_log();
            log.sort();
            assert_eq!(log, ["ours connected", "peer connected"]);
            let status = session.status();
            let ours = if ours == 0 { 4096 } else { ours };
            let heartbeat = if heartbeat == 0 { 5 } else { heartbeat };
            assert_eq!(status.agreed.mtu, ours.min(mtu));
            assert_eq!(status.agreed.heartbeat, heartbeat.max(peers_heartbeat));
            assert_eq!(status.cids.1, PEER_CID);
            session.run(10_000)?;
            assert!(session.take_log().is_empty(), "heartbeats keep the connection up");
        }
    }
    Ok(())
}

/// Any of the first six CONN packets are lost.
#[test]
fn connection_comes_up_despite_lost_conn_packets() -> Result<()> {
    let mut session = Session::new(&config(), 4096, 5)?;
    for lost in 0u32..64 {
        session.riocm.connect(session.id);
        session.order(&format!("connect {PEER_CID}"))?;
        let mut count = 0;
        session.network = Box::new(move |_, frame| {
            count += 1;
            let is_conn = frame.bytes[4] & 0x80 != 0;
            if is_conn && count <= 6 && lost >> (count - 1) & 1 != 0 { vec![] } else { vec![frame] }
        });
        let mut turns = 0;
        while !(session.state() == State::Connected && both_connected(&mut session)?) {
            session.run(100)?;
            // One end may be connected alone. A CONN_REQ then ends its connection, and it must connect again.
            for line in session.take_log() {
                if line.starts_with("ours disconnected") {
                    session.riocm.connect(session.id);
                } else if line.starts_with("peer disconnected") {
                    session.order(&format!("connect {PEER_CID}"))?;
                }
            }
            turns += 1;
            ensure!(turns < 100, "lost {lost:06b}");
        }
        session.network = Box::new(|_, frame| vec![frame]);
        session.riocm.disconnect(&mut session.pool, session.id);
        session.run(20)?;
        session.take_log();
        assert_eq!(session.state(), State::Disconnected);
    }
    Ok(())
}

fn both_connected(session: &mut Session) -> Result<bool> {
    let state = session.peer.order(&format!("state {PEER_CID}"))?;
    Ok(state == ["CONNECTED"])
}

/// Sizes at packet boundaries, and some random ones.
fn sizes(mtu: u16, rng: &mut Rng) -> Vec<usize> {
    let mtu = usize::from(mtu);
    let mut sizes = vec![0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33];
    for edge in [mtu - 28, mtu, 2 * mtu - 44, 2 * mtu, 3 * mtu - 60, 3 * mtu, 4 * mtu] {
        sizes.extend((edge - 3..edge + 30).step_by(3));
    }
    sizes.extend((0..20).map(|_| rng.within(0..20_000) as usize));
    sizes.push(65536);
    sizes
}

/// All sizes, in both directions, with both fragmentations.
#[test]
fn messages_of_all_sizes_arrive() -> Result<()> {
    for (n, how) in [Fragmentation::Simple, Fragmentation::Patch].into_iter().enumerate() {
        for mtu in [80, 256, 1000, 4096] {
            let config = ConnectionConfig { fragmentation: how, ..config() };
            let mut session = Session::connected(&config, mtu, 5)?;
            for (seed, size) in sizes(mtu, &mut Rng::new(mtu.into())).into_iter().enumerate() {
                session.send(size, seed)?;
                session.order(&format!("send {PEER_CID} 6 5 {size} {seed} {n}"))?;
                session.turn()?;
                let summary = pattern::summary(&pattern::bytes(seed, size));
                let mut log = session.take_log();
                log.sort();
                let expected =
                    [format!("ours deliver 6 5 {summary}"), format!("peer deliver 3 4 {summary}")];
                assert_eq!(log, expected, "{how:?} mtu {mtu} size {size}");
            }
            let status = session.status();
            assert_eq!((status.counters.faults, status.counters.num_connects), (0, 1));
        }
    }
    Ok(())
}

/// Packets arrive in any order within 64.
#[test]
fn reordered_packets_are_delivered_in_order() -> Result<()> {
    for (n, how) in [Fragmentation::Simple, Fragmentation::Patch].into_iter().enumerate() {
        let config = ConnectionConfig { fragmentation: how, ..config() };
        let mut session = Session::connected(&config, 100, 5)?;
        let mut rng = Rng::new(n as u64);
        let mut held: [Vec<linx_tests::peer::Frame>; 2] = Default::default();
        session.network = Box::new(move |to_peer, frame| {
            let held = &mut held[usize::from(to_peer)];
            // Sixteen packets are held and released in any order, so none is early by more than 16 for long.
            held.push(frame);
            if held.len() < 16 {
                return vec![];
            }
            let mut out: Vec<_> = held.drain(..).collect();
            for n in 0..out.len() {
                out.swap(n, rng.within(0..16) as usize);
            }
            out
        });
        let mut expected = Vec::new();
        for seed in 0..60 {
            let size = seed * 29;
            session.send(size, seed)?;
            session.order(&format!("send {PEER_CID} 6 5 {size} {seed} {n}"))?;
            let summary = pattern::summary(&pattern::bytes(seed, size));
            expected.push(summary);
        }
        // Later packets release the held ones.
        let mut log = Vec::new();
        for filler in 0.. {
            session.turn()?;
            log.extend(session.take_log());
            let done = |side: &str| log.iter().filter(|line| line.starts_with(side)).count() >= 60;
            if done("ours") && done("peer") {
                break;
            }
            ensure!(filler < 100, "{how:?}: {log:?}");
            session.send(0, 0)?;
            session.order(&format!("send {PEER_CID} 6 5 0 0 0"))?;
        }
        for side in ["ours deliver 6 5 ", "peer deliver 3 4 "] {
            let came: Vec<&str> = log.iter().filter_map(|line| line.strip_prefix(side)).collect();
            assert_eq!(came[..60], expected[..], "{how:?}");
        }
        assert!(session.status().counters.reordered > 100);
    }
    Ok(())
}

/// A packet that is early by 64 ends the connection at both ends.
#[test]
fn packet_beyond_the_window_ends_the_connection() -> Result<()> {
    for to_peer in [false, true] {
        let mut session = Session::connected(&config(), 4096, 5)?;
        let mut is_lost = false;
        session.network = Box::new(move |direction, frame| {
            let is_data = frame.bytes[4] == 1;
            if direction == to_peer && is_data && !std::mem::replace(&mut is_lost, true) {
                vec![]
            } else {
                vec![frame]
            }
        });
        for n in 0..65 {
            let before = session.take_log();
            assert!(before.is_empty(), "{n}: {before:?}");
            if to_peer {
                session.send(1, 1)?
            } else {
                session.order(&format!("send {PEER_CID} 6 5 1 1 0"))?
            }
            session.turn()?;
        }
        session.turn()?;
        let mut log = session.take_log();
        log.sort();
        let expected = if to_peer {
            ["ours disconnected Reset 0", "peer disconnected reorder queue exhausted"]
        } else {
            ["ours disconnected Fault(Beyond) 0", "peer disconnected reset"]
        };
        assert_eq!(log, expected);
        session.network = Box::new(|_, frame| vec![frame]);
        session.connect()?;
    }
    Ok(())
}

/// Every byte of every header is wrong in turn: the engine drops the packet or ends the connection, and continues to
/// work.
#[test]
fn wrong_headers_are_dropped_or_end_the_connection() -> Result<()> {
    let mut session = Session::connected(&ConnectionConfig { mtu: 256, ..config() }, 256, 5)?;
    let cid = session.id.cid();
    let ends = format!("dst_port={} sender={} src_port={}", OURS.1, PEERS.0, PEERS.1);
    let kinds = [
        ("CONN_REQ", "generation=1 mtu=256 hb=5".to_string(), 16),
        ("CONN_ACK", "generation=1 mtu=256 hb=5 generation_ack=1 my_cid=9".to_string(), 18),
        ("CONN_RESET", "generation=1".into(), 16),
        ("HEARTBEAT", format!("dst_cid={cid}"), 16),
        ("SINGLE", format!("dst_cid={cid} src=6 dst=5 size=8 payload=0102030405060708"), 28),
        (
            "FRAG_START",
            format!("dst_cid={cid} src=6 dst=5 size=500 payload={}", "07".repeat(228)),
            28,
        ),
        ("FRAG", format!("dst_cid={cid} payload={}", "07".repeat(240)), 16),
        (
            "PATCH_START",
            format!(
                "dst_cid={cid} src=6 dst=5 size=500 count_frag=1 count_patch=1 payload={}",
                "07".repeat(224)
            ),
            32,
        ),
        ("PATCH", format!("dst_cid={cid} payload={}", "07".repeat(60)), 16),
    ];
    let mut outcomes = [0; 2];
    for (kind, rest, length) in kinds {
        for at in 0..length {
            for value in [0u8, 0xff] {
                session.network = Box::new(move |to_peer, mut frame| {
                    if !to_peer {
                        frame.bytes[at] = value;
                    }
                    vec![frame]
                });
                session.frame(&format!("{kind} {ends} {rest}"))?;
                session.network = Box::new(|_, frame| vec![frame]);
                if session.state() == State::Connected {
                    outcomes[0] += 1;
                    session.riocm.disconnect(&mut session.pool, session.id);
                } else {
                    outcomes[1] += 1;
                }
                // The peer may not have noticed the end. It takes a CONN_REQ as notice.
                session.turn()?;
                session.order(&format!("disconnect {PEER_CID}"))?;
                session.turn()?;
                session.take_log();
                session.connect()?;
                session.send(300, at)?;
                session.order(&format!("send {PEER_CID} 6 5 300 {at} 0"))?;
                session.turn()?;
                let summary = pattern::summary(&pattern::bytes(at, 300));
                let mut log = session.take_log();
                log.sort();
                let whole =
                    [format!("ours deliver 6 5 {summary}"), format!("peer deliver 3 4 {summary}")];
                assert_eq!(log, whole, "{kind} byte {at} = {value}");
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 30), "{outcomes:?}");
    Ok(())
}

/// The peer restarts within 30 ms, and assigns the connection id that the engine uses to another board's connection.
#[test]
fn restart_of_the_peer_is_detected() -> Result<()> {
    let mut session = Session::connected(&config(), 4096, 5)?;
    session.send(100, 1)?;
    session.order("reboot")?;
    let ((id, port), (our_id, our_port)) = (PEERS, OURS);
    let other = PEER_CID + 1;
    session.order(&format!("create {id} {port} 771 5 1 4096 5 {PEER_CID}"))?;
    session.order(&format!("create {id} {port} {our_id} {our_port} 1 4096 5 {other}"))?;
    session.order(&format!("connect {PEER_CID}"))?;
    session.order(&format!("connect {other}"))?;
    session.now += 20;
    // Messages of the peer to the other board are dropped.
    session.network =
        Box::new(
            |to_peer, frame| {
                if to_peer || frame.destination == OURS.0 { vec![frame] } else { vec![] }
            },
        );
    session.run(10)?;
    assert_eq!(session.take_log(), ["peer stale SINGLE"]);
    session.run(500)?;
    assert_eq!(session.take_log(), ["ours disconnected Restarted 0"]);
    session.riocm.connect(session.id);
    session.run(900)?;
    let mut log = session.take_log();
    log.sort();
    assert_eq!(log, ["ours connected", "peer connected"]);
    assert_eq!(session.status().cids.1, other);
    session.send(100, 2)?;
    session.turn()?;
    let summary = pattern::summary(&pattern::bytes(2, 100));
    assert_eq!(session.take_log(), [format!("peer deliver 3 4 {summary}")]);
    Ok(())
}

/// A peer with connection id 0, which is the first id of LINX for Linux.
#[test]
fn connection_id_0_of_the_peer_is_accepted() -> Result<()> {
    let mut session = Session::new(&config(), 4096, 5)?;
    session.order("reboot")?;
    let ((id, port), (our_id, our_port)) = (PEERS, OURS);
    session.order(&format!("create {id} {port} {our_id} {our_port} 1 4096 5 0"))?;
    session.order("connect 0")?;
    session.riocm.connect(session.id);
    session.run(900)?;
    session.take_log();
    session.send(5, 5)?;
    session.run(2000)?;
    let summary = pattern::summary(&pattern::bytes(5, 5));
    assert_eq!(session.take_log(), [format!("peer deliver 3 4 {summary}")]);
    Ok(())
}

/// Silence of either side.
#[test]
fn silence_ends_the_connection() -> Result<()> {
    for deaf in [false, true] {
        let mut session =
            Session::connected(&ConnectionConfig { heartbeat: 7, ..config() }, 4096, 5)?;
        session.network =
            Box::new(move |to_peer, frame| if to_peer == deaf { vec![] } else { vec![frame] });
        let start = session.now;
        while session.log.len() < 2 {
            session.run(10)?;
            ensure!(session.now - start < 4000, "{:?}", session.log);
        }
        let took = session.now - start;
        assert!((1300..=2500).contains(&took), "{took} ms with heartbeats of 700 ms");
        let mut log = session.take_log();
        log.sort();
        let expected = if deaf {
            ["ours disconnected Reset 0", "peer disconnected silent"]
        } else {
            ["ours disconnected Silent 0", "peer disconnected reset"]
        };
        assert_eq!(log, expected);
    }
    Ok(())
}

/// Each event in each state, caused by packets of the peer: the engine's answer, and its next state.
#[test]
fn every_event_in_every_state_matches_the_table() -> Result<()> {
    let mut session = Session::new(&ConnectionConfig { mtu: 256, ..config() }, 256, 5)?;
    let ends = format!("dst_port={} sender={} src_port={}", OURS.1, PEERS.0, PEERS.1);
    let cid = session.id.cid();
    let mut text = String::new();
    for state in [State::Disconnected, State::Connecting, State::Connected] {
        for event in [
            "connect",
            "disconnect",
            "CONN_REQ",
            "CONN_REQ small mtu",
            "CONN_ACK right",
            "CONN_ACK wrong",
            "CONN_RESET",
            "HEARTBEAT",
            "SINGLE",
            "FRAG",
            "port gone",
            "timer",
            "third timer",
        ] {
            // Reach the state by packets only.
            session.riocm.disconnect(&mut session.pool, session.id);
            outgoing(&mut session)?;
            if state != State::Disconnected {
                session.riocm.connect(session.id);
            }
            while state != State::Disconnected && session.state() == State::Disconnected {
                session.now += 20;
                outgoing(&mut session)?;
            }
            let ack = |session: &Session, wrong: u8| {
                let generation = session.status().generations.0 ^ wrong;
                format!(
                    "CONN_ACK {ends} generation=200 mtu=256 hb=5 generation_ack={generation} my_cid=9"
                )
            };
            if state == State::Connected {
                let right = ack(&session, 0);
                session.frame(&right)?;
            }
            outgoing(&mut session)?;
            session.take_log();
            assert_eq!(session.state(), state);
            match event {
                "connect" => drop(session.riocm.connect(session.id)),
                "disconnect" => session.riocm.disconnect(&mut session.pool, session.id),
                "CONN_REQ" => {
                    session.frame(&format!("CONN_REQ {ends} generation=7 mtu=200 hb=9"))?
                }
                "CONN_REQ small mtu" => {
                    session.frame(&format!("CONN_REQ {ends} generation=7 mtu=64 hb=9"))?;
                }
                "CONN_ACK right" => {
                    let right = ack(&session, 0);
                    session.frame(&right)?;
                }
                "CONN_ACK wrong" => {
                    let wrong = ack(&session, 1);
                    session.frame(&wrong)?;
                }
                "SINGLE" => {
                    let rest = format!("dst_cid={cid} src=6 dst=5 size=1 payload=07");
                    session.frame(&format!("SINGLE {ends} {rest}"))?;
                }
                "FRAG" => session.frame(&format!("FRAG {ends} dst_cid={cid} payload=07"))?,
                "HEARTBEAT" => session.frame(&format!("HEARTBEAT {ends} dst_cid={cid}"))?,
                "CONN_RESET" => session.frame(&format!("CONN_RESET {ends} generation=200"))?,
                "port gone" => session.riocm.remove_port(&mut session.pool, 0),
                _ => {
                    // Timers expire while the peer is silent.
                    let timers = if event == "timer" { 1 } else { 3 };
                    for n in 0..timers {
                        let at = session.riocm.deadline().context("no timer runs")?;
                        session.now = at.as_nanos() / 1_000_000 + 1;
                        if n + 1 < timers {
                            outgoing(&mut session)?;
                        }
                    }
                }
            }
            let mut effects: Vec<String> = outgoing(&mut session)?;
            effects.extend(session.take_log());
            let effects = if effects.is_empty() { "nothing".into() } else { effects.join(", ") };
            writeln!(text, "{state:?} + {event} -> {:?}: {effects}", session.state())?;
            if event == "port gone" {
                session.riocm.add_port("rio0", OURS.0, 4096)?;
            }
        }
    }
    snapshot::check("machine.txt", &text);
    Ok(())
}

/// Kinds of packets that the engine sends now. The peer does not receive them.
fn outgoing(session: &mut Session) -> Result<Vec<String>> {
    let kinds = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let sink = kinds.clone();
    session.network = Box::new(move |to_peer, frame| {
        if to_peer {
            let (packet, payload) = Packet::parse(&frame.bytes).expect("a sent packet is valid");
            let (kind, fields) = fields(&packet, &payload[..0]);
            let summary = ["mtu", "hb"]
                .iter()
                .filter_map(|name| Some(format!(" {name}={}", fields.get(name)?)));
            sink.borrow_mut().push(format!("{kind}{}", summary.collect::<String>()));
        }
        vec![]
    });
    session.turn()?;
    session.network = Box::new(|_, frame| vec![frame]);
    Ok(kinds.take())
}
