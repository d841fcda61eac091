//! Loops on cores other than the first. Each runs a data plane ([`DataPlane`]) and nothing else. The plane is made on its
//! core, and no other loop touches it. A core without ports sleeps.
//!
//! # Between loops
//!
//! * Control-plane frames of such a port go to the first loop through a ring of bytes, and its frames return through
//!   another ([`super::punt`], a `Port` to the control plane). RoCE and UDP echo stay on the core. A full ring drops and
//!   counts.
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
//! The control plane regards the port as the first core's. For each other core it has a `QueueSlot`: it receives through
//! it (and sends nothing), passes it the addresses, and adds its counters. Users that connect to others are on the first
//! core, and replies could arrive at any core, so they do not use such ports (`PortSlot::is_first_alone`). With one core
//! this costs a test of an empty list.

use super::bridge::Bridge;
use super::cards::{Cards, Found};
use super::forwarding::Forwarded;
use super::loop_waker::LoopWaker;
use super::plane::{DataPlane, Settings};
use super::ports::PlanePort;
use super::punt::PuntQueue;
use crate::config::RoceBy;
use crate::families::OfNtb;
use crate::loops::Stage;
use crate::machine::{Core, SpareCore};
use core::time::Duration;
use drivers::device::OpenedPort;
use drivers::hal::Instant;
use management::status::{BridgeStatus, PlaneReport};
use management::storage_rows::{RowsTold, StorageRows};
use net::refusal::Refusals;
use ntrdma::Ntrdma;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use rtrb::{Consumer, Producer, RingBuffer};
use spin::Mutex;
use std::sync::Arc;

/// How long a loop halts at most when a device cannot wake it.
pub(super) const NAP: Duration = Duration::from_millis(1);
/// Orders that can wait.
const ORDERS: usize = 64;
/// How often a loop that does not halt writes down what is told of it.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);
/// How often a loop writes down what is told of its bridges.
const BRIDGES_INTERVAL: Duration = Duration::from_millis(100);
/// How old that may be where the loop does not halt: a host that is busy may keep a processor waiting.
const PATIENCE: Duration = Duration::from_millis(500);

type Order = Box<dyn FnOnce(&mut DataPlane) + Send>;

/// What a loop tells of itself.
#[derive(Debug, Default)]
struct Told {
    at: Instant,
    /// It was about to halt, and nothing has changed since.
    halting: bool,
    plane: PlaneReport,
    /// What was refused there, until the control plane takes note.
    refused: Refusals,
    storage: Arc<StorageRows>,
    bridges: Arc<[BridgeStatus]>,
}

/// Where it does. The lock is held for as long as a copy takes.
type Board = Arc<Mutex<Told>>;

/// A loop on another core, as the control plane sees it.
pub(super) struct Worker {
    /// Number of its core.
    pub core: usize,
    orders: Producer<Order>,
    board: Board,
    pub waker: LoopWaker,
}

/// The loop's end of what it has in common with the control plane.
pub(super) struct Orders {
    orders: Consumer<Order>,
    board: Board,
}

/// A port of the loop.
pub(super) struct Dealt {
    pub name: String,
    pub port: OpenedPort,
    /// What is to do RoCE there.
    pub roce: Option<RoceBy>,
    pub punt_queue: PuntQueue,
    pub forwarded: Option<Forwarded>,
}

/// Where frames go that are not the loop's.
struct Ways {
    /// To the control plane.
    punt_queue: PuntQueue,
    /// To engines over UDP.
    forwarded: Option<Forwarded>,
}

impl Ways {
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

    /// Whether the first loop has sent something for which the port has room, as far as it can tell.
    fn pending(&self, has_room: bool) -> bool {
        let forwarded = self.forwarded.as_ref().map(|forwarded| &forwarded.queue);
        let mut all = [Some(&self.punt_queue), forwarded].into_iter().flatten();
        all.any(|queue| queue.pending(has_room))
    }
}

/// What a loop starts with; moved to its core, where the plane is made.
pub(super) struct Start {
    pub settings: Settings,
    /// Number of the core.
    pub core: usize,
    pub ports: Vec<Dealt>,
    pub bridges: Vec<(OfNtb<Bridge>, Ntrdma)>,
    pub orders: Orders,
    pub waker: LoopWaker,
}

/// The ring for orders to a loop on core number `core`, and where it tells of itself: the two ends.
pub(super) fn orders(core: usize, waker: LoopWaker) -> (Worker, Orders) {
    let (producer, consumer) = RingBuffer::new(ORDERS);
    let board = Board::default();
    let worker = Worker { core, orders: producer, board: board.clone(), waker };
    (worker, Orders { orders: consumer, board })
}

impl Worker {
    /// Has something done, soon; false if too many orders wait already.
    pub fn tell(&mut self, order: impl FnOnce(&mut DataPlane) + Send + 'static) -> bool {
        let taken = self.orders.push(Box::new(order)).is_ok();
        self.waker.wake();
        taken
    }

    /// What the loop tells of itself; None if it has not for too long.
    pub fn report(&self, now: Instant) -> Option<PlaneReport> {
        let told = self.board.lock();
        let answers = told.halting || now.since(told.at) < PATIENCE;
        answers.then(|| told.plane.clone())
    }

    /// What it tells of its clients.
    pub fn storage_rows(&self) -> Arc<StorageRows> {
        self.board.lock().storage.clone()
    }

    /// What it tells of its bridges.
    pub fn bridges(&self) -> Arc<[BridgeStatus]> {
        self.board.lock().bridges.clone()
    }

