//! The fused operation Compare and Write.

use super::*;
use storage::limits::{Limits, Rate};
use storage::volume::OpenError;

const FAILED: u16 = 0x4009;
const MISSING: u16 = 0x400a;
const DIFFERS: u16 = 0x4285;
const INVALID: u16 = 0x4002;

fn first(lba: u64) -> Sqe {
    Sqe::blocks(COMPARE, 1, lba, 1, 0).with(1, &[0x41])
}

fn second(lba: u64) -> Sqe {
    write(lba, 1).with(1, &[0x42])
}

/// Sends a pair that replaces a block of `old` by one of `new`.
fn send(lab: &mut Lab, io: usize, lba: u64, (old, new): (u8, u8), carry: Carry) -> [u16; 2] {
    let (old, new) = (lab.memory(&[old; 512]), lab.memory(&[new; 512]));
    [lab.send(io, first(lba), old, carry), lab.send(io, second(lba), new, carry)]
}

fn ended(lab: &mut Lab, io: usize, cids: &[u16]) -> Vec<Option<u16>> {
    lab.run();
    cids.iter().map(|&cid| lab.links[io].host.take(cid).map(|one| one.status)).collect()
}

fn block(lab: &mut Lab, io: usize, lba: u64) -> u8 {
    let bytes = lab.fetch(io, read(lba, 1), 512).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn compare_and_write_replaces_a_block_that_is_as_expected() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    let page = lab.fetch(admin, Sqe::identify(1, 0), 4096).unwrap();
    assert_eq!((page[522], &page[532..534]), (1, &[0, 0][..]), "FUSES, ACWU: one block");
    let mut old = 0;
    for (n, carry) in [Carry::InCapsule, Carry::Out].into_iter().cycle().take(6).enumerate() {
        let new = n as u8 + 1;
        let cids = send(&mut lab, io, 5, (old, new), carry);
        lab.run();
        let order: Vec<u16> = lab.links[io].host.completions.iter().map(|one| one.cid).collect();
        assert_eq!(order, cids, "the comparison completes first");
        assert_eq!(ended(&mut lab, io, &cids), [Some(0); 2]);
        assert_eq!(block(&mut lab, io, 5), new);
        let cids = send(&mut lab, io, 5, (old, 99), carry);
        assert_eq!(ended(&mut lab, io, &cids), [Some(DIFFERS), Some(FAILED)]);
        assert_eq!(block(&mut lab, io, 5), new);
        old = new;
    }
    assert_eq!(block(&mut lab, io, 4), 0);
}

#[test]
fn half_of_a_pair_is_aborted() {
    let mut lab = Lab::new();
    let (admin, io) = lab.both();
    let data = lab.memory(&[0; 512]);
    for carry in [Carry::InCapsule, Carry::Out] {
        let alone = lab.send(io, first(0), data, carry);
        assert_eq!(ended(&mut lab, io, &[alone]), [None], "its partner may follow");
        assert_eq!(lab.fetch(io, read(0, 1), 512).map(|it| it.len()), Ok(512));
        assert_eq!(ended(&mut lab, io, &[alone]), [Some(MISSING)]);
        assert_eq!(lab.execute(io, second(0), data, carry).status, MISSING);
        // The first of a second pair aborts that of the first.
        let alone = lab.send(io, first(0), data, carry);
        let pair = send(&mut lab, io, 0, (0, 0), carry);
        assert_eq!(ended(&mut lab, io, &[alone]), [Some(MISSING)]);
        assert_eq!(ended(&mut lab, io, &pair), [Some(0); 2]);
        // One that is refused has a partner as well.
        let wrong = lab.execute(io, write(0, 1).with(1, &[0x41]), data, carry);
        assert_eq!(wrong.status, INVALID);
        assert_eq!(lab.execute(io, second(0), data, carry).status, FAILED);
        let alone = lab.send(io, first(0), data, carry);
        let wrong = Sqe::blocks(ZEROES, 1, 0, 1, 0).with(1, &[0x42]);
        let wrong = lab.send(io, wrong, Window::empty(), Carry::None);
        assert_eq!(ended(&mut lab, io, &[alone, wrong]), [Some(FAILED), Some(INVALID)]);
    }
    assert_eq!(lab.execute(io, read(0, 1).with(1, &[0x43]), data, Carry::In).status, INVALID);
    assert_eq!(lab.simple(admin, Sqe::new(0x18).with(1, &[0x41])).status, INVALID);
    assert_eq!(lab.simple(admin, Sqe::property_get(CSTS, false).with(1, &[0x42])).status, INVALID);
    assert_eq!(lab.simple(admin, Sqe::new(0x18)).status, 0);
}

