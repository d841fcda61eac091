use super::memory::reasons;
use crate::rnbd::wire::{AccessMode, Operation};
use crate::testing::{Wire, World, context, user_io};
use crate::volume::{Completion, Request, Submitted, Volume, VolumeError, VolumeId};
use core::net::Ipv4Addr;
use core::time::Duration;
use drivers::hal::{Features, Geometry};
use rtrs::Errno;
use rtrs::client::{DownReason, Event, Outcome, PathId};
use rtrs::server::{Config, PathState, RequestId, RequestKind};
use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

/// A volume whose requests complete when the test says so.
#[derive(Clone, Default)]
pub struct Slow(pub Rc<RefCell<SlowState>>);

#[derive(Default)]
pub struct SlowState {
    queue: Vec<Request>,
    done: Vec<Completion>,
    bytes: Vec<u8>,
    depth: usize,
    pub fail: bool,
}

impl Slow {
    pub fn new(depth: usize) -> Self {
        let slow = Slow::default();
        slow.0.borrow_mut().bytes = std::vec![0; 64 << 10];
        slow.0.borrow_mut().depth = depth;
        slow
    }

    /// Completes the oldest request.
    pub fn work(&self) {
        let state = &mut *self.0.borrow_mut();
        let request = state.queue.remove(0);
        let at = (request.sector as usize)
            .saturating_mul(512)
            .min(state.bytes.len() - request.data.len());
        let range = at..at + request.data.len();
        match request.operation {
            _ if state.fail => {}
            crate::volume::Operation::Read => request.data.write(0, &state.bytes[range]).unwrap(),
            crate::volume::Operation::Flush => {}
            _ => request.data.read(0, &mut state.bytes[range]).unwrap(),
        }
        let result = if state.fail { Err(VolumeError::Io) } else { Ok(()) };
        state.done.push(Completion { tag: request.tag, result });
    }

    fn queued(&self) -> usize {
        self.0.borrow().queue.len()
    }

    /// Id of the oldest request.
    pub fn oldest(&self) -> RequestId {
        RequestId::from_bits(self.0.borrow().queue[0].tag.word)
    }
}

impl Volume for Slow {
    fn geometry(&self) -> Geometry {
        Geometry {
            sectors: 128,
            logical_block: 512,
            physical_block: 512,
            max_transfer: 1 << 20,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            features: Features::VOLATILE_CACHE,
        }
    }
    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let mut state = self.0.borrow_mut();
        if state.queue.len() == state.depth {
            return Err(VolumeError::Busy);
        }
        state.queue.push(*request);
        Ok(Submitted::Pending)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop()
    }
}

fn slow_world(depth: usize) -> (World, Slow) {
    let slow = Slow::new(depth);
    (World::with_volume(World::small(true), 1 << 20, Box::new(slow.clone())), slow)
}

#[test]
pub fn a_silent_client_is_noticed_and_an_idle_one_stays() {
    let mut world = World::new(World::small(true), 1 << 20);
    let memory = world.arena.available();
    let (idle, silent) = (world.connect("idle"), world.connect("silent"));
    world.pass(60);
    assert_eq!(world.server.transport().sessions().count(), 2);
    world.wire.cut.push(World::address(silent));
    world.pass(25);
    assert_eq!(world.server.transport().sessions().count(), 2, "not yet");
    world.pass(20);
    let sessions: Vec<_> = world.server.transport().sessions().collect();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].name.as_str(), "idle");
    assert!(world.events.iter().any(|e| matches!(e, (1, Event::PathDown(PathId(0), _)))));
    world.clients[idle].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.arena.available(), memory);
}

#[test]
pub fn a_client_that_comes_back_replaces_its_stale_path_at_once() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    // The client loses the path, and the server does not notice.
    world.wire.cut.push(World::address(client));
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    world.wire.cut.clear();
    assert_eq!(world.server.transport().paths().next().unwrap().state, PathState::Connected);
    world.clients[client].reconnect(PathId(0), context!(world, host));
    world.run();
    let device = world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(device.sectors, 2048, "the stale device was closed, so a writer is admitted");
    assert_eq!(world.server.transport().paths().count(), 1);
    // The same after the client was restarted: another session of the same name.
    world.wire.cut.push(World::address(client));
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    world.wire.cut.clear();
    let name = rtrs::Name::new("s1").unwrap();
    let config = rtrs::client::Config::default();
    world.clients[client] = rtrs::client::Client::new(config, name, context!(world, host)).unwrap();
    world.add_path(client, World::address(client));
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    assert_eq!(world.server.transport().sessions().count(), 1);
}

