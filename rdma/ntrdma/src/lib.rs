#![doc = include_str!("../DESIGN.md")]
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(any(test, feature = "testing"))]
extern crate std;

mod bringup;
mod cm;
mod config;
mod counters;
pub mod ethernet;
mod layout;
mod link;
mod placing;
mod provider;
mod qp;
mod requester;
mod responder;
mod ring;
mod wire;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use bringup::State;
pub use config::Config;
pub use counters::{Counters, Wrong};
pub use layout::Layout;
pub use wire::BadInfo;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use cm::Cm;
use core::net::IpAddr;
use core::sync::atomic::AtomicU64;
use drivers::dma::{Progress, Ticket};
use drivers::hal::{Arena, Cells, Instant, TransmitProgress, Window};
use drivers::ntb::Bridge;
use ethernet::Ethernet;
use layout::{COMMAND, COMMANDS};
use link::{Change, Link};
use qp::{Completer, Ctx, Qp, RemoteQp, Session, Wire};
use rand_core::Rng;
use requester::Violation;
use softverbs::completion::CompletionQueues;
use softverbs::handle_table::HandleTable;
use softverbs::memory::Memory;
use softverbs::pool::Block;
use verbs::{AsyncEvent, QpId, QpState, Status, VerbsError};
use wire::{COMMAND_WORDS, Command};

/// Bit that is set only in addresses of lent memory ([`Memory::lend`]).
const LENT: u64 = 1 << 47;

/// A slot for a queue pair in exposed memory.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    qp: Option<QpId>,
    /// Number of the current or last queue pair.
    number: u32,
    /// The queue pair was destroyed, and the peer has not yet sent `Detach`, so it may still write there.
    lingers: bool,
    /// Value of its bells when they were last handled.
    bells_seen: u64,
}

/// The provider.
#[derive(Debug)]
pub struct Ntrdma {
    config: Config,
    exposed: Window,
    /// Local bells, in pairs ([`Layout::pair`]).
    bells: Cells<AtomicU64>,
    lent: Window,
    /// Allocator of `lent`, created by the first `lend`.
    lending: Option<Arena>,
    /// Parts of it that are lent.
    lent_out: Vec<Window>,
    link: Link,
    session: Option<Session>,
    ethernet: Ethernet,
    memory: Memory,
    cqs: CompletionQueues,
    qps: HandleTable<Qp>,
    slots: Vec<Slot>,
    /// Slots below this number were used at least once.
    slots_used: u32,
    /// Indices of queue pairs with work.
    work: Vec<u32>,
    outbox: VecDeque<Command>,
    /// Value of the command bells when they were last handled.
    command_bells_seen: u64,
    /// Commands written to the peer.
    commands_produced: u32,
    /// Commands that the peer has taken.
    commands_consumed: u32,
    /// Commands of the peer that were taken here.
    commands_taken: u32,
    /// The command bells have to be written.
    command_bells: bool,
    /// Number of the last local batch.
    batch: u32,
    /// Number of the peer's last batch that was handled.
    seen: u32,
    cm: Cm,
    events: VecDeque<AsyncEvent>,
    counters: Counters,
    /// Last copy that was submitted.
    submitted: Ticket,
    /// Last copy that is complete. The engine may still read the sources of later ones.
    copied: Ticket,
    /// Indices of queue pairs in error whose requests end when their copies are complete.
    ending: Vec<u32>,
    /// Memory of destroyed queue pairs that returns to the pool when these copies are complete.
    lingering: Vec<(Ticket, Block)>,
}

