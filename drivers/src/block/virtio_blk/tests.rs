use super::VirtioBlk;
use super::dump::VirtioBlkCrash;
use crate::driver::Class;
use crate::hal::{
    Completion, CrashWriter, Disk, DiskError, Features, Instant, Operation, Platform, Request,
    SubmitError, Window,
};
use crate::virtio::model::{Chain, Machine, Model};
use crate::virtio::{Error, attach, attach_polled};
use proptest::prelude::*;
use std::vec::Vec;

const MODERN: u64 = 1 << 32;
const EVENT_INDEX: u64 = 1 << 29;
/// Block size, flush, topology, discard, write-zeroes.
const ALL: u64 = MODERN | EVENT_INDEX | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 14;
const SECTORS: u64 = 2048;

fn config() -> Vec<u8> {
    let mut config = std::vec![0; 60];
    config[..8].copy_from_slice(&SECTORS.to_le_bytes());
    config[20..24].copy_from_slice(&512u32.to_le_bytes());
    config[24] = 3; // physical blocks of 4096
    config[36..40].copy_from_slice(&1024u32.to_le_bytes());
    config[44..48].copy_from_slice(&8u32.to_le_bytes());
    config[48..52].copy_from_slice(&512u32.to_le_bytes());
    config
}

fn open_with(
    features: u64,
    entries: u16,
    change: impl FnOnce(&mut Vec<u8>),
) -> (Machine, Model, Result<VirtioBlk, Error>) {
    let mut machine = Machine::new(4 << 20);
    let mut config = config();
    change(&mut config);
    let model = Model::new(&machine, 2, features, &config, &[entries]);
    machine.plug_pci(4, &model);
    let device = machine.find().take(Class::Disks).remove(0);
    let transport = attach(device, &mut machine).unwrap();
    let disk = VirtioBlk::open(transport, machine.arena());
    (machine, model, disk)
}

fn open(features: u64, entries: u16) -> (Machine, Model, VirtioBlk) {
    let (machine, model, disk) = open_with(features, entries, |_| ());
    (machine, model, disk.unwrap())
}

fn buffer(machine: &mut Machine, len: usize) -> Window {
    machine.arena().alloc(len, 512).unwrap()
}

fn request(tag: u64, operation: Operation, sector: u64, data: Window) -> Request {
    Request { tag, operation, sector, data }
}

/// Serves one request as the device, from `storage`. Returns the chain and its status.
fn serve(model: &Model, storage: &mut [u8]) -> Option<(Chain, u8)> {
    let mut device = model.state();
    let chain = device.pop(0)?;
    let all = device.gather(&chain);
    let kind = u32::from_le_bytes(all[..4].try_into().unwrap());
    let sector = u64::from_le_bytes(all[8..16].try_into().unwrap());
    let data = &all[16..];
    let at = sector as usize * 512;
    let (status, len) = chain.writable.split_last().unwrap();
    assert_eq!(status.1, 1, "status is one byte");
    let room: usize = len.iter().map(|&(_, len)| len as usize).sum();
    let mut answer = Vec::new();
    let mut result = 0;
    match kind {
        0 => answer.extend_from_slice(&storage[at..at + room]),
        1 => storage[at..at + data.len()].copy_from_slice(data),
        4 => assert_eq!(sector, 0),
        8 => answer.extend_from_slice(b"vol-7\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        11 | 13 => {
            assert_eq!((sector, data.len()), (0, 16));
            let first = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
            let sectors = u32::from_le_bytes(data[8..12].try_into().unwrap()) as usize;
            let fill = if kind == 11 { 0xdd } else { data[12] };
            storage[first * 512..(first + sectors) * 512].fill(fill);
        }
        _ => result = 2,
    }
    answer.push(result);
    let written = device.scatter(&chain, &answer);
    device.push(0, chain.head, written);
    Some((chain, result))
}

fn storage() -> Vec<u8> {
    (0..SECTORS * 512).map(|i| (i / 512 + i) as u8).collect()
}

