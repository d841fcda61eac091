//! Commands that wait for the limits of their namespace.

use super::*;
use storage::limits::{Limits, Rate};

fn requests(all: u32) -> Limits {
    Limits { all: Rate { requests: Some(all), bytes: None }, ..Limits::default() }
}

fn limited(nsid: u32, volume: &str, limits: Limits) -> NamespaceConfig {
    NamespaceConfig { limits, ..namespace(nsid, volume) }
}

/// Namespace 1 with 100 commands in a second, of which those at once are used; namespace 2 without limits. Admin and
/// I/O queue.
fn lab() -> (Lab, usize, usize) {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("ram0", 1 << 20);
    lab.add_ram("ram1", 1 << 20);
    lab.configure(vec![limited(1, "ram0", requests(100)), namespace(2, "ram1")]);
    let (admin, io) = lab.both();
    for _ in 0..11 {
        lab.fetch(io, read(0, 1), 512).unwrap();
    }
    (lab, admin, io)
}

fn pass(lab: &mut Lab, millis: u64) {
    lab.now = lab.now + Duration::from_millis(millis);
    lab.run();
}

/// Sends reads of namespace 1 that wait.
fn waiting(lab: &mut Lab, io: usize, count: usize) -> Vec<u16> {
    let data = lab.arena.alloc(512, 4).unwrap();
    let cids = (0..count).map(|n| lab.send(io, read(n as u64, 1), data, Carry::In)).collect();
    lab.run();
    cids
}

fn ended(lab: &mut Lab, io: usize, cids: &[u16]) -> Vec<Option<u16>> {
    cids.iter().map(|&cid| lab.links[io].host.take(cid).map(|one| one.status)).collect()
}

fn on(nsid: u32, sqe: Sqe) -> Sqe {
    sqe.nsid(nsid)
}

#[test]
fn commands_beyond_the_limit_wait_and_keep_alive_does_not() {
    let (mut lab, admin, io) = lab();
    let cids = waiting(&mut lab, io, 10);
    assert!(ended(&mut lab, io, &cids).iter().all(Option::is_none));
    assert_eq!(lab.simple(admin, Sqe::new(0x18)).status, 0);
    pass(&mut lab, 51);
    let some = ended(&mut lab, io, &cids);
    assert_eq!(some.iter().flatten().collect::<Vec<_>>(), [&0; 5]);
    assert!(some[5..].iter().all(Option::is_none), "{some:?}");
    pass(&mut lab, 60);
    assert_eq!(ended(&mut lab, io, &cids[5..]), [Some(0); 5]);
    let view = lab.target.view().next().unwrap().2;
    assert!(view[0].delays.0 == 10 && view[0].delays.1 >= Duration::from_millis(100));
    assert_eq!(view[1].delays, (0, Duration::ZERO));
}

#[test]
fn flushes_and_other_namespaces_do_not_wait_whatever_the_queue_holds() {
    let (mut lab, _, io) = lab();
    let block = lab.memory(&pattern(4096, 1));
    // More data in capsules than the queue has places for, and more reads than it has memory for.
    let mut cids: Vec<u16> =
        (0..40).map(|n| lab.send(io, write(n * 8, 8), block, Carry::InCapsule)).collect();
    cids.extend((0..30).map(|n| lab.send(io, write(n * 8, 8), block, Carry::Out)));
    cids.extend((0..30).map(|n| lab.send(io, Sqe::blocks(COMPARE, 1, n, 8, 0), block, Carry::Out)));
    lab.run();
    assert!(ended(&mut lab, io, &cids).iter().all(Option::is_none));
    for n in 0..8 {
        let sqe = on(2, write(n * 8, 8));
        assert_eq!(lab.execute(io, sqe, block, Carry::InCapsule).status, 0);
        assert_eq!(lab.execute(io, sqe, block, Carry::Out).status, 0);
        assert_eq!(lab.fetch(io, on(2, read(n * 8, 8)), 4096), Ok(pattern(4096, 1)));
        assert_eq!(lab.simple(io, Sqe::new(FLUSH).nsid(1)).status, 0);
    }
    assert_eq!(lab.target.extra_capsules(), 128 * 8192);
    lab.configure(vec![namespace(1, "ram0"), namespace(2, "ram1")]);
    pass(&mut lab, 10);
    let statuses = ended(&mut lab, io, &cids);
    assert!(statuses.iter().all(Option::is_some), "{statuses:?}");
    assert!(statuses[..70].iter().all(|status| *status == Some(0)));
    lab.wait(2);
    assert_eq!(lab.target.extra_capsules(), 0);
    assert_eq!(lab.target.kept_limits(), 0);
    assert_eq!(lab.fetch(io, read(39 * 8, 8), 4096), Ok(pattern(4096, 1)));
}

