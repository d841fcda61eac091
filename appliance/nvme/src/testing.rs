//! An initiator for tests and simulations: builds commands, and keeps their completions. Bytes are arguments.

use crate::command::{FABRICS, fabrics};
use alloc::vec::Vec;
use drivers::hal::Window;
use nvme_tcp::host::{Connection, Event};

/// A command before its identifier and SGL are filled in.
#[derive(Clone, Copy, Debug)]
pub struct Sqe(pub [u8; 64]);

impl Sqe {
    /// A command of that opcode.
    pub fn new(opcode: u8) -> Sqe {
        let mut entry = [0; 64];
        entry[0] = opcode;
        entry[1] = 0x40;
        Sqe(entry)
    }

    /// Sets bytes.
    pub fn with(mut self, offset: usize, bytes: &[u8]) -> Sqe {
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Sets the namespace.
    pub fn nsid(self, nsid: u32) -> Sqe {
        self.with(4, &nsid.to_le_bytes())
    }

    /// A Connect: `entries` is not 0's based.
    pub fn connect(qid: u16, entries: u16, kato: u32, no_flow_control: bool) -> Sqe {
        Sqe::new(FABRICS)
            .with(4, &[fabrics::CONNECT])
            .with(42, &qid.to_le_bytes())
            .with(44, &(entries.wrapping_sub(1)).to_le_bytes())
            .with(46, &[if no_flow_control { 4 } else { 0 }])
            .with(48, &kato.to_le_bytes())
    }

    /// Reads a property.
    pub fn property_get(offset: u32, wide: bool) -> Sqe {
        let get = Sqe::new(FABRICS).with(4, &[fabrics::PROPERTY_GET]);
        get.with(40, &[u8::from(wide)]).with(44, &offset.to_le_bytes())
    }

    /// Writes a property.
    pub fn property_set(offset: u32, value: u32) -> Sqe {
        let set = Sqe::new(FABRICS).with(4, &[fabrics::PROPERTY_SET]);
        set.with(44, &offset.to_le_bytes()).with(48, &value.to_le_bytes())
    }

    /// Identify.
    pub fn identify(cns: u8, nsid: u32) -> Sqe {
        Sqe::new(0x06).nsid(nsid).with(40, &[cns])
    }

    /// Get Log Page, a range of `bytes` bytes.
    pub fn log(page: u8, specific: u8, start: u64, bytes: u32) -> Sqe {
        let dwords = (bytes / 4).wrapping_sub(1);
        let log = Sqe::new(0x02).nsid(u32::MAX).with(40, &[page, specific]);
        let log = log.with(42, &(dwords as u16).to_le_bytes());
        log.with(44, &((dwords >> 16) as u16).to_le_bytes()).with(48, &start.to_le_bytes())
    }

    /// Set Features.
    pub fn set_feature(feature: u8, value: u32) -> Sqe {
        Sqe::new(0x09).with(40, &[feature]).with(44, &value.to_le_bytes())
    }

    /// A command on blocks; `blocks` is not 0's based.
    pub fn blocks(opcode: u8, nsid: u32, first: u64, blocks: u32, control: u16) -> Sqe {
        let count = blocks.wrapping_sub(1) as u16;
        let sqe = Sqe::new(opcode).nsid(nsid).with(40, &first.to_le_bytes());
        sqe.with(48, &count.to_le_bytes()).with(50, &control.to_le_bytes())
    }
}

/// Data of a Connect.
pub fn connect_data(host_id: u8, cntlid: u16, subnqn: &str, hostnqn: &str) -> [u8; 1024] {
    let mut data = [0; 1024];
    data[..16].fill(host_id);
    data[16..18].copy_from_slice(&cntlid.to_le_bytes());
    data[256..256 + subnqn.len()].copy_from_slice(subnqn.as_bytes());
    data[512..512 + hostnqn.len()].copy_from_slice(hostnqn.as_bytes());
    data
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the command.
    pub cid: u16,
    /// Status, as in [`crate::Status`].
    pub status: u16,
    /// The first eight bytes.
    pub result: u64,
    /// Head of the submission queue.
    pub sq_head: u16,
    /// Bytes of data that arrived or were sent.
    pub data: usize,
}

/// Direction of a command's data, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// No data.
    None,
    /// To the controller, in the capsule.
    InCapsule,
    /// To the controller, when it asks.
    Out,
    /// To the host.
    In,
}

/// The host's side of a queue.
#[derive(Debug)]
pub struct Initiator {
    /// The connection.
    pub connection: Connection,
    free: Vec<u16>,
    /// Bytes that the target has not taken yet, for the test that moves them.
    pub unsent: Vec<u8>,
    /// Completions that were not taken.
    pub completions: Vec<Completion>,
}

impl Initiator {
    /// A queue with these digests (bit 0 headers, bit 1 data), for `depth` commands at a time.
    pub fn new(digests: u8, depth: usize) -> Initiator {
        let connection = Connection::new(digests, 0, depth);
        let free = (0..depth as u16).rev().collect();
        Initiator { connection, free, unsent: Vec::new(), completions: Vec::new() }
    }

    /// Sends a command. Returns its identifier; None if the queue is full.
    pub fn submit(&mut self, sqe: Sqe, data: Window, carry: Carry) -> Option<u16> {
        let cid = self.free.pop()?;
        let kind = if carry == Carry::InCapsule { 0x01 } else { 0x5a };
        let length = (data.len() as u32).to_le_bytes();
        let sqe = sqe.with(2, &cid.to_le_bytes()).with(32, &length).with(39, &[kind]);
        self.submit_as_is(cid, sqe, data, carry);
        Some(cid)
    }

    /// Sends a command whose identifier and SGL are filled in.
    pub fn submit_as_is(&mut self, _: u16, sqe: Sqe, data: Window, carry: Carry) {
        let (reads, in_capsule) = (carry == Carry::In, carry == Carry::InCapsule);
        self.connection.submit(&sqe.0, data, reads, in_capsule);
    }

    /// Handles received bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (taken, event) = self.connection.receive(&bytes[at..]);
            at += taken;
            if let Some(Event::Completed { cqe, data, .. }) = event {
                let u16_at = |at: usize| u16::from_le_bytes([cqe[at], cqe[at + 1]]);
                let mut result = [0; 8];
                result.copy_from_slice(&cqe[..8]);
                let cid = u16_at(12);
                self.free.push(cid);
                self.completions.push(Completion {
                    cid,
                    status: u16_at(14) >> 1,
                    result: u64::from_le_bytes(result),
                    sq_head: u16_at(8),
                    data,
                });
            }
        }
    }

    /// Takes the completion of a command.
    pub fn take(&mut self, cid: u16) -> Option<Completion> {
        let place = self.completions.iter().position(|one| one.cid == cid)?;
        Some(self.completions.remove(place))
    }
}
