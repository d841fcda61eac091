//! The IP interface of each port, and the services that stand on it.

use super::ports::{BATCH, PortSlot, QueueSlot};
use super::state::{PingOrder, State};
use super::web::Web;
use crate::config::{Config, Http};
use crate::console::Progress;
use crate::families::OfMeasure;
use core::net::IpAddr;
use drivers::hal::{Instant, Port};
use net::hosts::Hosts;
use net::http::access::Doors;
use net::http::{Limits, Server};
use net::ping::{Event, Options, Ping};
use net::tls::Tls;
use net::{Addressing, Cidr, Interface};
use perf_responders::tcp_control::TcpControl;
use std::sync::Arc;

/// One interface with its services.
pub(super) struct Network {
    pub interface: Interface,
    http: Option<Server>,
    /// What its HTTP server speaks, if that is TLS.
    tls: Option<Arc<Tls>>,
    ping: Option<(IpAddr, Ping)>,
    /// The listeners of the measuring tools, on the interface that RDMA is on.
    pub front: Option<OfMeasure<TcpControl>>,
    generation: Option<u64>,
    /// The interface's activity that was seen last.
    seen: Option<u64>,
    /// When a service has something to do though nothing arrives. Services are woken by the interface's
    /// activity or by this, and nothing else moves it.
    services_due: Option<Instant>,
}

impl Network {
    /// The interface of port number `index`, configured.
    pub fn new(
        slot: &PortSlot,
        index: usize,
        config: &Config,
        tls: Option<Arc<Tls>>,
        seed: u64,
        now: Instant,
    ) -> Self {
        let mut interface = Interface::new(slot.mac, slot.mtu, seed, now);
        interface.set_hostname(String::leak(config.system.hostname.to_string()));
        let mut network = Network {
            interface,
            http: None,
            tls,
            ping: None,
            front: None,
            generation: None,
            seen: None,
            services_due: None,
        };
        network.configure(slot, index, config, now);
        network
    }

    /// Brings addresses and services in line with the configuration.
    fn configure(&mut self, slot: &PortSlot, index: usize, config: &Config, now: Instant) {
        let wanted = config.net(index, slot.mac, &slot.location);
        let addressing = Addressing {
            addresses: wanted.fixed().map(|(ip, prefix)| Cidr::new(ip.into(), prefix)).collect(),
            gateways: wanted.gateway.clone(),
            dhcp: wanted.dhcp(),
            slaac: wanted.dhcp(),
        };
        if let Err(error) = self.interface.set_addressing(addressing, now) {
            log::error!("{}: net.{index}: {error}; the former addresses stay", slot.name);
        }
        let port = self.port(&config.http);
        if self.http.is_none() {
            let connections = config.http.connections.into();
            let limits = Limits { connections, ..Limits::default() };
            self.http =
                port.map(|port| Server::new(&mut self.interface, port, limits, self.tls.clone()));
        }
        if let Some(server) = &mut self.http {
            let hosts = Hosts::new(config.http.hosts.clone());
            server.set_doors(Doors { hosts, listen: config.http.listen.clone() });
        }
    }

    /// The port of the HTTP server, if there is to be one.
    fn port(&self, http: &Http) -> Option<u16> {
        http.enabled.then(|| http.port(self.tls.is_some()))
    }

    /// Ends the HTTP server if the configuration wants another one, or none.
    fn stop_moved_server(&mut self, state: &mut State) {
        let http = &state.document.config().http;
        let port = self.port(http);
        if let Some(server) = self.http.take_if(|server| Some(server.port()) != port) {
            server.stop(&mut self.interface, &mut Web { state });
        }
    }

    /// Whether its interface has something to do at once.
    pub fn wants_poll(&self) -> bool {
        self.interface.wants_poll() || self.interface.has_news()
    }