#[test]
pub fn restarted_client_replaces_all_paths_of_its_old_session() {
    let mut world = World::new(World::small(true), 1 << 20);
    let client = world.connect("s1");
    let second = Ipv4Addr::new(10, 0, 1, 2).into();
    world.add_path(client, second);
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    for from in [second, World::address(client)] {
        // The client loses power, and the server does not notice.
        let name = rtrs::Name::new("s1").unwrap();
        let config = rtrs::client::Config::default();
        world.clients[client] =
            rtrs::client::Client::new(config, name, context!(world, host)).unwrap();
        world.add_path(client, from);
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let other = if from == second { World::address(client) } else { second };
        world.add_path(client, other);
        assert_eq!(world.server.transport().sessions().count(), 1);
        assert_eq!(world.server.transport().paths().count(), 2);
    }
}

/// A path that reconnects replaces itself, even if its session has the most paths.
#[test]
pub fn session_has_at_most_the_configured_paths() {
    let mut world = World::new(Config { max_paths: 2, ..World::small(true) }, 1 << 20);
    let client = world.connect("s1");
    world.add_path(client, Ipv4Addr::new(10, 0, 1, 2).into());
    world.events.clear();
    world.add_path(client, Ipv4Addr::new(10, 0, 2, 2).into());
    let refused = Event::PathDown(PathId(2), DownReason::Refused(Errno::ECONNRESET));
    assert_eq!(world.events, [(client, refused)]);
    assert_eq!(reasons(&mut world), ["paths"]);
    world.wire.cut.push(World::address(client));
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    world.wire.cut.clear();
    world.clients[client].reconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(reasons(&mut world), [""; 0]);
    let states: Vec<_> = world.server.transport().paths().map(|path| path.state).collect();
    assert_eq!(states, [PathState::Connected; 2]);
    let states: Vec<_> = world.clients[client].paths().map(|path| path.state).collect();
    assert_eq!(states[..2], [rtrs::client::PathState::Connected; 2]);
}

#[test]
pub fn a_session_name_belongs_to_one_host() {
    let mut world = World::new(World::small(true), 1 << 20);
    let first = world.connect("same");
    world.events.clear();
    let second = world.connect("same");
    let down = (second, Event::PathDown(PathId(0), DownReason::Peer));
    assert_eq!(world.events, [down]);
    world.open(first, "ram0", AccessMode::ReadWrite).unwrap();
}

#[test]
pub fn request_resent_on_another_path_waits_for_the_first_one() {
    let (mut world, slow) = slow_world(8);
    let client = world.connect("s1");
    world.add_path(client, Ipv4Addr::new(10, 0, 1, 2).into());
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let user = user_io(Operation::Write, 0, 512);
    let permit = world.start_write(client, &user, &[7; 512]);
    world.run();
    assert_eq!(slow.queued(), 1);
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert_eq!(world.outcome(client, permit), None, "it is resent on the other path");
    assert_eq!(slow.queued(), 1, "the resent request waits");
    slow.work();
    world.run();
    assert_eq!(world.outcome(client, permit), None);
    assert_eq!(slow.queued(), 1);
    slow.work();
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    let waits: Vec<u64> = world.server.transport().paths().map(|p| p.stats.chunk_waits).collect();
    assert_eq!(waits, [1], "the first path has ended");
    assert_eq!(world.server.devices().count(), 1, "the device is open on every path");
}

#[test]
pub fn ended_session_keeps_its_memory_until_the_volume_completes() {
    let (mut world, slow) = slow_world(2);
    let memory = world.arena.available();
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    for n in 0..4 {
        world.start_write(client, &user_io(Operation::Write, n, 512), &[n as u8; 512]);
    }
    world.run();
    assert_eq!(slow.queued(), 2, "the volume is busy");
    world.clients[client].disconnect(PathId(0), context!(world, host));
    world.run();
    assert!(world.arena.available() < memory);
    assert_eq!(world.server.devices().count(), 0);
    slow.work();
    world.run();
    assert!(world.arena.available() < memory);
    assert_eq!(slow.queued(), 1, "waiting requests are dropped");
    slow.work();
    world.run();
    assert_eq!(world.arena.available(), memory);
    assert_eq!(world.server.transport().sessions().count(), 0);
}

