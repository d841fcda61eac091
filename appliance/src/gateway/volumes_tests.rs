//! Tests of volumes on disks, with a disk in memory.

use super::*;
use crate::config::Document;
use crate::gateway::disks::SharedDisk;
use drivers::hal::{Completion, Features, Geometry, Operation, Request, SubmitError, Window};
use rand_core::SeedableRng;
use std::collections::VecDeque;
use std::sync::Arc;
use storage::volume::RamMemory;
use storage::volume::reservation::{Command, Kind, Reservations, Stored};

/// A disk in memory, without a cache.
struct Ram {
    memory: Window,
    done: VecDeque<Completion>,
}

impl Disk for Ram {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: (self.memory.len() / 512) as u64,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 64 << 10,
            max_discard_sectors: 0,
            discard_granularity: 512,
            max_write_zeroes_sectors: 0,
            features: Features::empty(),
        }
    }
    fn depth(&self) -> usize {
        4
    }
    fn submit(&mut self, request: &Request) -> Result<(), SubmitError> {
        let at = request.sector as usize * 512;
        let part = self.memory.slice(at, request.data.len()).ok_or(SubmitError::Range)?;
        match request.operation {
            Operation::Read => request.data.write_window(0, &part).unwrap(),
            Operation::Write => part.write_window(0, &request.data).unwrap(),
            _ => return Err(SubmitError::Unsupported),
        }
        self.done.push_back(Completion { tag: request.tag, result: Ok(()) });
        Ok(())
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }
    fn set_interrupts(&mut self, _: bool) {}
    fn interrupts(&self) -> u64 {
        0
    }
}

struct Bench {
    arena: Arena,
    memory: Window,
    disks: Vec<DiskSlot>,
    storage: Storage,
    config: Config,
}

impl Bench {
    /// Boots with a disk of 16 MiB in `memory`, and with these settings.
    fn boot(memory: Window, settings: &[(&str, &str)]) -> Self {
        let mut document = Document::default();
        for (path, value) in settings {
            document.set(path, value).unwrap();
        }
        let mut arena = Arena::on_heap(2 << 20);
        let disk = Ram { memory, done: VecDeque::new() };
        let slot = DiskSlot {
            name: "disk0".into(),
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            location: String::new(),
            device: String::new(),
            geometry: disk.geometry(),
            disk: SharedDisk::new(Box::new(disk)),
            role: Role::Free,
        };
        let mut disks = vec![slot];
        let config = document.config().clone();
        let mut rng = rand_chacha::ChaCha12Rng::seed_from_u64(1);
        let storage = Storage::new(&config, &mut disks, &mut arena, None, &mut rng, || true);
        Bench { arena, memory, disks, storage, config }
    }

    /// Polls until all work has ended. Returns the results.
    fn run(&mut self) -> Vec<Result<String, String>> {
        let mut results = Vec::new();
        for _ in 0..100_000 {
            let storage = &mut self.storage;
            let polled = storage.poll_pools(&self.config, &mut self.disks, &mut self.arena);
            results.extend(polled.outcomes.into_iter().map(|outcome| outcome.result));
        }
        results
    }

    fn order(&mut self, order: Order) -> Result<String, String> {
        self.storage.order(0, order, &mut self.disks, &mut self.arena)?;
        self.run().pop().expect("an outcome")
    }

    fn create(&mut self, name: &str, mib: u64, force: bool) -> Result<String, String> {
        self.order(Order::Create { name: name.into(), bytes: mib << 20, force })
    }

    fn mib(&self, name: &str) -> Option<u64> {
        let volume = self.storage.volumes.get(self.storage.volumes.find(name)?)?;
        Some(volume.geometry().sectors / 2048)
    }

    fn reboot(self, settings: &[(&str, &str)]) -> Self {
        Bench::boot(self.memory, settings)
    }
}

/// Returns a disk of 16 MiB. The heap of a test is zeroed.
fn disk() -> Window {
    Arena::on_heap((16 << 20) + 4096).alloc(16 << 20, 4096).unwrap()
}

const SMALL: (&str, &str) = ("volume.0.size", "64KiB");

