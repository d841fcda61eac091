//! Keys: what they open, when they die.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, send_inline, write_byte};
use netsim::contents;
use std::collections::BTreeSet;
use verbs::*;

/// New queue pairs, joined.
fn again(world: &mut World) {
    world.qp = [0, 1].map(|n| {
        let init = World::init(world.pd[n], world.cq[n]);
        world.queue_pair(n, &init)
    });
    world.join(world.qp, SEND);
}

/// Whether a key opens the memory, by a WRITE on queue pairs of its own.
fn opens(world: &mut World, key: RemoteAddress) -> bool {
    again(world);
    let status = world.attempt(write_byte(key));
    assert!(matches!(status, Status::Success | Status::RemoteAccess), "{status:?}");
    for n in 0..2 {
        let qp = world.qp[n];
        world.device(n).destroy_qp(qp).unwrap();
    }
    status == Status::Success
}

/// Waits until a key is dead, which may be a moment after it was said to be.
fn dies(world: &mut World, key: RemoteAddress) {
    world.pause();
    assert!(!opens(world, key), "a key that was revoked opens the memory");
}

/// The one before is dead, the new one opens the memory.
pub fn a_key_that_was_rotated_is_dead(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    assert!(opens(&mut world, granted(&region)));
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    assert!(opens(&mut world, RemoteAddress { rkey, ..granted(&region) }));
    assert!(!opens(&mut world, granted(&region)));
}

/// The new key opens the new memory, and nothing opens what it was before.
pub fn a_region_that_was_remapped_is_elsewhere(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let [before, after] = [64, 32].map(|len| world.memory(1, len));
    let region = world.grant(1, before, Access::REMOTE_WRITE);
    let mut rng = world.rng.fork();
    let new = world.device(1).remap(region.id, after, &mut rng).unwrap();
    assert_eq!((new.id, new.memory.len()), (region.id, 32));
    before.fill(0xee);
    after.fill(0xee);
    assert!(opens(&mut world, granted(&new)));
    assert_eq!(contents(&after)[..2], [7, 0xee]);
    let beyond = RemoteAddress { address: new.address + 32, ..granted(&new) };
    assert!(!opens(&mut world, beyond));
    assert!(!opens(&mut world, granted(&region)));
    assert!(contents(&before).iter().all(|&byte| byte == 0xee));
}

/// Until it is rotated or remapped nobody reaches the region.
pub fn a_key_that_was_revoked_is_dead(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    world.device(1).revoke_key(region.id).unwrap();
    dies(&mut world, granted(&region));
    world.device(1).revoke_key(region.id).unwrap();
    // What revives it is stronger than a revocation that is still under way.
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    world.pause();
    assert!(opens(&mut world, RemoteAddress { rkey, ..granted(&region) }));
    assert!(!opens(&mut world, granted(&region)));
}

/// A change by request is in force at once, or when its completion is there.
fn changed<T: Copy>(world: &mut World, id: u64, change: KeyChange<T>, key: impl Fn(u32) -> T) -> T {
    match change {
        KeyChange::Done(key) | KeyChange::Promised(key) => key,
        KeyChange::Posted => {
            let completion = world.completions(1, 1)[0];
            assert_eq!((completion.id, completion.status), (id, Status::Success));
            assert_eq!(completion.qp, world.qp[1]);
            let CompletedOperation::KeyChanged { rkey } = completion.operation else {
                panic!("a key was changed, and not {completion:?}");
            };
            key(rkey)
        }
    }
}

/// When it completes, the key is dead.
pub fn a_revocation_by_request_completes(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    assert_eq!(world.attempt(write_byte(granted(&region))), Status::Success);
    let by = KeyRequest { qp: world.qp[1], id: 77, signaled: true };
    let change = world.device(1).revoke_key_by(region.id, by).unwrap();
    changed(&mut world, 77, change, |_| ());
    memory.fill(0xee);
    assert_eq!(world.attempt(write_byte(granted(&region))), Status::RemoteAccess);
    assert!(contents(&memory).iter().all(|&byte| byte == 0xee));
    world.pause();
    let qp = world.qp[1];
    world.device(1).destroy_qp(qp).unwrap();
    world.device(1).deregister(region.id).unwrap();
}

