//! The connection manager.

use crate::fixture::Fixture;
use crate::world::{PARAMETERS, PORT, World, send_inline};
use verbs::*;

fn listening(fixture: Box<dyn Fixture>) -> World {
    let mut world = World::new(fixture);
    world.device(1).listen(PORT).expect("the port is free");
    world
}

/// Private data of both sides arrives, resources are reported from the receiver's point of view, and sends work both
/// ways.
pub fn connections_are_requested_accepted_and_used(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.request_connection(PORT, b"please").unwrap();
    let ConnectionEvent::Request {
        connection: other,
        port,
        from,
        to,
        parameters,
        private_data,
        ..
    } = world.event(1)
    else {
        panic!("no request");
    };
    assert_eq!((port, from.ip(), to), (PORT, world.address(0), world.address(1)));
    assert_eq!(private_data.as_slice().get(..6), Some(&b"please"[..]));
    let resources = (parameters.responder_resources, parameters.initiator_depth);
    assert_eq!(resources, (PARAMETERS.initiator_depth, PARAMETERS.responder_resources));
    let (now, qp) = (world.now(), world.qp[1]);
    world.device(1).accept(other, qp, &parameters, b"with pleasure", now).unwrap();
    let ConnectionEvent::Established { connection, private_data } = world.event(0) else {
        panic!("not accepted");
    };
    assert_eq!((connection, private_data.as_slice().get(..13)), (own, Some(&b"with pleasure"[..])));
    // The connection is established: a send reaches the peer even before the peer's event.
    world.use_connection();
    let ConnectionEvent::Established { connection, .. } = world.event(1) else {
        panic!("the other side gets no event");
    };
    assert_eq!(connection, other);
    let back = world.memory(0, 64);
    world.post_recv(0, 1, &[back]);
    world.post(1, 2, send_inline(b"back"));
    assert_eq!(world.statuses(1, 1), [(2, Status::Success)]);
    assert_eq!(world.statuses(0, 1), [(1, Status::Success)]);
    for n in 0..2 {
        let qp = world.qp[n];
        assert_eq!(world.device(n).qp_state(qp), Ok(QpState::Rts));
    }
    world.no_event();
}

/// Private data has at most [`MAX_PRIVATE_DATA`] bytes.
pub fn private_data_is_bounded(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    assert_eq!(world.request_connection(PORT, &[1; 57]), Err(VerbsError::Invalid));
    let qp = world.qp[0];
    assert_eq!(world.device(0).qp_state(qp), Ok(QpState::Init));
    world.request_connection(PORT, &[1; 56]).unwrap();
    let ConnectionEvent::Request { connection, parameters, private_data, .. } = world.event(1)
    else {
        panic!("no request");
    };
    assert_eq!(private_data.as_slice(), [1; 56]);
    let (now, qp) = (world.now(), world.qp[1]);
    let much = world.device(1).accept(connection, qp, &parameters, &[2; 197], now);
    assert_eq!(much, Err(VerbsError::Invalid));
    let consumer = RejectReason::CONSUMER;
    let much = world.device(1).reject(connection, consumer, &[2; 149]);
    assert_eq!(much, Err(VerbsError::Invalid));
    world.device(1).accept(connection, qp, &parameters, &[2; 196], now).unwrap();
    let ConnectionEvent::Established { private_data, .. } = world.event(0) else {
        panic!("not accepted");
    };
    assert_eq!(private_data.as_slice(), [2; 196]);
}

/// A rejected request ends with the peer's reason and private data.
pub fn rejections_have_a_reason(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.request_connection(PORT, b"").unwrap();
    let (other, _) = world.incoming_request();
    world.device(1).reject(other, RejectReason::CONSUMER, b"go away").unwrap();
    let ConnectionEvent::Rejected { connection, reason, private_data } = world.event(0) else {
        panic!("not refused");
    };
    assert_eq!((connection, reason), (own, RejectReason::CONSUMER));
    assert_eq!(private_data.as_slice().get(..7), Some(&b"go away"[..]));
    world.no_event();
    let now = world.now();
    assert_eq!(
        world.device(1).reject(other, RejectReason::CONSUMER, b""),
        Err(VerbsError::NoSuchObject)
    );
    assert_eq!(world.device(0).disconnect(own, now), Err(VerbsError::NoSuchObject));
}

