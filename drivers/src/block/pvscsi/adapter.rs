//! The adapter: its rings, and the memory of each slot.

use super::Error;
use super::registers::AdapterRegisters;
use super::rings::{Completion, Descriptor, Rings};
use super::signal::Signal;
use crate::block::scsi::command::{Answer, Cdb};
use crate::block::scsi::{Adapter, Limits, MOST_ZEROES, PARAMETERS, Place, SENSE, Taken};
use crate::hal::{Arena, Platform, Window};
use crate::pci::{Bars, Function};
use alloc::boxed::Box;

/// Pages of requests: as many as Linux uses by default, 256 requests.
const PAGES: usize = 8;
/// Targets of an adapter (`PVSCSI_MAX_DEVS` of older hosts), and largest transfer.
const LAST_TARGET: u16 = 15;
const MOST_SECTORS: u32 = 2048;

// A slot's memory.
const SLOT: usize = 64;
const AT_SENSE: usize = 0;
const AT_PARAMETERS: usize = 32;

/// Flags of a request: direction of its data.
const NO_DATA: u64 = 1 << 2;
const TO_HOST: u64 = 1 << 3;
const TO_UNIT: u64 = 1 << 4;
const CDB_LENGTH: u64 = 16;
/// Simple queue tag (`MSG_SIMPLE_TAG`).
const SIMPLE: u64 = 0x20;

// Host statuses (`enum HostBusAdapterStatus`).
const SUCCESS: u16 = 0x00;
const LINKED: [u16; 2] = [0x0a, 0x0b];
const UNDERRUN: u16 = 0x0c;
const DATA_RUN: u16 = 0x12;
/// No such target or unit.
const NO_TARGET: [u16; 2] = [0x11, 0x17];
/// The command was aborted, or the bus was reset.
const ABORTED: [u16; 4] = [0x22, 0x23, 0x25, 0x26];
const LAST_STATUS: u16 = 0x34;

/// A PVSCSI adapter.
pub struct Pvscsi {
    registers: AdapterRegisters,
    function: Function<'static>,
    signal: Signal,
    rings: Rings,
    slots: Window,
    zeroes: Window,
    /// The descriptor of each slot's command.
    commands: Box<[Descriptor]>,
    /// The adapter reads the ring by itself while it is busy.
    has_threshold: bool,
    /// Commands that are neither reads nor writes were put into the ring.
    other: bool,
    /// Commands that the adapter has, and how many it had completed at the last check.
    in_flight: u32,
    taken_before: u32,
}

/// Descriptor of a command, without context. `slot` is its memory.
#[inline]
pub fn describe(
    slot: u64,
    place: Place,
    cdb: &Cdb,
    data: Option<(u64, usize, bool)>,
) -> Descriptor {
    let (address, len, flags) = match data {
        None => (0, 0, NO_DATA),
        Some((address, len, true)) => (address, len as u64, TO_HOST),
        Some((address, len, false)) => (address, len as u64, TO_UNIT),
    };
    let [a, b] = [&cdb[..8], &cdb[8..]].map(|half| half.try_into().map_or(0, u64::from_le_bytes));
    // The unit has the address of a single-level LUN: peripheral below 256, flat above (SAM-5, 4.7.7).
    let lun = place.lun | if place.lun > 0xff { 0x4000 } else { 0 };
    let [high, low] = lun.to_be_bytes().map(u64::from);
    [
        0,
        address,
        len,
        slot + AT_SENSE as u64,
        SENSE as u64 | flags << 32,
        a,
        b,
        // Length of the command, eight bytes of LUN, tag, bus, target.
        CDB_LENGTH | high << 8 | low << 16,
        SIMPLE << 8 | u64::from(place.target) << 24,
    ]
}

