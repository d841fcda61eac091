//! The controller: its queues, and the slots of requests in flight. The units share the slots equally, so that no unit
//! delays another.

use super::command::{Answer, CAPACITY, Capacity, Cdb, RESPONSE_NONE, read_capacity};
use super::discover::{Unit, numbers};
use crate::hal::{Arena, Completion, DiskError, Geometry, Notice, Window};
use crate::virtio::{
    Descriptor, Error, Live, Ring, Setup, Taken, Transport, Vigil, read_config, reset,
};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

// Queues (virtio 1.2, 5.6.2).
const CONTROL: u16 = 0;
const EVENTS: u16 = 1;
pub const REQUESTS: u16 = 2;
const MOST_ENTRIES: u16 = 1024;
const FEW_ENTRIES: u16 = 8;
/// Descriptors of a request: header, data and answer. Those that the device reads come first.
const PARTS: u16 = 3;

/// The device reports changes of units by events.
const FEATURE_CHANGE: u64 = 1 << 2;

// struct virtio_scsi_config (5.6.4).
const CONFIG_MOST_SECTORS: usize = 8;
const CONFIG_PER_UNIT: usize = 12;
const CONFIG_LAST_TARGET: usize = 30;
const CONFIG_LAST_LUN: usize = 32;

// A request's slot.
const SLOT: usize = 256;
const AT_ANSWER: usize = 64;
/// Parameters of a command, for commands without the caller's data.
const AT_PARAMETERS: usize = 192;
const PARAMETERS: usize = 32;

// struct virtio_scsi_req_cmd (5.6.6.1): what the device reads, and what it writes.
pub const HEADER: usize = 51;
const HEADER_ID: usize = 8;
pub const HEADER_CDB: usize = 19;
pub const ANSWER: usize = 108;
const ANSWER_RESIDUAL: usize = 4;
pub const ANSWER_STATUS: usize = 10;
pub const ANSWER_SENSE: usize = 12;
/// Bytes of sense data that are used.
pub const SENSE: usize = 18;

// struct virtio_scsi_event (5.6.6.3).
const EVENT: usize = 16;
const EVENT_MISSED: u32 = 1 << 31;
const EVENT_PARAMETERS: u32 = 3;

/// Most times that a command is sent to a unit that answers [`Answer::Again`].
const TRIES: u8 = 100;
/// The largest block for which there is a buffer of zeroes.
pub const MOST_ZEROES: usize = 4096;

/// Limits in the controller's configuration.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most sectors (of 512 bytes) in a request.
    pub most_sectors: u32,
    /// Most requests in flight to a unit.
    pub per_unit: u32,
    pub last_target: u16,
    pub last_lun: u32,
}

/// Use of a slot.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// The slot is free.
    Free,
    /// A request with this tag. `moves`: bytes to transfer.
    Request { tag: u64, moves: u32, may_be_unknown: bool, tries: u8 },
    /// The driver reads the unit's capacity.
    Capacity { tries: u8 },
}

/// State of a unit.
struct UnitState {
    address: [u8; 8],
    geometry: Geometry,
    /// Slots of requests. The last one is reserved for the driver's own commands.
    slots: Box<[Work]>,
    free: Vec<u16>,
    done: VecDeque<Completion>,
    /// The capacity may have changed, and has to be read again.
    capacity_stale: bool,
    changed: bool,
}

/// A virtio SCSI controller.
pub struct Controller {
    transport: Live,
    requests: Ring,
    /// Event queue. Without it units report changes by the sense data of the next request.
    events: Option<Ring>,
    _control: Ring,
    slots: Window,
    event_buffers: Window,
    zeroes: Window,
    units: Vec<UnitState>,
    /// Slots of each unit.
    share: u16,
    broken: bool,
    vigil: Vigil,
}

