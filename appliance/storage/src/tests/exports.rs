//! Names of exports, access to them, and the responses to OPEN.

use super::ends::Slow;
use crate::rnbd::server::{Export, ExportError};
use crate::rnbd::wire::{AccessMode, Open, OpenResponse, Operation, SessionInfo};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::{Request, Submitted, Volume, VolumeError, VolumeId};
use drivers::hal::{Features, Geometry};
use rtrs::{Errno, Name};
use std::boxed::Box;
use std::vec::Vec;

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

/// An export of the world's volume.
fn export(of: &str) -> Export {
    let (volume, allow, hosts) = (VolumeId(0), Vec::new(), Default::default());
    let (name, limiter) = (name(of), Default::default());
    Export { name, volume, read_only: false, allow, hosts, limiter }
}

/// A volume that has only a geometry.
struct Shaped(Geometry);

impl Volume for Shaped {
    fn geometry(&self) -> Geometry {
        self.0
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        Err(VolumeError::Io)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<crate::volume::Completion> {
        None
    }
}

#[test]
fn add_export_rejects_invalid_exports() {
    let mut world = World::new(World::small(true), 1 << 20);
    let block = |logical_block| Geometry { logical_block, ..Slow::new(1).geometry() };
    let [largest, larger] = [(1 << 15, "largest"), (1 << 16, "larger")]
        .map(|(size, of)| world.volumes.add(name(of), Box::new(Shaped(block(size)))).unwrap());
    let revision = world.server.exports_revision();
    for (refused, why) in [
        (export("/dev/ram0"), ExportError::Exists),
        (export("/"), ExportError::BadName),
        (export("a/../b"), ExportError::BadName),
        (Export { volume: VolumeId(77), ..export("none") }, ExportError::NoVolume),
        (Export { volume: larger, ..export("larger") }, ExportError::BlockSize),
    ] {
        assert_eq!(world.server.add_export(refused, &world.volumes), Err(why));
        let message = std::format!("{why}");
        let about = if why == ExportError::NoVolume { "no such volume" } else { "export" };
        assert!(message.contains(about), "{message}");
    }
    assert_eq!(world.server.exports_revision(), revision);
    let added = Export { volume: largest, ..export("largest") };
    assert_eq!(world.server.add_export(added, &world.volumes), Ok(()));
    assert_eq!(world.server.exports_revision(), revision + 1);
    assert_eq!(world.server.exports().len(), 2);
    assert!(world.server.remove_export("/dev/largest"));
    assert_eq!(world.server.exports_revision(), revision + 2);
    assert!(!world.server.remove_export("largest"));
    assert_eq!(world.server.exports(), [export("ram0")]);
}

#[test]
fn export_may_be_limited_to_sessions_and_to_reading() {
    let mut world = World::new(World::small(true), 1 << 20);
    let some = Export { allow: Vec::from([name("a"), name("b")]), ..export("some") };
    world.server.add_export(some, &world.volumes).unwrap();
    let only = Export { read_only: true, ..export("only") };
    world.server.add_export(only, &world.volumes).unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| world.connect(name));
    assert_eq!(world.open(a, "only", AccessMode::ReadWrite).err(), Some(Errno::EACCES));
    assert_eq!(world.open(a, "only", AccessMode::Migration).err(), Some(Errno::EACCES));
    assert!(world.open(a, "only", AccessMode::ReadOnly).is_ok());
    assert!(world.open(b, "some", AccessMode::ReadWrite).is_ok());
    assert_eq!(world.open(c, "some", AccessMode::ReadOnly).err(), Some(Errno::EACCES));
}

/// A session opens at most the configured number of devices (four here), and a closed device makes room for another.
#[test]
fn session_has_at_most_the_configured_devices() {
    let mut world = World::new(World::small(true), 1 << 20);
    let names = ["a", "b", "c", "d", "e"];
    for of in names {
        world.server.add_export(export(of), &world.volumes).unwrap();
    }
    let client = world.connect("s1");
    let open = |world: &mut World, of| {
        world.open(client, of, AccessMode::ReadOnly).map(|device| device.device)
    };
    let ids = names.map(|of| open(&mut world, of));
    let (Some(Err(Errno::EMFILE)), Some(&Ok(second))) = (ids.last(), ids.get(1)) else {
        panic!("{ids:?}")
    };
    assert!(ids[..4].iter().all(Result::is_ok));
    assert_eq!(world.open(client, "/dev/a", AccessMode::ReadOnly).err(), Some(Errno::EEXIST));
    let session = world.server.devices().next().unwrap().session;
    assert!(!world.server.force_close(session, 77));
    assert!(world.server.force_close(session, second));
    assert_eq!(world.server.devices().count(), 3);
    assert!(open(&mut world, "e").is_ok());
    assert_eq!(open(&mut world, "b"), Err(Errno::EMFILE));
}

