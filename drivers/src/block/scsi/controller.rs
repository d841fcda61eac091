//! Requests in flight at an adapter. The units share the adapter's slots equally, so that no unit delays another.

use super::adapter::{Adapter, Limits, PARAMETERS, Place, Taken};
use super::command::{Answer, CAPACITY, Capacity, Cdb, read_capacity};
use super::discover::Unit;
use crate::hal::{Completion, DiskError, Geometry, Health, Notice, Severity, Window};
use crate::virtio::Vigil;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Most times that a command is sent to a unit that answers [`Answer::Again`].
const TRIES: u8 = 100;
const REMOVED: &str = "its controller does not answer any more: it was removed from the machine; its requests fail until \
     it is back and the appliance is restarted";

/// Use of a slot.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// The slot is free.
    Free,
    /// A request with this tag. `moves`: bytes to transfer.
    Request { tag: u64, moves: u32, kind: Kind, tries: u8 },
    /// The driver reads the unit's capacity.
    Capacity { tries: u8 },
}

/// Kind of a request, as the unit's cache sees it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    /// Any that changes the medium.
    Write,
    /// A flush, and how many writes had completed before it was sent.
    Flush {
        of: u32,
    },
}

/// State of a unit.
struct UnitState {
    place: Place,
    geometry: Geometry,
    /// Slots of requests. The last one is reserved for the driver's own commands.
    slots: Box<[Work]>,
    free: Vec<u16>,
    done: VecDeque<Completion>,
    /// The capacity may have changed, and has to be read again.
    capacity_stale: bool,
    changed: bool,
    /// The unit reports that it has a volatile cache.
    caches: bool,
    /// Writes that have completed, and how many of them a flush has made durable.
    written: u32,
    durable: u32,
    /// The unit may have lost writes: the next flush fails.
    lost: bool,
}

impl UnitState {
    /// Notes that a request has succeeded. A flush fails nevertheless if the unit has lost what it was to flush.
    #[inline]
    fn note_done(&mut self, kind: Kind) -> Result<(), DiskError> {
        match kind {
            Kind::Read => {}
            Kind::Write => self.written = self.written.wrapping_add(1),
            Kind::Flush { of } => {
                self.durable = of;
                if core::mem::take(&mut self.lost) {
                    return Err(DiskError::Io);
                }
            }
        }
        Ok(())
    }
}

/// An adapter with its units.
pub struct Controller<A: Adapter> {
    adapter: A,
    units: Vec<UnitState>,
    /// Slots of each unit.
    share: u16,
    broken: bool,
    vigil: Vigil,
    removed: Option<Notice>,
}

impl<A: Adapter> Drop for Controller<A> {
    /// The last disk is gone: nothing is left for which the adapter may reach memory.
    fn drop(&mut self) {
        if !self.broken {
            self.adapter.stop();
        }
    }
}

impl<A: Adapter> Controller<A> {
    /// An adapter without units. Before [`Controller::share_out`] only [`Controller::execute`] may be used.
    pub fn new(adapter: A) -> Self {
        let (units, share, broken) = (Vec::new(), 0, false);
        Controller { adapter, units, share, broken, vigil: Vigil::default(), removed: None }
    }

    /// Most units for which there are slots.
    pub fn most_units(&self) -> usize {
        usize::from(self.adapter.slots() / 2)
    }

    /// Divides the slots among the units. Returns the depth of each.
    pub fn share_out(&mut self, units: &[Unit], limits: Limits) -> usize {
        self.share = self.adapter.slots() / units.len().max(1) as u16;
        let own = self.share - 1;
        let depth = own.min(limits.per_unit.try_into().unwrap_or(u16::MAX)).max(1);
        self.units = units
            .iter()
            .map(|unit| UnitState {
                place: unit.place,
                geometry: unit.geometry,
                slots: alloc::vec![Work::Free; self.share.into()].into(),
                free: (0..depth).rev().collect(),
                done: VecDeque::with_capacity(depth.into()),
                capacity_stale: false,
                changed: false,
                caches: unit.caches,
                written: 0,
                durable: 0,
                lost: false,
            })
            .collect();
        depth.into()
    }

    pub fn geometry(&self, unit: usize) -> Geometry {
        self.units[unit].geometry
    }

    /// A block of zeroes.
    pub fn zeroes(&self, len: usize) -> Window {
        self.adapter.zeroes(len)
    }

    /// Memory for the data of commands at bring-up.
    pub fn scratch(&self) -> Window {
        self.adapter.scratch()
    }

