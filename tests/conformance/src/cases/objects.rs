//! Creation, use and destruction of domains, queues, regions and queue pairs.

use crate::fixture::Fixture;
use crate::world::{World, granted};
use verbs::*;

/// Waits until a domain is deallocated.
fn freed(world: &mut World, n: usize, pd: PdId) {
    world.until("the domain is free", |world| match world.device(n).dealloc_pd(pd) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, VerbsError::Busy);
            false
        }
    });
}

/// A domain is busy while it has regions, chunks or queue pairs, and free after they are destroyed.
pub fn domains_are_busy_while_they_are_used(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let busy = Err(VerbsError::Busy);
    let memory = world.memory(0, 8192);
    let pd = world.device(0).alloc_pd().unwrap();
    let region = {
        let own = core::mem::replace(&mut world.pd[0], pd);
        let region = world.grant(0, memory, Access::REMOTE_WRITE);
        world.pd[0] = own;
        region
    };
    world.pause();
    assert_eq!(world.device(0).dealloc_pd(pd), busy, "a region uses it");
    world.device(0).deregister(region.id).unwrap();
    freed(&mut world, 0, pd);

    let pd = world.device(0).alloc_pd().unwrap();
    let mut rng = world.rng.fork();
    let chunks = world.device(0).register_chunks(pd, 4, 2048, Some(memory), &mut rng).unwrap();
    world.pause();
    assert_eq!(world.device(0).dealloc_pd(pd), busy, "chunks use it");
    world.device(0).deregister(chunks.id).unwrap();
    freed(&mut world, 0, pd);

    let pd = world.device(0).alloc_pd().unwrap();
    let init = World::init(pd, world.cq[0]);
    let qp = world.queue_pair(0, &init);
    world.pause();
    assert_eq!(world.device(0).dealloc_pd(pd), busy, "a queue pair uses it");
    world.device(0).destroy_qp(qp).unwrap();
    freed(&mut world, 0, pd);
    assert_eq!(world.device(0).dealloc_pd(pd), Err(VerbsError::NoSuchObject));
}

/// A completion queue is busy while queue pairs use it. A destroyed queue pair does not count.
pub fn completion_queues_are_busy_while_they_are_used(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let (pd, shared) = (world.pd[0], world.cq[0]);
    let [sends, receives] = [0; 2].map(|_| world.device(0).create_cq(16).unwrap());
    let mut users = Vec::new();
    for (send_cq, recv_cq) in [(sends, shared), (shared, receives)] {
        let init = QpInit { send_cq, recv_cq, ..World::init(pd, shared) };
        users.push(world.queue_pair(0, &init));
    }
    world.pause();
    let device = world.device(0);
    for cq in [sends, receives] {
        assert_eq!(device.destroy_cq(cq), Err(VerbsError::Busy));
        assert_eq!(device.poll_cq(cq), None);
    }
    for qp in users {
        device.destroy_qp(qp).unwrap();
    }
    for cq in [sends, receives] {
        assert_eq!(device.destroy_cq(cq), Ok(()));
        assert_eq!(device.destroy_cq(cq), Err(VerbsError::NoSuchObject));
    }
}

