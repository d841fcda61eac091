//! Reservations over two and three hosts: rights, notices, preempting with abort, keeping through a power loss.

use super::*;
use storage::volume::VolumeId;
use storage::volume::reservation::{Kind, MAX_REGISTRANTS};

const REGISTER: u8 = 0x0d;
const REPORT: u8 = 0x0e;
const ACQUIRE: u8 = 0x11;
const RELEASE: u8 = 0x15;
const CONFLICT: u16 = 0x4083;
const INVALID_FIELD: u16 = 0x4002;
const PREEMPTED: u16 = 0x401b;
const PROTECTED: u16 = 0x4020;
/// CPTPL: kept through a power loss.
const KEEP: u32 = 3 << 30;

/// A host: its admin queue and an I/O queue.
#[derive(Clone, Copy)]
struct Station {
    admin: usize,
    io: usize,
}

fn lab() -> Lab {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("ram0", 1 << 20);
    lab.configure_for_all(vec![namespace(1, "ram0")]);
    lab
}

impl Lab {
    fn configure_for_all(&mut self, namespaces: Vec<NamespaceConfig>) {
        let config = SubsystemConfig { hosts: HostList::All, ..subsystem(namespaces) };
        self.target.configure(vec![config], &self.volumes);
    }

    fn station(&mut self, host_id: u8) -> Station {
        let nqn = alloc::format!("nqn.2026-01.example:host{host_id}");
        let (admin, cntlid) = self.admin_of(SUBSYSTEM, &nqn, host_id).unwrap();
        let io = self.dial().unwrap();
        let data = connect_data(host_id, cntlid, SUBSYSTEM, &nqn);
        assert_eq!(self.connect(io, Sqe::connect(1, 128, 0, false), &data).status, 0);
        Station { admin, io }
    }

    fn id(&self, name: &str) -> VolumeId {
        self.volumes.find(name).unwrap()
    }

    /// Sends a command on reservations.
    fn send_reservation(&mut self, io: usize, opcode: u8, fields: u32, keys: [u64; 2]) -> u16 {
        let bytes = keys.map(u64::to_le_bytes).concat();
        let window = self.memory(&bytes);
        let sqe = Sqe::new(opcode).nsid(1).with(40, &fields.to_le_bytes());
        let cid = self.send(io, sqe, window, Carry::InCapsule);
        self.run();
        cid
    }

    /// Executes a command on reservations. Returns its status.
    fn reservation(&mut self, io: usize, opcode: u8, fields: u32, keys: [u64; 2]) -> u16 {
        let cid = self.send_reservation(io, opcode, fields, keys);
        self.links[io].host.take(cid).expect("it completes").status
    }

    fn register(&mut self, io: usize, key: u64) {
        assert_eq!(self.reservation(io, REGISTER, 0, [0, key]), 0);
    }

    fn acquire(&mut self, io: usize, kind: u32, key: u64) -> u16 {
        self.reservation(io, ACQUIRE, kind << 8, [key, 0])
    }

    fn write_status(&mut self, io: usize) -> u16 {
        let data = self.memory(&[5; 512]);
        self.execute(io, write(0, 1), data, Carry::InCapsule).status
    }

    fn read_status(&mut self, io: usize) -> u16 {
        self.fetch(io, read(0, 1), 512).err().unwrap_or(0)
    }

    fn report(&mut self, io: usize, bytes: u32) -> Result<Vec<u8>, u16> {
        let dwords = bytes / 4 - 1;
        let sqe = Sqe::new(REPORT).nsid(1).with(40, &dwords.to_le_bytes()).with(44, &[1]);
        self.fetch(io, sqe, bytes as usize)
    }

    /// The oldest notice: number, kind, others.
    fn notice(&mut self, admin: usize) -> (u64, u8, u8) {
        let log = self.fetch(admin, Sqe::log(0x80, 0, 0, 64), 64).unwrap();
        (u64::from_le_bytes(log[..8].try_into().unwrap()), log[8], log[9])
    }
}

#[test]
fn support_of_reservations_is_claimed_as_it_is() {
    let mut lab = lab();
    let Station { admin, .. } = lab.station(7);
    let controller = lab.fetch(admin, Sqe::identify(1, 0), 4096).unwrap();
    assert_eq!(controller[520] & 1 << 5, 1 << 5);
    let rescap = |lab: &mut Lab| lab.fetch(admin, Sqe::identify(0, 1), 4096).unwrap()[31];
    assert_eq!(rescap(&mut lab), 0xfe, "a volume in memory keeps nothing");
    let id = lab.id("ram0");
    assert!(lab.volumes.restore_reservations(id, &[]));
    lab.configure_for_all(vec![]);
    lab.configure_for_all(vec![namespace(1, "ram0")]);
    assert_eq!(rescap(&mut lab), 0xff);
    let log = lab.fetch(admin, Sqe::log(5, 0, 0, 4096), 4096).unwrap();
    assert!(
        [REGISTER, REPORT, ACQUIRE, RELEASE].iter().all(|&op| log[1024 + 4 * usize::from(op)] == 1)
    );
}

