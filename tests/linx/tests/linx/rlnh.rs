//! RLNH against the peer in Python, over RIOCM.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drivers::hal::Instant;
use linx::riocm::ConnectionConfig;
use linx::{Config, Event, LinkConfig, LinkId, Node, Origin, PeerId, Phase, Sender, Transport};
use linx_tests::pattern;
use linx_tests::peer::{Frame, Peer};
use linx_tests::session::{OURS, PEER_CID, PEERS, memory};

/// A node and the peer, with one link.
struct Session {
    peer: Peer,
    node: Node,
    link: LinkId,
    now: u64,
    log: Vec<String>,
    found: Vec<PeerId>,
    from: Vec<Origin>,
}

impl Session {
    fn new(version: u32, peers_version: u32) -> Result<Session> {
        let mut peer = Peer::start()?;
        let ((id, port), (our_id, our_port)) = (PEERS, OURS);
        peer.order(&format!("create {id} {port} {our_id} {our_port} 1 1000 5 {PEER_CID}"))?;
        peer.order(&format!("link {PEER_CID} {peers_version}"))?;
        let config = Config { links: 4, ..Config::default() };
        let mut node = Node::new(config, memory(8 << 20), 3);
        node.add_port("rio0", our_id, 4096)?;
        let riocm = ConnectionConfig::new("rio0", id, 2, (our_port, port));
        let config = LinkConfig { version, ..LinkConfig::new("board", Transport::Riocm(riocm)) };
        let link = node.add_link(&config, Instant::ZERO)?;
        let (log, found, from) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Session { peer, node, link, now: 0, log, found, from })
    }

    fn instant(&self) -> Instant {
        Instant::ZERO + Duration::from_millis(self.now)
    }

    fn order(&mut self, order: &str) -> Result<()> {
        let lines = self.peer.order(order)?;
        self.log.extend(lines.into_iter().map(|line| format!("peer {line}")));
        Ok(())
    }

    fn run(&mut self, millis: u64) -> Result<()> {
        let end = self.now + millis;
        while self.now <= end {
            let now = self.instant();
            let mut any = false;
            let mut bytes = [0; 4096];
            while let Some(packet) = self.node.poll_transmit(now) {
                let length = packet.write(&mut bytes).next_multiple_of(8);
                let (destination, mailbox) = (packet.destination, packet.mailbox);
                let bytes = bytes[..length].to_vec();
                self.peer.receive(&Frame { source: OURS.0, destination, mailbox, bytes })?;
                any = true;
            }
            self.order(&format!("at {}", self.now))?;
            for frame in std::mem::take(&mut self.peer.sent) {
                any = true;
                self.node.receive(0, frame.source, &frame.bytes, now);
            }
            self.events();
            if !any {
                self.now += 10;
            }
        }
        Ok(())
    }

    fn events(&mut self) {
        let now = self.instant();
        while let Some(event) = self.node.next_event(now) {
            let text = match event {
                Event::Link(id) => {
                    let phase = self.node.link(id).map(|it| it.phase);
                    if phase == Some(Phase::Up) { "up".into() } else { "down".into() }
                }
                Event::Found { peer, .. } => {
                    self.found.push(peer);
                    let name = self.node.peer_name(peer).unwrap_or_default();
                    format!("found {}", name.escape_ascii())
                }
                Event::Gone(_) => "gone".into(),
                Event::Signals(id) => {
                    while let Some(signal) = self.node.next_signal(id) {
                        let mut bytes = vec![0; signal.len()];
                        self.node.read(&signal, 0, &mut bytes);
                        self.from.push(signal.from);
                        let summary = pattern::summary(&bytes);
                        self.log.push(format!("ours signal {} {summary}", signal.number));
                        self.node.release(signal);
                    }
                    continue;
                }
                other => format!("{other:?}"),
            };
            self.log.push(format!("ours {text}"));
        }
    }

    fn take_log(&mut self) -> Vec<String> {
        let mut log = std::mem::take(&mut self.log);
        log.sort();
        log
    }
}

