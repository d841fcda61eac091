//! A queue pair: its parameters, memory and state.

use super::context::{self, Make, Service};
use super::memory::Buffer;
use super::mkey;
use super::receive_queue::{ReceiveQueue, Shape};
use super::requests::{self, RequestLimits};
use super::send_queue::{Change, SendQueue};
use alloc::vec::Vec;
use drivers::hal::{Arena, Window};
use softverbs::handle_table::HandleTable;
use verbs::{
    ConnectionId, CqId, PdId, QpId, QpInit, QpState, QpType, ReadyToReceive, ReadyToSend,
    VerbsError,
};

/// Bytes of a doorbell record; each has a cache line of its own.
pub const RECORD: usize = 8;
/// Bounds of the changes of keys that may be outstanding in a queue pair; in between, as many as its receives.
const LEAST_CHANGES: u32 = 16;
const MOST_CHANGES: u32 = 512;
/// Blocks of a change: one key is granted, another revoked.
const CHANGE_BLOCKS: u32 = mkey::GRANT_BLOCKS + mkey::REVOKE_BLOCKS;

/// Memory and numbers of a destroyed queue pair, which are released when the card has destroyed it.
#[derive(Debug)]
pub struct DestroyedPair {
    pub id: QpId,
    pub number: u32,
    pub pd: PdId,
    pub buffer: Buffer,
    pub record: Window,
    /// Completions reserved for it.
    pub completions: u32,
    /// Changes of keys that it had not completed.
    pub undone: Vec<Change>,
}

/// A queue pair.
pub struct Pair {
    pub id: QpId,
    pub number: u32,
    /// The card's life in which it was made.
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
    pub limits: RequestLimits,
    /// Most completions that it can have at a time.
    pub completions: u32,
    /// The state that was requested, and the state that it has.
    pub requested: QpState,
    pub state: QpState,
    pub peer: Option<ReadyToReceive>,
    pub to: Option<ReadyToSend>,
    /// Index of its own GID.
    pub index: u8,
    /// Whether it is in the list of queue pairs whose doorbell is to be rung.
    pub listed: bool,
    /// Whether its user requested its failure.
    pub fails_on_request: bool,
    pub error_reported: bool,
    /// Whether a packet of the peer has arrived.
    pub peer_seen: bool,
    pub connection: Option<ConnectionId>,
    pub initial_psn: u32,
}

/// Sizes of the queues of a queue pair.
pub struct Size {
    pub receives: Shape,
    pub send_log: u32,
    /// Most blocks of a request.
    pub blocks: u32,
    pub completions: u32,
}

impl Size {
    /// The sizes for `init`. `Invalid` if the send queue exceeds 2^15 blocks.
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

/// The memory of a queue pair's queues.
pub struct Memory {
    pub buffer: Buffer,
    pub record: Window,
    pub sends: SendQueue,
    pub receives: ReceiveQueue,
}

impl Memory {
    /// Allocates it from the arena.
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
    /// Adds it to the list of queue pairs whose doorbell is to be rung.
    #[inline]
    pub fn list(&mut self, unflushed: &mut Vec<u32>) {
        if !core::mem::replace(&mut self.listed, true) {
            unflushed.push(HandleTable::<Pair>::index(self.id.0) as u32);
        }
    }

    /// Its service, as in contexts.
    pub fn service(&self) -> Service {
        self.make.service
    }

    /// Whether the card may execute posted requests: it sends them, or flushes them.
    pub fn can_execute(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Error)
    }

    /// The input of the command for the transition to ready-to-receive.
    pub fn to_receive(&self) -> Vec<u8> {
        match (&self.peer, self.service()) {
            (Some(peer), Service::Reliable) => {
                context::connect(self.number, peer, self.index, requests::LOG_MAX_MESSAGE)
            }
            _ => context::receive(self.number, self.service()),
        }
    }

    /// The input of the command for the transition to ready-to-send.
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

/// The source address of a datagram, from the 40 bytes before it.
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

/// The destination address of a datagram.
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
    fn datagram_header_has_source_and_destination() {
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
