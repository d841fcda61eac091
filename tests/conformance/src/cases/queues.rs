//! Work queues and completion queues.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, request, send_inline, write_byte};
use verbs::*;

/// Unsignaled requests have no completion unless they fail.
pub fn only_signaled_requests_complete(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let qp = world.qp[0];
    for id in 0..10 {
        let write = request(id, write_byte(granted(&region)));
        let write = SendRequest { signaled: id == 3 || id == 9, ..write };
        world.device(0).post_send(qp, &write).unwrap();
    }
    assert_eq!(world.statuses(0, 2), [(3, Status::Success), (9, Status::Success)]);
    world.nothing_completes();
    let wrong = RemoteAddress { rkey: region.rkey ^ 1, ..granted(&region) };
    for (id, to) in [(10, granted(&region)), (11, wrong), (12, wrong)] {
        let write = SendRequest { signaled: false, ..request(id, write_byte(to)) };
        world.device(0).post_send(qp, &write).unwrap();
    }
    assert_eq!(world.statuses(0, 2), [(11, Status::RemoteAccess), (12, Status::Flushed)]);
    world.nothing_completes();
}

/// Requests of all kinds complete in the order of posting.
pub fn completions_come_in_order(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 8192);
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = world.grant(1, memory, all);
    let (from, back) = (world.memory(0, 8192), world.memory(0, 8192));
    for id in 0..40u64 {
        if id % 4 == 3 {
            world.post_recv(1, id, &[]);
        }
        let payload = Payload::Windows(&[from]);
        let (windows, empty) = ([back], Payload::Inline(&[]));
        world.post(
            0,
            id,
            match id % 4 {
                0 => SendOperation::Write { payload, to: granted(&region), immediate: None },
                1 => SendOperation::Read { into: &windows, from: granted(&region) },
                2 => write_byte(granted(&region)),
                _ => SendOperation::Send { payload: empty, with: SendWith::Nothing },
            },
        );
    }
    let ends = world.statuses(0, 40);
    assert!(ends.iter().enumerate().all(|(n, end)| *end == (n as u64, Status::Success)));
}

/// Completions of lazily acknowledged requests may be merged into later ones. The remaining ones come in order,
/// including the last.
pub fn lazy_completions_may_merge_into_later_ones(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 8192);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let qp = world.qp[0];
    for round in 0..10u64 {
        for id in 20 * round + 1..=20 * round + 20 {
            let write = SendRequest {
                ack_lazily: id % 20 != 0,
                ..request(id, write_byte(granted(&region)))
            };
            world.device(0).post_send(qp, &write).unwrap();
        }
        let mut last = 20 * round;
        while last < 20 * round + 20 {
            let [(id, status)] = world.statuses(0, 1)[..] else {
                unreachable!("one was requested")
            };
            assert!(id > last && status == Status::Success, "{id} after {last}: {status:?}");
            last = id;
        }
        assert_eq!(last, 20 * round + 20);
        world.nothing_completes();
    }
}

/// Posts until the queue is full. Returns the number of accepted requests.
fn fill(world: &mut World, mut post: impl FnMut(&mut World, u64) -> Result<(), VerbsError>) -> u64 {
    for id in 0.. {
        match post(world, id) {
            Ok(()) => assert!(id < 1000, "the queue is never full"),
            Err(error) => {
                assert_eq!(error, VerbsError::QueueFull);
                return id;
            }
        }
    }
    unreachable!("the queue becomes full")
}

/// A send queue accepts the requested number of requests, and as many again once completions are polled.
pub fn send_queues_accept_the_requested_depth(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let qp = world.qp[0];
    for round in 0..3 {
        let taken = fill(&mut world, |world, id| {
            let write = request(id, write_byte(granted(&region)));
            world.device(0).post_send(qp, &write)
        });
        assert!(taken >= 64, "round {round}: {taken} of 64");
        let ends = world.statuses(0, taken as usize);
        assert!(ends.iter().enumerate().all(|(n, end)| *end == (n as u64, Status::Success)));
    }
}

