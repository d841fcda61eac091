//! Completion queues.

use super::buffer::Buffer;
use super::command::{BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, made, refuse};
use super::fields::{be32, get, put32, put64, set};
use super::{Fault, Mlx5};
use crate::{Machine, Nanoseconds};

/// Opcodes of completions. `NEVER_WRITTEN` marks an entry that software initialised.
pub const REQUEST_DONE: u8 = 0;
pub const WRITE_IMMEDIATE: u8 = 1;
pub const SEND: u8 = 2;
pub const SEND_IMMEDIATE: u8 = 3;
pub const SEND_INVALIDATE: u8 = 4;
pub const REQUEST_FAILED: u8 = 0xd;
pub const RECEIVE_FAILED: u8 = 0xe;
const NEVER_WRITTEN: u8 = 0xf;

/// Event type of a failed queue, and its syndrome for an overrun.
const FAILED: u8 = 4;
const OVERRUN: u8 = 1;

/// Completions for which a queue is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Solicited,
    Any,
}

/// A completion queue.
#[derive(Debug, Default)]
pub struct CompletionQueue {
    buffer: Buffer,
    log: u32,
    /// Bytes of an entry.
    size: u64,
    producer: u32,
    /// The number after the last solicited completion.
    solicited: u32,
    /// The event queue for its events.
    pub events: u32,
    uar: u32,
    armed: Option<Arm>,
    record: u64,
    collapsed: bool,
    overrun_ignored: bool,
    failed: bool,
    context: Vec<u8>,
    /// Time of the last event.
    reported_at: Nanoseconds,
    /// `producer` at the last event.
    reported: u32,
    /// When the event that moderation delays is due.
    due: Option<Nanoseconds>,
}

impl CompletionQueue {
    /// When the latest completion's event is due. Moderation has a period in microseconds from the last event or from
    /// the last completion, and a number of completions that ends it early.
    fn due(&self, now: Nanoseconds) -> Nanoseconds {
        let period = 1000 * get(&self.context, 0x84, 12);
        let most = get(&self.context, 0x90, 16) as u32;
        let all = most > 0 && self.producer.wrapping_sub(self.reported) >= most;
        match get(&self.context, 0xf, 2) {
            _ if all || period == 0 => now,
            0 => self.reported_at + period,
            _ => now + period,
        }
    }
}

impl Mlx5 {
    pub(super) fn completion_queue_command(
        &mut self,
        opcode: u16,
        input: &[u8],
        machine: &mut dyn Machine,
    ) -> Reply {
        let number = be32(input, 8) & 0xff_ffff;
        if opcode == 0x400 {
            return self.create_completion_queue(input, machine);
        }
        let Some(queue) = self.state.completion_queues.get_mut(&number) else {
            return refuse(BAD_RESOURCE, format!("completion queue {number:#x}"));
        };
        match opcode {
            0x401 => {
                if self.uses_completion_queue(number) {
                    let why = format!("completion queue {number:#x} is in use");
                    return refuse(BAD_RESOURCE_STATE, why);
                }
                self.state.completion_queues.remove(&number);
                done()
            }
            0x402 => {
                let mut output = vec![0; 16];
                set(&mut queue.context, 0x168, 24, u64::from(queue.producer));
                output.extend_from_slice(&queue.context);
                output.resize(0x110, 0);
                Ok(output)
            }
            _ if input[7] == 1 => refuse(BAD_PARAMETER, "queues cannot be resized"),
            // Moderation: period, number of completions, start of the period.
            _ => {
                let selected = be32(input, 0xc);
                for (bit, first, width) in [(0, 0x84, 12), (1, 0x90, 16), (4, 0xf, 2)] {
                    if selected >> bit & 1 == 1 {
                        let value = get(&input[0x10..], first, width);
                        set(&mut queue.context, first, width, value);
                    }
                }
                done()
            }
        }
    }

    fn uses_completion_queue(&self, number: u32) -> bool {
        let state = &self.state;
        let mut queues = state.send_queues.values().chain(state.receive_queues.values());
        let mut pairs = state.queue_pairs.values();
        queues.any(|queue| queue.completions == number)
            || pairs.any(|pair| {
                pair.send_completions() == number || pair.receive_completions() == number
            })
    }

    fn create_completion_queue(&mut self, input: &[u8], machine: &mut dyn Machine) -> Reply {
        let context = &input[0x10..0x50];
        let log = get(context, 0x63, 5) as u32;
        let size = match get(context, 8, 3) {
            0 => 64,
            1 => 128,
            size => return refuse(BAD_PARAMETER, format!("size of entries {size}")),
        };
        let pages = Buffer::new(&input[0x110..], get(context, 0xc3, 5), get(context, 0x54, 6));
        let Some(buffer) = pages.filter(|buffer| log <= 22 && buffer.holds(size << log)) else {
            return refuse(BAD_PARAMETER, format!("memory for 2^{log} entries"));
        };
        let (uar, events) = (get(context, 0x68, 24) as u32, get(context, 0xa0, 32) as u32);
        self.check_uar(uar)?;
        if !self.state.event_queues.contains_key(&events) {
            return refuse(BAD_RESOURCE, format!("event queue {events}"));
        }
        if get(context, 0x11, 1) == 1 {
            return refuse(BAD_PARAMETER, "compressed completions are not supported");
        }
        let record = get(context, 0x1c0, 64);
        if !record.is_multiple_of(8) || machine.read(record, &mut [0; 8]).is_err() {
            return refuse(BAD_PARAMETER, format!("a doorbell record at {record:#x}"));
        }
        for index in 0..1u64 << log {
            let mut last = [0];
            let read = buffer.at(index * size + size - 1).map(|at| machine.read(at, &mut last));
            if !matches!(read, Some(Ok(()))) || last[0] >> 4 != NEVER_WRITTEN {
                return refuse(BAD_PARAMETER, format!("entry {index} is not initialised"));
            }
        }
        let queue = CompletionQueue {
            buffer,
            log,
            size,
            events,
            uar,
            record,
            collapsed: get(context, 0xb, 1) == 1,
            overrun_ignored: get(context, 0xe, 1) == 1,
            context: context.to_vec(),
            ..CompletionQueue::default()
        };
        let number = self.state.number(0x400, 0x400);
        self.state.completion_queues.insert(number, queue);
        made(number)
    }

