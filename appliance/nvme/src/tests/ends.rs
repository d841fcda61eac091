//! Ends of connections: timeouts, cuts in the middle of requests, and the return of a host.

use super::*;

#[test]
fn silent_host_is_disconnected_after_two_keep_alive_periods_and_traffic_keeps_it() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    for _ in 0..20 {
        lab.wait(4);
        assert_eq!(lab.fetch(io, read(0, 1), 512).unwrap(), [0; 512]);
    }
    lab.wait(9);
    assert!(lab.is_open(admin) && lab.is_open(io));
    lab.wait(3);
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    assert_eq!(lab.target.queues(), 0);
    assert_eq!(lab.refusals(), ["keep_alive_timeout"]);
}

#[test]
fn keep_alive_is_answered_while_a_volume_does_not_respond() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 2, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    for _ in 0..32 {
        let window = lab.arena.alloc(4096, 4096).unwrap();
        lab.send(io, read(0, 8), window, Carry::In);
    }
    for _ in 0..60 {
        lab.wait(4);
        assert_eq!(lab.simple(admin, Sqe::new(0x18)).status, 0);
    }
    assert!(lab.is_open(io));
    assert_eq!(held.borrow().waiting.len(), 2);
}

#[test]
fn connection_without_a_connect_is_closed_after_half_a_minute() {
    let mut lab = Lab::new();
    let silent = lab.dial().unwrap();
    let half = lab.dial().unwrap();
    let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
    assert_eq!(lab.connect(half, Sqe::connect(0, 32, 5000, false), &data).status, 0);
    lab.wait(29);
    assert!(lab.is_open(silent) && lab.is_open(half));
    lab.wait(2);
    assert!(!lab.is_open(silent), "it sent no Connect");
    assert!(!lab.is_open(half), "it never enabled its controller");
    assert_eq!(lab.target.queues(), 0);
}

/// A write that a volume has when the connection breaks must not be executed after writes of the same host's next
/// connection.
#[test]
fn host_that_returns_waits_until_its_old_requests_are_out_of_the_volumes() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 8, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    let window = lab.memory(&pattern(512, 1));
    lab.send(io, write(0, 1), window, Carry::InCapsule);
    lab.run();
    assert_eq!(held.borrow().waiting.len(), 1);
    lab.cut(admin);
    lab.run();
    assert!(!lab.is_open(io));
    assert_eq!(lab.target.queues(), 1, "the volume may still access its memory");
    let link = lab.dial().unwrap();
    let data = connect_data(7, 0xffff, SUBSYSTEM, HOST);
    let window = lab.memory(&data);
    let cid = lab.send(link, Sqe::connect(0, 32, 5000, false), window, Carry::InCapsule);
    lab.run();
    assert_eq!(lab.links[link].host.take(cid), None, "the Connect waits");
    // Another host does not wait.
    let mut config = subsystem(vec![namespace(1, "disk")]);
    config.hosts = HostList::All;
    lab.target.configure(vec![config], &lab.volumes);
    assert!(lab.admin_of(SUBSYSTEM, OTHER, 8).is_ok());
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[link].host.take(cid).unwrap().status, 0);
    assert_eq!(lab.simple(link, Sqe::property_set(CC, ENABLE)).status, 0);
}

/// The same if the operator has removed the subsystem and configured it again.
#[test]
fn host_of_a_subsystem_that_was_removed_and_is_back_waits_for_its_old_requests() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 8, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    let window = lab.memory(&pattern(512, 1));
    lab.send(io, write(0, 1), window, Carry::InCapsule);
    lab.run();
    lab.target.configure(vec![], &lab.volumes);
    lab.run();
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    lab.configure(vec![namespace(1, "disk")]);
    let link = lab.dial().unwrap();
    let data = lab.memory(&connect_data(7, 0xffff, SUBSYSTEM, HOST));
    let cid = lab.send(link, Sqe::connect(0, 32, 5000, false), data, Carry::InCapsule);
    lab.run();
    assert_eq!(lab.links[link].host.take(cid), None, "the Connect waits");
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[link].host.take(cid).unwrap().status, 0);
}

