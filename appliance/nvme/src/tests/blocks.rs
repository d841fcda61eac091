//! Commands on blocks.

use super::*;
use proptest::prelude::*;

#[test]
fn writes_of_all_sizes_and_places_are_read_back() {
    for digests in [0, 3] {
        let mut lab = Lab::new();
        lab.digests = digests;
        let (_, io) = lab.both();
        for (n, blocks) in [1u32, 2, 8, 15, 16, 17, 64, 255, 256].into_iter().enumerate() {
            for carry in [Carry::InCapsule, Carry::Out] {
                let len = blocks as usize * 512;
                if carry == Carry::InCapsule && len > 8192 {
                    continue;
                }
                let bytes = pattern(len, n as u8);
                let window = lab.memory(&bytes);
                let first = u64::from(2048 - blocks);
                assert_eq!(lab.execute(io, write(first, blocks), window, carry).status, 0);
                assert_eq!(lab.fetch(io, read(first, blocks), len).unwrap(), bytes, "{blocks}");
            }
        }
    }
}

#[test]
fn blocks_beyond_the_end_are_refused() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    for (first, blocks) in [(2048, 1), (2047, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 60, 8)] {
        let len = blocks as usize * 512;
        assert_eq!(lab.fetch(io, read(first, blocks), len), Err(0x4080), "{first}");
        let window = lab.memory(&pattern(len, 0));
        let written = lab.execute(io, write(first, blocks), window, Carry::InCapsule);
        assert_eq!(written.status, 0x4080);
        let zeroed = lab.simple(io, Sqe::blocks(ZEROES, 1, first, blocks, 0));
        assert_eq!(zeroed.status, 0x4080);
    }
    assert_eq!(lab.fetch(io, read(2047, 1), 512).unwrap(), [0; 512]);
}

#[test]
fn data_shorter_than_the_blocks_is_refused_and_longer_data_is_accepted() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    assert_eq!(lab.fetch(io, read(0, 2), 512), Err(0x400f));
    let window = lab.memory(&pattern(512, 3));
    for carry in [Carry::InCapsule, Carry::Out] {
        assert_eq!(lab.execute(io, write(0, 2), window, carry).status, 0x400f);
    }
    assert_eq!(lab.fetch(io, read(0, 2), 1024).unwrap(), [0; 1024], "nothing was written");
    let window = lab.memory(&pattern(4096, 3));
    assert_eq!(lab.execute(io, write(0, 2), window, Carry::Out).status, 0);
    let back = lab.fetch(io, read(0, 3), 4096).unwrap();
    assert_eq!(back[..1024], pattern(4096, 3)[..1024]);
    assert_eq!(back[1024..1536], [0; 512]);
    assert_eq!(back[1536], 0xee, "only as much as was asked for is sent");
}

#[test]
fn unknown_namespaces_and_opcodes_are_refused() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    for nsid in [0, 2, 1025, u32::MAX] {
        assert_eq!(lab.fetch(io, read(0, 1).nsid(nsid), 512), Err(0x400b), "{nsid}");
    }
    for opcode in [0x04, 0x0f, 0x12, 0x19, 0x80, 0xff] {
        assert_eq!(lab.simple(io, Sqe::new(opcode).nsid(1)).status, 0x4001);
    }
    // Fused commands, and PRPs.
    for flags in [0x00, 0x41, 0x42, 0x80] {
        let sqe = read(0, 1).with(1, &[flags]);
        assert_eq!(lab.fetch(io, sqe, 512), Err(0x4002));
    }
}

