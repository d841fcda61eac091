//! The engine in place of one side of recordings of LINX for Linux (`data/original`, "the original"). The other side's
//! packets are replayed, and the engine's packets are compared with the recorded ones.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use drivers::hal::Instant;
use linx::riocm::ConnectionConfig;
use linx::wire::riocm::{Ends, Header, LONGEST, Message, Packet, Part};
use linx::wire::{rlnh, tcp};
use linx::{
    Config, Event, LinkConfig, LinkId, Node, Origin, PeerId, Phase, Sender, StreamOrder, TcpConfig,
    Transport,
};
use linx_tests::recording::Side::{self, A, B};
use linx_tests::recording::{ENDS, names, read};
use linx_tests::session::memory;

/// Describes a packet in the form of the recordings.
fn describe(packet: &Packet, payload: &[u8]) -> String {
    let message = |text: &mut String, message: &Message| {
        let Message { source, destination, size } = *message;
        let _ = write!(text, " {source} > {destination} size {size}");
    };
    let mut text = String::new();
    match packet.header {
        Header::Request { generation, mtu, heartbeat } => {
            let _ =
                write!(text, "CONN_REQ generation {generation} mtu {mtu} heartbeat {heartbeat}");
        }
        Header::Ack { generation, mtu, acknowledged, heartbeat, cid } => {
            let _ = write!(
                text,
                "CONN_ACK generation {generation} ack {acknowledged} mtu {mtu} heartbeat {heartbeat} cid {cid}"
            );
        }
        Header::Reset { generation } => {
            let _ = write!(text, "CONN_RESET generation {generation}");
        }
        Header::Heartbeat { cid } => {
            let _ = write!(text, "HEARTBEAT cid {cid}");
        }
        Header::Data { id, sequence, cid, part } => {
            let (kind, of) = match &part {
                Part::Single(of) => ("SINGLE", Some(of)),
                Part::Start(of) => ("FRAG_START", Some(of)),
                Part::Fragment => ("FRAG", None),
                Part::PatchStart { message, .. } => ("PATCH_START", Some(message)),
                Part::Patch => ("PATCH", None),
            };
            let _ = write!(text, "{kind} cid {cid} seq {sequence} id {id}");
            if let Some(of) = of {
                message(&mut text, of);
            }
            if let Part::Single(Message { destination: 0, size, .. }) = part
                && let Some(body) = payload.get(..size as usize)
            {
                text += &format!(" {}", control(body));
            }
        }
    }
    text
}

/// Describes an RLNH message in the form of the recordings.
fn control(body: &[u8]) -> String {
    match rlnh::Message::parse(body) {
        Ok(rlnh::Message::QueryName { hunter, name }) => {
            format!("QUERY_NAME la {hunter} \"{}\"", name.escape_ascii())
        }
        Ok(rlnh::Message::Publish { address, name }) => {
            format!("PUBLISH la {address} \"{}\"", name.escape_ascii())
        }
        Ok(rlnh::Message::Unpublish { address }) => format!("UNPUBLISH la {address}"),
        Ok(rlnh::Message::UnpublishAck { address }) => format!("UNPUBLISH_ACK la {address}"),
        Ok(rlnh::Message::PublishPeer { address, peer }) => {
            format!("PUBLISH_PEER la {address} for {peer}")
        }
        Ok(rlnh::Message::Init { version }) => format!("INIT version {version}"),
        Ok(rlnh::Message::InitReply { status, features }) => {
            let features = features.escape_ascii();
            format!("INIT_REPLY status {status} features \"{features}\" ({} bytes)", body.len())
        }
        Err(_) => format!("?{}", body.get(3).copied().unwrap_or_default()),
    }
}

