//! The command queue: entries, mailboxes, replies and their event.

use super::fields::{be16, be32, be64, put32};
use super::form::{self, Wrong};
use super::segment::{LOG_ENTRIES, LOG_STRIDE};
use super::state::{Stage, State};
use super::{Fault, Mlx5};
use crate::{Machine, Nanoseconds};

/// Result of a command: the output, or a status and its reason.
pub type Reply = Result<Vec<u8>, Wrong>;

/// Status of replies.
pub const BAD_OPERATION: u8 = 2;
pub const BAD_PARAMETER: u8 = 3;
pub const BAD_SYSTEM_STATE: u8 = 4;
pub const BAD_RESOURCE: u8 = 5;
pub const BAD_RESOURCE_STATE: u8 = 9;
pub const BAD_INDEX: u8 = 0xa;
const NO_RESOURCES: u8 = 0xf;
pub const BAD_PAIR_STATE: u8 = 0x10;

const ENTRY: usize = 1 << LOG_STRIDE;
/// Type of entries.
const PCI_COMMAND: u8 = 7;
/// Bytes of a mailbox, and of its data.
const MAILBOX: usize = 576;
const DATA: usize = 512;
/// Longest input and output.
const LONGEST: usize = 1 << 20;
/// Offsets of the inline output and input of an entry. Each has `INLINE` bytes.
const OUTPUT: usize = 0x20;
const INLINE: usize = 16;

/// Delivery status.
const BAD_SIGNATURE: u8 = 1;
const BAD_TOKEN: u8 = 2;
const BAD_BLOCK: u8 = 3;
const BAD_OUTPUT_POINTER: u8 = 4;
const BAD_INPUT_POINTER: u8 = 5;
const BAD_INPUT_LENGTH: u8 = 7;
const BAD_OUTPUT_LENGTH: u8 = 8;
const RESERVED: u8 = 9;
const BAD_TYPE: u8 = 0x10;

/// An executed command whose reply was not written yet.
pub struct Pending {
    due: Nanoseconds,
    /// The reply waits for pages that the firmware has requested.
    waits: bool,
    slot: u32,
    entry: [u8; ENTRY],
    output: Vec<u8>,
    mailboxes: Vec<u64>,
    /// The event queue for the completion event.
    events: Option<u32>,
}

/// A successful reply without output.
pub fn done() -> Reply {
    Ok(vec![0; 16])
}

/// A reply with the number of an object.
pub fn made(number: u32) -> Reply {
    let mut output = vec![0; 16];
    put32(&mut output, 8, number);
    Ok(output)
}

/// A reply with a failure status and its reason.
pub fn refuse(status: u8, why: impl Into<String>) -> Reply {
    Err((status, why.into()))
}

