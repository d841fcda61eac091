//! Volumes on a disk to which two loops have a queue each: one loop owns them, the other has a share.

use super::catalog::{Catalog, Listing};
use super::channel::{Served, channel};
use super::extents::Extent;
use super::testing::ModelDisk;
use super::*;
use alloc::rc::Rc;
use core::cell::RefCell;
use drivers::hal::Arena;
use rtrs::Name;
use std::vec::Vec;

/// Owner and follower of a disk of 64 sectors, with the number 3.
struct Cores {
    arena: Arena,
    disk: DiskHandle<ModelDisk>,
    owner: Volumes,
    follower: Volumes,
    served: Served,
    catalog: Catalog,
    extents: Extents,
    volume: VolumeId,
}

const DISK: usize = 3;

fn map(extents: &[(u64, u64)]) -> ExtentMap {
    let extent = |&(start, sectors)| Extent { start, sectors };
    extents.iter().map(extent).collect::<Vec<_>>().into()
}

impl Cores {
    /// With a volume of two extents.
    fn new() -> Self {
        let (channel, served) = channel(1, Box::new(|| ()), Box::new(|| ()));
        let mut arena = Arena::on_heap(1 << 20);
        let disk = DiskHandle::new(ModelDisk::new(&mut arena, 8));
        let mut owner = Volumes::new();
        let extents = Rc::new(RefCell::new(map(&[(40, 8), (8, 8)])));
        let volume = DiskVolume::of_extents(disk.another(), extents.clone(), false);
        let name = Name::new("data").unwrap();
        let volume = owner.add(name, Box::new(volume.of_number(DISK))).unwrap();
        let (follower, catalog) = (Volumes::over(channel), Catalog::default());
        Cores { arena, disk, owner, follower, served, catalog, extents, volume }
    }

    /// The owner publishes its catalog, and the follower adopts it.
    fn publish(&mut self) {
        let listing = Listing { volumes: self.owner.listed(), exports: Vec::new() };
        self.catalog.publish(Arc::new(listing));
        self.adopt();
    }

    fn adopt(&mut self) {
        let disk = &self.disk;
        self.follower.adopt(&self.catalog, |place, counts| {
            let own = place.disk == DISK;
            own.then(|| Box::new(DiskShare::new(disk.another(), place, counts)) as Box<dyn Volume>)
        });
    }

    fn request(&mut self, operation: Operation, sector: u64, byte: u8) -> Request {
        let data = self.arena.alloc(1024, 512).unwrap();
        data.fill(byte);
        Request { tag: 7.into(), operation, sector, data }
    }

    fn ends(volumes: &mut Volumes) -> Vec<Result<(), VolumeError>> {
        volumes.flush_queues();
        let ends = core::iter::from_fn(|| volumes.poll(User::SERVER, VolumeId(0)));
        ends.map(|(_, done)| done.result).collect()
    }

    /// Submits a request to the follower; returns the results.
    fn follow(&mut self, request: &Request) -> Vec<Result<(), VolumeError>> {
        match self.follower.submit(self.volume, request).unwrap() {
            Ok(_) => Cores::ends(&mut self.follower),
            Err(why) => Vec::from([Err(why)]),
        }
    }
}

const WRITE: Operation = Operation::Write { durable: false };

#[test]
fn each_loop_accesses_the_disk_over_its_own_queue() {
    let mut cores = Cores::new();
    cores.publish();
    assert_eq!(cores.follower.geometry(cores.volume).unwrap().sectors, 16);
    // Across both extents.
    let write = cores.request(WRITE, 7, 5);
    assert_eq!(cores.follow(&write), [Ok(())]);
    assert!(!cores.served.pending(), "no request went to the owner");
    let into = cores.request(Operation::Read, 7, 0);
    cores.owner.submit(cores.volume, &into).unwrap().unwrap();
    assert_eq!(Cores::ends(&mut cores.owner), [Ok(())]);
    assert!(netsim::contents(&into.data) == [5; 1024]);
    assert_eq!(cores.follow(&past_end(&into)), [Err(VolumeError::PastEnd)]);
}

fn past_end(request: &Request) -> Request {
    Request { sector: 15, ..*request }
}

#[test]
fn grown_volume_is_larger_on_all_cores() {
    let mut cores = Cores::new();
    cores.publish();
    *cores.extents.borrow_mut() = map(&[(40, 8), (8, 8), (20, 4)]);
    let write = cores.request(WRITE, 15, 6);
    assert_eq!(
        cores.follow(&write),
        [Err(VolumeError::PastEnd)],
        "the follower has not adopted the new size"
    );
    cores.publish();
    assert_eq!(cores.follow(&write), [Ok(())]);
    let into = cores.request(Operation::Read, 15, 0);
    cores.owner.submit(cores.volume, &into).unwrap().unwrap();
    assert_eq!(Cores::ends(&mut cores.owner), [Ok(())]);
    assert!(netsim::contents(&into.data) == [6; 1024]);
}

/// A client closes a device or disconnects with requests in flight: until they have ended, the space is not
/// reallocated.
#[test]
fn owner_sees_requests_in_flight_on_other_cores() {
    let mut cores = Cores::new();
    cores.publish();
    let counts = cores.follower.open_counts(cores.volume).unwrap().clone();
    let device = counts.open(Some(0)).unwrap();
    let write = cores.request(WRITE, 0, 1);
    cores.follower.submit(cores.volume, &write).unwrap().unwrap();
    drop(device);
    assert_eq!(counts.retire(), Err(StillUsed::Busy));
    assert_eq!(Cores::ends(&mut cores.follower), [Ok(())]);
    assert_eq!(counts.retire(), Ok(()));
    // A rejected request does not stay counted.
    assert_eq!(cores.follow(&past_end(&write)), [Err(VolumeError::PastEnd)]);
    assert!(Cores::ends(&mut cores.follower).is_empty());
    assert_eq!(counts.retire(), Ok(()));
}

#[test]
fn removed_volume_is_released_when_it_is_idle() {
    let mut cores = Cores::new();
    cores.publish();
    let write = cores.request(WRITE, 0, 1);
    cores.follower.submit(cores.volume, &write).unwrap().unwrap();
    drop(cores.owner.remove(cores.volume));
    cores.publish();
    assert!(cores.follower.has_news(&cores.catalog), "the follower adopts the catalog again later");
    assert_eq!(Cores::ends(&mut cores.follower), [Ok(())]);
    cores.adopt();
    assert!(!cores.follower.has_news(&cores.catalog));
    assert!(cores.follower.submit(cores.volume, &write).is_none());
}

/// A loop without a queue of its own to the disk sends requests to the owner, as for any other volume.
#[test]
fn requests_without_a_queue_go_to_the_owner() {
    let mut cores = Cores::new();
    let other = ModelDisk::new(&mut cores.arena, 8);
    let other = DiskVolume::new(other, false).of_number(DISK + 1);
    cores.volume = cores.owner.add(Name::new("other").unwrap(), Box::new(other)).unwrap();
    cores.publish();
    let write = cores.request(WRITE, 0, 1);
    assert_eq!(cores.follow(&write), []);
    assert!(cores.served.pending());
    (0..2).for_each(|_| _ = cores.served.poll(&mut cores.owner));
    assert_eq!(Cores::ends(&mut cores.follower), [Ok(())]);
}
