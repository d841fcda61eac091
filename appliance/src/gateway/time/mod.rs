//! The wall clock: the machine's real-time clock, read at boot, until the time servers of the configuration agree on the
//! time. The log shows UTC as soon as the time is plausible.

use super::network::Network;
use super::state::State;
use crate::config::Config;
use crate::log_ring::LogRing;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use drivers::hal::Instant;
use management::status::{Facts, WallClock};
use net::dns::{Endpoint, Host, Lookup, Resolver};
use net::sntp::{self, Action, Client, Estimate, LENGTH, Server, ServerState};
use net::udp;
use rand_core::Rng;

/// A correction of the clock above this is logged.
const STEP: Duration = Duration::from_millis(500);

/// Creates the wall clock, which showed `seconds` since 1970 at `now`.
pub(super) fn read(seconds: u64, now: Instant, facts: &Facts, log: &LogRing) -> WallClock {
    let clock = WallClock::new(seconds, now, facts.committed);
    if clock.is_plausible {
        log.set_epoch(clock.epoch);
    } else {
        log::warn!(
            "clock: the real-time clock shows {:.0}, which is implausible: the log shows the time since the boot; \
             set system.ntp, or the clock of the machine or of its host",
            clock.at(now)
        );
    }
    clock
}

/// The time client, and its sockets.
pub(super) struct Time {
    pub client: Client,
    /// Server, number of the interface, and socket of each request in flight.
    sockets: Vec<(usize, usize, udp::Socket)>,
    /// Generations of the interfaces, and of the names, for which the servers were set.
    generations: (Vec<u64>, u64),
    /// The servers in use of each name.
    named: Vec<(Endpoint, SocketAddr)>,
    /// The configuration may have other servers, or a server in use is not good any more.
    pub is_changed: bool,
    /// What the clock was set to.
    applied: Option<Estimate>,
}

impl Time {
    /// Creates it for a build that was committed at this time, in seconds since 1970.
    pub fn new(committed: u64) -> Self {
        Time {
            client: Client::new(WallClock::possible(committed)),
            sockets: Vec::new(),
            generations: (Vec::new(), 0),
            named: Vec::new(),
            is_changed: true,
            applied: None,
        }
    }

