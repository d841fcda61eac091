use super::*;
use crate::pool::Pool;
use drivers::hal::Arena;
use netsim::Rng;
use std::vec::Vec;
use verbs::ChunksOnDemand;

const WRITE: Access = Access::REMOTE_WRITE;

#[test]
fn peers_reach_only_granted_bytes() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(1);
    let mut memory = Memory::new(4, 4, 4);
    let (pd, other) = (memory.alloc_pd().unwrap(), memory.alloc_pd().unwrap());
    let window = arena.alloc(4096, 4096).unwrap();
    let region = memory.register(pd, window, WRITE, &mut rng).unwrap();
    let at =
        |offset: u64, rkey| RemoteAddress { address: region.address.wrapping_add(offset), rkey };
    let key = region.rkey;
    assert_eq!(memory.check(pd, WRITE, at(96, key), 4000).unwrap().len(), 4000);
    assert_eq!(memory.check(pd, WRITE, at(96, key), 4001).unwrap_err(), Refusal::Range);
    assert_eq!(memory.check(pd, WRITE, at(u64::MAX, key), 1).unwrap_err(), Refusal::Range);
    assert_eq!(memory.check(other, WRITE, at(0, key), 1).unwrap_err(), Refusal::OtherDomain);
    let read = Access::REMOTE_READ;
    assert_eq!(memory.check(pd, read, at(0, key), 1).unwrap_err(), Refusal::Access);
    let fresh = memory.rotate(region.id, 0, &mut rng).unwrap();
    assert_eq!(memory.check(pd, WRITE, at(0, key), 1).unwrap_err(), Refusal::UnknownKey);
    assert!(memory.check(pd, WRITE, at(0, fresh), 1).is_ok());
    assert_eq!(memory.invalidate(other, fresh), Err(Refusal::OtherDomain));
    assert_eq!(memory.invalidate(pd, fresh), Ok(()));
    assert_eq!(memory.check(pd, WRITE, at(0, fresh), 1).unwrap_err(), Refusal::UnknownKey);
    assert_eq!(memory.dealloc_pd(pd), Err(VerbsError::Busy));
    memory.deregister(region.id).unwrap();
    assert_eq!(memory.dealloc_pd(pd), Ok(()));
    assert_eq!(memory.deregister(region.id), Err(VerbsError::NoSuchObject));
}

#[test]
fn on_demand_region_gets_memory_with_the_first_write() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(3);
    let mut memory = Memory::new(4, 4, 4);
    let pd = memory.alloc_pd().unwrap();
    let region = memory.register_on_demand(pd, 4096, &mut rng).unwrap();
    let at = |offset: u64| RemoteAddress {
        address: region.address.wrapping_add(offset),
        rkey: region.rkey,
    };
    assert_eq!(memory.write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
    assert_eq!(memory.begin_write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
    assert_eq!(memory.begin_write(pd, at(4000), 97).unwrap_err(), Refusal::Range);
    assert!(memory.on_demand_memory(region.id).is_none());
    let window = arena.alloc(4096, 4096).unwrap();
    memory.add_to_odp_pool(window);
    assert_eq!(memory.write(pd, at(4000), 97).unwrap_err(), Refusal::Range);
    assert_eq!(memory.write(pd, at(96), 1000).unwrap().len(), 1000);
    assert_eq!(memory.write(pd, at(0), 10).unwrap().len(), 10);
    assert_eq!(memory.odp_pool(4096), 0);
    assert_eq!(memory.on_demand_memory(region.id).unwrap().1, 1010);
    assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);
    window.write(0, &[7; 1096]).unwrap();
    let taken = memory.take_on_demand_memory(region.id).unwrap();
    assert_eq!(taken.bus_address(), window.bus_address());
    let mut bytes = [1; 1096];
    window.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 1096], "the next peer must not see its bytes");
    assert_eq!(memory.write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
    memory.add_to_odp_pool(window);
    let grant = memory.begin_write(pd, at(0), 2000).unwrap();
    assert_eq!(memory.go_on(&grant, 1000, pd, at(1000), 1000).unwrap().len(), 1000);
    memory.take_on_demand_memory(region.id).unwrap();
    let refused = memory.go_on(&grant, 1000, pd, at(1000), 1000).unwrap_err();
    assert_eq!(refused, Refusal::NoMemory, "another region may have its memory now");
    memory.add_to_odp_pool(window);
    memory.write(pd, at(0), 10).unwrap();
    memory.deregister(region.id).unwrap();
    assert_eq!((memory.odp_pool(4096), memory.odp_pool(8192)), (1, 0));
    // A region takes memory of its own length.
    let longer = memory.register_on_demand(pd, 8192, &mut rng).unwrap();
    let to = RemoteAddress { address: longer.address, rkey: longer.rkey };
    assert_eq!(memory.write(pd, to, 10).unwrap_err(), Refusal::NoMemory);
    memory.add_to_odp_pool(arena.alloc(8192, 4096).unwrap());
    memory.write(pd, to, 8192).unwrap();
    assert_eq!((memory.odp_pool(4096), memory.odp_pool(8192)), (1, 0));
    memory.deregister(longer.id).unwrap();
    assert_eq!((memory.odp_pool(4096), memory.odp_pool(8192)), (1, 1));
    assert_eq!(memory.dealloc_pd(pd), Ok(()));
}

