//! Volumes of loops on two cores: one loop owns them, the other adopts its catalog and sends requests over a channel.

use super::catalog::{Catalog, Listing};
use super::channel::{Served, Wake, channel};
use super::testing::ModelDisk;
use super::*;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};
use drivers::hal::Arena;
use rtrs::Name;
use std::vec::Vec;

/// Owner and follower, and how often each was woken.
struct Cores {
    arena: Arena,
    owner: Volumes,
    follower: Volumes,
    served: Served,
    catalog: Catalog,
    woken: [Arc<AtomicUsize>; 2],
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

impl Cores {
    fn new() -> Self {
        let woken: [Arc<AtomicUsize>; 2] = Default::default();
        let wake = |n: usize| {
            let woken = woken[n].clone();
            Box::new(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            }) as Wake
        };
        let (channel, served) = channel(1, wake(0), wake(1));
        Cores {
            arena: Arena::on_heap(8 << 20),
            owner: Volumes::new(),
            follower: Volumes::over(channel),
            served,
            catalog: Catalog::default(),
            woken,
        }
    }

    fn ram(&mut self, text: &str, bytes: usize) -> VolumeId {
        let memory = self.arena.alloc(bytes, 4096).unwrap();
        self.owner.add(name(text), Box::new(RamVolume::new(memory, false))).unwrap()
    }

    fn disk(&mut self, text: &str) -> VolumeId {
        let disk = ModelDisk::new(&mut self.arena, 8);
        self.owner.add(name(text), Box::new(DiskVolume::new(disk, false))).unwrap()
    }

    /// The owner publishes its catalog, and the follower adopts it; returns the memory that is to be released.
    fn publish(&mut self) -> Vec<Arc<RamMemory>> {
        let listing = Listing { volumes: self.owner.listed(), exports: Vec::new() };
        self.catalog.publish(Arc::new(listing));
        let (_, gone) = self.follower.adopt(&self.catalog, |_, _| None).expect("a new revision");
        assert!(self.follower.adopt(&self.catalog, |_, _| None).is_none(), "once");
        gone
    }

    fn ask(
        &mut self,
        volume: VolumeId,
        word: u64,
        operation: Operation,
        data: Window,
    ) -> Submitted {
        let request = Request { tag: word.into(), operation, sector: 0, data };
        self.follower
            .submit(volume, &request)
            .expect("the volume exists")
            .expect("the request is accepted")
    }

    fn filled(&mut self, byte: u8) -> Window {
        let data = self.arena.alloc(4096, 4096).unwrap();
        data.fill(byte);
        data
    }

    /// Words and results of the follower's completed requests.
    fn completions(&mut self) -> Vec<(u64, Result<(), VolumeError>)> {
        let mut all = Vec::new();
        for _ in 0..4 {
            self.follower.flush_queues();
            self.served.poll(&mut self.owner);
            while let Some((_, done)) = self.follower.poll(User::SERVER, VolumeId(0)) {
                all.push((done.tag.word, done.result));
            }
        }
        all.sort_unstable_by_key(|(word, _)| *word);
        all
    }
}

const WRITE: Operation = Operation::Write { durable: false };

#[test]
fn both_cores_access_memory_and_only_the_owner_a_disk() {
    let mut cores = Cores::new();
    let (ram, disk) = (cores.ram("ram", 1 << 20), cores.disk("disk"));
    assert!(cores.publish().is_empty());
    let (ones, twos) = (cores.filled(1), cores.filled(2));
    assert!(matches!(cores.ask(ram, 1, WRITE, ones), Submitted::Done));
    assert!(matches!(cores.ask(disk, 2, WRITE, twos), Submitted::Pending));
    assert_eq!(cores.woken.each_ref().map(|n| n.load(Ordering::Relaxed)), [0, 0]);
    assert_eq!(cores.completions(), [(2, Ok(()))]);
    assert_eq!(cores.woken.each_ref().map(|n| n.load(Ordering::Relaxed)), [1, 1]);
    // The owner reads the data that the other core has written.
    for (volume, byte) in [(ram, 1), (disk, 2)] {
        let into = cores.filled(9);
        let read = Request { tag: 7.into(), operation: Operation::Read, sector: 0, data: into };
        let found = match cores.owner.submit(volume, &read).unwrap().unwrap() {
            Submitted::Lent(lent) => lent,
            _ => {
                cores.owner.flush_queues();
                let done = cores.owner.poll(User::SERVER, VolumeId(0)).unwrap();
                assert_eq!(done, (disk, Completion { tag: 7.into(), result: Ok(()) }));
                into
            }
        };
        let mut bytes = [0; 4096];
        found.read(0, &mut bytes).unwrap();
        assert!(bytes == [byte; 4096], "{byte}");
    }
}

/// A volume that lends memory for reads, but does not share its memory.
struct Lending(RamVolume);

