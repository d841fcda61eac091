//! Tests of peers registered by rendezvous, and of an MPI rank towards one.

use super::*;
use crate::gateway::rendezvous::exchange::Answer;
use usnic::ob1::header::{Envelope, Header, LONGEST};
use usnic::wire::rendezvous::{ANY_NAME, Kind, LENGTH, Record};

/// An appliance without configured peers that knows the peer's MAC address.
fn lab(more: &str) -> Lab {
    let mut lab = Lab::new(&format!("rendezvous = 7004\n{more}"));
    let mut config = lab.config.clone();
    config.usnic[0].peer.clear();
    lab.plane.udp_engines.configure(&config, lab.now);
    lab
}

fn request() -> Record {
    Record {
        kind: Kind::Request,
        layout: usnic::wire::header::Layout::V4,
        sender: 1 << 32 | 1,
        receiver: ANY_NAME,
        modex: Some(peer_interface(400).modex()),
    }
}

impl Lab {
    /// A host sends a record over a connection. Returns the reply.
    fn request(&mut self, connection: u64, from: Ipv4Addr, record: &[u8; LENGTH]) -> Answer {
        let exchange = self.plane.udp_engines.exchange().unwrap();
        let answer = exchange.handle_request(connection, (0, 7004), from.into(), record, self.now);
        self.plane.udp_engines.peers_changed();
        self.plane.udp_engines.next_hops.learn_wanted(PEER_MAC, self.now);
        answer
    }

    fn closed(&mut self) -> Vec<u64> {
        self.plane.udp_engines.exchange().unwrap().take_closed()
    }

    fn end(&mut self, connection: u64) {
        self.plane.udp_engines.exchange().unwrap().connection_ended(connection, self.now);
    }

    /// Starts a new peer engine with the parameters of a reply.
    fn begin(&mut self, answer: &Answer) {
        let record = Record::parse(answer.bytes.first_chunk().unwrap()).unwrap();
        assert_eq!((record.kind, answer.stays), (Kind::Taken, true));
        self.peer = peer_engine(400);
        let ours = record.modex.unwrap();
        let config = EndpointConfig::new(0, 1 << 32 | 1, record.sender, ours);
        self.endpoint = self.peer.add_endpoint(&config, self.now).unwrap();
    }
}

/// Returns code and text of a refusal.
fn refused(answer: &Answer) -> (u8, String) {
    let (record, text) = answer.bytes.split_first_chunk::<LENGTH>().unwrap();
    let Kind::Refused(code, length) = Record::parse(record).unwrap().kind else {
        panic!("accepted");
    };
    assert_eq!((usize::from(length), answer.stays), (text.len(), false));
    (code, String::from_utf8(text.to_vec()).unwrap())
}

#[test]
fn registered_peer_lives_as_long_as_its_connection() {
    let mut lab = lab("services = [\"echo\"]");
    lab.send(1, b"not registered");
    lab.run(Duration::from_millis(5));
    assert_eq!(lab.came(), []);
    for connection in 1..3 {
        let answer = lab.request(connection, PEER, &request().emit());
        lab.begin(&answer);
        lab.send(1, b"hello");
        lab.run(Duration::from_millis(5));
        assert_eq!(lab.came(), [(1, b"hello".to_vec())]);
        let report = lab.report();
        assert_eq!(value(&report, "modex_from"), "rendezvous", "{report}");
        assert_eq!(value(&report, "messages"), "1");
    }
    // The second registration came while the first connection was open: that closes now.
    assert_eq!(lab.closed(), [1]);
    lab.end(1);
    assert_eq!(value(&lab.report(), "state"), "open");
    lab.end(2);
    assert_eq!(value(&lab.report(), "state"), "");
}