/// A device that missed a notification is notified again. An idle device is not.
#[test]
fn stalled_device_is_notified_again() {
    let (mut machine, model, mut disk) = open(ALL, 64);
    let data = buffer(&mut machine, 4096);
    let kicks = || model.state().kicks;
    for _ in 0..3 {
        disk.watch(Instant::ZERO);
    }
    assert_eq!(kicks(), 0);
    disk.submit(&request(1, Operation::Read, 0, data)).unwrap();
    disk.watch(Instant::ZERO);
    assert_eq!(kicks(), 0, "the device does not have it yet");
    disk.flush_queue();
    let before = kicks();
    disk.watch(Instant::ZERO);
    disk.watch(Instant::ZERO);
    assert_eq!(kicks(), before + 2);
    assert_eq!(disk.notice(), None, "two seconds are too short for a notice");
    (0..20).for_each(|_| disk.watch(Instant::ZERO));
    assert!(disk.notice().unwrap().text.contains("completed nothing for 10 s"));
    assert_eq!(disk.notice(), None, "one notice");
    let before = kicks() - 2;
    serve(&model, &mut storage()).unwrap();
    disk.watch(Instant::ZERO);
    disk.watch(Instant::ZERO);
    assert_eq!(kicks(), before + 2);
    assert!(disk.notice().unwrap().text.contains("works again"));
}

/// Completions are found without interrupts, which only end halts. A disk that completes a request twice, or a request
/// that was not submitted, is given up, and each request ends once.
#[test]
fn lost_interrupt_and_duplicate_or_foreign_completion_end_each_request_once() {
    for other in [None, Some(1), Some(9999)] {
        let (mut machine, model, mut disk) = open(ALL, 64);
        let window = buffer(&mut machine, 512);
        for tag in 0..3 {
            disk.submit(&request(tag, Operation::Read, 0, window)).unwrap();
        }
        disk.flush_queue();
        let mut device = model.state();
        let chains: Vec<_> = (0..3).map(|_| device.pop(0).unwrap()).collect();
        chains.iter().for_each(|chain| device.write_memory(chain.writable[1].0, &[0]));
        let head: u32 = chains[1].head.into();
        device.lie(0, head, 513, 1);
        device.lie(0, other.map_or(head, |other| head + other), 513, 1);
        drop(device);
        let ends: Vec<Completion> = core::iter::from_fn(|| disk.poll()).collect();
        assert_eq!(ends[0], Completion { tag: 1, result: Ok(()) });
        assert_eq!(ends[1..].iter().map(|end| end.tag).collect::<Vec<_>>(), [0, 2]);
        assert!(ends[1..].iter().all(|end| end.result == Err(DiskError::Broken)));
        assert_eq!(model.state().status, 0, "reset, so that it cannot reach memory");
        assert!(disk.notice().unwrap().text.contains("its host is to blame"));
    }
}

#[test]
fn operations_reach_the_storage() {
    let (mut machine, model, mut disk) = open(ALL, 64);
    let mut stored = storage();
    let data = buffer(&mut machine, 4096);
    let run = |disk: &mut VirtioBlk, stored: &mut Vec<u8>, operation, sector, data| {
        disk.submit(&request(77, operation, sector, data)).unwrap();
        assert_eq!(disk.poll(), None);
        disk.flush_queue();
        serve(&model, stored).unwrap();
        assert_eq!(disk.poll(), Some(Completion { tag: 77, result: Ok(()) }));
        assert_eq!(disk.poll(), None);
    };
    run(&mut disk, &mut stored, Operation::Read, 8, data);
    let mut bytes = [0; 4096];
    data.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, stored[4096..8192]);
    data.fill(0xab);
    run(&mut disk, &mut stored, Operation::Write, 2040, data);
    assert_eq!(stored[2040 * 512..], [0xab; 4096]);
    run(&mut disk, &mut stored, Operation::Flush, 0, Window::empty());
    run(&mut disk, &mut stored, Operation::Discard { sectors: 16 }, 32, Window::empty());
    assert_eq!(stored[32 * 512..48 * 512], [0xdd; 16 * 512]);
    for unmap in [false, true] {
        let zeroes = Operation::WriteZeroes { sectors: 512, unmap };
        run(&mut disk, &mut stored, zeroes, 1000, Window::empty());
        assert_eq!(stored[1000 * 512], unmap.into(), "the model fills with the flag");
        assert_eq!(stored[1512 * 512 - 1], unmap.into());
    }
}