impl Ntrdma {
    /// A provider over the memory that a bridge exposes. `Invalid` if the layout is invalid,
    /// `NoRoom` if it does not fit.
    pub fn new(config: Config, exposed: Window, rng: &mut dyn Rng) -> Result<Self, VerbsError> {
        let layout = config.layout;
        let aligned = exposed.as_ptr().addr().get().is_multiple_of(64);
        if !layout.is_valid() || !ethernet::is_valid(config.frames) || !aligned {
            return Err(VerbsError::Invalid);
        }
        let frames = exposed.slice(layout.size(), config.frames as usize);
        let frames = frames.ok_or(VerbsError::NoRoom)?;
        let bells = layout.pairs(&exposed).ok_or(VerbsError::NoRoom)?;
        let used = layout.size() + config.frames as usize;
        let lent = exposed.slice(used, exposed.len() - used).unwrap_or(Window::empty());
        let mut memory = Memory::new(config.pds, config.regions, config.keys);
        let mut lent_at = 0;
        if !lent.is_empty() {
            lent_at = LENT | rng.next_u64() & 0x3fff_ffff_f000;
            memory.lend(lent, lent_at + used as u64);
        }
        Ok(Ntrdma {
            link: Link::new(&config, exposed, lent_at, rng.next_u32()),
            lent,
            lending: None,
            lent_out: Vec::new(),
            session: None,
            ethernet: Ethernet::new(frames),
            memory,
            cqs: CompletionQueues::new(config.cqs),
            qps: HandleTable::new(layout.qps as usize),
            slots: alloc::vec![Slot::default(); layout.qps as usize],
            slots_used: 0,
            // Queue pairs that are served in a turn, and those among them that are queued again.
            work: Vec::with_capacity(2 * layout.qps as usize),
            outbox: VecDeque::new(),
            command_bells_seen: 0,
            commands_produced: 0,
            commands_consumed: 0,
            commands_taken: 0,
            command_bells: false,
            batch: 0,
            seen: 0,
            cm: Cm::new(config.connections),
            // Each queue pair has at most one event, the port one of each kind.
            events: VecDeque::with_capacity(layout.qps as usize + 2),
            counters: Counters::default(),
            submitted: 0,
            copied: 0,
            ending: Vec::with_capacity(layout.qps as usize),
            lingering: Vec::new(),
            exposed,
            bells,
            config,
        })
    }

    /// Exposed memory that the provider does not use itself, so that it can be lent to the peer: WRITEs go
    /// directly to regions in it, without a local copy. The peer can read and write all of it at any time,
    /// regardless of keys, and its writes in flight at the end of a connection may arrive until the link was down. So
    /// it must hold only data of this peer.
    pub fn lent(&self) -> Window {
        self.lent
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Local address of connections.
    pub fn local(&self) -> IpAddr {
        self.config.local
    }

    /// Address of the peer.
    pub fn remote(&self) -> IpAddr {
        self.config.peer
    }

    /// State of the link.
    pub fn link(&self) -> State {
        self.link.state()
    }

    /// Why the peer's last introduction was refused, if it was.
    pub fn refused(&self) -> Option<BadInfo> {
        self.link.refused()
    }

    /// Takes the link down, which ends all connections; it comes up again automatically. False if it is not up.
    pub fn reset_link(&mut self) -> bool {
        let up = self.link.state() == State::Up;
        if up {
            self.link.fail();
        }
        up
    }

    /// Takes the link down for good, which ends all connections, and notifies the peer. For the shutdown of the
    /// machine.
    pub fn shut_down<B: Bridge + ?Sized>(&mut self, bridge: &mut B) {
        if self.link.close(bridge) {
            self.reset();
        }
    }

    /// Number of queue pairs, and of free slots.
    pub fn queue_pairs(&self) -> (usize, usize) {
        let free = self.slots.iter().filter(|slot| slot.qp.is_none() && !slot.lingers).count();
        (self.qps.len(), free)
    }

    /// Handles writes of the peer, and writes to it. Returns whether there is more work now. (Generic so that it can be
    /// compiled for one bridge, or for any.)
    pub fn poll<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) -> bool {
        let asynchronous = bridge.is_asynchronous();
        if asynchronous {
            self.handle_engine_progress(bridge.complete(now));
        }
        let mut more = self.turn(bridge, now);
        if asynchronous {
            self.submitted = bridge.submitted();
            more |= bridge.start();
        }
        more
    }

