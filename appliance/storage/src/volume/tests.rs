use super::testing::ModelDisk;
use super::*;
use drivers::hal::{self, Arena};
use std::vec::Vec;

fn request(tag: u64, operation: Operation, sector: u64, data: Window) -> Request {
    Request { tag: tag.into(), operation, sector, data }
}

fn filled(arena: &mut Arena, len: usize, value: u8) -> Window {
    let window = arena.alloc(len, 64).unwrap();
    window.fill(value);
    window
}

fn bytes(window: &Window) -> Vec<u8> {
    let mut all = alloc::vec![0; window.len()];
    window.read(0, &mut all).unwrap();
    all
}

#[test]
fn ram_reads_what_was_written_and_lends_it() {
    let mut arena = Arena::on_heap(1 << 18);
    let memory = arena.alloc(1 << 16, 4096).unwrap();
    let mut ram = RamVolume::new(memory, false);
    let data = filled(&mut arena, 1024, 7);
    let write = Operation::Write { durable: false };
    assert!(matches!(ram.submit(&request(1, write, 3, data)), Ok(Submitted::Done)));
    let Ok(Submitted::Lent(lent)) = ram.submit(&request(2, Operation::Read, 2, data)) else {
        panic!("a RAM volume lends")
    };
    assert_eq!(lent.bus_address(), memory.bus_address() + 1024);
    assert_eq!(bytes(&lent), [[0; 512], [7; 512]].concat());
    let zero = Operation::WriteZeroes { sectors: 1 };
    assert!(ram.submit(&request(3, zero, 3, Window::empty())).is_ok());
    assert_eq!(bytes(&lent), [0; 1024]);
}

#[test]
fn invalid_requests_are_rejected() {
    let mut arena = Arena::on_heap(1 << 18);
    let memory = arena.alloc(1 << 16, 4096).unwrap();
    let data = filled(&mut arena, 1024, 7);
    let mut ram = RamVolume::new(memory, false);
    let write = Operation::Write { durable: true };
    let mut refused =
        |operation, sector, data| ram.submit(&request(0, operation, sector, data)).err();
    assert_eq!(refused(write, 127, data), Some(VolumeError::PastEnd));
    assert_eq!(refused(write, u64::MAX, data), Some(VolumeError::PastEnd));
    assert_eq!(refused(write, 0, data.slice(0, 100).unwrap()), Some(VolumeError::Invalid));
    let discard = Operation::Discard { sectors: 4096 };
    assert_eq!(refused(discard, 0, Window::empty()), Some(VolumeError::Invalid));
    assert_eq!(refused(Operation::Flush, u64::MAX, Window::empty()), None);
    let mut read_only = RamVolume::new(memory, true);
    for operation in [write, discard, Operation::WriteZeroes { sectors: 1 }] {
        let refused = read_only.submit(&request(0, operation, 0, data)).err();
        assert_eq!(refused, Some(VolumeError::ReadOnly));
    }
    assert!(read_only.submit(&request(0, Operation::Read, 0, data)).is_ok());
}

#[test]
fn disk_splits_large_requests_and_flushes_durable_writes() {
    let mut arena = Arena::on_heap(1 << 18);
    let mut disk = DiskVolume::new(ModelDisk::new(&mut arena, 4), false);
    let data = filled(&mut arena, 5120, 9);
    let mut run = |operation, data| {
        let pending = disk.submit(&request(5, operation, 8, data));
        assert!(matches!(pending, Ok(Submitted::Pending)));
        disk.flush_queue();
        // One poll for each part, and for the flush.
        let end = (0..4).find_map(|_| disk.poll());
        assert_eq!(end, Some(Completion { tag: 5.into(), result: Ok(()) }));
        assert_eq!(disk.poll(), None);
        disk.disk().durable[8 * 512..18 * 512].to_vec()
    };
    assert_eq!(run(Operation::Write { durable: false }, data), [0; 5120], "only in the cache");
    assert_eq!(run(Operation::Flush, Window::empty()), [9; 5120]);
    data.fill(4);
    assert_eq!(run(Operation::Write { durable: true }, data), [4; 5120]);
    data.fill(0);
    run(Operation::Read, data);
    assert_eq!(bytes(&data), [4; 5120]);
    let unsupported = disk.submit(&request(6, Operation::SecureErase { sectors: 1 }, 0, data));
    assert_eq!(unsupported.err(), Some(VolumeError::Unsupported));
}