    /// Handles a completion queue doorbell.
    pub(super) fn arm_completion_queue(
        &mut self,
        page: u32,
        number: u32,
        value: u32,
        machine: &mut dyn Machine,
    ) {
        let Some(queue) = self.state.completion_queues.get_mut(&(number & 0xff_ffff)) else {
            return self.complain(format!("completion queue {number:#x} is armed"));
        };
        let wrong = queue.uar != page;
        let consumer = value & 0xff_ffff;
        queue.armed = Some(if value >> 24 & 1 == 1 { Arm::Solicited } else { Arm::Any });
        let behind = |producer: u32| producer.wrapping_sub(consumer) & 0xff_ffff;
        let any = behind(queue.producer) != 0;
        let solicited = any && (1..1 << 23).contains(&behind(queue.solicited));
        if wrong {
            self.complain(format!("completion queue {number:#x} is armed on page {page:#x}"));
        }
        if any {
            self.notify_completion(number, solicited, machine);
        }
    }

    fn notify_completion(&mut self, number: u32, solicited: bool, machine: &mut dyn Machine) {
        let now = self.now;
        let Some(queue) = self.state.completion_queues.get_mut(&number) else { return };
        match queue.armed {
            None => return,
            Some(Arm::Solicited) if !solicited => return,
            Some(_) => {}
        }
        let due = queue.due(now);
        if due > now {
            if queue.due.replace(due).is_none() {
                self.state.moderated.push(number);
            }
            return;
        }
        self.notify_now(number, machine);
    }

    /// Sends the delayed events that are due. Returns the time of the next delayed event.
    pub(super) fn notify_moderated(&mut self, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let now = self.now;
        let due = |mlx5: &Self, number: &u32| mlx5.state.completion_queues.get(number)?.due;
        for number in std::mem::take(&mut self.state.moderated) {
            match due(self, &number) {
                Some(at) if at > now => self.state.moderated.push(number),
                Some(_) => self.notify_now(number, machine),
                None => {}
            }
        }
        self.state.moderated.iter().filter_map(|number| due(self, number)).min()
    }

    fn notify_now(&mut self, number: u32, machine: &mut dyn Machine) {
        let Some(queue) = self.state.completion_queues.get_mut(&number) else { return };
        (queue.due, queue.armed, queue.reported_at, queue.reported) =
            (None, None, self.now, queue.producer);
        let events = queue.events;
        let mut data = [0; 28];
        put32(&mut data, 24, number);
        self.event(events, 0, 0, &data, machine);
    }

    /// Appends a completion, and fills in its owner bit and time stamp.
    pub(super) fn complete(
        &mut self,
        number: u32,
        mut entry: [u8; 64],
        solicited: bool,
        machine: &mut dyn Machine,
    ) {
        let (wrong_owner, now) = (self.has(Fault::OwnerBit), self.now);
        let Some(queue) = self.state.completion_queues.get_mut(&number) else { return };
        if queue.failed {
            return;
        }
        let mut record = [0; 4];
        let read = machine.read(queue.record, &mut record);
        let waiting = queue.producer.wrapping_sub(u32::from_be_bytes(record)) & 0xff_ffff;
        let full = waiting >= 1 << queue.log && !queue.collapsed && !queue.overrun_ignored;
        if full || read.is_err() {
            queue.failed = true;
            self.complain(format!("completion queue {number:#x} is full"));
            let Some(events) = self.asynchronous(FAILED) else { return };
            let mut data = [0; 28];
            put32(&mut data, 0, number);
            data[11] = OVERRUN;
            return self.event(events, FAILED, 0, &data, machine);
        }
        let owner = (queue.producer >> queue.log & 1) as u8 ^ u8::from(wrong_owner);
        entry[63] = entry[63] & 0xfe | owner;
        // An error has its syndrome in place of the time stamp.
        if entry[63] >> 4 < REQUEST_FAILED {
            put64(&mut entry, 0x30, now);
        }
        let mask = (1 << queue.log) - 1;
        let index = if queue.collapsed { 0 } else { queue.producer & mask };
        let at = queue.buffer.at(u64::from(index) * queue.size + queue.size - 64).unwrap_or(0);
        queue.producer = queue.producer.wrapping_add(1);
        if solicited {
            queue.solicited = queue.producer;
        }
        let written = machine.write(at, &entry[..60]);
        if written.and_then(|()| machine.write(at + 60, &entry[60..])).is_err() {
            self.complain(format!("no memory for a completion at {at:#x}"));
        }
        self.notify_completion(number, solicited, machine);
    }
}
