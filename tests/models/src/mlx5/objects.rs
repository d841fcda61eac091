//! Passive objects: domains, doorbell pages, counter sets, transport interfaces (TIS, TIR), and receive queue tables
//! (RQT).

use super::command::{
    BAD_OPERATION, BAD_PARAMETER, BAD_RESOURCE, BAD_RESOURCE_STATE, Reply, done, made, refuse,
};
use super::fields::{be16, be32, get};
use super::form::Wrong;
use super::{BAR_0, Mlx5, UARS};

/// Kinds of objects that have only a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ProtectionDomain,
    TransportDomain,
    XrcDomain,
    Uar,
    CounterSet,
    Tis,
    SharedReceiveQueue,
}

/// A transport interface receive: the destination of received frames.
#[derive(Clone, Debug)]
pub struct Tir {
    /// One queue, or a table that is indexed by a hash.
    pub to: To,
    pub key: [u8; 40],
    /// Hash function: 0 none, 1 XOR, 2 Toeplitz.
    pub hash: u8,
    /// Hashed fields, a bit each: 1 source, 2 destination, 4 source port, 8 destination port.
    pub fields: u32,
}

/// Destination of a TIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Queue(u32),
    Table(u32),
}

/// Receive queues, indexed by a hash.
#[derive(Clone, Debug, Default)]
pub struct Indirection {
    pub queues: Vec<u32>,
    most: usize,
}

impl Mlx5 {
    pub(super) fn exists(&self, kind: Kind, number: u32) -> bool {
        self.state.plain.contains(&(kind, number))
    }

    /// Checks that the doorbell page is allocated.
    pub(super) fn check_uar(&self, number: u32) -> Result<(), Wrong> {
        match self.exists(Kind::Uar, number) {
            true => Ok(()),
            false => Err((BAD_RESOURCE, format!("doorbell page {number:#x}"))),
        }
    }

    /// Checks that the protection domain exists.
    pub(super) fn check_domain(&self, number: u32) -> Result<(), Wrong> {
        match self.exists(Kind::ProtectionDomain, number) {
            true => Ok(()),
            false => Err((BAD_RESOURCE, format!("protection domain {number:#x}"))),
        }
    }

    fn allocate(&mut self, kind: Kind, opcode: u16, first: u32, last: u32) -> Reply {
        let number = self.state.number(opcode, first);
        // Numbers wrap where the range is small.
        let number = first + (number - first) % (last - first + 1);
        if !self.state.plain.insert((kind, number)) {
            return refuse(8, format!("there are no more of {kind:?}"));
        }
        made(number)
    }

    fn free(&mut self, kind: Kind, number: u32) -> Reply {
        if self.is_used(kind, number) {
            return refuse(BAD_RESOURCE_STATE, format!("{kind:?} {number:#x} is in use"));
        }
        match self.state.plain.remove(&(kind, number)) {
            true => done(),
            false => refuse(BAD_RESOURCE, format!("{kind:?} {number:#x}")),
        }
    }

    fn is_used(&self, kind: Kind, number: u32) -> bool {
        let state = &self.state;
        match kind {
            Kind::ProtectionDomain => {
                state.keys.values().any(|key| key.domain() == number)
                    || state.queue_pairs.values().any(|pair| pair.domain() == number)
            }
            Kind::Tis => state.send_queues.values().any(|queue| queue.tis == number),
            Kind::Uar => {
                let mut queues = state.send_queues.values();
                queues.any(|queue| queue.uar == number)
                    || state.queue_pairs.values().any(|pair| pair.uar == number)
            }
            _ => false,
        }
    }