/// The engine parses every recorded packet with its recorded meaning, and emits the recorded bytes.
#[test]
fn packets_of_the_original_are_parsed_and_emitted() -> Result<()> {
    let (mut packets, mut messages) = (0, 0);
    for name in names()? {
        for line in read(&name)? {
            let context = || format!("{name}: {}", line.text);
            let bytes = line.bytes.whole();
            if line.stream.is_empty() {
                let (packet, payload) = Packet::parse(&bytes).with_context(context)?;
                let text = describe(&packet, payload);
                ensure!(line.text.starts_with(&text), "{}: parsed as {text}", context());
                let mut header = [0; LONGEST];
                let length = packet.emit(payload.len(), &mut header);
                // The size in the first four bytes does not include padding, and is not compared.
                assert_eq!(header[4..length], bytes[4..length], "{}", context());
                packets += 1;
            } else if let Some((header, body)) = bytes.split_first_chunk() {
                let read = tcp::Header::parse(header).ok().with_context(context)?;
                assert_eq!(
                    (read.emit(), read.size as usize),
                    (*header, body.len()),
                    "{}",
                    context()
                );
                let kind = line.text.split(' ').next();
                let expected = match read.kind {
                    tcp::Kind::Connect => "CONN",
                    tcp::Kind::Data => "UDATA",
                    tcp::Kind::Ping => "PING",
                    tcp::Kind::Pong => "PONG",
                };
                assert_eq!(kind, Some(expected), "{}", context());
                if read.kind == tcp::Kind::Data && read.destination == 0 {
                    ensure!(line.text.ends_with(&control(body)), "{}", context());
                }
                messages += 1;
            }
        }
    }
    ensure!(packets > 500 && messages > 25, "{packets} packets, {messages} over TCP");
    Ok(())
}

/// A replay with the engine in place of a side.
struct Replay {
    node: Node,
    link: LinkId,
    us: Side,
    /// Connection ids of the recorded side and of the engine.
    cid: (u16, u16),
    generation: (u8, u8),
    now: Instant,
    /// Packets that the engine has sent.
    sent: Vec<Vec<u8>>,
    log: Vec<String>,
    found: Option<PeerId>,
}

impl Replay {
    fn new(us: Side, mtu: u16, seed: u64, version: u32) -> Result<Replay> {
        let (our, their) = (ENDS[us as usize], ENDS[1 - us as usize]);
        let mut node = Node::new(Config { links: 1, ..Config::default() }, memory(4 << 20), seed);
        let now = Instant::ZERO + Duration::from_secs(100);
        node.add_port("rio0", our.0, 4096)?;
        let connection =
            ConnectionConfig { mtu, ..ConnectionConfig::new("rio0", their.0, 2, (our.1, their.1)) };
        let mut config = LinkConfig::new("peer", Transport::Riocm(connection));
        (config.version, config.max_peer_addresses) = (version, 1024);
        let link = node.add_link(&config, now)?;
        let riocm =
            node.link(link).and_then(|it| it.riocm).context("the link has no connection")?;
        let (cid, generation) = ((0, riocm.cids.0), (1, riocm.generations.0));
        let (sent, log) = (Vec::new(), Vec::new());
        Ok(Replay { node, link, us, cid, generation, now, sent, log, found: None })
    }

    /// Replaces connection id and generation of the recorded side by the engine's, in a packet of the other side.
    fn translate(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let Some((Packet { header, .. }, _)) = Packet::parse(&bytes).ok() else { return bytes };
        match header {
            Header::Ack { acknowledged, .. } => {
                bytes[10] =
                    self.generation.1.wrapping_add(acknowledged.wrapping_sub(self.generation.0));
            }
            Header::Data { cid, .. } | Header::Heartbeat { cid } if cid == self.cid.0 => {
                bytes[10..12].copy_from_slice(&self.cid.1.to_be_bytes());
            }
            _ => (),
        }
        bytes
    }

    fn receive(&mut self, bytes: &[u8]) {
        let bytes = self.translate(bytes);
        let from = u16::from_be_bytes([bytes[12], bytes[13]]);
        self.node.receive(0, from, &bytes, self.now);
        self.turn();
    }

    fn wait(&mut self, until: Instant) {
        while self.now < until {
            self.now = (self.now + Duration::from_micros(500)).min(until);
            self.turn();
        }
    }