#[test]
fn durable_write_is_a_write_through_if_the_disk_supports_it() {
    let mut arena = Arena::on_heap(1 << 18);
    let mut disk = DiskVolume::new(ModelDisk::new(&mut arena, 4).with_write_through(), false);
    assert!(
        !disk.geometry().features.contains(Features::WRITE_THROUGH),
        "volumes do not advertise write-through"
    );
    let data = filled(&mut arena, 5120, 9);
    for (sector, durable) in [(40, false), (8, true)] {
        let write = Operation::Write { durable };
        assert!(matches!(disk.submit(&request(5, write, sector, data)), Ok(Submitted::Pending)));
        disk.flush_queue();
        // One poll for each part.
        let end = (0..3).find_map(|_| disk.poll());
        assert_eq!(end, Some(Completion { tag: 5.into(), result: Ok(()) }));
    }
    let durable = &disk.disk().durable;
    assert_eq!(durable[8 * 512..18 * 512], [9; 5120]);
    assert_eq!(durable[40 * 512..50 * 512], [0; 5120], "nothing was flushed");
}

#[test]
fn full_disk_reports_busy_and_an_error_concerns_one_request() {
    let mut arena = Arena::on_heap(1 << 18);
    let mut model = ModelDisk::new(&mut arena, 2);
    model.bad_sector = Some(4);
    let mut disk = DiskVolume::new(model, false);
    let data = filled(&mut arena, 512, 1);
    let write = Operation::Write { durable: true };
    assert!(disk.submit(&request(1, write, 4, data)).is_ok());
    assert!(disk.submit(&request(2, write, 5, data)).is_ok());
    assert_eq!(disk.submit(&request(3, write, 6, data)).err(), Some(VolumeError::Busy));
    disk.flush_queue();
    let mut next = || (0..3).find_map(|_| disk.poll()).unwrap();
    let mut ends = [next(), next()];
    ends.sort_by_key(|end| end.tag.word);
    assert_eq!(ends[0], Completion { tag: 1.into(), result: Err(VolumeError::Io) });
    assert_eq!(ends[1], Completion { tag: 2.into(), result: Ok(()) });
    assert!(disk.submit(&request(3, write, 6, data)).is_ok());
}

#[test]
fn volume_names_are_unique() {
    let mut arena = Arena::on_heap(1 << 16);
    let memory = arena.alloc(1 << 15, 4096).unwrap();
    let mut volumes = Volumes::new();
    let name = rtrs::Name::new("ram0").unwrap();
    let id = volumes.add(name, alloc::boxed::Box::new(RamVolume::new(memory, false))).unwrap();
    assert!(volumes.add(name, alloc::boxed::Box::new(RamVolume::new(memory, false))).is_none());
    assert_eq!(volumes.find("ram0"), Some(id));
    assert_eq!(volumes.get(id).unwrap().geometry().sectors, 64);
}

#[test]
fn ram_volume_hides_the_former_contents_of_its_memory() {
    let mut arena = Arena::on_heap(512 << 10);
    let memory = arena.alloc(300 << 10, 4096).unwrap();
    memory.fill(0xee);
    let data = arena.alloc(4096, 4096).unwrap();
    data.fill(7);
    let mut ram = RamVolume::new(memory, false);
    let write = Operation::Write { durable: false };
    assert!(ram.submit(&request(1, write, 127, data.slice(0, 1024).unwrap())).is_ok());
    let whole = Request { data: memory, ..request(2, Operation::Read, 0, data) };
    let Ok(Submitted::Lent(lent)) = ram.submit(&whole) else { panic!("RAM lends") };
    let mut bytes = alloc::vec![1; lent.len()];
    lent.read(0, &mut bytes).unwrap();
    let written = 127 * 512..129 * 512;
    for (i, byte) in bytes.into_iter().enumerate() {
        assert_eq!(byte, if written.contains(&i) { 7 } else { 0 }, "byte {i}");
    }
}