#[test]
fn chunk_on_demand_exposes_only_written_bytes() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(2);
    let mut memory = Memory::new(4, 4, 16);
    let pool = arena.alloc(32 << 10, 4096).unwrap();
    // Contents of earlier users.
    pool.fill(0x5c);
    memory.pool = Pool::new(pool, 8192);
    let pd = memory.alloc_pd().unwrap();
    let region = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
    let key = memory.chunk_key(region.id, 1).unwrap();
    let at = |offset: u64| RemoteAddress { address: region.address + 8192 + offset, rkey: key };
    assert!(memory.take_chunk(region.id, 1).is_none());
    assert_eq!(memory.begin_write(pd, at(8000), 193).unwrap_err(), Refusal::Range);
    assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);

    memory.begin_write(pd, at(4096), 600).unwrap();
    memory.write(pd, at(4096), 100).unwrap().fill(1);
    assert_eq!(
        memory.write(pd, at(4096), 100).unwrap_err(),
        Refusal::Range,
        "WRITEs must be in order"
    );
    assert_eq!(
        memory.write(pd, at(4200), 100).unwrap_err(),
        Refusal::Range,
        "WRITEs must have no gaps"
    );
    let (start, window) = memory.take_chunk(region.id, 1).unwrap();
    assert_eq!((start, window.len()), (4096, 100), "the rest was never written");
    assert_eq!(memory.write(pd, at(4196), 100).unwrap_err(), Refusal::Range, "the chunk is taken");
    assert_eq!(memory.begin_write(pd, at(0), 1).unwrap_err(), Refusal::Range);

    let window = memory.back_chunk(region.id, 1).unwrap();
    assert_eq!(window.len(), 4196);
    let mut byte = [0];
    window.read(4195, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    let mut before = [1; 4096];
    window.read(0, &mut before).unwrap();
    assert_eq!(before, [0; 4096], "earlier contents must be zeroed");
    let block = memory.detach_chunk(region.id, 1).unwrap();
    assert!(memory.take_chunk(region.id, 1).is_none());
    memory.pool.free(block);

    memory.begin_write(pd, at(0), 8192).unwrap();
    let short = memory.pool.counters.short;
    let other = memory.chunk_key(region.id, 0).unwrap();
    let other = RemoteAddress { address: region.address, rkey: other };
    memory.begin_write(pd, other, 8192).unwrap();
    let more = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
    let keys = [0, 1].map(|n| memory.chunk_key(more.id, n).unwrap());
    let first = RemoteAddress { address: more.address, rkey: keys[0] };
    let second = RemoteAddress { address: more.address + 8192, rkey: keys[1] };
    memory.begin_write(pd, first, 8192).unwrap();
    assert_eq!(
        memory.begin_write(pd, second, 1).unwrap_err(),
        Refusal::NoMemory,
        "one block stays reserved"
    );
    assert_eq!(memory.pool.counters.short, short + 1);
    memory.deregister(region.id).unwrap();
    assert!(memory.begin_write(pd, second, 8192).is_ok());
    memory.deregister(more.id).unwrap();
    assert_eq!(memory.pool.available(), 32 << 10);
}