#[test]
fn the_serial_number_is_asked_for_and_a_silent_disk_is_given_up() {
    let (machine, model, mut disk) = open(ALL, 64);
    let player = model.clone();
    let served = std::thread::spawn(move || {
        while serve(&player, &mut []).is_none() {
            std::thread::yield_now();
        }
    });
    assert_eq!(disk.serial(&crate::virtio::model::WallClock), "vol-7");
    served.join().unwrap();
    assert_eq!(disk.serial(&machine), "");
    assert_eq!(model.state().status, 0, "reset, because it may write the answer later");
}

#[test]
fn geometry_is_read_from_the_configuration() {
    let (_, _, disk) = open(ALL, 256);
    let shape = disk.geometry();
    assert_eq!((shape.sectors, shape.logical_block, shape.physical_block), (SECTORS, 512, 4096));
    assert_eq!((shape.max_discard_sectors, shape.discard_granularity), (1024, 4096));
    assert_eq!(shape.max_write_zeroes_sectors, 512);
    assert_eq!(shape.max_transfer, 16 << 20);
    let all = Features::VOLATILE_CACHE | Features::DISCARD | Features::WRITE_ZEROES;
    assert_eq!(shape.features, all);
    assert_eq!(disk.depth(), 85);

    let limited = |c: &mut Vec<u8>| c[8..12].copy_from_slice(&65_535u32.to_le_bytes());
    let (_, _, disk) = open_with(MODERN | 1 << 1 | 1 << 5, 4, limited);
    let disk = disk.unwrap();
    assert_eq!(disk.geometry().max_transfer, 65_024);
    assert_eq!(disk.geometry().features, Features::READ_ONLY);
    assert_eq!(disk.depth(), 1);

    let through = |c: &mut Vec<u8>| c[32] = 0;
    let (_, _, disk) = open_with(ALL | 1 << 11, 64, through);
    assert!(!disk.unwrap().geometry().features.contains(Features::VOLATILE_CACHE));
}

#[test]
fn impossible_shapes_are_refused() {
    let refuse = |features, change: fn(&mut Vec<u8>)| open_with(features, 64, change).2.err();
    let size = |c: &mut Vec<u8>| c[20..24].copy_from_slice(&1000u32.to_le_bytes());
    assert_eq!(refuse(ALL, size), Some(Error::Config("block size")));
    assert_eq!(refuse(ALL, |c| c[20..24].fill(0)), Some(Error::Config("block size")));
    assert_eq!(refuse(ALL, |c| c[..8].fill(0xff)), Some(Error::Config("capacity")));
    assert_eq!(refuse(ALL | 1 << 1, |c| c[8] = 100), Some(Error::Config("segment size")));
    assert_eq!(refuse(ALL, |c| c[24] = 200), None, "a hint only");
    let (_, _, disk) = open_with(ALL, 2, |_| ());
    assert_eq!(disk.err(), Some(Error::QueueRefused { index: 0, entries: 3 }));
}