#[test]
fn names_are_published_and_signals_arrive() -> Result<()> {
    let mut it = Session::new(2, 2)?;
    it.run(1000)?;
    assert_eq!(it.take_log(), ["ours up", "peer up 2"]);
    // The peer hunts for names of the node, before and after they exist. The node hunts for a name of the peer.
    it.order("open board-process")?;
    it.order("hunt board-process gateway")?;
    it.run(20)?;
    let now = it.instant();
    let gateway = it.node.open(b"gateway", now)?;
    it.node.hunt(gateway, it.link, b"board-process", now)?;
    it.node.hunt(gateway, it.link, b"late", now)?;
    it.run(20)?;
    assert_eq!(it.take_log(), ["ours found board-process", "peer published gateway"]);
    it.order("open late")?;
    it.run(20)?;
    assert_eq!(it.take_log(), ["ours found late"]);
    for (n, size) in [0usize, 1, 64, 5000, 60_000].into_iter().enumerate() {
        let body = pattern::bytes(n, size);
        let now = it.instant();
        it.node.send(Sender::Endpoint(gateway), it.found[0], n as u32, &body, now)?;
        it.order(&format!("signal board-process gateway {n} {size} {n}"))?;
        it.run(20)?;
        let summary = pattern::summary(&body);
        let expected = [
            format!("ours signal {n} {summary}"),
            format!("peer signal gateway board-process {n} {summary}"),
        ];
        assert_eq!(it.take_log(), expected);
    }
    assert!(it.from.iter().all(|from| *from == Origin::Peer(it.found[0])));
    // An endpoint of the peer closes, then one of the node.
    it.order("close board-process")?;
    it.run(20)?;
    assert_eq!(it.take_log(), ["ours gone", "peer acked 1"]);
    let now = it.instant();
    it.node.close(gateway, now);
    it.run(20)?;
    assert_eq!(it.take_log(), ["peer unpublished gateway"]);
    let status = it.node.link(it.link).context("the link exists")?;
    assert_eq!(status.addresses, (0, 1));
    Ok(())
}

/// The node forwards a signal of the peer to another endpoint of the peer, and sends PUBLISH_PEER.
#[test]
fn forwarded_signal_sends_publish_peer() -> Result<()> {
    let mut it = Session::new(2, 2)?;
    let relay = it.node.open(b"relay", Instant::ZERO)?;
    it.order("open one")?;
    it.order("open two")?;
    it.order("hunt one relay")?;
    it.node.hunt(relay, it.link, b"two", Instant::ZERO)?;
    it.run(1000)?;
    it.order("signal one relay 5 10 1")?;
    it.run(20)?;
    let Origin::Peer(one) = it.from[0] else { anyhow::bail!("the signal is not from a peer") };
    it.take_log();
    let now = it.instant();
    it.node.send(Sender::Peer(one), it.found[0], 6, b"passed on", now)?;
    it.run(20)?;
    let log = it.take_log();
    ensure!(log.len() == 1 && log[0].starts_with("peer peer 2 "), "{log:?}");
    Ok(())
}

#[test]
fn lower_version_is_used() -> Result<()> {
    for (ours, peers) in [(1, 2), (2, 1), (1, 1)] {
        let mut it = Session::new(ours, peers)?;
        it.run(1000)?;
        assert_eq!(it.take_log(), ["ours up", "peer up 1"]);
        assert_eq!(it.node.link(it.link).context("the link exists")?.version, 1);
        let gateway = it.node.open(b"gateway", it.instant())?;
        it.order("open client")?;
        it.order("hunt client gateway")?;
        it.run(20)?;
        it.order("signal client gateway 1 100 1")?;
        it.run(20)?;
        ensure!(it.from.len() == 1, "{:?}", it.log);
        let _ = gateway;
    }
    Ok(())
}

/// After the link goes down and up, names are found again.
#[test]
fn names_are_found_again_after_a_reconnect() -> Result<()> {
    let mut it = Session::new(2, 2)?;
    let gateway = it.node.open(b"gateway", Instant::ZERO)?;
    it.order("open process")?;
    it.order("hunt process gateway")?;
    it.node.hunt(gateway, it.link, b"process", Instant::ZERO)?;
    it.run(1000)?;
    let up = ["ours found process", "ours up", "peer published gateway", "peer up 2"];
    assert_eq!(it.take_log(), up);
    for _ in 0..20 {
        let now = it.instant();
        it.node.restart_link(it.link, now);
        it.order("hunt process gateway")?;
        it.run(10)?;
        let now = it.instant();
        it.node.hunt(gateway, it.link, b"process", now)?;
        it.run(1500)?;
        let mut expected = Vec::from(["ours down", "ours gone", "peer disconnected reset"]);
        expected.extend(up);
        expected.sort();
        assert_eq!(it.take_log(), expected);
    }
    Ok(())
}