#[test]
fn pair_has_to_name_one_block() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    let data = lab.memory(&[0; 1024]);
    let one = data.slice(0, 512).unwrap();
    for (a, b, of_a, of_b, wanted) in [
        (first(0), second(1), one, one, [INVALID, INVALID]),
        (first(0), second(0).nsid(2), one, one, [INVALID, INVALID]),
        (first(0).with(48, &[1]), second(0).with(48, &[1]), data, data, [0x4014, FAILED]),
        (first(0).nsid(7), second(0).nsid(7), one, one, [0x400b, FAILED]),
        (first(1 << 40), second(1 << 40), one, one, [0x4080, FAILED]),
    ] {
        let cids = [lab.send(io, a, of_a, Carry::Out), lab.send(io, b, of_b, Carry::Out)];
        assert_eq!(ended(&mut lab, io, &cids), wanted.map(Some));
    }
    // Without data at all.
    let cids = [first(0), second(0)].map(|sqe| lab.send(io, sqe, Window::empty(), Carry::None));
    assert_eq!(ended(&mut lab, io, &cids), [Some(0x400f), Some(FAILED)]);
    lab.configure(vec![NamespaceConfig { read_only: true, ..namespace(1, "ram0") }]);
    let cids = send(&mut lab, io, 0, (0, 1), Carry::Out);
    assert_eq!(ended(&mut lab, io, &cids), [Some(0), Some(0x4020)], "the comparison is right");
}

#[test]
fn many_pairs_need_little_memory() {
    for carry in [Carry::InCapsule, Carry::Out] {
        let mut lab = Lab::bare(Settings { capsules: 3, memory: 0, ..Settings::default() });
        lab.add_ram("ram0", 1 << 20);
        lab.configure(vec![namespace(1, "ram0")]);
        let (_, io) = lab.both();
        let pairs: Vec<_> = (0..60)
            .map(|n| send(&mut lab, io, n % 7, (n as u8 / 7, n as u8 / 7 + 1), carry))
            .collect();
        for pair in &pairs {
            assert_eq!(ended(&mut lab, io, pair), [Some(0); 2]);
        }
        assert_eq!(block(&mut lab, io, 0), 9);
    }
}

/// Namespace 1 on a volume whose requests the test completes, and I/O queues of two connections.
fn slow(depth: usize) -> (Lab, [usize; 2], Rc<RefCell<Held>>) {
    let mut lab = Lab::bare(Settings::default());
    let held = lab.add_slow("slow", depth, |_| {});
    lab.configure(vec![namespace(1, "slow")]);
    let (_, cntlid) = lab.admin();
    let both = [1, 2].map(|qid| lab.io(qid, cntlid).unwrap());
    (lab, both, held)
}

/// Completes requests one round after the other. Returns the operations in order.
fn work(lab: &mut Lab, held: &Rc<RefCell<Held>>) -> Vec<Operation> {
    for _ in 0..40 {
        held.borrow_mut().complete(Ok(()));
        lab.run();
        lab.now = lab.now + Duration::from_millis(2);
        lab.run();
    }
    core::mem::take(&mut held.borrow_mut().seen)
}

const PUT: Operation = Operation::Write { durable: false };

#[test]
fn no_other_write_comes_between() {
    let (mut lab, [a, b], held) = slow(8);
    let data = lab.memory(&[7; 512]);
    let before = lab.send(b, write(5, 1), data, Carry::Out);
    lab.run();
    let pair = send(&mut lab, a, 5, (7, 8), Carry::Out);
    lab.run();
    let after = lab.send(b, write(5, 1), data, Carry::Out);
    lab.run();
    let zeroes = lab.send(b, Sqe::blocks(ZEROES, 1, 9, 1, 0), Window::empty(), Carry::None);
    let reads = lab.send(b, read(9, 1), data, Carry::In);
    lab.run();
    assert_eq!(held.borrow().seen, [PUT, Operation::Read], "the pair waits, and reads do not");
    let order = work(&mut lab, &held);
    let zero = Operation::WriteZeroes { sectors: 1 };
    assert_eq!(order, [PUT, Operation::Read, Operation::Read, PUT, PUT, zero]);
    assert_eq!(ended(&mut lab, a, &pair), [Some(0); 2]);
    assert_eq!(ended(&mut lab, b, &[before, after, zeroes, reads]), [Some(0); 4]);
}

#[test]
fn of_two_pairs_for_the_same_block_one_wins() {
    let (mut lab, [a, b], held) = slow(8);
    let one = send(&mut lab, a, 5, (0, 1), Carry::Out);
    let two = send(&mut lab, b, 5, (0, 2), Carry::Out);
    lab.run();
    assert_eq!(held.borrow().seen, [Operation::Read]);
    work(&mut lab, &held);
    assert_eq!(ended(&mut lab, a, &one), [Some(0); 2]);
    assert_eq!(ended(&mut lab, b, &two), [Some(DIFFERS), Some(FAILED)]);
}

/// The volume takes one request at a time, and writes that wait for the pair are first in line.
#[test]
fn busy_volume_does_not_lock_pairs_out() {
    let (mut lab, [a, b], held) = slow(1);
    let data = lab.memory(&[0; 512]);
    let mut writes: Vec<u16> = (0..5).map(|n| lab.send(b, write(n, 1), data, Carry::Out)).collect();
    let pair = send(&mut lab, a, 50, (0, 1), Carry::Out);
    writes.extend((0..5).map(|n| lab.send(b, write(n, 1), data, Carry::Out)));
    lab.run();
    let other = send(&mut lab, b, 50, (1, 2), Carry::Out);
    work(&mut lab, &held);
    assert_eq!(ended(&mut lab, a, &pair), [Some(0); 2]);
    assert_eq!(ended(&mut lab, b, &other), [Some(0); 2]);
    assert_eq!(ended(&mut lab, b, &writes), [Some(0); 10]);
}