    /// Records the progress of the engine, and ends requests that waited for copies that are complete now.
    fn handle_engine_progress(&mut self, progress: Progress) {
        if progress.lost {
            self.counters.engines_lost += 1;
            self.link.fail();
        }
        self.copied = progress.done;
        if self.ending.is_empty() && self.lingering.is_empty() {
            return;
        }
        let mut waiting = core::mem::take(&mut self.ending);
        waiting.retain(|&place| {
            let (copied, exposed) = (self.copied, &self.exposed);
            let mut ctx =
                Ctx { memory: &mut self.memory, cqs: &mut self.cqs, counters: &mut self.counters };
            let qp = self.qps.at_mut(place as usize);
            qp.is_some_and(|qp| !qp.end_requests(&mut ctx, exposed, copied))
        });
        self.ending = waiting;
        let (copied, pool) = (self.copied, &mut self.memory.pool);
        for (_, block) in self.lingering.extract_if(.., |(copy, _)| *copy <= copied) {
            pool.free(block);
        }
    }

    /// Sets that data of the peer may be forwarded through `ports` ports, which read payload in place: memory is
    /// reused only when the ports have sent their frames that refer to it ([`Ntrdma::note_progress`]).
    pub fn passes_on(&mut self, ports: usize) {
        if self.memory.ports() != ports
            && let Some(lending) = &mut self.lending
        {
            lending.wait_for_ports(ports);
        }
        self.memory.wait_for_ports(ports);
        self.memory.passes_on();
    }

    /// Whether any memory waits for a port.
    #[inline]
    pub fn has_retired(&self) -> bool {
        self.memory.pool.has_retired() || self.lending.as_ref().is_some_and(Arena::has_retired)
    }

    /// Frees memory that a port no longer refers to. Call it for the ports in their order.
    pub fn note_progress(&mut self, port: usize, progress: TransmitProgress) {
        self.memory.pool.note_progress(port, progress);
        if let Some(lending) = &mut self.lending {
            lending.note_progress(port, progress);
        }
    }

    /// Reads bells, serves queue pairs, and writes; returns whether there is more work now.
    #[inline]
    fn turn<B: Bridge + ?Sized>(&mut self, bridge: &mut B, now: Instant) -> bool {
        let signs = self.bells.load(layout::SIGNS);
        let (batch, beat) = (signs as u32, (signs >> 32) as u32);
        match self.link.run(bridge, beat, now) {
            Change::None => (),
            Change::Up => self.start(bridge),
            Change::Down => self.reset(),
        }
        let new_batch = batch != self.seen;
        let idle =
            !new_batch && self.work.is_empty() && !self.command_bells && !self.ethernet.dirty;
        if self.session.is_none() || idle && self.outbox.is_empty() {
            return false;
        }
        if !self.outbox.is_empty() {
            self.write_commands(bridge);
        }
        // Load the command bell before those of queue pairs: then all requests of a queue pair are seen
        // before the command that ends it.
        let mut commands = self.commands_taken;
        if new_batch {
            self.seen = batch;
            commands = self.load_command_bells();
            self.load_bells();
        }
        let (turns, changed) = self.serve(bridge);
        if commands != self.commands_taken {
            self.take_commands(commands);
        }
        self.announce(bridge, changed);
        if turns == self.work.len() {
            self.work.clear();
            return false;
        }
        self.work.drain(..turns);
        // Without room in the bridge, there is no more work now.
        bridge.has_room()
    }

    /// Starts a session after the link came up.
    fn start<B: Bridge + ?Sized>(&mut self, bridge: &mut B) {
        let Some(peer) = self.link.peer() else { return };
        let (own, window) = (self.config.layout, bridge.window());
        // The link comes up only with a window that contains it.
        let Some(batch) = window.slice(layout::BATCH, 4) else { return };
        self.session = Some(Session {
            window,
            batch,
            exposed: self.exposed,
            depth: own.ring.min(peer.layout.ring),
            staging: own.staging,
            landing: peer.layout.landing,
            peer_loads: peer.loads,
            we_load: bridge.loads(),
            gathers: bridge.gathers(),
            info: *peer,
        });
        self.counters.link_up += 1;
        self.queue_port_event(AsyncEvent::PortActive(0));
    }