    fn turn(&mut self) {
        loop {
            let mut any = false;
            while let Some(packet) = self.node.poll_transmit(self.now) {
                let mut bytes = vec![0; packet.len()];
                packet.write(&mut bytes);
                self.sent.push(bytes);
                any = true;
            }
            while let Some(event) = self.node.next_event(self.now) {
                any = true;
                self.handle_event(event);
            }
            if !any {
                return;
            }
        }
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Link(id) => {
                let up = self.node.link(id).is_some_and(|it| it.phase == Phase::Up);
                self.log.push(if up { "up".into() } else { "down".into() });
            }
            Event::Found { peer, .. } => self.found = Some(peer),
            Event::Gone(_) => self.log.push("gone".into()),
            Event::Signals(endpoint) => {
                while let Some(signal) = self.node.next_signal(endpoint) {
                    let mut body = vec![0; signal.len()];
                    self.node.read(&signal, 0, &mut body);
                    self.log.push(format!("signal {} size {}", signal.number, body.len()));
                    if let Origin::Peer(to) = signal.from {
                        let from = Sender::Endpoint(endpoint);
                        // Too early for an echo: the link is up, and the INIT_REPLY is delayed.
                        let _ = self.node.send(from, to, signal.number, &body, self.now);
                    }
                    self.node.release(signal);
                }
            }
            _ => (),
        }
    }

    /// Brings up the link with a peer whose connection id is `cid`, and replays the peer's data packets before
    /// `sequence` in `file`.
    fn begin(&mut self, cid: u16, file: &str, sequence: u16) -> Result<()> {
        let (our, their) = (ENDS[self.us as usize], ENDS[1 - self.us as usize]);
        let ends = Ends { to_port: our.1, sender: their.0, from_port: their.1 };
        let emit = |header: Header| {
            let mut bytes = [0; LONGEST];
            let length = Packet { ends, header }.emit(0, &mut bytes);
            bytes[..length].to_vec()
        };
        let request = emit(Header::Request { generation: 9, mtu: 4096, heartbeat: 5 });
        self.receive(&request);
        let agreed =
            self.node.link(self.link).and_then(|it| it.riocm).context("a connection")?.agreed;
        let ack = emit(Header::Ack {
            generation: 9,
            mtu: agreed.mtu,
            acknowledged: self.generation.0,
            heartbeat: agreed.heartbeat,
            cid,
        });
        self.receive(&ack);
        let us = self.us;
        for line in read(file)?.iter().filter(|line| line.from != Some(us)) {
            if let Ok((Packet { header: Header::Data { sequence: at, .. }, .. }, _)) =
                Packet::parse(&line.bytes.recorded)
                && at < sequence
            {
                self.receive(&line.bytes.recorded);
            }
        }
        self.wait(self.now + Duration::from_millis(50));
        ensure!(self.log.first().is_some_and(|it| it == "up"), "{:?}", self.log);
        self.sent.clear();
        self.log.clear();
        Ok(())
    }

    /// Replays the other side's packets at their times. Calls `act` before each line, with its time in milliseconds.
    fn play(&mut self, file: &str, mut act: impl FnMut(&mut Replay, f64)) -> Result<()> {
        let lines = read(file)?;
        let start = self.now;
        let first = lines[0].at;
        for line in &lines {
            let at = start + Duration::from_micros((line.at - first) as u64);
            self.wait(at);
            act(self, line.at as f64 / 1000.0);
            self.turn();
            if line.from != Some(self.us) && line.stream.is_empty() {
                self.receive(&line.bytes.whole());
            }
        }
        Ok(())
    }

    /// Compares the engine's data packets with the original's. They must be equal in every byte: sequence numbers,
    /// message ids, link addresses, padding, and fragmentation.
    fn compare(&self, file: &str, least: usize) -> Result<()> {
        let is_data = |bytes: &[u8]| bytes.get(4).is_some_and(|kind| (1..=5).contains(kind));
        let lines = read(file)?;
        let mut expected =
            lines.iter().filter(|line| line.from == Some(self.us) && is_data(&line.bytes.recorded));
        let mut count = 0;
        for bytes in self.sent.iter().filter(|bytes| is_data(bytes)) {
            let (packet, payload) = Packet::parse(bytes)?;
            let ours = describe(&packet, payload);
            let Some(line) = expected.next() else { bail!("{file}: besides: {ours}") };
            ensure!(line.bytes.matches(bytes), "{file}: {} was sent as {ours}", line.text);
            count += 1;
        }
        ensure!(
            expected.next().is_none() && count >= least,
            "{file}: {count} packets were compared"
        );
        Ok(())
    }

    fn state(&self) -> Option<Phase> {
        self.node.link(self.link).map(|it| it.phase)
    }
}

