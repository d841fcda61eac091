//! The connection manager.

use crate::fixture::Fixture;
use crate::world::{PARAMETERS, PORT, World, send_inline};
use verbs::*;

fn listening(fixture: Box<dyn Fixture>) -> World {
    let mut world = World::new(fixture);
    world.device(1).listen(PORT).expect("nobody listens there");
    world
}

/// What either says arrives, resources are seen from the side that hears of them, and sends go both ways.
pub fn connections_are_asked_for_accepted_and_used(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.ask(PORT, b"please").unwrap();
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
    // It stands now: a send may be posted, which the peer receives though it has not heard of it.
    world.use_connection();
    let ConnectionEvent::Established { connection, .. } = world.event(1) else {
        panic!("the other side is not told");
    };
    assert_eq!(connection, other);
    let back = world.memory(0, 64);
    world.post_recv(0, 1, &[back]);
    world.post(1, 2, send_inline(b"back"));
    assert_eq!(world.ends(1, 1), [(2, Status::Success)]);
    assert_eq!(world.ends(0, 1), [(1, Status::Success)]);
    for n in 0..2 {
        let qp = world.qp[n];
        assert_eq!(world.device(n).qp_state(qp), Ok(QpState::Rts));
    }
    world.no_event();
}

/// As much as is said in [`MAX_PRIVATE_DATA`], and no more.
pub fn private_data_is_bounded(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    assert_eq!(world.ask(PORT, &[1; 57]), Err(VerbsError::Invalid));
    let qp = world.qp[0];
    assert_eq!(world.device(0).qp_state(qp), Ok(QpState::Init));
    world.ask(PORT, &[1; 56]).unwrap();
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

/// A request that is refused ends with the reason and with what the peer says.
pub fn rejections_say_why(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.ask(PORT, b"").unwrap();
    let (other, _) = world.asked();
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

/// The asking side is told so, the other side nothing.
pub fn nobody_listens(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.ask(PORT + 1, b"").unwrap();
    let ConnectionEvent::Rejected { connection, reason, .. } = world.event(0) else {
        panic!("not refused");
    };
    assert_eq!((connection, reason), (own, RejectReason::INVALID_SERVICE_ID));
    world.no_event();
    world.device(1).unlisten(PORT);
    let init = World::init(world.pd[0], world.cq[0]);
    world.qp[0] = world.queue_pair(0, &init);
    world.ask(PORT, b"").unwrap();
    let ConnectionEvent::Rejected { reason, .. } = world.event(0) else { panic!("not refused") };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
}

/// The asking side is told after a while.
pub fn nobody_answers(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    world.cut();
    let own = world.ask(PORT, b"").unwrap();
    let ConnectionEvent::Rejected { connection, reason, .. } = world.event(0) else {
        panic!("not given up");
    };
    assert_eq!((connection, reason), (own, RejectReason::TIMEOUT));
}

/// A second time is refused.
pub fn ports_are_listened_on_once(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let device = world.device(1);
    assert_eq!(device.listen(PORT), Err(VerbsError::Busy));
    assert_eq!(device.listen(PORT + 1), Ok(()));
    device.unlisten(PORT);
    assert_eq!(device.listen(PORT), Ok(()));
}

/// Both are told once, both queue pairs are in error with everything flushed.
pub fn either_side_ends_a_connection(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.meet();
        world.use_connection();
        for n in 0..2 {
            world.post_recv(n, 50, &[]);
        }
        let now = world.now();
        world.device(ends).disconnect(connections[ends], now).unwrap();
        for (n, &connection) in connections.iter().enumerate() {
            world.is_over(n, connection);
            world.fails(n);
            assert_eq!(world.ends(n, 1), [(50, Status::Flushed)]);
            let qp = world.qp[n];
            assert!(!world.device(n).failed_by_itself(qp), "somebody has ended it");
        }
        world.no_event();
        world.nothing_completes();
    }
}

/// A failure here is the end there as well.
pub fn a_queue_pair_that_fails_ends_its_connection(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.meet();
        let qp = world.qp[ends];
        world.device(ends).fail_qp(qp).unwrap();
        for (n, &connection) in connections.iter().enumerate() {
            world.is_over(n, connection);
            world.fails(n);
        }
        world.no_event();
    }
}

/// Who destroys it is told nothing, the peer is.
pub fn a_queue_pair_that_is_destroyed_ends_its_connection(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    for ends in 0..2 {
        world.qp = [0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        });
        let connections = world.meet();
        let qp = world.qp[ends];
        world.device(ends).destroy_qp(qp).unwrap();
        world.is_over(1 - ends, connections[1 - ends]);
        world.fails(1 - ends);
        world.no_event();
    }
}

/// Who has asked may give up before there is an answer: what is accepted then comes to nothing.
pub fn a_request_that_is_withdrawn_is_over(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let own = world.ask(PORT, b"").unwrap();
    let (other, parameters) = world.asked();
    let now = world.now();
    world.device(0).disconnect(own, now).unwrap();
    let ConnectionEvent::Rejected { connection, .. } = world.event(0) else {
        panic!("it is not over");
    };
    assert_eq!(connection, own);
    world.is_over(1, other);
    let (now, qp) = (world.now(), world.qp[1]);
    let accepted = world.device(1).accept(other, qp, &parameters, b"", now);
    assert_eq!(accepted, Err(VerbsError::NoSuchObject));
    world.no_event();
    // Node 1's queue pair is as it was.
    let init = World::init(world.pd[0], world.cq[0]);
    world.qp[0] = world.queue_pair(0, &init);
    world.meet();
    world.use_connection();
}

/// What does not fit to the state of a connection, or of a queue pair, is refused.
pub fn connections_have_their_states(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let wrong = Err(VerbsError::WrongState);
    let own = world.ask(PORT, b"").unwrap();
    assert_eq!(world.ask(PORT, b""), Err(VerbsError::WrongState), "a queue pair has one");
    let (other, parameters) = world.asked();
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

/// Each goes to whom it belongs.
pub fn many_connections_at_once(fixture: Box<dyn Fixture>) {
    let mut world = listening(fixture);
    let mut all = Vec::new();
    // Some of the small layouts have 16 queue pairs, two of which are there already.
    for n in 0..12u8 {
        let init = World::init(world.pd[0], world.cq[0]);
        let qp = world.queue_pair(0, &init);
        let own = world.ask_with(qp, PORT, &[n]).unwrap();
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
        let said = private_data.as_slice()[0];
        let now = world.now();
        world.device(1).accept(connection, qp, &parameters, &[said + 100], now).unwrap();
        accepted.push((said, qp, connection));
    }
    for _ in &all {
        let ConnectionEvent::Established { connection, private_data } = world.event(0) else {
            panic!("not accepted");
        };
        let (n, ..) = all.iter().find(|(_, _, own)| *own == connection).expect("it was asked for");
        assert_eq!(private_data.as_slice()[0], n + 100);
    }
    let mut stand = Vec::new();
    for _ in &all {
        let ConnectionEvent::Established { connection, .. } = world.event(1) else {
            panic!("it does not stand");
        };
        assert!(accepted.iter().any(|(_, _, other)| *other == connection));
        assert!(!stand.contains(&connection));
        stand.push(connection);
    }
    for &(n, qp, own) in &all {
        let (_, other_qp, other) = *accepted.iter().find(|(said, ..)| *said == n).unwrap();
        world.qp = [qp, other_qp];
        world.use_connection();
        let now = world.now();
        world.device(0).disconnect(own, now).unwrap();
        world.is_over(0, own);
        world.is_over(1, other);
    }
    world.no_event();
}
