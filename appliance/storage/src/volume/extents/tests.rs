//! The table of extents: power cuts at every request, torn sectors, damage, and foreign disks.

use super::super::reservation::{Command, Kind, Reservations};
use super::store::{Store, StoreEvent, StoreState};
use super::test_model::{Model, SECTORS, Unsupported, bytes, claimed, load, make, run};
use super::*;
use drivers::hal::{Arena, Disk, DiskError, Geometry};
use proptest::prelude::*;
use std::string::{String, ToString};
use std::vec::Vec;

#[test]
fn foreign_disk_needs_force_and_a_damaged_table_is_kept() {
    let mut disk = Model::new(0, true);
    disk.cache[1080] = 0x53;
    assert!(!load(&mut disk).claim(false));
    disk.cache[1080] = 0;
    // Where a copy of the table would be, and at the end.
    let last = disk.cache.len() - 1;
    for at in [32 << 10, 64 << 10, last] {
        netsim::label!(at);
        disk.cache[at] = 1;
        let mut store = load(&mut disk);
        assert_eq!(store.state(), StoreState::Foreign);
        assert!(!store.claim(false) && !store.is_busy());
        disk.cache[at] = 0;
    }

    let (mut disk, mut store) = claimed(0, true);
    assert_eq!(make(&mut store, &mut disk, Change::Create("a", 1)), StoreEvent::Done);
    disk.cache[(32 << 10) + 16] ^= 1;
    assert_eq!(load(&mut disk).table().volumes().len(), 1, "the other copy is valid");
    disk.cache[(64 << 10) + 26] ^= 1;
    let before = disk.cache.clone();
    let mut store = load(&mut disk);
    assert_eq!(store.state(), StoreState::Damaged);
    assert!(!store.claim(false));
    assert!(disk.cache == before);
}

#[test]
fn loss_of_one_copy_is_reported() {
    let (mut disk, mut store) = claimed(0, true);
    make(&mut store, &mut disk, Change::Create("a", 1));
    make(&mut store, &mut disk, Change::Create("b", 1));
    disk.cache[(64 << 10) + 26] ^= 1;
    let mut arena = Arena::on_heap(64 << 10);
    let mut store = Store::new(disk.geometry(), &mut arena).unwrap();
    assert_eq!(run(&mut store, &mut disk), StoreEvent::Loaded { one_copy: true });
}

#[test]
fn freed_space_is_zeroed_merged_and_reused() {
    for zeroes in [true, false] {
        netsim::label!(zeroes);
        let (mut disk, mut store) = claimed(0xaa, zeroes);
        let unit = UNIT / 512;
        for (change, expected) in [
            (Change::Create("a", 2 * unit), "a 1+2"),
            (Change::Create("b", 1), "a 1+2 b 3+1"),
            (Change::Grow("a", 3 * unit), "a 1+2 4+1 b 3+1"),
            (Change::Grow("a", 4 * unit), "a 1+2 4+2 b 3+1"),
            (Change::Delete("b"), "a 1+2 4+2"),
            (Change::Create("c", unit), "a 1+2 4+2 c 3+1"),
            (Change::Create("d", 10 * unit), "a 1+2 4+2 c 3+1 d 6+10"),
            (Change::Delete("c"), "a 1+2 4+2 d 6+10"),
            (Change::Grow("d", 11 * unit), "a 1+2 4+2 d 6+10 3+1"),
        ] {
            assert_eq!(make(&mut store, &mut disk, change), StoreEvent::Done);
            let mut shown = String::new();
            for volume in store.table().volumes() {
                shown += &volume.name;
                for e in &volume.extents {
                    shown += &std::format!(" {}+{}", e.start / unit, e.sectors / unit);
                }
                shown.push(' ');
            }
            assert_eq!(shown.trim_end(), expected, "{change:?}");
            for volume in store.table().volumes() {
                assert!(bytes(&disk, volume).concat().iter().all(|&byte| byte == 0));
            }
            assert_eq!(load(&mut disk).table(), store.table());
        }
        let refused = |change| store.table().changed(change, SECTORS).unwrap_err().to_string();
        assert_eq!(refused(Change::Create("e", 1)), "the disk has 0 MiB free");
        assert_eq!(refused(Change::Create("a", 1)), "the disk has a volume of that name");
        assert_eq!(
            refused(Change::Grow("a", 1)),
            "the size must not be zero, and a volume does not shrink"
        );
        assert_eq!(refused(Change::Delete("x")), "the disk has no volume of that name");
    }
}