#[test]
fn each_type_excludes_the_commands_that_the_specification_says() {
    // By type: status of a read and a write of a registrant, and of another host.
    let table = [
        (1, [0, 1, 0, 1]),
        (2, [1; 4]),
        (3, [0, 0, 0, 1]),
        (4, [0, 0, 1, 1]),
        (5, [0, 0, 0, 1]),
        (6, [0, 0, 1, 1]),
    ];
    for (kind, expected) in table {
        let mut lab = lab();
        let (holder, registrant, other) = (lab.station(1), lab.station(2), lab.station(3));
        lab.register(holder.io, 10);
        lab.register(registrant.io, 20);
        assert_eq!(lab.acquire(holder.io, kind, 10), 0);
        assert_eq!((lab.read_status(holder.io), lab.write_status(holder.io)), (0, 0));
        let mut seen = Vec::new();
        for io in [registrant.io, other.io] {
            seen.push(lab.read_status(io));
            seen.push(lab.write_status(io));
            let write = *seen.last().unwrap();
            let read = seen[seen.len() - 2];
            let zeroes = Sqe::blocks(ZEROES, 1, 0, 1, 0);
            assert_eq!(lab.simple(io, zeroes).status, write);
            assert_eq!(lab.simple(io, Sqe::new(FLUSH).nsid(1)).status, write);
            assert_eq!(lab.simple(io, Sqe::new(FLUSH).nsid(u32::MAX)).status, write);
            let range = lab.memory(&[0; 16]);
            let dsm = Sqe::new(DSM).nsid(1).with(44, &[4]);
            assert_eq!(lab.execute(io, dsm, range, Carry::InCapsule).status, write);
            let data = lab.memory(&[0; 512]);
            let compare = Sqe::blocks(COMPARE, 1, 8, 1, 0);
            assert_eq!(lab.execute(io, compare, data, Carry::InCapsule).status, read);
            assert!(lab.report(io, 64).is_ok(), "anyone may ask");
        }
        assert_eq!(seen, expected.map(|excluded| excluded * CONFLICT), "type {kind}");
        assert_eq!(lab.acquire(other.io, kind, 0), CONFLICT, "it is not registered");
    }
}

#[test]
fn rights_belong_to_the_host_and_not_to_its_connections() {
    let mut lab = lab();
    let (one, two) = (lab.station(1), lab.station(2));
    lab.register(one.io, 10);
    assert_eq!(lab.acquire(one.io, 1, 10), 0);
    lab.cut(one.io);
    lab.cut(one.admin);
    lab.run();
    assert_eq!(lab.write_status(two.io), CONFLICT);
    // The namespace goes and comes back.
    lab.configure_for_all(vec![]);
    lab.configure_for_all(vec![namespace(1, "ram0")]);
    assert_eq!(lab.write_status(two.io), CONFLICT);
    let back = lab.station(1);
    assert_eq!(lab.write_status(back.io), 0);
    assert_eq!(lab.reservation(back.io, RELEASE, 1 << 8, [10, 0]), 0);
    assert_eq!(lab.write_status(two.io), 0);
    // The reservation is that of the volume: another namespace of it is excluded, too.
    assert_eq!(lab.acquire(back.io, 1, 10), 0);
    lab.configure_for_all(vec![namespace(1, "ram0"), namespace(2, "ram0")]);
    let data = lab.memory(&[5; 512]);
    let to_second = Sqe::blocks(WRITE, 2, 0, 1, 0);
    assert_eq!(lab.execute(two.io, to_second, data, Carry::InCapsule).status, CONFLICT);
}