#[test]
fn host_that_reconnects_while_a_disk_is_silent_leaves_no_requests_behind() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 1, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (_, first) = lab.both();
    let window = lab.arena.alloc(512, 512).unwrap();
    let mut last = 0;
    for _ in 0..2 {
        last = lab.send(first, read(0, 1), window, Carry::In);
    }
    lab.run();
    for _ in 0..30 {
        let (admin, io) = lab.both();
        for _ in 0..100 {
            lab.send(io, read(0, 1), window, Carry::In);
        }
        lab.run();
        lab.cut(io);
        lab.cut(admin);
    }
    let waiting: usize = lab.target.busy.iter().map(|(_, list)| list.len()).sum();
    assert!(waiting <= 1200, "{waiting}");
    // The one that lives is not forgotten.
    for _ in 0..2 {
        held.borrow_mut().complete(Ok(()));
        lab.run();
    }
    assert_eq!(lab.links[first].host.take(last).unwrap().status, 0);
}

#[test]
fn cut_at_any_byte_frees_all_memory() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 4, |_| {});
    lab.configure(vec![namespace(1, "ram0"), namespace(2, "disk")]);
    let free = lab.arena.available();
    let mut buffer = vec![0; 1 << 16];
    for cut in (0..40_000).step_by(997) {
        let (admin, io) = lab.both();
        let window = lab.memory(&pattern(16 << 10, 1));
        lab.send(io, write(0, 32), window, Carry::Out);
        let small = window.slice(0, 4096).unwrap();
        lab.send(io, write(0, 8).nsid(2), small, Carry::InCapsule);
        lab.send(io, read(0, 32).nsid(2), lab.arena.share().alloc(16 << 10, 4).unwrap(), Carry::In);
        let mut left = cut;
        for _ in 0..3 {
            let n = lab.links[io].host.connection.transmit(&mut buffer).min(left);
            left -= n;
            let mut queue = lab.links[io].queue.take().unwrap();
            lab.context(|target, ctx| {
                queue.receive(&buffer[..n], target, ctx);
                let n = queue.transmit(&mut buffer, target, ctx);
                let _ = n;
            });
            lab.links[io].queue = Some(queue);
        }
        lab.cut(io);
        lab.cut(admin);
        held.borrow_mut().complete(Ok(()));
        lab.run();
        assert_eq!(lab.target.queues(), 0, "{cut}");
    }
    drop(buffer);
    // What is missing was allocated by this test.
    assert!(free - lab.arena.available() < 41 * (64 << 10));
    let count = |lab: &Lab, name| {
        let id = lab.volumes.find(name).unwrap();
        lab.volumes.open_counts(id).unwrap().count()
    };
    assert_eq!((count(&lab, "ram0"), count(&lab, "disk")), (1, 1));
}

#[test]
fn memory_of_former_connections_never_reaches_a_host() {
    let mut lab = Lab::new();
    for _ in 0..3 {
        let (admin, io) = lab.both();
        let window = lab.memory(&[0x5a; 64 << 10]);
        assert_eq!(lab.execute(io, write(0, 128), window, Carry::Out).status, 0);
        lab.cut(io);
        lab.cut(admin);
        lab.run();
        let (admin, _) = lab.admin();
        for (sqe, len) in [(Sqe::log(1, 0, 0, 65536), 65536), (Sqe::identify(2, 5), 4096)] {
            let bytes = lab.fetch(admin, sqe, len).unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        lab.cut(admin);
        lab.run();
    }
}

/// The controller stays until its last queue is gone; its requests for events are gone with the admin queue.
#[test]
fn change_after_the_end_of_the_admin_queue_completes_no_event_request() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 4, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    assert_eq!(lab.simple(admin, Sqe::set_feature(0x0b, 0x900)).status, 0);
    lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    let window = lab.arena.alloc(512, 4).unwrap();
    lab.send(io, read(0, 1), window, Carry::In);
    lab.run();
    lab.cut(admin);
    lab.configure(vec![]);
    lab.run();
    assert_eq!(lab.target.queues(), 1);
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.target.queues(), 0);
}

#[test]
fn shut_down_closes_all_connections() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    lab.target.shut_down();
    lab.run();
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    assert_eq!(lab.target.queues(), 0);
}

fn start_connect(lab: &mut Lab) -> (usize, u16) {
    let link = lab.dial().unwrap();
    let window = lab.memory(&connect_data(7, 0xffff, SUBSYSTEM, HOST));
    let cid = lab.send(link, Sqe::connect(0, 32, 5000, false), window, Carry::InCapsule);
    lab.run();
    (link, cid)
}