    /// Ends the session after the link went down.
    fn reset(&mut self) {
        self.session = None;
        self.counters.link_down += 1;
        self.queue_port_event(AsyncEvent::PortError(0));
        for place in 0..self.qps.places() {
            let Some(qp) = self.qps.at_mut(place) else { continue };
            qp.queued = false;
            if qp.peer.is_some() {
                let first = qp.requester.in_flight().then_some(Status::RetryExceeded);
                self.fail(place, first);
            }
            if let Some(qp) = self.qps.at_mut(place) {
                qp.known_to_peer = false;
            }
        }
        for slot in &mut self.slots {
            slot.lingers = false;
        }
        self.end_connections();
        self.work.clear();
        self.outbox.clear();
        (self.commands_produced, self.commands_consumed, self.commands_taken) = (0, 0, 0);
        (self.command_bells, self.batch, self.seen) = (false, 0, 0);
        self.command_bells_seen = 0;
        self.ethernet.reset();
    }

    fn queue_port_event(&mut self, event: AsyncEvent) {
        self.events.retain(|e| !matches!(e, AsyncEvent::PortActive(_) | AsyncEvent::PortError(_)));
        self.events.push_back(event);
    }

    /// Queues a queue pair that has work.
    #[inline]
    fn enqueue(&mut self, place: usize) {
        if let Some(qp) = self.qps.at_mut(place)
            && !core::mem::replace(&mut qp.queued, true)
        {
            self.work.push(place as u32);
        }
    }

    /// Loads the bells of all queue pairs, and handles those that have changed.
    #[inline]
    fn load_bells(&mut self) {
        for slot in 0..self.slots_used {
            let bells = self.bells.load(Layout::pair(slot));
            if let Some(known) = self.slots.get(slot as usize)
                && known.bells_seen != bells
                && let Some(id) = known.qp
                && self.handle_bells(qp_place(id), bells)
                && let Some(known) = self.slots.get_mut(slot as usize)
            {
                known.bells_seen = bells;
            }
        }
    }

    /// Handles new values of the bells of a queue pair. False if they have to be handled again later.
    #[inline]
    fn handle_bells(&mut self, place: usize, bells: u64) -> bool {
        let Some(qp) = self.qps.at_mut(place) else { return false };
        if !matches!(qp.state, QpState::Rtr | QpState::Rts) {
            return false;
        }
        let (produced, consumed) = (bells as u32, (bells >> 32) as u32);
        let mut touched = core::mem::replace(&mut qp.responder.produced, produced) != produced;
        let mut waits = false;
        if consumed != qp.requester.consumed {
            touched |= qp.requester.has_more();
            let lost = &mut self.counters.completions_lost;
            let mut completer = Completer { identity: &qp.identity, cqs: &mut self.cqs, lost };
            let (exposed, memory, copied) = (&self.exposed, &mut self.memory, self.copied);
            match qp.requester.consumed(consumed, &mut completer, exposed, memory, copied) {
                Ok(all) => waits = !all,
                Err(Violation) => {
                    self.counters.wrong(Wrong::Done);
                    self.fail(place, Some(Status::RemoteOperation));
                    return false;
                }
            }
        }
        if waits {
            // The engine may have to read the payload again, so these bells are handled again.
            self.seen = batch_not_seen(&self.bells);
        }
        if touched && !core::mem::replace(&mut qp.queued, true) {
            self.work.push(place as u32);
        }
        !waits
    }

    /// Serves the queued queue pairs while the bridge has room. Returns the number of queue pairs served, and of those
    /// among them whose bells at the peer have to change. The latter are first in the queue afterwards.
    #[inline]
    fn serve<B: Bridge + ?Sized>(&mut self, bridge: &mut B) -> (usize, usize) {
        let (turns, mut changed) = (self.work.len(), 0);
        for turn in 0..turns {
            let (Some(&place), Some(session)) = (self.work.get(turn), &self.session) else { break };
            if !bridge.has_room() {
                return (turn, changed);
            }
            let Some(qp) = self.qps.at_mut(place as usize) else { continue };
            qp.queued = false;
            let mut ctx =
                Ctx { memory: &mut self.memory, cqs: &mut self.cqs, counters: &mut self.counters };
            let mut wire = Wire { bridge, session };
            let served = qp.serve(&mut wire, &mut ctx);
            let waits = qp.responder.waits_for_memory;
            if qp.announced != qp.reached() {
                if let Some(to) = self.work.get_mut(changed) {
                    *to = place;
                }
                changed += 1;
            }
            match served {
                Ok(more) if more || waits => self.enqueue(place as usize),
                Ok(_) => {}
                Err(status) => {
                    qp.refused = Some(status);
                    self.fail(place as usize, None);
                }
            }
        }
        (turns, changed)
    }

