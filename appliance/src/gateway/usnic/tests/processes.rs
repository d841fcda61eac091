//! Tests with a peer of two interfaces, each connected to one of ours.

use super::*;
use messaging::transport::{Event, MessageTransport, Transport, Wanted};
use usnic::{EndpointConfig, InterfaceConfig};

/// The second interface of the peer.
fn second() -> InterfaceConfig {
    InterfaceConfig { priority_port: 8011, data_port: 8012, ping_port: 8013, ..peer_interface(800) }
}

/// Two interfaces of ours: `u` has the peer's second interface as `b`, `v` has the first as `a`. Returns the peer's
/// endpoints in that order.
fn lab(sender: &str, more: &str) -> (Lab, [EndpointId; 2]) {
    let section = format!(
        "{more}\n[[usnic.peer]]\nname = \"b\"\nsender = \"{sender}\"\nmodex = \"{}\"\n[[usnic]]\nname = \"v\"\n\
         address = \"{OURS}\"\ndata_port = 7011\npriority_port = 7012\nping_port = 7013\nisn = 9\n\
         sender = \"1.0\"\n{more}",
        second().modex()
    );
    let mut lab = Lab::new(&section);
    lab.peer.remove(lab.endpoint);
    lab.peer.add_interface(second()).unwrap();
    let theirs = sender.rsplit_once('.').unwrap().1.parse::<u64>().unwrap();
    let endpoints = [(0, 1, theirs), (1, 0, 1)].map(|(usnic, interface, rank)| {
        let isn = if usnic == 0 { 65530 } else { 9 };
        let ours = lab.config.usnic[usnic].interface(&lab.config.net[0], isn).unwrap().modex();
        let config = EndpointConfig::new(interface, 1 << 32 | rank, 1 << 32, ours);
        lab.peer.add_endpoint(&config, lab.now).unwrap()
    });
    lab.endpoint = endpoints[1];
    (lab, endpoints)
}