/// Result of a command, and the number of bytes of `wanted` that were not transferred.
#[inline]
pub fn answer_of(
    done: &Completion,
    wanted: u64,
    sense: impl FnOnce() -> [u8; SENSE],
) -> (Answer, u32) {
    let missing = wanted.saturating_sub(done.bytes) as u32;
    if done.host_status == SUCCESS && done.scsi_status == 0 {
        // Some adapters leave the number at 0 (Linux: `pvscsi_complete_request`).
        return (Answer::Done, if done.bytes == 0 { 0 } else { missing });
    }
    let status = done.scsi_status as u8;
    let carried_out = matches!(done.host_status, SUCCESS | UNDERRUN | DATA_RUN)
        || LINKED.contains(&done.host_status);
    match done.host_status {
        _ if status != 0 && carried_out => {
            let mut sense = sense();
            sense.iter_mut().skip(done.sense as usize).for_each(|byte| *byte = 0);
            (Answer::of_status(status, &sense), 0)
        }
        host if LINKED.contains(&host) => (Answer::Done, 0),
        // An overrun has no missing bytes, and is no success either.
        UNDERRUN | DATA_RUN if wanted > 0 => (Answer::Done, missing.max(1)),
        host if NO_TARGET.contains(&host) => (Answer::Absent, 0),
        host if ABORTED.contains(&host) => (Answer::Again { capacity: false }, 0),
        0..=LAST_STATUS => (Answer::Failed, 0),
        _ => (Answer::Invalid, 0),
    }
}

impl Pvscsi {
    /// Maps the adapter's registers, resets it, and sets its rings up.
    pub fn open(
        function: Function<'static>,
        bars: &Bars,
        platform: &mut dyn Platform,
    ) -> Result<(Self, Limits), Error> {
        function.prepare();
        let registers = AdapterRegisters::map(bars, platform)?;
        registers.reset();
        let rings = Rings::alloc(PAGES, platform.arena());
        let rings = rings.map_err(|bytes| Error::NoMemory { bytes })?;
        let count = rings.entries();
        let alloc = |arena: &mut Arena, bytes: usize| {
            let window = arena.alloc(bytes, 4096).ok_or(Error::NoMemory { bytes })?;
            window.fill(0);
            Ok(window)
        };
        let slots = alloc(platform.arena(), SLOT * count as usize)?;
        let zeroes = alloc(platform.arena(), MOST_ZEROES)?;
        function.enable_bus_master();
        if !registers.set_rings(&rings) {
            registers.reset();
            function.disable();
            return Err(Error::Refused);
        }
        let has_threshold = registers.set_request_call();
        let signal = Signal::open(&function, bars, platform);
        let adapter = Pvscsi {
            registers,
            function,
            signal,
            rings,
            slots,
            zeroes,
            commands: alloc::vec![[0; super::rings::WORDS]; count as usize].into(),
            has_threshold,
            other: false,
            in_flight: 0,
            taken_before: 0,
        };
        let limits = Limits {
            most_sectors: MOST_SECTORS,
            per_unit: count,
            last_target: LAST_TARGET,
            last_lun: 255,
        };
        Ok((adapter, limits))
    }

    #[inline]
    fn memory(&self, slot: u16) -> Window {
        self.slots.slice(usize::from(slot) * SLOT, SLOT).unwrap_or(Window::empty())
    }

    fn sense(&self, slot: u16) -> [u8; SENSE] {
        let mut sense = [0; SENSE];
        // The slot is one of this driver's own.
        let _ = self.memory(slot).read(AT_SENSE, &mut sense);
        sense
    }
}

impl Adapter for Pvscsi {
    fn slots(&self) -> u16 {
        self.commands.len() as u16
    }

    #[inline]
    fn offer(&mut self, slot: u16, place: Place, cdb: &Cdb, data: Option<(Window, bool)>) {
        let data = data.map(|(data, writes)| (data.bus_address(), data.len(), writes));
        let mut descriptor = describe(self.memory(slot).bus_address(), place, cdb, data);
        // A context must not be 0.
        descriptor[0] = u64::from(slot) + 1;
        if let Some(command) = self.commands.get_mut(usize::from(slot)) {
            *command = descriptor;
        }
        self.offer_again(slot);
    }

    #[inline]
    fn offer_again(&mut self, slot: u16) {
        let Some(command) = self.commands.get(usize::from(slot)) else { return };
        // READ (16) and WRITE (16).
        self.other |= !matches!(command[5] as u8, 0x88 | 0x8a);
        self.rings.put(command);
        self.in_flight += 1;
    }

    #[inline]
    fn publish(&mut self) {
        if !self.rings.announce() {
            return;
        }
        if core::mem::take(&mut self.other) {
            self.registers.kick_other();
        } else if !self.has_threshold || self.rings.wants_notice() {
            self.registers.kick_transfers();
        }
    }