#[test]
fn volume_that_fails_fails_the_pair() {
    let (mut lab, [a, b], held) = slow(8);
    for failing in [0, 1] {
        let pair = send(&mut lab, a, 5, (0, 0), Carry::Out);
        lab.run();
        for round in 0..2 {
            let result = if round == failing { Err(VolumeError::Io) } else { Ok(()) };
            held.borrow_mut().complete(result);
            lab.run();
        }
        let wanted = [[Some(0x281), Some(FAILED)], [Some(0), Some(0x280)]][failing];
        assert_eq!(ended(&mut lab, a, &pair), wanted);
        let next = lab.memory(&[0; 512]);
        let next = lab.send(b, write(0, 1), next, Carry::Out);
        work(&mut lab, &held);
        assert_eq!(ended(&mut lab, b, &[next]), [Some(0)], "the volume is free again");
    }
}

#[test]
fn host_that_leaves_in_the_middle_frees_the_volume() {
    // Before the partner has come, while another write is in the way, in the comparison, in the write.
    for step in 0..4 {
        let (mut lab, [a, b], held) = slow(8);
        let data = lab.memory(&[0; 512]);
        if step == 0 {
            lab.send(a, first(5), data, Carry::Out);
        } else {
            let other = (step == 1).then(|| lab.send(b, write(8, 1), data, Carry::Out));
            lab.run();
            assert_eq!(other.is_some(), held.borrow().waiting.len() == 1);
            send(&mut lab, a, 5, (0, 1), Carry::Out);
        }
        lab.run();
        if step == 3 {
            held.borrow_mut().complete(Ok(()));
            lab.run();
        }
        let volume = lab.volumes.find("slow").unwrap();
        let counts = lab.volumes.open_counts(volume).unwrap().clone();
        let excluded = counts.open(Some(0)).err();
        assert_eq!(excluded, (step > 0).then_some(OpenError::InUse), "{step}");
        let pair = send(&mut lab, b, 5, (if step == 3 { 1 } else { 0 }, 9), Carry::Out);
        lab.run();
        lab.cut(a);
        work(&mut lab, &held);
        assert_eq!(ended(&mut lab, b, &pair), [Some(0); 2], "{step}");
        assert!(counts.open(Some(0)).is_ok());
        let end = lab.send(b, write(8, 1), data, Carry::Out);
        work(&mut lab, &held);
        assert_eq!(ended(&mut lab, b, &[end]), [Some(0)]);
    }
}

#[test]
fn writers_over_rnbd_and_pairs_exclude_each_other() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    let volume = lab.volumes.find("ram0").unwrap();
    let counts = lab.volumes.open_counts(volume).unwrap().clone();
    let reader = counts.open(None).unwrap();
    let writer = counts.open(Some(0)).unwrap();
    let cids = send(&mut lab, io, 5, (0, 1), Carry::Out);
    assert_eq!(ended(&mut lab, io, &cids), [Some(0x4015), Some(FAILED)]);
    assert_eq!(lab.refusals(), ["rnbd_writer"]);
    drop(writer);
    let cids = send(&mut lab, io, 5, (0, 1), Carry::Out);
    assert_eq!(ended(&mut lab, io, &cids), [Some(0); 2], "readers do not matter");
    assert!(counts.open(Some(0)).is_ok());
    drop(reader);
}

#[test]
fn limits_delay_pairs_and_break_none() {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("ram0", 1 << 20);
    let all = Rate { requests: Some(1000), bytes: None };
    let limits = Limits { all, ..Limits::default() };
    lab.configure(vec![NamespaceConfig { limits, ..namespace(1, "ram0") }]);
    let (admin, io) = lab.both();
    let pairs: Vec<_> =
        (0..60).map(|n| send(&mut lab, io, 5, (n, n + 1), Carry::InCapsule)).collect();
    lab.run();
    // The last first waits for its limit.
    let abort = Sqe::new(0x08).with(40, &1u16.to_le_bytes()).with(42, &pairs[59][0].to_le_bytes());
    assert_eq!(lab.simple(admin, abort).result, 0);
    let mut waited = 0;
    for _ in 0..40 {
        lab.now = lab.now + Duration::from_millis(1);
        waited += usize::from(lab.links[io].host.completions.len() < 120);
        lab.run();
    }
    assert!(waited > 15, "{waited}");
    for pair in &pairs[..59] {
        assert_eq!(ended(&mut lab, io, pair), [Some(0); 2]);
    }
    assert_eq!(ended(&mut lab, io, &pairs[59]), [Some(0x4007), Some(FAILED)]);
    assert_eq!(block(&mut lab, io, 5), 59);
}