    /// Memory for the parameters of the next request of `unit`, [`PARAMETERS`] bytes. None if the unit has reached its
    /// depth.
    pub fn parameters(&self, unit: usize) -> Option<Window> {
        let index = *self.units[unit].free.last()?;
        self.adapter.parameters(unit as u16 * self.share + index).slice(0, PARAMETERS)
    }

    /// Notifies the adapter of commands that were offered.
    pub fn kick(&mut self) {
        self.adapter.publish();
    }

    /// Notifies a stalled adapter again of the requests that it has. All units share it, so only unit 0 does it.
    pub fn watch(&mut self, unit: usize) {
        if unit != 0 {
            return;
        }
        if !self.broken && self.adapter.is_absent() {
            self.removed = Some(Notice { severity: Severity::Error, text: REMOVED });
            self.end_all();
        }
        let still = !self.broken && self.adapter.stands_still();
        self.vigil.see(still);
    }

    /// The next notice of the adapter, returned for unit 0 only.
    pub fn notice(&mut self, unit: usize) -> Option<Notice> {
        if unit != 0 {
            return None;
        }
        self.removed.take().or_else(|| self.vigil.notice())
    }

    /// Whether the unit can be used, as far as the driver knows.
    pub fn health(&self) -> Health {
        Health { gone: self.broken, ..Health::default() }
    }

    /// Executes a command at bring-up, when no other is in flight, and polls for its completion while `waits` returns
    /// true. None if the adapter did not answer; it is given up then.
    pub fn execute(
        &mut self,
        place: Place,
        cdb: &Cdb,
        data: Option<(Window, bool)>,
        mut waits: impl FnMut() -> bool,
    ) -> Option<Answer> {
        if self.broken {
            return None;
        }
        self.adapter.offer(0, place, cdb, data);
        self.kick();
        for _ in 0..TRIES {
            let taken = loop {
                match self.adapter.take() {
                    Taken::Nothing if waits() => crate::hal::relax(),
                    other => break other,
                }
            };
            let Taken::Command { slot: 0, answer, .. } = taken else {
                self.give_up();
                return None;
            };
            match answer {
                Answer::Invalid => {
                    self.give_up();
                    return None;
                }
                Answer::Again { .. } | Answer::Lost => {
                    self.adapter.offer_again(0);
                    self.kick();
                }
                answer => return Some(answer),
            }
        }
        self.give_up();
        None
    }

    /// Whether the adapter was given up: it answered with invalid data, or not at all.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Starts a request of `unit`. False if no slot is free. `flushes`: the command is a flush.
    #[inline]
    pub fn start(
        &mut self,
        unit: usize,
        tag: u64,
        cdb: &Cdb,
        data: Option<(Window, bool)>,
        flushes: bool,
    ) -> bool {
        let broken = self.broken;
        let state = &mut self.units[unit];
        if broken {
            // They end at once: no more of them than the caller has room for.
            if state.done.len() >= state.slots.len() {
                return false;
            }
            state.done.push_back(Completion { tag, result: Err(DiskError::Broken) });
            return true;
        }
        let Some(index) = state.free.pop() else { return false };
        let moves = data.map_or(0, |(data, _)| data.len() as u32);
        let kind = match data {
            _ if flushes => Kind::Flush { of: state.written },
            Some((_, false)) => Kind::Write,
            _ => Kind::Read,
        };
        state.slots[usize::from(index)] = Work::Request { tag, moves, kind, tries: 0 };
        let place = state.place;
        self.adapter.offer(unit as u16 * self.share + index, place, cdb, data);
        true
    }

    /// The next completion of a unit.
    #[inline]
    pub fn poll(&mut self, unit: usize) -> Option<Completion> {
        if self.units[unit].done.is_empty() && !self.broken {
            self.take_all();
        }
        self.units[unit].done.pop_front()
    }

    /// Whether a completion is waiting for a unit, or at the adapter for any unit.
    pub fn pending(&self, unit: usize) -> bool {
        !self.units[unit].done.is_empty() || !self.broken && self.adapter.pending()
    }

    /// Takes the completions of all units.
    fn take_all(&mut self) {
        loop {
            match self.adapter.take() {
                Taken::Nothing => break,
                Taken::Command { slot, answer, residual } => self.end(slot, answer, residual),
                Taken::Nonsense => self.give_up(),
            }
            if self.broken {
                return;
            }
        }
        // For commands that are sent again.
        self.kick();
    }