#[test]
fn grant_is_valid_until_its_key_is_revoked() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(4);
    let mut memory = Memory::new(4, 4, 16);
    let pd = memory.alloc_pd().unwrap();
    let window = arena.alloc(8192, 4096).unwrap();
    let region = memory.register_chunks(pd, 2, 4096, Some(window), &mut rng).unwrap();
    let key = memory.chunk_key(region.id, 1).unwrap();
    let at = |offset: u64| RemoteAddress { address: region.address + 4096 + offset, rkey: key };
    let grant = memory.begin_write(pd, at(96), 4000).unwrap();
    let bus = window.bus_address() + 4096 + 96;
    let next = memory.go_on(&grant, 1000, pd, at(1096), 1000).unwrap();
    assert_eq!((next.bus_address(), next.len()), (bus + 1000, 1000));
    assert!(memory.go_on(&grant, 3000, pd, at(3096), 1001).is_err(), "beyond the grant");
    memory.rotate(region.id, 0, &mut rng).unwrap();
    let next = memory.go_on(&grant, 2000, pd, at(2096), 1000).unwrap();
    assert_eq!(next.bus_address(), bus + 2000, "another chunk's key does not matter");
    memory.rotate(region.id, 1, &mut rng).unwrap();
    let refused = memory.go_on(&grant, 3000, pd, at(3096), 1000).unwrap_err();
    assert_eq!(refused, Refusal::UnknownKey);
}

/// Chunks need memory that is large enough for all of them, and a free key each.
#[test]
fn chunks_need_their_memory_and_their_keys() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(5);
    // At least eight keys.
    let mut memory = Memory::new(4, 4, 1);
    let pd = memory.alloc_pd().unwrap();
    let window = arena.alloc(8192, 4096).unwrap();
    let mut register = |memory: &mut Memory, count, len| {
        let window = window.slice(0, len).unwrap();
        memory.register_chunks(pd, count, 1024, Some(window), &mut rng)
    };
    assert_eq!(register(&mut memory, 8, 8191), Err(VerbsError::Invalid));
    let five = register(&mut memory, 5, 5120).unwrap();
    assert_eq!(register(&mut memory, 4, 8192), Err(VerbsError::NoRoom), "nine keys");
    let three = register(&mut memory, 3, 8192).unwrap();
    let mut keys: Vec<u32> = (0..5).map(|n| memory.chunk_key(five.id, n).unwrap()).collect();
    keys.extend((0..3).map(|n| memory.chunk_key(three.id, n).unwrap()));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 8, "each chunk has its own key");
    assert_eq!(memory.chunk_key(three.id, 3), Err(VerbsError::Invalid));
    memory.deregister(five.id).unwrap();
    assert_eq!(memory.chunk_key(five.id, 0), Err(VerbsError::NoSuchObject));
    memory.deregister(three.id).unwrap();
    // Refused registrations left no user of the domain.
    assert_eq!(memory.dealloc_pd(pd), Ok(()));
    assert_eq!(memory.dealloc_pd(pd), Err(VerbsError::NoSuchObject));
}