/// Files whose first data packets bring a link up and hunt for "server", from side A and from side B.
const START: [&str; 2] = ["rlnh-version-2-with-1.txt", "features.txt"];

fn start(us: Side) -> &'static str {
    match us {
        A => START[1],
        B => START[0],
    }
}

/// The link comes up, whichever side is first, with early packets, and with each version of RLNH.
#[test]
fn links_with_the_original_come_up() -> Result<()> {
    for (file, sides, version) in [
        ("connect-a-first.txt", &[A, B][..], 2),
        ("connect-both.txt", &[A, B], 2),
        ("negotiate.txt", &[A, B], 2),
        ("early-data.txt", &[A], 2),
        ("early-data-251.txt", &[A], 2),
        ("early-reply-lost-251.txt", &[A, B], 2),
        ("rlnh-version-1-with-2.txt", &[A, B], 2),
        ("rlnh-version-1-with-2.txt", &[A], 1),
        ("rlnh-version-2-with-1.txt", &[A, B], 2),
        ("rlnh-version-2-with-1.txt", &[B], 1),
        ("features.txt", &[A], 2),
    ] {
        for &us in sides {
            let mtu = if file == "negotiate.txt" && us == B { 256 } else { 0 };
            let mut it = Replay::new(us, mtu, 1, version)?;
            it.node.open(b"server", it.now)?;
            it.play(file, |_, _| ())?;
            it.wait(it.now + Duration::from_millis(40));
            ensure!(it.state() == Some(Phase::Up), "{file} as {us:?}: {:?}", it.node.link(it.link));
            ensure!(it.log.first().is_some_and(|it| it == "up"), "{file} as {us:?}: {:?}", it.log);
        }
    }
    Ok(())
}

/// Names that are hunted for before they exist, names that close, reused addresses, PUBLISH_PEER.
#[test]
fn names_are_published_like_the_original() -> Result<()> {
    let mut it = Replay::new(B, 0, 1, 2)?;
    it.begin(0, start(B), 2)?;
    let abc = it.node.open(b"abc", it.now)?;
    it.node.open(b"abcd", it.now)?;
    let mut steps = [158.4, 263.2, 414.3, 515.0, 665.6].into_iter().peekable();
    let (mut later, mut step) = (None, 0);
    it.play("names.txt", |it, at| {
        while steps.next_if(|next| *next <= at).is_some() {
            step += 1;
            let now = it.now;
            match step {
                1 | 3 => later = it.node.open(b"later", now).ok(),
                2 => it.node.close(later.expect("the endpoint is open"), now),
                4 => {
                    let from = later.expect("the endpoint is open");
                    // The name is published already, so the engine sends no query.
                    it.node.hunt(from, it.link, b"h3", now).expect("there is room");
                    it.turn();
                    let to = it.found.expect("the name is published");
                    it.node.send(Sender::Endpoint(from), to, 77, b"", now).expect("there is room");
                }
                _ => it.node.close(abc, now),
            }
        }
    })?;
    it.compare("names.txt", 8)?;
    assert_eq!(it.state(), Some(Phase::Up));
    Ok(())
}

/// Messages that RLNH ignores, and the link address that ends the link.
#[test]
fn unusual_rlnh_messages_are_handled_like_the_original() -> Result<()> {
    let mut it = Replay::new(A, 0, 1, 2)?;
    it.begin(7, start(A), 2)?;
    it.node.open(b"server", it.now)?;
    it.play("strange-rlnh.txt", |_, _| ())?;
    it.compare("strange-rlnh.txt", 1)?;
    assert_eq!(it.log, ["down"]);
    let resets = it.sent.iter().filter(|bytes| bytes[4] == 0x83).count();
    assert_eq!(resets, 1);
    Ok(())
}

