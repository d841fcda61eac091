//! Engines over UDP on a plane's ports: reliable transports without verbs. A datagram to the UDP port of an engine
//! stays on the data path. A new engine implements [`UdpEngine`] and gets a line in [`UdpEngines::of`].

use super::next_hops::NextHops;
use super::ports::PlanePort;
use super::rendezvous::exchange::Exchange;
use super::udp_engine::{Outgoing, UdpEngine};
use super::usnic::Usnic;
use crate::config::Config;
use crate::console::{Managed, Progress, UsnicVerb};
use drivers::hal::{Arena, Instant, Packet, TransmitError};
use management::status::{Losses, UdpEngineStatus};
use messaging::usnic::UsnicTransport;
use net::PortAddresses;
use net::capture::Capture;
use net::datagram::{self, Datagram, HEADERS, Unfit};
use net::refusal::Refusals;
use rand_core::Rng;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// A frame in its slot's buffer.
#[derive(Clone, Copy)]
struct Framed {
    port: usize,
    length: usize,
}

impl Framed {
    /// Writes the frame of a datagram from one MAC address to the other. The payload is copied, because a port reads
    /// lent memory later, when the engine may have reused it (after an acknowledgement, or the removal of a peer). None
    /// if it exceeds every port's frame size.
    fn write(frame: &mut [u8], out: &Outgoing<'_>, macs: [[u8; 6]; 2]) -> Option<Framed> {
        let headers = datagram::headers(macs, out.from, out.to, out.head, out.tail)?;
        frame.get_mut(..HEADERS)?.copy_from_slice(&headers);
        let mut length = HEADERS + out.head.len();
        frame.get_mut(HEADERS..length)?.copy_from_slice(out.head);
        for window in out.tail {
            let end = length + window.len();
            window.read(0, frame.get_mut(length..end)?).ok()?;
            length = end;
        }
        Some(Framed { port: out.port, length })
    }
}

/// An engine, and its state in the plane.
struct Slot {
    engine: Box<dyn UdpEngine>,
    /// Datagrams or orders have arrived since its last poll.
    touched: bool,
    /// When its next timer expires.
    due: Option<Instant>,
    /// Buffer of a frame.
    frame: Box<[u8]>,
    /// The frame in the buffer that waits for room.
    waiting: Option<Framed>,
    losses: Losses,
}

impl Slot {
    fn is_due(&self, now: Instant) -> bool {
        self.touched || self.due.is_some_and(|at| at <= now)
    }
}

/// The engines of a plane. Most planes have none.
#[derive(Default)]
pub(super) struct UdpEngines {
    slots: Vec<Slot>,
    /// UDP ports and the indices of their engines, by index of the port.
    ports: Vec<Vec<(u16, usize)>>,
    /// Hardware addresses of peers.
    pub next_hops: NextHops,
}

impl UdpEngines {
    /// Whether there are no engines.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Creates the configured engines over `ports`. `place_of` returns the index of the port of a `[[net]]`.
    pub fn of(
        config: &Config,
        ports: &mut [PlanePort],
        place_of: &dyn Fn(usize) -> Option<usize>,
        arena: &mut Arena,
        rng: &mut dyn Rng,
        now: Instant,
    ) -> Self {
        let usnic = Usnic::of(config, ports, place_of, arena, rng, now);
        let all = [usnic.map(|usnic| Box::new(usnic) as Box<dyn UdpEngine>)];
        let mut engines = UdpEngines::default();
        let longest = ETHERNET + ports.iter().map(|slot| slot.port.mtu()).max().unwrap_or(0);
        for engine in all.into_iter().flatten() {
            for (place, flow) in engine.flows() {
                if let Some(slot) = ports.get_mut(place)
                    && slot.port.steer(flow, arena)
                {
                    let (name, port) = (engine.name(), flow.port);
                    log::info!(
                        "{}: UDP port {port} ({name}) has a receive queue of its own",
                        slot.name
                    );
                }
            }
            engines.add(engine, ports.len(), longest);
        }
        engines
    }

    /// Adds an engine to a plane with `ports` ports, whose longest frames have `longest` bytes.
    fn add(&mut self, engine: Box<dyn UdpEngine>, ports: usize, longest: usize) {
        self.ports.resize(ports, Vec::new());
        for (place, port) in engine.ports() {
            if let Some(taken) = self.ports.get_mut(place) {
                taken.push((port, self.slots.len()));
            }
        }
        let (waiting, losses) = (None, Losses::default());
        let frame = vec![0; longest].into();
        self.slots.push(Slot { engine, touched: true, due: None, frame, waiting, losses });
        self.update_peers();
    }

    fn update_peers(&mut self) {
        let peers = self.slots.iter().flat_map(|slot| slot.engine.peers());
        self.next_hops.set(peers.collect());
    }

    /// Handles a frame with a datagram to UDP port `port`, at the port with index `place`. False if no engine uses it.
    #[inline]
    pub fn receive(
        &mut self,
        place: usize,
        port: u16,
        local: &PortAddresses,
        frame: &[u8],
        now: Instant,
    ) -> bool {
        let Some(taken) = self.ports.get(place) else { return false };
        let Some(&(_, engine)) = taken.iter().find(|(taken, _)| *taken == port) else {
            return false;
        };
        let Some(slot) = self.slots.get_mut(engine) else { return false };
        match Datagram::parse(frame, local) {
            Ok(datagram) => {
                if !self.next_hops.admits(place, *datagram.from.ip(), datagram.mac, now) {
                    slot.losses.wrong_mac += 1;
                    return true;
                }
                slot.touched = true;
                slot.engine.receive(place, &datagram, now);
            }
            Err(Unfit::Checksum) => slot.losses.checksum += 1,
            Err(Unfit::Malformed) => slot.losses.malformed += 1,
            Err(Unfit::NotOurs) => slot.losses.not_ours += 1,
        }
        true
    }