#[test]
pub fn a_busy_volume_slows_clients_down_and_errors_stay_with_their_request() {
    let (mut world, slow) = slow_world(2);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let permits: Vec<_> = (0..6u64)
        .map(|n| world.start_write(client, &user_io(Operation::Write, n, 512), &[n as u8 + 1; 512]))
        .collect();
    world.run();
    for n in 0..6 {
        assert!(slow.queued() <= 2);
        slow.0.borrow_mut().fail = n == 3;
        slow.work();
        world.run();
    }
    for (n, permit) in permits.into_iter().enumerate() {
        let expected = if n == 3 { Err(Errno::EIO) } else { Ok(()) };
        assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(expected)));
        world.clients[client].put_permit(permit);
    }
    let state = slow.0.borrow();
    assert_eq!((state.bytes[0], state.bytes[3 * 512], state.bytes[5 * 512]), (1, 0, 6));
    drop(state);
    let permit = world.start_read(client, &user_io(Operation::Read, 5, 512), 512);
    world.run();
    slow.0.borrow_mut().fail = false;
    slow.work();
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    let mut bytes = [0; 512];
    let data = world.data(client, permit);
    data.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [6; 512]);
    let volume = world.volumes.find("ram0").unwrap();
    let stats = world.server.volume_stats(volume).unwrap();
    assert_eq!((stats.writes, stats.reads, stats.errors), (5, 1, 1));
    assert!(stats.waits >= 4);
}

/// Latency is the time from the arrival of a request to its response.
#[test]
fn latency_of_a_request_is_counted() {
    let (mut world, slow) = slow_world(8);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let path = world.server.transport().paths().next().unwrap().id;
    for (operation, millis) in [(Operation::Read, 5), (Operation::Write, 300)] {
        netsim::label!(operation, millis);
        assert!(world.server.transport_mut().reset_stats(path));
        let user = user_io(operation, 0, 512);
        match operation {
            Operation::Read => world.start_read(client, &user, 512),
            _ => world.start_write(client, &user, &[7; 512]),
        };
        world.run();
        slow.work();
        world.now = world.now + Duration::from_millis(millis);
        world.run();
        let stats = *world.server.transport().paths().next().unwrap().stats;
        let volume = world.server.volume_stats(VolumeId(0)).unwrap();
        let [of_path, of_volume] = match operation {
            Operation::Read => [stats.read_latency, volume.read_latency],
            _ => [stats.write_latency, volume.write_latency],
        };
        assert_eq!((of_path.count(), of_path), (1, of_volume));
        let done = [volume.read_bytes, volume.write_bytes];
        assert_eq!(done, if operation == Operation::Read { [512, 0] } else { [512, 512] });
        let (counted, passed) = (of_path.sum(), Duration::from_millis(millis));
        assert!(counted.abs_diff(passed) < Duration::from_micros(10), "{counted:?}");
    }
}

/// The server starts as many requests as the send queue has room for responses: up to one for each chunk, and
/// never more than that room, however many requests wait.
#[test]
fn requests_start_only_with_room_for_their_responses() {
    for (queue_depth, at_once) in [(8, 8), (40, 40), (512, 64)] {
        netsim::label!(queue_depth);
        let slow = Slow::new(1000);
        let config = Config { queue_depth, chunk_size: 8192, ..World::small(true) };
        let mut world = World::with_volume(config, 8 << 20, Box::new(slow.clone()));
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let user = user_io(Operation::Read, 0, 512);
        let reads: Vec<_> =
            (0..queue_depth).map(|_| world.start_read(client, &user, 512)).collect();
        world.run();
        assert_eq!(slow.queued(), at_once);
        let stats = *world.server.transport().paths().next().unwrap().stats;
        assert_eq!(stats.parked, u64::from(queue_depth) - at_once as u64);
        while slow.queued() > 0 {
            slow.work();
            world.run();
            assert!(slow.queued() <= at_once, "{} at once", slow.queued());
        }
        for permit in reads {
            assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
        }
    }
}