#[test]
fn zeroes_and_deallocated_ranges_read_as_zeroes() {
    let mut lab = Lab::new();
    let (_, io) = lab.both();
    let all = pattern(64 << 10, 9);
    let window = lab.memory(&all);
    assert_eq!(lab.execute(io, write(0, 128), window, Carry::Out).status, 0);
    assert_eq!(lab.simple(io, Sqe::blocks(ZEROES, 1, 3, 5, 0)).status, 0);
    assert_eq!(lab.simple(io, Sqe::blocks(ZEROES, 1, 20, 2, 1 << 14)).status, 0);
    let mut ranges = [0; 4096];
    let range = |first: u64, count: u32| {
        let mut range = [0; 16];
        range[4..8].copy_from_slice(&count.to_le_bytes());
        range[8..].copy_from_slice(&first.to_le_bytes());
        range
    };
    ranges[..16].copy_from_slice(&range(40, 8));
    ranges[16..32].copy_from_slice(&range(0, 0));
    ranges[32..48].copy_from_slice(&range(100, 28));
    let ranges = lab.memory(&ranges);
    let dsm = |count: u32| Sqe::new(DSM).nsid(1).with(40, &(count - 1).to_le_bytes());
    // Without the attribute nothing is deallocated.
    assert_eq!(lab.execute(io, dsm(3), ranges, Carry::Out).status, 0);
    assert_eq!(lab.fetch(io, read(40, 8), 4096).unwrap(), all[40 * 512..48 * 512]);
    let deallocate = dsm(3).with(44, &[4]);
    assert_eq!(lab.execute(io, deallocate, ranges, Carry::InCapsule).status, 0);
    let mut expected = all.clone();
    for (first, count) in [(3, 5), (20, 2), (40, 8), (100, 28)] {
        expected[first * 512..(first + count) * 512].fill(0);
    }
    assert_eq!(lab.fetch(io, read(0, 128), 64 << 10).unwrap(), expected);
    // One of 256 ranges is beyond the end: nothing is deallocated.
    let mut many = vec![0; 4096];
    for (n, place) in many.chunks_mut(16).enumerate() {
        place.copy_from_slice(&range(n as u64, 1));
    }
    many[4080..].copy_from_slice(&range(2048, 1));
    let many = lab.memory(&many);
    let refused = lab.execute(io, dsm(256).with(44, &[4]), many, Carry::Out);
    assert_eq!(refused.status, 0x4080);
    assert_eq!(lab.fetch(io, read(0, 128), 64 << 10).unwrap(), expected);
    // Ranges without data, and fewer than announced.
    assert_eq!(lab.simple(io, dsm(1).with(44, &[4])).status, 0x400f);
    let one = lab.memory(&range(0, 1));
    assert_eq!(lab.execute(io, dsm(2).with(44, &[4]), one, Carry::Out).status, 0x400f);
}

#[test]
fn compare_finds_a_difference_in_any_byte() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 64, |_| {});
    lab.configure(vec![namespace(1, "ram0"), namespace(2, "disk")]);
    let (_, io) = lab.both();
    let bytes = pattern(128 << 10, 5);
    for nsid in [1, 2] {
        let execute = |lab: &mut Lab, sqe: Sqe, bytes: &[u8]| {
            let window = lab.memory(bytes);
            let cid = lab.send(io, sqe.nsid(nsid), window, Carry::Out);
            for _ in 0..10 {
                lab.run();
                held.borrow_mut().complete(Ok(()));
            }
            lab.arena.free(window);
            lab.links[io].host.take(cid).unwrap().status
        };
        assert_eq!(execute(&mut lab, write(0, 256), &bytes), 0);
        let compare = Sqe::blocks(COMPARE, 1, 0, 256, 0);
        assert_eq!(execute(&mut lab, compare, &bytes), 0);
        for at in [0, 511, 65_535, 65_536, 131_071] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(execute(&mut lab, compare, &other), 0x4285, "{at}");
        }
    }
}

/// Each needs memory for what the host sends and for what the volume has: none may hold one and wait for the other.
#[test]
fn many_compares_and_writes_at_a_time_do_not_wait_for_each_other() {
    mix_compares_and_writes(Lab::new());
    // With the memory of a queue among many.
    let mut crowded = Lab::bare(Settings { queues: 4, ..Settings::default() });
    let first = crowded.arena.available();
    assert!(crowded.dial().is_some());
    assert!(first - crowded.arena.available() <= 16 << 10);
    mix_compares_and_writes(crowded);
}

