//! States of queue pairs, and the behaviour in each.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, request, send_inline};
use verbs::*;

/// The order of states is Init, ready to receive, ready to send. Error follows any of them.
pub fn states_go_in_order(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let qp = world.qp[0];
    let peer = world.to_receive(0, world.qp[1]);
    let device = world.device(0);
    let wrong = Err(VerbsError::WrongState);
    assert_eq!(device.qp_state(qp), Ok(QpState::Init));
    assert_eq!(device.ready_to_send(qp, &SEND), wrong);
    assert_eq!(device.post_send(qp, &request(1, send_inline(b"x"))), wrong);
    assert_eq!(device.ready_to_receive(qp, &peer), Ok(()));
    assert_eq!(device.ready_to_receive(qp, &peer), wrong);
    assert_eq!(device.post_send(qp, &request(1, send_inline(b"x"))), wrong);
    world.until("RTR", |world| world.device(0).qp_state(qp) == Ok(QpState::Rtr));
    let device = world.device(0);
    assert_eq!(device.post_send(qp, &request(1, send_inline(b"x"))), wrong);
    assert_eq!(device.ready_to_send(qp, &SEND), Ok(()));
    assert_eq!(device.ready_to_send(qp, &SEND), wrong);
    world.until("RTS", |world| world.device(0).qp_state(qp) == Ok(QpState::Rts));
    let device = world.device(0);
    assert_eq!(device.ready_to_receive(qp, &peer), wrong);
    assert_eq!(device.fail_qp(qp), Ok(()));
    world.expect_error(0);
    let device = world.device(0);
    assert_eq!(device.ready_to_receive(qp, &peer), wrong);
    assert_eq!(device.ready_to_send(qp, &SEND), wrong);
    // A repeated call succeeds.
    assert_eq!(device.fail_qp(qp), Ok(()));
    assert!(!device.failed_by_itself(qp), "the local user has failed it");
}

/// Requests that are posted as soon as a state was requested execute once it is reached.
pub fn requests_may_be_posted_before_the_state_is_reached(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let into = world.memory(1, 64);
    for n in [1, 0] {
        let (qp, peer) = (world.qp[n], world.to_receive(n, world.qp[1 - n]));
        world.device(n).ready_to_receive(qp, &peer).unwrap();
        world.device(n).ready_to_send(qp, &World::to_send(n)).unwrap();
    }
    world.post_recv(1, 5, &[into]);
    world.post(0, 9, send_inline(b"hello"));
    assert_eq!(world.statuses(0, 1), [(9, Status::Success)]);
    assert_eq!(world.statuses(1, 1), [(5, Status::Success)]);
    assert_eq!(&netsim::contents(&into)[..5], b"hello");
}

/// An invalid transition is refused at once, and the queue pair keeps its state.
pub fn invalid_state_transitions_are_refused_at_once(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let qp = world.qp[0];
    let most = world.device(0).attributes().max_rd_atomic;
    let from = world.address(0);
    let to = core::net::SocketAddr::new(world.address(1), 7);
    let (now, mut rng) = (world.now(), world.rng.fork());
    let wrong = ConnectionParameters { initiator_depth: most + 1, ..crate::world::PARAMETERS };
    let result = world.device(0).connect(qp, from, to, &wrong, b"", now, &mut rng);
    assert_eq!(result, Err(VerbsError::Invalid));
    let elsewhere = world.address(1);
    let wrong = crate::world::PARAMETERS;
    let result = world.device(0).connect(qp, elsewhere, to, &wrong, b"", now, &mut rng);
    assert_eq!(result, Err(VerbsError::Invalid), "from an address of another device");
    assert_eq!(world.device(0).qp_state(qp), Ok(QpState::Init));
    let mut world = world.connected();
    world.use_connection();
}

/// All posted requests end once, in posting order.
pub fn failing_flushes_everything_in_order(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let into = world.memory(0, 64);
    // The peer has no receive, so no request completes.
    for id in 0..6 {
        let qp = world.qp[0];
        let send = SendRequest { signaled: id % 2 == 0, ..request(id, send_inline(b"x")) };
        world.device(0).post_send(qp, &send).unwrap();
        world.post_recv(0, 100 + id, &[into]);
    }
    let qp = world.qp[0];
    world.device(0).fail_qp(qp).unwrap();
    let ends = world.statuses(0, 12);
    let of = |receives: bool| {
        ends.iter().filter(move |(id, _)| (*id >= 100) == receives).copied().collect::<Vec<_>>()
    };
    let flushed = |from: u64| (from..from + 6).map(|id| (id, Status::Flushed)).collect::<Vec<_>>();
    assert_eq!((of(false), of(true)), (flushed(0), flushed(100)));
    world.nothing_completes();
}

/// Sends and receives are refused.
pub fn queue_pair_in_error_refuses_requests(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let qp = world.qp[0];
    world.device(0).fail_qp(qp).unwrap();
    for _ in 0..2 {
        let device = world.device(0);
        let sent = device.post_send(qp, &request(1, send_inline(b"x")));
        let received = device.post_recv(qp, &RecvRequest { id: 1, into: &[] });
        assert_eq!((sent, received), (Err(VerbsError::WrongState), Err(VerbsError::WrongState)));
        world.expect_error(0);
    }
    world.nothing_completes();
}

/// Completions that were not polled before a queue pair was destroyed are dropped.
pub fn destroying_drops_completions(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let into = world.memory(1, 64);
    for id in 0..4 {
        world.post_recv(1, id, &[into]);
        world.post(0, id, send_inline(b"x"));
    }
    world.post_recv(1, 9, &[into]);
    world.pause();
    for n in 0..2 {
        let qp = world.qp[n];
        world.device(n).destroy_qp(qp).unwrap();
    }
    world.nothing_completes();
}

/// An error that the peer causes is reported to the user once. An error that the user requests is not reported.
pub fn queue_pair_errors_are_reported_once(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_READ);
    let write = crate::world::write_byte(granted(&region));
    assert_eq!(world.attempt(write), Status::RemoteAccess);
    world.expect_error(0);
    world.expect_error(1);
    world.pause();
    for n in 0..2 {
        let qp = world.qp[n];
        let device = world.device(n);
        let events = core::iter::from_fn(|| device.poll_event());
        let of = |event: &AsyncEvent| *event == AsyncEvent::QpError(qp);
        assert_eq!(events.filter(of).count(), 1, "node {n}");
    }
    let init = World::init(world.pd[0], world.cq[0]);
    let qp = world.queue_pair(0, &init);
    world.device(0).fail_qp(qp).unwrap();
    world.pause();
    let device = world.device(0);
    let mut events = core::iter::from_fn(|| device.poll_event());
    assert!(events.all(|event| event != AsyncEvent::QpError(qp)), "the user requested it");
}

/// A timer that was handled is no longer due, so a loop that waits for the next one can halt.
pub fn handled_timers_are_not_due(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    world.use_connection();
    for _ in 0..20 {
        world.pause();
        for n in 0..2 {
            let now = world.now();
            let device = world.device(n);
            device.handle_timeout(now);
            assert!(device.poll_timeout().is_none_or(|at| at > now), "node {n}");
        }
    }
}