#[test]
fn volumes_of_extents_share_a_disk_and_keep_apart() {
    use super::extents::Extent;
    use alloc::rc::Rc;
    use core::cell::RefCell;
    let mut arena = Arena::on_heap(1 << 20);
    let user = DiskHandle::new(ModelDisk::new(&mut arena, 2));
    let extents = |list: &[(u64, u64)]| -> Extents {
        let list = list.iter().map(|&(start, sectors)| Extent { start, sectors });
        Rc::new(RefCell::new(list.collect::<Vec<Extent>>().into()))
    };
    let of_a = extents(&[(8, 8), (40, 4)]);
    let mut a = DiskVolume::of_extents(user.another(), of_a.clone(), false);
    let mut b = DiskVolume::of_extents(user.another(), extents(&[(16, 8), (0, 8)]), false);
    assert_eq!((a.geometry().sectors, b.geometry().sectors), (12, 16));
    let write = Operation::Write { durable: false };
    let late = [10u64, 11].map(|tag| {
        let data = filled(&mut arena, 512 * 10, tag as u8);
        assert!(matches!(a.submit(&request(tag, write, 1, data)), Ok(Submitted::Pending)));
        data
    });
    // The disk's queue is full of other users' requests: the request waits, and is not lost.
    let ones = filled(&mut arena, 512 * 16, 1);
    assert!(matches!(b.submit(&request(20, write, 0, ones)), Ok(Submitted::Pending)));
    a.flush_queue();
    let mut done = Vec::new();
    for _ in 0..200 {
        done.extend(b.poll().map(|c| (c.tag.word, c.result)));
        done.extend(a.poll().map(|c| (c.tag.word, c.result)));
    }
    done.sort_by_key(|(tag, _)| *tag);
    assert_eq!(done, [(10, Ok(())), (11, Ok(())), (20, Ok(()))]);
    assert_eq!(late.map(|window| window.len()), [5120; 2]);

    let mut all = |volume: &mut DiskVolume<_>, sectors: usize| {
        let into = filled(&mut arena, 512 * sectors, 99);
        assert!(volume.submit(&request(1, Operation::Read, 0, into)).is_ok());
        volume.flush_queue();
        while volume.poll().is_none() {}
        bytes(&into)
    };
    let read = all(&mut a, 12);
    assert!(read[..512].iter().chain(&read[512 * 11..]).all(|&byte| byte == 0));
    assert!(read[512..512 * 11].iter().all(|&byte| byte == 10 || byte == 11));
    assert!(all(&mut b, 16).iter().all(|&byte| byte == 1));
    let grown = [(8, 8), (40, 4), (60, 4)].map(|(start, sectors)| Extent { start, sectors });
    *of_a.borrow_mut() = grown.to_vec().into();
    assert_eq!(all(&mut a, 16)[512 * 12..], [0; 4 * 512]);

    let discard = request(2, Operation::Discard { sectors: 6 }, 4, Window::empty());
    assert!(a.submit(&discard).is_ok());
    a.flush_queue();
    while a.poll().is_none() {}
    let read = all(&mut a, 16);
    assert!(read[512 * 4..512 * 10].iter().all(|&byte| byte == 0));
    assert!(read[512 * 3] > 0 && read[512 * 10] > 0, "across the extents, and no further");
    assert!(all(&mut b, 16).iter().all(|&byte| byte == 1));
    let past = request(3, write, 16, ones.slice(0, 512).unwrap());
    assert_eq!(a.submit(&past).err(), Some(VolumeError::PastEnd));
}