#[test]
fn refused_registration_does_not_hold_its_domain() {
    let mut rng = Rng::new(6);
    let mut memory = Memory::new(1, 2, 16);
    let pd = memory.alloc_pd().unwrap();
    assert_eq!(memory.alloc_pd(), Err(VerbsError::NoRoom));
    let mut register = |memory: &mut Memory, pd| {
        memory.register(pd, Window::empty(), WRITE, &mut rng).map(|region| region.id)
    };
    let both = [0; 2].map(|_| register(&mut memory, pd).unwrap());
    assert_eq!(register(&mut memory, pd), Err(VerbsError::NoRoom));
    assert_eq!(register(&mut memory, PdId(77)), Err(VerbsError::NoSuchObject));
    for region in both {
        assert_eq!(memory.dealloc_pd(pd), Err(VerbsError::Busy));
        memory.deregister(region).unwrap();
    }
    assert_eq!(memory.dealloc_pd(pd), Ok(()));
}

/// An address reveals to peers the offset in its page, and nothing else.
#[test]
fn region_addresses_do_not_reveal_bus_addresses() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(7);
    let mut memory = Memory::new(1, 64, 64);
    let pd = memory.alloc_pd().unwrap();
    let window = arena.alloc(8192, 4096).unwrap().slice(0x123, 100).unwrap();
    let addresses: Vec<u64> =
        (0..32).map(|_| memory.register(pd, window, WRITE, &mut rng).unwrap().address).collect();
    let page = |address: &u64| address & !0xfff;
    for address in &addresses {
        assert_eq!(address & 0xfff, window.bus_address() & 0xfff);
        assert_eq!(address >> 47, 0, "the address must be valid in user space of the peer");
        assert_ne!(page(address), page(&window.bus_address()));
    }
    let all = addresses.iter().fold(0, |all, address| all | address);
    let common = addresses.iter().fold(u64::MAX, |common, address| common & address);
    assert_eq!(
        (page(&all), page(&common)),
        (0x7fff_ffff_f000, 0),
        "all bits of the page must be random"
    );
}

#[test]
fn remapped_region_is_reached_only_at_its_new_memory() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(8);
    let mut memory = Memory::new(1, 4, 16);
    let pd = memory.alloc_pd().unwrap();
    let [first, second] = [4096, 1000].map(|len| arena.alloc(len, 4096).unwrap());
    let old = memory.register(pd, first, WRITE, &mut rng).unwrap();
    let new = memory.remap(old.id, second, &mut rng).unwrap();
    let at = |region: &Region, offset| RemoteAddress {
        address: region.address + offset,
        rkey: region.rkey,
    };
    assert_eq!(memory.check(pd, WRITE, at(&old, 0), 1).unwrap_err(), Refusal::UnknownKey);
    let found = memory.check(pd, WRITE, at(&new, 0), 1000).unwrap();
    assert_eq!((found.bus_address(), found.len()), (second.bus_address(), 1000));
    assert_eq!(memory.check(pd, WRITE, at(&new, 1), 1000).unwrap_err(), Refusal::Range);
    let chunks = memory.register_chunks(pd, 2, 512, Some(first), &mut rng).unwrap();
    let refused = memory.remap(chunks.id, second, &mut rng).unwrap_err();
    assert_eq!(refused, VerbsError::Invalid, "chunks cannot be remapped");
}

/// Memory on demand of 16 KiB for chunks of 4 KiB, and the remote addresses of two of them.
fn on_demand(rng: &mut Rng) -> (Memory, PdId, MrId, [RemoteAddress; 2]) {
    let mut arena = Arena::on_heap(1 << 16);
    let mut memory = Memory::new(1, 4, 16);
    assert_eq!(memory.on_demand(), None, "no memory yet");
    memory.give_memory(arena.alloc(16 << 10, 4096).unwrap(), 4096).unwrap();
    let pd = memory.alloc_pd().unwrap();
    let region = memory.register_chunks(pd, 2, 4096, None, rng).unwrap();
    let at = [0, 1].map(|n| RemoteAddress {
        address: region.address + u64::from(n) * 4096,
        rkey: memory.chunk_key(region.id, n).unwrap(),
    });
    (memory, pd, region.id, at)
}