    /// When there is something to do, if nothing arrives.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Instant::first([self.interface.poll_timeout(), self.services_due])
    }

    fn services_timeout(&self) -> Option<Instant> {
        let http = self.http.as_ref().and_then(Server::poll_timeout);
        let ping = self.ping.as_ref().and_then(|(_, ping)| ping.poll_timeout());
        let front = self.front.as_ref().and_then(|front| front.poll_timeout());
        Instant::first([http, ping, front])
    }

    fn poll_ping(&mut self, now: Instant, say: &mut dyn FnMut(Progress)) {
        let Some((target, mut ping)) = self.ping.take() else { return };
        while let Some(event) = ping.poll(&mut self.interface, now) {
            match event {
                Event::Reply { sequence, time } => {
                    let millis = time.as_secs_f64() * 1000.0;
                    say(Progress::Line(format!(
                        "answer from {target}: seq={sequence} time={millis:.3} ms"
                    )));
                }
                Event::Timeout { sequence } => {
                    say(Progress::Line(format!("no answer from {target}: seq={sequence}")));
                }
                Event::Finished(summary) => {
                    let _ = ping.stop(&mut self.interface);
                    return say(Progress::Done(verdict(target, &summary)));
                }
            }
        }
        self.ping = Some((target, ping));
    }
}

fn verdict(target: IpAddr, summary: &net::ping::Summary) -> Result<String, String> {
    let net::ping::Summary { sent, received, .. } = *summary;
    match received {
        0 => Err(format!("{target} did not answer any of {sent} requests")),
        _ => {
            let mean = summary.mean().unwrap_or_default().as_secs_f64() * 1000.0;
            Ok(format!("{received} of {sent} answered, mean {mean:.3} ms"))
        }
    }
}

/// The control plane's stage: interfaces, services, orders of the console. How much was done.
pub(super) fn poll(networks: &mut [Network], state: &mut State, now: Instant) -> usize {
    let mut worked = 0;
    state.turns = 0;
    if !state.workers.is_empty() {
        state.take_refusals_of_others(now);
    }
    if core::mem::take(&mut state.network_changed) {
        for (i, network) in networks.iter_mut().enumerate() {
            network.stop_moved_server(state);
            network.configure(&state.ports[i], i, state.document.config(), now);
        }
    }
    if let Some(order) = state.ping_order.take() {
        carry_out(order, networks, state, now);
        worked += 1;
    }
    state.find_way_of_rping(networks, now);
    state.find_next_hops(networks, now);
    state.find_strangers(networks, now);
    if state.plane.storage.remote_storage.is_some() {
        state.find_ways_of_remotes(networks, now);
    }
    for (i, network) in networks.iter_mut().enumerate() {
        if let Some(mac) = state.poll_mac(i) {
            network.interface.set_mac(mac, now);
        }
        if state.poll_link(i) {
            network.interface.link_came_up(now);
        }
        let services = network.front.as_ref().and(state.plane.services.as_ref());
        let services = services.and_then(|services| services.poll_timeout());
        let due = Instant::first([network.poll_timeout(), services]).is_some_and(|at| at <= now);
        let seen = network.seen == Some(network.interface.activity());
        if !due && seen && !network.interface.has_news() {
            continue;
        }
        worked += 1;
        network.interface.poll(now);
        if let Some(server) = &mut network.http {
            server.poll(&mut network.interface, &mut Web { state }, now);
        }
        if let Some(front) = &mut network.front {
            state.plane.poll_tcp_control(front, &mut network.interface, now);
        }
        let news = &mut state.news;
        let pinging = network.ping.is_some();
        network.poll_ping(now, &mut |progress| news.push_back(progress));
        state.pinging &= !(pinging && network.ping.is_none());
        network.interface.poll(now);
        network.seen = Some(network.interface.activity());
        network.services_due = network.services_timeout();
        let addresses = &mut state.ports[i].addresses;
        let conflicts = addresses.counters.conflicts;
        addresses.counters = network.interface.counters();
        if conflicts == 0 && addresses.counters.conflicts > 0 {
            let name = &state.ports[i].name;
            log::warn!("{name}: another station uses an address of ours: see `show interfaces`");
        }
        let generation = Some(network.interface.generation());
        if network.generation != generation {
            tell_addresses(network, &mut state.ports[i]);
            if state.set_addresses(i, network.interface.local()) {
                network.generation = generation;
            }
        }
    }
    worked
}

