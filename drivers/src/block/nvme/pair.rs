//! A pair of I/O queues of one core: submits the requests of all namespaces, and takes their completions. Its user
//! holds, restarts and opens it around a reset: the owner of the controller (`life`), or the loop of another core
//! (`core_queue`).

use super::Error;
use super::command::{self, Outcome, Transfer};
use super::identify::Namespace;
use super::prp::{LIST_BYTES, Lists};
use super::queue::{Command, Entry, Queue};
use super::registers::ControllerRegisters;
use super::requests::{MOST, Requests};
use super::signal::Signal;
use crate::block::age::Age;
use crate::block::blocks;
use crate::hal::{
    Arena, Completion, DiskError, Features, Geometry, Operation, Request, SubmitError, Window,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most entries of each of the two queues: one more than the slots for requests.
const MOST_ENTRIES: u32 = MOST as u32 + 1;
/// Most times that a request is sent again.
const MOST_TRIES: u8 = 3;
/// Milliseconds after which a request is aborted.
const REQUEST_TIMEOUT: u32 = 10_000;
/// Milliseconds after an abort when the controller is reset.
const ABORT_TIMEOUT: u32 = 5_000;

const SECTOR_SHIFT: u32 = 9;

/// A namespace and its requests.
pub struct Unit {
    pub nsid: u32,
    pub namespace: Namespace,
    /// Most requests in flight.
    depth: u16,
    /// Requests that were submitted and whose completions were not polled yet.
    taken: u16,
    /// Completions that were not polled yet.
    done: VecDeque<Completion>,
    /// The size has changed since [`Pair::take_changed`].
    pub changed: bool,
    /// The drive was away, and may have lost what its cache held: the next flush fails.
    lost_cache: bool,
}

/// Handling of new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// Requests are sent to the controller.
    Open,
    /// Requests wait until the controller takes them.
    Held,
    /// Requests fail: the controller is not used any more.
    Ended,
}

/// The controller has completed a command that was not in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidCompletion;

/// Action required by late requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    Nothing,
    /// Abort the command with this identifier.
    Abort(u16),
    /// Reset the controller: a request did not end after its abort.
    Reset,
}

/// A pair of I/O queues.
pub struct Pair {
    id: u16,
    pub registers: ControllerRegisters,
    pub queue: Queue,
    pub signal: Signal,
    pub age: Age,
    flow: Flow,
    requests: Requests,
    lists: Lists,
    pub units: Vec<Unit>,
}

impl Pair {
    /// Allocates pair number `id` from `arena`, and adds its memory to `memory`. Its requests wait until
    /// [`Pair::open`].
    pub fn new(
        id: u16,
        registers: ControllerRegisters,
        signal: Signal,
        arena: &mut Arena,
        memory: &mut Vec<Window>,
    ) -> Result<Pair, Error> {
        let capabilities = registers.capabilities();
        let page = 1 << capabilities.page_shift;
        let entries = 1u16 << capabilities.entries.min(MOST_ENTRIES).ilog2();
        let queue = Queue::alloc(id, entries, &registers, arena, memory)?;
        let bytes = usize::from(entries) * LIST_BYTES;
        let lists = arena.alloc(bytes, page).ok_or(Error::NoMemory { bytes })?;
        memory.push(lists);
        let lists = Lists::new(&lists, entries.into(), page as u64);
        Ok(Pair {
            id,
            registers,
            queue,
            signal,
            age: Age::default(),
            flow: Flow::Held,
            requests: Requests::new(entries - 1),
            lists: lists.ok_or(Error::NoMemory { bytes })?,
            units: Vec::new(),
        })
    }

    /// Divides the slots for requests among the namespaces.
    pub fn share_out(&mut self, units: impl ExactSizeIterator<Item = (u32, Namespace)>) {
        let depth = (self.requests.capacity() / units.len().max(1) as u16).max(1);
        let unit = |(nsid, namespace)| {
            let done = VecDeque::with_capacity(depth.into());
            Unit { nsid, namespace, depth, taken: 0, done, changed: false, lost_cache: false }
        };
        self.units = units.map(unit).collect();
    }

