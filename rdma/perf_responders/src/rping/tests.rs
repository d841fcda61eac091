//! Client and server against each other, over RoCE in virtual time.

use super::*;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use netsim::Faults;
use roce::Limits;
use roce::testing::Pair;
use std::vec::Vec;
use verbs::{
    ConnectionEvent, ConnectionManager, ConnectionParameters, Ctx, Provider, RejectReason,
};

/// A server on node 0 (if `serve`), and a client on node 1 that has just requested its connection.
struct World {
    pair: Pair,
    server: Option<Server>,
    client: Client,
    events: Vec<Event>,
}

impl World {
    fn new(faults: Faults, serve: bool, options: Options) -> Self {
        let mut pair = Pair::new(7, 1500, false);
        pair.network.set_faults(faults);
        let server = serve.then(|| Server::new(&mut pair.nodes[0].roce).unwrap());
        let (local, peer) = (pair.nodes[1].ip, pair.nodes[0].ip);
        let client = pair.context(1, |ctx| Client::start(local, peer, options, ctx)).unwrap();
        World { pair, server, client, events: Vec::new() }
    }

    /// Runs until the client has ended; returns its events.
    fn run(&mut self) -> &[Event] {
        let World { pair, server, client, events } = self;
        let ended = pair.run(Duration::from_secs(60), |pair| {
            pair.context(0, |ctx| {
                while let Some(event) = ctx.provider.poll_connection_event() {
                    if let Some(server) = server {
                        let Ctx { provider, arena, now, rng } = ctx;
                        server.handle_connection_event(&event, *provider, arena, *now, *rng);
                    } else if let verbs::ConnectionEvent::Request { connection, .. } = event {
                        let reason = RejectReason::INVALID_SERVICE_ID;
                        let _ = ctx.provider.reject(connection, reason, &[]);
                    }
                }
                if let Some(server) = server {
                    server.poll(ctx.provider, ctx.now);
                }
            });
            pair.context(1, |ctx| {
                while let Some(event) = ctx.provider.poll_connection_event() {
                    client.handle_connection_event(&event);
                }
                while let Some(event) = client.poll(ctx) {
                    events.push(event);
                }
            });
            client.poll_timeout().is_none()
        });
        assert!(ended, "the client did not end: {events:?}");
        events
    }
}

#[test]
fn pings_of_all_sizes_come_back() {
    for size in [1, 3, 64, 1025, MAX_SIZE] {
        let mut world = World::new(Faults::default(), true, Options { count: 3, size });
        let events = world.run().to_vec();
        assert_eq!(events.len(), 4, "{size}: {events:?}");
        assert!(matches!(events[2], Event::Returned { sequence: 3, .. }));
        assert!(matches!(events[3], Event::Finished(Summary { returned: 3, .. })));
        assert_eq!(world.server.as_ref().unwrap().counters.pings, 3);
    }
}

#[test]
fn pattern_is_zero_terminated_string_of_full_size() {
    let [mut node, _] = Pair::new(7, 1500, false).nodes;
    for size in [1, 2, 64, 255, 256, 257, MAX_SIZE] {
        let source = node.arena.alloc(size, 64).unwrap();
        super::client::write_pattern(&source, size, 57);
        let mut bytes = std::vec![0; size];
        source.read(0, &mut bytes).unwrap();
        assert_eq!(bytes.iter().position(|byte| *byte == 0), Some(size - 1));
    }
}

#[test]
fn pings_come_back_over_faulty_network() {
    let faults = Faults { loss: 30, duplication: 30, reordering: 50, corruption: 10 };
    let mut world = World::new(faults, true, Options { count: 20, size: 9000 });
    assert!(matches!(world.run().last(), Some(Event::Finished(Summary { returned: 20, .. }))));
}

#[test]
fn rejected_client_names_rping_server_command() {
    let mut world = World::new(Faults::default(), false, Options { count: 1, size: 64 });
    let failure = Failure::Refused(RejectReason::INVALID_SERVICE_ID);
    assert_eq!(world.run(), [Event::Failed(failure)]);
    assert!(std::format!("{failure}").contains("start `rping -s` there"));
}