/// A volume made of freed space in several places shows none of the former data.
#[test]
fn all_pieces_of_a_volume_are_zeroed() {
    for zeroes in [true, false] {
        netsim::label!(zeroes);
        let (mut disk, mut store) = claimed(0xaa, zeroes);
        let mut change = |disk: &mut Model, change| {
            assert_eq!(make(&mut store, disk, change), StoreEvent::Done, "{change:?}");
            store.table().volumes().to_vec()
        };
        for name in ["a", "b", "c", "d", "e"] {
            change(&mut disk, Change::Create(name, UNIT_SECTORS));
        }
        change(&mut disk, Change::Create("rest", 10 * UNIT_SECTORS));
        for name in ["a", "c", "e"] {
            change(&mut disk, Change::Delete(name));
        }
        for unit in [1, 3, 5].map(|n| n * UNIT as usize) {
            disk.cache[unit..unit + UNIT as usize].fill(0xaa);
        }
        let volumes = change(&mut disk, Change::Create("f", 3 * UNIT_SECTORS));
        let entry = volumes.iter().find(|volume| volume.name == "f").unwrap();
        assert_eq!(entry.extents.len(), 3);
        assert!(bytes(&disk, entry).concat().iter().all(|&byte| byte == 0));
    }
}

/// A disk that advertises WRITE ZEROES but rejects it gets zeroes written. A disk that rejects writes has failed.
#[test]
fn disk_that_rejects_write_zeroes_gets_zeroes_written() {
    for zeroes in [Unsupported::Zeroes, Unsupported::ZeroesAtOnce] {
        let (mut disk, mut store) = claimed(0xaa, true);
        disk.unsupported = zeroes;
        assert_eq!(make(&mut store, &mut disk, Change::Create("a", UNIT / 512)), StoreEvent::Done);
        assert!(bytes(&disk, &store.table().volumes()[0]).concat().iter().all(|&byte| byte == 0));
    }
    let (mut disk, mut store) = claimed(0xaa, true);
    disk.unsupported = Unsupported::Writes;
    let failed = StoreEvent::Failed(DiskError::Unsupported);
    assert_eq!(make(&mut store, &mut disk, Change::Create("b", UNIT / 512)), failed);
    assert_eq!(store.state(), StoreState::Ready, "it keeps its table");
    assert!(store.table().volumes().is_empty() && !store.is_busy());
    disk.unsupported = Unsupported::Nothing;
    assert_eq!(make(&mut store, &mut disk, Change::Create("b", UNIT / 512)), StoreEvent::Done);
    // A disk that cannot be read has no table.
    let mut disk = Model::new(0, true);
    disk.unsupported = Unsupported::Reads;
    let mut arena = Arena::on_heap(64 << 10);
    let mut store = Store::new(disk.geometry(), &mut arena).unwrap();
    assert_eq!(run(&mut store, &mut disk), failed);
    assert_eq!(store.state(), StoreState::Unreadable(DiskError::Unsupported));
    let message = std::format!("{}", StoreState::Unreadable(DiskError::Io));
    assert!(message.starts_with("cannot be read: the disk reported an I/O error"), "{message}");
    assert!(!store.claim(true));
}

/// A disk that has grown has room for more volumes.
#[test]
fn a_disk_that_grows_has_more_room() {
    let mut disk = Model::new(0, true);
    let mut arena = Arena::on_heap(64 << 10);
    let all = disk.geometry();
    let mut store = Store::new(Geometry { sectors: SECTORS / 2, ..all }, &mut arena).unwrap();
    run(&mut store, &mut disk);
    assert!(store.claim(false));
    run(&mut store, &mut disk);
    let large = Change::Create("a", 10 * UNIT_SECTORS);
    assert_eq!(store.change(large), Err(TableError::NoSpace(7 * UNIT_SECTORS)));
    store.set_geometry(all);
    assert_eq!(make(&mut store, &mut disk, large), StoreEvent::Done);
}

