//! Loops on cores other than the first. Each runs a data plane ([`DataPlane`]) and nothing else. The plane is made on
//! its core, and no other loop touches it. A core without ports sleeps.
//!
//! # Between loops
//!
//! * Control-plane frames of such a port go to the first loop through a ring of bytes, and its frames return through
//!   another ([`super::punt`], a `Port` to the control plane). RoCE and UDP echo stay on the core. A full ring drops
//!   and counts.
//! * An order is a closure in a ring, executed between two rounds. A loop publishes its status before a halt, and every
//!   10 ms otherwise, so a scrape does not wait. A status older than half a second is reported as "does not answer".
//! * The rings are `rtrb`'s: single producer, single consumer, bounded. Locks (`spin`) are in the arena and the log and
//!   in the copy of the status; the data path takes none.
//! * MSI-X messages of a device go to the core that owns it. A producer for a halting loop sends an inter-processor
//!   interrupt ([`super::loop_waker`] shows that no wake-up is lost).
//! * Each loop serves storage to the clients of its own ports ([`super::storage_cores`]). A session keeps to one loop
//!   (`rtrs::server::Directory`).
//! * Only on the first loop: captures, the TCP side of measuring tools, storage whose sessions share memory
//!   (`rnbd.oversubscribe`), and metrics of sessions and paths.
//!
//! # A card for several cores
//!
//! With `net.N.core = [0, 1]`, `Port::split` makes a port of each further pair of queues, with rings, vectors and
//! progress of its own. [`super::port_assignment`] assigns it to its loop as any other port. The device selects a queue
//! by a hash of both IP addresses and nothing else, with a key of the appliance's generator. So a host with all its
//! connections, queue pairs and datagrams belongs to one core, and its provider sees all of its packets.
//!
//! The control plane regards the port as the first core's. For each other core it has a `QueueSlot`: it receives
//! through it (and sends nothing), passes it the addresses, and adds its counters. Users that connect to others are on
//! the first core, and replies could arrive at any core, so they do not use such ports (`PortSlot::is_first_alone`).
//! With one core this costs a test of an empty list.

use super::bridge::Bridge;
use super::cards::{Cards, Found};
use super::forwarding::Forwarded;
use super::loop_waker::LoopWaker;
use super::pending_neighbours::Resolved;
use super::plane::{DataPlane, Devices, Settings};
use super::ports::PlanePort;
use super::punt::PuntQueue;
use crate::config::RoceBy;
use crate::families::OfNtb;
use crate::loops::Stage;
use crate::machine::{Core, SpareCore};
use core::time::Duration;
use drivers::driver::OpenedPort;
use drivers::hal::Instant;
use management::status::{BridgeStatus, PlaneReport};
use management::storage_rows::{RowsTold, StorageRows};
use net::refusal::Refusals;
use ntrdma::Ntrdma;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use rtrb::{Consumer, Producer, RingBuffer};
use spin::Mutex;
use std::sync::Arc;

/// How long a loop halts at most when a device cannot wake it.
pub(super) const NAP: Duration = Duration::from_millis(1);
/// Capacity of the ring of orders.
const ORDERS: usize = 64;
/// Interval in which a busy loop publishes its status.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);
/// Interval in which a loop publishes the status of its bridges.
const BRIDGES_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum age of a busy loop's status. Long, because a busy host may delay a virtual CPU.
const PATIENCE: Duration = Duration::from_millis(500);

type Order = Box<dyn FnOnce(&mut DataPlane) + Send>;

/// Published status of a loop.
#[derive(Debug, Default)]
struct LoopStatus {
    at: Instant,
    /// The loop was about to halt, and nothing has changed since.
    halting: bool,
    plane: PlaneReport,
    /// Refusals of the loop, until the control plane takes them.
    refused: Refusals,
    storage: Arc<StorageRows>,
    bridges: Arc<[BridgeStatus]>,
}

/// The status, shared with the control plane. The lock is held only for a copy.
type SharedStatus = Arc<Mutex<LoopStatus>>;

/// A loop on another core, in the control plane.
pub(super) struct Worker {
    /// Number of its core.
    pub core: usize,
    orders: Producer<Order>,
    status: SharedStatus,
    pub waker: LoopWaker,
}

/// The loop's end of the ring of orders, and its status.
pub(super) struct Orders {
    orders: Consumer<Order>,
    status: SharedStatus,
}

/// A port that is assigned to a loop.
pub(super) struct AssignedPort {
    pub name: String,
    pub port: OpenedPort,
    /// Configured implementation of RoCE.
    pub roce: Option<RoceBy>,
    pub punt_queue: PuntQueue,
    pub forwarded: Option<Forwarded>,
}

/// Queues of a port to the first loop.
struct PortQueues {
    /// To the control plane.
    punt_queue: PuntQueue,
    /// To engines over UDP.
    forwarded: Option<Forwarded>,
}

