//! A queue pair.

use super::context::{self, Make, Service};
use super::memory::Buffer;
use super::mkey;
use super::receive_queue::{ReceiveQueue, Shape};
use super::requests::{self, Most};
use super::send_queue::{Change, SendQueue};
use alloc::vec::Vec;
use drivers::hal::{Arena, Window};
use softverbs::handle_table::HandleTable;
use verbs::{
    ConnectionId, CqId, PdId, QpId, QpInit, QpState, QpType, ReadyToReceive, ReadyToSend,
    VerbsError,
};

/// Bytes of a doorbell record, and of the line that it has for itself.
pub const RECORD: usize = 8;
/// Changes of keys that may be outstanding in a queue pair: as many as receives, at least and at most.
const LEAST_CHANGES: u32 = 16;
const MOST_CHANGES: u32 = 512;
/// Blocks of a change: one key is given, another taken back.
const CHANGE_BLOCKS: u32 = mkey::GIVE_BLOCKS + mkey::TAKE_BLOCKS;

/// Memory and numbers of a queue pair, that are let go of when the card has.
#[derive(Debug)]
pub struct Gone {
    pub id: QpId,
    pub number: u32,
    pub pd: PdId,
    pub buffer: Buffer,
    pub record: Window,
    /// Completions that it could have had.
    pub completions: u32,
    /// Changes of keys that it had not done.
    pub undone: Vec<Change>,
}

/// A queue pair.
pub struct Pair {
    pub id: QpId,
    pub number: u32,
    /// The card's life that it was made in.
    pub life: u64,
    pub kind: QpType,
    pub pd: PdId,
    /// The domain's key for all memory.
    pub key: u32,
    pub send_cq: CqId,
    pub recv_cq: CqId,
    pub make: Make,
    pub sends: SendQueue,
    pub receives: ReceiveQueue,
    pub most: Most,
    /// Completions that it can have at most at a time.
    pub completions: u32,
    /// What was asked for, and what is reached.
    pub asked: QpState,
    pub reached: QpState,
    pub peer: Option<ReadyToReceive>,
    pub to: Option<ReadyToSend>,
    /// Index of the own GID.
    pub index: u8,
    /// It is listed as one with requests that the card was not told of.
    pub listed: bool,
    /// Somebody here has asked for its failure.
    pub fails_on_request: bool,
    pub error_told: bool,
    /// The peer was heard before it could send.
    pub heard: bool,
    pub connection: Option<ConnectionId>,
    pub initial_psn: u32,
}

/// How large the queues of one are.
pub struct Size {
    pub receives: Shape,
    pub send_log: u32,
    /// Blocks of a request at most.
    pub blocks: u32,
    pub completions: u32,
}

impl Size {
    /// As it is asked for. `Invalid` if that is more than 2^15 blocks.
    pub fn new(init: &QpInit) -> Result<Size, VerbsError> {
        let datagrams = matches!(init.kind, QpType::Ud { .. });
        let blocks = requests::blocks(init.max_send_sge, init.max_inline, datagrams);
        let changes = match datagrams {
            true => 0,
            false => init.max_recv_wr.clamp(LEAST_CHANGES, MOST_CHANGES),
        };
        let all = init.max_send_wr.max(1) * blocks + changes * CHANGE_BLOCKS;
        let send_log = all.next_power_of_two().ilog2();
        if send_log > 15 {
            return Err(VerbsError::Invalid);
        }
        Ok(Size {
            receives: Shape::new(init.max_recv_wr, init.max_recv_sge),
            send_log,
            blocks,
            completions: init.max_send_wr + 2 * changes + init.max_recv_wr,
        })
    }
}

/// The memory of queues.
pub struct Memory {
    pub buffer: Buffer,
    pub record: Window,
    pub sends: SendQueue,
    pub receives: ReceiveQueue,
}

impl Memory {
    /// Takes it of the arena.
    pub fn new(init: &QpInit, size: &Size, arena: &mut Arena) -> Result<Memory, VerbsError> {
        let bytes = size.receives.bytes() + (64 << size.send_log);
        let buffer = Buffer::new(bytes, arena)?;
        let Some(record) = arena.alloc(RECORD, 64) else {
            arena.free(buffer.window);
            return Err(VerbsError::NoRoom);
        };
        record.fill(0);
        let datagrams = matches!(init.kind, QpType::Ud { .. });
        let place = size.receives.bytes();
        let memory = &buffer.window;
        let sends =
            SendQueue::new(memory, place, size.send_log, record, init.max_send_wr, size.blocks)?;
        let receives = ReceiveQueue::new(
            memory,
            record,
            size.receives,
            init.max_recv_wr,
            init.max_recv_sge,
            datagrams,
        )?;
        Ok(Memory { buffer, record, sends, receives })
    }
}

impl Pair {
    /// Lists it as one with requests that the card was not told of.
    #[inline(always)]
    pub fn list(&mut self, news: &mut Vec<u32>) {
        if !core::mem::replace(&mut self.listed, true) {
            news.push(HandleTable::<Pair>::index(self.id.0) as u32);
        }
    }

    /// Its own kind, as contexts have it.
    pub fn service(&self) -> Service {
        self.make.service
    }

    /// Whether what is posted is told to the card: it sends, or flushes all.
    pub fn is_told(&self) -> bool {
        matches!(self.reached, QpState::Rts | QpState::Error)
    }

    /// The input of the command that takes it to ready-to-receive.
    pub fn to_receive(&self) -> Vec<u8> {
        match (&self.peer, self.service()) {
            (Some(peer), Service::Reliable) => {
                context::connect(self.number, peer, self.index, requests::LOG_MAX_MESSAGE)
            }
            _ => context::receive(self.number, self.service()),
        }
    }

    /// That which takes it to ready-to-send.
    pub fn to_send(&self) -> Vec<u8> {
        let first = ReadyToSend {
            sq_psn: 0,
            max_rd_atomic: 0,
            ack_timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
        };
        context::send(self.number, self.to.as_ref().unwrap_or(&first))
    }
}

/// The address that a datagram was sent from, by the 40 bytes in front of it.
pub fn source(header: &[u8; 40], is_ipv4: bool) -> core::net::IpAddr {
    let mut address = [0; 16];
    match is_ipv4 {
        true => {
            (address[10], address[11]) = (0xff, 0xff);
            address[12..].copy_from_slice(&header[32..36]);
        }
        false => address.copy_from_slice(&header[8..24]),
    }
    core::net::IpAddr::from(address).to_canonical()
}

/// The address that it was sent to.
pub fn destination(header: &[u8; 40], is_ipv4: bool) -> core::net::IpAddr {
    let mut address = [0; 16];
    match is_ipv4 {
        true => {
            (address[10], address[11]) = (0xff, 0xff);
            address[12..].copy_from_slice(&header[36..40]);
        }
        false => address.copy_from_slice(&header[24..40]),
    }
    core::net::IpAddr::from(address).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::gid;

    #[test]
    fn datagrams_say_where_they_come_from() {
        let mut header = [0; 40];
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        header[36..].copy_from_slice(&[10, 0, 0, 2]);
        assert_eq!(source(&header, true), core::net::IpAddr::from([10, 0, 0, 1]));
        assert_eq!(destination(&header, true), core::net::IpAddr::from([10, 0, 0, 2]));
        let address = core::net::IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 7u16]);
        header[8..24].copy_from_slice(&gid(address));
        header[24..].copy_from_slice(&gid(address));
        assert_eq!((source(&header, false), destination(&header, false)), (address, address));
    }
}