/// The active side gets a rejection, the passive side no event.
pub fn request_to_a_closed_port_is_rejected(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.request_connection(PORT + 1, b"").unwrap();
    let ConnectionEvent::Rejected { connection, reason, .. } = world.event(0) else {
        panic!("not refused");
    };
    assert_eq!((connection, reason), (own, RejectReason::INVALID_SERVICE_ID));
    world.no_event();
    world.device(1).unlisten(PORT);
    let init = World::init(world.pd[0], world.cq[0]);
    world.qp[0] = world.queue_pair(0, &init);
    world.request_connection(PORT, b"").unwrap();
    let ConnectionEvent::Rejected { reason, .. } = world.event(0) else { panic!("not refused") };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
}

/// The active side gets a rejection after a while.
pub fn request_without_an_answer_is_rejected(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    world.cut();
    let own = world.request_connection(PORT, b"").unwrap();
    let ConnectionEvent::Rejected { connection, reason, .. } = world.event(0) else {
        panic!("no rejection");
    };
    assert_eq!((connection, reason), (own, RejectReason::TIMEOUT));
}

/// A second `listen` is refused.
pub fn ports_are_listened_on_once(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let device = world.device(1);
    assert_eq!(device.listen(PORT), Err(VerbsError::Busy));
    assert_eq!(device.listen(PORT + 1), Ok(()));
    device.unlisten(PORT);
    assert_eq!(device.listen(PORT), Ok(()));
}

/// Both sides get one event. Both queue pairs are in error with all requests flushed.
pub fn either_side_may_disconnect(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.connect();
        world.use_connection();
        for n in 0..2 {
            world.post_recv(n, 50, &[]);
        }
        let now = world.now();
        world.device(ends).disconnect(connections[ends], now).unwrap();
        for (n, &connection) in connections.iter().enumerate() {
            world.expect_disconnect(n, connection);
            world.expect_error(n);
            assert_eq!(world.statuses(n, 1), [(50, Status::Flushed)]);
            let qp = world.qp[n];
            assert!(!world.device(n).failed_by_itself(qp), "a user has ended the connection");
        }
        world.no_event();
        world.nothing_completes();
    }
}

/// The failure of a queue pair also ends the connection at the peer.
pub fn a_queue_pair_that_fails_ends_its_connection(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.connect();
        let qp = world.qp[ends];
        world.device(ends).fail_qp(qp).unwrap();
        for (n, &connection) in connections.iter().enumerate() {
            world.expect_disconnect(n, connection);
            world.expect_error(n);
        }
        world.no_event();
    }
}

/// The side that destroys the queue pair gets no event, the peer does.
pub fn a_queue_pair_that_is_destroyed_ends_its_connection(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.connect();
        let qp = world.qp[ends];
        world.device(ends).destroy_qp(qp).unwrap();
        world.expect_disconnect(1 - ends, connections[1 - ends]);
        world.expect_error(1 - ends);
        world.no_event();
    }
}

/// The active side may withdraw its request before the answer. A later `accept` fails.
pub fn a_request_that_is_withdrawn_is_over(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.request_connection(PORT, b"").unwrap();
    let (other, parameters) = world.incoming_request();
    let now = world.now();
    world.device(0).disconnect(own, now).unwrap();
    let ConnectionEvent::Rejected { connection, .. } = world.event(0) else {
        panic!("the request is not over");
    };
    assert_eq!(connection, own);
    world.expect_disconnect(1, other);
    let (now, qp) = (world.now(), world.qp[1]);
    let accepted = world.device(1).accept(other, qp, &parameters, b"", now);
    assert_eq!(accepted, Err(VerbsError::NoSuchObject));
    world.no_event();
    // Node 1's queue pair is unchanged.
    let init = World::init(world.pd[0], world.cq[0]);
    world.qp[0] = world.queue_pair(0, &init);
    world.connect();
    world.use_connection();
}