#[test]
fn volumes_are_created_grown_and_deleted() {
    let mut bench = Bench::boot(disk(), &[SMALL]);
    assert_eq!(bench.disks[0].role, Role::Free, "a blank disk stays unused");
    let created = bench.create("a", 2, false);
    assert_eq!(created.as_deref(), Ok("volume a has 2MiB on disk 0, and is exported to everybody"));
    assert_eq!((bench.mib("a"), bench.disks[0].role), (Some(2), Role::Volumes));
    bench.create("b", 3, false).unwrap();
    let grown = bench.order(Order::Grow { name: "a".into(), bytes: 5 << 20 });
    assert_eq!(grown.as_deref(), Ok("volume a has 5MiB on disk 0"));
    assert_eq!(bench.mib("a"), Some(5), "while it is in use");
    assert!(bench.create("c", 100, false).unwrap_err().contains("MiB free"));
    assert!(bench.create("b", 1, false).unwrap_err().contains("has a volume of that name"));
    let mut bench = bench.reboot(&[SMALL]);
    assert_eq!((bench.mib("a"), bench.mib("b")), (Some(5), Some(3)));
    let id = bench.storage.volumes.find("b").unwrap();
    bench.storage.volumes.remove(id);
    bench.storage.close_volume("b");
    let deleted = bench.order(Order::Delete { name: "b".into() });
    assert_eq!((deleted.as_deref(), bench.mib("b")), (Ok("volume b is gone"), None));
    assert_eq!(bench.reboot(&[SMALL]).mib("b"), None);
}

#[test]
fn disk_with_data_is_claimed_only_by_force() {
    let memory = disk();
    memory.write(1080, &[0x53, 0xef]).unwrap();
    let mut bench = Bench::boot(memory, &[SMALL]);
    let refused = bench.create("a", 1, false).unwrap_err();
    assert!(refused.contains("holds something else") && refused.contains("force"), "{refused}");
    assert_eq!(bench.disks[0].role, Role::Free, "the disk stays unused");
    let mut magic = [0; 2];
    memory.read(1080, &mut magic).unwrap();
    assert_eq!(magic, [0x53, 0xef]);
    assert!(bench.create("a", 1, true).is_ok());
    assert_eq!(bench.reboot(&[SMALL]).mib("a"), Some(1));
}

#[test]
fn declared_volume_is_created_and_grows() {
    let declared =
        |size| [("volume.0.name", "data"), ("volume.0.size", size), ("volume.0.disk", "0")];
    let mut bench = Bench::boot(disk(), &declared("3MiB"));
    assert_eq!(bench.run(), [Ok("volume data has 3MiB on disk 0".to_string())]);
    let exports = bench.storage.wanted_exports(&bench.config);
    assert_eq!(exports.len(), 1);
    let mut bench = bench.reboot(&declared("4MiB"));
    assert_eq!(bench.run(), [Ok("volume data has 4MiB on disk 0".to_string())]);
    let mut bench = bench.reboot(&declared("1MiB"));
    assert_eq!((bench.run(), bench.mib("data")), (Vec::new(), Some(4)), "it never shrinks");
}

/// A client of a whole disk writes a table to it that has the name of another client's volume.
#[test]
fn table_on_a_whole_disk_of_clients_creates_no_volumes() {
    let mut bench = Bench::boot(disk(), &[SMALL]);
    for name in ["ledger", "evil"] {
        bench.create(name, 2, false).unwrap();
    }
    let whole = [
        ("volume", "[{name = \"ledger\", size = \"64KiB\"}]"),
        ("volume.1.name", "all"),
        ("volume.1.disk", "0"),
    ];
    let bench = bench.reboot(&whole);
    assert_eq!((bench.mib("all"), bench.disks[0].role), (Some(16), Role::Volume));
    assert_eq!(
        (bench.mib("ledger"), bench.mib("evil")),
        (Some(0), None),
        "the configured volume in memory"
    );
}

#[test]
fn memory_of_a_volume_without_clients_is_freed_at_once() {
    let mut bench = Bench::boot(disk(), &[SMALL]);
    let free = bench.arena.available();
    let memory = bench.arena.alloc(4096, 4096).unwrap();
    let memory = Arc::new(RamMemory::new(memory));
    bench.storage.retire(memory, &mut bench.arena, None, Instant::ZERO);
    assert_eq!(bench.arena.available(), free);
}