/// Takes frames in: from the ports of this loop, and what other loops have for the control plane.
/// How many, and how many of those are the control plane's.
pub(super) fn receive(networks: &mut [Network], state: &mut State, now: Instant) -> (usize, usize) {
    let own = &state.own_ports;
    let mut for_control = 0;
    let mut received = state.plane.receive(now, |place, frame| {
        for_control += 1;
        networks[own[place]].interface.handle_frame(frame, now);
    });
    for (slot, network) in state.ports.iter_mut().zip(&mut *networks) {
        let Some(punt_port) = &mut slot.punt_port else {
            network.interface.look_for_room(&*state.plane.ports[slot.place].port);
            continue;
        };
        for _ in 0..BATCH {
            let Some(frame) = punt_port.receive() else { break };
            received += 1;
            for_control += 1;
            network.interface.handle_frame(punt_port.bytes(&frame), now);
            punt_port.recycle(frame);
        }
    }
    if !state.queues.is_empty() {
        let punted = receive_of_queues(networks, state, now);
        (received, for_control) = (received + punted, for_control + punted);
    }
    (received, for_control)
}

/// Takes in what comes for the control plane by further queues of ports.
#[cold]
#[inline(never)]
fn receive_of_queues(networks: &mut [Network], state: &mut State, now: Instant) -> usize {
    let mut received = 0;
    for QueueSlot { port, punt_port, .. } in &mut state.queues {
        for _ in 0..BATCH {
            let Some(frame) = punt_port.receive() else { break };
            received += 1;
            networks[*port].interface.handle_frame(punt_port.bytes(&frame), now);
            punt_port.recycle(frame);
        }
    }
    received
}

/// Hands what the interfaces have to send to the ports, and to other loops, which are told of it; how
/// many frames.
pub(super) fn transmit(networks: &mut [Network], state: &mut State, now: Instant) -> usize {
    let plane = &mut state.plane;
    let mut sent = 0;
    for (slot, network) in state.ports.iter_mut().zip(networks) {
        if let Some(punt_port) = &mut slot.punt_port {
            network.interface.transmit(punt_port, |_| sent += 1);
            punt_port.flush();
            continue;
        }
        let capture = &mut plane.capture;
        network.interface.transmit(&mut *plane.ports[slot.place].port, |packet| {
            sent += 1;
            capture.sent(slot.place, packet, now);
        });
    }
    sent
}

/// Notes and logs the addresses of an interface after a change.
fn tell_addresses(network: &Network, slot: &mut PortSlot) {
    let interface = &network.interface;
    let (v4, v6) = interface.gateways();
    let list: Vec<String> = interface.addresses().iter().map(ToString::to_string).collect();
    if list != slot.addresses.list {
        log::info!("{}: {}", slot.name, list.join(" "));
    }
    slot.addresses.list = list;
    slot.addresses.gateways =
        v4.map(|ip| ip.to_string()).into_iter().chain(v6.map(|ip| ip.to_string())).collect();
    slot.addresses.lease = interface.has_lease();
}

fn carry_out(order: PingOrder, networks: &mut [Network], state: &mut State, now: Instant) {
    match order {
        PingOrder::Start(target, count) => {
            let options = Options { count, ..Options::default() };
            let way = networks.iter_mut().find(|n| n.interface.next_hop(target).is_some());
            let started = way.map(|network| {
                let ident = now.as_nanos() as u16;
                let ping = Ping::start(&mut network.interface, target, ident, options, now);
                ping.map(|ping| network.ping = Some((target, ping)))
            });
            let error = match started {
                Some(Ok(())) => return,
                Some(Err(error)) => error.to_string(),
                None => net::ping::StartError::NoRoute.to_string(),
            };
            state.pinging = false;
            state.news.push_back(Progress::Done(Err(error)));
        }
        PingOrder::Stop => {
            for network in networks {
                if let Some((target, ping)) = network.ping.take() {
                    let summary = ping.stop(&mut network.interface);
                    state.news.push_back(Progress::Done(verdict(target, &summary)));
                }
            }
            state.pinging = false;
        }
    }
}