/// Given-up requests fail for their user at once. The disk completes its current parts later, which is not reported,
/// and gets no further parts.
#[test]
fn requests_of_a_disk_that_are_given_up_fail_at_once_and_end_late() {
    let mut arena = Arena::on_heap(1 << 18);
    let mut volume = DiskVolume::new(ModelDisk::new(&mut arena, 3), false);
    let data = arena.alloc(4096, 512).unwrap();
    data.fill(1);
    let write = Operation::Write { durable: true };
    for tag in 0..2 {
        // In two parts each, and a flush.
        assert!(matches!(
            volume.submit(&request(tag, write, 8 * tag, data)),
            Ok(Submitted::Pending)
        ));
    }
    volume.flush_queue();
    volume.give_up();
    volume.give_up();
    let failed = [0, 1].map(|_| volume.poll().map(|done| (done.tag.word, done.result)));
    assert_eq!(failed, [0, 1].map(|tag| Some((tag, Err(VolumeError::Io)))));
    assert!(!volume.is_idle(), "the disk still has them");
    assert!(!volume.releases_memory());
    // There is room for another request meanwhile.
    let read = request(7, Operation::Read, 20, data.slice(0, 512).unwrap());
    assert!(matches!(volume.submit(&read), Ok(Submitted::Pending)));
    assert_eq!(
        volume.submit(&request(8, Operation::Read, 20, data)).err(),
        Some(VolumeError::Busy)
    );
    volume.flush_queue();
    assert_eq!(volume.poll().map(|done| (done.tag.word, done.result)), Some((7, Ok(()))));
    assert_eq!(volume.poll(), None);
    assert!(volume.is_idle());
    assert_eq!(volume.disk().taken, [(0, 2048), (8, 2048), (20, 512)], "no second part, no flush");
}

/// A volume that counts how often it is polled.
struct CountsPolls(alloc::rc::Rc<core::cell::Cell<u32>>, usize);