    /// Writes the changed bells: those of the first `changed` queue pairs in the queue, of commands and of frames.
    #[inline]
    fn announce<B: Bridge + ?Sized>(&mut self, bridge: &mut B, changed: usize) {
        if changed == 0 && !self.command_bells && !self.ethernet.dirty {
            return;
        }
        let Some(session) = &self.session else { return };
        let mut wire = Wire { bridge, session };
        wire.bridge.order();
        for &place in self.work.iter().take(changed) {
            let Some(qp) = self.qps.at_mut(place as usize) else { continue };
            let Some(peer) = &qp.peer else { continue };
            let reached = qp.reached();
            for (n, &index) in reached.iter().enumerate() {
                if index != qp.announced[n] {
                    wire.put32(peer.places.bells + 4 * n, index);
                }
            }
            qp.announced = reached;
        }
        if core::mem::take(&mut self.command_bells) {
            wire.put32(layout::COMMANDS_PRODUCED, self.commands_produced);
            wire.put32(layout::COMMANDS_CONSUMED, self.commands_taken);
        }
        if core::mem::take(&mut self.ethernet.dirty) {
            for (bell, value) in self.ethernet.bells() {
                wire.put32(bell, value);
            }
        }
        self.batch = self.batch.wrapping_add(1);
        wire.bridge.announce(&session.batch, self.batch);
        wire.bridge.ring();
        self.counters.batches += 1;
    }

    /// Writes commands to the peer's ring, as far as there is room. They are announced one batch after the
    /// writes that precede them.
    fn write_commands<B: Bridge + ?Sized>(&mut self, bridge: &mut B) {
        let (Some(session), Some(peer)) = (&self.session, self.link.peer()) else { return };
        while !self.outbox.is_empty()
            && self.commands_produced.wrapping_sub(self.commands_consumed) < COMMANDS
        {
            let place = session.window.slice(peer.layout.command(self.commands_produced), COMMAND);
            let (Some(command), Some(place)) = (self.outbox.pop_front(), place) else { return };
            bridge.put(&place, &command.emit());
            self.commands_produced = self.commands_produced.wrapping_add(1);
            self.command_bells = true;
        }
    }

    /// Loads the command bells: records which commands the peer has taken, and returns the number of commands that it
    /// has written.
    fn load_command_bells(&mut self) -> u32 {
        let bells = self.bells.load(layout::COMMAND_BELLS);
        if core::mem::replace(&mut self.command_bells_seen, bells) == bells {
            return self.commands_taken;
        }
        let (produced, consumed) = (bells as u32, (bells >> 32) as u32);
        if consumed.wrapping_sub(self.commands_consumed)
            > self.commands_produced.wrapping_sub(self.commands_consumed)
        {
            self.violation(Wrong::CommandBells);
        } else {
            self.commands_consumed = consumed;
        }
        produced
    }

    /// Executes the peer's commands up to number `produced`.
    fn take_commands(&mut self, produced: u32) {
        if produced.wrapping_sub(self.commands_taken) > COMMANDS {
            return self.violation(Wrong::CommandBells);
        }
        while self.commands_taken != produced {
            let mut words = [0; COMMAND_WORDS];
            self.exposed.load_words(self.config.layout.command(self.commands_taken), &mut words);
            let Some(command) = Command::parse(&words) else {
                return self.violation(Wrong::Command);
            };
            self.commands_taken = self.commands_taken.wrapping_add(1);
            self.command_bells = true;
            self.handle_command(&command);
        }
    }