/// Returns the messages received over an endpoint.
fn came(lab: &mut Lab, endpoint: EndpointId) -> Vec<Vec<u8>> {
    lab.endpoint = endpoint;
    lab.came().into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn echoes_are_striped_over_both_interfaces() {
    let (mut lab, [b, a]) = lab("1.1", "services = [\"echo\"]");
    for number in 0..40u8 {
        let bytes = [&[number][..], &message(3000)].concat();
        lab.peer.send(b, 9, &bytes, lab.now).unwrap();
    }
    lab.run(Duration::from_millis(30));
    let [over_b, over_a] = [b, a].map(|endpoint| came(&mut lab, endpoint));
    assert!(over_a.len() > 5 && over_b.len() > 5, "{} and {}", over_a.len(), over_b.len());
    let mut all = [over_a, over_b].concat();
    all.sort();
    let expected: Vec<_> = (0..40u8).map(|n| [&[n][..], &message(3000)].concat()).collect();
    assert!(all == expected, "each is echoed once");
    let report = lab.report();
    assert!(report.contains("one_process_with"), "{report}");
    assert_eq!(lab.peer.backlog(a), Some((0, 0)));
    // One of the two is removed: messages use the other.
    let mut config = lab.config.clone();
    config.usnic[1].peer.clear();
    lab.plane.udp_engines.configure(&config, lab.now);
    lab.plane.udp_engines.next_hops.learn_wanted(PEER_MAC, lab.now);
    lab.peer.send(b, 9, b"still", lab.now).unwrap();
    lab.run(Duration::from_millis(5));
    assert_eq!(came(&mut lab, b), [b"still".to_vec()]);
    assert!(!lab.report().contains("one_process_with"));
}

/// A peer does not get the messages of a peer with another name.
#[test]
fn peers_with_different_names_are_separate_processes() {
    let (mut lab, [b, a]) = lab("1.2", "services = [\"echo\"]");
    for _ in 0..20 {
        lab.peer.send(b, 9, &message(3000), lab.now).unwrap();
    }
    lab.run(Duration::from_millis(30));
    assert_eq!((came(&mut lab, b).len(), came(&mut lab, a).len()), (20, 0));
}

#[test]
fn puts_over_either_interface_reach_the_same_memory() {
    let (mut lab, [b, a]) = lab("1.1", "services = [\"put-sink\"]");
    let memory = Arena::on_heap(1 << 20).alloc(4096, 64).unwrap();
    memory.write(0, b"firstsecond").unwrap();
    for (endpoint, offset, length) in [(b, 0, 5), (a, 5, 6)] {
        lab.peer.permit_put(endpoint, SINK_ADDRESS, SINK as u64);
        let window = memory.slice(offset, length).unwrap();
        let to = SINK_ADDRESS + offset as u64;
        lab.peer.put(endpoint, to, [window, Window::empty()], 1, lab.now).unwrap();
    }
    lab.run(Duration::from_millis(5));
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(b"firstsecond");
    for name in ["a", "b"] {
        let Ok(Managed::Told(line)) = lab.order(UsnicVerb::Look, &[name, "0", "11"]) else {
            panic!("{name}")
        };
        assert!(line.contains(&format!("{crc:08x}")), "{name}: {line}");
    }
}

/// The messages of an MPI rank arrive over either interface and are echoed over both.
#[test]
fn mpi_rank_uses_both_interfaces() {
    use usnic::ob1::header::{Envelope, Header};
    let (mut lab, [b, a]) = lab("1.1", "services = [\"mpi-mirror\"]");
    let mut sent = Vec::new();
    for sequence in 1..41 {
        let envelope = Envelope { communicator: 0, source: 1, tag: 5, sequence };
        let header = Header::Match(envelope);
        let head = &header.emit()[..header.length()];
        let over = if sequence % 2 == 0 { a } else { b };
        lab.peer.send(over, 65, &[head, &message(2000)].concat(), lab.now).unwrap();
        let back = Header::Match(Envelope { source: 0, ..envelope });
        sent.push([&back.emit()[..back.length()], &message(2000)].concat());
    }
    lab.run(Duration::from_millis(30));
    let [over_b, over_a] = [b, a].map(|endpoint| came(&mut lab, endpoint));
    assert!(over_a.len() > 5 && over_b.len() > 5, "{} and {}", over_a.len(), over_b.len());
    let mut all = [over_a, over_b].concat();
    all.sort();
    sent.sort();
    assert!(all == sent, "each is echoed once");
    // Removal of one interface leaves the other running.
    lab.peer.remove(a);
    lab.order(UsnicVerb::Reset, &["a"]).unwrap();
    lab.plane.udp_engines.next_hops.learn_wanted(PEER_MAC, lab.now);
    let header = Header::Match(Envelope { communicator: 0, source: 1, tag: 5, sequence: 41 });
    let head = &header.emit()[..header.length()];
    for _ in 0..4 {
        lab.peer.send(b, 65, head, lab.now).unwrap();
    }
    lab.run(Duration::from_millis(30));
    assert!(!came(&mut lab, b).is_empty());
}

/// Reads a message of a rule's connection, if there is one.
fn read(transport: &mut UsnicTransport<'_>, key: u32) -> Option<Vec<u8>> {
    let length = transport.message(key).ok()??;
    let mut bytes = vec![0; length];
    transport.read(key, &mut bytes).unwrap();
    Some(bytes)
}

/// A rule for a peer receives over all its interfaces, and sends over one.
#[test]
fn rule_receives_over_all_interfaces_of_a_peer() {
    let (mut lab, [b, a]) = lab("1.1", "services = [\"echo\"]");
    let name = "usnic:u/b".parse().unwrap();
    let (signal, connections, label) = (None, 1, "r".into());
    let wanted = Wanted { name, owner: 5, signal, connections, label };
    lab.plane.udp_engines.rules(lab.now).unwrap().listen(&wanted).unwrap();
    lab.peer.send(a, 9, b"over the one", lab.now).unwrap();
    lab.run(Duration::from_millis(2));
    lab.peer.send(b, 9, b"over the other", lab.now).unwrap();
    lab.run(Duration::from_millis(2));
    let now = lab.now;
    let mut transport = lab.plane.udp_engines.rules(now).unwrap();
    let Some((5, Event::Opened(key, _))) = transport.next_owned() else { panic!("no connection") };
    assert_eq!(read(&mut transport, key).unwrap(), b"over the one");
    assert_eq!(read(&mut transport, key).unwrap(), b"over the other");
    assert_eq!(read(&mut transport, key), None);
    for _ in 0..8 {
        transport.write(key, &message(3000)).unwrap();
    }
    lab.run(Duration::from_millis(5));
    assert_eq!(
        (came(&mut lab, a).len(), came(&mut lab, b).len()),
        (8, 0),
        "over the interface of the first message"
    );
    assert_eq!(value(&lab.report(), "echoed"), "0");
    // Messages in flight over a removed interface are lost, so the connection ends.
    lab.order(UsnicVerb::Reset, &["b"]).unwrap();
    let mut transport = lab.plane.udp_engines.rules(now).unwrap();
    assert!(transport.message(key).is_err());
    transport.close(key, true);
    // The end of another rule is separate.
    let wanted = Wanted { name: "usnic:v/a".parse().unwrap(), owner: 6, ..wanted };
    transport.listen(&wanted).unwrap();
    lab.peer.send(a, 9, b"for the second", lab.now).unwrap();
    lab.run(Duration::from_millis(2));
    let mut transport = lab.plane.udp_engines.rules(lab.now).unwrap();
    let opened = core::iter::from_fn(|| transport.next_owned()).find_map(|event| match event {
        (owner, Event::Opened(key, _)) => Some((owner, key)),
        _ => None,
    });
    let (owner, key) = opened.expect("a connection");
    assert_eq!(owner, 6);
    assert_eq!(read(&mut transport, key).unwrap(), b"for the second");
}