#[test]
fn disks_of_the_appliance_are_never_volumes() {
    for role in [Role::Boot, Role::Configuration] {
        let mut bench = Bench::boot(disk(), &[]);
        bench.disks[0].role = role;
        for force in [false, true] {
            let why = bench.create("a", 1, force).unwrap_err();
            assert!(why.contains("never a volume"), "{why}");
        }
        let whole = [("volume.0.name", "all"), ("volume.0.disk", "0")];
        let mut document = Document::default();
        for (path, value) in whole {
            document.set(path, value).unwrap();
        }
        let volume = &document.config().volume[0];
        let Bench { storage, disks, arena, .. } = &mut bench;
        let why = storage.add_volume(volume, disks, arena).unwrap_err();
        assert!(why.contains("never a volume"), "{why}");
        assert_eq!(bench.disks[0].role, role);
    }
}

const HOST: [u8; 16] = [1; 16];

impl Bench {
    /// Changes the reservations of a volume. Returns what the target is told when it was written.
    fn reserve(&mut self, name: &str, next: &Reservations) -> Option<bool> {
        let id = self.storage.volumes.find(name).unwrap();
        assert_eq!(self.storage.volumes.change_reservations(id, next.clone()), Stored::Pending);
        self.run();
        let (volume, is_written) = self.storage.volumes.poll_persisted()?;
        assert_eq!(volume, id);
        Some(is_written)
    }

    fn reserved(&self, name: &str) -> (Option<Kind>, usize) {
        let volumes = &self.storage.volumes;
        volumes.open_counts(volumes.find(name).unwrap()).unwrap().reservation()
    }
}

#[test]
fn reservations_are_kept_on_the_disk_and_fence_from_the_start() {
    let mut bench = Bench::boot(disk(), &[SMALL]);
    bench.create("a", 1, false).unwrap();
    bench.create("b", 1, false).unwrap();
    let id = bench.storage.volumes.find("a").unwrap();
    assert!(bench.storage.volumes.persists_reservations(id));
    let ram = bench.storage.volumes.find("ram0").unwrap();
    assert!(!bench.storage.volumes.persists_reservations(ram));

    let mut next = Reservations::default().with_persist(true);
    next = next.apply(&HOST, Command::Register { key: 5 }).unwrap().next;
    let acquire = Command::Acquire { current: 5, kind: Kind::ExclusiveAccess };
    next = next.apply(&HOST, acquire).unwrap().next;
    assert_eq!(bench.reserve("a", &next), Some(true));
    assert!(!bench.storage.is_coming("a"), "no volume is being created");
    let mut bench = bench.reboot(&[SMALL]);
    assert_eq!(bench.reserved("a"), (Some(Kind::ExclusiveAccess), 1));
    assert_eq!(bench.reserved("b"), (None, 0));
    // They last while other volumes change, and until they are not to be kept any more.
    bench.order(Order::Grow { name: "a".into(), bytes: 3 << 20 }).unwrap();
    bench.order(Order::Delete { name: "b".into() }).unwrap();
    let mut bench = bench.reboot(&[SMALL]);
    assert_eq!(bench.reserved("a"), (Some(Kind::ExclusiveAccess), 1));
    assert_eq!(bench.reserve("a", &next.with_persist(false)), Some(true));
    assert_eq!(bench.reserved("a"), (Some(Kind::ExclusiveAccess), 1), "until the reboot");
    let bench = bench.reboot(&[SMALL]);
    assert_eq!(bench.reserved("a"), (None, 0));
}

#[test]
fn reservations_of_a_volume_that_is_gone_from_its_disk_are_not_kept() {
    let mut bench = Bench::boot(disk(), &[SMALL]);
    bench.create("a", 1, false).unwrap();
    bench.storage.close_volume("a");
    let next = Reservations::default().with_persist(true);
    assert_eq!(bench.reserve("a", &next), Some(false));
    assert_eq!(bench.reserved("a"), (None, 0));
}