#[test]
fn report_lists_registrants_and_is_cut_to_what_the_host_asks_for() {
    let mut lab = lab();
    let (one, two) = (lab.station(1), lab.station(2));
    lab.register(one.io, 10);
    lab.register(two.io, 20);
    assert_eq!(lab.acquire(two.io, 4, 20), 0);
    let report = lab.report(one.io, 192).unwrap();
    let number = |at: usize| u64::from_le_bytes(report[at..at + 8].try_into().unwrap());
    assert_eq!(report[..10], [2, 0, 0, 0, 4, 2, 0, 0, 0, 0]);
    assert_eq!((report[64..67].to_vec(), number(72)), (vec![0xff, 0xff, 0], 10));
    assert_eq!((report[128..131].to_vec(), number(136)), (vec![0xff, 0xff, 1], 20));
    assert_eq!((&report[80..96], &report[144..160]), (&[1; 16][..], &[2; 16][..]));
    assert_eq!(lab.report(one.io, 80).unwrap(), report[..80]);
    let short = Sqe::new(REPORT).nsid(1).with(40, &[15]);
    assert_eq!(lab.fetch(one.io, short, 64), Err(0x4018), "64-bit host identifiers");
    let longer_than_its_data = short.with(44, &[1]).with(40, &[255, 255, 255, 255]);
    assert_eq!(lab.fetch(one.io, longer_than_its_data, 64), Err(0x400f));
    let unknown = Sqe::new(REPORT).nsid(9).with(40, &[15]).with(44, &[1]);
    assert_eq!(lab.fetch(one.io, unknown, 64), Err(0x400b));
}

#[test]
fn invalid_commands_change_nothing() {
    let mut lab = lab();
    let one = lab.station(1);
    lab.register(one.io, 10);
    for (opcode, fields, keys, status) in [
        (REGISTER, 0, [0, 0], INVALID_FIELD),
        (REGISTER, 3, [10, 11], INVALID_FIELD),
        (REGISTER, 1 << 30, [0, 10], INVALID_FIELD),
        (REGISTER, KEEP, [0, 10], INVALID_FIELD),
        (REGISTER, 2, [11, 12], CONFLICT),
        (REGISTER, 0, [0, 11], CONFLICT),
        (ACQUIRE, 0, [10, 0], INVALID_FIELD),
        (ACQUIRE, 7 << 8, [10, 0], INVALID_FIELD),
        (ACQUIRE, 1 << 8 | 3, [10, 0], INVALID_FIELD),
        (ACQUIRE, 1 << 8 | 1 << 3, [10, 0], INVALID_FIELD),
        (ACQUIRE, 1 << 8, [11, 0], CONFLICT),
        (ACQUIRE, 1 << 8 | 1, [10, 0], INVALID_FIELD),
        (RELEASE, 1 << 3 | 1 << 8, [10, 0], INVALID_FIELD),
        (RELEASE, 2, [10, 0], INVALID_FIELD),
        (RELEASE, 1, [11, 0], CONFLICT),
    ] {
        assert_eq!(lab.reservation(one.io, opcode, fields, keys), status, "{opcode:x} {fields:x}");
    }
    let short = lab.memory(&[0; 8]);
    let register = Sqe::new(REGISTER).nsid(1);
    assert_eq!(lab.execute(one.io, register, short, Carry::InCapsule).status, 0x400f);
    assert_eq!(lab.simple(one.io, register).status, 0x400f);
    assert_eq!(lab.report(one.io, 64).unwrap()[..6], [1, 0, 0, 0, 0, 1]);
    // A host without an identifier cannot be told from another.
    let nameless = lab.station(0);
    assert_eq!(lab.reservation(nameless.io, REGISTER, 0, [0, 10]), 0x4015);
}

#[test]
fn registrations_beyond_the_most_are_refused_with_a_reason() {
    let mut lab = lab();
    for host in 1..=MAX_REGISTRANTS as u8 + 1 {
        let station = lab.station(host);
        let expected = if usize::from(host) > MAX_REGISTRANTS { 0x4006 } else { 0 };
        assert_eq!(lab.reservation(station.io, REGISTER, 0, [0, 5]), expected, "{host}");
        lab.cut(station.io);
        lab.cut(station.admin);
    }
    assert_eq!(lab.refusals(), ["registrants"]);
}