    /// usNIC as a transport of rules, if configured.
    #[inline]
    pub fn rules(&mut self, now: Instant) -> Option<UsnicTransport<'_>> {
        self.slots.iter_mut().find_map(|slot| slot.engine.rules(&mut slot.touched, now))
    }

    /// Polls the users of engines. Returns the amount of work.
    pub fn poll(&mut self, now: Instant) -> usize {
        let due = self.slots.iter_mut().filter(|slot| slot.is_due(now));
        due.map(|slot| slot.engine.poll(now)).sum()
    }

    /// When the next timer of an engine expires.
    pub fn due(&self) -> Option<Instant> {
        let due = |slot: &Slot| if slot.touched { Some(Instant::ZERO) } else { slot.due };
        // Without engines that wait for room, because the port's interrupt ends a halt for these.
        self.slots.iter().filter(|slot| slot.waiting.is_none()).filter_map(due).min()
    }

    /// Applies settings that can change at run time.
    pub fn configure(&mut self, config: &Config, now: Instant) {
        for slot in &mut self.slots {
            slot.engine.configure(config, now);
            slot.touched = true;
        }
        self.update_peers();
    }

    /// Passes their refusals to `take`.
    #[inline]
    pub fn take_refusals(&mut self, mut take: impl FnMut(&mut Refusals)) {
        if !self.next_hops.refusals.is_empty() {
            take(&mut self.next_hops.refusals);
        }
        for slot in &mut self.slots {
            if !slot.engine.refusals().is_empty() {
                take(slot.engine.refusals());
            }
        }
    }

    /// Limits the packets that engines send through the port at `place` to `mtu` bytes.
    pub fn limit_packets(&mut self, place: usize, mtu: usize) {
        self.slots.iter_mut().for_each(|slot| slot.engine.limit_packets(place, mtu));
    }

    /// The engine that uses rendezvous, if there is one.
    #[inline]
    pub fn exchange(&mut self) -> Option<&mut dyn Exchange> {
        self.slots.iter_mut().find_map(|slot| slot.engine.exchange())
    }

    /// Peers were added or removed.
    pub fn peers_changed(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.touched = true);
        self.update_peers();
    }

    fn find(&mut self, name: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.engine.name() == name)
    }

    /// Statuses for reports.
    pub fn statuses(&self) -> Vec<UdpEngineStatus<'_>> {
        let all = self.slots.iter();
        all.map(|Slot { engine, losses, .. }| UdpEngineStatus {
            name: engine.name(),
            losses: *losses,
            usnic: engine.status(),
        })
        .collect()
    }

    /// Executes an order of the console on the engine `name`.
    pub fn order(
        &mut self,
        name: &str,
        verb: UsnicVerb,
        words: &[&str],
        now: Instant,
    ) -> Result<Managed, String> {
        let none = || format!("no [[{name}]] is in force: see `show config`");
        let slot = self.find(name).ok_or_else(none)?;
        slot.touched = true;
        slot.engine.order(verb, words, now)
    }

    /// The next progress of a running order.
    pub fn progress(&mut self, now: Instant) -> Option<Progress> {
        self.slots.iter_mut().find_map(|slot| slot.engine.progress(now))
    }

    /// Cancels running orders.
    pub fn cancel(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.engine.cancel());
    }

    /// Passes the datagrams of engines to their ports, as many as there is room for. Returns their number.
    pub fn transmit(
        &mut self,
        ports: &mut [PlanePort],
        capture: &mut Capture,
        now: Instant,
    ) -> usize {
        let UdpEngines { slots, next_hops, .. } = self;
        let mut sent = 0;
        for Slot { engine, touched, due, frame, waiting, losses } in slots {
            if !*touched && due.is_none_or(|at| at > now) && waiting.is_none() {
                continue;
            }
            loop {
                let framed = match waiting.take() {
                    Some(framed) => framed,
                    None => {
                        let Some(out) = engine.poll_transmit(now) else { break };
                        let next_hop = next_hops.mac(out.port, *out.to.ip(), now);
                        let ours = ports.get(out.port).map(|slot| slot.local.mac);
                        let macs = ours.zip(next_hop).map(|(ours, next_hop)| [ours, next_hop]);
                        let framed = macs.and_then(|macs| Framed::write(frame, &out, macs));
                        let Some(framed) = framed else {
                            losses.no_next_hop += 1;
                            continue;
                        };
                        framed
                    }
                };
                let Some(slot) = ports.get_mut(framed.port) else { continue };
                let Some(header) = frame.get(..framed.length) else { continue };
                let packet = Packet { header, payload: &[], trailer: &[] };
                if slot.port.transmit(&packet) == Err(TransmitError::Full) {
                    *waiting = Some(framed);
                    break;
                }
                sent += 1;
                capture.sent(framed.port, &packet, now);
            }
            *touched = false;
            *due = engine.deadline();
        }
        sent
    }
}