fn mix_compares_and_writes(mut lab: Lab) {
    let held = lab.add_slow("disk", 64, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (_, io) = lab.both();
    assert_eq!(lab.target.queues() > 2, lab.target.settings().queues == 4);
    let zeroes = lab.memory(&vec![0; 128 << 10]);
    let mut cids = Vec::new();
    for n in 0..20u64 {
        let small = zeroes.slice(0, 8192).unwrap();
        let compare = |first, blocks| Sqe::blocks(COMPARE, 1, first, blocks, 0);
        cids.push(lab.send(io, compare(0, 256), zeroes, Carry::Out));
        cids.push(lab.send(io, compare(n, 256), zeroes, Carry::Out));
        cids.push(lab.send(io, compare(n, 16), small, Carry::InCapsule));
        cids.push(lab.send(io, write(n, 256), zeroes, Carry::Out));
        cids.push(lab.send(io, write(n, 16), small, Carry::InCapsule));
    }
    for _ in 0..2000 {
        lab.run();
        lab.now = lab.now + Duration::from_millis(2);
        held.borrow_mut().complete(Ok(()));
    }
    for cid in cids {
        let completion = lab.links[io].host.take(cid);
        assert_eq!(completion.map(|one| one.status), Some(0), "{cid}");
    }
}

#[test]
fn blocks_of_4096_bytes_are_counted_as_such() {
    let mut lab = Lab::new();
    let large = NamespaceConfig { block_size: Some(4096), ..namespace(1, "ram0") };
    lab.configure(vec![large]);
    let (admin, io) = lab.both();
    let identity = lab.fetch(admin, Sqe::identify(0, 1), 4096).unwrap();
    assert_eq!((identity[0], identity[1], identity[130]), (0, 1, 12));
    let bytes = pattern(8192, 2);
    let window = lab.memory(&bytes);
    assert_eq!(lab.execute(io, write(254, 2), window, Carry::Out).status, 0);
    assert_eq!(lab.fetch(io, read(254, 2), 8192).unwrap(), bytes);
    assert_eq!(lab.fetch(io, read(255, 2), 8192), Err(0x4080));
    // A volume of 4096-byte blocks cannot be addressed in smaller ones.
    lab.add_slow("coarse", 8, |geometry| geometry.logical_block = 4096);
    let fine = NamespaceConfig { block_size: Some(512), ..namespace(2, "coarse") };
    lab.configure(vec![fine, namespace(3, "coarse")]);
    let list = lab.fetch(admin, Sqe::identify(2, 0), 4096).unwrap();
    assert_eq!(list[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn read_only_namespaces_refuse_every_change() {
    let mut lab = Lab::new();
    lab.configure(vec![NamespaceConfig { read_only: true, ..namespace(1, "ram0") }]);
    let (admin, io) = lab.both();
    assert_eq!(lab.fetch(admin, Sqe::identify(0, 1), 4096).unwrap()[99], 1);
    let window = lab.memory(&pattern(512, 1));
    assert_eq!(lab.execute(io, write(0, 1), window, Carry::InCapsule).status, 0x4020);
    assert_eq!(lab.simple(io, Sqe::blocks(ZEROES, 1, 0, 1, 0)).status, 0x4020);
    let ranges = lab.memory(&[0; 16]);
    let dsm = Sqe::new(DSM).nsid(1).with(44, &[4]);
    assert_eq!(lab.execute(io, dsm, ranges, Carry::InCapsule).status, 0x4020);
    assert_eq!(lab.simple(io, Sqe::new(FLUSH).nsid(1)).status, 0);
    assert_eq!(lab.fetch(io, read(0, 1), 512).unwrap(), [0; 512]);
}

#[test]
fn slow_volumes_complete_in_parts_and_report_errors() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 64, |geometry| geometry.max_transfer = 4096);
    lab.configure(vec![namespace(1, "disk")]);
    let (_, io) = lab.both();
    let bytes = pattern(16 << 10, 4);
    let window = lab.memory(&bytes);
    let cid = lab.send(io, Sqe::blocks(WRITE, 1, 8, 32, 1 << 14), window, Carry::Out);
    for _ in 0..4 {
        lab.run();
        assert_eq!(held.borrow().waiting.len(), 1);
        held.borrow_mut().complete(Ok(()));
    }
    lab.run();
    assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0);
    let seen = core::mem::take(&mut held.borrow_mut().seen);
    assert_eq!(seen, [Operation::Write { durable: true }; 4]);
    for (result, status) in [(Ok(()), 0), (Err(VolumeError::Io), 0x281)] {
        let window = lab.arena.alloc(16 << 10, 4096).unwrap();
        let cid = lab.send(io, read(8, 32), window, Carry::In);
        for _ in 0..4 {
            lab.run();
            held.borrow_mut().complete(result);
        }
        lab.run();
        assert_eq!(lab.links[io].host.take(cid).unwrap().status, status);
        if status == 0 {
            let mut read = vec![0; 16 << 10];
            window.read(0, &mut read).unwrap();
            assert_eq!(read, bytes);
        }
    }
    let cid = lab.send(io, Sqe::new(FLUSH).nsid(u32::MAX), Window::empty(), Carry::None);
    lab.run();
    held.borrow_mut().complete(Err(VolumeError::Lost));
    lab.run();
    assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0x280);
}

