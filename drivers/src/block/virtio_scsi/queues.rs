//! The queues of a virtio SCSI controller as a SCSI host adapter.

use crate::block::scsi::command::{Answer, Cdb};
use crate::block::scsi::{self, Adapter, Limits, MOST_ZEROES, PARAMETERS, Place, SENSE};
use crate::hal::{Arena, Window};
use crate::virtio::{Descriptor, Error, Live, Ring, Setup, Taken, Transport, read_config, reset};
use alloc::boxed::Box;

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
const AT_PARAMETERS: usize = 192;

// struct virtio_scsi_req_cmd (5.6.6.1): what the device reads, and what it writes.
pub const HEADER: usize = 51;
const HEADER_ID: usize = 8;
pub const HEADER_CDB: usize = 19;
pub const ANSWER: usize = 108;
const ANSWER_SENSE_LENGTH: usize = 0;
const ANSWER_RESIDUAL: usize = 4;
pub const ANSWER_STATUS: usize = 10;
const ANSWER_SENSE: usize = 12;

// struct virtio_scsi_event (5.6.6.3).
const EVENT: usize = 16;
const EVENT_MISSED: u32 = 1 << 31;
const EVENT_PARAMETERS: u32 = 3;

// Responses of virtio (5.6.6.1).
const RESPONSE_OK: u8 = 0;
const RESPONSE_ABORTED: u8 = 2;
const RESPONSE_BAD_TARGET: u8 = 3;
const RESPONSE_RESET: u8 = 4;
const RESPONSE_BUSY: u8 = 5;
const RESPONSE_LAST: u8 = 9;
/// Preset response: still there if the device wrote none.
pub const RESPONSE_NONE: u8 = 0xff;

/// Decodes virtio's response, the SCSI status and the sense data.
pub fn answer_of(response: u8, status: u8, sense: &[u8]) -> Answer {
    match response {
        RESPONSE_OK => Answer::of_status(status, sense),
        RESPONSE_ABORTED | RESPONSE_RESET | RESPONSE_BUSY => Answer::Again { capacity: false },
        RESPONSE_BAD_TARGET => Answer::Absent,
        1..=RESPONSE_LAST => Answer::Failed,
        _ => Answer::Invalid,
    }
}

/// The sense data in the answer at `at`, as long as the device says: what follows is of an earlier command.
pub fn sense_of(memory: Window, at: usize) -> [u8; SENSE] {
    let mut sense = [0; SENSE];
    let len = memory.load32(at + ANSWER_SENSE_LENGTH) as usize;
    // The answer is memory of this driver.
    let _ = memory.read(at + ANSWER_SENSE, &mut sense);
    sense.iter_mut().skip(len).for_each(|byte| *byte = 0);
    sense
}

/// Address of a unit in a request's header (5.6.6.1).
pub fn address(place: Place) -> [u8; 8] {
    let [high, low] = place.lun.to_be_bytes();
    [1, place.target, high | 0x40, low, 0, 0, 0, 0]
}

/// The unit of an address in either form for single-level LUNs: flat space, or peripheral, which QEMU uses in events
/// for LUNs below 256.
fn place_of(address: &[u8]) -> Option<Place> {
    let &[1, target, high, low, ..] = address else { return None };
    let lun = u16::from_be_bytes([high & 0x3f, low]);
    matches!(high >> 6, 0 | 1).then_some(Place { target, lun })
}

/// The queues of a virtio SCSI controller, and memory for each slot.
pub struct Queues {
    transport: Live,
    requests: Ring,
    /// Event queue. Without it units report changes by the sense data of the next request.
    events: Option<Ring>,
    _control: Ring,
    slots: Window,
    event_buffers: Window,
    zeroes: Window,
}

impl Queues {
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
        let mut queues =
            Queues { transport, requests, events, _control: control, slots, event_buffers, zeroes };
        queues.offer_events();
        Ok((queues, limits))
    }

    fn slot(&self, slot: u16) -> Window {
        self.slots.slice(usize::from(slot) * SLOT, SLOT).unwrap_or(Window::empty())
    }

    fn describe(&mut self, slot: u16, place: Place, cdb: &Cdb, data: Option<(Window, bool)>) {
        let window = self.slot(slot);
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&address(place));
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
    }

    /// Result of the command in `slot`, and the residual: bytes that were not transferred.
    fn answer(&self, slot: u16) -> (Answer, u32) {
        let window = self.slot(slot);
        let [status, response] = window.load16(AT_ANSWER + ANSWER_STATUS).to_le_bytes();
        let residual = window.load32(AT_ANSWER + ANSWER_RESIDUAL);
        let sense = if status == 0 { [0; SENSE] } else { sense_of(window, AT_ANSWER) };
        (answer_of(response, status, &sense), residual)
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
}

