//! Tests of peers whose handshakes stall at each step, more of them than the rule allows: an honest client is served at
//! once.

use super::machine::{LIMITS, Machine, RULE, ip};
use super::*;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use net::connector::{ConnectionHandle, Connector, Limits};
use netsim::Rng;
use smcr::echo::ECHO_PORT;
use smcr::engine::Role;
use verbs::Ctx;

const STEP: Duration = Duration::from_millis(2);
/// Peers that stall.
const PEERS: usize = 70;

/// The step at which they stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// TCP is open, with SMC's option.
    Open,
    /// Half a Proposal is sent.
    HalfProposal,
    /// A Proposal is sent, and the Accept received.
    Proposal,
    /// All messages over TCP are sent, but no RoCE packet.
    Confirm,
}

/// The gateway, a machine with the stalling peers, and a machine with the server and an honest client.
struct World {
    now: Instant,
    gateway: Machine,
    crowd: Machine,
    honest: Machine,
    stalling: Connector,
    links: Vec<(ConnectionHandle, Option<SocketId>, usize)>,
}

impl World {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let [mut gateway, crowd, mut honest] = [1, 2, 3].map(|n| Machine::new(n, now));
        gateway.relay(SocketAddr::from((ip(3), ECHO_PORT)), now);
        honest.echo(true, LIMITS);
        let limits = Limits { connections: 1000, ..LIMITS };
        World {
            now,
            gateway,
            crowd,
            honest,
            stalling: Connector::new(limits, 1),
            links: Vec::new(),
        }
    }

    /// Keeps [`PEERS`] stalling connections in progress: a peer that is refused connects again.
    fn stall(&mut self, step: Step) {
        let World { now, crowd, stalling, links, .. } = self;
        let interface = &mut crowd.interface;
        links.retain(|(link, socket, _)| {
            let gone = stalling.progress(interface, *link) == net::connector::Progress::Gone;
            if gone {
                stalling.close(interface, *link, true);
                let mut rng = Rng::new(1);
                let (provider, arena) = (&mut crowd.roce, &mut crowd.arena);
                let ctx = &mut Ctx { provider, arena, now: *now, rng: &mut rng };
                socket.map(|socket| crowd.engine.abort(socket, ctx));
            }
            !gone
        });
        while links.len() < PEERS {
            let to = SocketAddr::from((ip(1), RULE));
            let Some(link) = stalling.connect(interface, to, true) else { break };
            links.push((link, None, 0));
        }
        let ends: [IpAddr; 2] = [ip(2).into(), ip(1).into()];
        let mut rng = Rng::new(now.as_nanos());
        let (provider, arena) = (&mut crowd.roce, &mut crowd.arena);
        let ctx = &mut Ctx { provider, arena, now: *now, rng: &mut rng };
        for (link, socket, written) in links {
            let open = net::connector::Progress::Open { smc: true };
            if step == Step::Open || stalling.progress(interface, *link) != open {
                continue;
            }
            if socket.is_none() {
                *socket = crowd.engine.open(Role::Client, ends, 9999, ctx);
            }
            let Some(socket) = *socket else { continue };
            let mut received = [0; 512];
            if let Ok(count @ 1..) = stalling.read(interface, *link, &mut received)
                && step == Step::Confirm
            {
                crowd.engine.handle_clc_bytes(socket, &received[..count], ctx, interface);
            }
            let mut bytes = [0; 512];
            let count = crowd.engine.poll_clc_bytes(socket, &mut bytes);
            let most = match step {
                Step::HalfProposal => count / 2,
                _ => count,
            };
            if count > 0 {
                let _ = stalling.write(interface, *link, &bytes[..most]);
                *written += most;
            }
        }
        crowd.engine.poll(ctx);
        crowd.engine.handle_timeout(ctx, interface);
        while crowd.engine.poll_event().is_some() {}
    }

    fn step(&mut self, step: Step) {
        self.now = self.now + STEP;
        self.stall(step);
        let now = self.now;
        self.gateway.round(now);
        self.honest.round(now);
        let sent = self.gateway.sent(now);
        self.honest.receive(&sent, now);
        let [frames, _] = sent;
        self.crowd.receive(&[frames, Vec::new()], now);
        let sent = self.honest.sent(now);
        self.gateway.receive(&sent, now);
        let [frames, _] = self.crowd.sent(now);
        self.gateway.receive(&[frames, Vec::new()], now);
    }

    /// How long an honest client waits for its echo, and how often it was refused. It connects again 20 ms after a
    /// refusal.
    fn wait(&mut self, step: Step, smc: bool) -> (Duration, usize) {
        let begun = self.now;
        let mut client = Connector::new(Limits { connections: 100, ..LIMITS }, 7);
        let to = SocketAddr::from((ip(1), RULE));
        let (mut refused, mut wrote, mut next) = (0, 0, begun);
        let mut link = None;
        while self.now.since(begun) < Duration::from_secs(10) {
            if link.is_none() && self.now >= next {
                link = client.connect(&mut self.honest.interface, to, smc);
                wrote = 0;
            }
            if let Some(open) = link {
                if wrote == 0 {
                    let wrote_now = client.write(&mut self.honest.interface, open, b"hello");
                    wrote = wrote_now.unwrap_or(0);
                }
                match client.read(&mut self.honest.interface, open, &mut [0; 8]) {
                    Ok(0) => {}
                    Ok(_) => return (self.now.since(begun), refused),
                    Err(_) => {
                        let interface = &mut self.honest.interface;
                        let opening = client.progress(interface, open);
                        if opening != net::connector::Progress::Opening {
                            client.close(interface, open, true);
                            refused += 1;
                            (link, next) = (None, self.now + Duration::from_millis(20));
                        }
                    }
                }
            }
            self.step(step);
        }
        panic!("{step:?}: the honest client is never served, refused {refused} times");
    }
}

#[test]
fn stalled_handshakes_do_not_delay_honest_clients() {
    for step in [Step::Open, Step::HalfProposal, Step::Proposal, Step::Confirm] {
        let mut w = World::new();
        for _ in 0..400 {
            w.step(step);
        }
        for _ in 0..20 {
            let (waited, refused) = w.wait(step, false);
            assert!(waited < Duration::from_millis(200), "{step:?}: {waited:?}, {refused} times");
        }
    }
}