#[test]
fn one_host_cannot_register_all_peers() {
    let mut lab = lab("services = [\"echo\"]");
    let record = |number: u16| {
        let mut record = request();
        let (data_port, priority_port) = (2000 + 2 * number, 2001 + 2 * number);
        record.modex = record.modex.map(|modex| Modex { data_port, priority_port, ..modex });
        record.emit()
    };
    for number in 0..48 {
        assert!(lab.request(number.into(), PEER, &record(number)).stays, "{number}");
    }
    let (code, text) = refused(&lab.request(48, PEER, &record(48)));
    assert!(code == 4 && text.contains("has registered 48 of 64 peers"), "{code} {text}");
    let other = Ipv4Addr::new(10, 9, 0, 51);
    assert!(lab.request(49, other, &record(49)).stays);
    // One peer of the first host ends: there is a place for another.
    lab.end(7);
    assert!(lab.request(50, PEER, &record(50)).stays);
}

#[test]
fn peers_registered_by_others_and_unfit_records() {
    let mut lab = lab("services = [\"echo\"]\nhosts = [\"10.9.0.0/24\"]");
    let launcher = Ipv4Addr::new(10, 9, 0, 50);
    let answer = lab.request(1, launcher, &request().emit());
    lab.begin(&answer);
    // Only the peer itself may replace the registration.
    let (code, text) = refused(&lab.request(2, Ipv4Addr::new(10, 9, 0, 51), &request().emit()));
    assert!(code == 3 && text.contains("10.9.0.50 has registered a peer"), "{code} {text}");
    let answer = lab.request(3, PEER, &request().emit());
    lab.begin(&answer);
    let other = |change: fn(&mut Record)| {
        let mut record = request();
        change(&mut record);
        record.emit()
    };
    let cases: [(Ipv4Addr, [u8; LENGTH], u8, &str); 5] = [
        (Ipv4Addr::new(10, 9, 1, 2), request().emit(), 2, "10.9.1.2 is in none"),
        (PEER, [0; LENGTH], 1, "not a record"),
        (PEER, other(|record| record.kind = Kind::Taken), 1, "a reply"),
        (
            PEER,
            other(|record| record.modex.as_mut().unwrap().max_message = 9036),
            3,
            "the same MTU",
        ),
        (
            PEER,
            other(|record| record.modex.as_mut().unwrap().address = Ipv4Addr::new(10, 9, 1, 3)),
            2,
            "10.9.1.3 is in none",
        ),
    ];
    for (from, record, code, text) in cases {
        let refusal = refused(&lab.request(9, from, &record));
        assert!(refusal.0 == code && refusal.1.contains(text), "{refusal:?}");
    }
    let mut refusals = 0;
    lab.plane.udp_engines.take_refusals(|all| refusals += std::iter::from_fn(|| all.pop()).count());
    assert_eq!(refusals, 6);
}

#[test]
fn appliance_is_queried_again_until_it_replies() {
    let mut lab = Lab::new("services = [\"echo\"]");
    let mut config = lab.config.clone();
    let peer = &mut config.usnic[0].peer[0];
    peer.modex = None;
    peer.rendezvous = Some("10.9.0.2:7004".parse().unwrap());
    lab.plane.udp_engines.configure(&config, lab.now);
    let to = "10.9.0.2:7004".parse().unwrap();
    let mut pause = 0;
    for connection in 1..4 {
        let exchange = lab.plane.udp_engines.exchange().unwrap();
        assert_eq!(exchange.next_peer(connection, lab.now), Some((0, to)));
        assert_eq!(exchange.next_peer(99, lab.now), None, "already queried");
        exchange.connection_ended(connection, lab.now);
        assert_eq!(exchange.next_peer(99, lab.now), None);
        let later = exchange.deadline().unwrap();
        assert!(later.nanos_since(lab.now) > pause);
        pause = later.nanos_since(lab.now);
        lab.now = later;
    }
    let exchange = lab.plane.udp_engines.exchange().unwrap();
    exchange.next_peer(5, lab.now).unwrap();
    let sent = Record::parse(&exchange.request(5).unwrap()).unwrap();
    assert_eq!((sent.kind, sent.sender, sent.receiver), (Kind::Request, 1 << 32, 1 << 32 | 1));
    let answer = Record {
        kind: Kind::Taken,
        sender: sent.receiver,
        receiver: sent.sender,
        modex: Some(peer_interface(777).modex()),
        ..sent
    };
    let elsewhere = peer_interface(777).modex();
    let elsewhere = usnic::wire::modex::Modex { address: OURS, ..elsewhere };
    let wrong = [
        Record { modex: Some(elsewhere), ..answer },
        Record { sender: 5, ..answer },
        Record { kind: Kind::Request, ..answer },
    ];
    for wrong in wrong {
        assert!(!exchange.handle_reply(5, &wrong.emit(), b"", lab.now));
    }
    let full = Record { kind: Kind::Refused(4, 4), modex: None, ..answer };
    assert!(!exchange.handle_reply(5, &full.emit(), b"full", lab.now));
    assert!(value(&lab.report(), "state").contains("it refuses us (code 4): full"));
    let exchange = lab.plane.udp_engines.exchange().unwrap();
    assert!(exchange.handle_reply(5, &answer.emit(), b"", lab.now));
    let report = lab.report();
    assert_eq!(value(&report, "state"), "open");
    assert!(report.contains("8002"), "{report}");
    // After a reset it is queried again.
    lab.order(UsnicVerb::Reset, &["a"]).unwrap();
    assert_eq!(lab.closed(), [5]);
    let exchange = lab.plane.udp_engines.exchange().unwrap();
    assert!(exchange.take_changed() && exchange.next_peer(6, lab.now).is_some());
}