    /// Counts a protocol violation that does not concern one queue pair, and fails the link.
    fn violation(&mut self, what: Wrong) {
        self.counters.wrong(what);
        self.link.fail();
    }

    /// Fails the queue pair at an index.
    fn fail(&mut self, place: usize, first: Option<Status>) {
        let Some(qp) = self.qps.at_mut(place).filter(|qp| qp.state != QpState::Error) else {
            return;
        };
        let mut ctx =
            Ctx { memory: &mut self.memory, cqs: &mut self.cqs, counters: &mut self.counters };
        qp.fail(first, &mut ctx, &self.exposed, self.copied);
        self.handle_failed_qp(place);
    }

    /// Notifies the user and the peer of a queue pair that went to error.
    fn handle_failed_qp(&mut self, place: usize) {
        let Some(qp) = self.qps.at_mut(place) else { return };
        if !core::mem::replace(&mut qp.error_reported, true) {
            self.events.push_back(AsyncEvent::QpError(qp.identity.id));
        }
        if qp.ending.is_some() && !self.ending.contains(&(place as u32)) {
            self.ending.push(place as u32);
        }
        let connection = qp.connection.take();
        self.detach(place);
        if let Some(connection) = connection {
            self.connection_lost(connection);
        }
    }

    /// Notifies the peer, once, that this side no longer writes to its counterpart of a queue pair.
    fn detach(&mut self, place: usize) {
        let Some(qp) = self.qps.at_mut(place) else { return };
        if let Some(peer) = qp.peer
            && qp.known_to_peer
            && !core::mem::replace(&mut qp.detached, true)
        {
            let (to, from) = (peer.number, qp.identity.number);
            self.outbox.push_back(Command::Detach { to, from, refused: qp.refused });
        }
    }

    /// Handles `Detach`: the peer no longer writes to a local queue pair, because it refused the oldest entry or for
    /// another reason.
    fn handle_detach(&mut self, number: u32, from: u32, refused: Option<Status>) {
        let slot = (number & self.config.layout.slot_mask()) as usize;
        let Some(slot) = self.slots.get_mut(slot).filter(|slot| slot.number == number) else {
            return;
        };
        let Some(id) = slot.qp else {
            slot.lingers = false;
            return;
        };
        let Some(qp) = self.qps.get_mut(id.0) else { return };
        match qp.peer {
            Some(peer) if from == 0 || peer.number == from => {
                let place = qp.identity.place as usize;
                let first = refused.filter(|_| qp.requester.in_flight());
                self.fail(place, first);
                // `fail` has sent the local `Detach`, so both sides are done with the slot.
                if let Some(qp) = self.qps.at_mut(place) {
                    qp.known_to_peer = false;
                }
            }
            Some(_) => (),
            None => qp.known_to_peer = false,
        }
    }

    /// Connects a queue pair to the one of that number at the peer. The caller sets its state.
    fn attach(&mut self, qp: QpId, number: u32) -> Result<(), VerbsError> {
        let info = self.link.peer().ok_or(VerbsError::Unreachable)?;
        let slot = number & info.layout.slot_mask();
        if slot >= info.layout.qps || number == 0 {
            return Err(VerbsError::Invalid);
        }
        let own = self.config.layout;
        let depth = own.ring.min(info.layout.ring);
        let staging = info.layout.staging;
        let found = self.qps.get_mut(qp.0).ok_or(VerbsError::NoSuchObject)?;
        if found.state != QpState::Init || found.peer.is_some() || found.detached {
            return Err(VerbsError::WrongState);
        }
        found.peer = Some(RemoteQp { number, places: info.layout.places(slot) });
        found.known_to_peer = true;
        found.requester.start(depth, staging, own.landing);
        // Its bells may have been written already.
        self.seen = batch_not_seen(&self.bells);
        Ok(())
    }
}

/// A number of a batch that makes the next poll load all bells.
fn batch_not_seen(bells: &Cells<AtomicU64>) -> u32 {
    (bells.load(layout::SIGNS) as u32).wrapping_sub(1)
}

fn qp_place(id: QpId) -> usize {
    HandleTable::<Qp>::index(id.0)
}
