//! The controller as its disks use it: requests go out, completions come in. How it comes up, is reset and is
//! given up is in `life`.

use super::admin::{self, Admin};
use super::command::Outcome;
use super::error::Error;
use super::identify::{self, Namespace};
use super::life::Life;
use super::log_page::SmartLog;
use super::prp::{LIST_BYTES, Lists};
use super::queue::{Command, Entry, Queue};
use super::registers::ControllerRegisters;
use super::requests::{MOST, Requests};
use super::signal::Signal;
use crate::hal::{Arena, Completion, DiskError, Geometry, Health, Notice, Platform, Window};
use crate::pci::Function;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The one pair of I/O queues.
pub const IO: u16 = 1;
/// Entries of each of the two at most: one more than there are places for requests.
const MOST_ENTRIES: u32 = MOST as u32 + 1;
/// Times that a request is sent again.
const MOST_TRIES: u8 = 3;
/// Notices that are kept until somebody asks.
const NOTICES: usize = 16;

/// What the controller keeps of a namespace.
pub struct Unit {
    pub nsid: u32,
    pub namespace: Namespace,
    /// Most requests that it may have under way; and how many it has, until they are polled.
    depth: u16,
    taken: u16,
    /// Ended, and not polled yet.
    done: VecDeque<Completion>,
    /// Its size has changed since somebody asked.
    pub changed: bool,
}

/// An NVMe controller.
pub struct Controller {
    pub(super) function: Function<'static>,
    pub(super) registers: ControllerRegisters,
    pub(super) signal: Signal,
    pub(super) admin: Admin,
    pub(super) io: Queue,
    pub(super) requests: Requests,
    pub(super) lists: Lists,
    pub(super) units: Vec<Unit>,
    pub(super) life: Life,
    /// Who it said that it is.
    pub(super) identity: Option<identify::Controller>,
    pub(super) smart: Option<SmartLog>,
    notices: VecDeque<Notice>,
    memory: Vec<Window>,
}

impl Controller {
    /// Takes a function's registers and memory for queues. The controller does nothing yet.
    pub fn attach(
        function: Function<'static>,
        platform: &mut dyn Platform,
    ) -> Result<Controller, Error> {
        let bars = function.bars();
        let bar = bars.get(0).ok_or(Error::NoRegisters)?;
        function.enable();
        let registers = ControllerRegisters::map(bar, platform)?;
        // The firmware may have left it on, with queues of its own.
        registers.disable();
        let signal = Signal::open(&function, &bars, platform);
        let mut memory = Vec::new();
        let made = Self::queues(&registers, platform.arena(), &mut memory);
        let (admin, io, lists) = match made {
            Ok(made) => made,
            Err(error) => {
                memory.into_iter().for_each(|window| platform.arena().free(window));
                return Err(error);
            }
        };
        let requests = Requests::new(io.entries() - 1);
        Ok(Controller {
            function,
            registers,
            signal,
            admin,
            io,
            requests,
            lists,
            units: Vec::new(),
            life: Life::default(),
            identity: None,
            smart: None,
            notices: VecDeque::with_capacity(NOTICES),
            memory,
        })
    }

    fn queues(
        registers: &ControllerRegisters,
        arena: &mut Arena,
        memory: &mut Vec<Window>,
    ) -> Result<(Admin, Queue, Lists), Error> {
        let capabilities = registers.capabilities();
        let page = 1 << capabilities.page_shift;
        let entries = 1u16 << capabilities.entries.min(MOST_ENTRIES).ilog2();
        let mut alloc = |bytes: usize| {
            let window = arena.alloc(bytes, page).ok_or(Error::NoMemory { bytes })?;
            memory.push(window);
            Ok(window)
        };
        let mut queue = |id, entries| {
            let bytes = Queue::bytes(entries, page);
            let window = alloc(bytes)?;
            Queue::new(id, entries, page, window, registers).ok_or(Error::NoMemory { bytes })
        };
        let admin = queue(0, admin::ENTRIES.min(entries))?;
        let io = queue(IO, entries)?;
        let answers = alloc(identify::LEN)?;
        let bytes = usize::from(entries) * LIST_BYTES;
        let lists = Lists::new(&alloc(bytes)?, entries.into(), page as u64);
        Ok((Admin::new(admin, answers), io, lists.ok_or(Error::NoMemory { bytes })?))
    }

    /// Gives its memory back; it must have been stopped, and is not used any more.
    pub fn free_memory(&mut self, arena: &mut Arena) {
        self.memory.drain(..).for_each(|window| arena.free(window));
    }

    /// Shares the places for requests out to the namespaces.
    pub fn share_out(&mut self, units: impl ExactSizeIterator<Item = (u32, Namespace)>) {
        let depth = (self.requests.capacity() / units.len().max(1) as u16).max(1);
        let unit = |(nsid, namespace)| {
            let done = VecDeque::with_capacity(depth.into());
            Unit { nsid, namespace, depth, taken: 0, done, changed: false }
        };
        self.units = units.map(unit).collect();
    }

    /// Most requests that a unit may have under way.
    pub fn depth(&self, unit: usize) -> usize {
        self.units.get(unit).map_or(0, |unit| unit.depth.into())
    }

    #[inline]
    pub fn unit(&self, unit: usize) -> Option<&Unit> {
        self.units.get(unit)
    }

    pub fn geometry(&self, unit: usize) -> Geometry {
        self.units.get(unit).map_or(Geometry::ABSENT, |unit| unit.namespace.geometry)
    }

    /// The place that the next request of a unit gets; None if it has as many under way as it may.
    #[inline(always)]
    pub fn place(&self, unit: usize) -> Option<u16> {
        let state = self.units.get(unit)?;
        if state.taken < state.depth { self.requests.next() } else { None }
    }