#[test]
fn requests_outside_of_the_disk_are_refused() {
    let block = |c: &mut Vec<u8>| c[20..24].copy_from_slice(&4096u32.to_le_bytes());
    let (mut machine, _, disk) = open_with(ALL, 64, block);
    let mut disk = disk.unwrap();
    let window = buffer(&mut machine, 8192);
    let part = |len| window.slice(0, len).unwrap();
    let none = Window::empty();
    let discard = |sectors| Operation::Discard { sectors };
    let zeroes = |sectors| Operation::WriteZeroes { sectors, unmap: true };
    let bad = [
        (Operation::Read, 0, part(0)),
        (Operation::Read, 0, part(512)),
        (Operation::Read, 0, part(4097)),
        (Operation::Read, 1, part(4096)),
        (Operation::Read, SECTORS, part(4096)),
        (Operation::Write, SECTORS - 8, part(8192)),
        (Operation::Write, u64::MAX - 7, part(4096)),
        (discard(8), SECTORS, none),
        (discard(7), 0, none),
        (discard(0), 0, none),
        (discard(1032), 0, none),
        (zeroes(520), 0, none),
        (zeroes(u32::MAX), 8, none),
    ];
    for (operation, sector, data) in bad {
        let refused = disk.submit(&request(1, operation, sector, data));
        assert_eq!(refused, Err(SubmitError::Range), "{operation:?} {sector} {data:?}");
    }
    let (mut machine, _, mut disk) = open(MODERN | 1 << 5, 64);
    let window = buffer(&mut machine, 512);
    for operation in [Operation::Write, discard(8), zeroes(8)] {
        let refused = disk.submit(&request(1, operation, 0, window));
        assert_eq!(refused, Err(SubmitError::Unsupported), "read-only");
    }
    let (_, _, mut disk) = open(MODERN, 64);
    for operation in [discard(8), zeroes(8)] {
        let refused = disk.submit(&request(1, operation, 0, none));
        assert_eq!(refused, Err(SubmitError::Unsupported));
    }
    disk.submit(&request(5, Operation::Flush, 0, none)).unwrap();
    let done = Completion { tag: 5, result: Ok(()) };
    assert_eq!(disk.poll(), Some(done), "nothing to flush without a cache");
}

#[test]
fn full_queue_of_requests_completes_in_any_order() {
    let (mut machine, model, mut disk) = open(ALL, 256);
    let windows: Vec<Window> = (0..86).map(|_| buffer(&mut machine, 512)).collect();
    for (tag, window) in windows[..85].iter().enumerate() {
        disk.submit(&request(tag as u64, Operation::Read, tag as u64, *window)).unwrap();
    }
    let one_more = request(99, Operation::Read, 0, windows[85]);
    assert_eq!(disk.submit(&one_more), Err(SubmitError::Full));
    disk.flush_queue();
    assert_eq!(model.state().kicks, 1);
    let mut chains: Vec<Chain> = core::iter::from_fn(|| model.state().pop(0)).collect();
    assert_eq!(chains.len(), 85);
    chains.rotate_left(40);
    for (i, chain) in chains.iter().enumerate() {
        let mut device = model.state();
        device.write_memory(chain.writable.last().unwrap().0, &[(i % 3) as u8]);
        device.push(0, chain.head, 513);
    }
    let mut tags = Vec::new();
    for i in 0..85 {
        let completion = disk.poll().unwrap();
        let expected = [Ok(()), Err(DiskError::Io), Err(DiskError::Unsupported)][i % 3];
        assert_eq!(completion.result, expected, "an error is that request's alone");
        tags.push(completion.tag);
    }
    tags.sort();
    assert_eq!(tags, (0..85).collect::<Vec<u64>>());
    assert_eq!(disk.interrupts(), 0);
    disk.set_interrupts(true);
    disk.submit(&one_more).unwrap();
    disk.flush_queue();
    serve(&model, &mut storage()).unwrap();
    assert_eq!(disk.interrupts(), 1);
}