/// A request zeroes the disk's maximum of sectors, in whole blocks.
#[test]
fn space_is_zeroed_in_few_requests() {
    for (zeroes, logical_block, at_once, max_transfer, expected) in [
        (true, 512, 1024, 16 << 10, 1024),
        (true, 512, 1001, 16 << 10, 1001),
        (true, 4096, 1001, 16 << 10, 1000),
        (true, 4096, 3, 16 << 10, 8),
        (true, 512, 0, 16 << 10, 1),
        (true, 512, u32::MAX, 16 << 10, 2048),
        (false, 512, 1024, 16 << 10, 32),
        (false, 512, 1024, 22 << 10, 40),
        (false, 512, 1024, 64 << 10, 64),
        (false, 4096, 1024, 4096, 8),
    ] {
        let mut disk = Model::new(0, zeroes);
        let mut arena = Arena::on_heap(64 << 10);
        let max_write_zeroes_sectors = at_once;
        let shape = Geometry { logical_block, max_transfer, ..disk.geometry() };
        let mut store =
            Store::new(Geometry { max_write_zeroes_sectors, ..shape }, &mut arena).unwrap();
        run(&mut store, &mut disk);
        assert!(store.claim(false));
        run(&mut store, &mut disk);
        disk.zeroed.clear();
        assert_eq!(make(&mut store, &mut disk, Change::Create("a", 1)), StoreEvent::Done);
        let what =
            std::format!("{at_once} sectors or {max_transfer} bytes, by blocks of {logical_block}");
        let (last, others) = disk.zeroed.split_last().unwrap();
        assert!(others.iter().all(|&sectors| sectors == expected) && *last <= expected, "{what}");
        assert_eq!(disk.zeroed.iter().sum::<u64>(), UNIT_SECTORS, "{what}");
    }
}

/// The record of reservations with many registrants, which cross sectors of the copy. Empty for some seeds.
fn record(hosts: u8, seed: u64) -> Vec<u8> {
    let mut now = Reservations::default().with_persist(!seed.is_multiple_of(5));
    for host in 1..=hosts * 12 {
        let command = Command::Register { key: seed | 1 };
        now = now.apply(&[host; 16], command).unwrap().next;
    }
    let command = Command::Acquire { current: seed | 1, kind: Kind::WriteExclusive };
    now.apply(&[1; 16], command).unwrap().next.encode()
}

#[test]
fn reservations_are_in_the_table_until_they_or_the_volume_are_removed() {
    let (mut disk, mut store) = claimed(0, true);
    make(&mut store, &mut disk, Change::Create("a", 1));
    make(&mut store, &mut disk, Change::Create("b", 1));
    let record = record(4, 1);
    assert_eq!(store.change(Change::Reserve("c", &record)), Err(TableError::Unknown));
    make(&mut store, &mut disk, Change::Reserve("b", &record));
    make(&mut store, &mut disk, Change::Delete("a"));
    make(&mut store, &mut disk, Change::Grow("b", 2 * UNIT_SECTORS));
    let mut store = load(&mut disk);
    assert_eq!(store.table().find("b").unwrap().reservations, record);
    assert!(store.table().encode(1).starts_with(b"ISTHMVO2"), "older versions do not open it");
    make(&mut store, &mut disk, Change::Delete("b"));
    make(&mut store, &mut disk, Change::Create("b", 1));
    assert!(load(&mut disk).table().encode(1).starts_with(b"ISTHMVOL"), "all versions read it");
}

/// A copy of a table with one volume of these extents, in units, with a valid checksum.
fn copy_of(extents: &[(u32, u32)]) -> Vec<u8> {
    let mut body = std::vec![0; 12];
    body.extend([1, b'a']);
    body.extend((extents.len() as u16).to_le_bytes());
    for (start, units) in extents {
        body.extend(start.to_le_bytes());
        body.extend(units.to_le_bytes());
    }
    let entries = body.len() as u32 - 12;
    body[..4].copy_from_slice(&entries.to_le_bytes());
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&body);
    [&Table::default().encode(1)[..8], &crc.to_le_bytes(), &body].concat()
}

/// Even with a valid checksum: volumes that overlap each other or the table itself would lose data.
#[test]
fn decode_rejects_overlapping_extents() {
    for sound in [&[(1, 1)][..], &[(1, 2), (3, 1)], &[(5, 1), (1, 4)], &[]] {
        assert!(Table::decode(&copy_of(sound)).is_some(), "{sound:?}");
    }
    for wrong in [&[(0, 2)][..], &[(1, 0)], &[(1, 2), (2, 1)], &[(4, 1), (1, 4)], &[(3, 1), (3, 1)]]
    {
        assert_eq!(Table::decode(&copy_of(wrong)), None, "{wrong:?}");
    }
}