#[test]
fn busy_volume_and_full_memory_delay_commands_and_lose_none() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 3, |_| {});
    lab.configure(vec![namespace(1, "disk")]);
    let (_, io) = lab.both();
    let bytes = pattern(128 << 10, 8);
    let all = lab.memory(&bytes);
    // 64 writes of 16 KiB: twice the queue's memory; and 60 in capsules: twice its places.
    let mut cids = Vec::new();
    for n in 0..64u64 {
        let part = all.slice(n as usize % 8 * 16384, 16384).unwrap();
        cids.push(lab.send(io, write(n % 8 * 32, 32), part, Carry::Out));
    }
    for n in 0..60u64 {
        let part = all.slice(n as usize % 8 * 4096, 4096).unwrap();
        cids.push(lab.send(io, write(1024 + n % 8 * 8, 8), part, Carry::InCapsule));
    }
    for _ in 0..400 {
        lab.run();
        lab.now = lab.now + Duration::from_millis(2);
        assert!(held.borrow().waiting.len() <= 3);
        held.borrow_mut().complete(Ok(()));
    }
    for cid in cids {
        assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0, "{cid}");
    }
    let window = lab.arena.alloc(128 << 10, 4096).unwrap();
    let cid = lab.send(io, read(0, 256), window, Carry::In);
    lab.run();
    held.borrow_mut().complete(Ok(()));
    lab.run();
    assert_eq!(lab.links[io].host.take(cid).unwrap().status, 0);
    let mut read = vec![0; 128 << 10];
    window.read(0, &mut read).unwrap();
    assert_eq!(read, bytes);
}

/// Thousands may wait: none is tried before its turn.
#[test]
fn requests_for_a_busy_volume_are_retried_in_their_order() {
    let mut lab = Lab::new();
    let held = lab.add_slow("disk", 1, |_| {});
    lab.configure(vec![namespace(1, "disk"), namespace(2, "ram0")]);
    let (_, io) = lab.both();
    let flush = Sqe::new(FLUSH).nsid(1);
    let mut sent = Vec::new();
    for _ in 0..100 {
        sent.push(lab.send(io, flush, Window::empty(), Carry::None));
    }
    lab.run();
    assert_eq!(held.borrow().refused, 99);
    held.borrow_mut().refused = 0;
    for _ in 0..100 {
        held.borrow_mut().complete(Ok(()));
        lab.run();
    }
    let order: Vec<u16> = lab.links[io].host.completions.iter().map(|one| one.cid).collect();
    assert_eq!(order, sent);
    assert!(held.borrow().refused <= 200, "{}", held.borrow().refused);
}

#[test]
fn zeroes_that_many_commands_ask_for_do_not_take_a_whole_round() {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("big", 32 << 20);
    lab.configure(vec![namespace(1, "big")]);
    let (_, io) = lab.both();
    let zeroes = Sqe::blocks(ZEROES, 1, 0, 65_536, 0).with(39, &[0x5a]);
    let mut capsule = vec![4, 0, 72, 0, 72, 0, 0, 0];
    capsule.extend_from_slice(&zeroes.0);
    let mut queue = lab.links[io].queue.take().unwrap();
    let most = crate::rounds::BULK + 2048;
    lab.context(|target, ctx| {
        queue.receive(&capsule.repeat(100), target, ctx);
        assert!(target.worked <= most);
        for _ in 0..100 {
            target.poll(ctx);
            assert!(target.worked <= most, "{}", target.worked);
        }
    });
}