impl Volume for CountsPolls {
    fn geometry(&self) -> Geometry {
        Geometry::ABSENT
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        self.1 += 1;
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {
        self.0.set(self.0.get() + 1);
    }
    fn poll(&mut self) -> Option<Completion> {
        self.0.set(self.0.get() + 1);
        let tag = self.1.checked_sub(1)? as u64;
        self.1 -= 1;
        Some(Completion { tag: tag.into(), result: Ok(()) })
    }
    fn is_idle(&self) -> bool {
        self.1 == 0
    }
}

/// Volumes without requests cost nothing.
#[test]
fn idle_volumes_are_not_polled() {
    let mut volumes = Volumes::new();
    let looks = alloc::rc::Rc::new(core::cell::Cell::new(0));
    let ids: Vec<VolumeId> = (0..150)
        .map(|n| {
            let name = rtrs::Name::new(&std::format!("v{n}")).unwrap();
            volumes.add(name, Box::new(CountsPolls(looks.clone(), 0))).unwrap()
        })
        .collect();
    assert!(volumes.poll(User::SERVER, VolumeId(0)).is_none());
    assert!(!volumes.are_working() && !volumes.want_turn());
    looks.set(0);
    let data = Window::empty();
    for n in [0, 63, 64, 149, 70] {
        let ask = request(0, Operation::Flush, 0, data);
        volumes.get_mut(ids[n]).unwrap().submit(&ask).unwrap();
        assert!(volumes.are_working() && !volumes.want_turn());
        volumes.flush_queues();
        let done = volumes.poll(User::SERVER, VolumeId(0));
        assert_eq!(done.map(|(id, _)| id), Some(ids[n]));
        assert!(
            volumes.poll(User::SERVER, ids[n]).is_none()
                && volumes.poll(User::SERVER, VolumeId(0)).is_none()
        );
        assert!(looks.replace(0) <= 3, "others are polled");
    }
}

/// `check` for a volume of 64 sectors in blocks of 4096 bytes that supports all operations.
#[test]
fn check_follows_from_the_geometry() {
    use Operation::{Discard, Flush, Read, SecureErase, WriteZeroes};
    let write = Operation::Write { durable: false };
    let all = Features::DISCARD | Features::WRITE_ZEROES | Features::SECURE_ERASE;
    let shape = |features| Geometry {
        sectors: 64,
        logical_block: 4096,
        physical_block: 4096,
        max_transfer: 1 << 20,
        max_discard_sectors: 16,
        discard_granularity: 4096,
        max_write_zeroes_sectors: 24,
        features,
    };
    let mut arena = Arena::on_heap(1 << 17);
    let memory = arena.alloc(64 << 10, 4096).unwrap();
    let ask = |features, operation, sector, bytes| {
        let data = memory.slice(0, bytes).unwrap();
        check(&shape(features), &request(0, operation, sector, data)).err()
    };
    let (invalid, past_end) = (Some(VolumeError::Invalid), Some(VolumeError::PastEnd));
    for operation in [Read, write] {
        assert_eq!(ask(all, operation, 56, 4096), None, "the last block");
        assert_eq!(ask(all, operation, 56, 8192), past_end);
        assert_eq!(ask(all, operation, 64, 0), None, "an empty request at the end");
        assert_eq!(ask(all, operation, u64::MAX - 7, 8192), past_end);
        assert_eq!(ask(all, operation, 4, 4096), invalid, "not aligned to a block");
        assert_eq!(ask(all, operation, 8, 4096 + 512), invalid, "not whole blocks");
        assert_eq!(ask(all, operation, 8, 4096 + 256), invalid, "not whole sectors");
    }
    let without_data: [(fn(u32) -> Operation, Features, u32); 3] = [
        (|sectors| Discard { sectors }, Features::DISCARD, 16),
        (|sectors| WriteZeroes { sectors }, Features::WRITE_ZEROES, 24),
        (|sectors| SecureErase { sectors }, Features::SECURE_ERASE, 16),
    ];
    for (operation, feature, most) in without_data {
        assert_eq!(ask(feature, operation(most), 0, 0), None);
        assert_eq!(ask(feature, operation(most + 8), 0, 0), invalid, "larger than the maximum");
        assert_eq!(ask(feature, operation(8), 56, 0), None);
        assert_eq!(ask(feature, operation(16), 56, 0), past_end);
        assert_eq!(ask(feature, operation(8), 4, 0), invalid);
        assert_eq!(ask(feature, operation(4), 8, 0), invalid);
        let others = all.difference(feature);
        assert_eq!(ask(others, operation(8), 0, 0), Some(VolumeError::Unsupported));
        let read_only = all | Features::READ_ONLY;
        assert_eq!(ask(read_only, operation(8), 0, 0), Some(VolumeError::ReadOnly));
    }
    assert_eq!(ask(Features::READ_ONLY, write, 0, 4096), Some(VolumeError::ReadOnly));
    assert_eq!(ask(Features::READ_ONLY, Read, 0, 4096), None);
    assert_eq!(ask(Features::READ_ONLY, Flush, u64::MAX, 0), None);
}

/// The name of a removed volume is free for another one, which gets another id.
#[test]
fn removed_volume_is_not_found() {
    let mut arena = Arena::on_heap(1 << 17);
    let mut ram = || {
        let memory = arena.alloc(1 << 15, 4096).unwrap();
        alloc::boxed::Box::new(RamVolume::new(memory, false))
    };
    let mut volumes = Volumes::new();
    assert_eq!(volumes.revision(), 0);
    let [one, two] = ["one", "two"].map(|name| rtrs::Name::new(name).unwrap());
    let first = volumes.add(one, ram()).unwrap();
    let second = volumes.add(two, ram()).unwrap();
    let counts = volumes.open_counts(first).unwrap().clone();
    let revision = volumes.revision();
    assert_eq!(revision, 2, "each addition changes the revision");
    assert!(volumes.remove(first).is_some());
    assert!(volumes.revision() > revision, "the removal changes the revision");
    assert!(counts.open(None).is_err(), "it cannot be opened any more");
    assert!(volumes.remove(first).is_none());
    assert_eq!((volumes.find("one"), volumes.name(first)), (None, None));
    assert!(volumes.geometry(first).is_none() && volumes.get(first).is_none());
    assert!(volumes.get_mut(first).is_none());
    let flush = request(0, Operation::Flush, 0, Window::empty());
    assert!(volumes.submit(first, &flush).is_none());
    assert_eq!(volumes.ids().collect::<Vec<_>>(), [second]);
    let again = volumes.add(one, ram()).unwrap();
    assert!(again != first && again != second);
    assert_eq!((volumes.find("one"), volumes.name(again)), (Some(again), Some("one")));
}

/// A disk whose interrupt state the test sets.
struct ScriptedDisk(bool, Option<bool>);

impl hal::Disk for ScriptedDisk {
    fn geometry(&self) -> Geometry {
        Geometry::ABSENT
    }
    fn depth(&self) -> usize {
        1
    }
    fn submit(&mut self, _: &hal::Request) -> Result<(), hal::SubmitError> {
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<hal::Completion> {
        None
    }
    fn set_interrupts(&mut self, wanted: bool) {
        self.1 = Some(wanted);
    }
    fn wakes(&self) -> bool {
        self.0
    }
    fn pending(&self) -> bool {
        self.0
    }
    fn interrupts(&self) -> u64 {
        self.1.map_or(7, u64::from)
    }
}

/// Every user of a disk reports the disk's interrupt state, which a loop checks before it halts.
#[test]
fn users_of_a_disk_report_its_interrupt_state() {
    use hal::Disk;
    for pending in [false, true] {
        let mut first = DiskHandle::new(ScriptedDisk(pending, None));
        let second = first.another();
        for user in [&first, &second] {
            assert_eq!((user.wakes(), user.pending(), user.interrupts()), (pending, pending, 7));
        }
        first.set_interrupts(pending);
        assert_eq!(second.interrupts(), u64::from(pending));
    }
}

/// Parts are as large as the disk's maximum, and consist of whole blocks, even if a block is larger than the maximum.
#[test]
fn parts_of_a_request_are_whole_blocks() {
    for (block, most, bytes, part) in [
        (512, 2048, 5120, 2048),
        (512, 2500, 5120, 2048),
        (512, 512, 2048, 512),
        (512, 100, 1024, 512),
        (4096, 8192, 16384, 8192),
        (4096, 6144, 12288, 4096),
        (4096, 1024, 8192, 4096),
    ] {
        let mut arena = Arena::on_heap(1 << 18);
        let model = ModelDisk::new(&mut arena, 4).with_blocks(block, most);
        let mut disk = DiskVolume::new(model, false);
        let data = filled(&mut arena, bytes, 9);
        let write = Operation::Write { durable: false };
        assert!(matches!(disk.submit(&request(5, write, 8, data)), Ok(Submitted::Pending)));
        disk.flush_queue();
        assert!((0..20).find_map(|_| disk.poll()).is_some());
        let parts: Vec<_> = (0..bytes)
            .step_by(part)
            .map(|at| (8 + at as u64 / 512, part.min(bytes - at)))
            .collect();
        assert_eq!(disk.disk().taken, parts, "{bytes} bytes in blocks of {block}, {most} at once");
        let mut cache = alloc::vec![0; bytes];
        data.fill(0);
        assert!(disk.submit(&request(6, Operation::Read, 8, data)).is_ok());
        disk.flush_queue();
        assert!((0..20).find_map(|_| disk.poll()).is_some());
        data.read(0, &mut cache).unwrap();
        assert!(cache.iter().all(|&byte| byte == 9));
    }
}

/// A volume that wants a turn, or does not.
struct Turns(bool);

impl Volume for Turns {
    fn geometry(&self) -> Geometry {
        Geometry::ABSENT
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
    fn wants_turn(&self) -> bool {
        self.0
    }
}

/// A loop does not halt while any volume wants a turn, whatever its index.
#[test]
fn any_volume_may_want_a_turn() {
    for wants in [None, Some(0), Some(1), Some(69)] {
        let mut volumes = Volumes::new();
        for n in 0..70 {
            let name = rtrs::Name::new(&std::format!("v{n}")).unwrap();
            volumes.add(name, Box::new(Turns(wants == Some(n)))).unwrap();
        }
        assert_eq!(volumes.want_turn(), wants.is_some(), "{wants:?}");
        assert!(volumes.poll(User::SERVER, VolumeId(0)).is_none());
        assert_eq!(volumes.want_turn(), wants.is_some(), "{wants:?}");
    }
}