    /// Most requests of a unit in flight.
    pub fn depth(&self, unit: usize) -> usize {
        self.units.get(unit).map_or(0, |unit| unit.depth.into())
    }

    pub fn geometry(&self, unit: usize) -> Geometry {
        self.units.get(unit).map_or(Geometry::ABSENT, |unit| unit.namespace.geometry)
    }

    /// Submits a request of a unit.
    #[inline]
    pub fn submit(&mut self, unit: usize, request: &Request) -> Result<(), SubmitError> {
        match request.operation {
            Operation::Read => self.transfer(unit, request, Transfer::Read),
            Operation::Write => self.transfer(unit, request, Transfer::Write),
            Operation::WriteThrough => self.transfer(unit, request, Transfer::WriteThrough),
            _ => self.other(unit, request),
        }
    }

    /// A request with data.
    #[inline]
    fn transfer(
        &mut self,
        number: usize,
        request: &Request,
        kind: Transfer,
    ) -> Result<(), SubmitError> {
        let unit = self.units.get(number).ok_or(SubmitError::Unsupported)?;
        let geometry = &unit.namespace.geometry;
        if kind != Transfer::Read && geometry.features.contains(Features::READ_ONLY) {
            return Err(SubmitError::Unsupported);
        }
        let bytes = request.data.len();
        if !bytes.is_multiple_of(1 << SECTOR_SHIFT) || bytes > geometry.max_transfer as usize {
            return Err(SubmitError::Range);
        }
        let (block, count) = blocks(geometry, request.sector, (bytes >> SECTOR_SHIFT) as u64)?;
        let nsid = unit.nsid;
        let place = self.place(number).ok_or(SubmitError::Full)?;
        let prps = self.lists.describe(place.into(), request.data.bus_address(), bytes);
        let prps = prps.ok_or(SubmitError::Range)?;
        self.start(number, request.tag, command::transfer(kind, nsid, block, count, prps));
        Ok(())
    }

    /// A request without data.
    #[inline(never)]
    fn other(&mut self, number: usize, request: &Request) -> Result<(), SubmitError> {
        let unit = self.units.get(number).ok_or(SubmitError::Unsupported)?;
        let (nsid, namespace) = (unit.nsid, unit.namespace);
        let geometry = &namespace.geometry;
        let features = geometry.features;
        let can =
            |feature| match features.contains(feature) && !features.contains(Features::READ_ONLY) {
                true => Ok(()),
                false => Err(SubmitError::Unsupported),
            };
        let within = |sectors: u32, most: u32| match sectors <= most {
            true => blocks(geometry, request.sector, sectors.into()),
            false => Err(SubmitError::Range),
        };
        let place = self.place(number).ok_or(SubmitError::Full);
        let command = match request.operation {
            // Without a volatile cache completed writes are durable.
            Operation::Flush if !features.contains(Features::VOLATILE_CACHE) => {
                place?;
                self.end_at_once(number, request.tag);
                return Ok(());
            }
            Operation::Flush if unit.lost_cache => {
                place?;
                self.fail_flush(number, request.tag);
                return Ok(());
            }
            Operation::Flush => command::flush(nsid),
            Operation::Discard { sectors } => {
                can(Features::DISCARD)?;
                let (block, count) = within(sectors, geometry.max_discard_sectors)?;
                let place = usize::from(place?);
                self.lists.put(place, &command::range(block, count));
                command::deallocate(nsid, self.lists.address(place))
            }
            Operation::WriteZeroes { sectors, unmap } => {
                can(Features::WRITE_ZEROES)?;
                let (block, count) = within(sectors, geometry.max_write_zeroes_sectors)?;
                let deallocate = unmap && namespace.deallocates_zeroes;
                command::write_zeroes(nsid, block, count, deallocate)
            }
            Operation::Read | Operation::Write | Operation::WriteThrough => {
                return Err(SubmitError::Unsupported);
            }
        };
        place?;
        self.start(number, request.tag, command);
        Ok(())
    }

    /// The slot for the next request of a unit. None if the unit has reached its depth.
    #[inline]
    fn place(&self, unit: usize) -> Option<u16> {
        let state = self.units.get(unit)?;
        if state.taken < state.depth { self.requests.next() } else { None }
    }

