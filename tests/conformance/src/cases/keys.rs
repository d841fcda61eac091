//! Memory keys: access and revocation.

use crate::fixture::Fixture;
use crate::world::{SEND, World, granted, send_inline, write_byte};
use netsim::contents;
use std::collections::BTreeSet;
use verbs::*;

/// Creates and connects new queue pairs.
fn reconnect(world: &mut World) {
    world.qp = [0, 1].map(|n| {
        let init = World::init(world.pd[n], world.cq[n]);
        world.queue_pair(n, &init)
    });
    world.join(world.qp, SEND);
}

/// Whether a key gives access to its memory, by a WRITE on new queue pairs.
fn opens(world: &mut World, key: RemoteAddress) -> bool {
    reconnect(world);
    let status = world.attempt(write_byte(key));
    assert!(matches!(status, Status::Success | Status::RemoteAccess), "{status:?}");
    for n in 0..2 {
        let qp = world.qp[n];
        world.device(n).destroy_qp(qp).unwrap();
    }
    status == Status::Success
}

/// Checks that a key is revoked, which may take effect a moment after the call.
fn dies(world: &mut World, key: RemoteAddress) {
    world.pause();
    assert!(!opens(world, key), "a key that was revoked opens the memory");
}

/// The old key is revoked, and the new one gives access.
pub fn rotated_key_is_revoked(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    assert!(opens(&mut world, granted(&region)));
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    assert!(opens(&mut world, RemoteAddress { rkey, ..granted(&region) }));
    assert!(!opens(&mut world, granted(&region)));
}

/// The new key gives access to the new memory, and no key to the old memory.
pub fn remapped_region_uses_the_new_memory(fixture: Box<dyn Fixture>) {
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

/// The region is inaccessible until it is rotated or remapped.
pub fn revoked_key_gives_no_access(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    world.device(1).revoke_key(region.id).unwrap();
    dies(&mut world, granted(&region));
    world.device(1).revoke_key(region.id).unwrap();
    // A new key takes effect even if the revocation is still in progress.
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    world.pause();
    assert!(opens(&mut world, RemoteAddress { rkey, ..granted(&region) }));
    assert!(!opens(&mut world, granted(&region)));
}

/// A key change by request takes effect at once or with its completion.
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

/// The key is revoked when the request completes.
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

/// The key gives no access, and later registrations have other keys.
pub fn deregistered_region_is_inaccessible(fixture: Box<dyn Fixture>) {
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

/// A peer's SEND revokes a key of the queue pair's domain only. The receive's completion reports the key.
pub fn sends_invalidate_keys(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    if !world.device(1).attributes().send_with_invalidate {
        return;
    }
    let memory = world.memory(1, 64);
    let region = world.grant(1, memory, Access::REMOTE_WRITE);
    reconnect(&mut world);
    world.post_recv(1, 5, &[]);
    let payload = Payload::Inline(&[]);
    let with = SendWith::Invalidate(region.rkey);
    world.post(0, 9, SendOperation::Send { payload, with });
    world.post(0, 10, write_byte(granted(&region)));
    assert_eq!(world.statuses(0, 2), [(9, Status::Success), (10, Status::RemoteAccess)]);
    let got = world.completions(1, 1)[0];
    assert_eq!(got.operation, CompletedOperation::Recv { length: 0, with });
    let mut rng = world.rng.fork();
    let rkey = world.device(1).rotate_key(region.id, &mut rng).unwrap();
    let alive = RemoteAddress { rkey, ..granted(&region) };
    assert!(opens(&mut world, alive));
    let own = core::mem::replace(&mut world.pd[1], PdId(0));
    world.pd[1] = world.device(1).alloc_pd().unwrap();
    reconnect(&mut world);
    world.pd[1] = own;
    world.post_recv(1, 5, &[]);
    let with = SendWith::Invalidate(rkey);
    world.post(0, 9, SendOperation::Send { payload, with });
    assert_ne!(world.completions(0, 1)[0].status, Status::Success);
    assert!(opens(&mut world, alive), "a key of another domain");
}

/// Each key gives access to its chunk only. Rotating one does not affect the others.
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
    reconnect(&mut world);
    let by = KeyRequest { qp: world.qp[1], id: 77, signaled: true };
    let change = world.device(1).rotate_chunk_key(made.id, 2, by, &mut rng).unwrap();
    let rkey = changed(&mut world, 77, change, |rkey| rkey);
    assert_eq!(key(&mut world, 2).rkey, rkey);
    assert_eq!(world.attempt(write_byte(keys[2])), Status::RemoteAccess, "the old key");
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

/// A key change by request executes after earlier sends and before later ones.
pub fn key_changes_follow_earlier_sends(fixture: Box<dyn Fixture>) {
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
        let ends = world.statuses(1, expected.len());
        assert!(ends.iter().all(|(_, status)| *status == Status::Success));
        assert_eq!(ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
        assert_eq!(world.statuses(0, 2).len(), 2);
    }
    let now = world.device(1).chunk_key(made.id, 0).unwrap();
    assert_ne!(now, before);
    let to = RemoteAddress { address: made.address, rkey: now };
    assert_eq!(world.attempt(write_byte(to)), Status::Success);
    let to = RemoteAddress { rkey: before, ..to };
    assert_eq!(world.attempt(write_byte(to)), Status::RemoteAccess);
}

/// After an unsignaled key change, later sends find the new key in force and the old one revoked.
pub fn promised_key_is_in_force_for_later_sends(fixture: Box<dyn Fixture>) {
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
            panic!("the new key of an unsignaled change must be known: {change:?}");
        };
        world.post(1, 4 * round + 2, send_inline(&[]));
        // The peer can use the key that the SEND announces.
        assert_eq!(world.statuses(0, 1), [(4 * round, Status::Success)]);
        assert_eq!(world.attempt(write_byte(RemoteAddress { address, rkey })), Status::Success);
        assert_eq!(world.statuses(1, 1), [(4 * round + 2, Status::Success)]);
        assert_ne!(rkey, before);
        if round == 39 {
            let to = RemoteAddress { address, rkey: before };
            assert_eq!(world.attempt(write_byte(to)), Status::RemoteAccess);
        }
        before = rkey;
    }
}

/// Many keys are all different, and do not follow from each other.
pub fn keys_are_never_reused(fixture: Box<dyn Fixture>) {
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