/// Linux configures the block device from the response to OPEN.
#[test]
fn open_response_has_the_geometry_of_the_volume() {
    let shape = |features| Geometry {
        sectors: 1 << 20,
        logical_block: 4096,
        physical_block: 1 << 17,
        max_transfer: 1 << 18,
        max_discard_sectors: 1 << 11,
        discard_granularity: 1 << 13,
        max_write_zeroes_sectors: 1 << 12,
        features,
    };
    let can = Features::DISCARD | Features::WRITE_ZEROES;
    for (features, discards, zeroes) in [(Features::empty(), 0, 0), (can, 1 << 11, 1 << 12)] {
        let volume = Box::new(Shaped(shape(features | Features::VOLATILE_CACHE)));
        let mut world = World::with_volume(World::small(true), 1 << 20, volume);
        let client = world.connect("s1");
        let response = world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        assert_eq!((response.sectors, response.max_hw_sectors), (1 << 20, 512));
        assert_eq!((response.logical_block, response.physical_block), (4096, 1 << 15));
        assert_eq!(
            (response.max_discard_sectors, response.max_write_zeroes_sectors),
            (discards, zeroes)
        );
        assert_eq!((response.discard_granularity, response.discard_alignment), (1 << 13, 0));
        assert!(!response.secure_discard && !response.cache_policy.is_empty());
    }
    let volume = Box::new(Shaped(Geometry { sectors: 0, ..shape(can) }));
    let mut world = World::with_volume(World::small(true), 1 << 20, volume);
    let client = world.connect("s1");
    let refused = world.open(client, "ram0", AccessMode::ReadOnly).err();
    assert_eq!(refused, Some(Errno::ENXIO), "a volume that is not available yet");
    let volume = Box::new(Shaped(shape(can | Features::READ_ONLY)));
    let mut world = World::with_volume(World::small(true), 1 << 20, volume);
    let client = world.connect("s1");
    assert_eq!(world.open(client, "ram0", AccessMode::ReadWrite).err(), Some(Errno::EACCES));
    let response = world.open(client, "ram0", AccessMode::ReadOnly).unwrap();
    assert!(response.cache_policy.is_empty(), "nothing is cached");
}

/// The client's buffer for the response to SESS_INFO and OPEN has to be large enough.
#[test]
fn request_needs_room_for_its_response() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    let info = SessionInfo { version: 9 }.emit();
    let size = SessionInfo::SIZE as u32;
    assert!(world.read(client, &info, size).is_ok());
    assert_eq!(world.read(client, &info, size - 1), Err(Errno::EINVAL));
    assert_eq!(
        world.write(client, &info, &[]),
        Err(Errno::EINVAL),
        "the response to a write has no data"
    );
    let open = Open { mode: Ok(AccessMode::ReadWrite), name: name("ram0") }.emit();
    let size = OpenResponse::SIZE as u32;
    assert_eq!(world.read(client, &open, size - 1), Err(Errno::EINVAL));
    assert_eq!(world.server.devices().count(), 0, "nothing was opened");
    assert!(world.read(client, &open, size).is_ok());
    assert_eq!(world.server.devices().count(), 1);
}

/// Counts of a path are reset as in Linux, or all of them.
#[test]
fn requests_of_a_path_are_counted() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let path = world.server.transport().paths().next().unwrap().id;
    assert!(world.server.transport_mut().reset_stats(path));
    let write = user_io(Operation::Write, 0, 1024);
    world.write(client, &write, &[1; 1024]).unwrap();
    world.read(client, &user_io(Operation::Read, 0, 512), 512).unwrap();
    world.read(client, &user_io(Operation::Read, 0, 512), 512).unwrap();
    assert_eq!(world.write(client, &write, &[1; 512]), Err(Errno::EINVAL));
    let stats = *world.server.transport().paths().next().unwrap().stats;
    assert_eq!((stats.writes, stats.write_bytes), (1, 1024));
    assert_eq!((stats.reads, stats.read_bytes, stats.errors), (2, 1024, 1));
    assert_eq!((stats.read_latency.count(), stats.write_latency.count()), (2, 1));
    assert!(stats.completions >= 4);
    assert!(world.server.transport_mut().reset_rdma_stats(path));
    let after = *world.server.transport().paths().next().unwrap().stats;
    assert_eq!((after.reads, after.read_bytes, after.writes, after.write_bytes), (0, 0, 0, 0));
    assert_eq!((after.errors, after.completions), (0, stats.completions));
    assert_eq!(after.read_latency, stats.read_latency);
    assert!(world.server.transport_mut().reset_stats(path));
    let after = *world.server.transport().paths().next().unwrap().stats;
    assert_eq!(after, Default::default());
    let counters = *world.server.transport().counters();
    let connections = world.server.transport().paths().next().unwrap().connections as u64;
    assert_eq!((counters.accepted, counters.refused), (connections, 0));
    assert_eq!((counters.paths_up, counters.paths_closed, counters.malformed), (1, 0, 0));
    world.server.transport_mut().disconnect(path, context!(world, gateway));
    world.run();
    assert_eq!(world.server.transport().counters().paths_closed, 1);
    assert!(!world.server.transport_mut().reset_stats(path));
    assert!(!world.server.transport_mut().reset_rdma_stats(path));
}