#[test]
fn hosts_are_notified_unless_they_do_not_want_it() {
    let mut lab = lab();
    let (one, two) = (lab.station(1), lab.station(2));
    let event = lab.send(two.admin, Sqe::new(0x0c), Window::empty(), Carry::None);
    lab.register(one.io, 10);
    lab.register(two.io, 20);
    assert_eq!(lab.acquire(one.io, 3, 10), 0);
    assert_eq!(lab.reservation(one.io, RELEASE, 3 << 8, [10, 0]), 0);
    let completion = lab.links[two.admin].host.take(event).expect("an event");
    assert_eq!(completion.result, 0x0080_0006);
    assert_eq!(lab.notice(two.admin), (1, 2, 0), "released");
    assert_eq!(lab.notice(two.admin), (0, 0, 0), "it was read");
    assert_eq!(lab.reservation(one.io, ACQUIRE, 1 << 8 | 1, [10, 20]), 0);
    lab.register(two.io, 20);
    assert_eq!(lab.reservation(one.io, RELEASE, 1, [10, 0]), 0);
    assert_eq!(lab.notice(two.admin), (2, 1, 1), "its registration was preempted");
    assert_eq!(lab.notice(two.admin), (3, 3, 0), "the reservation was");
    assert_eq!(lab.notice(one.admin), (0, 0, 0), "by itself");
    // Feature 82h.
    let mask = |value| Sqe::set_feature(0x82, value).nsid(1);
    assert_eq!(lab.simple(two.admin, mask(1)).status, INVALID_FIELD);
    assert_eq!(lab.simple(two.admin, mask(1 << 3).nsid(9)).status, 0x400b);
    assert_eq!(lab.simple(two.admin, mask(1 << 3).nsid(u32::MAX)).status, 0);
    let get = Sqe::new(0x0a).with(40, &[0x82]).nsid(1);
    assert_eq!(lab.simple(two.admin, get).result, 1 << 3);
    lab.register(one.io, 10);
    lab.register(two.io, 20);
    assert_eq!(lab.reservation(one.io, RELEASE, 1, [10, 0]), 0);
    assert_eq!(lab.notice(two.admin), (0, 0, 0));
}

#[test]
fn preempt_and_abort_is_answered_when_no_command_of_the_preempted_host_runs() {
    let mut lab = Lab::bare(Settings::default());
    let held = lab.add_slow("slow", 8, |_| {});
    lab.configure_for_all(vec![namespace(1, "slow")]);
    let (one, two) = (lab.station(1), lab.station(2));
    lab.register(one.io, 10);
    lab.register(two.io, 20);
    assert_eq!(lab.acquire(two.io, 1, 20), 0);
    let data = lab.memory(&[9; 512]);
    let running = lab.send(two.io, write(0, 1), data, Carry::InCapsule);
    lab.run();
    assert_eq!(held.borrow().waiting.len(), 1);
    let preempt = lab.send_reservation(one.io, ACQUIRE, 2 | 1 << 8, [10, 20]);
    assert_eq!(lab.links[one.io].host.take(preempt), None, "a write of the other host runs");
    assert_eq!(lab.write_status(two.io), CONFLICT);
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[two.io].host.take(running).unwrap().status, PREEMPTED);
    assert_eq!(lab.links[one.io].host.take(preempt).unwrap().status, 0);
    // The same with a host whose connection has ended.
    lab.register(two.io, 20);
    assert_eq!(lab.acquire(two.io, 1, 20), CONFLICT);
    let reads = lab.arena.alloc(512, 512).unwrap();
    lab.send(two.io, read(0, 1), reads, Carry::In);
    lab.run();
    lab.cut(two.io);
    let preempt = lab.send_reservation(one.io, ACQUIRE, 2 | 1 << 8, [10, 20]);
    assert_eq!(lab.links[one.io].host.take(preempt), None);
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[one.io].host.take(preempt).unwrap().status, 0);
}

#[test]
fn change_to_keep_is_answered_when_it_is_on_the_disk() {
    let mut lab = lab();
    let id = lab.id("ram0");
    assert!(lab.volumes.restore_reservations(id, &[]));
    lab.configure_for_all(vec![]);
    lab.configure_for_all(vec![namespace(1, "ram0")]);
    let (one, two) = (lab.station(1), lab.station(2));
    let first = lab.send_reservation(one.io, REGISTER, KEEP, [0, 10]);
    let second = lab.send_reservation(two.io, REGISTER, 0, [0, 20]);
    assert!(
        [(one.io, first), (two.io, second)].map(|(io, cid)| lab.links[io].host.take(cid))
            == [None; 2]
    );
    assert_eq!(lab.write_status(two.io), 0, "other commands go on");
    let (volume, record) = lab.volumes.next_unpersisted().unwrap();
    assert!(volume == id && lab.volumes.next_unpersisted().is_none());
    lab.volumes.reservations_persisted(id, true);
    lab.run();
    assert_eq!(lab.links[one.io].host.take(first).unwrap().status, 0);
    assert_eq!(lab.links[two.io].host.take(second), None, "it is kept, too");
    // The disk fails: nothing has changed.
    assert!(lab.volumes.next_unpersisted().unwrap().1.len() > record.len());
    lab.volumes.reservations_persisted(id, false);
    lab.run();
    assert_eq!(lab.links[two.io].host.take(second).unwrap().status, 0x06);
    assert_eq!(lab.report(one.io, 64).unwrap()[5..10], [1, 0, 0, 0, 1]);
    // Feature 83h ends it.
    let get = Sqe::new(0x0a).with(40, &[0x83]).nsid(1);
    assert_eq!(lab.simple(one.admin, get).result, 1);
    let cid = lab.send(one.admin, Sqe::set_feature(0x83, 0).nsid(1), Window::empty(), Carry::None);
    lab.run();
    assert_eq!(lab.links[one.admin].host.take(cid), None);
    assert_eq!(lab.volumes.next_unpersisted(), Some((id, vec![])));
    lab.volumes.reservations_persisted(id, true);
    lab.run();
    assert_eq!(lab.links[one.admin].host.take(cid).unwrap().status, 0);
    assert_eq!(lab.simple(one.admin, get).result, 0);
}

