//! Requests over one path.

use super::{SECOND, World, bytes};
use crate::{Error, Notice, Operation, Settings};
use core::time::Duration;
use drivers::hal::{Features, Window};
use std::string::ToString;
use std::vec;
use std::vec::Vec;

#[test]
fn namespace_is_described_before_the_first_request() {
    let world = World::open(Settings::default(), |_| ());
    let geometry = world.client.geometry();
    assert_eq!((geometry.sectors, geometry.logical_block), (4096, 512));
    assert_eq!(geometry.features, Features::DISCARD | Features::WRITE_ZEROES);
    let status = world.status();
    assert_eq!((status.ready, status.namespace.unwrap().nsid), (1, 1));
    assert_eq!((status.paths[0].state, status.paths[0].cntlid), ("live", Some(10)));
}

#[test]
fn data_is_read_and_written_in_capsules_by_r2t_and_in_parts() {
    for (digests, data_completes, piece) in [(0, true, 1460), (3, false, 61), (2, true, 65536)] {
        let settings = Settings { digests, connections: 2, ..Settings::default() };
        let mut world = World::open(settings, |it| it.data_completes = data_completes);
        world.piece = piece;
        // In a capsule; by R2T, in pieces of MAXH2CDATA; and more than MDTS allows.
        for (tag, (block, length)) in
            [(8, 4096), (64, 64 << 10), (512, 300 << 10)].into_iter().enumerate()
        {
            let data = world.memory(length, 0xa0 + tag as u8);
            world.write(tag as u32, block, data);
            world.run();
            assert_eq!(world.take_done(), [(tag as u32, Ok(()))]);
            let start = block as usize * 512;
            let stored = &world.subsystem.memory[start..start + length];
            assert!(stored.iter().all(|byte| *byte == 0xa0 + tag as u8));
        }
        let parts = world.opcodes();
        assert_eq!(parts, [1; 5], "MDTS is 128 KiB");
        let data = world.memory(300 << 10, 0);
        world.submit(9, Operation::Read, 1024, data);
        world.run();
        assert_eq!(world.take_done(), [(9, Ok(()))]);
        let start = 1024 * 512;
        assert_eq!(bytes(&data), world.subsystem.memory[start..start + (300 << 10)]);
    }
}

#[test]
fn blocks_are_zeroed_and_deallocated_within_the_limits() {
    let mut world = World::open(Settings::default(), |it| {
        // WZSL: 32 KiB.
        it.change = Some((6, |page| page[1] = 3));
    });
    world.submit(1, Operation::WriteZeroes(100 << 10), 2048, Window::empty());
    world.submit(2, Operation::Discard(1 << 20), 0, Window::empty());
    world.run();
    assert_eq!(world.take_done(), [(1, Ok(())), (2, Ok(()))]);
    let zeroes: Vec<_> = world.subsystem.seen.iter().filter(|seen| seen.2 == 8).collect();
    assert_eq!(zeroes.iter().map(|seen| seen.3).collect::<Vec<_>>(), [2048, 2112, 2176, 2240]);
    assert!(world.subsystem.memory[2048 * 512..2248 * 512].iter().all(|byte| *byte == 0));
}

#[test]
fn flush_is_sent_only_to_a_controller_with_a_cache() {
    let mut world = World::open(Settings::default(), |_| ());
    let data = world.memory(512, 1);
    world.write(1, 0, data);
    world.flush(2);
    world.run();
    assert_eq!((world.take_done().len(), world.opcodes()), (2, [1].into()));
    let mut world = World::open(Settings::default(), |it| it.cache = true);
    assert!(world.client.geometry().features.contains(Features::VOLATILE_CACHE));
    world.write(1, 0, data);
    world.run();
    // The write carries FUA; the one before is flushed.
    world.submit(2, Operation::Write { durable: true }, 8, data);
    world.run();
    assert_eq!(world.take_done(), [(1, Ok(())), (2, Ok(()))]);
    let seen: Vec<_> = world.subsystem.seen.iter().map(|seen| (seen.2, seen.4)).collect();
    assert_eq!(seen, [(1, 0), (1, 1 << 14), (0, 0)]);
    let settings = Settings { write_through: true, ..Settings::default() };
    let mut world = World::open(settings, |it| it.cache = true);
    assert!(!world.client.geometry().features.contains(Features::VOLATILE_CACHE));
    world.write(1, 0, data);
    world.run();
    assert_eq!(world.subsystem.seen[0].4, 1 << 14);
}

#[test]
fn errors_are_retried_unless_the_controller_forbids_it() {
    let mut world = World::open(Settings::default(), |_| ());
    let data = world.memory(512, 1);
    let cases = [
        (0x06, 2, Ok(())),
        (0x06, 6, Err(Error::Io)),
        (0x4006, 1, Err(Error::Io)),
        (0x80, 1, Err(Error::PastEnd)),
        (0x4083, 1, Err(Error::Reserved)),
        (0x4182, 1, Err(Error::ReadOnly)),
    ];
    for (status, times, expected) in cases {
        world.subsystem.failing = vec![(2, status); times];
        world.submit(1, Operation::Read, 0, data);
        world.pass(3 * SECOND);
        assert_eq!(world.take_done(), [(1, expected)], "{status:x}");
        assert!(world.subsystem.failing.is_empty());
        assert_eq!(world.failure(), None);
    }
}

#[test]
fn namespace_grows_after_an_event_and_must_not_shrink() {
    let mut world = World::open(Settings::default(), |_| ());
    world.subsystem.blocks[0] = 8192;
    assert!(world.links.get_mut(&0).unwrap().announce(0x0004_0002));
    world.pass(SECOND);
    assert_eq!(world.client.geometry().sectors, 8192);
    assert!(world.notices.contains(&Notice::Grown { before: 2 << 20, now: 4 << 20 }));
    world.subsystem.blocks[0] = 100;
    assert!(world.links.get_mut(&0).unwrap().announce(0x0004_0002));
    world.pass(SECOND);
    assert_eq!(world.status().state.as_str(), "refused");
    assert!(world.failure().unwrap().to_string().contains("and has 51200"));
}

#[test]
fn idle_path_is_kept_alive() {
    let settings = Settings { keepalive: SECOND, ..Settings::default() };
    let mut world = World::open(settings, |_| ());
    world.pass(30 * SECOND);
    assert_eq!((world.failure(), world.status().ready), (None, 1));
    // The controller does not answer any more.
    world.links.get_mut(&0).unwrap().is_manual = true;
    world.pass(Duration::from_millis(2000));
    assert_eq!(world.failure(), Some(crate::Failure::Silent));
}

#[test]
fn only_namespace_is_found_and_several_need_a_choice() {
    let mut world = World::new(Settings::default());
    world.subsystem.namespaces = vec![3, 5];
    world.pass(SECOND);
    assert!(world.failure().unwrap().to_string().contains("choose one with `nsid`"));
    let settings = Settings { nsid: Some(5), ..Settings::default() };
    let world = World::open(settings, |it| it.namespaces = vec![3, 5]);
    assert_eq!(world.status().namespace.unwrap().nsid, 5);
}

#[test]
fn ended_client_shuts_its_controller_down() {
    let mut world = World::open(Settings::default(), |_| ());
    world.client.end(world.now);
    world.run();
    assert!(world.client.is_over() && world.links.is_empty());
    assert_eq!(world.failure(), None);
    assert_eq!(world.client.deadline(), None);
}