impl Adapter for Queues {
    fn slots(&self) -> u16 {
        self.requests.size() / PARTS
    }

    fn offer(&mut self, slot: u16, place: Place, cdb: &Cdb, data: Option<(Window, bool)>) {
        self.describe(slot, place, cdb, data);
        self.offer_again(slot);
    }

    fn offer_again(&mut self, slot: u16) {
        let none = u16::from_le_bytes([0, RESPONSE_NONE]);
        self.slot(slot).store16(AT_ANSWER + ANSWER_STATUS, none);
        self.requests.offer(slot * PARTS);
    }

    fn publish(&mut self) {
        if self.requests.publish() {
            self.transport.notify(REQUESTS);
        }
    }

    fn take(&mut self) -> scsi::Taken {
        match self.requests.take() {
            Taken::Nothing => scsi::Taken::Nothing,
            // Only first descriptors are ever offered, so the division names the slot.
            Taken::Chain { head, .. } => {
                let slot = head / PARTS;
                let (answer, residual) = self.answer(slot);
                scsi::Taken::Command { slot, answer, residual }
            }
            Taken::Nonsense => scsi::Taken::Nonsense,
        }
    }

    fn pending(&self) -> bool {
        self.requests.pending()
    }

    fn parameters(&self, slot: u16) -> Window {
        self.slot(slot).slice(AT_PARAMETERS, PARAMETERS).unwrap_or(Window::empty())
    }

    fn zeroes(&self, len: usize) -> Window {
        self.zeroes.slice(0, len).unwrap_or(Window::empty())
    }

    fn scratch(&self) -> Window {
        let len = (self.slots.len() - SLOT).min(4096);
        self.slots.slice(SLOT, len).unwrap_or(Window::empty())
    }

    fn changes(&mut self, changed: &mut dyn FnMut(Option<Place>)) {
        let Some(events) = &mut self.events else { return };
        while let Taken::Chain { head, .. } = events.take() {
            let mut event = [0; EVENT];
            let read = self.event_buffers.read(usize::from(head) * EVENT, &mut event);
            let (kind, rest) = event.split_at(4);
            let kind = u32::from_le_bytes(kind.try_into().unwrap_or_default());
            if read.is_err() || kind & EVENT_MISSED != 0 {
                changed(None);
            } else if kind == EVENT_PARAMETERS
                && let Some(place) = place_of(rest)
            {
                changed(Some(place));
            }
            events.offer(head);
        }
        if events.publish() {
            self.transport.notify(EVENTS);
        }
    }

    fn stands_still(&mut self) -> bool {
        let still = self.requests.stands_still();
        if still {
            self.transport.notify(REQUESTS);
        }
        still
    }

    fn stop(&mut self) {
        // A device that ignores its reset cannot be stopped.
        let _ = reset(&mut *self.transport);
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.transport.acknowledge();
        self.requests.set_interrupts(wanted);
    }

    fn wakes(&self) -> bool {
        self.transport.wakes()
    }

    fn interrupts(&self) -> u64 {
        self.transport.interrupts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_decoded() {
        let again = Answer::Again { capacity: false };
        for (response, status, expected) in [
            (0, 0, Answer::Done),
            (3, 0, Answer::Absent),
            (4, 0, again),
            (9, 0, Answer::Failed),
            (10, 0, Answer::Invalid),
            (RESPONSE_NONE, 0, Answer::Invalid),
        ] {
            assert_eq!(answer_of(response, status, &[0; 18]), expected, "{response}");
        }
    }

    #[test]
    fn sense_data_of_an_earlier_command_is_not_used() {
        let memory = Arena::on_heap(1 << 16).alloc(4096, 64).unwrap();
        memory.write(ANSWER_SENSE, &[0x70, 0, 1]).unwrap();
        memory.store32(ANSWER_SENSE_LENGTH, 18);
        assert_eq!(answer_of(0, 2, &sense_of(memory, 0)), Answer::Done, "recovered");
        memory.store32(ANSWER_SENSE_LENGTH, 0);
        assert_eq!(answer_of(0, 2, &sense_of(memory, 0)), Answer::Failed);
    }

    #[test]
    fn address_in_either_form_names_its_unit() {
        let place = Place { target: 7, lun: 0x1234 };
        assert_eq!(place_of(&address(place)), Some(place));
        assert_eq!(place_of(&[1, 7, 0, 5, 0, 0, 0, 0]), Some(Place { target: 7, lun: 5 }));
        assert_eq!(place_of(&[1, 7, 0xc0, 5, 0, 0, 0, 0]), None);
        assert_eq!(place_of(&[0, 7, 0, 5, 0, 0, 0, 0]), None);
    }
}