#[test]
fn change_of_a_host_that_has_gone_takes_effect_and_waiting_commands_go_on() {
    let mut lab = lab();
    let id = lab.id("ram0");
    assert!(lab.volumes.restore_reservations(id, &[]));
    lab.configure_for_all(vec![]);
    lab.configure_for_all(vec![namespace(1, "ram0")]);
    let (one, two, three) = (lab.station(1), lab.station(2), lab.station(3));
    lab.send_reservation(one.io, REGISTER, KEEP, [0, 10]);
    lab.send_reservation(two.io, REGISTER, 0, [0, 20]);
    let last = lab.send_reservation(three.io, REGISTER, 0, [0, 30]);
    lab.cut(one.io);
    lab.cut(two.io);
    for _ in 0..2 {
        assert!(lab.volumes.next_unpersisted().is_some());
        lab.volumes.reservations_persisted(id, true);
        lab.run();
    }
    assert_eq!(lab.links[three.io].host.take(last).unwrap().status, 0);
    let registered = lab.volumes.reservations(id).registrants();
    let keys: Vec<u64> = registered.iter().map(|one| one.key).collect();
    assert_eq!(keys, [10, 30], "the second command was not executed before its host went");
    assert_eq!(lab.volumes.reservations(id).kind(), None::<Kind>);
}

#[test]
fn preempting_host_that_goes_while_a_disk_is_silent_leaves_nothing_behind() {
    let mut lab = Lab::bare(Settings::default());
    let _held = lab.add_slow("slow", 8, |_| {});
    lab.configure_for_all(vec![namespace(1, "slow")]);
    let victim = lab.station(2);
    lab.register(victim.io, 20);
    let data = lab.memory(&[9; 512]);
    lab.send(victim.io, write(0, 1), data, Carry::InCapsule);
    lab.run();
    for _ in 0..3 {
        let one = lab.station(1);
        let _ = lab.reservation(one.io, REGISTER, 2 | 1 << 3, [0, 10]);
        let preempt = lab.send_reservation(one.io, ACQUIRE, 2 | 1 << 8, [10, 20]);
        assert_eq!(lab.links[one.io].host.take(preempt), None);
        assert_eq!(lab.target.reserving.waits(), 1);
        lab.cut(one.io);
        lab.cut(one.admin);
        assert_eq!(lab.target.reserving.waits(), 0);
        lab.register(victim.io, 20);
    }
}

/// A host that may only read must not exclude those that write.
#[test]
fn host_of_a_read_only_namespace_cannot_fence_the_writers() {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("ram0", 1 << 20);
    let reader = NamespaceConfig { read_only: true, ..namespace(2, "ram0") };
    lab.configure_for_all(vec![namespace(1, "ram0"), reader]);
    let (writer, other) = (lab.station(1), lab.station(2));
    let on_reader = |lab: &mut Lab, opcode, fields: u32, keys: [u64; 2]| {
        let window = lab.memory(&keys.map(u64::to_le_bytes).concat());
        let sqe = Sqe::new(opcode).nsid(2).with(40, &fields.to_le_bytes());
        lab.execute(other.io, sqe, window, Carry::InCapsule).status
    };
    lab.register(writer.io, 10);
    assert_eq!(on_reader(&mut lab, REGISTER, 0, [0, 20]), PROTECTED);
    // Nor by a registration over another namespace; but it can give that up.
    lab.register(other.io, 20);
    for (opcode, fields) in [(ACQUIRE, 2 << 8), (ACQUIRE, 1 | 2 << 8), (RELEASE, 1)] {
        assert_eq!(on_reader(&mut lab, opcode, fields, [20, 10]), PROTECTED);
    }
    assert_eq!(on_reader(&mut lab, REGISTER, 1, [20, 0]), 0);
    assert_eq!(lab.write_status(writer.io), 0);
}