impl Controller {
    /// Sets the device up with memory of `arena`.
    pub fn open(
        mut transport: Box<dyn Transport>,
        arena: &mut Arena,
    ) -> Result<(Self, Limits), Error> {
        let mut setup = Setup::begin(&mut *transport, arena, FEATURE_CHANGE)?;
        let limits = read_config(setup.transport(), |config| {
            let unlimited = |value| if value == 0 { u32::MAX } else { value };
            Limits {
                most_sectors: unlimited(config.read32(CONFIG_MOST_SECTORS)),
                per_unit: unlimited(config.read32(CONFIG_PER_UNIT)),
                last_target: config.read16(CONFIG_LAST_TARGET),
                last_lun: config.read32(CONFIG_LAST_LUN),
            }
        })
        .ok_or(Error::Config("generation"))?;
        let control = setup.queue(CONTROL, FEW_ENTRIES, false)?;
        let has_events = setup.agreed().has(FEATURE_CHANGE);
        let events = has_events.then(|| setup.queue(EVENTS, FEW_ENTRIES, false)).transpose()?;
        let requests = setup.queue(REQUESTS, MOST_ENTRIES, true)?;
        let count = usize::from(requests.size() / PARTS);
        if count < 2 {
            return Err(Error::QueueRefused { index: REQUESTS, entries: 2 * PARTS });
        }
        let slots = setup.alloc(count * SLOT, SLOT)?;
        let event_buffers = setup.alloc(usize::from(FEW_ENTRIES) * EVENT, EVENT)?;
        let zeroes = setup.alloc(MOST_ZEROES, MOST_ZEROES)?;
        setup.finish();
        let transport = Live::new(transport);
        let (units, share, broken) = (Vec::new(), 0, false);
        let mut controller = Controller {
            transport,
            requests,
            events,
            _control: control,
            slots,
            event_buffers,
            zeroes,
            units,
            share,
            broken,
            vigil: Vigil::default(),
        };
        controller.offer_events();
        Ok((controller, limits))
    }

    /// Most units for which there are slots.
    pub fn most_units(&self) -> usize {
        usize::from(self.requests.size() / PARTS / 2)
    }

    /// Divides the slots among the units. Returns the depth of each. Before this call only [`Controller::execute`] may
    /// be used.
    pub fn share_out(&mut self, units: &[Unit], limits: Limits) -> usize {
        let slots = self.requests.size() / PARTS;
        self.share = slots / units.len().max(1) as u16;
        let own = self.share - 1;
        let depth = own.min(limits.per_unit.try_into().unwrap_or(u16::MAX)).max(1);
        self.units = units
            .iter()
            .map(|unit| UnitState {
                address: unit.address,
                geometry: unit.geometry,
                slots: alloc::vec![Work::Free; self.share.into()].into(),
                free: (0..depth).rev().collect(),
                done: VecDeque::with_capacity(depth.into()),
                capacity_stale: false,
                changed: false,
            })
            .collect();
        depth.into()
    }

    pub fn geometry(&self, unit: usize) -> Geometry {
        self.units[unit].geometry
    }

    /// A block of zeroes.
    pub fn zeroes(&self, len: usize) -> Window {
        self.zeroes.slice(0, len).unwrap_or(Window::empty())
    }

    fn slot(&self, slot: u16) -> Window {
        self.slots.slice(usize::from(slot) * SLOT, SLOT).unwrap_or(Window::empty())
    }

    /// Memory for the data of commands at bring-up, when only the first slot is in use.
    pub fn scratch(&self) -> Window {
        let len = (self.slots.len() - SLOT).min(4096);
        self.slots.slice(SLOT, len).unwrap_or(Window::empty())
    }

    /// Memory for the parameters of the next request of `unit`, [`PARAMETERS`] bytes. None if the unit has reached its
    /// depth.
    pub fn parameters(&self, unit: usize) -> Option<Window> {
        let index = *self.units[unit].free.last()?;
        self.slot(unit as u16 * self.share + index).slice(AT_PARAMETERS, PARAMETERS)
    }