    /// Lists of pages, by the place of a request.
    #[inline(always)]
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Starts a request of `unit` in the place that [`Controller::place`] said.
    #[inline(always)]
    pub fn start(&mut self, unit: usize, tag: u64, command: Command) {
        let Some(state) = self.units.get_mut(unit) else { return };
        state.taken += 1;
        if let Some(place) = self.requests.put(unit as u16, tag, command) {
            if self.life.is_live() {
                self.send(place);
            } else if self.life.is_gone() {
                self.end(place, Err(DiskError::Broken));
            }
        }
    }

    /// Ends a request of `unit` that the device has nothing to do for.
    pub fn end_at_once(&mut self, unit: usize, tag: u64) {
        let result = if self.life.is_gone() { Err(DiskError::Broken) } else { Ok(()) };
        if let Some(state) = self.units.get_mut(unit) {
            state.taken += 1;
            state.done.push_back(Completion { tag, result });
        }
    }

    /// Puts the command of a place into the queue.
    #[inline(always)]
    pub(super) fn send(&mut self, place: u16) {
        let age = self.life.age();
        if let Some((command, cid)) = self.requests.send(place, age) {
            self.io.push(&super::command::with_identifier(*command, cid));
        }
    }

    /// Tells the device of what was started.
    #[inline(always)]
    pub fn tell(&mut self) {
        if self.life.is_live() {
            self.io.tell(&self.registers);
        }
    }

    /// The next completion of a unit.
    #[inline(always)]
    pub fn poll(&mut self, unit: usize) -> Option<Completion> {
        let state = self.units.get_mut(unit)?;
        if let Some(done) = state.done.pop_front() {
            state.taken -= 1;
            return Some(done);
        }
        if !self.life.is_live() {
            self.advance();
            return self.ended(unit);
        }
        while let Some(entry) = self.io.take() {
            let place = self.requests.find(entry.cid);
            // Half of the entries are held back, so that the device is told once for many.
            self.io.give_back(u32::from(self.io.entries() / 2), &self.registers);
            match place {
                Some(place) if entry.status & 0x7ff == 0 => {
                    let Some((whose, tag)) = self.requests.end(place) else { continue };
                    let completion = Completion { tag, result: Ok(()) };
                    if usize::from(whose) == unit {
                        self.units[unit].taken -= 1;
                        return Some(completion);
                    }
                    self.deliver(whose, completion);
                }
                Some(place) => {
                    self.failed(place, entry);
                    if let Some(done) = self.ended(unit) {
                        return Some(done);
                    }
                }
                None => {
                    self.begin_reset(super::life::NONSENSE);
                    return self.ended(unit);
                }
            }
        }
        self.io.give_back(1, &self.registers);
        None
    }

    /// Of a completion that came for another unit, or all at once.
    fn ended(&mut self, unit: usize) -> Option<Completion> {
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
                self.tell();
            }
            Outcome::Again => self.end(place, Err(DiskError::Io)),
            Outcome::Failed(error) => self.end(place, Err(error)),
            Outcome::Done => self.end(place, Ok(())),
        }
    }

    /// Ends a request; its unit polls it later.
    pub(super) fn end(&mut self, place: u16, result: Result<(), DiskError>) {
        if let Some((whose, tag)) = self.requests.end(place) {
            self.deliver(whose, Completion { tag, result });
        }
    }

    fn deliver(&mut self, whose: u16, completion: Completion) {
        if let Some(state) = self.units.get_mut(usize::from(whose)) {
            state.done.push_back(completion);
        }
    }

    /// All requests that the controller had wait again; those that were sent too often end.
    pub(super) fn take_all_back(&mut self) {
        let mut from = 0;
        while let Some(place) = self.requests.sent(from) {
            self.requests.take_back(place);
            if self.requests.get(place).is_some_and(|request| request.tries > MOST_TRIES) {
                self.end(place, Err(DiskError::Io));
            }
            from = place + 1;
        }
    }

    /// Sends all that waits.
    pub(super) fn send_waiting(&mut self) {
        let mut from = 0;
        while let Some(place) = self.requests.waiting(from) {
            self.send(place);
            from = place + 1;
        }
        self.tell();
    }

    /// Ends all requests: the controller does not touch their memory any more.
    pub(super) fn end_all(&mut self) {
        for place in 0..self.requests.capacity() {
            if self.requests.sent(place) == Some(place)
                || self.requests.waiting(place) == Some(place)
            {
                self.end(place, Err(DiskError::Broken));
            }
        }
    }

    /// Whether there is a completion of a unit, or of any other, or something to do for them.
    pub fn pending(&self, unit: usize) -> bool {
        let done = self.units.get(unit).is_some_and(|unit| !unit.done.is_empty());
        done || self.life.is_under_way() || self.life.is_live() && self.io.pending()
    }

    /// Asks for interrupts, or for none.
    pub fn set_interrupts(&mut self, wanted: bool) {
        self.signal.set(wanted, &self.registers);
    }

    pub fn wakes(&self) -> bool {
        self.signal.wakes()
    }

    pub fn interrupts(&self) -> u64 {
        self.signal.count()
    }

    /// How the drive fares.
    pub fn health(&self) -> Health {
        let measured = self.smart.map_or(Health::default(), |log| log.health);
        let (aborts, resets) = self.life.counted();
        Health { aborts, resets, gone: self.life.is_gone(), ..measured }
    }

    /// The next notice.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Keeps a notice, if there is room.
    pub(super) fn note(&mut self, notice: Notice) {
        if self.notices.len() < NOTICES {
            self.notices.push_back(notice);
        }
    }
}

impl Drop for Controller {
    /// It stops using its memory.
    fn drop(&mut self) {
        self.registers.disable();
    }
}