fn exclusive_or(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

impl Mlx5 {
    /// The command doorbell: a bit for each entry.
    pub(super) fn take_commands(&mut self, entries: u32, machine: &mut dyn Machine) {
        if !self.is_ready() || !self.config.is_bus_master() || self.state.queue == 0 {
            return self.complain("a command before the firmware is up");
        }
        for slot in (0..1 << LOG_ENTRIES).filter(|slot| entries >> slot & 1 != 0) {
            self.take_command(slot, machine);
        }
        self.deliver_replies(machine);
    }

    fn take_command(&mut self, slot: u32, machine: &mut dyn Machine) {
        let mut entry = [0; ENTRY];
        let at = self.state.queue + u64::from(slot << LOG_STRIDE);
        if machine.read(at, &mut entry).is_err() {
            return self.complain(format!("no memory at the command queue, {at:#x}"));
        }
        if entry[0x3f] & 1 == 0 {
            return self.complain(format!("command entry {slot} is not the firmware's"));
        }
        if self.state.pending.iter().any(|pending| pending.slot == slot) {
            return self.complain(format!("command entry {slot} is used again before its reply"));
        }
        // No event reports the command that creates the first event queue: its driver polls.
        let events = self.asynchronous(0x0a);
        let mut pending = Pending {
            due: self.now,
            waits: false,
            slot,
            entry,
            output: vec![0; 16],
            mailboxes: Vec::new(),
            events,
        };
        let input = match self.input_of(&mut pending, machine) {
            Ok(input) => input,
            Err((status, why)) => {
                self.complain(format!("command entry {slot}: {why}"));
                return self.reply_later(pending, status);
            }
        };
        let opcode = be16(&input, 0);
        let never = |fault| matches!(fault, Fault::NeverAnswers(of) if of == opcode).then_some(());
        if self.once(never).is_some() {
            return;
        }
        *self.counts.commands.entry(opcode).or_default() += 1;
        // Commands that create objects may need more pages. The firmware requests them only if an event queue takes the
        // event.
        let creates = matches!(opcode, 0x200 | 0x301 | 0x400 | 0x500 | 0x904 | 0x908 | 0x930);
        let creates = creates && self.asynchronous(0x0b).is_some();
        let room = be32(&entry, 0x38) as usize;
        match self.check_and_execute(opcode, &input, room, machine) {
            Ok(output) => pending.output = output,
            Err((status, why)) => {
                self.counts.refused += 1;
                let name = form::of(opcode).map_or("command", |form| form.name);
                if !why.is_empty() {
                    self.complain(format!("{name} {opcode:#x} ({status:#x}): {why}"));
                }
                pending.output[0] = status;
                put32(&mut pending.output, 4, 0x1000 + u32::from(opcode));
            }
        }
        pending.output.resize(room.max(16), 0);
        let asks = |fault| match fault {
            Fault::AsksForPages(count) if creates => Some(count),
            _ => None,
        };
        if let Some(count) = self.once(asks) {
            self.state.stalls = true;
            self.request_pages(count as i32, machine);
        }
        pending.waits = creates && self.state.stalls;
        let delivers = |fault| match fault {
            Fault::Delivers(of, status) if of == opcode => Some(status),
            _ => None,
        };
        let status = self.once(delivers).unwrap_or(0);
        self.reply_later(pending, status);
    }

    fn reply_later(&mut self, mut pending: Pending, status: u8) {
        pending.entry[0x3f] = status << 1;
        let late = |fault: &Fault| if let Fault::Late(by) = fault { Some(*by) } else { None };
        pending.due += self.faults.iter().find_map(late).unwrap_or(0);
        pending.due += self.lateness.as_mut().map_or(0, |lateness| lateness.next_delay());
        if self.has(Fault::OutOfOrder) {
            let odd = self.state.pending.len().is_multiple_of(2);
            pending.due += if odd { 2_000_000 } else { 1_000_000 };
        }
        self.state.pending.push(pending);
    }

    /// Reads the input of an entry, and finds the mailboxes of its output. An error has the delivery status and its
    /// reason.
    fn input_of(&self, pending: &mut Pending, machine: &mut dyn Machine) -> Result<Vec<u8>, Wrong> {
        let entry = pending.entry;
        let refuse = |status, why: String| Err((status, why));
        if entry[0] != PCI_COMMAND {
            return refuse(BAD_TYPE, format!("type {}", entry[0]));
        }
        if be32(&entry, 0) & 0xff_ffff != 0 || entry[0x3e] != 0 || entry[0x3f] != 1 {
            return refuse(RESERVED, "reserved bits".into());
        }
        if exclusive_or(&entry) != 0xff {
            return refuse(BAD_SIGNATURE, "its signature is wrong".into());
        }
        let (length, room) = (be32(&entry, 4) as usize, be32(&entry, 0x38) as usize);
        if !(8..=LONGEST).contains(&length) {
            return refuse(BAD_INPUT_LENGTH, format!("{length} bytes of input"));
        }
        if !(8..=LONGEST).contains(&room) {
            return refuse(BAD_OUTPUT_LENGTH, format!("{room} bytes of output"));
        }
        let (first, output) = (be64(&entry, 8), be64(&entry, 0x30));
        if first & 0x1ff != 0 {
            return refuse(BAD_INPUT_POINTER, format!("a mailbox at {first:#x}"));
        }
        if output & 0x1ff != 0 {
            return refuse(BAD_OUTPUT_POINTER, format!("a mailbox at {output:#x}"));
        }
        let token = entry[0x3c];
        let mut input = entry[INLINE..2 * INLINE].to_vec();
        let boxes = walk(first, length.saturating_sub(INLINE), token, machine)?;
        boxes.iter().for_each(|(_, bytes)| input.extend_from_slice(&bytes[..DATA]));
        if input.len() < length {
            return refuse(BAD_INPUT_LENGTH, format!("mailboxes end before {length:#x} bytes"));
        }
        input.truncate(length);
        let boxes = walk(output, room.saturating_sub(INLINE), token, machine)?;
        if boxes.len() * DATA + INLINE < room {
            return refuse(BAD_OUTPUT_LENGTH, format!("mailboxes end before {room:#x} bytes"));
        }
        pending.mailboxes = boxes.into_iter().map(|(at, _)| at).collect();
        Ok(input)
    }

    fn check_and_execute(
        &mut self,
        opcode: u16,
        input: &[u8],
        room: usize,
        machine: &mut dyn Machine,
    ) -> Reply {
        let fails = |fault| match fault {
            Fault::Fails(of, status) if of == opcode => Some(status),
            _ => None,
        };
        if let Some(status) = self.once(fails) {
            return refuse(status, "");
        }
        let count = self.state.command_counts.entry(opcode).or_default();
        *count += 1;
        let (count, faults) = (*count, &self.faults);
        if faults
            .iter()
            .any(|fault| matches!(fault, Fault::Few(of, most) if *of == opcode && count > *most))
        {
            return refuse(NO_RESOURCES, "");
        }
        let Some(form) = form::of(opcode) else {
            return refuse(BAD_OPERATION, "it is unknown");
        };
        form::check(form, input, room)?;
        // Only start-up commands work before INIT_HCA, and only their counterparts after TEARDOWN_HCA.
        let early = matches!(opcode, 0x100..=0x10b | 0x805);
        let allowed = match self.state.stage {
            Stage::Off => matches!(opcode, 0x104 | 0x10a | 0x10b | 0x105),
            Stage::Enabled | Stage::TornDown => early,
            Stage::Running => true,
        };
        if !allowed {
            return refuse(BAD_SYSTEM_STATE, format!("in stage {:?}", self.state.stage));
        }
        self.execute(opcode, input, room, machine)
    }

    fn execute(
        &mut self,
        opcode: u16,
        input: &[u8],
        room: usize,
        machine: &mut dyn Machine,
    ) -> Reply {
        match opcode {
            0x100 => self.query_capabilities(input),
            0x109 => self.set_capabilities(input),
            0x101 => self.query_adapter(),
            0x102..=0x105 | 0x10a | 0x10b | 0x10d => self.start_or_stop(opcode, input),
            0x107 => self.query_pages(input),
            0x108 => self.manage_pages(input, machine),
            0x200..=0x203 => self.key_command(opcode, input),
            0x301..=0x303 => self.event_queue_command(opcode, input, machine),
            0x400..=0x403 => self.completion_queue_command(opcode, input, machine),
            0x50d => management_datagram(input),
            0x500..=0x50e => self.queue_pair_command(opcode, input, machine),
            0x750..=0x755 | 0x760 | 0x761 | 0x765 | 0x76f | 0x770 | 0x773 => {
                self.vport_command(opcode, input, room)
            }
            0x805 => self.access_register(input, room),
            0x829 | 0x82b => self.switch_command(opcode, input),
            0x822 | 0x826 => self.congestion_command(opcode, input),
            0x904..=0x90a => self.work_queue_command(opcode, input),
            0x92f..=0x93c => self.steering_command(opcode, input),
            _ => self.object_command(opcode, input),
        }
    }

    /// Commands that start or stop the function.
    fn start_or_stop(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let function = be32(input, 8);
        match opcode {
            0x104 if self.state.stage != Stage::Off => {
                return refuse(BAD_SYSTEM_STATE, "it is enabled");
            }
            0x104 | 0x105 if function != 0 => {
                return refuse(BAD_PARAMETER, format!("function {function:#x}"));
            }
            0x104 => self.state.stage = Stage::Enabled,
            0x105 => {
                let pages = self.state.pages.len();
                if pages > 0 {
                    self.complain(format!("DISABLE_HCA, and {pages} pages were not reclaimed"));
                }
                self.state.stage = Stage::Off;
            }
            0x102 => {
                let (pages, [boot, init]) = (self.state.pages.len(), self.pages_to_start());
                if self.state.issi != 1 {
                    return refuse(BAD_SYSTEM_STATE, "only ISSI 1 is modelled");
                }
                if pages < (boot + init) as usize {
                    return refuse(BAD_SYSTEM_STATE, format!("{pages} pages are not enough"));
                }
                self.state.stage = Stage::Running;
                self.state.wanted = self.settings.pages[2] as i32;
            }
            0x103 => {
                if self.state.stage != Stage::Running {
                    return refuse(BAD_SYSTEM_STATE, "there is nothing to tear down");
                }
                let left = self.left();
                if be16(input, 10) == 0 && !left.is_empty() {
                    self.complain(format!("TEARDOWN_HCA with {left:?}"));
                }
                let new = State::new(&self.settings, self.now);
                let old = std::mem::replace(&mut self.state, new);
                self.state.tear_down(old);
            }
            0x10a => {
                let mut output = vec![0; 0x70];
                put32(&mut output, 0x6c, 3);
                return Ok(output);
            }
            0x10b => match be16(input, 10) {
                issi @ 0..=1 => self.state.issi = issi,
                issi => return refuse(BAD_PARAMETER, format!("ISSI {issi}")),
            },
            _ => {}
        }
        done()
    }

    /// When the next reply is due.
    pub(super) fn next_reply(&self) -> Option<Nanoseconds> {
        let ready = self.state.pending.iter().filter(|pending| !self.is_held(pending));
        ready.map(|pending| pending.due).min()
    }

    fn is_held(&self, pending: &Pending) -> bool {
        pending.waits && self.state.stalls
    }

    /// Writes the replies that are due.
    pub(super) fn deliver_replies(&mut self, machine: &mut dyn Machine) {
        let mut completed: Vec<(u32, u32)> = Vec::new();
        loop {
            let mut due: Vec<(Nanoseconds, usize)> = Vec::new();
            for (index, pending) in self.state.pending.iter().enumerate() {
                if pending.due <= self.now && !self.is_held(pending) {
                    due.push((pending.due, index));
                }
            }
            let Some(&(_, index)) = due.iter().min() else { break };
            let pending = self.state.pending.remove(index);
            self.write_reply(&pending, machine);
            if let Some(queue) = pending.events {
                match completed.iter_mut().find(|(of, _)| *of == queue) {
                    Some((_, entries)) => *entries |= 1 << pending.slot,
                    None => completed.push((queue, 1 << pending.slot)),
                }
            }
        }
        for (queue, entries) in completed {
            let mut data = [0; 28];
            put32(&mut data, 0, entries);
            self.event(queue, 0x0a, 0, &data, machine);
        }
    }

    fn write_reply(&mut self, pending: &Pending, machine: &mut dyn Machine) {
        let Pending { mut entry, .. } = *pending;
        entry[OUTPUT..OUTPUT + INLINE].copy_from_slice(&pending.output[..INLINE]);
        let parts = pending.output[INLINE..].chunks(DATA);
        let mut fine = true;
        for (at, part) in pending.mailboxes.iter().zip(parts) {
            fine &= machine.write(*at, part).is_ok();
        }
        entry[0x3d] = 0;
        entry[0x3d] = !exclusive_or(&entry);
        let at = self.state.queue + u64::from(pending.slot << LOG_STRIDE);
        fine &= machine.write(at, &entry[..0x3c]).is_ok();
        fine &= machine.write(at + 0x3c, &entry[0x3c..]).is_ok();
        if !fine {
            self.complain(format!("no memory for the reply of command entry {}", pending.slot));
        }
    }
}

/// The reply to a management datagram: unsupported attribute.
fn management_datagram(input: &[u8]) -> Reply {
    let Some(datagram) = input.get(16..0x110) else {
        return refuse(0x50, "no management datagram");
    };
    let mut output = vec![0; 16];
    output.extend_from_slice(datagram);
    // GetResp; status 3: an unsupported attribute.
    (output[16 + 3], output[16 + 4], output[16 + 5]) = (0x81, 0, 0x0c);
    Ok(output)
}

/// The chain of mailboxes from `first` on that holds this many bytes. An error has the status and its reason.
fn walk(
    first: u64,
    length: usize,
    token: u8,
    machine: &mut dyn Machine,
) -> Result<Vec<(u64, [u8; MAILBOX])>, Wrong> {
    let mut all = Vec::new();
    let mut at = first;
    while all.len() * DATA < length && at != 0 {
        let mut bytes = [0; MAILBOX];
        if machine.read(at, &mut bytes).is_err() {
            return Err((BAD_INPUT_POINTER, format!("no memory at the mailbox {at:#x}")));
        }
        let number = be32(&bytes, 0x238);
        if number as usize != all.len() {
            return Err((BAD_BLOCK, format!("mailbox {} has block number {number}", all.len())));
        }
        if bytes[0x23d] != token {
            return Err((BAD_TOKEN, format!("mailbox {number} has another token")));
        }
        if bytes[0x200..0x230].iter().any(|byte| *byte != 0) || bytes[0x23c] != 0 {
            return Err((RESERVED, format!("mailbox {number} has reserved bits")));
        }
        all.push((at, bytes));
        at = be64(&bytes, 0x230);
        if at & 0x1ff != 0 {
            return Err((BAD_INPUT_POINTER, format!("a mailbox at {at:#x}")));
        }
    }
    Ok(all)
}