/// Calls that do not fit the state of a connection or of a queue pair are refused.
pub fn calls_in_the_wrong_connection_state_are_refused(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let wrong = Err(VerbsError::WrongState);
    let own = world.request_connection(PORT, b"").unwrap();
    assert_eq!(
        world.request_connection(PORT, b""),
        Err(VerbsError::WrongState),
        "a queue pair has one"
    );
    let (other, parameters) = world.incoming_request();
    let now = world.now();
    let [first, qp] = world.qp;
    assert_eq!(world.device(0).accept(own, first, &parameters, b"", now), wrong);
    let init = World::init(world.pd[1], world.cq[1]);
    let broken = world.queue_pair(1, &init);
    world.device(1).fail_qp(broken).unwrap();
    world.pause();
    assert_eq!(world.device(1).accept(other, broken, &parameters, b"", now), wrong);
    let most = world.device(1).attributes().max_rd_atomic;
    let much = ConnectionParameters { responder_resources: most + 1, ..parameters };
    let invalid = world.device(1).accept(other, qp, &much, b"", now);
    assert_eq!(invalid, Err(VerbsError::Invalid));
    assert_eq!(world.device(1).accept(other, qp, &parameters, b"", now), Ok(()));
    assert_eq!(world.device(1).accept(other, qp, &parameters, b"", now), wrong);
    let reason = RejectReason::CONSUMER;
    assert_eq!(world.device(1).reject(other, reason, b""), wrong);
    for n in 0..2 {
        assert!(matches!(world.event(n), ConnectionEvent::Established { .. }));
    }
    world.use_connection();
    let now = world.now();
    let none = ConnectionId(other.0 ^ 0x4000_0000);
    assert_eq!(world.device(1).disconnect(none, now), Err(VerbsError::NoSuchObject));
}

/// Each connection joins the right queue pairs.
pub fn many_connections_at_once(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let mut all = Vec::new();
    // Some of the small layouts have 16 queue pairs, two of which exist already.
    for n in 0..12u8 {
        let init = World::init(world.pd[0], world.cq[0]);
        let qp = world.queue_pair(0, &init);
        let own = world.request_connection_for(qp, PORT, &[n]).unwrap();
        all.push((n, qp, own));
    }
    let mut accepted = Vec::new();
    for _ in &all {
        let ConnectionEvent::Request { connection, parameters, private_data, .. } = world.event(1)
        else {
            panic!("no request");
        };
        let init = World::init(world.pd[1], world.cq[1]);
        let qp = world.queue_pair(1, &init);
        let client = private_data.as_slice()[0];
        let now = world.now();
        world.device(1).accept(connection, qp, &parameters, &[client + 100], now).unwrap();
        accepted.push((client, qp, connection));
    }
    for _ in &all {
        let ConnectionEvent::Established { connection, private_data } = world.event(0) else {
            panic!("not accepted");
        };
        let (n, ..) = all
            .iter()
            .find(|(_, _, own)| *own == connection)
            .expect("this side has requested the connection");
        assert_eq!(private_data.as_slice()[0], n + 100);
    }
    let mut established = Vec::new();
    for _ in &all {
        let ConnectionEvent::Established { connection, .. } = world.event(1) else {
            panic!("not established");
        };
        assert!(accepted.iter().any(|(_, _, other)| *other == connection));
        assert!(!established.contains(&connection));
        established.push(connection);
    }
    for &(n, qp, own) in &all {
        let (_, other_qp, other) = *accepted.iter().find(|(client, ..)| *client == n).unwrap();
        world.qp = [qp, other_qp];
        world.use_connection();
        let now = world.now();
        world.device(0).disconnect(own, now).unwrap();
        world.expect_disconnect(0, own);
        world.expect_disconnect(1, other);
    }
    world.no_event();
}