/// The id of a destroyed object is unknown, and later objects have other ids.
pub fn ids_of_destroyed_objects_are_unknown(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let none = VerbsError::NoSuchObject;
    let memory = world.memory(0, 4096);
    let (pd, cq) = (world.pd[0], world.cq[0]);
    let dead = world.queue_pair(0, &World::init(pd, cq));
    let (cq_dead, pd_dead) = (world.device(0).create_cq(4).unwrap(), world.device(0).alloc_pd());
    let pd_dead = pd_dead.unwrap();
    let region = world.grant(0, memory, Access::REMOTE_WRITE);
    let device = world.device(0);
    device.destroy_qp(dead).unwrap();
    device.destroy_cq(cq_dead).unwrap();
    device.dealloc_pd(pd_dead).unwrap();
    device.deregister(region.id).unwrap();
    let again = world.queue_pair(0, &World::init(pd, cq));
    let other = world.grant(0, memory, Access::REMOTE_WRITE);
    let more = world.device(0).create_cq(4).unwrap();
    assert!(again != dead && other.id != region.id && more != cq_dead);
    assert_ne!(granted(&other).rkey, granted(&region).rkey);
    let mut rng = world.rng.fork();
    let device = world.device(0);
    assert_eq!(device.qp_state(dead), Err(none));
    assert_eq!(device.qp_number(dead), Err(none));
    assert_eq!(device.fail_qp(dead), Err(none));
    assert_eq!(device.destroy_qp(dead), Err(none));
    let post = device.post_recv(dead, &RecvRequest { id: 1, into: &[] });
    assert_eq!(post, Err(none));
    assert_eq!(device.deregister(region.id), Err(none));
    assert_eq!(device.revoke_key(region.id), Err(none));
    assert_eq!(device.rotate_key(region.id, &mut rng), Err(none));
    assert_eq!(device.destroy_cq(cq_dead), Err(none));
    assert_eq!(device.poll_cq(cq_dead), None);
    assert_eq!(device.dealloc_pd(pd_dead), Err(none));
    let registered = device.register(pd_dead, memory, Access::REMOTE_WRITE, &mut rng);
    assert_eq!(registered.err(), Some(none));
    assert_eq!(device.qp_state(again), Ok(QpState::Init));
}

/// Requests beyond the attributes are refused, and leave no object behind.
pub fn requests_beyond_the_attributes_are_refused(fixture: Box<dyn Fixture>) {
    let mut world = World::new(fixture);
    let pd = world.device(0).alloc_pd().unwrap();
    let init = World::init(pd, world.cq[0]);
    let most = world.device(0).attributes();
    let (sge, inline) = (most.max_sge + 1, most.max_inline + 1);
    let wrongs = [
        QpInit { max_send_wr: most.max_wr + 1, ..init },
        QpInit { max_recv_wr: most.max_wr + 1, ..init },
        QpInit { max_send_sge: sge, ..init },
        QpInit { max_recv_sge: sge, ..init },
        QpInit { max_inline: inline, ..init },
    ];
    let mut rng = world.rng.fork();
    for wrong in wrongs {
        let made = world.device(0).create_qp(&wrong, &mut rng);
        assert_eq!(made, Err(VerbsError::Invalid), "{wrong:?}");
    }
    let gone = world.device(0).create_cq(4).unwrap();
    world.device(0).destroy_cq(gone).unwrap();
    for wrong in [QpInit { send_cq: gone, ..init }, QpInit { recv_cq: gone, ..init }] {
        let made = world.device(0).create_qp(&wrong, &mut rng);
        assert_eq!(made, Err(VerbsError::NoSuchObject));
    }
    // The refused queue pairs do not use the domain.
    assert_eq!(world.device(0).dealloc_pd(pd), Ok(()));
    let memory = world.memory(0, 4096);
    let (pd, device) = (world.pd[0], world.device(0));
    let few = device.register_chunks(pd, 3, 2048, Some(memory), &mut rng);
    assert_eq!(few, Err(VerbsError::Invalid), "chunks exceed the memory");
    let mut world = world.connected();
    let qp = world.qp[0];
    let five = [memory; 5];
    let device = world.device(0);
    let payload = Payload::Windows(&five);
    let send = SendOperation::Send { payload, with: SendWith::Nothing };
    assert_eq!(device.post_send(qp, &crate::world::request(1, send)), Err(VerbsError::Invalid));
    let bytes = vec![0; inline];
    let send = crate::world::send_inline(&bytes);
    assert_eq!(device.post_send(qp, &crate::world::request(1, send)), Err(VerbsError::Invalid));
    let receive = RecvRequest { id: 1, into: &five };
    assert_eq!(device.post_recv(qp, &receive), Err(VerbsError::Invalid));
    world.use_connection();
}