impl PortQueues {
    fn push(&mut self, frame: &[u8]) {
        match &mut self.forwarded {
            Some(forwarded) if forwarded.takes(frame) => forwarded.queue.push(frame),
            _ => self.punt_queue.push(frame),
        }
    }

    fn queues_mut(&mut self) -> impl Iterator<Item = &mut PuntQueue> {
        let forwarded = self.forwarded.as_mut().map(|forwarded| &mut forwarded.queue);
        [Some(&mut self.punt_queue), forwarded].into_iter().flatten()
    }

    /// Whether a frame of the first loop is pending ([`PuntQueue::pending`]).
    fn pending(&self, has_room: bool) -> bool {
        let forwarded = self.forwarded.as_ref().map(|forwarded| &forwarded.queue);
        let mut all = [Some(&self.punt_queue), forwarded].into_iter().flatten();
        all.any(|queue| queue.pending(has_room))
    }
}

/// Arguments of a loop. They are moved to its core, where the plane is created.
pub(super) struct Start {
    pub settings: Settings,
    /// Number of the core.
    pub core: usize,
    pub ports: Vec<AssignedPort>,
    pub bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
    pub orders: Orders,
    pub waker: LoopWaker,
}

/// Creates the ring of orders to a loop on core `core`, and its status. Returns both ends.
pub(super) fn orders(core: usize, waker: LoopWaker) -> (Worker, Orders) {
    let (producer, consumer) = RingBuffer::new(ORDERS);
    let status = SharedStatus::default();
    let worker = Worker { core, orders: producer, status: status.clone(), waker };
    (worker, Orders { orders: consumer, status })
}

impl Worker {
    /// Sends an order to the loop, which executes it soon. False if the ring is full.
    pub fn send_order(&mut self, order: impl FnOnce(&mut DataPlane) + Send + 'static) -> bool {
        let taken = self.orders.push(Box::new(order)).is_ok();
        self.waker.wake();
        taken
    }

    /// Sends a resolved neighbour to the loop. False if the ring of orders is full.
    pub fn send_resolved(&mut self, resolved: Resolved) -> bool {
        self.send_order(move |plane| {
            if let Some(stack) = &mut plane.rdma_stack {
                resolved.apply(&mut stack.providers, plane.now);
            }
        })
    }

    /// Report of the loop. None if its status is too old.
    pub fn report(&self, now: Instant) -> Option<PlaneReport> {
        let status = self.status.lock();
        let answers = status.halting || now.since(status.at) < PATIENCE;
        answers.then(|| status.plane.clone())
    }

    /// Report of its storage clients.
    pub fn storage_rows(&self) -> Arc<StorageRows> {
        self.status.lock().storage.clone()
    }

    /// Status of its bridges.
    pub fn bridges(&self) -> Arc<[BridgeStatus]> {
        self.status.lock().bridges.clone()
    }

    /// Moves the loop's refusals into `refused`.
    pub fn take_refusals(&self, refused: &mut Refusals) {
        refused.absorb(&mut self.status.lock().refused);
    }
}

impl Start {
    /// Starts the loop on `core`.
    pub fn on(self, core: Box<dyn SpareCore>) {
        core.start(Box::new(move |core| Loop::new(self, core).run()));
    }
}

/// The loop.
struct Loop {
    core: Box<dyn Core>,
    /// Number of its core.
    number: usize,
    plane: DataPlane,
    /// By index of the port.
    port_queues: Vec<PortQueues>,
    orders: Orders,
    /// When the status is due next.
    report_due: Instant,
    rows_told: RowsTold,
    /// When the status of bridges is due next.
    bridges_due: Instant,
    waker: LoopWaker,
}

impl Loop {
    fn new(start: Start, core: Box<dyn Core>) -> Self {
        let mut settings = start.settings;
        let (config, arena) = (&settings.config, &settings.arena);
        let mut rng = ChaCha12Rng::from_seed(settings.seed);
        let mut cards = Cards::default();
        let mut found = Found { config, arena, rng: &mut rng };
        let made = |(place, AssignedPort { name, port, roce, punt_queue, forwarded })| {
            let port = cards.take(port, place, &name, roce, &mut found);
            let port = PlanePort::new(name, port, config.services.udp_echo);
            (port, PortQueues { punt_queue, forwarded })
        };
        let (ports, port_queues): (Vec<_>, _) =
            start.ports.into_iter().enumerate().map(made).unzip();
        rng.fill_bytes(&mut settings.seed);
        let devices = Devices { ports, bridges: start.bridges, cards };
        let plane = DataPlane::of_core(settings, devices, core.now());
        let report_due = Instant::ZERO;
        let (rows_told, bridges_due) = (RowsTold::default(), Instant::ZERO);
        let Start { core: number, orders, waker, .. } = start;
        Loop { core, number, plane, port_queues, orders, report_due, rows_told, bridges_due, waker }
    }

    fn run(mut self) -> ! {
        let mut worked = false;
        loop {
            let now = self.core.now();
            let may_halt = self.plane.pace.round(worked, now);
            worked = if may_halt { self.halt() } else { self.round(now) };
            if now >= self.report_due {
                self.publish(now, false);
            }
        }
    }

