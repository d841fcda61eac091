//! The gateway exports a disk with a volatile cache.

use crate::rnbd::wire::{AccessMode, CachePolicy, Io, IoFlags, Operation};
use crate::testing::{World, user_io};
use crate::volume::testing::ModelDisk;
use crate::volume::{DiskVolume, VolumeId};
use drivers::hal::{self, Arena, Disk, Geometry, SubmitError};
use rtrs::Errno;
use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;

/// The disk, shared with the test.
#[derive(Clone)]
struct Shared(Rc<RefCell<ModelDisk>>);

impl Disk for Shared {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry()
    }
    fn depth(&self) -> usize {
        self.0.borrow().depth()
    }
    fn submit(&mut self, request: &hal::Request) -> Result<(), SubmitError> {
        self.0.borrow_mut().submit(request)
    }
    fn flush_queue(&mut self) {
        self.0.borrow_mut().flush_queue();
    }
    fn poll(&mut self) -> Option<hal::Completion> {
        self.0.borrow_mut().poll()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

#[test]
fn flush_reaches_the_medium_and_an_error_concerns_one_request() {
    let mut arena = Arena::on_heap(1 << 16);
    let disk = Shared(Rc::new(RefCell::new(ModelDisk::new(&mut arena, 2))));
    let volume = Box::new(DiskVolume::new(disk.clone(), false));
    let mut world = World::with_volume(World::small(true), 1 << 20, volume);
    let client = world.connect("s1");
    let device = world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(device.cache_policy, CachePolicy::WRITEBACK | CachePolicy::FUA);
    let medium = |sector: usize| disk.0.borrow().durable[sector * 512];

    world.write(client, &user_io(Operation::Write, 1, 8192), &[1; 8192]).unwrap();
    assert_eq!(medium(1), 0, "in the cache");
    world.read(client, &user_io(Operation::Flush, u64::MAX, 0), 0).unwrap();
    assert_eq!((medium(1), medium(16), medium(17)), (1, 1, 0));
    let mut fua = Io {
        device: 0,
        sector: 3,
        operation: Operation::Write,
        flags: IoFlags::SYNC | IoFlags::FUA,
        size: 512,
        priority: 0,
    };
    world.write(client, &fua.emit(), &[2; 512]).unwrap();
    assert_eq!((medium(2), medium(3), medium(4)), (1, 2, 1));
    let back = world.read(client, &user_io(Operation::Read, 0, 8192), 8192).unwrap();
    assert_eq!((back[0], back[512], back[3 * 512]), (0, 1, 2));

    disk.0.borrow_mut().bad_sector = Some(40);
    fua.sector = 40;
    assert_eq!(world.write(client, &fua.emit(), &[3; 512]), Err(Errno::EIO));
    assert_eq!(world.read(client, &user_io(Operation::Read, 40, 512), 512), Err(Errno::EIO));
    fua.sector = 41;
    world.write(client, &fua.emit(), &[3; 512]).unwrap();
    assert_eq!((medium(40), medium(41)), (0, 3));
    let zeroes = user_io(Operation::WriteZeroes, 0, 512);
    assert_eq!(world.write(client, &zeroes, &[]), Err(Errno::EOPNOTSUPP));
    world.write(client, &user_io(Operation::Discard, 41, 512), &[]).unwrap();
    assert_eq!(world.read(client, &user_io(Operation::Read, 41, 512), 512).unwrap(), [0; 512]);
    let stats = world.server.volume_stats(VolumeId(0)).unwrap();
    assert_eq!((stats.others, stats.errors), (2, 3), "one flush and one discard");
}