#[test]
fn long_mpi_message_is_mirrored_in_fragments() {
    let mut lab = Lab::new("services = [\"mpi-mirror\"]");
    let envelope = Envelope { communicator: 0, source: 1, tag: 5, sequence: 1 };
    let write = |header: Header, data: &[u8]| [&header.emit()[..header.length()], data].concat();
    let read = |(tag, bytes): &(u8, Vec<u8>)| {
        Header::parse(*tag, &bytes[..bytes.len().min(LONGEST)]).unwrap()
    };
    lab.send(65, &write(Header::Match(envelope), b"short"));
    let data = message(400_000);
    let begins = Header::Rendezvous { envelope, length: 400_000, request: 0xabc };
    lab.send(66, &write(begins, &data[..500]));
    lab.run(Duration::from_millis(20));
    let came = lab.came();
    let ours = Envelope { source: 0, ..envelope };
    assert_eq!(came[0], (65, write(Header::Match(ours), b"short")));
    let Header::Ack { sender: 0xabc, receiver, offset: 500, size: 0 } = read(&came[1]) else {
        panic!("{came:?}");
    };
    let cut = |at: usize| &data[at..data.len().min(at + 150_000)];
    for at in (500..400_000).step_by(150_000) {
        let header = Header::Fragment { offset: at as u64, sender: 0xabc, receiver };
        lab.send(70, &write(header, cut(at)));
    }
    lab.run(Duration::from_millis(60));
    let came = lab.came();
    let Header::Rendezvous { envelope: back, length: 400_000, request } = read(&came[0]) else {
        panic!("{} came", came.len());
    };
    assert_eq!((back, came[0].1[32..] == data[..500], came.len()), (ours, true, 1));
    let ack = Header::Ack { sender: request, receiver: 0xdef, offset: 500, size: 0 };
    lab.send(68, &write(ack, b""));
    lab.run(Duration::from_millis(60));
    let mut all = data[..500].to_vec();
    for one in lab.came() {
        let Header::Fragment { offset, receiver: 0xdef, .. } = read(&one) else { panic!() };
        assert_eq!(offset as usize, all.len());
        all.extend(&one.1[32..]);
    }
    assert!(all == data);
    lab.send(70, &write(Header::Fragment { offset: 0, sender: 1, receiver: 2 }, b"unknown"));
    lab.run(Duration::from_millis(600));
    let report = lab.report();
    assert_eq!((value(&report, "mpi_eager"), value(&report, "mpi_rendezvous")), ("1", "1"));
    assert_eq!((value(&report, "mpi_refused"), value(&report, "mpi_under_way")), ("1", "0"));
    let fresh = Lab::new("services = [\"mpi-mirror\"]").report();
    assert_eq!(value(&report, "memory_free"), value(&fresh, "memory_free"));
}