    /// Publishes the status of the loop.
    fn publish(&mut self, now: Instant, halting: bool) {
        self.report_due = now + REPORT_INTERVAL;
        self.plane.storage.own_disks.watch(now);
        let storage = &self.plane.storage;
        let rows =
            storage.server.as_ref().and_then(|s| self.rows_told.news(s, &storage.volumes, now));
        let publishes = !self.plane.bridges.is_empty() && now >= self.bridges_due;
        let bridges = publishes.then(|| {
            self.bridges_due = now + BRIDGES_INTERVAL;
            self.plane.bridge_statuses(self.number).collect()
        });
        let mut status = self.orders.status.lock();
        (status.at, status.halting) = (now, halting);
        self.plane.report_into(&mut status.plane);
        if let Some(rows) = rows {
            status.storage = rows;
        }
        if let Some(bridges) = bridges {
            status.bridges = bridges;
        }
        if let Some(rdma_stack) = &mut self.plane.rdma_stack {
            status.refused.absorb(rdma_stack.providers.roce.refusals());
            let cards = rdma_stack.providers.card_refusals();
            cards.for_each(|refusals| status.refused.absorb(refusals));
        }
        if let Some(server) = &mut self.plane.storage.server {
            status.refused.absorb(server.transport_mut().refusals());
        }
    }

    /// One round of all stages. Returns whether there was work.
    fn round(&mut self, now: Instant) -> bool {
        let (plane, port_queues) = (&mut self.plane, &mut self.port_queues);
        let mut ordered = 0;
        while let Ok(order) = self.orders.orders.pop() {
            order(plane);
            ordered += 1;
        }
        let received = plane.receive(now, |place, frame| port_queues[place].push(frame));
        let served = plane.serve(now);
        plane.free_retired(now);
        if let Some(rdma_stack) = &mut plane.rdma_stack {
            for (place, host) in rdma_stack.pending_neighbours.drain() {
                port_queues[place].punt_queue.request_neighbour(host);
            }
        }
        let mut sent = plane.transmit_fabric(now);
        for (place, queues) in port_queues.iter_mut().enumerate() {
            for queue in queues.queues_mut() {
                sent += plane.transmit_for_control(place, queue, now);
                queue.flush();
            }
        }
        plane.flush();
        let counters = &mut plane.pace.counters;
        counters.work(Stage::Receive, received);
        counters.work(Stage::Serve, served);
        counters.work(Stage::Transmit, sent);
        counters.work(Stage::Control, ordered);
        received + served + sent + ordered > 0
    }

    /// Halts until an interrupt or the next deadline, unless work is pending. Then runs a round. Returns whether there
    /// was work.
    fn halt(&mut self) -> bool {
        self.plane.set_interrupts(true);
        self.plane.storage.own_disks.set_interrupts(true);
        let now = self.core.now();
        let nap = (!self.plane.wakes()).then_some(now + NAP);
        let storage = &self.plane.storage;
        let disks = storage.volumes.are_working().then_some(storage.own_disks.watch_due());
        let deadline = Instant::first([self.plane.poll_timeout(), nap, disks]);
        self.publish(now, true);
        // Arrivals before interrupts were enabled raise none, but are pending.
        let has_arrivals =
            || self.plane.pending() || self.plane.storage.own_disks.pending() || self.has_orders();
        if self.waker.may_halt(has_arrivals) && deadline.is_none_or(|d| d > now) {
            self.core.halt_until(deadline);
            self.plane.pace.halted(self.core.now());
        }
        self.waker.clear();
        self.plane.set_interrupts(false);
        self.plane.storage.own_disks.set_interrupts(false);
        self.round(self.core.now())
    }

    /// Whether orders or frames of the control plane are pending.
    fn has_orders(&self) -> bool {
        let mut all = self.port_queues.iter().zip(&self.plane.ports);
        !self.orders.orders.is_empty()
            || all.any(|(queues, slot)| queues.pending(slot.port.has_room()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Ipi;

    struct Silent;

    impl Ipi for Silent {
        fn ring(&self) {}
    }

    /// A report does not wait for a loop that is busy or stuck.
    #[test]
    fn report_uses_the_last_published_status() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let (worker, orders) = orders(1, LoopWaker::new(Box::new(Silent)));
        assert!(worker.report(at(1000)).is_none(), "it has not published a status yet");
        let publish = |at, halting, rounds| {
            let mut status = orders.status.lock();
            (status.at, status.halting, status.plane.counters.rounds) = (at, halting, rounds);
        };
        publish(at(1000), false, 7);
        assert_eq!(worker.report(at(1400)).unwrap().counters.rounds, 7);
        assert!(worker.report(at(1600)).is_none(), "it does not answer");
        publish(at(2000), true, 8);
        assert_eq!(worker.report(at(90_000)).unwrap().counters.rounds, 8, "it halts");
    }
}