/// A receive queue accepts the requested number of receives, and as many again once completions are polled.
pub fn receive_queues_accept_the_requested_depth(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let qp = world.qp[1];
    for round in 0..3 {
        let taken = fill(&mut world, |world, id| {
            world.device(1).post_recv(qp, &RecvRequest { id, into: &[] })
        });
        assert!(taken >= 64, "round {round}: {taken} of 64");
        for id in 0..taken {
            world.post(0, id, send_inline(&[]));
            assert_eq!(world.statuses(0, 1), [(id, Status::Success)]);
        }
        let ends = world.statuses(1, taken as usize);
        assert!(ends.iter().enumerate().all(|(n, end)| *end == (n as u64, Status::Success)));
    }
}

/// Completions of many queue pairs in one queue name their queue pair, and are in order for each.
pub fn many_queue_pairs_share_a_completion_queue(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let mut pairs = vec![world.qp];
    for _ in 1..12 {
        pairs.push([0, 1].map(|n| {
            let init = World::init(world.pd[n], world.cq[n]);
            world.queue_pair(n, &init)
        }));
    }
    for &qps in &pairs {
        world.join(qps, SEND);
    }
    for id in 0..5 {
        for &[a, b] in &pairs {
            world.device(1).post_recv(b, &RecvRequest { id, into: &[] }).unwrap();
            world.device(0).post_send(a, &request(id, send_inline(&[]))).unwrap();
        }
    }
    for n in 0..2 {
        let all = world.completions(n, 5 * pairs.len());
        for qps in &pairs {
            let own = all.iter().filter(|completion| completion.qp == qps[n]);
            let ids: Vec<u64> = own.map(|completion| completion.id).collect();
            assert_eq!(ids, [0, 1, 2, 3, 4]);
        }
    }
}

/// A watched queue is reported by its number when it has completions. Other queues are not reported.
pub fn watched_queues_are_reported(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let (cq, quiet) = (world.cq[1], world.device(1).create_cq(16).unwrap());
    world.post_recv(1, 0, &[]);
    world.post(0, 0, send_inline(&[]));
    world.until("a receive completes", |world| {
        let cq = world.cq[0];
        world.pause();
        world.device(0).poll_cq(cq).is_some()
    });
    // The queue already has a completion.
    world.device(1).watch_cq(cq, 77);
    world.device(1).watch_cq(quiet, 78);
    for id in 0..4 {
        if id > 0 {
            world.post_recv(1, id, &[]);
            world.post(0, id, send_inline(&[]));
        }
        world.until("the queue is reported", |world| match world.device(1).next_watched() {
            Some(number) => {
                assert_eq!(number, 77);
                // The report may be for completions that were polled before.
                let Some(completion) = world.device(1).poll_cq(cq) else { return false };
                assert_eq!(completion.id, id);
                true
            }
            None => false,
        });
        assert_eq!(world.device(1).poll_cq(cq), None);
    }
    world.pause();
    let device = world.device(1);
    let reports = core::iter::from_fn(|| device.next_watched()).count();
    assert!(reports <= 1, "{reports} more reports of an empty queue");
}

/// Payload that may still be read counts as under way until its request is done.
pub fn outstanding_payload_is_under_way(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    assert_eq!(world.device(0).under_way().queue_pairs().count(), 0);
    let from = world.memory(0, 4096);
    let payload = Payload::Windows(&[from]);
    world.post(0, 1, SendOperation::Send { payload, with: SendWith::Nothing });
    let mut first = world.device(0).under_way();
    assert_eq!(first.queue_pairs().collect::<Vec<_>>(), [world.qp[0]]);
    world.pause();
    assert!(!world.device(0).is_done(&mut first), "the peer has no receive for it");
    let into = world.memory(1, 4096);
    world.post_recv(1, 1, &[into]);
    world.post(0, 2, SendOperation::Send { payload, with: SendWith::Nothing });
    // `first` does not include the second request.
    world.until("the first is done", |world| world.device(0).is_done(&mut first));
    let mut second = world.device(0).under_way();
    assert!(!world.device(0).is_done(&mut second));
    let qp = world.qp[0];
    world.device(0).fail_qp(qp).unwrap();
    world.until("the second is done", |world| world.device(0).is_done(&mut second));
}