/// The target has given the host up, which returns over another connection: nothing of the old one may follow.
#[test]
fn write_of_an_expired_host_is_not_executed_after_its_return() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 1, |geometry| geometry.max_transfer = 4096);
    lab.configure(vec![namespace(1, "disk")]);
    let (_, io) = lab.both();
    let window = lab.memory(&pattern(8192, 1));
    for _ in 0..2 {
        lab.send(io, write(0, 16), window, Carry::InCapsule);
    }
    lab.run();
    assert_eq!(held.borrow().seen.len(), 1, "its other half, and the second write, wait");
    // The network is cut, so the connection stays open.
    let queue = lab.links[io].queue.take().unwrap();
    lab.wait(12);
    let (link, cid) = start_connect(&mut lab);
    assert_eq!(lab.links[link].host.take(cid), None, "the Connect waits");
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(held.borrow().seen.len(), 1);
    assert_eq!(lab.links[link].host.take(cid).unwrap().status, 0);
    lab.context(|target, ctx| queue.close(target, ctx));
}

#[test]
fn connect_that_waits_continues_although_the_old_controller_stays() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 1, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    let window = lab.memory(&pattern(512, 1));
    lab.send(io, write(0, 1), window, Carry::InCapsule);
    lab.run();
    lab.cut(io);
    assert_eq!(lab.io(1, 1).unwrap_err().status, 0x181, "without DNR");
    let (link, cid) = start_connect(&mut lab);
    assert_eq!(lab.links[link].host.take(cid), None);
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[link].host.take(cid).unwrap().status, 0);
    assert!(lab.is_open(admin));
}

#[test]
fn connect_that_waits_for_a_stuck_volume_does_not_blame_the_host() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 1, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (admin, io) = lab.both();
    let window = lab.memory(&pattern(512, 1));
    lab.send(io, write(0, 1), window, Carry::InCapsule);
    lab.run();
    lab.cut(io);
    lab.cut(admin);
    let (link, _) = start_connect(&mut lab);
    lab.wait(31);
    assert!(!lab.is_open(link));
    assert_eq!(lab.refusals(), ["former_requests"]);
    assert!(lab.target.held.is_empty());
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.target.queues(), 0);
}

/// A host that acknowledges keep-alives of TCP and reads nothing would keep its place for ever.
#[test]
fn connection_that_is_to_be_closed_is_cut_if_its_host_reads_nothing() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    lab.send(io, Sqe::new(FLUSH).nsid(1), Window::empty(), Carry::None);
    let mut buffer = vec![0; 4096];
    let n = lab.links[io].host.connection.transmit(&mut buffer);
    let mut queue = lab.links[io].queue.take().unwrap();
    lab.context(|target, ctx| queue.receive(&buffer[..n], target, ctx));
    lab.wait(12);
    lab.context(|target, ctx| queue.advance(target, ctx));
    assert!(!queue.is_finished(), "it may still read");
    lab.wait(5);
    lab.context(|target, ctx| queue.advance(target, ctx));
    assert!(queue.is_finished());
    lab.context(|target, ctx| queue.close(target, ctx));
    // As well after an invalid PDU.
    let link = lab.dial().unwrap();
    let mut queue = lab.links[link].queue.take().unwrap();
    lab.context(|target, ctx| queue.receive(&[0xff; 8], target, ctx));
    lab.wait(7);
    lab.context(|target, ctx| queue.advance(target, ctx));
    assert!(queue.is_finished());
    lab.context(|target, ctx| queue.close(target, ctx));
}

#[test]
fn time_in_which_the_machine_was_stopped_is_no_silence() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    lab.now = lab.now + Duration::from_secs(600);
    lab.run();
    assert!(lab.is_open(admin) && lab.is_open(io));
    lab.wait(12);
    assert!(!lab.is_open(admin));
}

#[test]
fn controller_that_was_reset_has_as_much_time_as_a_new_one() {
    let mut lab = Lab::new();
    let (admin, _) = lab.both();
    for _ in 0..20 {
        lab.wait(4);
        assert_eq!(lab.simple(admin, Sqe::new(0x18)).status, 0);
    }
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, 0)).status, 0);
    lab.wait(29);
    assert!(lab.is_open(admin));
    lab.wait(2);
    assert!(!lab.is_open(admin));
}