/// A copy of the table has 32 KiB, and is written in requests of the disk's maximum.
#[test]
fn a_table_is_written_in_few_requests() {
    for (max_transfer, copy) in [(8 << 10, 4), (16 << 10, 2), (20 << 10, 2), (64 << 10, 1)] {
        let mut disk = Model::new(0, true);
        let mut arena = Arena::on_heap(64 << 10);
        let geometry = Geometry { max_transfer, ..disk.geometry() };
        let mut store = Store::new(geometry, &mut arena).unwrap();
        run(&mut store, &mut disk);
        assert!(store.claim(false));
        assert_eq!(run(&mut store, &mut disk), StoreEvent::Done);
        // One copy is cleared, the other one written, and the head; two flushes.
        assert_eq!(usize::MAX - disk.life, 2 * copy + 1 + 2, "{max_transfer} bytes at once");
    }
}

/// A table needs a disk of two units, with blocks of at most 4096 bytes, and requests of 4096 bytes.
#[test]
fn disk_unfit_for_a_table_is_unusable() {
    let good = Model::new(0, false).geometry();
    let state = |geometry| {
        let mut arena = Arena::on_heap(1 << 20);
        Store::new(geometry, &mut arena).unwrap().state()
    };
    for geometry in [
        good,
        Geometry { sectors: 2 * UNIT_SECTORS, ..good },
        Geometry { logical_block: 4096, ..good },
        Geometry { max_transfer: 4096, ..good },
    ] {
        assert_eq!(state(geometry), StoreState::Loading, "{geometry:?}");
    }
    for geometry in [
        Geometry { sectors: 2 * UNIT_SECTORS - 1, ..good },
        Geometry { logical_block: 256, ..good },
        Geometry { logical_block: 1536, ..good },
        Geometry { logical_block: 8192, ..good },
        Geometry { max_transfer: 4095, ..good },
    ] {
        assert_eq!(state(geometry), StoreState::Unusable, "{geometry:?}");
    }
}