/// Signals around all packet boundaries, with exact echoes; early packets; wrong ends.
#[test]
fn signals_are_echoed_like_the_original() -> Result<()> {
    for (file, us, mtu, sequence, least) in [
        ("data-mtu-256.txt", B, 256, 4, 12),
        ("data-patched-mtu-256.txt", A, 256, 4, 8),
        ("wrong-ends.txt", A, 0, 4, 2),
    ] {
        let mut it = Replay::new(us, mtu, 1, 2)?;
        it.node.open(b"server", it.now)?;
        it.begin(if us == A { 7 } else { 0 }, start(us), sequence)?;
        it.play(file, |_, _| ())?;
        it.compare(file, least)?;
        assert_eq!(it.state(), Some(Phase::Up), "{file}");
    }
    // A missing packet, and two packets with one sequence number: the original keeps both, and ends the link at the
    // second.
    let mut it = Replay::new(A, 0, 1, 2)?;
    it.node.open(b"server", it.now)?;
    it.begin(7, start(A), 4)?;
    it.play("order.txt", |_, _| ())?;
    it.compare("order.txt", 3)?;
    ensure!(it.log.contains(&"down".into()), "{:?}", it.log);
    Ok(())
}

/// Restarts, resets and unexpected requests: the link goes up and down like the original.
#[test]
fn links_end_like_the_original() -> Result<()> {
    for (file, us, expected) in [
        ("req-in-connected.txt", A, &["up", "down"][..]),
        ("reset-in-each-state.txt", A, &["up", "down"]),
        ("restart.txt", A, &["up", "down", "up"]),
    ] {
        let mut last = Vec::new();
        // The pause before the next CONN_REQ is random, and the recording does not wait for it.
        let found = (1..40).any(|seed| {
            let Ok(mut it) = Replay::new(us, 0, seed, 2) else { return false };
            if it.play(file, |_, _| ()).is_err() {
                return false;
            }
            it.wait(it.now + Duration::from_millis(40));
            last = it.log.iter().filter(|it| *it != "gone").cloned().collect();
            last == expected
        });
        ensure!(found, "{file}: {last:?}");
    }
    Ok(())
}

/// The TCP connection manager of the original, with the stream that B opened.
#[test]
fn tcp_of_the_original_comes_up() -> Result<()> {
    let mut node = Node::new(Config { links: 1, ..Config::default() }, memory(4 << 20), 1);
    let mut now = Instant::ZERO + Duration::from_secs(100);
    let link =
        node.add_link(&LinkConfig::new("peer", Transport::Tcp(TcpConfig::default())), now)?;
    let Some((_, StreamOrder::Open(own))) = node.next_stream_order() else { bail!("no stream") };
    let stream = node.stream_accepted(link, now).context("a link")?;
    node.stream_closed(link, own, now);
    let lines = read("tcp-both-at-once.txt")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for line in lines.iter().filter(|line| line.stream == "tcp3") {
        now = now + Duration::from_millis(1);
        node.poll(now);
        match line.from {
            Some(B) => {
                let taken = node.stream_receive(link, stream, &line.bytes.recorded, now);
                assert_eq!(taken, line.bytes.len());
            }
            _ => theirs.push(line.text.clone()),
        }
        let mut out = [0; 4096];
        let length = node.stream_transmit(link, stream, &mut out, now);
        ours.extend_from_slice(&out[..length]);
    }
    let status = node.link(link).context("a link")?;
    assert_eq!(status.phase, Phase::Up);
    let (mut rest, mut messages) = (&ours[..], Vec::new());
    while let Some((header, behind)) = rest.split_first_chunk() {
        let header = tcp::Header::parse(header).ok().context("the header is malformed")?;
        let (body, behind) = behind.split_at(header.size as usize);
        rest = behind;
        messages.push(match header.kind {
            tcp::Kind::Connect => "CONN".to_string(),
            tcp::Kind::Ping => "PING".into(),
            tcp::Kind::Pong => "PONG".into(),
            tcp::Kind::Data => control(body).split(' ').next().unwrap_or_default().into(),
        });
    }
    let word = |text: &String| {
        let kind = ["CONN", "PING", "PONG", "INIT_REPLY", "INIT"];
        kind.into_iter().find(|kind| text.contains(kind)).unwrap_or_default().to_string()
    };
    let mut expected: Vec<String> = theirs.iter().map(word).collect();
    expected.sort();
    messages.sort();
    assert_eq!(messages, expected);
    Ok(())
}