#[test]
fn a_resized_disk_is_noticed() {
    let (mut machine, model, mut disk) = open(ALL, 64);
    assert!(!disk.capacity_changed());
    model.state().config[..8].copy_from_slice(&4096u64.to_le_bytes());
    model.state().generation += 1;
    assert!(disk.capacity_changed());
    assert!(!disk.capacity_changed());
    assert_eq!(disk.geometry().sectors, 4096);
    let window = buffer(&mut machine, 512);
    disk.submit(&request(1, Operation::Read, 4095, window)).unwrap();
    model.state().config[..8].fill(0xff);
    assert!(!disk.capacity_changed(), "an impossible capacity is ignored");
    assert_eq!(disk.geometry().sectors, 4096);
}

/// Of a size that ends within a block of 4 KiB the last, partial block is not used, and a change of it is ignored.
#[test]
fn a_size_that_is_no_multiple_of_the_block_offers_whole_blocks() {
    for (sectors, whole) in [(2048, 2048), (2049, 2048), (2055, 2048), (7, 0), (0, 0)] {
        let (mut machine, model, disk) = open_with(ALL, 64, |c| {
            c[..8].copy_from_slice(&u64::to_le_bytes(sectors));
            c[20..24].copy_from_slice(&4096u32.to_le_bytes());
            c[36..40].copy_from_slice(&1023u32.to_le_bytes());
            c[48..52].copy_from_slice(&u32::MAX.to_le_bytes());
        });
        let mut disk = disk.unwrap();
        let shape = disk.geometry();
        assert_eq!((shape.sectors, shape.logical_block), (whole, 4096));
        assert_eq!(
            (shape.max_discard_sectors, shape.max_write_zeroes_sectors),
            (1016, u32::MAX - 7)
        );
        assert!(!disk.capacity_changed());
        let data = buffer(&mut machine, 4096);
        let read = |sector| request(1, Operation::Read, sector, data);
        assert_eq!(disk.submit(&read(whole)), Err(SubmitError::Range));
        let half = data.slice(0, 512).unwrap();
        assert!(disk.submit(&request(1, Operation::Read, whole, half)).is_err());
        // The disk grows by less than a block, and by one and a half.
        for (more, grown) in [(3, whole), (12, whole + 8)] {
            let sectors: u64 = whole + more;
            model.state().config[..8].copy_from_slice(&sectors.to_le_bytes());
            model.state().generation += 1;
            assert_eq!(disk.capacity_changed(), grown != whole, "{sectors}");
            assert_eq!(disk.geometry().sectors, grown);
            assert!(!disk.capacity_changed());
        }
        disk.submit(&read(whole)).unwrap();
        assert_eq!(disk.submit(&read(whole + 8)), Err(SubmitError::Range));
    }
}

#[test]
fn a_status_that_was_never_written_breaks_the_disk() {
    let (mut machine, model, mut disk) = open(ALL, 64);
    let window = buffer(&mut machine, 512);
    for tag in 0..3 {
        disk.submit(&request(tag, Operation::Read, 0, window)).unwrap();
    }
    disk.flush_queue();
    let mut device = model.state();
    let chain = device.pop(0).unwrap();
    device.push(0, chain.head, 513);
    drop(device);
    let ends: Vec<Completion> = core::iter::from_fn(|| disk.poll()).collect();
    assert_eq!(ends.len(), 3);
    assert!(ends.iter().all(|c| c.result == Err(DiskError::Broken)));
    assert_eq!(model.state().status, 0, "reset, so that it cannot reach memory");
    assert!(disk.notice().unwrap().text.contains("its host is to blame"));
    disk.submit(&request(9, Operation::Read, 0, window)).unwrap();
    disk.flush_queue();
    assert_eq!(disk.poll(), Some(Completion { tag: 9, result: Err(DiskError::Broken) }));
    assert_eq!(disk.poll(), None);
}