/// Its key opens nothing, and memory that is registered after it has another.
pub fn a_region_that_was_deregistered_is_gone(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    world.device(1).deregister(region.id).unwrap();
    let other = world.grant(1, memory, Access::REMOTE_WRITE);
    dies(&mut world, granted(&region));
    let mixed = RemoteAddress { rkey: region.rkey, ..granted(&other) };
    assert!(!opens(&mut world, mixed));
    assert!(opens(&mut world, granted(&other)));
}

/// The peer's word ends a key, its receive says which, and only a key of the queue pair's domain.
pub fn sends_invalidate_keys(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    if !world.device(1).attributes().send_with_invalidate {
        return;
    }
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    again(&mut world);
    world.post_recv(1, 5, &[]);
    let payload = Payload::Inline(&[]);
    let with = SendWith::Invalidate(region.rkey);
    world.post(0, 9, SendOperation::Send { payload, with });
    world.post(0, 10, write_byte(granted(&region)));
    assert_eq!(world.ends(0, 2), [(9, Status::Success), (10, Status::RemoteAccess)]);
    let got = world.completions(1, 1)[0];
    assert_eq!(got.operation, CompletedOperation::Recv { length: 0, with });
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    let alive = RemoteAddress { rkey, ..granted(&region) };
    assert!(opens(&mut world, alive));
    let own = core::mem::replace(&mut world.pd[1], PdId(0));
    world.pd[1] = world.device(1).alloc_pd().unwrap();
    again(&mut world);
    world.pd[1] = own;
    world.post_recv(1, 5, &[]);
    let with = SendWith::Invalidate(rkey);
    world.post(0, 9, SendOperation::Send { payload, with });
    assert_ne!(world.completions(0, 1)[0].status, Status::Success);
    assert!(opens(&mut world, alive), "a key of another domain");
}

/// Each opens its chunk and no other; one that is rotated leaves the others alone.
pub fn chunks_have_keys_of_their_own(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 4 * 512);
    memory.fill(0xee);
    let (pd, mut rng) = (world.pd[1], world.rng.fork());
    let made = world.device(1).register_chunks(pd, 4, 512, Some(memory), &mut rng).unwrap();
    let key = |world: &mut World, chunk: u16| RemoteAddress {
        address: made.address + 512 * u64::from(chunk),
        rkey: world.device(1).chunk_key(made.id, chunk).unwrap(),
    };
    let keys = [0, 1, 2, 3].map(|chunk| key(&mut world, chunk));
    assert_eq!(keys.iter().map(|key| key.rkey).collect::<BTreeSet<_>>().len(), 4);
    assert_eq!(world.device(1).chunk_key(made.id, 4), Err(VerbsError::Invalid));
    for chunk in 0..4 {
        assert!(opens(&mut world, keys[chunk]));
        let other = RemoteAddress { rkey: keys[(chunk + 1) % 4].rkey, ..keys[chunk] };
        assert!(!opens(&mut world, other), "the key of another chunk");
        let last = RemoteAddress { address: keys[chunk].address + 511, ..keys[chunk] };
        assert!(opens(&mut world, last));
        let beyond = RemoteAddress { address: last.address + 1, ..last };
        assert!(!opens(&mut world, beyond));
    }
    again(&mut world);
    let by = KeyRequest { qp: world.qp[1], id: 77, signaled: true };
    let change = world.device(1).rotate_chunk_key(made.id, 2, by, &mut rng).unwrap();
    let rkey = changed(&mut world, 77, change, |rkey| rkey);
    assert_eq!(key(&mut world, 2).rkey, rkey);
    assert_eq!(world.attempt(write_byte(keys[2])), Status::RemoteAccess, "the key before");
    let [_, qp] = world.qp;
    world.device(1).destroy_qp(qp).unwrap();
    assert!(opens(&mut world, RemoteAddress { rkey, ..keys[2] }));
    for chunk in [0, 1, 3] {
        assert!(opens(&mut world, keys[chunk]));
    }
    world.device(1).revoke_key(made.id).unwrap();
    for key in keys {
        dies(&mut world, key);
    }
}

