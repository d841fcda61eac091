//! Event queues.

use super::Mlx5;
use super::buffer::Buffer;
use super::command::{BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, made, refuse};
use super::fields::{be32, be64, get, put32};
use crate::Machine;

/// Bytes of an entry.
const ENTRY: usize = 64;
/// Event type of a page request.
const PAGES: u8 = 0x0b;
/// Event type of a port change. Its sub-types are the port's states.
const PORT: u8 = 9;
const DOWN: u8 = 1;
const UP: u8 = 4;

/// An event queue.
#[derive(Debug, Default)]
pub struct EventQueue {
    buffer: Buffer,
    log: u32,
    producer: u32,
    consumer: u32,
    vector: u32,
    uar: u32,
    armed: bool,
    mask: u64,
    context: Vec<u8>,
}

impl Mlx5 {
    /// The event queue that is subscribed to this type.
    pub(super) fn asynchronous(&self, kind: u8) -> Option<u32> {
        let wants = |queue: &EventQueue| queue.mask >> kind & 1 != 0;
        self.state.event_queues.iter().find(|(_, queue)| wants(queue)).map(|(number, _)| *number)
    }

    pub(super) fn event_queue_command(
        &mut self,
        opcode: u16,
        input: &[u8],
        machine: &mut dyn Machine,
    ) -> Reply {
        let number = be32(input, 8) & 0xff;
        match opcode {
            0x301 => self.create_event_queue(input, machine),
            0x302 => {
                let uses = |queue: &&_| queue_of(queue) == number;
                if self.state.completion_queues.values().any(|queue| uses(&queue)) {
                    return refuse(
                        BAD_RESOURCE_STATE,
                        format!("completion queues use event queue {number}"),
                    );
                }
                match self.state.event_queues.remove(&number) {
                    Some(_) => done(),
                    None => refuse(BAD_RESOURCE, format!("event queue {number}")),
                }
            }
            _ => {
                let Some(queue) = self.state.event_queues.get(&number) else {
                    return refuse(BAD_RESOURCE, format!("event queue {number}"));
                };
                let mut output = vec![0; 16];
                output.extend_from_slice(&queue.context);
                output.resize(0x110, 0);
                Ok(output)
            }
        }
    }

    fn create_event_queue(&mut self, input: &[u8], machine: &mut dyn Machine) -> Reply {
        let context = &input[0x10..0x50];
        let log = get(context, 0x63, 5) as u32;
        let pages = Buffer::new(&input[0x110..], get(context, 0xc3, 5), get(context, 0x54, 6));
        let entries = (ENTRY as u64) << log;
        let Some(buffer) = pages.filter(|buffer| log <= 22 && buffer.holds(entries)) else {
            return refuse(BAD_PARAMETER, format!("memory for 2^{log} entries"));
        };
        let (uar, vector) = (get(context, 0x68, 24) as u32, get(context, 0xb4, 12) as u32);
        if vector >= self.settings.vectors.into() {
            return refuse(BAD_PARAMETER, format!("vector {vector}"));
        }
        self.check_uar(uar)?;
        for index in 0..1u64 << log {
            let mut owner = [0];
            let read = buffer.at(index * 64 + 63).map(|at| machine.read(at, &mut owner));
            if !matches!(read, Some(Ok(()))) || owner[0] & 1 == 0 {
                return refuse(BAD_PARAMETER, format!("entry {index} is not the device's"));
            }
        }
        // Further words have event types from 64 on. The model raises none of them.
        let mask = be64(input, 0x58);
        let context = context.to_vec();
        let queue = EventQueue { buffer, log, vector, uar, mask, context, ..Default::default() };
        let number = self.state.number(0x301, 4);
        self.state.event_queues.insert(number, queue);
        if mask >> PAGES & 1 == 1 && self.state.wanted > 0 {
            let wanted = std::mem::take(&mut self.state.wanted);
            self.request_pages(wanted, machine);
        }
        made(number)
    }

    /// Handles an event queue doorbell.
    pub(super) fn update_event_queue(
        &mut self,
        page: u32,
        value: u32,
        arm: bool,
        machine: &mut dyn Machine,
    ) {
        let number = value >> 24;
        let Some(queue) = self.state.event_queues.get_mut(&number) else {
            return self.complain(format!("event queue {number} is rung"));
        };
        let ahead = queue.producer.wrapping_sub(value) & 0xff_ffff;
        let wrong = queue.uar != page || ahead > 1 << queue.log;
        queue.consumer = queue.producer.wrapping_sub(ahead);
        queue.armed = arm && ahead == 0;
        let vector = queue.vector;
        if wrong {
            self.complain(format!("event queue {number} is rung on page {page:#x}: {value:#x}"));
        }
        if arm && ahead > 0 {
            self.interrupt(vector, machine);
        }
    }

    /// Appends an event.
    pub(super) fn event(
        &mut self,
        number: u32,
        kind: u8,
        sub: u8,
        data: &[u8; 28],
        machine: &mut dyn Machine,
    ) {
        let Some(queue) = self.state.event_queues.get_mut(&number) else { return };
        if queue.producer.wrapping_sub(queue.consumer) >= 1 << queue.log {
            return self.complain(format!("event queue {number} is full"));
        }
        let mut entry = [0; ENTRY];
        (entry[1], entry[3]) = (kind, sub);
        entry[0x20..0x3c].copy_from_slice(data);
        let index = queue.producer & ((1 << queue.log) - 1);
        entry[63] = (queue.producer >> queue.log & 1) as u8;
        let at = queue.buffer.at(u64::from(index) << 6).unwrap_or(0);
        // The signature makes the XOR of all bytes 0xff.
        entry[0x3e] = 0;
        let written = machine.write(at, &entry[..60]);
        let written = written.and_then(|()| machine.write(at + 60, &entry[60..]));
        queue.producer = queue.producer.wrapping_add(1);
        let (armed, vector) = (std::mem::take(&mut queue.armed), queue.vector);
        if written.is_err() {
            self.complain(format!("no memory for an event at {at:#x}"));
        }
        if armed {
            self.interrupt(vector, machine);
        }
    }

    /// Reports an event about a queue or queue pair to the event queue that is subscribed to its type.
    pub(super) fn report_event(
        &mut self,
        kind: u8,
        number: u32,
        sub: u8,
        machine: &mut dyn Machine,
    ) {
        let Some(queue) = self.asynchronous(kind) else { return };
        let mut data = [0; 28];
        data[0x14] = sub;
        put32(&mut data, 24, number);
        self.event(queue, kind, 0, &data, machine);
    }

    /// Reports a change of the link since the last event.
    pub(super) fn watch_link(&mut self, machine: &mut dyn Machine) {
        if self.link == self.state.reported_link {
            return;
        }
        self.state.reported_link = self.link;
        let Some(queue) = self.asynchronous(PORT) else { return };
        let mut data = [0; 28];
        data[8] = 1 << 4;
        self.event(queue, PORT, if self.link { UP } else { DOWN }, &data, machine);
    }
}

fn queue_of(queue: &super::completion_queue::CompletionQueue) -> u32 {
    queue.events
}