impl Volume for Lending {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        self.0.submit(request)
    }
    fn flush_queue(&mut self) {
        self.0.flush_queue();
    }
    fn poll(&mut self) -> Option<Completion> {
        self.0.poll()
    }
}

/// Only a volume's owner uses lent memory; another core gets a copy.
#[test]
fn lent_memory_is_copied_for_another_core() {
    let mut cores = Cores::new();
    let memory = cores.arena.alloc(1 << 20, 4096).unwrap();
    let volume = Lending(RamVolume::new(memory, false));
    let volume = cores.owner.add(name("lending"), Box::new(volume)).unwrap();
    cores.publish();
    let (data, into) = (cores.filled(5), cores.filled(9));
    for (word, operation, data) in [(3, WRITE, data), (4, Operation::Read, into)] {
        assert!(matches!(cores.ask(volume, word, operation, data), Submitted::Pending));
        assert_eq!(cores.completions(), [(word, Ok(()))]);
    }
    assert!(netsim::contents(&into) == [5; 4096]);
}

/// A response ends a request's place in the channel: more requests than the depth succeed one after the other.
#[test]
fn response_makes_room_for_a_request() {
    let mut cores = Cores::new();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(1);
    for word in 0..2 * u64::from(super::channel::VOLUME_DEPTH) {
        cores.ask(disk, word, WRITE, data);
        assert_eq!(cores.completions(), [(word, Ok(()))]);
    }
}

/// A loop that checks for news before it halts must not miss a response.
#[test]
fn response_counts_as_news() {
    let mut cores = Cores::new();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(1);
    assert!(!cores.follower.has_news(&cores.catalog));
    cores.ask(disk, 1, WRITE, data);
    cores.follower.flush_queues();
    assert!(!cores.follower.has_news(&cores.catalog), "no response has arrived");
    for _ in 0..2 {
        cores.served.poll(&mut cores.owner);
    }
    assert!(cores.follower.has_news(&cores.catalog));
    assert_eq!(cores.completions(), [(1, Ok(()))]);
    assert!(!cores.follower.has_news(&cores.catalog));
}

#[test]
fn each_user_polls_its_own_completions() {
    let mut cores = Cores::new();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(0);
    let read = |tag: Tag| Request { tag, operation: Operation::Read, sector: 0, data };
    for word in 0..2 {
        for user in [User::SERVER, User::OPERATOR] {
            cores.owner.submit(disk, &read(Tag::new(user, word))).unwrap().unwrap();
        }
        cores.ask(disk, word, Operation::Read, data);
    }
    assert_eq!(cores.completions(), [(0, Ok(())), (1, Ok(()))]);
    assert!(cores.owner.has_kept());
    for user in [User::SERVER, User::OPERATOR] {
        let ends = core::iter::from_fn(|| cores.owner.poll(user, VolumeId(0)));
        let mut words: Vec<u64> = ends.map(|(_, done)| done.tag.word).collect();
        words.sort_unstable();
        assert_eq!(words, [0, 1], "{user:?}");
    }
    assert_eq!(cores.owner.poll_freed(), Some(disk));
    assert!(!cores.owner.has_kept());
}

/// A volume that completes no request, and accepts so many.
struct Stuck(usize);