/// A change by request is done behind the sends that were posted before it, and those behind it find it done.
pub fn keys_change_behind_what_was_posted(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let (pd, mut rng) = (world.pd[1], world.rng.fork());
    let made = world.device(1).register_chunks(pd, 2, 32, Some(memory), &mut rng).unwrap();
    let before = world.device(1).chunk_key(made.id, 0).unwrap();
    for round in 0..4u64 {
        world.post_recv(0, 10 * round, &[]);
        world.post_recv(0, 10 * round + 1, &[]);
        world.post(1, 10 * round + 2, send_inline(&[]));
        let by = KeyRequest { qp: world.qp[1], id: 10 * round + 3, signaled: true };
        let change = world.device(1).rotate_chunk_key(made.id, 0, by, &mut rng).unwrap();
        world.post(1, 10 * round + 4, send_inline(&[]));
        let mut expected = vec![10 * round + 2, 10 * round + 4];
        if let KeyChange::Posted = change {
            expected.insert(1, 10 * round + 3);
        }
        let ends = world.ends(1, expected.len());
        assert!(ends.iter().all(|(_, status)| *status == Status::Success));
        assert_eq!(ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
        assert_eq!(world.ends(0, 2).len(), 2);
    }
    let now = world.device(1).chunk_key(made.id, 0).unwrap();
    assert_ne!(now, before);
    let to = RemoteAddress { address: made.address, rkey: now };
    assert_eq!(world.attempt(write_byte(to)), Status::Success);
    let to = RemoteAddress { rkey: before, ..to };
    assert_eq!(world.attempt(write_byte(to)), Status::RemoteAccess);
}

/// What comes behind a change that nobody is told of finds the next key in force, and the one before dead.
pub fn a_key_that_is_promised_is_in_force_behind_it(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture).connected();
    let memory = world.memory(1, 64);
    let (pd, mut rng) = (world.pd[1], world.rng.fork());
    let made = world.device(1).register_chunks(pd, 2, 32, Some(memory), &mut rng).unwrap();
    let mut before = world.device(1).chunk_key(made.id, 1).unwrap();
    let address = made.address + 32;
    for round in 0..40u64 {
        world.post_recv(0, 4 * round, &[]);
        let by = KeyRequest { qp: world.qp[1], id: 4 * round + 1, signaled: false };
        let change = world.device(1).rotate_chunk_key(made.id, 1, by, &mut rng).unwrap();
        let (KeyChange::Done(rkey) | KeyChange::Promised(rkey)) = change else {
            panic!("nobody is told of it, so that it is known: {change:?}");
        };
        world.post(1, 4 * round + 2, send_inline(&[]));
        // Whoever was told of it by that.
        assert_eq!(world.ends(0, 1), [(4 * round, Status::Success)]);
        assert_eq!(world.attempt(write_byte(RemoteAddress { address, rkey })), Status::Success);
        assert_eq!(world.ends(1, 1), [(4 * round + 2, Status::Success)]);
        assert_ne!(rkey, before);
        if round == 39 {
            let to = RemoteAddress { address, rkey: before };
            assert_eq!(world.attempt(write_byte(to)), Status::RemoteAccess);
        }
        before = rkey;
    }
}

/// Of many keys none comes twice, and none follows from the one before.
pub fn keys_are_never_seen_again(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    let mut rng = world.rng.fork();
    let mut all = vec![region.rkey];
    for _ in 0..256 {
        all.push(world.device(1).rotate_key(region.id, &mut rng).unwrap());
    }
    for _ in 0..32 {
        let other = world.grant(1, memory, Access::REMOTE_WRITE);
        all.push(other.rkey);
        world.device(1).deregister(other.id).unwrap();
    }
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    let steps: BTreeSet<u32> = all.windows(2).map(|two| two[1].wrapping_sub(two[0])).collect();
    assert!(steps.len() > all.len() / 2, "keys follow each other: {} steps", steps.len());
}