proptest! {
    /// For any bytes that the device writes: no panic, and every request ends once.
    #[test]
    fn a_device_may_write_anything(
        lies in prop::collection::vec((prop_oneof![0u32..20, any::<u32>()], any::<u32>(),
            prop_oneof![Just(1u16), 0u16..20, any::<u16>()], any::<u8>()), 1..40),
    ) {
        let (mut machine, model, mut disk) = open(ALL, 16);
        let window = buffer(&mut machine, 512);
        let mut waiting = std::collections::BTreeSet::new();
        for (tag, (id, written, step, status)) in lies.into_iter().enumerate() {
            if disk.submit(&request(tag as u64, Operation::Read, 0, window)).is_ok() {
                waiting.insert(tag as u64);
            }
            disk.flush_queue();
            let mut device = model.state();
            if device.live() {
                if let Some(chain) = device.pop(0) {
                    device.write_memory(chain.writable[1].0, &[status % 4]);
                }
                device.lie(0, id, written, step);
            }
            drop(device);
            while let Some(completion) = disk.poll() {
                prop_assert!(waiting.remove(&completion.tag));
            }
        }
        // The remaining requests end when the disk is given up.
        if model.state().live() {
            model.state().lie(0, u32::MAX, 0, 0x8000);
        }
        while let Some(completion) = disk.poll() {
            prop_assert!(waiting.remove(&completion.tag));
        }
        prop_assert!(waiting.is_empty());
    }
}

/// Serves requests as the device on another thread until `sector` has been written.
fn play(model: &Model, sector: usize) -> std::thread::JoinHandle<Vec<u8>> {
    let model = model.clone();
    std::thread::spawn(move || {
        let mut storage = std::vec![0; SECTORS as usize * 512];
        while storage[sector * 512] == 0 {
            serve(&model, &mut storage);
            std::thread::yield_now();
        }
        storage
    })
}

#[test]
fn crash_record_is_written_with_requests_in_flight() {
    for features in [ALL, MODERN] {
        let mut machine = Machine::new(4 << 20);
        let model = Model::new(&machine, 2, features, &config(), &[64]);
        machine.plug_pci(4, &model);
        let device = machine.find().take(Class::Disks).remove(0);
        let transport = attach(device, &mut machine).unwrap();
        let mut dump = VirtioBlkCrash::new(attach_polled(device, &mut machine).unwrap());
        let mut disk = VirtioBlk::open(transport, machine.arena()).unwrap();
        assert!(dump.prepare(4096, machine.arena()));
        let data = buffer(&mut machine, 512);
        // Requests that were offered, some with a notification, none served: the device is reset under them.
        for tag in 0..3 {
            disk.submit(&request(tag, Operation::Read, 8, data)).unwrap();
            disk.flush_queue();
        }
        disk.submit(&request(3, Operation::Flush, 0, Window::empty())).unwrap();
        let player = play(&model, 96);
        dump.write(96, &[0x5a; 4096]).unwrap();
        let storage = player.join().unwrap();
        assert!(storage[96 * 512..][..4096].iter().all(|&byte| byte == 0x5a));
        assert!(storage[..96 * 512].iter().chain(&storage[104 * 512..]).all(|&byte| byte == 0));
        assert!(dump.write(96, &[1; 512]).is_err(), "once");
    }
}

#[test]
fn a_dump_that_does_not_fit_or_finds_no_queue_is_an_error() {
    let (mut machine, model) = (Machine::new(4 << 20), 2);
    let model = Model::new(&machine, model, MODERN, &config(), &[2]);
    machine.plug_pci(4, &model);
    let device = machine.find().take(Class::Disks).remove(0);
    attach(device, &mut machine).unwrap();
    let dump = |bytes, machine: &mut Machine| {
        let mut dump = VirtioBlkCrash::new(attach_polled(device, machine).unwrap());
        assert!(dump.prepare(bytes, machine.arena()));
        dump
    };
    assert!(dump(512, &mut machine).write(0, &[0; 1024]).is_err());
    let refused = dump(512, &mut machine).write(0, &[0; 512]);
    assert_eq!(refused, Err("the disk cannot be set up again"));
    assert!(
        !VirtioBlkCrash::new(attach_polled(device, &mut machine).unwrap())
            .prepare(64 << 20, machine.arena())
    );
}