impl Volume for Stuck {
    fn geometry(&self) -> Geometry {
        Geometry { sectors: 8, ..Geometry::ABSENT }
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        self.0 = self.0.checked_sub(1).ok_or(VolumeError::Busy)?;
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

/// A volume that counts calls of `flush_queue`.
struct CountsFlushes(Stuck, Arc<AtomicUsize>);

impl Volume for CountsFlushes {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        self.0.submit(request)
    }
    fn flush_queue(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
    fn poll(&mut self) -> Option<Completion> {
        None
    }
}

/// A write to a device's register is expensive: the device is notified after requests, not at every poll.
#[test]
fn device_is_notified_once_for_requests_of_another_core() {
    let mut cores = Cores::new();
    let flushes: Arc<AtomicUsize> = Default::default();
    let volume = Box::new(CountsFlushes(Stuck(3), flushes.clone()));
    let volume = cores.owner.add(name("counts"), volume).unwrap();
    cores.publish();
    let data = cores.filled(0);
    for n in 1..=2 {
        cores.ask(volume, n as u64, Operation::Read, data);
        cores.follower.flush_queues();
        (0..5).for_each(|_| _ = cores.served.poll(&mut cores.owner));
        assert_eq!(flushes.load(Ordering::Relaxed), n);
    }
}

#[test]
fn stuck_volume_does_not_block_others() {
    let mut cores = Cores::new();
    let stuck = cores.owner.add(name("stuck"), Box::new(Stuck(3))).unwrap();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(0);
    let read = Request { tag: 0.into(), operation: Operation::Read, sector: 0, data };
    let taken = (0..1000).take_while(|_| cores.follower.submit(stuck, &read).unwrap().is_ok());
    assert_eq!(taken.count(), 128, "more than its share");
    for word in 0..20 {
        cores.ask(disk, word, Operation::Read, data);
    }
    let answered = cores.completions();
    assert_eq!(answered.len(), 20, "{answered:?}");
}

#[test]
fn memory_of_a_removed_volume_is_released_by_every_core() {
    let mut cores = Cores::new();
    let ram = cores.ram("ram", 1 << 20);
    cores.publish();
    let counts = cores.follower.open_counts(ram).unwrap().clone();
    let device = counts.open(Some(0)).unwrap();
    let retired = cores.owner.open_counts(ram).unwrap().retire();
    assert_eq!(retired, Err(StillUsed::Open), "another core has it open");
    cores.owner.open_counts(ram).unwrap().keep();
    drop(device);
    let memory = cores.owner.remove(ram).unwrap().into_parts().shared.unwrap();
    assert!(counts.open(None).is_err(), "it is removed, and the follower has not adopted that");
    assert_eq!(Arc::strong_count(&memory), 3, "the catalog and the follower have it");
    let gone = cores.publish();
    assert!(gone.len() == 1 && Arc::ptr_eq(&gone[0], &memory));
    let data = cores.filled(0);
    let read = Request { tag: 0.into(), operation: Operation::Read, sector: 0, data };
    assert!(cores.follower.submit(ram, &read).is_none());
    drop(gone);
    assert_eq!(Arc::strong_count(&memory), 1);
    // A reused name is another volume.
    let again = cores.ram("ram", 4096);
    assert_ne!(again, ram);
    cores.publish();
    assert!(matches!(cores.ask(again, 1, Operation::Read, data), Submitted::Lent(_)));
}

#[test]
fn request_for_a_removed_volume_fails() {
    let mut cores = Cores::new();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(0);
    cores.ask(disk, 5, Operation::Read, data);
    drop(cores.owner.remove(disk));
    assert_eq!(cores.completions(), [(5, Err(VolumeError::Io))]);
}

/// Two threads use memory for the first time at once: neither sees the former contents, nor loses its own
/// writes.
#[test]
fn memory_is_zeroed_once_for_all_cores() {
    const BYTES: usize = 4 << 20;
    for round in 0..20 {
        let mut arena = Arena::on_heap(BYTES + 4096);
        let memory = arena.alloc(BYTES, 4096).unwrap();
        memory.fill(0xaa);
        let first = RamVolume::new(memory, false);
        let shared = first.shared_memory().unwrap().clone();
        let mut both = [(first.geometry(), shared.clone()), (first.geometry(), shared)];
        std::thread::scope(|scope| {
            for (n, (geometry, memory)) in both.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut volume = RamVolume::of_shared(memory.clone(), *geometry);
                    let mut arena = Arena::on_heap(16384);
                    let data = arena.alloc(512, 512).unwrap();
                    data.fill(n as u8 + 1);
                    // One thread writes the even sectors, one the odd ones, in opposite orders.
                    let sectors = (BYTES / 512) as u64;
                    for step in (0..sectors).step_by(32) {
                        let place = if (n + round) % 2 == 0 { step } else { sectors - 32 - step };
                        let sector = place + n as u64;
                        let request = Request { tag: 0.into(), operation: WRITE, sector, data };
                        volume.submit(&request).unwrap();
                    }
                });
            }
        });
        let (_, memory) = &both[0];
        let mut sector = [0; 512];
        for at in (0..BYTES).step_by(512) {
            memory.window().read(at, &mut sector).unwrap();
            let wanted = match at / 512 % 32 {
                n @ 0..=1 => n as u8 + 1,
                _ => 0,
            };
            assert!(sector == [wanted; 512], "round {round}, byte {at}");
        }
    }
}

#[test]
fn request_that_waits_for_the_owner_while_a_host_reserves_the_volume_is_refused() {
    use super::reservation::{Command, Kind, Reservations, Stored};
    let mut cores = Cores::new();
    let disk = cores.disk("disk");
    cores.publish();
    let data = cores.filled(1).slice(0, 512).unwrap();
    for word in 0..12 {
        cores.ask(disk, word, WRITE, data);
    }
    cores.ask(disk, 12, Operation::Read, data);
    cores.follower.flush_queues();
    // The disk takes 8, the others wait for it.
    cores.served.poll(&mut cores.owner);
    let host = [7; 16];
    let registered = Reservations::NONE.apply(&host, Command::Register { key: 1 }).unwrap().next;
    let acquire = Command::Acquire { current: 1, kind: Kind::WriteExclusive };
    let held = registered.apply(&host, acquire).unwrap().next;
    assert_eq!(cores.owner.change_reservations(disk, held), Stored::Done);
    let done = cores.completions();
    assert_eq!(done.len(), 13);
    let refused = done.iter().filter(|(_, result)| *result == Err(VolumeError::Reserved)).count();
    assert_eq!((refused, done[0].1, done[11].1), (4, Ok(()), Err(VolumeError::Reserved)));
    assert_eq!(done[12], (12, Ok(())), "readers are not excluded");
}