    fn end(&mut self, slot: u16, answer: Answer, residual: u32) {
        let (unit, index) = (usize::from(slot / self.share), slot % self.share);
        let Some(state) = self.units.get_mut(unit) else { return self.give_up() };
        let work = &mut state.slots[usize::from(index)];
        if let Answer::Again { .. } | Answer::Lost = answer {
            state.capacity_stale |= answer == Answer::Again { capacity: true };
            state.lost |= answer == Answer::Lost && state.written != state.durable;
            if let Work::Request { tries, .. } | Work::Capacity { tries } = work
                && *tries < TRIES
            {
                *tries += 1;
                return self.adapter.offer_again(slot);
            }
        }
        match core::mem::replace(work, Work::Free) {
            Work::Free => self.give_up(),
            Work::Capacity { .. } => self.update_capacity(unit, slot, answer),
            Work::Request { tag, moves, kind, .. } => {
                let result = match answer {
                    // A short transfer.
                    Answer::Done if moves > 0 && residual > 0 => Err(DiskError::Io),
                    Answer::Done => state.note_done(kind),
                    // A unit without a cache may not support the command.
                    Answer::Illegal if matches!(kind, Kind::Flush { .. }) && !state.caches => {
                        state.note_done(kind)
                    }
                    Answer::Illegal => Err(DiskError::Unsupported),
                    Answer::Invalid => Err(DiskError::Broken),
                    Answer::Again { .. } | Answer::Lost | Answer::Absent | Answer::Failed => {
                        Err(DiskError::Io)
                    }
                };
                state.free.push(index);
                state.done.push_back(Completion { tag, result });
                if result == Err(DiskError::Broken) {
                    self.give_up();
                }
            }
        }
    }

    /// Stops the adapter for good, so that it cannot reach the memory of requests in flight. They end as broken.
    fn give_up(&mut self) {
        self.vigil.broke();
        self.end_all();
    }

    fn end_all(&mut self) {
        if core::mem::replace(&mut self.broken, true) {
            return;
        }
        self.adapter.stop();
        for unit in &mut self.units {
            for (index, work) in (0..).zip(unit.slots.iter_mut()) {
                if let Work::Request { tag, .. } = core::mem::replace(work, Work::Free) {
                    unit.free.push(index);
                    unit.done.push_back(Completion { tag, result: Err(DiskError::Broken) });
                }
            }
        }
    }

    /// Whether the size of a unit has changed since the last call. Starts to read the capacity if it may have changed.
    pub fn capacity_changed(&mut self, unit: usize) -> bool {
        let Controller { adapter, units, .. } = self;
        adapter.changes(&mut |place| {
            let of = units.iter_mut().filter(|unit| place.is_none_or(|place| place == unit.place));
            of.for_each(|unit| unit.capacity_stale = true);
        });
        let last = self.share - 1;
        // A unit without requests is not polled otherwise.
        let reads = matches!(self.units[unit].slots[usize::from(last)], Work::Capacity { .. });
        if reads && !self.broken {
            self.take_all();
        }
        let state = &mut self.units[unit];
        let idle = matches!(state.slots[usize::from(last)], Work::Free);
        if !self.broken && idle && core::mem::take(&mut state.capacity_stale) {
            state.slots[usize::from(last)] = Work::Capacity { tries: 0 };
            let (place, slot) = (state.place, unit as u16 * self.share + last);
            let into = self.adapter.parameters(slot).slice(0, CAPACITY).unwrap_or(Window::empty());
            self.adapter.offer(slot, place, &read_capacity(), Some((into, true)));
            self.kick();
        }
        core::mem::take(&mut self.units[unit].changed)
    }

    fn update_capacity(&mut self, unit: usize, slot: u16, answer: Answer) {
        let mut bytes = [0; CAPACITY];
        let read = self.adapter.parameters(slot).read(0, &mut bytes);
        let capacity = Capacity::parse(&bytes).filter(|_| answer == Answer::Done && read.is_ok());
        let state = &mut self.units[unit];
        // A disk with blocks of another size is another disk: the old geometry is kept, and requests fail.
        if let Some(capacity) = capacity
            && capacity.block == state.geometry.logical_block
        {
            let sectors = capacity.blocks * u64::from(capacity.block / 512);
            state.changed |= sectors != state.geometry.sectors;
            state.geometry.sectors = sectors;
        }
    }

    pub fn set_interrupts(&mut self, wanted: bool) {
        self.adapter.set_interrupts(wanted);
    }

    pub fn wakes(&self) -> bool {
        self.adapter.wakes()
    }

    pub fn interrupts(&self) -> u64 {
        self.adapter.interrupts()
    }
}
