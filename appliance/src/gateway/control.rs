//! The control plane's stage of a round: the IP interfaces with their services, and their frames.

use super::network::{Network, log_notices, ping_result, record_addresses};
use super::plane::DataPlane;
use super::plane_user::PlaneUser as _;
use super::ports::QueueSlot;
use super::rdma_stack::RdmaStack;
use super::receive::BATCH;
use super::state::{PingOrder, State};
use crate::console::Progress;
use core::net::IpAddr;
use drivers::hal::{Instant, Port};
use management::{Pages, Web};
use net::Interface;
use net::ping::{Options, Ping};
use perf_responders::tcp_control::TcpControl;
use verbs::Ctx;

/// Runs the stage: interfaces, services, orders of the console. Returns the amount of work.
pub(super) fn poll(
    networks: &mut [Network],
    state: &mut State,
    pages: &mut Pages,
    now: Instant,
) -> usize {
    let mut worked = 0;
    pages.begin_round();
    if !state.workers.is_empty() {
        state.take_refusals_of_others(now);
    }
    if core::mem::take(&mut state.network_changed) {
        for (i, network) in networks.iter_mut().enumerate() {
            network.stop_moved_server(&mut Web { appliance: state, pages });
            network.configure(&state.ports[i], i, state.document.config(), now);
        }
    }
    if let Some(order) = state.ping_order.take() {
        carry_out(order, networks, state, now);
        worked += 1;
    }
    resolve_neighbours(networks, state, now);
    for (i, network) in networks.iter_mut().enumerate() {
        if let Some(mac) = state.poll_mac(i) {
            network.interface.set_mac(mac, now);
        }
        if state.poll_link(i) {
            network.interface.link_came_up(now);
        }
        let tools = network.front.as_ref().and(state.plane.users.perf_responders.as_ref());
        let tools = tools.and_then(|tools| tools.deadline());
        let due = Instant::first([network.poll_timeout(), tools]).is_some_and(|at| at <= now);
        let seen = network.seen == Some(network.interface.activity());
        if !due && seen && !network.interface.has_news() {
            continue;
        }
        worked += 1;
        network.interface.poll(now);
        if let Some(server) = &mut network.http {
            server.poll(&mut network.interface, &mut Web { appliance: state, pages }, now);
        }
        if let Some(front) = &mut network.front {
            poll_tcp_control(&mut state.plane, front, &mut network.interface, now);
        }
        let progress = &mut state.progress;
        let pinging = network.ping.is_some();
        network.poll_ping(now, &mut |line| progress.push_back(line));
        state.pinging &= !(pinging && network.ping.is_none());
        network.interface.poll(now);
        network.seen = Some(network.interface.activity());
        network.services_due = network.services_timeout();
        let addresses = &mut state.ports[i].addresses;
        let net::Counters { cookie_guesses, .. } = addresses.counters;
        addresses.counters = network.interface.counters();
        log_notices(&mut network.interface, &state.ports[i].name);
        let refusals = network.interface.refusals();
        if !refusals.is_empty() {
            state.refused.take(refusals, now);
        }
        network.report_cookie_guesses(&state.ports[i].name, cookie_guesses, now);
        report_small_paths(network, i, state);
        let generation = Some(network.interface.generation());
        if network.generation != generation {
            record_addresses(&network.interface, &mut state.ports[i]);
            if state.set_addresses(i, &network.interface) {
                network.generation = generation;
            }
        }
    }
    worked
}

/// Looks up the MAC addresses that the data plane waits for.
fn resolve_neighbours(networks: &mut [Network], state: &mut State, now: Instant) {
    let plane = &mut state.plane;
    plane.udp_engines.next_hops.resolve(&state.own_ports, networks, now);
    let DataPlane { users, rdma_stack, arena, rng, .. } = plane;
    if let Some(RdmaStack { pending_neighbours, providers, .. }) = rdma_stack {
        let ports = (&mut state.ports[..], &mut state.queues[..]);
        pending_neighbours.resolve(ports, networks, now, |core, resolved| {
            match state.workers.iter_mut().find(|worker| worker.core == core) {
                Some(worker) => worker.send_resolved(resolved),
                None => {
                    resolved.apply(providers, now);
                    true
                }
            }
        });
        let mut ctx = Ctx { provider: providers, arena, now, rng: &mut **rng };
        users.resolve(&state.ports, networks, &mut ctx);
    }
}

/// Passes path MTUs below the interface's to RDMA on all loops of a port, and logs the latest, after a change.
fn report_small_paths(network: &mut Network, port: usize, state: &mut State) {
    let changes = network.interface.path_changes();
    if network.path_changes == changes {
        return;
    }
    let paths: Vec<(IpAddr, usize, Instant)> = network.interface.small_paths().collect();
    let newest = paths.iter().max_by_key(|(.., until)| *until).copied();
    if !state.limit_paths(port, paths) {
        // The ring of a loop is full: the next poll tries again.
        return;
    }
    network.path_changes = changes;
    if let Some((ip, mtu, _)) = newest {
        log::info!("{}: the path MTU to {ip} is {mtu} bytes", state.ports[port].name);
    }
}

/// Receives frames from the ports of this loop, and control-plane frames from other loops. Returns their number, and
/// the number of control-plane frames among them.
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

/// Receives control-plane frames from further queues of ports.
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

/// Passes the interfaces' frames to the ports, and to other loops, which are woken. Returns the number of frames.
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

fn carry_out(order: PingOrder, networks: &mut [Network], state: &mut State, now: Instant) {
    match order {
        PingOrder::Start(target, count, size) => {
            let options = Options { count, size, ..Options::default() };
            let route = networks.iter_mut().find(|n| n.interface.next_hop(target).is_some());
            let started = route.map(|network| {
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
            state.progress.push_back(Progress::Done(Err(error)));
        }
        PingOrder::Stop => {
            for network in networks {
                if let Some((target, ping)) = network.ping.take() {
                    let summary = ping.stop(&mut network.interface);
                    state.progress.push_back(Progress::Done(ping_result(target, &summary)));
                }
            }
            state.pinging = false;
        }
    }
}

/// Moves the bytes that clients of measuring tools exchange over TCP.
fn poll_tcp_control(
    plane: &mut DataPlane,
    front: &mut TcpControl,
    interface: &mut Interface,
    now: Instant,
) {
    let DataPlane { users, rdma_stack: Some(stack), arena, rng, .. } = plane else { return };
    let Some(tools) = &mut users.perf_responders else { return };
    let (provider, rng) = (&mut stack.providers, &mut **rng);
    tools.poll_tcp(front, interface, &mut Ctx { provider, arena, now, rng });
}
