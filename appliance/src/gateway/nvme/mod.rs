//! The NVMe-oF target over TCP: moves bytes between the TCP connections of the interfaces and the target's queues.
//!
//! A connection is served after one of its events, or when its queue has something to send. It moves a share of bytes
//! in a round; what is left continues in the next round, behind the other connections.

mod connections;

use super::network::Network;
use super::plane::DataPlane;
use super::service::{Service, ServiceContext};
use crate::config::Config;
use ::nvme::{Context, Settings, Target};
use connections::{Connections, Io};
use drivers::hal::{Arena, Instant};
use net::tcp::{self, Listener};
use rand_core::Rng;
use storage::volume::Volumes;

/// Bytes of a connection's buffers, which every host gets with its handshake. A write of the largest transfer fits into
/// the window, and 10 Gb/s over a round trip of 100 µs. 1024 connections have 256 MiB of buffers.
const RECEIVE: usize = 128 << 10;
const TRANSMIT: usize = 128 << 10;
/// Places of a listener beyond those of queues: for connections that are being closed, and so that the target learns of
/// a host that finds no place, and can give it that of a connection without a Connect.
const SPARE_PLACES: usize = 64;
/// Fewest queues, on a machine without memory for more: 31 MiB if all are connected.
const LEAST_QUEUES: usize = 128;

/// The target, its listeners and connections.
pub(super) struct Nvme {
    target: Target,
    /// By interface: its listeners.
    listeners: Vec<Vec<Listener>>,
    connections: Connections,
    /// No more connections are accepted.
    is_ending: bool,
}

impl Nvme {
    /// Starts to serve the configured subsystems. None if there are none, no port is configured, or there is no
    /// memory. The subsystems are there before the first host can ask for one: a host that is refused does not try
    /// again.
    #[cold]
    pub fn of(
        config: &Config,
        plane: &mut DataPlane,
        networks: &mut [Network],
    ) -> Option<Box<Nvme>> {
        let ports: Vec<u16> = [config.nvme.tcp, config.nvme.discovery]
            .into_iter()
            .filter(|&port| port != 0)
            .collect();
        if config.subsystem.is_empty() || ports.is_empty() {
            return None;
        }
        let mut settings = Settings { port: config.nvme.tcp, ..Settings::default() };
        // Half of the free memory: volumes and sessions get theirs from the same.
        let affordable = plane.arena.available() / 2 / settings.queue_bytes();
        settings.queues = settings.queues.min(affordable.max(LEAST_QUEUES));
        // No host takes all.
        settings.queues_per_host = settings.queues_per_host.min(settings.queues / 2);
        log::info!("nvme: at most {} queues of hosts", settings.queues);
        let Some(mut target) = Target::new(settings, &mut plane.arena) else {
            log::error!("nvme: not available: there is no memory");
            return None;
        };
        target.set_keys(config.host_keys(), config.dhchap());
        target.configure(config.subsystems(), &plane.storage.volumes);
        let connections = settings.queues + SPARE_PLACES;
        let limits = tcp::Limits { connections, receive: RECEIVE, transmit: TRANSMIT };
        let listen = |network: &mut Network| {
            let new = |&port: &u16| Listener::new(&mut network.interface, port, limits);
            ports.iter().map(new).collect()
        };
        let listeners = networks.iter_mut().map(listen).collect();
        let connections = Connections::default();
        Some(Box::new(Nvme { target, listeners, connections, is_ending: false }))
    }

    /// Applies a changed configuration.
    pub fn configure(&mut self, config: &Config, plane: &DataPlane) {
        self.target.set_keys(config.host_keys(), config.dhchap());
        self.target.configure(config.subsystems(), &plane.storage.volumes);
    }

    /// The target, for reports.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The target, for orders.
    pub fn target_mut(&mut self) -> &mut Target {
        &mut self.target
    }

    /// Accepts connections, and collects events.
    fn take_events(
        &mut self,
        networks: &mut [Network],
        volumes: &mut Volumes,
        arena: &mut Arena,
        random: ::nvme::Random<'_>,
        now: Instant,
    ) {
        let Nvme { target, listeners, connections, is_ending } = self;
        for (at, (network, listeners)) in networks.iter_mut().zip(listeners).enumerate() {
            for (number, listener) in listeners.iter_mut().enumerate() {
                let interface = &mut network.interface;
                if !interface.is_ready(listener.owner()) {
                    continue;
                }
                while let Some(stream) = listener.accept(interface, now) {
                    let (volumes, arena) = (&mut *volumes, &mut *arena);
                    let mut ctx = Context { volumes, arena, now, random: &mut *random };
                    let opened = !*is_ending
                        && listener.ends(interface, stream).is_some_and(|(peer, ours)| {
                            let (host, port) = (peer.ip(), listener.port());
                            let ends = ::nvme::Ends { host, ours, port };
                            connections.open(target, (at, number, stream), ends, &mut ctx)
                        });
                    if !opened {
                        listener.abort(interface, stream, now);
                    }
                }
                while let Some(stream) = listener.next_news(interface) {
                    connections.mark((at, number, stream));
                }
                while let Some(host) = listener.next_turned_away(interface) {
                    target.refuse_connection(host, listener.port());
                }
                let more = listener.more_turned_away(interface);
                if more > 0 {
                    target.refusals().count("nvme", "connections", more);
                }
            }
        }
    }
}

impl Service for Nvme {
    fn poll(&mut self, around: &mut ServiceContext<'_>) -> usize {
        let ServiceContext { networks, plane, refused, now, .. } = around;
        let now = *now;
        let DataPlane { storage, arena, rng, .. } = &mut **plane;
        let volumes = &mut storage.volumes;
        let random = &mut |into: &mut [u8]| rng.fill_bytes(into);
        self.take_events(networks, volumes, arena, &mut *random, now);
        let Nvme { target, listeners, connections, .. } = self;
        if target.volumes_have_changed(volumes) {
            target.refresh_volumes(volumes);
        }
        let mut ctx = Context { volumes, arena, now, random };
        let mut done = target.poll(&mut ctx);
        let mut io = Io { networks, listeners };
        done += connections.poll(target, &mut io, &mut ctx);
        target.flush(ctx.volumes);
        if !target.refusals().is_empty() {
            refused.take(target.refusals(), now);
        }
        done
    }

    fn deadline(&self, _: &DataPlane) -> Option<Instant> {
        let waiting = self.connections.has_ready().then_some(Instant::ZERO);
        Instant::first([self.target.deadline(), waiting])
    }

    fn allows_brief_rounds(&self) -> bool {
        self.connections.len() == 0
    }

    fn shut_down(&mut self, around: &mut ServiceContext<'_>) {
        self.is_ending = true;
        self.target.shut_down();
        self.poll(around);
    }

    fn is_shut_down(&self) -> bool {
        self.connections.len() == 0
    }
}