    pub(super) fn object_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        const ANY: u32 = 0xff_ffff;
        let number = be32(input, 8) & ANY;
        let last_uar = (BAR_0 >> 12) as u32 - 1;
        match opcode {
            0x800 => self.allocate(Kind::ProtectionDomain, opcode, 1, ANY),
            0x801 => self.free(Kind::ProtectionDomain, number),
            0x802 => self.allocate(Kind::Uar, opcode, (UARS >> 12) as u32, last_uar),
            0x803 => self.free(Kind::Uar, number),
            0x80e => self.allocate(Kind::XrcDomain, opcode, 1, ANY),
            0x80f => self.free(Kind::XrcDomain, number),
            0x816 => self.allocate(Kind::TransportDomain, opcode, 1, ANY),
            0x817 => self.free(Kind::TransportDomain, number),
            0x771 => self.allocate(Kind::CounterSet, opcode, 1, 0xff),
            0x772 => self.free(Kind::CounterSet, number & 0xff),
            0x705 | 0x90c => self.allocate(Kind::SharedReceiveQueue, 0x705, 0x40, ANY),
            0x706 | 0x90e => self.free(Kind::SharedReceiveQueue, number),
            0x912 => {
                let domain = be32(input, 0x44) & ANY;
                if !self.exists(Kind::TransportDomain, domain) {
                    return refuse(BAD_RESOURCE, format!("transport domain {domain:#x}"));
                }
                self.allocate(Kind::Tis, opcode, 1, ANY)
            }
            0x913 => match self.exists(Kind::Tis, number) {
                true => done(),
                false => refuse(BAD_RESOURCE, format!("TIS {number:#x}")),
            },
            0x914 => self.free(Kind::Tis, number),
            0x900..=0x902 => self.tir_command(opcode, number, input),
            0x916..=0x918 => self.indirection_command(opcode, number, input),
            _ => refuse(BAD_OPERATION, "it is not modelled"),
        }
    }

    fn tir_command(&mut self, opcode: u16, number: u32, input: &[u8]) -> Reply {
        if opcode == 0x902 {
            if self.state.tables.values().any(|table| table.leads_to(number)) {
                return refuse(BAD_RESOURCE_STATE, format!("flow entries use TIR {number:#x}"));
            }
            return match self.state.tirs.remove(&number) {
                Some(_) => done(),
                None => refuse(BAD_RESOURCE, format!("TIR {number:#x}")),
            };
        }
        let context = &input[0x20..];
        let mut key = [0; 40];
        key.copy_from_slice(&context[0x28..0x50]);
        let (hash, fields) = (get(context, 0x120, 4) as u8, be32(context, 0x50));
        if opcode == 0x901 {
            let selected = be32(input, 0x14);
            let Some(tir) = self.state.tirs.get_mut(&number) else {
                return refuse(BAD_RESOURCE, format!("TIR {number:#x}"));
            };
            if selected & 4 != 0 {
                (tir.key, tir.hash, tir.fields) = (key, hash, fields);
            }
            return done();
        }
        let to = match get(context, 0x20, 4) {
            0 => To::Queue(get(context, 0xe8, 24) as u32),
            1 => To::Table(get(context, 0x108, 24) as u32),
            how => return refuse(BAD_PARAMETER, format!("a TIR of type {how}")),
        };
        let leads = match to {
            To::Queue(queue) => self.state.receive_queues.contains_key(&queue),
            To::Table(table) => self.state.indirections.contains_key(&table),
        };
        let domain = get(context, 0x128, 24) as u32;
        if !leads || !self.exists(Kind::TransportDomain, domain) {
            return refuse(BAD_RESOURCE, format!("{to:?} or transport domain {domain:#x}"));
        }
        if get(context, 0x84, 16) != 0 || get(context, 0x94, 4) != 0 {
            return refuse(BAD_PARAMETER, "LRO is not modelled");
        }
        let number = self.state.number(opcode, 1);
        self.state.tirs.insert(number, Tir { to, key, hash, fields });
        made(number)
    }

    fn indirection_command(&mut self, opcode: u16, number: u32, input: &[u8]) -> Reply {
        if opcode == 0x918 {
            if self.state.tirs.values().any(|tir| tir.to == To::Table(number)) {
                return refuse(BAD_RESOURCE_STATE, format!("RQT {number:#x} is in use"));
            }
            return match self.state.indirections.remove(&number) {
                Some(_) => done(),
                None => refuse(BAD_RESOURCE, format!("RQT {number:#x}")),
            };
        }
        let (most, count) = (be16(input, 0x36) as usize, be16(input, 0x3a) as usize);
        let list = input[0x110..].chunks_exact(4);
        let queues: Vec<u32> = list.map(|entry| be32(entry, 0) & 0xff_ffff).collect();
        if queues.len() != count || !count.is_power_of_two() {
            return refuse(BAD_PARAMETER, format!("{count} queues, {} in the list", queues.len()));
        }
        if let Some(queue) = queues.iter().find(|at| !self.state.receive_queues.contains_key(at)) {
            return refuse(BAD_RESOURCE, format!("receive queue {queue:#x}"));
        }
        if opcode == 0x917 {
            let Some(table) = self.state.indirections.get_mut(&number) else {
                return refuse(BAD_RESOURCE, format!("RQT {number:#x}"));
            };
            if be32(input, 0x14) != 1 || count > table.most {
                return refuse(BAD_PARAMETER, format!("{count} queues of {} at most", table.most));
            }
            table.queues = queues;
            return done();
        }
        if count > most {
            return refuse(BAD_PARAMETER, format!("{count} queues of {most} at most"));
        }
        let number = self.state.number(opcode, 1);
        self.state.indirections.insert(number, Indirection { queues, most });
        made(number)
    }
}