#[test]
fn client_without_answer_times_out() {
    let mut world = World::new(Faults::default(), true, Options { count: 1, size: 64 });
    world.pair.network.mute(0, true);
    assert_eq!(world.run(), [Event::Failed(Failure::NoAnswer)]);
}

#[test]
fn stopped_client_frees_memory_and_queue_pairs() {
    for serve in [true, false] {
        let mut world = World::new(Faults::default(), serve, Options { count: 1, size: 4096 });
        let free = Pair::new(7, 1500, false).nodes[1].arena.available();
        let others = world.pair.nodes[1].roce.queue_pairs();
        world.run();
        let World { mut pair, client, .. } = world;
        pair.context(1, |ctx| client.stop(ctx));
        assert_eq!(pair.nodes[1].arena.available(), free);
        assert_eq!(pair.nodes[1].roce.queue_pairs(), others - 1);
    }
}

/// Requests a connection from node 1, as if from another host if `from` is one. Returns whether the server accepts it.
fn request(pair: &mut Pair, server: &mut Server, from: Option<IpAddr>) -> bool {
    let (local, server_at) = (pair.nodes[1].ip, SocketAddr::new(pair.nodes[0].ip, PORT));
    let init = Pair::init(pair.nodes[1].pd, pair.nodes[1].cq);
    pair.context(1, |ctx| {
        let Ctx { provider, now, rng, .. } = ctx;
        let qp = provider.create_qp(&init, *rng).unwrap();
        let parameters = ConnectionParameters {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: 12,
        };
        provider.connect(qp, local, server_at, &parameters, &[], *now, *rng).unwrap();
    });
    let mut accepted = None;
    pair.run(Duration::from_secs(5), |pair| {
        pair.context(0, |ctx| {
            let Ctx { provider, arena, now, rng } = ctx;
            while let Some(mut event) = provider.poll_connection_event() {
                if let (ConnectionEvent::Request { from: sender, .. }, Some(ip)) =
                    (&mut event, from)
                {
                    sender.set_ip(ip);
                }
                server.handle_connection_event(&event, *provider, arena, *now, *rng);
            }
        });
        pair.context(1, |ctx| {
            while let Some(event) = ctx.provider.poll_connection_event() {
                match event {
                    ConnectionEvent::Established { .. } => accepted = Some(true),
                    ConnectionEvent::Rejected { reason, .. } => {
                        assert_eq!(reason, RejectReason::NO_RESOURCES);
                        accepted = Some(false);
                    }
                    _ => (),
                }
            }
        });
        accepted.is_some()
    });
    accepted.expect("the server answers")
}

/// A host holds 48 connections of 64, whatever it requests.
#[test]
fn greedy_host_leaves_connections_to_others() {
    let limits =
        Limits { qps: 256, connections: 256, connections_per_host: 128, ..Limits::default() };
    let mut pair = Pair::with_limits(9, 1500, false, limits);
    let mut server = Server::new(&mut pair.nodes[0].roce).unwrap();
    let other = Some(IpAddr::from([10, 0, 0, 77]));
    for _ in 0..48 {
        assert!(request(&mut pair, &mut server, None));
    }
    assert!(!request(&mut pair, &mut server, None));
    for _ in 0..16 {
        assert!(request(&mut pair, &mut server, other));
    }
    assert!(!request(&mut pair, &mut server, other));
    assert_eq!((server.connections(), server.counters.refused), (64, 2));
}

#[test]
fn client_rejects_invalid_options_and_unknown_peer() {
    let mut pair = Pair::new(7, 1500, false);
    let (local, peer) = (pair.nodes[1].ip, pair.nodes[0].ip);
    for options in [Options { count: 0, size: 64 }, Options { count: 1, size: MAX_SIZE + 1 }] {
        let started = pair.context(1, |ctx| Client::start(local, peer, options, ctx));
        assert_eq!(started.unwrap_err(), VerbsError::Invalid);
    }
    let (options, unknown) = (Options { count: 1, size: 64 }, [10, 0, 0, 77].into());
    let started = pair.context(1, |ctx| Client::start(local, unknown, options, ctx));
    assert_eq!(started.unwrap_err(), VerbsError::Unreachable);
}
