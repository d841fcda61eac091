//! Ethernet send and receive queues: their commands and state.

use super::Mlx5;
use super::buffer::Buffer;
use super::command::{BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, made, refuse};
use super::fields::{be32, get};
use super::objects::{Kind, To};
use crate::Machine;

/// States of a queue.
pub const RESET: u8 = 0;
pub const READY: u8 = 1;
pub const FAILED: u8 = 3;

/// A send or a receive queue.
#[derive(Clone, Debug, Default)]
pub struct WorkQueue {
    pub buffer: Buffer,
    /// Log2 of the number of blocks.
    pub log: u32,
    /// Log2 of a block's bytes.
    pub stride: u32,
    /// The doorbell record.
    pub record: u64,
    /// The next block to execute.
    pub consumer: u16,
    pub completions: u32,
    pub state: u8,
    pub domain: u32,
    pub uar: u32,
    /// The transport interface; 0: none.
    pub tis: u32,
    /// The queue may use the reserved key.
    pub reserved_key: bool,
    /// VLAN tags stay in received frames.
    pub keeps_tags: bool,
    /// Headers of a frame that must be inline in the work request.
    pub min_inline: u8,
}

impl WorkQueue {
    /// The address of a block.
    pub fn block(&self, number: u16) -> Option<u64> {
        self.buffer.at((u64::from(number) & ((1 << self.log) - 1)) << self.stride)
    }

    /// Reads the counter of posted blocks from the doorbell record: the send or the receive counter.
    pub fn posted(&self, send: bool, machine: &mut dyn Machine) -> u16 {
        let mut bytes = [0; 4];
        let _ = machine.read(self.record + if send { 4 } else { 0 }, &mut bytes);
        u32::from_be_bytes(bytes) as u16
    }
}

impl Mlx5 {
    pub(super) fn work_queue_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let number = be32(input, 8) & 0xff_ffff;
        match opcode {
            0x904 | 0x908 => self.create_work_queue(opcode == 0x904, input),
            0x905 | 0x909 => self.modify_work_queue(opcode == 0x905, number, input),
            _ => {
                let receive = opcode == 0x90a;
                let mut tables = self.state.indirections.values();
                let used = tables.any(|table| table.queues.contains(&number))
                    || self.state.tirs.values().any(|tir| tir.to == To::Queue(number));
                if receive && used {
                    let why = format!("receive queue {number:#x} is in use");
                    return refuse(BAD_RESOURCE_STATE, why);
                }
                let queues = match receive {
                    true => &mut self.state.receive_queues,
                    false => &mut self.state.send_queues,
                };
                match queues.remove(&number) {
                    Some(_) => done(),
                    None => refuse(BAD_RESOURCE, format!("queue {number:#x}")),
                }
            }
        }
    }

    fn create_work_queue(&mut self, send: bool, input: &[u8]) -> Reply {
        let context = &input[0x20..];
        let part = &context[0x30..];
        let (log, stride) = (get(part, 0x11b, 5) as u32, get(part, 0x10c, 4) as u32);
        let (page, offset) = (get(part, 0x113, 5), get(part, 0x2b, 5));
        let pages = Buffer::new(&part[0xc0..], page, offset);
        let Some(buffer) = pages.filter(|buffer| log <= 15 && buffer.holds(1 << (log + stride)))
        else {
            return refuse(BAD_PARAMETER, format!("memory for 2^{log} blocks of 2^{stride}"));
        };
        if get(part, 0, 4) != 1 || stride < 4 || send && stride != 6 {
            return refuse(BAD_PARAMETER, "only cyclic queues are modelled");
        }
        if get(context, 8, 4) != RESET.into() {
            return refuse(BAD_PARAMETER, "a new queue must be in reset");
        }
        let completions = get(context, 0x48, 24) as u32;
        if !self.state.completion_queues.contains_key(&completions) {
            return refuse(BAD_RESOURCE, format!("completion queue {completions:#x}"));
        }
        let (uar, record) = (get(part, 0x68, 24) as u32, get(part, 0x80, 64));
        if record % 8 != 0 || record == 0 {
            return refuse(BAD_PARAMETER, format!("a doorbell record at {record:#x}"));
        }
        let (domain, tis) = (get(part, 0x48, 24) as u32, get(context, 0x168, 24) as u32);
        // Send queues have no domain. A receive queue that only drops frames has none, either.
        if !send && domain != 0 {
            self.check_domain(domain)?;
        }
        if send {
            self.check_uar(uar)?;
            // A queue without a transport interface sends no frames: it is for key changes.
            let count = get(context, 0x100, 16);
            if count > 1 || (count == 1) != self.exists(Kind::Tis, tis) {
                return refuse(BAD_RESOURCE, format!("{count} TIS {tis:#x}"));
            }
        }
        let queue = WorkQueue {
            buffer,
            log,
            stride,
            record,
            completions,
            domain,
            uar,
            tis,
            reserved_key: get(context, 0, 1) == 1,
            keeps_tags: get(context, 3, 1) == 1,
            min_inline: get(context, 5, 3) as u8,
            ..WorkQueue::default()
        };
        let (opcode, first) = if send { (0x904, 0x1000) } else { (0x908, 0x2000) };
        let number = self.state.number(opcode, first);
        let queues = match send {
            true => &mut self.state.send_queues,
            false => &mut self.state.receive_queues,
        };
        queues.insert(number, queue);
        made(number)
    }

    fn modify_work_queue(&mut self, send: bool, number: u32, input: &[u8]) -> Reply {
        let (old, new) = ((be32(input, 8) >> 28) as u8, get(&input[0x20..], 8, 4) as u8);
        let queues = match send {
            true => &mut self.state.send_queues,
            false => &mut self.state.receive_queues,
        };
        let Some(queue) = queues.get_mut(&number) else {
            return refuse(BAD_RESOURCE, format!("queue {number:#x}"));
        };
        if queue.state != old {
            return refuse(BAD_RESOURCE_STATE, format!("state {}, not {old}", queue.state));
        }
        match (old, new) {
            // Unchanged state: rate limits or tag stripping change.
            (READY, READY) => {}
            (RESET, READY) | (RESET | READY, FAILED) => queue.state = new,
            (READY | FAILED, RESET) => (queue.state, queue.consumer) = (new, 0),
            (FAILED, FAILED) | (RESET, RESET) => {}
            _ => return refuse(BAD_PARAMETER, format!("from state {old} to {new}")),
        }
        let selected = be32(input, 0x14);
        if !send && selected & 2 != 0 {
            queue.keeps_tags = get(&input[0x20..], 3, 1) == 1;
        }
        done()
    }
}