    /// Starts a request of `unit` in the slot that [`Pair::place`] returned.
    #[inline]
    fn start(&mut self, unit: usize, tag: u64, command: Command) {
        let Some(state) = self.units.get_mut(unit) else { return };
        state.taken += 1;
        if let Some(place) = self.requests.put(unit as u16, tag, command) {
            match self.flow {
                Flow::Open => self.send(place),
                Flow::Held => {}
                Flow::Ended => self.end(place, Err(DiskError::Broken)),
            }
        }
    }

    /// Completes a request of `unit` without the controller.
    fn end_at_once(&mut self, unit: usize, tag: u64) {
        let broken = self.flow == Flow::Ended;
        let result = if broken { Err(DiskError::Broken) } else { Ok(()) };
        if let Some(state) = self.units.get_mut(unit) {
            state.taken += 1;
            state.done.push_back(Completion { tag, result });
        }
    }

    /// Puts the command of a slot into the queue.
    #[inline]
    fn send(&mut self, place: u16) {
        let age = self.age.millis();
        if let Some((command, cid)) = self.requests.send(place, age) {
            self.queue.push(&command::with_identifier(*command, cid));
        }
    }

    /// Rings the doorbell for the commands in the queue.
    #[inline]
    pub fn ring_doorbell(&mut self) {
        if self.flow == Flow::Open {
            self.queue.ring_doorbell(&self.registers);
        }
    }

    /// The next completion of a unit.
    #[inline]
    pub fn poll(&mut self, unit: usize) -> Result<Option<Completion>, InvalidCompletion> {
        let Some(state) = self.units.get_mut(unit) else { return Ok(None) };
        if let Some(done) = state.done.pop_front() {
            state.taken -= 1;
            return Ok(Some(done));
        }
        if self.flow != Flow::Open {
            return Ok(None);
        }
        while let Some(entry) = self.queue.take() {
            let own = entry.queue == self.id;
            let place = if own { self.requests.find(entry.cid) } else { None };
            // Entries are released in batches of half the queue, to save doorbell writes.
            self.queue.give_back(u32::from(self.queue.entries() / 2), &self.registers);
            match place {
                Some(place) if entry.status & 0x7ff == 0 => {
                    let Some((whose, tag)) = self.requests.end(place) else { continue };
                    let completion = Completion { tag, result: Ok(()) };
                    if usize::from(whose) == unit {
                        self.units[unit].taken -= 1;
                        return Ok(Some(completion));
                    }
                    self.deliver(whose, completion);
                }
                Some(place) => {
                    self.failed(place, entry);
                    if let Some(done) = self.ended(unit) {
                        return Ok(Some(done));
                    }
                }
                None => {
                    // Completions are ignored until the controller has been reset.
                    self.hold();
                    return Err(InvalidCompletion);
                }
            }
        }
        self.queue.give_back(1, &self.registers);
        Ok(None)
    }

    /// Takes a waiting completion of a unit. Completions wait if they arrive while another unit is polled, or if all
    /// requests end at once.
    pub fn ended(&mut self, unit: usize) -> Option<Completion> {
        let state = self.units.get_mut(unit)?;
        let done = state.done.pop_front()?;
        state.taken -= 1;
        Some(done)
    }

    #[cold]
    fn failed(&mut self, place: u16, entry: Entry) {
        let tries = self.requests.get(place).map_or(MOST_TRIES, |request| request.tries);
        match Outcome::of(entry.status) {
            Outcome::Again if tries < MOST_TRIES => {
                self.requests.take_back(place);
                self.send(place);
                self.ring_doorbell();
            }
            Outcome::Again => self.end(place, Err(DiskError::Io)),
            Outcome::Failed(error) => self.end(place, Err(error)),
            Outcome::Done => self.end(place, Ok(())),
        }
    }

    /// Ends a request; its unit polls the completion later.
    fn end(&mut self, place: u16, result: Result<(), DiskError>) {
        if let Some((whose, tag)) = self.requests.end(place) {
            self.deliver(whose, Completion { tag, result });
        }
    }