#[test]
fn memory_on_demand_is_given_once_and_counted() {
    let mut rng = Rng::new(9);
    let (mut memory, pd, region, at) = on_demand(&mut rng);
    let again = Arena::on_heap(1 << 16).alloc(4096, 4096).unwrap();
    assert_eq!(memory.give_memory(again, 4096), Err(VerbsError::Invalid));
    let status = |memory: &Memory| memory.on_demand().unwrap();
    assert_eq!((status(&memory).capacity, status(&memory).available), (16 << 10, 16 << 10));
    memory.begin_write(pd, at[0], 4096).unwrap();
    memory.begin_write(pd, at[1], 4096).unwrap();
    assert_eq!(status(&memory).available, 8 << 10);
    // A new WRITE to the chunk frees its former memory.
    memory.begin_write(pd, at[0], 512).unwrap();
    assert_eq!(status(&memory).available, (16 << 10) - 4096 - 512);
    memory.write(pd, at[0], 512).unwrap();
    memory.take_chunk(region, 0).unwrap();
    memory.release_chunk(region, 0);
    assert_eq!(status(&memory).available, 12 << 10);
    assert_eq!((status(&memory).lowest, status(&memory).short), (8 << 10, 0));
}

/// `age_chunks` returns how long the oldest untaken chunk has waited.
#[test]
fn untaken_chunks_age() {
    let mut rng = Rng::new(10);
    let (mut memory, pd, region, at) = on_demand(&mut rng);
    assert_eq!(memory.age_chunks(region), 0, "no chunk was written");
    memory.begin_write(pd, at[0], 512).unwrap();
    assert_eq!(memory.age_chunks(region), 1);
    memory.begin_write(pd, at[1], 512).unwrap();
    assert_eq!(memory.age_chunks(region), 2, "the older chunk counts");
    memory.begin_write(pd, at[0], 512).unwrap();
    assert_eq!(memory.age_chunks(region), 3, "a new WRITE does not reset the age");
    memory.take_chunk(region, 0).unwrap();
    assert_eq!(memory.age_chunks(region), 3, "the age of the other chunk");
    memory.release_chunk(region, 0);
    memory.begin_write(pd, at[0], 512).unwrap();
    memory.take_chunk(region, 1).unwrap();
    assert_eq!(memory.age_chunks(region), 1, "the age begins anew after the release");
    (0..300).for_each(|_| _ = memory.age_chunks(region));
    assert_eq!(memory.age_chunks(region), u8::MAX);
}

/// `back_chunk` and `release_chunk` ignore a chunk that was not taken.
#[test]
fn untaken_chunk_is_neither_backed_nor_released() {
    let mut rng = Rng::new(11);
    let (mut memory, pd, region, at) = on_demand(&mut rng);
    memory.begin_write(pd, at[0], 512).unwrap();
    memory.write(pd, at[0], 512).unwrap();
    let available = memory.pool.available();
    assert!(memory.back_chunk(region, 0).is_none());
    memory.release_chunk(region, 0);
    assert_eq!(memory.pool.available(), available);
    let (start, window) = memory.take_chunk(region, 0).unwrap();
    assert_eq!((start, window.len()), (0, 512));
    assert_eq!(memory.back_chunk(region, 0).unwrap().bus_address(), window.bus_address());
}

/// Bytes that peers wrote and that were forwarded are freed when every port has sent them.
#[test]
fn forwarded_memory_waits_for_every_port() {
    for passes_on in [false, true] {
        let mut rng = Rng::new(12);
        let (mut memory, pd, region, at) = on_demand(&mut rng);
        memory.wait_for_ports(2);
        assert_eq!(memory.ports(), 2);
        if passes_on {
            memory.passes_on();
        }
        memory.begin_write(pd, at[0], 512).unwrap();
        memory.write(pd, at[0], 512).unwrap();
        memory.take_chunk(region, 0).unwrap();
        memory.release_chunk(region, 0);
        assert_eq!(memory.pool.has_retired(), passes_on);
        assert_eq!(memory.pool.available() == memory.pool.capacity(), !passes_on);
    }
}