    #[inline]
    fn take(&mut self) -> Taken {
        let done = match self.rings.take() {
            Ok(Some(done)) => done,
            Ok(None) => return Taken::Nothing,
            Err(()) => return Taken::Nonsense,
        };
        self.in_flight = self.in_flight.saturating_sub(1);
        let slot = done.context.wrapping_sub(1);
        let Some(command) = self.commands.get(slot as usize).filter(|_| slot <= u16::MAX.into())
        else {
            return Taken::Nonsense;
        };
        let slot = slot as u16;
        let (answer, residual) = answer_of(&done, command[2], || self.sense(slot));
        Taken::Command { slot, answer, residual }
    }

    fn pending(&self) -> bool {
        self.rings.pending()
    }

    fn parameters(&self, slot: u16) -> Window {
        self.memory(slot).slice(AT_PARAMETERS, PARAMETERS).unwrap_or(Window::empty())
    }

    fn zeroes(&self, len: usize) -> Window {
        self.zeroes.slice(0, len).unwrap_or(Window::empty())
    }

    fn scratch(&self) -> Window {
        let len = (self.slots.len() - SLOT).min(4096);
        self.slots.slice(SLOT, len).unwrap_or(Window::empty())
    }

    fn changes(&mut self, _: &mut dyn FnMut(Option<Place>)) {
        // Units report changes by the sense data of their next command.
    }

    fn stands_still(&mut self) -> bool {
        let still = self.in_flight > 0 && self.rings.taken() == self.taken_before;
        self.taken_before = self.rings.taken();
        if still && !self.rings.pending() {
            self.registers.kick_other();
        }
        still
    }

    fn stop(&mut self) {
        self.registers.reset();
        self.function.disable();
        self.in_flight = 0;
    }

    fn is_absent(&self) -> bool {
        // Registers of an adapter that was pulled out read as all ones, or as zeroes under QEMU.
        self.registers.is_absent() || self.function.vendor() == u16::MAX
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.signal.set(wanted, &self.registers);
    }

    fn wakes(&self) -> bool {
        self.signal.wakes()
    }

    fn interrupts(&self) -> u64 {
        self.signal.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::scsi::command::read;

    #[test]
    fn descriptor_has_the_layout_of_the_adapter() {
        let place = Place { target: 3, lun: 0x102 };
        let descriptor = describe(0x1000, place, &read(0x1234, 8), Some((0xabc000, 4096, true)));
        let bytes: alloc::vec::Vec<u8> = descriptor.iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(descriptor[1..4], [0xabc000, 4096, 0x1000]);
        assert_eq!((bytes[32], bytes[36]), (18, 8), "sense length, direction");
        assert_eq!(bytes[40..56], read(0x1234, 8));
        assert_eq!(bytes[56..59], [16, 0x41, 0x02], "length of the command, LUN");
        assert_eq!((bytes[65], bytes[66], bytes[67]), (0x20, 0, 3), "tag, bus, target");
    }

    #[test]
    fn statuses_are_decoded() {
        let answer = |host_status, scsi_status, bytes| {
            let done = Completion { context: 1, bytes, sense: 18, host_status, scsi_status };
            let mut sense = [0; SENSE];
            (sense[0], sense[2], sense[12]) = (0x70, 5, 0x20);
            answer_of(&done, 4096, || sense)
        };
        assert_eq!(answer(0, 0, 0), (Answer::Done, 0));
        assert_eq!(answer(0x12, 0, 1000), (Answer::Done, 3096));
        assert_eq!(answer(0, 0, 1000), (Answer::Done, 3096), "a short transfer");
        assert_eq!(answer(0x12, 0, 5000), (Answer::Done, 1), "an overrun");
        assert_eq!(answer(0x12, 2, 0), (Answer::Illegal, 0));
        assert_eq!(answer(0x16, 2, 0), (Answer::Failed, 0), "the status is not the unit's");
        assert_eq!(answer(0, 2, 0), (Answer::Illegal, 0));
        assert_eq!(answer(0x11, 0, 0), (Answer::Absent, 0));
        assert_eq!(answer(0x25, 0, 0), (Answer::Again { capacity: false }, 0));
        assert_eq!(answer(0x20, 0, 0), (Answer::Failed, 0));
        assert_eq!(answer(0x99, 0, 0), (Answer::Invalid, 0));
    }
}