    /// Describes a command in `slot` and offers it. `data`: the buffer, and whether the device writes it.
    fn offer(&mut self, slot: u16, address: [u8; 8], cdb: &Cdb, data: Option<(Window, bool)>) {
        let window = self.slot(slot);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&address);
        header[HEADER_ID..HEADER_ID + 8].copy_from_slice(&u64::from(slot).to_le_bytes());
        header[HEADER_CDB..HEADER_CDB + cdb.len()].copy_from_slice(cdb);
        let written = window.write(0, &header);
        debug_assert!(written.is_ok());
        let bus = window.bus_address();
        let head = slot * PARTS;
        let header = (bus, HEADER as u32, false);
        let answer = (bus + AT_ANSWER as u64, ANSWER as u32, true);
        let ring = &mut self.requests;
        let mut describe = |index: u16, (address, len, device_writes), next: Option<u16>| {
            ring.describe(
                head + index,
                Descriptor { address, len, device_writes, next: next.map(|next| head + next) },
            );
        };
        // Descriptors that the device reads must come before those that it writes.
        match data.map(|(data, writes)| (data.bus_address(), data.len() as u32, writes)) {
            None => {
                describe(0, header, Some(1));
                describe(1, answer, None);
            }
            Some(data @ (_, _, true)) => {
                describe(0, header, Some(1));
                describe(1, answer, Some(2));
                describe(2, data, None);
            }
            Some(data) => {
                describe(0, header, Some(1));
                describe(1, data, Some(2));
                describe(2, answer, None);
            }
        }
        self.offer_again(slot);
    }

    /// Offers the command that `slot` holds.
    fn offer_again(&mut self, slot: u16) {
        let none = u16::from_le_bytes([0, RESPONSE_NONE]);
        self.slot(slot).store16(AT_ANSWER + ANSWER_STATUS, none);
        self.requests.offer(slot * PARTS);
    }

    /// Result of the command in `slot`, and the residual: bytes that were not transferred.
    fn answer(&self, slot: u16) -> (Answer, u32) {
        let window = self.slot(slot);
        let [status, response] = window.load16(AT_ANSWER + ANSWER_STATUS).to_le_bytes();
        let residual = window.load32(AT_ANSWER + ANSWER_RESIDUAL);
        let mut sense = [0; SENSE];
        if status != 0 && window.read(AT_ANSWER + ANSWER_SENSE, &mut sense).is_err() {
            return (Answer::Invalid, 0);
        }
        (Answer::of(response, status, &sense), residual)
    }

    /// Publishes the offered commands, and notifies the device.
    pub fn kick(&mut self) {
        if self.requests.publish() {
            self.transport.notify(REQUESTS);
        }
    }

    /// Notifies a stalled device again of the requests that it has. All units share the queue, so only unit 0 does it.
    pub fn watch(&mut self, unit: usize) {
        if unit != 0 {
            return;
        }
        let still = !self.broken && self.requests.stands_still();
        if still {
            self.transport.notify(REQUESTS);
        }
        self.vigil.see(still);
    }

    /// The next notice of the controller, returned for unit 0 only.
    pub fn notice(&mut self, unit: usize) -> Option<Notice> {
        if unit == 0 { self.vigil.notice() } else { None }
    }

    /// Executes a command at bring-up, when no other is in flight, and polls for its completion while `waits` returns
    /// true. None if the device did not answer; it is given up then.
    pub fn execute(
        &mut self,
        address: [u8; 8],
        cdb: &Cdb,
        data: Option<(Window, bool)>,
        mut waits: impl FnMut() -> bool,
    ) -> Option<Answer> {
        if self.broken {
            return None;
        }
        self.offer(0, address, cdb, data);
        self.kick();
        for _ in 0..TRIES {
            let taken = loop {
                match self.requests.take() {
                    Taken::Nothing if waits() => crate::hal::relax(),
                    other => break other,
                }
            };
            if !matches!(taken, Taken::Chain { head: 0, .. }) {
                self.give_up();
                return None;
            }
            match self.answer(0).0 {
                Answer::Invalid => {
                    self.give_up();
                    return None;
                }
                Answer::Again { .. } => {
                    self.offer_again(0);
                    self.kick();
                }
                answer => return Some(answer),
            }
        }
        self.give_up();
        None
    }

    /// Whether the device was given up: it answered with invalid data, or not at all.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Starts a request of `unit`. False if no slot is free. `may_be_unknown`: counts as success if the unit does not
    /// support the command.
    pub fn start(
        &mut self,
        unit: usize,
        tag: u64,
        cdb: &Cdb,
        data: Option<(Window, bool)>,
        may_be_unknown: bool,
    ) -> bool {
        let broken = self.broken;
        let state = &mut self.units[unit];
        let Some(index) = state.free.pop() else { return false };
        if broken {
            state.free.push(index);
            state.done.push_back(Completion { tag, result: Err(DiskError::Broken) });
            return true;
        }
        let moves = data.map_or(0, |(data, _)| data.len() as u32);
        state.slots[usize::from(index)] = Work::Request { tag, moves, may_be_unknown, tries: 0 };
        let address = state.address;
        self.offer(unit as u16 * self.share + index, address, cdb, data);
        true
    }

    /// The next completion of a unit.
    pub fn poll(&mut self, unit: usize) -> Option<Completion> {
        if self.units[unit].done.is_empty() && !self.broken {
            self.take_all();
        }
        self.units[unit].done.pop_front()
    }

    /// Whether a completion is waiting for a unit, or in the queue for any unit.
    pub fn pending(&self, unit: usize) -> bool {
        !self.units[unit].done.is_empty() || self.requests.pending()
    }

    /// Takes the completions of all units.
    fn take_all(&mut self) {
        loop {
            match self.requests.take() {
                Taken::Nothing => break,
                // Only first descriptors are ever offered, so the division names the slot.
                Taken::Chain { head, .. } => self.end(head / PARTS),
                Taken::Nonsense => self.give_up(),
            }
        }
        // For commands that are sent again.
        self.kick();
    }

    fn end(&mut self, slot: u16) {
        let (unit, index) = (usize::from(slot / self.share), slot % self.share);
        let (answer, residual) = self.answer(slot);
        let Some(state) = self.units.get_mut(unit) else { return self.give_up() };
        let work = &mut state.slots[usize::from(index)];
        if let Answer::Again { capacity } = answer {
            state.capacity_stale |= capacity;
            if let Work::Request { tries, .. } | Work::Capacity { tries } = work
                && *tries < TRIES
            {
                *tries += 1;
                return self.offer_again(slot);
            }
        }
        match core::mem::replace(work, Work::Free) {
            Work::Free => self.give_up(),
            Work::Capacity { .. } => self.update_capacity(unit, slot, answer),
            Work::Request { tag, moves, may_be_unknown, .. } => {
                let result = match answer {
                    // A short transfer.
                    Answer::Done if moves > 0 && residual > 0 => Err(DiskError::Io),
                    Answer::Done => Ok(()),
                    Answer::Illegal if may_be_unknown => Ok(()),
                    Answer::Illegal => Err(DiskError::Unsupported),
                    Answer::Invalid => Err(DiskError::Broken),
                    Answer::Again { .. } | Answer::Absent | Answer::Failed => Err(DiskError::Io),
                };
                state.free.push(index);
                state.done.push_back(Completion { tag, result });
                if result == Err(DiskError::Broken) {
                    self.give_up();
                }
            }
        }
    }

    /// Resets the device for good, so that it cannot reach the memory of requests in flight. They end as broken.
    fn give_up(&mut self) {
        self.vigil.broke();
        if core::mem::replace(&mut self.broken, true) {
            return;
        }
        // A device that ignores its reset cannot be stopped.
        let _ = reset(&mut *self.transport);
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
        self.take_events();
        let last = self.share - 1;
        let state = &mut self.units[unit];
        let idle = matches!(state.slots[usize::from(last)], Work::Free);
        if !self.broken && idle && core::mem::take(&mut state.capacity_stale) {
            state.slots[usize::from(last)] = Work::Capacity { tries: 0 };
            let (address, slot) = (state.address, unit as u16 * self.share + last);
            let into = self.slot(slot).slice(AT_PARAMETERS, CAPACITY).unwrap_or(Window::empty());
            self.offer(slot, address, &read_capacity(), Some((into, true)));
            self.kick();
        }
        core::mem::take(&mut self.units[unit].changed)
    }

    fn update_capacity(&mut self, unit: usize, slot: u16, answer: Answer) {
        let mut bytes = [0; CAPACITY];
        let read = self.slot(slot).read(AT_PARAMETERS, &mut bytes);
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

    fn offer_events(&mut self) {
        let bus = self.event_buffers.bus_address();
        let Some(events) = &mut self.events else { return };
        for index in 0..events.size() {
            let address = bus + u64::from(index) * EVENT as u64;
            let buffer = Descriptor { address, len: EVENT as u32, device_writes: true, next: None };
            events.describe(index, buffer);
            events.offer(index);
        }
        if events.publish() {
            self.transport.notify(EVENTS);
        }
    }

    fn take_events(&mut self) {
        let Some(events) = &mut self.events else { return };
        while let Taken::Chain { head, .. } = events.take() {
            let mut event = [0; EVENT];
            let read = self.event_buffers.read(usize::from(head) * EVENT, &mut event);
            let (kind, rest) = event.split_at(4);
            let kind = u32::from_le_bytes(kind.try_into().unwrap_or_default());
            let missed = read.is_err() || kind & EVENT_MISSED != 0;
            let of = numbers(rest);
            for unit in &mut self.units {
                let is_its = of.is_some() && of == numbers(&unit.address);
                let reported = kind & !EVENT_MISSED == EVENT_PARAMETERS && is_its;
                unit.capacity_stale |= missed || reported;
            }
            events.offer(head);
        }
        if events.publish() {
            self.transport.notify(EVENTS);
        }
    }

    pub fn set_interrupts(&mut self, wanted: bool) {
        self.transport.acknowledge();
        self.requests.set_interrupts(wanted);
    }

    pub fn wakes(&self) -> bool {
        self.transport.wakes()
    }

    pub fn interrupts(&self) -> u64 {
        self.transport.interrupts()
    }
}