#[test]
pub fn the_operator_disconnects_a_path() {
    let mut world = World::new(World::small(false), 1 << 20);
    let client = world.connect("s1");
    world.events.clear();
    let path = world.server.transport().paths().next().unwrap().id;
    assert!(world.server.transport_mut().disconnect(path, context!(world, gateway)));
    world.run();
    let down = (client, Event::PathDown(PathId(0), DownReason::Peer));
    assert_eq!(world.events, [down, (client, Event::LinkDown)]);
    assert_eq!(world.wire.objects(), (1, 0, 8), "only the client's objects are left");
}

#[test]
pub fn chunk_reused_before_its_response_ends_the_path() {
    for always_invalidate in [true, false] {
        let slow = Slow::new(8);
        let config = World::small(always_invalidate);
        let mut world = World::with_volume(config, 1 << 20, Box::new(slow.clone()));
        let client = world.connect("s1");
        world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
        let user = user_io(Operation::Write, 0, 512);
        world.wire.repeat = true;
        let permit = world.start_write(client, &user, &[7; 512]);
        world.run();
        assert_eq!(world.outcome(client, permit), Some(Outcome::Lost));
        assert_eq!(slow.queued(), 1);
        slow.work();
        world.run();
        assert_eq!(world.server.transport().sessions().count(), 0);
    }
}

/// The kind and sizes of the request with that id, if it is in flight.
fn request(world: &mut World, id: RequestId) -> Option<(RequestKind, usize, usize)> {
    let request = world.server.transport().request(id, context!(world, gateway))?;
    assert_eq!(request.id, id);
    Some((request.kind, request.data.len(), request.user.len()))
}

/// Responds to the request with that id; false if there is none.
fn respond(world: &mut World, id: RequestId) -> bool {
    let result = Ok(drivers::hal::Window::empty());
    world.server.transport_mut().respond(id, result, context!(world, gateway)).is_some()
}

/// A repeated or late completion of a volume must not complete another request: the id of a request is valid until
/// its response, and the next request in its chunk has another id.
#[test]
pub fn id_of_a_request_is_valid_until_its_response() {
    let (mut world, slow) = slow_world(8);
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    let user = user_io(Operation::Write, 0, 512);
    let permit = world.start_write(client, &user, &[7; 512]);
    world.run();
    let id = slow.oldest();
    assert_eq!(request(&mut world, id), Some((RequestKind::Write, 512, user.len())));
    for other in [id.to_bits() ^ 1, id.to_bits() + (1 << 16), u64::MAX].map(RequestId::from_bits) {
        assert_eq!(request(&mut world, other), None);
        assert!(!respond(&mut world, other));
    }
    slow.work();
    world.run();
    assert_eq!(world.outcome(client, permit), Some(Outcome::Answered(Ok(()))));
    assert_eq!(request(&mut world, id), None);
    assert!(!respond(&mut world, id));
    world.clients[client].put_permit(permit);
    // A later request in the same chunk must not have the same id.
    for _ in 0..8 {
        world.start_read(client, &user_io(Operation::Read, 8, 1024), 1024);
        world.run();
        let later = slow.oldest();
        assert_eq!(request(&mut world, later), Some((RequestKind::Read, 1024, user.len())));
        assert_eq!(request(&mut world, id).is_some(), later == id);
        if later == id {
            return;
        }
        slow.work();
        world.run();
    }
    panic!("no chunk was used twice");
}

/// A request whose path ends is not started again, and its chunk is released once.
#[test]
pub fn request_of_an_ended_path_is_released_once() {
    let (mut world, slow) = slow_world(8);
    let memory = world.arena.available();
    let client = world.connect("s1");
    world.open(client, "ram0", AccessMode::ReadWrite).unwrap();
    world.start_write(client, &user_io(Operation::Write, 0, 512), &[7; 512]);
    world.run();
    let id = slow.oldest();
    let path = world.server.transport().paths().next().unwrap().id;
    world.server.transport_mut().disconnect(path, context!(world, gateway));
    assert_eq!(request(&mut world, id), None);
    world.run();
    assert!(world.arena.available() < memory, "the volume may still read the chunk");
    assert!(respond(&mut world, id));
    assert!(!respond(&mut world, id));
    world.run();
    assert_eq!(world.arena.available(), memory);
}
