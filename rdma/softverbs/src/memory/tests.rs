use super::*;
use crate::pool::Pool;
use drivers::hal::Arena;
use netsim::Rng;

const WRITE: Access = Access::REMOTE_WRITE;

#[test]
fn only_what_is_granted_is_reached() {
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
    let fresh = memory.rotate_key(region.id, 0, &mut rng).unwrap();
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
fn a_lazy_region_has_memory_from_the_first_byte_on() {
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
    assert_eq!(memory.odp_pool(), 0);
    assert_eq!(memory.on_demand_memory(region.id).unwrap().1, 1010);
    assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);
    window.write(0, &[7; 1096]).unwrap();
    let taken = memory.take_on_demand_memory(region.id).unwrap();
    assert_eq!(taken.bus_address(), window.bus_address());
    let mut bytes = [1; 1096];
    window.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 1096], "the next peer sees nothing of it");
    assert_eq!(memory.write(pd, at(0), 10).unwrap_err(), Refusal::NoMemory);
    memory.add_to_odp_pool(window);
    let grant = memory.begin_write(pd, at(0), 2000).unwrap();
    assert_eq!(memory.go_on(&grant, 1000, pd, at(1000), 1000).unwrap().len(), 1000);
    memory.take_on_demand_memory(region.id).unwrap();
    let refused = memory.go_on(&grant, 1000, pd, at(1000), 1000).unwrap_err();
    assert_eq!(refused, Refusal::NoMemory, "its memory may be another's now");
    memory.add_to_odp_pool(window);
    memory.write(pd, at(0), 10).unwrap();
    memory.deregister(region.id).unwrap();
    assert_eq!(memory.odp_pool(), 1);
    assert_eq!(memory.dealloc_pd(pd), Ok(()));
}

#[test]
fn of_a_chunk_on_demand_only_what_was_written_is_seen() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(2);
    let mut memory = Memory::new(4, 4, 16);
    let pool = arena.alloc(32 << 10, 4096).unwrap();
    // Others were here before.
    pool.fill(0x5c);
    memory.pool = Pool::new(pool, 8192);
    let pd = memory.alloc_pd().unwrap();
    let region = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
    let key = memory.key(region.id, 1).unwrap();
    let at = |offset: u64| RemoteAddress { address: region.address + 8192 + offset, rkey: key };
    assert!(memory.take_chunk(region.id, 1).is_none());
    assert_eq!(memory.begin_write(pd, at(8000), 193).unwrap_err(), Refusal::Range);
    assert_eq!(memory.check(pd, WRITE, at(0), 1).unwrap_err(), Refusal::Range);

    memory.begin_write(pd, at(4096), 600).unwrap();
    memory.write(pd, at(4096), 100).unwrap().fill(1);
    assert_eq!(memory.write(pd, at(4096), 100).unwrap_err(), Refusal::Range, "in order only");
    assert_eq!(memory.write(pd, at(4200), 100).unwrap_err(), Refusal::Range, "without gaps");
    let (start, window) = memory.take_chunk(region.id, 1).unwrap();
    assert_eq!((start, window.len()), (4096, 100), "the rest was never written");
    assert_eq!(memory.write(pd, at(4196), 100).unwrap_err(), Refusal::Range, "it is taken");
    assert_eq!(memory.begin_write(pd, at(0), 1).unwrap_err(), Refusal::Range);

    let window = memory.back_chunk(region.id, 1).unwrap();
    assert_eq!(window.len(), 4196);
    let mut byte = [0];
    window.read(4195, &mut byte).unwrap();
    assert_eq!(byte, [1]);
    let mut before = [1; 4096];
    window.read(0, &mut before).unwrap();
    assert_eq!(before, [0; 4096], "what others left before it is not shown");
    let block = memory.detach_chunk(region.id, 1).unwrap();
    assert!(memory.take_chunk(region.id, 1).is_none());
    memory.pool.free(block);

    memory.begin_write(pd, at(0), 8192).unwrap();
    let short = memory.pool.counters.short;
    let other = memory.key(region.id, 0).unwrap();
    let other = RemoteAddress { address: region.address, rkey: other };
    memory.begin_write(pd, other, 8192).unwrap();
    let more = memory.register_chunks(pd, 2, 8192, None, &mut rng).unwrap();
    let keys = [0, 1].map(|n| memory.key(more.id, n).unwrap());
    let first = RemoteAddress { address: more.address, rkey: keys[0] };
    let second = RemoteAddress { address: more.address + 8192, rkey: keys[1] };
    memory.begin_write(pd, first, 8192).unwrap();
    assert_eq!(
        memory.begin_write(pd, second, 1).unwrap_err(),
        Refusal::NoMemory,
        "one is kept back"
    );
    assert_eq!(memory.pool.counters.short, short + 1);
    memory.deregister(region.id).unwrap();
    assert!(memory.begin_write(pd, second, 8192).is_ok());
    memory.deregister(more.id).unwrap();
    assert_eq!(memory.pool.available(), 32 << 10);
}

#[test]
fn what_was_granted_is_granted_until_a_key_is_gone() {
    let mut arena = Arena::on_heap(1 << 16);
    let mut rng = Rng::new(4);
    let mut memory = Memory::new(4, 4, 16);
    let pd = memory.alloc_pd().unwrap();
    let window = arena.alloc(8192, 4096).unwrap();
    let region = memory.register_chunks(pd, 2, 4096, Some(window), &mut rng).unwrap();
    let key = memory.key(region.id, 1).unwrap();
    let at = |offset: u64| RemoteAddress { address: region.address + 4096 + offset, rkey: key };
    let grant = memory.begin_write(pd, at(96), 4000).unwrap();
    let bus = window.bus_address() + 4096 + 96;
    let next = memory.go_on(&grant, 1000, pd, at(1096), 1000).unwrap();
    assert_eq!((next.bus_address(), next.len()), (bus + 1000, 1000));
    assert!(memory.go_on(&grant, 3000, pd, at(3096), 1001).is_err(), "beyond what was granted");
    memory.rotate_key(region.id, 0, &mut rng).unwrap();
    let next = memory.go_on(&grant, 2000, pd, at(2096), 1000).unwrap();
    assert_eq!(next.bus_address(), bus + 2000, "another chunk's key does not matter");
    memory.rotate_key(region.id, 1, &mut rng).unwrap();
    let refused = memory.go_on(&grant, 3000, pd, at(3096), 1000).unwrap_err();
    assert_eq!(refused, Refusal::UnknownKey);
}