#[test]
fn large_discards_do_not_take_a_whole_round() {
    let mut lab = Lab::bare(Settings::default());
    lab.add_ram("big", 32 << 20);
    lab.configure(vec![namespace(1, "big")]);
    let (_, io) = lab.both();
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&65_536u32.to_le_bytes());
    let ranges = lab.memory(&range);
    let dsm = Sqe::new(DSM).nsid(1).with(44, &[4]);
    lab.send(io, dsm, ranges, Carry::InCapsule);
    let other = lab.send(io, read(0, 1), lab.arena.share().alloc(512, 4).unwrap(), Carry::In);
    lab.run();
    let order: Vec<u16> = lab.links[io].host.completions.iter().map(|one| one.cid).collect();
    assert_eq!(order.len(), 2);
    assert_eq!(order[0], other, "the read overtakes the discard");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any commands on a small namespace leave the contents of a model.
    #[test]
    fn contents_are_those_of_a_model(
        steps in prop::collection::vec((0u8..4, 0u64..60, 1u32..20, any::<u8>(), any::<bool>()), 1..60),
        piece in 1usize..5000,
        digests in 0u8..4,
    ) {
        let mut lab = Lab::new();
        (lab.piece, lab.digests) = (piece, digests);
        let (_, io) = lab.both();
        let mut model = vec![0u8; 80 * 512];
        for (kind, first, blocks, seed, capsule) in steps {
            let range = first as usize * 512..(first as usize + blocks as usize) * 512;
            let len = range.len();
            match kind {
                0 => prop_assert_eq!(lab.fetch(io, read(first, blocks), len).unwrap(), &model[range]),
                1 | 2 => {
                    let bytes = pattern(len, seed);
                    let window = lab.memory(&bytes);
                    let carry = if capsule && len <= 8192 { Carry::InCapsule } else { Carry::Out };
                    prop_assert_eq!(lab.execute(io, write(first, blocks), window, carry).status, 0);
                    lab.arena.free(window);
                    model[range].copy_from_slice(&bytes);
                }
                _ => {
                    let zeroes = Sqe::blocks(ZEROES, 1, first, blocks, 0);
                    prop_assert_eq!(lab.simple(io, zeroes).status, 0);
                    model[range].fill(0);
                }
            }
        }
    }
}

#[test]
fn verify_reads_all_blocks_without_a_transfer() {
    let mut lab = Lab::new();
    let held = lab.add_slow("slow", 8, |_| {});
    lab.configure(vec![namespace(1, "ram0"), namespace(2, "slow")]);
    let (admin, io) = lab.both();
    let identified = lab.fetch(admin, Sqe::identify(1, 0), 4096).unwrap();
    assert_eq!(identified[520] & 1 << 7, 1 << 7);
    assert_eq!(lab.fetch(admin, Sqe::identify(6, 0), 4096).unwrap()[0], 8, "1 MiB");
    let verify = |nsid, first, blocks| Sqe::blocks(VERIFY, nsid, first, blocks, 0);
    assert_eq!(lab.simple(io, verify(1, 0, 2048)).status, 0);
    assert_eq!(lab.simple(io, verify(1, 1, 2048)).status, 0x4080);
    assert_eq!(lab.simple(io, verify(3, 0, 1)).status, 0x400b);
    lab.add_ram("large", 2 << 20);
    lab.configure(vec![namespace(1, "large"), namespace(2, "slow")]);
    assert_eq!(lab.simple(io, verify(1, 0, 2049)).status, 0x4002, "beyond the limit");
    // Of another volume 16 KiB at a time; an error ends it.
    for (result, status, parts) in [(Ok(()), 0, 4), (Err(VolumeError::Io), 0x281, 1)] {
        held.borrow_mut().seen.clear();
        let cid = lab.send(io, verify(2, 8, 128), Window::empty(), Carry::None);
        for _ in 0..4 {
            lab.run();
            assert!(held.borrow().waiting.iter().all(|one| one.data.len() == 16 << 10));
            held.borrow_mut().complete(result);
        }
        lab.run();
        assert_eq!(lab.links[io].host.take(cid).unwrap().status, status);
        assert_eq!(held.borrow().seen, vec![Operation::Read; parts]);
    }
}