/// Space is allocated after a volume's last extent, or in the smallest piece that fits, or in the largest pieces.
#[test]
fn space_is_taken_where_it_makes_the_fewest_pieces() {
    let units = |n: u64| n * UNIT_SECTORS;
    let disk = units(21) + 7;
    let change = |table: &Table, change| table.changed(change, disk).map(|(table, _)| table);
    let mut table = Table::default();
    // 20 units are free, from the second on.
    for (name, size) in [("a", 3), ("b", 2), ("c", 5), ("d", 1), ("e", 4)] {
        table = change(&table, Change::Create(name, units(size))).unwrap();
    }
    for name in ["a", "c"] {
        table = change(&table, Change::Delete(name)).unwrap();
    }
    let at = |start, sectors| Extent { start: units(start), sectors: units(sectors) };
    assert_eq!(table.free(disk), [at(1, 3), at(6, 5), at(16, 5)]);
    let extents = |table: &Table, name| table.find(name).unwrap().extents.clone();
    let fits = change(&table, Change::Create("f", units(2) + 1)).unwrap();
    assert_eq!(extents(&fits, "f"), [at(1, 3)], "the smallest that is large enough");
    let grown = change(&table, Change::Grow("b", units(4))).unwrap();
    assert_eq!(extents(&grown, "b"), [at(4, 4)], "after its last extent");
    let grown = change(&table, Change::Grow("e", units(8))).unwrap();
    assert_eq!(extents(&grown, "e"), [at(12, 8)]);
    let pieces = change(&table, Change::Create("g", units(12))).unwrap();
    assert_eq!(extents(&pieces, "g"), [at(6, 5), at(16, 5), at(1, 2)], "the largest first");
    assert_eq!(pieces.free(disk), [at(3, 1)]);
    let all = change(&table, Change::Create("g", units(13))).unwrap();
    assert_eq!(all.free(disk), []);
    let refused = |wanted| change(&table, wanted).unwrap_err();
    assert_eq!(refused(Change::Create("g", units(13) + 1)), TableError::NoSpace(units(13)));
    assert_eq!(refused(Change::Create("g", u64::MAX)), TableError::NoSpace(units(13)));
    assert_eq!(refused(Change::Grow("e", units(4) - 1)), TableError::BadSize);
    assert_eq!(refused(Change::Create("g", 0)), TableError::BadSize);
    assert_eq!(refused(Change::Create("b", 1)), TableError::Exists);
    assert_eq!(refused(Change::Delete("a")), TableError::Unknown);
    assert_eq!(refused(Change::Grow("a", 1)), TableError::Unknown);
    let [longest, longer] = [63, 64].map(|len| "n".repeat(len));
    let named = change(&table, Change::Create(&longest, 1)).unwrap();
    assert_eq!(Table::decode(&named.encode(9)), Some((9, named)), "it is decoded");
    assert_eq!(refused(Change::Create(&longer, 1)), TableError::BadName);
    assert_eq!(refused(Change::Create("", 1)), TableError::BadName);
    assert_eq!(
        change(&table, Change::Grow("e", units(4))),
        Ok(table.clone()),
        "it has that size already"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whenever the power fails, each change is on the disk completely or not at all, new space is
    /// zeroes, and the data of volumes is unchanged.
    #[test]
    fn a_power_cut_at_any_write_leaves_the_old_table_or_the_new_one(
        changes in proptest::collection::vec((0..5u8, 0..4usize, 1..5u64, 0..20usize, any::<u64>()), 1..8),
        zeroes in any::<bool>(),
    ) {
        let (mut disk, mut store) = claimed(0xaa, zeroes);
        for (kind, name, units, life, seed) in changes {
            let name = ["a", "b", "c", "d"][name];
            let record = record(units as u8, seed);
            let change = match kind {
                0 => Change::Create(name, units * UNIT_SECTORS),
                1 => Change::Grow(name, units * UNIT_SECTORS),
                2 => Change::Delete(name),
                _ => Change::Reserve(name, &record),
            };
            let before = store.table().clone();
            let Ok((after, _)) = before.changed(change, SECTORS) else { continue };
            disk.life = life;
            store.change(change).unwrap();
            let event = run(&mut store, &mut disk);
            disk.cut(seed);
            store = load(&mut disk);
            prop_assert_eq!(store.state(), StoreState::Ready);
            let now = store.table().clone();
            prop_assert!(now == before || now == after);
            prop_assert!(event != StoreEvent::Done || now == after);
            for volume in now.volumes() {
                // The mark of each volume, then zeroes.
                let mark = volume.name.as_bytes()[0];
                let all = bytes(&disk, volume).concat();
                let marked = before.find(&volume.name).map_or(0, |old| old.sectors() as usize * 512);
                prop_assert!(all[..marked].iter().all(|&byte| byte == mark), "{}", volume.name);
                prop_assert!(all[marked..].iter().all(|&byte| byte == 0), "{}", volume.name);
                for e in &volume.extents {
                    let at = e.start as usize * 512..(e.start + e.sectors) as usize * 512;
                    disk.cache[at.clone()].fill(mark);
                    disk.durable[at].fill(mark);
                }
            }
        }
    }

    /// A power cut during a claim leaves a disk that is blank or ready, or foreign, which can be claimed by force.
    #[test]
    fn power_cut_during_a_claim_leaves_a_claimable_disk(life in 0..10usize, seed in any::<u64>()) {
        let mut disk = Model::new(0, true);
        let mut store = load(&mut disk);
        disk.life = life;
        prop_assert!(store.claim(false));
        run(&mut store, &mut disk);
        disk.cut(seed);
        let mut store = load(&mut disk);
        prop_assert!(store.state() != StoreState::Damaged);
        if store.state() != StoreState::Ready {
            let force = store.state() == StoreState::Foreign;
            prop_assert!(store.claim(force));
            prop_assert_eq!(run(&mut store, &mut disk), StoreEvent::Done);
        }
    }

    #[test]
    fn decode_rejects_changed_bytes_or_returns_a_sound_table(at in 0..200usize, value in any::<u8>()) {
        let table = Table::default();
        let (table, _) = table.changed(Change::Create("abc", 3), SECTORS).unwrap();
        let (table, _) = table.changed(Change::Create("x", 5 * UNIT_SECTORS), SECTORS).unwrap();
        let mut copy = table.encode(7);
        prop_assert_eq!(Table::decode(&copy), Some((7, table)));
        let same = copy[at] == value;
        copy[at] = value;
        // Bytes after the last entry are ignored.
        prop_assert_eq!(Table::decode(&copy).is_some(), same || at >= 24 + 1 + 3 + 2 + 8 + 1 + 1 + 2 + 8);
    }
}