#[test]
fn queues_take_turns() {
    let (mut lab, _, io) = lab();
    let cntlid = lab.target.controllers().next().unwrap().cntlid;
    let other = lab.io(2, cntlid).unwrap();
    let many = waiting(&mut lab, io, 100);
    let few = waiting(&mut lab, other, 2);
    pass(&mut lab, 45);
    assert_eq!(ended(&mut lab, other, &few), [Some(0); 2]);
    assert_eq!(ended(&mut lab, io, &many).iter().flatten().count(), 2);
}

#[test]
fn changed_limits_disturb_no_host() {
    let (mut lab, admin, io) = lab();
    let event = lab.send(admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    let cids = waiting(&mut lab, io, 20);
    lab.configure(vec![limited(1, "ram0", requests(100_000)), limited(2, "ram1", requests(100))]);
    pass(&mut lab, 11);
    assert_eq!(ended(&mut lab, io, &cids), [Some(0); 20]);
    assert!(lab.links[admin].host.take(event).is_none(), "nothing that hosts see has changed");
    let view = lab.target.view().next().unwrap().2;
    assert!(view[0].reads.0 >= 31, "counters go on: {}", view[0].reads.0);
    let cids: Vec<u16> = {
        let data = lab.arena.alloc(512, 4).unwrap();
        (0..20).map(|n| lab.send(io, on(2, read(n, 1)), data, Carry::In)).collect()
    };
    lab.run();
    assert_eq!(ended(&mut lab, io, &cids).iter().flatten().count(), 11);
}

#[test]
fn namespace_that_is_removed_while_commands_wait_fails_them_and_frees_its_volume() {
    let (mut lab, _, io) = lab();
    let block = lab.memory(&pattern(512, 1));
    let mut cids = waiting(&mut lab, io, 20);
    cids.push(lab.send(io, write(0, 1), block, Carry::InCapsule));
    cids.push(lab.send(io, write(0, 1), block, Carry::Out));
    lab.run();
    lab.configure(vec![namespace(2, "ram1")]);
    let volume = lab.volumes.find("ram0").unwrap();
    let counts = lab.volumes.open_counts(volume).unwrap();
    assert_eq!((counts.count(), counts.retire()), (0, Ok(())));
    assert!(lab.volumes.remove(volume).is_some());
    pass(&mut lab, 10);
    let statuses = ended(&mut lab, io, &cids);
    assert!(statuses.iter().all(|status| *status == Some(0x400b)), "{statuses:?}");
    assert_eq!(lab.target.kept_limits(), 0);
}

#[test]
fn subsystem_that_is_removed_while_commands_wait_leaves_nothing() {
    let (mut lab, _, io) = lab();
    waiting(&mut lab, io, 50);
    lab.target.configure(vec![], &lab.volumes);
    lab.run();
    lab.wait(1);
    assert!(!lab.is_open(io));
    assert_eq!((lab.target.queues(), lab.target.kept_limits()), (0, 0));
}

#[test]
fn host_that_leaves_while_commands_wait_leaves_nothing() {
    let (mut lab, admin, io) = lab();
    let before = lab.arena.available();
    let block = lab.memory(&pattern(4096, 1));
    let cids: Vec<u16> =
        (0..100).map(|n| lab.send(io, write(n, 8), block, Carry::InCapsule)).collect();
    lab.run();
    assert!(ended(&mut lab, io, &cids).iter().all(Option::is_none));
    assert!(lab.target.extra_capsules() > 0);
    lab.cut(io);
    assert_eq!(lab.target.extra_capsules(), 0);
    lab.cut(admin);
    assert_eq!(lab.target.queues(), 0);
    lab.arena.free(block);
    assert!(lab.arena.available() > before);
    // Nothing of the old connection is executed any more.
    let (_, io) = lab.both();
    lab.wait(3);
    assert_eq!(lab.fetch(io, read(0, 8), 4096), Ok(vec![0; 4096]));
}

#[test]
fn shutdown_does_not_wait_for_limits() {
    let (mut lab, admin, io) = lab();
    waiting(&mut lab, io, 100);
    lab.target.shut_down();
    lab.run();
    assert!(!lab.is_open(admin) && !lab.is_open(io));
    assert_eq!(lab.target.queues(), 0);
}

#[test]
fn silent_host_with_waiting_commands_is_disconnected_in_time() {
    let (mut lab, admin, io) = lab();
    lab.configure(vec![
        limited(
            1,
            "ram0",
            Limits { reads: Rate { requests: None, bytes: Some(1) }, ..Limits::default() },
        ),
        namespace(2, "ram1"),
    ]);
    waiting(&mut lab, io, 20);
    lab.wait(15);
    assert!(!lab.is_open(admin) && !lab.is_open(io));
}

#[test]
fn abort_ends_a_command_that_waits() {
    let (mut lab, admin, io) = lab();
    let cids = waiting(&mut lab, io, 3);
    let abort = |qid: u16, cid: u16| {
        Sqe::new(0x08).with(40, &qid.to_le_bytes()).with(42, &cid.to_le_bytes())
    };
    assert_eq!(lab.simple(admin, abort(2, cids[1])).result, 1, "there is no such queue");
    assert_eq!(lab.simple(admin, abort(1, 99)).result, 1, "there is no such command");
    assert_eq!(lab.simple(admin, abort(1, cids[1])).result, 0);
    assert_eq!(ended(&mut lab, io, &cids), [None, Some(0x4007), None]);
    assert_eq!(lab.simple(admin, abort(1, cids[1])).result, 1);
    // The slot of the aborted command serves another one, which waits for its own turn.
    let last = waiting(&mut lab, io, 1);
    pass(&mut lab, 25);
    assert_eq!(ended(&mut lab, io, &[cids[0], cids[2], last[0]]), [Some(0), Some(0), None]);
    pass(&mut lab, 10);
    assert_eq!(ended(&mut lab, io, &last), [Some(0)]);
}

#[test]
fn bytes_of_each_command_are_charged_by_its_class() {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("ram0", 1 << 20);
    let limits =
        Limits { writes: Rate { requests: None, bytes: Some(1 << 20) }, ..Limits::default() };
    lab.configure(vec![limited(1, "ram0", limits)]);
    let (_, io) = lab.both();
    for _ in 0..20 {
        assert_eq!(lab.fetch(io, read(0, 128), 65536).map(|it| it.len()), Ok(65536));
    }
    // 100 KiB in a burst, 64 KiB each: two are admitted.
    let zeroes = |lab: &mut Lab| {
        lab.try_execute(io, Sqe::blocks(ZEROES, 1, 0, 128, 0), Window::empty(), Carry::None)
    };
    assert!(zeroes(&mut lab).is_some() && zeroes(&mut lab).is_some());
    assert!(zeroes(&mut lab).is_none());
    // Twice 64 KiB are 28 KiB more than the burst: 26 ms.
    pass(&mut lab, 24);
    assert!(lab.links[io].host.completions.is_empty());
    pass(&mut lab, 5);
    assert_eq!(lab.links[io].host.completions.len(), 1);
}