    /// Moves what the loop has refused into `refused`.
    pub fn take_refusals(&self, refused: &mut Refusals) {
        refused.absorb(&mut self.board.lock().refused);
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
    /// Its number.
    number: usize,
    plane: DataPlane,
    /// By place of the port.
    ways: Vec<Ways>,
    orders: Orders,
    /// When it tells of itself next.
    report_due: Instant,
    rows_told: RowsTold,
    /// When it tells of its bridges next.
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
        let made = |(place, Dealt { name, port, roce, punt_queue, forwarded })| {
            let port = cards.take(port, place, &name, roce, &mut found);
            let port = PlanePort::new(name, port, config.services.udp_echo);
            (port, Ways { punt_queue, forwarded })
        };
        let (ports, ways): (Vec<_>, _) = start.ports.into_iter().enumerate().map(made).unzip();
        rng.fill_bytes(&mut settings.seed);
        let plane = DataPlane::new(settings, ports, start.bridges, cards, core.now());
        let report_due = Instant::ZERO;
        let (rows_told, bridges_due) = (RowsTold::default(), Instant::ZERO);
        let Start { core: number, orders, waker, .. } = start;
        Loop { core, number, plane, ways, orders, report_due, rows_told, bridges_due, waker }
    }

    fn run(mut self) -> ! {
        let mut worked = false;
        loop {
            let now = self.core.now();
            let may_halt = self.plane.pace.round(worked, now);
            worked = if may_halt { self.halt() } else { self.round(now) };
            if now >= self.report_due {
                self.tell(now, false);
            }
        }
    }

    /// Writes down what is told of it.
    fn tell(&mut self, now: Instant, halting: bool) {
        self.report_due = now + REPORT_INTERVAL;
        self.plane.storage.own_disks.watch(now);
        let storage = &self.plane.storage;
        let rows =
            storage.server.as_ref().and_then(|s| self.rows_told.news(s, &storage.volumes, now));
        let tells = !self.plane.bridges.is_empty() && now >= self.bridges_due;
        let bridges = tells.then(|| {
            self.bridges_due = now + BRIDGES_INTERVAL;
            self.plane.bridge_statuses(self.number).collect()
        });
        let mut told = self.orders.board.lock();
        (told.at, told.halting) = (now, halting);
        self.plane.report_into(&mut told.plane);
        if let Some(rows) = rows {
            told.storage = rows;
        }
        if let Some(bridges) = bridges {
            told.bridges = bridges;
        }
        if let Some(rdma_stack) = &mut self.plane.rdma_stack {
            told.refused.absorb(rdma_stack.providers.roce.refusals());
            let cards = rdma_stack.providers.card_refusals();
            cards.for_each(|refusals| told.refused.absorb(refusals));
        }
        if let Some(server) = &mut self.plane.storage.server {
            told.refused.absorb(server.transport_mut().refusals());
        }
    }

    /// One round of all stages; whether there was any work.
    fn round(&mut self, now: Instant) -> bool {
        let (plane, ways) = (&mut self.plane, &mut self.ways);
        let mut ordered = 0;
        while let Ok(order) = self.orders.orders.pop() {
            order(plane);
            ordered += 1;
        }
        let received = plane.receive(now, |place, frame| ways[place].push(frame));
        let served = plane.serve(now);
        plane.free_retired(now);
        if let Some(rdma_stack) = &mut plane.rdma_stack {
            let strangers = rdma_stack.strangers.drain();
            strangers.for_each(|(place, host)| ways[place].punt_queue.ask_for(host));
        }
        let mut sent = plane.transmit_fabric(now);
        for (place, ways) in ways.iter_mut().enumerate() {
            for queue in ways.queues_mut() {
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

    /// Sleeps until an interrupt or the next deadline, unless there is something to do; then deals
    /// with what there is. Whether there was work.
    fn halt(&mut self) -> bool {
        self.plane.set_interrupts(true);
        self.plane.storage.own_disks.set_interrupts(true);
        let now = self.core.now();
        let nap = (!self.plane.wakes()).then_some(now + NAP);
        let storage = &self.plane.storage;
        let disks = storage.volumes.are_working().then_some(storage.own_disks.watch_due());
        let deadline = Instant::first([self.plane.poll_timeout(), nap, disks]);
        self.tell(now, true);
        // What came before interrupts were on raises none, but is pending.
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

    /// Whether the control plane wants something.
    fn has_orders(&self) -> bool {
        let mut all = self.ways.iter().zip(&self.plane.ports);
        !self.orders.orders.is_empty() || all.any(|(ways, slot)| ways.pending(slot.port.has_room()))
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

    /// Who asks gets what the loop said last, at once: nobody waits for a loop that is busy, or stuck.
    #[test]
    fn what_a_loop_said_last_is_told_without_it() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let (worker, orders) = orders(1, LoopWaker::new(Box::new(Silent)));
        assert!(worker.report(at(1000)).is_none(), "it has not said anything yet");
        let say = |at, halting, rounds| {
            let mut told = orders.board.lock();
            (told.at, told.halting, told.plane.counters.rounds) = (at, halting, rounds);
        };
        say(at(1000), false, 7);
        assert_eq!(worker.report(at(1400)).unwrap().counters.rounds, 7);
        assert!(worker.report(at(1600)).is_none(), "it does not answer");
        say(at(2000), true, 8);
        assert_eq!(worker.report(at(90_000)).unwrap().counters.rounds, 8, "it halts");
    }
}