    fn deliver(&mut self, whose: u16, completion: Completion) {
        if let Some(state) = self.units.get_mut(usize::from(whose)) {
            state.done.push_back(completion);
        }
    }

    /// Whether requests are ended, because the controller is not used.
    pub fn has_ended(&self) -> bool {
        self.flow == Flow::Ended
    }

    /// Fails the first flush after the drive was away.
    #[cold]
    fn fail_flush(&mut self, number: usize, tag: u64) {
        if let Some(unit) = self.units.get_mut(number) {
            unit.lost_cache = false;
            unit.taken += 1;
            unit.done.push_back(Completion { tag, result: Err(DiskError::Broken) });
        }
    }

    /// Holds requests back, because the controller is about to stop.
    pub fn hold(&mut self) {
        if self.flow == Flow::Open {
            self.flow = Flow::Held;
        }
    }

    /// Clears the queues. The requests that the controller had wait again, or fail if they were sent too often. The
    /// controller must have stopped, so that it touches no memory.
    pub fn restart(&mut self) {
        let mut from = 0;
        while let Some(place) = self.requests.sent(from) {
            self.requests.take_back(place);
            if self.requests.get(place).is_some_and(|request| request.tries > MOST_TRIES) {
                self.end(place, Err(DiskError::Io));
            }
            from = place + 1;
        }
        self.queue.restart();
    }

    /// Sends all waiting requests. The controller must have created the queues.
    pub fn open(&mut self) {
        self.flow = Flow::Open;
        self.signal.apply(&self.registers);
        let mut from = 0;
        while let Some(place) = self.requests.waiting(from) {
            self.send(place);
            from = place + 1;
        }
        self.ring_doorbell();
    }

    /// Ends all requests, present and future, as broken. The controller must not be able to touch their memory any
    /// more.
    pub fn end_all(&mut self) {
        self.flow = Flow::Ended;
        for place in 0..self.requests.capacity() {
            if self.requests.sent(place) == Some(place)
                || self.requests.waiting(place) == Some(place)
            {
                self.end(place, Err(DiskError::Broken));
            }
        }
    }

    /// Holds requests back instead of ending them, because the controller is tried again. The drive may have lost what
    /// its cache held, so the next flush of each unit fails.
    pub fn return_from_end(&mut self) {
        self.flow = Flow::Held;
        self.units.iter_mut().for_each(|unit| unit.lost_cache = true);
    }

    /// Whether a completion is waiting for a unit, or in the queue for any unit.
    pub fn pending(&self, unit: usize) -> bool {
        let done = self.units.get(unit).is_some_and(|unit| !unit.done.is_empty());
        done || self.flow == Flow::Open && self.queue.pending()
    }

    /// Checks for late requests. With `may_abort` one abort can be requested now.
    pub fn late(&mut self, may_abort: bool) -> Late {
        // Completions wait to be polled, so the requests' ages mean nothing.
        if self.flow != Flow::Open || self.queue.pending() {
            return Late::Nothing;
        }
        let (mut from, mut found) = (0, Late::Nothing);
        while let Some(place) = self.requests.sent(from) {
            from = place + 1;
            let Some(request) = self.requests.get_mut(place) else { continue };
            let waits = self.age.since(request.since);
            if waits > REQUEST_TIMEOUT + ABORT_TIMEOUT {
                return Late::Reset;
            }
            let free = may_abort && found == Late::Nothing;
            if waits > REQUEST_TIMEOUT && !request.aborted && free {
                request.aborted = true;
                found = Late::Abort(self.requests.identifier(place));
            }
        }
        found
    }

    /// Sets the size of a namespace.
    pub fn resize(&mut self, unit: usize, sectors: u64) {
        if let Some(unit) = self.units.get_mut(unit)
            && unit.namespace.geometry.sectors != sectors
        {
            unit.namespace.geometry.sectors = sectors;
            unit.changed = true;
        }
    }

    /// Whether a unit's size has changed since the last call.
    pub fn take_changed(&mut self, unit: usize) -> bool {
        self.units.get_mut(unit).is_some_and(|unit| core::mem::take(&mut unit.changed))
    }
}