    /// When the next timer expires.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.client.poll_timeout()
    }

    /// Applies the configuration, the addresses of the interfaces, and those of the servers' names.
    fn update(&mut self, networks: &[Network], config: &Config, resolver: &Resolver, now: Instant) {
        let of_names = resolver.generation();
        let generations = networks.iter().map(|network| network.interface.generation());
        let (before, names_before) = &self.generations;
        let is_moved = !generations.clone().eq(before.iter().copied()) || *names_before != of_names;
        if !is_moved && !self.is_changed {
            return;
        }
        self.generations = (generations.collect(), of_names);
        self.is_changed = false;
        let good: Vec<SocketAddr> = self.client.good().map(|server| server.address).collect();
        let in_use = core::mem::take(&mut self.named);
        let entries = &config.system.ntp;
        let mut servers: Vec<Server> = Vec::new();
        for (entry, endpoint) in entries.iter().map(|server| &server.0).enumerate() {
            let addresses = match &endpoint.host {
                Host::Address(address) => vec![*address],
                Host::Name(name) => match resolver.peek(name) {
                    Lookup::Known(addresses) => addresses,
                    Lookup::Pending | Lookup::Failed(_) => Vec::new(),
                },
            };
            let is_reachable =
                |ip: &IpAddr| networks.iter().any(|n| n.interface.next_hop(*ip).is_some());
            let reachable = addresses.into_iter().filter(is_reachable);
            let answer: Vec<SocketAddr> =
                reachable.map(|ip| SocketAddr::new(ip, endpoint.port)).collect();
            let is_kept = |(of, address): &&(Endpoint, SocketAddr)| {
                of == endpoint && good.contains(address) && is_reachable(&address.ip())
            };
            let kept: Vec<SocketAddr> =
                in_use.iter().filter(is_kept).map(|(_, address)| *address).collect();
            for address in sntp::choose(&kept, &answer, entries.len()) {
                let towards = |n: &Network| n.interface.next_hop(address.ip()).is_some();
                let Some(interface) = networks.iter().position(towards) else { continue };
                if servers.iter().any(|other| other.address == address) {
                    continue;
                }
                servers.push(Server { address, interface, entry });
                if endpoint.host.name().is_some() {
                    self.named.push((endpoint.clone(), address));
                }
            }
        }
        self.client.set_servers(&servers, now);
    }

    /// Passes what has arrived to the client. Returns the number of datagrams.
    fn receive(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut count = 0;
        // A longer answer has extension fields, which are not used.
        let mut bytes = [0; LENGTH];
        for (server, number, socket) in &self.sockets {
            let Some(network) = networks.get_mut(*number) else { continue };
            while let Some((length, from)) = socket.receive(&mut network.interface, &mut bytes) {
                count += 1;
                self.client.handle_datagram(*server, from, &bytes[..length], now);
            }
        }
        count
    }

    /// Does what the client asks for. A datagram that cannot be sent counts as one that is not answered.
    fn act(&mut self, networks: &mut [Network]) -> usize {
        let mut count = 0;
        while let Some(action) = self.client.next_action() {
            count += 1;
            let (Action::Send { server, .. } | Action::Close { server }) = &action;
            if let Some(at) = self.sockets.iter().position(|(of, ..)| of == server) {
                let (_, number, socket) = self.sockets.swap_remove(at);
                if let Some(network) = networks.get_mut(number) {
                    socket.close(&mut network.interface);
                }
            }
            let Action::Send { server, interface: number, to, port, message } = action else {
                continue;
            };
            let Some(network) = networks.get_mut(number) else { continue };
            if let Some(socket) = udp::Socket::open(&mut network.interface, port, LENGTH) {
                socket.send(&mut network.interface, to, &message);
                self.sockets.push((server, number, socket));
            }
        }
        count
    }

    /// Sets the clock to what the servers agree on.
    fn apply(&mut self, clock: &mut WallClock, log: &LogRing, now: Instant) {
        let Some(estimate) = self.client.estimate() else { return };
        let Some(before) = self.applied.replace(estimate).map(|before| before.epoch) else {
            // The first time.
            let difference = estimate.epoch as i128 - clock.epoch as i128;
            *clock = WallClock { epoch: estimate.epoch, is_plausible: true };
            log.set_epoch(clock.epoch);
            log::info!(
                "clock: {:.3} of time server {}, error at most {:.3} s; the real-time clock was {:.3} s {}",
                clock.at(now),
                estimate.server,
                estimate.error.as_secs_f64(),
                difference.unsigned_abs() as f64 / 1e9,
                if difference < 0 { "fast" } else { "slow" }
            );
            return;
        };
        if before == estimate.epoch {
            return;
        }
        let difference = Duration::from_nanos(before.abs_diff(estimate.epoch));
        if difference > STEP {
            log::warn!(
                "clock: corrected by {:.3} s, as time server {} has it",
                difference.as_secs_f64(),
                estimate.server
            );
        }
        clock.epoch = estimate.epoch;
        log.set_epoch(clock.epoch);
    }
}

/// Runs the time client. Returns the amount of work.
pub(super) fn poll(networks: &mut [Network], state: &mut State, now: Instant) -> usize {
    let State { time, names, plane, document, clock, log, secure, .. } = state;
    let rng: &mut dyn Rng = &mut *plane.rng;
    time.update(networks, document.config(), &names.resolver, now);
    let received = time.receive(networks, now);
    time.client.poll(rng, now);
    let acted = time.act(networks);
    while let Some(event) = time.client.next_event() {
        let (server, state) = (event.address, event.state);
        match state {
            ServerState::New | ServerState::Good => log::info!("time server {server}: {state}"),
            _ => {
                log::warn!("time server {server}: {state}");
                // Its name may have another address by now.
                time.is_changed = true;
            }
        }
    }
    time.apply(clock, log, now);
    if let Some(secure) = secure {
        secure.set_time(clock);
    }
    received + acted
}
